"""What the rows of the benchmark are made of: programs that answer commands, the page cache, fio, and fair races.

Standard library only. Linux only.
"""

import concurrent.futures
import ctypes
import json
import mmap
import os
import platform
import re
import select
import shutil
import statistics
import subprocess
import tempfile
import time

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# A race is inconclusive if the peer's own rounds differ by more than this: (largest - smallest) / median.
SPREAD_LIMIT = 0.05


class BenchError(Exception):
    """A measurement that went wrong, with the reason for a person."""


class Unavailable(BenchError):
    """A measurement that this machine has no means for."""


class OutOfTime(BenchError):
    """A measurement that there was too little time for."""


class Program:
    """One of our measuring programs: started once, then asked for rounds through its standard input."""

    def __init__(self, arguments, timeout_s=120):
        self.arguments = [str(argument) for argument in arguments]
        self.timeout_s = timeout_s
        self.started = time.monotonic()
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors)
        try:
            self.ready = self._answer()
        except BenchError:
            self.process.kill()
            raise

    def ask(self, command):
        try:
            self.process.stdin.write((command + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # It has ended; the answer below says why.
        return self._answer()

    def _answer(self):
        if not select.select([self.process.stdout], [], [], self.timeout_s)[0]:
            self.process.kill()
            raise BenchError(f"no answer in {self.timeout_s} s: {' '.join(self.arguments)}")
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.errors.seek(0)
            message = self.errors.read().decode(errors="replace").strip()[-500:]
            raise BenchError(f"{os.path.basename(self.arguments[0])} ended with {code}: {message}")
        return json.loads(line)

    def status_bytes(self, *names):
        """Figures of /proc/PID/status, in bytes: the memory of the program seen from outside."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", status.read(), re.MULTILINE))
        return {name: int(found.get(name, 0)) * KIB for name in names}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Setup:
    """What all benchmarks share: where the programs and files are, how long rounds last, what was checked."""

    def __init__(self, arguments):
        self.programs = arguments.programs
        self.folder = arguments.dir
        self.quick = arguments.quick
        self.rounds = arguments.rounds or (3 if self.quick else 7)
        self.checks = []
        self.version = "unknown"  # until the first Penstock program says
        self.end = None  # when all rows must have ended; None: whenever they do
        self.deadline = None  # the same for the row that is being measured

    def program(self, name):
        return os.path.join(self.programs, name)

    def clean_up(self):
        """Removes what would be in the way of others; large files stay for the next run."""

    def need_storage(self):
        if disk_and_file_system(self.folder)[1] in ("tmpfs", "ramfs"):
            raise Unavailable(f"{self.folder} is on tmpfs, which is memory, not storage: choose another with --dir")

    def plain_read(self, file, *arguments):
        return Program([self.program("plain_read"), file, *arguments])

    def make_files(self, sizes):
        """Makes files by path and size, all at once, unless they are there already."""
        missing = {path: size for path, size in sizes.items()
                   if not os.path.exists(path) or os.path.getsize(path) != size}
        for path in missing:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        makers = {path: subprocess.Popen([self.program("make_file"), path, str(size)], stderr=subprocess.PIPE,
                                         text=True) for path, size in missing.items()}
        errors = {path: maker.communicate()[1].strip() for path, maker in makers.items()}
        for path, maker in makers.items():
            if maker.returncode != 0:
                raise BenchError(f"can't make {path}: {errors[path]}")

    def check(self, what, program):
        """Has a program load once more and compare its bytes."""
        answer = program.ask("check")
        self.note(f"{what}: bytes as expected", answer["checksum"] == answer["expected"], answer)

    def note(self, what, passed, detail):
        self.checks.append({"what": what, "passed": passed, "detail": detail})

    def race(self, contenders, rounds=None, turns=1, insist=False):
        return race(contenders, rounds or self.rounds, self.deadline, turns, insist)

    def in_equal_shares(self, items):
        """Each of them with its share of the row's time, as long as that lasts."""
        end = self.deadline
        for index, item in enumerate(items):
            if end is not None:
                now = time.monotonic()
                self.deadline = now + max(0, end - now) / (len(items) - index)
            yield item
        self.deadline = end

    def decide(self, make_rounds, comparisons):
        return decide(make_rounds, comparisons, self.deadline)


# The page cache.

_libc = ctypes.CDLL(None, use_errno=True)
_SYS_CACHESTAT = 451  # the same on every architecture


def resident_bytes(path, offset=0, size=None):
    """How much of a file, or of a part, is in the page cache, from cachestat or, before Linux 6.5, from mincore."""
    size = os.path.getsize(path) - offset if size is None else size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        part = (ctypes.c_uint64 * 2)(offset, size)
        counts = (ctypes.c_uint64 * 5)()
        if _libc.syscall(_SYS_CACHESTAT, descriptor, part, counts, 0) == 0:
            return min(counts[0] * mmap.PAGESIZE, size)
        return _resident_by_mincore(descriptor, size, offset)
    finally:
        os.close(descriptor)


def _resident_by_mincore(descriptor, size, offset=0):
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, offset)
    if address == ctypes.c_void_p(-1).value:
        raise BenchError(f"can't map the file to ask mincore: {os.strerror(ctypes.get_errno())}")
    pages = (ctypes.c_ubyte * ((size + mmap.PAGESIZE - 1) // mmap.PAGESIZE))()
    try:
        if _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages) != 0:
            raise BenchError(f"mincore: {os.strerror(ctypes.get_errno())}")
        return min(sum(page & 1 for page in pages) * mmap.PAGESIZE, size)
    finally:
        _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


def make_cold(path):
    """Syncs and evicts a file, and makes sure that nothing of it is left in the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for attempt in range(10):
            try:
                os.fdatasync(descriptor)
            except OSError:
                pass  # A read-only mount has nothing to sync.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if resident_bytes(path) == 0:
                return
            # Pages that a CPU is still putting on its lists stay at first; only what goes on staying is worth the caches of
            # all others on this machine.
            if attempt >= 5:
                _drop_caches()
            time.sleep(0.1)
    finally:
        os.close(descriptor)
    raise BenchError(f"{resident_bytes(path)} bytes of {path} stay in the page cache")


def _drop_caches():
    try:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as control:
            control.write("1")
    except OSError:
        pass  # Not root: fadvise alone has to do, and the caller checks whether it did.


def make_cached(path, size=None):
    """Reads a file, or its beginning, into the page cache, and makes sure that all of it is there."""
    size = os.path.getsize(path) if size is None else size
    for _ in range(3):
        if resident_bytes(path, 0, size) == size:
            return
        _read_in_parallel(path, size)
    raise BenchError(f"only {resident_bytes(path, 0, size)} of {size} bytes of {path} stay in the page cache: too little "
                     "memory?")


def _read_in_parallel(path, size):
    piece = 64 * MIB
    descriptor = os.open(path, os.O_RDONLY)

    def read(begin):
        buffer = bytearray(4 * MIB)
        for offset in range(begin, min(begin + piece, size), len(buffer)):
            os.preadv(descriptor, [memoryview(buffer)[:min(len(buffer), size - offset)]], offset)

    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(0, size, piece)))
    finally:
        os.close(descriptor)


def resident_halves(path, size):
    """How much of the two halves of the first `size` bytes is in the page cache."""
    half = size // 2
    return resident_bytes(path, 0, half), resident_bytes(path, half, size - half)


def make_half_cached(path, size):
    """Of the first `size` bytes, the first half is in the page cache and the second is not."""
    half = size // 2
    if resident_bytes(path, half, size - half) != 0:
        make_cold(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            make_cached(path, half)
            # Reading ahead goes past the middle, and pages that are being read can't be evicted yet.
            os.posix_fadvise(descriptor, half, size - half, os.POSIX_FADV_DONTNEED)
            if resident_halves(path, size) == (half, 0):
                return
            time.sleep(0.02)
    finally:
        os.close(descriptor)
    raise BenchError(f"the page cache does not hold the first half of {path} alone")


# fio.

def has_fio():
    return shutil.which("fio") is not None


def fio(path, **settings):
    """One run of fio with the flags that every comparison shares; bytes, seconds, operations and CPU seconds."""
    arguments = {"name": "bench", "filename": path, "ioengine": "io_uring", "direct": 1, "registerfiles": 1,
                 "fixedbufs": 1, "numjobs": 1, "output-format": "json", **settings}
    command = ["fio"] + [f"--{name}" if value is True else f"--{name}={value}" for name, value in arguments.items()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise BenchError(f"fio: {(done.stderr or done.stdout).strip()[-300:]}")
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    read = job["read"]
    return {"bytes": read["io_bytes"], "seconds": read["runtime"] / 1e3, "operations": read["total_ios"],
            "cpu_seconds": (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3}


# Races.

def bytes_per_second(sample):
    return sample["bytes"] / sample["seconds"]


def operations_per_second(sample):
    return sample["operations"] / sample["seconds"]


def cpu_seconds_per_operation(sample):
    return sample["cpu_seconds"] / sample["operations"]


def seconds_per_load(sample):
    return sample["seconds"] / sample["operations"]


def p50_seconds(sample):
    return sample["p50_seconds"]


def p99_seconds(sample):
    return sample["p99_seconds"]


def cpu_seconds_per_gigabyte(rounds, name):
    """The median of a contender's rounds; nothing where it was not counted."""
    samples = [sample[name] for sample in rounds]
    if not all("cpu_seconds" in sample and sample.get("bytes") for sample in samples):
        return None
    return statistics.median(sample["cpu_seconds"] / sample["bytes"] * 1e9 for sample in samples)


def at_least(title, ours, peer, target, measure=bytes_per_second, spread_limit=SPREAD_LIMIT):
    return {"title": title, "ours": ours, "peer": peer, "target": target, "measure": measure, "lower_is_better": False,
            "spread_limit": spread_limit}


def at_most(title, ours, peer, target, measure):
    return {**at_least(title, ours, peer, target, measure), "lower_is_better": True}


def summary(values):
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": statistics.median(values), "p25": quartiles[0], "p75": quartiles[2],
            "spread": (max(values) - min(values)) / statistics.median(values)}


def best_of_sweep(samples, measure_again):
    """The best setting: the three best short runs are run again, so that one lucky sample does not decide."""
    ranked = sorted(samples, key=bytes_per_second, reverse=True)[:3]
    return max(ranked, key=lambda sample: bytes_per_second(measure_again(sample)))


def joined(samples):
    """The turns of a contender in one round as one sample."""
    joins = {"bytes": sum, "seconds": sum, "cpu_seconds": sum, "operations": sum, "loads": sum, "left_in_cache": max,
             "p50_seconds": statistics.median, "p99_seconds": statistics.median}
    return {name: joins[name](sample[name] for sample in samples) if name in joins else value
            for name, value in samples[-1].items()}


def race(contenders, rounds, deadline=None, turns=1, insist=False):
    """Runs every contender in every round, in an order that rotates, so that none is always first, and turns around,
    so that none always follows the same other.

    Where a disk changes its pace from second to second, short turns within a round let all of them see the same. Past
    the deadline, three rounds have to do; with fewer there is no result, unless it insists on those.
    """
    names = list(contenders)
    results = []
    for number in range(rounds):
        if deadline is not None and time.monotonic() > deadline:
            if number >= 3:
                break
            if not insist:
                raise OutOfTime(f"time ran out after {number} rounds")
        taken = {name: [] for name in names}
        for turn in range(number * turns, (number + 1) * turns):
            cycle, first = divmod(turn, len(names))
            order = names[first:] + names[:first]
            for name in reversed(order) if cycle % 2 else order:
                taken[name].append(contenders[name]())
        results.append({name: joined(samples) for name, samples in taken.items()})
    return results


def compare(rounds, comparison):
    """The ratio of each round, ours to the peer's, and what follows from it."""
    measure = comparison["measure"]
    ours = [measure(sample[comparison["ours"]]) for sample in rounds]
    peer = [measure(sample[comparison["peer"]]) for sample in rounds]
    ratio = summary([a / b for a, b in zip(ours, peer)])
    conclusive = summary(peer)["spread"] <= comparison.get("spread_limit", SPREAD_LIMIT)
    met = ratio["median"] <= comparison["target"] if comparison["lower_is_better"] else (
        ratio["median"] >= comparison["target"])
    return {"ours": summary(ours), "peer": summary(peer), "ratio": ratio, "conclusive": conclusive, "met": met,
            "rounds": len(rounds), "ours_cpu_per_gigabyte": cpu_seconds_per_gigabyte(rounds, comparison["ours"]),
            "peer_cpu_per_gigabyte": cpu_seconds_per_gigabyte(rounds, comparison["peer"])}


def decide(make_rounds, comparisons, deadline=None):
    """Races, and races once more if the peer was too unsteady; after that such a comparison stays open.

    Where a second race would not end before the deadline, there is none.
    """
    attempts = []
    started = time.monotonic()
    for _ in range(2):
        if attempts and deadline is not None and 2 * time.monotonic() - started > deadline:
            break
        rounds = make_rounds()
        results = [compare(rounds, comparison) for comparison in comparisons]
        attempts.append({"rounds": rounds, "results": results})
        if all(result["conclusive"] for result in results):
            break
    rows = []
    for index, comparison in enumerate(comparisons):
        # The first conclusive attempt counts; a later one is not a second chance.
        attempt = next((a for a in attempts if a["results"][index]["conclusive"]), attempts[-1])
        result = attempt["results"][index]
        verdict = "open" if not result["conclusive"] else "met" if result["met"] else "missed"
        rows.append({"kind": "ratio", "title": comparison["title"], "ours_name": comparison["ours"],
                     "peer_name": comparison["peer"], "unit": comparison["measure"].__name__,
                     "target": comparison["target"], "lower_is_better": comparison["lower_is_better"],
                     "verdict": verdict, "tries": len(attempts), **result})
    return rows, attempts


def figure(title, values, unit, target=None, lower_is_better=False):
    """A row without a yardstick: the median of several samples, with a target or for orientation."""
    found = summary(values)
    if target is None:
        verdict = "for orientation"
    else:
        met = found["median"] <= target if lower_is_better else found["median"] >= target
        verdict = "met" if met else "missed"
    return {"kind": "figure", "title": title, "samples": values, "unit": unit, "target": target,
            "lower_is_better": lower_is_better, "verdict": verdict, **found}


# The machine.

def _output(*command):
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _first_match(pattern, text, default="unknown"):
    found = re.search(pattern, text, re.MULTILINE)
    return found.group(1).strip() if found else default


def disk_and_file_system(folder):
    fields = _output("df", "--output=source,fstype", folder).splitlines()[-1:]
    return fields[0].split() if fields else ("unknown", "unknown")


def available_memory_bytes():
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        return int(_first_match(r"^MemAvailable:\s+(\d+)", meminfo.read(), "0")) * KIB


def describe_machine(folder):
    lscpu = _output("lscpu")
    disk, file_system = disk_and_file_system(folder)
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        memory = int(_first_match(r"^MemTotal:\s+(\d+)", meminfo.read(), "0")) * KIB
    disk_is_virtual = os.path.basename(disk).startswith(("vd", "xvd"))
    # Small hypervisors leave no other trace than their devices.
    virtual_machine = _output("systemd-detect-virt", "--vm")
    if virtual_machine in ("", "none"):
        virtual_machine = "yes, by its disk" if disk_is_virtual else "none seen"
    return {"cpu": _first_match(r"^Model name:\s*(.+)$", lscpu), "cores": len(os.sched_getaffinity(0)),
            "architecture": platform.machine(), "memory_bytes": memory, "kernel": platform.release(),
            "disk": disk, "disk_is_virtual": disk_is_virtual, "file_system": file_system,
            "virtual_machine": virtual_machine, "load_average": os.getloadavg()[0]}


def describe_versions(penstock_version):
    return {"penstock": penstock_version, "fio": _output("fio", "--version") or "not installed",
            "liburing": _output("pkg-config", "--modversion", "liburing") or "unknown",
            "libfuse": _output("pkg-config", "--modversion", "fuse3") or "not installed"}
