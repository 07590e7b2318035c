"""Exceptions: which Python programs catch them, what they say, and how they travel between processes."""

import asyncio
import errno
import os
import pathlib
import pickle
import re
import subprocess
import sys

import numpy
import pytest

import penstock
from models import write_model
from penstock import _errors

safetensors = pytest.importorskip("safetensors")

CLASSES = sorted((value for value in vars(penstock).values()
                  if isinstance(value, type) and issubclass(value, penstock.Error)), key=lambda each: each.__name__)


@pytest.mark.parametrize("class_", CLASSES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("patched", [False, True], ids=["alone", "patched"])
def test_every_exception_pickles_by_class_and_by_instance(class_, patched):
    error = class_("the message", hint="a hint")
    if patched:
        error = _errors.as_joined(error, safetensors.SafetensorError)
    error.words = "their words"
    if isinstance(error, OSError):
        error.filename = "/some/file"
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(type(error), protocol)) is type(error)
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is type(error)
        assert (again.args, again.message, again.code, again.hint, str(again)) == \
            (error.args, "the message", class_.code, "a hint", "their words")
        assert getattr(again, "filename", None) == getattr(error, "filename", None)
    assert isinstance(type(error)("as a DataLoader makes it"), class_)


WORKERS = """
import sys
import penstock
penstock.patch()
import safetensors, safetensors.torch, torch

class Samples(torch.utils.data.Dataset):
    def __init__(self, path):
        self.path = path
    def __len__(self):
        return 1
    def __getitem__(self, index):
        with safetensors.safe_open(self.path, "pt") as file:
            return file.get_tensor("nowhere")

if __name__ == "__main__":
    for how in ("fork", "spawn", "forkserver"):
        loader = torch.utils.data.DataLoader(Samples(sys.argv[1]), num_workers=1, multiprocessing_context=how, timeout=60)
        try:
            list(loader)
        except safetensors.SafetensorError as error:
            assert isinstance(error, penstock.MissingKeyError) and "File does not contain tensor nowhere" in str(error)
            print(how)
"""


