"""Records by kind."""

import array
import fcntl
import mmap
import os
import re
import subprocess
import sys
import threading

import numpy
import pytest

import penstock

WIDTH = 33


@pytest.fixture
def store(tmp_path):
    return tmp_path / "records.bin"


def content(count, seed=1):
    return numpy.random.default_rng(seed).standard_normal((count, WIDTH)).astype(numpy.float32)


def make(store, capacity=1000, **options):
    kinds = penstock.Kinds.create(store, framework="np", **options)
    kinds.add("users", dtype="F32", shape=(WIDTH,), capacity=capacity)
    return kinds


def test_records_are_appended_and_read(store):
    kinds = make(store)
    rows = content(10)
    assert kinds.append("users", rows[:4]) == 0 and kinds.append(1, rows[4:]) == 4
    assert numpy.array_equal(kinds.read("users", 3), rows[3])
    assert numpy.array_equal(kinds.read("users", 3, 5), rows[3:8]) and kinds.report.outcome == "done"
    assert kinds.read("users", 10, 0).shape == (0, WIDTH)
    out = numpy.empty((2, WIDTH), numpy.float32)
    assert kinds.read("users", 8, 2, out) is out and numpy.array_equal(out, rows[8:])
    table = kinds.rows("users")
    assert numpy.array_equal(table[[9, 0, 9]], rows[[9, 0, 9]]) and "users" in repr(table)
    again = penstock.Kinds(store, framework="np")
    assert again["users"].records == 10 and again["users"].capacity == 1000 and again[1] == again["users"]
    assert list(again) == ["users"] and len(again) == 1 and "users" in again and "others" not in again and 1 in again
    assert again.dictionary == str(store) + ".kinds.json" and again.store == str(store) and "users" in repr(again)


def test_many_reads_of_several_kinds_are_one_request(store):
    kinds = make(store)
    kinds.add("bytes", record_bytes=5, capacity=100)
    rows, octets = content(20), os.urandom(50)
    assert kinds.append_all([("users", rows), ("bytes", octets)]) == [0, 0]
    got = kinds.read_all([("users", 7), ("bytes", 3, 2), (kinds["users"], 0, 20)])
    assert numpy.array_equal(got[0], rows[7:8]) and got[1].tobytes() == octets[15:25] and got[1].shape == (2, 5)
    assert numpy.array_equal(got[2], rows) and kinds.report.bytes == 21 * WIDTH * 4 + 10
    out = [numpy.empty((1, WIDTH), numpy.float32), bytearray(5)]
    assert kinds.read_all([("users", 1), ("bytes", 0)], out)[1] is out[1]
    assert numpy.array_equal(out[0], rows[1:2]) and bytes(out[1]) == octets[:5]


def test_records_with_fields_are_types_of_numpy(store):
    fields = numpy.dtype([("id", "<i8"), ("place", "<f4", 3)])
    kinds = penstock.Kinds.create(store, framework="np")
    kinds.add("points", record_bytes=fields.itemsize, capacity=10)
    points = numpy.array([(i, (i, i, -i)) for i in range(4)], fields)
    kinds.append("points", points)
    assert numpy.array_equal(kinds.read("points", 1, 2, dtype=fields), points[1:3])
    assert kinds.read("points", 3, dtype=fields)["id"] == 3
    assert kinds.read("points", 0, 1, dtype="<i4").shape == (1, 5)
    assert kinds.read("points", 0, dtype="F32").shape == kinds.read("points", 0, dtype="f4").shape == (5,)
    with pytest.raises(penstock.InvalidError, match="24 bytes"):
        kinds.read("points", 0, dtype=numpy.dtype("V24"))
    with pytest.raises(penstock.InvalidError, match="'f5' is no type of NumPy"):
        kinds.read("points", 0, dtype="f5")


