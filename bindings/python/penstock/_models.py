"""Models: named tensors in files, loaded by one request."""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import functools
import operator
import os
import re
import time
from collections import OrderedDict
from typing import Any, Callable, Iterable, Iterator, Literal, Mapping, NamedTuple, Optional, Sequence, Union

from . import _core
from ._arguments import truth
from ._context import Context, context_of, on_a_thread
from ._errors import NotFoundError, invalid, missing_key, naming
from ._frameworks import PACKED_BITS, ROOM_CHECK_BYTES, Numbers, Spec
from ._frameworks import framework as framework_named
from ._memory import device_domain
from ._packed import OWN_KEYS
from ._report import Progress, Report, Total, log, told

Select = Union[None, str, Iterable[str], Callable[[str], bool]]
Interval = tuple[int, int]
# A slice of rows, or (dimension, slice), or (dimension, [(begin, end), ...]).
Part = Union[slice, tuple[int, Union[slice, Sequence[Interval]]]]
Slices = Union[None, Mapping[str, Part], Callable[[str, tuple[int, ...]], Optional[Part]]]
Device = Any
Mapping_ = Literal["cached", "all", "none"]
COLUMNS = "auto", "pieces", "whole"
BACKENDS = None, "mmap", "pread"  # of safetensors; what is fastest is chosen here
URI = re.compile(rb"[a-z][a-z0-9+-]+:")
PATTERN = re.compile(r"[*?\[]")
HUB_ID = re.compile(rb"[\w.-]*\w[\w.-]*/[\w.-]*\w[\w.-]*")


