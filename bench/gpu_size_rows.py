"""Single synchronous transfers of ordinary sizes between a file and GPU memory. docs/performance.md explains the rows."""

import harness
import table
from harness import GIB, KIB, MIB, at_least, at_most, figure

READS = 4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB
WRITES = MIB, 4 * MIB, 16 * MIB, 64 * MIB


def _transfer(setup, title, file, file_bytes, size, *flags):
    """The rows of one size: against the pool by hand and against one copy."""
    seconds = setup.round_seconds / 5
    with setup.bench_sizes(file, file_bytes, size, *flags) as program:
        best = program.ready["by_hand"]
        peer = f"by hand, {best['threads']} x {table.size(best['piece_bytes'])}"
        copy = "one copy from pinned memory"
        names = {"penstock": "penstock", peer: "hand", copy: "pinned"}
        contenders = {name: lambda what=what: program.ask(f"{what} {seconds}") for name, what in names.items()}
        contenders["penstock"]()
        if size <= 64 * KIB:
            rows, attempts = [], [{"rounds": [{name: ask() for name, ask in contenders.items()} for _ in range(3)]}]
            ours = [sample["penstock"]["p50_seconds"] for sample in attempts[-1]["rounds"]]
            rows.append(figure(f"{title}, p50", ours, "microseconds"))
        else:
            rows, attempts = setup.decide(lambda: setup.race(contenders, **setup.noisy),
                                          [at_most(f"{title}, p50", "penstock", peer, 1.0, harness.p50_seconds)])
        last = attempts[-1]["rounds"]
        rows.append(figure(f"{title}: one copy, p50", [sample[copy]["p50_seconds"] for sample in last], "microseconds"))
        if not flags:
            after = [program.ask(f"stream {seconds}")["p50_seconds"] for _ in range(3)]
            rows.append(figure(f"{title}, after work on a stream, p50", after, "microseconds"))
        setup.check(title, program)
        return rows, attempts


def row_sizes(setup):
    """One synchronous read of a cached file to the GPU, by size, against a pool of spinning threads."""
    harness.make_cached(setup.file)
    rows, attempts = [], []
    for size in READS:
        if size > setup.file_bytes:
            continue
        more, tried = _transfer(setup, f"read of {table.size(size)}, cached", setup.file, setup.file_bytes, size)
        rows += more
        attempts += tried
    four = min(64 * MIB, setup.file_bytes)
    with setup.bench_sizes(setup.file, setup.file_bytes, four) as program:
        seconds = setup.round_seconds / 2
        copy = "copies from pinned memory"
        pools = "four pools by hand"
        contenders = {"penstock": lambda: program.ask(f"threads {seconds}"), copy: lambda: program.ask(f"pinned {seconds}"),
                      pools: lambda: program.ask(f"threads_by_hand {seconds}")}
        contenders["penstock"]()
        more, tried = setup.decide(lambda: setup.race(contenders, **setup.noisy),
                                   [at_least(f"four threads, reads of {table.size(four // 4)}, cached", "penstock", copy,
                                             0.9),
                                    at_least(f"four threads, reads of {table.size(four // 4)}, cached", "penstock", pools,
                                             1.0)])
        rows += more
        attempts += tried
    return {"rows": rows, "attempts": attempts}


def row_size_writes(setup):
    """One synchronous write from the GPU to tmpfs, by size, and cold reads to the GPU, likewise."""
    rows, attempts = [], []
    if setup.memory_file_bytes:
        setup.make_files({setup.memory_file: setup.memory_file_bytes})
        for size in WRITES:
            if size > setup.memory_file_bytes:
                continue
            more, tried = _transfer(setup, f"write of {table.size(size)} to tmpfs", setup.memory_file,
                                    setup.memory_file_bytes, size, "--write")
            rows += more
            attempts += tried
    harness.make_cold(setup.file)
    for size in WRITES:
        if size > setup.file_bytes:
            continue
        more, tried = _transfer(setup, f"read of {table.size(size)}, past the page cache", setup.file, setup.file_bytes,
                                size, "--direct")
        rows += more
        attempts += tried
    return {"rows": rows, "attempts": attempts}
