"""Kernels that read storage by themselves: sets of queues, arrays, and the server behind them."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence, Union

from . import _core
from ._arguments import named, natural, pair, seconds, truth
from ._closing import Closing
from ._context import Context, context_of
from ._errors import invalid, make
from ._memory import device_domain
from ._stores import Store
from ._streaming import size_in_bytes

TO_THE_END = (1 << 64) - 1
_MOST = (1 << 32) - 1  # of what the library counts in 32 bits
# IoStatus, by number.
STATUSES = ("done", "timed_out", "failed", "out_of_window", "misaligned", "no_memory", "read_only", "no_such_store",
            "closed", "stalled", "wrong_layout", "nothing_pending")


def include_dir() -> str:
    """The folder to give compilers of kernels, for `#include <penstock/device.cuh>` and `<penstock/device_array.cuh>`."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")


def _size(what: str, value: Union[int, str], most: int = TO_THE_END - 1) -> int:
    """Of a number or a text such as "1GiB"."""
    if not isinstance(value, str):
        natural(what, value)
    return natural(what, named(what, lambda: size_in_bytes(value)), most)


def _window(window: Any) -> tuple[int, int]:
    if window is None:
        return 0, TO_THE_END
    offset, size = pair("window", window, "(offset, size)")
    return natural("window", offset), size if size == TO_THE_END else natural("window", size)


class GpuServer(Closing):
    """Threads that serve the reads and writes of kernels, from any stores.

        with penstock.GpuServer() as server, server.open("graph.bin") as queues:
            kernel((132,), (256,), (queues.handle, …))   # a CuPy RawKernel; its parameter is a penstock::device::Queues

    `threads` is 0 for half of the processors, 8 at most. Without open queues they sleep; with them they look for work,
    less and less often, unless `hot`. Closing the server closes its queues: wait for kernels first. An exception that
    leaves the `with` block closes them too: if kernels may still run then, stop() and synchronize in a `finally`.
    """

    def __init__(self, threads: int = 0, *, hot: bool = False, context: Optional[Context] = None) -> None:
        if context is not None and not isinstance(context, Context):
            raise TypeError(f"context must be a penstock.Context, and is {context!r}")
        self._context = context_of(context)
        self._core = _core.start_gpu_server(self._context._core, natural("threads", threads, _MOST), truth("hot", hot))

    def __repr__(self) -> str:
        return f"<penstock.GpuServer{', closed' if self._core is None else f': {self.threads} threads'}>"

    @property
    def threads(self) -> int:
        """How many it has."""
        count: int = self._open().threads
        return count

    def open(self, stores: Any, device: Any = "cuda", *, writable: bool = False, window: Optional[tuple[int, int]] = None,
             block_bytes: int = 0, queues: int = 0, depth: int = 128, place_bytes: Union[int, str] = 4096,
             ahead_places: int = 1024, timeout: float = 10.0, stall: float = 30.0) -> GpuQueues:
        """A set of queues by which kernels of one GPU read these stores: a name, a penstock.Store, or a list of either.

        `window` is (offset, size) of what kernels may reach of each; `writable` lets them write, to stores that are open
        for that. Extents of kernels begin and end with blocks of `block_bytes` (512). `place_bytes` is the longest
        command; each of `queues` times `depth` has that much pinned memory. `timeout` is that of a call, and after
        `stall` seconds without room a queue is given up until `reset`. device="cpu" or None
        makes a set for tests without a GPU: nothing on a GPU can use it.
        """
        counts = [natural("queues", queues, _MOST), natural("depth", depth, _MOST),
                  _size("place_bytes", place_bytes, _MOST), natural("ahead_places", ahead_places, _MOST)]
        block_bytes = natural("block_bytes", block_bytes, _MOST)
        offset, size = _window(window)
        given = list(stores) if isinstance(stores, (list, tuple)) else [stores]
        access = "write" if writable else "read"
        opened = [each if isinstance(each, Store) else Store(each, access, context=self._context) for each in given]
        core = self._open().open(
            device_domain(device),
            [(each._open(), offset, size, truth("writable", writable), block_bytes) for each in opened], *counts,
            seconds("timeout", timeout), seconds("stall", stall))
        return GpuQueues(core, [each.name for each in opened])