class Tensor(NamedTuple):
    """What a file says of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    file: int
    offset: int
    quantization: str
    stored_bytes: int  # in the file: fewer than size_bytes if it is packed
    packing: str  # how it is packed; empty: it is not


class Tensors(dict[str, Any]):
    """A dict of tensors by name, with the `report`, the `metadata` and the `quantization` of the load."""

    report: Report
    metadata: dict[str, str]
    quantization: dict[str, str]  # GGUF: the type of those that are quantized, as rows of bytes

    def __reduce__(self) -> Any:
        # Whoever gets them from a file or another process need not have penstock; torch.load takes this class as safe.
        return OrderedDict, (), None, None, iter(self.items())

    def __copy__(self) -> Tensors:
        copied = Tensors(self)
        vars(copied).update(vars(self))
        return copied

    def __deepcopy__(self, memo: Any) -> Tensors:
        copied = Tensors(copy.deepcopy(dict(self), memo))
        vars(copied).update(vars(self))
        return copied


class AllTensors(Sequence[Any]):
    """What files say of their tensors, each as in Tensor. There may be tens of thousands: they are made when one is
    looked at, and a load need not wait for that."""

    def __init__(self, core: Any):
        self._core = core
        self._made: Optional[list[Spec]] = None

    def made(self) -> list[Spec]:
        if self._made is None:
            self._made = self._core.tensors
        return self._made

    def __len__(self) -> int:
        count: int = self._core.tensor_count
        return count

    def __getitem__(self, index: Any) -> Any:
        return self.made()[index]

    def __iter__(self) -> Iterator[Spec]:
        return iter(self.made())

    def sizes(self) -> Numbers:
        return self._core.sizes

    def dtypes(self) -> set[str]:
        return set(self._core.dtypes)


# A part of a GGUF model that is split into files, as llama.cpp names them.
GGUF_PART = re.compile(r"(.*-)(\d{5})-of-(\d{5})(\.gguf)")


def all_parts(path: Any) -> list[Any]:
    """A file by itself, or with the others that the model is split into."""
    name = os.fsdecode(path)
    match = GGUF_PART.fullmatch(name)
    if match is None or int(match[3]) < 2:
        return [path]
    return [f"{match[1]}{part:05}-of-{match[3]}{match[4]}" for part in range(1, int(match[3]) + 1)]


class Model:
    """The tensors of a file, of several, of a directory or an index; none is read yet. `title` is what it is called where
    its paths say nothing. `context` opens what looks like a URI; none: the default one."""

    def __init__(self, path: Any, title: str = "", context: Optional[Context] = None):
        if hasattr(path, "read"):
            raise invalid(f"{path!r} is an open file", "give its path; load() of penstock.torch takes bytes")
        if not isinstance(path, (str, bytes, os.PathLike)) and not hasattr(path, "__iter__"):
            raise TypeError(f"the name of a file must be a path or a list of paths, and is {path!r}")
        self.paths = all_parts(path) if isinstance(path, (str, bytes, os.PathLike)) else list(path)
        self._title = title
        names = [os.fsencode(each) for each in self.paths]
        # Most are paths, for which there need be no Context yet.
        opener = context_of(context)._core if any(map(URI.match, names)) else None
        with naming(*self.paths):
            try:
                self.core = _core.open_model(opener, names)
            except NotFoundError as error:
                if len(names) == 1 and HUB_ID.fullmatch(names[0]):
                    error.hint = ("check the name; if it is the id of a model on the Hugging Face hub, give the path that "
                                  f"huggingface_hub.snapshot_download({os.fsdecode(names[0])!r}) returns")
                raise
        self.tensors = AllTensors(self.core)
        self._mapped: dict[int, Any] = {}

    def mapped(self, context: Context, file: int, cold_too: bool) -> Any:
        """The file as memory, where all but little of it is in the page cache, or `cold_too`; else nothing."""
        memory = self._mapped.get(file)
        if memory is None:  # not yet, or too little of it was there the last time
            memory = self._mapped[file] = _core.map_file(context._core, self.core, file, cold_too)
        return memory

    def in_memory(self, file: int) -> Any:
        """The file as memory, if it is mapped and was in the page cache then."""
        memory = self._mapped.get(file)
        return memory if memory is not None and memory.was_cached else None

    def unmap(self) -> None:
        """Lets go of mappings: tensors in them keep them."""
        self._mapped.clear()

    @functools.cached_property
    def by_name(self) -> dict[str, int]:
        return {tensor[0]: index for index, tensor in enumerate(self.tensors)}

    @property
    def metadata(self) -> dict[str, str]:
        """Without what is only true of these files: it would be wrong in others, to which programs copy the rest."""
        return {key: value for file in self.core.files for key, value in file[4].items() if key not in OWN_KEYS}

    @property
    def quantization(self) -> dict[str, str]:
        return {tensor[0]: tensor[6] for tensor in self.tensors if tensor[6]}

    def __str__(self) -> str:
        return self._title or ", ".join(os.fsdecode(path) for path in self.paths)

    def tensor(self, index: int) -> Tensor:
        return Tensor._make(self.tensors[index])

    def find(self, name: str) -> int:
        index = self.by_name.get(name)
        if index is None:
            raise missing_key(f"{self} has no tensor {name!r}", "penstock.safe_open(path).keys() has the names")
        return index

    def matching(self, name: str) -> list[int]:
        """The tensor of that name, or those that fit a pattern such as "*.q_proj.*"."""
        if name in self.by_name or not PATTERN.search(name):
            return [self.find(name)]
        fits = re.compile(fnmatch.translate(name)).match
        found = [index for index, tensor in enumerate(self.tensors) if fits(tensor[0])]
        if not found:
            raise missing_key(f"no tensor of {self} matches {name!r}", "penstock.safe_open(path).keys() has the names")
        return found

    def select(self, select: Select) -> Sequence[int]:
        """In the order of the file."""
        if select is None:
            return range(len(self.tensors))
        if isinstance(select, str):
            return self.matching(select)
        if not callable(select) and not hasattr(select, "__iter__"):
            raise TypeError(f"select must be a name, a list of names or a function, and is {select!r}")
        if callable(select):
            return [index for index, tensor in enumerate(self.tensors) if select(tensor[0])]
        return sorted({index for name in select for index in self.matching(name)})


def normal_part(name: str, shape: tuple[int, ...], part: Part) -> tuple[int, list[Interval]]:
    """(dimension, intervals), with everything counted from the start."""
    try:
        dimension, wanted = (0, part) if isinstance(part, slice) else part
        dimension = operator.index(dimension)
        if isinstance(wanted, slice):
            wanted.indices(0)
        else:
            wanted = [(operator.index(begin), operator.index(end)) for begin, end in wanted]
    except (TypeError, ValueError):
        raise invalid(f"slices: {part!r} does not describe a part of tensor {name!r}",
                      "give a slice of rows, (dimension, slice) or (dimension, [(begin, end), ...])") from None
    dimension = dimension + len(shape) if dimension < 0 else dimension
    if not 0 <= dimension < len(shape):
        raise invalid(f"tensor {name!r} of shape {list(shape)} has no dimension {dimension}", "count from 0")
    if isinstance(wanted, slice):
        begin, end, step = wanted.indices(shape[dimension])
        if step != 1:
            raise invalid(f"the slice of tensor {name!r} has the step {step}", "give intervals, or slice after loading")
        wanted = [(begin, max(begin, end))]
    if not wanted or any(not 0 <= each < 1 << 64 for interval in wanted for each in interval):
        raise invalid(f"tensor {name!r}: bad intervals {wanted}", "give at least one, counted from 0")
    return dimension, wanted


class Wanted(NamedTuple):
    """Tensors of a model, or parts of them."""

    indices: Sequence[int]
    specs: Sequence[Spec]  # of each
    parts: dict[int, tuple[int, list[Interval]]]


def wanted(model: Model, indices: Sequence[int], slices: Slices) -> Wanted:
    if slices is None and isinstance(indices, range):
        return Wanted(indices, model.tensors, {})
    if slices is not None and not callable(slices):
        for name in slices:
            model.find(name)
    specs = [model.tensors[index] for index in indices]
    parts: dict[int, tuple[int, list[Interval]]] = {}
    if slices is None:
        return Wanted(indices, specs, parts)
    for place, index in enumerate(indices):
        name, dtype, shape = specs[place][:3]
        part = slices(name, shape) if callable(slices) else slices.get(name)
        if part is not None:
            parts[index] = normal_part(name, shape, part)
            specs[place] = (name, dtype, *model.core.describe_part(index, *parts[index]))
    return Wanted(indices, specs, parts)


def check_backend(backend: Any) -> None:
    """Refuses what safetensors refuses."""
    if backend not in BACKENDS:
        raise invalid(f"unknown backend {backend!r}", "give 'mmap' or 'pread', which mean the same here")


def how_to_map(copy: bool, share: bool) -> Mapping_:
    copy, share = truth("copy", copy), truth("share", share)
    if copy and share:
        raise invalid("copy and share exclude each other", "give one of them")
    return "all" if share else "none" if copy else "cached"


class Load:
    """A load under way. What is in its tensors is right after `finish`; forgetting it cancels it.

    `mapping` is which tensors on the CPU are mapped, unless that puts elements across their own boundaries: those whose
    file is in the page cache, all, or none. What is mapped and not in the page cache is read ahead.
    """

    def __init__(self, context: Context, model: Model, what: Wanted, frame: Any, device: Device, columns: str = "auto",
                 mapping: Mapping_ = "cached"):
        if columns not in COLUMNS:
            raise invalid(f"unknown columns {columns!r}", f"give {', '.join(COLUMNS[:-1])} or {COLUMNS[-1]}")
        self._places: list[tuple[Sequence[int], Any]] = []
        self._specs = what.specs
        self._frame = frame
        self._streams: dict[str, Any] = {}  # by device: the one that its memory was allocated for
        self.begun = time.monotonic()
        self._mapped_bytes = 0
        self._mapped_cold = False
        with frame.normal_mode():
            groups, owners = self._allocate(context, model, what, device, columns, mapping)
        self._mapped_seconds = time.monotonic() - self.begun
        self._loading: Any = None
        # Whether it costs more than a look at the page cache, should nobody want it.
        self.reads = self._mapped_cold or self._mapped_bytes == 0 or any(group[2] for group in groups)
        if self._mapped_bytes == 0 or any(group[2] for group in groups):
            self._loading = _core.load(context._core, model.core, groups, what.parts, columns, owners)
        self.tensors: list[Any] = []

    def _allocate(self, context: Context, model: Model, what: Wanted, device: Device, columns: str,
                  mapping: Mapping_) -> tuple[list[Spec], list[Any]]:
        """Maps what can be, and makes memory for the rest: what goes where, and whose memory that is."""
        groups, owners = [], []
        for domain, places in domains_of(what.specs, device).items():
            if domain == "host" and mapping != "none":
                places = self._map(context, model, what, places, columns == "auto", mapping == "all")
                if not places and self._mapped_bytes != 0:
                    continue
            if len(places) == len(what.specs):
                specs, indices = what.specs, what.indices
            else:
                specs, indices = [what.specs[place] for place in places], [what.indices[place] for place in places]
            made = self._frame.allocate(specs, domain)
            self._streams[domain] = self._frame.settle(domain)
            self._places.append((places, made.finish))
            everything = isinstance(indices, range) and len(indices) == len(model.tensors)
            groups.append((domain, None if everything else indices, made.pointers))
            owners.append(made.owners)
        return groups, owners

    def _map(self, context: Context, model: Model, what: Wanted, places: Sequence[int],
             with_parts: bool, cold_too: bool) -> Sequence[int]:
        """Maps what can be; says what is left."""
        frame = self._frame
        by_file: dict[int, list[int]] = {}
        left: list[int] = []
        for place in places:
            index = what.indices[place]
            dtype, file = model.tensors[index][1], model.tensors[index][4]
            fits = (frame.can_view(model.tensors[index])
                    and (index not in what.parts or with_parts and dtype not in PACKED_BITS))
            (by_file.setdefault(file, []) if fits else left).append(place)
        for file, mapped in by_file.items():
            memory = model.mapped(context, file, cold_too)
            if memory is not None and not memory.was_cached:
                # Parts are copied in any case: reading just those is faster than mapping what lies around them.
                left += [place for place in mapped if what.indices[place] in what.parts]
                mapped = [place for place in mapped if what.indices[place] not in what.parts]
            if memory is None or not mapped:
                left += mapped
                continue
            wholes = [model.tensors[what.indices[place]] for place in mapped]
            frame.check(wholes)
            tensors = frame.view(memory.memory, wholes, [whole[5] for whole in wholes])
            ranges = []
            for number, (whole, place) in enumerate(zip(wholes, mapped)):
                dimension, intervals = what.parts.get(what.indices[place], (0, None))
                if intervals is not None:
                    tensors[number] = frame.part(tensors[number], dimension, intervals)
                if dimension == 0:
                    ranges += rows_in_file(whole, intervals)
            if memory.was_cached:
                memory.populate(context._core, sorted(ranges))
            else:
                self._mapped_cold = True
                size_bytes = sum(each[1] for each in ranges)
                most_bytes = size_bytes if size_bytes <= ROOM_CHECK_BYTES else frame.room("host") // 2
                memory.read_ahead(context._core, sorted(ranges), most_bytes)
            self._mapped_bytes += sum(what.specs[place][3] for place in mapped)
            self._places.append((mapped, tensors.copy))
        return sorted(left)

    def finish(self, progress: Optional[Callable[[int, int], Any]] = None, total: Optional[Total] = None) -> Report:
        try:
            self.make()
            report = self._wait(progress)
        except BaseException:
            self.tensors.clear()  # a traceback that somebody keeps must not keep the memory
            raise
        finally:
            self._places, self._loading = [], None
        if total is not None:
            total.add(self.begun, report)
        return report

    def _wait(self, progress: Optional[Callable[[int, int], Any]]) -> Report:
        count = self._mapped_bytes
        if count == 0:
            return Report(**self._loading.wait(progress))
        report = mapped_report(count, self._mapped_seconds, self._mapped_cold)
        if self._loading is None:
            if progress is not None:
                progress(count, count)
            return report
        both = Total()
        both.add(self.begun, report)
        tell = None if progress is None else lambda done, all_bytes: progress(done + count, all_bytes + count)
        both.add(self.begun + self._mapped_seconds, Report(**self._loading.wait(tell)))
        assert both.report is not None
        return both.report

    def make(self) -> list[Any]:
        """The tensors, while their bytes come."""
        if not self.tensors:
            made: list[Any] = [None] * len(self._specs)
            try:
                with self._frame.normal_mode():
                    for places, finish in self._places:
                        for place, tensor in zip(places, finish()):
                            made[place] = tensor
            except BaseException:  # as in finish
                made.clear()
                self._places, self._loading = [], None
                finish = tensor = None
                raise
            self.tensors = made
            self._places, self._specs = [], ()  # while the bytes come there is time to forget
        return self.tensors

    def take(self, place: int) -> Any:
        """One of the tensors, which is the caller's from then on."""
        tensor, self.tensors[place] = self.tensors[place], None
        return self._frame.give(tensor, self._streams)


