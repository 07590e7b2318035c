"""Exceptions: one family of our own, whose members are also the exceptions that Python programs already catch."""

from __future__ import annotations

import contextlib
import copyreg
import errno
import os
import re
from typing import Any, Iterator, Optional

# What errno says of those that are OSErrors, where the system said nothing.
_NUMBERS = {"not_found": errno.ENOENT, "permission_denied": errno.EACCES, "read_only": errno.EROFS,
            "is_directory": errno.EISDIR, "in_use": errno.EBUSY, "no_space": errno.ENOSPC, "changed": errno.ESTALE,
            "timed_out": errno.ETIMEDOUT}


class Error(Exception):
    """What Penstock refuses or fails to do. `code` is a name from the closed list in docs/errors.md."""

    code: str = "internal"  # by default that of its class
    system_error: int
    hint: str
    report: Any  # what is known of the request that failed; None if there was none
    words: str = ""  # of safetensors, while it is patched: what str() says instead

    def __init__(self, message: str, code: str = "", system_error: int = 0, hint: str = "",
                 report: Any = None):
        self.message = message
        self.code = code or type(self).code
        self.system_error = system_error
        self.hint = hint
        self.report = report
        # OSError takes two arguments for `errno` and `strerror`; all others take one.
        number = system_error or _NUMBERS.get(self.code, errno.EIO)
        super().__init__(*((number, message) if isinstance(self, OSError) else (message,)))

    def __str__(self) -> str:
        return self.words or (f"{self.message} ({self.hint})" if self.hint else self.message)

    def __reduce__(self) -> Any:
        state = dict(vars(self))  # with the notes that were added
        if isinstance(self, OSError):
            state.update(filename=self.filename, filename2=self.filename2)
        return type(self), (self.message, self.code, self.system_error, self.hint, self.report), state


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
    """No tensor, kind, group or unit has that name or number. The file itself is there."""


class DeniedError(Error, PermissionError):
    code = "permission_denied"


class DirectoryError(Error, IsADirectoryError):
    code = "is_directory"


class TransferError(Error, OSError):
    """Storage failed, is full, in use, or changed while it was read."""

    code = "io_error"


class ExistsError(TransferError, FileExistsError):
    """What was to be made exists already."""

    code = "in_use"


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


class Joined(type):
    """The class of error classes that belong to another family as well, such as that of safetensors. They have no name
    of their own to be found by, so they are pickled as what they are made of."""

    alone: type[Error]
    other: type


_joined: dict[tuple[type, type], Any] = {}


def joined(class_: type[Error], other: type) -> type[Error]:
    """A class of errors that is also another one."""
    alone: type[Error] = getattr(class_, "alone", class_)
    if issubclass(alone, other):
        return alone
    key = alone, other
    if key not in _joined:
        _joined[key] = Joined(alone.__name__, key, {"alone": alone, "other": other, "__module__": alone.__module__})
    found: type[Error] = _joined[key]
    return found


def _joined_by_name(alone: type[Error], module: str, name: str) -> type[Error]:
    import importlib

    try:
        return joined(alone, getattr(importlib.import_module(module), name))
    except (AttributeError, ImportError):  # a process that does not have the other family can't catch it either
        return alone


def _reduce(class_: Joined) -> Any:
    return _joined_by_name, (class_.alone, class_.other.__module__, class_.other.__name__)


copyreg.pickle(Joined, _reduce)


def as_joined(error: Error, other: type) -> Error:
    """The same error, of a class that is also `other`."""
    class_ = joined(type(error), other)
    if type(error) is class_:
        return error
    same = class_(error.message, error.code, error.system_error, error.hint, error.report)
    vars(same).update(vars(error))
    if isinstance(same, OSError) and isinstance(error, OSError):
        same.filename = error.filename
    return same.with_traceback(error.__traceback__)


# What the library's hints say to users of a shell, and the same in Python; longer ones first.
_SHELL = [(re.compile(rf"`?{shell}`?"), python) for shell, python in (
    (r"PENSTOCK_TIERS, or give --catalog", "PENSTOCK_TIERS, or give catalog="),
    (r"PENSTOCK_TIERS or --catalog", "PENSTOCK_TIERS or catalog="),
    (r"penstock tier init --adopt", "penstock.Tiers.create(..., adopt=True)"),
    (r"penstock tier init", "penstock.Tiers.create"),
    (r"penstock tier import --all", "Tiers.import_all"),
    (r"penstock tier import", "Tiers.import_unit"),
    (r"penstock tier add-tier", "Tiers.add_tier"),
    (r"penstock tier add", "Tiers.add"),
    (r"penstock tier check", "Tiers.check()"),
    (r"penstock tier forget", "Tiers.forget"),
    (r"penstock tier list", "list(tiers)"),
    (r"penstock tier resume", "tiers.paused = False"),
    (r"penstock tier status", "Tiers.tiers()"),
    (r"penstock tier unpin", "Tiers.pin(name, None)"),
    (r"penstock tune --forget", "`penstock tune --forget` in a shell"),
    (r"penstock kind list shows", "list(kinds) shows"),
    (r"penstock kind create", "penstock.Kinds.create"),
    (r"(?:run )?`penstock engines` for", "see penstock.engines() for"),
    (r"penstock engines", "penstock.engines()"),
    (r"penstock doctor(?: PATH)?", "penstock.doctor()"),
    (r"penstock inspect", "penstock.safe_open(path).keys()"),
    (r"penstock verify", "penstock.verify(path)"),
)]


def in_python(hint: str) -> str:
    """A hint of the library, in terms of the package."""
    if "penstock " in hint or "--catalog" in hint:
        for shell, python in _SHELL:
            hint = shell.sub(python, hint)
    return hint


def make(code: str, system_error: int, message: str, hint: str, report: Any = None, class_: Any = None) -> Error:
    """The error of a code, or of a class; what the extension raises."""
    if class_ is None:
        exists = code == "in_use" and system_error == errno.EEXIST
        class_ = ExistsError if exists else _CLASSES.get(code, StateError)
    if isinstance(report, dict):
        from ._report import Report  # which the package has imported by now

        report = Report(**report)
    error: Error = class_(message, code, system_error, in_python(hint), report)
    return error


def name_file(error: Error, *paths: Any) -> None:
    """Says in `filename` which file an OSError is about: of those given, the one in its message, or the first."""
    if not isinstance(error, OSError) or isinstance(error, MissingKeyError) or error.filename is not None:
        return
    names = [os.fsdecode(path) for path in paths if isinstance(path, (str, bytes, os.PathLike))]
    found = []  # (whether what is wrong with it follows, where), and the name
    for name in names:
        for each in (os.path.abspath(name), name):
            # A file beside it or in it, too.
            for match in re.finditer(rf"(?<![^\s\"']){re.escape(each)}[^\s:,]*", error.message):
                found.append(((error.message[match.end():][:1] == ":", match.start()), match[0]))
    if found or names:
        error.filename = max(found)[1] if found else names[0]


@contextlib.contextmanager
def naming(*paths: Any) -> Iterator[None]:
    """A block whose errors are about these files."""
    try:
        yield
    except Error as error:
        name_file(error, *paths)
        raise


def invalid(message: str, hint: str = "") -> Error:
    return make("invalid_argument", 0, message, hint)


def missing_key(message: str, hint: str) -> Error:
    return make("not_found", 0, message, hint, class_=MissingKeyError)


def mismatch(message: str, hint: str = "") -> Error:
    return make("invalid_argument", 0, message, hint, class_=MismatchError)
