"""The rows of bench/run.py without --gpu: files to host memory, and what else needs no GPU. docs/performance.md explains
them.
"""

import contextlib
import importlib.util
import json
import os
import statistics
import sys
import threading
import time

import harness
import table
from harness import GIB, KIB, MIB, Program, Unavailable, at_least, at_most, figure

HERE = os.path.dirname(os.path.abspath(__file__))


class HostSetup(harness.Setup):
    """The files that are read into host memory."""

    def __init__(self, arguments):
        super().__init__(arguments)
        self.round_seconds = 0.5 if self.quick else 1.3
        self.small_file = os.path.join(self.folder, "small.bin")
        self.large_file = os.path.join(self.folder, "large.bin")
        self.small_bytes = 256 * MIB if self.quick else GIB
        self.large_bytes = GIB if self.quick else 4 * GIB

    def penstock(self, file, *arguments, **options):
        program = Program([self.program("bench_penstock"), file, "--options", json.dumps(options), *arguments])
        self.version = program.ready["version"]
        return program

    def prepare(self):
        self.make_files({self.small_file: self.small_bytes, self.large_file: self.large_bytes})


def need_fio():
    if not harness.has_fio():
        raise Unavailable("fio is not installed: run scripts/install-deps.sh --bench")


# The rows. Each returns {"rows": [...], and whatever raw figures are worth keeping}.

def row_cached(setup):
    """A file in the page cache to host memory, against as many plain reading threads as there are lanes."""
    file = setup.small_file
    harness.make_cached(file)
    with contextlib.ExitStack() as stack:
        default = stack.enter_context(setup.penstock(file))
        posix = stack.enter_context(setup.penstock(file, engine="posix"))
        lanes, chunk = default.ready["options"]["lanes"], default.ready["options"]["storage_chunk_bytes"]
        plain = stack.enter_context(setup.plain_read(file, "--threads", lanes, "--chunk", chunk))
        peer = f"plain pread, {lanes} threads, {table.size(chunk)}"

        def ask(program):
            harness.make_cached(file)
            return program.ask(f"run {setup.round_seconds}")

        contenders = {peer: lambda: ask(plain), "penstock": lambda: ask(default), "penstock posix": lambda: ask(posix)}
        for contender in contenders.values():
            contender()
        rows, attempts = harness.decide(
            lambda: harness.race(contenders, setup.rounds),
            [at_least(f"cached file, {table.size(setup.small_bytes)}, to host memory", "penstock", peer, 0.9),
             at_least("the same without io_uring (engine posix)", "penstock posix", peer, 0.9)])
        setup.check("cached", default)
        setup.check("cached, posix", posix)
        return {"rows": rows, "attempts": attempts, "ready": default.ready}


def sweep_fio(setup):
    def run(block, depth, seconds):
        return harness.fio(setup.large_file, rw="read", bs=block, iodepth=depth, size=setup.large_bytes,
                           time_based=True, runtime=f"{int(seconds * 1000)}ms")

    blocks = (256 * KIB, MIB) if setup.quick else (128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB)
    depths = (8, 32) if setup.quick else (4, 8, 16, 32, 64)
    harness.make_cold(setup.large_file)
    samples = [{"block": block, "depth": depth, **run(block, depth, 0.3)} for block in blocks for depth in depths]
    return harness.best_of_sweep(samples, lambda sample: run(sample["block"], sample["depth"], setup.round_seconds)), samples


