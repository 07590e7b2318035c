"""As safetensors.torch: models as dicts of torch's tensors, and modules."""

from __future__ import annotations

from typing import Any, Collection, Mapping, Optional

from . import _models
from ._errors import invalid, mismatch
from ._memory_file import load_bytes, save_bytes
from ._models import Tensors, layout_of
from ._report import Report


def load_file(filename: Any, device: Any = "cpu", *, backend: Optional[str] = None, **options: Any) -> Tensors:
    """Tensors by name. `options` are those of penstock.load_file; `backend`, safetensors' way of reading, has no effect."""
    return _models.load_file(filename, device, "pt", **options)


def load(data: bytes, *, own_storage: bool = False) -> Tensors:
    return load_bytes(data, "pt", own_storage)


def save_file(tensors: Mapping[str, Any], filename: Any, metadata: Optional[Mapping[str, str]] = None,
              **options: Any) -> Report:
    """`options` are those of penstock.save_file. Tensors that share memory are refused: save_model knows them."""
    check_no_sharing(tensors)
    return _models.save_file(tensors, filename, metadata, **options)


def save(tensors: Mapping[str, Any], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    check_no_sharing(tensors)
    return save_bytes(tensors, metadata)


def save_model(model: Any, filename: str, metadata: Optional[Mapping[str, str]] = None, force_contiguous: bool = True,
               **options: Any) -> Report:
    """Saves a module. Of names for the same memory one that means all of it is saved; the metadata says which the others
    are, where it has no such name already."""
    state = model.state_dict()
    check_tensors(state)
    aliases = {}
    for names in shared_groups(state):
        kept = kept_of(names, state)
        if kept is None:
            raise mismatch(f"{sorted(names)} overlap in memory, and none of them has all of it",
                           "clone what is to be saved")
        aliases.update(dict.fromkeys(set(names) - {kept}, kept))
    saved = {name: tensor for name, tensor in state.items() if name not in aliases}
    if force_contiguous:
        saved = {name: tensor.contiguous() for name, tensor in saved.items()}
    return _models.save_file(saved, filename, {**aliases, **(metadata or {})}, **options)


class Loaded(tuple):
    """(missing, unexpected), as safetensors says it."""

    report: Report


def load_model(model: Any, filename: Any, strict: bool = True, device: Any = "cpu", *, backend: Optional[str] = None,
               **options: Any) -> Loaded:
    """Fills a module; says which of its names the file has not, and which names of the file it has not. The pair has
    the report of the load, as `report`.

    A name that stands for the memory of one that the file has, or for a part of it, is not missing; if the file has both,
    it is unexpected. With `strict`, either is refused, when the module has been filled already, as with safetensors.
    """
    tensors = load_file(filename, device, **options)
    state = _models.tensors_in(model)
    try:
        missing, unexpected = model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:  # other shapes
        raise mismatch(f"{filename}: {error}", "give a module that is made as the one that was saved") from None
    missing = set(missing)
    for names in shared_groups(state):
        kept = kept_of(names, state, tensors)
        if kept is not None:
            others = set(names) - {kept}
            missing -= others
            unexpected += sorted(others & tensors.keys())
    if strict and (missing or unexpected):
        raise mismatch(f"{filename}: missing are {sorted(missing)}, unexpected {sorted(unexpected)}",
                       "give strict=False to load what both have")
    loaded = Loaded((missing, unexpected))
    loaded.report = tensors.report
    return loaded


def check_tensors(tensors: Mapping[str, Any]) -> None:
    import torch

    _models.check_mapping(tensors)
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise invalid(f"{name!r} is a {type(tensor).__name__}", "give tensors of torch")


def check_no_sharing(tensors: Mapping[str, Any]) -> None:
    check_tensors(tensors)
    groups = shared_groups(tensors)
    if groups:
        raise mismatch(f"tensors share memory: {[sorted(names) for names in groups]}",
                       "save a module with save_model, or clone them")


def span_of(tensor: Any) -> tuple[int, int]:
    """The memory between its first and last element."""
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def shared_groups(tensors: Mapping[str, Any]) -> list[list[str]]:
    """Names of tensors that overlap, group by group."""
    spans = sorted(((str(tensor.device), *span_of(tensor), name) for name, tensor in tensors.items()
                    if str(tensor.layout) == "torch.strided" and tensor.numel() and tensor.device.type != "meta"))
    groups: list[list[str]] = []
    device, reach = "", 0
    for where, begin, end, name in spans:
        if where == device and begin < reach:
            groups[-1].append(name)
        else:
            groups.append([name])
            reach = 0
        device, reach = where, max(reach, end)
    return [names for names in groups if len(names) > 1]


def kept_of(names: Collection[str], tensors: Mapping[str, Any], preferred: Collection[str] = ()) -> Optional[str]:
    """Of names for the same memory one that means all of it: the first, or the first of those that are preferred."""
    spans = [span_of(tensors[name]) for name in names]
    all_of_it = min(begin for begin, _ in spans), max(end for _, end in spans)
    same = len({layout_of(tensors[name]) for name in names}) == 1
    complete = sorted(name for name in names if same or span_of(tensors[name]) == all_of_it and is_dense(tensors[name]))
    return next((name for name in complete if name in preferred), complete[0] if complete else None)


def is_dense(tensor: Any) -> bool:
    begin, end = span_of(tensor)
    return tensor.numel() * tensor.element_size() == end - begin


__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]
