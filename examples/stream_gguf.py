"""A GGUF model with the shapes of a 70B one, quantized as Q6_K, streamed layer by layer and dequantized by torch.

    stream_gguf.py [--layers 4] [--width 512] [--inner 1024] [--budget 0.6] [--tokens 4] [--device cpu|cuda]
                   [--folder FOLDER] [--cold] [--json]

Makes the file with random weights, runs tokens through all layers with penstock.Layers, and compares tokens a second with
a mapping of the file that torch copies from. The result is compared, too. Needs torch.

For a GPU, with the shapes of a 70B model: --layers 80 --width 8192 --inner 28672 --device cuda (56 GB; fewer layers where
the disk is smaller).
"""

import argparse
import ctypes
import importlib.util
import json
import mmap
import os
import struct
import sys
import tempfile

import penstock
from streaming import Race

Q6_K, BLOCK, BLOCK_BYTES = 14, 256, 210
ALIGNMENT = 32
HEADS_BY_KV_HEADS = 8


def shapes(options):
    """Of a layer: (name, rows, columns)."""
    width, inner, narrow = options.width, options.inner, options.width // HEADS_BY_KV_HEADS
    return [("attn_q", width, width), ("attn_k", narrow, width), ("attn_v", narrow, width), ("attn_output", width, width),
            ("ffn_gate", inner, width), ("ffn_up", inner, width), ("ffn_down", width, inner)]


def random_blocks(torch, count, columns, device):
    """Blocks of Q6_K: 4 low bits and 2 high ones of 256 numbers, 16 scales, and a factor that keeps sums near 1."""
    blocks = torch.randint(256, (count, BLOCK_BYTES), dtype=torch.uint8, device=device)
    blocks[:, 192:208] = torch.randint(1, 8, (count, 16), dtype=torch.uint8, device=device)
    factor = struct.pack("<e", 0.012 * columns ** -0.5)
    blocks[:, 208:] = torch.tensor(list(factor), dtype=torch.uint8, device=device)
    return blocks.cpu()


