"""Files that are open: tensors in any order, parts of them, read ahead of a loop."""

import importlib.util
import logging
import random
import threading

import numpy
import pytest

import penstock
from models import raw, write_model

torch = pytest.importorskip("torch")

SLICES = numpy.s_[3:9], numpy.s_[:, 5:100], numpy.s_[2:4, 3:5], numpy.s_[7], numpy.s_[-1], numpy.s_[...], numpy.s_[:], \
    numpy.s_[::3], numpy.s_[-1, ::2], numpy.s_[-5:], numpy.s_[4:4], numpy.s_[:, 3], numpy.s_[5:2, 1:3], numpy.s_[3:3, 1], \
    numpy.s_[1:500:7, 3:900:11], numpy.s_[..., 4], numpy.s_[2, ...], numpy.s_[10:10000], numpy.s_[3, 4], \
    numpy.s_[:, :], numpy.s_[0:600], numpy.s_[numpy.int64(5)], numpy.s_[0:0, ::2]


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_slices_are_what_indexing_the_tensor_gives(mixed, framework):
    whole = penstock.load_file(mixed[0], framework=framework)["large"]
    with penstock.safe_open(mixed[0], framework) as file:
        part = file.get_slice("large")
        for index in SLICES + ((numpy.s_[::-1], numpy.s_[400:7:-3, 5]) if framework == "np" else ()):
            got = part[index]
            assert tuple(got.shape) == tuple(whole[index].shape), index
            assert raw(got) == raw(numpy.ascontiguousarray(whole[index])) if framework == "np" else \
                torch.equal(got, whole[index]), index
        for wrong in (600, -601, (0, 0, 0), None, "x", [1, 2], (..., ...), 1.5):
            with pytest.raises(ValueError):
                part[wrong]
        assert raw(file.get_slice("scalar")[...]) == raw(file.get_tensor("scalar"))


def test_rows_are_read_and_not_the_whole_tensor(tmp_path):
    path = tmp_path / "model"
    write_model(path, [("a", "F32", (4096, 1024))], content=None)
    with penstock.Context() as context, penstock.safe_open(path, "pt", context=context) as file:
        file.get_slice("a")[10:20]
        assert sum(route["bytes"] for route in context.statistics()["routes"]) < 1 << 20


@pytest.mark.parametrize("order", ["keys", "offset_keys", "reversed", "shuffled", "twice", "strided"])
def test_tensors_come_in_any_order(mixed, order):
    path, contents = mixed
    with penstock.safe_open(path, "pt") as file:
        names = file.offset_keys() if order == "offset_keys" else file.keys()
        if order == "reversed":
            names = names[::-1]
        elif order == "shuffled":
            random.Random(1).shuffle(names)
        elif order == "twice":
            names = [name for name in names for _ in range(2)] + names[5:] + names[5:]
        elif order == "strided":
            names = names[::2] + names[1::2]
        for name in names:
            assert raw(file.get_tensor(name)) == contents[name], name
    with pytest.raises(penstock.StateError, match="closed"):
        file.get_tensor(names[0])
    with pytest.raises(penstock.StateError, match="closed"):
        file.keys()


def test_a_loop_is_read_ahead_of(tmp_path):
    path = tmp_path / "model"
    contents = write_model(path, [(f"t{i:03}", "U8", (50000,)) for i in range(200)])
    for keys in (lambda file: file.keys(), lambda file: file.offset_keys()):
        with penstock.Context() as context, penstock.safe_open(path, "np", context=context) as file:
            for name in keys(file):
                assert raw(file.get_tensor(name)) == contents[name]
            assert context.statistics()["requests"] < 10


@pytest.mark.parametrize("keys", ["keys", "offset_keys"])
@pytest.mark.parametrize("begin", [0, 50])
def test_a_loop_is_read_ahead_of_where_orders_begin_alike(tmp_path, keys, begin):
    """The names of the first tensors are in order, those of the others are not."""
    path = tmp_path / "model"
    numbers = [*range(3), *range(99, 2, -1)]
    contents = write_model(path, [(f"t{i:03}", "U8", (50000,)) for i in numbers])
    with penstock.Context() as context, penstock.safe_open(path, "np", context=context) as file:
        names = getattr(file, keys)()
        for name in [*names[begin:], *names[begin:]]:
            assert raw(file.get_tensor(name)) == contents[name]
        assert context.statistics()["requests"] < 20


def test_a_tensor_that_cannot_be_read_ahead_costs_nobody_else_anything(tmp_path, monkeypatch):
    """NumPy has no bfloat16. Nothing of what is on its way is let go for it, and the loop is read ahead of behind it."""
    if importlib.util.find_spec("ml_dtypes"):
        pytest.skip("with ml_dtypes it has")
    monkeypatch.setattr(penstock._safe_open, "AHEAD_BYTES", 1 << 20)  # so that some are on their way before it
    path = tmp_path / "model"
    kinds = ["BF16" if i == 50 else "U8" for i in range(200)]
    contents = write_model(path, [(f"t{i:03}", kind, (50000,)) for i, kind in enumerate(kinds)])
    with penstock.Context() as context, penstock.safe_open(path, "np", context=context) as file:
        for name in file.keys():
            if name == "t050":
                with pytest.raises(penstock.Error, match="BF16"):
                    file.get_tensor(name)
            else:
                assert raw(file.get_tensor(name)) == contents[name]
        statistics = context.statistics()
        assert statistics["requests"] < 70
        assert sum(route["bytes"] for route in statistics["routes"]) < 1.3 * sum(map(len, contents.values()))


def test_a_look_at_one_tensor_reads_one_tensor(tmp_path):
    path = tmp_path / "model"
    write_model(path, [(f"t{i:03}", "U8", (50000,)) for i in range(200)])
    with penstock.Context() as context, penstock.safe_open(path, "np", context=context) as file:
        file.get_tensor("t000")
        assert context.statistics()["requests"] == 1
        assert sum(route["bytes"] for route in context.statistics()["routes"]) < 100000


def test_a_file_named_relatively_stays_open_when_the_directory_changes(mixed, tmp_path, monkeypatch):
    path, contents = mixed
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with penstock.safe_open(path.name, "np") as file:
        stream = penstock.stream(path.name, framework="np")
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert {name: raw(file.get_tensor(name)) for name in file.keys()} == contents
        assert {name: raw(tensor) for name, tensor in stream} == contents


def test_an_open_file_has_a_report_and_one_line_in_the_log_when_it_is_closed(mixed, caplog):
    path, contents = mixed
    with caplog.at_level(logging.INFO, "penstock"):
        with penstock.safe_open(path, "pt") as file:
            assert file.report is None
            for name in file.keys():
                file.get_tensor(name)
            file.get_slice("large")[:2]
        assert len(caplog.records) == 1 and str(path) in caplog.text
        assert file.report.bytes == sum(map(len, contents.values())) + 8000
        with penstock.safe_open(path, "pt") as file:
            file.keys()
    assert len(caplog.records) == 1  # nothing was read


def test_threads_share_an_open_file(mixed):
    path, contents = mixed
    wrong = []
    with penstock.safe_open(path, "np") as file:
        def read(seed):
            names = file.keys()
            random.Random(seed).shuffle(names)
            wrong.extend(name for name in names if raw(file.get_tensor(name)) != contents[name])

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
