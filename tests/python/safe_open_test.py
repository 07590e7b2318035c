"""Files that are open: tensors in any order, parts of them, read ahead of a loop."""

import gc
import importlib.util
import itertools
import logging
import os
import random
import threading
import time
import weakref

import numpy
import pytest

import penstock
from models import raw, write_model

torch = pytest.importorskip("torch")

NUMBERS = [0, 1, 5, -1, 6, -7, numpy.int64(2), numpy.array(1), torch.tensor(1), torch.tensor(1, dtype=torch.int32)]
RANGES = [slice(None), slice(1, 3), slice(-2, None), slice(4, 4), slice(5, 2), slice(10, 99), slice(-99, 2),
          slice(None, None, 2), slice(1, 6, 3), slice(numpy.int64(1), torch.tensor(3)), slice(0, 6)]
LISTS = [[0, 1, 5], [5, 0, 0], [3, 2, 1], [-1], [], (0, 1), range(2), [numpy.int64(1), 2], [6], [-7], [True, 1], [1.0],
         [0, 2, 4], [True, False, True, False, False, True], [True], [[0, 1], [1, 0]], [slice(1, 2)], [None],
         [torch.tensor(0), torch.tensor(1)]]
ARRAYS = [make(values) for make in (numpy.array, torch.tensor)
          for values in ([0, 1], [-1, 1, 1], [[0, 1], [1, 0]], [True, False, True, False, False, True], [6])]
OTHERS = [None, ..., (), True, False, numpy.bool_(True), torch.tensor(True), torch.ones(6, 5, dtype=torch.bool), 1.5,
          "x", {1: 2}, slice(None, None, -1), slice(None, None, 0), slice("a"), torch.tensor([1], dtype=torch.int32),
          numpy.array([1], dtype=numpy.int32), numpy.array([1, 1], dtype=numpy.uint8)]
ALONE = NUMBERS + RANGES + LISTS + ARRAYS + OTHERS
SOME = [1, -1, 7, slice(None), slice(1, 4, 2), slice(3, 3), [0, 3], [4, 1, 1], [True, False, True, True, False],
        torch.tensor([2, 0]), None, ...]
INDICES = ALONE + list(itertools.product(ALONE[::2], SOME[1::2])) + list(itertools.product(SOME[::3], repeat=3))


def result_of(index, tensor):
    try:
        return tensor[index]
    except BaseException as error:  # Rust's panics are no Exceptions
        return error


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("framework, most_runs, copy", [("pt", 64, True), ("pt", 1, True), ("pt", 1, False),
                                                        ("np", 64, True), ("np", 64, False)])
def test_parts_are_what_safetensors_gives(tmp_path, monkeypatch, framework, most_runs, copy):
    """And what it refuses are errors of both families, or what indexing the whole tensor gives."""
    safetensors = pytest.importorskip("safetensors")
    monkeypatch.setattr(penstock._indexing, "MOST_RUNS", most_runs)
    path = tmp_path / "model"
    write_model(path, [("a", "I16", (6, 5)), ("b", "F32", (6, 5, 4)), ("empty", "F32", (0, 5)), ("scalar", "F32", ())],
                content=bytes)
    with open(path, "r+b") as file:
        file.seek(-(60 + 480 + 4), 2)
        file.write(numpy.arange(30, dtype=numpy.int16).tobytes() + numpy.arange(121, dtype=numpy.float32).tobytes())
    with safetensors.safe_open(path, framework) as theirs, \
            penstock.safe_open(path, framework, copy=copy) as ours:
        for name in theirs.keys():
            whole = theirs.get_tensor(name)
            for index in INDICES if name == "b" else ALONE:
                expected, got = result_of(index, theirs.get_slice(name)), result_of(index, ours.get_slice(name))
                if isinstance(expected, BaseException) and framework == "np" and not isinstance(got, BaseException):
                    if isinstance(index[0] if isinstance(index, tuple) else index, (bool, numpy.bool_)):
                        continue  # these are numbers to safetensors
                    expected = result_of(index, whole)  # safetensors knows less of NumPy than we do
                if isinstance(expected, BaseException):
                    assert isinstance(got, penstock.Error), (name, index, got)
                    assert isinstance(got, IndexError) or not isinstance(expected, IndexError), (name, index)
                else:
                    assert type(got) is type(whole) and got.shape == expected.shape and got.dtype == expected.dtype and \
                        (numpy.asarray(got) == numpy.asarray(expected)).all(), (name, index)


