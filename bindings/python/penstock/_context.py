"""Context: everything that Penstock owns for its user, and reads of ranges of bytes."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import itertools
import os
import threading
import weakref
from typing import Any, Callable, Iterable, Iterator, Optional

from . import _core
from ._arguments import named, natural, pair, truth
from ._closing import Closing
from ._errors import invalid, make
from ._memory import Memory, count_as_written, memory_of
from ._report import Progress, Report, log, told


class Context(Closing):
    """Engines, threads, memory and statistics. The options are the keys of docs/options.md:

        Context(lanes=4, cache="bypass", deadlines={"request_seconds": 30})

    Calls from any thread. A forked child can't use a Context of its parent, and makes its own.
    """

    def __init__(self, **options: Any):
        import json

        try:
            text = json.dumps(options, allow_nan=False)
        except ValueError:
            raise invalid("an option is infinite or not a number", "docs/options.md has the limits") from None
        except TypeError as error:
            raise TypeError(f"options must be numbers, texts, lists and dicts, as docs/options.md has them: {error}, in "
                            f"{options!r}") from None
        self._core = _core.Context(text)
        self._closed = False

    def __repr__(self) -> str:
        return f"<penstock.Context{', closed' if self._closed else ''}>"

    def close(self) -> None:
        """Cancels reads and loads, waits for saves, and frees everything. Otherwise that happens when the last reference
        goes and everything under way has ended."""
        self._closed = True
        self._core.close()

    @property
    def options(self) -> dict[str, Any]:
        """What is in force, with every default filled in."""
        import json

        options: dict[str, Any] = json.loads(self._core.options_json())
        return options

    def statistics(self) -> dict[str, Any]:
        """What was moved since the Context was made or reset, as in docs/schema/statistics.schema.json."""
        import json

        statistics: dict[str, Any] = json.loads(self._core.statistics_json())
        return statistics

    def reset_statistics(self) -> None:
        """Starts counting from 0."""
        self._core.reset_statistics()

    def prefetch(self, path: Any, ranges: Iterable[tuple[int, int]] = ()) -> int:
        """Starts to bring ranges (offset, size) of a file, or all of it, into the page cache. Returns how many bytes it
        started to read: at most `prefetch_window_bytes`."""
        form = "pairs (offset, size)"
        if not isinstance(ranges, Iterable):
            raise TypeError(f"ranges must be {form}, and is {ranges!r}")
        pairs = [pair("ranges", each, form) for each in ranges]
        started: int = self._core.prefetch(os.fsencode(path), [(natural("offset", offset), natural("size", size))
                                                               for offset, size in pairs])
        return started

    def read_into(self, target: Any, path: Any, offset: Optional[int] = None, size: Optional[int] = None, *,
                  lba: Optional[int] = None, count: Optional[int] = None, progress: Progress = None) -> Report:
        """Fills memory from a file, a block device or a URI, and returns a Report.

        `target` is a contiguous torch tensor, a NumPy or CuPy array, anything with DLPack, the CUDA array interface or a
        writable buffer, or (pointer, size, device). `size` defaults to the target's. `lba` and `count` are an offset and a
        size in logical blocks of the store.
        """
        return self._move(target, path, offset, size, lba, count, progress)

    async def read_into_async(self, target: Any, path: Any, offset: Optional[int] = None, size: Optional[int] = None,
                              *, lba: Optional[int] = None, count: Optional[int] = None) -> Report:
        """The same for asyncio. Cancelling the task cancels the read; afterwards the target is not written any more."""
        return await self._move_async(target, path, offset, size, lba, count)

    def _move(self, memory: Any, path: Any, offset: Optional[int], size: Optional[int], lba: Optional[int],
              count: Optional[int], progress: Progress, **how: Any) -> Report:
        """`how` is that of _reader."""
        reading = self._reader(memory, path, offset, size, lba, count, **how)()
        report = Report(**reading.wait(told(progress, os.fsdecode(path))))
        log(os.fsdecode(path), report)
        return report

    async def _move_async(self, memory: Any, path: Any, offset: Optional[int], size: Optional[int],
                          lba: Optional[int], count: Optional[int], **how: Any) -> Report:
        import asyncio

        reads = AwaitedReads.of(asyncio.get_running_loop())
        with reads.expect() as (number, ended):
            start = self._reader(memory, path, offset, size, lba, count, reads.endings, number, **how)
            async with reads.room:
                reading = await _started(start)
                try:
                    await ended
                    report = Report(**reading.wait())
                except BaseException:
                    reading.cancel()
                    raise
                finally:
                    del reading  # a traceback that somebody keeps must not keep its file open
        log(os.fsdecode(path), report)
        return report

    def _reader(self, target: Any, path: Any, offset: Optional[int], size: Optional[int], lba: Optional[int],
                count: Optional[int], endings: Any = None, number: int = 0, opened: Any = None, writes: bool = False,
                durable: bool = False) -> Callable[[], Any]:
        """What starts a read, on any thread: the caller's own current stream is known already. Its end is added to
        `endings` as `number`. `opened` is the store, if it is open already; with `writes` it is written instead."""
        if lba is None and count is not None:
            raise invalid("count without lba", "give both, or offset and size")
        if lba is not None and (offset is not None or size is not None):
            raise invalid("lba together with offset or size", "give either blocks or bytes")
        memory: Memory = named("source" if writes else "target", lambda: memory_of(target, not writes))
        name = os.fsencode(path)
        offset, size, lba, count = (None if value is None else natural(what, value) for what, value in (
            ("offset", offset), ("size", size), ("lba", lba), ("count", count)))

        def start() -> Any:
            size_bytes = memory.size_bytes if size is None else size
            store = opened or self._core.open(name, "read", 0, False, "", 0, 0)
            if count is not None:
                size_bytes = count * store.block_bytes
            if size_bytes > memory.size_bytes:
                raise invalid(f"the memory has {memory.size_bytes} bytes, not the {size_bytes} requested", "give larger memory")
            domain = memory.domain
            if domain == "cuda":
                domain = _core.find_cuda_domain(memory.pointer, memory.size_bytes)
            reading = self._core.transfer(
                store, writes, truth("durable", durable), offset=offset or 0 if lba is None else lba,
                in_blocks=lba is not None,
                pointer=memory.pointer, size_bytes=size_bytes, domain=domain, stream=memory.stream,
                memory=memory.owner, endings=endings, number=number)
            if not writes:
                count_as_written(memory.owner)
            return reading

        return start


async def on_a_thread(call: Callable[[], Any]) -> Any:
    """What the call gives, on another thread."""
    import asyncio
    import concurrent.futures

    def run(given: list[concurrent.futures.Future[Any]]) -> None:
        done = given.pop()
        if not done.set_running_or_notify_cancel():
            return
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)
            del done  # here and in the caller's frame: the error's traceback would keep it, and with it the error

    # Not the executor's own, which may run later what it had no thread for.
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    try:
        try:
            asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, run, [done])
        except RuntimeError as error:
            if "start new thread" not in str(error):
                raise
            if done.cancel():  # otherwise one that was busy has taken it after all
                raise make("out_of_memory", 0, f"no room for another thread: {error}",
                           "raise the limit of memory or threads (ulimit -v, ulimit -u)") from None
        return await asyncio.wrap_future(done)
    finally:
        del done


async def _started(start: Callable[[], Any]) -> Any:
    """What `start` gives, on another thread: opening a file takes as long as the disk or a server likes."""
    import asyncio

    starting = asyncio.ensure_future(on_a_thread(start))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        while not starting.done():  # whoever cancels again has to wait too, or the read would begin afterwards
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([starting])
        with contextlib.suppress(Exception):
            starting.result().cancel()
        del starting
        raise


class AwaitedReads:
    """The awaited reads of one event loop, which share a descriptor that tells of their ends. It lives as long as one of
    them does."""

    _by_loop: weakref.WeakValueDictionary[int, AwaitedReads] = weakref.WeakValueDictionary()

    @classmethod
    def of(cls, loop: Any) -> AwaitedReads:
        reads = cls._by_loop.get(id(loop))
        if reads is None:
            reads = cls._by_loop[id(loop)] = cls(loop)
        return reads

    def __init__(self, loop: Any):
        import asyncio
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # A read has two descriptors, four where it goes straight to a GPU: leave half of them to others.
        self.room = asyncio.Semaphore(1 << 16 if limit == resource.RLIM_INFINITY else max(1, limit // 8))
        self.endings = _core.Endings()
        self._loop = loop  # whose id is not given to another one meanwhile
        self._numbers = itertools.count()
        self._expected: dict[int, Any] = {}  # by number: what is awaited

    @contextlib.contextmanager
    def expect(self) -> Iterator[tuple[int, Any]]:
        if not self._expected:
            self._loop.add_reader(self.endings.fileno(), self._tell)
        number, ended = next(self._numbers), self._loop.create_future()
        self._expected[number] = ended
        try:
            yield number, ended
        finally:
            del self._expected[number]
            if not self._expected:
                self._loop.remove_reader(self.endings.fileno())

    def _tell(self) -> None:
        for number in self.endings.take():
            ended = self._expected.get(number)
            if ended is not None and not ended.done():
                ended.set_result(None)


_default: Optional[Context] = None
_default_lock = threading.RLock()  # reentrant: a signal handler may come while one is made


def _open_default() -> Optional[Context]:
    return None if _default is None or _default._closed else _default


def default_context() -> Context:
    """The Context of the calls that are given none; made by the first of them, or by the next if it was closed."""
    global _default
    with _default_lock:
        context = _open_default()
        if context is None:
            made = Context()
            context = _default = _open_default() or made  # that of a signal handler, which was quicker
        return context


def context_of(context: Optional[Context]) -> Context:
    """The one that a call was given, or the default one."""
    if context is None:
        return default_context()
    if not isinstance(context, Context):
        raise TypeError(f"context must be a penstock.Context, and is {context!r}")
    return context


def _after_fork() -> None:
    # The parent's threads did not come along, nor did whoever held the lock.
    global _default, _default_lock
    _default = None
    _default_lock = threading.RLock()
    AwaitedReads._by_loop.clear()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_core.shut_down)


def read_into(target: Any, path: Any, offset: Optional[int] = None, size: Optional[int] = None, *,
              lba: Optional[int] = None, count: Optional[int] = None, progress: Progress = None) -> Report:
    """Context.read_into of the default Context."""
    return default_context().read_into(target, path, offset, size, lba=lba, count=count, progress=progress)


async def read_into_async(target: Any, path: Any, offset: Optional[int] = None, size: Optional[int] = None, *,
                          lba: Optional[int] = None, count: Optional[int] = None) -> Report:
    """Context.read_into_async of the default Context."""
    context = _open_default()
    if context is None:
        context = await on_a_thread(default_context)  # making one looks around on the machine
    return await context.read_into_async(target, path, offset, size, lba=lba, count=count)
