"""Models, loaded: every way gives the bytes of the file, and what safetensors gives."""

import asyncio
import copy as copy_module
import gc
import logging
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
import weakref

import numpy
import pytest

import penstock
from models import raw, write_gguf, write_model
from penstock import _models

torch = pytest.importorskip("torch")


def test_every_tensor_has_the_bytes_of_the_file(mixed):
    path, contents = mixed
    for framework in ("pt", "np"):
        tensors = penstock.load_file(path, framework=framework)
        assert {name: raw(tensor) for name, tensor in tensors.items()} == contents
    assert tensors.metadata == {"about": "a test", "größe": "1"}
    assert tensors.report.outcome == "done"
    assert tensors.report.wanted_bytes == sum(map(len, contents.values()))
    assert tensors.report.read_bytes >= tensors.report.wanted_bytes


def test_a_model_may_lie_in_any_store(mixed):
    path, contents = mixed
    with penstock.Context() as context:
        for name in (f"soft-nvme:{path}", f"file:{path}"):
            tensors = penstock.load_file(name, context=context)
            assert {name: raw(tensor) for name, tensor in tensors.items()} == contents
            with penstock.safe_open(name, "pt", context=context) as file:
                assert {name: raw(file.get_tensor(name)) for name in file.keys()} == contents
            assert {name: raw(tensor) for name, tensor in penstock.stream(name, context=context)} == contents


def test_all_is_one_request(mixed):
    with penstock.Context() as context:
        penstock.load_file(mixed[0], context=context)
        assert context.statistics()["requests"] == 1


def test_what_safetensors_gives_we_give(mixed):
    safetensors = pytest.importorskip("safetensors")
    import safetensors.numpy
    import safetensors.torch

    path, _ = mixed
    data = path.read_bytes()
    for theirs, ours in [
        (safetensors.torch.load_file(path), penstock.torch.load_file(path)),
        (safetensors.torch.load_file(path), penstock.torch.load_file(str(path), device="cpu", backend="mmap")),
        (safetensors.torch.load(data), penstock.torch.load(data)),
        (safetensors.numpy.load_file(path), penstock.numpy.load_file(path)),
        (safetensors.numpy.load(data), penstock.numpy.load(data)),
    ]:
        assert theirs.keys() == ours.keys()
        for name, tensor in theirs.items():
            assert type(tensor) is type(ours[name])
            assert (tensor.dtype, tuple(tensor.shape)) == (ours[name].dtype, tuple(ours[name].shape)), name
            assert raw(tensor) == raw(ours[name])
    for framework in ("pt", "np"):
        with safetensors.safe_open(path, framework) as their, penstock.safe_open(path, framework) as our:
            assert their.keys() == our.keys()
            assert their.offset_keys() == our.offset_keys()
            assert their.metadata() == our.metadata()
            assert their.get_tensors().keys() == our.get_tensors().keys()
            for name in their.keys():
                assert raw(their.get_tensor(name)) == raw(our.get_tensor(name))
                assert their.get_slice(name).get_shape() == our.get_slice(name).get_shape()
                assert their.get_slice(name).get_dtype() == our.get_slice(name).get_dtype()


