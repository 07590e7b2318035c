"""What of a tensor has to be read for an index of it, as the framework would apply it to the whole tensor."""

from __future__ import annotations

import numbers
import operator
from typing import Any, NamedTuple, Optional, Sequence, Union

Interval = tuple[int, int]

# Lists of more runs than this are read with what lies between them.
MOST_RUNS = 64

# Of arrays that mean the same as a list of numbers or truths does, in every framework and version.
LIST_TYPES = "int64", "torch.int64", "bool", "torch.bool"


class Plan(NamedTuple):
    """Intervals along one dimension, or None: all of the tensor; and the index that is then applied to what was read."""

    dimension: int
    intervals: Optional[list[Interval]]
    rest: tuple[Any, ...]


class Pick(NamedTuple):
    """What an index wants of one dimension."""

    intervals: list[Interval]
    among_all: Any  # the index of the dimension as it is
    among_read: Any  # of what is left of it when only the intervals are read


class Unclear(Exception):
    """Ends the look at an index that only the framework knows."""


def plan(framework: str, shape: Sequence[int], index: Any, dimensions: int) -> Optional[Plan]:
    """For a tensor that can be read in parts along the first `dimensions`. None: only the framework can tell what the
    index means. Raises an IndexError for what is not there, a TypeError or a ValueError for what is no index."""
    if 0 in shape:
        return None  # there is nothing to read
    try:
        given = [plain(framework, each) for each in (index if isinstance(index, tuple) else (index,))]
        dotted = any(each is Ellipsis for each in given)
        if framework == "np" and dotted and sum(isinstance(each, (int, list)) for each in given) > 1:
            raise Unclear  # for NumPy the dots keep numbers and lists apart, also where they stand for nothing
        picks = spread(given, shape)
    except Unclear:
        return None
    places = [place for place, each in enumerate(picks) if each is not None]
    wanted = [each for each in picks if each is not None]
    cut = best_cut(wanted, shape, dimensions)
    rest = [None if each is None else each.among_all for each in picks]
    if cut is None:
        return Plan(0, None, shortened(rest))
    pick = wanted[cut]
    # One list alone selects in its own place, as a slice does; with numbers or lists beside it, frameworks differ.
    alone = sum(isinstance(each, (int, list)) for each in rest) == 1
    in_order = isinstance(pick.among_read, list) and pick.among_read == list(range(len(pick.among_read)))
    rest[places[cut]] = slice(None) if alone and in_order else pick.among_read
    return Plan(cut, pick.intervals, shortened(rest))


def shortened(rest: list[Any]) -> tuple[Any, ...]:
    return () if all(isinstance(each, slice) and each == slice(None) for each in rest) else tuple(rest)


def best_cut(picks: Sequence[Pick], shape: Sequence[int], dimensions: int) -> Optional[int]:
    """The dimension that is read in part: one of which nothing is wanted, else the first of which not all is."""
    empty = [place for place, pick in enumerate(picks) if not pick.intervals]
    partial = [place for place, pick in enumerate(picks[:dimensions]) if pick.intervals != [(0, shape[place])]]
    return next(iter([*empty, *partial]), None)


def plain(framework: str, each: Any) -> Any:
    """None, an ellipsis, a slice, a number, or a list of numbers or of truths."""
    if each is None or each is Ellipsis or isinstance(each, slice):
        return each
    number = as_number(framework, each)
    if number is not None:
        return number
    if getattr(each, "ndim", 1) != 1 or str(getattr(each, "dtype", "int64")) not in LIST_TYPES:
        raise Unclear
    if hasattr(each, "tolist"):
        return each.tolist()
    if not isinstance(each, (list, tuple, range)) or not all(isinstance(value, numbers.Integral) for value in each):
        raise Unclear
    if len({isinstance(value, bool) for value in each}) > 1:
        raise Unclear
    return [value if isinstance(value, bool) else int(value) for value in each]


def as_number(framework: str, each: Any) -> Optional[int]:
    """As safetensors sees it: with NumPy, whatever is a number; with torch, what torch takes for one."""
    if framework == "pt":
        if isinstance(each, bool) or getattr(each, "ndim", 0) != 0:
            return None
        if str(getattr(each, "dtype", "int64")) in ("bool", "torch.bool", "torch.uint8"):
            return None
    try:
        return operator.index(each)
    except (TypeError, ValueError):
        return None


def spread(given: list[Any], shape: Sequence[int]) -> list[Optional[Pick]]:
    """For every dimension what is wanted of it; None where a new one is put in."""
    dots = [place for place, each in enumerate(given) if each is Ellipsis]
    if len(dots) > 1:
        raise Unclear
    missing = len(shape) - sum(each is not None and each is not Ellipsis for each in given)
    if missing < 0:
        raise IndexError("it has fewer dimensions")
    at = dots[0] if dots else len(given)
    given[at:at + 1] = [slice(None)] * missing
    lengths = iter(shape)
    return [None if each is None else pick_of(each, next(lengths)) for each in given]


def pick_of(each: Union[slice, int, list[Any]], length: int) -> Pick:
    if isinstance(each, slice):
        places = range(*each.indices(length))
        lowest, highest = (min(places[0], places[-1]), max(places[0], places[-1])) if places else (0, -1)
        step = None if places.step == 1 else places.step
        return Pick([(lowest, highest + 1)] if places else [], slice(None) if places == range(length) else each,
                    slice(None, None, step))
    if isinstance(each, int):
        place = from_start(each, length)
        return Pick([(place, place + 1)], place, 0)
    if each and isinstance(each[0], bool):
        if len(each) != length:
            raise Unclear
        each = [place for place, wanted in enumerate(each) if wanted]
    if not all(-length <= place < length for place in each):
        raise Unclear  # torch refuses that only where the result is not empty
    chosen = [from_start(place, length) for place in each]
    runs = runs_of(chosen)
    if len(runs) <= MOST_RUNS:
        return Pick(runs, chosen, list(range(len(chosen))))
    lowest = min(chosen)
    return Pick([(lowest, max(chosen) + 1)], chosen, [place - lowest for place in chosen])


def from_start(place: int, length: int) -> int:
    if not -length <= place < length:
        raise IndexError(f"{place} is past the end of a dimension of {length}")
    return place % length


def runs_of(places: Sequence[int]) -> list[Interval]:
    """In the order given, which is that of what is read then."""
    runs: list[Interval] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs
