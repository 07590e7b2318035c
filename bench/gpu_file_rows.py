"""Files to the memory of a GPU, and from there: cached, cold, small and large. docs/performance.md explains the rows."""

import contextlib
import time

import harness
import table
from gpu_setup import DEVICE_PAGE_BYTES
from harness import MIB, BenchError, at_least, at_most, figure

FIRST_REQUEST_BYTES = 64 * MIB


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
        comparisons = [at_least(f"cached file, {table.size(setup.file_bytes)}, to the GPU", "penstock", peer, 0.96)]
        if setup.memory_file_bytes:
            setup.make_files({setup.memory_file: setup.memory_file_bytes})
            in_memory = stack.enter_context(setup.penstock("load", setup.memory_file, setup.memory_file_bytes))
            contenders["penstock, tmpfs"] = lambda: in_memory.ask(f"run {setup.round_seconds}")
            comparisons.append(at_least(f"tmpfs file, {table.size(setup.memory_file_bytes)}, to the GPU",
                                        "penstock, tmpfs", peer, 0.96))
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
    with setup.plain_direct_read(size, best) as plain, \
            setup.penstock("load", setup.file, size, cache="bypass") as program:
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
    with setup.without_keeping(), setup.penstock("load", setup.file, size) as program:
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
