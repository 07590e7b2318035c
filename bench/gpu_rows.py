"""The rows of bench/run.py --gpu: files to and from the memory of the first GPU. docs/performance.md explains them.

The whole must fit a short lease of a GPU machine, so every row has its share of the time: a race stops early when its
share is over, and a row that could not make three rounds is reported as not measured.
"""

import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import time

import harness
import table
from harness import GIB, MIB, BenchError, Program, Unavailable, at_least, at_most

FIRST_REQUEST_BYTES = 64 * MIB
DEVICE_PAGE_BYTES = 2 * MIB


class GpuSetup(harness.Setup):
    """The files, their sizes, and the time that there is."""

    def __init__(self, arguments):
        super().__init__(arguments)
        scale = arguments.scale
        self.round_seconds = (0.4 if self.quick else 1.0) / scale
        # Disks, and four threads on sixteen cores, change their pace from second to second: fewer rounds, but longer,
        # of several turns.
        self.noisy = {"rounds": min(self.rounds, 5), "turns": 2 if self.quick else 4}
        self.file = os.path.join(self.folder, "gpu.bin")
        self.written_file = os.path.join(self.folder, "gpu-written.bin")
        self.memory_file = f"/dev/shm/penstock-bench-{os.getpid()}.bin"
        self.file_bytes = (2 if self.quick else 8) * GIB // scale
        self.cold_bytes = self.file_bytes // 2
        self.written_bytes = self.file_bytes // 4
        self.memory_file_bytes = self._memory_file_bytes()
        self.range_count = (100_000 if self.quick else 1_000_000) // scale
        self.gpu = None

    def _memory_file_bytes(self):
        """As large as the file, or as much of that as leaves half of tmpfs free; 0 where there is none."""
        if not os.path.isdir("/dev/shm"):
            return 0
        return min(self.file_bytes, shutil.disk_usage("/dev/shm").free // 2 // MIB * MIB)

    def prepare(self):
        self.describe_gpu()
        self.make_files({self.file: self.file_bytes})

    def describe_gpu(self):
        with self.bench("describe") as program:
            self.gpu = {**program.ready, **describe_link(program.ready["pci_address"])}
            self.version = program.ready["version"]

    def clean_up(self):
        for path in (self.memory_file, self.written_file):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)

    def bench(self, what, *arguments):
        return Program([self.program("bench_gpu"), what, *arguments], timeout_s=60)

    def penstock(self, what, file, size, *arguments, **options):
        return self.bench(what, file, "--size", size, "--options", json.dumps(options), *arguments)

    def plain_write(self, size, setting):
        return Program([self.program("plain_write"), self.written_file, "--size", size,
                        "--threads", setting["threads"], "--chunk", setting["chunk"]])

    def plain_direct_read(self, size, setting):
        return self.plain_read(self.file, "--size", size, "--threads", setting["threads"], "--chunk", setting["chunk"],
                               "--direct", "--reuse-memory")

    def sweep(self, run, threads, chunks):
        """The best of threads × chunks, by short runs on the disk; `run` takes a setting and seconds."""
        settings = [{"threads": count, "chunk": chunk}
                    for count in ((8, 32) if self.quick else threads) for chunk in chunks]
        samples = [{**setting, **run(setting, self.round_seconds / 2)} for setting in settings]
        return harness.best_of_sweep(samples, lambda sample: run(sample, self.round_seconds)), samples

    def sweep_reads(self, size):
        """The best plain direct reads of the beginning of the file."""
        def sample(setting, seconds):
            with self.plain_direct_read(size, setting) as program:
                return program.ask(f"sample {seconds}")

        best, samples = self.sweep(sample, (4, 8, 16, 32), (MIB // 4, MIB, 4 * MIB))
        return f"plain direct reads, {best['threads']} threads, {table.size(best['chunk'])}", best, samples

    def sweep_writes(self):
        """The best plain direct writes; some disks like few of them."""
        def sample(setting, _):
            with self.plain_write(self.written_bytes // 2, setting) as program:
                return program.ask("run 0")

        best, samples = self.sweep(sample, (2, 4, 8, 16, 32), (MIB, 4 * MIB))
        return f"plain direct writes, {best['threads']} threads, {table.size(best['chunk'])}", best, samples

    def ask_cold(self, program, command):
        harness.make_cold(self.file)
        sample = program.ask(command)
        sample["left_in_cache"] = harness.resident_bytes(self.file)
        return sample

    def note_nothing_left(self, what, attempts, contender):
        left = max(sample[contender]["left_in_cache"] for attempt in attempts for sample in attempt["rounds"])
        self.note(f"{what}: nothing left behind in the page cache", left == 0, {"left_in_cache": left})


def describe_link(pci_address):
    """The driver of the GPU and its place on the bus, as far as the system tells."""
    found = {"driver": "unknown", "link": "unknown"}
    with contextlib.suppress(OSError), open("/proc/driver/nvidia/version", encoding="utf-8") as file:
        version = re.search(r"Kernel Module.*?(\d+\.\d+(\.\d+)?)", file.read())
        found["driver"] = version.group(1) if version else "unknown"
    folder = f"/sys/bus/pci/devices/{pci_address}"
    with contextlib.suppress(OSError):
        values = []
        for name in ("max_link_speed", "max_link_width"):
            with open(os.path.join(folder, name), encoding="ascii") as file:
                values.append(file.read().strip())
        found["link"] = f"{values[0]}, x{values[1]}"
    return found


def figure(title, values, unit, target=None, lower_is_better=False):
    """A row without a yardstick: the median of several samples, with a target or for orientation."""
    summary = harness.summary(values)
    if target is None:
        verdict = "for orientation"
    else:
        met = summary["median"] <= target if lower_is_better else summary["median"] >= target
        verdict = "met" if met else "missed"
    return {"kind": "figure", "title": title, "samples": values, "unit": unit, "target": target,
            "lower_is_better": lower_is_better, "verdict": verdict, **summary}


def row_cached(setup):
    """A file in the page cache, and one in tmpfs, to the GPU, against copies from pinned memory."""
    harness.make_cached(setup.file)
    with contextlib.ExitStack() as stack:
        copies = stack.enter_context(setup.bench("copies", "--size", setup.file_bytes))
        cached = stack.enter_context(setup.penstock("load", setup.file, setup.file_bytes))
        peer = "pinned copies, 256 MiB buffer, 64 MiB each"

        def ask_cached():
            harness.make_cached(setup.file)
            return cached.ask(f"run {setup.round_seconds}")

        contenders = {peer: lambda: copies.ask(f"run {setup.round_seconds}"), "penstock": ask_cached}
        comparisons = [at_least(f"cached file, {table.size(setup.file_bytes)}, to the GPU", "penstock", peer, 0.93)]
        if setup.memory_file_bytes:
            setup.make_files({setup.memory_file: setup.memory_file_bytes})
            in_memory = stack.enter_context(setup.penstock("load", setup.memory_file, setup.memory_file_bytes))
            contenders["penstock, tmpfs"] = lambda: in_memory.ask(f"run {setup.round_seconds}")
            comparisons.append(at_least(f"tmpfs file, {table.size(setup.memory_file_bytes)}, to the GPU",
                                        "penstock, tmpfs", peer, 0.93))
        for contender in contenders.values():
            contender()
        rows, attempts = setup.decide(lambda: setup.race(contenders), comparisons)
        setup.check("cached file to the GPU", cached)
        if setup.memory_file_bytes:
            setup.check("tmpfs file to the GPU", in_memory)
        else:
            rows.append({"kind": "absent", "title": "tmpfs file to the GPU", "verdict": "skipped",
                         "reason": "there is no /dev/shm"})
        return {"rows": rows, "attempts": attempts, "ready": cached.ready}


def row_lanes(setup):
    """Four lanes, as on a small machine, against four plain threads that read, and that read and copy."""
    harness.make_cached(setup.file)
    with contextlib.ExitStack() as stack:
        threads = stack.enter_context(
            setup.bench("staged-threads", setup.file, "--size", setup.file_bytes, "--threads", 4))
        lanes = stack.enter_context(setup.penstock("load", setup.file, setup.file_bytes, lanes=4))
        reading, copying = "4 threads reading into pinned slots", "4 threads reading and copying"
        contenders = {"penstock": lambda: lanes.ask(f"run {setup.round_seconds}"),
                      reading: lambda: threads.ask(f"read {setup.round_seconds}"),
                      copying: lambda: threads.ask(f"run {setup.round_seconds}")}
        contenders["penstock"]()
        title = "four lanes, cached file, to the GPU"
        rows, attempts = setup.decide(lambda: setup.race(contenders, **setup.noisy),
                                      [at_least(title, "penstock", reading, 0.95),
                                       at_least(title, "penstock", copying, 0.95)])
        setup.check("four lanes to the GPU", lanes)
        setup.check("four plain threads to the GPU", threads)
        return {"rows": rows, "attempts": attempts, "ready": lanes.ready}


def row_scatter(setup):
    """One request of a million random ranges of 4 KiB of a cached file, to scattered places of GPU memory."""
    harness.make_cached(setup.file)
    rows, samples = [], {}
    for name, flags in (("", []), (", without kernels", ["--without-kernels"])):
        title = f"random ranges of 4 KiB a second, cached, {setup.range_count:,} in one request{name}"
        if flags and time.monotonic() > setup.deadline:
            rows.append({"kind": "absent", "title": title, "verdict": "not measured", "reason": "time ran out"})
            break
        with setup.penstock("scatter", setup.file, setup.file_bytes, "--ranges", setup.range_count, *flags) as program:
            program.ask("run 0")
            sample = program.ask(f"run {2.5 * setup.round_seconds}")
            setup.check(f"scattered ranges{name}", program)
        samples[name] = sample
        target = None if flags else 1e6
        rows.append(figure(title, [setup.range_count / seconds for seconds in sample["request_seconds"]],
                           "operations_per_second", target))
        rows.append(figure("… its CPU seconds per GB", [sample["cpu_seconds"] / sample["bytes"] * 1e9], "plain"))
    return {"rows": rows, "samples": samples}


def start_and_load(setup, size, *flags, file=None, **options):
    """A new process that makes its first request; what it took from outside and from inside."""
    with setup.penstock("first", file or setup.file, size, *flags, **options) as program:
        ready_seconds = time.monotonic() - program.started
        before = program.status_bytes("VmHWM")["VmHWM"]
        answer = program.ask("run 0")
        host_bytes = program.status_bytes("VmHWM")["VmHWM"] - before
        setup.check(f"first request of a process, {table.size(size)}", program)
        return {"size_bytes": size, "total_seconds": ready_seconds + answer["beyond_context_seconds"],
                "ready_seconds": ready_seconds, "host_bytes": host_bytes, **program.ready, **answer}


def start_and_store(setup):
    """The same for a write; making what is written counts as getting ready."""
    with setup.penstock("store", setup.written_file, setup.written_bytes) as program:
        ready_seconds = time.monotonic() - program.started
        written = program.ask("run 0")["seconds"]
        setup.check("first write of a process", program)
        return {"size_bytes": setup.written_bytes, "total_seconds": ready_seconds + written,
                "ready_seconds": ready_seconds, "request_seconds": written}


def starts(setup):
    """New processes by what they load: how the file is prepared, and the load. The coldest come last."""
    first, whole, part = min(FIRST_REQUEST_BYTES, setup.file_bytes), setup.file_bytes, setup.cold_bytes

    def make_cached():
        harness.make_cached(setup.file)

    def in_memory():
        return start_and_load(setup, setup.memory_file_bytes, file=setup.memory_file)

    loads = {f"cached file, {table.size(first)}": (make_cached, lambda: start_and_load(setup, first)),
             f"cached file, {table.size(whole)}": (make_cached, lambda: start_and_load(setup, whole)),
             f"cached file, {table.size(whole)}, four lanes": (
                 make_cached, lambda: start_and_load(setup, whole, lanes=4))}
    if setup.memory_file_bytes:
        loads[f"tmpfs file, {table.size(setup.memory_file_bytes)}"] = (
            lambda: setup.make_files({setup.memory_file: setup.memory_file_bytes}), in_memory)
    if harness.disk_and_file_system(setup.folder)[1] not in ("tmpfs", "ramfs"):
        loads[f"half cached file, {table.size(part)}"] = (
            lambda: harness.make_half_cached(setup.file, part), lambda: start_and_load(setup, part))
        loads[f"cold file, {table.size(part)}"] = (
            lambda: harness.make_cold(setup.file), lambda: start_and_load(setup, part))
        loads[f"GPU to a file, {table.size(setup.written_bytes)}, synced"] = (
            lambda: None, lambda: start_and_store(setup))
    return loads


def row_start(setup):
    """New processes: the first request, and what the throughput rows load, from process start."""
    samples = {}
    for title, (prepare, load) in starts(setup).items():
        if samples and time.monotonic() > setup.deadline:
            break
        samples[title] = []
        for _ in range(3):
            prepare()
            samples[title].append(load())
    first = next(iter(samples))
    rows = [figure(f"first request of a process ({first}), beyond making the CUDA context",
                   [sample["beyond_context_seconds"] for sample in samples[first]], "seconds", 0.1, True)]
    rows += [{"kind": "gpu-start", "title": title, "samples": taken, "verdict": "for orientation"}
             for title, taken in samples.items()]
    return {"rows": rows}


def row_memory(setup):
    """Memory beside the destination, of the host and of the GPU, for loads of two sizes."""
    harness.make_cached(setup.file)
    samples = [start_and_load(setup, size, "--watch-memory") for size in (setup.file_bytes // 8, setup.file_bytes)]
    for sample in samples:
        destination = -(-sample["size_bytes"] // DEVICE_PAGE_BYTES) * DEVICE_PAGE_BYTES
        sample["extra_device_bytes"] = sample["device_bytes"] - destination
    met = all(sample["pinned_bytes"] <= 256 * MIB and sample["extra_device_bytes"] <= 16 * MIB for sample in samples)
    return {"rows": [{"kind": "gpu-memory", "samples": samples, "verdict": "met" if met else "missed"}]}


def row_cold(setup):
    """A file that is not in the page cache to the GPU, against the best plain direct reads of that disk."""
    setup.need_storage()
    size = setup.cold_bytes
    harness.make_cold(setup.file)
    peer, best, sweep = setup.sweep_reads(size)
    with setup.plain_direct_read(size, best) as plain, setup.penstock("load", setup.file, size) as program:
        command = f"run {setup.round_seconds}"
        contenders = {peer: lambda: setup.ask_cold(plain, command),
                      "penstock": lambda: setup.ask_cold(program, command)}
        contenders["penstock"]()
        rows, attempts = setup.decide(
            lambda: setup.race(contenders, **setup.noisy),
            [at_least(f"cold file, {table.size(size)}, to the GPU", "penstock", peer, 0.95)])
        setup.note_nothing_left("cold file to the GPU", attempts, "penstock")
        setup.check("cold file to the GPU", program)
        return {"rows": rows, "attempts": attempts, "sweep": sweep, "ready": program.ready}


def row_half(setup):
    """A file whose first half is in the page cache to the GPU, against the longer of the two halves alone."""
    setup.need_storage()
    size = setup.cold_bytes
    with setup.penstock("load", setup.file, size) as program:
        def ask(command):
            # Kernels evict single pages by themselves, without any load: what a load does, it does every time.
            for _ in range(5):
                harness.make_half_cached(setup.file, size)
                sample = program.ask(f"{command} {setup.round_seconds}")
                first, second = harness.resident_halves(setup.file, size)
                if (first, second) == (size // 2, 0):
                    return sample
                if second != 0:
                    break
            raise BenchError(f"a load of the half cached file changed what is in the page cache: it holds {first} of "
                             f"{size // 2} bytes of the first half, and {second} of the second")

        contenders = {"penstock": lambda: ask("run"), "cached half": lambda: ask("first-half"),
                      "cold half": lambda: ask("second-half")}

        def make_rounds():
            rounds = setup.race(contenders, **setup.noisy)
            for taken in rounds:
                taken["longer half"] = max(taken["cached half"], taken["cold half"], key=harness.seconds_per_load)
            return rounds

        contenders["penstock"]()
        rows, attempts = setup.decide(make_rounds, [
            at_most(f"half cached file, {table.size(size)}, to the GPU", "penstock", "longer half", 1.15,
                    harness.seconds_per_load)])
        harness.make_half_cached(setup.file, size)
        setup.check("half cached file to the GPU", program)
        return {"rows": rows, "attempts": attempts, "ready": program.ready}


def row_latency(setup):
    """Single reads of 4 KiB into the GPU, against a direct read into pinned memory and a copy by hand."""
    setup.need_storage()
    harness.make_cold(setup.file)
    seconds = setup.round_seconds
    with setup.penstock("latency", setup.file, setup.file_bytes, cache="bypass") as program:
        peer = "direct read and copy by hand"
        contenders = {peer: lambda: program.ask(f"hand {seconds}"), "penstock": lambda: program.ask(f"penstock {seconds}")}
        for contender in contenders.values():
            contender()
        title = "4 KiB direct read into the GPU"
        rows, attempts = setup.decide(lambda: setup.race(contenders, **setup.noisy), [
            at_most(f"{title}, p50", "penstock", peer, 1.2, harness.p50_seconds)])
        last = attempts[-1]["rounds"]
        rows.append(figure(f"{title}, p99", [sample["penstock"]["p99_seconds"] for sample in last], "microseconds"))
        rows.append(figure("… by hand, p99", [sample[peer]["p99_seconds"] for sample in last], "microseconds"))
        streamed = [program.ask(f"stream {seconds}") for _ in range(3)]
        rows.append(figure("4 KiB direct read in the order of a stream, p50",
                           [sample["p50_seconds"] for sample in streamed], "microseconds"))
        calls = [program.ask(f"call {seconds}") for _ in range(3)]
        rows.append(figure(f"the call alone, in the order of a stream, {calls[0]['behind']}, p99",
                           [sample["p99_seconds"] for sample in calls], "microseconds", 200e-6, lower_is_better=True))
        return {"rows": rows, "attempts": attempts, "streamed": streamed, "calls": calls, "ready": program.ready}


def row_write(setup):
    """GPU memory to a preallocated file, synced, against the best plain direct writes likewise."""
    setup.need_storage()
    peer, best, sweep = setup.sweep_writes()
    with setup.penstock("store", setup.written_file, setup.written_bytes) as program:
        with setup.plain_write(setup.written_bytes, best) as plain:
            contenders = {peer: lambda: plain.ask(f"run {setup.round_seconds}"),
                          "penstock": lambda: program.ask(f"run {setup.round_seconds}")}
            contenders["penstock"]()
            rows, attempts = setup.decide(
                lambda: setup.race(contenders, **setup.noisy),
                [at_least(f"GPU to a file, {table.size(setup.written_bytes)}, preallocated and synced", "penstock", peer,
                          0.95)])
            setup.check("GPU to a file", program)
            return {"rows": rows, "attempts": attempts, "sweep": sweep, "ready": program.ready}


def rows_program(setup, row_bytes, *more):
    return Program([setup.program("bench_gpu_rows"), setup.file, "--row-bytes", row_bytes, "--rows", setup.range_count,
                    "--threads", len(os.sched_getaffinity(0)), *more], timeout_s=120)


def row_tables(setup):
    """Random rows of a cached table to the GPU, against a parallel copy by hand from a mapping, and in replayed graphs."""
    seconds = setup.round_seconds
    hand = f"copied by hand from a mapping, {len(os.sched_getaffinity(0))} threads"
    rows, attempts = [], {}
    harness.make_cached(setup.file)
    for row_bytes in (256, 1024, 4096):
        with rows_program(setup, row_bytes) as table_of:
            contenders = {hand: lambda: table_of.ask(f"hand {seconds}"),
                          "penstock": lambda: table_of.ask(f"run {seconds}"),
                          "penstock, numbers on the GPU": lambda: table_of.ask(f"indices {seconds}")}
            for contender in contenders.values():
                contender()
            title = f"rows of {table.size(row_bytes)}, cached, to the GPU"
            decided, attempts[title] = setup.decide(lambda: setup.race(contenders), [
                at_least(title, "penstock", hand, 0.8),
                at_least(f"… with numbers on the GPU, {table.size(row_bytes)}", "penstock, numbers on the GPU", hand, 0.7)])
            rows += decided
            setup.check(title, table_of)
            if row_bytes == 256:
                for count, target in ((64, 40e-6), (1024, 50e-6)):
                    table_of.ask(f"replay{count} {seconds / 4}")
                    replays = [table_of.ask(f"replay{count} {seconds}") for _ in range(3)]
                    rows.append(figure(f"{count} rows of 256 B in a replayed graph, p50",
                                       [sample["p50_seconds"] for sample in replays], "microseconds", target,
                                       lower_is_better=True))
                    rows.append(figure("… p99", [sample["p99_seconds"] for sample in replays], "microseconds"))
    return {"rows": rows, "attempts": attempts}


def need_kernels(setup):
    if not setup.gpu["kernels"]:
        raise Unavailable("there are no kernels of Penstock: it was built without nvcc, or the driver takes none")


def row_table_cache(setup):
    """Rows in replayed graphs, some of them in GPU memory already, against the same replays without a cache there."""
    need_kernels(setup)
    seconds = setup.round_seconds / 2
    rows, samples = [], {}
    harness.make_cached(setup.file)
    with rows_program(setup, 256) as table_of:
        for count in (64, 1024):
            table_of.ask(f"replay{count} {seconds / 4}")
            plain = [table_of.ask(f"replay{count} {seconds}") for _ in range(3)]
            rows.append(figure(f"{count} rows of 256 B in a replayed graph without a cache, p50",
                               [sample["p50_seconds"] for sample in plain], "microseconds"))
            for percent in (0, 50, 90, 100):
                command = f"cache{count}at{percent}"
                table_of.ask(f"{command} {seconds / 4}")
                samples[command] = [table_of.ask(f"{command} {seconds}") for _ in range(3)]
                hits = statistics.median(sample["hits"] for sample in samples[command])
                rows.append(figure(f"… with {100 * hits:.1f} % of the rows in GPU memory, p50",
                                   [sample["p50_seconds"] for sample in samples[command]], "microseconds"))
            command = f"unasked{count}"
            table_of.ask(f"{command} {seconds / 4}")
            samples[command] = [table_of.ask(f"{command} {seconds}") for _ in range(3)]
            rows.append(figure("… with all of them there, and the CPU asked once a second, p50",
                               [sample["p50_seconds"] for sample in samples[command]], "microseconds"))
    return {"rows": rows, "samples": samples}


def seconds_per_gather(sample):
    return sample["seconds"] / sample["loads"]


class FioAtBestDepth:
    """Random direct reads of the second half of a file, at the depth that was the best one in the first call."""

    def __init__(self, path, size, block_bytes):
        self.settings = {"path": path, "rw": "randread", "bs": block_bytes, "offset": size // 2, "size": size // 2,
                         "norandommap": True, "randrepeat": 0, "time_based": True}
        self.depth = None

    def run(self, seconds):
        if self.depth is None:
            speeds = {depth: harness.bytes_per_second(self._run(seconds, depth)) for depth in (32, 64, 128, 256, 512)}
            self.depth = max(speeds, key=speeds.get)
        return {**self._run(seconds, self.depth), "depth": self.depth}

    def _run(self, seconds, depth):
        return harness.fio(**self.settings, iodepth=depth, runtime=f"{int(seconds * 1000)}ms")


def row_cold_tables(setup):
    """Random rows to the GPU with a tenth cold against that tenth alone, and cold ones against random direct reads."""
    setup.need_storage()
    seconds = setup.round_seconds
    harness.make_half_cached(setup.file, setup.file_bytes)
    with rows_program(setup, 4096, "--half-cached") as table_of:
        threads, all_rows, cold_rows = "plain direct reads at the best depth", "all", "that tenth alone"
        contenders = {cold_rows: lambda: table_of.ask(f"cold {seconds}"),
                      threads: lambda: table_of.ask(f"direct {seconds}"),
                      all_rows: lambda: table_of.ask(f"run {seconds}")}
        peers = [threads]
        if harness.has_fio():
            peers.append("fio randread at its best depth")
            contenders[peers[-1]] = lambda fio=FioAtBestDepth(setup.file, setup.file_bytes, 4096): fio.run(seconds)
        for name in (all_rows, *peers):
            contenders[name]()
        comparisons = [at_least("cold rows of 4 KiB to the GPU", cold_rows, peer, 0.9) for peer in peers]
        rows, attempts = setup.decide(lambda: setup.race(contenders, **setup.noisy), [
            at_most("rows of 4 KiB, a tenth of them cold, to the GPU", all_rows, cold_rows, 1.25, seconds_per_gather),
            *comparisons])
        return {"rows": rows, "attempts": attempts, "ready": table_of.ready}


def queues_program(setup, what, *arguments, name="bench_gpu_queues"):
    program = Program([setup.program(name), what, *arguments], timeout_s=120)
    if not program.ready["kernels"]:
        program.__exit__(None, None, None)
        raise Unavailable("there are no kernels of the benchmark: it was built without nvcc, or the driver takes none")
    return program


def row_queues(setup):
    """Reads that kernels start by themselves, from memory, against a bare loop of the same kind without any checks."""
    rows, attempts = [], {}
    seconds = setup.round_seconds / 8
    loops = [(servers, threads) for servers in (1, 4, 8) for threads in (1 << 10, 32 << 10, 1 << 20)]
    for servers, threads in setup.in_equal_shares([(1, 1), *loops]):
        with queues_program(setup, "memory", "--server-threads", servers, "--gpu-threads", threads,
                            "--depth", 1024, "--place-bytes", 512) as program:
            if threads == 1:
                contenders = {"a word to the CPU and back": lambda: program.ask("signal 0"),
                              "a bare loop": lambda: program.ask("bare_latency 0"),
                              "penstock": lambda: program.ask("latency 0")}
                title = "one thread of a kernel reads 512 B of memory, p50"
                comparisons = [at_most(title, "penstock", "a word to the CPU and back", 4.5, harness.p50_seconds)]
            else:
                contenders = {"a bare loop": lambda: program.ask(f"bare {seconds}"),
                              "penstock": lambda: program.ask(f"run {seconds}")}
                title = f"{threads} threads of a kernel read 512 B of memory each, {servers} threads serve"
                # The bare loop is itself unsteady: the median counts.
                comparisons = [at_least(title, "penstock", "a bare loop", 0.8, spread_limit=0.5)]
            for contender in contenders.values():
                contender()
            decided, attempts[title] = setup.decide(lambda: setup.race(contenders, rounds=min(setup.rounds, 7)), comparisons)
            rows += decided
            rounds = [sample for attempt in attempts[title] for sample in attempt["rounds"]]
            if threads == 1:
                rows.append(figure("… to that of the bare loop", [
                    harness.p50_seconds(each["penstock"]) / harness.p50_seconds(each["a bare loop"]) for each in rounds],
                                   "plain"))
            else:
                rows.append(figure("… million reads a second", [
                    harness.operations_per_second(each["penstock"]) / 1e6 for each in rounds], "plain"))
    return {"rows": rows, "attempts": attempts}


def row_queue_files(setup):
    """Reads of a cached file that kernels start by themselves: how many, and how fast to requests of the program."""
    rows, attempts = [], {}
    seconds = setup.round_seconds / 2
    harness.make_cached(setup.file)
    # By threads, warps and blocks. All places together stay in the processor's cache.
    ways = {4096: ("--way", 1, "--gpu-threads", 128 << 10, "--place-bytes", 4096),
            128 << 10: ("--way", 2, "--gpu-threads", 32 << 10, "--place-bytes", 32 << 10, "--queues", 16, "--depth", 64),
            MIB: ("--way", 3, "--gpu-threads", 32 << 10, "--place-bytes", 64 << 10, "--queues", 16, "--depth", 64)}
    for unit, arguments in setup.in_equal_shares(list(ways.items())):
        with queues_program(setup, "file", setup.file, "--unit-bytes", unit, *arguments) as program:
            title = f"a kernel reads a cached file, {table.size(unit)} at random, 8 threads serve"
            contenders = {"requests of the program": lambda: program.ask(f"host {seconds}"),
                          "penstock": lambda: program.ask(f"run {seconds}")}
            for contender in contenders.values():
                contender()
            target = {128 << 10: 0.6, MIB: 0.85}.get(unit)
            if target is None:
                samples = [contenders["penstock"]() for _ in range(5)]
                rows.append(figure(f"{title}, million a second",
                                   [harness.operations_per_second(sample) / 1e6 for sample in samples], "plain", 3))
                attempts[title] = samples
                for name in ("read", "compute", "both"):
                    program.ask(f"{name} 0")
                overlaps = [{name: program.ask(f"{name} 0")["seconds"] for name in ("read", "compute", "both")}
                            for _ in range(5)]
                rows.append(figure("a kernel that reads ahead and computes, to the longer of the two alone",
                                   [each["both"] / max(each["read"], each["compute"]) for each in overlaps], "plain", 1.1,
                                   lower_is_better=True))
                attempts["overlap"] = overlaps
            else:
                decided, attempts[title] = setup.decide(
                    lambda: setup.race(contenders), [at_least(title, "penstock", "requests of the program", target)])
                rows += decided
            setup.check(title, program)
    return {"rows": rows, "attempts": attempts}


def row_arrays(setup):
    """Arrays that kernels index: what is resident against plain GPU memory, and a store of twice the cache."""
    rows, attempts = [], {}
    seconds = setup.round_seconds / 8
    size = ("--size", setup.file_bytes // 8)
    with queues_program(setup, "resident", *size, name="bench_gpu_array") as program:
        contenders = {name: lambda name=name: program.ask(f"{name} {seconds}")
                      for name in ("plain_pages", "pages", "plain_elements", "elements")}
        for contender in contenders.values():
            contender()
        title = "a resident array, page by page, to plain GPU memory"
        rows, attempts[title] = setup.decide(lambda: setup.race(contenders, rounds=min(setup.rounds, 7)), [
            at_least(title, "pages", "plain_pages", 0.5)])
        rounds = [sample for attempt in attempts[title] for sample in attempt["rounds"]]
        rows.append(figure("… by elements, to plain GPU memory", [
            harness.bytes_per_second(each["elements"]) / harness.bytes_per_second(each["plain_elements"])
            for each in rounds], "plain"))
    with queues_program(setup, "uniform", *size, name="bench_gpu_array") as program:
        contenders = {name: lambda name=name: program.ask(f"{name} {seconds}")
                      for name in ("reads", "array", "random_elements")}
        for contender in contenders.values():
            contender()
        samples = [{name: contender() for name, contender in contenders.items()} for _ in range(5)]
        attempts["uniform"] = samples

        def fetches(each, name):
            sample = each[name]
            return (sample["fetched"] + sample["passed"]) / sample["seconds"]

        rows.append(figure("an array of twice its cache, pages at random: pages fetched to plain reads of the same", [
            fetches(each, "array") / harness.operations_per_second(each["reads"]) for each in samples], "plain"))
        for name, what in (("array", "pages"), ("random_elements", "elements")):
            rows.append(figure(f"… million {what} a second", [
                harness.operations_per_second(each[name]) / 1e6 for each in samples], "plain"))
    return {"rows": rows, "attempts": attempts}


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
ROWS = {"cached": (row_cached, 34), "lanes": (row_lanes, 60), "scatter": (row_scatter, 12), "tables": (row_tables, 95),
        "table_cache": (row_table_cache, 25), "queues": (row_queues, 60), "queue_files": (row_queue_files, 40),
        "arrays": (row_arrays, 20),
        "packed": (row_packed, 60), "memory": (row_memory, 6),
        "start": (row_start, 40), "cold": (row_cold, 70), "half": (row_half, 75), "packed_cold": (row_packed_cold, 70),
        "cold_tables": (row_cold_tables, 60), "layers": (row_layers, 100), "experts": (row_experts, 20),
        "latency": (row_latency, 45), "write": (row_write, 75)}
