"""Models that are bytes in memory: loaded from them, and saved as them."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, Optional

from ._frameworks import framework as framework_named
from ._frameworks import item_bytes
from ._models import Model, Tensors, checked_tensors, load_tensors, text_metadata


def load_bytes(data: Any, framework: str, own_storage: bool = False) -> Tensors:
    # A file without a name is checked and read as any other.
    descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC)
    try:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(descriptor, view):]
        # Copied: a tensor that is mapped would keep all of the file in memory.
        return load_tensors(Model(f"/proc/self/fd/{descriptor}", "bytes"), framework_named(framework, own_storage), "cpu",
                            copy=True)
    finally:
        os.close(descriptor)


def save_bytes(tensors: Mapping[str, Any], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    header: dict[str, Any] = {}
    texts = text_metadata(metadata)
    if texts:
        header["__metadata__"] = texts
    saved = [(name, frame, *frame.to_save(name, value)) for name, frame, value in checked_tensors(tensors)]
    # As save_file does it: larger types first, so that every tensor begins at a multiple of the size of its elements.
    saved.sort(key=lambda each: (-item_bytes(each[2]), each[0]))
    contents = []
    end = 0
    for name, frame, dtype, shape, memory in saved:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + memory.size_bytes]}
        end += memory.size_bytes
        contents.append(frame.copy_bytes(memory.owner))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *contents])
