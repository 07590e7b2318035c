"""safe_open: tensors of a file one by one, as with safetensors. A loop over them is read ahead of."""

from __future__ import annotations

import contextlib
import os
import re
import reprlib
import threading
import time
import weakref
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from ._context import Context, context_of
from ._errors import Error, invalid, make
from ._frameworks import PACKED_BITS, ROOM_CHECK_BYTES
from ._frameworks import framework as framework_named
from ._indexing import Interval, Plan, plan
from ._memory import device_domain
from ._packed import is_packed
from ._report import Report, Total, log
from ._models import (Load, Mapping_, Model, Wanted, check_backend, domains_of, how_to_map, mapped_report, rounded, rows_in_file,
                      wanted)

# How far a loop is read ahead of, at most. Several requests, so that the next is at work while the last pieces of one
# come; each long enough to be worth it.
AHEAD_BYTES = 1 << 30
BATCHES_AHEAD = 4
# How much may be ahead is earned, so that a look at a few tensors stays one: a byte that was asked for in order allows
# for another, and one that was read in vain for much less. No more is earned than a few such loops could use.
FIRST_AHEAD_BYTES = 32 << 20
LOST_BY_A_BYTE = 4
# Nor may more than this part of what was asked for be read in vain, beyond what every file may begin with.
PART_IN_VAIN = 16
EARNED_AT_MOST = 4
# Tensors are still asked for in order where some are left out, and where a few come late: there may be several threads.
NEAR = 32
LATE_ONES = 4


# The page faults of a shorter tensor cost less than a call that maps its pages.
POPULATED_FROM_BYTES = 512 << 10


def natural_order(name: str) -> list[tuple[int, str]]:
    """Sorts "layer.10" behind "layer.9"."""
    return [(len(number), number) if digits else (0, text)
            for digits, number, text in re.findall(r"(0*([1-9][0-9]*|0))|([^0-9]+)", name)]


