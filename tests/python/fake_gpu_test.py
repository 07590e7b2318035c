"""GPU memory over the fake CUDA driver: pointers, the CUDA array interface, models."""

import contextlib
import ctypes
import gc
import os
import pathlib
import signal
import threading
import time
import types
import weakref
from array import array
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

import penstock
from models import write_model
from penstock import _layers, _models
from penstock._frameworks import Destination, Framework

FAKE = pathlib.Path(os.environ.get("PENSTOCK_FAKE_CUDA", "nowhere")) / "libcuda.so.1"
if not FAKE.exists():
    pytest.skip("PENSTOCK_FAKE_CUDA does not name the folder of the fake driver", allow_module_level=True)
if "libcuda.so" in pathlib.Path("/proc/self/maps").read_text():
    pytest.skip("a CUDA driver is loaded already", allow_module_level=True)

MIB = 1 << 20


class Driver:
    """The fake driver, with a context of the test's own."""

    def __init__(self):
        self.library = ctypes.CDLL(str(FAKE), ctypes.RTLD_GLOBAL)
        self.library.fake_cuda_reset()
        self.call("cuInit", 0)
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.other_context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.other_context), 1)
        self.make_current()

    def make_current(self):
        self.call("cuCtxPushCurrent_v2", self.context)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        assert result == 0, (name, result)

    def allocate(self, size):
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def allocate_on(self, device, size):
        if device == 0:
            return self.allocate(size)
        self.call("cuCtxPushCurrent_v2", self.other_context)
        pointer = self.allocate(size)
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        return pointer

    def stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        return stream.value

    def capture_mode(self):
        """Of this thread."""
        mode = ctypes.c_int(0)
        self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        found = mode.value
        self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        return found

    def poke(self, pointer, content):
        self.call("fake_cuda_poke", ctypes.c_uint64(pointer), content, ctypes.c_size_t(len(content)))

    def peek(self, pointer, size):
        content = ctypes.create_string_buffer(size)
        self.call("fake_cuda_peek", ctypes.c_uint64(pointer), content, ctypes.c_size_t(size))
        return content.raw


@pytest.fixture(scope="module")
def driver():
    return Driver()


class CudaArray:
    def __init__(self, pointer, shape, strides=None, read_only=False, **more):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": (pointer, read_only), "version": 3,
                                         "strides": strides, **more}


def test_a_pointer_to_device_memory_is_filled(driver, file, content):
    pointer = driver.allocate(4 * MIB)
    report = penstock.read_into((pointer, len(content), "cuda:0"), file)
    assert driver.peek(pointer, len(content)) == content
    assert all(route.endswith("-staged") for route in report.routes)
    penstock.read_into((pointer + 5, 1000, 0), file, 77)
    assert driver.peek(pointer + 5, 1000) == content[77:1077]


def test_the_cuda_array_interface_names_memory_and_its_stream(driver, file, content):
    pointer = driver.allocate(4 * MIB)
    arrays = [CudaArray(pointer, (500, 250)), CudaArray(pointer, (500, 250), strides=(1000, 4)),
              CudaArray(pointer, (500, 250), stream=None), CudaArray(pointer, (500, 250), stream=driver.stream()),
              CudaArray(pointer, (500, 250), stream=1), CudaArray(pointer, (500, 250), stream=2)]
    for number, array in enumerate(arrays):
        penstock.read_into(array, file, number)
        assert driver.peek(pointer, 500000) == content[number:number + 500000], number
    for wrong in (CudaArray(pointer, (500, 250), strides=(4, 2000)), CudaArray(pointer, (500, 250), read_only=True)):
        with pytest.raises(ValueError):
            penstock.read_into(wrong, file)
    assert penstock.read_into(CudaArray(0, (0, 250)), file).bytes == 0


