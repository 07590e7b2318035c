"""Programs that use safetensors, unchanged."""

import importlib.util
import logging
import os
import pathlib
import pickle
import subprocess
import sys
import types

import numpy
import pytest

import penstock
from models import header

safetensors = pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")
import safetensors.numpy  # noqa: E402
import safetensors.torch  # noqa: E402
from safetensors import safe_open as imported_by_name  # noqa: E402, F401

ORIGINALS = {"safe_open": safetensors.safe_open, "load_file": safetensors.torch.load_file,
             "save_model": safetensors.torch.save_model, "load_model": safetensors.torch.load_model,
             "save": safetensors.torch.save, "deserialize": safetensors.deserialize}


@pytest.fixture
def patched():
    penstock.patch()
    yield
    penstock.unpatch()
    assert safetensors.safe_open is ORIGINALS["safe_open"] and safetensors.deserialize is ORIGINALS["deserialize"]
    assert all(getattr(safetensors.torch, name) is original for name, original in ORIGINALS.items())


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5)}, path, {"x": "y"})
    return path


@pytest.fixture
def loads(caplog):
    """How many loads Penstock has told of."""
    caplog.set_level(logging.INFO, "penstock")
    return lambda: len(caplog.records)


def test_its_functions_load_through_penstock(patched, path, loads):
    for loaded in (safetensors.torch.load_file(path), safetensors.torch.load_file(str(path), device="cpu"),
                   safetensors.torch.load(path.read_bytes()), safetensors.numpy.load_file(path)):
        assert type(loaded) is dict  # for programs that take no other one
        assert (loaded["a"].reshape(-1).tolist()) == list(range(12))
    assert loads() == 4
    with safetensors.safe_open(path, framework="pt", device="cpu") as file:
        assert torch.equal(file.get_slice("a")[1:, :2], torch.arange(12.0).reshape(3, 4)[1:, :2])
        assert file.metadata() == {"x": "y"}
    with imported_by_name(path, "np") as file:
        assert isinstance(file, penstock.safe_open)
    assert loads() == 5
    assert safetensors.torch.save_file({"c": torch.ones(2)}, path) is None
    assert list(safetensors.torch.load_file(path)) == ["c"]


def test_modules_go_through_penstock_too(patched, tmp_path, loads):
    module, other = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    safetensors.torch.save_model(module, str(tmp_path / "module"))
    before = loads()
    safetensors.torch.load_model(other, str(tmp_path / "module"))
    assert loads() > before and torch.equal(module.weight, other.weight)


def test_safe_open_is_still_a_class(patched, path):
    assert (safetensors.safe_open | None) and imported_by_name.__name__ == "safe_open"
    files = [safetensors.safe_open(path, "pt"), ORIGINALS["safe_open"](path, "pt"), penstock.safe_open(path, "pt")]
    assert all(isinstance(file, safetensors.safe_open) and isinstance(file, imported_by_name) for file in files)
    assert not isinstance(path, safetensors.safe_open)
    with safetensors.safe_open(filename=path, framework="pt", device=None) as file:
        assert type(file) is safetensors.safe_open and file.get_tensor("a").device.type == "cpu"


def of_small_layers():
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))


def with_tensors(tensors):
    """A module whose parameters are these very tensors."""
    module = of_small_layers()
    for name, tensor in tensors.items():
        layer, _, key = name.partition(".")
        setattr(module[int(layer)], key, torch.nn.Parameter(tensor))
    return module