def save_model(torch, path, options, device):
    """Returns where each tensor is: its offset, rows and columns."""
    torch.manual_seed(1)
    tensors = [(f"blk.{layer}.{name}.weight", rows, columns) for layer in range(options.layers)
               for name, rows, columns in shapes(options)]

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    offset, places = 0, {}
    for name, rows, columns in tensors:
        head += text(name) + struct.pack("<IQQIQ", 2, columns, rows, Q6_K, offset)
        places[name] = offset, rows, columns
        offset += -(-rows * columns // BLOCK * BLOCK_BYTES // ALIGNMENT) * ALIGNMENT
    begin = -(-len(head) // ALIGNMENT) * ALIGNMENT
    made = {(rows, columns): random_blocks(torch, rows * columns // BLOCK, columns, device)
            for rows, columns in sorted({tensor[1:] for tensor in tensors})}
    with open(path, "wb") as file:
        file.write(head)
        for number, (name, rows, columns) in enumerate(tensors):
            blocks = made[rows, columns]
            blocks[::7, 0] = number % 256  # no two layers are alike
            file.seek(begin + places[name][0])
            file.write((ctypes.c_char * blocks.numel()).from_address(blocks.data_ptr()))
        file.truncate(begin + offset)
    return {name: (begin + at, rows, columns) for name, (at, rows, columns) in places.items()}


def dequantize(torch, weights, rows, columns, dtype):
    """Q6_K, as ggml defines it."""
    blocks = weights.view(-1, BLOCK_BYTES)
    low = blocks[:, :128].view(-1, 2, 2, 32)
    high = blocks[:, 128:192].view(-1, 2, 1, 32)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).view(-1, 2, 4, 2, 1).to(dtype)
    factor = blocks[:, 208:].contiguous().view(torch.float16).to(dtype)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=weights.device).view(1, 1, 4, 1)
    fours = torch.cat((low & 15, low >> 4), 2)
    numbers = (fours | (((high >> shifts) & 3) << 4)).to(dtype) - 32
    scaled = numbers.view(-1, 2, 4, 2, 16) * scales
    return (scaled.view(-1, BLOCK) * factor).view(rows, columns)


def run_layer(torch, x, weight):
    """A layer with the matrices of a Llama-shaped model, for a token without others before it: no scores to compare, so
    those of queries and keys only weigh the value."""
    functional = torch.nn.functional
    normed = functional.layer_norm(x, x.shape[-1:])
    scores = (functional.linear(normed, weight("attn_q")).mean() + functional.linear(normed, weight("attn_k")).mean())
    values = functional.linear(normed, weight("attn_v")).repeat_interleave(HEADS_BY_KV_HEADS, -1)
    x = x + functional.linear(values * torch.sigmoid(scores), weight("attn_output"))
    normed = functional.layer_norm(x, x.shape[-1:])
    gated = functional.silu(functional.linear(normed, weight("ffn_gate"))) * functional.linear(normed, weight("ffn_up"))
    return x + functional.linear(gated, weight("ffn_down"))


def main(options, folder):
    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float32 if device == "cpu" else torch.float16
    path = os.path.join(folder, "model.gguf")
    places = save_model(torch, path, options, device)
    size = os.path.getsize(path)
    budget = int(size * options.budget)
    race = Race(torch, device, folder, options)

    def measure(name, run_all):
        def run(count):
            random = torch.Generator().manual_seed(2)
            with torch.no_grad():
                for _ in range(count):
                    output = run_all(torch.randn(1, options.width, generator=random).to(device, dtype))
            return output

        race.run(name, run)

    with penstock.Layers(path, budget=budget, device=device) as layers:
        def streamed(x):
            for layer in range(options.layers):
                with layers.use(f"blk.{layer}") as tensors:
                    def weight(name):
                        full = f"blk.{layer}.{name}.weight"
                        return dequantize(torch, tensors[full], *places[full][1:], dtype)

                    x = run_layer(torch, x, weight)
            return x

        measure("penstock.Layers", streamed)
        report = layers.report

    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def mapped(x):
        for layer in range(options.layers):
            def weight(name):
                offset, rows, columns = places[f"blk.{layer}.{name}.weight"]
                stored = torch.frombuffer(memory, dtype=torch.uint8, count=rows * columns // BLOCK * BLOCK_BYTES,
                                          offset=offset)
                return dequantize(torch, stored.to(device, copy=True), rows, columns, dtype)

            x = run_layer(torch, x, weight)
        return x

    measure("a mapping, copied by torch", mapped)
    if not torch.isfinite(race.outputs["penstock.Layers"]).all() or not torch.equal(*race.outputs.values()):
        sys.exit("the two compute something else")
    acquires = report["hits"] + report["waits"]
    if options.json:
        print(json.dumps({"model_bytes": size, "budget_bytes": budget, "device": device, "cold": options.cold,
                          "tokens_per_second": race.speeds, "hits": report["hits"], "acquires": acquires,
                          "wait_seconds": report["wait_seconds"], "loaded_bytes": report["loaded_bytes"]}))
        return
    print(f"{size / 1e6:.1f} MB of Q6_K through {budget / 1e6:.1f} MB on {device}: {report['hits']} of {acquires} acquires "
          f"found their layer there")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512, help="a multiple of 256")
    parser.add_argument("--inner", type=int, default=1024, help="a multiple of 256")
    parser.add_argument("--budget", type=float, default=0.6, help="of the size of the model")
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--device")
    parser.add_argument("--folder", help="for the model; a temporary one by default")
    parser.add_argument("--cold", action="store_true", help="with the page cache dropped before each run")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("skipped: torch is not installed")
        sys.exit(77)
    given = parse()
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        main(given, made)
