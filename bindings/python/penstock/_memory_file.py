"""Models that are bytes in memory: loaded from them, and saved as them."""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional

from . import _core
from ._errors import Error, make
from ._frameworks import framework as framework_named
from ._models import Model, Tensors, checked_tensors, load_tensors, saved_tensor, text_metadata


def load_bytes(data: Any, framework: str, own_storage: bool = False) -> Tensors:
    # A file without a name is checked and read as any other.
    descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC)
    path = f"/proc/self/fd/{descriptor}"
    try:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(descriptor, view):]
        # Copied: a tensor that is mapped would keep all of the file in memory.
        return load_tensors(Model(path, "bytes"), framework_named(framework, own_storage), "cpu", copy=True)
    except Error as error:
        message = error.message.replace(path, "the bytes")
        raise make(error.code, error.system_error, message, error.hint, error.report) from None
    finally:
        os.close(descriptor)


def save_bytes(tensors: Mapping[str, Any], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    saved, contents = [], []
    for name, frame, value in checked_tensors(tensors):
        each, owner = saved_tensor(name, frame, value)
        saved.append(each)
        contents.append((frame, owner))
    head, order = _core.safetensors_head(saved, text_metadata(metadata))
    return b"".join([head, *(contents[index][0].copy_bytes(contents[index][1]) for index in order)])
