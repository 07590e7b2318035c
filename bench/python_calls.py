"""Calls of the Python package against the plain calls that a program would use instead, on files in the page cache.

    PYTHONPATH=build/python python3 bench/python_calls.py [--rounds N] [--only ROW,...] [--dir DIR] [--json FILE]
                                                         [--before PATH]

Each row runs in a process of its own. There ours and the plain call take turns, two milliseconds each, and the figure of
each is that of its fastest round: what slows down others is not the call. With `--before` every row also runs with the
package in PATH (the `python` folder of another build), in turn with the first, for a table of before and after.
"""

import argparse
import asyncio
import concurrent.futures
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time

ROUND_SECONDS = 0.002
RECORD_BYTES = 64


def calls_per_round(call):
    """As many as a round takes."""
    call()
    count = 1
    while True:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        seconds = time.perf_counter() - begin
        if seconds > ROUND_SECONDS / 4:
            return max(1, round(count * ROUND_SECONDS / seconds))
        count *= 4


def compared(rounds, ours, plain):
    """Microseconds of one call of each."""
    counts = [calls_per_round(call) for call in (ours, plain)]
    times = [[], []]
    for _ in range(rounds):
        for call, count, taken in zip((ours, plain), counts, times):
            begin = time.perf_counter()
            for _ in range(count):
                call()
            taken.append((time.perf_counter() - begin) / count * 1e6)
    return [min(taken) for taken in times]


def compared_awaited(rounds, ours, plain):
    """The same for functions that give something to await, as many as a loop has of them at once."""
    async def main():
        times = [[], []]
        for each in (ours, plain):
            await each()
        for _ in range(rounds):
            for call, taken in zip((ours, plain), times):
                repeat = 0
                begin = time.perf_counter()
                while time.perf_counter() - begin < ROUND_SECONDS or repeat == 0:
                    await call()
                    repeat += 1
                taken.append((time.perf_counter() - begin) / repeat * 1e6)
        return [min(taken) for taken in times]

    return asyncio.run(main())


def file_of(folder, name, size_bytes):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        with open(path, "wb") as file:
            while size_bytes:
                piece = os.urandom(min(size_bytes, 1 << 20))
                file.write(piece)
                size_bytes -= len(piece)
    return cached(path)


def cached(path):
    """Brings a file into the page cache."""
    with open(path, "rb") as file:
        while file.read(1 << 20):
            pass
    return path


def model_of(folder):
    import torch

    import penstock

    path = os.path.join(folder, "model.safetensors")
    if not os.path.exists(path):
        penstock.save_file({f"layer.{i}.weight": torch.randn(256, 256) for i in range(64)}, path)
    return cached(path)


def row_get_slice(folder, rounds):
    """one weight by get_slice, as transformers reads it; safetensors"""
    import safetensors

    import penstock

    path = model_of(folder)
    theirs = safetensors.safe_open(path, "pt").__enter__()
    penstock.patch()
    ours = safetensors.safe_open(path, "pt").__enter__()
    return compared(rounds, lambda: ours.get_slice("layer.7.weight")[...], lambda: theirs.get_slice("layer.7.weight")[...])


def row_read_into(folder, rounds):
    """read_into of 8 KiB from a path; open, preadv, close"""
    import penstock

    path = file_of(folder, "bytes", 64 << 20)
    target = bytearray(8192)

    def plain():
        descriptor = os.open(path, os.O_RDONLY)
        os.preadv(descriptor, [target], 1 << 20)
        os.close(descriptor)

    return compared(rounds, lambda: penstock.read_into(target, path, 1 << 20), plain)


def row_store_read_into(folder, rounds):
    """Store.read_into of 8 KiB; preadv"""
    import penstock

    path = file_of(folder, "bytes", 64 << 20)
    target, descriptor, store = bytearray(8192), os.open(path, os.O_RDONLY), penstock.open(path)
    return compared(rounds, lambda: store.read_into(target, 1 << 20), lambda: os.preadv(descriptor, [target], 1 << 20))


def row_store_read(folder, rounds):
    """Store.read of 8 KiB; preadv into a new bytearray"""
    import torch  # noqa: F401

    import penstock

    path = file_of(folder, "bytes", 64 << 20)
    descriptor, store = os.open(path, os.O_RDONLY), penstock.open(path)
    return compared(rounds, lambda: store.read(1 << 20, 8192),
                    lambda: os.preadv(descriptor, [bytearray(8192)], 1 << 20))


