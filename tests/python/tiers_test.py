"""Files on disks of different speed."""

import os

import numpy
import pytest

import penstock


@pytest.fixture
def folders(tmp_path):
    for name in ("fast", "slow"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def tiers(folders):
    made = penstock.Tiers.create({"fast": folders / "fast", "slow": {"path": folders / "slow", "high_water": 0.95}},
                                 {"least_stay_seconds": 0}, catalog=folders / "tiers.db")
    with made:
        yield made


def put(folders, tiers, name="data.bin", size=300_000):
    """A unit, as it comes from elsewhere."""
    content = os.urandom(size)
    (folders / "source").write_bytes(content)
    tiers.add(folders / "source", name)
    return content


def test_units_are_added_found_and_moved(folders, tiers):
    content = put(folders, tiers, "models/ä b.bin")
    unit = tiers["models/ä b.bin"]
    assert (unit.tier, unit.kind, unit.size_bytes) == ("fast", "file", len(content))
    assert unit.path == str(folders / "fast/models/ä b.bin") == tiers.path_of("models/ä b.bin")
    told = []
    report = tiers.move("models/ä b.bin", "slow", progress=lambda *now: told.append(now))
    assert (report.units, report.bytes, report.failures) == (1, len(content), [])
    assert told and told[-1][0] == "models/ä b.bin" and {each[3] for each in told} <= {"copying", "verifying", "done"}
    assert (folders / "slow/models/ä b.bin").read_bytes() == content and not (folders / "fast/models/ä b.bin").exists()
    assert [each.name for each in tiers.units(page=1)] == ["models/ä b.bin"] and not list(tiers.units(tier="fast"))
    assert [(each.name, each.units) for each in tiers.tiers()] == [("fast", 0), ("slow", 1)]
    assert list(tiers) == ["models/ä b.bin"] and "models/ä b.bin" in tiers and "models/c" not in tiers
    assert tiers.tiers()[1].high_water == 0.95 and tiers.tiers()[0].problem is None
    assert tiers.check(bytes=True).findings == [] and tiers.recover() == []
    assert "penstock" in tiers.to_prometheus() and tiers.catalog == str(folders / "tiers.db") in repr(tiers)


def test_names_of_tiers_are_stores_of_a_context(folders, tiers):
    content = put(folders, tiers)
    with penstock.Context() as context:
        tiers.serve(context)
        memory = bytearray(len(content))
        context.read_into(memory, "tier:data.bin")
        assert memory == content
        tiers.move("data.bin", "slow")
        context.read_into(memory, "tier:data.bin")
        assert memory == content
    tiers.flush()
    assert tiers["data.bin"].accesses >= 1


def test_tensors_are_saved_as_units_and_never_as_files_of_that_name(folders, tiers, monkeypatch):
    monkeypatch.chdir(folders)
    values = {"a": numpy.arange(10_000, dtype=numpy.float32)}
    with penstock.Context() as context:
        with pytest.raises(penstock.NotFoundError, match="names of tiers"):
            penstock.save_file(values, "tier:a.safetensors", context=context)
        tiers.serve(context)
        for packed in (False, True):
            name = f"models/{packed}.safetensors"
            penstock.save_file(values, f"tier:{name}", packed=packed, context=context)
            assert tiers[name].tier == "fast" and (folders / "fast" / name).stat().st_size == tiers[name].size_bytes
            loaded = penstock.load_file(f"tier:{name}", framework="np", context=context)
            assert (loaded["a"] == values["a"]).all()
    assert not [each for each in os.listdir() if each.startswith("tier:")]


def test_plans_have_reasons_and_are_carried_out(folders, tiers):
    put(folders, tiers)
    assert tiers.place("1MiB").tier == "fast" and tiers.place(5).reason
    assert tiers.why("data.bin").reason
    tiers.pin("data.bin", "slow")
    plan = tiers.plan()
    assert [(each.name, each.source, each.target) for each in plan] == [("data.bin", "fast", "slow")] and plan[0].reason
    assert tiers.rebalance().units == 1 and tiers["data.bin"].tier == tiers["data.bin"].pinned == "slow"
    assert tiers.plan() == [] and tiers.auto_tier("data.bin").tier == "slow"
    tiers.pin("data.bin", None)
    assert tiers["data.bin"].pinned is None


def test_an_exception_ends_a_move_and_nothing_is_lost(folders, tiers):
    content = put(folders, tiers, size=5_000_000)

    def stop(*now):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        tiers.move("data.bin", "slow", progress=stop)
    assert open(tiers.path_of("data.bin"), "rb").read() == content
    assert tiers.move("data.bin", "slow").units == 1 or tiers["data.bin"].tier == "slow"
    assert open(tiers.path_of("data.bin"), "rb").read() == content


def test_what_lies_there_is_taken_in_and_forgotten(folders, tiers):
    (folders / "slow/old.bin").write_bytes(b"old")
    (folders / "slow/new").mkdir()
    (folders / "slow/new/a").write_bytes(b"a")
    tiers.import_unit("old.bin", checksum=True)
    assert tiers["old.bin"].tier == "slow" and tiers["old.bin"].checksum
    tiers.import_unit("new")
    assert tiers["new"].kind == "directory" and tiers.path_of("new/a") == str(folders / "slow/new/a")
    tiers.forget("old.bin")
    assert (folders / "slow/old.bin").exists()
    assert tiers.import_all("slow").units == 1
    tiers.remove("old.bin")
    assert not (folders / "slow/old.bin").exists()


def test_movers_are_started_held_and_stopped(folders, tiers):
    assert tiers.paused is False
    tiers.paused = True
    assert tiers.paused is True
    with pytest.raises(penstock.Error, match="paused"):
        tiers.rebalance()
    tiers.paused = False
    tiers.start_mover(3600, bytes_per_second="100MB")
    tiers.stop_mover()


def test_what_is_wrong_is_refused(folders, tiers):
    with pytest.raises(KeyError) as caught:
        tiers["nothing"]
    assert caught.value.code == "not_found"
    with pytest.raises(penstock.TransferError):
        penstock.Tiers.create({"a": folders / "fast"}, catalog=folders / "tiers.db")
    with pytest.raises(penstock.Error):
        penstock.Tiers(folders / "none.db")
    with pytest.raises(penstock.InvalidError):
        penstock.Tiers.create(policy={"cooling": 1})
    with pytest.raises(penstock.InvalidError):
        penstock.Tiers.create({"a": {"path": folders / "fast", "wet": 1}}, catalog=folders / "other.db")
    with pytest.raises(penstock.InvalidError):
        next(tiers.units(page=0))
    with pytest.raises(TypeError, match="tiers must be a dict by name"):
        penstock.Tiers.create(["a"], catalog=folders / "other.db")
    with pytest.raises(penstock.InvalidError, match="size is 18446744073709551616"):
        tiers.place(1 << 64)
    with pytest.raises(penstock.InvalidError, match="bytes_per_second is"):
        tiers.rebalance(bytes_per_second=1 << 64)
    with pytest.raises(TypeError, match="wait_seconds must be a number of seconds"):
        penstock.Tiers(folders / "tiers.db", wait_seconds="1")
    with pytest.raises(penstock.Error):
        tiers.add_tier("inside", folders / "fast/inside")
    (folders / "third").mkdir()
    for options, place in (({"behind": "fast"}, 1), ({"first": True}, 0), ({}, 2)):
        tiers.add_tier("third", folders / "third", **options)
        assert [each.name for each in tiers.tiers()].index("third") == place
        tiers.remove_tier("third")
    tiers.close()
    with pytest.raises(penstock.StateError):
        tiers.tiers()
    assert "closed" in repr(tiers)


def test_a_capacity_is_less_than_2_to_the_63(folders, tiers):
    (folders / "more").mkdir()
    for capacity in (2**63, 2**64 - 1):
        with pytest.raises(ValueError):
            tiers.add_tier("more", {"path": folders / "more", "capacity_bytes": capacity})
    assert len(tiers.tiers()) == 2


def test_a_uri_is_the_unit_of_that_very_name_first(folders, tiers):
    content = {name: put(folders, tiers, name, 100) for name in ("A", "%41", "50%.bin", "a b")}
    with penstock.Context() as context:
        tiers.serve(context)
        for uri, name in [("A", "A"), ("%41", "%41"), ("./%2541", "%41"), ("50%.bin", "50%.bin"),
                          ("50%25.bin", "50%.bin"), ("a%20b", "a b")]:
            memory = bytearray(100)
            context.read_into(memory, f"tier:{uri}")
            assert memory == content[name], uri


def test_kinds_of_records_lie_on_tiers(folders, tiers):
    put(folders, tiers, "records.bin", 4096)
    with penstock.Context() as context:
        tiers.serve(context)
        options = {"dictionary": folders / "records.json", "framework": "np", "context": context}
        kinds = penstock.Kinds.create("tier:records.bin", **options)
        kinds.add("users", dtype="F32", shape=(4,), capacity=1000)
        rows = numpy.arange(40, dtype=numpy.float32).reshape(10, 4)
        reader = penstock.Kinds("tier:records.bin", **options)
        for begin, tier in ((0, "slow"), (5, "fast")):
            assert kinds.append("users", rows[begin:begin + 5]) == begin
            assert numpy.array_equal(reader.read("users", 0, begin + 5), rows[:begin + 5])
            tiers.move("records.bin", tier)
            assert tiers["records.bin"].tier == tier
            assert numpy.array_equal(reader.read("users", 0, begin + 5), rows[:begin + 5])
        assert numpy.array_equal(penstock.Kinds("tier:records.bin", **options).rows("users")[[9, 0]], rows[[9, 0]])
    assert tiers.check(bytes=True).findings == []


def test_names_load_when_the_tiers_are_closed(folders, tiers):
    content = put(folders, tiers)
    with penstock.Context() as context:
        tiers.serve(context)
        tiers.close()
        target = bytearray(len(content))
        context.read_into(target, "tier:data.bin")
        assert target == content
