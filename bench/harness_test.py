"""The judge of the benchmark is itself judged: races, verdicts, and the page cache."""

import copy
import ctypes
import json
import os
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

import gpu_rows
import harness
import host_rows
import model_rows
import run
import table

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
from peers import layouts, loaders  # noqa: E402
from peers import run as peers  # noqa: E402


def samples(*speeds):
    return [{"ours": {"bytes": ours, "seconds": 1}, "peer": {"bytes": peer, "seconds": 1}} for ours, peer in speeds]


COMPARISON = {"title": "a load", "ours": "ours", "peer": "peer", "target": 0.9, "lower_is_better": False,
              "measure": harness.bytes_per_second}
STEADY_AND_FAST = samples((95, 100), (96, 101), (60, 100))
STEADY_AND_SLOW = samples((80, 100), (80, 101), (99, 100))
UNSTEADY = samples((95, 100), (99, 110), (95, 90))


def verdict(*attempts):
    supply = iter(attempts)
    rows, _ = harness.decide(lambda: next(supply), [COMPARISON])
    return rows[0]["verdict"], rows[0]["tries"]


class Verdicts(unittest.TestCase):
    def test_the_median_round_decides_not_the_best_or_the_worst(self):
        self.assertEqual(verdict(STEADY_AND_FAST), ("met", 1))
        self.assertEqual(verdict(STEADY_AND_SLOW), ("missed", 1))

    def test_an_unsteady_peer_is_raced_once_more(self):
        self.assertEqual(verdict(UNSTEADY, STEADY_AND_SLOW), ("missed", 2))

    def test_a_peer_unsteady_twice_leaves_the_row_open(self):
        self.assertEqual(verdict(UNSTEADY, UNSTEADY), ("open", 2))

    def test_a_cost_must_not_exceed_its_target(self):
        comparison = {**COMPARISON, "lower_is_better": True, "target": 1.15}
        self.assertTrue(harness.compare(samples((110, 100)), comparison)["met"])
        self.assertFalse(harness.compare(samples((120, 100)), comparison)["met"])

    def test_quartiles_are_of_the_ratios_of_the_rounds(self):
        ratio = harness.compare(samples((80, 100), (90, 100), (100, 100), (110, 100), (120, 100)), COMPARISON)["ratio"]
        self.assertEqual([ratio["p25"], ratio["median"], ratio["p75"]], [0.9, 1.0, 1.1])


class Races(unittest.TestCase):
    def test_every_contender_is_first_in_turn_and_follows_every_other(self):
        order = []
        contenders = {name: lambda n=name: order.append(n) or {} for name in "abc"}
        rounds = harness.race(contenders, 6)
        self.assertEqual("".join(order), "abcbcacab" "cbaacbbac")
        self.assertEqual([sorted(result) for result in rounds], [["a", "b", "c"]] * 6)

    def test_turns_of_a_round_are_joined(self):
        order = []

        def contender(name):
            order.append(name)
            count = len(order)
            return {"bytes": count, "seconds": 1, "loads": count, "left_in_cache": 10 - count, "p50_seconds": count,
                    "note": count}

        rounds = harness.race({name: lambda n=name: contender(n) for name in "ab"}, 1, turns=3)
        self.assertEqual("".join(order), "abbaba")
        self.assertEqual(rounds, [{
            "a": {"bytes": 11, "seconds": 3, "loads": 11, "left_in_cache": 9, "p50_seconds": 4, "note": 6},
            "b": {"bytes": 10, "seconds": 3, "loads": 10, "left_in_cache": 8, "p50_seconds": 3, "note": 5}}])

    def test_past_the_deadline_three_rounds_have_to_do(self):
        clock = mock.Mock()
        clock.monotonic.return_value = 0

        def contender():
            clock.monotonic.return_value += 1
            return {}

        with mock.patch.object(harness, "time", clock):
            self.assertEqual(len(harness.race({"a": contender}, 7, deadline=2.5)), 3)
            with self.assertRaisesRegex(harness.OutOfTime, "after 0 rounds"):
                harness.race({"a": contender}, 7, deadline=2.5)
            with self.assertRaisesRegex(harness.OutOfTime, "after 2 rounds"):
                harness.race({"a": contender}, 7, deadline=4.5)
            self.assertEqual(len(harness.race({"a": contender}, 7, deadline=4.5, insist=True)), 3)

    def test_cases_of_a_row_share_what_is_left_of_its_time(self):
        clock = mock.Mock()
        clock.monotonic.return_value = 0
        setup = harness.Setup(mock.Mock(quick=True))
        setup.deadline = 12
        ends = []
        with mock.patch.object(harness, "time", clock):
            for taken in setup.in_equal_shares([1, 7, 4]):
                ends.append(setup.deadline)
                clock.monotonic.return_value += taken
        self.assertEqual(ends, [4, 6.5, 12])
        self.assertEqual(setup.deadline, 12)

    def test_there_is_no_second_race_that_would_end_too_late(self):
        rows, attempts = harness.decide(lambda: UNSTEADY, [COMPARISON], time.monotonic() - 1)
        self.assertEqual((rows[0]["verdict"], len(attempts)), ("open", 1))


