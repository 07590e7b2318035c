"""Where the bytes go: memory of arrays and tensors of any library, without importing one."""

from __future__ import annotations

import array
import mmap
import operator
import reprlib
from typing import Any, NamedTuple, Optional

from . import _core
from ._errors import invalid, make
from ._modules import loaded


TORCH_DEVICES = "cpu", "cuda"  # by torch's name of their kind, those whose memory we reach

# Of the host, and of the standard library.
BUFFERS = bytearray, memoryview, mmap.mmap, array.array


class Memory(NamedTuple):
    """Contiguous memory, and what keeps it alive."""

    pointer: int
    size_bytes: int
    domain: str  # "host" or "cuda:N"; "cuda": a GPU's, to be asked which one
    owner: Any
    stream: Optional[int] = None  # of CUDA: work on it comes first, and what is put there later comes after


def device_domain(device: Any) -> str:
    """The library's name of a device: of "cpu", "cuda:0", 0, or a torch.device; None is the CPU, as with safetensors."""
    if isinstance(device, int) and not isinstance(device, bool):
        device = f"cuda:{device}"
    name = str(device)
    if device is None or name in ("cpu", "host"):
        return "host"
    if name == "cuda":
        torch = loaded("torch")
        return f"cuda:{torch.cuda.current_device()}" if torch is not None and torch.cuda.is_available() else "cuda:0"
    if name.startswith("cuda:") and name[5:].isdecimal():
        return name
    raise invalid(f"unknown device {device!r}", "give 'cpu', 'cuda' or 'cuda:N'")


def memory_of(target: Any, writable: bool = True) -> Memory:
    """Memory of whatever has some; `writable`: that may be written."""
    if type(target) not in BUFFERS:
        memory = _of_others(target, writable)
        if memory is not None:
            return memory
    try:
        return _of_lent(target, _core.LentBuffer(target, writable))
    except TypeError:
        raise TypeError(f"{reprlib.repr(target)} is no memory: give a tensor, an array, a buffer, or (pointer, size, "
                        "device)") from None
    except BufferError as error:
        which = " that may be written" if writable else ""
        raise invalid(f"{type(target).__name__} has no contiguous memory{which}: {error}",
                      "give a tensor, an array, a buffer, or (pointer, size, device)") from None


def _of_others(target: Any, writable: bool) -> Optional[Memory]:
    """Of what is more than a buffer."""
    torch = loaded("torch")
    if torch is not None and isinstance(target, torch.Tensor):
        return _of_torch(torch, target)
    numpy = loaded("numpy")
    if numpy is not None and isinstance(target, numpy.ndarray):
        return _of_numpy(target, writable)
    if isinstance(target, tuple):
        return _of_pointer(target)
    if hasattr(target, "__cuda_array_interface__"):
        return _of_cuda_array(target, target.__cuda_array_interface__, writable)
    if hasattr(target, "__dlpack__"):
        return _of_dlpack(target)
    return None


def hold_storage(memory: Memory, target: Any, while_others_run: bool) -> Memory:
    """Memory of a tensor of torch that stays, whatever becomes of the tensor: another may be put in its place. While other
    code of the program runs, it could also be resized, which torch refuses from now on, as for a tensor that NumPy
    shares."""
    torch = loaded("torch")
    if torch is None or not isinstance(target, torch.Tensor) or memory.size_bytes == 0:
        return memory
    storage = storage_of(target)
    if not while_others_run or memory.domain != "host" or not getattr(storage, "resizable", lambda: True)():
        return memory._replace(owner=(target, storage))
    if loaded("numpy") is None:
        raise make("unsupported", 0, "the tensor could be resized while it is read into: torch needs NumPy to forbid that",
                   "install NumPy, or read into a bytearray and make the tensor by torch.frombuffer")
    with torch.inference_mode(False):
        view = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return memory._replace(owner=(target, storage, view))


