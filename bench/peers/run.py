#!/usr/bin/env python3
"""Penstock beside every other loader that is installed: each in a process of its own, in turns, cold and cached.

    bench/peers/run.py [--device cuda:0] [--layouts dense,experts] [--size MIB] [--rounds N] [--json FILE]
    bench/peers/run.py --model FILE_OR_FOLDER [--device cuda:0]

Loaders that are not installed are named with the reason. docs/performance.md explains the columns. `penstock bench
--peers` runs this with --model and --table.
"""

import argparse
import concurrent.futures
import contextlib
import ctypes
import datetime
import json
import os
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import harness  # noqa: E402
import layouts  # noqa: E402
import loaders  # noqa: E402
from harness import MIB, BenchError, Program  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
CEILING = "ceiling"
# Beside a model of the user's nothing is written.
WRITES_BESIDE_THE_MODEL = "torch.load"


class DeviceMemory:
    """How much of the GPU's memory is in use, by all processes: seen from outside those that load."""

    def __init__(self, device):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        number = int(device.partition(":")[2] or 0)
        for result in (self.cuda.cuInit(0), self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number),
                       self.cuda.cuCtxSetCurrent(context)):
            if result != 0:
                raise BenchError(f"the CUDA driver answers {result}")
        self.context = context

    def used(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda.cuCtxSetCurrent(self.context)
        self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value


class Sampler:
    """The largest memory of a process, and of the GPU, while something runs."""

    def __init__(self, program, device_memory):
        self.program, self.device_memory = program, device_memory
        self.host = self.device = 0
        self.running = True
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while self.running:
            with contextlib.suppress(OSError):
                self.host = max(self.host, own_memory(self.program))
            if self.device_memory:
                self.device = max(self.device, self.device_memory.used())
            time.sleep(0.002)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.running = False
        self.thread.join()


def own_memory(program):
    """Without pages of files, which the kernel takes back when it likes."""
    figures = program.status_bytes("RssAnon", "RssShmem")
    return figures["RssAnon"] + figures["RssShmem"]


class Peers:
    def __init__(self, arguments):
        self.arguments = arguments
        self.device = arguments.device
        self.on_gpu = self.device != "cpu"
        self.device_memory = DeviceMemory(self.device) if self.on_gpu else None
        self.end = time.monotonic() + arguments.seconds
        self.names = [name for name in loaders.LOADERS
                      if (not self.on_gpu or name not in loaders.ON_CPU_ONLY)
                      and (not arguments.only or name.partition(",")[0] in (*arguments.only, "penstock"))]

    def start(self, name, setting, files):
        program = Program([self.arguments.python, os.path.join(HERE, "loaders.py"), name, self.device,
                           json.dumps(setting), *files], timeout_s=180)
        if "missing" in program.ready:
            program.__exit__()
            raise harness.Unavailable(program.ready["missing"])
        return program

    def ceiling(self, state, files):
        """The bus for cached files on a GPU, plain parallel reads without one, plain direct reads for cold files."""
        programs = self.arguments.programs
        largest = max(files, key=os.path.getsize)
        size = os.path.getsize(largest) // MIB * MIB
        if state == "cached" and self.on_gpu and os.path.exists(os.path.join(programs, "bench_gpu")):
            return Program([os.path.join(programs, "bench_gpu"), "copies", "--size", size]), "run 0.5"
        if not os.path.exists(os.path.join(programs, "plain_read")):
            return Program([self.arguments.python, os.path.join(HERE, "ceiling.py"), state, self.device, largest],
                           timeout_s=180), "run 0.5"
        threads = min(16, len(os.sched_getaffinity(0)))
        flags = ["--direct"] if state == "cold" else []
        return Program([os.path.join(programs, "plain_read"), largest, "--size", size, "--threads", threads,
                        "--chunk", MIB, "--reuse-memory", *flags]), "sample 0.5" if flags else "run 0.5"

    def facts(self, files):
        """What each loader says of itself; starting makes what it reads, where that is no model of ours."""
        def ask(name):
            with self.start(name, loaders.LOADERS[name].settings[0], files) as program:
                return program.ready

        return self.all_at_once({name: lambda name=name: ask(name) for name in self.names})

    def from_start(self, name, setting, facts, files):
        """Processes that load once: the time that a user waits, and the memory it takes beside the model."""
        size = sum(os.path.getsize(path) for path in files)
        self.set_state("cached", facts["reads"])
        samples = []
        for _ in range(self.arguments.starts):
            before = self.device_memory.used() if self.on_gpu else 0
            started = time.monotonic()
            with self.start(name, setting, files) as program:
                ready_seconds = time.monotonic() - started
                ready = own_memory(program)
                with Sampler(program, self.device_memory) as sampler:
                    program.ask("load")
                    seconds = time.monotonic() - started
                samples.append({"seconds": seconds, "ready_seconds": ready_seconds,
                                "wrong": program.ask("check")["wrong"],
                                "host": max(0, sampler.host - ready - (0 if self.on_gpu else size)),
                                "device": max(0, sampler.device - before) if self.on_gpu else 0})
        return {"name": name, "setting": setting, "version": facts["version"], "samples": samples,
                "seconds": harness.summary([sample["seconds"] for sample in samples]),
                "extra_host": max(sample["host"] for sample in samples),
                "device": max(sample["device"] for sample in samples),
                "wrong": sorted({name for sample in samples for name in sample["wrong"]})}

    def best_setting(self, name, settings, files):
        """The fastest of a loader's settings for cached files, each in a process of its own, the second load."""
        samples = []
        with contextlib.ExitStack() as stack:
            contenders = {json.dumps(setting): {"name": name, "setting": setting} for setting in settings}
            for setting, program in self.start_all(stack, contenders, files).items():
                with contextlib.suppress(BenchError):
                    program.ask("load")
                    samples.append((program.ask("load")["seconds"], setting))
                    program.ask("drop")
        return json.loads(min(samples)[1]) if samples else settings[0]

    def measure(self, layout, files, keep):
        """`keep` is called with what is known so far, whenever that is worth keeping."""
        result = {"layout": layout, "bytes": sum(map(os.path.getsize, files)), "files": len(files), "loaders": {},
                  "missing": {}, "rounds": {}}
        self.set_state("cached", files)
        if self.arguments.model and WRITES_BESIDE_THE_MODEL in self.names:
            self.names.remove(WRITES_BESIDE_THE_MODEL)
            result["missing"][WRITES_BESIDE_THE_MODEL] = "would have to write a copy of its own beside the model"
        for name, facts in self.facts(files).items():
            print(f"  {name} …", file=sys.stderr, flush=True)
            try:
                if isinstance(facts, BenchError):
                    raise facts
                default, *others = facts["settings"]
                result["loaders"][name] = self.from_start(name, default, facts, files)
                if others and not self.arguments.defaults_only and time.monotonic() < self.end:
                    best = self.best_setting(name, facts["settings"], files)
                    if best != default:
                        result["loaders"][f"{name}, tuned"] = self.from_start(name, best, facts, files)
            except BenchError as error:
                result["missing"][name] = str(error).splitlines()[-1]
        baseline = self.bare_context(files) if self.on_gpu else 0
        for loader in result["loaders"].values():
            loader["extra_device"] = max(0, loader.pop("device") - baseline - result["bytes"]) if self.on_gpu else 0
        for state in self.arguments.states if result["loaders"] else ():
            print(f"  all, {state} …", file=sys.stderr, flush=True)
            try:
                result["rounds"][state] = self.race(state, result, files)
            except BenchError as error:
                result["missing"][f"all, {state}"] = str(error).splitlines()[-1]
            keep(result)
        return result

    def bare_context(self, files):
        """What a process that uses torch on the GPU takes there before it loads anything."""
        before = self.device_memory.used()
        with Program([self.arguments.python, "-c",
                      f"import torch, sys; torch.zeros(1, device='{self.device}'); torch.cuda.synchronize(); "
                      "print('{}', flush=True); sys.stdin.read()"]):
            return self.device_memory.used() - before

    def set_state(self, state, files):
        for path in files:
            (harness.make_cached if state == "cached" else harness.make_cold)(path)

    @staticmethod
    def all_at_once(calls):
        """Results by name, or why there is none: what takes long about a loader is importing torch."""
        with concurrent.futures.ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
            futures = {name: pool.submit(call) for name, call in calls.items()}
        results = {name: future.exception() or future.result() for name, future in futures.items()}
        unexpected = [result for result in results.values()
                      if isinstance(result, BaseException) and not isinstance(result, BenchError)]
        if unexpected:
            for result in results.values():
                if isinstance(result, Program):
                    result.__exit__()
            raise unexpected[0]
        return results

    def start_all(self, stack, contenders, files):
        """Those that start; they end with the stack."""
        started = self.all_at_once({
            label: lambda contender=contender: self.start(contender["name"], contender["setting"], files)
            for label, contender in contenders.items()})
        programs = {label: program for label, program in started.items() if isinstance(program, Program)}
        for program in programs.values():
            stack.enter_context(program)
        return programs

    def warm_up(self, state, program, files):
        """Loads once, or raises why it can't take part beside the others."""
        try:
            program.ask("load")  # All keep their memory, so the last of them may find none.
        except BenchError as error:
            raise BenchError("did not load beside the others: compare fewer with --only, or a smaller model") from error
        if state == "cold":
            program.ask("drop")
            try:
                self.set_state(state, files)
            except BenchError as error:
                raise BenchError(f"holds on to the file when its tensors are gone, and all that comes after it is not "
                                 f"cold: {error}") from error

    def race(self, state, result, files):
        contenders = result["loaders"]
        with contextlib.ExitStack() as stack:
            ceiling, command = self.ceiling(state, files)
            stack.enter_context(ceiling)
            programs = self.start_all(stack, contenders, files)
            result["missing"].update({f"{label}, {state}": "did not start beside the others"
                                      for label in contenders if label not in programs})
            for label in list(programs):
                try:
                    self.warm_up(state, programs[label], files)
                except BenchError as error:
                    programs.pop(label).__exit__()
                    result["missing"][f"{label}, {state}"] = str(error)

            def ask(program, what, reads):
                # Pages that a process has mapped can't be evicted.
                for other in programs.values() if state == "cold" else ():
                    other.ask("drop")
                self.set_state(state, reads)
                return program.ask(what)

            runners = {CEILING: lambda: ask(ceiling, command, files)}
            runners.update({label: lambda program=program: ask(program, "load", program.ready["reads"])
                            for label, program in programs.items()})
            rounds = harness.race(runners, self.arguments.rounds, self.end, insist=True)
            for label, program in programs.items():
                program.ask("load")
                contenders[label]["wrong"] += program.ask("check")["wrong"]
            return rounds


def series(values):
    return {**harness.summary(values), "rounds": values}


def figures(rounds, name):
    """One contender's rounds in one state, beside the ceiling's."""
    speeds = [harness.bytes_per_second(sample[name]) for sample in rounds]
    ceilings = [harness.bytes_per_second(sample[CEILING]) for sample in rounds]
    return {"gb_per_s": series([speed / 1e9 for speed in speeds]),
            "ratio": series([speed / ceiling for speed, ceiling in zip(speeds, ceilings)]),
            "cpu_seconds_per_gb": harness.cpu_seconds_per_gigabyte(rounds, name)}


def rows(result):
    """What the table says, as data: loaders by speed, the ceiling, and who is missing."""
    def in_states(name):
        rounds = {state: result["rounds"].get(state) for state in ("cached", "cold")}
        return {state: figures(taken, name) if taken and name in taken[0] else None for state, taken in rounds.items()}

    loaders_by_speed = [{"name": name, "version": loader["version"], "setting": loader["setting"], **in_states(name),
                         "start_seconds": loader["seconds"]["median"], "extra_device_bytes": loader["extra_device"],
                         "extra_host_bytes": loader["extra_host"], "wrong": sorted(set(loader["wrong"]))}
                        for name, loader in result["loaders"].items()]
    loaders_by_speed.sort(key=lambda row: -max([row[state]["gb_per_s"]["median"] for state in result["rounds"]
                                                if row[state]] or [0]))
    return {"loaders": loaders_by_speed, "ceiling": in_states(CEILING),
            "missing": [{"name": name, "reason": reason} for name, reason in result["missing"].items()]}


def table(results):
    lines = []
    for result in results:
        lines.append(f"### {result['layout']}: {result['bytes'] / 1e9:.2f} GB in {result['files']} "
                     f"{'files' if result['files'] > 1 else 'file'}\n")
        states, data = list(result["rounds"]), rows(result)
        lines.append("| loader | version | " + " | ".join(
            f"{state}, GB/s: median (quartiles) | of the ceiling" for state in states)
            + " | CPU s/GB | from process start | extra device / host memory | bytes | setting |")
        lines.append("|---" * (7 + 2 * len(states)) + "|")
        speeds = [data["ceiling"][state]["gb_per_s"] for state in states]
        cells = [f"{speed['median']:.2f} (rounds differ by {speed['spread']:.0%}) | 1" for speed in speeds]
        lines.append(f"| *ceiling* | | {' | '.join(cells)} | | | | | |")
        for row in data["loaders"]:
            own = [row[state] for state in states]
            cells = [f"{one['gb_per_s']['median']:.2f} ({one['gb_per_s']['p25']:.2f}–{one['gb_per_s']['p75']:.2f}) | "
                     f"{one['ratio']['median']:.3f}" if one else "not measured |" for one in own]
            cpu = " / ".join(f"{one['cpu_seconds_per_gb']:.2f}" if one else "–" for one in own)
            lines.append(f"| {row['name']} | {row['version']} | {' | '.join(cells)} | {cpu} | "
                         f"{row['start_seconds']:.2f} s | "
                         f"{row['extra_device_bytes'] / MIB:.0f} / {row['extra_host_bytes'] / MIB:.0f} MiB | "
                         f"{'wrong: ' + row['wrong'][0] if row['wrong'] else 'right'} | "
                         f"{json.dumps(row['setting']) if row['setting'] else 'default'} |")
        for one in data["missing"]:
            lines.append(f"\n{one['name']}: not measured: {one['reason']}")
        lines.append("")
    return "\n".join(lines)


def model_files(path):
    """The safetensors files of a model, each of which must have a header that can be read."""
    files = [path]
    if os.path.isdir(path):
        files = sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".safetensors"))
    if not files:
        raise BenchError(f"{path} holds no safetensors files")
    for file in files:
        try:
            layouts.header_of(file)
        except (ValueError, KeyError, AttributeError, struct.error, MemoryError, OverflowError) as error:
            raise BenchError(f"{file} is not a safetensors file: {error}") from error
    return files


