"""Models of several layouts, made of random bytes without any library that reads them."""

import json
import math
import os
import struct

KIB, MIB = 1 << 10, 1 << 20
_BITS = {"F16": 16, "F32": 32, "BF16": 16, "F8_E4M3": 8, "U8": 8}


def _tensors(count, size, dtype, name="layers.{}.weight", columns=4096):
    """`count` matrices of about `size` bytes in all, with rows of `columns` or fewer elements."""
    elements = max(1, size * 8 // _BITS[dtype] // count)
    columns = min(columns, elements)
    return [(name.format(index), dtype, [elements // columns, columns]) for index in range(count)]


def _bytes_of(dtype, shape):
    return math.prod(shape) * _BITS[dtype] // 8


def _dense(size):
    return [_tensors(max(1, size // (64 * MIB)), size, "F16")]


def _wide(size):
    return [_tensors(max(1, size // (64 * MIB)), size, "F16", columns=28_672)]


def _experts(size):
    return [_tensors(20_000, size, "F16", "layers.experts.{}.weight")]


def _fp8(size):
    tensors = []
    for weight in _tensors(max(1, size // (16 * MIB)), size, "F8_E4M3"):
        rows, columns = weight[2]
        tensors += [weight, (weight[0] + "_scale", "F32", [max(1, rows // 128), max(1, columns // 128)])]
    return [tensors]


def _misaligned(size):
    return [[("a", "U8", [3]), *_tensors(max(1, size // (64 * MIB)), size, "F16")]]


def _sharded(size):
    tensors = _dense(size)[0]
    shards = [tensors[index::4] for index in range(4)]
    return [shard for shard in shards if shard]


def _llama_layer(number, hidden):
    """As in Llama 3: a quarter of the heads for keys and values, 3.5 times the width between."""
    name, wide, narrow = f"model.layers.{number}.", hidden * 7 // 2, hidden // 4
    shapes = {"self_attn.q_proj": [hidden, hidden], "self_attn.k_proj": [narrow, hidden],
              "self_attn.v_proj": [narrow, hidden], "self_attn.o_proj": [hidden, hidden],
              "mlp.gate_proj": [wide, hidden], "mlp.up_proj": [wide, hidden], "mlp.down_proj": [hidden, wide],
              "input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
    return [(f"{name}{part}.weight", "BF16", shape) for part, shape in shapes.items()]


def _llama(size):
    """Four shards in the order of the layers, as they are published; the widest model of which eight layers fit."""
    def ends(hidden):
        vocabulary = hidden * 501 // 16  # 128256 at 4096
        return [[("model.embed_tokens.weight", "BF16", [vocabulary, hidden])],
                [("model.norm.weight", "BF16", [hidden]), ("lm_head.weight", "BF16", [vocabulary, hidden])]]

    def bytes_in(tensors):
        return sum(_bytes_of(dtype, shape) for _, dtype, shape in tensors)

    def layers_that_fit(hidden):
        return (size - sum(map(bytes_in, ends(hidden)))) // bytes_in(_llama_layer(0, hidden))

    hidden = next((width for width in (4096, 2048, 1024, 512, 256, 128) if layers_that_fit(width) >= 8), 64)
    first, last = ends(hidden)
    tensors = [*first, *(tensor for number in range(max(4, layers_that_fit(hidden)))
                         for tensor in _llama_layer(number, hidden)), *last]
    shards, limit = [[]], bytes_in(tensors) / 4
    for tensor in tensors:
        if len(shards) < 4 and shards[-1] and bytes_in(shards[-1]) + bytes_in([tensor]) > limit:
            shards.append([])
        shards[-1].append(tensor)
    return shards


LAYOUTS = {"dense": _dense, "wide": _wide, "experts": _experts, "fp8": _fp8, "misaligned": _misaligned, "sharded": _sharded,
           "llama": _llama}


def make(folder, layout, size):
    """The files of a model, made unless they are there; a name says what is in them."""
    shards = LAYOUTS[layout](size)
    folder = os.path.join(folder, f"{layout}-{size // MIB}")
    os.makedirs(folder, exist_ok=True)
    paths = []
    for number, tensors in enumerate(shards):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        paths.append(os.path.join(folder, name))
        if not os.path.exists(paths[-1]):
            _write(paths[-1], tensors, odd=layout == "misaligned")
    if len(shards) > 1:
        weights = {name: os.path.basename(path) for path, tensors in zip(paths, shards) for name, _, _ in tensors}
        with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
            total = sum(_bytes_of(dtype, shape) for tensors in shards for _, dtype, shape in tensors)
            json.dump({"metadata": {"total_size": total}, "weight_map": weights}, file)
    return paths


def _write(path, tensors, odd):
    header, place = {}, 0
    for name, dtype, shape in tensors:
        end = place + _bytes_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    # As safetensors pads it: where tensors begin has nothing to do with pages.
    text += b" " * (-len(text) % 8 + (1 if odd else 0))
    head = struct.pack("<Q", len(text)) + text
    block = os.urandom(16 * MIB + 4099)
    size = len(head) + place
    with open(path + ".part", "wb", buffering=0) as file:
        # At multiples of the block, as bench/make_file.cc does: the page cache may keep other pieces in smaller pages.
        for offset in range(0, size, 16 * MIB):
            # From another place each time, so that no two parts of the file are alike.
            begin = offset // (16 * MIB) * 61 % 4099
            piece = memoryview(block)[begin:begin + min(16 * MIB, size - offset)]
            front = head[offset:offset + 16 * MIB]
            file.write(front + bytes(piece[len(front):]) if front else piece)
        os.fsync(file.fileno())
    os.rename(path + ".part", path)


def files_of(model):
    """Of a file, or of a folder of shards."""
    if not os.path.isdir(model):
        return [model]
    return sorted(os.path.join(model, name) for name in os.listdir(model) if name.endswith(".safetensors"))


def header_of(path):
    """Where a file's tensors are, read in the plainest way: name to (begin, end) in the file."""
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {name: tuple(8 + length + offset for offset in entry["data_offsets"]) for name, entry in header.items()}
