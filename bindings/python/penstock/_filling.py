"""Tensors that exist, filled in place with what a model has."""

from __future__ import annotations

from array import array
from typing import Any, Iterable, Mapping, Optional

from . import _core
from ._context import Context, context_of
from ._errors import invalid, mismatch
from ._frameworks import framework as framework_named
from ._frameworks import framework_of
from ._memory import count_as_written, memory_of
from ._models import Model
from ._report import Progress, Report, log, told
from ._sharing import layout_of


def load_into(target: Any, filename: Any, *, strict: bool = True, context: Optional[Context] = None,
              progress: Progress = None) -> Report:
    """Fills the parameters and buffers of a torch module, or the tensors of a dict, in place.

    Compares names, shapes and types before it reads a byte. With `strict`, both sides must have the same names, and the
    file must have a tensor of several names only once. Otherwise it fills what both sides have; if the file has a tensor
    under several names, the last one wins. After a failed load the tensors hold neither the old nor the new content.
    """
    model = Model(filename, context=context)
    tensors = tensors_in(target)
    in_both = {name: value for name, value in tensors.items() if name in model.by_name}
    filled = without_repeats(in_both)
    if strict:
        check_names(model, tensors, filled)
        check_no_repeats(model, in_both, filled)
    groups: dict[str, tuple[list[int], array[int]]] = {}
    owners, spans = [], []
    for name, value in filled.items():
        frame = framework_of(value)
        index = model.by_name[name]
        tensor = model.tensor(index)
        dtype, shape, as_saved = frame.to_save(name, value)
        if tuple(shape) != tensor.shape or dtype != tensor.dtype:
            raise invalid(f"tensor {name!r} is {dtype} {list(shape)} here, {tensor.dtype} {list(tensor.shape)} in the "
                          "file", "give a tensor of that type and shape")
        memory = memory_of(value)
        if memory.pointer != as_saved.pointer:
            raise invalid(f"tensor {name!r} is not laid out in memory as in the file", "give a contiguous one of this "
                          "machine's byte order, neither conjugated nor negated")
        indices, pointers = groups.setdefault(memory.domain, ([], array("Q")))
        indices.append(index)
        pointers.append(memory.pointer)
        owners.append(memory.owner)
        spans.append((memory.domain, memory.pointer, memory.size_bytes, name))
        if memory.domain != "host" and len(pointers) == 1:
            framework_named("pt").settle(memory.domain)
    check_apart(spans)
    loading = _core.load(context_of(context)._core, model.core,
                         [(domain, *lists) for domain, lists in groups.items()], {}, "auto", owners)
    for value in filled.values():
        count_as_written(value)
    report = Report(**loading.wait(told(progress, str(model))))
    log(f"{model}: {len(owners)} tensors", report)
    return report


def tensors_in(target: Any) -> dict[str, Any]:
    if hasattr(target, "state_dict"):
        # Modules may have a state that is no tensor: it is not in the file.
        return {name: value for name, value in target.state_dict().items() if framework_of(value) is not None}
    if not isinstance(target, Mapping):
        raise TypeError(f"{type(target).__name__} is neither a module nor a dict of tensors")
    for name, value in target.items():
        if framework_of(value) is None:
            raise invalid(f"{name!r} is not a tensor: {type(value).__name__}", "give torch tensors or NumPy arrays")
    return dict(target)


def without_repeats(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Of names for the same tensor the last one, which is what remains if all are copied there in turn."""
    last = {layout_of(value): name for name, value in tensors.items()}
    return {name: tensors[name] for name in last.values()}


def check_apart(spans: Iterable[tuple[str, int, int, str]]) -> None:
    """Refuses tensors, as (device, pointer, size, name), that lie in each other: what would be there is a matter of
    luck."""
    ends: dict[str, tuple[int, str]] = {}  # by device: of the one before
    for domain, pointer, size_bytes, name in sorted(span for span in spans if span[2] != 0):
        end, other = ends.get(domain, (0, ""))
        if pointer < end:
            raise mismatch(f"tensors {other!r} and {name!r} overlap in memory", "clone one of them")
        ends[domain] = pointer + size_bytes, name


def check_names(model: Model, tensors: Mapping[str, Any], filled: Mapping[str, Any]) -> None:
    """Refuses names that only one side has, unless they mean a tensor that is filled."""
    done = {layout_of(value) for value in filled.values()}
    missing = sorted(name for name, value in tensors.items()
                     if name not in model.by_name and layout_of(value) not in done)
    unexpected = sorted(model.by_name.keys() - tensors.keys())
    if missing or unexpected:
        raise mismatch(f"{model}: missing: {missing[:5]} ({len(missing)}), unexpected: {unexpected[:5]} "
                      f"({len(unexpected)})", "give strict=False to fill what both have")


def check_no_repeats(model: Model, in_both: Mapping[str, Any], filled: Mapping[str, Any]) -> None:
    """Refuses names for one tensor that each have bytes of their own in the file."""
    by_layout = {layout_of(value): name for name, value in filled.items()}
    for name, value in in_both.items():
        if name not in filled and 0 not in value.shape:
            raise mismatch(f"{model}: {name!r} and {by_layout[layout_of(value)]!r} are one tensor here, and the file has "
                           "both", "give strict=False to fill it with the last of them")
