"""Tensors, saved as safetensors files."""

from __future__ import annotations

import os
from typing import Any, Iterator, Mapping, Optional

from . import _core
from ._arguments import natural, truth
from ._context import Context, context_of
from ._errors import invalid, naming
from ._frameworks import Spec, framework_of
from ._frameworks import framework as framework_named
from ._memory import TORCH_DEVICES
from ._report import Progress, Report, log, told
from ._sharing import check_no_sharing


def save_file(tensors: Mapping[str, Any], filename: Any, metadata: Optional[Mapping[str, str]] = None, *,
              align: int = 4096, durable: bool = True, checksums: bool = False, packed: bool = False,
              context: Optional[Context] = None, progress: Progress = None) -> Report:
    """Saves torch or NumPy tensors as a safetensors file: the whole new file, synced if `durable`, or the old one stays.

    The first tensor begins at a multiple of `align`, so that reads need no copy. With `align=8` the file is byte for byte
    what safetensors writes. With `checksums`, `verify` can check the bytes later. With `packed`, tensors that get at least
    3 % smaller are packed without loss, and only Penstock loads them (docs/packed.md); `align` is then 4096, and
    checksums are recorded. Tensors that share memory are refused, as by safetensors: save one of them, or clone.
    """
    check_mapping(tensors)
    check_no_sharing(tensors)
    align = natural("align", align)
    return save_checked(tensors, filename, metadata, align, durable, checksums, packed, context, progress)


def save_checked(tensors: Mapping[str, Any], filename: Any, metadata: Optional[Mapping[str, str]], align: int,
                 durable: bool = True, checksums: bool = False, packed: bool = False, context: Optional[Context] = None,
                 progress: Progress = None) -> Report:
    saved, owners = [], []
    for name, frame, value in checked_tensors(tensors):
        each, owner = saved_tensor(name, frame, value)
        saved.append(each)
        owners.append(owner)
    for domain in {each[5] for each in saved} - {"host"}:
        framework_named("pt").settle(domain)
    with naming(filename):
        report = Report(**_core.save(context_of(context)._core, os.fsencode(filename), saved,
                                     text_metadata(metadata), align, truth("durable", durable),
                                     truth("checksums", checksums), truth("packed", packed),
                                     told(progress, os.fsdecode(filename))))
    log(f"saved {os.fsdecode(filename)}: {len(saved)} tensors", report)
    return report


def saved_tensor(name: str, frame: Any, value: Any) -> tuple[Spec, Any]:
    """As the core takes it, and whose memory it is."""
    dtype, shape, memory = frame.to_save(name, value)
    return (name, dtype, list(shape), memory.pointer, memory.size_bytes, memory.domain), memory.owner


def check_mapping(tensors: Any) -> None:
    if not isinstance(tensors, Mapping):
        raise invalid(f"{type(tensors).__name__} is not a dict of tensors", "give a dict")


def checked_tensors(tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Each with its name and its framework, as far as a file can have it."""
    check_mapping(tensors)
    for name, value in tensors.items():
        frame = framework_of(value)
        if not is_text(name) or name == "__metadata__":
            raise invalid(f"{name!r} can't be the name of a tensor", "give another string")
        if frame is None:
            raise invalid(f"{name!r} is not a tensor: {type(value).__name__}", "give torch tensors or NumPy arrays")
        if getattr(getattr(value, "device", None), "type", "cpu") not in TORCH_DEVICES:
            raise invalid(f"tensor {name!r} is on {value.device}", "move it to the CPU or a CUDA device")
        yield name, frame, value


def text_metadata(metadata: Optional[Mapping[str, str]]) -> Optional[dict[str, str]]:
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata is a {type(metadata).__name__}, not a dict")
    for key, value in (metadata or {}).items():
        if not is_text(key) or not is_text(value):
            raise invalid(f"metadata: {key!r}: {value!r}", "keys and values must be strings")
    return None if metadata is None else dict(metadata)


def is_text(value: Any) -> bool:
    """A string that UTF-8 has: half of a surrogate pair is none."""
    return isinstance(value, str) and value.encode(errors="ignore").decode() == value
