"""Memory of a GPU, as torch and CuPy have it."""

import asyncio
import contextlib
import ctypes
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from models import write_model

try:
    ctypes.CDLL("libcuda.so.1")
except OSError as error:  # known without torch, which takes seconds to import
    pytest.skip(f"there is no GPU: {error}", allow_module_level=True)
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU that torch can use", allow_module_level=True)

MIB = 1 << 20


def raw(tensor):
    return tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@pytest.fixture
def model(tmp_path):
    """Small and large tensors, misaligned: (path, bytes)."""
    path = tmp_path / "model.safetensors"
    tensors = [("odd", "U8", (3,))]
    tensors += [(f"{i:03}.small", "F32", (i, 7)) for i in range(300)]
    tensors += [(f"{i:03}.large", "BF16", (512, 1024 + i)) for i in range(20)]
    return path, write_model(path, tensors)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0])
def test_a_model_is_loaded(model, device):
    path, contents = model
    tensors = penstock.load_file(path, device)
    assert all(tensor.device == torch.device("cuda:0") for tensor in tensors.values())
    assert {name: raw(tensor) for name, tensor in tensors.items()} == contents
    assert all(tensor.data_ptr() % 256 == 0 for tensor in tensors.values())


def test_a_file_is_opened_on_the_gpu(model):
    path, contents = model
    with penstock.safe_open(path, "pt", 0) as file:
        assert {name: raw(file.get_tensor(name)) for name in file.keys()} == contents
        whole = file.get_tensor("007.large")
        mask = torch.zeros(tuple(whole.shape), dtype=torch.bool, device="cuda")
        mask[3:5, ::7] = True
        for index in (slice(5, 9), (slice(None), slice(10, 100)), (3, slice(None, None, 2)), (slice(4, 4),), [7, 2, 3, 9],
                      (slice(None), [1, 0, 5]), (None, 4), mask):
            part = file.get_slice("007.large")[index]
            assert part.is_cuda and torch.equal(part.view(torch.int16), whole[index].contiguous().view(torch.int16))


def test_tensors_go_to_host_and_gpu_by_one_call(model):
    path, contents = model
    tensors = penstock.load_file(path, lambda name: "cuda:0" if "large" in name else "cpu")
    assert {name: raw(tensor) for name, tensor in tensors.items()} == contents
    assert {tensor.is_cuda for name, tensor in tensors.items() if "small" in name} == {False}


def test_saving_from_the_gpu_gives_the_same_file(model, tmp_path):
    path, contents = model
    tensors = penstock.load_file(path, "cuda")
    doubled = {name: tensor + tensor for name, tensor in tensors.items()}  # still being computed when saving begins
    penstock.torch.save_file(doubled, tmp_path / "saved")
    for name, tensor in penstock.load_file(tmp_path / "saved").items():
        assert raw(tensor) == raw(doubled[name])


def test_a_module_on_the_gpu_is_filled_where_it_is(tmp_path):
    module, other = torch.nn.Linear(300, 400).cuda(), torch.nn.Linear(300, 400).cuda()
    penstock.torch.save_model(module, tmp_path / "module")
    places = [tensor.data_ptr() for tensor in other.parameters()]
    penstock.load_into(other, tmp_path / "module")
    assert [tensor.data_ptr() for tensor in other.parameters()] == places
    assert torch.equal(module.weight, other.weight) and torch.equal(module.bias, other.bias)


def test_deleting_tensors_frees_device_memory(tmp_path):
    path = tmp_path / "model"
    write_model(path, [(f"t{i}", "U8", (32 * MIB,)) for i in range(4)] + [("s", "U8", (100,))], content=None)
    before = torch.cuda.memory_allocated()
    tensors = penstock.load_file(path, "cuda")
    assert torch.cuda.memory_allocated() - before <= 130 * MIB
    del tensors["t1"]
    assert torch.cuda.memory_allocated() - before <= 98 * MIB
    del tensors
    assert torch.cuda.memory_allocated() == before


def test_a_stream_keeps_to_its_window(tmp_path):
    path = tmp_path / "model"
    contents = write_model(path, [(f"t{i:03}", "U8", (8 * MIB + i,)) for i in range(40)])
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for name, tensor in penstock.stream(path, "cuda", "64MiB"):
        assert raw(tensor) == contents[name]
    assert torch.cuda.max_memory_allocated() - before <= 64 * MIB + 16 * MIB  # the comparison's own copies
    del tensor
    assert torch.cuda.memory_allocated() == before


