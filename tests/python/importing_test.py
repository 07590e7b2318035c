"""What importing costs, and what happens around a fork."""

import os
import pathlib
import subprocess
import sys

import pytest

import penstock


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
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


def test_a_context_starts_no_thread_before_it_moves_bytes():
    assert run("""
import os, penstock
context = penstock.Context()
print(len(os.listdir("/proc/self/task")))
""") == "1\n"


def test_the_version_is_that_of_the_library():
    project = pathlib.Path(__file__).resolve().parents[2] / "bindings" / "python" / "pyproject.toml"
    assert f'version = "{penstock.__version__}"' in project.read_text().splitlines()


def in_child(check):
    child = os.fork()
    if child == 0:
        try:
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


def test_a_forked_child_is_refused_the_context_of_its_parent(file):
    with penstock.Context() as context:
        context.read_into(bytearray(1 << 20), file)

        def check():
            with pytest.raises(penstock.StateError) as caught:
                context.read_into(bytearray(1 << 20), file)
            assert caught.value.code == "closed"

        assert in_child(check) == 0
        context.read_into(bytearray(1 << 20), file)


@pytest.mark.parametrize("how", ["reading = start()", "daemon = threading.Thread(target=read, daemon=True)"])
def test_a_process_may_end_while_a_read_runs(large_file, how):
    run(f"""
import mmap, penstock, sys, threading, time, types
context = penstock.Context(engine="posix", lanes=1, storage_chunk_bytes=4096, operations_in_flight=1)
target = mmap.mmap(-1, 1 << 30)
path = {str(large_file)!r}
start = lambda: context._start(target, path, 0, None, None, None, True)
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