class Source:
    """Where tensors of a file come from, and where they go to."""

    def __init__(self, model: Model, frame: Any, device: Any, mapping: Mapping_,
                 context: Optional[Context]):
        self.model, self.frame, self.device = model, frame, device
        self._mapping: Mapping_ = mapping
        self._context = context  # none: the default one, which after a fork is another
        self._given: dict[int, object] = {}  # NumPy: by tensor, the load that may have mapped it
        self.may_be_shared = frame.name == "pt" and mapping != "none" and not isinstance(device, Mapping) and \
            not callable(device) and device_domain(device) == "host"

    def start(self, what: Wanted, device: Any = None) -> Load:
        # Arrays of NumPy are the caller's own, as with safetensors: of what is mapped already there is no second view.
        this = object()
        again = self.frame.name == "np" and \
            not all([self._given.setdefault(index, this) is this for index in what.indices])
        return Load(context_of(self._context), self.model, what, self.frame, device or self.device,
                    mapping="none" if again else self._mapping)

    def start_wholes(self, indices: Sequence[int]) -> Load:
        return self.start(wanted(self.model, indices, None))

    def can_read(self, index: int) -> bool:
        return self.model.tensors[index][1] in self.frame.types

    def room_ahead(self) -> int:
        domains = domains_of(self.model.tensors, self.device)
        if list(domains) == ["host"] and sum(self.model.tensors.sizes()) <= ROOM_CHECK_BYTES:
            return AHEAD_BYTES
        rooms = map(self.frame.room, domains)
        return min((room // 8 for room in rooms), default=AHEAD_BYTES)


class Habit:
    """What read-ahead was worth in this process: programs open one file after the other in the same way."""

    def __init__(self) -> None:
        # One object, so that no thread finds half of a change. Their sum is never below 1.
        self._used_and_unused_bytes = float(FIRST_AHEAD_BYTES), 0.0

    def first_bytes(self) -> int:
        """How much may be ahead before a file has earned any."""
        used, unused = self._used_and_unused_bytes
        return int(FIRST_AHEAD_BYTES * max(0.0, 1 - PART_IN_VAIN * unused / (used + unused)))

    def learn(self, used_bytes: int, unused_bytes: int) -> None:
        if used_bytes + unused_bytes == 0:  # a file of which only names were asked for tells nothing
            return
        used, unused = self._used_and_unused_bytes
        self._used_and_unused_bytes = used / 2 + used_bytes, unused / 2 + unused_bytes  # older files count less and less


habit = Habit()


class ReadAhead:
    """Gives tensors in any order. Where they are asked for in an order that is known, the next ones are on their way.

    Thread safety: the caller's.
    """

    def __init__(self, source: Source):
        self.total = Total()
        self._source = source
        self._names = [tensor[0] for tensor in source.model.tensors]
        indices = range(len(self._names))
        self._orders = [sorted(indices, key=self._names.__getitem__), list(indices)]
        self._places = [self._places_in(order) for order in self._orders]
        self._streaks = [0] * len(self._orders)  # how long each has been followed
        self._order = 0  # the one that is followed, if any is
        self._last: Optional[int] = None  # the tensor that was asked for before
        self._late_ones = 0  # so many in a row
        self._started = 0  # in that order: the first that is not on its way
        self._kept = 0  # in that order: the first that is not passed yet
        self._ahead: dict[int, tuple[Load, int]] = {}  # by tensor: its load, and its place in it
        self._ahead_bytes = 0
        self._first_bytes = habit.first_bytes()
        self._credit_bytes = self._first_bytes  # of what may be ahead
        self._given_bytes = 0
        self.unused_bytes = 0  # of what was read ahead
        self._most_bytes: Optional[int] = None  # of what is ahead; none: not asked yet
        self._stuck = 0  # in that order: the first behind what could not be read ahead; until the caller is there

    @staticmethod
    def _places_in(order: Sequence[int]) -> dict[int, int]:
        return {index: place for place, index in enumerate(order)}

    def names(self) -> list[str]:
        """Sorted."""
        return [self._names[index] for index in self._orders[0]]

    def is_ahead(self, index: int) -> bool:
        return index in self._ahead

    def count_as_given(self, size_bytes: int) -> None:
        """What was read without it counts as asked for, too."""
        self._given_bytes += size_bytes

    def get(self, index: int) -> Any:
        self._given_bytes += self._size_of(index)
        follows = self._follow(index)
        entry = self._ahead.pop(index, None)
        was_ahead = entry is not None
        if entry is None:
            entry = self._source.start_wholes([index]), 0
        else:
            self._ahead_bytes -= self._size_of(index)
        if follows:
            self._credit_bytes += self._size_of(index)
            place = self._places[self._order][index]
            self._drop_what_was_passed(place)
            if place >= self._stuck:
                self._top_up()
        load, place = entry
        if not load.tensors:
            try:
                load.finish(total=self.total)
            except BaseException as error:
                places = self._places[self._order]
                behind = max((places[each] for each, (other, _) in self._ahead.items() if other is load), default=0) + 1
                self.forget()  # a load that failed has no other tensors either
                if not was_ahead or not isinstance(error, Exception):
                    raise
                self._stuck = behind
        if not load.tensors:  # another of those that were read with it may be to blame: they are read one by one
            load, place = self._source.start_wholes([index]), 0
            load.finish(total=self.total)
        return load.take(place)

    def _size_of(self, index: int) -> int:
        return rounded(self._source.model.tensors[index][3])

    def _follow(self, index: int) -> bool:
        """Whether what comes next can be told."""
        if index != self._last:
            if self._is_late(index):
                self._last = index
                return False
            longest = max(self._streaks)
            self._streaks = [self._streak_with(index, order, streak) for order, streak in enumerate(self._streaks)]
            if longest > 1 and max(self._streaks) < 2 and len(self._orders) == 2:
                self._learn_natural_order(index, longest)
            self._last = index
            self._choose_order()
        self._started = max(self._started, self._places[self._order][index] + 1)
        return self._streaks[self._order] > 1

    def _is_late(self, index: int) -> bool:
        """Whether its turn has been, and it is nothing but that."""
        has_been = (self._streaks[self._order] > 1 and index not in self._ahead
                    and self._places[self._order][index] < self._started)
        self._late_ones = self._late_ones + 1 if has_been else 0
        if self._late_ones > LATE_ONES:  # then they are a loop that begins there
            self._lose(self._ahead_bytes)
            self.forget()
            return False
        return has_been

    def _streak_with(self, index: int, order: int, streak: int) -> int:
        if order == self._order and index in self._ahead:
            return streak + 1
        places = self._places[order]
        step = NEAR + 1 if self._last is None else places[index] - places[self._last]
        return streak + 1 if 0 < step <= NEAR else int(places[index] == 0)

    def _learn_natural_order(self, index: int, streak: int) -> None:
        """Sorting takes its time: only for who has left the other orders."""
        order = sorted(self._orders[0], key=lambda each: natural_order(self._names[each]))
        self._orders.append(order)
        self._places.append(self._places_in(order))
        self._streaks.append(self._streak_with(index, len(self._orders) - 1, streak))

    def _choose_order(self) -> None:
        longest = max(self._streaks)
        if longest > 1 and self._streaks[self._order] == longest:
            return
        # Orders may begin alike: what was read ahead by one that the caller has left is of no use, but no sign of a
        # caller that follows none.
        if longest < 2:
            self._lose(self._ahead_bytes)
        else:
            self._credit_bytes -= self._ahead_bytes
        self.forget()
        self._order = self._streaks.index(longest)

    def _lose(self, size_bytes: int) -> None:
        self._credit_bytes -= LOST_BY_A_BYTE * size_bytes

    def close(self) -> None:
        """Forgets, and learns for the next file."""
        self.forget()
        habit.learn(self._given_bytes, self.unused_bytes)

    def forget(self) -> None:
        """Lets go of what is on its way."""
        self.unused_bytes += sum(self._size_of(index) for index, (load, _) in self._ahead.items() if load.reads)
        self._ahead.clear()
        self._ahead_bytes = self._started = self._kept = self._stuck = 0

    def _drop_what_was_passed(self, place: int) -> None:
        order = self._orders[self._order]
        while self._ahead and self._kept < place - NEAR:
            passed = order[self._kept]
            self._kept += 1
            entry = self._ahead.pop(passed, None)
            if entry is not None:
                load, place_in_load = entry
                if load.tensors:
                    load.tensors[place_in_load] = None
                self._ahead_bytes -= self._size_of(passed)
                if load.reads:
                    self.unused_bytes += self._size_of(passed)
                self._lose(self._size_of(passed))

    def _top_up(self) -> None:
        if self._most_bytes is None:
            try:
                self._most_bytes = min(AHEAD_BYTES, self._source.room_ahead())
            except Exception:  # about tensors that nobody has asked for, perhaps
                self._most_bytes = 0
        self._credit_bytes = min(self._credit_bytes, EARNED_AT_MOST * self._most_bytes)
        limit = min(self._most_bytes, self._credit_bytes,
                    # So that all that is ahead may turn out to be in vain.
                    max(self._first_bytes, self._given_bytes) if self.unused_bytes == 0 else
                    FIRST_AHEAD_BYTES + self._given_bytes // PART_IN_VAIN - self.unused_bytes)
        if not self._ahead:
            self._kept = self._started
        while 0 < limit and self._ahead_bytes <= limit - limit // BATCHES_AHEAD:
            batch, started = self._next_batch(limit // BATCHES_AHEAD, limit - self._ahead_bytes)
            try:
                load = self._source.start_wholes(batch) if batch else None
            except Exception:  # no memory, say: who asks for those tensors will be told
                self._stuck = started
                return
            self._started = started
            if load is None:
                return
            self._ahead.update((index, (load, place)) for place, index in enumerate(batch))
            self._ahead_bytes += sum(map(self._size_of, batch))

    def _next_batch(self, wanted_bytes: int, most_bytes: int) -> tuple[list[int], int]:
        """About so much, and the place behind it; one tensor at least, if that is not too much."""
        order = self._orders[self._order]
        batch: list[int] = []
        batch_bytes = 0
        for place in range(self._started, len(order)):
            index = order[place]
            if not self._source.can_read(index):  # who asks for it will be told
                continue
            batch_bytes += self._size_of(index)
            if batch_bytes > (wanted_bytes if batch else most_bytes):
                return batch, place
            batch.append(index)
        return batch, len(order)


class safe_open:
    """Opens a safetensors or GGUF file, a directory or an index, and gives its tensors as they are asked for.

        with safe_open("model.safetensors", framework="pt", device="cuda:0") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
    """

    def __init__(self, filename: Any, framework: Optional[str] = None, device: Any = "cpu", *,
                 backend: Optional[str] = None, copy: bool = False, share: bool = False,
                 own_storage: bool = False, context: Optional[Context] = None):
        check_backend(backend)
        self._given = (filename, framework, device), {"backend": backend, "copy": copy, "share": share,
                                                      "own_storage": own_storage}
        self._backend = backend
        self._source = Source(Model(filename, context=context), framework_named(framework, own_storage), device,
                              how_to_map(copy, share), context)
        self._model, self._frame = self._source.model, self._source.frame
        self._lock = threading.Lock()
        self._reader: Optional[ReadAhead] = ReadAhead(self._source)
        self._total = self._reader.total
        self._unused_bytes = 0  # when it was closed
        _open_files.add(self)

    def __reduce__(self) -> Any:
        """By name: where it arrives it is opened again, with the default Context there."""
        return _opened, (type(self), *self._given)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.safe_open {str(self._model)!r}{', closed' if self._reader is None else ''}>"

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *exception: Any) -> None:
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()
                self._unused_bytes = reader.unused_bytes
            self._model.unmap()
        if reader is not None and self.report is not None:
            log(f"{self._model}: tensors one by one", self.report)

    @property
    def report(self) -> Optional[Report]:
        """Of all that was asked for so far; none before that. `unused_bytes` is what was read ahead in vain."""
        report, reader = self._total.report, self._reader
        if report is not None:
            report.unused_bytes = self._unused_bytes if reader is None else reader.unused_bytes
        return report

    def keys(self) -> list[str]:
        """The names of all tensors, sorted as safetensors sorts them."""
        return self._check_open().names()

    def offset_keys(self) -> list[str]:
        """In the order of the file."""
        self._check_open()
        return [tensor[0] for tensor in self._model.tensors]

    def metadata(self) -> Optional[dict[str, str]]:
        """What the file says about itself, or None; without packing and checksums, which are true of its bytes only."""
        self._check_open()
        return self._model.metadata or None

    @property
    def quantization(self) -> dict[str, str]:
        """GGUF: the types of the tensors that are quantized, by name."""
        self._check_open()
        return self._model.quantization

    def get_tensor(self, name: str) -> Any:
        """One tensor. A loop over names is read ahead."""
        self._check_open()
        return self._whole(self._model.find(name))

    def get_tensors(self) -> dict[str, Any]:
        """All tensors, in one request."""
        self._check_open()
        what = wanted(self._model, self._model.select(None), None)
        load = self._load(what)
        return dict(zip((spec[0] for spec in what.specs), load.tensors))

    def get_slice(self, name: str) -> Slice:
        """A tensor to index: only the rows or columns that you ask for are read."""
        self._check_open()
        return Slice(self, self._model.find(name))

    def _check_open(self) -> ReadAhead:
        if self._reader is None:
            raise make("closed", 0, "the file is closed", "use it inside its with block")
        return self._reader

    def _of_mapping(self, index: int, dimension: int = 0, intervals: Optional[list[Interval]] = None) -> Any:
        """A tensor, or a part, of a file that is mapped already and was in the page cache: nothing is to be waited for.
        None: it is not so."""
        source, frame, whole = self._source, self._frame, self._model.tensors[index]
        memory = self._model.in_memory(whole[4]) if source.may_be_shared else None
        if memory is None or whole[1] not in frame.types or not frame.can_view(whole):
            return None
        if intervals is not None and whole[1] in PACKED_BITS:
            return None
        begun = time.monotonic()
        with frame.normal_mode():
            tensor = frame.view_one(memory.memory, whole)
            if intervals is not None:
                tensor = frame.part(tensor, dimension, intervals)
        if whole[3] >= POPULATED_FROM_BYTES:
            memory.populate(context_of(source._context)._core, rows_in_file(whole, intervals if dimension == 0 else None))
        size_bytes = whole[3] if intervals is None else frame.size_of(tensor)
        with self._lock:
            self._total.add(begun, mapped_report(size_bytes, time.monotonic() - begun))
            if self._reader is not None:
                self._reader.count_as_given(size_bytes)
        return tensor

    def _whole(self, index: int) -> Any:
        reader = self._reader
        tensor = None if reader is not None and reader.is_ahead(index) else self._of_mapping(index)
        if tensor is not None:
            return tensor
        with self._lock:
            if self._reader is not None:
                return self._reader.get(index)
        return self._load(wanted(self._model, [index], None)).tensors[0]

    def _load_part(self, index: int, dimension: int, intervals: list[Interval]) -> Any:
        part = self._of_mapping(index, dimension, intervals)
        if part is not None:
            return part
        shape, size_bytes = self._model.core.describe_part(index, dimension, intervals)
        name, dtype = self._model.tensors[index][:2]
        what = Wanted([index], [(name, dtype, shape, size_bytes)], {index: (dimension, intervals)})
        return self._load(what).tensors[0]

    def _load(self, what: Wanted, device: Any = None) -> Load:
        load = self._source.start(what, device)
        report = load.finish()
        with self._lock:
            self._total.add(load.begun, report)
            if self._reader is not None:
                self._reader.count_as_given(sum(spec[3] for spec in what.specs))
        return load

    def _after_fork(self) -> None:
        # Whoever held the lock stayed with the parent, as did those who bring what is on its way.
        self._lock = threading.Lock()
        if self._reader is not None:
            self._reader.forget()

    def _empty(self, index: int, dimension: int) -> Any:
        """The tensor with nothing of a dimension."""
        name, dtype, shape = self._model.tensors[index][:3]
        spec = (name, dtype, (*shape[:dimension], 0, *shape[dimension + 1:]), 0)
        [domain] = domains_of([spec], self._source.device)
        return self._frame.allocate([spec], domain).finish()[0]


def _opened(class_: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if not issubclass(class_, safe_open) and is_packed(arguments[0]):
        return safe_open(*arguments, **options)
    if not issubclass(class_, safe_open):  # that of safetensors, where it is not patched
        options = {"backend": options["backend"] or "mmap"}
    elif class_.__module__ == "safetensors":
        options = {"backend": options["backend"]}  # the others are those of patch()
    return class_(*arguments, **options)


_open_files: weakref.WeakSet[safe_open] = weakref.WeakSet()


def _after_fork() -> None:
    for file in _open_files:
        file._after_fork()


os.register_at_fork(after_in_child=_after_fork)


def is_all(index: Any) -> bool:
    return index is Ellipsis or (
        type(index) is slice and index.start is None and index.stop is None and index.step is None)


class Slice:
    """A tensor in a file, of which indexing loads a part: what lies before and behind it is not read. It may be used
    when the file that it came from is closed."""

    # Of patch(): called with an index and with what looks it up here.
    ask: Optional[Callable[[Any, Callable[[], Any]], Any]] = None

    def __init__(self, file: safe_open, index: int):
        self._file = file
        self._index = index
        self._tensor = file._model.tensor(index)

    def __repr__(self) -> str:
        return f"<penstock.Slice {self._tensor.name!r}: {self._tensor.dtype} {list(self._tensor.shape)}>"

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return self._tensor.dtype

    def __getitem__(self, index: Any) -> Any:
        """What indexing the whole tensor would give."""
        return self._in_normal_mode(index) if self.ask is None else self.ask(index, lambda: self._in_normal_mode(index))

    def _in_normal_mode(self, index: Any) -> Any:
        with self._file._frame.normal_mode():
            return self._get(index)

    def _get(self, index: Any) -> Any:
        frame, tensor = self._file._frame, self._tensor
        # As the framework has it: of types of less than a byte, the last dimension counts bytes there, which no part of
        # the file can be told by.
        shape = frame.shape_of(tensor)
        if is_all(index) and len(shape) > 0 and 0 not in shape:
            return self._file._whole(self._index)
        with self._naming(index, shape):
            planned = plan(frame.name, shape, index, len(shape) - (tensor.dtype in PACKED_BITS))
        if planned is None:
            return self._picked_by_the_framework(index, shape)
        loaded = self._read(planned)
        if not planned.rest:
            return loaded
        with self._naming(index, shape):
            return frame.pick(loaded, planned.rest)

    @contextlib.contextmanager
    def _naming(self, index: Any, shape: Sequence[int]) -> Iterator[None]:
        """What the framework has against an index is told with the tensor's name."""
        try:
            yield
        except Error:
            raise
        except (IndexError, TypeError, ValueError, RuntimeError) as error:
            text = f"tensor {self._tensor.name!r} of shape {list(shape)} has no {reprlib.repr(index)}: {error}"
            hint = "index it as the framework indexes tensors"
            raise (make("out_of_range", 0, text, hint) if isinstance(error, IndexError) else invalid(text, hint)) \
                from None

    def _read(self, planned: Plan) -> Any:
        if planned.intervals is None:
            return self._file._whole(self._index)
        if not planned.intervals:
            return self._file._empty(self._index, planned.dimension)
        return self._file._load_part(self._index, planned.dimension, planned.intervals)

    def _picked_by_the_framework(self, index: Any, shape: Sequence[int]) -> Any:
        """On the CPU: a GPU that is asked for what is past the end can't be used any more."""
        file = self._file
        [whole] = file._load(wanted(file._model, [self._index], None), "cpu").tensors
        [domain] = domains_of([self._tensor], file._source.device)
        with self._naming(index, shape):
            picked = file._frame.pick(whole, file._frame.index_on_host(index))
        return file._frame.move(picked, domain)
