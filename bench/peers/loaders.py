"""One loader in a process of its own: loads the files it was given whenever it is asked to, and says how long it took.

    loaders.py NAME DEVICE SETTINGS FILE...

Commands on standard input: `load`, `drop`, and about what was loaded last `check` (compares it with the files) and
`held` (how much of the process's own memory it takes, on the host).
"""

import bisect
import functools
import gc
import importlib
import importlib.metadata
import json
import os
import random
import resource
import sys
import time

import layouts


def _torch():
    import torch
    return torch


def read_whole(path, memory):
    """The kernel gives 2 GiB at a time at most."""
    with open(path, "rb", buffering=0) as file:
        done = 0
        while done < len(memory):
            count = file.readinto(memory[done:])
            if not count:
                raise OSError(f"{path} ends early")
            done += count


class Loader:
    """`load` returns tensors by name; all of them are where they belong when it returns."""

    package = framework = "torch"
    settings = [{}]  # those that are tried for the best; the first is the default
    needs_gpu = False

    def __init__(self, device, files, **settings):
        self.device, self.files, self.setting = device, files, settings
        self.reads = files
        # By all of them before they are ready, which is when memory is looked at for the first time.
        importlib.import_module(self.framework)
        self.start()

    def start(self):
        """Imports; what takes memory to load is for the first `load`."""


class Penstock(Loader):
    package = "penstock"

    def start(self):
        import penstock.torch
        self.load_file = penstock.torch.load_file

    def load(self):
        return self.load_file(self.files, device=self.device)


class PenstockNumpy(Penstock):
    framework = "numpy"

    def start(self):
        import penstock.numpy
        self.load_file = lambda files, device: penstock.numpy.load_file(files)


class Safetensors(Loader):
    """Maps the file."""

    package = "safetensors"

    def start(self):
        import safetensors.torch
        self.load_file = safetensors.torch.load_file

    def load(self):
        tensors = {}
        for path in self.files:
            tensors.update(self.load_file(path, device=self.device))
        return tensors


class SafetensorsPread(Safetensors):
    """Reads tensors with pread instead of mapping the file."""

    def start(self):
        import inspect

        import safetensors.torch
        if "backend" not in inspect.signature(safetensors.torch.load_file).parameters:
            raise ImportError("this version of safetensors only maps files")
        self.load_file = functools.partial(safetensors.torch.load_file, backend="pread")


class SafetensorsPrefetch(Safetensors):
    def start(self):
        import safetensors
        self.open = safetensors.safe_open
        if not hasattr(self.open, "prefetch"):
            raise ImportError("this version of safetensors has no prefetch")

    def load(self):
        tensors = {}
        for path in self.files:
            with self.open(path, framework="pt", device=self.device) as file:
                file.prefetch()
                tensors.update({name: file.get_tensor(name) for name in file.keys()})
        return tensors


class SafetensorsNumpy(Safetensors):
    framework = "numpy"

    def start(self):
        import safetensors.numpy
        self.load_file = lambda path, device: safetensors.numpy.load_file(path)


class TorchLoad(Loader):
    """torch.load of the same tensors, saved by torch.save beside the model."""

    settings = [{}, {"mmap": True}]

    def start(self):
        import safetensors.torch
        torch = _torch()
        self.reads = [path + ".pt" for path in self.files]
        for path, saved in zip(self.files, self.reads):
            if not os.path.exists(saved):
                torch.save(safetensors.torch.load_file(path), saved)

    def load(self):
        tensors = {}
        for path in self.reads:
            tensors.update(_torch().load(path, map_location=self.device, weights_only=True, **self.setting))
        return tensors


class WholeFiles(Loader):
    """What knows nothing of tensors: a file goes into one piece of the GPU's memory, and tensors are views of it."""

    needs_gpu = True

    def load(self):
        torch = _torch()
        tensors = {}
        for path in self.files:
            target = torch.empty(os.path.getsize(path), dtype=torch.uint8, device=self.device)
            self.fill(path, target)
            tensors.update({name: target[begin:end] for name, (begin, end) in layouts.header_of(path).items()})
        return tensors


class Staged(WholeFiles):
    """What a careful engineer writes by hand: threads, pinned memory, copies that overlap."""

    settings = [{"threads": 4, "chunk": 4 << 20}, {"threads": 16, "chunk": 4 << 20}]

    def start(self):
        import concurrent.futures
        self.pool = concurrent.futures.ThreadPoolExecutor(self.setting["threads"])

    @functools.cached_property
    def slots(self):
        torch = _torch()
        return [[torch.empty(self.setting["chunk"], dtype=torch.uint8, pin_memory=True) for _ in range(2)]
                for _ in range(self.setting["threads"])]

    def fill(self, path, target):
        _torch().cuda.current_stream().synchronize()
        descriptor = os.open(path, os.O_RDONLY)
        try:
            list(self.pool.map(lambda number, slots: self.fill_share(descriptor, target, number, slots),
                               range(self.setting["threads"]), self.slots))
        finally:
            os.close(descriptor)

    def fill_share(self, descriptor, target, number, slots):
        torch = _torch()
        chunk, threads = self.setting["chunk"], self.setting["threads"]
        stream, busy = torch.cuda.Stream(self.device), [None, None]
        with torch.cuda.stream(stream):
            for turn, offset in enumerate(range(number * chunk, len(target), threads * chunk)):
                slot, length = slots[turn % 2], min(chunk, len(target) - offset)
                if busy[turn % 2]:
                    busy[turn % 2].synchronize()
                os.preadv(descriptor, [memoryview(slot.numpy())[:length]], offset)
                target[offset:offset + length].copy_(slot[:length], non_blocking=True)
                busy[turn % 2] = stream.record_event()
        stream.synchronize()