class Shares(unittest.TestCase):
    def test_every_row_has_the_seconds_that_it_is_expected_to_take(self):
        for rows in gpu_rows.ROWS, model_rows.ROWS:
            for quick in False, True:
                setup = mock.Mock(quick=quick)
                now = time.monotonic()
                setup.end = run.end_of_rows(setup, rows)
                for place, (_, seconds) in enumerate(rows.values()):
                    later = list(rows.values())[place + 1:]
                    expected = seconds / 3 if quick else seconds
                    self.assertGreaterEqual(run.share_of_time(setup, later) - now, expected - 1e-6)

    def test_without_expectations_there_is_no_end(self):
        self.assertIsNone(run.end_of_rows(mock.Mock(quick=True), host_rows.ROWS, given=5))

    def test_rows_that_are_not_named_take_no_time(self):
        setup = mock.Mock(quick=False)
        with mock.patch("sys.argv", ["run.py", "--models", "--only", "ways,cold"]):
            named = run.parse_arguments().table
        self.assertEqual(list(named), ["ways", "cold"])
        self.assertAlmostEqual(run.end_of_rows(setup, named) - time.monotonic(), 100, delta=1)

    def test_what_is_known_is_kept_after_each_row(self):
        kept = []
        rows = {name: (lambda _: {"rows": []}, 0) for name in "ab"}
        with mock.patch("sys.stderr"):
            run.run_rows(mock.Mock(end=None), rows, lambda results: kept.append(copy.copy(results)))
        self.assertEqual([list(results) for results in kept], [["a"], ["a", "b"]])


class PageCache(unittest.TestCase):
    def test_cold_and_cached_are_what_the_kernel_says(self):
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(os.path.abspath(__file__))) as file:
            if harness.disk_and_file_system(os.path.dirname(file.name))[1] in ("tmpfs", "overlay"):
                self.skipTest("files here can't be evicted")
            file.write(os.urandom(harness.MIB + 1))
            file.flush()
            harness.make_cold(file.name)
            self.assertEqual(harness.resident_bytes(file.name), 0)
            harness.make_cached(file.name)
            self.assertEqual(harness.resident_bytes(file.name), harness.MIB + 1)

    def test_half_a_file_can_be_cached_alone(self):
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(os.path.abspath(__file__))) as file:
            if harness.disk_and_file_system(os.path.dirname(file.name))[1] in ("tmpfs", "overlay"):
                self.skipTest("files here can't be evicted")
            file.write(os.urandom(4 * harness.MIB))
            file.flush()
            harness.make_half_cached(file.name, 2 * harness.MIB)
            self.assertEqual(harness.resident_bytes(file.name, 0, harness.MIB), harness.MIB)
            self.assertEqual(harness.resident_bytes(file.name, harness.MIB, harness.MIB), 0)

    def test_mincore_agrees_with_cachestat(self):
        with open(__file__, "rb") as file:
            file.read()
            size = os.path.getsize(__file__)
            self.assertEqual(harness._resident_by_mincore(file.fileno(), size), size)


