"""Where tensors lie: slabs, storages of their own, mappings of the file, and what becomes of that memory."""

import gc
import os
import unittest.mock
import weakref

import numpy
import pytest

import penstock
from models import raw, write_model
from penstock import _frameworks

torch = pytest.importorskip("torch")


def test_what_is_mapped_counts_in_the_statistics(tmp_path):
    path = tmp_path / "m.safetensors"
    penstock.save_file({"a": numpy.zeros(1 << 20, numpy.uint8)}, path)
    path.read_bytes()
    with penstock.Context() as context:
        report = penstock.load_file(path, framework="np", context=context).report
        if "mapped" not in report.routes:
            pytest.skip(f"it was not mapped here: {report.reason}")
        routes = [(route["engine"], route["route"], route["bytes"]) for route in context.statistics()["routes"]]
        assert routes == [("mmap", "mapped", 1 << 20)]


@pytest.mark.parametrize("part, mapped", [(64, True), (16, False)])
def test_a_file_is_mapped_though_a_few_of_its_pages_are_not_in_the_page_cache(tmp_path, part, mapped):
    path = tmp_path / "model"
    contents = write_model(path, [(str(i), "U8", (1 << 20,)) for i in range(64)])
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        assert file.read()
        os.posix_fadvise(file.fileno(), 16 << 20, (64 << 20) // part, os.POSIX_FADV_DONTNEED)
    tensors = penstock.load_file(path, framework="np")
    if not {"direct", "buffered"} & set(tensors.report.routes) and not mapped:
        pytest.skip(f"nothing can be evicted here, or read past the page cache: {tensors.report.reason}")
    assert ("mapped" in tensors.report.routes) == mapped, tensors.report
    assert {name: raw(array) for name, array in tensors.items()} == contents


def test_small_tensors_share_slabs_and_all_have_storages_of_their_own(tmp_path):
    path = tmp_path / "model"
    tensors = [(f"small.{i}", "F32", (100 + i,)) for i in range(50)]
    tensors += [("large.0", "U8", (1 << 20,)), ("large.1", "U8", ((1 << 20) + 1,)), ("below", "U8", ((1 << 20) - 1,))]
    tensors += [(f"medium.{i}", "U8", (1 << 19,)) for i in range(80)]
    write_model(path, tensors, content=None)
    loaded = penstock.load_file(path, copy=True)
    storages = {}
    for name, tensor in loaded.items():
        storage = tensor.storage()
        storages.setdefault(storage.data_ptr(), [0, storage.nbytes()])[0] += 1
        assert tensor.data_ptr() % 256 == 0
        assert storage.nbytes() == tensor.numel() * tensor.element_size()
    assert len(storages) == len(loaded)
    spans = sorted((tensor.data_ptr(), tensor.numel() * tensor.element_size()) for name, tensor in loaded.items()
                   if "large" not in name)
    gaps = [after - begin - size >= 256 for (begin, size), (after, _) in zip(spans, spans[1:])]
    assert sum(gaps) <= 2, "41 MiB lie in two slabs"
    apart = penstock.load_file(path, own_storage=True, copy=True)
    assert {tensor.storage().data_ptr() for tensor in apart.values()} == {each.data_ptr() for each in apart.values()}
    assert all(tensor.storage().nbytes() == tensor.numel() * tensor.element_size() for tensor in apart.values())


def test_arrays_of_numpy_are_aligned(mixed):
    for array in penstock.load_file(mixed[0], framework="np", copy=True).values():
        assert array.ctypes.data % 256 == 0 and array.flags.writeable and array.flags.c_contiguous


def test_neighbours_in_a_slab_are_independent_for_autograd(tmp_path):
    path = tmp_path / "model"
    write_model(path, [("a", "F32", (4,)), ("b", "F32", (4,))], content=bytes)
    tensors = penstock.load_file(path)
    weight = tensors["a"].requires_grad_()
    product = (weight * tensors["b"]).sum()
    with torch.no_grad():
        weight.detach()
    before = tensors["b"]._version
    with torch.no_grad():
        weight.add_(1)
    assert tensors["b"]._version == before and not weight._is_view()
    del product


def test_deleting_tensors_frees_their_memory(tmp_path):
    path = tmp_path / "model"
    write_model(path, [(f"t{i}", "U8", (64 << 20,)) for i in range(3)], content=None)
    arrays = penstock.load_file(path, framework="np")
    references = {name: weakref.ref(array.base) for name, array in arrays.items()}
    del arrays["t1"]
    assert references["t1"]() is None and references["t0"]() is not None
    del arrays
    assert all(reference() is None for reference in references.values())

    tensors = penstock.load_file(path, copy=True)  # the file is cached by now, and would be mapped as a whole
    held = resident_bytes()
    del tensors["t1"]
    assert resident_bytes() < held - (60 << 20)
    del tensors
    assert resident_bytes() < held - (180 << 20)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_a_forked_child_writes_stays_there(tmp_path):
    path = tmp_path / "model"
    write_model(path, [("large", "U8", (4 << 20,)), ("small", "U8", (100,))], content=bytes)
    for tensors in (penstock.load_file(path, copy=True), dict(penstock.stream(path)),
                    penstock.load_file(path, copy=True, own_storage=True), penstock.load_file(cached(path))):
        arrays = [tensor.numpy() for tensor in tensors.values()]  # torch's threads don't come along
        child = os.fork()
        if child == 0:
            for array in arrays:
                array[:] = 7
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not any(array.any() for array in arrays)


def test_the_cpu_is_meant_where_torch_has_another_default(mixed):
    if not hasattr(torch, "set_default_device"):
        pytest.skip(f"torch {torch.__version__} has no default device")
    path, contents = mixed
    torch.set_default_device("meta")
    try:
        loads = [penstock.load_file(path, copy=True, framework="pt"), dict(penstock.stream(path, framework="pt")),
                 penstock.load_file(cached(path), framework="pt"), penstock.torch.load(path.read_bytes())]
    finally:
        torch.set_default_device(None)
    assert all({name: raw(tensor) for name, tensor in tensors.items()} == contents for tensors in loads)


def cached(path):
    """Reads it, so that the kernel has it in memory."""
    path.read_bytes()
    with penstock.Context() as context:
        model = penstock._models.Model(path)
        if penstock._core.map_file(context._core, model.core, 0, False) is None:
            pytest.skip("the kernel does not tell what is cached, or caches nothing here")
    return path


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_tensors_of_a_cached_file_are_mapped_and_what_is_written_to_them_stays_here(tmp_path, framework):
    path = tmp_path / "model"
    saved = {"a": torch.randn(64 * 5), "b": torch.randn(300, 1024), "c": torch.ones(2, 32), "empty": torch.zeros(0, 3),
             "odd": torch.ones(3, dtype=torch.uint8), "scalar": torch.tensor(5, dtype=torch.int8)}
    penstock.save_file(saved, path)
    contents = {name: raw(tensor) for name, tensor in saved.items()}
    first, second = (penstock.load_file(cached(path), framework=framework) for _ in range(2))
    assert first.report.routes["mapped"] >= len(contents["b"]) and first.report.bytes == sum(map(len, contents.values()))
    assert {name: raw(tensor) for name, tensor in first.items()} == contents
    address = (lambda tensor: tensor.data_ptr()) if framework == "pt" else (lambda array: array.ctypes.data)
    assert all(address(tensor) % 256 == 0 for name, tensor in first.items() if name in "abc")
    first["b"][:] = 7
    assert raw(second["b"]) == contents["b"] and raw(penstock.load_file(path, copy=True)["b"]) == contents["b"]
    assert str(path) in open("/proc/self/maps").read()
    name, tensor = first.popitem()
    del first, second, name, tensor
    gc.collect()
    assert str(path) not in open("/proc/self/maps").read()
    assert "mapped" not in penstock.load_file(path, copy=True).report.routes
    with penstock.safe_open(path, framework) as file:
        assert {name: raw(file.get_tensor(name)) for name in file.keys()} == contents
        assert raw(file.get_slice("b")[5:7]) == contents["b"][5 * 4096:7 * 4096]
    assert {name: raw(tensor) for name, tensor in penstock.stream(path, framework=framework)} == contents


def test_tensors_are_mapped_where_their_elements_lie_right_and_copied_to_aligned_places_otherwise(mixed):
    path, contents = mixed
    cached(path)
    assert all(tensor.data_ptr() % 256 == 0 for tensor in penstock.load_file(path, copy=True).values())
    calls = []
    mapped = penstock.load_file(path, progress=lambda done, all_bytes: calls.append((done, all_bytes)))
    assert {name: raw(tensor) for name, tensor in mapped.items()} == contents
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in mapped.values())
    assert len(mapped.report.routes) == 2, "some are mapped, some copied"
    assert mapped.report.bytes == sum(mapped.report.routes.values()) == calls[-1][0] == calls[-1][1]


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_parts_of_a_cached_file_come_out_of_the_mapping(tmp_path, framework):
    path = tmp_path / "model"
    saved = {"a": torch.randn(24, 64), "b": torch.randint(0, 200, (6, 16, 4), dtype=torch.uint8)}
    penstock.save_file(saved, path)
    cached(path)
    for part in [slice(4, 9), (0, [(0, 2), (5, 6)]), (1, slice(3, 7)), (1, [(1, 2), (8, 16), (3, 3)]), (-1, slice(0, 2))]:
        loaded = penstock.load_file(path, framework=framework, slices=lambda name, shape: part)
        assert loaded.report.routes == {"mapped": loaded.report.bytes}
        copied = penstock.load_file(path, framework=framework, slices=lambda name, shape: part, copy=True)
        for name, tensor in loaded.items():
            assert raw(tensor) == raw(copied[name]) and tuple(tensor.shape) == tuple(copied[name].shape)


