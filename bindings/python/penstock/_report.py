"""What a finished transfer says about itself."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Optional, Union

from ._arguments import truth
from ._modules import loaded

# Called with what is done and with all, in bytes; True: a line on the terminal.
Progress = Union[None, bool, Callable[[int, int], Any]]


def size_text(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


class Report:
    """Which way the bytes came, how long it took, and why that way.

    outcome       "done", "failed", "cancelled" or "abandoned"
    bytes         that arrived
    seconds       from the call to the end
    routes        bytes by the route that they took
    engine        that moved them
    reason        why that way
    limit         what the time went into: "storage", "copy", "cpu" or "unknown"
    wanted_bytes  of a load: of all tensors, or of their parts
    read_bytes    of a load: from storage, with what was read beside the parts
    packed_bytes  of a load: that were unpacked
    stored_bytes  of a load: from which those were unpacked
    unused_bytes  of a file that is read tensor by tensor: read ahead, and never asked for
    """

    __slots__ = ("outcome", "bytes", "seconds", "routes", "engine", "reason", "limit", "wanted_bytes", "read_bytes",
                 "unused_bytes", "packed_bytes", "stored_bytes")

    def __init__(self, outcome: str, bytes: int, seconds: float, routes: dict[str, int], engine: str, reason: str,
                 limit: str, wanted_bytes: int | None = None, read_bytes: int | None = None,
                 unused_bytes: int = 0, packed_bytes: int = 0, stored_bytes: int = 0):
        self.outcome = outcome
        self.bytes = bytes
        self.seconds = seconds
        self.routes = routes
        self.engine = engine
        self.reason = reason
        self.limit = limit
        self.wanted_bytes = bytes if wanted_bytes is None else wanted_bytes
        self.read_bytes = bytes if read_bytes is None else read_bytes
        self.unused_bytes = unused_bytes
        self.packed_bytes = packed_bytes
        self.stored_bytes = stored_bytes

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"Report({fields})"

    def __str__(self) -> str:
        routes = ", ".join(f"{name} {size_text(count)}" for name, count in self.routes.items())
        packed = f"; {size_text(self.packed_bytes)} were unpacked from {size_text(self.stored_bytes)}" \
            if self.packed_bytes else ""
        unused = f"; {size_text(self.unused_bytes)} were read ahead in vain" if self.unused_bytes else ""
        return (f"{size_text(self.bytes)} in {self.seconds:.3f} s, {size_text(self.bytes_per_second)}/s "
                f"({routes or 'no bytes'}; limit: {self.limit}; {self.reason}{packed}{unused})")

    def as_dict(self) -> dict[str, Any]:
        """For logs and JSON."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "routes": dict(self.routes),
                "bytes_per_second": self.bytes_per_second}

    def __reduce__(self) -> Any:
        return Report, tuple(getattr(self, name) for name in self.__slots__)


class Total:
    """Adds up what loads one after the other say, which overlap in time."""

    def __init__(self) -> None:
        self.report: Optional[Report] = None  # of none yet
        self._end = 0.0  # of the last one

    def add(self, begun: float, report: Report) -> None:
        end = begun + report.seconds
        seconds = max(0.0, end - max(begun, self._end))  # in which no other one was under way
        self._end = max(end, self._end)
        if self.report is None:
            self.report = Report(*report.__reduce__()[1])
            self.report.routes = dict(report.routes)
            return
        total = self.report
        total.seconds += seconds
        total.bytes += report.bytes
        total.wanted_bytes += report.wanted_bytes
        total.read_bytes += report.read_bytes
        total.packed_bytes += report.packed_bytes
        total.stored_bytes += report.stored_bytes
        for route, count in report.routes.items():
            total.routes[route] = total.routes.get(route, 0) + count


def told(progress: Progress, what: str) -> Optional[Callable[[int, int], Any]]:
    """What is called, if anything is."""
    if progress is None or callable(progress):
        return progress
    return Line(what) if truth("progress", progress, "True, False or a function") else None


class Line:
    """Progress as a line on the terminal, or in a log."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __call__(self, done: int, all_bytes: int) -> None:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        if sys.stderr is None or (done < all_bytes and not is_terminal):
            return  # a log has the last line only
        begin, end = ("\r", "\n" if done >= all_bytes else "") if is_terminal else ("", "\n")
        part = 100 * done // all_bytes if all_bytes else 100
        sys.stderr.write(f"{begin}{self._what}: {part:3d} %, {size_text(done)} of {size_text(all_bytes)}{end}")
        sys.stderr.flush()


_DEBUG, _INFO = 10, 20  # of logging
_logger: Any = None


def log(what: str, report: Report) -> None:
    """The one line of a load."""
    _log(_INFO, what, report)


def log_read(path: Any, report: Report) -> None:
    """The line of a read, of which a program may do very many."""
    _log(_DEBUG, path, report)


def _log(level: int, what: Any, report: Report) -> None:
    global _logger
    if _logger is None:
        logging = loaded("logging")
        if logging is None:  # nothing in the program handles what is logged
            return
        _logger = logging.getLogger("penstock")
    if _logger.isEnabledFor(level):
        _logger.log(level, "%s: %s", what if isinstance(what, str) else os.fsdecode(what), report)
