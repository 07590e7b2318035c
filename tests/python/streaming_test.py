"""Models that pass through a window of memory."""

import copy
import gc
import logging
import os
import pickle
import random
import signal
import threading
import warnings

import numpy
import pytest

import penstock
from models import raw, write_model


def test_a_stream_gives_all_tensors_in_the_order_of_the_file(mixed):
    path, contents = mixed
    for window in ("64KiB", "3 MB", 1 << 30):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = [(name, raw(tensor)) for name, tensor in penstock.stream(path, window=window)]
        assert got == list(contents.items())
    part = dict(penstock.stream(path, select=["large"], slices={"large": slice(5)}))
    assert raw(part["large"]) == contents["large"][:20000]


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_tensors_of_a_stream_are_the_caller_s_own(tmp_path, framework):
    if framework == "pt":
        pytest.importorskip("torch")
    path = tmp_path / "model"
    contents = write_model(path, [("one", "U8", (2 << 20,)), ("two", "U8", (2 << 20,))])
    stream = penstock.stream(path, framework=framework)
    tensors = dict(stream)
    with open(path, "r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert {name: raw(tensor) for name, tensor in tensors.items()} == contents
    assert "mapped" not in stream.report.routes


def test_a_stream_keeps_to_its_window(tmp_path, live_bytes):
    path = tmp_path / "model"
    sizes = [random.Random(i).choice([1000, 300000, 2 << 20, 5 << 20]) for i in range(60)]
    write_model(path, [(f"t{i:03}", "U8", (size,)) for i, size in enumerate(sizes)], content=None)
    window = 24 << 20
    count = 0
    for name, array in penstock.stream(path, "cpu", window, framework="np"):
        count += 1
        assert live_bytes["now"] <= window
    assert count == 60 and live_bytes["most"] <= window
    assert live_bytes["most"] > window // 2  # read ahead of, and not one by one
    del array
    assert live_bytes["now"] == 0


SIZES = [[6, 6, 6, 6], [9, 2, 9, 2, 9], [1, 9, 1, 1, 4, 4, 4, 9], [3] * 12, [4] * 6, [9, 9]]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("framework", ["np", "pt"])
def test_a_window_holds_where_tensors_are_larger_than_half_of_it(tmp_path, all_live_bytes, sizes, framework):
    """A caller that lets go of a tensor before it asks for the next never sees more than the window in use."""
    if framework == "pt":
        pytest.importorskip("torch")
    path = tmp_path / "model"
    write_model(path, [(f"t{i}", "U8", (size << 20,)) for i, size in enumerate(sizes)], content=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, tensor in penstock.stream(path, window="10MiB", framework=framework):
            del tensor
    assert all_live_bytes["most"] <= (10 << 20) + 4096


@pytest.mark.parametrize("sizes", SIZES)
def test_a_window_is_enlarged_for_a_caller_that_holds_on_and_that_is_told(tmp_path, all_live_bytes, sizes):
    path = tmp_path / "model"
    write_model(path, [(f"t{i}", "U8", (size << 20,)) for i, size in enumerate(sizes)], content=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, tensor in penstock.stream(path, window="10MiB", framework="np"):
            pass
    pairs = max(first + second for first, second in zip(sizes, sizes[1:]))
    assert all_live_bytes["most"] <= (max(10, pairs + 2) << 20)
    assert [str(each.message).count("still holds") for each in caught] == [1] * (all_live_bytes["most"] > 11 << 20)


def test_a_window_too_small_is_enlarged_with_a_warning(tmp_path, live_bytes):
    path = tmp_path / "model"
    write_model(path, [("a", "U8", (100,)), ("b", "U8", (9 << 20,)), ("c", "U8", (100,))], content=None)
    with pytest.warns(UserWarning, match="'b'"):
        for name, array in penstock.stream(path, window="1MiB", framework="np"):
            del array
    assert live_bytes["most"] <= 12 << 20


def test_a_stream_that_is_left_early_leaves_nothing(tmp_path, live_bytes):
    path = tmp_path / "model"
    write_model(path, [(f"t{i}", "U8", (1 << 20,)) for i in range(50)], content=None)
    for name, array in penstock.stream(path, window="8MiB", framework="np"):
        break
    del array
    gc.collect()
    assert live_bytes["now"] == 0


def test_a_stream_has_a_report_and_one_line_in_the_log(mixed, caplog):
    path, contents = mixed
    size = sum(map(len, contents.values()))
    with caplog.at_level(logging.INFO, "penstock"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = penstock.stream(path, window="1MiB")
        assert tensors.report is None and len(dict(tensors)) == len(contents)
        assert tensors.report.bytes == sum(tensors.report.routes.values()) == size and tensors.report.seconds > 0
        assert len(caplog.records) == 1 and str(path) in caplog.text
        left = penstock.stream(path, window="64KiB")
        next(left)
        left.close()
        assert len(caplog.records) == 2 and left.report.bytes < size


@pytest.mark.parametrize("window", [0, -5, "", "many", "1XB", "-1GiB", "0GiB"])
def test_windows_that_make_no_sense_are_refused(mixed, window):
    with pytest.raises(ValueError):
        penstock.stream(mixed[0], window=window)


def test_windows_are_numbers_of_any_kind(mixed):
    assert len(dict(penstock.stream(mixed[0], window=numpy.int64(64 << 20)))) == len(mixed[1])
    with pytest.raises(TypeError):
        penstock.stream(mixed[0], window=1e9)


@pytest.mark.parametrize("words, arguments", [
    ("'late' is F8_E5M2FNUZ", {"framework": "np"}),
    ("no device given for .*'late'", {"device": {"first": "cpu"}}),
    ("unknown device 'bogus'", {"device": "bogus"}),
    ("unknown device 'bogus'", {"device": lambda name: "bogus" if name == "late" else "cpu"}),
    ("NumPy has no memory on cuda:0", {"device": "cuda:0", "framework": "np", "select": ["first"]}),
    ("unknown framework 'abacus'", {"framework": "abacus"}),
])
def test_arguments_are_refused_before_the_first_tensor(tmp_path, monkeypatch, words, arguments):
    path = tmp_path / "model"
    write_model(path, [("first", "U8", (4 << 20,)), ("late", "F8_E5M2FNUZ", (4,))], content=None)
    frame = penstock._frameworks.framework("np")
    monkeypatch.setattr(frame, "types", {key: kind for key, kind in frame.types.items() if not key.startswith("F8")})
    with pytest.raises(penstock.Error, match=words):
        penstock.stream(path, window="4MiB", **{"framework": "np", **arguments})


def test_a_device_is_asked_for_once(tmp_path):
    path = tmp_path / "model"
    write_model(path, [(f"t{i}", "U8", (1 << 20,)) for i in range(9)], content=None)
    asked = []
    assert len(dict(penstock.stream(path, lambda name: asked.append(name) or "cpu", "4MiB", framework="np"))) == 9
    assert asked == [f"t{i}" for i in range(9)]


def test_several_threads_share_a_stream(tmp_path):
    path = tmp_path / "model"
    contents = write_model(path, [(f"t{i:03}", "U8", (20000,)) for i in range(300)])
    stream = penstock.stream(path, window="1MiB", framework="np")
    got, raised = [], []

    def take():
        try:
            got.extend((name, raw(array)) for name, array in stream)
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == [] and sorted(got) == sorted(contents.items())


def test_a_stream_is_closed_at_the_end_of_its_block(tmp_path, live_bytes):
    path = tmp_path / "model"
    write_model(path, [(f"t{i}", "U8", (1 << 20,)) for i in range(50)], content=None)
    with penstock.stream(path, window="8MiB", framework="np") as stream:
        next(stream)
    assert live_bytes["now"] == 0
    with pytest.raises(penstock.StateError, match="closed, and 49 of its 50 tensors did not come") as error:
        list(stream)
    assert error.value.code == "closed"


def test_a_stream_that_was_read_to_its_end_may_be_closed(mixed):
    for take in (list, lambda stream: [next(stream) for _ in range(stream.tensor_count)]):
        with penstock.stream(mixed[0], framework="np") as stream:
            assert len(take(stream)) == len(mixed[1])
        assert list(stream) == []


def test_a_stream_that_failed_has_no_end(tmp_path):
    path = tmp_path / "model"
    write_model(path, [(f"t{i}", "U8", (1 << 20,)) for i in range(9)], content=None)
    stream = penstock.stream(path, window="8MiB", framework="np")
    os.truncate(path, 1 << 20)
    with pytest.raises(penstock.TransferError):
        list(stream)
    with pytest.raises(penstock.StateError, match="closed"):
        list(stream)


def test_a_stream_that_another_thread_waits_for_can_be_closed_in_a_forked_child(tmp_path):
    path = tmp_path / "model"
    write_model(path, [("a", "U8", (1000,)), ("b", "U8", (1000,))])
    stream = penstock.stream(path, framework="np")
    next(stream)
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with stream._lock:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        stream.close()
        os._exit(0)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_stream_is_not_copied(mixed):
    with penstock.stream(mixed[0], framework="np") as stream:
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="penstock.Stream .* can't be copied or pickled"):
                copied(stream)
