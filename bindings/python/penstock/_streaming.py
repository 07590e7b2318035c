"""Models tensor by tensor, with a bound on the memory that is used ahead."""

from __future__ import annotations

import operator
import os
import re
import threading
import weakref
from typing import Any, Callable, Generator, Iterator, NamedTuple, Optional, Sequence, Union

from ._context import Context, context_of
from ._errors import invalid, make
from ._frameworks import OWN_BYTES, SLAB_BYTES, Spec
from ._frameworks import framework as framework_named
from ._models import (Device, Load, Mapping_, Model, Select, Slices, Wanted, domains_of, how_to_map, rounded, wanted,
                      warn)
from ._report import Report, Total, log

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "K": 1 << 10, "KIB": 1 << 10,
         "M": 1 << 20, "MIB": 1 << 20, "G": 1 << 30, "GIB": 1 << 30, "T": 1 << 40, "TIB": 1 << 40}


def size_in_bytes(size: Union[int, str]) -> int:
    if isinstance(size, bool) or not isinstance(size, str) and not hasattr(size, "__index__"):
        raise TypeError(f"a size must be an integer or a text such as '1GiB', and is {size!r}")
    if not isinstance(size, str):
        count = operator.index(size)
    else:
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", size)
        if match is None or match[2].upper() not in UNITS:
            raise invalid(f"{size!r} is not a size", "give bytes, or a text such as '1GiB'")
        count = int(float(match[1]) * UNITS[match[2].upper()])
    if count <= 0:
        raise invalid(f"the size is {count}", "give at least 1 byte")
    return count


class Stream:
    """Gives (name, tensor), one after the other; several threads may share it. `report` tells of what was read so far;
    it is complete at the end. `tensor_count` and `total_bytes` are those of all that come. `quantization` has the type of each tensor of a GGUF file that comes as bytes. Used with
    `with`, it is closed at the end of the block."""

    def __init__(self, tensors: Generator[tuple[str, Any], None, None], total: Total, quantization: dict[str, str],
                 tensor_count: int, total_bytes: int):
        self._tensors, self._total, self.quantization = tensors, total, quantization
        self.tensor_count, self.total_bytes = tensor_count, total_bytes
        self._left = tensor_count
        self._lock = threading.RLock()  # reentrant: signal handlers may not wait for what they interrupt
        _streams.add(self)

    def __repr__(self) -> str:
        return f"<penstock.Stream of {self.tensor_count} tensors, {self.total_bytes} bytes>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} can't be copied or pickled: threads may share it, others open another one")

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> tuple[str, Any]:
        with self._lock:
            try:
                given = next(self._tensors)
            except StopIteration:
                if self._left == 0:
                    raise
                raise make("closed", 0, f"this Stream is closed, and {self._left} of its {self.tensor_count} tensors did "
                           "not come", "open another one") from None
            self._left -= 1
            return given

    def close(self) -> None:
        """Cancels what is read ahead, once no other thread waits for a tensor."""
        with self._lock:
            self._tensors.close()

    @property
    def report(self) -> Optional[Report]:
        """Of all that was read so far; None before that."""
        return self._total.report


_streams: weakref.WeakSet[Stream] = weakref.WeakSet()


def _after_fork() -> None:
    for each in _streams:
        each._lock = threading.RLock()  # whoever held it stayed with the parent


os.register_at_fork(after_in_child=_after_fork)


def stream(paths: Any, device: Device = "cpu", window: Union[int, str] = "1GiB", *, select: Select = None,
           slices: Slices = None, framework: Optional[str] = None, copy: bool = True, share: bool = False,
           context: Optional[Context] = None) -> Stream:
    """Yields (name, tensor) in file order, and reads the next tensors while you work.

    What is read ahead and the tensor that came last take at most `window` together. Tensors that you keep come on top.
    With `copy=False`, tensors on the CPU are mapped where load_file would map them; with `share=True`, all of them are.
    The window is enlarged, with a warning, if it is smaller than the largest tensor, or if you still hold the last
    tensor when the next one needs the room: `del` it. The other options are those of load_file.
    """
    frame = framework_named(framework)
    model = Model(paths, context=context)
    what = wanted(model, model.select(select), slices)
    domains = checked_domains(frame, what.specs, device)
    total = Total()
    return Stream(_stream(context_of(context), model, what, frame, domains,
                          enlarged(size_in_bytes(window), what.specs), how_to_map(copy and not share, share), total), total, model.quantization,
                  len(what.specs), sum(spec[3] for spec in what.specs))


