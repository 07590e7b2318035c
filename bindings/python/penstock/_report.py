"""What a finished transfer says about itself."""

from __future__ import annotations


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
    """

    __slots__ = ("outcome", "bytes", "seconds", "routes", "engine", "reason", "limit", "wanted_bytes", "read_bytes")

    def __init__(self, outcome: str, bytes: int, seconds: float, routes: dict[str, int], engine: str, reason: str,
                 limit: str, wanted_bytes: int | None = None, read_bytes: int | None = None):
        self.outcome = outcome
        self.bytes = bytes
        self.seconds = seconds
        self.routes = routes
        self.engine = engine
        self.reason = reason
        self.limit = limit
        self.wanted_bytes = bytes if wanted_bytes is None else wanted_bytes
        self.read_bytes = bytes if read_bytes is None else read_bytes

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"Report({fields})"

    def __str__(self) -> str:
        routes = ", ".join(f"{name} {size_text(count)}" for name, count in self.routes.items())
        return (f"{size_text(self.bytes)} in {self.seconds:.3f} s, {size_text(self.bytes_per_second)}/s "
                f"({routes or 'no bytes'}; limit: {self.limit}; {self.reason})")

    def __reduce__(self):
        return Report, tuple(getattr(self, name) for name in self.__slots__)


def log(what: str, report: Report) -> None:
    """The one line of a load."""
    import logging  # takes a third of the time that importing this package may take

    logging.getLogger("penstock").info("%s: %s", what, report)