@pytest.mark.parametrize("loaded_by", ["load_file", "load", "get_tensor", "penstock"])
def test_modules_of_small_tensors_are_saved_whole(patched, monkeypatch, tmp_path, loaded_by):
    monkeypatch.setattr(penstock._models.Model, "mapped", lambda *_: None)  # as where nothing can be mapped
    module, path = of_small_layers(), tmp_path / "module"
    safetensors.torch.save_model(module, str(path))
    if loaded_by == "load":
        tensors = safetensors.torch.load(path.read_bytes())
    elif loaded_by == "get_tensor":
        with safetensors.safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    else:
        tensors = (penstock if loaded_by == "penstock" else safetensors.torch).load_file(path)
    if loaded_by != "penstock":
        # As accelerate and others see it: what has the same storage is the same.
        assert all(map(safetensors.torch._is_complete, tensors.values()))
        assert len({safetensors.torch.storage_ptr(tensor) for tensor in tensors.values()}) == len(tensors)
        ORIGINALS["save_model"](with_tensors(tensors), str(path))
        ORIGINALS["load_model"](with_tensors(tensors), str(path))
    other = with_tensors(tensors)
    assert safetensors.torch.save_model(other, str(path)) is None
    third = with_tensors({name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
    assert safetensors.torch.load_model(third, str(path), device=None) == (set(), [])
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, third.state_dict()[name]), name


def test_what_we_have_no_memory_for_goes_to_safetensors(patched, path):
    assert isinstance(safetensors.safe_open(path, "pt", "xpu:0"), ORIGINALS["safe_open"])
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(path, "abacus")


class Elsewhere(torch.Tensor):
    """On a device that only safetensors knows, as it says."""

    @property
    def device(self):
        return torch.device("xpu", 0)


def test_what_lies_on_other_devices_is_saved_by_safetensors(patched, tmp_path, loads):
    path = str(tmp_path / "model")
    elsewhere = torch.arange(4.0).as_subclass(Elsewhere)
    safetensors.torch.save_file({"here": torch.ones(2), "elsewhere": elsewhere}, path)
    safetensors.torch.save_file(tensors={"elsewhere": elsewhere}, filename=path)
    module = torch.nn.Module()
    module.register_buffer("elsewhere", elsewhere)
    safetensors.torch.save_model(module, path)
    assert loads() == 0
    assert safetensors.torch.load_file(path)["elsewhere"].tolist() == [0, 1, 2, 3]


def test_patching_takes_no_numpy(path):
    code = f"""
import sys
sys.modules["numpy"] = None  # as if it were not installed
import warnings
warnings.simplefilter("ignore")
import penstock, safetensors.torch
penstock.patch()
assert safetensors.torch.load_file.__code__.co_filename.endswith("_patch.py")
assert sorted(safetensors.torch.load_file({str(path)!r})) == ["a", "b"]
with safetensors.safe_open({str(path)!r}, "pt") as file:
    assert file.get_tensor("b").tolist() == [1] * 5
penstock.unpatch()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_errors_are_of_both_families(patched, path, tmp_path):
    (tmp_path / "bad").write_bytes(b"bad")
    for call in (lambda: safetensors.safe_open(tmp_path / "bad", "pt"),
                 lambda: safetensors.torch.load_file(tmp_path / "bad"),
                 lambda: safetensors.safe_open(path, "pt").get_tensor("nowhere")):
        with pytest.raises(safetensors.SafetensorError) as caught:
            call()
        assert isinstance(caught.value, penstock.Error)
        assert type(pickle.loads(pickle.dumps(caught.value))) is type(caught.value)
    with pytest.raises(FileNotFoundError):
        safetensors.torch.load_file(tmp_path / "missing")


def test_a_directory_is_refused_as_by_safetensors(patched, path):
    folder = os.path.dirname(path)
    assert penstock.load_file(folder)
    for call in (lambda: safetensors.safe_open(folder, "pt"), lambda: safetensors.torch.load_file(folder)):
        with pytest.raises(OSError) as caught:
            call()
        assert not isinstance(caught.value, penstock.Error)


def test_errors_have_the_words_of_safetensors(patched, path, tmp_path):
    (tmp_path / "bad").write_bytes(b"bad")
    closed = safetensors.safe_open(path, "pt")
    theirs_closed = ORIGINALS["safe_open"](path, "pt")
    for file in (closed, theirs_closed):
        file.__exit__(None, None, None)
    module, strange = torch.nn.Linear(2, 2), str(tmp_path / "strange")
    safetensors.torch.save_file({"weight": torch.zeros(2, 2), "other": torch.zeros(1)}, strange)
    files = {"ours": safetensors.safe_open(path, "pt"), "theirs": ORIGINALS["safe_open"](path, "pt")}
    opened = {"ours": safetensors.safe_open, "theirs": ORIGINALS["safe_open"]}
    shut = {"ours": closed, "theirs": theirs_closed}
    loaded = {"ours": safetensors.torch.load_model, "theirs": ORIGINALS["load_model"]}
    for call in (lambda who: opened[who](tmp_path / "bad", "pt"), lambda who: opened[who](tmp_path / "missing", "pt"),
                 lambda who: opened[who](path, "pt", backend="bogus"), lambda who: files[who].get_tensor("nowhere"),
                 lambda who: files[who].get_slice("nowhere"), lambda who: files[who].get_slice("a")[0, -9],
                 lambda who: shut[who].get_tensor("a"), lambda who: shut[who].keys(),
                 lambda who: loaded[who](module, strange)):
        caught = {}
        for who in ("ours", "theirs"):
            with pytest.raises(Exception) as each:
                call(who)
            caught[who] = each.value
        assert str(caught["ours"]) == str(caught["theirs"])
        assert isinstance(caught["ours"], type(caught["theirs"]))
        if isinstance(caught["ours"], penstock.Error):
            assert caught["ours"].message and str(pickle.loads(pickle.dumps(caught["ours"]))) == str(caught["ours"])
    arrays = {"ours": safetensors.safe_open(path, "np"), "theirs": ORIGINALS["safe_open"](path, "np")}
    for index in ([0, 1], slice(0, 9), slice(-2, None), slice(None, None, -1), (0, 9), (0, -9), (0, 0, 0), None, "x",
                  (..., ...)):
        with pytest.raises(Exception) as ours:
            arrays["ours"].get_slice("a")[index]
        with pytest.raises(Exception) as theirs:
            arrays["theirs"].get_slice("a")[index]
        assert str(ours.value) == str(theirs.value) and isinstance(ours.value, type(theirs.value)), index
    for index in (0, -1, slice(1, None), (slice(0, 3), 2), (..., 1), slice(None, None, 2), [], (1, slice(1, 1))):
        assert numpy.array_equal(arrays["ours"].get_slice("a")[index], arrays["theirs"].get_slice("a")[index]), index
    for wrong in ({"a": 3}, {"a": torch.zeros(2, 3).t()}, [1], {"a": torch.zeros(3).to_sparse()}):
        with pytest.raises(ValueError) as ours:
            safetensors.torch.save_file(wrong, tmp_path / "x")
        with pytest.raises(ValueError) as theirs:
            safetensors.torch.save(wrong)
        assert str(ours.value) == str(theirs.value)


def test_the_low_level_names_do_what_those_of_safetensors_do(tmp_path):
    data = torch.arange(6, dtype=torch.float32)
    about = {"dtype": "float32", "shape": [2, 3], "data_ptr": data.data_ptr(), "data_len": 24}
    for metadata in (None, {"a": "b"}):
        expected = safetensors.serialize({"x": safetensors.TensorSpec(**about)}, metadata)
        mine = {"x": penstock.TensorSpec(**about)}
        assert penstock.serialize(mine, metadata) == expected
        assert penstock.serialize_file(mine, tmp_path / "x", metadata) is None
        assert (tmp_path / "x").read_bytes() == expected
        assert penstock.deserialize(expected) == safetensors.deserialize(expected)
    spec = penstock.TensorSpec(**about)
    assert repr(spec) == repr(safetensors.TensorSpec(**about))
    assert (spec.dtype, spec.shape, spec.data_len) == ("F32", [2, 3], 24)
    with pytest.raises(AttributeError):
        spec.dtype = "F16"
    for wrong in (lambda: penstock.TensorSpec(**{**about, "dtype": "float3"}), lambda: penstock.deserialize(b"bad"),
                  lambda: penstock.serialize({"x": penstock.TensorSpec(**{**about, "data_len": 20})})):
        with pytest.raises(penstock.SafetensorError):
            wrong()
    public = {name for name in dir(safetensors) if not name.startswith("_")} - {"numpy", "torch"}
    assert public <= set(dir(penstock)), public - set(dir(penstock))
    for kind in ("torch", "numpy"):
        theirs = getattr(safetensors, kind)
        names = {name for name, value in vars(theirs).items() if getattr(value, "__module__", "") == theirs.__name__
                 and not name.startswith("_")}
        assert names <= set(dir(getattr(penstock, kind))), names


def drop_from_cache(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def is_mapped(tensor, path):
    """Whether a tensor lies in a mapping of a file."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            begin, _, end = line.split()[0].partition("-")
            if int(begin, 16) <= tensor.data_ptr() < int(end, 16):
                return line.rstrip().endswith(str(path))
    return False


@pytest.mark.parametrize("cold", [False, True])
def test_tensors_on_the_cpu_are_those_of_the_page_cache(patched, tmp_path, cold):
    path = tmp_path / "model"
    values = {f"layer.{i}": torch.full((300_000,), float(i)) for i in range(20)}
    safetensors.torch.save_file(values, path)
    if cold:
        drop_from_cache(path)
    loaded = safetensors.torch.load_file(path)
    if cold:
        drop_from_cache(path)
    with safetensors.safe_open(path, "pt") as file:
        one_by_one = {name: file.get_tensor(name) for name in file.keys()}
        part = file.get_slice("layer.7")[5:9]
    for tensors in (loaded, one_by_one):
        assert all(is_mapped(tensor, path) and torch.equal(tensor, values[name]) for name, tensor in tensors.items())
    assert part.tolist() == [7.0] * 4
    loaded["layer.3"].fill_(-1)  # private: neither the file nor others see it
    assert torch.equal(one_by_one["layer.3"], values["layer.3"])
    assert torch.equal(penstock.load_file(path, copy=True)["layer.3"], values["layer.3"])


def test_patching_takes_options(path):
    penstock.patch(copy=True)
    try:
        assert not is_mapped(safetensors.torch.load_file(path)["a"], path)
    finally:
        penstock.unpatch()
    with pytest.raises(TypeError, match="'cpoy'"):
        penstock.patch(cpoy=True)
    with pytest.raises(penstock.InvalidError, match="copy and share exclude each other"):
        penstock.load_file(path, copy=True, share=True)
    assert is_mapped(penstock.load_file(path, share=True)["a"], path)


def test_functions_that_modules_and_classes_have_kept_are_replaced(path):
    module = types.ModuleType("kept")
    code = "from safetensors.torch import load_file as mine\nclass Loader:\n    read = staticmethod(mine)"
    exec(code, vars(module))
    sys.modules["kept"] = module
    try:
        penstock.patch()
        assert module.mine is safetensors.torch.load_file is module.Loader.read is not ORIGINALS["load_file"]
        penstock.unpatch()
        assert module.mine is ORIGINALS["load_file"] is module.Loader.read
    finally:
        del sys.modules["kept"]


WORKER = """
import multiprocessing, sys
def is_patched(_=None):
    import safetensors
    from safetensors.numpy import load_file  # which is there sooner than torch
    return load_file.__code__.co_filename.endswith("_patch.py") and type(safetensors.safe_open) is not type
if __name__ == "__main__":
    assert "penstock" not in sys.modules or sys.argv[1] == "1"
    assert "torch" not in sys.modules
    found = [is_patched()]
    for how in ("spawn", "forkserver"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            found += pool.map(is_patched, [0])
    print(found)
"""


@pytest.mark.parametrize("value", ["0", "1"])
def test_workers_are_patched_by_the_environment(tmp_path, value):
    # What an installation is: a folder whose .pth files Python runs at its start.
    package = pathlib.Path(penstock.__file__).parent.parent
    if not (package / "penstock.pth").exists():
        pytest.skip("penstock.pth is not beside the package")
    (tmp_path / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(package)!r})\n")
    (tmp_path / "worker.py").write_text(WORKER)
    environment = {**os.environ, "PENSTOCK_PATCH": value, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, tmp_path / "worker.py", value], capture_output=True, text=True, timeout=120,
                          env=environment)
    assert done.stdout == f"{[value == '1'] * 3}\n", done.stderr


