"""A Llama-shaped model that is larger than the memory for it, streamed layer by layer through a part of its size.

    stream_llama.py [--layers 8] [--width 256] [--vocabulary 2000] [--budget 0.25] [--tokens 8] [--batch 4]
                    [--device cpu|cuda] [--folder FOLDER] [--cold] [--json]

Makes the model with random weights, generates tokens with penstock.Layers, and compares tokens a second with a mapping
that torch copies from, and with accelerate's disk offload where it is installed. The result is compared, too. Needs torch.

For a GPU: --layers 32 --width 4096 --vocabulary 32000 --device cuda --tokens 16 (13 GB in BF16).
"""

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile

import penstock
from streaming import Mapped, Race


def make_classes(torch):
    functional = torch.nn.functional

    class Norm(torch.nn.Module):
        def __init__(self, width, **where):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(width, **where))

        def forward(self, x):
            return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5).to(x.dtype) * self.weight

    class Attention(torch.nn.Module):
        """With rotary positions. `kept` has the keys and values of earlier tokens; None: there are none."""

        def __init__(self, width, heads, **where):
            super().__init__()
            self.heads, self.size = heads, width // heads
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                setattr(self, name, torch.nn.Linear(width, width, bias=False, **where))

        def forward(self, x, kept):
            batch, tokens, width = x.shape
            q, k, v = (each(x).view(batch, tokens, self.heads, self.size).transpose(1, 2)
                       for each in (self.q_proj, self.k_proj, self.v_proj))
            first = 0 if kept is None else kept[0].shape[2]
            q, k = self.turn(q, first), self.turn(k, first)
            if kept is not None:
                k, v = torch.cat((kept[0], k), 2), torch.cat((kept[1], v), 2)
            scores = (q @ k.transpose(2, 3)).float() / self.size ** 0.5
            later = torch.ones(tokens, k.shape[2], dtype=torch.bool, device=x.device).triu(first + 1)
            weights = scores.masked_fill(later, float("-inf")).softmax(-1).to(x.dtype)
            return self.o_proj((weights @ v).transpose(1, 2).reshape(batch, tokens, width)), (k, v)

        def turn(self, x, first):
            half = self.size // 2
            frequencies = 10000 ** (-torch.arange(half, device=x.device) / half)
            angles = torch.arange(first, first + x.shape[2], device=x.device)[:, None] * frequencies
            cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
            a, b = x[..., :half], x[..., half:]
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    class Layer(torch.nn.Module):
        def __init__(self, width, heads, **where):
            super().__init__()
            inner = width * 8 // 3 // 64 * 64
            self.input_layernorm = Norm(width, **where)
            self.self_attn = Attention(width, heads, **where)
            self.post_attention_layernorm = Norm(width, **where)
            self.gate_proj = torch.nn.Linear(width, inner, bias=False, **where)
            self.up_proj = torch.nn.Linear(width, inner, bias=False, **where)
            self.down_proj = torch.nn.Linear(inner, width, bias=False, **where)

        def forward(self, x, kept):
            attended, kept = self.self_attn(self.input_layernorm(x), kept)
            x = x + attended
            y = self.post_attention_layernorm(x)
            return x + self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y)), kept

    class Llama(torch.nn.Module):
        def __init__(self, layers, width, vocabulary, **where):
            super().__init__()
            heads = max(1, width // 128)
            self.embed_tokens = torch.nn.Embedding(vocabulary, width, **where)
            self.layers = torch.nn.ModuleList(Layer(width, heads, **where) for _ in range(layers))
            self.norm = Norm(width, **where)
            self.lm_head = torch.nn.Linear(width, vocabulary, bias=False, **where)

        def forward(self, tokens, kept):
            x = self.embed_tokens(tokens)
            now_kept = []
            for layer, each in zip(self.layers, kept):
                x, keys_and_values = layer(x, each)
                now_kept.append(keys_and_values)
            return self.lm_head(self.norm(x[:, -1:])), now_kept

    return Llama


def save_model(torch, model, folder, device, dtype):
    """One file for each submodule with weights of its own, so that no more than one is in memory at a time."""
    torch.manual_seed(1)
    children = [("embed_tokens", model.embed_tokens), ("norm", model.norm), ("lm_head", model.lm_head)]
    children += [(f"layers.{i}", layer) for i, layer in enumerate(model.layers)]
    for name, child in children:
        tensors = {}
        for own, parameter in child.named_parameters():
            scale = 1.0 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            make = torch.ones if parameter.dim() == 1 else torch.randn
            tensors[f"{name}.{own}"] = (make(parameter.shape, device=device) * scale).to(dtype).cpu()
        penstock.save_file(tensors, os.path.join(folder, f"{name}.safetensors"), {"format": "pt"})


def generator(torch, model, device, batch, vocabulary):
    """A function that generates so many tokens, from the same beginning each time, and gives the last logits."""
    def generate(count):
        tokens = torch.arange(batch * 4, device=device).view(batch, 4) * 7 % vocabulary
        kept = [None] * len(model.layers)
        with torch.no_grad():
            for _ in range(count):
                logits, kept = model(tokens, kept)
                tokens = logits.argmax(-1)
        return logits
    return generate


def offloaded(torch, model, folder, device):
    """By accelerate, everything on disk but the last norm, which tells it where to compute."""
    import accelerate

    names = ["embed_tokens", "lm_head", *(f"layers.{i}" for i in range(len(model.layers)))]
    places = {name: "disk" for name in names}
    places["norm"] = 0 if device != "cpu" else "cpu"
    files = {}
    for name in [*names, "norm"]:
        files.update({f"{name}.{own}": f"{name}.safetensors" for own, _ in model.get_submodule(name).named_parameters()})
    index = os.path.join(folder, "model.safetensors.index.json")
    with open(index, "w", encoding="utf-8") as file:
        json.dump({"metadata": {}, "weight_map": files}, file)
    return accelerate.load_checkpoint_and_dispatch(model, index, device_map=places, offload_folder=folder + ".offload",
                                                   no_split_module_classes=["Layer"])


def main(options, folder):
    import torch

    Llama = make_classes(torch)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float32 if device == "cpu" else torch.bfloat16

    def empty():
        return Llama(options.layers, options.width, options.vocabulary, device="meta", dtype=dtype).eval()

    save_model(torch, empty(), folder, device, dtype)
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    budget = int(size * options.budget)
    race = Race(torch, device, folder, options)

    def measure(name, model):
        race.run(name, generator(torch, model, device, options.batch, options.vocabulary), options.batch)

    model = empty()
    with penstock.Layers(folder, budget=budget, device=device) as layers:
        layers.attach(model)
        measure("penstock.Layers", model)
        layers.check()  # the race has waited for the GPU
        report = layers.report
    model = empty()
    Mapped(torch, folder).attach(torch, model, layers.groups, device)
    measure("a mapping, copied by torch", model)
    if importlib.util.find_spec("accelerate") is not None:
        measure("accelerate, disk offload", offloaded(torch, empty(), folder, device))
        shutil.rmtree(folder + ".offload", ignore_errors=True)
    for name, output in race.outputs.items():
        if not torch.allclose(output, race.outputs["penstock.Layers"], atol=1e-2, rtol=1e-2):
            sys.exit(f"{name} computes something else")
    acquires = report["hits"] + report["waits"]
    if options.json:
        print(json.dumps({"model_bytes": size, "budget_bytes": budget, "device": device, "cold": options.cold,
                          "tokens_per_second": race.speeds, "hits": report["hits"], "acquires": acquires,
                          "wait_seconds": report["wait_seconds"], "loaded_bytes": report["loaded_bytes"]}))
        return
    print(f"{size / 1e6:.1f} MB through {budget / 1e6:.1f} MB on {device}: {report['hits']} of {acquires} acquires found "
          f"their layer there, {report['loaded_bytes'] / 1e6:.1f} MB loaded")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--budget", type=float, default=0.25, help="of the size of the model")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
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
