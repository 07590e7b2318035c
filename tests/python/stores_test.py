"""Stores that stay open, what the machine offers, and several models at once."""

import asyncio
import builtins
import io
import os
import pickle
import site

import numpy
import pytest

import penstock
from models import write_gguf, write_model
from penstock import _options


def test_a_store_is_read_and_written_in_place(tmp_path):
    path = tmp_path / "store"
    content = numpy.random.default_rng(1).integers(0, 256, 1 << 20, numpy.uint8)
    with penstock.open(path, "create", size=1 << 20) as store:
        assert store.writable and store.kind == "file" and store.name == str(path)
        assert store.write_from(content).bytes == 1 << 20
        store.write_from(b"penstock", offset=100, durable=True)
        read_only = content[:512].copy()
        read_only.flags.writeable = False
        store.write_from(read_only, 4096)
        target = numpy.zeros(8, numpy.uint8)
        assert store.read_into(target, 100).bytes == 8 and target.tobytes() == b"penstock"
        assert "file of 1048576 bytes" in repr(store)
    assert "closed" in repr(store)
    content[100:108] = list(b"penstock")
    content[4096:4608] = read_only
    assert path.read_bytes() == content.tobytes()
    with pytest.raises(penstock.StateError, match="is closed"):
        store.read()


def test_a_store_gives_new_memory(tmp_path, file, content):
    with penstock.open(file) as store:
        assert store.size == len(content)
        assert store.read(framework="np").tobytes() == content
        assert store.read(7, 100, framework="np").tobytes() == content[7:107]
        block = store.block_bytes
        assert store.read(lba=2, count=3, framework="np").tobytes() == content[2 * block:5 * block]
        with pytest.raises(penstock.InvalidError, match="count without lba"):
            store.read(count=3, framework="np")
        with pytest.raises(penstock.InvalidError, match="lba together"):
            store.read(5, lba=3, framework="np")
        with pytest.raises(penstock.Error):
            store.write_from(b"no")
    with pytest.raises(penstock.InvalidError, match="unknown access 'rw'.*replace"):
        penstock.open(file, "rw")
    with pytest.raises(penstock.NotFoundError):
        penstock.open(tmp_path / "missing")
    with pytest.raises(penstock.Error, match="bogus"):
        penstock.open("bogus:name")


def test_a_store_is_awaited(tmp_path, file, content):
    async def both():
        with penstock.open(file) as store, penstock.open(tmp_path / "copy", "replace", size=len(content)) as other:
            first, second = await asyncio.gather(store.read_async(0, 1 << 20, framework="np"),
                                                 store.read_async(1 << 20, framework="np"))
            await asyncio.gather(other.write_from_async(first), other.write_from_async(second, 1 << 20))

    asyncio.run(both())
    assert (tmp_path / "copy").read_bytes() == content


