"""Rows of tables that stay on disk."""

import array
import ctypes
import gc
import mmap
import os
import shutil
import threading

import numpy
import pytest

import penstock
from models import write_gguf

ROWS, WIDTH = 500, 33


@pytest.fixture
def table(tmp_path):
    """(path, what is in it)."""
    content = numpy.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(numpy.float32)
    path = tmp_path / "model.safetensors"
    penstock.numpy.save_file({"other": numpy.ones(3, numpy.int8), "embed": content}, path)
    return path, content


def open_np(path, *arguments, **options):
    return penstock.Rows(path, *arguments, framework="np", **options)


def test_rows_come_in_the_order_of_their_numbers_of_any_type(table):
    path, content = table
    rows = open_np(path, "embed")
    assert len(rows) == ROWS and rows.shape == (ROWS, WIDTH) and rows.dtype == numpy.float32
    assert rows.row_bytes == WIDTH * 4 and rows.report is None
    asked = [7, 7, 0, ROWS - 1]
    for indices in (asked, tuple(asked), array.array("h", asked), memoryview(array.array("Q", asked)),
                    *(numpy.array(asked, kind) for kind in ("i2", "u2", "i4", "u4", "i8", "u8", ">i4"))):
        assert numpy.array_equal(rows[indices], content[asked]), type(indices)
    assert rows.report.outcome == "done" and rows.report.bytes == 4 * rows.row_bytes
    assert rows.report.cached_rows + rows.report.cold_rows == 4
    assert "4 rows" not in repr(rows) and "RowsReport(" in repr(rows.report) and "cold" in str(rows.report)
    assert rows.report.as_dict()["filling"]["outcome"] == "done"


def test_numbers_need_not_be_aligned(table):
    path, content = table
    rows = open_np(path, "embed")
    for kind in (numpy.int16, numpy.uint32, numpy.int64):
        wanted = numpy.array([[7, 0], [ROWS - 1, 7]], kind)
        odd = numpy.frombuffer(b"x" + wanted.tobytes(), numpy.uint8)[1:].view(kind).reshape(2, 2)
        assert not odd.flags.aligned
        assert numpy.array_equal(rows.gather(odd), content[wanted])
    assert numpy.array_equal(rows.gather(memoryview(odd)), content[wanted])
    assert numpy.array_equal(rows.gather(numpy.ma.array([5, 3])), content[[5, 3]])
    assert numpy.array_equal(rows.gather(memoryview(numpy.arange(10))[::-3]), content[[9, 6, 3, 0]])
    for kind in (ctypes.c_int16, ctypes.c_uint32, ctypes.c_long, ctypes.c_ssize_t):
        assert numpy.array_equal(rows.gather((kind * 3)(7, ROWS - 1, 0)), content[[7, ROWS - 1, 0]])
    with pytest.raises(TypeError, match="indices: elements of <d are no numbers"):
        rows.gather((ctypes.c_double * 1)(7))


def test_numbers_have_any_shape(table):
    path, content = table
    rows = open_np(path, "embed")
    asked = numpy.arange(12).reshape(2, 3, 2)
    assert numpy.array_equal(rows[asked], content[asked])
    assert numpy.array_equal(rows[asked[:, ::2]], content[asked[:, ::2]]), "not contiguous"
    assert numpy.array_equal(rows[[[1, 2], [3, 4]]], content[[[1, 2], [3, 4]]])
    assert numpy.array_equal(rows[range(5, 100, 7)], content[5:100:7])
    for none in ([], (), numpy.empty(0, numpy.int32), numpy.array([])):
        assert rows[none].shape == (0, WIDTH)


def test_one_row_and_slices_are_those_of_python(table):
    path, content = table
    rows = open_np(path, "embed")
    for index in (3, -1, numpy.int16(4), numpy.array(5), slice(10, 20), slice(-3, None), slice(20, 10),
                  slice(None, None, 50), slice(9, 2, -3)):
        assert numpy.array_equal(rows[index], content[index]), index
    for index in (ROWS, -ROWS - 1):
        with pytest.raises(IndexError, match=str(ROWS)):
            rows[index]
    with pytest.raises(TypeError, match="indices: True"):
        rows[True]
    assert len(list(zip(range(3), open_np(path, "embed")))) == 3


