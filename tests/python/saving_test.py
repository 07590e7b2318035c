"""Saving, and what safetensors reads of it; modules; checksums."""

import os
import pickle

import numpy
import pytest

import penstock
import penstock.torch
from penstock import _models

torch = pytest.importorskip("torch")


@pytest.fixture
def tensors():
    return {"w": torch.randn(300, 1000), "half": torch.randn(7).half(), "bf": torch.randn(5, 5).bfloat16(),
            "scalar": torch.tensor(3.5), "empty": torch.empty(0, 4), "flags": torch.tensor([True, False]),
            "numbers": torch.arange(7), "complex": torch.randn(3, dtype=torch.complex64)}


def same(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype and tensor.shape == second[name].shape, name
        assert torch.equal(tensor, second[name]), name


def test_what_is_saved_is_loaded_again_and_by_safetensors_too(tmp_path, tensors):
    path = tmp_path / "model.safetensors"
    report = penstock.torch.save_file(tensors, path, {"about": "ä test"})
    assert report.outcome == "done" and report.bytes >= sum(t.numel() * t.element_size() for t in tensors.values())
    loaded = penstock.load_file(path)
    same(loaded, tensors)
    assert loaded.metadata == {"about": "ä test"}
    assert os.listdir(tmp_path) == ["model.safetensors"]
    safetensors = pytest.importorskip("safetensors.torch")
    same(safetensors.load_file(path), tensors)


@pytest.mark.parametrize("durable", [False, True])
def test_what_was_saved_is_in_the_page_cache_unless_that_is_bypassed(tmp_path, durable):
    tensors = {"w": torch.randn(512, 1024), "v": torch.randn(3)}
    path = tmp_path / "model.safetensors"
    with penstock.Context(cache="bypass") as context:
        past = penstock.save_file(tensors, path, durable=durable, context=context)
    if "direct" not in past.routes:
        pytest.skip("no direct I/O here")
    assert past.routes["direct"] > past.bytes / 2 and "cache=bypass" in past.reason
    saved = penstock.save_file(tensors, path, durable=durable)
    assert saved.routes == {"buffered": saved.bytes} and "the file fits" in saved.reason
    loaded = penstock.load_file(path, share=False)
    assert not {"direct", "buffered"} & set(loaded.report.routes), loaded.report
    same(loaded, tensors)


def test_patched_saves_keep_the_old_file_when_they_fail(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    with penstock.patch():
        safetensors.save_file({"w": torch.ones(10)}, path)
        old = path.read_bytes()
        with pytest.raises(Exception):
            safetensors.save_file({"w": torch.ones(10), "v": "no tensor"}, path)
        assert path.read_bytes() == old
        safetensors.save_file({"w": torch.zeros(20)}, path)
        same(safetensors.load_file(path), {"w": torch.zeros(20)})
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_the_data_begins_at_a_page(tmp_path, tensors):
    path = tmp_path / "model"
    penstock.save_file(tensors, path)
    with open(path, "rb") as file:
        assert (8 + int.from_bytes(file.read(8), "little")) % 4096 == 0


def test_the_first_tensor_begins_where_it_is_told_to(tmp_path, tensors):
    for align in (8, 64, 65536):
        penstock.torch.save_file(tensors, tmp_path / "model", align=align)
        with open(tmp_path / "model", "rb") as file:
            assert (8 + int.from_bytes(file.read(8), "little")) % align == 0
        same(penstock.load_file(tmp_path / "model"), tensors)
    for align in (0, 4, 24, 1 << 30):
        with pytest.raises(penstock.InvalidError, match="alignment"):
            penstock.save_file(tensors, tmp_path / "other", align=align)


# Every type of both, names that JSON escapes, shapes with nothing in them: what decides about the bytes of a file.
NAMES = ["b", "a", 'quote"d', "new\nline\t", "\x01\x7f", "größe", "a/b\\c", "日本", "\U0001f600", "A", "layer.10", "layer.9"]
SHAPES = [(), (1,), (3,), (2, 3), (0,), (2, 0, 3)]
METADATA = [None, {}, {"format": "pt"}, {'a "key"': "a\nvalue \x1f ü"}]


@pytest.mark.parametrize("metadata", METADATA)
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_files_and_bytes_are_those_of_safetensors(tmp_path, kind, metadata):
    ours = getattr(penstock, kind)
    theirs = pytest.importorskip(f"safetensors.{kind}")
    if kind == "torch":
        types = [getattr(torch, name) for name in (
            "bool", "uint8", "int8", "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32", "int64",
            "uint64", "float64", "complex64", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float8_e4m3fnuz",
            "float8_e5m2fnuz", "float4_e2m1fn_x2") if hasattr(torch, name)]
        made = [torch.arange(max(1, int(numpy.prod(shape))) * 8, dtype=torch.uint8) for shape in SHAPES]
        tensors = {f"{NAMES[(i + j) % len(NAMES)]}.{i}.{j}":
                   memory.clone().view(torch.uint8)[:int(numpy.prod(shape)) * torch.empty(0, dtype=dtype).element_size()]
                   .clone().view(dtype).view(shape)
                   for i, dtype in enumerate(types) for j, (shape, memory) in enumerate(zip(SHAPES, made))
                   if shape or "float4" not in str(dtype)}  # a scalar of which would be half a byte
    else:
        types = ["bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32", "int64", "uint64",
                 "float64", "complex64", ">f4"]
        tensors = {f"{NAMES[(i + j) % len(NAMES)]}.{i}.{j}": numpy.ones(shape, dtype)
                   for i, dtype in enumerate(types) for j, shape in enumerate(SHAPES)}
    for chosen in (tensors, dict(reversed(tensors.items())), {}, dict(list(tensors.items())[:3])):
        if not chosen and metadata == {}:
            continue  # safetensors 0.8.0 writes a header then that is no JSON
        theirs.save_file(chosen, tmp_path / "theirs", metadata)
        ours.save_file(chosen, tmp_path / "ours", metadata)
        expected = (tmp_path / "theirs").read_bytes()
        assert (tmp_path / "ours").read_bytes() == expected
        assert ours.save(chosen, metadata) == expected
        penstock.save_file(chosen, tmp_path / "ours", metadata, align=8)
        assert (tmp_path / "ours").read_bytes() == expected


def test_modules_are_saved_as_by_safetensors(tmp_path):
    theirs = pytest.importorskip("safetensors.torch")
    for module in (torch.nn.Linear(3, 5), Tied()):
        theirs.save_model(module, str(tmp_path / "theirs"))
        penstock.torch.save_model(module, tmp_path / "ours")
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_tied_weights_are_refused_by_every_way_to_save_a_dict(tmp_path):
    base = torch.zeros(10)
    for save in (lambda tied: penstock.save_file(tied, tmp_path / "x"), penstock.torch.save,
                 lambda tied: penstock.torch.save_file(tied, tmp_path / "x")):
        with pytest.raises(penstock.MismatchError, match="share memory.*'a', 'b'"):
            save({"a": base, "b": base[3:]})
    assert not (tmp_path / "x").exists()


def test_bytes_are_read_by_safetensors_and_safetensors_bytes_by_us(tensors):
    safetensors = pytest.importorskip("safetensors.torch")
    same(safetensors.load(penstock.torch.save(tensors, {"a": "b"})), tensors)
    same(penstock.torch.load(safetensors.save(tensors, {"a": "b"})), tensors)
    same(penstock.torch.load(penstock.torch.save(tensors)), tensors)
    assert penstock.torch.load(penstock.torch.save({})) == {}


def test_tensors_in_bytes_begin_at_multiples_of_their_elements_as_in_files(tmp_path):
    arrays = {"a": numpy.zeros(3, numpy.uint8), "d": numpy.zeros(1), "b": numpy.zeros(3, numpy.float16),
              "c": numpy.zeros(5, numpy.float32), "half": numpy.zeros(3, numpy.float16), "i": numpy.zeros(2, numpy.int32),
              "u": numpy.zeros(2, numpy.uint32), "z": numpy.zeros(2, numpy.int16)}
    penstock.save_file(arrays, tmp_path / "model")
    (tmp_path / "bytes").write_bytes(penstock.numpy.save(arrays))
    orders = []
    for name in ("model", "bytes"):
        model = _models.Model(tmp_path / name)
        assert all(tensor[5] % arrays[tensor[0]].itemsize == 0 for tensor in model.tensors)
        orders.append([tensor[0] for tensor in model.tensors])
    assert orders[0] == orders[1] == ["d", "c", "u", "i", "b", "half", "z", "a"]


def test_arrays_of_numpy_are_saved(tmp_path):
    arrays = {"a": numpy.arange(12, dtype=numpy.float32).reshape(3, 4), "turned": numpy.arange(12).reshape(3, 4).T,
              "swapped": numpy.arange(5, dtype=">i4"), "scalar": numpy.float64(2.5), "empty": numpy.empty((0, 3))}
    path = tmp_path / "model"
    penstock.numpy.save_file(arrays, path)
    for loaded in (penstock.numpy.load_file(path), penstock.numpy.load(penstock.numpy.save(arrays))):
        for name, array in arrays.items():
            assert (loaded[name] == array).all() and loaded[name].shape == numpy.shape(array), name
    safetensors = pytest.importorskip("safetensors.numpy")
    for name, array in safetensors.load_file(path).items():
        assert (array == arrays[name]).all()


def test_a_failed_save_leaves_what_was_there(tmp_path, tensors, slow_context):
    path = tmp_path / "model"
    penstock.save_file(tensors, path)
    before = path.read_bytes()

    def stop(done, all_bytes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        penstock.save_file({"large": torch.zeros(64 << 20, dtype=torch.uint8)}, path, progress=stop,
                           context=slow_context)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["model"]
    penstock.save_file({}, path)
    assert penstock.load_file(path) == {}


@pytest.mark.parametrize("checksums", [False, True])
def test_an_interrupt_in_the_last_call_of_progress_leaves_what_was_there(tmp_path, checksums):
    path = tmp_path / "model"
    path.write_bytes(b"old")

    def stop(done, all_bytes):
        if done == all_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        penstock.save_file({"a": torch.zeros(3)}, path, progress=stop, checksums=checksums)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("wrong, error, words", [
    (lambda: {"a": torch.zeros(4, 4).t()}, ValueError, "'a' is not contiguous"),
    (lambda: {"a": torch.zeros(4, 4).to_sparse()}, ValueError, "'a' is sparse"),
    (lambda: {"a": [1, 2]}, ValueError, "'a' is not a torch tensor: list"),
    (lambda: {"a": torch.zeros(2, device="meta")}, ValueError, "'a' is on meta"),
    (lambda: {"a": torch.zeros(2, dtype=torch.complex128)}, NotImplementedError, "'a' is torch.complex128"),
    (lambda: {"a": torch.zeros([1] * 65)}, ValueError, "more than 64 dimensions"),
    (lambda: {"a": torch.zeros([0, 1 << 40, 1 << 20])}, ValueError, "beside a dimension of 0"),
    (lambda: (lambda base: {"a": base, "b": base})(torch.zeros(9)), RuntimeError, "share memory"),
    (lambda: (lambda base: {"a": base[:5], "b": base[4:]})(torch.zeros(9)), RuntimeError, "share memory"),
])
def test_what_can_not_be_saved_is_refused_by_name(tmp_path, wrong, error, words):
    with pytest.raises(error, match=words) as caught:
        penstock.torch.save_file(wrong(), tmp_path / "model")
    assert isinstance(caught.value, penstock.Error)
    with pytest.raises(error, match=words):
        penstock.torch.save(wrong())
    assert os.listdir(tmp_path) == []


def test_names_and_metadata_are_text(tmp_path):
    one = torch.zeros(1)
    for tensors, metadata in [({1: one}, None), ({}, {"a": 1}), ({}, {2: "a"}), ({"\udc00": one}, None),
                              ({"__metadata__": one}, None), ({}, {"a": "\udc00"}), ([one], None)]:
        for save in (lambda: penstock.save_file(tensors, tmp_path / "model", metadata),
                     lambda: penstock.torch.save_file(tensors, tmp_path / "model", metadata),
                     lambda: penstock.numpy.save(tensors, metadata), lambda: penstock.torch.save(tensors, metadata)):
            with pytest.raises(ValueError) as caught:
                save()
            assert isinstance(caught.value, penstock.Error)
    for save in (lambda: penstock.save_file({}, tmp_path / "model", [("a", "b")]), lambda: penstock.numpy.save({}, ["a"])):
        with pytest.raises(TypeError, match="metadata is a list"):
            save()
    with pytest.raises(FileNotFoundError):
        penstock.save_file({}, tmp_path / "missing" / "model")


def test_what_is_only_marked_as_conjugated_or_negated_is_saved_as_it_reads(tmp_path):
    torch = pytest.importorskip("torch")
    numbers = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    path = tmp_path / "model.safetensors"
    penstock.torch.save_file({"conjugated": numbers.conj(), "negated": numbers.conj().imag.contiguous()}, path)
    loaded = penstock.torch.load_file(path)
    assert loaded["conjugated"].tolist() == [1 - 2j, 3 + 4j]
    assert loaded["negated"].tolist() == [-2, 4]


def test_halves_of_one_storage_are_no_sharing(tmp_path):
    base = torch.arange(10)
    penstock.torch.save_file({"a": base[:5], "b": base[5:]}, tmp_path / "model")
    same(penstock.load_file(tmp_path / "model"), {"a": base[:5], "b": base[5:]})


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 6)
        self.head = torch.nn.Linear(6, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.turned = torch.nn.Parameter(torch.randn(3, 4).t())


def test_modules_with_tied_weights_are_saved_once_and_loaded_whole(tmp_path):
    module, other = Tied(), Tied()
    path = tmp_path / "module"
    penstock.torch.save_model(module, path)
    assert sorted(penstock.load_file(path)) == ["embedding.weight", "turned"]
    loaded = penstock.torch.load_model(other, path)
    assert loaded == (set(), []) and loaded.report.bytes == 4 * (60 + 12)
    same(dict(other.state_dict()), dict(module.state_dict()))
    safetensors = pytest.importorskip("safetensors.torch")
    third = Tied()
    safetensors.load_model(third, path)
    same(dict(third.state_dict()), dict(module.state_dict()))
    safetensors.save_model(module, str(path))
    penstock.torch.load_model(other, path)


def test_both_names_of_a_tied_weight_in_a_file_are_refused(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    path = str(tmp_path / "module")
    module = Tied()
    module.turned = None
    first, last = torch.zeros(10, 6), torch.ones(10, 6)
    penstock.save_file({"embedding.weight": first, "head.weight": last}, path)
    for load_model in (penstock.torch.load_model, safetensors.load_model):
        with pytest.raises(RuntimeError, match="head.weight"):
            load_model(module, path)
        assert load_model(module, path, strict=False) == (set(), ["head.weight"])
    with torch.no_grad():
        module.head.weight.fill_(5)
    with pytest.raises(penstock.MismatchError, match="'embedding.weight' and 'head.weight' are one tensor"):
        penstock.load_into(module, path)
    assert torch.equal(module.head.weight, torch.full((10, 6), 5.0))
    penstock.load_into(module, path, strict=False)
    assert torch.equal(module.embedding.weight, last)
    penstock.load_into({"embedding.weight": torch.zeros(10, 6), "head.weight": torch.zeros(10, 6)}, path)
    empty = torch.zeros(0, 3)  # of which no bytes differ
    penstock.save_file({"a": torch.zeros(0, 3), "b": torch.zeros(0, 3)}, path)
    penstock.load_into({"a": empty, "b": empty}, path)


@pytest.mark.parametrize("saved_by", ["penstock", "safetensors"])
def test_modules_with_tied_weights_are_filled_where_they_are(tmp_path, saved_by):
    module, other = Tied(), Tied()
    module.turned = other.turned = None
    path = tmp_path / "module"
    if saved_by == "penstock":
        penstock.torch.save_model(module, path)
    else:
        pytest.importorskip("safetensors.torch").save_model(module, str(path))
    report = penstock.load_into(other, path)
    assert torch.equal(other.head.weight, module.head.weight) and other.head.weight is other.embedding.weight
    assert report.bytes == 240
    other.head.weight = torch.nn.Parameter(torch.zeros(10, 6))  # not tied any more, so one of the names is missing
    with pytest.raises(ValueError, match="missing: "):
        penstock.load_into(other, path)
    arrays = {"a": numpy.zeros(3), "b": numpy.zeros(3)}
    arrays["c"] = arrays["a"]
    penstock.save_file({"a": numpy.ones(3), "b": numpy.ones(3)}, path)
    penstock.load_into(arrays, path)
    assert arrays["c"].all() and arrays["b"].all()


class Viewed(torch.nn.Module):
    """A buffer is a part of a parameter, another the parameter in another shape."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 6))
        self.register_buffer("first_row", self.weight.data[0])
        self.register_buffer("a_flat_one", self.weight.data.view(24))
        self.register_buffer("other", torch.randn(3))


@pytest.mark.parametrize("saved_by", ["penstock", "safetensors"])
@pytest.mark.parametrize("loaded_by", ["penstock", "safetensors"])
def test_buffers_that_are_views_of_parameters_are_saved_and_loaded_as_by_safetensors(tmp_path, saved_by, loaded_by):
    functions = {"penstock": penstock.torch, "safetensors": pytest.importorskip("safetensors.torch")}
    module, other, path = Viewed(), Viewed(), str(tmp_path / "module")
    about = {"weight": "mine", "about": "a test"}
    functions[saved_by].save_model(module, path, dict(about))
    loaded = penstock.load_file(path)
    assert sorted(loaded) == ["a_flat_one", "other"]
    assert loaded.metadata == {**about, "first_row": "a_flat_one"}  # what the user says of a name stays
    assert functions[loaded_by].load_model(other, path) == (set(), [])
    same(dict(other.state_dict()), dict(module.state_dict()))
    penstock.save_file({"weight": module.weight.data, "other": module.other}, path)  # another name for the same
    assert functions[loaded_by].load_model(Viewed(), path) == (set(), [])
    penstock.save_file({"other": module.other}, path)
    assert functions[loaded_by].load_model(Viewed(), path, strict=False) == ({"a_flat_one"}, [])


def test_parts_that_overlap_and_are_no_whole_are_refused(tmp_path):
    module, base = torch.nn.Module(), torch.zeros(9)
    module.register_buffer("a", base[:5])
    module.register_buffer("b", base[4:])
    with pytest.raises(penstock.MismatchError, match="'a', 'b'.* none of them has all of it"):
        penstock.torch.save_model(module, tmp_path / "module")


def test_a_module_of_other_names_is_refused_or_told(tmp_path):
    path = tmp_path / "module"
    penstock.torch.save_model(Tied(), path)
    with pytest.raises(RuntimeError, match="missing: .*'bias', 'weight'") as caught:
        penstock.torch.load_model(torch.nn.Linear(2, 3), path)
    assert isinstance(caught.value, penstock.Error) and type(pickle.loads(pickle.dumps(caught.value))) is \
        penstock.MismatchError
    penstock.torch.save_model(torch.nn.Linear(3, 3), tmp_path / "other")
    with pytest.raises(penstock.MismatchError, match="size mismatch"):
        penstock.torch.load_model(torch.nn.Linear(2, 3), tmp_path / "other")
    missing, unexpected = penstock.torch.load_model(torch.nn.Linear(2, 3), path, strict=False)
    assert missing == {"weight", "bias"} and sorted(unexpected) == ["embedding.weight", "turned"]


def test_checksums_tell_what_was_spoiled(tmp_path, tensors):
    path = tmp_path / "model"
    penstock.save_file(tensors, path)
    assert [each.verdict for each in penstock.verify(path)] == ["unknown"]
    penstock.save_file(tensors, path, checksums=True)
    assert [each.verdict for each in penstock.verify(path)] == ["right"]
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    [checked] = penstock.verify(path)
    assert checked.verdict == "wrong" and len(checked.wrong_tensors) == 1 and checked.path == str(path)


class Stateful(torch.nn.Linear):
    def get_extra_state(self):
        return {"turns": 3}

    def set_extra_state(self, state):
        pass


def test_a_state_that_is_no_tensor_is_told_by_name(tmp_path):
    module = Stateful(2, 3)
    with pytest.raises(penstock.Error, match="'_extra_state' is not a .*tensor: dict"):
        penstock.torch.save_model(module, tmp_path / "m")
    penstock.torch.save_model(torch.nn.Linear(2, 3), tmp_path / "m")
    with pytest.raises(penstock.Error, match="_extra_state"):
        penstock.torch.load_model(module, tmp_path / "m")
    assert penstock.torch.load_model(module, tmp_path / "m", strict=False) == ({"_extra_state"}, [])


def test_alignments_that_make_no_sense_are_refused_by_name(tmp_path):
    for align, error, words in ((-8, penstock.InvalidError, "align is -8"), (1 << 70, penstock.InvalidError, "at most"),
                                ("8", TypeError, "align must be an integer")):
        with pytest.raises(error, match=words):
            penstock.save_file({"a": numpy.zeros(3)}, tmp_path / "model.safetensors", align=align)
    assert not list(tmp_path.iterdir())
