"""penstock tune, and what load and write make of its file. Behaviour, not speed."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import unittest

import schema
from tool import PROMPTLY, TOOL, ToolTest, environment, wait_until

MIB = 1 << 20
FAKE_CUDA = os.environ.get("PENSTOCK_FAKE_CUDA", "")


class TuneTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.tunings = self.folder / "config" / "tuning.json"

    def run_tool(self, *arguments, env=None, **how):
        return super().run_tool(*arguments, env={"PENSTOCK_TUNING": str(self.tunings), **(env or {})}, **how)

    def keep(self, path, options, domain="host", **how):
        """A tuning for a path, as if one had been found."""
        key = self.json_of("tune", path, "--to", domain, "--forget", **how)["for"]
        kept = {"for": key, "options": options, "when": "2026-01-31T12:00:00Z", "version": "0.1.0", "cached": None,
                "cold": None}
        self.tunings.parent.mkdir(exist_ok=True)
        self.tunings.write_text(json.dumps({"schema": "penstock.tuning/1", "tunings": [kept]}))
        schema.check(json.loads(self.tunings.read_text()), "tuning")


class Tune(TuneTest):
    def test_measures_and_tells_what_it_tried(self):
        path = self.file("data", os.urandom(4 * MIB + 17))
        result = self.json_of("tune", path, "--seconds", 1.5, "--dry-run")
        self.assertTrue(result["search"]["trials"])
        self.assertEqual(result["search"]["bytes"] % MIB, 0)
        self.assertTrue(result["search"]["cached"] or result["search"]["cold"])
        self.assertEqual((result["for"]["memory"], result["file"]), ("host", str(self.tunings)))
        self.assertEqual((result["written"], self.tunings.exists()), (False, False))
        self.keep(path, {"lanes": 1})
        text = self.run_tool("tune", path, "--seconds", 0.5, "--dry-run").stdout
        for word in [b"defaults", b"cold", b"noise", b"tried", b"lanes", b"nothing was written", b"2026-01-31"]:
            self.assertIn(word, text)

    def test_what_is_surely_better_is_kept_used_and_forgotten(self):
        slow_calls = os.environ.get("PENSTOCK_SLOW_CALLS")
        if os.environ.get("PENSTOCK_SANITIZE") or not slow_calls:
            self.skipTest("needs PENSTOCK_SLOW_CALLS, the library that makes calls slow, and no sanitizer")
        path = self.file("data", os.urandom(32 * MIB))
        slow = {"LD_PRELOAD": slow_calls, "PENSTOCK_ENGINE": "posix"}
        for _ in range(4):  # others on the machine may hide what is better for a while
            result = self.json_of("tune", path, "--seconds", 3, env=slow)
            if result["search"]["better"]:
                break
        if not result["search"]["better"] and result["search"]["noise"] > 0.2:
            self.skipTest(f"the machine is too busy to measure on: noise {result['search']['noise']:.2f}")
        self.assertIs(result["search"]["better"], True, result)
        self.assertTrue(result["search"]["options"])
        self.assertIs(result["written"], True)
        kept = json.loads(self.tunings.read_text())
        schema.check(kept, "tuning")
        self.assertEqual(kept["tunings"][0]["options"], result["search"]["options"])
        self.assertEqual(kept["tunings"][0]["for"], result["for"])
        self.assertEqual(self.json_of("load", path, "--verify")["tuning"], str(self.tunings))

        self.assertIs(self.json_of("tune", path, "--forget")["forgotten"], True)
        self.assertFalse(self.tunings.exists())
        self.assertIsNone(self.json_of("load", path)["tuning"])
        self.assertIs(self.json_of("tune", path, "--forget")["forgotten"], False)

    def test_a_person_sees_it_work(self):
        path = self.file("data", os.urandom(4 * MIB))
        text, code = self.on_terminal(60, "tune", path, "--seconds", 1, "--dry-run")
        self.assertEqual(code, 0, text)
        self.assertIn(": measuring", text)
        self.assertTrue(all(len(line) <= 60 for line in text.replace("\r", "\n").split("\n")), text)

    def test_a_file_of_tunings_may_be_named(self):
        path = self.file("data", b"x" * MIB)
        self.keep(path, {"lanes": 1})
        other = self.folder / "other.json"
        self.tunings.rename(other)
        self.assertIs(self.json_of("tune", path, "--forget")["forgotten"], False)
        self.assertIn(str(other).encode(), self.run_tool("tune", path, "--forget", "--file", other).stdout)
        self.assertFalse(other.exists())

    def test_a_scratch_file_is_never_seen_to_stay(self):
        self.file("data", b"x")
        for place in [self.folder, self.folder / "data"]:
            result = self.json_of("tune", place, "--scratch", "--size", "2MiB", "--seconds", 0.3, "--dry-run")
            self.assertIn(result["search"]["bytes"], [MIB, 2 * MIB])  # a slow machine reads less in the time
            self.assertEqual(self.names(), ["data"])

    def test_interruption_leaves_nothing(self):
        for signal_number in [signal.SIGINT, signal.SIGTERM]:
            process = self.start("tune", self.folder, "--scratch", "--size", "64MiB", "--seconds", 600, "--file",
                                 self.tunings)
            wait_until(lambda: any(".penstock-scratch-" in name for name in open_files(process.pid)))
            code, _, stderr, seconds = self.interrupt(process, signal_number)
            self.assertEqual((code, stderr), (130, b"penstock: interrupted\n"))
            self.assertLess(seconds, PROMPTLY)
            self.assertEqual(self.names(), [])

    def test_refuses_what_it_cannot_do(self):
        small = self.file("small", b"x" * 1000)
        self.assertIn("small", self.fails("invalid_argument", 2, "tune", small)["message"])
        self.fails("not_found", 3, "tune", self.folder / "missing")
        self.fails("not_found", 3, "tune", self.folder / "no" / "folder", "--scratch")
        self.fails("is_directory", 1, "tune", self.folder)
        self.fails("invalid_argument", 2, "tune", small, "--to", "mars")
        self.fails("invalid_argument", 2, "tune", small, "--seconds", "0")
        self.fails("invalid_argument", 2, "tune", small, "--forget", "--dry-run")
        self.fails("invalid_argument", 2, "tune", self.file("data", b"x" * MIB), env={"PENSTOCK_TUNING": ""})
        self.fails("out_of_memory", 5, "tune", self.folder, "--scratch", "--size", "1000TiB")


class Use(TuneTest):
    def test_load_and_write_name_the_file(self):
        path = self.file("data", os.urandom(MIB))
        self.keep(path, {"lanes": 1, "storage_chunk_bytes": 65536})
        self.assertEqual(self.json_of("load", path, "--verify")["tuning"], str(self.tunings))
        copied = self.json_of("write", path, self.folder / "copy", "--verify")
        self.assertEqual((copied["tuning"], copied["verified"]), (str(self.tunings), True))
        for command in [["load", path], ["write", path, self.folder / "copy"]]:
            self.assertIn(str(self.tunings).encode(), self.run_tool(*command).stdout)

    def test_what_is_said_explicitly_wins(self):
        path = self.file("data", os.urandom(MIB))
        self.keep(path, {"lanes": 1})
        self.assertIsNone(self.json_of("load", path, "--no-tuning")["tuning"])
        self.assertIsNone(self.json_of("load", path, "--lanes", 2)["tuning"])
        self.assertIsNone(self.json_of("load", path, "--options", '{"lanes": 3}')["tuning"])
        self.assertIsNone(self.json_of("load", path, env={"PENSTOCK_TUNING": ""})["tuning"])
        self.assertIsNotNone(self.json_of("load", path, "--engine", "posix")["tuning"])

    def test_the_home_folder_is_looked_into(self):
        path = self.file("data", os.urandom(MIB))
        self.keep(path, {"lanes": 1})
        home = self.folder / "home"
        (home / ".config").mkdir(parents=True)
        self.tunings.parent.rename(home / ".config" / "penstock")
        at_home = environment(HOME=str(home))
        for name in ["PENSTOCK_TUNING", "XDG_CONFIG_HOME"]:
            at_home.pop(name, None)
        done = subprocess.run([TOOL, "load", path, "--json"], capture_output=True, env=at_home)
        self.assertEqual(json.loads(done.stdout)["tuning"], str(home / ".config" / "penstock" / "tuning.json"))

    def test_other_memory_and_other_file_systems_have_their_own(self):
        path = self.file("data", os.urandom(MIB))
        self.keep(path, {"lanes": 1}, domain="pinned")
        self.assertIsNone(self.json_of("load", path)["tuning"])
        self.keep(path, {"lanes": 1})
        elsewhere = self.mount("size=8m")
        (elsewhere / "data").write_bytes(b"x" * MIB)
        self.assertIsNone(self.json_of("load", elsewhere / "data")["tuning"])
        self.assertIsNone(self.json_of("load", path, elsewhere / "data")["tuning"])
        self.assertIsNotNone(self.json_of("load", path, path)["tuning"])

    def test_a_broken_file_is_named_and_can_be_passed_by(self):
        path = self.file("data", b"x" * MIB)
        self.tunings.parent.mkdir()
        for broken in ["", "{", "[]", '{"schema": "penstock.tuning/1", "tunings": [{}]}', " " * (MIB + 1)]:
            self.tunings.write_text(broken)
            for command in [["load", path], ["write", path, self.folder / "copy"], ["tune", path],
                            ["tune", path, "--forget"]]:
                error = self.fails("invalid_argument", 2, *command)
                self.assertIn(str(self.tunings), error["message"])
                self.assertIn(f"rm '{self.tunings}'", error["hint"])
            self.assertIsNone(self.json_of("load", path, "--no-tuning")["tuning"])
            self.assertEqual(self.tunings.read_text(), broken)


class Gpu(TuneTest):
    def setUp(self):
        super().setUp()
        if not (pathlib.Path(FAKE_CUDA) / "libcuda.so.1").exists():
            self.skipTest("PENSTOCK_FAKE_CUDA does not name the folder of the fake driver")
        self.env = {"LD_LIBRARY_PATH": FAKE_CUDA, "CUDA_VISIBLE_DEVICES": "0,1"}

    def test_its_name_is_what_counts(self):
        path = self.file("data", os.urandom(4 * MIB))
        result = self.json_of("tune", path, "--to", "cuda:0", "--seconds", 0.5, "--dry-run", env=self.env)
        self.assertTrue(result["search"]["trials"])
        self.assertNotIn(result["for"]["memory"], ["host", "cuda:0"])
        self.keep(path, {"staging_slot_bytes": 65536}, domain="cuda:0", env=self.env)
        loaded = self.json_of("load", path, "--to", "cuda:0", "--verify", env=self.env)
        self.assertEqual((loaded["tuning"], loaded["verified"]), (str(self.tunings), True))
        # The fake's second GPU has another name.
        self.assertIsNone(self.json_of("load", path, "--to", "cuda:1", env=self.env)["tuning"])
        swapped = {**self.env, "CUDA_VISIBLE_DEVICES": "1,0"}
        self.assertEqual(self.json_of("load", path, "--to", "cuda:1", env=swapped)["tuning"], str(self.tunings))
        written = self.json_of("write", path, self.folder / "copy", "--from", "cuda:0", "--verify", env=self.env)
        self.assertEqual(written["tuning"], str(self.tunings))
        self.assertIsNone(self.json_of("load", path, env=self.env)["tuning"])

    def test_none_there_is_an_error_of_its_own(self):
        path = self.file("data", os.urandom(MIB))
        self.fails("no_device", 1, "tune", path, "--to", "cuda:7", env=self.env)
        self.keep(path, {"lanes": 1}, env=self.env)
        self.fails("no_device", 1, "load", path, "--to", "cuda:7", env=self.env)


def open_files(process):
    """The names of what a process has open."""
    names = []
    for link in pathlib.Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            names.append(os.readlink(link))
    return names


if __name__ == "__main__":
    unittest.main(verbosity=2)