def test_types_are_named_or_those_of_a_framework(store):
    torch = pytest.importorskip("torch")
    kinds = penstock.Kinds.create(store)
    assert kinds.add("a", dtype=numpy.int16, shape=[2], capacity=1).type == "I16"
    assert kinds.add("x", dtype="f4", shape=(4,), capacity=10).record_bytes == 16 and kinds["x"].type == "F32"
    assert kinds.add("y", dtype="F4", shape=(4,), capacity=10).record_bytes == 2
    assert kinds.add("b", dtype=torch.bfloat16, capacity=1).record_bytes == 2
    kinds.append("b", torch.tensor([1.5], dtype=torch.bfloat16))
    read = kinds.read("b", 0)
    assert isinstance(read, torch.Tensor) and read.dtype == torch.bfloat16 and float(read) == 1.5
    with pytest.raises(penstock.InvalidError, match="elements of F32"):
        kinds.append("b", torch.zeros(2))
    with pytest.raises(penstock.InvalidError, match="no name"):
        kinds.add("c", dtype=numpy.dtype("V3"), capacity=1)


def test_records_of_another_shape_are_refused(store):
    kinds = penstock.Kinds.create(store, framework="np")
    kinds.add("u", dtype="F32", shape=(4,), capacity=10)
    for shape in ((4, 3), (12,), (1, 1, 4)):
        with pytest.raises(penstock.InvalidError) as error:
            kinds.append("u", numpy.ones(shape, numpy.float32))
        assert str(shape) in str(error.value) and "(4,)" in str(error.value)
    with pytest.raises(penstock.InvalidError, match=">f4"):
        kinds.append("u", numpy.ones((1, 4), ">f4"))
    assert kinds["u"].records == 0
    assert kinds.append("u", numpy.ones(4, numpy.float32)) == 0 and kinds.append("u", numpy.ones((3, 4), "f4")) == 1
    assert kinds.append("u", numpy.zeros(32, numpy.uint8)) == 4 and kinds.append("u", b"x" * 16) == 6
    assert kinds.append("u", array.array("f", [1] * 8)) == 7
    with pytest.raises(penstock.InvalidError, match="records: has elements of F64"):
        kinds.append("u", array.array("d", [1] * 4))


def test_out_has_the_type_and_the_shape_in_any_framework(store):
    torch = pytest.importorskip("torch")
    rows = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    with penstock.Kinds.create(store) as kinds:
        kinds.add("u", dtype="F32", shape=(4,), capacity=10)
        kinds.append("u", rows)
    for framework in ("np", "pt"):
        kinds = penstock.Kinds(store, framework=framework)
        table = kinds.rows("u")
        for out in (numpy.empty((3, 4), numpy.int32), torch.empty((3, 4), dtype=torch.int32),
                    numpy.empty((3, 2), numpy.float64)):
            for read in (lambda: kinds.read("u", 0, 3, out), lambda: table.gather([0, 1, 2], out)):
                with pytest.raises(penstock.InvalidError, match="elements of"):
                    read()
        for out in (numpy.empty((4, 3), numpy.float32), torch.empty(12)):
            for read in (lambda: kinds.read("u", 0, 3, out), lambda: table.gather([0, 1, 2], out)):
                with pytest.raises(penstock.InvalidError, match="out: has the shape"):
                    read()
        for out in (numpy.empty((3, 4), numpy.float32), torch.empty(3, 4), bytearray(48), numpy.empty(48, numpy.uint8)):
            assert bytes(memoryview(numpy.asarray(kinds.read("u", 0, 3, out))).cast("B")) == rows.tobytes()
            assert bytes(memoryview(numpy.asarray(table.gather([2, 1, 0], out))).cast("B")) == rows[::-1].tobytes()
        assert kinds.read("u", 2, out=numpy.empty(4, numpy.float32))[1] == 9
        with pytest.raises(penstock.InvalidError, match="device is 'cuda'"):
            kinds.read("u", 0, 3, torch.empty(3, 4), device="cuda")
        assert kinds.read("u", 0, 1, torch.empty(1, 4), device="cpu").shape == (1, 4)