def test_tensors_come_from_the_memory_pool_that_the_caller_uses(model):
    path, contents = model
    if not hasattr(torch.cuda, "MemPool"):
        pytest.skip(f"torch {torch.__version__} has no memory pools")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensors = penstock.load_file(path, "cuda")
    places = [range(segment["address"], segment["address"] + segment["total_size"]) for segment in pool.snapshot()]
    outside = [name for name, tensor in tensors.items()
               if tensor.numel() and not any(tensor.data_ptr() in place for place in places)]
    assert not outside
    assert {name: raw(tensor) for name, tensor in tensors.items()} == contents


def test_no_room_on_the_device_is_a_memory_error_and_the_next_load_works(model, tmp_path):
    path = tmp_path / "huge"
    write_model(path, [("small", "U8", (10,)), ("huge", "U8", (1 << 40,))], content=None)
    before = torch.cuda.memory_allocated()
    with pytest.raises(MemoryError):
        penstock.load_file(path, "cuda")
    assert torch.cuda.memory_allocated() == before
    assert len(penstock.load_file(model[0], "cuda")) == len(model[1])


def test_memory_that_torch_has_freed_is_not_written_before_its_last_use(model):
    """Work that is still waiting on the stream reads memory that the allocator gives to the next load."""
    path, contents = model
    for turn in range(20):
        old = torch.full((16 * MIB,), turn, dtype=torch.int32, device="cuda")
        torch.cuda._sleep(20_000_000)
        copies = [old.clone() for _ in range(3)]
        del old
        tensors = penstock.load_file(path, "cuda")
        assert all(bool((copy == turn).all()) for copy in copies)
        assert raw(tensors["007.large"]) == contents["007.large"]


def test_memory_freed_by_another_thread_is_not_written(model):
    path, contents = model
    wrong = []

    def churn():
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(100):
                tensor = torch.full((MIB,), turn, device="cuda")
                if not bool((tensor * 2 == 2 * turn).all()):
                    wrong.append(turn)

    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        tensors = penstock.load_file(path, "cuda")
        wrong += [name for name in ("odd", "299.small", "019.large") if raw(tensors[name]) != contents[name]]
    assert not wrong


@pytest.mark.parametrize("way", ["stream", "safe_open", "load_file"])
def test_memory_of_a_load_that_was_dropped_half_way_is_not_written(tmp_path, way):
    """What torch makes next gets that memory, and a read that went on would show in it."""
    path = tmp_path / "model.safetensors"
    penstock.save_file({f"{number}": torch.full((16 * MIB,), 255, dtype=torch.uint8) for number in range(16)}, path)

    def stop(*_):
        raise KeyboardInterrupt

    for turn in range(15):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if way == "stream":
            stream = penstock.stream(path, "cuda", window="256MiB")
            next(stream)
            del stream
        elif way == "safe_open":
            with penstock.safe_open(path, "pt", device="cuda") as file:
                for name in list(file.keys())[:2]:
                    file.get_tensor(name)
        else:
            with pytest.raises(KeyboardInterrupt):
                penstock.load_file(path, "cuda", progress=stop)
        next_ones = [torch.full((16 * MIB,), turn, dtype=torch.uint8, device="cuda") for _ in range(16)]
        time.sleep(0.1)
        assert all(bool((each == turn).all()) for each in next_ones)


@pytest.mark.parametrize("way", ["stream", "safe_open"])
def test_memory_that_is_used_on_another_stream_than_it_was_read_for_is_not_written(tmp_path, way):
    """What is read ahead is allocated for the stream of one turn, and given out in the next one, which has another."""
    path = tmp_path / "model.safetensors"
    count = 96
    penstock.save_file({f"{number:03}": torch.full((4 * MIB,), number, dtype=torch.uint8) for number in range(count)},
                       path)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    copies = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(count)]
    torch.cuda.synchronize()

    def tensors():
        if way == "stream":
            yield from (tensor for _, tensor in penstock.stream(path, "cuda", window="32MiB"))
        else:
            with penstock.safe_open(path, "pt", device="cuda") as file:
                yield from map(file.get_tensor, file.keys())

    coming = tensors()
    for number, copy in enumerate(copies):
        with torch.cuda.stream(streams[number % 2]):
            tensor = next(coming)
            if number % 2:
                torch.cuda._sleep(40_000_000)
            copy.copy_(tensor)  # on one of them much later, when the tensor is long gone
            del tensor
    torch.cuda.synchronize()
    assert [number for number, copy in enumerate(copies) if not bool((copy == number).all())] == []