def rows_of(folder, rounds, count):
    import numpy
    import torch

    import penstock

    path = os.path.join(folder, "table.npy")
    if not os.path.exists(path):
        numpy.save(path, numpy.random.default_rng(1).standard_normal((100_000, 128), numpy.float32))
    mapped = torch.from_numpy(numpy.load(cached(path), mmap_mode="c"))
    table = penstock.Rows(path, framework="pt")
    ids = torch.randint(100_000, (count,))
    assert torch.equal(table[ids], mapped[ids])
    return compared(rounds, lambda: table[ids], lambda: mapped[ids])


def row_rows_1(folder, rounds):
    """rows[ids] of 1 id; torch's indexing of a mapped file"""
    return rows_of(folder, rounds, 1)


def row_rows_64(folder, rounds):
    """rows[ids] of 64 ids; torch's indexing of a mapped file"""
    return rows_of(folder, rounds, 64)


def kinds_of(folder):
    import penstock

    records, database = os.path.join(folder, "records.bin"), os.path.join(folder, "records.db")
    if not os.path.exists(database):
        content = os.urandom(RECORD_BYTES * 10_000)
        kinds = penstock.Kinds.create(records)
        kinds.add("records", record_bytes=RECORD_BYTES, capacity=10_000)
        kinds.append("records", content)
        with sqlite3.connect(database) as made:
            made.execute("CREATE TABLE records(id INTEGER PRIMARY KEY, record BLOB)")
            made.executemany("INSERT INTO records VALUES(?, ?)",
                             [(i, content[RECORD_BYTES * i:RECORD_BYTES * (i + 1)]) for i in range(10_000)])
    connection = sqlite3.connect(cached(database))
    cached(records)
    return penstock.Kinds(records, framework="np"), connection.execute


def row_kinds_read(folder, rounds):
    """kinds.read of one record; SELECT from SQLite"""
    kinds, execute = kinds_of(folder)
    return compared(rounds, lambda: kinds.read("records", 4321),
                    lambda: execute("SELECT record FROM records WHERE id = 4321").fetchone())


def row_kinds_read_all(folder, rounds):
    """kinds.read_all of 1,000 records; as many SELECTs from SQLite"""
    kinds, execute = kinds_of(folder)
    ids = [(7919 * i) % 10_000 for i in range(1000)]
    return compared(rounds, lambda: kinds.read_all([("records", i) for i in ids]),
                    lambda: [execute("SELECT record FROM records WHERE id = ?", (i,)).fetchone() for i in ids])


def row_awaited(folder, rounds):
    """one awaited 4 KiB read of a Store; to_thread(preadv)"""
    import penstock

    path = file_of(folder, "bytes", 64 << 20)
    target, descriptor, store = bytearray(4096), os.open(path, os.O_RDONLY), penstock.open(path)
    return compared_awaited(rounds, lambda: store.read_into_async(target, 1 << 20),
                            lambda: asyncio.to_thread(os.preadv, descriptor, [target], 1 << 20))


def row_awaited_path(folder, rounds):
    """one awaited 4 KiB read of a path; to_thread(open, preadv, close)"""
    import penstock

    path = file_of(folder, "bytes", 64 << 20)
    target = bytearray(4096)

    def plain():
        descriptor = os.open(path, os.O_RDONLY)
        os.preadv(descriptor, [target], 1 << 20)
        os.close(descriptor)

    return compared_awaited(rounds, lambda: penstock.read_into_async(target, path, 1 << 20),
                            lambda: asyncio.to_thread(plain))


def row_awaited_1000(folder, rounds):
    """1,000 awaited 4 KiB reads of a Store; a pool of 16 threads"""
    import penstock

    path = file_of(folder, "bytes", 64 << 20)
    targets = [bytearray(4096) for _ in range(1000)]
    descriptor, store = os.open(path, os.O_RDONLY), penstock.open(path)
    pool = concurrent.futures.ThreadPoolExecutor(16)

    def ours():
        return asyncio.gather(*(store.read_into_async(target, 8192 * i) for i, target in enumerate(targets)))

    def plain():
        loop = asyncio.get_running_loop()
        return asyncio.gather(*(loop.run_in_executor(pool, os.preadv, descriptor, [target], 8192 * i)
                                for i, target in enumerate(targets)))

    return compared_awaited(rounds, ours, plain)


