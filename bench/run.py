#!/usr/bin/env python3
"""Measures Penstock beside its yardsticks on one machine, and prints a table. See docs/performance.md for the method.

Usually started by bench/run.sh, which builds the programs first. Standard library only.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time

import gpu_rows
import harness
import host_rows
import model_rows
import nvme_rows
import table
from gpu_setup import GpuSetup
from harness import BenchError, OutOfTime, Unavailable


def expected_seconds(setup, rows):
    return sum(seconds for _, seconds in rows) / (3 if setup.quick else 1)


def end_of_rows(setup, table_of_rows, given=None):
    """When rows that begin now must have ended, unless that is given; None where they take as long as they take."""
    expected = expected_seconds(setup, table_of_rows.values())
    return given or time.monotonic() + expected if expected else None


def share_of_time(setup, later):
    """When a row must end, so that those after it have time as well."""
    if setup.end is None:
        return None
    left = setup.end - time.monotonic()
    return setup.end - min(expected_seconds(setup, later), left)


def run_rows(setup, table_of_rows, keep):
    """`keep` is called with what is known so far, after each row."""
    results = {}
    for index, (name, (row, _)) in enumerate(table_of_rows.items()):
        print(f"{name}: {row.__doc__}", file=sys.stderr, flush=True)
        started = time.monotonic()
        setup.deadline = share_of_time(setup, list(table_of_rows.values())[index + 1:])
        try:
            if setup.end is not None and started > setup.end:
                raise OutOfTime("time ran out before it began")
            results[name] = row(setup)
        except (BenchError, OSError, subprocess.SubprocessError) as error:
            verdict = {Unavailable: "skipped", OutOfTime: "not measured"}.get(type(error), "failed")
            results[name] = {"rows": [{"kind": "absent", "title": name, "reason": str(error), "verdict": verdict}]}
            print(f"  {verdict}: {error}", file=sys.stderr)
        results[name]["measuring_seconds"] = time.monotonic() - started
        print(f"  took {results[name]['measuring_seconds']:.1f} s", file=sys.stderr, flush=True)
        keep(results)
    return results


def make_report(setup, arguments, machine, started, results):
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"schema": "penstock-bench-1", "date": now.isoformat(" ", "minutes"), "machine": machine,
            "gpu": getattr(setup, "gpu", None), "versions": harness.describe_versions(setup.version),
            "settings": {"rounds": setup.rounds, "round_seconds": setup.round_seconds, "quick": setup.quick,
                         "scale": arguments.scale, "spread_limit": harness.SPREAD_LIMIT},
            "seconds": time.monotonic() - started, "checks": setup.checks, "results": results}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    build = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build")
    parser.add_argument("--json", metavar="FILE", help="write every round's numbers to FILE, after each row")
    parser.add_argument("--dir", default=os.path.normpath(os.path.join(build, "bench-files")),
                        help="where the files that are read are made; on the storage to be measured")
    parser.add_argument("--rounds", type=int, default=0, help="of each race (7; with --quick 3)")
    parser.add_argument("--quick", action="store_true", help="smaller files and shorter rounds: a smoke test")
    parser.add_argument("--only", "--rows", metavar="ROW,...",
                        help=f"some of: {', '.join(host_rows.ROWS)}; with --gpu: {', '.join(gpu_rows.ROWS)}; with --models: "
                             f"{', '.join(model_rows.ROWS)}; with --nvme: {', '.join(nvme_rows.ROWS)}")
    parser.add_argument("--gpu", action="store_true", help="measure the rows of the first GPU instead")
    parser.add_argument("--models", action="store_true", help="measure models to torch on the first GPU instead")
    parser.add_argument("--nvme", action="store_true", help="measure the NVMe driver over controllers in software instead")
    parser.add_argument("--python", default=sys.executable, help="with --models: a Python that has torch and penstock")
    parser.add_argument("--device", default="cuda:0", help="with --models: where torch puts the tensors; another than "
                                                           "the first GPU is to try the programs out")
    parser.add_argument("--seconds", type=float, default=0,
                        help="with --gpu or --models: the time for all, with making files (without it, what the rows are "
                             "expected to take: about 600, with --quick a third of that)")
    parser.add_argument("--scale", type=int, default=1,
                        help="with --gpu or --models: divide every size by this, to try the programs out; says nothing "
                             "about speed")
    parser.add_argument("--programs", default=os.path.normpath(os.path.join(build, "bin")),
                        help="the folder of the built programs")
    parser.add_argument("--markdown", metavar="FILE", help="measure nothing: print the table of an earlier --json FILE")
    arguments = parser.parse_args()
    arguments.setup, arguments.table = host_rows.HostSetup, host_rows.ROWS
    if arguments.gpu:
        arguments.setup, arguments.table = GpuSetup, gpu_rows.ROWS
    if arguments.models:
        arguments.setup, arguments.table = model_rows.ModelSetup, model_rows.ROWS
    if arguments.nvme:
        arguments.setup, arguments.table = nvme_rows.NvmeSetup, nvme_rows.ROWS
    names = [name for name in (arguments.only or "").split(",") if name] or list(arguments.table)
    unknown = set(names) - set(arguments.table)
    if unknown:
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}; there are {', '.join(arguments.table)}")
    arguments.table = {name: arguments.table[name] for name in names}
    if not 1 <= arguments.scale <= 256:
        parser.error("--scale takes 1 to 256")
    return arguments


def main():
    arguments = parse_arguments()
    if arguments.markdown:
        with open(arguments.markdown, encoding="utf-8") as file:
            print(table.markdown(json.load(file)))
        return 0
    started = time.monotonic()
    setup = arguments.setup(arguments)
    try:
        setup.prepare()
        setup.end = end_of_rows(setup, arguments.table, arguments.seconds and started + arguments.seconds)
        print(f"files made after {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
        machine = harness.describe_machine(setup.folder)

        def keep(results):
            if arguments.json:
                with open(arguments.json, "w", encoding="utf-8") as file:
                    json.dump(make_report(setup, arguments, machine, started, results), file, indent=1)

        results = run_rows(setup, arguments.table, keep)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        setup.clean_up()
    print(table.markdown(make_report(setup, arguments, machine, started, results)))
    # A speed is a finding, whatever it is. Wrong bytes, or a row that could not be measured, are a failure.
    failed = any(row["verdict"] == "failed" for result in results.values() for row in result["rows"])
    return 1 if failed or not all(check["passed"] for check in setup.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
