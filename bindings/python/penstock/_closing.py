"""What is open until it is closed."""

from __future__ import annotations

import os
import re
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar

from ._errors import make

_Self = TypeVar("_Self", bound="Closing")


class Closing:
    """Closed by `close`, or at the end of a `with` block. It can't be copied: two would close the same thing."""

    _core: Any = None  # None: it is closed

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} can't be copied or pickled: open another one where you need it")

    def close(self) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.close()

    def _open(self) -> Any:
        if self._core is None:
            raise self._closed_error()
        return self._core

    def _closed_error(self) -> Exception:
        return make("closed", 0, f"this {type(self).__name__} is closed", "open another one")


_URI = re.compile(r"[A-Za-z0-9+.-]+:")


def absolute(name: Any) -> Any:
    """A path that means the same from every working directory; a URI as it is."""
    return name if _URI.match(os.fsdecode(name)) else os.path.abspath(name)


def mark(name: Any) -> Optional[tuple[int, int]]:
    """What changes with a file; None for a store that has no such thing."""
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def file_mark(name: Any) -> Optional[tuple[int, int]]:
    """Which file it is, whatever is in it."""
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Reopening(Closing):
    """Opened again, with the default Context there, by a forked child and by whoever unpickles it: so it may be part of a
    dataset that several workers read."""

    _again: Optional[Callable[[], Any]] = None  # opens the same; None: it can't be
    _marks: Any = ()  # of its files
    _process = 0

    def _opened_by(self, again: Optional[Callable[[], Any]], marks: Any = ()) -> None:
        self._again, self._marks, self._process = again, marks, os.getpid()

    def __reduce__(self) -> Any:
        self._open()
        if self._again is None:
            raise TypeError(f"{self!r} can't be copied or pickled, because a Context was given for it: open another one "
                            "where you need it, or leave context= out")
        ours = vars(self._again())  # all but what subclasses and callers have added
        others = {name: value for name, value in vars(self).items() if name not in ours}
        return _reopened, (type(self), self._again, self._marks, others)

    def _open(self) -> Any:
        if self._core is not None and self._again is not None and self._process != os.getpid():
            self._become(self._again())
        return super()._open()

    def _become(self, opened: Reopening) -> None:
        if opened._marks != self._marks:
            raise make("changed", 0, f"{opened!r} is not what it was when it was first opened",
                       "open it anew, in the parent too")
        vars(self).update(vars(opened))


def _reopened(kind: type[Reopening], again: Callable[[], Any], marks: Any, others: dict[str, Any]) -> Reopening:
    self = kind.__new__(kind)
    self._marks = marks
    self._become(again())
    vars(self).update(others)
    return self