class Tables(unittest.TestCase):
    def test_sizes_are_in_binary_units(self):
        self.assertEqual([table.size(64), table.size(4096), table.size(3 << 19), table.size(1 << 30)],
                         ["64 bytes", "4 KiB", "1.5 MiB", "1 GiB"])


def loader():
    seconds = [1.0, 2.0, 3.0]
    return {"version": "1", "setting": {}, "seconds": harness.summary(seconds), "samples": seconds,
            "extra_device": 0, "extra_host": 0, "wrong": []}


def result(rounds, *names, missing=None):
    return {"layout": "dense", "bytes": 4, "files": 1, "rounds": rounds, "loaders": {name: loader() for name in names},
            "missing": missing or {}}


ROUND = {name: {"bytes": 4, "seconds": 2, "cpu_seconds": 1} for name in ("ceiling", "penstock", "another")}


class Peers(unittest.TestCase):
    def test_every_line_of_a_table_has_as_many_cells(self):
        for made in (result({}, "penstock"), result({"cached": [ROUND]}, "penstock", "another"),
                     result({"cached": [ROUND], "cold": [ROUND]}, "penstock", "it did not take part")):
            lines = [line for line in peers.table([made]).splitlines() if line.startswith("|")]
            self.assertGreater(len(lines), 2)
            self.assertEqual(len({line.count("|") for line in lines}), 1, lines)
        self.assertNotIn("|", peers.table([result({}, missing={"penstock": "there is none"})]))

    def test_it_is_said_why_penstock_was_not_measured(self):
        missing = {"penstock": "there is none", "another": "nor that"}
        self.assertIsNone(peers.why_not_ours(result({"cached": [ROUND]}, "penstock")))
        self.assertEqual(peers.why_not_ours(result({}, missing=missing)), "penstock: there is none")
        without_ours = {name: sample for name, sample in ROUND.items() if name != "penstock"}
        self.assertEqual(peers.why_not_ours(result({"cold": [without_ours]}, "another", missing=missing)),
                         "penstock: there is none")

    def test_a_model_is_what_its_index_names(self):
        with tempfile.TemporaryDirectory() as folder:
            with mock.patch.object(layouts, "_dense", lambda size: [layouts._tensors(4, size, "F16")]):
                paths = layouts.make(folder, "sharded", harness.MIB)
            model = os.path.dirname(paths[0])
            os.link(paths[0], os.path.join(model, "another.safetensors"))
            self.assertEqual(peers.model_files(model), paths)
            index = os.path.join(model, "model.safetensors.index.json")
            with open(index, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["metadata"]["total_size"], harness.MIB)
            os.remove(index)
            self.assertEqual(len(peers.model_files(model)), len(paths) + 1)

    def test_settings_are_tried_a_few_times_or_for_a_while(self):
        clock = mock.Mock()
        for pace, loads in ((0.1, 3), (1, 2), (9, 1)):
            clock.monotonic.return_value = 0

            def load(_):
                clock.monotonic.return_value += pace
                return {"seconds": clock.monotonic.return_value}

            program = mock.Mock(ask=mock.Mock(side_effect=load))
            with mock.patch.object(peers, "time", clock):
                self.assertAlmostEqual(peers.Peers.typical_seconds(program), pace * (1 + loads) / 2)
            self.assertEqual(program.ask.call_count, loads)

    def test_tensors_in_a_mapped_file_are_not_the_own_memory_of_a_process(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("there is no numpy")
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(8192))
            file.flush()
            mapped = numpy.memmap(file.name, mode="r")
            tensors = {"mapped": mapped, "a part of it": mapped[4096:], "read": numpy.zeros(5, "uint8")}
            self.assertEqual(loaders.own_bytes(tensors, [file.name]), 5)