def mapped_report(size_bytes: int, seconds: float, is_cold: bool = False) -> Report:
    why = ("the file is mapped, to be shared; it comes into the page cache as it is used, or before" if is_cold else
           "the file is in the page cache: it is mapped, not copied")
    return Report("done", size_bytes, seconds, {"mapped": size_bytes}, "", why, "cpu")


def rows_in_file(whole: Spec, intervals: Optional[list[Interval]]) -> list[tuple[int, int]]:
    """(offset, size) of rows of a tensor; none: of all."""
    _, _, shape, size_bytes, _, offset = whole[:6]
    if intervals is None:
        return [(offset, size_bytes)]
    row_bytes = size_bytes // shape[0]
    return [(offset + begin * row_bytes, (end - begin) * row_bytes) for begin, end in intervals if begin != end]


def domains_of(specs: Sequence[Spec], device: Device) -> Mapping[str, Sequence[int]]:
    """Which tensors go where. `device` is one for all, or a mapping or function of names."""
    if isinstance(device, Mapping):
        missing = [spec[0] for spec in specs if spec[0] not in device]
        if missing:
            raise invalid(f"no device given for {missing[:5]}", "name one for every tensor")
        device = device.__getitem__
    if not callable(device):
        return {device_domain(device): range(len(specs))}
    places: dict[str, list[int]] = {}
    for place, spec in enumerate(specs):
        places.setdefault(device_domain(device(spec[0])), []).append(place)
    return places