def test_dots_keep_numbers_and_lists_apart_for_numpy(tmp_path):
    path = tmp_path / "model"
    contents = write_model(path, [("a", "U8", (7, 5, 6))])
    whole = numpy.frombuffer(contents["a"], numpy.uint8).reshape(7, 5, 6)
    with penstock.safe_open(path, "np") as file:
        for index in ((slice(None), 3, ..., [2, 4]), (slice(None), [0, 1], ..., [2, 4]), (3, ..., 2), (..., [0, 1])):
            part = file.get_slice("a")[index]
            assert part.shape == whole[index].shape and (part == whole[index]).all()


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_a_part_can_be_walked_along(mixed, framework):
    with penstock.safe_open(mixed[0], framework) as file:
        assert [raw(row) for row in file.get_slice("layers.2.F32")] == [raw(row) for row in
                                                                        file.get_tensor("layers.2.F32")]
        assert raw(file.get_slice("large")[400:7:-3, 5]) == raw(file.get_tensor("large")[400:7:-3, 5].copy()) \
            if framework == "np" else list(file.get_slice("scalar")) == []
        with pytest.raises(penstock.RangeError, match="'large' of shape .600, 1000. has no 600") as caught:
            file.get_slice("large")[600]
        assert isinstance(caught.value, IndexError) and caught.value.code == "out_of_range"


def test_types_of_less_than_a_byte_are_indexed_as_the_framework_has_them(tmp_path):
    path = tmp_path / "model"
    write_model(path, [("f4", "F4", (6, 10)), ("f6", "F6_E2M3", (6, 8))])
    with penstock.safe_open(path, "np") as file:
        for name in file.keys():
            whole, part = file.get_tensor(name), file.get_slice(name)
            for index in numpy.s_[2:4, 1:3], numpy.s_[[5, 1]], numpy.s_[:, 2], numpy.s_[..., [0, 3]], numpy.s_[3:3]:
                assert raw(part[index]) == raw(whole[index].copy()) and part[index].shape == whole[index].shape


def test_rows_are_read_and_not_the_whole_tensor(tmp_path):
    path = tmp_path / "model"
    write_model(path, [("a", "F32", (4096, 1024))], content=None)
    with penstock.Context() as context, penstock.safe_open(path, "pt", context=context, copy=True) as file:
        file.get_slice("a")[10:20]
        file.get_slice("a")[[*range(20, 30), *range(1000, 1010), 4000], 5:9]
        file.get_slice("a")[torch.tensor([3, 2, 3])]
        assert sum(route["bytes"] for route in context.statistics()["routes"]) < 1 << 20


@pytest.mark.parametrize("order", ["keys", "offset_keys", "reversed", "shuffled", "twice", "strided"])
def test_tensors_come_in_any_order(mixed, order):
    path, contents = mixed
    with penstock.safe_open(path, "pt", copy=True) as file:
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
        with penstock.Context() as context, penstock.safe_open(path, "np", context=context, copy=True) as file:
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
    with penstock.Context() as context, penstock.safe_open(path, "np", context=context, copy=True) as file:
        names = getattr(file, keys)()
        for name in [*names[begin:], *names[begin:]]:
            assert raw(file.get_tensor(name)) == contents[name]
        assert context.statistics()["requests"] < 20


def taken_by_threads(file, names):
    names = iter(names)
    lock = threading.Lock()

    def take():
        while True:
            with lock:
                name = next(names, None)
            if name is None:
                return
            file.get_slice(name)[...]

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def taken_in_turn(file, names):
    for name in names:
        file.get_tensor(name)


@pytest.mark.parametrize("take, order, most", [
    (taken_in_turn, lambda names: [name for place, name in enumerate(names) if place % 8], 1.2),
    (taken_in_turn, lambda names: [name for place, name in enumerate(names) if place % 40], 1.05),
    (taken_in_turn, lambda names: sorted(names, key=lambda name: [int(part) for part in name.split(".")]), 1.5),
    (taken_in_turn, lambda names: names[::-1], 1.01),
    (taken_in_turn, lambda names: random.Random(1).sample(names, len(names)), 1.5),
    (taken_in_turn, lambda names: [names[place ^ 1] for place in range(len(names))], 1.01),
    (taken_by_threads, lambda names: names, 1.5),
])
def test_little_is_read_in_vain_whatever_the_order(tmp_path, take, order, most):
    path = tmp_path / "model"
    write_model(path, [(f"{i // 10}.{i % 10}", "U8", (1 << 20,)) for i in range(300)], content=None)
    with penstock.Context() as context, penstock.safe_open(path, "np", context=context, copy=True) as file:
        names = order(file.keys())
        take(file, names)
        read_bytes = sum(route["bytes"] for route in context.statistics()["routes"])
    assert len(names) <= read_bytes / (1 << 20) <= most * len(names)