# The README and the documentation of safetensors, in their own words.
EXAMPLES = ['''
import torch
from safetensors import safe_open
from safetensors.torch import save_file

tensors = {
   "weight1": torch.zeros((1024, 1024)),
   "weight2": torch.zeros((1024, 1024))
}
save_file(tensors, "model.safetensors")

tensors = {}
with safe_open("model.safetensors", framework="pt", device="cpu") as f:
   for key in f.keys():
       tensors[key] = f.get_tensor(key)
assert sorted(tensors) == ["weight1", "weight2"] and not tensors["weight1"].any()
''', '''
import torch
from safetensors.torch import save_file
save_file({"embedding": torch.arange(60.).reshape(10, 6)}, "model.safetensors")

from safetensors import safe_open

with safe_open("model.safetensors", framework="pt", device="cpu") as f:
    tensor_slice = f.get_slice("embedding")
    vocab_size, hidden_dim = tensor_slice.get_shape()
    tensor = tensor_slice[:, :hidden_dim]
    tensor_part = f.get_slice("embedding")[:, ::8]
assert tensor.shape == (10, 6) and tensor_part.shape == (10, 1)
''', '''
from safetensors.torch import save, load
import torch

tensors = {"embedding": torch.zeros((512, 1024)), "attention": torch.zeros((256, 256))}
byte_data = save(tensors)
open("bert.safetensors", "wb").write(byte_data)

with open("bert.safetensors", "rb") as f:
    data = f.read()
loaded = load(data)
assert loaded["attention"].shape == (256, 256)
''', '''
from safetensors.numpy import save_file, load_file, save, load
import numpy as np

tensors = {"embedding": np.zeros((512, 1024)), "attention": np.zeros((256, 256))}
save_file(tensors, "model.safetensors")
loaded = load_file("model.safetensors")
assert load(save(loaded))["embedding"].shape == (512, 1024)
''', '''
import torch
from safetensors.torch import load_model, save_model

model = torch.nn.Linear(3, 4)
save_model(model, "model.safetensors")
# Instead of save_file(model.state_dict(), "model.safetensors")
load_model(model, "model.safetensors")
# Instead of model.load_state_dict(load_file("model.safetensors"))
''']


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_safetensors_run_with_the_import_changed(tmp_path, monkeypatch, example):
    monkeypatch.chdir(tmp_path)
    changed = example.replace("from safetensors", "from penstock")
    assert changed != example
    exec(changed, {})


def test_a_load_that_fails_half_way_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "model"
    write_model(path, [("a", "U8", (4 << 20,)), ("b", "U8", (4 << 20,))])
    framework = type(_models.framework_named("np"))
    allocate = framework.allocate
    memory = []

    def half(arrays):
        memory.extend(weakref.ref(array.base) for array in arrays)
        yield arrays.pop()
        arrays.clear()
        raise MemoryError

    def allocate_and_fail(self, specs, domain):
        made = allocate(self, specs, domain)
        return made._replace(finish=lambda: half(made.finish()))

    monkeypatch.setattr(framework, "allocate", allocate_and_fail)
    with pytest.raises(MemoryError) as failure:
        penstock.load_file(path, framework="np", copy=True)
    assert len(memory) == 2 and all(reference() is None for reference in memory) and failure.tb is not None

    model = _models.Model(path)
    load = _models.Load(penstock.default_context(), model, _models.wanted(model, [0, 1], None),
                        _models.framework_named("np"), "cpu", mapping="none")
    with pytest.raises(MemoryError):
        load.finish()
    assert load.tensors == []


def kernel_read_bytes():
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            return int(dict(line.split(": ") for line in file)["read_bytes"])
    except (OSError, KeyError):
        pytest.skip("the kernel does not count what a process reads")


@pytest.mark.parametrize("columns", ["auto", "pieces", "whole"])
def test_what_is_read_beside_parts_is_told_as_the_kernel_counts_it(tmp_path, columns):
    path = tmp_path / "model"
    write_model(path, [("odd", "U8", (3,)), ("a", "F16", (600, 4096))])
    with penstock.Context(cache="bypass") as context:
        for _ in range(2):  # the first time, parts of libraries may be read as well
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            before = kernel_read_bytes()
            part = penstock.load_file(path, select=["a"], slices={"a": (1, slice(512, 1024))}, columns=columns,
                                      context=context)
            counted = kernel_read_bytes() - before
    if counted == 0:
        pytest.skip("nothing here comes from a disk")
    told = part.report.read_bytes
    assert told <= counted <= 1.05 * told + 32 * os.sysconf("SC_PAGE_SIZE")  # it reads the header too
    assert part.report.wanted_bytes == 600 * 1024 < told


def test_tensors_are_selected_by_name(mixed):
    path, contents = mixed
    chosen = penstock.load_file(path, select=["large", "scalar"])
    assert {name: raw(tensor) for name, tensor in chosen.items()} == {name: contents[name] for name in chosen}
    assert sorted(chosen) == ["large", "scalar"]
    assert set(penstock.load_file(path, select=lambda name: name.endswith("F16"))) == {f"layers.{i}.F16" for i in range(3)}
    assert penstock.load_file(path, select=[]) == {}
    assert set(penstock.load_file(path, select="layers.*.F16")) == {f"layers.{i}.F16" for i in range(3)}
    assert set(penstock.load_file(path, select=["large", "layers.[01].F16"])) == {"large", "layers.0.F16", "layers.1.F16"}
    with pytest.raises(penstock.MissingKeyError, match="no tensor of .* matches 'no.*'"):
        penstock.load_file(path, select=["large", "no.*"])
    with pytest.raises(KeyError, match="'nowhere'"):
        penstock.load_file(path, select=["nowhere"])


