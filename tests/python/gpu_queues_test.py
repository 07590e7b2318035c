"""Sets of queues and arrays: made and closed in any order, without a GPU."""

import os
import shutil
import subprocess

import pytest

import penstock


@pytest.fixture
def name(tmp_path):
    path = tmp_path / "store"
    path.write_bytes(os.urandom(1 << 20))
    return path


def test_a_set_has_a_handle_and_a_report(name):
    with penstock.GpuServer(2) as server:
        assert server.threads == 2
        with server.open(name, "cpu", queues=2, depth=64) as queues:
            assert queues.handle != 0
            assert queues.report["reads"] == 0 and queues.report["last_error"] is None
            assert queues.report["route"] == "gpu-soft"
            assert str(name) in repr(queues)
            queues.stop()
            queues.reset()
        with pytest.raises(penstock.StateError):
            queues.handle
    assert "closed" in repr(server)
    with pytest.raises(penstock.StateError):
        server.open(name, "cpu")


def test_several_stores_share_a_set(name):
    with penstock.GpuServer(1) as server, penstock.open(name) as store:
        with server.open([store, name], "cpu", window=(4096, 8192), queues=2, depth=64) as queues:
            assert queues.array(1, offset=4096).size_bytes == 8192
            with pytest.raises(penstock.RangeError):
                queues.array(1, offset=0)


def test_an_array_knows_its_size_and_its_cache(name):
    with penstock.GpuServer(1) as server, server.open(name, "cpu", queues=2, depth=64) as queues:
        with queues.array(memory="512KiB") as array:
            assert array.handle != 0 and array.size_bytes == 1 << 20
            assert "256 pages" in repr(array)
            assert array.statistics == {"hits": 0, "fetched": 0, "joined": 0, "passed": 0, "failed": 0,
                                        "first_failure": None, "first_failure_field": 0}
            array.clear()
        with pytest.raises(penstock.StateError):
            array.statistics
        left = queues.array(offset=512, size=1024)
        assert left.size_bytes == 1024
    with pytest.raises(penstock.StateError):
        left.handle  # its queues are closed
    left.close()


def test_what_can_not_be_is_refused(name):
    with penstock.GpuServer(1) as server:
        for options in ({"depth": 100}, {"place_bytes": 1000}, {"block_bytes": 3}, {"timeout": -1}, {"timeout": 0}, {"stall": 0}):
            with pytest.raises(penstock.InvalidError):
                server.open(name, "cpu", **options)
        with pytest.raises(penstock.InvalidError):
            server.open([], "cpu")
        with pytest.raises(penstock.NotFoundError):
            server.open(str(name) + ".not", "cpu")
        with server.open(name, "cpu", queues=2, depth=64) as queues:
            for options in ({"store": 1}, {"page_bytes": 8192}, {"size": 0}):
                with pytest.raises(penstock.InvalidError):
                    queues.array(**options)
            with pytest.raises(penstock.Error):
                queues.array(memory=4096)


def test_wrong_arguments_are_named(name):
    for wrong, error in ((-1, penstock.InvalidError), (1 << 32, penstock.InvalidError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="threads"):
            penstock.GpuServer(wrong)
    with pytest.raises(TypeError, match="context"):
        penstock.GpuServer(1, context="x")
    with penstock.GpuServer(1) as server:
        for option in ("queues", "depth", "place_bytes", "ahead_places", "block_bytes"):
            for wrong, error in ((-1, penstock.InvalidError), (1 << 40, penstock.InvalidError), (1.5, TypeError)):
                with pytest.raises(error, match=option):
                    server.open(name, "cpu", **{option: wrong})
        for wrong in (5, (1,), (0, None)):
            with pytest.raises(TypeError, match="window"):
                server.open(name, "cpu", window=wrong)
        with server.open(name, None, queues=2, depth=64) as queues:
            for wrong in ("table.bin", name, None, True):
                with pytest.raises(TypeError, match="store must be"):
                    queues.array(wrong)
            for options in ({"offset": 1.5}, {"size": "1"}, {"memory": None}, {"page_bytes": 4096.0}):
                with pytest.raises(TypeError, match=next(iter(options))):
                    queues.array(**options)


def test_a_set_is_closed_with_its_server(name):
    server = penstock.GpuServer(1)
    queues = server.open(name, "cpu", queues=2, depth=64)
    array = queues.array()
    server.close()
    assert "closed" in repr(queues)
    for use in (lambda: queues.handle, queues.stop, queues.reset, queues.array, lambda: array.handle):
        with pytest.raises(penstock.StateError):
            use()
    assert queues.report["reads"] == 0 and not queues.report["server_dead"]


def test_everything_may_be_dropped_in_any_order(name):
    server = penstock.GpuServer(1)
    queues = server.open(name, "cpu", queues=2, depth=64)
    array = queues.array()
    server.close()
    del server, queues
    array.close()


def test_kernels_find_their_headers():
    header = os.path.join(penstock.include_dir(), "penstock", "device_array.cuh")
    assert os.path.exists(header)
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    subprocess.run([compiler, "-std=c++17", "-fsyntax-only", "-x", "c++", "-I", penstock.include_dir(), "-"],
                   input=b"#include <penstock/paged_array.h>\n", check=True, timeout=60)