def storage_of(tensor: Any) -> Any:
    """Without a type."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor._storage()


def check_storage(memory: Memory, target: Any) -> None:
    """Refuses memory that torch has freed meanwhile and that can't be held: of a GPU, or of a storage that was moved to
    shared memory."""
    if isinstance(memory.owner, tuple) and hasattr(target, "data_ptr"):
        storage = memory.owner[1]
        begin = storage.data_ptr()
        if not begin <= memory.pointer <= memory.pointer + memory.size_bytes <= begin + storage.nbytes():
            raise make("changed", 0, "the tensor was resized, or moved to shared memory, while it was read into, so the "
                       "bytes are not in it, and may be in memory of others", "do so before or after")


def count_as_written(owner: Any) -> None:
    """Tells torch that a tensor is written, if it is one: a graph that still needs what was there is then refused."""
    torch = loaded("torch")
    if torch is None or not isinstance(owner, torch.Tensor) or owner.is_inference() or owner.is_quantized:
        return
    if hasattr(torch.autograd.graph, "increment_version"):
        torch.autograd.graph.increment_version(owner)
    else:
        owner.detach().view(-1)[:0].zero_()  # changes nothing, and counts


_DLPACK_CUDA = 2  # DLPack's kind of a device of CUDA
# The stream that reads into such memory take their place in: the legacy default one, by CUDA's and DLPack's number.
_DLPACK_STREAM = 1


def _of_dlpack(target: Any) -> Memory:
    kind, _ = target.__dlpack_device__()
    # Told of the stream, the exporter puts on it a wait for what it still does with the memory.
    stream = _DLPACK_STREAM if int(kind) == _DLPACK_CUDA else None
    try:
        lent = _core.LentTensor(target.__dlpack__() if stream is None else target.__dlpack__(stream=stream))
    except (TypeError, BufferError) as error:
        raise invalid(f"DLPack: {type(target).__name__} has no writable contiguous memory: {error}",
                      "give a contiguous one, and copy from it") from None
    return _of_lent(target, lent)._replace(stream=stream)


def _of_lent(target: Any, lent: Any) -> Memory:
    return Memory(lent.pointer, lent.size_bytes, lent.domain, (target, lent))


def _of_torch(torch: Any, tensor: Any) -> Memory:
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise invalid("the tensor is not contiguous", "give a contiguous one, and copy from it")
    if tensor.is_conj() or tensor.is_neg():
        raise invalid("the tensor is marked as conjugated or negated", "give tensor.resolve_conj().resolve_neg()")
    if tensor.device.type not in TORCH_DEVICES:
        raise invalid(f"the tensor is on {tensor.device}", "give one on the CPU or a CUDA device")
    stream = None
    if tensor.device.type == "cuda":
        stream = torch.cuda.current_stream(tensor.device).cuda_stream
    return Memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), device_domain(tensor.device), tensor, stream)


def _of_numpy(array: Any, writable: bool) -> Memory:
    if not array.flags.c_contiguous or writable and not array.flags.writeable:
        what = "writable" if writable and not array.flags.writeable else "contiguous"
        raise invalid(f"the array is not {what}", f"give a {what} one, and copy from it")
    if array.dtype.hasobject:
        raise invalid("the array holds Python objects, not bytes", "give an array of numbers")
    return Memory(array.__array_interface__["data"][0], array.nbytes, "host", array)


def _of_pointer(target: tuple[Any, ...]) -> Memory:
    try:
        pointer, size_bytes, device = target
        pointer, size_bytes = operator.index(pointer), operator.index(size_bytes)
    except (TypeError, ValueError):
        raise TypeError(f"{reprlib.repr(target)} is no memory: give (pointer, size, device)") from None
    if pointer < 0 or size_bytes < 0 or (pointer == 0 and size_bytes != 0) or pointer + size_bytes >= 1 << 64:
        raise invalid(f"{size_bytes} bytes at {pointer:#x} are not valid memory", "give (pointer, size, device)")
    return Memory(pointer, size_bytes, device_domain(device), None)


def _of_cuda_array(target: Any, interface: dict[str, Any], writable: bool) -> Memory:
    pointer, read_only = interface["data"]
    if read_only and writable:
        raise invalid("the array is read-only", "give a writable one")
    item_bytes = int(interface["typestr"][2:])
    size_bytes = item_bytes
    strides: list[int] = []
    for length in reversed(interface["shape"]):
        strides.insert(0, size_bytes)
        size_bytes *= length
    given = interface.get("strides")
    if given is not None and size_bytes != 0 and tuple(given) != tuple(strides):
        raise invalid("the array is not contiguous", "give a contiguous one, and copy from it")
    if size_bytes == 0:
        return Memory(0, 0, "host", target)
    # Version 3: the stream that the exporter works on; none: there is nothing to wait for.
    stream = interface.get("stream")
    return Memory(pointer, size_bytes, "cuda", target, stream)
