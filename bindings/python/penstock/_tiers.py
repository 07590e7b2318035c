"""Tiers: folders on disks of different speed, and a catalog that knows which of them holds what."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Union

from . import _core
from ._arguments import natural, seconds, truth
from ._closing import Closing
from ._context import Context, context_of
from ._errors import MissingKeyError, NotFoundError, invalid, make, missing_key, naming
from ._streaming import size_in_bytes

# Told how far a move is: name, source, target, step ("copying", "verifying", "paused", "done", "failed"), bytes, bytes in all. An
# exception ends the move.
Progress = Callable[[str, str, str, str, int, int], object]


class Tier(NamedTuple):
    """A folder on one disk. `problem` says why it can't be used now; speeds are 0 until it was probed."""

    name: str
    path: str
    capacity_bytes: int
    used_bytes: int
    free_bytes: int
    units: int
    low_water: float
    high_water: float
    from_heat: float
    read_only: bool
    read_bytes_per_second: float
    write_bytes_per_second: float
    gpu_direct: Optional[str]
    problem: Optional[str]


class Unit(NamedTuple):
    """A file or directory that moves as a whole. Times are seconds since 1970; 0: never."""

    name: str
    kind: str  # "file" or "directory"
    tier: str
    path: str
    size_bytes: int
    files: int
    checksum: Optional[str]
    accesses: int
    heat: float
    accessed_at: float
    moved_at: float
    pinned: Optional[str]
    moving_to: Optional[str]
    moved_bytes: int
    in_doubt: bool


class PlannedMove(NamedTuple):
    """A move, and why."""

    name: str
    source: str
    target: str
    size_bytes: int
    heat: float
    reason: str


class Placement(NamedTuple):
    """Where a unit belongs, and why."""

    tier: str
    reason: str


class MoveReport(NamedTuple):
    """How moves went. `failures` are (name, message) of the first 64; `busy` counts units that others were moving."""

    units: int
    bytes: int
    resumed_bytes: int
    seconds: float
    busy: int
    failures: list[tuple[str, str]]
    failure_count: int


class Finding(NamedTuple):
    """Something that is not as the catalog has it; `harmless`: a file that is no unit."""

    name: str
    path: str
    text: str
    repaired: bool
    harmless: bool


class CheckReport(NamedTuple):
    """What comparing the catalog with the tiers gave."""

    units: int
    bytes: int
    findings: list[Finding]


# A tier to be made: its path, or its members as a configuration file has them, {"path": "/nvme", "high_water": 0.9}.
TierSpec = Union[str, "os.PathLike[str]", Mapping[str, Any]]


