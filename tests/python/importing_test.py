"""What importing costs, and what happens around a fork."""

import asyncio
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import penstock
from models import raw, write_model
from penstock import _models


def run(code, **environment):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_importing_starts_nothing_and_imports_no_framework():
    assert run("""
import sys, os
import penstock
print(len(os.listdir("/proc/self/task")), [name for name in ("torch", "numpy", "cupy", "safetensors", "asyncio")
                                           if name in sys.modules])
print([line for line in open("/proc/self/maps") if "libcuda" in line])
""") == "1 []\n[]\n"


def test_importing_is_quick():
    """It should take less than 50 ms, and does (docs/performance.md); ten times that of a CPU means that something is
    wrong."""
    assert float(run("import time; import penstock; print(time.process_time())")) < 0.5


def test_a_context_starts_no_thread_before_it_moves_bytes():
    assert run("""
import os, penstock
context = penstock.Context()
print(len(os.listdir("/proc/self/task")))
""") == "1\n"


def test_what_gives_arrays_says_what_to_install_where_there_are_none(tmp_path):
    table = tmp_path / "table"
    table.write_bytes(bytes(64))
    for missing, package in ((["torch", "numpy"], "torch"), (["numpy"], "numpy")):
        assert f"pip install {package}" in run(f"""
import sys
for name in {missing}:
    sys.modules[name] = None
import penstock
try:
    penstock.Rows({str(table)!r}, row_bytes=8, framework={package!r})
except ModuleNotFoundError as error:
    print(error)
""")


def test_the_version_is_that_of_the_library():
    project = pathlib.Path(__file__).resolve().parents[2] / "pyproject.toml"
    assert f'version = "{penstock.__version__}"' in project.read_text().splitlines()