class Pageable(WholeFiles):
    """What most people write first: a plain read into ordinary memory, and one copy of that to the GPU (cudaMemcpy)."""

    def fill(self, path, target):
        memory = _torch().empty(len(target), dtype=_torch().uint8)
        read_whole(path, memoryview(memory.numpy()))
        target.copy_(memory)


class Nixl(WholeFiles):
    """NIXL with its plugin of threads over cuFile, as nixlbench drives it: transfers of 4 MiB, all in one request."""

    package = "nixl"
    plugin = "GDS_MT"
    settings = [{"threads": 16, "chunk": 4 << 20}, {"threads": 8, "chunk": 4 << 20}, {"threads": 16, "chunk": 16 << 20}]

    def start(self):
        from nixl._api import nixl_agent, nixl_agent_config
        self.agent = nixl_agent("penstock-bench", nixl_agent_config(backends=[]))
        if self.plugin not in self.agent.get_plugin_list():
            raise ImportError(f"this build of nixl has no plugin {self.plugin}")
        self.agent.create_backend(self.plugin, {"thread_count": str(self.setting["threads"])})

    def fill(self, path, target):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self.fill_from(descriptor, target)
        finally:
            os.close(descriptor)

    def fill_from(self, descriptor, target):
        agent, size, chunk = self.agent, len(target), self.setting["chunk"]
        memory = agent.register_memory(target, backends=[self.plugin])
        # A file is a segment: its number is the descriptor, its addresses are offsets.
        file = agent.register_memory([(0, size, descriptor, "")], "FILE", backends=[self.plugin])
        pieces = [(offset, min(chunk, size - offset)) for offset in range(0, size, chunk)]
        to = agent.get_xfer_descs([(target.data_ptr() + offset, length, target.get_device())
                                   for offset, length in pieces], "VRAM")
        origin = agent.get_xfer_descs([(offset, length, descriptor) for offset, length in pieces], "FILE")
        handle = agent.initialize_xfer("READ", to, origin, agent.name, backends=[self.plugin])
        try:
            state = agent.transfer(handle)
            while state == "PROC":
                time.sleep(0.0001)
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise RuntimeError(f"nixl could not read the file: {state}")
        finally:
            agent.release_xfer_handle(handle)
            agent.deregister_memory(file, backends=[self.plugin])
            agent.deregister_memory(memory, backends=[self.plugin])


class TorchGds(WholeFiles):
    def start(self):
        self.file = _torch().cuda.gds.GdsFile

    def fill(self, path, target):
        self.file(path, os.O_RDONLY).load_storage(target.untyped_storage(), 0)


class KvikIO(WholeFiles):
    package = "kvikio-cu13"
    settings = [{}, {"num_threads": 16, "task_size": 4 << 20}, {"num_threads": 8, "task_size": 16 << 20}]

    def start(self):
        import kvikio
        import kvikio.defaults
        self.kvikio = kvikio
        if self.setting:
            kvikio.defaults.set(self.setting)

    def fill(self, path, target):
        with self.kvikio.CuFile(path, "r") as file:
            file.pread(target, len(target)).get()


class FastSafetensors(Loader):
    package = "fastsafetensors"
    needs_gpu = True
    settings = [{}, {"nogds": True}, {"nogds": True, "bbuf_size_kb": 163840, "max_threads": 16}]

    def start(self):
        import fastsafetensors
        self.module = fastsafetensors

    def load(self):
        self.loader = self.module.SafeTensorsFileLoader(None, self.device, **self.setting)
        self.loader.add_filenames({0: self.files})
        self.buffer = self.loader.copy_files_to_device()
        return {name: self.buffer.get_tensor(name) for path in self.files for name in layouts.header_of(path)}

    def drop(self):
        self.buffer.close()
        self.loader.close()


class InstantTensor(Loader):
    package = "instanttensor"
    needs_gpu = True
    settings = [{}, {"backend": "BUFFERED"}, {"backend": "MMAP"}]

    def start(self):
        import instanttensor
        self.module = instanttensor

    def load(self):
        backend = {"BUFFERED": lambda: self.module.BackendPolicy.BUFFERED, "MMAP": lambda: self.module.Backend.MMAP,
                   None: lambda: None}[self.setting.get("backend")]()
        number = _torch().device(self.device).index or 0
        with self.module.safe_open(self.files, framework="pt", device=number, backend=backend) as file:
            return dict(file.tensors())


