"""The examples in docs/python.md, docs/rows.md, docs/kinds.md and docs/layers.md run, one after the other, as a reader would type them."""

import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import penstock
from penstock import _errors

torch = pytest.importorskip("torch")
ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "python.md"
REFERENCE = ROOT / "docs" / "python-reference.md"


@pytest.fixture(autouse=True)
def unpatched():
    """Examples patch, as programs do."""
    yield
    penstock.unpatch()


def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) >= 9
    for example in examples:
        if "patch()" in example and not _has_safetensors():
            continue
        exec(compile(example, str(PAGE), "exec"), names)
    assert names["report"].bytes == 4000


def test_the_examples_of_rows_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "rows.md"
    names = {"__name__": "__main__"}
    examples = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) >= 3
    for example in examples:
        if "cuda" in example and not torch.cuda.is_available():
            continue
        exec(compile(example, str(page), "exec"), names)
    assert names["four"].shape == (4, 16)


def test_the_examples_of_kinds_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "kinds.md"
    names = {}
    examples = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(page), "exec"), names)
    assert names["gathered"].shape == (3, 16) and names["some"]["time"].shape == (10,)


def test_the_examples_of_tiers_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "tiers.md"
    names = {}
    examples = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(page), "exec"), names)
    assert names["report"].units == 1 and (tmp_path / "slow/models/weights.bin").stat().st_size == 1_000_000


def test_the_examples_of_layers_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "layers.md"
    names = {}
    examples = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(page), "exec"), names)
    with torch.no_grad():
        expected = names["model"](names["x"])
    assert torch.allclose(names["y"].cpu(), expected, atol=1e-4)
    assert torch.allclose(names["z"].cpu(), expected, atol=1e-4)


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    penstock.save_file({"a": torch.ones(3)}, "model/model.safetensors")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example, = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "cuda:0" in example
    names = {}
    exec(compile(example.replace("cuda:0", "cpu"), "README.md", "exec"), names)
    assert list(names["tensors"]) == ["a"]


def _has_safetensors():
    try:
        import safetensors  # noqa: F401
    except ImportError:
        return False
    return True


def test_the_reference_has_every_name_and_argument():
    text = REFERENCE.read_text(encoding="utf-8")
    for name in penstock.__all__:
        thing = getattr(penstock, name)
        assert re.search(rf"\b{name}\b", text), name
        assert inspect.getdoc(thing), name
        if inspect.isfunction(thing) or name == "safe_open":
            signature = re.search(rf"`{name}\((.*?)\)`", text)
            assert signature, name
            told = [each.strip(" *") for each in signature[1].split(",") if each.strip() not in ("", "*")]
            assert told == list(inspect.signature(thing).parameters), name


def test_the_table_of_errors_is_complete():
    table = REFERENCE.read_text(encoding="utf-8").partition("| code | is also |")[2]
    for code, class_ in _errors._CLASSES.items():
        row = next(line for line in table.splitlines() if f"`{code}`" in line)
        assert any(base.__name__ in row for base in class_.__mro__ if base.__module__ == "builtins"), code
    assert penstock.StateError.__mro__[2] is RuntimeError


def test_the_example_of_workers_runs_where_they_are_spawned(tmp_path):
    page = (ROOT / "docs" / "rows.md").read_text(encoding="utf-8")
    [example] = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "DataLoader" in each]
    spawned = example.replace("num_workers=2", "num_workers=1, multiprocessing_context='spawn'")
    assert spawned != example
    (tmp_path / "program.py").write_text(spawned)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("1000\n", 0), done.stderr
