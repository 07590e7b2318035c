"""What the rows of bench/run.py --gpu share: the first GPU, the files, their sizes, and the time that there is."""

import contextlib
import json
import os
import re
import shutil

import harness
import table
from harness import GIB, MIB, Program, Unavailable

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

    def bench_sizes(self, file, file_bytes, size, *flags):
        return Program([self.program("bench_gpu_sizes"), file, "--file-bytes", file_bytes, "--size", size, *flags],
                       timeout_s=60)

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

    @contextlib.contextmanager
    def without_keeping(self):
        """Programs that are started meanwhile find no file small enough to stay in the page cache."""
        os.environ["PENSTOCK_CACHE_LIMIT"] = "1"
        try:
            yield
        finally:
            del os.environ["PENSTOCK_CACHE_LIMIT"]

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


def need_kernels(setup):
    if not setup.gpu["kernels"]:
        raise Unavailable("there are no kernels of Penstock: it was built without nvcc, or the driver takes none")