def load_file(filename: Any, device: Device = "cpu", framework: Optional[str] = None, *, select: Select = None,
              slices: Slices = None, columns: str = "auto", copy: bool = False, share: bool = False,
              own_storage: bool = False, context: Optional[Context] = None, progress: Progress = None) -> Tensors:
    """Loads a model into a dict of tensors, in one request.

    filename     a safetensors or GGUF file, a list of files, a directory, an index, or a snapshot in the Hugging Face cache
    device       one device for all tensors, or a mapping or function from name to device
    framework    "pt" or "np"; default: torch if it is installed
    select       a name, a pattern such as "*.q_proj.*", a list of either, or a function that takes a name
    slices       parts of tensors, as a mapping, or a function of name and shape: a slice of rows, (dimension, slice) or
                 (dimension, [(begin, end), ...])
    columns      how to read pieces of rows: "pieces", "whole" or "auto"
    copy         give every tensor memory of its own, at a multiple of 256 bytes
    share        always map the file: processes share one copy, and it may be larger than memory
    own_storage  give torch tensors below 1 MiB a storage of their own too, instead of a place in a slab
    context      default: the one that all calls share
    progress     True for a line on the terminal, or a function (done, all), called at most twenty times a second; if it
                 raises, the load ends

    If a file is in the page cache, its tensors on the CPU are mapped, not copied, as with safetensors. If somebody writes
    into that file later, the tensors change. If somebody truncates it, touching them raises SIGBUS.
    """
    frame = framework_named(framework, own_storage)
    return load_tensors(Model(filename, context=context), frame, device, select, slices, columns, how_to_map(copy, share),
                        context, progress)


