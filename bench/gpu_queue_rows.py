"""Reads that kernels start by themselves."""

import harness
import table
from harness import MIB, Program, Unavailable, at_least, at_most, figure


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
