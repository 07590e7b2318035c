"""What the tests share."""

import os
import signal
import threading
import weakref

import numpy
import pytest

import penstock
import penstock._frameworks
import penstock._safe_open
from models import write_model

# What the machine's owner has set must not change what a test sees.
for name in ("PENSTOCK_ENGINE", "PENSTOCK_LOG"):
    os.environ.pop(name, None)
# A shell has its jobs in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


PLAIN = ["BOOL", "U8", "I8", "I16", "F16", "I32", "F32", "I64", "F64", "C64"]


@pytest.fixture(autouse=True)
def no_habits(monkeypatch):
    """What a test does to files that it reads tensor by tensor must not change what the next one sees."""
    monkeypatch.setattr(penstock._safe_open, "habit", penstock._safe_open.Habit())


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
    deadlines = {"cancel_grace_seconds": 5, "close_seconds": 10}  # on a busy machine operations come home late
    with penstock.Context(engine="posix", lanes=1, storage_chunk_bytes=4096, operations_in_flight=1,
                          deadlines=deadlines) as context:
        yield context


@pytest.fixture
def large_file(tmp_path):
    """What `slow_context` needs many seconds for."""
    path = tmp_path / "large"
    with open(path, "wb") as file:
        file.truncate(8 << 30)
    return path


@pytest.fixture
def interrupted():
    """Calls a function, and presses ctrl-C while it is at work."""
    def press_during(call):
        timer = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            call()
        timer.join()

    return press_during


def as_booleans(size):
    """Bytes that are also true or false, as a type of the mix needs it."""
    return numpy.random.default_rng(size).integers(0, 2, size, numpy.uint8).tobytes()


@pytest.fixture
def mixed(tmp_path):
    """A file of tensors of every plain type, misaligned, small, large, empty and without dimensions: (path, bytes)."""
    tensors = [("odd", "U8", (3,))]
    tensors += [(f"layers.{i}.{dtype}", dtype, (i + 1, 7)) for i in range(3) for dtype in PLAIN]
    tensors += [("scalar", "F32", ()), ("empty", "F16", (0, 5)), ("large", "F32", (600, 1000)),
                ("larger", "F16", (3, 500, 1000)), ("last", "I8", (5,))]
    path = tmp_path / "mixed.safetensors"
    return path, write_model(path, tensors, {"about": "a test", "größe": "1"}, as_booleans)


@pytest.fixture
def live_bytes(monkeypatch):
    """How much memory tensors have now, and had at most, counted where it is allocated."""
    live = {"now": 0, "most": 0}

    def allocate(self, specs, domain, before=penstock._frameworks.Numpy.allocate):
        made = before(self, specs, domain)
        for owner in made.owners:
            live["now"] += owner.nbytes
            weakref.finalize(owner, lambda size=owner.nbytes: live.update(now=live["now"] - size))
        live["most"] = max(live["most"], live["now"])
        return made

    monkeypatch.setattr(penstock._frameworks.Numpy, "allocate", allocate)
    return live


@pytest.fixture
def all_live_bytes(live_bytes, monkeypatch):
    """The same with torch's tensors."""
    def allocate(self, specs, domain, before=penstock._frameworks.Torch.allocate):
        made = before(self, specs, domain)
        for owner in made.owners:
            live_bytes["now"] += owner.numel()
            weakref.finalize(owner, lambda size=owner.numel(): live_bytes.update(now=live_bytes["now"] - size))
        live_bytes["most"] = max(live_bytes["most"], live_bytes["now"])
        return made

    monkeypatch.setattr(penstock._frameworks.Torch, "allocate", allocate)
    return live_bytes


def os_threads():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()