def test_parts_are_what_slicing_gives(mixed):
    path, _ = mixed
    whole = penstock.load_file(path)
    large, larger = whole["large"], whole["larger"]
    parts = penstock.load_file(path, slices={"large": slice(100, 200), "larger": (2, slice(-250, None))})
    assert torch.equal(parts["large"], large[100:200]) and torch.equal(parts["larger"], larger[:, :, -250:])
    for ranks in (2, 4, 8):
        for rank in range(ranks):
            rows, columns = 600 // ranks, 1000 // ranks
            part = penstock.load_file(path, select=["large"], slices=lambda name, shape: slice(rank * rows, (rank + 1) * rows))
            assert torch.equal(part["large"], large[rank * rows:(rank + 1) * rows])
            assert part.report.read_bytes <= 1.05 * part.report.wanted_bytes
            for how in ("auto", "pieces", "whole"):
                part = penstock.load_file(path, select=["large"], columns=how,
                                          slices={"large": (1, [(rank * columns, (rank + 1) * columns)])})
                assert torch.equal(part["large"], large[:, rank * columns:(rank + 1) * columns])
    fused = penstock.load_file(path, slices={"large": (0, [(0, 10), (200, 210), (400, 420)])})["large"]
    assert torch.equal(fused, torch.cat([large[:10], large[200:210], large[400:420]]))


@pytest.mark.parametrize("wrong", [
    {"large": (2, slice(1))}, {"large": (-3, slice(1))}, {"large": slice(None, None, 2)},
    {"large": (0, [])}, {"large": (0, [(5, 601)])}, {"large": (0, [(5, 4)])}, {"large": (0, [(-5, 4)])},
    {"large": (0, [(0, 1 << 70)])},
])
def test_parts_that_make_no_sense_are_refused(mixed, wrong):
    with pytest.raises(ValueError):
        penstock.load_file(mixed[0], slices=wrong)
    with pytest.raises(KeyError):
        penstock.load_file(mixed[0], slices={"nowhere": slice(1)})


def test_a_module_is_filled_where_it_is(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40))
    path = tmp_path / "module.safetensors"
    path.write_bytes(penstock.torch.save(module.state_dict()))
    other = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40))
    places = [tensor.data_ptr() for tensor in other.state_dict().values()]
    report = penstock.load_into(other, path)
    assert report.bytes >= sum(tensor.numel() for tensor in module.state_dict().values())
    assert [tensor.data_ptr() for tensor in other.state_dict().values()] == places
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    arrays = {"0.weight": numpy.zeros((40, 30), numpy.float32)}
    penstock.load_into(arrays, path, strict=False)
    assert (arrays["0.weight"] == module[0].weight.detach().numpy()).all()


@pytest.mark.parametrize("target, words", [
    ({"a": numpy.zeros((2, 3), numpy.float32)}, "missing: .*unexpected"),
    ({"a": numpy.zeros((2, 3), numpy.float32), "b": numpy.zeros(2, numpy.int8), "c": numpy.zeros(2)}, "missing: "),
    ({"a": numpy.zeros((3, 2), numpy.float32), "b": numpy.zeros(2, numpy.int8)}, "'a'"),
    ({"a": numpy.zeros((2, 3), numpy.float16), "b": numpy.zeros(2, numpy.int8)}, "'a'"),
    ({"a": numpy.zeros((2, 3), numpy.float32), "b": numpy.zeros(4, numpy.int8)[::2]}, "not contiguous"),
])
def test_what_does_not_fit_is_refused_before_a_byte_moves(tmp_path, target, words):
    path = tmp_path / "model"
    write_model(path, [("b", "I8", (2,)), ("a", "F32", (2, 3))], content=lambda size: b"\1" * size)
    with pytest.raises(ValueError, match=words):
        penstock.load_into(target, path)
    assert not any(array.any() for array in target.values())
    with pytest.raises(ValueError, match="'a' is not a .*tensor: bytearray"):
        penstock.load_into({"a": bytearray(24)}, path, strict=False)


