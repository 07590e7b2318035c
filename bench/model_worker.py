"""Models through Penstock, in a process of its own: does what it is asked to until enough time has passed, and says how
long it took.

    model_worker.py DEVICE MODEL SAVED

Commands on standard input, each followed by the least seconds that it should last:
    load, loop (safe_open, tensor by tensor), stream
    save, safetensors (what was loaded last, to SAVED, synced)
    rows WAY RANKS, columns WAY RANKS (the last rank's share of every tensor; WAY is auto, pieces or whole)
and `check`, which compares what is loaded with the file.
"""

import gc
import json
import os
import sys
import time

import penstock
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import layouts  # noqa: E402
import loaders  # noqa: E402


def share(dimension, ranks):
    """The last of `ranks` equal parts along a dimension."""
    def part(_, shape):
        return dimension, slice(shape[dimension] - shape[dimension] // ranks, None)
    return part


def bytes_from_devices():
    """What the kernel has read from storage for this process; None where it doesn't count."""
    try:
        with open("/proc/self/io", encoding="ascii") as figures:
            return next(int(line.split()[1]) for line in figures if line.startswith("read_bytes:"))
    except OSError:
        return None


def size_of(tensor):
    return tensor.numel() * tensor.element_size()


class Worker:
    """Each command returns the bytes that it moved."""

    def __init__(self, device, model, saved):
        self.device, self.model, self.saved = device, model, saved
        self.has_saved = False
        self.tensors = {}

    def load(self, **options):
        # Copied on the CPU too: nothing that is mapped could be evicted.
        self.tensors = penstock.load_file(self.model, self.device, "pt", copy=True, **options)
        return self.tensors.report.wanted_bytes

    def loop(self):
        with penstock.safe_open(self.model, "pt", self.device, copy=True) as file:
            self.tensors = {name: file.get_tensor(name) for name in file.keys()}
        return sum(size_of(tensor) for tensor in self.tensors.values())

    def stream(self):
        return sum(size_of(tensor) for _, tensor in penstock.stream(self.model, self.device, "1GiB", framework="pt"))

    def save(self):
        return penstock.save_file(self.tensors, self.saved).bytes

    def safetensors(self):
        import safetensors.torch
        safetensors.torch.save_file(self.tensors, self.saved)
        with open(self.saved, "rb") as file:
            os.fsync(file.fileno())
        return os.path.getsize(self.saved)

    def rows(self, way, ranks):
        return self.load(slices=share(0, int(ranks)), columns=way)

    def columns(self, way, ranks):
        return self.load(slices=share(1, int(ranks)), columns=way)

    def repeat(self, name, arguments, seconds):
        saves = name in ("save", "safetensors")
        if saves and not self.tensors:
            self.load()
        self.has_saved = self.has_saved or saves
        size, spent, cpu, from_devices = 0, 0.0, 0.0, 0
        while spent == 0 or spent < seconds:
            if not saves:
                self.tensors = {}
            elif os.path.exists(self.saved):
                os.remove(self.saved)
            gc.collect()
            read_before = bytes_from_devices()
            cpu_start, start = time.process_time(), time.monotonic()
            size += getattr(self, name)(*arguments)
            if self.device != "cpu":
                torch.cuda.synchronize()
            spent += time.monotonic() - start
            cpu += time.process_time() - cpu_start
            if read_before is not None:
                from_devices += bytes_from_devices() - read_before
        report = getattr(self.tensors, "report", None)
        return {"bytes": size, "seconds": spent, "cpu_seconds": cpu,
                "read_share": report.read_bytes / report.wanted_bytes if report else None,
                "kernel_read_share": from_devices / size if from_devices else None}

    def check(self):
        path = self.saved if self.has_saved else self.model
        if not self.tensors:
            self.load()
        return {"wrong": loaders.wrong_tensors(layouts.files_of(path), self.tensors)}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    worker = Worker(*sys.argv[1:])
    gc.freeze()  # torch's own objects: to look at them again before each load takes longer than the load
    print(json.dumps({"version": penstock.__version__, "torch": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        answer = worker.check() if name == "check" else worker.repeat(name, arguments[:-1], float(arguments[-1]))
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
