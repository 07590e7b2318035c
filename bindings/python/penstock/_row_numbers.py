"""Numbers of rows, of whatever has some: lists, ranges, arrays and tensors."""

from __future__ import annotations

import ctypes
import operator
import reprlib
import sys
from array import array
from typing import Any, NamedTuple, Optional, Sequence

from ._arguments import named
from ._errors import invalid, make
from ._memory import Memory, memory_of
from ._modules import loaded

# Types of numbers, in the order of the library.
_INTEGERS = {name: number for number, name in enumerate(
    ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"))}
_INT64 = _INTEGERS["int64"]
_CODES = set("bhilqnBHILQN")  # of integers in buffers
_NATIVE = "@=<" if sys.byteorder == "little" else "@=>"  # marks of their order


class Numbers(NamedTuple):
    """Numbers of rows as the library takes them."""

    memory: Memory
    type: int
    size: int
    shape: tuple[int, ...]  # as given


def numbers_of(indices: Any, argument: str, may_be_missing: bool = False) -> Numbers:
    """Numbers of rows, of whatever has some. Those that no integer type holds are refused, unless they may be missing."""
    torch = loaded("torch")
    if torch is not None and isinstance(indices, torch.Tensor):
        check_not_traced(torch)
        if indices.dtype == torch.int64 and indices.device.type == "cpu" and indices.is_contiguous() and \
                indices.layout == torch.strided and not indices.is_neg():
            size, pointer = indices.numel(), indices.data_ptr()
            if pointer % 8 == 0:
                return Numbers(Memory(pointer, 8 * size, "host", indices), _INT64, size, tuple(indices.shape))
        name = str(indices.dtype).partition(".")[2]
        return _typed(argument, name, named(argument, lambda: memory_of(indices.detach().contiguous())),
                      tuple(indices.shape))
    numpy = loaded("numpy")
    masks = loaded("numpy.ma")
    if masks is not None and masks.is_masked(indices):
        raise TypeError(f"{argument}: some of them are masked: give filled(number), or compressed()")
    if numpy is not None and isinstance(indices, numpy.ndarray) and indices.dtype == object and indices.ndim:
        indices = indices.tolist()
    if numpy is not None and isinstance(indices, (numpy.ndarray, numpy.generic)):
        plain = numpy.ascontiguousarray(indices, indices.dtype.newbyteorder("="))
        name = plain.dtype.name if plain.size or plain.dtype != numpy.float64 else "int64"  # of an empty list
        return _typed(argument, name, memory_of(plain, False), tuple(indices.shape))
    if hasattr(indices, "__cuda_array_interface__"):
        interface = indices.__cuda_array_interface__
        kind, item = interface["typestr"][1], int(interface["typestr"][2:]) * 8
        name = {"i": f"int{item}", "u": f"uint{item}"}.get(kind, interface["typestr"])
        return _typed(argument, name, named(argument, lambda: memory_of(indices, False)), tuple(interface["shape"]))
    if isinstance(indices, range):
        return _of_range(indices, argument, may_be_missing)
    if isinstance(indices, (list, tuple)):
        return _of_list(indices, argument, may_be_missing)
    try:
        view = memoryview(indices)
    except TypeError:
        raise TypeError(f"{argument}: {reprlib.repr(indices)} is no list of numbers of rows: give integers in a list, an "
                        "array or a tensor, or ask for rows[…]") from None
    code = view.format.lstrip(_NATIVE)
    name = f"{'u' if code.isupper() else ''}int{8 * view.itemsize}" if code in _CODES else view.format
    plain = indices if view.c_contiguous else view.tobytes()
    return _typed(argument, name, named(argument, lambda: memory_of(plain, False)), tuple(view.shape or ()))


def check_not_traced(torch: Any) -> None:
    """A trace keeps the rows of one input as a constant."""
    if torch.jit.is_tracing():
        raise make("unsupported", 0, "torch.jit.trace can't record the reading of rows: the trace would return the same "
                   "rows for every input", "trace the module that takes the rows, and read them outside")


def _of_list(indices: Any, argument: str, may_be_missing: bool) -> Numbers:
    if indices and isinstance(indices[0], (list, tuple)) and all(isinstance(each, (list, tuple)) for each in indices):
        inner = [_of_list(each, argument, may_be_missing) for each in indices]
        if len({each.shape for each in inner}) != 1:
            raise invalid(f"{argument}: its lists have different lengths", "give lists of one length")
        flat = array("q")
        for each in inner:
            flat += each.memory.owner
        return _typed(argument, "int64", _of_array(flat), (len(indices), *inner[0].shape))
    if bool in set(map(type, indices)):
        raise TypeError(f"{argument}: True and False are no numbers of rows: give integers")
    try:
        flat = array("q", indices)
    except (TypeError, OverflowError):
        flat = array("q")
        for position, each in enumerate(indices):
            try:
                number = operator.index(each)
            except TypeError:
                raise TypeError(f"{argument}: {reprlib.repr(each)} at position {position} is no number of a row: give "
                                "integers") from None
            if not -1 << 63 <= number < 1 << 63:
                if not may_be_missing:
                    raise make("out_of_range", 0, f"{argument}: the number {each!r} at position {position} is no row of any "
                               "table", "give numbers of rows that there are") from None
                number = -1  # no row either
            flat.append(number)
    return _typed(argument, "int64", _of_array(flat), (len(flat),))


def first_outside(numbers: range, begin: int, end: int) -> Optional[int]:
    """The position of the first number that is not one from `begin` to before `end`."""
    if not numbers:
        return None
    first, step = numbers[0], numbers.step
    if not begin <= first < end:
        return 0
    if begin <= numbers[-1] < end:
        return None
    return -((first - end) // step) if step > 0 else (first - begin) // -step + 1


def _of_range(numbers: range, argument: str, may_be_missing: bool) -> Numbers:
    position = first_outside(numbers, -1 << 63, 1 << 63)
    if position is not None and not may_be_missing:
        raise make("out_of_range", 0, f"{argument}: the number {numbers[position]} at position {position} is no row of any "
                   "table", "give numbers of rows that there are")
    try:
        flat = array("q", [0]) * len(numbers)
    except (MemoryError, OverflowError) as error:
        raise make("out_of_memory", 0, f"{argument}: no room for the numbers of {numbers}: {error}", "ask for less") from None
    at_once = 1 << 20  # Ctrl-C works in between
    for begin in range(0, len(numbers), at_once):
        part: Sequence[int] = numbers[begin:begin + at_once]
        if position is not None:
            part = [each if -1 << 63 <= each < 1 << 63 else -1 for each in part]  # no row either
        flat[begin:begin + at_once] = array("q", part)
    return _typed(argument, "int64", _of_array(flat), (len(flat),))


def _of_array(flat: array[int]) -> Memory:
    pointer, count = flat.buffer_info()
    return Memory(pointer, count * flat.itemsize, "host", flat)


def _typed(argument: str, name: str, memory: Memory, shape: tuple[int, ...]) -> Numbers:
    number = _INTEGERS.get(name)
    if number is None:
        raise TypeError(f"{argument}: elements of {name} are no numbers of rows: give integers")
    if memory.domain == "host" and memory.pointer % (1 << number // 2):
        # The library reads only what is aligned.
        memory = _of_array(array("B", ctypes.string_at(memory.pointer, memory.size_bytes)))
    count = 1
    for length in shape:
        count *= length
    return Numbers(memory, number, count, shape)
