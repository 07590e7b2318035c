"""Reads into memory of every kind, and what a Context says about itself."""

import array
import asyncio
import contextlib
import ctypes
import gc
import logging
import mmap
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy
import pytest

import penstock
from models import write_model


def test_a_buffer_is_filled_and_the_report_says_how(file, content):
    target = bytearray(len(content))
    report = penstock.read_into(target, file)
    assert target == content
    assert report.outcome == "done"
    assert report.bytes == len(content) == sum(report.routes.values())
    assert report.seconds > 0 and report.engine and report.reason
    assert report.limit in ("storage", "copy", "cpu", "unknown")
    assert "MB" in str(report) and "outcome='done'" in repr(report)
    assert pickle.loads(pickle.dumps(report)).routes == report.routes


def targets(size):
    yield "bytearray", bytearray(size), bytes
    yield "memoryview", memoryview(bytearray(size)), bytes
    yield "array", array.array("B", bytes(size)), lambda value: value.tobytes()
    yield "mmap", mmap.mmap(-1, size), lambda value: value[:]
    yield "ctypes", (ctypes.c_char * size)(), bytes
    yield "numpy", numpy.zeros(size, numpy.uint8), lambda value: value.tobytes()
    yield "numpy of floats", numpy.zeros(size // 4, numpy.float32), lambda value: value.tobytes()
    yield "dlpack", OnlyDlpack(numpy.zeros(size, numpy.uint8)), lambda value: value.array.tobytes()


class OnlyDlpack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_memory_that_is_not_contiguous_is_refused(file):
    with pytest.raises(ValueError, match="contiguous"):
        penstock.read_into(OnlyDlpack(numpy.zeros((9, 9)).T[1:]), file)


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20])
def test_memory_of_every_kind_is_filled(tmp_path, size):
    content = os.urandom(size)
    path = tmp_path / "data"
    path.write_bytes(content)
    for name, target, bytes_of in targets(size) if size else [("bytearray", bytearray(), bytes)]:
        penstock.read_into(target, path)
        got = bytes_of(target)
        assert got == content[:len(got)], name


def test_a_pointer_with_a_size_and_a_device_is_memory_too(file, content):
    target = numpy.zeros(len(content), numpy.uint8)
    penstock.read_into((target.ctypes.data, target.nbytes, "cpu"), file)
    assert target.tobytes() == content


def test_torch_tensors_are_filled(file, content):
    torch = pytest.importorskip("torch")
    target = torch.zeros(len(content), dtype=torch.uint8)
    penstock.read_into(target, file)
    assert target.numpy().tobytes() == content
    parameter = torch.nn.Parameter(torch.zeros(1000))
    penstock.read_into(parameter, file)
    assert parameter.detach().numpy().tobytes() == content[:4000]
    with pytest.raises(ValueError, match="not contiguous"):
        penstock.read_into(torch.zeros(10, 10).t(), file)
    with pytest.raises(ValueError, match="on meta"):
        penstock.read_into(torch.empty(10, device="meta"), file)