def test_what_replaces_a_file_does_so_when_all_went_well(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(KeyError):
        with penstock.open(path, "replace", size=5) as store:
            store.write_from(b"after")
            raise KeyError
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["file"]
    with penstock.open(path, "replace", size=5) as store:
        store.write_from(b"after")
    assert path.read_bytes() == b"after"


def test_the_machine_is_described():
    found = {engine["name"]: engine for engine in penstock.engines()}
    assert found["posix"]["available"] and "file" in found["posix"]["schemes"]
    assert isinstance(penstock.gpus(), list)
    if not os.path.exists(os.path.join(os.path.dirname(penstock.__file__), "bin", "penstock")):
        pytest.skip("the tool was not built")
    assert {"verdict", "findings"} <= penstock.doctor().keys()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        penstock.doctor("/nowhere")


def test_a_forked_child_leaves_the_new_file_to_its_parent(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with penstock.open(path, "replace", size=5) as store:
        store.write_from(b"after")
        child = os.fork()
        if child == 0:
            store.__exit__(None, None, None)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"


@pytest.fixture
def two_models(tmp_path):
    contents = {}
    for key in ("first", "second"):
        contents[key] = write_model(tmp_path / key, [("w", "U8", (1 << 16,)), ("b", "U8", (key == "first" and 3 or 5,))])
    return {key: tmp_path / key for key in contents}, contents


def test_models_with_equal_names_are_loaded_together(two_models):
    paths, contents = two_models
    loaded = penstock.load_models(paths, framework="np")
    assert list(loaded) == ["first", "second"]
    for key, tensors in loaded.items():
        assert {name: array.tobytes() for name, array in tensors.items()} == contents[key]
        assert tensors.report.bytes == sum(map(len, contents[key].values()))
    assert [list(tensors) for tensors in penstock.load_models(paths, framework="np", select=["b"]).values()] == [["b"]] * 2


def test_a_load_is_awaited_and_cancelled(two_models, slow_context, large_file):
    paths, contents = two_models

    async def load():
        both = await asyncio.gather(*(penstock.load_file_async(path, framework="np") for path in paths.values()))
        return [tensors["b"].tobytes() for tensors in both]

    assert asyncio.run(load()) == [contents[key]["b"] for key in paths]
    write_model(large_file, [("w", "U8", (256 << 20,))], content=None)

    async def cancel():
        loading = asyncio.ensure_future(penstock.load_file_async(large_file, framework="np", copy=True,
                                                                 context=slow_context))
        await asyncio.sleep(0.1)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading

    asyncio.run(cancel())


def test_progress_is_a_line_where_it_is_just_true(two_models, monkeypatch):
    paths, _ = two_models
    said = io.StringIO()
    monkeypatch.setattr("sys.stderr", said)
    penstock.load_file(paths["first"], framework="np", progress=True)
    assert said.getvalue().endswith("first: 100 %, 65.5 kB of 65.5 kB\n")
    penstock.load_file(paths["first"], framework="np", progress=False)
    assert said.getvalue().count("\n") == 1


def test_reports_and_streams_tell_all(two_models):
    paths, contents = two_models
    stream = penstock.stream(paths["first"], framework="np")
    assert (stream.tensor_count, stream.total_bytes) == (2, sum(map(len, contents["first"].values())))
    list(stream)
    told = stream.report.as_dict()
    assert told["bytes"] == stream.total_bytes and sum(told["routes"].values()) == told["bytes"]
    assert told["bytes_per_second"] == stream.report.bytes_per_second
    assert "2 tensors" in repr(stream)


def test_an_open_file_is_pickled_by_its_name(two_models):
    paths, contents = two_models
    with penstock.safe_open(paths["first"], "np") as file:
        again = pickle.loads(pickle.dumps(file))
        assert type(again) is penstock.safe_open and again.get_tensor("b").tobytes() == contents["first"]["b"]
        assert "first" in repr(again) and "'b': U8 [3]" in repr(again.get_slice("b"))


def test_any_part_of_a_split_gguf_model_means_all_of_it(tmp_path):
    for part in range(3):
        write_gguf(tmp_path / f"model-{part + 1:05}-of-00003.gguf", {}, [(f"tensor.{part}", 24, (4,), bytes([part] * 4))])
    for part in (1, 3):
        tensors = penstock.load_file(tmp_path / f"model-{part:05}-of-00003.gguf", framework="np")
        assert {name: array.tolist() for name, array in tensors.items()} == {f"tensor.{i}": [i] * 4 for i in range(3)}
    os.unlink(tmp_path / "model-00002-of-00003.gguf")
    with pytest.raises(penstock.NotFoundError, match="00002-of-00003"):
        penstock.load_file(tmp_path / "model-00001-of-00003.gguf", framework="np")


CLIENT = '''
import penstock


def size_of(path: str) -> int:
    with penstock.open(path) as store:
        report: penstock.Report = store.read_into(bytearray(store.size))
        return report.bytes


async def load(path: str) -> dict[str, object]:
    tensors = await penstock.load_file_async(path, "cpu", share=True)
    return dict(tensors)


penstock.patch(share=False)
with penstock.patch(copy=True):
    pass
penstock.patch(shar=False)  # type: ignore[call-arg]
lanes: int = penstock.Context(lanes=4, deadlines={"request_seconds": 30}).options["lanes"]
penstock.Context(lane=4)  # type: ignore[call-arg]
penstock.Context(deadlines={"request_second": 30})  # type: ignore[typeddict-unknown-key]
names: list[str] = [engine["name"] for engine in penstock.engines()]
checked: list[penstock.Checked] = penstock.verify("model.safetensors")
for row in penstock.Rows("table.npy"):
    print(row)
with penstock.safe_open("model.safetensors", "pt") as file:
    keys: list[str] = file.keys()
'''


def test_the_types_are_complete(tmp_path):
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    package = os.path.dirname(penstock.__file__)
    # mypy finds by itself what is installed, and refuses to be told where.
    folder = os.path.dirname(package)
    told = "" if folder in site.getsitepackages() else folder
    (tmp_path / "client.py").write_text(CLIENT)
    # What the frameworks say of their types takes minutes to read, and is not what is asked here; nor are the programs that
    # the tool starts.
    (tmp_path / "mypy.ini").write_text(f"""[mypy]
mypy_path = {told}
cache_dir = {tmp_path}/cache
exclude = /penstock/share/
[mypy-torch.*,numpy.*,ml_dtypes.*,safetensors.*]
follow_imports = skip
ignore_missing_imports = True
""")
    found, failed, code = api.run(["--strict", "--follow-imports=silent", "--config-file", str(tmp_path / "mypy.ini"),
                                   str(tmp_path / "client.py"), package])
    assert code == 0, found + failed


def test_type_checkers_know_all_options():
    with penstock.Context() as context:
        options = context.options
    assert list(options) == list(_options.Options.__annotations__)
    assert list(options["deadlines"]) == list(_options.Deadlines.__annotations__)


def test_all_names_leave_those_of_python_alone():
    names = {}
    exec("from penstock import *", names)
    assert set(penstock.__all__) <= set(names) and not set(penstock.__all__) & set(dir(builtins))


def test_a_text_is_neither_true_nor_false(tmp_path):
    model = tmp_path / "m.safetensors"
    penstock.save_file({"a": numpy.zeros(4, "f4")}, model)
    calls = {"device_write": lambda **flag: penstock.open(model, **flag),
             "copy": lambda **flag: penstock.load_file(model, framework="np", **flag),
             "share": lambda **flag: penstock.load_file(model, framework="np", **flag),
             "own_storage": lambda **flag: penstock.load_file(model, framework="np", **flag),
             "durable": lambda **flag: penstock.save_file({}, tmp_path / "new", **flag),
             "checksums": lambda **flag: penstock.save_file({}, tmp_path / "new", **flag),
             "packed": lambda **flag: penstock.save_file({}, tmp_path / "new", **flag),
             "adopt": lambda **flag: penstock.Tiers.create({"a": str(tmp_path)}, catalog=tmp_path / "catalog", **flag)}
    for what, call in calls.items():
        with pytest.raises(TypeError, match=f"{what} must be True or False, and is 'no'"):
            call(**{what: "no"})


def test_numbers_below_0_are_refused_by_name(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    with penstock.open(path) as store:
        for arguments in ({"size": -5}, {"offset": -1, "size": 3}, {"lba": -1, "count": 1}, {"lba": 0, "count": -1}):
            with pytest.raises(penstock.InvalidError, match=" is -"):
                store.read(**arguments)
    for what in ("size", "first_block", "blocks"):
        with pytest.raises(penstock.InvalidError, match=f"{what} is -1"):
            penstock.open(tmp_path / "new", "create", **{what: -1})
        with pytest.raises(TypeError, match=f"{what} must be an integer"):
            penstock.open(tmp_path / "new", "create", **{what: "1"})
    with pytest.raises(TypeError, match="serial must be a str"):
        penstock.open(path, serial=5)
    assert not (tmp_path / "new").exists()


def test_durable_is_a_truth_of_any_kind(tmp_path):
    with penstock.open(tmp_path / "new", "replace") as store:
        store.write_from(b"abcd", durable=numpy.False_)
        store.commit(numpy.True_)
        for ask in (lambda: store.commit("no"), lambda: store.write_from(b"abcd", durable="no")):
            with pytest.raises(TypeError, match="durable must be True or False, and is 'no'"):
                ask()


def test_what_is_written_after_a_commit_changes_the_file(tmp_path):
    path = tmp_path / "file"
    with penstock.open(path, "replace") as store:
        store.write_from(b"old")
        store.commit()
        store.write_from(b"new")
    assert path.read_bytes() == b"new"
