"""The rows of bench/run.py --nvme: the NVMe driver over controllers in software. docs/performance.md explains them."""

import contextlib
import json
import os
import re
import shutil
import subprocess

import harness
import table
from harness import GIB, KIB, MIB, BenchError, Program, Unavailable, at_least, figure

BATCH = 32
BLOCK_BYTES = 128 * KIB


class NvmeSetup(harness.Setup):
    """A file for the controller that serves one; the others have their blocks in memory."""

    def __init__(self, arguments):
        super().__init__(arguments)
        self.round_seconds = 0.3 if self.quick else 1.3
        self.file = os.path.join(self.folder, "small.bin")
        self.file_bytes = 256 * MIB if self.quick else GIB

    def prepare(self):
        os.makedirs(self.folder, exist_ok=True)

    def bench(self, mode, *arguments):
        program = Program([self.program("bench_nvme"), mode, *arguments])
        self.version = program.ready["version"]
        return program


def row_driver(setup):
    """Reads of 512 bytes through one queue pair by one thread, from a controller with its blocks in memory."""
    with setup.bench("driver", "--batch", BATCH) as program:
        if program.ready["cores"] < 2:
            raise Unavailable("the driver and the controller need a core each, and there is only one")
        program.ask("run 0.1")
        rounds = [program.ask(f"run {setup.round_seconds}") for _ in range(setup.rounds)]
        setup.check("NVMe, reads of 512 bytes", program)
    rows = [figure(f"NVMe reads of 512 bytes, one queue pair, one thread, batches of {BATCH}",
                            [harness.operations_per_second(sample) for sample in rounds],
                            "operations_per_second", 1e6),
            figure("… doorbells that the driver rang for each batch",
                            [sample["doorbells"] / sample["batches"] for sample in rounds], "plain", 1, True),
            # The controller may find two doorbells at once, and never more than were rung.
            figure("… of which the controller saw",
                            [sample["doorbells_seen"] / sample["batches"] for sample in rounds], "plain", 1, True)]
    with setup.bench("controller", "--batch", 128) as program:
        program.ask("run 0.1")
        alone = [program.ask(f"run {setup.round_seconds}") for _ in range(setup.rounds)]
    rows.append(figure("… the controller alone, from a doorbell to the last of 128 completions",
                                [harness.operations_per_second(sample) for sample in alone],
                                "operations_per_second"))
    return {"rows": rows, "rounds": rounds, "alone": alone}


def count_instructions(setup, what, operations):
    """The driver's instructions for each operation, by callgrind."""
    if shutil.which("valgrind") is None:
        raise Unavailable("valgrind is not installed: run scripts/install-deps.sh --bench")
    command = ["valgrind", "--tool=callgrind", "--collect-atstart=no", "--callgrind-out-file=/dev/null",
               setup.program("bench_nvme"), what, "--batch", str(BATCH), "--count", str(operations)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or collected is None:
        raise BenchError(f"valgrind: {done.stderr.strip()[-300:]}")
    return int(collected.group(1)) / json.loads(done.stdout)["operations"]


def row_instructions(setup):
    """Instructions of the driver for a submission and for a completion, counted by callgrind."""
    operations = 640 if setup.quick else 3200
    return {"rows": [figure(f"instructions for {name} of 512 bytes, in batches of {BATCH}",
                                     [count_instructions(setup, what, operations)], "count", 200, True)
                     for what, name in (("submit", "a submission"), ("complete", "a completion"))]}


def row_file(setup):
    """A file behind a controller in software, in commands of 128 KiB, against the engine uring on the same file."""
    setup.need_storage()
    setup.make_files({setup.file: setup.file_bytes})
    options = {"cache": "bypass", "storage_chunk_bytes": BLOCK_BYTES,
               "pinned_budget_bytes": setup.file_bytes + harness.GIB}

    def penstock(name, **more):
        arguments = [name, "--memory", "pinned", "--options", json.dumps({**options, **more})]
        return Program([setup.program("bench_penstock"), *arguments])

    with contextlib.ExitStack() as stack:
        programs = {"soft-nvme": stack.enter_context(penstock(f"soft-nvme:{setup.file}")),
                    "uring": stack.enter_context(penstock(setup.file, engine="uring"))}
        setup.version = programs["uring"].ready["version"]

        def ask(program):
            harness.make_cold(setup.file)
            return program.ask(f"run {setup.round_seconds}")

        contenders = {name: lambda p=program: ask(p) for name, program in programs.items()}
        for contender in contenders.values():
            contender()
        title = f"file of {table.size(setup.file_bytes)} behind a controller in software, {table.size(BLOCK_BYTES)} each"
        rows, attempts = setup.decide(lambda: setup.race(contenders, turns=5), [at_least(title, "soft-nvme", "uring", 0.9)])
        for name, program in programs.items():
            setup.check(f"NVMe, file, {name}", program)
        return {"rows": rows, "attempts": attempts}


ROWS = {"driver": (row_driver, 0), "instructions": (row_instructions, 0), "file": (row_file, 0)}