class Rows(unittest.TestCase):
    def test_a_llama_has_four_shards_in_the_order_of_its_layers(self):
        for size in (4 << 20, 256 << 20, 16 << 30):
            shards = layouts.LAYOUTS["llama"](size)
            self.assertEqual(len(shards), 4)
            names = [name for shard in shards for name, _, _ in shard]
            self.assertEqual((names[0], names[-1]), ("model.embed_tokens.weight", "lm_head.weight"))
            self.assertEqual(len(set(names)), len(names))
            sizes = [sum(layouts._bytes_of(dtype, shape) for _, dtype, shape in shard) for shard in shards]
            self.assertLess(sum(sizes), size)
            self.assertGreater(sum(sizes), size * 0.8)
            self.assertGreater(min(sizes), sum(sizes) / 10)
        shapes = {name: shape for shard in layouts.LAYOUTS["llama"](16 << 30) for name, _, shape in shard}
        self.assertEqual(shapes["model.embed_tokens.weight"], [128256, 4096])
        self.assertEqual(shapes["model.layers.0.mlp.down_proj.weight"], [4096, 14336])

    def test_a_plain_read_fills_all_of_its_memory(self):
        with tempfile.NamedTemporaryFile() as file:
            content = os.urandom(10_000)
            file.write(content)
            file.flush()
            memory = bytearray(len(content))
            loaders.read_whole(file.name, memoryview(memory))
            self.assertEqual(memory, content)
            with self.assertRaises(OSError):
                loaders.read_whole(file.name, memoryview(bytearray(len(content) + 1)))

    def test_nixl_reads_every_piece_once_with_its_threads(self):
        content = os.urandom((9 << 20) + 5)
        memory = ctypes.create_string_buffer(len(content))
        target = mock.MagicMock()
        target.__len__.return_value = len(content)
        target.data_ptr.return_value, target.get_device.return_value = ctypes.addressof(memory), 0
        agent = FakeNixlAgent()
        api = types.SimpleNamespace(nixl_agent=lambda name, config: agent, nixl_agent_config=lambda backends: backends)
        with mock.patch.dict(sys.modules, {"nixl": types.SimpleNamespace(_api=api), "nixl._api": api}), \
                tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            loader = loaders.Nixl.__new__(loaders.Nixl)
            loader.setting = loaders.Nixl.settings[0]
            loader.start()
            loader.fill(file.name, target)
            self.assertEqual(memory.raw, content)
            self.assertEqual((agent.backend, agent.registered), (("GDS_MT", {"thread_count": "16"}), 0))
            self.assertEqual([length for _, length, _ in agent.pieces], [4 << 20, 4 << 20, (1 << 20) + 5])
            agent.plugins = ["UCX"]
            with self.assertRaisesRegex(ImportError, "GDS_MT"):
                loader.start()


class FakeNixlAgent:
    """What the loader asks of nixl's Python API (1.5), done with pread."""

    name, plugins, registered = "fake", ["GDS_MT"], 0

    def get_plugin_list(self):
        return self.plugins

    def create_backend(self, name, parameters):
        self.backend = (name, parameters)

    def register_memory(self, what, kind=None, backends=()):
        self.registered += 1
        return what

    def deregister_memory(self, what, backends=()):
        self.registered -= 1

    def get_xfer_descs(self, pieces, kind):
        return pieces

    def initialize_xfer(self, operation, to, origin, remote, backends=()):
        assert (operation, remote) == ("READ", self.name)
        self.pieces = origin
        return list(zip(to, origin))

    def transfer(self, handle):
        for (place, length, _), (offset, _, descriptor) in handle:
            ctypes.memmove(place, os.pread(descriptor, length, offset), length)
        return "PROC"

    def check_xfer_state(self, handle):
        return "DONE"

    def release_xfer_handle(self, handle):
        handle.clear()


if __name__ == "__main__":
    unittest.main()