def test_loading_into_tensors_that_lie_in_each_other_is_refused(tmp_path):
    path = tmp_path / "model"
    write_model(path, [("a", "U8", (100,)), ("b", "U8", (60,))])
    memory = numpy.zeros(150, numpy.uint8)
    with pytest.raises(penstock.MismatchError, match="'a' and 'b' overlap"):
        penstock.load_into({"a": memory[:100], "b": memory[90:]}, path)
    assert not memory.any()


def test_loading_into_memory_of_another_byte_order_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    penstock.numpy.save_file({"a": numpy.arange(4, dtype=numpy.int32)}, path)
    with pytest.raises(ValueError, match="not laid out in memory as in the file"):
        penstock.load_into({"a": numpy.zeros(4, dtype=">i4")}, path)


def test_several_files_and_directories_are_one_model(tmp_path):
    contents = {}
    for shard in (1, 2, 3):
        contents.update(write_model(tmp_path / f"model-0000{shard}-of-00003.safetensors",
                                    [(f"t{shard}.{i}", "U8", (1000 * shard,)) for i in range(5)]))
    files = sorted(tmp_path.iterdir())
    for path in (tmp_path, files):
        assert {name: raw(tensor) for name, tensor in penstock.load_file(path).items()} == contents
        with penstock.safe_open(path, "np") as file:
            assert {name: raw(file.get_tensor(name)) for name in file.keys()} == contents
    with pytest.raises(FileNotFoundError):
        os.unlink(files[1])
        penstock.load_file(tmp_path)


def test_devices_are_given_by_name_too(mixed):
    path, contents = mixed
    for device in ({name: "cpu" for name in contents}, lambda name: "cpu", torch.device("cpu")):
        assert {name: raw(tensor) for name, tensor in penstock.load_file(path, device).items()} == contents
    with pytest.raises(ValueError, match="no device given"):
        penstock.load_file(path, {"large": "cpu"})
    for wrong in ("warp", "cuda:x", "meta", 1.5):
        with pytest.raises(ValueError, match="unknown device|no device"):
            penstock.load_file(path, wrong)
    with pytest.raises(ValueError, match="NumPy has no memory"):
        penstock.load_file(path, "cuda:0", "np")
    with pytest.raises(ValueError, match="unknown framework"):
        penstock.load_file(path, framework="abacus")


@pytest.mark.parametrize("device", ["cuda:99", 99, "cuda"])
def test_a_device_that_is_not_there_is_an_error_of_ours(mixed, device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    for load in (lambda: penstock.load_file(mixed[0], device, "pt"),
                 lambda: next(penstock.stream(mixed[0], device, framework="pt")),
                 lambda: penstock.safe_open(mixed[0], "pt", device).get_tensor("odd"),
                 lambda: penstock.safe_open(mixed[0], "pt", device).get_slice("large")[1:5],
                 lambda: penstock.torch.load_model(torch.nn.Linear(1, 1), mixed[0], device=device)):
        with pytest.raises(penstock.Error, match="there is no cuda:.*torch.cuda.is_available") as caught:
            load()
        assert caught.value.code == "no_device" and isinstance(caught.value, RuntimeError)
    with pytest.raises(ValueError, match="NumPy has no memory on cuda"):
        penstock.load_file(mixed[0], device, "np")


def test_no_device_is_the_cpu(mixed):
    assert {name: raw(tensor) for name, tensor in penstock.load_file(mixed[0], None).items()} == mixed[1]
    assert {name: raw(tensor) for name, tensor in penstock.stream(mixed[0], None, framework="np")} == mixed[1]
    with penstock.safe_open(mixed[0], "pt", None) as file:
        assert raw(file.get_tensor("large")) == mixed[1]["large"] and file.get_slice("large")[3, [1, 2]].shape == (2,)


@pytest.mark.parametrize("dtype, name", [
    ("BF16", "bfloat16"), ("U16", "uint16"), ("U32", "uint32"), ("U64", "uint64"), ("F8_E5M2", "float8_e5m2"),
    ("F8_E4M3", "float8_e4m3fn"), ("F8_E8M0", "float8_e8m0fnu"), ("F8_E4M3FNUZ", "float8_e4m3fnuz"),
    ("F8_E5M2FNUZ", "float8_e5m2fnuz"), ("F4", "float4_e2m1fn_x2"), ("F6_E2M3", "uint8"), ("F6_E3M2", "uint8"),
])
def test_newer_types_are_torchs_own_or_refused_by_name(tmp_path, dtype, name):
    path = tmp_path / "model"
    contents = write_model(path, [("small", dtype, (4, 8)), ("big", dtype, (2048, 2048))])
    if not hasattr(torch, name):
        with pytest.raises(penstock.UnsupportedError, match=f"'small' is {dtype}: torch .* has no such type"):
            penstock.load_file(path, framework="pt")
        return
    tensors = penstock.load_file(path, framework="pt")
    assert tensors["small"].dtype == getattr(torch, name)
    last = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}.get(dtype, 8)
    assert tuple(tensors["small"].shape) == (4, last)
    assert {name: raw(tensor) for name, tensor in tensors.items()} == contents
    with penstock.safe_open(path, "pt") as file:
        row_bytes = len(contents["big"]) // 2048
        row = contents["big"][100 * row_bytes:][:row_bytes]
        assert raw(file.get_slice("big")[100:101]) == raw(file.get_slice("big")[[100]]) == row
        part = file.get_slice("big")[100, 2:4]
        assert raw(part) == row[2 * part.element_size():4 * part.element_size()] and part.dtype == getattr(torch, name)
        assert file.get_slice("big").get_shape() == [2048, 2048]


