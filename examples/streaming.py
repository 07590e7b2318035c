"""What the examples of streaming share: a mapping that torch copies from, drops of the page cache, and a race."""

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


class Race:
    """Tokens a second of several ways to run one model, printed as they come, and what each computes."""

    def __init__(self, torch, device, folder, options):
        self._torch, self._device, self._folder, self._options = torch, device, folder, options
        self.speeds, self.outputs = {}, {}

    def run(self, name, generate, batch=1):
        """`generate(count)` gives the output of the last of so many tokens. The first two are not counted."""
        if self._options.cold:
            drop_cache(self._folder)
        self.outputs[name] = generate(2).float().cpu()
        begun = time.perf_counter()
        generate(self._options.tokens)
        if self._device != "cpu":
            self._torch.cuda.synchronize(self._device)
        self.speeds[name] = self._options.tokens * batch / (time.perf_counter() - begun)
        if not self._options.json:
            print(f"{name:28} {self.speeds[name]:10.2f} tokens/s", flush=True)
