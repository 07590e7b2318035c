"""What the tests share."""

import os
import threading

import pytest

import penstock

# What the machine's owner has set must not change what a test sees.
for name in ("PENSTOCK_ENGINE", "PENSTOCK_LOG"):
    os.environ.pop(name, None)


@pytest.fixture
def content():
    return os.urandom((3 << 20) + 17)


@pytest.fixture
def file(tmp_path, content):
    path = tmp_path / "data"
    path.write_bytes(content)
    return path


@pytest.fixture
def slow_context():
    """Reads so slowly that there is time to interrupt it."""
    with penstock.Context(engine="posix", lanes=1, storage_chunk_bytes=4096, operations_in_flight=1) as context:
        yield context


@pytest.fixture
def large_file(tmp_path):
    """What `slow_context` needs many seconds for."""
    path = tmp_path / "large"
    with open(path, "wb") as file:
        file.truncate(8 << 30)
    return path


def os_threads():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()
