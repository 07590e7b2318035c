"""Kinds: named tables of records in one store, and the dictionary that says where each of them lies."""

from __future__ import annotations

import functools
import os
import reprlib
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence, Union

from . import _core
from ._arguments import named, natural, pair, seconds, truth
from ._closing import Reopening, absolute
from ._context import Context, context_of
from ._dtypes import numpy_type, type_name
from ._errors import Error, MissingKeyError, NotFoundError, invalid, missing_key, naming, make
from ._frameworks import framework as framework_named
from ._frameworks import framework_of
from ._memory import Memory, count_as_written, device_domain, memory_of
from ._report import Report
from ._rows import Rows, RowType, check_room, described, lengths_of, options_of
from ._streams import on_its_gpu, wait_for_streams

_ANYWHERE = (1 << 64) - 1
_MOST_ID = (1 << 32) - 1
_NAMED = 10  # kinds in a message
_BRIEF_BYTES = 64 << 10  # of records that are read without asking how much memory is free


class Kind(NamedTuple):
    """What the dictionary says of a kind.

    id            from 1
    name
    start_byte    where its range begins in the store
    length_bytes  of the range
    record_bytes  of a record
    type          of a record's elements, by the name of safetensors: "F32"; "": a record is bytes
    shape         of a record
    records       that there are
    """

    id: int
    name: str
    start_byte: int
    length_bytes: int
    record_bytes: int
    type: str
    shape: tuple[int, ...]
    records: int

    @property
    def capacity(self) -> int:
        """How many records there is room for."""
        return self.length_bytes // self.record_bytes


# A kind by its name or its id, or as a Kind.
KindName = Union[str, int, Kind]


