"""The rows of bench/run.py --models: models to tensors of torch on the first GPU. docs/performance.md explains them;
bench/peers compares with other loaders.
"""

import contextlib
import itertools
import os
import statistics

import harness
import table
from gpu_setup import GpuSetup
from harness import Program, at_least, at_most, figure
from peers import layouts

HERE = os.path.dirname(os.path.abspath(__file__))


class ModelSetup(GpuSetup):
    """Models instead of files; sizes, time and yardsticks are the same."""

    def __init__(self, arguments):
        super().__init__(arguments)
        self.python, self.device = arguments.python, arguments.device

    def prepare(self):
        self.describe_gpu()

    def model(self, layout, size):
        files = layouts.make(self.folder, layout, size)
        return files[0] if len(files) == 1 else os.path.dirname(files[0])

    def worker(self, model):
        program = Program([self.python, "-B", os.path.join(HERE, "model_worker.py"), self.device, model,
                           self.written_file], timeout_s=180)
        self.version = program.ready["version"]
        return program

    def check_tensors(self, what, program):
        wrong = program.ask("check")["wrong"]
        self.note(f"{what}: bytes as expected", not wrong, {"wrong": wrong[:5]})


def race_with_copies(setup, layout, target):
    """A model in the page cache to tensors of torch, against copies from pinned memory."""
    model = setup.model(layout, setup.file_bytes)
    for file in layouts.files_of(model):
        harness.make_cached(file)
    peer = "pinned copies, 256 MiB buffer, 64 MiB each"
    with setup.bench("copies", "--size", setup.file_bytes) as copies, setup.worker(model) as worker:
        contenders = {peer: lambda: copies.ask(f"run {setup.round_seconds}"),
                      "load_file": lambda: worker.ask(f"load {setup.round_seconds}")}
        contenders["load_file"]()
        rows, attempts = setup.decide(lambda: setup.race(contenders), [
            at_least(f"{layout}, {table.size(setup.file_bytes)}, cached, to tensors", "load_file", peer, target)])
        setup.check_tensors(layout, worker)
        return {"rows": rows, "attempts": attempts, "ready": worker.ready}


def row_dense(setup):
    """Large tensors in the page cache to a dict of torch tensors, against copies from pinned memory."""
    return race_with_copies(setup, "dense", 0.9)


def row_llama(setup):
    """Four shards of Llama's shapes in the page cache to a dict of torch tensors, against copies from pinned memory."""
    return race_with_copies(setup, "llama", 0.94)


def row_experts(setup):
    """20,000 small tensors in the page cache to a dict of torch tensors, against copies from pinned memory."""
    return race_with_copies(setup, "experts", 0.8)


def row_ways(setup):
    """A loop over safe_open, and a stream with a window of 1 GiB, against load_file."""
    model = setup.model("dense", setup.file_bytes)
    harness.make_cached(model)
    with setup.worker(model) as worker:
        contenders = {name: lambda name=name: worker.ask(f"{name} {setup.round_seconds}")
                      for name in ("load", "loop", "stream")}
        for contender in contenders.values():
            contender()
        rows, attempts = setup.decide(lambda: setup.race(contenders), [
            at_least("a loop over safe_open, cached", "loop", "load", 0.85),
            at_least("stream, window of 1 GiB, cached", "stream", "load", 0.9)])
        worker.ask("loop 0")
        setup.check_tensors("a loop over safe_open", worker)
        return {"rows": rows, "attempts": attempts}


def row_cold(setup):
    """A model that is not in the page cache to tensors of torch, against the best plain direct reads of its file."""
    setup.need_storage()
    setup.file = setup.model("dense", setup.cold_bytes)
    harness.make_cold(setup.file)
    size = os.path.getsize(setup.file) // harness.MIB * harness.MIB
    peer, best, sweep = setup.sweep_reads(size)
    with setup.plain_direct_read(size, best) as plain, setup.worker(setup.file) as worker:
        contenders = {peer: lambda: setup.ask_cold(plain, f"run {setup.round_seconds}"),
                      "load_file": lambda: setup.ask_cold(worker, f"load {setup.round_seconds}")}
        contenders["load_file"]()
        rows, attempts = setup.decide(
            lambda: setup.race(contenders, **setup.noisy),
            [at_least(f"dense, {table.size(setup.cold_bytes)}, cold, to tensors", "load_file", peer, 0.93)])
        setup.check_tensors("cold", worker)
        return {"rows": rows, "attempts": attempts, "sweep": sweep}