def test_arguments_of_add_are_named(store):
    kinds = penstock.Kinds.create(store, framework="np")
    good = {"dtype": "F32", "shape": (4,), "capacity": 2}
    for wrong, message in (({"capacity": True}, "capacity must be an integer"), ({"shape": None}, "shape must be"),
                           ({"shape": "4"}, "shape must be"), ({"shape": (True,)}, "shape must be"),
                           ({"records": None}, "records must be"), ({"id": 1.0}, "id must be")):
        with pytest.raises(TypeError, match=message):
            kinds.add("x", **{**good, **wrong})
    with pytest.raises(TypeError, match="name must be a str"):
        kinds.add(None, **good)
    for wrong, message in (({"capacity": 0}, "capacity is 0"), ({"shape": (0,)}, "shape: .* no elements"),
                           ({"capacity": None}, "neither capacity nor"), ({"dtype": None}, "neither dtype nor"),
                           ({"dtype": "float33"}, "dtype: .*float33"), ({"capacity": 1 << 70}, "capacity is"),
                           ({"length_bytes": 64}, "both"), ({"start_byte": 0, "start_lba": 0}, "both start_byte"),
                           ({"record_bytes": 5}, "record")):
        with pytest.raises(penstock.InvalidError, match=message) as error:
            kinds.add("x", **{**good, **wrong})
        assert "dictionary" not in str(error.value)
    assert not len(kinds)
    assert kinds.add("a", dtype="float32", shape=4, capacity=numpy.int64(2)).shape == (4,) and kinds["a"].type == "F32"
    assert kinds.add("b", dtype="f32", shape=numpy.array([2, 3]), capacity=2).record_bytes == 24
    assert kinds.keys() == ["a", "b"] and kinds.items() == [("a", kinds["a"]), ("b", kinds["b"])]
    assert kinds.get("a") == kinds["a"] and dict(kinds)["b"].id == 2


def test_numbers_of_records_are_integers(store):
    kinds = make(store)
    kinds.append("users", content(3))
    for wrong in (True, 1.0, None, "1"):
        with pytest.raises(TypeError, match="index must be an integer"):
            kinds.read("users", wrong)
        with pytest.raises(TypeError, match="count must be an integer"):
            kinds.read_all([("users", 0, wrong)])
    for wrong in (True, None, []):
        with pytest.raises(TypeError, match="kind must be a name or an id"):
            kinds.read_all([(1, 0), (wrong, 0)])
    for option, wrong in (("serial", None), ("window", 5), ("window", (1, True)), ("window", (1,))):
        with pytest.raises(TypeError, match=option):
            penstock.Kinds(store, **{option: wrong})
    with pytest.raises(penstock.InvalidError, match="index is 10{30} .*at most"):
        kinds.read("users", 10**30)
    with pytest.raises(penstock.InvalidError, match="index is -1 .*0 or more"):
        kinds.read("users", -1)


def test_frameworks_and_devices_are_looked_for_at_once(store):
    with pytest.raises(penstock.InvalidError, match="tf"):
        penstock.Kinds.create(store, framework="tf")
    with pytest.raises(penstock.InvalidError, match="NumPy has no memory on cuda"):
        penstock.Kinds.create(store, framework="np", device="cuda")
    torch = pytest.importorskip("torch")
    with pytest.raises(penstock.Error, match="there is no cuda:"):
        penstock.Kinds.create(store, device=f"cuda:{torch.cuda.device_count()}")
    assert not store.exists()


def test_another_program_sees_what_is_appended(store):
    kinds = make(store)
    reader = penstock.Kinds(store, framework="np")
    kinds.append("users", content(3))
    assert numpy.array_equal(reader.read("users", 2), content(3)[2])
    kinds.add("new", record_bytes=1, capacity=1)
    assert reader["new"].id == 2
    kinds.remove("new")
    reader.refresh()
    assert "new" not in reader


def test_a_relative_name_stays_that_file(tmp_path, monkeypatch):
    made = {}
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        made[folder] = make("records.bin")
    theirs = (tmp_path / "theirs" / "records.bin").read_bytes()
    made["ours"].append("users", content(2))
    assert (tmp_path / "theirs" / "records.bin").read_bytes() == theirs
    assert numpy.array_equal(made["ours"].read("users", 0, 2), content(2))


def test_writers_take_turns(store):
    make(store, capacity=400)
    failed = []

    def write(number):
        try:
            kinds = penstock.Kinds(store, lock_seconds=60)
            for _ in range(5):
                kinds.append("users", numpy.full((2, WIDTH), number, numpy.float32))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    read = penstock.Kinds(store, framework="np").read("users", 0, 40)
    assert sorted(read[::2, 0]) == sorted(read[1::2, 0]) == [0.0] * 5 + [1.0] * 5 + [2.0] * 5 + [3.0] * 5


