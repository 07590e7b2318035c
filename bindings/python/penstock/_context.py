"""Context: everything that Penstock owns for its user, and reads of ranges of bytes."""

from __future__ import annotations

import atexit
import collections
import contextvars
import itertools
import json
import os
import resource
import threading
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional

from . import _core
from ._arguments import named, natural, pair, truth
from ._closing import Closing
from ._errors import Error, invalid, make, name_file, naming
from ._memory import BUFFERS, Memory, check_storage, count_as_written, hold_storage, memory_of
from ._options import Options
from ._report import Progress, Report, log_read, told

if TYPE_CHECKING:
    from ._options import Unpack


BRIEF_BYTES = 128 << 10  # of requests that take no longer than what surrounds them
TURN_READS = 32  # awaited ones that begin before the loop comes round


class Context(Closing):
    """Engines, threads, memory and statistics. The options are the keys of docs/options.md:

        Context(lanes=4, cache="bypass", deadlines={"request_seconds": 30})

    Calls from any thread. A forked child can't use a Context of its parent, and makes its own.
    """

    def __init__(self, **options: Unpack[Options]):
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
    def options(self) -> Options:
        """What is in force, with every default filled in."""
        options: Options = json.loads(self._core.options_json())
        return options

    def statistics(self) -> dict[str, Any]:
        """What was moved since the Context was made or reset, as in docs/schema/statistics.schema.json."""
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
        with naming(path):
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

    def _move(self, target: Any, path: Any, offset: Optional[int], size: Optional[int], lba: Optional[int],
              count: Optional[int], progress: Progress, **how: Any) -> Report:
        """`how` is that of _start."""
        tell = None if progress is None else told(progress, os.fsdecode(path))
        memory = _memory_of(target, how)
        if memory.size_bytes > BRIEF_BYTES:
            memory = hold_storage(memory, target, False)
        try:
            started = self._start(memory, target, path, offset, size, lba, count, **how)
            report: Report = started if isinstance(started, Report) else started.wait(tell)
            if started is report and tell is not None:
                tell(report.bytes, report.bytes)
        except Error as error:
            name_file(error, path)
            raise
        log_read(path, report)
        return report

    async def _move_async(self, target: Any, path: Any, offset: Optional[int], size: Optional[int],
                          lba: Optional[int], count: Optional[int], **how: Any) -> Report:
        reads = AwaitedReads.of_running_loop()
        # A loop that starts many reads at once comes round sooner if each does little before its turn.
        memory = None if "opened" in how and type(target) in BUFFERS else _memory_of(target, how)
        try:
            if "opened" in how:
                if (turn := reads.turn()) is not None:
                    await turn
                report = await self._ended(reads, memory, target, path, offset, size, lba, count, **how)
            else:
                async with reads.room:
                    if (turn := reads.turn()) is not None:
                        await turn
                    report = await self._ended(reads, memory, target, path, offset, size, lba, count, **how)
        except Error as error:
            name_file(error, path)
            raise
        log_read(path, report)
        return report

    async def _ended(self, reads: AwaitedReads, memory: Optional[Memory], target: Any, path: Any, offset: Optional[int],
                     size: Optional[int], lba: Optional[int], count: Optional[int], **how: Any) -> Report:
        memory = hold_storage(_memory_of(target, how) if memory is None else memory, target, True)
        number = reads.next_number()
        started = self._start(memory, target, path, offset, size, lba, count, reads.endings, number, **how)
        if isinstance(started, Report):
            return started
        try:
            await reads.end_of(number)
            report: Report = started.wait()
            check_storage(memory, target)
        except BaseException as error:
            started.cancel()
            if isinstance(error, Error):
                check_storage(memory, target)
            raise
        finally:
            del started  # a traceback that is kept must not keep its file open
        return report

    def _start(self, memory: Memory, target: Any, path: Any, offset: Optional[int], size: Optional[int],
               lba: Optional[int], count: Optional[int], endings: Any = None, number: int = 0, opened: Any = None,
               writes: bool = False, durable: bool = False) -> Any:
        """Starts a read, and returns its Report if it has ended at once. With `endings`, waits for nothing, and its end
        is added there as `number`. `opened` is the store, if it is open already; with `writes` it is written instead."""
        if lba is None and count is not None:
            raise invalid("count without lba", "give both, or offset and size")
        if lba is not None and (offset is not None or size is not None):
            raise invalid("lba together with offset or size", "give either blocks or bytes")
        if offset is not None:
            offset = natural("offset", offset)
        if size is not None:
            size = natural("size", size)
        if lba is not None:
            lba = natural("lba", lba)
            count = None if count is None else natural("count", count)
        started = self._core.transfer(
            b"" if opened is not None else os.fsencode(path), opened, writes,
            durable if durable is False else truth("durable", durable), offset, size, lba,
            count, memory.pointer, memory.size_bytes, memory.domain, memory.stream, memory.owner, endings, number)
        if not writes:
            count_as_written(target)
        return started


