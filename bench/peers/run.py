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
import glob
import json
import os
import statistics
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
CEILING, OURS = "ceiling", "penstock"
SWEEP_LOADS, SWEEP_SECONDS = 3, 1.5
INDEX_ENDING = ".safetensors.index.json"
# Beside a model of the user's nothing is written.
WRITES_BESIDE_THE_MODEL = "torch.load"


def family(name):
    """A loader in all its ways has one name."""
    return name.partition(",")[0]


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
            self._look()
            time.sleep(0.002)

    def _look(self):
        with contextlib.suppress(OSError):
            self.host = max(self.host, own_memory(self.program))
        if self.device_memory:
            self.device = max(self.device, self.device_memory.used())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.running = False
        self.thread.join()
        self._look()


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
                      and (not arguments.only or family(name) in (*arguments.only, OURS))
                      and (not arguments.numpy or name in loaders.ON_CPU_ONLY)]

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
                held = 0 if self.on_gpu else program.ask("held")["bytes"]
                samples.append({"seconds": seconds, "ready_seconds": ready_seconds,
                                "wrong": program.ask("check")["wrong"],
                                "host": max(0, sampler.host - ready - held),
                                "device": max(0, sampler.device - before) if self.on_gpu else 0})
        return {"name": name, "setting": setting, "version": facts["version"], "samples": samples,
                "seconds": harness.summary([sample["seconds"] for sample in samples]),
                "extra_host": max(sample["host"] for sample in samples),
                "device": max(sample["device"] for sample in samples),
                "wrong": sorted({name for sample in samples for name in sample["wrong"]})}

    def best_setting(self, name, settings, files):
        """The fastest of a loader's settings for cached files, each in a process of its own that has loaded before."""
        samples = []
        with contextlib.ExitStack() as stack:
            contenders = {json.dumps(setting): {"name": name, "setting": setting} for setting in settings}
            for setting, program in self.start_all(stack, contenders, files).items():
                with contextlib.suppress(BenchError):
                    program.ask("load")
                    samples.append((self.typical_seconds(program), setting))
                    program.ask("drop")
        return json.loads(min(samples)[1]) if samples else settings[0]

    @staticmethod
    def typical_seconds(program):
        """The median of a few loads, fewer where they take long."""
        end, taken = time.monotonic() + SWEEP_SECONDS, []
        while not taken or (len(taken) < SWEEP_LOADS and time.monotonic() < end):
            taken.append(program.ask("load")["seconds"])
        return statistics.median(taken)

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


def with_quartiles(summary):
    return f"{summary['median']:.2f} ({summary['p25']:.2f}–{summary['p75']:.2f})"


def ceiling_cells(data, states):
    cells = ["*ceiling*", ""]
    for speed in (data["ceiling"][state]["gb_per_s"] for state in states):
        cells += ["", f"{speed['median']:.2f} (rounds differ by {speed['spread']:.0%})", "1"]
    return [*cells, "", "", "", "", ""]


def loader_cells(result, row):
    cells = [row["name"], row["version"]]
    for state, rounds in result["rounds"].items():
        own = row[state]
        cells += [f"{statistics.median(sample[row['name']]['seconds'] for sample in rounds):.3f}",
                  with_quartiles(own["gb_per_s"]), f"{own['ratio']['median']:.3f}"] if own else ["not measured", "", ""]
    starts = result["loaders"][row["name"]]
    return [*cells,
            " / ".join(f"{row[state]['cpu_seconds_per_gb']:.2f}" if row[state] else "–" for state in result["rounds"]),
            with_quartiles(starts["seconds"]) if len(starts["samples"]) > 1 else f"{row['start_seconds']:.2f}",
            f"{row['extra_device_bytes'] / MIB:.0f} / {row['extra_host_bytes'] / MIB:.0f} MiB",
            f"wrong: {row['wrong'][0]}" if row["wrong"] else "right",
            json.dumps(row["setting"]) if row["setting"] else "default"]


def grid(result, data):
    states = list(result["rounds"])
    heads = ["loader", "version"]
    for state in states:
        heads += [f"{state}, s: median", "GB/s: median (quartiles)", "of the ceiling"]
    heads += ["CPU s/GB", "from process start, s", "extra device / host memory", "bytes", "setting"]
    lines = [heads, ["---"] * len(heads), *([ceiling_cells(data, states)] if states else []),
             *(loader_cells(result, row) for row in data["loaders"])]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def table(results):
    lines = []
    for result in results:
        lines.append(f"### {result['layout']}: {result['bytes'] / 1e9:.2f} GB in {result['files']} "
                     f"{'files' if result['files'] > 1 else 'file'}\n")
        data = rows(result)
        if data["loaders"]:
            lines += grid(result, data)
        for one in data["missing"]:
            lines.append(f"\n{one['name']}: not measured: {one['reason']}")
        lines.append("")
    return "\n".join(lines)


def why_not_ours(result):
    """Why Penstock took part in no round; None if it did."""
    if any(family(name) == OURS for rounds in result["rounds"].values() for name in rounds[0]):
        return None
    reasons = [f"{name}: {reason}" for name, reason in result["missing"].items() if family(name) in (OURS, "all")]
    return "; ".join(reasons) or "there was no race"


def files_of_index(path):
    try:
        with open(path, encoding="utf-8") as file:
            names = set(json.load(file)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchError(f"{path} is not an index: {error}") from error
    return [os.path.join(os.path.dirname(path), name) for name in names]


def files_in(folder):
    """Those that the index names, or all."""
    def ending_in(ending):
        return [os.path.join(folder, name) for name in os.listdir(folder)
                if name.endswith(ending) and not name.startswith(".")]

    indices, usual = ending_in(INDEX_ENDING), os.path.join(folder, "model" + INDEX_ENDING)
    if len(indices) > 1 and usual not in indices:
        raise BenchError(f"{folder} has several indices: {', '.join(sorted(indices))}")
    if indices:
        return files_of_index(usual if usual in indices else indices[0])
    return ending_in(".safetensors")


def model_files(path):
    """The safetensors files of a model, each of which must have a header that can be read."""
    files = sorted(files_in(path)) if os.path.isdir(path) else [path]
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


def add_built_package(programs):
    """Beside programs that were just built is the package; what the caller has named already comes first."""
    package = os.path.normpath(os.path.join(programs, "..", "python"))
    if glob.glob(os.path.join(glob.escape(package), "penstock", "_core.*.so")):
        named = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{named}{os.pathsep}{package}" if named else package


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
    known = dict.fromkeys(map(family, loaders.LOADERS))
    parser.add_argument("--only", default="", help=f"some of {', '.join(known)}, separated by commas, each in all its "
                        "ways (safetensors: also with pread); Penstock always runs")
    parser.add_argument("--numpy", action="store_true", help="only those that give arrays of NumPy, and need no torch")
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
    for given, there_are in ((arguments.layouts, layouts.LAYOUTS), (arguments.states, ("cached", "cold")),
                             (arguments.only, known)):
        unknown = set(given) - set(there_are)
        if unknown:
            parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(there_are)}")
    try:
        if arguments.markdown:
            with open(arguments.markdown, encoding="utf-8") as file:
                print(table(json.load(file)["results"]))
            return
        if not arguments.json and not arguments.model:
            arguments.json = os.path.join(arguments.dir, "peers.json")
        add_built_package(arguments.programs)
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
    for result in results:
        reason = why_not_ours(result)
        if reason:
            sys.exit(f"bench/peers: Penstock was not measured with {result['layout']}: {reason}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