def load_tensors(model: Model, frame: Any, device: Device, select: Select = None, slices: Slices = None,
                 columns: str = "auto", mapping: Mapping_ = "cached", context: Optional[Context] = None,
                 progress: Progress = None) -> Tensors:
    what = wanted(model, model.select(select), slices)
    return finished(model, what, Load(context_of(context), model, what, frame, device, columns, mapping), progress)


def finished(model: Model, what: Wanted, load: Load, progress: Progress) -> Tensors:
    """What a load brings, when it has ended."""
    result = Tensors()
    result.metadata = model.metadata
    result.quantization = model.quantization
    title = str(model)
    try:
        result.update(zip((spec[0] for spec in what.specs), load.make()))
        del model, what  # there may be tens of thousands of tensors, and now is time for that
        result.report = load.finish(told(progress, title))
    except BaseException:
        result.clear()  # as in Load
        raise
    log(f"{title}: {len(result)} tensors", result.report)
    return result


async def load_file_async(filename: Any, device: Device = "cpu", framework: Optional[str] = None,
                          **options: Any) -> Tensors:
    """load_file for asyncio, with the same options. If you cancel the task, the load is cancelled."""
    import asyncio
    import threading

    frame = framework_named(framework, options.get("own_storage", False))
    device = frame.here(device)
    stopped = threading.Event()
    tell = told(options.pop("progress", None), str(filename))

    def check(done: int, all_bytes: int) -> None:
        if stopped.is_set():
            raise asyncio.CancelledError
        if tell is not None:
            tell(done, all_bytes)

    with_stream = frame.on_current_stream()

    def load() -> Tensors:
        with with_stream:
            return load_file(filename, device, framework, progress=check, **options)

    loading = asyncio.ensure_future(on_a_thread(load))
    try:
        return await asyncio.shield(loading)
    except asyncio.CancelledError:
        stopped.set()
        while not loading.done():  # whoever cancels again has to wait too: the memory is still written
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([loading])
        with contextlib.suppress(BaseException):
            loading.result()
        raise