def _memory_of(target: Any, how: Any) -> Memory:
    writes = how.get("writes", False)
    memory: Memory = named("source" if writes else "target", lambda: memory_of(target, not writes))
    return memory


async def on_a_thread(call: Callable[[], Any]) -> Any:
    """What the call gives, on a thread of its own: an executor may be busy with other things for long."""
    import asyncio  # which has been imported, or nothing would await this
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

    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    try:
        try:
            threading.Thread(target=contextvars.copy_context().run, args=(run, [done]), daemon=True).start()
        except RuntimeError as error:
            if "start new thread" not in str(error):
                raise
            raise make("out_of_memory", 0, f"no room for another thread: {error}",
                       "raise the limit of memory or threads (ulimit -v, ulimit -u)") from None
        return await asyncio.wrap_future(done)
    finally:
        del done


class AwaitedReads:
    """The awaited reads of one event loop, which share a descriptor that tells of their ends."""

    @classmethod
    def of_running_loop(cls) -> AwaitedReads:
        import asyncio  # as above

        loop: Any = asyncio.get_running_loop()
        reads: Optional[AwaitedReads] = getattr(loop, "_penstock_reads", None)
        if reads is None or reads._process != os.getpid():
            reads = loop._penstock_reads = cls(loop)  # so they go together
        return reads

    def __init__(self, loop: Any):
        import asyncio

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # A read has two descriptors, four where it goes straight to a GPU: leave half of them to others.
        self.room = asyncio.Semaphore(1 << 16 if limit == resource.RLIM_INFINITY else max(1, limit // 8))
        self.endings = _core.Endings()
        self.next_number = itertools.count().__next__
        self._loop = loop
        self._process = os.getpid()
        self._expected: dict[int, Any] = {}  # by number: what is awaited
        self._begun = 0  # reads, since the loop last came round
        self._waiting: collections.deque[Any] = collections.deque()  # for their turn to begin

    def turn(self) -> Any:
        """Reads begin a few at a time, so that the loop comes round in between. What to await first, if anything."""
        loop = self._loop
        if self._begun == 0 and not self._waiting:
            loop.call_soon(self._come_round)
        elif self._begun >= TURN_READS:
            turn = loop.create_future()
            self._waiting.append(turn)
            return turn  # it is counted when it is waked
        self._begun += 1
        return None

    def _come_round(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < TURN_READS:
            turn = self._waiting.popleft()
            if not turn.done():  # it may have been cancelled
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            self._loop.call_soon(self._come_round)

    async def end_of(self, number: int) -> None:
        """Of a read that may have ended before this is called."""
        loop = self._loop
        if not self._expected:
            loop.add_reader(self.endings.fileno(), self._tell)
        ended = self._expected[number] = loop.create_future()
        try:
            await ended
        finally:
            del self._expected[number]
            if not self._expected:
                loop.remove_reader(self.endings.fileno())

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
