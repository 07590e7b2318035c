"""Tables and kinds in the workers of a DataLoader: forked, or pickled; and what can't be either."""

import copy
import multiprocessing
import pickle
import subprocess
import sys

import numpy
import pytest
import torch

import penstock

ROWS = 96


@pytest.fixture
def content():
    return numpy.random.default_rng(1).standard_normal((ROWS, 5)).astype(numpy.float32)


def rows_of_a_file(folder, content, **options):
    path = folder / "table.npy"
    numpy.save(path, content)
    return penstock.Rows(path, framework="pt", **options)


def rows_of_a_kind(folder, content, **options):
    kinds = penstock.Kinds.create(folder / "records.bin", framework="pt", **options)
    kinds.add("samples", dtype="F32", shape=(5,), capacity=ROWS)
    kinds.append("samples", content)
    return kinds.rows("samples")


class Samples(torch.utils.data.Dataset):
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        return self.table[index]


class Parts(torch.utils.data.Dataset):
    def __init__(self, store):
        self.store = store

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return self.store.read(20 * index, 20, framework="pt")


@pytest.mark.parametrize("make", [rows_of_a_file, rows_of_a_kind])
def test_forked_workers_read_what_their_parent_opened(tmp_path, content, make):
    table = make(tmp_path, content)
    assert torch.equal(table[0], torch.from_numpy(content[0])), "the parent has threads when it forks"
    loader = torch.utils.data.DataLoader(Samples(table), batch_size=7, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        assert torch.equal(torch.cat(list(loader)), torch.from_numpy(content))
    assert torch.equal(table[3:5], torch.from_numpy(content[3:5])), "it stays as it was in the parent"


@pytest.mark.parametrize("make", [rows_of_a_file, rows_of_a_kind])
def test_what_is_pickled_is_opened_again_by_its_name(tmp_path, content, make):
    table = make(tmp_path, content)
    for again in (pickle.loads(pickle.dumps(table)), copy.copy(table), copy.deepcopy(table)):
        assert type(again) is penstock.Rows and repr(again) == repr(table)
        again.close()
        assert torch.equal(table[[5, 1]], torch.from_numpy(content[[5, 1]])), "closing one does not close the other"
    table.close()
    with pytest.raises(penstock.Error, match="closed"):
        pickle.dumps(table)


class Scaled(penstock.Rows):
    def __init__(self, path, scale):
        self.scale = scale
        super().__init__(path, framework="np")

    def __getitem__(self, index):
        return self.scale * super().__getitem__(index)


def in_a_child(call):
    """What a call gives in a forked child, or the error that it raises."""
    ours, theirs = multiprocessing.Pipe()

    def run():
        try:
            theirs.send(call())
        except Exception as error:
            theirs.send(error)

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    result = ours.recv()
    child.join()
    return result


def everywhere(table, use):
    """What a use of a table gives in a forked child, and with one that was pickled."""
    pickled = pickle.dumps(table)
    return in_a_child(lambda: use(table)), use(pickle.loads(pickled))


def test_names_and_classes_stay(tmp_path, content, monkeypatch):
    numpy.save(tmp_path / "table.npy", content)
    monkeypatch.chdir(tmp_path)
    table = Scaled("table.npy", 2)
    monkeypatch.chdir("/")
    for got in everywhere(table, lambda each: (type(each), each[5].tolist())):
        assert got == (Scaled, (2 * content[5]).tolist())


def test_records_of_closed_kinds_stay(tmp_path, content):
    kinds = penstock.Kinds.create(tmp_path / "records.bin", framework="np")
    kinds.add("samples", dtype="F32", shape=(5,), capacity=ROWS)
    kinds.append("samples", content[:4])
    table = kinds.rows("samples")
    kinds.append("samples", content[4:])
    kinds.close()
    for got in everywhere(table, lambda each: (each[[3, 0]].tolist(), len(each), len(each[:]))):
        assert got == (content[[3, 0]].tolist(), 4, 4), "not those that came later"


def test_another_file_of_that_name_is_refused(tmp_path, content):
    table = rows_of_a_file(tmp_path, content)
    pickled = pickle.dumps(table)
    numpy.save(tmp_path / "other.npy", content[:7])
    (tmp_path / "other.npy").rename(tmp_path / "table.npy")
    assert in_a_child(lambda: table[0]).code == "changed"
    with pytest.raises(penstock.TransferError, match="not what it was"):
        pickle.loads(pickled)


def test_another_kind_of_that_name_is_refused(tmp_path, content):
    table = rows_of_a_kind(tmp_path, content)
    with penstock.Kinds(tmp_path / "records.bin") as kinds:
        kinds.remove("samples")
        kinds.add("samples", dtype="I32", shape=(5,), capacity=ROWS)
    assert in_a_child(lambda: table[0]).code == "changed"


def test_errors_of_workers_have_the_code_of_their_class(tmp_path, content):
    loader = torch.utils.data.DataLoader(Samples(rows_of_a_file(tmp_path, content)), num_workers=1, sampler=[ROWS],
                                         multiprocessing_context="fork")
    with pytest.raises(penstock.RangeError) as caught:
        next(iter(loader))
    assert caught.value.code == "out_of_range"


def test_a_child_that_exits_says_nothing_of_what_its_parent_opened(tmp_path, content):
    path = tmp_path / "model.safetensors"
    penstock.save_file({"0.weight": torch.from_numpy(content)}, path)
    program = f"""
import os, sys, penstock
layers, store, table = penstock.Layers({str(path)!r}, "1MiB", device="cpu"), penstock.open({str(path)!r}), penstock.Rows({str(path)!r}, "0.weight")
layers.acquire("0")
child = os.fork()
if child: assert os.waitpid(child, 0)[1] == 0
"""
    # Since 3.12, Python itself warns of every fork beside threads.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", program]
    assert subprocess.run(command, capture_output=True, check=True).stderr == b""


def test_a_context_can_not_follow(tmp_path, content):
    with penstock.Context(lanes=1) as context, rows_of_a_file(tmp_path, content, context=context) as table:
        with pytest.raises(TypeError, match="a Context was given"):
            pickle.dumps(table)


def test_what_can_only_be_open_once_is_not_copied(tmp_path, content):
    path = tmp_path / "model.safetensors"
    penstock.save_file({"0.weight": torch.from_numpy(content)}, path)
    with penstock.Layers(path, "1MiB", device="cpu") as layers, penstock.open(path, "write") as store:
        for each in (layers, store):
            for make in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="can't be copied or pickled: open another one"):
                    make(each)
        with layers.use("0") as tensors:
            assert torch.equal(tensors["0.weight"], torch.from_numpy(content))
        with pytest.raises(TypeError, match="stream must be"):
            layers.acquire("0", stream="a string")


def test_a_store_that_is_read_is_opened_again_by_workers(tmp_path, content):
    path = tmp_path / "table"
    path.write_bytes(content.tobytes())
    with penstock.open(path) as store:
        store.name_of_mine = "mine"
        for got in everywhere(store, lambda each: (each.read(20, 20, framework="np").tobytes(), each.name_of_mine)):
            assert got == (content[1].tobytes(), "mine")
        loader = torch.utils.data.DataLoader(Parts(store), batch_size=None, num_workers=2, multiprocessing_context="fork")
        assert b"".join(part.numpy().tobytes() for part in loader) == content.tobytes()
        with open(path, "ab") as file:
            file.write(b"more")
        assert in_a_child(lambda: store.size) == content.nbytes + 4, "it may grow"
        (tmp_path / "other").write_bytes(content.tobytes())
        (tmp_path / "other").rename(path)
        assert in_a_child(lambda: store.size).code == "changed"
    with penstock.Context(lanes=1) as context, penstock.open(path, context=context) as store:
        with pytest.raises(TypeError, match="a Context was given"):
            pickle.dumps(store)
