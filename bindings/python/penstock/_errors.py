"""Exceptions: one family of our own, whose members are also the exceptions that Python programs already catch."""

from __future__ import annotations

from typing import Any, Optional


class Error(Exception):
    """What Penstock refuses or fails to do. `code` is a name from the closed list in docs/errors.md."""

    code: str = "internal"  # by default that of its class
    system_error: int
    hint: str
    report: Any  # what is known of the request that failed; None if there was none
    words: str = ""  # of safetensors, while it is patched: what str() says instead

    def __init__(self, message: str, code: str = "", system_error: int = 0, hint: str = "",
                 report: Any = None):
        # OSError takes two arguments for `errno` and `strerror`; all others take one.
        super().__init__(*((system_error, message) if isinstance(self, OSError) else (message,)))
        self.message = message
        self.code = code or type(self).code
        self.system_error = system_error
        self.hint = hint
        self.report = report

    def __str__(self) -> str:
        return self.words or (f"{self.message} ({self.hint})" if self.hint else self.message)

    def __reduce__(self) -> Any:
        # What an error belongs to besides is known where it arrives.
        class_ = getattr(type(self), "alone", type(self))
        return make, (self.code, self.system_error, self.message, self.hint, self.report, class_), {"words": self.words}


class InvalidError(Error, ValueError):
    """A value that can't be right: an argument, an option, a malformed file."""

    code = "invalid_argument"


class RangeError(InvalidError, IndexError):
    """A range or an index past the end."""

    code = "out_of_range"


class MismatchError(InvalidError, RuntimeError):
    """Tensors that share memory, or a module and a file of different names; a RuntimeError as with safetensors."""


class NotFoundError(Error, FileNotFoundError):
    code = "not_found"


class MissingKeyError(NotFoundError, KeyError):
    """What has no such name or number, asked for by [ ]."""


class DeniedError(Error, PermissionError):
    code = "permission_denied"


class DirectoryError(Error, IsADirectoryError):
    code = "is_directory"


class TransferError(Error, OSError):
    """Storage failed, is full, in use, or changed while it was read."""

    code = "io_error"


class TimedOutError(Error, TimeoutError):
    """A deadline passed."""

    code = "timed_out"


class NoMemoryError(Error, MemoryError):
    """Memory, of the host or a GPU, or a budget is used up."""

    code = "out_of_memory"


class UnsupportedError(Error, NotImplementedError):
    """This machine, this store or this build can't do that."""

    code = "unsupported"


class StateError(Error, RuntimeError):
    """Closed, cancelled, out of order, or a device that failed."""


_CLASSES = {
    "invalid_argument": InvalidError,
    "not_found": NotFoundError,
    "permission_denied": DeniedError,
    "is_directory": DirectoryError,
    "out_of_range": RangeError,
    "read_only": DeniedError,
    "in_use": TransferError,
    "no_space": TransferError,
    "changed": TransferError,
    "truncated": TransferError,
    "io_error": TransferError,
    "not_durable": TransferError,
    "unsupported": UnsupportedError,
    "unknown_scheme": InvalidError,
    "unknown_engine": InvalidError,
    "engine_unavailable": UnsupportedError,
    "no_route": UnsupportedError,
    "out_of_memory": NoMemoryError,
    "over_budget": NoMemoryError,
    "timed_out": TimedOutError,
}


# Another family that errors belong to as well, while it is patched; see _patch.py.
also: Optional[type] = None
_joined: dict[tuple[type, type], type] = {}


def make(code: str, system_error: int, message: str, hint: str, report: Any = None, class_: Any = None) -> Error:
    """The error of a code, or of a class; what the extension raises."""
    class_ = class_ or _CLASSES.get(code, StateError)
    if also is not None:
        key = (class_, also)
        if key not in _joined:
            _joined[key] = type(class_.__name__, key, {"alone": class_})
        class_ = _joined[key]
    if isinstance(report, dict):
        from ._report import Report

        report = Report(**report)
    error: Error = class_(message, code, system_error, hint, report)
    return error


def invalid(message: str, hint: str = "") -> Error:
    return make("invalid_argument", 0, message, hint)


def mismatch(message: str, hint: str = "") -> Error:
    return make("invalid_argument", 0, message, hint, class_=MismatchError)