def test_the_line_of_the_environment_never_raises(tmp_path):
    line = (pathlib.Path(__file__).parents[2] / "bindings/python/penstock.pth").read_text()
    assert line.count("\n") == 1
    code = f"import sys; before = set(sys.modules)\n{line}\nprint(sorted(set(sys.modules) - before))"
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PENSTOCK_PATCH")}
    for set_ in ({}, {"PENSTOCK_PATCH": ""}, {"PENSTOCK_PATCH": "0"}):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                              env={**environment, **set_})
        assert done.stdout == "[]\n", done.stderr
    (tmp_path / "penstock.py").write_text("raise RuntimeError('broken')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**environment, "PENSTOCK_PATCH": "1", "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0 and done.stderr.startswith("penstock: PENSTOCK_PATCH has no effect: "), done.stderr


def test_files_that_only_safetensors_takes_are_left_to_it(patched, tmp_path):
    path = tmp_path / "model"
    head, _ = header([("a", "U8", (3,))])
    head = head[8:].replace(b'"dtype"', b'"more": 1, "dtype"')
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"\1\2\3")
    assert safetensors.torch.load_file(path)["a"].tolist() == [1, 2, 3]
    assert safetensors.numpy.load(path.read_bytes())["a"].tolist() == [1, 2, 3]
    with safetensors.safe_open(path, "np") as file:
        assert file.get_tensor("a").tolist() == [1, 2, 3]