def test_a_read_takes_its_place_in_the_current_stream(tmp_path):
    content = os.urandom(4 * MIB)
    path = tmp_path / "data"
    path.write_bytes(content)
    with torch.cuda.stream(torch.cuda.Stream()):
        target = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(20_000_000)
        target.fill_(7)  # comes before the read, though it runs much later than the call
        report = penstock.read_into(target, path)
        copy = target.clone()
    assert raw(copy) == content
    assert all("staged" in route or route in ("gds", "p2pdma") for route in report.routes)


def test_arrays_of_cupy_are_filled(tmp_path):
    cupy = pytest.importorskip("cupy")
    content = os.urandom(3 * MIB)
    path = tmp_path / "data"
    path.write_bytes(content)
    array = cupy.zeros((3, MIB), cupy.uint8)
    penstock.read_into(array, path)
    assert array.tobytes() == content
    with cupy.cuda.Stream(non_blocking=True):
        other = cupy.zeros(MIB, cupy.float32)
        penstock.read_into(other[:1000], path, 8)
        assert other[:1000].tobytes() == content[8:4008]
    penstock.read_into((array.data.ptr, 100, "cuda:0"), path, 50)
    assert array[0, :100].tobytes() == content[50:150]
    with pytest.raises(ValueError, match="not contiguous"):
        penstock.read_into(array[:, ::2], path)
    penstock.read_into(cupy.zeros((0, 5)), path)


class OnlyDlpack:
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **how):
        return self.tensor.__dlpack__()

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_dlpack_memory_of_the_gpu_is_filled(tmp_path):
    content = os.urandom(MIB)
    path = tmp_path / "data"
    path.write_bytes(content)
    target = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    penstock.read_into(OnlyDlpack(target), path)
    assert raw(target) == content


def test_the_host_is_not_gpu_memory(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"x" * 100)
    with pytest.raises(penstock.Error):
        penstock.read_into((torch.zeros(100).data_ptr(), 100, "cuda:0"), path)
    with pytest.raises(penstock.Error):
        penstock.read_into((4096, 100, "cuda:77"), path)


class Doubling:
    """A CUDA graph that doubles numbers, captured in torch's way, in the `with` block of `capture`."""

    def __init__(self):
        self.numbers = torch.arange(1000.0, device="cuda")
        self.doubled = self.numbers * 2
        self.graph = torch.cuda.CUDAGraph()

    @contextlib.contextmanager
    def capture(self):
        with torch.cuda.graph(self.graph):
            torch.mul(self.numbers, 2, out=self.doubled)
            yield

    def works(self):
        for number in (21, 4):
            self.numbers.fill_(number)
            self.graph.replay()
            if not bool((self.doubled == 2 * number).all()):
                return False
        return True


def on_another_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@pytest.mark.parametrize("way", ["load_file", "safe_open", "stream", "load_into", "save_file", "read_into"])
def test_a_graph_is_captured_while_another_thread_loads(model, tmp_path, way):
    path, contents = model
    doubling = Doubling()
    target = torch.zeros(len(contents["019.large"]), dtype=torch.uint8, device="cuda")
    (tmp_path / "data").write_bytes(contents["019.large"])
    module = {name: torch.zeros_like(tensor) for name, tensor in penstock.load_file(path, "cuda").items()}
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # so that loads have to allocate from the driver

    def work():
        if way == "load_file":
            return penstock.load_file(path, "cuda")
        if way == "safe_open":
            with penstock.safe_open(path, "pt", "cuda") as file:
                return {name: file.get_tensor(name) for name in file.keys()}
        if way == "stream":
            return dict(penstock.stream(path, "cuda"))
        if way == "load_into":
            penstock.load_into(module, path)
        elif way == "save_file":
            penstock.save_file(module, tmp_path / "saved")
        else:
            penstock.read_into(target, tmp_path / "data")
        return module

    with doubling.capture():
        tensors = on_another_thread(work)
    assert doubling.works()
    if way == "read_into":
        assert raw(target) == contents["019.large"]
    elif way == "save_file":
        assert {name: raw(tensor) for name, tensor in penstock.load_file(tmp_path / "saved").items()} \
            == {name: raw(tensor) for name, tensor in module.items()}
    else:
        assert {name: raw(tensor) for name, tensor in tensors.items()} == contents


