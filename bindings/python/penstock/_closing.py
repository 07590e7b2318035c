"""What is open until it is closed."""

from __future__ import annotations

import os
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


class Reopening(Closing):
    """Opened again, with the default Context there, by a forked child and by whoever unpickles it: so it may be part of a
    dataset that several workers read."""

    _again: Optional[Callable[[], Any]] = None  # opens the same; None: it can't be
    _process = 0

    def _opened_by(self, again: Optional[Callable[[], Any]]) -> None:
        self._again, self._process = again, os.getpid()

    def __reduce__(self) -> Any:
        self._open()
        if self._again is None:
            raise TypeError(f"{self!r} can't be copied or pickled, because a Context was given for it: open another one "
                            "where you need it, or leave context= out")
        return self._again, ()

    def _open(self) -> Any:
        if self._core is not None and self._again is not None and self._process != os.getpid():
            vars(self).update(vars(self._again()))
        return super()._open()
