"""penstock engines, penstock doctor, help and usage, from the outside."""

import os
import subprocess
import unittest

from tool import ToolTest, refuse_io_uring

MIB = 1 << 20
COMMANDS = ["load", "write", "inspect", "verify", "engines", "doctor", "tune", "nvme", "sample"]


class Usage(ToolTest):
    def test_version_and_help(self):
        self.assertRegex(self.run_tool("--version").stdout, rb"^penstock \d+\.\d+\.\d+\n$")
        text = self.run_tool("--help")
        self.assertEqual(text.returncode, 0)
        for command in COMMANDS:
            self.assertIn(command.encode(), text.stdout)
            done = self.run_tool(command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn(f"penstock {command}".encode(), done.stdout)
            self.assertIn(b"Examples:", done.stdout)

    def test_mistakes_are_named(self):
        self.assertIn("warp", self.fails("invalid_argument", 2, "warp")["message"])
        self.assertIn("--warp", self.fails("invalid_argument", 2, "engines", "--warp")["message"])
        self.assertIn("penstock load --help", self.fails("invalid_argument", 2, "load")["hint"])
        self.fails("invalid_argument", 2)
        self.fails("invalid_argument", 2, "engines", "surplus")

    def test_output_that_nobody_takes_is_a_failure(self):
        reader, writer = os.pipe()
        os.close(reader)
        for arguments in [["engines"], ["doctor"], ["--help"], ["engines", "--json"]]:
            done = self.run_tool(*arguments, stdout=writer)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn(b"standard output", done.stderr)
        os.close(writer)
        with open("/dev/full", "wb") as full:
            self.assertEqual(self.run_tool("engines", stdout=full).returncode, 1)


class Engines(ToolTest):
    def test_are_listed_with_a_reason_where_they_fail(self):
        engines = {engine["name"]: engine for engine in self.json_of("engines")["engines"]}
        self.assertTrue(engines["posix"]["available"])
        self.assertIn("uring", engines)
        for engine in engines.values():
            self.assertTrue(engine["summary"])
            self.assertTrue(engine["available"] or engine["reason"], engine)

    def test_are_marked_as_the_locale_allows(self):
        self.assertIn("✓ posix".encode(), self.run_tool("engines", env={"LC_ALL": "C.UTF-8"}).stdout)
        plain = self.run_tool("engines", env={"LC_ALL": "C"}).stdout
        self.assertIn(b"ok posix", plain)
        self.assertTrue(plain.isascii())

    def test_are_listed_whatever_the_environment_wants(self):
        result = self.json_of("engines", env={"PENSTOCK_ENGINE": "warp"})
        self.assertTrue(result["engines"])


class WithoutIoUring(ToolTest):
    def setUp(self):
        super().setUp()
        try:
            self.run_tool("--version", preexec_fn=refuse_io_uring)
        except subprocess.SubprocessError as error:
            self.skipTest(f"no seccomp filter can be installed here: {error}")

    def test_posix_serves_and_everyone_says_why(self):
        engines = {each["name"]: each for each in self.json_of("engines", preexec_fn=refuse_io_uring)["engines"]}
        self.assertFalse(engines["uring"]["available"])
        self.assertTrue(engines["uring"]["reason"])
        self.assertTrue(engines["uring"]["remedy"])
        path = self.file("data", os.urandom(MIB))
        self.assertEqual(self.json_of("load", path, "--verify", preexec_fn=refuse_io_uring)["engine"], "posix")
        error = self.fails("engine_unavailable", 1, "load", path, "--engine", "uring", preexec_fn=refuse_io_uring)
        self.assertTrue(error["hint"])
        findings = self.json_of("doctor", path, preexec_fn=refuse_io_uring)["findings"]
        self.assertIn("uring", findings[0]["what"])


class Doctor(ToolTest):
    def test_tells_about_the_machine(self):
        result = self.json_of("doctor")
        self.assertIsNone(result["store"])
        self.assertEqual(result["machine"]["kernel"], os.uname().release)
        self.assertLessEqual(result["machine"]["usable_cpus"], len(os.sched_getaffinity(0)))
        self.assertGreater(result["options"]["lanes"], 0)
        self.assertEqual(self.json_of("doctor", "--lanes", 3)["options"]["lanes"], 3)

    def test_tells_about_a_file(self):
        path = self.file("data", os.urandom(5 * MIB))
        store = self.json_of("doctor", path)["store"]
        self.assertEqual(store["size_bytes"], 5 * MIB)
        self.assertEqual(store["sample"]["bytes"], 5 * MIB)
        self.assertTrue(store["explanation"])
        self.assertIsNone(self.json_of("doctor", self.file("empty"))["store"]["sample"])

    def test_measures_for_a_second_at_most(self):
        path = self.sparse_file("sparse", 1 << 30)
        options = '{"storage_chunk_bytes": 4096, "operations_in_flight": 1}'
        sample = self.json_of("doctor", path, "--engine", "posix", "--lanes", 1, "--options", options)["store"]["sample"]
        self.assertLessEqual(sample["bytes"], 256 * MIB)
        self.assertGreater(sample["bytes"], 0)
        self.assertLess(sample["seconds"], 2)

    def test_says_the_verdict_first(self):
        path = self.file("data", os.urandom(MIB))
        first_line = self.run_tool("doctor", path).stdout.decode().splitlines()[0]
        self.assertIn("is read at", first_line)
        self.assertIn(str(path), first_line)

    def test_names_what_stands_in_the_way(self):
        result = self.json_of("doctor", env={"PENSTOCK_ENGINE": "warp"})
        self.assertIn("PENSTOCK_ENGINE=warp", result["findings"][0]["what"])
        self.fails("not_found", 3, "doctor", self.folder / "missing")
        self.fails("is_directory", 1, "doctor", self.folder)

    def test_fits_a_narrow_terminal(self):
        text, exit_code = self.on_terminal(40, "doctor", self.file("data", b"x" * 10000))
        self.assertEqual(exit_code, 0, text)
        self.assertNotIn("\x1b", text)
        for line in text.split("\r\n"):
            self.assertLessEqual(len(line), 40, line)


if __name__ == "__main__":
    unittest.main(verbosity=2)