def checked_domains(frame: Any, specs: Sequence[Spec], device: Device) -> dict[str, str]:
    """Where each tensor goes, by name. Refuses at once what a load of all of them would refuse."""
    domains: dict[str, str] = {}
    for domain, places in domains_of(specs, device).items():
        frame.allocate((), domain)  # of nothing: whether it has memory there
        domains.update((specs[place][0], domain) for place in places)
    frame.check(specs)
    return domains


def enlarged(window: int, specs: Sequence[Spec]) -> int:
    name, size_bytes = max(((spec[0], rounded(spec[3])) for spec in specs), key=lambda each: each[1], default=("", 0))
    if size_bytes > window:
        warn(f"the window of {window} bytes is enlarged to the {size_bytes} of {name!r}", 4)
    return max(window, size_bytes)


class Batch(NamedTuple):
    what: Wanted
    size_bytes: int


def batches(what: Wanted, limit: int) -> Iterator[Batch]:
    """Cut into pieces of at most `limit` bytes, or of one tensor."""
    begin, size_bytes = 0, 0
    for position, spec in enumerate(what.specs):
        taken = rounded(spec[3])
        if position > begin and size_bytes + taken > limit:
            yield Batch(part_of(what, begin, position), size_bytes)
            begin, size_bytes = position, 0
        size_bytes += taken
    if begin < len(what.specs):
        yield Batch(part_of(what, begin, len(what.specs)), size_bytes)


def part_of(what: Wanted, begin: int, end: int) -> Wanted:
    indices = what.indices[begin:end]
    parts = {index: what.parts[index] for index in indices if index in what.parts} if what.parts else {}
    return Wanted(indices, what.specs[begin:end], parts)


class Held:
    """The tensor that was yielded last, as long as the caller has it."""

    def __init__(self) -> None:
        self.name = ""
        self._size_bytes = 0
        self._tensor: Callable[[], Any] = lambda: None

    def set(self, name: str, tensor: Any, size_bytes: int) -> None:
        self.name, self._size_bytes = name, size_bytes
        try:
            self._tensor = weakref.ref(tensor)
        except TypeError:  # nobody can tell
            self._tensor = lambda: True

    @property
    def size_bytes(self) -> int:
        return 0 if self._tensor() is None else self._size_bytes


def _stream(context: Context, model: Model, what: Wanted, frame: Any, device: Device, window: int,
            mapping: Mapping_, total: Total) -> Generator[tuple[str, Any], None, None]:
    waiting = batches(what, min(window // 4, 256 << 20))
    coming = next(waiting, None)
    ahead: list[tuple[Batch, Load]] = []  # oldest first
    used = 0  # by what is ahead
    held = Held()
    warned = False
    count = 0

    def top_up() -> None:
        nonlocal coming, used, warned
        while coming is not None:
            needed = used + held.size_bytes + coming.size_bytes
            if needed > window and ahead:
                break
            if needed > window and not warned:
                warned = True
                warn(f"the window of {window} bytes is enlarged to {needed}: {coming.what.specs[0][0]!r} is read while "
                     f"your loop still holds {held.name!r}", 5)
            ahead.append((coming, Load(context, model, coming.what, frame, device, mapping=mapping)))
            used += coming.size_bytes
            coming = next(waiting, None)

    try:
        top_up()
        while ahead:
            batch, load = ahead[0]
            load.finish(total=total)
            last = len(batch.what.specs) - 1
            for place, spec in enumerate(batch.what.specs[:last]):
                count += 1
                yield spec[0], load.take(place)
                top_up()
            del ahead[0]
            used -= batch.size_bytes
            name, _, _, size_bytes, *_ = batch.what.specs[last]
            held.set(name, load.tensors[last], rounded(size_bytes) if size_bytes >= OWN_BYTES
                     else min(batch.size_bytes, SLAB_BYTES))
            count += 1
            yield name, load.take(last)
            top_up()
    finally:
        if total.report is not None:
            log(f"{model}: {count} tensors streamed", total.report)