def test_what_is_wrong_is_refused(store, tmp_path):
    with pytest.raises(penstock.NotFoundError):
        penstock.Kinds(store)
    kinds = make(store, capacity=3)
    with pytest.raises(penstock.TransferError):
        penstock.Kinds.create(store)
    with pytest.raises(penstock.InvalidError, match="dictionary"):
        penstock.Kinds.create("soft-nvme:disk.img")
    with pytest.raises(penstock.NotFoundError, match="nodir: .*create the folder first"):
        penstock.Kinds.create(store, dictionary=store.parent / "nodir" / "q")
    for wrong in ("nobody", 7):
        for error in (penstock.NotFoundError, KeyError):
            with pytest.raises(error, match=f"no kind {wrong!r} .*'users'"):
                kinds[wrong]
        assert kinds.get(wrong) is None and kinds.get(wrong, 3) == 3
    for wrong in (-1, 1 << 40):
        with pytest.raises(penstock.InvalidError):
            kinds[wrong]
    for wrong in (True, None, 1.0):
        with pytest.raises(TypeError, match="a name or an id"):
            kinds[wrong]
    with pytest.raises(penstock.TransferError, match="room"):
        kinds.append("users", content(4))
    for wrong in (None, [1], 5):
        with pytest.raises(TypeError, match=f"records: {re.escape(repr(wrong))} is no memory"):
            kinds.append("users", wrong)
    for parts in ({"users": content(1)}, ["users"], [("users",)], [("users", content(1), 1)]):
        with pytest.raises(TypeError, match="parts must be pairs .kind, records., and is"):
            kinds.append_all(parts)
    with pytest.raises(penstock.InvalidError, match="whole records"):
        kinds.append("users", b"x" * (WIDTH * 4 + 1))
    with pytest.raises(penstock.InvalidError, match="I32"):
        kinds.append("users", numpy.zeros((1, WIDTH), numpy.int32))
    with pytest.raises(IndexError):
        kinds.read("users", 0)
    for arguments in ({"capacity": 1}, {"record_bytes": 1}, {"dtype": "F31", "capacity": 1},
                      {"record_bytes": 1, "capacity": 1, "start_byte": 0},
                      {"record_bytes": 1, "capacity": 1, "id": 1}, {"record_bytes": 1, "capacity": 1, "id": 0}):
        with pytest.raises(penstock.InvalidError):
            kinds.add("x", **arguments)
    with pytest.raises(TypeError, match="reads must be .kind, index.*'users'"):
        kinds.read_all(["users"])
    with pytest.raises(penstock.InvalidError, match="out"):
        kinds.append("users", content(1)), kinds.read("users", 0, 1, numpy.empty(3, numpy.float32))
    with kinds:
        pass
    assert "closed" in repr(kinds)
    with pytest.raises(penstock.StateError):
        kinds.read("users", 0)


WRITER = """
import sys, numpy, penstock
kinds = penstock.Kinds(sys.argv[1], framework="np")
print("ready", flush=True)
while True:
    first = kinds["users"].records
    kinds.append("users", numpy.arange(first, first + 3, dtype=numpy.float32).repeat(33).reshape(3, 33))
"""


def test_a_killed_program_leaves_whole_records(store):
    make(store, capacity=1_000_000)
    before = 0
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(store)], stdout=subprocess.PIPE)
        assert writer.stdout.readline() == b"ready\n"
        threading.Event().wait(0.03)
        writer.kill()
        writer.communicate()
        kinds = penstock.Kinds(store, framework="np")
        records = kinds["users"].records
        assert records >= before and records % 3 == 0
        assert numpy.array_equal(kinds.read("users", 0, records)[:, WIDTH - 1], numpy.arange(records))
        before = records


def test_ctrl_c_ends_a_read_and_all_that_it_writes(slow_context, large_file, interrupted):
    kinds = penstock.Kinds.create(large_file, framework="np", context=slow_context)
    kinds.add("old", record_bytes=4096, start_byte=0, capacity=1_000_000, records=1_000_000)
    memory = mmap.mmap(-1, 1_000_000 * 4096)  # only what is written to is taken
    interrupted(lambda: kinds.read("old", 0, 1_000_000, memory))
    assert slow_context.statistics()["requests_failed"] == 1, "stopped, and not only told of afterwards"
    memory.close()


def test_ctrl_c_ends_an_append_and_nothing_of_it_counts(slow_context, store, interrupted):
    kinds = penstock.Kinds.create(store, framework="np", context=slow_context)
    kinds.add("new", record_bytes=4096, capacity=60_000)
    interrupted(lambda: kinds.append("new", mmap.mmap(-1, 60_000 * 4096)))
    kinds.refresh()
    assert kinds["new"].records == 0 and slow_context.statistics()["requests_failed"] == 1
    assert kinds.append("new", bytes(4096)) == 0


