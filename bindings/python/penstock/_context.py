"""Context: everything that Penstock owns for its user, and reads of ranges of bytes."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from typing import Any, Callable, Iterable, Optional

from . import _core
from ._errors import invalid
from ._memory import memory_of
from ._report import Report, log

Progress = Optional[Callable[[int, int], Any]]


class Context:
    """Engines, threads, memory and statistics. The options are the keys of docs/options.md:

        Context(lanes=4, cache="bypass", deadlines={"request_seconds": 30})

    Calls from any thread. A forked child can't use a Context of its parent, and makes its own.
    """

    def __init__(self, **options: Any):
        import json

        self._core = _core.Context(json.dumps(options))

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what runs and gives everything back; otherwise that happens when the last reference goes."""
        self._core.close()

    @property
    def options(self) -> dict[str, Any]:
        """What is in force, with every default filled in."""
        import json

        return json.loads(self._core.options_json())

    def statistics(self) -> dict[str, Any]:
        """What was moved since the Context was made or reset, as in docs/schema/statistics.schema.json."""
        import json

        return json.loads(self._core.statistics_json())

    def reset_statistics(self) -> None:
        self._core.reset_statistics()

    def prefetch(self, path: Any, ranges: Iterable[tuple[int, int]] = ()) -> int:
        """Starts bringing ranges (offset, size) of a file into the page cache, or all of it; says how many bytes were
        started: at most `prefetch_window_bytes`."""
        return self._core.prefetch(os.fsencode(path), [(offset, size) for offset, size in ranges])

    def read_into(self, target: Any, path: Any, offset: Optional[int] = None, size: Optional[int] = None, *,
                  lba: Optional[int] = None, count: Optional[int] = None, progress: Progress = None) -> Report:
        """Fills memory from a file, a block device or a URI, and says how.

        `target` is a contiguous tensor of torch, an array of NumPy or CuPy, anything with DLPack, the CUDA array
        interface or a writable buffer, or (pointer, size, device). `size` is the target's own unless it is given.
        `lba` and `count` say the same in logical blocks of the store.
        """
        report = Report(**self._reader(target, path, offset, size, lba, count, False)().wait(progress))
        log(os.fsdecode(path), report)
        return report

    async def read_into_async(self, target: Any, path: Any, offset: Optional[int] = None, size: Optional[int] = None,
                              *, lba: Optional[int] = None, count: Optional[int] = None) -> Report:
        """The same for asyncio. Cancelling the task cancels the read; afterwards the target is not written any more."""
        import asyncio

        loop = asyncio.get_running_loop()
        # Opening a file takes as long as the disk or a server likes.
        start = self._reader(target, path, offset, size, lba, count, True)
        starting = asyncio.ensure_future(asyncio.to_thread(start))
        try:
            reading = await asyncio.shield(starting)
        except asyncio.CancelledError:
            while not starting.done():  # whoever cancels again has to wait too, or the read would begin afterwards
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([starting])
            with contextlib.suppress(Exception):
                starting.result().cancel()
            raise
        ended = loop.create_future()
        loop.add_reader(reading.fileno(), _set, ended)
        try:
            await ended
        except BaseException:
            reading.cancel()
            raise
        finally:
            loop.remove_reader(reading.fileno())
        report = Report(**reading.wait())
        log(os.fsdecode(path), report)
        return report

    def _reader(self, target: Any, path: Any, offset: Optional[int], size: Optional[int], lba: Optional[int],
                count: Optional[int], signal_end: bool) -> Callable[[], Any]:
        """What starts a read, on any thread: the caller's own current stream is known already."""
        if lba is None and count is not None:
            raise invalid("count without lba", "give both, or offset and size")
        if lba is not None and (offset is not None or size is not None):
            raise invalid("lba together with offset or size", "give the place in blocks or in bytes")
        memory = memory_of(target)
        name = os.fsencode(path)
        for what, value in (("offset", offset), ("size", size), ("lba", lba), ("count", count)):
            if value is not None and not 0 <= value < 1 << 64:
                raise invalid(f"{what} is {value}", "give a number of bytes or blocks")

        def start() -> Any:
            size_bytes = memory.size_bytes if size is None else size
            if count is not None:
                size_bytes = count * self._core.block_bytes(name)
            if size_bytes > memory.size_bytes:
                raise invalid(f"{size_bytes} bytes do not fit into {memory.size_bytes}", "give a larger target")
            domain = memory.domain
            if domain == "cuda":
                domain = _core.find_cuda_domain(memory.pointer, memory.size_bytes)
            return self._core.read(
                path=name, offset=offset or 0 if lba is None else lba, in_blocks=lba is not None,
                pointer=memory.pointer, size_bytes=size_bytes, domain=domain, stream=memory.stream,
                memory=memory.owner, signal_end=signal_end)

        return start


def _set(future: Any) -> None:
    if not future.done():
        future.set_result(None)


_default: Optional[Context] = None
_default_lock = threading.Lock()


def default_context() -> Context:
    """The Context of the calls that are given none; made by the first of them."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Context()
        return _default


def _after_fork() -> None:
    # The parent's threads did not come along, nor did whoever held the lock.
    global _default, _default_lock
    _default = None
    _default_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_core.shut_down)


def read_into(target: Any, path: Any, offset: Optional[int] = None, size: Optional[int] = None, *,
              lba: Optional[int] = None, count: Optional[int] = None, progress: Progress = None) -> Report:
    """Context.read_into of the default Context."""
    return default_context().read_into(target, path, offset, size, lba=lba, count=count, progress=progress)


async def read_into_async(target: Any, path: Any, offset: Optional[int] = None, size: Optional[int] = None, *,
                          lba: Optional[int] = None, count: Optional[int] = None) -> Report:
    """Context.read_into_async of the default Context."""
    import asyncio

    context = _default or await asyncio.to_thread(default_context)  # making one looks around on the machine
    return await context.read_into_async(target, path, offset, size, lba=lba, count=count)
