"""Models for the tests: files that say what a test wants, made without the code under test."""

import json
import math
import os
import struct

BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
        "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64}


def size_of(dtype, shape):
    return math.prod(shape) * BITS[dtype] // 8


def header(tensors, metadata=None, **changes):
    """`tensors`: (name, dtype, shape) in the order of the file."""
    entries, end = {}, 0
    if metadata:
        entries["__metadata__"] = metadata
    for name, dtype, shape in tensors:
        begin, end = end, end + size_of(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    entries.update(changes)
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text, end


def write_model(path, tensors, metadata=None, content=os.urandom):
    """Says which bytes each tensor has. `content` makes them; none: the file is sparse."""
    head, size = header(tensors, metadata)
    with open(path, "wb") as file:
        file.write(head)
        if content is None:
            file.truncate(len(head) + size)
            return None
        data = content(size)
        file.write(data)
    begin, parts = 0, {}
    for name, dtype, shape in tensors:
        end = begin + size_of(dtype, shape)
        parts[name], begin = data[begin:end], end
    return parts


def write_gguf(path, metadata, tensors):
    """`tensors`: (name, type, dimensions fastest first, bytes)."""
    def text(value):
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += text(key) + struct.pack("<I", 8) + text(value)
    data = b""
    for name, kind, dimensions, content in tensors:
        out += text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, len(data))
        data += content + bytes(-len(content) % 32)
    path.write_bytes(out + bytes(-len(out) % 32) + data)


def raw(tensor):
    """The bytes of a tensor of torch or an array of NumPy."""
    if not hasattr(tensor, "detach"):
        return tensor.tobytes()
    import torch
    return b"" if tensor.numel() == 0 else tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