def test_no_more_is_ahead_than_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(penstock._safe_open, "AHEAD_BYTES", 8 << 20)
    path = tmp_path / "model"
    sizes = [1 << 20, 1 << 20, 32 << 20, *[1 << 20] * 20]
    write_model(path, [(f"{i:02}", "U8", (size,)) for i, size in enumerate(sizes)], content=None)
    with penstock.safe_open(path, "np", copy=True) as file:
        for name in file.keys():
            file.get_tensor(name)
            ahead = sum(penstock._models.rounded(file._model.tensors[index][3]) for index in file._reader._ahead)
            assert ahead == file._reader._ahead_bytes <= 8 << 20
    assert ahead == 0


def test_tensors_of_other_types_are_passed_over(tmp_path):
    """NumPy has no bfloat16. Who does not ask for such tensors is read ahead of as ever."""
    if importlib.util.find_spec("ml_dtypes"):
        pytest.skip("with ml_dtypes it has")
    path = tmp_path / "model"
    kinds = ["BF16" if i % 40 == 39 else "U8" for i in range(400)]
    contents = write_model(path, [(f"{i:03}", kind, (500,)) for i, kind in enumerate(kinds)])
    with penstock.Context() as context, penstock.safe_open(path, "np", context=context, copy=True) as file:
        for name, kind in zip(file.keys(), kinds):
            if kind == "U8":
                assert raw(file.get_tensor(name)) == contents[name]
        assert context.statistics()["requests"] < 10


def test_devices_need_not_be_given_for_tensors_that_nobody_asks_for(mixed):
    path, contents = mixed
    with penstock.safe_open(path, "pt", device={name: "cpu" for name in sorted(contents)[:-1]}, copy=True) as file:
        for name in file.keys()[:-1]:
            assert raw(file.get_tensor(name)) == contents[name]
        with pytest.raises(ValueError, match="no device given"):
            file.get_tensor(file.keys()[-1])


def test_what_fails_in_a_load_is_not_taken_for_a_wrong_index(mixed, monkeypatch):
    def fail(*_):
        raise RuntimeError("the GPU is lost")

    with penstock.safe_open(mixed[0], "pt", copy=True) as file:
        monkeypatch.setattr(file._frame, "allocate", fail)
        with pytest.raises(RuntimeError, match="^the GPU is lost"):
            file.get_slice("large")[1:3]


def test_names_are_ordered_by_their_numbers():
    names = ["a.0", "a.2", "a.02x", "a.10", "a.b", "b.1.9", "b.1.10", "c" + "9" * 5000, "c1" + "0" * 5000]
    assert sorted(random.Random(2).sample(names, len(names)), key=penstock._safe_open.natural_order) == names


def test_arrays_of_numpy_are_the_callers_own(tmp_path):
    path = tmp_path / "model"
    penstock.numpy.save_file({"a": numpy.arange(600000), "b": numpy.arange(600000)}, path)
    with penstock.safe_open(path, "np") as file:
        first = file.get_tensor("a")
        first += 1
        assert file.get_tensor("a")[0] == 0 and file.get_slice("a")[:5][0] == 0
        part = file.get_slice("b")[100:200]
        part[:] = 0
        assert file.get_tensor("b")[150] == 150
        assert file.get_tensors()["b"][150] == 150


def test_a_tensor_that_cannot_be_read_ahead_costs_nobody_else_anything(tmp_path, monkeypatch):
    """NumPy has no bfloat16. Nothing of what is on its way is let go for it, and the loop is read ahead of behind it."""
    if importlib.util.find_spec("ml_dtypes"):
        pytest.skip("with ml_dtypes it has")
    monkeypatch.setattr(penstock._safe_open, "AHEAD_BYTES", 1 << 20)  # so that some are on their way before it
    path = tmp_path / "model"
    kinds = ["BF16" if i == 50 else "U8" for i in range(200)]
    contents = write_model(path, [(f"t{i:03}", kind, (50000,)) for i, kind in enumerate(kinds)])
    with penstock.Context() as context, penstock.safe_open(path, "np", context=context, copy=True) as file:
        for name in file.keys():
            if name == "t050":
                with pytest.raises(penstock.Error, match="BF16"):
                    file.get_tensor(name)
            else:
                assert raw(file.get_tensor(name)) == contents[name]
        statistics = context.statistics()
        assert statistics["requests"] < 70
        assert sum(route["bytes"] for route in statistics["routes"]) < 1.3 * sum(map(len, contents.values()))


