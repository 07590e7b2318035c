"""Models that are bytes in memory: loaded from them, and saved as them. With the low-level names of safetensors."""

from __future__ import annotations

import contextlib
import ctypes
import os
from array import array
from typing import Any, Iterator, Mapping, Optional, Sequence, Union

from . import _core
from ._context import default_context
from ._errors import Error, invalid, make
from ._frameworks import PACKED_BITS, unpacked_shape
from ._frameworks import framework as framework_named
from ._models import Model, Tensors, load_tensors
from ._saving import checked_tensors, saved_tensor, text_metadata

# Types of safetensors by the names that frameworks have for them.
DTYPES = {
    "bool": "BOOL", "int8": "I8", "uint8": "U8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "float32": "F32", "float64": "F64", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4", "complex64": "C64",
}


@contextlib.contextmanager
def memory_file(data: Any) -> Iterator[Model]:
    """Bytes as a file without a name, which is checked and read as any other."""
    descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC)
    path = f"/proc/self/fd/{descriptor}"
    try:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(descriptor, view):]
        yield Model(path, "bytes")
    except Error as error:
        message = error.message.replace(path, "the bytes")
        raise make(error.code, error.system_error, message, error.hint, error.report) from None
    finally:
        os.close(descriptor)


def load_bytes(data: Any, framework: str, own_storage: bool = False) -> Tensors:
    with memory_file(data) as model:
        # Copied: a tensor that is mapped would keep all of the file in memory.
        return load_tensors(model, framework_named(framework, own_storage), "cpu", mapping="none")


def save_bytes(tensors: Mapping[str, Any], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    saved, contents = [], []
    for name, frame, value in checked_tensors(tensors):
        each, owner = saved_tensor(name, frame, value)
        saved.append(each)
        contents.append((frame, owner))
    head, order = _core.safetensors_head(saved, text_metadata(metadata))
    return b"".join([head, *(contents[index][0].copy_bytes(contents[index][1]) for index in order)])


class TensorSpec:
    """A tensor in host memory, for serialize and serialize_file, by its address: whoever owns the memory keeps it until
    they return. As with safetensors, `dtype` is given as frameworks name it ("float32") and read as the format does
    ("F32"), and the last dimension of a packed type counts elements."""

    __slots__ = ("dtype", "shape", "data_ptr", "data_len")

    dtype: str
    shape: list[int]
    data_ptr: int
    data_len: int

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        if dtype not in DTYPES:
            raise invalid(f"Unknown dtype {dtype!r}", f"give one of {', '.join(DTYPES)}")
        set_ = object.__setattr__
        set_(self, "dtype", DTYPES[dtype])
        set_(self, "shape", list(unpacked_shape(self.dtype, shape) if self.dtype in PACKED_BITS and shape else shape))
        set_(self, "data_ptr", data_ptr)
        set_(self, "data_len", data_len)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a TensorSpec can't be changed: make another one with another {name}")

    def __repr__(self) -> str:
        return (f"TensorSpec(dtype={self.dtype!r}, shape={self.shape}, data_ptr={self.data_ptr}, "
                f"data_len={self.data_len})")


def _specs_to_save(tensor_dict: Mapping[str, TensorSpec]) -> list[tuple[str, str, Sequence[int], int, int, str]]:
    return [(name, spec.dtype, spec.shape, spec.data_ptr, spec.data_len, "host") for name, spec in tensor_dict.items()]


def serialize(tensor_dict: Mapping[str, TensorSpec], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    """The bytes of a safetensors file."""
    specs = list(tensor_dict.values())
    head, order = _core.safetensors_head(_specs_to_save(tensor_dict), text_metadata(metadata))
    return b"".join([head, *(ctypes.string_at(specs[index].data_ptr, specs[index].data_len) for index in order)])


def serialize_file(tensor_dict: Mapping[str, TensorSpec], filename: Union[str, os.PathLike[str]],
                   metadata: Optional[Mapping[str, str]] = None) -> None:
    """Writes a safetensors file: all of it, or none."""
    _core.save(default_context()._core, os.fsencode(filename), _specs_to_save(tensor_dict), text_metadata(metadata),
               alignment=8, durable=False, checksums=False, packed=False, progress=None)


def deserialize(bytes: Any) -> list[tuple[str, dict[str, Any]]]:
    """Of each tensor in the bytes of a safetensors file (name, {"shape", "dtype", "data"})."""
    view = memoryview(bytes).cast("B")
    with memory_file(view) as model:
        return [(tensor.name, {"shape": list(tensor.shape), "dtype": tensor.dtype,
                               "data": _unpacked(model, index) if tensor.packing
                               else bytearray(view[tensor.offset:tensor.offset + tensor.size_bytes])})
                for index, tensor in enumerate(map(model.tensor, range(len(model.tensors))))]


def _unpacked(model: Model, index: int) -> bytearray:
    data = bytearray(model.tensor(index).size_bytes)
    pointer = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
    _core.load(default_context()._core, model.core, [("host", [index], array("Q", [pointer]))], {}, "auto", data).wait()
    return data