@pytest.mark.parametrize("how", ["read_into", "read_into_async", "load_into"])
def test_torch_is_told_that_a_tensor_was_written(tmp_path, how):
    """What autograd still needs must not change unseen."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "model"
    write_model(path, [("a", "F32", (4,))])
    start = torch.ones(4, requires_grad=True)
    written = start * 1
    result = (written * written).sum()
    if how == "load_into":
        penstock.load_into({"a": written.detach()}, path)
    elif how == "read_into":
        penstock.read_into(written.detach(), path)
    else:
        asyncio.run(penstock.read_into_async(written.detach(), path))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_tensors_that_torch_does_not_count_for_are_filled_too(file, content):
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        inferred = torch.zeros(10, dtype=torch.uint8)
    quantized = torch.quantize_per_tensor(torch.zeros(10), 1.0, 0, torch.quint8)
    for target in (inferred, quantized, torch.zeros((), dtype=torch.complex64)):
        penstock.read_into(target, file)
    assert bytes(inferred.tolist()) == bytes(quantized.int_repr().tolist()) == content[:10]


def test_a_part_is_that_part(file, content):
    target = bytearray(5000)
    penstock.read_into(target, file, 1000, 70)
    assert target[:70] == content[1000:1070] and not any(target[70:])
    penstock.read_into(target, file, offset=7)
    assert target == content[7:5007]


def test_blocks_are_counted_from_the_start(tmp_path):
    content = os.urandom(1 << 16)
    path = tmp_path / "data"
    path.write_bytes(content)
    target = bytearray(4096)
    penstock.read_into(target, path, lba=3, count=2)
    assert target[:1024] == content[1536:2560] and not any(target[1024:])
    penstock.read_into(target, path, lba=8)
    assert target == content[4096:8192]


@pytest.mark.parametrize("error, code, call", [
    (ValueError, "invalid_argument", lambda read, file: read(b"read only", file)),
    (ValueError, "invalid_argument", lambda read, file: read(memoryview(bytearray(100))[::2], file)),
    (ValueError, "invalid_argument", lambda read, file: read(numpy.zeros((9, 9)).T[1:], file)),
    (ValueError, "invalid_argument", lambda read, file: read((0, 2, "cpu"), file)),
    (ValueError, "invalid_argument", lambda read, file: read(numpy.empty(3, object), file)),
    (ValueError, "invalid_argument", lambda read, file: penstock.Context().prefetch(file, [(-1, 5)])),
    (ValueError, "invalid_argument", lambda read, file: read((4096, -2, "cpu"), file)),
    (ValueError, "invalid_argument", lambda read, file: read((4096, 1 << 64, "cpu"), file)),
    (ValueError, "invalid_argument", lambda read, file: read((4096, 2, "warp:9"), file)),
    (ValueError, "invalid_argument", lambda read, file: read(bytearray(9), file, -1)),
    (ValueError, "invalid_argument", lambda read, file: read(bytearray(9), file, size=10)),
    (ValueError, "invalid_argument", lambda read, file: read(bytearray(9), file, size=-1)),
    (ValueError, "invalid_argument", lambda read, file: read(bytearray(9), file, count=1)),
    (ValueError, "invalid_argument", lambda read, file: read(bytearray(9), file, 1, lba=1)),
    (ValueError, "invalid_argument", lambda read, file: read(bytearray(9), file, lba=(1 << 64) - 1)),
    (ValueError, "out_of_range", lambda read, file: read(bytearray(9), file, 1 << 40)),
    (ValueError, "out_of_range", lambda read, file: read(bytearray(1 << 23), file)),
    (ValueError, "unknown_scheme", lambda read, file: read(bytearray(9), "warp://x")),
    (FileNotFoundError, "not_found", lambda read, file: read(bytearray(9), file.parent / "missing")),
    (IsADirectoryError, "is_directory", lambda read, file: read(bytearray(9), file.parent)),
])
def test_what_makes_no_sense_is_refused_by_an_error_of_the_usual_kind(file, error, code, call):
    with pytest.raises(error) as caught:
        call(penstock.read_into, file)
    assert isinstance(caught.value, penstock.Error)
    assert caught.value.code == code
    assert caught.value.hint and caught.value.hint in str(caught.value)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value) and str(copy) == str(caught.value) and copy.code == code


@pytest.mark.parametrize("words, call", [
    ("target: 5 is no memory", lambda file: penstock.read_into(5, file)),
    ("target: None is no memory", lambda file: penstock.read_into(None, file)),
    ("target: \\(1, 2\\) is no memory", lambda file: penstock.read_into((1, 2), file)),
    ("target: .* is no memory", lambda file: penstock.read_into((4096, 2.0, "cpu"), file)),
    ("source: 5 is no memory", lambda file: penstock.open(file).write_from(5)),
    ("offset must be an integer, and is '4'", lambda file: penstock.read_into(bytearray(9), file, "4")),
    ("size must be an integer, and is 1.5", lambda file: penstock.read_into(bytearray(9), file, size=1.5)),
    ("count must be an integer", lambda file: penstock.read_into(bytearray(9), file, lba=0, count=True)),
    ("ranges must be pairs .*, and is 5", lambda file: penstock.Context().prefetch(file, [5])),
    ("ranges must be pairs .*, and is \\(1,\\)", lambda file: penstock.Context().prefetch(file, [(1,)])),
    ("size must be an integer", lambda file: penstock.Context().prefetch(file, [(0, "5")])),
])
def test_arguments_of_the_wrong_type_are_named(file, words, call):
    with pytest.raises(TypeError, match=words) as caught:
        call(file)
    assert not isinstance(caught.value, ValueError)


def test_system_errors_have_their_number(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        penstock.read_into(bytearray(9), tmp_path / "missing")
    assert caught.value.errno == 2


def test_names_need_not_be_text(tmp_path):
    odd = os.fsencode(tmp_path) + b"/\xff"
    with open(odd, "wb") as file:
        file.write(b"abc")
    target = bytearray(3)
    penstock.read_into(target, odd)
    assert target == b"abc"
    with pytest.raises(FileNotFoundError, match="xfe"):
        penstock.read_into(target, os.fsencode(tmp_path) + b"/\xfe")


def test_options_are_keywords_and_unknown_ones_are_refused():
    with penstock.Context(lanes=3, cache="bypass", deadlines={"request_seconds": 30}) as context:
        assert context.options["lanes"] == 3
        assert context.options["deadlines"]["request_seconds"] == 30
    for wrong in [{"warp": 9}, {"lanes": -1}, {"lanes": "many"}, {"engine": "warp"}]:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            penstock.Context(**wrong)
    with pytest.raises(TypeError, match="options must be numbers, texts.*'lanes'"):
        penstock.Context(lanes=object())


def test_numbers_that_are_too_large_are_refused_by_their_limit(file):
    with pytest.raises(penstock.InvalidError, match="offset is 18446744073709551616 .offset must be at most"):
        penstock.read_into(bytearray(9), file, 1 << 64)


def test_deadlines_that_nobody_can_mean_are_refused():
    for seconds, message in [(-1, "request_seconds is -1"), (float("nan"), "not a number"), (float("inf"), "infinite")]:
        with pytest.raises(ValueError, match=message):
            penstock.Context(deadlines={"request_seconds": seconds})


def test_a_closed_context_says_so(file):
    context = penstock.Context()
    context.close()
    context.close()
    with pytest.raises(penstock.StateError, match="closed"):
        context.read_into(bytearray(9), file)


def test_closing_a_context_ends_loads_too(tmp_path, slow_context):
    path = tmp_path / "model"
    write_model(path, [("a", "U8", (2 << 30,))], content=None)
    closing = threading.Timer(0.1, slow_context.close)
    closing.start()
    with pytest.raises(penstock.StateError, match="the Context was closed") as caught:
        penstock.load_file(path, copy=True, context=slow_context)
    assert caught.value.code == "closed"
    closing.join()


def test_statistics_count_what_was_moved(file, content):
    with penstock.Context() as context:
        context.read_into(bytearray(len(content)), file)
        statistics = context.statistics()
        assert sum(route["bytes"] for route in statistics["routes"]) >= len(content)
        assert statistics["requests"] == 1
        context.reset_statistics()
        assert context.statistics()["requests"] == 0


def test_prefetching_says_how_much_was_started(file, content):
    with penstock.Context(prefetch_window_bytes=1 << 20) as context:
        assert context.prefetch(file, [(0, 1000), (5000, 100)]) in (0, 1100)
        assert context.prefetch(file) in (0, 1 << 20)
        for offset, size in ((len(content), 1), (0, 10**9)):
            for ranges in ([(offset, size)], [(0, 2 << 20), (offset, size)]):
                with pytest.raises(penstock.RangeError, match=f"ends at {offset + size}, past the end at {len(content)} "):
                    context.prefetch(file, ranges)


def test_reads_are_logged_for_those_who_debug(file, caplog):
    with caplog.at_level(logging.INFO, "penstock"):
        penstock.read_into(bytearray(1000), file)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, "penstock"):
        penstock.read_into(bytearray(1000), file)
    assert len(caplog.records) == 1 and str(file) in caplog.text and "1 kB" in caplog.text


def test_progress_is_told_and_may_stop_the_read(slow_context, large_file):
    target = mmap.mmap(-1, 8 << 30)
    calls = []

    def progress(done, all_bytes):
        calls.append((time.monotonic(), done, all_bytes))
        if len(calls) == 5:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        slow_context.read_into(target, large_file, progress=progress)
    assert all(later[0] - earlier[0] >= 0.05 for earlier, later in zip(calls, calls[1:]))
    assert 0 < calls[-1][1] < 8 << 30 and calls[-1][2] == 8 << 30
    target.close()  # nobody writes there any more


def test_ctrl_c_cancels(slow_context, large_file):
    target = mmap.mmap(-1, 8 << 30)
    pressed = []

    def press():
        pressed.append(time.monotonic())
        signal.raise_signal(signal.SIGINT)

    threading.Timer(0.2, press).start()
    with pytest.raises(KeyboardInterrupt):
        slow_context.read_into(target, large_file)
    # 200 ms are meant; a busy machine takes longer.
    assert time.monotonic() - pressed[0] < 20
    assert slow_context.statistics()["requests_failed"] == 1
    target.close()
    slow_context.read_into(bytearray(4096), large_file)


def test_other_threads_run_while_one_waits(slow_context, large_file):
    target = mmap.mmap(-1, 1 << 30)
    counted = 0
    caught = []

    def read():
        try:
            slow_context.read_into(target, large_file)
        except penstock.StateError as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        counted += 1
    assert thread.is_alive() and counted > 1000
    slow_context.close()
    thread.join(10)
    assert caught[0].code in ("closed", "cancelled")


def test_deadlines_are_timeouts(large_file):
    with penstock.Context(engine="posix", lanes=1, storage_chunk_bytes=4096, operations_in_flight=1,
                          deadlines={"request_seconds": 0.1, "cancel_grace_seconds": 5, "close_seconds": 10}) as context:
        with pytest.raises(TimeoutError) as caught:
            context.read_into(mmap.mmap(-1, 1 << 30), large_file)
        assert caught.value.code == "timed_out"
        assert caught.value.report.bytes < 1 << 30


def test_reads_can_be_awaited(file, content):
    async def main():
        first, second = bytearray(len(content)), bytearray(1000)
        reports = await asyncio.gather(penstock.read_into_async(first, file),
                                       penstock.read_into_async(second, file, 5))
        assert first == content and second == content[5:1005]
        assert [report.bytes for report in reports] == [len(content), 1000]
        with pytest.raises(FileNotFoundError):
            await penstock.read_into_async(second, file.parent / "missing")
        with pytest.raises(ValueError):
            await penstock.read_into_async(second, file, 1 << 40)

    asyncio.run(main())


def test_the_loop_runs_on_while_a_read_is_awaited_and_cancelling_the_task_cancels_it(slow_context, large_file):
    target = mmap.mmap(-1, 1 << 30)

    async def main():
        task = asyncio.create_task(slow_context.read_into_async(target, large_file))
        for _ in range(5):
            await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert slow_context.statistics()["requests_failed"] == 1
    target.close()


MANY_READS = """
import asyncio, os, resource, sys
import penstock

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
path = sys.argv[1]
with open(path, "rb") as file:
    content = file.read()