def in_child(check):
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)  # ends a child that waits for somebody who is not there
            check()
            os._exit(0)
        except BaseException as error:
            print(f"in the child: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_gets_a_default_context_of_its_own(file, content):
    parents = penstock.default_context()
    penstock.read_into(bytearray(len(content)), file)

    def check():
        target = bytearray(len(content))
        penstock.read_into(target, file)
        assert target == content
        assert penstock.default_context() is not parents

    assert in_child(check) == 0
    assert penstock.default_context() is parents
    penstock.read_into(bytearray(100), file)


def test_a_default_context_that_was_closed_is_made_anew(file, content):
    with penstock.default_context() as closed:
        penstock.read_into(bytearray(9), file)
    target = bytearray(len(content))
    penstock.read_into(target, file)
    assert target == content and penstock.default_context() is not closed
    penstock.default_context().close()
    assert asyncio.run(penstock.read_into_async(target, file)).bytes == len(content)


def test_a_signal_handler_may_ask_for_the_default_context_while_it_is_made():
    run("""
import signal
import penstock
from penstock import _context

signal.alarm(20)  # ends a process that waits for itself
made = []

def handle(*_):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    made.append(penstock.default_context())

class Interrupted(penstock.Context):
    def __init__(self):
        signal.raise_signal(signal.SIGUSR1)
        super().__init__()

signal.signal(signal.SIGUSR1, handle)
_context.Context = Interrupted
assert penstock.default_context() is made[0]
assert penstock.default_context() is made[0]
""")


def test_a_forked_child_is_refused_the_context_of_its_parent(file):
    with penstock.Context() as context:
        context.read_into(bytearray(1 << 20), file)

        def check():
            with pytest.raises(penstock.StateError) as caught:
                context.read_into(bytearray(1 << 20), file)
            assert caught.value.code == "closed"

        assert in_child(check) == 0
        context.read_into(bytearray(1 << 20), file)


def test_an_open_file_goes_on_in_a_forked_child(tmp_path):
    path = tmp_path / "model"
    contents = write_model(path, [(f"t{i:03}", "U8", (50000,)) for i in range(100)])
    with penstock.safe_open(path, "np") as file:
        names = file.keys()
        for name in names[:10]:  # the next ones are on their way now
            file.get_tensor(name)

        def check():
            assert {name: raw(file.get_tensor(name)) for name in names} == contents
            assert raw(file.get_slice("t007")[5:9]) == contents["t007"][5:9]

        with file._lock:  # as another thread of the parent might hold it
            assert in_child(check) == 0
        assert {name: raw(file.get_tensor(name)) for name in names} == contents


@pytest.mark.parametrize("slices", [None, {"large": (1, [(0, 1), ((1 << 18) - 1, 1 << 18)])}])
def test_a_child_forked_while_a_load_runs_waits_for_nobody(tmp_path, slices, slow_context):
    path = tmp_path / "model"
    write_model(path, [("small", "U8", (100,)), ("large", "U8", (1 << 15, 1 << 18))], content=None)
    model = _models.Model(path)
    part = _models.wanted(model, [model.find("large")], slices)
    load = _models.Load(slow_context, model, part, _models.framework_named("np"), "cpu", "whole")

    def check():
        nonlocal load
        assert load._loading.ended
        with pytest.raises(penstock.StateError, match="parent of a fork"):
            load.finish()
        load = None
        assert len(penstock.load_file(path, framework="np", select=["small"])["small"]) == 100
        assert penstock.load_file(path, framework="np", slices=lambda name, shape: (0, slice(5)))["large"].any() == 0

    assert in_child(check) == 0


@pytest.mark.parametrize("how", ["reading = start()", "daemon = threading.Thread(target=read, daemon=True)"])
def test_a_process_may_end_while_a_read_runs(large_file, how):
    run(f"""
import mmap, penstock, sys, threading, time, types
context = penstock.Context(engine="posix", lanes=1, storage_chunk_bytes=4096, operations_in_flight=1)
target = mmap.mmap(-1, 1 << 30)
path = {str(large_file)!r}
start = lambda: context._start(penstock._memory.memory_of(target), target, path, 0, None, None, None, penstock._core.Endings(), 1)
read = lambda: context.read_into(target, path)
{how}
class TakesLongToGo:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)  # the interpreter is shutting down, and the other thread comes back from its wait
sys.modules["last"] = types.ModuleType("last")
sys.modules["last"].one = TakesLongToGo()
if "daemon" in globals():
    daemon.start()
    time.sleep(0.2)
""")


HELD_OPEN = os.environ.get("PENSTOCK_HELD_OPEN", "")
HOLD = """
import asyncio, os, socket, threading, penstock
here, there = socket.socketpair()
os.environ["HELD_SOCKET"] = str(there.fileno())
def hold(path):
    os.environ["HELD_OPEN"] = path
"""


@pytest.mark.skipif(not os.path.exists(HELD_OPEN), reason="PENSTOCK_HELD_OPEN does not name the library of that name")
@pytest.mark.parametrize("path, call", [
    ("file", "penstock.default_context(); hold({file!r}); penstock.read_into(bytearray(9), {file!r})"),
    ("file", "hold({file!r}); penstock.load_file({file!r}, framework='np')"),
    ("file", "penstock.default_context(); hold({file!r}); penstock.default_context().prefetch({file!r})"),
    ("machine", "hold('/proc/self/mountinfo'); penstock.Context()"),
])
def test_other_threads_run_while_one_opens(tmp_path, path, call):
    write_model(tmp_path / path, [("a", "U8", (100,))])
    run(f"""{HOLD}
def work():
    {call.format(file=str(tmp_path / path))}
thread = threading.Thread(target=work)
thread.start()
here.recv(1)
here.send(b"x")
thread.join()
""", LD_PRELOAD=HELD_OPEN)


@pytest.mark.skipif(not os.path.exists(HELD_OPEN), reason="PENSTOCK_HELD_OPEN does not name the library of that name")
@pytest.mark.parametrize("held", ["the file", "/proc/self/mountinfo"])
def test_the_event_loop_runs_while_an_awaited_read_opens(file, held):
    run(f"""{HOLD}
async def main():
    here.setblocking(False)
    hold({str(file) if held == "the file" else held!r})
    reading = asyncio.ensure_future(penstock.read_into_async(bytearray(9), {str(file)!r}))
    await asyncio.get_running_loop().sock_recv(here, 1)
    here.send(b"x")
    assert (await reading).bytes == 9
asyncio.run(main())
""", LD_PRELOAD=HELD_OPEN)


@pytest.mark.skipif(not os.path.exists(HELD_OPEN), reason="PENSTOCK_HELD_OPEN does not name the library of that name")
def test_a_read_that_is_cancelled_while_it_opens_ends_at_once_and_never_begins(file):
    run(f"""{HOLD}
async def main():
    context = penstock.Context()
    target = bytearray(1 << 20)
    here.setblocking(False)
    hold({str(file)!r})
    reading = asyncio.ensure_future(context.read_into_async(target, {str(file)!r}))
    await asyncio.get_running_loop().sock_recv(here, 1)
    reading.cancel()
    await asyncio.wait([reading], timeout=10)
    assert reading.cancelled(), "although it still opens"
    here.send(b"x")
    del os.environ["HELD_OPEN"]
    await context.read_into_async(bytearray(9), {str(file)!r})
    context.close()  # waits for what is under way
    assert not any(target)
asyncio.run(main())
""", LD_PRELOAD=HELD_OPEN)


@pytest.mark.skipif(not os.path.exists(HELD_OPEN), reason="PENSTOCK_HELD_OPEN does not name the library of that name")
def test_a_child_forked_while_a_thread_looks_up_a_mount_reads(file):
    run(f"""{HOLD}
import signal
penstock.default_context()
hold("/proc/self/mountinfo")
thread = threading.Thread(target=penstock.read_into, args=(bytearray(9), {str(file)!r}))
thread.start()
here.recv(1)
child = os.fork()
if child == 0:
    signal.alarm(20)  # ends a child that waits for somebody who is not there
    del os.environ["HELD_OPEN"]
    penstock.read_into(bytearray(9), {str(file)!r})
    os._exit(0)
ended = os.waitpid(child, 0)[1]
here.send(b"x")
thread.join()
assert ended == 0, ended
""", LD_PRELOAD=HELD_OPEN)


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_children_forked_at_random_moments_read(file, seed):
    """More of them are forked by scripts/soak.sh. Nothing but the package is imported here."""
    program = pathlib.Path(__file__).with_name("forking.py")
    done = subprocess.run([sys.executable, program, file, str(seed), "8"], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "8 of 8\n", "")


def test_only_the_main_interpreter_takes_the_package(file):
    """In others its classes and threads would be those of the wrong one, and the process would abort at its end."""
    interpreters = next((name for name in ("_interpreters", "_xxsubinterpreters") if importlib.util.find_spec(name)), None)
    if interpreters is None:
        pytest.skip("this Python has no interpreters beside the main one")
    assert run(f"""
import {interpreters} as interpreters, penstock
other = interpreters.create()
code = "try: import penstock\\nexcept ImportError as error: assert 'main interpreter' in str(error)\\nelse: 1 / 0"
assert not interpreters.run_string(other, code)
target = bytearray(9)
print(penstock.read_into(target, {str(file)!r}).bytes)
""") == "9\n"


def test_a_driver_that_is_not_loaded_is_looked_for_once(tmp_path):
    """Unless a library was loaded since: that may have loaded it."""
    looked_for = f"""
import glob
def looked_for():
    for _ in range(100):
        with penstock._core.RelaxedCaptures():
            pass
    return sum(open(each).read().count("find library=libcuda.so.1") for each in glob.glob({str(tmp_path / "ld*")!r}))
"""
    found = run(f"""
import ctypes, penstock
{looked_for}
first = looked_for()
again = looked_for()
ctypes.CDLL({HELD_OPEN!r} or None)
print(first, again, looked_for() - again <= 1, penstock.gpus() == penstock.gpus())
""", LD_DEBUG="libs", LD_DEBUG_OUTPUT=str(tmp_path / "ld"))
    assert found.split() == ["1", "1", "True", "True"]


@pytest.mark.skipif(not os.path.exists(os.path.join(os.environ.get("PENSTOCK_FAKE_CUDA", ""), "libcuda.so.1")),
                    reason="PENSTOCK_FAKE_CUDA names no folder with a driver")
def test_a_driver_that_the_program_loads_later_is_found():
    assert run("""
import ctypes, penstock
def mode():
    asked = ctypes.c_int(0)
    assert cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(asked)) == 0
    before = asked.value
    assert cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(asked)) == 0
    return before
with penstock._core.RelaxedCaptures():
    pass
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
with penstock._core.RelaxedCaptures():
    inside = mode()
print(inside, mode())
""", LD_LIBRARY_PATH=os.environ["PENSTOCK_FAKE_CUDA"]) == "2 0\n"
