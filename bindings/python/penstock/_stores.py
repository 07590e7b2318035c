"""Stores that stay open: files, block devices, namespaces of NVMe disks, read and written range by range."""

from __future__ import annotations

import functools
import os
from types import TracebackType
from typing import Any, Optional

from ._arguments import natural, truth
from ._closing import Closing, Reopening, absolute, file_mark
from ._context import Context, context_of
from ._errors import Error, invalid, make, name_file, naming
from ._frameworks import framework as framework_named
from ._memory import BUFFERS, device_domain
from ._report import Progress, Report, log_read

ACCESS = "read", "write", "create", "replace"


class Store(Reopening):
    """What penstock.open gives: a file, a block device or a URI, opened once for any number of reads and writes.

    Offsets and sizes are bytes; `lba` and `count` say the same in blocks of the store. Calls from any thread. Used with
    `with`, it is closed at the end of the block. One that is open for reading, without a `context` of yours, can be
    pickled, by its name, and forked.
    """

    def __init__(self, name: Any, access: str = "read", *, size: int = 0, device_write: bool = False, serial: str = "",
                 first_block: int = 0, blocks: int = 0, context: Optional[Context] = None) -> None:
        if access not in ACCESS:
            raise invalid(f"unknown access {access!r}", f"give one of {', '.join(ACCESS)}")
        self._context = context_of(context)
        self._name = os.fsdecode(name)
        if not isinstance(serial, str):
            raise TypeError(f"serial must be a str, and is {serial!r}")
        with naming(name):
            self._core = self._context._core.open(os.fsencode(name), access, natural("size", size),
                                                  truth("device_write", device_write), serial,
                                                  natural("first_block", first_block), natural("blocks", blocks))
        self._replaces = access == "replace"
        self._committed = False
        self._is_read = access == "read"
        # A forked child opens what is read again, and leaves a new file to its parent.
        self._opened_by(functools.partial(Store, absolute(name)) if self._is_read and context is None else None,
                        file_mark(name))

    def __reduce__(self) -> Any:
        return super().__reduce__() if self._is_read else Closing.__reduce__(self)

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        """With access="replace", commits unless something was raised."""
        try:
            if self._core is not None and self._is_unfinished() and kind is None:
                self.commit()
        finally:
            self.close()

    def __repr__(self) -> str:
        if self._core is None:
            return f"<penstock.Store {self._name!r}, closed>"
        return f"<penstock.Store {self._name!r}: {self.kind} of {self.size} bytes>"

    @property
    def name(self) -> str:
        """As it was given."""
        return self._name

    @property
    def kind(self) -> str:
        """ "file", "block_device" or "made"."""
        kind: str = self._open().kind
        return kind

    @property
    def size(self) -> int:
        """In bytes, now."""
        size: int = self._open().size_bytes()
        return size

    @property
    def block_bytes(self) -> int:
        """What `lba` and `count` count; 0 where there are no blocks."""
        size: int = self._open().block_bytes
        return size

    @property
    def writable(self) -> bool:
        """Whether it was opened for writing."""
        writable: bool = self._open().writable
        return writable

    def read_into(self, target: Any, offset: Optional[int] = None, size: Optional[int] = None, *,
                  lba: Optional[int] = None, count: Optional[int] = None, progress: Progress = None) -> Report:
        """Fills memory, as penstock.read_into does."""
        if type(target) in BUFFERS and lba is None and count is None and progress is None:
            report = self._read_brief(target, offset, size)
            if report is not None:
                return report
        return self._context._move(target, self._name, offset, size, lba, count, progress, opened=self._open())

    async def read_into_async(self, target: Any, offset: Optional[int] = None, size: Optional[int] = None, *,
                              lba: Optional[int] = None, count: Optional[int] = None) -> Report:
        """read_into for asyncio."""
        return await self._context._move_async(target, self._name, offset, size, lba, count, opened=self._open())

    def read(self, offset: Optional[int] = None, size: Optional[int] = None, *, lba: Optional[int] = None,
             count: Optional[int] = None, device: Any = "cpu", framework: Optional[str] = None,
             progress: Progress = None) -> Any:
        """Reads into new memory: a torch tensor or a NumPy array (`framework`) of uint8. Without a size, up to the end."""
        if type(size) is int and size >= 0 and device == "cpu" and lba is None and count is None and progress is None:
            frame = framework_named(framework)
            target = frame.allocate_bytes(size, "host")
            if self._read_brief(frame.address(target), offset, size, target) is not None:
                return target
        else:
            target = self._allocate(offset, size, lba, count, device, framework)
        self.read_into(target, offset, lba=lba, progress=progress)
        return target

    def _read_brief(self, target: Any, offset: Optional[int], size: Optional[int],
                    owner: Any = None) -> Optional[Report]:
        """None: it is not so brief, or wrong."""
        core = self._open()
        try:
            report: Optional[Report] = self._context._core.read_brief(core, target, offset, size, owner)
        except Error as error:
            name_file(error, self._name)
            raise
        if report is not None:
            log_read(self._name, report)
        return report

    async def read_async(self, offset: Optional[int] = None, size: Optional[int] = None, *, lba: Optional[int] = None,
                         count: Optional[int] = None, device: Any = "cpu", framework: Optional[str] = None) -> Any:
        """read for asyncio."""
        target = self._allocate(offset, size, lba, count, device, framework)
        await self.read_into_async(target, offset, lba=lba)
        return target

    def write_from(self, source: Any, offset: Optional[int] = None, size: Optional[int] = None, *,
                   lba: Optional[int] = None, count: Optional[int] = None, durable: bool = False,
                   progress: Progress = None) -> Report:
        """Writes memory: a tensor, an array, bytes, or (pointer, size, device). `durable` syncs it too."""
        return self._context._move(source, self._name, offset, size, lba, count, progress, opened=self._open(),
                                   writes=True, durable=durable)

    async def write_from_async(self, source: Any, offset: Optional[int] = None, size: Optional[int] = None, *,
                               lba: Optional[int] = None, count: Optional[int] = None, durable: bool = False) -> Report:
        """write_from for asyncio."""
        return await self._context._move_async(source, self._name, offset, size, lba, count, opened=self._open(),
                                               writes=True, durable=durable)

    def commit(self, durable: bool = True) -> None:
        """With access="replace", gives the new file its name. Otherwise syncs."""
        self._open().commit(truth("durable", durable))
        self._committed = True

    def close(self) -> None:
        """With access="replace", drops what was not committed. Reads under way go on."""
        core, self._core = self._core, None
        if core is not None and self._is_unfinished():
            core.abort()

    def _is_unfinished(self) -> bool:
        return self._replaces and not self._committed and os.getpid() == self._process

    def _closed_error(self) -> Exception:
        return make("closed", 0, f"the store {self._name} is closed", "open it again")

    def _allocate(self, offset: Optional[int], size: Optional[int], lba: Optional[int], count: Optional[int], device: Any,
                  framework: Optional[str]) -> Any:
        core = self._open()
        if lba is not None and (offset is not None or size is not None):
            raise invalid("lba together with offset or size", "give either blocks or bytes")
        if lba is None and count is not None:
            raise invalid("count without lba", "give both, or offset and size")
        for argument, value in (("offset", offset), ("size", size), ("lba", lba), ("count", count)):
            if value is not None:
                natural(argument, value)
        begin = (offset or 0) if lba is None else lba * core.block_bytes
        wanted = size if count is None else count * core.block_bytes
        if wanted is None:
            wanted = max(0, core.size_bytes() - begin)
        return framework_named(framework).allocate_bytes(wanted, device_domain(device))


def open(name: Any, access: str = "read", *, size: int = 0, device_write: bool = False, serial: str = "",
         first_block: int = 0, blocks: int = 0, context: Optional[Context] = None) -> Store:
    """Opens a file, a block device or a URI ("nvme:...") and keeps it open, so that a disk is set up once.

    `access` is "read", "write" (in place), "create" (made if missing) or "replace" (a new file takes the name at commit(),
    or when the `with` block ends without an exception). With the last two, `size` reserves room. Writing to a block device
    needs `device_write=True`; to a disk past the kernel also its `serial`, and the blocks that may change (`first_block`,
    `blocks`).
    """
    return Store(name, access, size=size, device_write=device_write, serial=serial, first_block=first_block,
                 blocks=blocks, context=context)
