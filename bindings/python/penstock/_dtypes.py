"""Types of elements as callers give them: a type of NumPy or torch, or the name of one.

In lower case a name is NumPy's, with its meaning: "f4" is float32, and "i8" is int64. The format's own are in upper case:
"F4" has 4 bits, and "I8" 8.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Optional

from ._errors import invalid
from ._frameworks import framework as framework_named
from ._modules import loaded

# Bits of an element, by the names of safetensors.
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
        "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
# Codes of NumPy, and of .npy files.
_CODES = {"b1": "BOOL", "i1": "I8", "u1": "U8", "i2": "I16", "u2": "U16", "i4": "I32", "u4": "U32", "i8": "I64",
          "u8": "U64", "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64"}
# Names of NumPy and torch.
_NAMES = {"bool": "BOOL", "float16": "F16", "float32": "F32", "float64": "F64", "bfloat16": "BF16", "complex64": "C64",
          **{f"{sign}int{bits}": f"{letter}{bits}" for sign, letter in (("", "I"), ("u", "U"))
             for bits in (8, 16, 32, 64)}}
# Codes of NumPy that only look like names of the format: 16 bytes, not bits.
_LOOKALIKES = ("f16",)


def of_code(code: str) -> Optional[str]:
    """The name of what NumPy writes as "<f4" or "|u1"; None where there is none, or the bytes are in another order."""
    return _CODES.get(code[1:]) if code[:1] in ("<", "|", "=") else None


def type_name(dtype: Any, otherwise: str) -> str:
    """By the name of safetensors; `otherwise` is what to do with a type that has none."""
    if dtype is None:
        return ""
    torch = loaded("torch")
    name: Optional[str] = None
    if isinstance(dtype, str):
        name = _of_text(dtype)
        if name is None and _numpy_type(dtype) is None:
            raise invalid(f"dtype: there is no {dtype!r}",
                          f"give one of {', '.join(sorted(BITS))}, or a name of NumPy's, as 'float32' or 'f4'")
    elif torch is not None and isinstance(dtype, torch.dtype):
        name = framework_named("pt").names.get(dtype)
    else:
        name = _name_of(_numpy_type(dtype))
    if name is None:
        raise invalid(f"dtype: {dtype!r} has no name in safetensors", otherwise)
    return name


def numpy_type(dtype: Any) -> Any:
    """A type of NumPy, which may have fields."""
    frame = framework_named("np")
    found = frame.types[dtype] if isinstance(dtype, str) and dtype in frame.types else _numpy_type(dtype)
    if found is None:
        raise invalid(f"dtype: {dtype!r} is no type of NumPy", "give one that numpy.dtype() takes")
    return found


def _of_text(text: str) -> Optional[str]:
    if text in BITS:
        return text
    lower = text.lower()
    known = _NAMES.get(lower) or _CODES.get(text) or of_code(text) or _name_of(_numpy_type(text))
    if known is None and lower.upper() in BITS and lower not in _LOOKALIKES:
        known = lower.upper()  # "bf16", which means nothing to NumPy
    return known


def _numpy_type(dtype: Any) -> Any:
    if importlib.util.find_spec("numpy") is None:
        return None
    try:
        return framework_named("np").numpy.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        return None


def _name_of(dtype: Any) -> Optional[str]:
    return None if dtype is None else framework_named("np").names.get(dtype)