def test_a_link_is_replaced_by_what_is_saved(patched, tmp_path):
    """In the cache of the Hugging Face hub it leads to a blob that other revisions share."""
    (tmp_path / "blobs").mkdir()
    blob, link = tmp_path / "blobs" / "digest", tmp_path / "model.safetensors"
    for save in (lambda: safetensors.torch.save_file({"a": torch.ones(2)}, link),
                 lambda: safetensors.torch.save_file({"a": torch.ones(2)}, filename=str(link)),
                 lambda: safetensors.numpy.save_file({"a": numpy.ones(2, numpy.float32)}, link),
                 lambda: safetensors.torch.save_model(torch.nn.Linear(1, 1), str(link))):
        blob.write_bytes(b"of others")
        link.unlink(missing_ok=True)
        link.symlink_to("blobs/digest")
        save()
        assert blob.read_bytes() == b"of others" and not link.is_symlink()
        assert penstock.load_file(link, copy=True)
    link.unlink()
    link.symlink_to("blobs/digest")
    with pytest.raises(ValueError):
        safetensors.torch.save_file({"a": 3}, link)
    assert link.is_symlink() and sorted(os.listdir(tmp_path)) == ["blobs", "model.safetensors"]


def test_bytes_are_saved_and_taken_apart_too(patched, tmp_path):
    tensors = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16)}
    assert safetensors.torch.save is not ORIGINALS["save"] and safetensors.deserialize is not ORIGINALS["deserialize"]
    for metadata in (None, {"x": "y"}):
        assert safetensors.torch.save(tensors, metadata) == ORIGINALS["save"](tensors, metadata)
    arrays = {"a": numpy.arange(3)}
    assert safetensors.numpy.save(arrays) == penstock.numpy.save(arrays)
    plain = safetensors.torch.save(tensors)
    assert dict(safetensors.deserialize(plain)) == dict(ORIGINALS["deserialize"](plain))  # theirs has no fixed order
    penstock.save_file({"w": (torch.randn(1 << 16) / 50).to(torch.bfloat16)}, tmp_path / "packed", packed=True)
    [(name, about)] = safetensors.deserialize((tmp_path / "packed").read_bytes())
    weights = penstock.load_file(tmp_path / "packed")["w"]
    assert name == "w" and bytes(about["data"]) == weights.view(torch.uint8).numpy().tobytes()
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(b"bad")