def row_cold(setup):
    """A file that is not in the page cache to host memory, against fio at its best setting."""
    setup.need_storage()
    need_fio()
    file = setup.large_file
    best, sweep = sweep_fio(setup)
    # A disk that others use too changes its pace from second to second: long rounds see the mean of that.
    seconds = setup.round_seconds * 5
    loops = max(1, -int(-seconds * harness.bytes_per_second(best) // setup.large_bytes))
    peer = f"fio, {table.size(best['block'])}, depth {best['depth']}"
    with setup.penstock(file, cache="bypass") as program:
        def cold(measure):
            harness.make_cold(file)
            sample = measure()
            sample["left_in_cache"] = harness.resident_bytes(file)
            return sample

        contenders = {
            peer: lambda: cold(lambda: harness.fio(file, rw="read", bs=best["block"], iodepth=best["depth"],
                                                   size=setup.large_bytes, loops=loops)),
            "penstock": lambda: cold(lambda: program.ask(f"run {seconds}"))}
        contenders["penstock"]()
        rows, attempts = harness.decide(
            lambda: harness.race(contenders, setup.rounds),
            [at_least(f"cold file, {table.size(setup.large_bytes)}, to host memory", "penstock", peer, 0.95)])
        left = max(sample["penstock"]["left_in_cache"] for attempt in attempts for sample in attempt["rounds"])
        setup.note("cold: nothing left behind in the page cache", left == 0, {"left_in_cache": left})
        setup.check("cold", program)
        return {"rows": rows, "attempts": attempts, "sweep": sweep, "ready": program.ready}


def row_loads(setup):
    """Four loads of a cold file, each by a process of its own: past the page cache, as Penstock does it by default, and by
    plain reading; and what of the file was in the page cache after each."""
    setup.need_storage()
    file, threads = setup.large_file, len(os.sched_getaffinity(0))
    sides = {"past": lambda: setup.penstock(file, cache="bypass"),
             "penstock": lambda: setup.penstock(file),
             "plain": lambda: setup.plain_read(file, "--threads", threads, "--chunk", MIB)}

    def four_loads(start):
        harness.make_cold(file)
        loads = []
        for _ in range(4):
            with start() as program:
                loads.append({"seconds": program.ask("run 0")["seconds"], "cached": harness.resident_bytes(file)})
        return loads

    rounds = [{name: four_loads(start) for name, start in sides.items()} for _ in range(setup.rounds)]

    def ratios(load, ours, theirs):
        return [each[ours][load]["seconds"] / each[theirs][load]["seconds"] for each in rounds]

    size = table.size(setup.large_bytes)
    rows = [figure(f"first load of a cold file, {size}, time to that past the page cache", ratios(0, "penstock", "past"),
                   "plain", 1.25, True),
            figure("the same, to that of plain buffered reads", ratios(0, "penstock", "plain"), "plain", 1, True)]
    rows += [figure(f"load {load + 1}, to that of plain buffered reads", ratios(load, "penstock", "plain"), "plain")
             for load in range(1, 4)]
    left = max(load["cached"] for each in rounds for load in each["past"])
    setup.note("loads: nothing left behind past the page cache", left == 0, {"left_in_cache": left})
    return {"rows": rows, "rounds": rounds}


def row_random(setup):
    """Random direct reads of 4 KiB, 64 at a time, one lane, against fio with the same flags."""
    setup.need_storage()
    need_fio()
    file = setup.large_file
    options = {"lanes": 1, "operations_in_flight": 64, "cache": "bypass"}
    runtime = f"{int(setup.round_seconds * 1000)}ms"
    with contextlib.ExitStack() as stack:
        request = stack.enter_context(
            setup.penstock(file, "--mode", "ranges", "--ranges", 16384, "--memory", "pinned", **options))
        tickets = stack.enter_context(
            setup.penstock(file, "--mode", "tickets", "--ranges", 64, "--memory", "pinned", **options))

        def ask(program):
            harness.make_cold(file)
            return program.ask(f"run {setup.round_seconds}")

        def run_fio():
            harness.make_cold(file)
            return harness.fio(file, rw="randread", bs=4096, iodepth=64, norandommap=True, randrepeat=0,
                               size=setup.large_bytes, time_based=True, runtime=runtime)

        peer, one, live = "fio randread, depth 64", "penstock, one request", "penstock, 64 tickets"
        contenders = {peer: run_fio, one: lambda: ask(request), live: lambda: ask(tickets)}
        for contender in contenders.values():
            contender()
        operations, cpu = harness.operations_per_second, harness.cpu_seconds_per_operation
        rows, attempts = harness.decide(
            lambda: harness.race(contenders, setup.rounds),
            [at_least("4 KiB random direct reads, one request of 16384 ranges", one, peer, 0.9, operations),
             at_most("… its CPU time per operation", one, peer, 1.15, cpu),
             at_least("4 KiB random direct reads, 64 live tickets", live, peer, 0.9, operations),
             at_most("… its CPU time per operation", live, peer, 1.15, cpu)])
        setup.check("random, one request", request)
        setup.check("random, tickets", tickets)
        return {"rows": rows, "attempts": attempts, "ready": request.ready}


@contextlib.contextmanager
def latency_mount(setup, size_bytes, *flags):
    """A FUSE mount whose reads take 5 ms; gives the path of its file."""
    if not os.path.exists("/dev/fuse"):
        raise Unavailable("there is no /dev/fuse here")
    if not os.path.exists(setup.program("latency_fuse")):
        raise Unavailable("built without libfuse3: install libfuse3-dev and build again")
    mountpoint = os.path.join(setup.folder, "mount")
    os.makedirs(mountpoint, exist_ok=True)
    server = Program([setup.program("latency_fuse"), mountpoint, "--size", size_bytes, "--latency-ms", 5, *flags])
    try:
        yield os.path.join(mountpoint, "data")
    finally:
        server.process.terminate()
        server.__exit__()


def sweep_plain_read(setup, file, flags):
    thread_counts = (16, 64) if setup.quick else (1, 2, 4, 8, 16, 32, 64)
    chunks = (128 * KIB, MIB) if setup.quick else [128 * KIB << shift for shift in range(6)]

    def run(threads, chunk, seconds):
        with setup.plain_read(file, "--threads", threads, "--chunk", chunk, *flags) as program:
            return program.ask(f"sample {seconds}")

    samples = [{"threads": threads, "chunk": chunk, **run(threads, chunk, 0.2)}
               for threads in thread_counts for chunk in chunks]
    return harness.best_of_sweep(samples, lambda sample: run(sample["threads"], sample["chunk"], setup.round_seconds)), samples


def race_on_mount(setup, title, mount_flags, read_flags):
    size_bytes = (256 if setup.quick else 512) * MIB
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(latency_mount(setup, size_bytes, *mount_flags))
        best, sweep = sweep_plain_read(setup, file, read_flags)
        peer = f"plain pread, {best['threads']} threads, {table.size(best['chunk'])}"
        program = stack.enter_context(setup.penstock(file, *read_flags))
        plain = stack.enter_context(
            setup.plain_read(file, "--threads", best["threads"], "--chunk", best["chunk"], *read_flags))

        def ask(asked):
            harness.make_cold(file)
            return asked.ask(f"run {setup.round_seconds}")

        contenders = {peer: lambda: ask(plain), "penstock": lambda: ask(program)}
        for contender in contenders.values():
            contender()
        rows, attempts = harness.decide(lambda: harness.race(contenders, setup.rounds),
                                        [at_least(title, "penstock", peer, 0.9)])
        setup.check(title, program)
        return {"rows": rows, "attempts": attempts, "sweep": sweep, "ready": program.ready}


def row_fuse(setup):
    """A FUSE mount with 5 ms latency and the page cache, dropped before every load."""
    return race_on_mount(setup, "FUSE mount, 5 ms a read, page cache dropped before each load", [], ["--evict"])


def row_fuse_direct(setup):
    """The same mount without the page cache (direct_io), where requests are as large as the reader makes them."""
    return race_on_mount(setup, "FUSE mount, 5 ms a read, direct_io", ["--direct-io"], [])


def watch_status(program, names, stop, highest):
    """Keeps the highest figures of a program's status while it works."""
    while not stop.wait(0.005):
        for name, value in program.status_bytes(*names).items():
            highest[name] = max(highest.get(name, 0), value)


def load_and_watch(setup, size_bytes):
    """Loads [1, size) in a process of its own: at this offset every direct read goes through a bounce buffer."""
    harness.make_cold(setup.large_file)
    names = ("VmHWM", "VmPin", "VmLck")
    with setup.penstock(setup.large_file, "--offset", 1, "--size", size_bytes - 1, "--watch-memory") as program:
        stop, highest = threading.Event(), {}
        watcher = threading.Thread(target=watch_status, args=(program, names, stop, highest))
        watcher.start()
        try:
            sample = program.ask("run 0")
        finally:
            stop.set()
            watcher.join()
        highest["VmHWM"] = program.status_bytes("VmHWM")["VmHWM"]
        budget = program.ready["options"]["pinned_budget_bytes"]
        setup.check(f"unaligned load of {table.size(size_bytes)}", program)
        return {"size_bytes": size_bytes, "budget_bytes": budget, "pinned_bytes": sample["pinned_bytes_highest"],
                "outside": highest, "extra_bytes": highest["VmHWM"] - program.ready["memory_bytes"],
                "routes": sample.get("routes")}


def row_memory(setup):
    """Memory beside the destination while files of three sizes are loaded unaligned: bounded, and the same for all."""
    sizes = [size for size in (256 * MIB, GIB, 4 * GIB) if size <= setup.large_bytes]
    samples = [load_and_watch(setup, size) for size in sizes]
    # The process has code and stacks of its own; beyond those, a few MiB of noise are no growth with the file.
    growth = max(s["extra_bytes"] for s in samples) - min(s["extra_bytes"] for s in samples)
    within = all(max(s["pinned_bytes"], s["outside"]["VmPin"], s["outside"]["VmLck"]) <= s["budget_bytes"]
                 for s in samples)
    bounded = all(s["extra_bytes"] <= s["budget_bytes"] + 64 * MIB for s in samples)
    met = within and bounded and growth <= 16 * MIB
    return {"rows": [{"kind": "memory", "title": "memory beside the destination", "samples": samples,
                      "growth_bytes": growth, "verdict": "met" if met else "missed"}]}


def row_ranges(setup):
    """Cost per range of requests of ten, ten thousand and a million ranges of a cached file."""
    counts = (10, 10_000, 100_000) if setup.quick else (10, 10_000, 1_000_000)
    rows = []
    for range_bytes in (4096, 64):
        if harness.available_memory_bytes() < counts[-1] * range_bytes + 2 * GIB:
            raise Unavailable(f"too little memory for {counts[-1]} ranges of {range_bytes} bytes")
        rows.append(measure_ranges(setup, range_bytes, counts))
    return {"rows": rows}


def measure_ranges(setup, range_bytes, counts):
    harness.make_cached(setup.small_file)
    rounds = []
    for number in range(2 if setup.quick else 3):
        order = counts if number % 2 == 0 else counts[::-1]
        rounds.append({count: nanoseconds_per_range(setup, range_bytes, count, counts[-1]) for count in order})
    medians = {count: statistics.median(sample[count] for sample in rounds) for count in counts}
    growth = max(medians[b] / medians[a] for i, a in enumerate(counts) for b in counts[i + 1:])
    return {"kind": "ranges", "title": f"cost per range of {table.size(range_bytes)}, cached", "rounds": rounds,
            "nanoseconds": medians, "growth": growth, "target": 1.15, "verdict": "met" if growth <= 1.15 else "missed"}


def nanoseconds_per_range(setup, range_bytes, count, destinations):
    """In a process of its own, since the destinations are large; all counts read into equally many."""
    with setup.penstock(setup.small_file, "--mode", "ranges", "--range-bytes", range_bytes, "--ranges", count,
                        "--destinations", destinations) as program:
        program.ask("run 0.1")
        sample = program.ask(f"run {min(setup.round_seconds, 1)}")
        if range_bytes == 64:
            setup.check(f"{count} ranges of {range_bytes} bytes", program)
        return sample["seconds"] / sample["operations"] * 1e9


def far(setup, latency_ms, *arguments, **options):
    return Program([setup.program("bench_far"), "--latency-ms", latency_ms, "--options", json.dumps(options),
                    "--size", 256 * MIB if setup.quick else GIB, *arguments])


def row_far(setup):
    """A store that answers after a fixed time, however much is asked of it, against what is allowed in flight over that
    time, or what the same store gives at once where that is less."""
    rows = []
    with far(setup, 0) as near:
        near.ask("run 1")
        at_once = [harness.bytes_per_second(near.ask("run 1")) for _ in range(3)]
    for latency_ms in (1, 20, 100, 500):
        with far(setup, latency_ms) as program:
            # After twenty latencies it has learnt how much there should be in flight.
            program.ask(f"run {20 * latency_ms / 1e3}")
            rounds = [harness.bytes_per_second(program.ask(f"run {max(1, 8 * latency_ms / 1e3)}"))
                      for _ in range(3)]
            setup.check(f"a store of {latency_ms} ms", program)
            allowed = program.ready["options"]["bytes_in_flight"] / (latency_ms / 1e3)
        most = min(allowed, statistics.median(at_once))
        rows.append(figure(f"a store of {latency_ms} ms, of {most / 1e9:.2f} GB/s at most",
                                    [speed / most for speed in rounds], "plain", 0.9))
    return {"rows": rows, "at_once": at_once}


def row_two_engines(setup):
    """Single reads of 256 KiB of a cached file by the lane that is busy with another engine, against the lane alone."""
    harness.make_cached(setup.small_file)
    with contextlib.ExitStack() as stack:
        alone, busy = (stack.enter_context(far(setup, 20, "--file", setup.small_file, *flags, lanes=1))
                       for flags in ([], ["--busy"]))
        ratios = []
        for _ in range(setup.rounds):
            once = {name: program.ask("small 1")["p50_seconds"] for name, program in
                    (("alone", alone), ("busy", busy))}
            ratios.append(once["busy"] / once["alone"])
    return {"rows": [figure("p50 of single reads of 256 KiB beside a busy engine, to that alone", ratios, "plain",
                                     1.2, True)]}


def row_rows(setup):
    """Random rows of a cached table to host memory, against a parallel copy by hand from a mapping, and NumPy."""
    file, threads = setup.small_file, len(os.sched_getaffinity(0))
    harness.make_cached(file)
    rows, attempts = [], {}
    for row_bytes in (256, KIB, 4 * KIB):
        sizes = [row_bytes, 64 * MIB]
        with contextlib.ExitStack() as stack:
            program = stack.enter_context(Program([setup.program("bench_rows"), file, "--row-bytes", sizes[0],
                                                   "--output-bytes", sizes[1], "--threads", threads]))
            hand = f"copied by hand from a mapping, {threads} threads"
            contenders = {hand: lambda: program.ask(f"hand {setup.round_seconds}"),
                          "penstock": lambda: program.ask(f"run {setup.round_seconds}")}
            title = f"rows of {table.size(row_bytes)}, cached, to host memory"
            wanted = [at_least(title, "penstock", hand, 0.8)]
            if importlib.util.find_spec("numpy") is not None:
                numpy = stack.enter_context(Program([sys.executable, "-B", os.path.join(HERE, "numpy_rows.py"), file,
                                                     *sizes]))
                contenders["NumPy, memmap[numbers]"] = lambda: numpy.ask(f"run {setup.round_seconds}")
                wanted.append(at_least(f"… against NumPy, {table.size(row_bytes)}", "penstock", "NumPy, memmap[numbers]",
                                       3 if row_bytes == 256 else 1))
            for contender in contenders.values():
                contender()
            decided, attempts[row_bytes] = harness.decide(lambda: harness.race(contenders, setup.rounds), wanted)
            rows += decided
            setup.check(title, program)
    return {"rows": rows, "attempts": attempts}


def row_calls(setup):
    """Single calls of an ordinary program, to the same by plain code: what each costs beside the bytes."""
    setup.need_storage()
    scratch = os.path.join(setup.folder, "calls.bin")
    rows, attempts = [], {}
    try:
        with Program([setup.program("bench_calls"), setup.small_file, scratch]) as program:
            for command, title, target in (
                    ("hot", "20,000 reads of 4 KiB of 2,048 blocks that were not cached", 0.9),
                    ("hot_rows", "2,000 gathers of 64 rows of 4 KiB of 2,048 that were not cached", 0.9),
                    ("cached", "reads of 4 KiB, cached", 0.8),
                    ("callers", "reads of 2 MiB, cached, by eight threads", 0.95),
                    ("rows", "gathers of 64 rows of 8 KiB, cached, to copies from a mapping", 0.8),
                    ("direct", "reads of 4 KiB past the page cache", 0.9),
                    ("write", "writes of 4 KiB past the page cache", 0.9),
                    ("write_short", "writes of 100 bytes", 0.9),
                    ("durable", "writes of 4 KiB, each synced", 0.9)):
                pairs = attempts[command] = [program.ask(f"{command} 0") for _ in range(setup.rounds)]
                rows.append(figure(f"{title}: speed to that of plain code",
                                   [pair["plain"]["seconds"] / pair["ours"]["seconds"] for pair in pairs], "plain",
                                   target))
    finally:
        os.remove(scratch)
    return {"rows": rows, "attempts": attempts}


def row_queue(setup):
    """A CompletionQueue, to what a program would write instead."""
    setup.need_storage()
    rows, attempts = [], {}
    with Program([setup.program("bench_queue"), setup.small_file]) as program:
        alone = attempts["latency"] = [program.ask("latency 0") for _ in range(setup.rounds)]
        rows.append(figure("one read of 4 KiB past the page cache, a loop of poll: time to that of wait",
                           [each["poll"] / each["wait"] for each in alone], "wait", 1.2, lower_is_better=True))
        rows.append(figure("the same, epoll on the descriptor: time beyond that of wait",
                           [each["epoll"] - each["wait"] for each in alone], "microseconds", 20e-6,
                           lower_is_better=True))
        for command, title, target in (
                ("direct", "random reads of 4 KiB past the page cache, 64 in flight, to liburing", 0.85),
                ("cached", "random reads of 4 KiB, cached, 64 in flight, to liburing", 0.8),
                ("many", "5,000 cached reads of 4 KiB in flight, one epoll loop, to two threads", 0.9)):
            if command != "direct":
                harness.make_cached(setup.small_file)
            pairs = attempts[command] = [program.ask(f"{command} 0") for _ in range(setup.rounds)]
            rows.append(figure(f"{title}: speed", [pair["plain"]["seconds"] / pair["ours"]["seconds"] for pair in pairs],
                               "plain", target))
            rows.append(figure(f"{title}: CPU time",
                               [pair["ours"]["cpu_seconds"] / pair["plain"]["cpu_seconds"] for pair in pairs], "plain"))
        answer = program.ask("check")
        setup.note("completion queue: bytes as expected", answer["right"], answer)
    return {"rows": rows, "attempts": attempts}


def row_kinds(setup):
    """100,000 scattered records of a kind in one request, against the same ranges asked for without a dictionary."""
    file, threads = setup.small_file, len(os.sched_getaffinity(0))
    rows, attempts = [], {}
    for state, record_bytes, reads in (("cached", 512, 100_000), ("cold", 4 * KIB, 100_000)):
        if state == "cold":
            setup.need_storage()
        prepare = harness.make_cached if state == "cached" else harness.make_cold
        with Program([setup.program("bench_kinds"), file, "--record-bytes", record_bytes, "--reads", reads, "--threads",
                      threads]) as program:
            def ask(command, prepare=prepare, program=program, state=state):
                prepare(file)
                return program.ask(f"{command} {setup.round_seconds if state == 'cached' else 0}")

            contenders = {"the same ranges": lambda: ask("direct"), "penstock": lambda: ask("run")}
            title = f"{reads:,} records of {table.size(record_bytes)} by kind, {state}"
            for contender in contenders.values():
                contender()
            decided, attempts[state] = harness.decide(lambda: harness.race(contenders, setup.rounds), [
                at_least(title, "penstock", "the same ranges", 0.95)])
            rows += decided
            setup.check(title, program)
    return {"rows": rows, "attempts": attempts}


def row_open(setup):
    """Opening a file, and replacing one of 50,000 in a folder, against the plain system calls."""
    rows, attempts = [], {}
    with Program([setup.program("bench_open"), setup.folder, "--files", 1000 if setup.quick else 50_000]) as program:
        for command, title, target in (("read", "opening for reading", 0.4), ("write", "opening for writing", 0.2),
                                       ("replace", "replacing a file of 4 KiB, not synced", None)):
            contenders = {"plain": lambda c=command: program.ask(f"plain-{c} {setup.round_seconds / 4}"),
                          "penstock": lambda c=command: program.ask(f"{c} {setup.round_seconds / 4}")}
            for contender in contenders.values():
                contender()
            attempts[command] = setup.race(contenders, turns=2)
            rows.append(figure(f"{title}, speed to that of the plain calls",
                               [harness.operations_per_second(each["penstock"]) /
                                harness.operations_per_second(each["plain"]) for each in attempts[command]], "plain",
                               target))
        setup.check("replaced file", program)
    return {"rows": rows, "attempts": attempts}


def row_packed(setup):
    """Normally distributed weights, packed and unpacked by one CPU, with checksums."""
    rows, ready = [], {}
    for dtype, size, decode, encode in (("BF16", 0.71, 4e9, 1e9), ("F16", None, None, None), ("F32", None, None, None),
                                        ("F8_E4M3", None, None, None), ("F8_E5M2", None, None, None)):
        with Program([setup.program("bench_packed"), dtype]) as program:
            ready[dtype] = program.ready
            rows.append(figure(f"{dtype}: packed size of its bytes", [program.ready["ratio"]], "plain", size, True))
            for what, target in (("decode", decode), ("encode", encode)):
                samples = [program.ask(f"{what} {min(1, setup.round_seconds)}") for _ in range(setup.rounds)]
                rows.append(figure(f"{dtype}: {what}d bytes of a core, {program.ready['kernels']}",
                                            [each["bytes"] / each["seconds"] for each in samples], "bytes_per_second",
                                            target))
            setup.check(f"packed {dtype}", program)
    return {"rows": rows, "ready": ready}


def row_tiers(setup):
    """Moves between two tiers of one folder, against a plain direct copy with the same verification and cp -a."""
    large, files, names = (256 * MIB, 1000, 100_000) if setup.quick else (2 * GIB, 10_000, 1_000_000)
    with Program([setup.program("bench_tiers"), setup.folder, "--large-bytes", large, "--files", files, "--names",
                  names]) as program:
        def race(ours, theirs):
            return [(program.ask(f"{ours} 0"), program.ask(f"{theirs} 0")) for _ in range(setup.rounds)]

        def ratios(pairs, seconds):
            return [theirs[seconds] / ours[seconds] for ours, theirs in pairs]

        large_pairs, small_pairs = race("move", "plain"), race("small", "cp")
        opened = program.ask("open 0")
        many = program.ask("names 0")
        # A move also deletes its source. The targets compare it with a copy all the same: that is what a user has to
        # wait for. The second figure of each compares the same work.
        rows = [figure("moving a large file, speed to that of a plain direct copy, verified too",
                                ratios(large_pairs, "seconds"), "plain", 0.9),
                figure("the same until the source's room is free, to a plain copy and its removal",
                                ratios(large_pairs, "cleared_seconds"), "plain"),
                figure(f"moving {files:,} small files, speed to that of cp -a with fsync of each",
                                ratios(small_pairs, "seconds"), "plain", 3),
                figure("the same until the sources' room is free, to cp -a, fsync and rm",
                                ratios(small_pairs, "cleared_seconds"), "plain"),
                figure("the same, processor time to that of cp -a, fsync and rm",
                                [ours["cleared_cpu_seconds"] / theirs["cleared_cpu_seconds"]
                                 for ours, theirs in small_pairs], "plain", None, True),
                figure("opening by a name of a tier, more than by its path",
                                [opened["tier_seconds"] - opened["path_seconds"]], "microseconds", 50e-6, True)]
        for what, title in (("open", "opening a catalog"), ("page", "listing a page of 1,000"),
                            ("lookup", "looking up a name"), ("plan", "planning")):
            rows.append(figure(f"{title}, of {names:,} names", [many[f"{what}_seconds"]], "microseconds"))
    return {"rows": rows, "large": large_pairs, "small": small_pairs, "open": opened, "names": many}


def row_start(setup):
    """From the start of a process to the end of its first load, with set-up: nothing is warm but the page cache."""
    rows = []
    for state, prepare, plain_flags in (("cached", harness.make_cached, []), ("cold", harness.make_cold, ["--direct"])):
        if state == "cold":
            setup.need_storage()
        threads = len(os.sched_getaffinity(0)) if state == "cached" else 16
        starters = {"penstock": lambda: setup.penstock(setup.small_file),
                    f"plain pread, {threads} threads, 1 MiB": lambda t=threads, f=plain_flags: setup.plain_read(
                        setup.small_file, "--threads", t, "--chunk", MIB, *f)}
        rounds = harness.race({name: lambda s=starter, p=prepare: start_and_load(setup, s, p)
                               for name, starter in starters.items()}, 3)
        rows.append({"kind": "start", "title": f"from process start, {state} file of {table.size(setup.small_bytes)}",
                     "rounds": rounds, "verdict": "for orientation"})
    return {"rows": rows}


def start_and_load(setup, starter, prepare):
    prepare(setup.small_file)
    with starter() as program:
        load = program.ask("run 0")
        total = time.monotonic() - program.started
        return {"total_seconds": total, "setup_seconds": program.ready["setup_seconds"],
                "load_seconds": load["seconds"]}


# Each with the seconds that it is expected to take, where that matters: with a time limit.
ROWS = {"cached": (row_cached, 0), "cold": (row_cold, 0), "loads": (row_loads, 0), "random": (row_random, 0),
        "fuse": (row_fuse, 0),
        "fuse-direct": (row_fuse_direct, 0), "memory": (row_memory, 0), "ranges": (row_ranges, 0),
        "far": (row_far, 0), "two-engines": (row_two_engines, 0), "start": (row_start, 0),
        "calls": (row_calls, 0), "queue": (row_queue, 0), "rows": (row_rows, 0), "kinds": (row_kinds, 0),
        "packed": (row_packed, 0), "tiers": (row_tiers, 0), "open": (row_open, 0)}