def test_memory_that_cuda_does_not_know_is_refused(driver, file):
    host = numpy.zeros(1000, numpy.float32)
    with pytest.raises(penstock.Error):
        penstock.read_into(CudaArray(host.ctypes.data, (1000,)), file)
    with pytest.raises(penstock.Error) as caught:
        penstock.read_into((4096, 100, "cuda:99"), file)
    assert caught.value.code == "no_device"


class DlDevice(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class DlTensor(ctypes.Structure):
    """DLPack's DLManagedTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("device", DlDevice), ("dimensions", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Exporter:
    """Bytes on the GPU that are still being written by work on a stream of their own, until `let_go`."""

    def __init__(self, driver, size):
        self.driver, self.size, self.asked = driver, size, []
        self.pointer, self.word, self.old = driver.allocate(size), driver.allocate(4), ctypes.create_string_buffer(size)
        driver.poke(self.word, bytes(4))
        self.event = ctypes.c_void_p()
        driver.call("cuEventCreate", ctypes.byref(self.event), 2)
        stream = ctypes.c_void_p(driver.stream())
        driver.call("cuStreamWaitValue32_v2", stream, ctypes.c_uint64(self.word), 1, 0)
        driver.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(self.pointer), self.old, ctypes.c_size_t(size), stream)
        driver.call("cuEventRecord", self.event, stream)

    def let_go(self):
        self.driver.poke(self.word, b"\1\0\0\0")

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None, **others):
        self.asked.append(stream)
        if stream is not None:
            self.driver.call("cuStreamWaitEvent", ctypes.c_void_p(stream), self.event, 0)
        self.shape = (ctypes.c_int64 * 1)(self.size)
        self.tensor = DlTensor(self.pointer, DlDevice(2, 0), 1, 1, 8, 1, self.shape, None, 0, None, None)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


def test_dlpack_memory_is_read_into_after_what_its_exporter_still_does(driver, file, content):
    penstock.read_into((driver.allocate(4096), 4096, 0), file)  # nothing is made on the GPU while a stream waits
    exporter = Exporter(driver, len(content))

    def read():
        driver.make_current()
        penstock.read_into(exporter, file)

    reading = threading.Thread(target=read)
    reading.start()
    reading.join(0.2)  # time enough to be too early
    exporter.let_go()
    reading.join()
    assert exporter.asked == [1]  # the legacy default stream
    driver.call("cuStreamSynchronize", ctypes.c_void_p(1))
    assert driver.peek(exporter.pointer, len(content)) == content


class DeviceFrame(Framework):
    """A framework whose tensors are (pointer, size) in the memory of the fake GPU."""

    name = "fake"

    def __init__(self, driver):
        self.driver = driver
        self.settled = []

    def allocate(self, specs, domain):
        places = [self.driver.allocate_on(int(domain[5:]), max(1, spec[3])) for spec in specs]
        return Destination(array("Q", places), [], lambda: [(place, spec[3]) for place, spec in zip(places, specs)])

    def settle(self, domain):
        self.settled.append(domain)


def test_a_model_goes_to_the_gpu_whole_and_in_parts(driver, tmp_path):
    contents = write_model(tmp_path / "model", [("odd", "U8", (3,)), ("a", "F32", (300, 1000)), ("b", "F16", (7, 5))])
    model = _models.Model(tmp_path / "model")
    frame = DeviceFrame(driver)
    whole = _models.wanted(model, model.select(None), None)
    load = _models.Load(penstock.default_context(), model, whole, frame, "cuda:0")
    report = load.finish()
    assert frame.settled == ["cuda:0"] and report.bytes == sum(map(len, contents.values()))
    assert [driver.peek(*place) for place in load.tensors] == list(contents.values())
    for columns in ("auto", "pieces", "whole"):
        part = _models.wanted(model, [1], {"a": (1, slice(100, 350))})
        load = _models.Load(penstock.default_context(), model, part, frame, "cuda:0", columns)
        load.finish()
        expected = numpy.frombuffer(contents["a"], numpy.uint32).reshape(300, 1000)[:, 100:350].tobytes()
        assert driver.peek(*load.tensors[0]) == expected


def test_a_model_goes_to_two_gpus_at_once(driver, tmp_path):
    tensors = [(f"layer.{number}", "U8", (MIB // 2 + number,)) for number in range(8)]
    contents = write_model(tmp_path / "model", tensors)
    model = _models.Model(tmp_path / "model")
    frame = DeviceFrame(driver)
    whole = _models.wanted(model, model.select(None), None)
    load = _models.Load(penstock.default_context(), model, whole, frame, lambda name: f"cuda:{int(name[-1]) % 2}")
    report = load.finish()
    assert frame.settled == ["cuda:0", "cuda:1"] and report.bytes == sum(map(len, contents.values()))
    assert [driver.peek(*place) for place in load.tensors] == list(contents.values())
    other_devices = [place for place, _ in load.tensors[1::2]]
    for place in other_devices:
        device = ctypes.c_int(-1)
        driver.call("cuPointerGetAttribute", ctypes.byref(device), 9, ctypes.c_uint64(place))  # its device's number
        assert device.value == 1


def test_loads_break_no_graph_that_another_thread_captures(driver, file, content, tmp_path):
    contents = write_model(tmp_path / "model", [("odd", "U8", (3,)), ("a", "F32", (300, 1000)), ("b", "F16", (7, 5))])
    pointer = driver.allocate(4 * MIB)
    stream, graph = ctypes.c_void_p(driver.stream()), ctypes.c_void_p()

    def work():
        driver.make_current()
        with penstock.Context() as context:
            context.read_into((pointer, len(content), 0), file)
            context.read_into(CudaArray(pointer, (100, 100), stream=1), file)
            model = _models.Model(tmp_path / "model")
            whole = _models.wanted(model, model.select(None), None)
            load = _models.Load(context, model, whole, DeviceFrame(driver), "cuda:0")  # allocates on this thread
            load.finish()
        return load.tensors, driver.capture_mode()

    driver.call("cuStreamBeginCapture_v2", stream, 0)
    with ThreadPoolExecutor(1) as pool:
        tensors, mode = pool.submit(work).result()
    driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    assert mode == 0
    assert [driver.peek(*place) for place in tensors] == list(contents.values())
    assert driver.peek(pointer + 40000, 1000) == content[40000:41000]


def test_a_stream_that_is_captured_takes_no_reads_and_its_capture_goes_on(driver, file):
    pointer = driver.allocate(MIB)
    stream, graph = driver.stream(), ctypes.c_void_p()
    driver.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 0)
    with pytest.raises(penstock.Error, match="captured into a graph") as caught:
        penstock.read_into(CudaArray(pointer, (100, 100), stream=stream), file)
    driver.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
    assert caught.value.code == "unsupported"


def test_rows_go_to_gpu_memory_by_numbers_that_may_lie_there(driver, tmp_path):
    content = numpy.arange(5000, dtype=numpy.float32).reshape(50, 100)
    numpy.save(tmp_path / "table.npy", content)
    table = penstock.Rows(tmp_path / "table.npy", framework="np")
    asked = numpy.array([49, 3, 3, 0], numpy.int32)
    numbers, memory = driver.allocate(4096), driver.allocate(4096)
    driver.poke(numbers, asked.tobytes())
    stream = driver.stream()
    for out in ((memory, 1600, "cuda:0"), CudaArray(memory, (4, 100))):
        for indices in (asked, CudaArray(numbers, (4,), typestr="<i4"),
                        CudaArray(numbers, (4,), typestr="<i4", stream=stream)):
            driver.poke(memory, bytes(1600))
            assert table.gather(indices, out, stream=stream) is out
            assert driver.peek(memory, 1600) == content[asked].tobytes()
    table.rows(7, 4, (memory, 1600, 0))
    assert driver.peek(memory, 1600) == content[7:11].tobytes()
    with pytest.raises(penstock.InvalidError, match="out: .*fill"):
        table.gather(asked, (memory, 1599, 0))
    with pytest.raises(TypeError, match="indices: elements of <f4"):
        table.gather(CudaArray(numbers, (4,)), (memory, 1600, 0))
    with pytest.raises(penstock.InvalidError, match="NumPy has no memory on cuda:0"):
        table.gather(CudaArray(numbers, (4,), typestr="<i4"))


def read_once(driver, context, folder, memory):
    context.read_into(memory, folder / "table.npy")


def gather_once(driver, context, folder, memory):
    with penstock.Rows(folder / "table.npy", framework="np", context=context) as table:
        table.gather([49, 3, 3, 0], memory)


def load_once(driver, context, folder, memory):
    class Frame(DeviceFrame):
        def allocate(self, specs, domain):
            return super().allocate(specs, domain)._replace(owners=[memory])

    model = _models.Model(folder / "model")
    whole = _models.wanted(model, model.select(None), None)
    _models.Load(context, model, whole, Frame(driver), "cuda:0").finish()


class Interrupted(Exception):
    pass


@contextlib.contextmanager
def interrupted_after(seconds):
    def interrupt(*_):
        raise Interrupted

    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@pytest.mark.parametrize("interrupts", [False, True])
@pytest.mark.parametrize("move", [read_once, gather_once, load_once])
def test_memory_of_what_was_abandoned_stays_until_the_gpu_is_done_with_it(driver, tmp_path, move, interrupts):
    numpy.save(tmp_path / "table.npy", numpy.arange(5000, dtype=numpy.float32).reshape(50, 100))
    write_model(tmp_path / "model", [("a", "F32", (300, 1000))])
    memory = CudaArray(driver.allocate(4096), (4, 100))
    gone = weakref.ref(memory)
    request_seconds = 0 if interrupts else 0.2
    with penstock.Context(deadlines={"request_seconds": request_seconds, "cancel_grace_seconds": 0.1}) as context:
        driver.library.fake_cuda_hang(0, 1)
        try:
            with interrupted_after(0.2) if interrupts else contextlib.nullcontext():
                with pytest.raises(Interrupted if interrupts else penstock.Error) as caught:
                    move(driver, context, tmp_path, memory)
            if not interrupts:
                assert caught.value.code == "abandoned"
            elif hasattr(caught.value, "add_note"):
                assert "quarantined_bytes" in caught.value.__notes__[0]
            del caught, memory
            gc.collect()
            assert context.statistics()["quarantined_bytes"] != 0 and gone() is not None
        finally:
            driver.library.fake_cuda_hang(0, 0)
        end = time.monotonic() + 20
        while gone() is not None and time.monotonic() < end:
            time.sleep(0.01)
            context.statistics()
        assert gone() is None


def test_memory_that_goes_may_close_the_context_that_lets_go_of_it(driver, tmp_path):
    class Closing(CudaArray):
        def __del__(self):
            closed.append(context.close())

    closed = []
    numpy.save(tmp_path / "table.npy", numpy.arange(5000, dtype=numpy.float32).reshape(50, 100))
    context = penstock.Context(deadlines={"request_seconds": 0.2, "cancel_grace_seconds": 0.1})
    memory = Closing(driver.allocate(4096), (4, 100))
    driver.library.fake_cuda_hang(0, 1)
    try:
        with pytest.raises(penstock.Error, match="did not come back"):
            read_once(driver, context, tmp_path, memory)
        del memory
    finally:
        driver.library.fake_cuda_hang(0, 0)
    end = time.monotonic() + 20
    while not closed and time.monotonic() < end:
        time.sleep(0.01)
        context.statistics()  # of a Context that was open when it was asked
    assert closed
    with pytest.raises(penstock.Error, match="closed"):
        context.statistics()


def test_rows_are_planned_on_streams_and_in_graphs(driver, tmp_path):
    content = numpy.arange(5000, dtype=numpy.float32).reshape(50, 100)
    numpy.save(tmp_path / "table.npy", content)
    context = penstock.Context()
    table = penstock.Rows(tmp_path / "table.npy", framework="np", context=context)
    plan = penstock.RowsPlan(table, 8, device="cuda:0")
    assert "8 rows of 1 tables on cuda:0" in repr(plan)
    numbers, memory, word, stream = driver.allocate(128), driver.allocate(4096), driver.allocate(4), driver.stream()
    indices, out = CudaArray(numbers, (4,), typestr="<i8"), (memory, 1600, "cuda:0")

    def ask(asked):
        driver.poke(numbers, numpy.array(asked, numpy.int64).tobytes())

    def got():
        driver.call("cuStreamSynchronize", ctypes.c_void_p(stream))
        return driver.peek(memory, 1600), int.from_bytes(driver.peek(word, 4), "little")

    ask([49, 3, 3, 0])
    assert plan.gather(indices, out, status=(word, 4, 0), stream=stream) is out
    assert got() == (content[[49, 3, 3, 0]].tobytes(), 0)

    driver.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 0)
    plan.gather_all([(indices, out, 0, (word, 4, 0))], stream=stream)
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
    driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    for first in range(40):
        ask(range(first, first + 4))
        driver.call("cuGraphLaunch", executable, ctypes.c_void_p(stream))
        assert got() == (content[first:first + 4].tobytes(), 0)
    assert plan.report["rounds"] == 41 and plan.report["rows"] == 164
    ask([0, 50, 1, 2])
    driver.call("cuGraphLaunch", executable, ctypes.c_void_p(stream))
    rows, status = got()
    assert rows == bytes(1600) and status != 0
    with pytest.raises(IndexError, match="50 at position 1"):
        plan.check()
    plan.check()
    for wrong, what in ((lambda: plan.gather(indices, (memory, 1599, 0)), "out: .*fill"),
                        (lambda: plan.gather([1, 2], out), "indices: memory of host"),
                        (lambda: plan.gather(indices, bytearray(1600)), "out: memory of host"),
                        (lambda: plan.gather(indices, out, table=1), "table"),
                        (lambda: plan.gather(indices, out, status=(memory, 8, 0)), "status"),
                        (lambda: plan.gather_all([]), "gathers"),
                        (lambda: penstock.RowsPlan(table, 8, device="cpu"), "device"),
                        (lambda: penstock.RowsPlan([], 8, device=0), "tables"),
                        (lambda: penstock.RowsPlan(table, -1, device=0), "most_rows")):
        with pytest.raises(penstock.InvalidError, match=what):
            wrong()
    with pytest.raises(IndexError, match="plan for 8"):
        plan.gather(CudaArray(numbers, (9,), typestr="<i8"), (memory, 3600, 0), stream=stream)
    driver.library.fake_cuda_set_synchronizing_calls_block(0, 0)
    context.close()
    plan.close()
    ask([1, 2, 3, 4])
    driver.call("cuGraphLaunch", executable, ctypes.c_void_p(stream))
    rows, status = got()
    assert rows == bytes(1600) and status != 0, "the graph goes on"
    with pytest.raises(penstock.StateError, match="closed"):
        plan.check()
    driver.call("cuGraphExecDestroy", executable)
    driver.call("cuGraphDestroy", graph)


def test_rows_stay_in_gpu_memory(driver, tmp_path):
    content = numpy.arange(5000, dtype=numpy.float32).reshape(50, 100)
    numpy.save(tmp_path / "table.npy", content)
    context = penstock.Context()
    table = penstock.Rows(tmp_path / "table.npy", framework="np", context=context)
    try:
        made = penstock.RowsPlan(table, 8, device="cuda:0", cache_bytes=1 << 20)
    except penstock.UnsupportedError as error:
        pytest.skip(f"this build has no kernels: {error}")
    numbers, memory, stream = driver.allocate(128), driver.allocate(4096), driver.stream()
    with made as plan:
        for asked in ([49, 3, 3, 0], [3, 49, 0, 7], [7, 7, 7, 7]):
            driver.poke(numbers, numpy.array(asked, numpy.int64).tobytes())
            plan.gather(CudaArray(numbers, (4,), typestr="<i8"), (memory, 1600, "cuda:0"), stream=stream)
            driver.call("cuStreamSynchronize", ctypes.c_void_p(stream))
            assert driver.peek(memory, 1600) == content[asked].tobytes()
        report = plan.report
        assert (report["rows"], report["hit_rows"], report["rounds"]) == (12, 7, 3)
        assert report["cache_rows"] == 64 and report["cache_bytes"] >= 64 * 400
    with penstock.RowsPlan(table, 8, device="cuda:0", cache_bytes=1 << 20, unasked_seconds=1000) as plan:
        for _ in range(3):
            plan.gather(CudaArray(numbers, (4,), typestr="<i8"), (memory, 1600, "cuda:0"), stream=stream)
            driver.call("cuStreamSynchronize", ctypes.c_void_p(stream))
            assert driver.peek(memory, 1600) == content[[7, 7, 7, 7]].tobytes()
        assert plan.report["rounds"] == 3, "each is a round of its own: only graphs go without"
    with pytest.raises(penstock.InvalidError, match="unasked_seconds"):
        penstock.RowsPlan(table, 8, device="cuda:0", unasked_seconds=1)
    with pytest.raises(penstock.InvalidError, match="too small"):
        penstock.RowsPlan(table, 8, device="cuda:0", cache_bytes=100)
    with pytest.raises(penstock.InvalidError, match="cache_bytes"):
        penstock.RowsPlan(table, 8, device="cuda:0", cache_bytes=-1)


class LayersFrame(DeviceFrame):
    """What Layers need of torch, on the fake GPU."""

    def __init__(self, driver, stream):
        super().__init__(driver)
        current = types.SimpleNamespace(cuda_stream=stream)
        self.torch = types.SimpleNamespace(cuda=types.SimpleNamespace(current_stream=lambda domain: current))

    def check_device(self, domain):
        pass

    def check(self, specs):
        pass

    def normal_mode(self):
        return contextlib.nullcontext()

    def bytes_on(self, domain, size):
        pointer = self.driver.allocate(size)
        return types.SimpleNamespace(data_ptr=lambda: pointer, numel=lambda: size, device=domain)

    def views(self, memory, specs, offsets):
        return [(memory.data_ptr() + offset, spec[3]) for spec, offset in zip(specs, offsets)]


def test_layers_are_acquired_in_the_order_of_a_stream(driver, tmp_path, monkeypatch):
    contents = write_model(tmp_path / "model", [(f"layers.{number}.a", "U8", (50_000,)) for number in range(6)])
    stream = driver.stream()
    monkeypatch.setattr(_layers, "framework_named", lambda name: LayersFrame(driver, stream))
    with penstock.Context() as context:
        with penstock.Layers(tmp_path / "model", budget="160KiB", device="cuda:0", in_order=False, context=context) as layers:
            with layers.use(0) as tensors:
                assert driver.peek(*tensors["layers.0.a"]) == contents["layers.0.a"]
            with layers.use(1, stream=stream) as tensors:
                assert driver.peek(*tensors["layers.1.a"]) == contents["layers.1.a"], "it is there when the call returns"
            assert layers.report["waits"] == 2

            for function in (b"cuMemcpyHtoDAsync_v2", b"cuMemcpy2DAsync_v2", b"cuLaunchKernel"):
                driver.library.fake_cuda_fail_call(function, 1, 1, 1)
            with pytest.raises(penstock.Error) as caught:
                layers.acquire(2, stream=stream)
            assert caught.value.code == "device_error"
            driver.library.fake_cuda_clear_injections()
            with layers.use(2, stream=stream) as tensors:
                driver.call("cuStreamSynchronize", ctypes.c_void_p(stream))
                assert driver.peek(*tensors["layers.2.a"]) == contents["layers.2.a"]
