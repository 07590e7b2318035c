"""Packed weights, and layers of models larger than the memory they get."""

import contextlib
import os
import shutil
import subprocess

import harness
import table
from gpu_setup import DEVICE_PAGE_BYTES, need_kernels
from harness import MIB, BenchError, Program, Unavailable, at_least, figure


class PackedFiles:
    """A packed tensor of so many decoded bytes in the folder, and in tmpfs if there is room."""

    def __init__(self, setup, size):
        self.setup, self.size = setup, size
        self.file = os.path.join(setup.folder, "gpu-packed.bin")
        self.memory_file = f"{setup.memory_file}.packed"

    def make(self, path):
        done = subprocess.run([self.setup.program("bench_gpu_packed"), "make", path, "--size", str(self.size)],
                              capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            raise BenchError(f"making {path} failed: {done.stderr.strip()}")

    def program(self, what, path, *arguments):
        return Program([self.setup.program("bench_gpu_packed"), what, path, "--size", self.size, *arguments],
                       timeout_s=120)

    def __enter__(self):
        self.make(self.file)
        return self

    def __exit__(self, *_):
        for path in (self.file, self.memory_file):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


# Eight threads with 4 MiB each: the 32 MiB of scratch that Penstock has.
BARE_PIPELINE = ("--threads", 8, "--slot", 4 * MIB)


def row_packed(setup):
    """Packed weights in the page cache, and in tmpfs, to the GPU, against pinned copies and a bare pipeline."""
    need_kernels(setup)
    command = f"run {setup.round_seconds}"
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(PackedFiles(setup, setup.file_bytes))
        harness.make_cached(files.file)
        with files.program("kernel", files.file) as alone:
            alone.ask("run 0")
            kernel = [harness.bytes_per_second(alone.ask(f"run {setup.round_seconds / 2}")) for _ in range(5)]
            setup.check("packed weights, the kernel alone", alone)
        copies = stack.enter_context(setup.bench("copies", "--size", setup.file_bytes))
        bare = stack.enter_context(files.program("hand", files.file, *BARE_PIPELINE))
        packed = stack.enter_context(files.program("load", files.file))
        peer, by_hand = "pinned copies, 256 MiB buffer, 64 MiB each", "a bare pipeline with the same kernel"
        contenders = {peer: lambda: copies.ask(command), by_hand: lambda: bare.ask(command),
                      "packed": lambda: packed.ask(command)}
        title = f"packed weights, {table.size(setup.file_bytes)} decoded, cached, to the GPU"
        comparisons = [at_least(title, "packed", peer, 1.22), at_least(title, "packed", by_hand, 0.95)]
        if setup.memory_file_bytes == setup.file_bytes:
            files.make(files.memory_file)
            in_memory = stack.enter_context(files.program("load", files.memory_file))
            contenders["packed, tmpfs"] = lambda: in_memory.ask(command)
            comparisons.append(at_least(f"… tmpfs, {table.size(setup.file_bytes)} decoded", "packed, tmpfs", peer, 1.22))
        for contender in contenders.values():
            contender()
        rows, attempts = setup.decide(lambda: setup.race(contenders), comparisons)
        setup.check("packed weights to the GPU", packed)
        setup.check("packed weights by a bare pipeline", bare)
        rows.append(figure("packed weights, the kernel alone, GB/s decoded", [rate / 1e9 for rate in kernel], "plain", 500))
        rows.append(figure("packed weights, stored bytes for a decoded one", [packed.ready["ratio"]], "plain", 0.71, True))
        return {"rows": rows, "attempts": attempts, "ready": packed.ready}


def row_packed_cold(setup):
    """Packed weights that are not in the page cache to the GPU, against plain direct reads of as many bytes."""
    setup.need_storage()
    size = setup.cold_bytes
    harness.make_cold(setup.file)
    peer, best, sweep = setup.sweep_reads(size)
    with PackedFiles(setup, size) as files, setup.plain_direct_read(size, best) as plain, \
            files.program("load", files.file) as packed:
        def ask_packed():
            harness.make_cold(files.file)
            return packed.ask(f"run {setup.round_seconds}")

        contenders = {peer: lambda: setup.ask_cold(plain, f"run {setup.round_seconds}"), "packed": ask_packed}
        contenders["packed"]()
        rows, attempts = setup.decide(
            lambda: setup.race(contenders, **setup.noisy),
            [at_least(f"packed weights, {table.size(size)} decoded, cold, to the GPU", "packed", peer, 1.35)])
        harness.make_cold(files.file)
        setup.check("cold packed weights to the GPU", packed)
        return {"rows": rows, "attempts": attempts, "sweep": sweep, "ready": packed.ready}


@contextlib.contextmanager
def layered_model(setup, name, groups, group_bytes, budget):
    """A program that has a model of so many groups, which is made, and gone afterwards."""
    path = os.path.join(setup.folder, name)
    if shutil.disk_usage(setup.folder).free < groups * group_bytes * 1.1:
        raise Unavailable(f"{setup.folder} has no room for {table.size(groups * group_bytes)}: choose another with --dir")
    program = setup.program("bench_gpu_layers")
    try:
        subprocess.run([program, path, "--make", "--groups", str(groups), "--group-bytes", str(group_bytes)], check=True)
        harness.make_cached(path)
        with Program([program, path, "--budget", budget], timeout_s=120) as layers:
            yield path, layers
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def row_layers(setup):
    """A model through a fifth of its size, against a plain load, cached and cold; with kernels; a group that is there."""
    seconds = setup.round_seconds
    groups = 50
    group_bytes = setup.file_bytes * 5 // 2 // groups // DEVICE_PAGE_BYTES * DEVICE_PAGE_BYTES or MIB
    plain, ours = "a plain load of all of it", "penstock.Layers"
    size = table.size(groups * group_bytes)
    with layered_model(setup, "gpu-layers.safetensors", groups, group_bytes, 0.2) as (path, layers):
        for command in ("plain", "run", "run"):
            layers.ask(f"{command} 0")
        rows, attempts = setup.decide(
            lambda: setup.race({plain: lambda: layers.ask(f"plain {seconds}"), ours: lambda: layers.ask(f"run {seconds}")}),
            [at_least(f"{size} through a fifth of it, cached", ours, plain, 0.93)])
        setup.check("layers", layers)
        for factor, name in ((0.1, "tenth"), (0.5, "half"), (1, "same"), (2, "double"), (10, "tenfold")):
            layers.ask(f"compute_{name} 0")
            samples = [layers.ask(f"compute_{name} {seconds}") for _ in range(3)]
            rows.append(figure(f"… with kernels of {factor} of the loading time: a pass, to the longer of the two",
                               [sample["seconds"] / sample["loads"] / max(sample["loading_seconds"], sample["compute_seconds"])
                                for sample in samples], "plain", 1.1, lower_is_better=True))
        layers.ask("run_in_order 0")
        samples = [(layers.ask(f"plain {seconds}"), layers.ask(f"run_in_order {seconds}")) for _ in range(3)]
        rows.append(figure("… acquired in the order of the stream: speed, to a plain load",
                           [whole["seconds"] / whole["loads"] / (each["seconds"] / each["loads"]) for whole, each in samples],
                           "plain", 0.93))
        for command, name in (("resident", ""), ("resident_in_order", " in the order of a stream")):
            resident = [layers.ask(f"{command} {seconds / 4}") for _ in range(3)]
            rows.append(figure(f"acquire{name} of a group that is there, p50", [each["p50_seconds"] for each in resident],
                               "microseconds", 5e-6, lower_is_better=True))
            rows.append(figure("… p99", [each["p99_seconds"] for each in resident], "microseconds"))

        def cold(command):
            harness.make_cold(path)
            return layers.ask(f"{command} 0")

        setup.need_storage()
        decided, cold_attempts = setup.decide(
            lambda: setup.race({plain: lambda: cold("plain"), ours: lambda: cold("run")}, rounds=3),
            [at_least("… cold", ours, plain, 0.93)])
        return {"rows": rows + decided, "attempts": attempts, "cold_attempts": cold_attempts, "ready": layers.ready}


def row_experts(setup):
    """128 experts by a Zipf router, half of them in the budget: hits against Belady's, time against the order hinted."""
    seconds = setup.round_seconds
    with layered_model(setup, "gpu-experts.safetensors", 128, max(setup.file_bytes // 512, MIB // 4), 0.5) as (_, layers):
        samples = [(layers.ask(f"experts {2 * seconds}"), layers.ask(f"experts_hinted {2 * seconds}")) for _ in range(3)]
        per_use = [[each["seconds"] / max(each["operations"], 1) for each in pair] for pair in samples]
        rows = [figure("experts of a Zipf router, half of them fit: hit rate, to Belady's",
                       [plain["hit_rate"] / plain["belady_hit_rate"] for plain, _ in samples], "plain", 0.85),
                figure("… speed, to a run with the next expert hinted", [hinted / plain for plain, hinted in per_use],
                       "plain", 0.9)]
        setup.check("experts", layers)
        return {"rows": rows, "samples": samples, "ready": layers.ready}


# In this order, so that the file, which is in the page cache once it is made, has to leave it only once. The seconds are
# what a row is expected to take on a machine with a disk of 2 to 4 GB/s; --quick takes about a third. All together
# they are the time that there is.