def row_blocked(folder, rounds):
    """the longest that a loop does not come round while 1,000 reads are awaited; with a pool of 16 threads"""
    import penstock

    path = file_of(folder, "bytes", 64 << 20)
    targets = [bytearray(4096) for _ in range(1000)]
    descriptor, store = os.open(path, os.O_RDONLY), penstock.open(path)
    pool = concurrent.futures.ThreadPoolExecutor(16)

    async def longest(reads):
        most, is_done = 0.0, False

        async def watch():
            nonlocal most
            last = time.perf_counter()
            while not is_done:
                await asyncio.sleep(0)
                now = time.perf_counter()
                most, last = max(most, now - last), now

        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0)
        tasks = [asyncio.ensure_future(each) for each in reads()]
        await asyncio.wait(tasks)
        is_done = True
        await watching
        return most * 1e6

    def ours():
        return [store.read_into_async(target, 8192 * i) for i, target in enumerate(targets)]

    def plain():
        loop = asyncio.get_running_loop()
        return [loop.run_in_executor(pool, os.preadv, descriptor, [target], 8192 * i) for i, target in enumerate(targets)]

    async def main():
        await longest(ours)
        await longest(plain)
        return [min([await longest(each) for _ in range(rounds)]) for each in (ours, plain)]

    return asyncio.run(main())


def row_load_file(folder, rounds):
    """load_file under patch() of 64 weights; safetensors"""
    import safetensors.torch

    import penstock

    path, theirs = model_of(folder), safetensors.torch.load_file
    penstock.patch()
    return compared(rounds, lambda: safetensors.torch.load_file(path), lambda: theirs(path))


def row_zipf(folder, rounds):
    """a batch of 1,024 Zipf ids over a table that was cold, the last 100 of 600; the first 100"""
    import numpy
    import torch

    import penstock

    del rounds
    path, count = os.path.join(folder, "cold.npy"), 500_000
    made = numpy.lib.format.open_memmap(path, "w+", numpy.float32, (count, 128))
    made[:] = numpy.float32(1)
    made.flush()
    del made
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    random_ = numpy.random.default_rng(1)
    places = random_.permutation(count)
    table = penstock.Rows(path, framework="pt")
    taken = []
    for _ in range(600):
        ids = torch.from_numpy(places[(random_.zipf(1.2, 1024) - 1) % count])
        begin = time.perf_counter()
        table[ids]
        taken.append((time.perf_counter() - begin) * 1e6)
    return [sum(taken[-100:]) / 100, sum(taken[:100]) / 100]


def saved(folder, rounds, count, elements):
    import safetensors.torch
    import torch

    import penstock

    theirs = safetensors.torch.save_file
    penstock.patch()
    tensors = {f"layer.{i}.weight": torch.randn(elements) for i in range(count)}
    ours_path, theirs_path = os.path.join(folder, "ours"), os.path.join(folder, "theirs")
    return compared(rounds, lambda: safetensors.torch.save_file(tensors, ours_path), lambda: theirs(tensors, theirs_path))


def row_save_40k(folder, rounds):
    """save_file under patch() of 40 kB; safetensors"""
    return saved(folder, rounds, 10, 1000)


def row_save_10m(folder, rounds):
    """save_file under patch() of 10 MB; safetensors"""
    return saved(folder, rounds, 10, 250_000)


ROWS = {name[4:]: row for name, row in list(globals().items()) if name.startswith("row_")}


def run_one(name, package, arguments):
    """Microseconds of ours and of the plain call, or why it could not be measured."""
    environment = {**os.environ, **({"PYTHONPATH": package} if package else {}), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-B", __file__, "--row", name, "--rounds", str(arguments.rounds), "--dir",
                           arguments.dir], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed"])[-1]
    return json.loads(done.stdout)


def told(figures):
    return figures if isinstance(figures, str) else \
        f"{figures[0]:10.1f} µs  {figures[1]:10.1f} µs  {figures[0] / figures[1]:6.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", default="", help=", ".join(ROWS))
    parser.add_argument("--dir", default="")
    parser.add_argument("--json", default="")
    parser.add_argument("--before", default="")
    parser.add_argument("--row", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(ROWS[arguments.row](arguments.dir, arguments.rounds)))
        return
    chosen = arguments.only.split(",") if arguments.only else list(ROWS)
    if unknown := set(chosen) - set(ROWS):
        parser.error(f"no rows {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    results = {}
    with tempfile.TemporaryDirectory(dir=arguments.dir or None) as folder:
        arguments.dir = folder
        for name in chosen:
            print(f"{name}: {ROWS[name].__doc__}")
            results[name] = {}
            for when, package in (("before", arguments.before), ("now", "")):
                if when == "now" or package:
                    results[name][when] = run_one(name, package, arguments)
                    print(f"  {when:6} {told(results[name][when])}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
