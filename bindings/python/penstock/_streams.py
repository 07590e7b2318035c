"""Streams of CUDA, and what they still do with memory."""

from __future__ import annotations

import operator
from typing import Any, Sequence

from . import _core
from ._arguments import named
from ._frameworks import framework as framework_named
from ._memory import Memory
from ._modules import loaded


def wait_for_streams(memories: Sequence[Memory], stream: Any) -> None:
    """What streams still do with memory of a GPU comes first."""
    waited = set()
    for memory in memories:
        if memory.domain == "host":
            continue
        handle = memory.stream if stream is None else stream_handle(stream)
        if handle is None or memory.size_bytes == 0:
            continue
        domain = on_its_gpu(memory, "indices").domain
        if (domain, handle) not in waited:
            waited.add((domain, handle))
            torch = loaded("torch")
            if torch is not None and torch.cuda.is_initialized():
                framework_named("pt").check_not_captured(domain)
            _core.wait_for_stream(domain, handle)


def stream_handle(stream: Any) -> int:
    """Of a stream of torch or CuPy, or of CUDA's own handle."""
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    try:
        return operator.index(stream)
    except TypeError:
        raise TypeError(f"stream must be one of torch or CuPy, or the handle of CUDA, and is {stream!r}") from None


def on_its_gpu(memory: Memory, argument: str) -> Memory:
    """With the GPU that it is of."""
    if memory.domain != "cuda":
        return memory
    return memory._replace(domain=named(argument, lambda: _core.find_cuda_domain(memory.pointer, memory.size_bytes)))