def write(arguments, results):
    if not arguments.json:
        return
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump({"schema": "penstock.peers/1", "date": datetime.datetime.now(datetime.timezone.utc).isoformat(),
                   "machine": harness.describe_machine(arguments.dir), "device": arguments.device,
                   "results": results}, file, indent=1)


def main():
    build = os.path.join(HERE, "..", "..", "build")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0 (default: cpu)")
    parser.add_argument("--model", metavar="PATH", help="load this model, which is only read, instead of making some")
    parser.add_argument("--layouts", default="dense", help=f"of {', '.join(layouts.LAYOUTS)} (default: dense)")
    parser.add_argument("--size", type=int, default=8192, metavar="MIB", help="of each model (default: 8192)")
    parser.add_argument("--states", default="cached,cold", help="cached, cold or both (default: both)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3, help="new processes of each loader (default: 3)")
    parser.add_argument("--only", default="", help="loaders by name, separated by commas, each in all its ways "
                        "(safetensors: also with pread); Penstock always runs")
    parser.add_argument("--defaults-only", action="store_true", help="don't look for the best setting of each loader")
    parser.add_argument("--seconds", type=float, default=3600, help="after that, three rounds have to do")
    parser.add_argument("--dir", default=os.path.join(build, "bench-files"), help="where models are made and kept")
    parser.add_argument("--programs", default=os.path.join(build, "bin"), help="where bench_programs were built")
    parser.add_argument("--python", default=sys.executable, help="the Python whose packages are compared")
    parser.add_argument("--json", metavar="FILE",
                        help="where all samples are kept (default: peers.json in DIR; with --model nowhere)")
    parser.add_argument("--markdown", metavar="FILE", help="measure nothing: print the table of an earlier --json FILE")
    parser.add_argument("--table", metavar="FILE", help="with --model: write what the table says, as JSON")
    arguments = parser.parse_args()
    for name in ("layouts", "states", "only"):
        setattr(arguments, name, [part for part in getattr(arguments, name).split(",") if part])
    unknown = set(arguments.layouts) - set(layouts.LAYOUTS) | set(arguments.states) - {"cached", "cold"}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    try:
        if arguments.markdown:
            with open(arguments.markdown, encoding="utf-8") as file:
                print(table(json.load(file)["results"]))
            return
        if not arguments.json and not arguments.model:
            arguments.json = os.path.join(arguments.dir, "peers.json")
        peers = Peers(arguments)
        results = []
        for layout in [arguments.model] if arguments.model else arguments.layouts:
            print(f"{layout} …", file=sys.stderr, flush=True)
            files = model_files(layout) if arguments.model else layouts.make(arguments.dir, layout,
                                                                             arguments.size * MIB)
            results.append(peers.measure(layout, files, lambda result: write(arguments, [*results, result])))
    except (BenchError, OSError) as error:
        sys.exit(f"bench/peers: {error}")
    if arguments.table:
        with open(arguments.table, "w", encoding="utf-8") as file:
            json.dump({"device": arguments.device, **rows(results[0])}, file)
    else:
        print(table(results))
    if any(loader["wrong"] for result in results for loader in result["loaders"].values()):
        sys.exit("a loader gave wrong bytes")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