def test_a_read_is_awaited_while_a_graph_is_captured(tmp_path):
    """Within the capture: to begin one, torch frees memory, and the driver does that only when no stream waits."""
    content = os.urandom(32 * MIB)
    path = tmp_path / "data"
    path.write_bytes(content)
    target = torch.zeros(32 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()

    async def read():
        await penstock.read_into_async(target, path)

    with ThreadPoolExecutor(1) as pool:
        for _ in range(10):
            doubling = Doubling()
            with doubling.capture():
                pool.submit(asyncio.run, read()).result()
            assert doubling.works()
    torch.cuda.synchronize()
    assert raw(target) == content


def test_what_can_t_be_captured_is_refused_and_the_capture_goes_on(model, tmp_path):
    path, contents = model
    (tmp_path / "data").write_bytes(bytes(1000))
    target = torch.zeros(1000, dtype=torch.uint8, device="cuda")
    penstock.read_into(target, tmp_path / "data")
    doubling = Doubling()
    with doubling.capture():
        for work in (lambda: penstock.load_file(path, "cuda"), lambda: penstock.read_into(target, tmp_path / "data"),
                     lambda: penstock.save_file({"t": target}, tmp_path / "saved"),
                     lambda: penstock.torch.save({"t": target})):
            with pytest.raises(penstock.Error, match="captured into a") as caught:
                work()
            assert caught.value.code == "unsupported"
    assert doubling.works()
    assert raw(penstock.load_file(path, "cuda")["odd"]) == contents["odd"]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 16, 1 << 24])
def test_rows_are_gathered_inside_a_graph_of_torch(tmp_path, cache_bytes):
    table = torch.randn(4000, 32)
    penstock.save_file({"table": table}, tmp_path / "model.safetensors")
    rows = penstock.Rows(tmp_path / "model.safetensors", tensor="table")
    plan = penstock.RowsPlan(rows, 256, device="cuda:0", cache_bytes=cache_bytes)
    given = torch.zeros(256, dtype=torch.int64, device="cuda:0")
    out = torch.empty(256, 32, device="cuda:0")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids = (given * 7 + 3) % 4000
        plan.gather(ids, out)
        doubled = out * 2
    for seed in range(200):
        torch.manual_seed(seed)
        wanted = torch.randint(300 if seed % 2 else 4000, (256,))
        given.copy_(wanted)
        graph.replay()
        assert torch.equal(doubled.cpu(), table[(wanted * 7 + 3) % 4000] * 2)
    plan.check()
    report = plan.report
    assert report["rounds"] == 200 and report["rows"] == 200 * 256
    assert (report["hit_rows"] > 0) == (cache_bytes > 0)
    plan.close()
    graph.replay()
    torch.cuda.synchronize()
    assert not doubled.any(), "the graph goes on, with rows of zeros"


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_an_embedding_on_disk_works_inside_a_graph_of_torch(tmp_path, cache_bytes):
    table = torch.randn(1000, 16)
    penstock.save_file({"embed": table}, tmp_path / "model.safetensors")
    embedding = penstock.nn.Embedding(tmp_path / "model.safetensors", "embed", most_tokens=64, cache_bytes=cache_bytes)
    ids = torch.zeros(4, 16, dtype=torch.int64, device="cuda:0")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = embedding(ids)
    for seed in range(20):
        torch.manual_seed(seed)
        wanted = torch.randint(100, (4, 16))
        ids.copy_(wanted)
        graph.replay()
        assert torch.equal(out.cpu(), table[wanted])
    embedding.plan(ids.device).check()
    assert (embedding.plan(ids.device).report["hit_rows"] > 0) == (cache_bytes > 0)
