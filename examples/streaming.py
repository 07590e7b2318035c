"""What the examples of streaming share: a mapping that torch copies from, drops of the page cache, and a table."""

import json
import mmap
import os
import struct
import time

TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Mapped:
    """Tensors of safetensors files as views of mappings, as most loaders have them: torch copies them to the device."""

    def __init__(self, torch, folder):
        self._tensors = {}
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".safetensors"):
                continue
            with open(os.path.join(folder, name), "rb") as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            length, = struct.unpack("<Q", memory[:8])
            for tensor, info in json.loads(memory[8:8 + length]).items():
                if tensor == "__metadata__":
                    continue
                begin, end = info["data_offsets"]
                view = torch.frombuffer(memory, dtype=torch.uint8, count=end - begin, offset=8 + length + begin)
                self._tensors[tensor] = view.view(getattr(torch, TYPES[info["dtype"]])).view(info["shape"])

    def attach(self, torch, module, names, device):
        """Copies the tensors of these submodules to the device before each runs, and drops them after it."""
        for name in names:
            submodule = module.get_submodule(name)
            inner = {own for own, _ in submodule.named_parameters()
                     if not any(f"{name}.{own}".startswith(other + ".") for other in names if other.startswith(name + "."))}
            places = [(submodule.get_submodule(own.rpartition(".")[0]), own.rpartition(".")[2], f"{name}.{own}")
                      for own in inner]
            submodule.register_forward_pre_hook(self._before(torch, places, device))
            submodule.register_forward_hook(self._after(places))

    def _before(self, torch, places, device):
        def hook(module, inputs):
            for owner, leaf, tensor in places:
                owner._parameters[leaf] = torch.nn.Parameter(self._tensors[tensor].to(device, copy=True), False)
        return hook

    @staticmethod
    def _after(places):
        own = [owner._parameters[leaf] for owner, leaf, _ in places]

        def hook(module, inputs, output):
            for (owner, leaf, _), before in zip(places, own):
                owner._parameters[leaf] = before
        return hook


def drop_cache(folder):
    """Lets the page cache forget the files of a folder."""
    for name in os.listdir(folder):
        descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def synchronize(torch, device):
    if device != "cpu":
        torch.cuda.synchronize(device)


def tokens_per_second(torch, device, generate, tokens):
    """Of one run; a first one, of two tokens, is not counted."""
    generate(2)
    synchronize(torch, device)
    begun = time.perf_counter()
    generate(tokens)
    synchronize(torch, device)
    return tokens / (time.perf_counter() - begun)