class Kinds(Reopening):
    """Records of named kinds in a file, a block device, an NVMe namespace, or another store.

        kinds = penstock.Kinds.create("records.bin")
        kinds.add("users", dtype="F32", shape=(16,), capacity=1_000_000)
        first = kinds.append("users", rows)        # durable when it returns: the index of the first
        kinds.read("users", 7)                     # one record
        kinds.read("users", 7, 3, device="cuda:0") # three records
        kinds.rows("users")[[5, 1, 5]]             # a penstock.Rows: records by their numbers

    The dictionary is JSON in a file: beside a file of records under its name and ".kinds.json", and for all other stores
    at `dictionary`. Appending to a block device needs `device_write`; to one that Penstock drives itself, also the
    `serial` of its controller, and `window`: the first block that may change, and how many.

    Results are tensors of torch where it is installed, else arrays of NumPy (`framework`), on `device`.

    Records that were appended never change. Writers take turns, also those of several processes: each waits for another
    for at most `lock_seconds`. Calls from any thread. Used with `with`, it is closed at the end of the block. Without a
    `context` of yours they can be pickled, by name, and forked.
    """

    def __init__(self, store: Any, *, dictionary: Any = None, device_write: bool = False, serial: str = "",
                 window: Optional[tuple[int, int]] = None, lock_seconds: float = 10, device: Any = None,
                 framework: Optional[str] = None, context: Optional[Context] = None) -> None:
        self._open_or_create(False, store, dictionary, device_write, serial, window, lock_seconds, device,
                             framework, context)

    @classmethod
    def create(cls, store: Any, *, dictionary: Any = None, device_write: bool = False, serial: str = "",
               window: Optional[tuple[int, int]] = None, lock_seconds: float = 10, device: Any = None,
               framework: Optional[str] = None, context: Optional[Context] = None) -> Kinds:
        """Makes a dictionary without kinds, and the file of records if `store` is a path where there is none."""
        self = cls.__new__(cls)
        self._open_or_create(True, store, dictionary, device_write, serial, window, lock_seconds, device,
                             framework, context)
        return self

    def _open_or_create(self, create: bool, store: Any, dictionary: Any, device_write: bool, serial: str,
                        window: Optional[tuple[int, int]], lock_seconds: float, device: Any, framework: Optional[str],
                        context: Optional[Context]) -> None:
        self._store = os.fsdecode(store)
        self._context = context_of(context)
        self._framework = framework
        self._domain = "host" if device is None else device_domain(device)
        if framework is not None or self._domain != "host":
            _check_framework(framework, self._domain)
        self._report: Any = None  # a Report, or what has one
        self._known: dict[str, tuple[Any, int, RowType]] = {}  # by name: kinds that were read, and their record_bytes
        if not isinstance(serial, str):
            raise TypeError(f"serial must be a str, and is {serial!r}")
        first, blocks = (0, 0) if window is None else pair("window", window, "(first block, blocks)")
        options = _core.KindsOptions(b"" if dictionary is None else os.fsencode(dictionary), truth("device_write", device_write),
                                     serial, natural("window", first), natural("window", blocks),
                                     seconds("lock_seconds", lock_seconds))
        with naming(store, *([] if dictionary is None else [dictionary])):
            self._core = _core.open_kinds(self._context._core, os.fsencode(store), options, create)
        self._opened_by(None if context is not None else functools.partial(
            Kinds, absolute(store), dictionary=None if dictionary is None else absolute(dictionary), device_write=device_write, serial=serial, window=window,
            lock_seconds=lock_seconds, device=device, framework=framework))

    def close(self) -> None:
        """Lets go of the store; otherwise that happens when the last reference goes."""
        self._core = None

    def __repr__(self) -> str:
        if self._core is None:
            return f"<penstock.Kinds {self._store!r}, closed>"
        return f"<penstock.Kinds {self._store!r}: {', '.join(self) or 'none'}>"

    @property
    def store(self) -> str:
        """Its name."""
        return self._store

    @property
    def dictionary(self) -> str:
        """The path of the dictionary."""
        return os.fsdecode(self._open().dictionary())

    @property
    def block_bytes(self) -> int:
        """The size of a block that LBAs count."""
        return int(self._open().block_bytes())

    @property
    def report(self) -> Optional[Report]:
        """How the last read of any thread went; None before the first."""
        last = self._report
        report: Optional[Report] = last.get() if isinstance(last, _core.KindsReport) else last
        return report

    def values(self) -> list[Kind]:
        """All kinds as last read, by their places in the store."""
        return [Kind(**each) for each in self._open().kinds()]

    def keys(self) -> list[str]:
        """The names of all kinds as last read, by their places in the store."""
        return list(self)

    def items(self) -> list[tuple[str, Kind]]:
        """(name, Kind) of all as last read."""
        return [(each.name, each) for each in self.values()]

    def get(self, kind: KindName, default: Any = None) -> Any:
        """What the dictionary says of a kind; `default` where there is none."""
        try:
            return self[kind]
        except MissingKeyError:
            return default

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter([each.name for each in self.values()])

    def __len__(self) -> int:
        return len(self._open().kinds())

    def __contains__(self, kind: object) -> bool:
        if isinstance(kind, Kind):
            kind = kind.name
        return any(kind in (each.name, each.id) and not isinstance(kind, bool) for each in self.values())

    def __getitem__(self, kind: KindName) -> Kind:
        """What the dictionary says of a kind. Asks the dictionary again where it is not known yet."""
        core = self._open()
        if isinstance(kind, Kind):
            kind = kind.id
        if not isinstance(kind, str):
            if isinstance(kind, bool) or not hasattr(kind, "__index__"):
                raise TypeError(f"kind must be a name or an id, and is {kind!r}")
            kind = natural("kind", kind, _MOST_ID)
        try:
            return Kind(**(core.find_by_name(kind) if isinstance(kind, str) else core.find_by_id(kind)))
        except NotFoundError as error:
            if error.system_error:  # the dictionary itself is gone
                raise
            raise self._missing(kind) from None

    def refresh(self) -> None:
        """Reads the dictionary again. Calls that miss a kind or a record do so by themselves."""
        self._open().refresh()

    def add(self, name: str, *, dtype: Any = None, shape: Union[int, Sequence[int]] = (),
            record_bytes: Optional[int] = None, capacity: Optional[int] = None, length_bytes: Optional[int] = None, start_byte: Optional[int] = None,
            start_lba: Optional[int] = None, id: Optional[int] = None, records: int = 0) -> Kind:
        """Adds a kind, and makes room for it: a file grows, and a device must have it.

        A record has a `dtype`, by the name of safetensors ("F32") or NumPy ("float32", "f4") or a type of NumPy or torch, and
        a `shape` (4 is (4,)); or only `record_bytes`. The room is a `capacity` in records, or `length_bytes`. Without `start_byte` or `start_lba`, the
        kind comes behind all else in a file, or into the first gap of a device. `records` are there already.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, and is {name!r}")
        numbers = [_at_least_one("id", id, _MOST_ID), _at_least_one("capacity", capacity),
                   _at_least_one("length_bytes", length_bytes), _at_least_one("record_bytes", record_bytes)]
        lengths = lengths_of("shape", shape)
        if capacity is None and length_bytes is None:
            raise invalid(f"kind {name!r}: neither capacity nor length_bytes is given", "give one of them")
        if dtype is None and record_bytes is None:
            raise invalid(f"kind {name!r}: neither dtype nor record_bytes is given", "give one of them")
        return Kind(**self._open().add(
            name, numbers[0], _ANYWHERE if start_byte is None else natural("start_byte", start_byte),
            _ANYWHERE if start_lba is None else natural("start_lba", start_lba), *numbers[1:],
            type_name(dtype, "give record_bytes, and dtype= to read"), lengths, natural("records", records)))

    def remove(self, kind: KindName) -> None:
        """Takes a kind out of the dictionary. Its bytes stay where they are, and others may get the room."""
        self._open().remove(self[kind].id)

    def append(self, kind: KindName, records: Any, *, stream: Any = None) -> int:
        """Appends records, and returns the index of the first. They are durable when it returns.

        `records` is contiguous memory of whole records: a tensor of torch, an array of NumPy or CuPy, a buffer, in memory
        of the host or a GPU. Arrays and tensors have the kind's type and the shape (n, *shape), or that of one record;
        those of bytes may have any. Work on `stream` (torch's current one, if not given) is waited for first.
        """
        return self.append_all([(kind, records)], stream=stream)[0]

    def append_all(self, parts: Iterable[tuple[KindName, Any]], *, stream: Any = None) -> list[int]:
        """Appends records of several kinds, which count all together or not at all; returns the first index of each."""
        core = self._open()
        pairs = [pair("parts", each, "pairs (kind, records)") for each in parts]
        given = [(self[kind], records) for kind, records in pairs]
        memories = [self._records_of(kind, records) for kind, records in given]
        wait_for_streams(memories, stream)
        settled = [on_its_gpu(memory, "records") for memory in memories]
        first: list[int] = core.append([(kind.id, memory.pointer, memory.size_bytes, memory.domain)
                                        for (kind, _), memory in zip(given, settled)],
                                       [memory.owner for memory in settled])
        return first

    def read(self, kind: KindName, index: int, count: Optional[int] = None, out: Any = None, *, dtype: Any = None,
             device: Any = None, stream: Any = None, timeout: float = 0) -> Any:
        """A record, or with `count` so many that follow each other, in new memory or in `out`, which is returned.

        `dtype`, a type of NumPy as large as a record, gives records with fields. `timeout` is in seconds; 0: none but
        that of the Context.
        """
        if out is None and dtype is None and stream is None and type(index) is int and index >= 0 and \
                (count is None or type(count) is int and count >= 0):
            known = self._known.get(kind) if type(kind) is str and timeout == 0 and self._is_host(device) else None
            records = None if known is None else self._read_known(*known, index, count)
            if records is not None:
                return records
            records = self._read_here(self[kind], index, 1 if count is None else count, device, timeout)
            if records is not None:
                return records[0] if count is None else records
        about = self[kind]
        made = self.read_all([(about, index, 1 if count is None else count)], None if out is None else [out],
                             dtype=dtype, device=device, stream=stream, timeout=timeout)[0]
        return made[0] if count is None and out is None else made

    def _read_here(self, kind: Kind, index: int, count: int, device: Any, timeout: float) -> Any:
        """Records that follow each other, in new host memory. None: they are not so plain."""
        if not self._is_host(device) or index + count > kind.records or count * kind.record_bytes > _BRIEF_BYTES:
            return None
        type_ = self._row_type(kind, None)
        made = type_.allocate_brief(count)
        if made is None:
            return None
        address = type_.frame.address(made)
        self._known[kind.name] = self._open().find_known(kind.name), kind.record_bytes, type_
        self._report = self._open().read([(kind.id, index, count, address, count * kind.record_bytes, "host")],
                                         0.0 if timeout == 0 else seconds("timeout", timeout), [made])
        return made

    def _read_known(self, known: Any, record_bytes: int, type_: RowType, index: int, count: Optional[int]) -> Any:
        """Records of a kind that was read before. None: the kind or its records have changed, or they are too many."""
        if (1 if count is None else count) * record_bytes > _BRIEF_BYTES or index > _ANYWHERE:
            return None
        is_one = count is None and type_.row_shape != ()  # as an array of its own
        made = type_.allocate_brief() if is_one else type_.allocate_brief(1 if count is None else count)
        if made is None:
            return None
        target = made if type_.frame.name == "np" else made.data_ptr()
        report = self._open().read_known(known, index, 1 if count is None else count, target, made)
        if report is None:
            return None
        self._report = report
        return made[0] if count is None and not is_one else made

    def _is_host(self, device: Any) -> bool:
        return self._domain == "host" if device is None else type(device) is str and device == "cpu"

    def _brief(self, reads: Sequence[Any]) -> Optional[tuple[list[Any], list[tuple[Any, ...]]]]:
        """New memory for each, and what the core is asked for. None: they are not all plain and short."""
        known: dict[str, tuple[Kind, RowType]] = {}
        made, given, left_bytes = [], [], _BRIEF_BYTES * 16
        for each in reads:
            if type(each) is not tuple or not 2 <= len(each) <= 3 or type(each[0]) is not str:
                return None
            index, count = each[1], each[2] if len(each) == 3 else 1
            if type(index) is not int or type(count) is not int or index < 0 or count < 0:
                return None
            about = known.get(each[0])
            if about is None:
                kind = self[each[0]]
                about = known[each[0]] = kind, self._row_type(kind, None)
            kind, type_ = about
            size_bytes = count * kind.record_bytes
            left_bytes -= size_bytes
            memory = type_.allocate_brief(count) if index + count <= kind.records and left_bytes >= 0 else None
            if memory is None:
                return None
            made.append(memory)
            given.append((kind.id, index, count, type_.frame.address(memory), size_bytes, "host"))
        return made, given

    def read_all(self, reads: Iterable[tuple[Any, ...]], out: Optional[Sequence[Any]] = None, *, dtype: Any = None,
                 device: Any = None, stream: Any = None, timeout: float = 0) -> list[Any]:
        """Many at once, as one request: `reads` are (kind, index) or (kind, index, count), of any kinds. Returns what
        `read` would for each with a count. For many records of one kind, `rows` takes less time."""
        core = self._open()
        if out is None and dtype is None and stream is None and self._is_host(device):
            reads = list(reads)
            brief = self._brief(reads)
            if brief is not None:
                made, given = brief
                self._report = core.read(given, seconds("timeout", timeout), made)
                return made
        known: dict[Any, tuple[Kind, RowType]] = {}
        wanted = [self._wanted(each, known, dtype) for each in reads]
        if out is None:
            domain = self._domain if device is None else device_domain(device)
            if domain == "host":
                check_room(sum(kind.record_bytes * count for kind, _, _, count in wanted), 0)
            made = [type_.allocate((count,), domain) for _, type_, _, count in wanted]
            memories = [type_.memory_of_new(each, count) for each, (_, type_, _, count) in zip(made, wanted)]
        else:
            made = list(out)
            if len(made) != len(wanted):
                raise invalid(f"out: has {len(made)} parts for {len(wanted)} reads", "give one for each")
            memories = [type_.checked_out(each, (count,)) for each, (_, type_, _, count) in zip(made, wanted)]
        settled = memories
        if any(memory.domain != "host" for memory in memories):
            wait_for_streams(memories, stream)
            settled = [on_its_gpu(memory, "out") for memory in memories]
        if out is not None and device is not None:
            _check_device(settled, device)
        self._report = core.read(
            [(kind.id, index, count, memory.pointer, memory.size_bytes, memory.domain)
             for (kind, _, index, count), memory in zip(wanted, settled)],
            seconds("timeout", timeout), [memory.owner for memory in settled])
        if out is not None:
            for memory in memories:
                count_as_written(memory.owner)
        return made

    def rows(self, kind: KindName, *, mapping: bool = True, look_again_seconds: float = 1.0, join_bytes: int = 4096,
             scratch_bytes: int = 256 << 20) -> Rows:
        """The records that there are now as a table, to gather them by their numbers. The arguments are those of Rows."""
        about = self[kind]
        options = options_of(mapping, look_again_seconds, join_bytes, scratch_bytes)
        domain = None if self._domain == "host" else self._domain
        again = None if self._again is None else functools.partial(
            _rows_of, self._again, about, mapping=mapping, look_again_seconds=look_again_seconds, join_bytes=join_bytes,
            scratch_bytes=scratch_bytes)
        return Rows._of(self._open().rows(about.id, options), self._store, about.name, self._context,
                        framework_named(self._framework), domain, scratch_bytes, again, about._replace(records=0))

    def _closed_error(self) -> Exception:
        return make("closed", 0, f"the kinds of {self._store} are closed", "open them again")

    def _missing(self, kind: Union[str, int]) -> Error:
        names = list(self)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return missing_key(f"{self._store}: there is no kind {kind!r}",
                           f"there are {', '.join(map(repr, names[:_NAMED]))}{more}" if names else
                           "there are none: add one")

    def _wanted(self, read: tuple[Any, ...], known: dict[Any, tuple[Kind, RowType]],
                dtype: Any) -> tuple[Kind, RowType, int, int]:
        if not isinstance(read, tuple) or not 2 <= len(read) <= 3:
            raise TypeError(f"reads must be (kind, index) or (kind, index, count), and one is {reprlib.repr(read)}")
        key = read[0]
        if isinstance(key, bool) or not isinstance(key, (str, int, Kind)):
            key = self[key].id
        if key not in known:
            kind = self[key]
            known[key] = kind, self._row_type(kind, dtype)
        kind, type_ = known[key]
        index, count = natural("index", read[1]), natural("count", read[2] if len(read) == 3 else 1)
        if index + count > kind.records:
            kind = self._kind_with(kind, index + count)
            known[key] = kind, type_
        return kind, type_, index, count

    def _kind_with(self, kind: Kind, end: int) -> Kind:
        """The kind as it is now, if it has so many records."""
        self.refresh()
        kind = self[kind]
        if end > kind.records:
            raise make("out_of_range", 0, f"index and count: kind {kind.name!r} has {kind.records} records, and those up to "
                       f"{end} are asked for", "ask for records that there are")
        return kind

    def _row_type(self, kind: Kind, dtype: Any) -> RowType:
        if dtype is None:
            return _plain_row_type(framework_named(self._framework), kind.name, kind.type, tuple(kind.shape),
                                   kind.record_bytes)
        frame, wanted = framework_named("np"), numpy_type(dtype)
        if wanted.hasobject or wanted.itemsize == 0 or kind.record_bytes % wanted.itemsize:
            raise invalid(f"dtype: {wanted} has {wanted.itemsize} bytes, and a record of {kind.name!r} {kind.record_bytes}",
                          "give a type as large as a record, or of which a record has several")
        type_ = RowType(frame, kind.name, None, (), kind.record_bytes, "records")
        parts = kind.record_bytes // wanted.itemsize
        type_.dtype, type_.row_shape = wanted, () if parts == 1 else (parts,)
        type_.dtype_name, type_.is_bytes = frame.names.get(wanted), False
        return type_

    def _records_of(self, kind: Kind, records: Any) -> Memory:
        memory: Memory = named("records", lambda: memory_of(records, False))
        if memory.size_bytes % kind.record_bytes:
            raise invalid(f"records: {memory.size_bytes} bytes are no whole records of {kind.name!r}, which have "
                          f"{kind.record_bytes}", "give whole records")
        about = described(records)
        if not kind.type or about is None or (about.name == "U8" and kind.type != "U8"):
            return memory
        if about.name != kind.type:
            raise invalid(f"records: has elements of {about.name or about.dtype}, and kind {kind.name!r} of {kind.type}",
                          "convert them, or give bytes")
        if about.shape is None:
            return memory
        frame = framework_of(records)
        one = kind.shape if frame is None else \
            RowType(frame, kind.name, kind.type, kind.shape, kind.record_bytes).row_shape
        if about.shape != one and about.shape[1:] != one:
            raise invalid(f"records: has the shape {about.shape}, and a record of kind {kind.name!r} {one}",
                          f"give {one}, or (n, {', '.join(map(str, one))}) for n records")
        return memory


@functools.lru_cache(maxsize=1024)
def _plain_row_type(frame: Any, name: str, type_: str, shape: tuple[int, ...], record_bytes: int) -> RowType:
    return RowType(frame, name, type_, shape, record_bytes, "records")


def _check_device(memories: Sequence[Memory], device: Any) -> None:
    """Memory that is given, and the device that is asked for."""
    domain = device_domain(device)
    for memory in memories:
        is_there = memory.domain == domain or str(device) == "cuda" and memory.domain != "host"
        if memory.size_bytes != 0 and not is_there:
            raise invalid(f"device is {device!r}, and out is memory of {memory.domain}", "leave out one of them")


def _check_framework(framework: Optional[str], domain: str) -> None:
    """That results can be made."""
    frame = framework_named(framework)
    if domain == "host":
        return
    if frame.name == "np":
        raise invalid(f"device: NumPy has no memory on {domain}", "take framework='pt', or give out= to reads")
    frame.check_device(domain)


def _at_least_one(what: str, value: Any, most: int = _ANYWHERE - 1) -> int:
    """0 where it is not given."""
    number = 0 if value is None else natural(what, value, most)
    if value is not None and number == 0:
        raise invalid(f"{what} is 0", "give at least 1")
    return number


def _rows_of(open_kinds: Callable[[], Kinds], kind: Kind, **options: Any) -> Rows:
    """With as many records as it had before."""
    table = open_kinds().rows(kind.name, **options)
    table._rows = min(table._rows, kind.records)
    return table
