"""Rows: rows of a table that stays on disk, gathered by their numbers into memory of the host or a GPU."""

from __future__ import annotations

import functools
import math
import operator
import os
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, Union

from . import _core, _frameworks
from ._arguments import named, natural, seconds, truth
from ._closing import Reopening, absolute, mark
from ._context import Context, context_of
from ._dtypes import BITS, of_code, type_name
from ._errors import Error, NotFoundError, invalid, make, missing_key, naming
from ._frameworks import about_memory
from ._frameworks import framework as framework_named
from ._frameworks import framework_of, unsupported
from ._memory import Memory, count_as_written, device_domain, memory_of
from ._report import Report, size_text
from ._row_numbers import first_outside, numbers_of
from ._streams import on_its_gpu, wait_for_streams

_ALL = (1 << 64) - 1
_MARGIN_BYTES = 256 << 20  # of memory that stays free for all else, at most; of a small machine a sixteenth
_BESIDE_A_NUMBER = 40  # bytes that a gather has of each: where its row is, and where it goes
_AROUND_A_ROW = 2 * 4096  # bytes that may be read with one, up to whole blocks


class RowsReport:
    """How a gather went.

    outcome       "done"
    seconds       from the call to the end
    bytes         of all rows that were asked for
    cached_rows   copied from the page cache
    cold_rows     read from storage
    missing_rows  rows of zeros, with zeros_for_missing
    read_bytes    from storage; each row counts once, however often it was asked for
    extra_bytes   of these, what is no row that was asked for
    reading       the Report of the reads of cold rows; "pending" where there were none
    filling       the Report of the copies to their places, of rows that were not read straight there, and of zeros to
                  places in between that are read over; "pending" as above
    """

    __slots__ = ("outcome", "seconds", "bytes", "cached_rows", "cold_rows", "missing_rows", "read_bytes", "extra_bytes",
                 "reading", "filling")

    def __init__(self, outcome: str, seconds: float, bytes: int, cached_rows: int, cold_rows: int, missing_rows: int,
                 read_bytes: int, extra_bytes: int, reading: dict[str, Any], filling: dict[str, Any]):
        self.outcome = outcome
        self.seconds = seconds
        self.bytes = bytes
        self.cached_rows = cached_rows
        self.cold_rows = cold_rows
        self.missing_rows = missing_rows
        self.read_bytes = read_bytes
        self.extra_bytes = extra_bytes
        self.reading = Report(**reading)
        self.filling = Report(**filling)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__[:-2])
        return f"RowsReport({fields})"

    def __str__(self) -> str:
        return (f"{size_text(self.bytes)} in {self.seconds:.6f} s: {self.cached_rows} rows cached, {self.cold_rows} cold "
                f"({size_text(self.read_bytes)} read), {self.missing_rows} missing")

    def as_dict(self) -> dict[str, Any]:
        """For logs and JSON."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "reading": self.reading.as_dict(),
                "filling": self.filling.as_dict()}


_BRIEF_BYTES = 1 << 20  # of memory for rows that is allocated without asking how much is free


class RowType:
    """What rows are to a framework: the type of an element, and the shape of a row in it."""

    def __init__(self, frame: Any, name: str, dtype: Optional[str], shape: Sequence[int], row_bytes: int,
                 things: str = "rows") -> None:
        """`dtype` by the name of safetensors or NumPy; none: a row is bytes. `name` and `things` are for messages."""
        self.frame = frame
        self.things = things
        self.row_bytes = row_bytes
        self.dtype, self.row_shape = self._type_of(name, dtype, shape)
        self.dtype_name: Optional[str] = frame.names.get(self.dtype)  # by safetensors
        self.is_bytes = not dtype

    def _type_of(self, name: str, dtype: Optional[str], shape: Sequence[int]) -> tuple[Any, tuple[int, ...]]:
        """Of an element, and the shape of a row in it."""
        frame = self.frame
        if not dtype:
            return frame.types["U8"], (self.row_bytes,)
        plain = of_code(dtype)
        if plain is not None:
            dtype = plain
        elif dtype[0] in "<>|=":  # of a .npy file, and of no other
            if frame.name != "np":
                raise make("unsupported", 0, f"the array {name} is {dtype!r}: torch has no such type",
                           "take framework='np'")
            try:
                return frame.numpy.dtype(dtype), tuple(shape)
            except TypeError:
                raise make("unsupported", 0, f"the array {name} is {dtype!r}: NumPy has no such type",
                           "give row_bytes and offset, which gives bytes") from None
        if dtype not in frame.types:
            if _is_quantized(dtype):
                return frame.types["U8"], (self.row_bytes,)
            raise unsupported(name, dtype, frame.lack(), "take framework='np'" if frame.name == "pt" else
                              "install ml_dtypes, or take framework='pt'")
        return frame.types[dtype], tuple(frame.shape_of((name, dtype, tuple(shape), 0)))

    def allocate(self, shape: tuple[int, ...], domain: str, beside_bytes: int = 0) -> Any:
        """`beside_bytes` of host memory are taken meanwhile, beside the result."""
        frame = self.frame
        full = (*shape, *self.row_shape)
        if domain == "cuda":
            domain = "cuda:0"
        if domain != "host":
            if frame.name == "np":
                raise invalid(f"device: NumPy has no memory on {domain}", "give out=, or take framework='pt'")
            frame.check_device(domain)
        count = self.row_bytes
        for length in shape:
            count *= length
        if domain == "host" and count + beside_bytes <= _BRIEF_BYTES:
            made = self.allocate_brief(*shape)
            if made is not None:
                return made
        check_room(count if domain == "host" else 0, beside_bytes)
        with frame.normal_mode():
            try:
                if frame.name == "np":
                    return frame.numpy.empty(full, self.dtype)
                return frame.torch.empty(full, dtype=self.dtype, device="cpu" if domain == "host" else domain)
            except (MemoryError, RuntimeError) as error:
                raise about_memory(error, f"no room for {count} bytes of {self.things} on {domain}", "ask for less") from None

    def allocate_brief(self, *shape: int) -> Any:
        """Host memory for a few short rows. None: `allocate` knows more."""
        frame = self.frame
        if frame.name == "np":
            return frame.numpy.empty((*shape, *self.row_shape), self.dtype)
        return frame.empty((*shape, *self.row_shape), self.dtype)

    def memory_of_new(self, made: Any, count: int) -> Memory:
        """Of what `allocate` gave, which has so many rows."""
        if self.frame.name == "np":
            return Memory(self.frame.address(made), count * self.row_bytes, "host", made)
        return memory_of(made) if made.is_cuda else Memory(made.data_ptr(), count * self.row_bytes, "host", made)

    def checked_out(self, out: Any, shape: tuple[int, ...]) -> Memory:
        """Memory for rows of that shape. Elements of bytes are memory like any other; those of another type are refused."""
        memory: Memory = named("out", lambda: memory_of(out))
        count = math.prod(shape)
        about = described(out)
        if self.is_bytes or (about is not None and about.name == "U8" and self.dtype_name != "U8"):
            about = None  # memory like any other
        if about is not None and about.dtype != self.dtype and (about.name is None or about.name != self.dtype_name):
            raise invalid(f"out: has elements of {about.dtype}, and the {self.things} of {self.dtype}",
                          "give one of that type, or of bytes")
        if memory.size_bytes != count * self.row_bytes:
            raise invalid(f"out: {count} {self.things} of {self.row_bytes} bytes don't fill memory of {memory.size_bytes}",
                          "give memory of exactly their size")
        if about is None:
            return memory
        allowed = [(*shape, *self.row_shape), (count, *self.row_shape), *([self.row_shape] if count == 1 else [])]
        if about.shape is not None and about.shape not in allowed:
            raise invalid(f"out: has the shape {about.shape}, and what is read {allowed[0]}", "give one of that shape")
        return memory


def check_room(result_bytes: int, beside_bytes: int) -> None:
    """Where the system promises more memory than it has, programs that use all of it are ended without a word."""
    if result_bytes + beside_bytes <= _frameworks.ROOM_CHECK_BYTES:
        return
    room = _frameworks.host_room()
    if result_bytes + beside_bytes + min(_MARGIN_BYTES, room // 16) <= room:
        return
    beside = f", and {beside_bytes} to read them" if beside_bytes else ""
    raise make("out_of_memory", 0, f"no room for {result_bytes} bytes in memory{beside}: {room} are available",
               "ask for less at a time")


# Of the elements of buffers, as struct has them, those of NumPy; bytes are memory like any other.
_KINDS = {**dict.fromkeys("efd", "f"), **dict.fromkeys("hilqn", "i"), **dict.fromkeys("HILQN", "u")}


class Described(NamedTuple):
    """What an array or a tensor says of itself."""

    dtype: Any
    name: Optional[str]  # of the type, by safetensors; None: it has none there
    shape: Optional[tuple[int, ...]]  # None: that does not matter


def described(value: Any) -> Optional[Described]:
    """Of an array or tensor of torch, NumPy or CuPy, or a buffer with a type; None: it is only memory."""
    frame = framework_of(value)
    if frame is not None:
        return Described(value.dtype, frame.names.get(value.dtype), tuple(value.shape))
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        code = interface["typestr"]
        return Described(code, of_code(code), tuple(interface["shape"]))
    try:
        view = memoryview(value)
    except TypeError:
        return None
    kind = _KINDS.get(view.format.lstrip("@=<"))
    return None if kind is None else Described(f"<{kind}{view.itemsize}", of_code(f"<{kind}{view.itemsize}"), None)


class Rows(Reopening):
    """A table of rows in a file, of which a program needs some now and others next.

        table = penstock.Rows("model.safetensors", tensor="embed_tokens.weight")
        table[7]                         # one row
        table[[7, 7, 0, 131071]]         # four rows, in this order
        table[3:1000]                    # rows that follow each other
        table.gather(token_ids, out=memory)

    A table is a tensor of a safetensors or GGUF model (`tensor`), a .npy file, or rows without a header: `dtype`, by the
    name of safetensors ("F32") or NumPy ("float32", "f4") or a type of NumPy or torch, and `row_shape` (4 is (4,)), or `row_bytes` alone for rows of bytes; with `offset`, `stride_bytes` and
    `count` where rows are not all of the file, or not dense. A list of paths is one table, those of the first file first.

    Results are tensors of torch where it is installed, else arrays of NumPy (`framework`), on `device`, or where the
    numbers are. A tensor of GGUF that is quantized gives rows of bytes.

    Calls from any thread. Used with `with`, the table is closed at the end of the block. A table without a `context` of
    yours can be pickled, by its name, and forked: workers of a DataLoader read it, each with its own default Context.
    """

    def __init__(self, path: Any, tensor: Optional[str] = None, *, dtype: Any = None,
                 row_shape: Union[int, Sequence[int]] = (), row_bytes: Optional[int] = None, offset: int = 0, stride_bytes: int = 0,
                 count: Optional[int] = None, device: Any = None, framework: Optional[str] = None, mapping: bool = True,
                 look_again_seconds: float = 1.0, join_bytes: int = 4096, scratch_bytes: int = 256 << 20,
                 context: Optional[Context] = None) -> None:
        paths = list(path) if isinstance(path, (list, tuple)) else [path]
        if not paths:
            raise invalid("path: the list has no files", "give at least one")
        if not isinstance(tensor, (str, type(None))):
            raise TypeError(f"tensor must be a str, and is {tensor!r}")
        self._names = [os.fsdecode(each) for each in paths]
        self._tensor = tensor
        self._context = context_of(context)
        self._frame = framework_named(framework)
        self._domain = None if device is None else device_domain(device)
        self._last: Any = None
        is_raw = dtype is not None or row_bytes is not None
        dtype = type_name(dtype, "give row_bytes") or None
        shape = tuple(lengths_of("row_shape", row_shape))
        if tensor is not None and is_raw:
            raise invalid("tensor together with dtype or row_bytes", "a tensor has both: leave them out")
        if not is_raw and (offset or stride_bytes or count is not None or shape):
            raise invalid("offset, stride_bytes, count and row_shape are of rows without a header",
                          "give dtype and row_shape, or row_bytes, too")
        is_npy = any(name.endswith(".npy") for name in self._names)
        if is_npy and (tensor is not None or (is_raw and offset == 0)):
            raise invalid("tensor, dtype or row_bytes for a .npy file, which begins with a header and is one table",
                          "leave them out")
        if tensor is None and not is_raw and any(name.endswith((".safetensors", ".gguf")) for name in self._names):
            raise invalid(f"no tensor is given of the model {self._names[0]}", 'give its name: tensor="…"; penstock inspect lists them')
        options = options_of(mapping, look_again_seconds, join_bytes, scratch_bytes)
        self._scratch_bytes = scratch_bytes
        bytes_of_row = _raw_row_bytes(dtype, shape, row_bytes) if is_raw else 0

        def open_one(each: Any) -> Any:
            core, name = self._context._core, os.fsencode(each)
            if is_raw:
                return _core.open_raw_rows(core, name, natural("offset", offset), bytes_of_row,
                                           natural("stride_bytes", stride_bytes),
                                           _ALL if count is None else natural("count", count), options)
            if tensor is None:
                return _core.open_npy_rows(core, name, options)
            try:
                return _core.open_tensor_rows(core, name, tensor, options)
            except NotFoundError as error:
                if error.system_error:  # the model is missing, not the tensor
                    raise
                raise missing_key(error.message, error.hint) from None

        with naming(*paths):
            parts = [open_one(each) for each in paths]
        core: Any = parts[0] if len(parts) == 1 else _core.join_rows(parts)
        if len({(each.info()["dtype"], tuple(each.info()["row_shape"])) for each in parts}) > 1:
            raise invalid("path: the files have rows of different types or shapes", "make a table of each")
        info = core.info()
        self._adopt(core, dtype if is_raw else info["dtype"], shape if is_raw else info["row_shape"])
        self._opened_by(None if context is not None else functools.partial(
            Rows, [absolute(each) for each in paths], tensor, dtype=dtype, row_shape=shape, row_bytes=row_bytes, offset=offset,
            stride_bytes=stride_bytes, count=count, device=device, framework=framework, mapping=mapping,
            look_again_seconds=look_again_seconds, join_bytes=join_bytes, scratch_bytes=scratch_bytes),
            [mark(each) for each in paths])

    @classmethod
    def _of(cls, core: Any, name: str, what: str, context: Context, frame: Any, domain: Optional[str], scratch_bytes: int,
            again: Optional[Callable[[], Rows]], marks: Any) -> Rows:
        """A table that is open already: `what` in the store of that name."""
        self = cls.__new__(cls)
        self._names, self._tensor, self._context, self._frame, self._domain = [name], what, context, frame, domain
        self._last, self._scratch_bytes = None, scratch_bytes
        info = core.info()
        self._adopt(core, info["dtype"], info["row_shape"])
        self._opened_by(again, marks)
        return self

    def _adopt(self, core: Any, dtype: Optional[str], shape: Sequence[int]) -> None:
        info = core.info()
        self._core = core
        self._rows: int = info["rows"]
        self._row_bytes: int = info["row_bytes"]
        self._type = RowType(self._frame, self._tensor or self._names[0], dtype, shape, self._row_bytes)
        self._dtype, self._row_shape = self._type.dtype, self._type.row_shape

    def __repr__(self) -> str:
        name = repr(self._names[0]) + (f" and {len(self._names) - 1} more" if len(self._names) > 1 else "")
        tensor = "" if self._tensor is None else f" {self._tensor!r}"
        if self._core is None:
            return f"<penstock.Rows {name}{tensor}, closed>"
        return f"<penstock.Rows {name}{tensor}: {self._rows} rows of {self._row_shape}, {self._dtype}>"

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[Any]:
        """Row by row. A slice takes much less time."""
        return (self[number] for number in range(self._rows))

    def __contains__(self, value: object) -> bool:
        raise TypeError("a table does not know what its rows hold: a number below len(rows) has a row")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole table."""
        return (self._rows, *self._row_shape)

    @property
    def dtype(self) -> Any:
        """The framework's type of an element."""
        return self._dtype

    @property
    def row_bytes(self) -> int:
        return self._row_bytes

    @property
    def report(self) -> Optional[RowsReport]:
        """How the last gather of any thread went; None before the first, and after one that failed."""
        last = self._last
        return None if last is None else RowsReport(**last.as_dict())

    def _gather_here(self, indices: Any) -> Any:
        """Few rows by a plain tensor of int64, where all is in host memory. None: `gather` knows more."""
        frame, core = self._frame, self._core
        if frame.name != "pt" or core is None or self._process != os.getpid() or \
                self._domain not in (None, "host") or type(self).gather is not Rows.gather:
            return None
        torch = frame.torch
        if type(indices) is not torch.Tensor or indices.dtype != torch.int64 or not indices.is_cpu or \
                indices.layout != torch.strided or not indices.is_contiguous() or indices.is_neg() or \
                torch.jit.is_tracing():
            return None
        count, pointer = indices.numel(), indices.data_ptr()
        if pointer % 8 or count * (2 * self._row_bytes + _AROUND_A_ROW + _BESIDE_A_NUMBER) > _BRIEF_BYTES:
            return None
        made = frame.empty((*indices.shape, *self._row_shape), self._dtype)
        if made is None:
            return None
        self._last = None
        try:
            self._last = core.gather_here(pointer, count, made.data_ptr(), (made, indices))
        except Error:
            return None  # with its words
        return made

    def __getitem__(self, index: Any) -> Any:
        """A row, a slice, or rows by their numbers. A number below 0 counts from the end, as everywhere in Python; those
        in lists and arrays don't, and are refused."""
        made = self._gather_here(index)
        if made is not None:
            return made
        if isinstance(index, slice):
            begin, end, step = index.indices(self._rows)
            if step == 1:
                return self.rows(begin, max(0, end - begin))
            return self.gather(range(begin, end, step))
        if _is_one_number(index):
            number = operator.index(index)
            if not -self._rows <= number < self._rows:
                raise make("out_of_range", 0, f"indices: {number} is no row of the table, which has {self._rows}",
                           f"give numbers from {-self._rows} to {self._rows - 1}" if self._rows else
                           "ask a table that has rows")
            return self.rows(number % self._rows, 1)[0]
        return self.gather(index)

    def gather(self, indices: Any, out: Any = None, *, stream: Any = None, zeros_for_missing: bool = False,
               timeout: float = 0) -> Any:
        """Rows in the order of their numbers, in new memory or in `out`, which is returned.

        `indices` are integers of any type: a list, a buffer, an array of NumPy or CuPy, a tensor of torch, of any shape,
        in memory of the host or a GPU. One that is no row's is refused with its position before a byte moves; with
        `zeros_for_missing` it gives a row of zeros. `out` is contiguous memory of exactly the size:
        of the table's type and the result's shape, or of bytes.

        Work on `stream` (torch's current one, if not given) is waited for first where indices or `out` are in GPU memory.
        `timeout` is in seconds; 0: none but that of the Context.
        """
        core = self._open()
        timeout = seconds("timeout", timeout) if timeout != 0 else 0.0
        may_be_missing = zeros_for_missing if zeros_for_missing is False else truth("zeros_for_missing", zeros_for_missing)
        if not may_be_missing:
            self._check_range(indices)
        numbers = numbers_of(indices, "indices", may_be_missing)
        if out is None:
            made = self._type.allocate(numbers.shape, self._domain or numbers.memory.domain, self._beside_bytes(numbers.size))
            memory = self._type.memory_of_new(made, numbers.size)
        else:
            made, memory = out, self._type.checked_out(out, numbers.shape)
        source, target = numbers.memory, memory
        if source.domain != "host" or target.domain != "host":
            wait_for_streams((source, target), stream)
            source, target = on_its_gpu(source, "indices"), on_its_gpu(target, "out")
        self._last = None
        self._last = named("indices", lambda: core.gather(
            source.pointer, source.size_bytes, numbers.type, source.domain, target.pointer, target.size_bytes,
            target.domain, may_be_missing, timeout, (target.owner, source.owner)))
        if out is not None:
            count_as_written(memory.owner)
        return made

    def rows(self, begin: int, count: int, out: Any = None, *, stream: Any = None, timeout: float = 0) -> Any:
        """`count` rows from `begin` on, in new memory or in `out`."""
        core = self._open()
        begin, count = natural("begin", begin), natural("count", count)
        if begin + count > self._rows:
            raise make("out_of_range", 0, f"begin and count: rows {begin} to {begin + count} reach past the end of a table "
                       f"of {self._rows}", "ask for less")
        if out is None:
            made = self._type.allocate((count,), self._domain or "host")
            memory = self._type.memory_of_new(made, count)
        else:
            made, memory = out, self._type.checked_out(out, (count,))
        target = memory
        if target.domain != "host":
            wait_for_streams((target,), stream)
            target = on_its_gpu(target, "out")
        self._last = None
        self._last = core.rows(begin, count, target.pointer, target.size_bytes, target.domain,
                               seconds("timeout", timeout), target.owner)
        if out is not None:
            count_as_written(memory.owner)
        return made

    def _beside_bytes(self, count: int) -> int:
        """Memory that a gather of so many takes beside the rows, if all are cold: what is read for one turn while the
        rows of the last are copied."""
        cold = self._row_bytes + _AROUND_A_ROW
        return min(count * cold, max(self._scratch_bytes, 2 * cold)) + count * _BESIDE_A_NUMBER

    def prefetch(self, indices: Any) -> int:
        """Starts bringing rows into the page cache; says how many bytes were started, at most `prefetch_window_bytes`."""
        core = self._open()
        self._check_range(indices)
        numbers = numbers_of(indices, "indices")
        wait_for_streams((numbers.memory,), None)
        source = on_its_gpu(numbers.memory, "indices")
        started: int = named("indices", lambda: core.prefetch(source.pointer, source.size_bytes, numbers.type,
                                                               source.domain))
        return started

    def _check_range(self, indices: Any) -> None:
        """By its ends, before its numbers are written down."""
        position = first_outside(indices, 0, self._rows) if isinstance(indices, range) else None
        if position is not None:
            raise make("out_of_range", 0, f"indices: the number {indices[position]} at position {position} is no row of the "
                       f"table, which has {self._rows}",
                       f"give numbers from 0 to {self._rows - 1}; a gather with zeros_for_missing gives rows of zeros for "
                       "others" if self._rows else "ask a table that has rows")

    def close(self) -> None:
        """Lets go of the files; otherwise that happens when the last reference goes."""
        self._core = None

    def _closed_error(self) -> Exception:
        return make("closed", 0, f"the table of {self._names[0]} is closed", "open it again")