class RunaiStreamer(Loader):
    package = "runai-model-streamer"
    needs_gpu = True
    settings = [{"concurrency": 16}, {"concurrency": 8}, {"concurrency": 32}]

    def start(self):
        os.environ["RUNAI_STREAMER_CONCURRENCY"] = str(self.setting["concurrency"])
        import runai_model_streamer
        self.streamer = runai_model_streamer.SafetensorsStreamer

    def load(self):
        with self.streamer() as streamer:
            streamer.stream_files(self.files)
            return {name: tensor.to(self.device) for name, tensor in streamer.get_tensors()}


LOADERS = {"penstock": Penstock, "penstock, NumPy": PenstockNumpy, "safetensors": Safetensors,
           "safetensors, pread": SafetensorsPread, "safetensors, prefetch": SafetensorsPrefetch,
           "safetensors, NumPy": SafetensorsNumpy, "torch.load": TorchLoad, "pageable copy": Pageable,
           "pinned loop by hand": Staged,
           "torch.cuda.gds": TorchGds, "fastsafetensors": FastSafetensors, "InstantTensor": InstantTensor,
           "Run:ai streamer": RunaiStreamer, "KvikIO": KvikIO,
           "NIXL": Nixl}
ON_CPU_ONLY = {"penstock, NumPy", "safetensors, NumPy"}


def _bytes_of(tensor, begin, end):
    if hasattr(tensor, "detach"):
        torch = _torch()
        return bytes(tensor.reshape(-1).view(torch.uint8)[begin:end].cpu().numpy())
    import numpy
    return bytes(tensor.reshape(-1).view(numpy.uint8)[begin:end])


def wrong_tensors(files, tensors):
    """Both ends of every tensor and 200 random places, compared with what the files hold."""
    wrong = []
    for path in files:
        places = layouts.header_of(path)
        names = list(places)
        spots = [(name, end) for name in names for end in (False, True)]
        spots += [(random.choice(names), None) for _ in range(200)]
        with open(path, "rb") as file:
            for name, end in spots:
                first, last = places[name]
                size = last - first
                begin = 0 if end is False else max(0, size - 64) if end else random.randrange(max(1, size - 4096))
                length = min(64 if end is not None else 4096, size - begin)
                file.seek(first + begin)
                if name not in tensors or _bytes_of(tensors[name], begin, begin + length) != file.read(length):
                    wrong.append(name)
    return sorted(set(wrong))


def touch(tensors):
    """One byte of each page. A loader for the host may only map the file, and leave the reading to whoever looks."""
    for tensor in tensors.values():
        if hasattr(tensor, "detach"):
            tensor.reshape(-1).view(_torch().uint8)[::4096].max()
        else:
            tensor.reshape(-1).view("uint8")[::4096].max()


def own_bytes(tensors, files):
    """Of tensors on the host, without those that lie in a mapping of the files: these are the page cache's."""
    paths = {os.path.realpath(path) for path in files}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        mappings = [line.rstrip("\n").split(maxsplit=5) for line in maps]
    begins = [int(fields[0].partition("-")[0], 16) for fields in mappings]
    are_ours = [fields[-1] in paths for fields in mappings]
    size = 0
    for tensor in tensors.values():
        if hasattr(tensor, "detach"):
            place, length = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        else:
            place, length = tensor.ctypes.data, tensor.nbytes
        if not are_ours[bisect.bisect_right(begins, place) - 1]:
            size += length
    return size


def _cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def version_of(package):
    """One that was built and not installed knows its version only by itself."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return getattr(sys.modules.get(package), "__version__", "unknown")


def main():
    name, device, settings, *files = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer

    def answer(**fields):
        print(json.dumps(fields), file=answers, flush=True)

    kind = LOADERS[name]
    if kind.needs_gpu and device == "cpu":
        return answer(missing="needs a GPU")
    try:
        loader = kind(device, files, **json.loads(settings))
        version = version_of(kind.package)
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        return answer(missing=f"{type(error).__name__}: {error}"[:200])
    answer(version=version, settings=kind.settings, reads=loader.reads)
    size = sum(os.path.getsize(path) for path in files)
    tensors = None
    for command in sys.stdin:
        if command.strip() in ("load", "drop"):
            tensors = None
            if hasattr(loader, "buffer"):
                loader.drop()
                del loader.buffer
            gc.collect()
        if command.strip() == "drop":
            answer()
        elif command.strip() == "load":
            cpu, start = _cpu_seconds(), time.monotonic()
            tensors = loader.load()
            if device == "cpu":
                touch(tensors)
            else:
                _torch().cuda.synchronize()
            answer(bytes=size, seconds=time.monotonic() - start, cpu_seconds=_cpu_seconds() - cpu)
        elif command.strip() == "check":
            answer(wrong=wrong_tensors(files, tensors))
        elif command.strip() == "held":
            answer(bytes=own_bytes(tensors, loader.reads))
    return None


if __name__ == "__main__":
    main()
