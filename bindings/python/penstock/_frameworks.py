"""Tensors of torch and arrays of NumPy: their types by the names of safetensors, and memory for them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import mmap
import os
import sys
import threading
from array import array
from typing import Any, Callable, Iterator, NamedTuple, Sequence

from . import _core
from ._arguments import truth
from ._errors import Error, invalid, make
from ._memory import Memory, device_domain, memory_of
from ._modules import loaded

OWN_BYTES = _core.OWN_BYTES
SLAB_BYTES = _core.SLAB_BYTES
ALIGNMENT = _core.ALIGNMENT

DIMENSION_LIMIT = 64  # of tensors in files

# Types of less than a byte: bits of an element, by name.
PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}

# A tensor to be made: (name, dtype, shape, size in bytes, …), the beginning of what a model says of it. A plain tuple:
# there may be tens of thousands, and nothing is loaded before all are looked at.
Spec = tuple[Any, ...]

# For each tensor one: an array.array("Q") or a memoryview of such.
Numbers = Any


class Destination(NamedTuple):
    """Memory for tensors. `finish` makes them; until then nobody sees it."""

    pointers: Numbers
    owners: list[Any]
    finish: Callable[[], list[Any]]


def packed_shape(name: str, dtype: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape in bytes of a type of less than a byte: the last dimension counts bytes."""
    bits = PACKED_BITS[dtype]
    if not shape or shape[-1] * bits % 8 != 0:
        raise unsupported(name, dtype, "its rows are no whole bytes")
    return (*shape[:-1], shape[-1] * bits // 8)


def unpacked_shape(dtype: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The inverse of packed_shape."""
    bits = PACKED_BITS.get(dtype)
    return tuple(shape) if bits is None else (*shape[:-1], shape[-1] * 8 // bits)


def unsupported(name: str, dtype: str, why: str,
                hint: str = "leave it out with select=, or use another framework") -> Error:
    return make("unsupported", 0, f"tensor {name!r} is {dtype}: {why}", hint)


def unsavable(name: str, dtype: Any) -> Error:
    return unsupported(name, str(dtype), "safetensors has no such type", "convert it, or leave it out")


@functools.lru_cache(maxsize=None)
def item_bytes(dtype: str) -> int:
    """At multiples of which elements lie: those of "BF16" of 2."""
    return int(dtype[-2:]) // 8 if dtype[-2:].isdecimal() else 1


def sizes_of(specs: Sequence[Spec]) -> Numbers:
    return specs.sizes() if hasattr(specs, "sizes") else array("Q", [spec[3] for spec in specs])


def dtypes_of(specs: Sequence[Spec]) -> set[str]:
    return specs.dtypes() if hasattr(specs, "dtypes") else {spec[1] for spec in specs}


ROOM_CHECK_BYTES = 64 << 20  # below that, to ask how much memory there is takes longer than what needs it


def host_room() -> int:
    """Bytes that this process can still allocate, by the system and its control groups. Reads about 30 files."""
    return _core.available_memory_bytes()


class Framework:
    """What torch and NumPy have in common here."""

    types: dict[str, Any]

    def check(self, specs: Sequence[Spec]) -> None:
        """Refuses what the framework has no type for, by the name of the first such tensor."""
        if dtypes_of(specs) <= self.types.keys() - PACKED_BITS.keys():
            return
        for spec in specs:
            if spec[1] not in self.types:
                raise unsupported(spec[0], spec[1], self.lack())
            self.shape_of(spec)

    def check_room(self, sizes: Numbers) -> None:
        """Where the system promises more memory than it has, programs that use all of it are ended without a word."""
        wanted = sum(sizes)
        if wanted <= ROOM_CHECK_BYTES:
            return
        room = host_room()
        if wanted > room:
            raise make("out_of_memory", 0, f"no room for {wanted} bytes in memory: {room} are available",
                       "load less, or slices, or stream with a window")

    def room(self, domain: str) -> int:
        """Bytes that are free in a domain."""
        return host_room()

    def can_view(self, whole: Spec) -> bool:
        """Whether a tensor may lie where it is in a file: it has bytes, which are not packed, and its elements lie at
        multiples of their size. Of a type that the framework lacks it says nothing."""
        return whole[3] != 0 and not whole[8] and bool(whole[5] % item_bytes(whole[1]) == 0)

    def address(self, array: Any) -> int:
        """Of the first byte."""
        raise NotImplementedError

    def view_one(self, memory: Any, spec: Spec) -> Any:
        """A tensor where it lies in a file that is memory."""
        raise NotImplementedError

    def allocate_bytes(self, size_bytes: int, domain: str) -> Any:
        """An array or a tensor of bytes."""
        with self.normal_mode():
            return self.allocate([("the bytes", "U8", (size_bytes,), size_bytes)], domain).finish()[0]

    def allocate(self, specs: Sequence[Spec], domain: str) -> Destination:
        raise NotImplementedError

    def shape_of(self, spec: Spec) -> Sequence[int]:
        return packed_shape(*spec[:3]) if spec[1] in PACKED_BITS else spec[2]

    def pick(self, tensor: Any, index: Any) -> Any:
        """A part with memory of its own."""
        try:
            return self.copy(tensor[index])
        except (MemoryError, RuntimeError) as error:
            raise about_memory(error, "no room for a part of a tensor") from None

    def copy(self, tensor: Any) -> Any:
        raise NotImplementedError

    def move(self, tensor: Any, domain: str) -> Any:
        return tensor

    def normal_mode(self) -> contextlib.AbstractContextManager[Any]:
        """In which tensors are made, in whatever mode the caller is: who gets them may be in another. And another thread
        may be capturing a CUDA graph, which allocating must not break."""
        return _core.RelaxedCaptures()

    def settle(self, domain: str) -> Any:
        return None

    def here(self, device: Any) -> Any:
        """A device as the calling thread means it, for another one."""
        return device

    def on_current_stream(self) -> contextlib.AbstractContextManager[Any]:
        """For a block on another thread: the stream of the one that calls."""
        return contextlib.nullcontext()

    def give(self, tensor: Any, streams: dict[str, Any]) -> Any:
        """To a caller, perhaps some time after it was made."""
        return tensor

    def index_on_host(self, index: Any) -> Any:
        return index

    def lack(self) -> str:
        raise NotImplementedError


def about_memory(error: Exception, no_room: str,
                 hint: str = "load less, or slices, or stream with a window") -> Exception:
    """Ours, if it is about memory. Torch has no class of its own for that where it is memory of the host."""
    text = str(error)
    if isinstance(error, RuntimeError) and "out of memory" not in text and "allocate memory" not in text:
        return error
    return make("out_of_memory", 0, f"{no_room}: {text}", hint)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * max(1, shape[i])
    return tuple(strides)


# The memory of a slab of whatever size, for torch.frombuffer.
_AnySlab = ctypes.c_char * (SLAB_BYTES + OWN_BYTES)


class Apart:
    """As _core.Packing, with nothing packed."""

    slabs: Sequence[tuple[int, int, int]] = ()
    packed: Sequence[int] = ()
    offsets: Sequence[int] = ()

    def __init__(self, sizes: Numbers):
        self.alone = range(len(sizes))

    def pointers(self, slabs: list[int], alone: list[int]) -> Numbers:
        return array("Q", alone)


class Torch(Framework):
    name = "pt"

    def __init__(self, own_storage: bool = False) -> None:
        import torch

        self.torch = torch
        self.packing: Callable[[Numbers], Any] = Apart if own_storage else _core.Packing
        self.own_storage = own_storage
        # Takes less time than torch.empty, which also looks for a default device.
        self._empty_bytes = torch.empty(0, dtype=torch.uint8, device="cpu").new_empty
        names = {
            "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16",
            "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32", "I64": "int64", "U64": "uint64",
            "F64": "float64", "C64": "complex64", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
            "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
            "F4": "float4_e2m1fn_x2",
        }
        self.types = {key: getattr(torch, name) for key, name in names.items() if hasattr(torch, name)}
        self.names = {type_: key for key, type_ in self.types.items()}
        self.types.update({"F6_E2M3": torch.uint8, "F6_E3M2": torch.uint8})

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor)

    def lack(self) -> str:
        return f"torch {self.torch.__version__} has no such type"

    def allocate(self, specs: Sequence[Spec], domain: str) -> Destination:
        """From torch's allocator, so from the pool that is in force."""
        self.check(specs)
        self.check_device(domain)
        device = "cpu" if domain == "host" else domain
        sizes = sizes_of(specs)
        if domain == "host":
            self.check_room(sizes)
        packing = self.packing(sizes)
        alone = packing.alone
        try:
            slabs = [self.bytes_on(device, size_bytes) for _, _, size_bytes in packing.slabs]
            tensors = [self.empty_on(device, specs[place]) for place in alone]
        except (MemoryError, OSError, RuntimeError) as error:
            raise about_memory(error, f"no room for {len(specs)} tensors on {device}") from None
        if domain == "host":
            _core.use_huge_pages([(memory.data_ptr(), memory.numel() * memory.element_size())
                                  for memory in (*slabs, *tensors)])
        pointers = packing.pointers([slab.data_ptr() for slab in slabs], [tensor.data_ptr() for tensor in tensors])

        def finish() -> list[Any]:
            made: list[Any] = [None] * len(specs)
            for place, tensor in zip(alone, tensors):
                made[place] = tensor
            packed, offsets = packing.packed, packing.offsets
            for (first, end, _), slab in zip(packing.slabs, slabs):
                places = packed[first:end]
                parts = self.parts(slab, [specs[place] for place in places], offsets[first:end])
                for place, tensor in zip(places, parts):
                    made[place] = tensor
            return made

        return Destination(pointers, [*slabs, *tensors], finish)

    def allocate_bytes(self, size_bytes: int, domain: str) -> Any:
        if domain != "host" or size_bytes > OWN_BYTES or self.torch.is_inference_mode_enabled():
            return super().allocate_bytes(size_bytes, domain)
        tensor: Any = self._empty_bytes(size_bytes)
        return tensor

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """On the CPU. None in inference mode, where it would be one of that mode."""
        return None if self.torch.is_inference_mode_enabled() else self._empty_bytes(shape, dtype=dtype)

    def address(self, tensor: Any) -> int:
        address: int = tensor.data_ptr()
        return address

    def bytes_on(self, device: str, size_bytes: int) -> Any:
        """At a multiple of ALIGNMENT; on the CPU torch itself only sees to 64 bytes."""
        if device != "cpu":
            return self.torch.empty(size_bytes, dtype=self.torch.uint8, device=device)
        memory = self.torch.empty(size_bytes + ALIGNMENT, dtype=self.torch.uint8, device=device)
        begin = -memory.data_ptr() % ALIGNMENT
        return memory[begin:begin + size_bytes]

    def empty_on(self, device: str, spec: Spec) -> Any:
        dtype, shape = self.types[spec[1]], self.shape_of(spec)
        if device != "cpu" or self.own_storage:  # small ones too, for which whole pages are too much
            return self.torch.empty(shape, dtype=dtype, device=device)
        # A storage that is larger than its tensor would do, but for programs that compare the two.
        # Private: what a forked child writes is its own.
        memory = mmap.mmap(-1, spec[3], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return self.torch.frombuffer(memory, dtype=self.torch.uint8).view(dtype).view(shape).data  # as in views

    def here(self, device: Any) -> Any:
        return device_domain(device).replace("host", "cpu") if isinstance(device, str) else device

    def on_current_stream(self) -> contextlib.AbstractContextManager[Any]:
        cuda = self.torch.cuda
        stream: contextlib.AbstractContextManager[Any] = \
            cuda.stream(cuda.current_stream()) if cuda.is_initialized() else contextlib.nullcontext()
        return stream

    def check_device(self, domain: str) -> None:
        cuda = self.torch.cuda
        if domain != "host" and (not cuda.is_available() or int(domain[5:]) >= cuda.device_count()):
            count = cuda.device_count() if cuda.is_available() else 0
            raise make("no_device", 0, f"there is no {domain}: torch {self.torch.__version__} finds {count} CUDA devices",
                       "load to device='cpu', or check torch.cuda.is_available(): it needs a torch built with CUDA, and a "
                       "driver")
        if domain != "host":
            self.check_not_captured(domain)

    def parts(self, slab: Any, specs: Sequence[Spec], offsets: Sequence[int]) -> Iterator[Any]:
        """The tensors in a slab; on the CPU each with a storage of its own, which is all that is copied or saved with
        it."""
        if slab.device.type != "cpu":
            yield from self.views(slab, specs, offsets)
            return
        memory: Any = _AnySlab.from_address(slab.data_ptr())
        memory.slab = slab  # stays as long as one of them
        with_bytes = [place for place, spec in enumerate(specs) if spec[3] != 0]
        made = self.in_buffer(memory, [specs[place] for place in with_bytes], [offsets[place] for place in with_bytes])
        for spec in specs:
            yield next(made) if spec[3] != 0 else self.torch.empty(self.shape_of(spec), dtype=self.types[spec[1]])

    def views(self, slab: Any, specs: Sequence[Spec], offsets: Sequence[int]) -> Iterator[Any]:
        """The tensors in a slab, which share its storage."""
        as_strided = self.torch.as_strided
        typed = {dtype: slab.view(self.types[dtype]) for dtype in {spec[1] for spec in specs}}
        item_bytes = {dtype: view.element_size() for dtype, view in typed.items()}
        begin = slab.storage_offset()
        strides: dict[Sequence[int], tuple[int, ...]] = {}  # shapes repeat
        for spec, offset in zip(specs, offsets):
            dtype = spec[1]
            shape = spec[2] if dtype not in PACKED_BITS else self.shape_of(spec)
            stride = strides.get(shape)
            if stride is None:
                stride = strides[shape] = contiguous_strides(shape)
            # `data` has a version counter of its own: what autograd knows of one tensor is not mixed up with what
            # happens to its neighbours.
            yield as_strided(typed[dtype], shape, stride, (begin + offset) // item_bytes[dtype]).data

    def view(self, memory: Any, specs: Sequence[Spec], offsets: Sequence[int]) -> list[Any]:
        """Tensors that lie in memory already."""
        return list(self.in_buffer(memory, specs, offsets))

    def view_one(self, memory: Any, spec: Spec) -> Any:
        bytes_of_item = item_bytes(spec[1])
        if bytes_of_item == 1:
            return self.view(memory, [spec], [spec[5]])[0]
        return self.torch.frombuffer(memory, dtype=self.types[spec[1]], count=spec[3] // bytes_of_item,
                                     offset=spec[5]).resize_(spec[2])

    def in_buffer(self, memory: Any, specs: Sequence[Spec], offsets: Sequence[int]) -> Iterator[Any]:
        """Tensors with bytes, each with a storage of its own."""
        frombuffer = self.torch.frombuffer
        types = {name: (self.types[name], item_bytes(name)) for name in {spec[1] for spec in specs}}
        for spec, offset in zip(specs, offsets):
            dtype, bytes_of_item = types[spec[1]]
            if bytes_of_item == 1:  # not all of them are known there
                bits = frombuffer(memory, dtype=self.torch.uint8, count=spec[3], offset=offset)
                yield bits.view(dtype).view(self.shape_of(spec)).data
            else:
                # Into that shape, which takes less time than a view, and is none.
                yield frombuffer(memory, dtype=dtype, count=spec[3] // bytes_of_item, offset=offset).resize_(spec[2])

    def room(self, domain: str) -> int:
        if domain == "host":
            return host_room()
        cuda = self.torch.cuda
        with _core.RelaxedCaptures():
            free_bytes = cuda.mem_get_info(domain)[0]
        room: int = free_bytes + cuda.memory_reserved(domain) - cuda.memory_allocated(domain)
        return room

    def normal_mode(self) -> contextlib.AbstractContextManager[Any]:
        return self._out_of_inference() if self.torch.is_inference_mode_enabled() else super().normal_mode()

    @contextlib.contextmanager
    def _out_of_inference(self) -> Iterator[None]:
        with super().normal_mode(), self.torch.inference_mode(False):
            yield

    def settle(self, domain: str) -> Any:
        """Waits for earlier work on the current stream, by which memory from torch's allocator may still be in use.
        Returns that stream."""
        if domain == "host":
            return None
        self.check_not_captured(domain)
        stream = self.torch.cuda.current_stream(domain)
        with _core.RelaxedCaptures():
            stream.synchronize()
        return stream

    def check_not_captured(self, domain: str) -> None:
        """Waiting for a stream that is being captured would break the capture."""
        cuda = self.torch.cuda
        with _core.RelaxedCaptures(), cuda.device(int(domain[5:])):
            is_captured = cuda.is_current_stream_capturing()
        if is_captured:
            raise make("unsupported", 0, f"the current stream of {domain} is being captured into a CUDA graph, and bytes "
                       "are not: the graph would not repeat this", "load or save before or after the capture, or on "
                       "another thread")

    def give(self, tensor: Any, streams: dict[str, Any]) -> Any:
        """Memory that was allocated for one stream and is used on another must not be used again before that ends."""
        if tensor.is_cuda:
            current = self.torch.cuda.current_stream(tensor.device)
            if current != streams[str(tensor.device)]:
                tensor.record_stream(current)
        return tensor

    def to_save(self, name: str, tensor: Any) -> tuple[str, tuple[int, ...], Memory]:
        torch = self.torch
        dtype = self.names.get(tensor.dtype)
        if dtype is None:
            raise unsavable(name, tensor.dtype)
        if tensor.layout != torch.strided:
            raise invalid(f"tensor {name!r} is sparse", "safetensors files hold only dense tensors: save tensor.to_dense()")
        if not tensor.is_contiguous():
            raise invalid(f"tensor {name!r} is not contiguous", "give tensor.contiguous()")
        tensor = tensor.resolve_conj().resolve_neg()  # what is only marked as such has other bytes in memory
        return dtype, unpacked_shape(dtype, tensor.shape), memory_of(tensor)

    def pick(self, tensor: Any, index: Any) -> Any:
        if self.names.get(tensor.dtype) in PACKED_BITS:  # torch can't do much with them
            return super().pick(tensor.view(self.torch.uint8), index).view(tensor.dtype)
        return super().pick(tensor, index)

    def move(self, tensor: Any, domain: str) -> Any:
        try:
            return tensor if domain == "host" else tensor.to(domain)
        except RuntimeError as error:
            raise about_memory(error, f"no room for a part of a tensor on {domain}") from None

    def index_on_host(self, index: Any) -> Any:
        if isinstance(index, tuple):
            return tuple(map(self.index_on_host, index))
        return index.cpu() if isinstance(index, self.torch.Tensor) else index

    def part(self, tensor: Any, dimension: int, intervals: Sequence[tuple[int, int]]) -> Any:
        pieces = [tensor.narrow(dimension, begin, end - begin) for begin, end in intervals]
        if len(pieces) == 1:
            return pieces[0].contiguous()
        if tensor.element_size() > 1:
            return self.torch.cat(pieces, dimension)
        # torch can't do this with all types of one byte
        return self.torch.cat([piece.view(self.torch.uint8) for piece in pieces], dimension).view(tensor.dtype)

    def size_of(self, tensor: Any) -> int:
        size_bytes: int = tensor.numel() * tensor.element_size()
        return size_bytes

    def copy(self, tensor: Any) -> Any:
        return tensor.clone(memory_format=self.torch.contiguous_format)

    def copy_bytes(self, tensor: Any) -> bytes:
        if tensor.numel() == 0:
            return b""
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
        if tensor.is_cuda:
            self.check_not_captured(str(tensor.device))
        # NumPy is optional beside torch, and knows fewer types.
        with _core.RelaxedCaptures():
            flat = tensor.detach().cpu().reshape(-1).view(self.torch.uint8)
        content = bytearray(flat.numel())
        self.torch.frombuffer(content, dtype=self.torch.uint8).copy_(flat)
        return bytes(content)


class Numpy(Framework):
    name = "np"

    def __init__(self, own_storage: bool = True) -> None:  # as arrays always have
        import numpy

        self.numpy = numpy
        names = {
            "BOOL": "bool_", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16",
            "I32": "int32", "U32": "uint32", "F32": "float32", "I64": "int64", "U64": "uint64", "F64": "float64",
            "C64": "complex64",
        }
        self.types = {key: numpy.dtype(getattr(numpy, name)) for key, name in names.items()}
        if importlib.util.find_spec("ml_dtypes") is not None:
            import ml_dtypes

            more = {
                "BF16": "bfloat16", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
                "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
            }
            self.types.update({key: numpy.dtype(getattr(ml_dtypes, name)) for key, name in more.items()
                               if hasattr(ml_dtypes, name)})
        self.names = {type_: key for key, type_ in self.types.items()}
        self.types.update({"F6_E2M3": self.types["U8"], "F6_E3M2": self.types["U8"], "F4": self.types["U8"]})
        self.most_dimensions = getattr(numpy, "MAXDIMS", DIMENSION_LIMIT)  # no such name since there is no such limit

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, (self.numpy.ndarray, self.numpy.generic))

    def lack(self) -> str:
        return "NumPy has no such type without the package ml_dtypes"

    def check(self, specs: Sequence[Spec]) -> None:
        super().check(specs)
        if self.most_dimensions >= DIMENSION_LIMIT:
            return
        for name, _, shape, *_ in specs:
            if len(shape) > self.most_dimensions:
                raise make("unsupported", 0, f"tensor {name!r} has {len(shape)} dimensions, and arrays of NumPy "
                           f"{self.numpy.__version__} at most {self.most_dimensions}",
                           "leave it out with select=, or use another framework")

    def allocate(self, specs: Sequence[Spec], domain: str) -> Destination:
        numpy = self.numpy
        if domain != "host":
            raise invalid(f"NumPy has no memory on {domain}", "load to device='cpu', or with framework='pt'")
        self.check(specs)
        self.check_room(sizes_of(specs))
        try:
            buffers = [numpy.empty(spec[3] + ALIGNMENT, numpy.uint8) for spec in specs]
        except MemoryError as error:
            raise about_memory(error, f"no room for {len(specs)} arrays") from None
        addresses = [buffer.__array_interface__["data"][0] for buffer in buffers]
        pointers = [(address + ALIGNMENT - 1) & -ALIGNMENT for address in addresses]

        def finish() -> list[Any]:
            return [numpy.ndarray(self.shape_of(spec), self.types[spec[1]], buffer, pointer - address)
                    for spec, buffer, pointer, address in zip(specs, buffers, pointers, addresses)]

        return Destination(array("Q", pointers), buffers, finish)

    def address(self, array: Any) -> int:
        address: int = array.__array_interface__["data"][0]  # which takes half the time of array.ctypes.data
        return address

    def view(self, memory: Any, specs: Sequence[Spec], offsets: Sequence[int]) -> list[Any]:
        """Arrays that lie in memory already."""
        return [self.numpy.ndarray(self.shape_of(spec), self.types[spec[1]], memory, offset)
                for spec, offset in zip(specs, offsets)]

    def view_one(self, memory: Any, spec: Spec) -> Any:
        return self.view(memory, [spec], [spec[5]])[0]

    def to_save(self, name: str, array: Any) -> tuple[str, tuple[int, ...], Memory]:
        array = self.numpy.asarray(array)
        if array.dtype.byteorder not in ("=", "|") and not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        dtype = self.names.get(array.dtype)
        if dtype is None:
            raise unsavable(name, array.dtype)
        array = self.numpy.ascontiguousarray(array).reshape(array.shape)
        return dtype, array.shape, Memory(array.__array_interface__["data"][0], array.nbytes, "host", array)

    def part(self, array: Any, dimension: int, intervals: Sequence[tuple[int, int]]) -> Any:
        before = (slice(None),) * dimension
        pieces = [array[before + (slice(begin, end),)] for begin, end in intervals]
        if len(pieces) == 1:
            return self.numpy.ascontiguousarray(pieces[0])
        return self.numpy.concatenate(pieces, dimension)

    def copy(self, array: Any) -> Any:
        return self.numpy.array(array, order="C")

    def copy_bytes(self, array: Any) -> bytes:
        content: bytes = array.tobytes()
        return content


_made: dict[tuple[type, bool], Any] = {}
_classes = {"pt": Torch, "torch": Torch, "pytorch": Torch, "np": Numpy, "numpy": Numpy}
_is_installed: dict[str, bool] = {}

# Held while torch or NumPy is imported, and by a thread that forks: a child of a fork in the middle of an import could
# never import that module.
_importing = threading.RLock()
_FORK_WAITS_SECONDS = 30.0  # longer than any import should take


_forking: set[int] = set()  # threads that hold it because they fork


def _before_fork() -> None:
    if _importing.acquire(timeout=_FORK_WAITS_SECONDS):
        _forking.add(threading.get_ident())


def _after_fork_in_parent() -> None:
    if threading.get_ident() in _forking:
        _forking.discard(threading.get_ident())
        _importing.release()


def _after_fork_in_child() -> None:
    global _importing
    _importing = threading.RLock()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _default_name() -> str:
    if "torch" in sys.modules:
        return "pt"
    if "torch" not in _is_installed:
        _is_installed["torch"] = importlib.util.find_spec("torch") is not None
    return "pt" if _is_installed["torch"] else "np"


def framework(name: Any = None, own_storage: bool = False) -> Any:
    """By safetensors' name; none: torch where it is installed, else NumPy. With `own_storage`, small tensors share no
    storage."""
    class_ = _classes.get(_default_name() if name is None else name)
    if class_ is None:
        raise invalid(f"unknown framework {name!r}", "give 'pt' or 'np'")
    if own_storage is not True and own_storage is not False:
        own_storage = truth("own_storage", own_storage)
    return _made.get((class_, own_storage)) or _make(class_, own_storage)


def _make(class_: Any, own_storage: bool) -> Any:
    with _importing:
        try:
            return _made.setdefault((class_, own_storage), class_(own_storage))
        except ModuleNotFoundError as error:
            package = "torch" if class_ is Torch else "numpy"
            if error.name != package:
                raise
            raise ModuleNotFoundError(f"{package} is not installed, and Penstock gives and takes arrays as its own: "
                                      f"pip install {package}", name=package) from None


def framework_of(value: Any) -> Any:
    """The framework that a tensor is of; nothing if it is none."""
    for module, name in (("torch", "pt"), ("numpy", "np")):
        if loaded(module) is not None and framework(name).is_tensor(value):
            return framework(name)
    return None
