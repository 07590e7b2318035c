"""As safetensors.torch: models as dicts of torch's tensors, and modules."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from . import _filling, _models, _saving
from ._errors import invalid, mismatch
from ._memory_file import load_bytes, save_bytes
from ._models import Tensors
from ._report import Report
from ._sharing import check_no_sharing, kept_of, shared_groups

ALIGN = 8  # as safetensors


def load_file(filename: Any, device: Any = "cpu", *, backend: Optional[str] = None, **options: Any) -> Tensors:
    """Tensors by name. `options` are those of penstock.load_file. `backend` is safetensors' way to read; here it has no effect."""
    _models.check_backend(backend)
    return _models.load_file(filename, device, "pt", **options)


def load(data: bytes, *, own_storage: bool = False) -> Tensors:
    """Tensors from the bytes of a file."""
    return load_bytes(data, "pt", own_storage)


def save_file(tensors: Mapping[str, Any], filename: Any, metadata: Optional[Mapping[str, str]] = None, *,
              align: int = ALIGN, **options: Any) -> Report:
    """Writes the same bytes as safetensors. `options` are those of penstock.save_file. Tensors that share memory are
    refused: save_model knows them."""
    check_tensors(tensors)
    return _saving.save_file(tensors, filename, metadata, align=align, **options)


def save(tensors: Mapping[str, Any], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    """The bytes of a file, the same as those of safetensors."""
    check_tensors(tensors)
    check_no_sharing(tensors)
    return save_bytes(tensors, metadata)


def save_model(model: Any, filename: str, metadata: Optional[Mapping[str, str]] = None, force_contiguous: bool = True,
               *, align: int = ALIGN, **options: Any) -> Report:
    """Saves a module. Memory with several names is saved once, under a name that covers all of it; the metadata says which
    names were left out, unless it already has such a key."""
    state = model.state_dict()
    check_tensors(state)
    aliases = {}
    for names in shared_groups(state):
        kept = kept_of(names, state)
        if kept is None:
            raise mismatch(f"{sorted(names)} overlap in memory, and none of them has all of it",
                           "clone the tensors to save")
        aliases.update(dict.fromkeys(set(names) - {kept}, kept))
    saved = {name: tensor for name, tensor in state.items() if name not in aliases}
    if force_contiguous:
        saved = {name: tensor.contiguous() for name, tensor in saved.items()}
    told = {**aliases, **(metadata or {})} if aliases else metadata
    return _saving.save_checked(saved, filename, told, align, **options)


class Loaded(tuple[Any, ...]):
    """(missing, unexpected), as safetensors says it."""

    report: Report


def load_model(model: Any, filename: Any, strict: bool = True, device: Any = "cpu", *, backend: Optional[str] = None,
               **options: Any) -> Loaded:
    """Fills a module, and returns the names that are missing in the file and those that are unexpected there. The pair
    has the `report` of the load.

    A name for memory that the file has under another name is not missing; if the file has both, it is unexpected. With
    `strict`, both are refused. As with safetensors, the module has already been filled then.
    """
    tensors = load_file(filename, device, backend=backend, **options)
    state = _filling.tensors_in(model)
    try:
        missing, unexpected = model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:  # other shapes
        raise mismatch(f"{filename}: {error}", "give a module of the same shape as the saved one") from None
    missing = set(missing)
    for names in shared_groups(state):
        kept = kept_of(names, state, tensors)
        if kept is not None:
            others = set(names) - {kept}
            missing -= others
            unexpected += sorted(others & tensors.keys())
    if strict and (missing or unexpected):
        raise mismatch(f"{filename}: missing: {sorted(missing)}, unexpected: {sorted(unexpected)}",
                       "give strict=False to load what both have")
    loaded = Loaded((missing, unexpected))
    loaded.report = tensors.report
    return loaded


def storage_ptr(tensor: Any) -> int:
    """Where the memory begins that a tensor lies in, maybe together with others."""
    pointer: int = _storage_of(tensor).data_ptr()
    return pointer


def storage_size(tensor: Any) -> int:
    """How many bytes that memory has."""
    size_bytes: int = _storage_of(tensor).nbytes()
    return size_bytes


def _storage_of(tensor: Any) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def check_tensors(tensors: Mapping[str, Any]) -> None:
    import torch

    _saving.check_mapping(tensors)
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise invalid(f"{name!r} is not a torch tensor: {type(tensor).__name__}", "give torch tensors")


__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model", "storage_ptr", "storage_size"]