def test_patching_lasts_as_long_as_its_block(path):
    with penstock.patch():
        assert safetensors.torch.load_file is not ORIGINALS["load_file"]
        with penstock.patch(share=False, copy=True):
            assert not is_mapped(safetensors.torch.load_file(path)["a"], path)
        assert is_mapped(safetensors.torch.load_file(path)["a"], path)
    assert safetensors.torch.load_file is ORIGINALS["load_file"]


def test_patching_again_changes_the_options(path):
    penstock.patch()
    try:
        kept = safetensors.torch.load_file
        penstock.patch(copy=True)
        assert not is_mapped(kept(path)["a"], path)
        with pytest.raises(penstock.InvalidError, match="exclude each other"):
            penstock.patch(copy=True, share=True)
        with pytest.raises(TypeError, match="context must be"):
            penstock.patch(context="a context")
        assert not is_mapped(kept(path)["a"], path)
    finally:
        penstock.unpatch()


def test_only_what_safetensors_calls_its_error_is_one(patched, path, tmp_path):
    shared = torch.ones(3)
    for call, theirs in ((lambda: safetensors.torch.load_file(tmp_path / "missing"), FileNotFoundError),
                         (lambda: safetensors.safe_open(tmp_path / "missing", "pt"), FileNotFoundError),
                         (lambda: safetensors.torch.save_file({"a": 3}, tmp_path / "x"), ValueError),
                         (lambda: safetensors.torch.save_file({"a": shared, "b": shared}, tmp_path / "x"), RuntimeError),
                         (lambda: safetensors.safe_open(path, "pt").get_slice("a")[9], IndexError)):
        with pytest.raises(theirs) as caught:
            call()
        assert isinstance(caught.value, penstock.Error) and not isinstance(caught.value, safetensors.SafetensorError)
    with pytest.raises(penstock.NotFoundError) as caught:
        penstock.load_file(tmp_path / "missing")  # not theirs to judge
    assert not isinstance(caught.value, safetensors.SafetensorError)


