"""Penstock moves bytes between storage and memory, of the host or of GPUs, by the fastest route.

Importing it starts no thread, calls nothing of CUDA, and imports neither torch nor NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _core
from ._context import Context, default_context, read_into, read_into_async
from ._errors import (DeniedError, DirectoryError, Error, ExistsError, InvalidError, MismatchError, MissingKeyError, NoMemoryError, NotFoundError,
                      RangeError, StateError, TimedOutError, TransferError, UnsupportedError)
from ._filling import load_into
from ._gpu_queues import GpuArray, GpuQueues, GpuServer, include_dir
from ._kinds import Kind, Kinds
from ._layers import Layers
from ._memory_file import TensorSpec, deserialize, serialize, serialize_file
from ._machine import doctor, engines, gpus
from ._models import Checked, Tensors, load_file, load_file_async, load_models, verify
from ._patch import patch, unpatch
from ._report import Report
from ._rows import Rows, RowsReport
from ._rows_plan import RowsPlan
from ._safe_open import safe_open
from ._saving import save_file
from ._stores import Store
from ._stores import open as open
from ._streaming import Stream, stream
from ._tiers import Tiers

SafetensorError = Error  # by the name that programs which use safetensors catch

__version__: str = _core.version()

__all__ = [  # without `open`, which would take the place of Python's own
    "Checked", "Context", "DeniedError", "DirectoryError", "Error", "ExistsError", "GpuArray", "GpuQueues", "GpuServer", "InvalidError", "Kind", "Kinds", "Layers", "MismatchError", "MissingKeyError", "NoMemoryError",
    "NotFoundError", "RangeError", "Report", "Rows", "RowsPlan", "RowsReport", "SafetensorError", "StateError", "Store", "Stream", "TensorSpec", "Tensors", "Tiers", "TimedOutError",
    "TransferError", "UnsupportedError", "default_context", "deserialize",
    "doctor", "engines", "gpus", "include_dir", "load_file", "load_file_async", "load_into", "load_models", "patch", "read_into", "read_into_async",
    "safe_open", "save_file", "serialize", "serialize_file", "stream", "unpatch", "verify",
]


if TYPE_CHECKING:  # which a __getattr__ would hide misspelt names from
    from . import nn, numpy, torch
else:
    def __getattr__(name: str) -> Any:
        # These import torch or NumPy, so they come when they are asked for.
        if name in ("torch", "numpy", "nn"):
            import importlib

            return importlib.import_module(f"penstock.{name}")
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
