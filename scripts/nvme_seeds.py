"""The NVMe driver against a controller that misbehaves, from many seeds: `penstock nvme soft` in several processes.

usage: nvme_seeds.py TOOL

PENSTOCK_NVME_SEEDS seeds of 3,000 operations and PENSTOCK_NVME_LONG_SEEDS of 100,000, half of each in blocks of 512
bytes and half in blocks of 4096, by PENSTOCK_JOBS processes at a time. Tells at once what goes wrong, with the command
that does it again.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

SHORT, LONG = 3_000, 100_000
OPERATIONS_AT_ONCE = 100_000  # of one process
HANGS_AFTER_SECONDS = 1_800
SUMS = ["operations", "commands", "retries", "aborts", "resets", "strange_completions"]


def cut(seeds, operations):
    """Processes for so many seeds, as (first seed, seeds, operations, block)."""
    step = OPERATIONS_AT_ONCE // operations
    for number, first in enumerate(range(1, seeds + 1, step)):
        yield first, min(step, seeds + 1 - first), operations, [512, 4096][number % 2]


def run(tool, piece):
    """The trial's JSON, and what went wrong."""
    first, seeds, operations, block = piece
    command = [tool, "nvme", "soft", "--seed", str(first), "--seeds", str(seeds), "--operations", str(operations),
               "--block", str(block), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_AFTER_SECONDS)
        trial = json.loads(done.stdout)["trial"]
    except subprocess.TimeoutExpired:
        return {}, [f"no end after {HANGS_AFTER_SECONDS} s: {' '.join(command)}"]
    except (ValueError, KeyError):
        return {}, [f"exit {done.returncode}: {' '.join(command)}\n{done.stdout}{done.stderr}"]
    again = f"penstock nvme soft --operations {operations} --block {block} --seed"
    return trial, [f"{what} ({again} {what.split()[1].rstrip(':')})" for what in trial["wrong"] + trial["breaches"]]


def main(tool):
    short = int(os.environ.get("PENSTOCK_NVME_SEEDS", 2_000))
    long = int(os.environ.get("PENSTOCK_NVME_LONG_SEEDS", 50))
    jobs = int(os.environ.get("PENSTOCK_JOBS", os.cpu_count()))
    pieces = [*cut(long, LONG), *cut(short, SHORT)]
    begun, told = time.monotonic(), time.monotonic()
    sums, seeds, failures = dict.fromkeys(SUMS, 0), 0, []
    print(f"{short} seeds of {SHORT} operations, {long} of {LONG}", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        for ended in as_completed([pool.submit(run, tool, piece) for piece in pieces]):
            trial, wrong = ended.result()
            seeds += trial.get("seeds", 0)
            for name in SUMS:
                sums[name] += trial.get(name, 0)
            for what in wrong:
                print(f"WRONG: {what}", flush=True)
            failures += wrong
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(f"{told - begun:.0f} s: {seeds} of {short + long} seeds, {len(failures)} wrong", flush=True)
    print(f"{seeds} seeds in {time.monotonic() - begun:.0f} s, {len(failures)} wrong; "
          + ", ".join(f"{sums[name]} {name.replace('_', ' ')}" for name in SUMS), flush=True)
    return 1 if failures or seeds != short + long else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