async def main():
    targets = [bytearray(1000) for _ in range(1000)]
    reads = [penstock.read_into_async(target, path, number) for number, target in enumerate(targets)]
    reports = await asyncio.gather(*reads)
    assert all(report.bytes == 1000 for report in reports)
    assert all(target == content[number:number + 1000] for number, target in enumerate(targets))

    reads = [asyncio.create_task(penstock.read_into_async(target, path)) for target in targets]
    await asyncio.sleep(0.01)
    for read in reads:
        read.cancel()
    ends = await asyncio.gather(*reads, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) or end.bytes == 1000 for end in ends)
    assert any(isinstance(end, asyncio.CancelledError) for end in ends)
    missing = [penstock.read_into_async(target, path + "x") for target in targets]
    assert all(isinstance(end, FileNotFoundError) for end in await asyncio.gather(*missing, return_exceptions=True))
    await asyncio.gather(*(penstock.read_into_async(target, path) for target in targets))
    assert len(os.listdir("/proc/self/fd")) < 128

for _ in range(2):
    asyncio.run(main())
"""


def test_thousands_of_reads_are_awaited_with_few_descriptors(file):
    subprocess.run([sys.executable, "-c", MANY_READS, str(file)], check=True, timeout=300)


def test_loops_in_several_threads_await_reads_at_the_same_time(file, content):
    wrong = []

    async def main(number):
        for _ in range(20):
            targets = [bytearray(1000) for _ in range(20)]
            await asyncio.gather(*(penstock.read_into_async(target, file, number) for target in targets))
            wrong.extend(target for target in targets if target != content[number:number + 1000])

    threads = [threading.Thread(target=asyncio.run, args=(main(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore")  # asyncio warns of what is left behind
def test_a_loop_that_is_closed_leaves_its_reads_cancelled(slow_context, large_file, file, content):
    target = mmap.mmap(-1, 1 << 30)
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(slow_context.read_into_async(target, large_file)) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0.05))
    assert not any(task.done() for task in tasks)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    del tasks, loop
    gc.collect()
    assert slow_context.statistics()["requests_failed"] == 3
    target.close()
    other = bytearray(1000)
    asyncio.run(slow_context.read_into_async(other, file))
    assert other == content[:1000]


def test_a_target_is_kept_while_it_is_written(slow_context, large_file):
    target = bytearray(1 << 30)
    reading = slow_context._start(penstock._memory.memory_of(target), target, large_file, 0, None, None, None)
    with pytest.raises(BufferError):
        target.extend(b"more")
    reading.cancel()
    assert reading.ended
    del reading
    target.extend(b"more")


def test_a_call_on_another_thread_that_fails_keeps_nothing():
    class Watched:
        """That nothing else has."""

    async def main():
        watched = Watched()
        seen = weakref.ref(watched)

        def fail(kept=watched):
            raise ValueError

        del watched
        with contextlib.suppress(ValueError):
            await penstock._context.on_a_thread(fail)
        return seen

    gc.disable()
    try:
        assert asyncio.run(main())() is None
    finally:
        gc.enable()