@pytest.mark.parametrize("dtype", ["BF16", "F8_E5M2", "F8_E4M3"])
def test_numpy_refuses_what_it_lacks_by_name(tmp_path, dtype):
    path = tmp_path / "model"
    write_model(path, [("fine", "F32", (2,)), ("odd", dtype, (4, 8))])
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        with pytest.raises(NotImplementedError, match=f"'odd' is {dtype}: .*ml_dtypes"):
            penstock.load_file(path, framework="np")
        assert list(penstock.load_file(path, framework="np", select=["fine"])) == ["fine"]
        with penstock.safe_open(path, "np") as file:
            assert file.get_tensor("fine").shape == (2,)
            with pytest.raises(penstock.UnsupportedError, match="'odd'"):
                file.get_tensor("odd")
        return
    assert penstock.load_file(path, framework="np")["odd"].itemsize in (1, 2)


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_no_room_is_a_memory_error(tmp_path, mixed, framework):
    path = tmp_path / "huge"
    try:
        write_model(path, [("small", "U8", (10,)), ("huge", "U8", (8 << 40,))], content=None)
    except OSError as error:
        pytest.skip(f"no sparse file of 8 TiB here: {error}")
    with pytest.raises(MemoryError):
        penstock.load_file(path, framework=framework)
    assert len(penstock.load_file(mixed[0], framework=framework, select=["scalar"])) == 1


@pytest.fixture
def slow_model(tmp_path):
    path = tmp_path / "slow"
    write_model(path, [(f"t{i}", "U8", (1 << 28,)) for i in range(4)], content=None)
    return path


def test_ctrl_c_ends_a_load_and_leaves_nothing(slow_context, slow_model, live_bytes):
    pressed = []

    def press():
        pressed.append(time.monotonic())
        signal.raise_signal(signal.SIGINT)

    threading.Timer(0.3, press).start()
    tensors = None
    with pytest.raises(KeyboardInterrupt) as caught:
        tensors = penstock.load_file(slow_model, framework="np", context=slow_context)
    assert time.monotonic() - pressed[0] < 2  # 200 ms are meant; a busy machine takes longer
    assert tensors is None
    gc.collect()
    assert live_bytes["now"] == 0 and caught.tb is not None


def test_progress_is_told_at_most_twenty_times_a_second_and_may_end_the_load(slow_context, slow_model):
    calls = []

    def progress(done, all_bytes):
        calls.append((time.monotonic(), done, all_bytes))
        if len(calls) == 6:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        penstock.load_file(slow_model, context=slow_context, progress=progress)
    assert calls[-1][2] == 1 << 30 and 0 < calls[-1][1] < 1 << 30
    assert calls[-1][0] - calls[0][0] >= 5 * 0.05


