"""What a process may not have: descriptors and memory."""

import os
import resource
import struct
import subprocess
import sys

import pytest

import penstock
from models import write_model

COUNT = 1500


def run(code, *arguments, limit):
    """Runs it in a process with (what, value) as soft and hard limit."""
    what, value = limit
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          preexec_fn=lambda: resource.setrlimit(what, (value, value)))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def many_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    for number in range(COUNT):
        write_model(folder / f"{number:05}.safetensors", [(f"t{number}", "U8", (10,))],
                    content=lambda size, fill=number % 251: bytes([fill]) * size)
    return folder


@pytest.mark.parametrize("how", [
    "penstock.load_file(folder, framework='np')",
    "penstock.load_file(folder, framework='np', copy=True)",
    "dict(penstock.stream(folder, framework='np'))",
    "dict(penstock.stream(folder, framework='np', copy=False))",
    "(lambda file: {key: file.get_tensor(key) for key in file.keys()})(penstock.safe_open(folder, framework='np'))",
])
def test_a_model_may_have_more_files_than_the_process_has_descriptors(many_files, how):
    pytest.importorskip("numpy")
    code = f"""
import sys, penstock
folder = sys.argv[1]
tensors = {how}
assert all(tensor.tobytes() == bytes([int(name[1:]) % 251]) * 10 for name, tensor in tensors.items())
print(len(tensors))
"""
    assert run(code, many_files, limit=(resource.RLIMIT_NOFILE, 1024)) == f"{COUNT}\n"


def test_more_files_than_descriptors_can_be_opened_one_by_one(many_files):
    pytest.importorskip("numpy")
    code = """
import os, sys, penstock
for name in sorted(os.listdir(sys.argv[1])):
    with penstock.safe_open(os.path.join(sys.argv[1], name), framework="np") as file:
        assert [len(file.get_tensor(key)) for key in file.keys()] == [10]
assert penstock.verify(sys.argv[1])[0].verdict == "unknown"
print("done")
"""
    assert run(code, many_files, limit=(resource.RLIMIT_NOFILE, 1024)) == "done\n"


@pytest.mark.skipif(bool(os.environ.get("PENSTOCK_SANITIZE")), reason="sanitizers take more memory than a limit leaves")
def test_without_memory_it_is_a_memory_error(tmp_path):
    entries = ",".join(f'"{each:06x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for each in range(400_000))
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(entries) + 2) + b"{" + entries.encode() + b"}")
    code = """
import sys, penstock
context = penstock.Context()
for attempt in range(2):
    try:
        penstock.verify(sys.argv[1], context=context)
    except MemoryError as error:
        print(error.code)
"""
    assert run(code, path, limit=(resource.RLIMIT_DATA, 80 << 20)) == "out_of_memory\nout_of_memory\n"


# At most so much more than it has: what threads take for themselves, but no table of 4 GiB.
TABLE_BYTES = 4 << 30
LIMITED = """
import resource, sys, numpy, penstock
penstock.default_context()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30),) * 2)
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table"
    with open(path, "wb") as file:
        file.truncate(TABLE_BYTES - 4096)
        file.seek(0, os.SEEK_END)
        file.write(b"x" * 4096)
    return path


def run_limited(code, *arguments):
    return run(LIMITED + code, *arguments, limit=(resource.RLIMIT_AS, resource.RLIM_INFINITY))


@pytest.mark.skipif(bool(os.environ.get("PENSTOCK_SANITIZE")), reason="sanitizers take more memory than a limit leaves")
def test_a_table_that_there_are_no_addresses_for_is_read(table):
    code = """
rows = penstock.Rows(sys.argv[1], row_bytes=4096, framework="np")
print(bytes(rows[-1][:1]), bytes(rows[[len(rows) - 1, 0]][:, 0]))
"""
    assert run_limited(code, table) == "b'x' b'x\\x00'\n"


@pytest.mark.skipif(bool(os.environ.get("PENSTOCK_SANITIZE")), reason="sanitizers take more memory than a limit leaves")
@pytest.mark.parametrize("how", [
    "penstock.Rows(sys.argv[1], row_bytes=4096, framework='np')[:]",
    "penstock.open(sys.argv[1]).read(framework='np')",
])
def test_results_that_there_is_no_room_for_are_memory_errors(table, how):
    assert run_limited(f"""
try:
    {how}
except penstock.NoMemoryError as error:
    print(error.code)
""", table) == "out_of_memory\n"


def test_what_the_system_or_a_control_group_has_no_room_for_is_refused(tmp_path, monkeypatch):
    size_bytes = (64 << 20) + 1  # it is not asked about less, which takes less time than to ask
    write_model(tmp_path / "m.safetensors", [("t", "U8", (size_bytes,)), ("u", "U8", (2 << 20,))], content=None)
    asked = []
    monkeypatch.setattr(penstock._core, "available_memory_bytes", lambda: asked.append(1) or 1 << 20)
    with pytest.raises(penstock.NoMemoryError, match=f"no room for {size_bytes} bytes in memory: 1048576 are available"):
        penstock.load_file(tmp_path / "m.safetensors", framework="np", copy=True, select="t")
    asked.clear()
    penstock.load_file(tmp_path / "m.safetensors", framework="np", copy=True, select="u")
    with penstock.open(tmp_path / "m.safetensors") as store:
        store.read(0, 8192, framework="np")
    assert not asked


@pytest.mark.skipif(bool(os.environ.get("PENSTOCK_SANITIZE")), reason="sanitizers take more memory than a limit leaves")
def test_cold_rows_go_in_shorter_turns_where_memory_for_all_is_not_there(tmp_path):
    rows, row_bytes = 20_000, 10_000
    path = tmp_path / "table"
    with open(path, "wb") as file:
        for number in range(rows):
            file.write(number.to_bytes(4, "little") * (row_bytes // 4))
    code = """
import resource, sys, numpy, penstock
rows, row_bytes = int(sys.argv[2]), int(sys.argv[3])
table = penstock.Rows(sys.argv[1], row_bytes=row_bytes, framework="np", mapping=False)
asked = numpy.repeat(numpy.arange(0, rows, 1), 2)
out = numpy.empty((len(asked), row_bytes), numpy.uint8)
table.gather([0, 0, 5, 5], out[:4])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + rows * row_bytes * 3 // 4, resource.RLIM_INFINITY))
table.gather(asked, out)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
print((out.view(numpy.uint32) == asked[:, None]).all())
"""
    assert run(code, path, rows, row_bytes, limit=(resource.RLIMIT_AS, resource.RLIM_INFINITY)) == "True\n"
