"""Penstock moves bytes between storage and memory, of the host or of GPUs, by the fastest route.

Importing it starts no thread, calls nothing of CUDA, and imports neither torch nor NumPy.
"""

from __future__ import annotations

from . import _core
from ._context import Context, default_context, read_into, read_into_async
from ._errors import (DeniedError, DirectoryError, Error, InvalidError, NoMemoryError, NotFoundError, StateError,
                      TimedOutError, TransferError, UnsupportedError)
from ._report import Report

__version__: str = _core.version()

__all__ = [
    "Context", "DeniedError", "DirectoryError", "Error", "InvalidError", "NoMemoryError", "NotFoundError", "Report",
    "StateError", "TimedOutError", "TransferError", "UnsupportedError", "default_context", "read_into",
    "read_into_async",
]
