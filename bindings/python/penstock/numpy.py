"""As safetensors.numpy: models as dicts of NumPy's arrays."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from . import _models, _saving
from ._memory_file import load_bytes, save_bytes
from ._models import Tensors
from ._report import Report


def load_file(filename: Any, *, backend: Optional[str] = None, **options: Any) -> Tensors:
    """Arrays by name. `options` are those of penstock.load_file. `backend` is safetensors' way to read; here it has no effect."""
    _models.check_backend(backend)
    return _models.load_file(filename, "cpu", "np", **options)


def load(data: bytes) -> Tensors:
    """Arrays from the bytes of a file."""
    return load_bytes(data, "np")


def save_file(tensor_dict: Mapping[str, Any], filename: Any, metadata: Optional[Mapping[str, str]] = None, *,
              align: int = 8, **options: Any) -> Report:
    """Writes the same bytes as safetensors. `options` are those of penstock.save_file."""
    return _saving.save_file(tensor_dict, filename, metadata, align=align, **options)


def save(tensor_dict: Mapping[str, Any], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    """The bytes of a file, the same as those of safetensors."""
    return save_bytes(tensor_dict, metadata)


__all__ = ["load", "load_file", "save", "save_file"]