def load_models(paths: Mapping[Any, Any], device: Device = "cpu", framework: Optional[str] = None, *,
                select: Select = None, copy: bool = False, share: bool = False, own_storage: bool = False,
                context: Optional[Context] = None, progress: Progress = None) -> dict[Any, Tensors]:
    """Loads several models at the same time: {key: path} becomes {key: tensors}.

    Their tensors may have equal names: adapters, experts, checkpoints to average. The options are those of load_file.
    """
    frame = framework_named(framework, own_storage)
    mapping = how_to_map(copy, share)
    started = []
    for key, path in paths.items():
        model = Model(path, context=context)
        what = wanted(model, model.select(select), None)
        started.append((key, model, what, Load(context_of(context), model, what, frame, device, mapping=mapping)))
    return {key: finished(model, what, load, progress) for key, model, what, load in started}


class Checked(NamedTuple):
    path: str
    verdict: str  # "right", "wrong" or "unknown"
    how: str
    wrong_tensors: list[str]


def verify(filename: Any, *, context: Optional[Context] = None, progress: Progress = None) -> list[Checked]:
    """Compares a model with the checksums recorded when it was saved, or with the digest in the name of a Hugging Face
    blob. Oddities that don't matter for loading come as warnings."""
    model = Model(filename, context=context)
    for warning in model.core.warnings:
        warn(warning, 3)
    checked = _core.verify(context_of(context)._core, model.core, told(progress, str(model)))
    return [Checked._make(each) for each in checked]


def warn(message: str, level: int) -> None:
    import warnings

    warnings.warn(message, stacklevel=level)


def rounded(size_bytes: int) -> int:
    """What an allocator takes for it, about."""
    return -(-size_bytes // (2 << 20)) * (2 << 20) if size_bytes >= 1 << 20 else -(-size_bytes // 512) * 512