def test_memory_is_recorded_with_the_stream_that_it_is_given_out_on():
    """Over a torch of the test's own; gpu_test.py has the real one."""
    frame = _frameworks.Torch()
    frame.torch = unittest.mock.MagicMock()
    frame.torch.cuda.is_current_stream_capturing.return_value = False
    first, other = unittest.mock.Mock(), unittest.mock.Mock()
    frame.torch.cuda.current_stream.return_value = first
    streams = {"cuda:1": frame.settle("cuda:1")}
    first.synchronize.assert_called_once_with()
    tensor = unittest.mock.Mock(is_cuda=True, device="cuda:1")
    assert frame.give(tensor, streams) is tensor
    tensor.record_stream.assert_not_called()
    frame.torch.cuda.current_stream.return_value = other
    assert frame.give(tensor, streams) is tensor
    tensor.record_stream.assert_called_once_with(other)
    on_the_host = unittest.mock.Mock(is_cuda=False)
    assert frame.give(on_the_host, {"host": frame.settle("host")}) is on_the_host
    on_the_host.record_stream.assert_not_called()


def test_a_stream_that_is_captured_is_not_waited_for():
    """Over a torch of the test's own, as above."""
    frame = _frameworks.Torch()
    frame.torch = unittest.mock.MagicMock()
    frame.torch.cuda.device_count.return_value = 2
    frame.torch.cuda.is_current_stream_capturing.return_value = True
    stream = frame.torch.cuda.current_stream.return_value
    for work in (lambda: frame.settle("cuda:1"), lambda: frame.allocate((), "cuda:1")):
        with pytest.raises(penstock.Error, match="captured into a CUDA graph") as caught:
            work()
        assert caught.value.code == "unsupported"
        frame.torch.cuda.device.assert_called_with(1)
    stream.synchronize.assert_not_called()
    frame.torch.empty.assert_not_called()
