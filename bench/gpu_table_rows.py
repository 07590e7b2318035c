"""Rows of tables to the memory of a GPU: by gathers, and in replayed graphs."""

import os
import statistics

import harness
import table
from gpu_setup import need_kernels
from harness import Program, at_least, at_most, figure


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
