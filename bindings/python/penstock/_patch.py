"""Programs that use safetensors, unchanged: its functions are replaced by ours, and so transformers and diffusers load
through Penstock."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import sys
from typing import Any, Callable, Iterable, Mapping, Sequence

from . import _errors
from ._models import Tensors
from ._safe_open import safe_open as ours

# How safetensors does it: whatever is cached is mapped, wherever it lies, and tensors share no storage.
AS_THEIRS = {"own_storage": True}

OPENED = "filename", "framework", "device"
FILE = "filename", "device"
MODULE = "model", "filename", "strict", "device"

_replaced: list[tuple[Any, Any]] = []  # what safetensors has, and what stands in its place


def patch() -> None:
    """Replaces load_file, load, save_file, load_model, save_model and safe_open of safetensors, also where they were
    imported by name.

    What Penstock has no memory for (other frameworks, other devices) goes to safetensors as before. Errors are of the
    kinds that penstock raises, and are SafetensorErrors too. Tensors have storages of their own, as with safetensors:
    there are programs that take tensors of one storage for the same.
    """
    if _replaced:
        return
    import safetensors

    pairs: list[tuple[Any, Any]] = [(safetensors.safe_open, _safe_open(safetensors.safe_open))]
    if importlib.util.find_spec("numpy") is not None:
        import safetensors.numpy as theirs_numpy

        from . import numpy as ours_numpy

        pairs += [
            (theirs_numpy.load_file, _fitting(theirs_numpy.load_file, ours_numpy.load_file, FILE)),
            (theirs_numpy.load, _loading_bytes(theirs_numpy.load, ours_numpy.load)),
            (theirs_numpy.save_file, _saving(theirs_numpy.save_file, ours_numpy.save_file, "tensor_dict")),
        ]
    if importlib.util.find_spec("torch") is not None:
        import safetensors.torch as theirs_torch

        from . import torch as ours_torch

        pairs += [
            (theirs_torch.load_file, _fitting(theirs_torch.load_file, ours_torch.load_file, FILE)),
            (theirs_torch.load, _loading_bytes(theirs_torch.load, functools.partial(ours_torch.load, own_storage=True))),
            (theirs_torch.save_file, _saving(theirs_torch.save_file, ours_torch.save_file, "tensors")),
            (theirs_torch.load_model, _fitting(theirs_torch.load_model, ours_torch.load_model, MODULE)),
            (theirs_torch.save_model, _saving(theirs_torch.save_model, ours_torch.save_model, "model")),
        ]
    _replaced.extend(pairs)
    _swap({id(theirs): ours for theirs, ours in pairs})
    _errors.also = safetensors.SafetensorError


def unpatch() -> None:
    """Puts back what patch() replaced."""
    _swap({id(ours): theirs for theirs, ours in _replaced})
    _replaced.clear()
    _errors.also = None


def _swap(replacements: dict[int, Any]) -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "penstock" or not hasattr(module, "__dict__"):
            continue
        for key, value in list(vars(module).items()):
            if id(value) in replacements:
                setattr(module, key, replacements[id(value)])


def _fitting(theirs: Callable, ours: Callable, names: Sequence[str]) -> Callable:
    """Ours, where a file and a place are given that we have; else theirs. `names` are those of the arguments."""

    @functools.wraps(theirs)
    def choose(*arguments: Any, **named: Any) -> Any:
        if not _fits({**dict(zip(names, arguments)), **named}):
            return theirs(*arguments, **named)
        return _ours_or_theirs(lambda: _plain(ours(*arguments, **named, **AS_THEIRS)),
                               lambda: theirs(*arguments, **named))

    return choose


def _loading_bytes(theirs: Callable, ours: Callable) -> Callable:
    @functools.wraps(theirs)
    def load(data: Any) -> Any:
        return _ours_or_theirs(lambda: _plain(ours(data)), lambda: theirs(data))

    return load


def _ours_or_theirs(ours: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
    """Theirs is asked about what ours takes for wrong: it is less strict with files. If it refuses too, our error says
    more."""
    try:
        return ours()
    except _errors.InvalidError as error:
        if isinstance(error, _errors.MismatchError):
            raise
        try:
            return theirs()
        except Exception:
            raise error from None


def _plain(loaded: Any) -> Any:
    """As theirs gives it: there are programs that take no other dict for one."""
    return dict(loaded) if isinstance(loaded, Tensors) else loaded


def _safe_open(theirs: type) -> type:
    """A class, as theirs is: programs ask whether something is one, and write it into their types."""

    class Opening(type):
        def __call__(cls, *arguments: Any, **named: Any) -> Any:
            if not _fits({**dict(zip(OPENED, arguments)), **named}):
                return theirs(*arguments, **named)
            return _ours_or_theirs(lambda: super(Opening, cls).__call__(*arguments, **named, **AS_THEIRS),
                                   lambda: theirs(*arguments, **named))

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (ours, theirs))

    return Opening("safe_open", (ours,), {"__doc__": theirs.__doc__, "__module__": "safetensors"})


def _fits(given: dict[str, Any]) -> bool:
    return isinstance(given.get("filename"), (str, os.PathLike)) and \
        all(_is_ours(given[key]) for key in ("framework", "device") if key in given)


def _is_ours(place: Any) -> bool:
    """A framework or a device, by whatever name; no device is the CPU."""
    name = f"cuda:{place}" if isinstance(place, int) else str(place)
    return place is None or name in ("pt", "torch", "pytorch", "np", "numpy", "cpu") or name.partition(":")[0] == "cuda"


def _saving(theirs: Callable, ours: Callable, name: str) -> Callable:
    """Ours, where all that is saved lies where we can reach it; else theirs. `name` is that of the first argument."""

    @functools.wraps(theirs)
    def save(*arguments: Any, **named: Any) -> None:
        saved = arguments[0] if arguments else named.get(name)
        if not all(_is_ours(getattr(tensor, "device", None)) for tensor in _tensors_of(saved)):
            return theirs(*arguments, **named)
        # As safetensors leaves it: written, and synced when the system likes.
        ours(*arguments, **named, durable=False)

    return save


def _tensors_of(saved: Any) -> Iterable[Any]:
    """Of a module or a dict."""
    if hasattr(saved, "parameters"):
        return itertools.chain(saved.parameters(), saved.buffers())
    return saved.values() if isinstance(saved, Mapping) else ()