def test_progress_is_a_truth_of_any_kind(mixed):
    for yes in (True, numpy.True_):
        penstock.load_file(mixed[0], framework="np", copy=True, progress=yes)
    assert penstock.load_file(mixed[0], framework="np", copy=True, progress=numpy.False_)
    with pytest.raises(TypeError, match="progress must be True, False or a function, and is 'yes'"):
        penstock.load_file(mixed[0], framework="np", progress="yes")


def test_progress_ends_with_everything(mixed):
    calls = []
    penstock.load_file(mixed[0], progress=lambda done, all_bytes: calls.append((done, all_bytes)))
    assert calls[-1][0] == calls[-1][1] > 0


def test_one_line_is_logged_for_a_load(mixed, caplog):
    with caplog.at_level(logging.INFO, "penstock"):
        penstock.load_file(mixed[0])
    assert len(caplog.records) == 1
    assert str(mixed[0]) in caplog.text and "tensors" in caplog.text and "/s" in caplog.text


def test_a_file_that_changed_is_refused(tmp_path):
    path = tmp_path / "model"
    write_model(path, [("a", "U8", (1000,)), ("b", "U8", (1000,))])
    with penstock.safe_open(path, "np", copy=True) as file:
        file.get_tensor("a")
        time.sleep(0.02)
        write_model(path, [("a", "U8", (2000,)), ("b", "U8", (1000,))])
        with pytest.raises(penstock.Error) as caught:
            file.get_tensor("b")
        assert caught.value.code == "changed"


def test_what_is_pickled_can_be_read_without_penstock(mixed):
    tensors = penstock.load_file(mixed[0], framework="np")
    pickled = pickle.dumps(tensors)
    assert b"penstock" not in pickled
    copy = pickle.loads(pickled)
    assert [(name, raw(tensor)) for name, tensor in copy.items()] == [(name, raw(tensors[name])) for name in tensors]
    assert pickle.loads(pickle.dumps(tensors.report)).bytes == tensors.report.bytes
    for copied in (copy_module.copy(tensors), copy_module.deepcopy(tensors)):
        assert type(copied) is penstock.Tensors and copied.keys() == tensors.keys()
        assert copied.report is tensors.report and copied.metadata == tensors.metadata


def test_gguf_is_loaded_with_quantized_tensors_as_rows_of_bytes(tmp_path):
    path = tmp_path / "model.gguf"
    plain, quantized = os.urandom(4 * 6), os.urandom(2 * 2 * 34)
    write_gguf(path, {"general.name": "tiny"}, [("plain", 0, (3, 2), plain), ("quantized", 8, (64, 2), quantized)])
    tensors = penstock.load_file(path)
    assert tensors["plain"].dtype == torch.float32 and tuple(tensors["plain"].shape) == (2, 3)
    assert raw(tensors["plain"]) == plain and raw(tensors["quantized"]) == quantized
    assert tensors["quantized"].dtype == torch.uint8 and tuple(tensors["quantized"].shape) == (2, 68)
    assert tensors.quantization == {"quantized": "Q8_0"}
    assert penstock.stream(path).quantization == tensors.quantization
    with penstock.safe_open(path, "np") as file:
        assert file.quantization == tensors.quantization
    assert tensors.metadata["general.name"] == "tiny"


def test_a_wrong_total_in_an_index_is_a_warning_when_it_is_verified(tmp_path):
    write_model(tmp_path / "x.safetensors", [("a", "U8", (100,))])
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {"total_size": 99}, "weight_map": {"a": "x.safetensors"}}')
    with pytest.warns(UserWarning, match="total_size is 99, and its tensors have 100"):
        penstock.verify(tmp_path)
    assert len(penstock.load_file(tmp_path)["a"]) == 100