def options_of(mapping: bool, look_again_seconds: float, join_bytes: int, scratch_bytes: int) -> Any:
    return _core.RowsOptions(truth("mapping", mapping), seconds("look_again_seconds", look_again_seconds),
                             natural("join_bytes", join_bytes), natural("scratch_bytes", scratch_bytes))


def _is_one_number(index: Any) -> bool:
    if getattr(index, "ndim", 0):
        return False
    is_scalar = getattr(index, "shape", None) == ()
    if isinstance(index, bool) or (is_scalar and str(getattr(index, "dtype", "")) in ("bool", "torch.bool")):
        raise TypeError(f"indices: {index} is no number of a row: give integers")
    if isinstance(index, int):
        return True
    # A tensor without dimensions is one too; arrays and lists are not.
    return hasattr(index, "__index__") and is_scalar


def _raw_row_bytes(dtype: Optional[str], shape: tuple[int, ...], row_bytes: Optional[int]) -> int:
    if dtype is None:
        if shape:
            raise invalid("row_shape without dtype", "give both, or row_bytes alone")
        return natural("row_bytes", row_bytes)
    bits = BITS[dtype]
    for length in shape:
        bits *= length
    natural("row_shape: bytes of a row", bits // 8)
    if bits % 8:
        raise invalid(f"row_shape: a row of {dtype} of {shape} ends within a byte", "give rows of whole bytes")
    if row_bytes is not None and row_bytes != bits // 8:
        raise invalid(f"row_bytes is {row_bytes}, and a row of {dtype} of {shape} has {bits // 8} bytes", "leave it out")
    return bits // 8


def _is_quantized(dtype: str) -> bool:
    """A type of GGUF's own, as it lies in the file."""
    return dtype not in BITS


def lengths_of(argument: str, shape: Any) -> list[int]:
    if isinstance(shape, (str, bytes)) or not hasattr(shape, "__iter__"):
        shape = (shape,)
    lengths = [natural(argument, length) for length in shape]
    if 0 in lengths:
        raise invalid(f"{argument}: {tuple(lengths)} has no elements", "give lengths of at least 1")
    return lengths