def test_an_error_in_a_worker_of_a_dataloader_ends_the_loop(tmp_path):
    pytest.importorskip("torch")
    write_model(tmp_path / "model", [("a", "U8", (3,))])
    (tmp_path / "workers.py").write_text(WORKERS)
    done = subprocess.run([sys.executable, "-W", "ignore", tmp_path / "workers.py", tmp_path / "model"],
                          capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["fork", "spawn", "forkserver"], done.stderr


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model", [("a", "F32", (3, 4))])
    (tmp_path / "empty").mkdir()
    (tmp_path / "tier").mkdir()
    return tmp_path


def kinds_of(folder):
    kinds = penstock.Kinds.create("records.bin", framework="np")
    kinds.add("samples", record_bytes=4, capacity=10)
    return kinds


def tiers_of(folder):
    tiers = penstock.Tiers.create({"only": folder / "tier"}, catalog="catalog")
    tiers.add("model", "unit", "only")
    return tiers


@pytest.mark.parametrize("call, name", [
    (lambda: penstock.read_into(bytearray(9), "missing"), "missing"),
    (lambda: asyncio.run(penstock.read_into_async(bytearray(9), "missing")), "missing"),
    (lambda: penstock.default_context().prefetch("missing"), "missing"),
    (lambda: penstock.open("missing"), "missing"),
    (lambda: penstock.open("nowhere/file", "create"), "nowhere/file"),
    (lambda: penstock.load_file("missing", framework="np"), "missing"),
    (lambda: penstock.safe_open("missing", "np"), "missing"),
    (lambda: penstock.stream("missing", framework="np"), "missing"),
    (lambda: penstock.verify("missing"), "missing"),
    (lambda: penstock.save_file({"a": numpy.zeros(3)}, "nowhere/file"), "nowhere/file"),
    (lambda: penstock.Rows("missing.npy"), "missing.npy"),
    (lambda: penstock.Rows(["model", "missing"], "a", framework="np"), "missing"),
    (lambda: penstock.Kinds("missing"), "missing.kinds.json"),
])
def test_a_missing_file_is_named(folder, call, name):
    with pytest.raises(FileNotFoundError) as caught:
        call()
    assert caught.value.errno == errno.ENOENT and not isinstance(caught.value, KeyError)
    assert caught.value.filename in (name, str(folder / name))


def test_a_directory_is_named(folder):
    for call in (lambda: penstock.read_into(bytearray(9), "empty"),
                 lambda: penstock.save_file({"a": numpy.zeros(3)}, "empty")):
        with pytest.raises(IsADirectoryError) as caught:
            call()
        assert caught.value.errno == errno.EISDIR and os.path.basename(caught.value.filename) == "empty"


@pytest.mark.parametrize("call", [
    lambda folder: penstock.load_file("model", framework="np", select="b"),
    lambda folder: penstock.load_file("model", framework="np", select="b.*"),
    lambda folder: penstock.safe_open("model", "np").get_tensor("b"),
    lambda folder: penstock.safe_open("model", "np").get_slice("b"),
    lambda folder: penstock.Rows("model", "b", framework="np"),
    lambda folder: kinds_of(folder)["nothing"],
    lambda folder: kinds_of(folder).rows("nothing"),
    lambda folder: kinds_of(folder).read(7, 0),
    lambda folder: tiers_of(folder)["nothing"],
    lambda folder: tiers_of(folder).path_of("nothing"),
    lambda folder: tiers_of(folder).pin("unit", "nowhere"),
    lambda folder: tiers_of(folder).move("nothing", "only"),
])
def test_what_has_no_such_name_is_a_key_error(folder, call):
    with pytest.raises(KeyError) as caught:
        call(folder)
    assert isinstance(caught.value, penstock.MissingKeyError) and caught.value.filename is None


def test_what_exists_already_is_a_file_exists_error(folder):
    kinds_of(folder)
    tiers = tiers_of(folder)
    for call in (lambda: penstock.Kinds.create("records.bin"), lambda: tiers.add("model", "unit", "only"),
                 lambda: penstock.Tiers.create({"only": folder / "tier"}, catalog="catalog")):
        with pytest.raises(FileExistsError) as caught:
            call()
        assert isinstance(caught.value, penstock.ExistsError) and caught.value.errno == errno.EEXIST
        assert caught.value.code == "in_use"


def test_hints_speak_of_python(folder):
    tiers = tiers_of(folder)
    for call, hint in ((lambda: penstock.Context(engine="nothing"), "penstock.engines()"),
                       (lambda: penstock.Rows("model", "b", framework="np"), "penstock.safe_open(path).keys()"),
                       (lambda: penstock.Kinds("missing"), "penstock.Kinds.create"),
                       (lambda: tiers["nothing"], "list(tiers)"), (lambda: tiers.pin("unit", "x"), "Tiers.tiers()"),
                       (lambda: penstock.Tiers("missing"), "catalog="),
                       (lambda: penstock.load_file("google/gemma-2b", framework="np"),
                        "huggingface_hub.snapshot_download('google/gemma-2b')")):
        with pytest.raises(penstock.Error) as caught:
            call()
        assert hint in caught.value.hint and "`" not in caught.value.hint and "--" not in caught.value.hint
    commands = re.compile(r"penstock (tier|kind|engines|doctor|inspect|verify)")
    sources = (pathlib.Path(__file__).parents[2] / "src").rglob("*.cc")
    texts = [text for source in sources if "cli" not in source.parts and not source.name.endswith("_test.cc")
             for text in re.findall(r'"((?:[^"\\\\]|\\\\.)*)"', source.read_text()) if commands.search(text)]
    assert len(texts) > 30
    # What has no like in Python is left as it is.
    left = [text for text in texts if commands.search(_errors.in_python(text)) and "tier change" not in text]
    assert not left, left