def test_ctrl_c_ends_the_wait_for_another_writer(store, interrupted):
    kinds = make(store, lock_seconds=10_000)
    with open(f"{kinds.dictionary}.lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        interrupted(lambda: kinds.append("users", content(1)))
    assert kinds.append("users", content(1)) == 0


def test_many_reads_need_room_all_together(store, monkeypatch):
    store.touch()
    os.truncate(store, 50 << 20)
    kinds = penstock.Kinds.create(store, framework="np")
    kinds.add("x", record_bytes=1 << 20, start_byte=0, capacity=50, records=50)
    monkeypatch.setattr(penstock._frameworks, "host_room", lambda: 96 << 20)
    with pytest.raises(penstock.NoMemoryError, match="no room for 104857600 bytes"):
        kinds.read_all([("x", 0, 50), ("x", 0, 50)])
    assert kinds.read("x", 0, 50).shape == (50, 1 << 20)


def test_errors_speak_of_records(store):
    kinds = make(store)
    kinds.append("users", content(3))
    with pytest.raises(penstock.InvalidError, match="2 records of 132 bytes don't fill memory of 5"):
        kinds.read("users", 0, 2, bytearray(5))
    with pytest.raises(penstock.InvalidError, match="elements of float64, and the records of float32"):
        kinds.read("users", 0, 2, numpy.empty((2, WIDTH)))
    with pytest.raises(penstock.InvalidError, match="give at most 1"):
        kinds.add("more", record_bytes=4, capacity=1, records=2)
    with pytest.raises(TypeError, match="device_write must be True or False"):
        penstock.Kinds(store, device_write="yes")


@pytest.mark.parametrize("text, words", [
    ("[]", "must be an object"),
    ('{"schema": "penstock.kinds/1", "kinds": [{"size": [1], "name": "users"}]}', 'kind "users": it has an unknown member'),
])
def test_a_dictionary_that_is_wrong_says_where(store, text, words):
    store.write_bytes(bytes(100))
    (store.parent / (store.name + ".kinds.json")).write_text(text)
    with pytest.raises(penstock.InvalidError, match=words):
        penstock.Kinds(store)


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_records_of_a_kind_that_was_read_before_are_those_that_are_there_now(store, framework):
    if framework == "pt":
        pytest.importorskip("torch")
    with penstock.Kinds.create(store, framework=framework) as kinds:
        kinds.add("a", dtype="F32", shape=(3,), capacity=10)
        kinds.add("b", record_bytes=5, capacity=10)
        kinds.add("c", dtype="I64", capacity=10)
        kinds.append("a", numpy.arange(12, dtype=numpy.float32).reshape(4, 3))
        kinds.append("b", b"abcdefghij")
        kinds.append("c", numpy.arange(4))
        for _ in range(3):
            assert kinds.read("a", 2).tolist() == [6, 7, 8] and kinds.report.bytes == 12
            assert kinds.read("a", 1, 2).tolist() == [[3, 4, 5], [6, 7, 8]]
            assert kinds.read("a", 4, 0).shape == (0, 3)
            assert bytes(kinds.read("b", 1).tolist()) == b"fghij" and kinds.report.bytes == 5
            assert int(kinds.read("c", 3)) == 3 and kinds.read("c", 3).shape == ()
        for wrong in ((4,), (3, 2), (1 << 63,), (1 << 70,)):
            with pytest.raises((penstock.RangeError, penstock.InvalidError)):
                kinds.read("a", *wrong)
        with penstock.Kinds(store) as others:
            others.append("a", numpy.full((1, 3), 7, numpy.float32))
            assert kinds.read("a", 4).tolist() == [7, 7, 7]
            others.remove("a")
            others.add("a", dtype="I32", shape=(3,), capacity=10)
            others.append("a", numpy.arange(3, dtype=numpy.int32))
        kinds.refresh()
        got = kinds.read("a", 0)
        assert got.tolist() == [0, 1, 2] and "int32" in str(got.dtype)
        kinds.remove("b")
        with pytest.raises(KeyError):
            kinds.read("b", 1)