def test_patching_twice_is_patching_once(path):
    penstock.patch()
    penstock.patch()
    penstock.unpatch()
    assert type(safetensors.torch.load_file(path)) is dict
    penstock.unpatch()
    with pytest.raises(penstock.Error) as caught:
        penstock.load_file(path, select=["nowhere"])
    assert not isinstance(caught.value, safetensors.SafetensorError)


def test_patching_by_hand_and_by_the_environment_is_patching_once():
    code = """
import sys
import penstock
from penstock import _patch
_patch.patch_when_imported()
penstock.patch()
assert sum(isinstance(finder, _patch.Watcher) for finder in sys.meta_path) == 1, sys.meta_path
penstock.unpatch()
assert not any(isinstance(finder, _patch.Watcher) for finder in sys.meta_path)
import safetensors
assert safetensors.safe_open.__module__ != "penstock._safe_open", safetensors.safe_open
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


SCRIPT = '''
import sys
from safetensors.torch import load_file
print(sys.argv[1:], __name__, load_file.__code__.co_filename.split("/")[-2:], sys.path[0])
assert sys.path.count(sys.path[0]) == 1 and sys.argv[1:]
load_file(sys.argv[1])
'''


def test_a_script_runs_unchanged(path, tmp_path):
    folder = tmp_path / "programs"
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(SCRIPT)
    link = tmp_path / "link.py"
    link.symlink_to(script)
    # By a link too, modules are found beside the script itself, as with Python.
    for command, started_in in (([link], tmp_path), (["-m", "script"], folder)):
        done = subprocess.run([sys.executable, "-m", "penstock", "run", *command, path, "more"], capture_output=True,
                              text=True, timeout=60, cwd=started_in)
        assert done.stdout == f"['{path}', 'more'] __main__ ['penstock', '_patch.py'] {folder}\n", done.stderr
        assert done.returncode == 0, done.stderr
    done = subprocess.run([sys.executable, "-m", "penstock", "run"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "SCRIPT" in done.stderr


def test_transformers_load_through_penstock(patched, tmp_path, loads):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
        pytest.skip(f"transformers need a torch newer than {torch.__version__}")
    import transformers

    configuration = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=100, n_positions=16)
    model = transformers.GPT2LMHeadModel(configuration)
    model.save_pretrained(tmp_path)
    before = loads()
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert loads() > before
    loaded.save_pretrained(tmp_path / "again")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "again")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]) and torch.equal(tensor, again.state_dict()[name]), name