def test_arguments_of_other_types_are_refused(mixed):
    path, contents = mixed
    penstock.load_file(path)  # now it is cached, and mapped
    for copy in (False, True):
        with pytest.raises(ValueError, match="unknown columns .foo"):
            penstock.load_file(path, columns="foo", copy=copy)
    for part in ((0, [(0.7, 1.9)]), (0.5, [(0, 1)]), (1, 2), (0, [1, 2]), 5, slice("a"), (0, slice("a"))):
        with pytest.raises(penstock.InvalidError, match="slices: .* does not describe a part of tensor 'large'"):
            penstock.load_file(path, slices={"large": part})
    part = penstock.load_file(path, select="large", slices={"large": (numpy.int8(0), [(numpy.int64(1), numpy.int64(3))])})
    assert raw(part["large"]) == contents["large"][4000:12000]
    for target in ([1], None):
        with pytest.raises(TypeError, match="neither a module nor a dict"):
            penstock.load_into(target, path)


def test_bytes_are_called_that_in_the_log(mixed, caplog):
    with caplog.at_level(logging.INFO, "penstock"):
        penstock.numpy.load(mixed[0].read_bytes())
    assert [record.getMessage().startswith("bytes: ") for record in caplog.records] == [True]


def test_a_load_that_no_thread_can_be_had_for_is_a_memory_error(mixed, monkeypatch):
    path, contents = mixed

    def refuse(self):
        raise RuntimeError("can't start new thread")

    async def main():
        with monkeypatch.context() as without_threads:
            without_threads.setattr("threading.Thread.start", refuse)
            with pytest.raises(penstock.NoMemoryError, match="thread") as caught:
                await penstock.load_file_async(path)
            assert caught.value.code == "out_of_memory"
        tensors = await penstock.load_file_async(path)
        assert raw(tensors["large"]) == contents["large"]

    asyncio.run(main())


def test_arguments_of_the_wrong_type_are_named(mixed, tmp_path):
    path = mixed[0]
    for name, words in ((None, "must be a path or a list of paths, and is None"), (5, "and is 5")):
        with pytest.raises(TypeError, match=words):
            penstock.load_file(name, framework="np")
    for options in ({"select": 5}, {"progress": "yes"}, {"context": "x"}):
        with pytest.raises(TypeError, match=f"{next(iter(options))} must be .*, and is {next(iter(options.values()))!r}"):
            penstock.load_file(path, framework="np", **options)


def test_a_file_that_is_not_there_has_a_hint(mixed):
    for call in (penstock.verify, lambda paths: penstock.load_file(paths, framework="np")):
        with pytest.raises(penstock.NotFoundError) as error:
            call([mixed[0], "nofile"])
        assert error.value.hint == "check the name"


def test_a_file_that_may_not_be_read_has_a_hint(mixed):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model")
        shutil.copy(mixed[0], path)
        os.chmod(path, 0)
        os.chmod(folder, 0o755)
        child = os.fork()
        if child == 0:
            hint = ""
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                penstock.load_file(path, framework="np")
            except penstock.DeniedError as error:
                hint = error.hint
            finally:
                os._exit(0 if hint.startswith("this user may not read it") else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_file_of_numpys_is_refused_with_what_reads_it(tmp_path):
    numpy.save(tmp_path / "t.npy", numpy.zeros(3))
    with pytest.raises(penstock.InvalidError, match=r"is a \.npy file.*penstock\.Rows"):
        penstock.load_file(tmp_path / "t.npy", framework="np")


def test_what_is_saved_or_copied_with_a_small_tensor_is_its_own(tmp_path):
    path = tmp_path / "model"
    contents = write_model(path, [(f"{dtype}.{i}", dtype, (i, 64)) for dtype in ("F32", "U8", "BOOL", "BF16", "I64", "C64", "I16")
                                  for i in range(20)], content=bytes)
    tensors = penstock.load_file(path, framework="pt", copy=True)
    for name, tensor in tensors.items():
        size_bytes = tensor.numel() * tensor.element_size()
        assert size_bytes == len(contents[name]) and penstock.torch.storage_size(tensor) == size_bytes
        assert penstock.torch.storage_size(copy_module.deepcopy(tensor)) == size_bytes
        assert tensor._version == 0 and tensor._base is None
    torch.save(tensors["F32.1"], tmp_path / "saved")
    assert os.path.getsize(tmp_path / "saved") < 4096
    kept = tensors["F32.3"]
    del tensors, tensor
    gc.collect()
    assert not kept.any(), "its memory stays"
