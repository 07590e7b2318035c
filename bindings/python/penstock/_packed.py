"""Which files are packed. safetensors would take their tensors for rows of bytes."""

from __future__ import annotations

import io
import json
import operator
import os
from typing import Any

KEY = "penstock.packed"
OWN_KEYS = KEY, "penstock.xxh3"  # of the metadata: about the bytes of that file, and no other
HEADER_LIMIT_BYTES = 100_000_000


def is_packed(file: Any) -> bool:
    """Whether the header of a file, given by its path or as its bytes, says so, whatever else is wrong with it."""
    try:
        if not isinstance(file, (str, os.PathLike)):
            return _says_packed(io.BytesIO(file))
        if not os.path.isfile(file):
            return False
        with open(file, "rb") as opened:
            return _says_packed(opened)
    except (OSError, TypeError, ValueError, RecursionError):  # safetensors can't read it either
        return False


def _says_packed(file: Any) -> bool:
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length)) if length <= HEADER_LIMIT_BYTES else None
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return isinstance(metadata, dict) and any(map(_is_key, metadata))


def _is_key(key: str) -> bool:
    """With one character damaged, it still is."""
    return len(key) == len(KEY) and sum(map(operator.ne, key, KEY)) <= 1