def test_a_tensor_is_given_though_what_was_read_with_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "model"
    contents = write_model(path, [(f"t{i:03}", "U8", (50000,)) for i in range(200)])
    finish = penstock._safe_open.Load.finish
    failed = []

    def finish_most(load, *arguments, **options):
        count = len(load.make())
        finish(load, *arguments, **options)
        if count > 1 and any(raw(tensor) == contents["t150"] for tensor in load.tensors):
            failed.append(count)
            load.tensors.clear()
            raise penstock.TransferError("one of them can't be read")

    monkeypatch.setattr(penstock._safe_open.Load, "finish", finish_most)
    with penstock.Context() as context, penstock.safe_open(path, "np", context=context, copy=True) as file:
        for name in file.keys():
            assert raw(file.get_tensor(name)) == contents[name]
        read_bytes = sum(route["bytes"] for route in context.statistics()["routes"])
    assert len(failed) == 1 and read_bytes < 2.1 * sum(map(len, contents.values()))


def test_tensors_are_the_same_whatever_mode_they_were_read_ahead_in(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "model"
    write_model(path, [(f"t{i:03}", "F32", (10000,)) for i in range(40)])
    with penstock.safe_open(path, "pt", copy=True) as file:
        names = file.keys()
        with torch.inference_mode():
            tensors = [file.get_tensor(name) for name in names[:3]]
            part = file.get_slice(names[1])
            tensors += [part[3:50], part[0:50:7], part[3], part[5:5], part[None], part[[0, 2]]]
        tensors += [file.get_tensor(name) for name in names[3:]]
    with torch.inference_mode():
        stream = penstock.stream(path, window="1MiB", framework="pt")
        tensors.append(next(stream)[1])
    tensors += [tensor for _, tensor in stream]
    assert not any(tensor.is_inference() for tensor in tensors)
    weight = torch.ones(10000, requires_grad=True)
    (weight * tensors[-1]).sum().backward()


def test_a_file_that_is_not_closed_keeps_nothing_once_it_is_forgotten(tmp_path):
    """Without the garbage collector, which knows nothing of files and of memory on a GPU."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc")
    path = tmp_path / "model"
    write_model(path, [(f"t{i:03}", "U8", (50000,)) for i in range(200)])

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    def look_at_some():
        file = penstock.safe_open(path, "np", copy=True)
        for name in file.keys()[:20]:
            file.get_tensor(name)
        return weakref.ref(file._reader)

    look_at_some()
    before = descriptors()
    gc.disable()
    try:
        readers = [look_at_some() for _ in range(30)]
        assert not any(reader() for reader in readers)
        for _ in range(100):  # lanes hold a file for a moment longer
            if descriptors() <= before:
                break
            time.sleep(0.1)
        assert descriptors() <= before
    finally:
        gc.enable()


def test_a_look_at_one_tensor_reads_one_tensor(tmp_path):
    path = tmp_path / "model"
    write_model(path, [(f"t{i:03}", "U8", (50000,)) for i in range(200)])
    with penstock.Context() as context, penstock.safe_open(path, "np", context=context, copy=True) as file:
        file.get_tensor("t000")
        assert context.statistics()["requests"] == 1
        assert sum(route["bytes"] for route in context.statistics()["routes"]) < 100000


def test_a_file_named_relatively_stays_open_when_the_directory_changes(mixed, tmp_path, monkeypatch):
    path, contents = mixed
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with penstock.safe_open(path.name, "np", copy=True) as file:
        stream = penstock.stream(path.name, framework="np")
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert {name: raw(file.get_tensor(name)) for name in file.keys()} == contents
        assert {name: raw(tensor) for name, tensor in stream} == contents


def replace(path):
    penstock.save_file({"other": numpy.zeros(3)}, path)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("lose", [replace, os.unlink, lambda path: path.rename(path.with_name("elsewhere"))])
def test_a_file_that_is_replaced_removed_or_renamed_is_read_on_as_it_was(mixed, lose, copy):
    path, contents = mixed
    with penstock.safe_open(path, "np", copy=copy) as file:
        assert raw(file.get_tensor("larger")) == contents["larger"]
        lose(path)
        assert {name: raw(file.get_tensor(name)) for name in file.keys()} == contents
        assert raw(file.get_slice("large")[1:3]) == contents["large"][4000:12000]


def test_a_file_that_is_modified_is_refused_by_name(mixed):
    path, contents = mixed
    with penstock.safe_open(path, "np", copy=True) as file:
        assert raw(file.get_tensor("odd")) == contents["odd"]
        path.rename(path.with_name("elsewhere"))
        with open(path.with_name("elsewhere"), "ab") as other:
            other.write(b"more")
        with pytest.raises(penstock.TransferError) as caught:
            file.get_tensor("large")
        assert caught.value.code == "changed" and str(path) in str(caught.value)


def test_a_file_is_closed_with_the_last_that_can_read_it(mixed):
    path, _ = mixed

    def held():
        links = (os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd"))
        return sum(os.path.exists(link) and os.path.samefile(link, path) for link in links)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc")
    with penstock.safe_open(path, "np") as file:
        file.get_tensor("odd")
        rows = file.get_slice("large")
    del file
    assert held() >= 1 and len(rows[:2]) == 2
    del rows
    gc.collect()
    for _ in range(100):  # lanes hold a file for a moment longer
        if held() == 0:
            break
        time.sleep(0.1)
    assert held() == 0


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


@pytest.mark.parametrize("copy", [False, True])
def test_a_part_may_be_asked_for_when_its_file_is_closed(mixed, copy):
    path, contents = mixed
    with penstock.safe_open(path, "pt", copy=copy) as file:
        part = file.get_slice("large")
        rows = raw(part[1:3])
    assert raw(part[1:3]) == rows and raw(part[:]) == contents["large"]
    assert raw(part[torch.tensor([1, 2])]) == rows, "picked by torch itself"


def test_threads_share_an_open_file(mixed):
    path, contents = mixed
    wrong = []
    with penstock.safe_open(path, "np", copy=True) as file:
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


def test_what_is_read_ahead_in_vain_is_bounded_told_and_learnt_from(tmp_path):
    path = tmp_path / "model"
    names = [f"layer.{i:03}" for i in range(96)]
    write_model(path, [(name, "U8", (1 << 20,)) for name in names])

    def read(order):
        with penstock.safe_open(path, "np", copy=True) as file:  # so that it is read, cached or not
            for name in order:
                file.get_tensor(name)
        return file.report

    straight = read(names)
    assert straight.unused_bytes == 0 and "in vain" not in str(straight)
    # Runs that break off: what was on its way then is of no use.
    broken = [names[place] for begin in (60, 20, 80, 0, 40, 70, 10, 50, 30, 90) for place in range(begin, begin + 4)]
    first = read(broken)
    assert 0 < first.unused_bytes <= penstock._safe_open.FIRST_AHEAD_BYTES + first.bytes
    assert f"{first.unused_bytes / 1e6:.3g} MB were read ahead in vain" in str(first)
    assert first.as_dict()["unused_bytes"] == first.unused_bytes
    again = read(broken)
    assert again.unused_bytes < first.unused_bytes
    assert penstock._safe_open.habit.first_bytes() < penstock._safe_open.FIRST_AHEAD_BYTES
    for _ in range(8):
        read(names)
    assert penstock._safe_open.habit.first_bytes() > 0


def test_any_number_of_files_may_be_opened_without_asking_for_a_tensor(tmp_path):
    path = tmp_path / "model.safetensors"
    write_model(path, [("only", "U8", (8,))])
    for _ in range(1200):  # after 1100 halvings nothing is left of a float
        with penstock.safe_open(path, framework="np") as file:
            assert file.get_slice("only").get_shape() == [8]


def test_parts_and_whole_files_count_as_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    write_model(path, [("a", "U8", (1 << 20,)), ("b", "U8", (1 << 20,))])
    for use, used in ((lambda file: file.get_slice("a")[:1000], 1000), (lambda file: file.get_tensors(), 2 << 20)):
        learnt = []
        monkeypatch.setattr(penstock._safe_open.Habit, "learn", lambda self, *bytes_: learnt.append(bytes_))
        with penstock.safe_open(path, framework="np") as file:
            use(file)
        assert learnt == [(used, 0)]
