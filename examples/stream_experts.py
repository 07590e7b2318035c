"""A mixture of experts with a skewed router, whose experts are streamed through a part of their size.

    stream_experts.py [--layers 2] [--experts 64] [--width 128] [--inner 256] [--top-k 2] [--budget 0.5] [--tokens 64]
                      [--device cpu|cuda] [--folder FOLDER] [--cold] [--json]

Makes the model with random weights, runs token after token with penstock.Layers, experts by what the router has chosen,
and compares tokens a second with a mapping that torch copies from. The result is compared, too. Needs torch.

For a GPU: --layers 16 --experts 64 --width 2048 --inner 4096 --device cuda --tokens 256 (52 GB in BF16; less with fewer
layers).
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile

import penstock
from streaming import Mapped, Race


def make_classes(torch):
    functional = torch.nn.functional

    class Expert(torch.nn.Module):
        def __init__(self, width, inner, **where):
            super().__init__()
            self.up = torch.nn.Linear(width, inner, bias=False, **where)
            self.down = torch.nn.Linear(inner, width, bias=False, **where)

        def forward(self, x):
            return self.down(functional.silu(self.up(x)))

    class Layer(torch.nn.Module):
        def __init__(self, options, **where):
            super().__init__()
            self.top_k = options.top_k
            self.mix = torch.nn.Linear(options.width, options.width, bias=False, **where)
            self.router = torch.nn.Linear(options.width, options.experts, **where)
            self.experts = torch.nn.ModuleList(Expert(options.width, options.inner, **where)
                                               for _ in range(options.experts))

        def forward(self, x):
            x = x + torch.tanh(self.mix(x))
            weights, chosen = self.router(x).float().softmax(-1).topk(self.top_k, -1)
            result = torch.zeros_like(x)
            for expert in chosen.unique().tolist():
                rows, places = (chosen == expert).nonzero(as_tuple=True)
                part = self.experts[expert](x[rows]) * weights[rows, places, None].to(x.dtype)
                result.index_add_(0, rows, part)
            return functional.layer_norm(x + result, x.shape[-1:])

    class Experts(torch.nn.Module):
        def __init__(self, options, **where):
            super().__init__()
            self.layers = torch.nn.ModuleList(Layer(options, **where) for _ in range(options.layers))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    return Experts


def save_model(torch, model, folder, device, dtype):
    """A file for each layer. The router's bias makes the i-th expert of a random order as likely as 1 / i."""
    torch.manual_seed(1)
    for number, layer in enumerate(model.layers):
        tensors = {}
        for own, parameter in layer.named_parameters():
            random = torch.randn(parameter.shape, device=device) * parameter.shape[-1] ** -0.5
            if own == "router.bias":
                ranks = torch.randperm(len(random)) + 1
                random = -torch.log(ranks.float())
            tensors[f"layers.{number}.{own}"] = random.to(dtype).cpu()
        penstock.save_file(tensors, os.path.join(folder, f"layers.{number}.safetensors"))


def runner(torch, model, options, device, dtype):
    """A function that runs so many tokens, one after the other, the same each time, and gives the last output."""
    def run(count):
        random = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for _ in range(count):
                output = model(torch.randn(options.batch, options.width, generator=random).to(device, dtype))
        return output
    return run


def main(options, folder):
    import torch

    Experts = make_classes(torch)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float32 if device == "cpu" else torch.bfloat16

    def empty():
        return Experts(options, device="meta", dtype=dtype).eval()

    save_model(torch, empty(), folder, device, dtype)
    size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    budget = int(size * options.budget)
    race = Race(torch, device, folder, options)

    def measure(name, model):
        race.run(name, runner(torch, model, options, device, dtype), options.batch)

    model = empty()
    with penstock.Layers(folder, budget=budget, device=device, groups="layers.*.experts.*") as layers:
        layers.attach(model)
        for number, layer in enumerate(model.layers):
            layers.attach_router(layer.router, [f"layers.{number}.experts.{i}" for i in range(options.experts)],
                                 options.top_k)
        measure("penstock.Layers", model)
        layers.check()  # the race has waited for the GPU
        report = layers.report
    model = empty()
    Mapped(torch, folder).attach(torch, model, layers.groups, device)
    measure("a mapping, copied by torch", model)
    if not torch.allclose(*race.outputs.values(), atol=1e-2, rtol=1e-2):
        sys.exit("the two compute something else")
    experts = [each for name, each in report["groups"].items() if ".experts." in name]
    hits, acquires = sum(each["hits"] for each in experts), sum(each["hits"] + each["waits"] for each in experts)
    loads = sum(each["loads"] for each in experts)
    if options.json:
        print(json.dumps({"model_bytes": size, "budget_bytes": budget, "device": device, "cold": options.cold,
                          "tokens_per_second": race.speeds, "expert_acquires": acquires, "expert_hits": hits,
                          "expert_loads": loads, "wait_seconds": report["wait_seconds"],
                          "loaded_bytes": report["loaded_bytes"]}))
        return
    print(f"{size / 1e6:.1f} MB through {budget / 1e6:.1f} MB on {device}: {acquires} uses of experts, {loads} loads, "
          f"{acquires - hits} of them waited for")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--inner", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--budget", type=float, default=0.5, help="of the size of the model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
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
