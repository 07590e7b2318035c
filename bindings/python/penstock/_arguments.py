"""What callers give, checked and named."""

from __future__ import annotations

import math
import operator
import reprlib
from typing import Any

from ._errors import Error, invalid, make

_MOST = (1 << 64) - 2  # the largest of 64 bits means "all" to the library


def natural(what: str, value: Any, most: int = _MOST) -> int:
    """An integer from 0 to `most`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, and is {value!r}") from None
    if not 0 <= number <= most:
        raise invalid(f"{what} is {number}", f"{what} must be {'0 or more' if number < 0 else f'at most {most}'}")
    return number


def seconds(what: str, value: Any) -> float:
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{what} must be a number of seconds, and is {value!r}") from None
    if math.isnan(number) or number < 0:
        raise invalid(f"{what} is {value!r}", "give a number of seconds, 0 or more")
    return number


def truth(what: str, value: Any, allowed: str = "True or False") -> bool:
    """True or False, and not a text that happens to count as true."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__bool__") or getattr(value, "shape", ()) != ():
        raise TypeError(f"{what} must be {allowed}, and is {value!r}")
    return bool(value)


def pair(what: str, value: Any, form: str) -> tuple[Any, Any]:
    """Two values, of which `form` tells: "(offset, size)"."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        first, second = value
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be {form}, and is {reprlib.repr(value)}") from None
    return first, second


def named(argument: str, call: Any) -> Any:
    """What the call gives. Its errors about a value name the argument."""
    try:
        return call()
    except TypeError as error:
        raise TypeError(f"{argument}: {error}") from None
    except Error as error:
        if error.code not in ("invalid_argument", "out_of_range"):
            raise
        raise make(error.code, error.system_error, f"{argument}: {error.message}", error.hint) from None