class Tiers(Closing):
    """Files on disks of different speed, moved by use, and never lost.

        tiers = penstock.Tiers.create({"fast": "/nvme", "slow": "/hdd"})
        tiers.add("llama.gguf", "models/llama.gguf")
        tiers.serve()
        penstock.load_file("tier:models/llama.gguf")   # from wherever it lies
        tiers.rebalance()                              # moves what is on the wrong tier

    A unit is a file or a directory; its name is its path below the folder of its tier. `catalog` is a file on a local
    disk; without it $PENSTOCK_TIERS, else tiers.db in penstock's folder of the user's state. Calls from any thread, and
    any number of processes on one catalog; each waits for others at most `wait_seconds`. Used with `with`, it is closed
    at the end of the block. Contexts that it serves go on.
    """

    def __init__(self, catalog: Any = None, *, wait_seconds: float = 10, flush_seconds: float = 5) -> None:
        with naming(catalog):
            self._core = _core.open_tiers(_bytes_of(catalog), seconds("wait_seconds", wait_seconds), seconds("flush_seconds", flush_seconds))

    @classmethod
    def create(cls, tiers: Optional[Mapping[str, TierSpec]] = None, policy: Optional[Mapping[str, float]] = None, *,
               catalog: Any = None, adopt: bool = False, wait_seconds: float = 10, flush_seconds: float = 5) -> Tiers:
        """Makes a catalog with these tiers, the fastest first; without them nvme, ssd and hdd, or those of
        $PENSTOCK_TIER_PATHS. `adopt` takes folders that belong to another catalog. The policy has half_life_seconds,
        cooling and least_stay_seconds."""
        for what, given in (("tiers", tiers), ("policy", policy)):
            if given is not None and not isinstance(given, Mapping):
                raise TypeError(f"{what} must be a dict by name, and is {given!r}")
        if tiers is None and policy is not None:
            raise invalid("policy without tiers", "give both")
        text = "" if tiers is None else json.dumps({
            "tiers": [_configured(name, spec) for name, spec in tiers.items()],
            **({} if policy is None else {"policy": dict(policy)})})
        self = cls.__new__(cls)
        with naming(catalog):
            self._core = _core.create_tiers(text, truth("adopt", adopt), _bytes_of(catalog),
                                            seconds("wait_seconds", wait_seconds), seconds("flush_seconds", flush_seconds))
        return self

    def close(self) -> None:
        """Stops its mover, and writes accesses down."""
        super().close()

    def __repr__(self) -> str:
        return "<penstock.Tiers, closed>" if self._core is None else f"<penstock.Tiers {self.catalog!r}>"

    @property
    def catalog(self) -> str:
        """The path of the catalog."""
        path: str = self._open().catalog()
        return path

    def tiers(self) -> list[Tier]:
        """The fastest first."""
        return [Tier(**each) for each in self._open().tiers()]

    def add_tier(self, name: str, spec: TierSpec, *, behind: str = "", first: bool = False, adopt: bool = False) -> None:
        """Adds a tier behind the one named, or first, or else behind all, as the slowest."""
        self._open().add_tier(json.dumps({"tiers": [_configured(name, spec)]}), behind,
                              truth("first", first), truth("adopt", adopt))

    def remove_tier(self, name: str) -> None:
        """Forgets a tier without units; its folder stays."""
        with _missing():
            self._open().remove_tier(name)

    def probe(self, tier: str) -> None:
        """Measures reading and writing, and asks whether GPU memory is reached without staging."""
        with _missing():
            self._open().probe(tier)

    def import_unit(self, name: Any, *, checksum: bool = False) -> None:
        """Takes a file or directory that lies in the folder of a tier into the catalog, where it is."""
        self._open().import_unit(os.fsencode(name), truth("checksum", checksum))

    def import_all(self, tier: str, below: Any = "") -> CheckReport:
        """Takes in all files of a tier that are no unit yet, each as a unit; what is refused is named."""
        return _check_report(self._open().import_all(tier, os.fsencode(below)))

    def add(self, path: Any, name: Any, tier: str = "", *, bytes_per_second: Any = 0,
            progress: Optional[Progress] = None) -> None:
        """Copies a file or directory from elsewhere into a tier; without one, the fastest with room."""
        with naming(path):
            self._open().add(os.fsencode(path), os.fsencode(name), tier, _rate(bytes_per_second), progress)

    def remove(self, name: Any) -> None:
        """Deletes a unit, with its bytes."""
        with _missing():
            self._open().remove(os.fsencode(name))

    def forget(self, name: Any) -> None:
        """Forgets a unit. Its file stays where it is."""
        with _missing():
            self._open().forget(os.fsencode(name))

    def pin(self, name: Any, tier: Optional[str]) -> None:
        """It moves to this tier with the next rebalance, and stays there; None undoes that."""
        with _missing():
            self._open().pin(os.fsencode(name), tier or "")

    def units(self, *, tier: str = "", prefix: Any = "", page: int = 1000) -> Iterator[Unit]:
        """All units by their names, or those of a tier, or those whose names begin so; `page` at a time."""
        page = natural("page", page)
        if page == 0:
            raise invalid("page is 0", "give 1 or more")
        after = b""
        while True:
            found = self._open().units(tier, os.fsencode(prefix), after, page)
            yield from (Unit(**each) for each in found)
            if len(found) < page:
                return
            after = os.fsencode(found[-1]["name"])

    def __getitem__(self, name: Any) -> Unit:
        """What the catalog says of a unit."""
        with _missing():
            return Unit(**self._open().find(os.fsencode(name)))

    def __contains__(self, name: Any) -> bool:
        try:
            self[name]
        except MissingKeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        """The names of all units."""
        return (unit.name for unit in self.units())

    def path_of(self, name: Any) -> str:
        """Where a unit lies, or a file within one. It may move: open it soon. Counts as an access."""
        with _missing():
            path: str = self._open().path_of(os.fsencode(name))
        return path

    def place(self, size: Any) -> Placement:
        """Where a new unit of this size would go."""
        return Placement(**self._open().place(natural("size", size_in_bytes(size))))

    def why(self, name: Any) -> Placement:
        """Where a unit belongs now, and why."""
        with _missing():
            return Placement(**self._open().why(os.fsencode(name)))

    def plan(self) -> list[PlannedMove]:
        """What `rebalance` would move now."""
        return [PlannedMove(**each) for each in self._open().plan()]

    def move(self, name: Any, tier: str, *, bytes_per_second: Any = 0, progress: Optional[Progress] = None) -> MoveReport:
        """Moves a unit."""
        with _missing():
            return MoveReport(**self._open().move(os.fsencode(name), tier, _rate(bytes_per_second), progress))

    def auto_tier(self, name: Any, *, bytes_per_second: Any = 0, progress: Optional[Progress] = None) -> Placement:
        """Decides where a unit belongs, moves it there, and returns the decision."""
        with _missing():
            return Placement(**self._open().auto_tier(os.fsencode(name), _rate(bytes_per_second), progress))

    def rebalance(self, *, bytes_per_second: Any = 0, progress: Optional[Progress] = None) -> MoveReport:
        """Plans and moves."""
        return MoveReport(**self._open().rebalance(_rate(bytes_per_second), progress))

    def start_mover(self, interval_seconds: float = 60, *, bytes_per_second: Any = 0) -> None:
        """Rebalances every so often, on a thread of the library, until it is stopped or closed."""
        self._open().start_mover(seconds("interval_seconds", interval_seconds), _rate(bytes_per_second))

    def stop_mover(self) -> None:
        self._open().stop_mover()

    @property
    def paused(self) -> bool:
        """Whether all movers of the catalog, of every process, are held. May be set."""
        return bool(self._open().paused())

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._open().set_paused(truth("paused", paused))

    def recover(self) -> list[Finding]:
        """Finishes or undoes what dead processes left."""
        return [Finding(**each) for each in self._open().recover()]

    def check(self, *, bytes: bool = False, strays: bool = True) -> CheckReport:
        """Compares the catalog with the tiers; with `bytes`, every byte with its checksum."""
        return _check_report(self._open().check(bytes, truth("strays", strays)))

    def flush(self) -> None:
        """Writes down accesses that were counted so far."""
        self._open().flush()

    def to_prometheus(self) -> str:
        text: str = self._open().to_prometheus()
        return text

    def serve(self, context: Optional[Context] = None, scheme: str = "tier") -> None:
        """From now on "tier:NAME" is a store of the Context, or of the default one."""
        self._open().serve(context_of(context)._core, scheme)

    def _closed_error(self) -> Exception:
        return make("closed", 0, "the Tiers are closed", "open them again")


@contextlib.contextmanager
def _missing() -> Iterator[None]:
    """A block that asks for a unit or a tier by its name."""
    try:
        yield
    except NotFoundError as error:
        if error.system_error:  # a file is missing
            raise
        raise missing_key(error.message, error.hint) from None


def _configured(name: str, spec: TierSpec) -> dict[str, Any]:
    if isinstance(spec, Mapping):
        return {"name": name, **spec, **({"path": os.fsdecode(spec["path"])} if "path" in spec else {})}
    return {"name": name, "path": os.fsdecode(spec)}


def _bytes_of(path: Any) -> bytes:
    return b"" if path is None else os.fsencode(path)


def _rate(bytes_per_second: Any) -> int:
    return natural("bytes_per_second", size_in_bytes(bytes_per_second)) if bytes_per_second else 0


def _check_report(report: dict[str, Any]) -> CheckReport:
    return CheckReport(report["units"], report["bytes"], [Finding(**each) for each in report["findings"]])