def row_save(setup):
    """Tensors on the GPU to a new file, synced, against plain direct writes."""
    setup.need_storage()
    model = setup.model("dense", setup.written_bytes)
    peer, best, sweep = setup.sweep_writes()
    with setup.worker(model) as worker, setup.plain_write(setup.written_bytes, best) as plain:
        contenders = {peer: lambda: plain.ask(f"run {setup.round_seconds}"),
                      "save_file": lambda: worker.ask(f"save {setup.round_seconds}")}
        return {**race_saves(setup, worker, contenders, peer, 0.93, setup.noisy), "sweep": sweep}


def row_save_beside(setup):
    """The same against safetensors, which is far behind: short rounds will do."""
    setup.need_storage()
    peer = "safetensors and fsync"
    with setup.worker(setup.model("dense", setup.written_bytes)) as worker:
        contenders = {peer: lambda: worker.ask("safetensors 0"), "save_file": lambda: worker.ask("save 0")}
        return race_saves(setup, worker, contenders, peer, 1, {"rounds": setup.noisy["rounds"]})


def race_saves(setup, worker, contenders, peer, target, how):
    for contender in contenders.values():
        contender()
    title = f"save from the GPU, {table.size(setup.written_bytes)}, synced"
    rows, attempts = setup.decide(lambda: setup.race(contenders, **how), [at_least(title, "save_file", peer, target)])
    worker.ask("save 0")
    setup.check_tensors("save", worker)
    return {"rows": rows, "attempts": attempts}


@contextlib.contextmanager
def ranks_shares(setup):
    """Each case of what one of several ranks loads: (title, state, ranks, ask, turns)."""
    setup.need_storage()
    # How long and how many turns: disks change their pace, and a load from the page cache is over soon.
    states = {"cached": (harness.make_cached, setup.round_seconds / 6, 4), "cold": (harness.make_cold, 0, 2)}
    with contextlib.ExitStack() as stack:
        models = {layout: setup.model(layout, setup.written_bytes) for layout in ("dense", "wide")}
        workers = {layout: stack.enter_context(setup.worker(model)) for layout, model in models.items()}

        def asking(layout, state):
            prepare, seconds, _ = states[state]

            def ask(command):
                prepare(models[layout])
                return workers[layout].ask(f"{command} {seconds}")

            return ask

        yield [(f"1 of {ranks} ranks, {layout}, {state}", state, ranks, asking(layout, state), states[state][2])
               for layout, state, ranks in itertools.product(models, states, (2, 4, 8))]


def row_columns(setup):
    """A rank's share of the columns of every tensor against the better way to read them."""
    rows, attempts = [], []
    with ranks_shares(setup) as cases:
        for title, _, ranks, ask, turns in setup.in_equal_shares(cases):
            taken = race_columns(setup, ask, ranks, turns, f"columns, {title}")
            rows += taken[0]
            attempts += taken[1]
            # Where it is 1, the same was done in both, and what is between their times is noise.
            read = [a_round["auto"]["read_share"] / a_round["the better way"]["read_share"]
                    for a_round in taken[1][-1]["rounds"]]
            rows.append(figure(f"columns, {title}: bytes read, to those of the better way", read, "plain"))
    return {"rows": rows, "attempts": attempts}


def row_rows(setup):
    """A rank's share of the rows of every tensor: how many bytes are read for it."""
    rows = []
    with ranks_shares(setup) as cases:
        for title, state, ranks, ask, _ in cases:
            sample = ask(f"rows auto {ranks}")
            share, count = sample["read_share"], "Penstock's"
            # Not every file system's reads are counted.
            if state == "cold" and sample["kernel_read_share"]:
                share, count = max(share, sample["kernel_read_share"]), "the kernel's"
            rows.append(figure(f"rows, {title}: bytes read for a byte, by {count} count", [share], "plain", 1.05, True))
    return {"rows": rows}


def seconds_per_gigabyte(sample):
    return sample["seconds"] / sample["bytes"] * 1e9


def race_columns(setup, ask, ranks, turns, title):
    contenders = {way: lambda way=way: ask(f"columns {way} {ranks}") for way in ("auto", "pieces", "whole")}

    def make_rounds():
        rounds = setup.race(contenders, setup.noisy["rounds"], turns, insist=True)
        better = min(("pieces", "whole"),
                     key=lambda way: statistics.median(seconds_per_gigabyte(taken[way]) for taken in rounds))
        return [{**taken, "the better way": taken[better], "way": better} for taken in rounds]

    for contender in contenders.values():
        contender()  # torch's allocator gets memory of these sizes
    return setup.decide(make_rounds, [at_most(title, "auto", "the better way", 1.05, seconds_per_gigabyte)])


ROWS = {"dense": (row_dense, 30), "llama": (row_llama, 30), "experts": (row_experts, 30), "ways": (row_ways, 35),
        "cold": (row_cold, 65), "rows": (row_rows, 20), "columns": (row_columns, 190), "save": (row_save, 75),
        "save-beside": (row_save_beside, 45)}