class GpuQueues(Closing):
    """A set of queues, made by GpuServer.open. It must stay open while kernels use it."""

    def __init__(self, core: Any, names: Sequence[str]) -> None:
        self._core = core
        self.names = list(names)  # of the stores

    def __repr__(self) -> str:
        is_open = self._core is not None and self._core.is_open
        return f"<penstock.GpuQueues of {', '.join(self.names)}{'' if is_open else ', closed'}>"

    def _open(self) -> Any:
        core = super()._open()
        if not core.is_open:
            raise make("closed", 0, "the GpuServer of this GpuQueues is closed", "start another, and open the stores there")
        return core

    @property
    def handle(self) -> int:
        """The parameter of kernels, of 64 bits, where they have a penstock::device::Queues."""
        handle: int = self._open().handle
        return handle

    @property
    def report(self) -> dict[str, Any]:
        """Sums since it was opened (reads, read_bytes, mapped_bytes, requests, failed, …), how it is: timed_out, stalled,
        server_dead, last_error, and the route: gpu-soft, threads of the CPU."""
        report: dict[str, Any] = super()._open().report()
        return report

    def stop(self) -> None:
        """Ends what kernels wait for, now and until `reset`: they get IoStatus::closed."""
        self._open().stop()

    def reset(self) -> None:
        """Makes the set new for the next launch. No kernel may use it."""
        self._open().reset()

    def array(self, store: int = 0, *, offset: int = 0, size: Optional[int] = None,
              memory: Union[int, str] = "256MiB", page_bytes: Union[int, str] = 0) -> GpuArray:
        """An array over a store of the set, or over `size` bytes from `offset` on, with `memory` of the GPU for a cache."""
        if isinstance(store, (str, bytes, os.PathLike, Store)):
            raise TypeError(f"store must be an integer, the place of a store in the list that was opened, and is {store!r}")
        if size is not None and natural("size", size) == 0:
            raise invalid("size: an array of 0 bytes", "give at least 1")
        pages = 0 if page_bytes == 0 and not isinstance(page_bytes, bool) else _size("page_bytes", page_bytes, _MOST)
        return GpuArray(self._open().array(natural("store", store, _MOST), natural("offset", offset),
                                           TO_THE_END if size is None else size, _size("memory", memory), pages), self)


class GpuArray(Closing):
    """A store that kernels index like memory, made by GpuQueues.array. Their parameter is a penstock::device::Array<T>."""

    def __init__(self, core: Any, queues: GpuQueues) -> None:
        self._core = core
        self._queues = queues

    def __repr__(self) -> str:
        if self._core is None:
            return "<penstock.GpuArray, closed>"
        return (f"<penstock.GpuArray of {self.size_bytes} bytes: {self._core.page_count} pages through "
                f"{self._core.frame_count} of {self._core.page_bytes} bytes>")

    @property
    def handle(self) -> int:
        """The parameter of kernels, of 64 bits. Raises once the array or its queues are closed."""
        self._queues._open()
        handle: int = self._open().handle
        return handle

    @property
    def size_bytes(self) -> int:
        """Of the array."""
        size: int = self._open().size_bytes
        return size

    @property
    def statistics(self) -> dict[str, Any]:
        """Pages since it was opened or cleared, by warps that took them: hits, fetched, joined (another warp fetched
        them), passed (read past the cache, for want of room) and failed. first_failure is an IoStatus by name, or None;
        first_failure_field is the NVMe status of one that is "failed", as docs/gpu-initiated.md explains."""
        statistics: dict[str, Any] = self._open().statistics()
        status = statistics["first_failure"]
        statistics["first_failure"] = None if status == 0 else STATUSES[status] if status < len(STATUSES) else str(status)
        return statistics

    def clear(self) -> None:
        """Forgets all pages, for a store that was changed. No kernel may use it."""
        self._open().clear()
