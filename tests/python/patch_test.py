"""Programs that use safetensors, unchanged."""

import importlib.util
import logging
import subprocess
import sys

import pytest

import penstock

safetensors = pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")
import safetensors.numpy  # noqa: E402
import safetensors.torch  # noqa: E402
from safetensors import safe_open as imported_by_name  # noqa: E402, F401

ORIGINALS = {"safe_open": safetensors.safe_open, "load_file": safetensors.torch.load_file}


@pytest.fixture
def patched():
    penstock.patch()
    yield
    penstock.unpatch()
    assert safetensors.safe_open is ORIGINALS["safe_open"] and safetensors.torch.load_file is ORIGINALS["load_file"]


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
    tensors = safetensors.torch.load_file(path)
    assert isinstance(tensors, penstock.Tensors) and tensors.report.bytes > 0
    assert isinstance(safetensors.torch.load_file(str(path), device="cpu"), penstock.Tensors)
    assert isinstance(safetensors.torch.load(path.read_bytes()), penstock.Tensors)
    assert isinstance(safetensors.numpy.load_file(path), penstock.Tensors)
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


def test_what_we_have_no_memory_for_goes_to_safetensors(patched, path):
    assert isinstance(safetensors.safe_open(path, "pt", "xpu:0"), ORIGINALS["safe_open"])
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(path, "abacus")


def test_errors_are_of_both_families(patched, path, tmp_path):
    (tmp_path / "bad").write_bytes(b"bad")
    for call in (lambda: safetensors.safe_open(tmp_path / "bad", "pt"),
                 lambda: safetensors.torch.load_file(tmp_path / "bad"),
                 lambda: safetensors.safe_open(path, "pt").get_tensor("nowhere"),
                 lambda: safetensors.safe_open(path, "pt").get_slice("a")[9]):
        with pytest.raises(safetensors.SafetensorError) as caught:
            call()
        assert isinstance(caught.value, penstock.Error)
    with pytest.raises(FileNotFoundError):
        safetensors.torch.load_file(tmp_path / "missing")


def test_patching_twice_is_patching_once(path):
    penstock.patch()
    penstock.patch()
    penstock.unpatch()
    assert type(safetensors.torch.load_file(path)) is dict
    penstock.unpatch()
    with pytest.raises(penstock.Error) as caught:
        penstock.load_file(path, select=["nowhere"])
    assert not isinstance(caught.value, safetensors.SafetensorError)


SCRIPT = '''
import sys
from safetensors.torch import load_file
print(sys.argv[1:], __name__, type(load_file(sys.argv[1])).__module__)
'''


def test_a_script_runs_unchanged(path, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for command in ([script], ["-m", "script"]):
        done = subprocess.run([sys.executable, "-m", "penstock", "run", *command, path, "more"], capture_output=True,
                              text=True, timeout=60, cwd=tmp_path)
        assert done.stdout == f"['{path}', 'more'] __main__ penstock._models\n", done.stderr
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
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