def test_memory_that_is_given_is_filled(table):
    path, content = table
    rows = open_np(path, "embed")
    memory = numpy.zeros((3, WIDTH), numpy.float32)
    assert rows.gather([1, 2, 3], memory) is memory
    assert numpy.array_equal(memory, content[1:4])
    raw = bytearray(2 * rows.row_bytes)
    rows.rows(8, 2, raw)
    assert raw == content[8:10].tobytes()
    for same in (array.array("f", bytes(raw)), (ctypes.c_float * memory[:2].size)()):
        rows.rows(8, 2, same)
        assert bytes(same) == content[8:10].tobytes()
    for wrong, what in ((memory[:2], "fill"), (memory.astype(numpy.int32), "elements of int32"), (memory.T, "contiguous"),
                        (array.array("i", bytes(3 * rows.row_bytes)), "elements of <i4"),
                        (memoryview(numpy.zeros(3 * rows.row_bytes // 8)), "elements of <f8"),
                        (bytes(memory.nbytes), "written")):
        with pytest.raises(penstock.InvalidError, match="out: .*" + what):
            rows.gather([1, 2, 3], wrong)
    with pytest.raises(TypeError, match="out: 'text' is no memory"):
        rows.gather([1, 2, 3], "text")


def test_bad_numbers_are_refused_by_their_names(table):
    path, _ = table
    rows = open_np(path, "embed")
    memory = numpy.zeros((2, WIDTH), numpy.float32)
    for bad in ([0, ROWS], [0, -1], numpy.array([0, 1 << 63], numpy.uint64)):
        with pytest.raises(IndexError, match="indices: .*position 1"):
            rows.gather(bad, memory)
    assert not memory.any()
    for bad in ([0, 1 << 70], [0, -1 << 70], [[0, 1 << 70]]):
        with pytest.raises(IndexError, match="indices: the number .* at position 1 is no row"):
            rows.gather(bad)
    for bad in ([0, "a"], [0, 1.5]):
        with pytest.raises(TypeError, match="indices: .* at position 1"):
            rows.gather(bad)
    masked = numpy.ma.array([1, 2], mask=[False, True])
    for bad in (numpy.array([0.5]), numpy.array([True]), 1.5, "x", None, [True, False], masked):
        for call in (rows.gather, rows.prefetch, rows.__getitem__):
            with pytest.raises(TypeError, match="indices: "):
                call(bad)
    with pytest.raises(penstock.InvalidError, match="indices: .* different lengths"):
        rows.gather([[1], [2, 3]])
    truths = [True, numpy.bool_(True), numpy.array(False)]
    if torch_of():
        truths.append(torch_of().tensor(True))
    for bad in truths:
        with pytest.raises(TypeError, match="indices: .* is no number of a row"):
            rows[bad]
    for begin, count in ((0, ROWS + 1), (ROWS, 1)):
        with pytest.raises(IndexError, match="begin and count"):
            rows.rows(begin, count)
    with pytest.raises(penstock.InvalidError, match="begin is -1"):
        rows.rows(-1, 2)
    with pytest.raises(TypeError, match="stream must be"):
        penstock._streams.wait_for_streams((penstock._memory.Memory(1, 1, "cuda:0", None),), "text")


def test_a_range_is_checked_by_its_ends(table):
    path, content = table
    rows = open_np(path, "embed")
    for good in (range(ROWS), range(ROWS - 1, -1, -1), range(7, 400, 3), range(400, 7, -3), range(0), range(9, 2),
                 range(5, 1 << 40, 1 << 50)):
        assert numpy.array_equal(rows.gather(good), content[list(good)])
    # None of these has room in memory.
    for bad, number, position in ((range(1 << 60), ROWS, ROWS), (range(10, 1 << 80, 7), 500, 70),
                                  (range(490, -(1 << 60), -3), -2, 164), (range(6, -(1 << 60), -3), -3, 3),
                                  (range(ROWS, 1 << 60), ROWS, 0), (range(-1, 1 << 60), -1, 0)):
        for call in (rows.gather, rows.prefetch, rows.__getitem__):
            with pytest.raises(IndexError, match=f"indices: the number {number} at position {position} is no row"):
                call(bad)
    # Too many to be written down.
    for too_long in range(1 << 60), range((1 << 63) - 1, 1 << 64):
        with pytest.raises(penstock.NoMemoryError, match="indices: no room"):
            rows.gather(too_long, zeros_for_missing=True)
    for missing in range(ROWS, ROWS + 3), range((1 << 63) - 1, (1 << 63) + 2), range(-2, -(1 << 65), -(1 << 63)):
        assert not rows.gather(missing, zeros_for_missing=True).any()


def test_missing_rows_are_zeros_where_that_is_asked_for(table):
    path, content = table
    rows = open_np(path, "embed")
    got = rows.gather([ROWS, 5, -1], zeros_for_missing=True)
    assert not got[[0, 2]].any() and numpy.array_equal(got[1], content[5])
    assert rows.report.missing_rows == 2
    for yes in 1, numpy.True_:
        assert numpy.array_equal(rows.gather([ROWS, 5, -1], zeros_for_missing=yes), got)


def test_npy_files_and_their_types(tmp_path):
    for number, kind in enumerate(("<f4", ">f8", "u1", "?", "<c16", "S3", "<i2")):
        content = numpy.arange(60).reshape(10, 2, 3).astype(kind)
        path = tmp_path / f"{number}.npy"
        numpy.save(path, content)
        rows = open_np(path)
        assert rows.shape == (10, 2, 3) and rows.dtype == content.dtype
        assert numpy.array_equal(rows[[9, 1]], content[[9, 1]])
    with pytest.raises(penstock.UnsupportedError if torch_of() else ImportError):
        penstock.Rows(tmp_path / "4.npy", framework="pt")


def test_an_array_of_a_type_that_there_is_not_is_refused_by_its_name(tmp_path):
    path = tmp_path / "odd.npy"
    numpy.save(path, numpy.zeros((5, 4), numpy.float32))
    path.write_bytes(path.read_bytes().replace(b"'<f4'", b"'<f3'"))
    with pytest.raises(penstock.UnsupportedError, match="odd.npy is '<f3'"):
        open_np(path)


def torch_of():
    try:
        import torch
    except ImportError:
        return None
    return torch


def test_raw_rows(tmp_path):
    content = numpy.arange(700, dtype=numpy.int16)
    path = tmp_path / "raw"
    path.write_bytes(content.tobytes())
    rows = open_np(path, dtype="I16", row_shape=(7,))
    assert numpy.array_equal(rows[[3, 99]], content.reshape(100, 7)[[3, 99]])
    rows = open_np(path, dtype="I16", row_shape=(2, 2), offset=4, stride_bytes=14, count=50)
    assert numpy.array_equal(rows[49], content[2:].reshape(-1)[49 * 7:49 * 7 + 4].reshape(2, 2))
    rows = open_np(path, row_bytes=14)
    assert rows.dtype == numpy.uint8 and rows[1].tobytes() == content[7:14].tobytes()
    for options, what in (({"row_bytes": 3}, "no whole rows"), ({"dtype": "F5"}, "dtype"), ({"row_shape": (2,)}, "dtype"),
                          ({"dtype": "F4", "row_shape": (3,)}, "row_shape"),
                          ({"dtype": "F4", "row_shape": (1 << 40, 1 << 40)}, "row_shape"), ({"row_bytes": -1}, "row_bytes"),
                          ({"row_bytes": 2, "row_shape": (3,)}, "row_shape"),
                          ({"dtype": "F32", "row_shape": (2,), "row_bytes": 9}, "row_bytes is 9"),
                          ({"tensor": "a", "dtype": "F32"}, "tensor"), ({"offset": 5}, "offset")):
        with pytest.raises(penstock.InvalidError, match=what):
            open_np(path, **options)


def test_a_file_that_does_not_say_what_its_rows_are_is_refused_with_what_to_give(tmp_path):
    (tmp_path / "raw.bin").write_bytes(b"x" * 64)
    (tmp_path / "broken.npy").write_bytes(b"x" * 64)
    numpy.save(tmp_path / "f.npy", numpy.zeros((5, 4), numpy.float32))
    for paths in (tmp_path / "raw.bin", [tmp_path / "f.npy", tmp_path / "raw.bin"]):
        with pytest.raises(penstock.InvalidError, match="raw.bin: which rows.* .name a tensor of a model, or give row_bytes"):
            open_np(paths)
    with pytest.raises(penstock.InvalidError, match="broken.npy: it does not begin .* .save the array again"):
        open_np(tmp_path / "broken.npy")
    (tmp_path / "f.npy").rename(tmp_path / "array")
    assert len(open_np(tmp_path / "array")) == 5


def test_files_of_different_types_are_not_one_table(tmp_path):
    numpy.save(tmp_path / "f4.npy", numpy.zeros((5, 4), numpy.float32))
    numpy.save(tmp_path / "i4.npy", numpy.zeros((5, 4), numpy.int32))
    with pytest.raises(penstock.InvalidError, match="different types"):
        penstock.Rows([tmp_path / "f4.npy", tmp_path / "i4.npy"], framework="np")


def test_files_of_one_type_are_one_table_however_its_order_is_written(tmp_path):
    content = numpy.arange(20, dtype=numpy.float32).reshape(5, 4)
    paths = [tmp_path / f"{i}.npy" for i in range(3)]
    for path, order in zip(paths, (b"<", b"=", b"|")):
        numpy.save(path, content)
        path.write_bytes(path.read_bytes().replace(b"'<f4'", b"'%bf4'" % order))
    assert numpy.array_equal(open_np(paths)[:], numpy.concatenate([content] * 3))


def test_files_are_joined(tmp_path):
    content = numpy.arange(600, dtype=numpy.float64).reshape(60, 10)
    paths = [tmp_path / f"{i}.npy" for i in range(3)]
    for path, part in zip(paths, numpy.array_split(content, 3)):
        numpy.save(path, part)
    rows = open_np(paths)
    asked = [59, 0, 20, 19, 40]
    assert numpy.array_equal(rows[asked], content[asked]) and "and 2 more" in repr(rows)
    numpy.save(paths[1], content[:, :3])
    with pytest.raises(penstock.InvalidError, match="can't be joined"):
        open_np(paths)
    with pytest.raises(penstock.InvalidError, match="path"):
        open_np([])
    with pytest.raises(FileNotFoundError):
        open_np([paths[0], tmp_path / "none.npy"])


def test_what_is_no_table_is_refused(table, tmp_path):
    path, _ = table
    with pytest.raises(penstock.NotFoundError, match="nothing"):
        open_np(path, "nothing")
    with pytest.raises(penstock.Error, match="model.safetensors"):
        open_np(path)  # no .npy file
    penstock.numpy.save_file({"one": numpy.array(1.0)}, tmp_path / "one.safetensors")
    with pytest.raises(penstock.UnsupportedError, match="one"):
        open_np(tmp_path / "one.safetensors", "one")
    with pytest.raises(penstock.InvalidError, match="framework"):
        penstock.Rows(path, "embed", framework="jax")
    with pytest.raises(penstock.InvalidError, match="NumPy has no memory"):
        open_np(path, "embed", device="cuda:0")[[1]]


def test_tables_without_rows_are_tables_of_every_format(tmp_path):
    empty = numpy.zeros((0, 8), numpy.float32)
    numpy.save(tmp_path / "t.npy", empty)
    penstock.numpy.save_file({"t": empty}, tmp_path / "t.safetensors")
    write_gguf(tmp_path / "t.gguf", {}, [("t", 0, [8, 0], b"")])
    for name, tensor in (("t.npy", None), ("t.safetensors", "t"), ("t.gguf", "t")):
        rows = open_np(tmp_path / name, tensor)
        assert rows.shape == (0, 8) and rows[:].shape == (0, 8) and rows[[]].shape == (0, 8), name
        with pytest.raises(IndexError, match="ask a table that has rows"):
            rows[[0]]
    write_gguf(tmp_path / "q.gguf", {}, [("t", 8, [64, 0], b"")])
    assert open_np(tmp_path / "q.gguf", "t").row_bytes == 68


def test_a_file_that_was_cut_is_an_error(tmp_path):
    content = numpy.zeros((1000, 1024), numpy.uint8)
    path = tmp_path / "cut.npy"
    numpy.save(path, content)
    for mapping in (True, False):
        rows = open_np(path, mapping=mapping)
        assert rows[[999]].shape == (1, 1024)
        os.truncate(path, 4096)
        with pytest.raises(penstock.TransferError) as caught:
            rows[[999]]
        assert caught.value.code == "truncated"
        numpy.save(path, content)


def test_a_closed_table_and_a_closed_context_refuse(table):
    path, _ = table
    with open_np(path, "embed") as rows:
        rows[0]
    with pytest.raises(penstock.StateError, match="closed"):
        rows[0]
    assert "closed" in repr(rows)
    context = penstock.Context()
    rows = open_np(path, "embed", context=context)
    context.close()
    with pytest.raises(penstock.StateError, match="closed"):
        rows[[1]]
    del context
    gc.collect()
    rows.close()


def test_prefetch_says_how_much_it_started(table):
    path, _ = table
    rows = open_np(path, "embed")
    assert rows.prefetch([1, 2, 3]) >= 0
    with pytest.raises(IndexError, match="indices"):
        rows.prefetch([ROWS])


def test_threads_gather_at_the_same_time(table):
    path, content = table
    rows = open_np(path, "embed")
    wrong = []

    def gather(seed):
        random = numpy.random.default_rng(seed)
        for _ in range(20):
            asked = random.integers(0, ROWS, 100)
            if not numpy.array_equal(rows[asked], content[asked]):
                wrong.append(seed)

    threads = [threading.Thread(target=gather, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_tensors_of_torch_are_numbers_and_memory(table):
    torch = pytest.importorskip("torch")
    path, content = table
    rows = penstock.Rows(path, tensor="embed", framework="pt")
    expected = torch.from_numpy(content)
    assert rows.dtype == torch.float32 and "torch.float32" in repr(rows)
    for kind in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        asked = torch.tensor([[5, 5], [0, 99]], dtype=kind)
        assert torch.equal(rows[asked], expected[asked.long()])
    assert torch.equal(rows[torch.tensor(3)], expected[3])
    assert torch.equal(rows[torch.arange(10)[::3]], expected[:10:3])
    memory = torch.empty(2, WIDTH)
    version = memory._version
    rows.gather(torch.tensor([1, 2]), out=memory)
    assert torch.equal(memory, expected[1:3]) and memory._version > version
    with pytest.raises(TypeError, match="indices: elements of float32"):
        rows.gather(torch.tensor([1.0]))
    with pytest.raises(penstock.InvalidError, match="out: has elements of torch.float16"):
        rows.gather([1, 2], torch.empty(4, WIDTH, dtype=torch.float16))
    with torch.inference_mode():
        assert torch.equal(rows[[4]], expected[4:5])
    if not torch.cuda.is_available():
        with pytest.raises(penstock.Error, match="cuda:0"):
            penstock.Rows(path, "embed", framework="pt", device="cuda:0")[[1]]


def test_types_that_numpy_lacks_are_torchs(tmp_path):
    torch = pytest.importorskip("torch")
    content = torch.randn(20, 8).to(torch.bfloat16)
    penstock.save_file({"embed": content}, tmp_path / "b.safetensors")
    assert torch.equal(penstock.Rows(tmp_path / "b.safetensors", "embed", framework="pt")[[3, 1]], content[[3, 1]])


def test_an_embedding_gives_what_torchs_gives(table):
    torch = pytest.importorskip("torch")
    path, content = table
    theirs = torch.nn.Embedding.from_pretrained(torch.from_numpy(content))
    ours = penstock.nn.Embedding(path, "embed")
    ids = torch.randint(ROWS, (4, 7))
    assert torch.equal(ours(ids), theirs(ids)) and not ours(ids).requires_grad
    assert (ours.num_embeddings, ours.embedding_dim) == (ROWS, WIDTH)
    assert not list(ours.parameters()) and not ours.state_dict() and "embed" in repr(ours)
    model = torch.nn.Sequential(theirs, torch.nn.Linear(WIDTH, 2))
    expected = model(ids)
    model[0] = penstock.nn.Embedding(penstock.Rows(path, "embed", framework="pt"))
    assert torch.equal(model(ids), expected)
    assert penstock.nn.Embedding(path, "embed", dtype=torch.float64)(ids).dtype == torch.float64
    assert torch.equal(model.half()[0](ids), theirs.half()(ids)) and model.to(torch.float64)[0](ids).dtype == torch.float64
    assert ours(torch.empty(0, dtype=torch.int64)).shape == (0, WIDTH)
    with pytest.raises(IndexError, match=str(ROWS)):
        ours(torch.tensor([ROWS]))
    with pytest.raises(penstock.InvalidError, match="table"):
        penstock.nn.Embedding(ours.table, "embed")
    with pytest.raises(penstock.InvalidError, match="table"):
        penstock.nn.Embedding(open_np(path, "embed"))
    with pytest.raises(penstock.InvalidError, match="cache_bytes"):
        penstock.nn.Embedding(path, "embed", cache_bytes=1 << 20)


def test_types_and_shapes_are_taken_as_everywhere(tmp_path):
    content = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    path = tmp_path / "raw"
    path.write_bytes(content.tobytes())
    for dtype in ("F32", "float32", numpy.float32, numpy.dtype("float32")):
        assert numpy.array_equal(open_np(path, dtype=dtype, row_shape=4)[:], content)
    for dtype in ("f4", "<f4", "=f4", "f", "single", "f32"):
        rows = open_np(path, dtype=dtype, row_shape=4)
        assert rows.dtype == numpy.float32 and numpy.array_equal(rows[:], content), dtype
    for dtype in ("i1", "u1", "|u1", "i2", "<u2", "i4", "u4", "i8", "u8", "f2", "f8", "c8", "b1", "bool", "int", "B"):
        rows = open_np(path, dtype=dtype, row_shape=2)
        assert rows.dtype == numpy.dtype(dtype) and rows.row_bytes == 2 * numpy.dtype(dtype).itemsize, dtype
    assert open_np(path, dtype="F4", row_shape=4).row_bytes == 2 and open_np(path, dtype="I8", row_shape=4).row_bytes == 4
    for dtype in (">f4", "f16", "U3", "S4"):
        with pytest.raises(penstock.InvalidError, match="has no name in safetensors"):
            open_np(path, dtype=dtype, row_shape=1)
    with pytest.raises(penstock.InvalidError, match="'float32' or 'f4'"):
        open_np(path, dtype="f5", row_shape=1)
    numpy.save(tmp_path / "table.npy", content)
    for options in ({"dtype": "F32", "row_shape": 4}, {"tensor": "embed"}):
        with pytest.raises(penstock.InvalidError, match="begins with a header"):
            open_np(tmp_path / "table.npy", **options)


def test_a_type_that_the_framework_lacks_is_refused_with_what_rows_have(tmp_path):
    torch = pytest.importorskip("torch")
    (tmp_path / "raw").write_bytes(bytes(64))
    if hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has float4")
    with pytest.raises(penstock.UnsupportedError, match="take framework='np'"):
        penstock.Rows(tmp_path / "raw", dtype="F4", row_shape=4, framework="pt")


def test_a_model_without_a_tensor_is_refused_with_what_to_do(table):
    with pytest.raises(penstock.InvalidError, match="give its name: tensor="):
        open_np(table[0])


def test_a_table_is_walked_along_and_does_not_say_what_it_holds(table):
    path, content = table
    rows = open_np(path, "embed")
    assert numpy.array_equal(list(rows), content)
    with pytest.raises(TypeError, match="what its rows hold"):
        5 in rows


def test_the_hint_about_a_missing_row_names_the_call_that_has_the_option(table):
    rows = open_np(table[0], "embed")
    for ask in (lambda: rows[[ROWS]], lambda: rows.gather([ROWS]), lambda: rows.prefetch([ROWS])):
        with pytest.raises(penstock.RangeError) as caught:
            ask()
        assert "gather with zeros_for_missing" in caught.value.hint


def test_timeouts_are_numbers(table):
    rows = open_np(table[0], "embed")
    for wrong in (None, "a"):
        for ask in (lambda: rows.gather([1], timeout=wrong), lambda: rows.rows(1, 1, timeout=wrong),
                    lambda: open_np(table[0], "embed", look_again_seconds=wrong)):
            with pytest.raises(TypeError, match="^(timeout|look_again_seconds) must be a number of seconds"):
                ask()


@pytest.mark.parametrize("lose", [os.unlink, lambda path: path.rename(path.with_name("elsewhere")),
                                  lambda path: os.replace(shutil.copy(path, path.with_name("copy")), path)])
def test_a_file_without_its_name_has_changed_unless_it_is_a_models(table, tmp_path, lose):
    path, content = table
    arrays = tmp_path / "table.npy"
    numpy.save(arrays, content)
    of_model, of_array, raw = open_np(path, "embed"), open_np(arrays), open_np(arrays, row_bytes=4, offset=128)
    lose(path)
    lose(arrays)
    assert numpy.array_equal(of_model[[3, 4]], content[[3, 4]])
    for rows in (of_array, raw):
        with pytest.raises(penstock.TransferError) as caught:
            rows[[3]]
        assert caught.value.code == "changed"


@pytest.mark.parametrize("how", ["cold", "consecutive", "missing"])
def test_ctrl_c_ends_a_gather_and_all_that_it_writes(slow_context, large_file, interrupted, how):
    count = 400_000
    memory = mmap.mmap(-1, count * 4096)  # only what is written to is taken
    out = numpy.frombuffer(memory, numpy.uint8).reshape(count, 4096)
    with open_np(large_file, row_bytes=4096, count=count, mapping=False, join_bytes=0, scratch_bytes=16 << 20,
                 context=slow_context) as rows:
        if how == "consecutive":
            interrupted(lambda: rows.rows(0, count, out))
        else:
            asked = numpy.arange(count)[::-1] if how == "cold" else numpy.full(count, -1)
            interrupted(lambda: rows.gather(asked, out, zeros_for_missing=True))
        assert rows.report is None
        moved = [route["bytes"] for route in slow_context.statistics()["routes"]]
        assert max(moved, default=0) < count * 4096, "stopped, and not only told of afterwards"
        del out
        memory.close()  # nobody writes there any more
        assert rows[[1, 2]].shape == (2, 4096)


def test_memory_that_a_gather_takes_beside_its_rows_counts(tmp_path, monkeypatch):
    row_bytes = 8 << 20
    with open(tmp_path / "raw", "wb") as file:
        file.truncate(2 * row_bytes)
    rows = open_np(tmp_path / "raw", row_bytes=row_bytes, scratch_bytes=1 << 20)
    monkeypatch.setattr(penstock._frameworks, "host_room", lambda: 90 << 20)
    with pytest.raises(penstock.NoMemoryError, match="83886080 bytes in memory, and 1679.... to read them: 94371840"):
        rows[[0] * 10]
    assert rows[[0] * 3].shape == (3, row_bytes)
    # What lies in order is read to its place, and a little stays free.
    rows = open_np(tmp_path / "raw", row_bytes=1 << 20, scratch_bytes=1 << 20)
    monkeypatch.setattr(penstock._frameworks, "ROOM_CHECK_BYTES", 1 << 20)
    monkeypatch.setattr(penstock._frameworks, "host_room", lambda: 16 << 20)
    with pytest.raises(penstock.NoMemoryError, match="16777216 bytes in memory: 16777216 are available"):
        rows[:]
    assert rows[:15].shape == (15, 1 << 20)


def test_any_integer_may_be_missing(table):
    path, content = table
    rows = open_np(path, "embed")
    asked = [3, 2**63, -2**63 - 1, 10**30, 2**63 - 1]
    for indices in (asked, numpy.array(asked, object), tuple(asked)):
        got = rows.gather(indices, zeros_for_missing=True)
        assert numpy.array_equal(got[0], content[3]) and not got[1:].any() and rows.report.missing_rows == 4
    assert rows.gather([[2**64], [3]], zeros_for_missing=True).shape == (2, 1, WIDTH)
    with pytest.raises(penstock.RangeError, match="position 1"):
        rows.gather(asked)
    with pytest.raises(TypeError, match="'x' at position 1"):
        rows.gather([2**63, "x"], zeros_for_missing=True)


@pytest.mark.parametrize("options, words", [
    ({"tensor": 3}, "tensor must be a str, and is 3"),
    ({"context": "x"}, "context must be a penstock.Context, and is 'x'"),
    ({"mapping": "no"}, "mapping must be True or False, and is 'no'"),
    ({"look_again_seconds": "1"}, "look_again_seconds must be a number of seconds"),
])
def test_arguments_of_the_wrong_type_are_named(table, options, words):
    with pytest.raises(TypeError, match=words):
        open_np(table[0], **{"tensor": "embed", **options})


def test_no_number_of_seconds_is_refused(table):
    rows = open_np(table[0], "embed")
    for wrong in (float("nan"), -1):
        for ask in (lambda: rows.gather([1], timeout=wrong), lambda: rows.rows(1, 1, timeout=wrong),
                    lambda: open_np(table[0], "embed", look_again_seconds=wrong)):
            with pytest.raises(penstock.InvalidError, match=f"(timeout|look_again_seconds) is {wrong}"):
                ask()


def test_out_of_another_type_is_refused_by_its_type(table):
    rows = open_np(table[0], "embed")
    with pytest.raises(penstock.InvalidError, match="elements of float64, and the rows of float32"):
        rows.gather([1, 2], numpy.empty((2, WIDTH)))


def test_an_array_of_objects_is_refused_as_such(tmp_path):
    numpy.save(tmp_path / "objects.npy", numpy.array([{}, None]))
    with pytest.raises(penstock.UnsupportedError, match="an array of Python objects, which can't be read"):
        open_np(tmp_path / "objects.npy")


def test_an_embedding_refuses_to_be_traced(table):
    """A trace would have the rows of one input for all."""
    torch = pytest.importorskip("torch")
    module = penstock.nn.Embedding(table[0], "embed")
    with pytest.raises(penstock.UnsupportedError, match="torch.jit.trace"):
        torch.jit.trace(module, torch.tensor([1, 2]))


def test_a_gather_refuses_to_be_traced(table):
    torch = pytest.importorskip("torch")
    rows = penstock.Rows(table[0], "embed", framework="pt")
    for read in (lambda ids: rows[ids], rows.gather, lambda ids: rows.gather(ids.int())):
        with pytest.raises(penstock.UnsupportedError, match="torch.jit.trace"):
            torch.jit.trace(read, torch.tensor([1, 2]))


def test_few_rows_by_a_tensor_are_those_that_gather_gives(tmp_path):
    torch = pytest.importorskip("torch")
    content = numpy.random.default_rng(3).standard_normal((100, 4)).astype(numpy.float32)
    numpy.save(tmp_path / "table.npy", content)
    rows = penstock.Rows(tmp_path / "table.npy", framework="pt")
    several = torch.tensor([[5, 99, 5], [0, 1, 2]])
    for ids in (several, several[0], several[:, 1], several.t(), torch.tensor([], dtype=torch.int64), several[0, :1],
                torch.arange(100).repeat(30)):
        got = rows[ids]
        assert torch.equal(got, torch.from_numpy(content)[ids]) and torch.equal(got, rows.gather(ids))
        assert rows.report.bytes == 16 * ids.numel() and rows.report.outcome == "done"
        got.zero_()  # its own
    for ids in ([100], [-1], [5, 1 << 62]):
        with pytest.raises(penstock.RangeError, match=f"indices: .*{ids[-1]}"):
            rows[torch.tensor(ids)]
        assert rows.report is None
    with torch.inference_mode():
        inside = rows[several]
    assert not inside.is_inference() and torch.equal(inside, torch.from_numpy(content)[several])
    rows.close()
    with pytest.raises(penstock.StateError, match="closed"):
        rows[several]
