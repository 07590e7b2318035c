"""Programs that use safetensors, unchanged: its functions are replaced by ours, and so transformers and diffusers load
through Penstock."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from typing import Any, Callable

from . import _errors

_replaced: list[tuple[Any, Any]] = []  # what safetensors has, and what stands in its place


def patch() -> None:
    """Replaces load_file, load, save_file and safe_open of safetensors, also where they were imported by name.

    What Penstock has no memory for (other frameworks, other devices) goes to safetensors as before. Errors are of the
    kinds that penstock raises, and are SafetensorErrors too.
    """
    if _replaced:
        return
    import safetensors
    import safetensors.numpy as theirs_numpy

    from . import numpy as ours_numpy
    from ._safe_open import safe_open

    def mapping(ours: Callable) -> Callable:
        """As safetensors does it: whatever is cached is mapped, wherever it lies."""
        return functools.partial(ours, copy=False)

    pairs = [
        (safetensors.safe_open, _fitting(safetensors.safe_open, mapping(safe_open))),
        (theirs_numpy.load_file, _fitting(theirs_numpy.load_file, mapping(ours_numpy.load_file))),
        (theirs_numpy.load, ours_numpy.load),
        (theirs_numpy.save_file, _without_report(theirs_numpy.save_file, ours_numpy.save_file)),
    ]
    if importlib.util.find_spec("torch") is not None:
        import safetensors.torch as theirs_torch

        from . import torch as ours_torch

        pairs += [
            (theirs_torch.load_file, _fitting(theirs_torch.load_file, mapping(ours_torch.load_file))),
            (theirs_torch.load, ours_torch.load),
            (theirs_torch.save_file, _without_report(theirs_torch.save_file, ours_torch.save_file)),
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


def _fitting(theirs: Callable, ours: Callable) -> Callable:
    """Ours, where a file and a place are given that we have; else theirs."""

    @functools.wraps(theirs)
    def choose(filename: Any, *arguments: Any, **named: Any) -> Any:
        place = [*arguments, *(named[key] for key in ("framework", "device") if key in named)]
        return (ours if isinstance(filename, (str, os.PathLike)) and all(map(_is_ours, place)) else theirs)(
            filename, *arguments, **named)

    return choose


def _is_ours(place: Any) -> bool:
    """A framework or a device, by whatever name."""
    name = f"cuda:{place}" if isinstance(place, int) else str(place)
    return name in ("pt", "torch", "pytorch", "np", "numpy") or name == "cpu" or name.partition(":")[0] == "cuda"


def _without_report(theirs: Callable, ours: Callable) -> Callable:
    @functools.wraps(theirs)
    def save(*arguments: Any, **named: Any) -> None:
        # As safetensors leaves it: written, and synced when the system likes.
        ours(*arguments, **named, durable=False)

    return save
