"""Tables and kinds in the workers of a DataLoader: forked, or pickled; and what can't be either."""

import copy
import pickle

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


def test_a_context_can_not_follow(tmp_path, content):
    with penstock.Context(lanes=1) as context, rows_of_a_file(tmp_path, content, context=context) as table:
        with pytest.raises(TypeError, match="a Context was given"):
            pickle.dumps(table)


def test_what_can_only_be_open_once_is_not_copied(tmp_path, content):
    path = tmp_path / "model.safetensors"
    penstock.save_file({"0.weight": torch.from_numpy(content)}, path)
    with penstock.Layers(path, "1MiB", device="cpu") as layers, penstock.open(path) as store:
        for each in (layers, store):
            for make in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="can't be copied or pickled: open another one"):
                    make(each)
        with layers.use("0") as tensors:
            assert torch.equal(tensors["0.weight"], torch.from_numpy(content))
        with pytest.raises(penstock.InvalidError, match="no stream"):
            layers.acquire("0", stream="a string")
