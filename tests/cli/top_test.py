"""penstock top: what running programs publish, from the outside."""

import json
import os
import pathlib
import re
import signal
import time
import unittest

from tool import SLOW, TOOL, ToolTest, wait_until

MIB = 1 << 20
SHARED = pathlib.Path("/dev/shm")


class Top(ToolTest):
    def setUp(self):
        super().setUp()
        self.name = f"test-{os.getpid()}-{time.monotonic_ns()}"
        self.addCleanup(lambda: [file.unlink() for file in self.files() if file.is_file()])

    def files(self):
        return sorted(SHARED.glob(f"penstock.{self.name}.*"))

    def publish(self):
        """A load that publishes, and takes until it is interrupted."""
        path = self.sparse_file("sparse", 2 << 30)
        process = self.start("load", path, "--options",
                             json.dumps({"publish": self.name, "storage_chunk_bytes": 4096, "operations_in_flight": 1}),
                             *SLOW[:4])
        wait_until(self.files)
        return process

    def processes(self):
        return self.json_of("top", self.name)["processes"]

    def once(self):
        return self.run_tool("top", self.name, "--interval", 0.25).stdout.decode()

    def test_shows_what_a_running_program_moves(self):
        process = self.publish()
        wait_until(lambda: self.processes()[0]["statistics"]["routes"])
        [one] = self.processes()
        self.assertEqual((one["name"], one["pid"], one["command"]), (self.name, process.pid, pathlib.Path(TOOL).name))
        line = rf"^{self.name} {process.pid} {one['command']} [1-9][^\n]*\n  posix "
        wait_until(lambda: re.search(line, self.once()))
        live, code = self.on_terminal(40, "top", self.name, "--interval", "0.25", until="pinned")
        self.assertEqual(code, 0, live)
        self.assertIn(self.name[:20], live)
        self.interrupt(process)
        self.assertEqual(self.files(), [])
        self.fails("not_found", 3, "top", self.name)

    def test_calls_a_stopped_program_silent(self):
        process = self.publish()
        wait_until(lambda: self.processes()[0]["statistics"]["routes"])
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: f" {process.pid} penstock silent" in self.once())
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: "silent" not in self.once())
        self.interrupt(process)

    def test_speaks_prometheus(self):
        process = self.publish()
        wait_until(lambda: self.processes()[0]["statistics"]["routes"])
        text = self.run_tool("top", self.name, "--prometheus").stdout.decode()
        for line in text.splitlines():
            self.assertRegex(line, r'^(# (HELP|TYPE) penstock_\w+ .+|penstock_\w+\{(\w+="[^"]*",?)+\} [0-9.e+-]+)$')
        [moved] = re.findall(r"^penstock_bytes_total\{.*\} ([0-9.e+]+)$", text, re.MULTILINE)
        self.assertGreater(float(moved), 0)
        self.assertIn('quantile="0.99"', text)
        self.interrupt(process)

    def test_removes_what_the_dead_left(self):
        process = self.publish()
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertEqual(len(self.files()), 1)
        self.fails("not_found", 3, "top", self.name)
        self.assertEqual(self.files(), [])

    def test_is_not_fooled_by_what_others_put_there(self):
        strange = SHARED / f"penstock.{self.name}.1.0"
        self.addCleanup(lambda: strange.unlink(missing_ok=True))
        strange.mkdir()
        self.fails("not_found", 3, "top", self.name)
        strange.rmdir()
        os.mkfifo(strange)
        self.fails("not_found", 3, "top", self.name)
        self.assertEqual(self.files(), [strange])

    def test_publishes_only_if_asked(self):
        before = set(SHARED.glob("penstock.*"))
        path = self.file("data", os.urandom(MIB))
        self.json_of("load", path)
        self.assertLessEqual(set(SHARED.glob("penstock.*")), before)
        self.json_of("load", path, env={"PENSTOCK_PUBLISH": self.name})
        self.assertEqual(self.files(), [])
        error = self.fails("invalid_argument", 2, "load", path, env={"PENSTOCK_PUBLISH": "../x"})
        self.assertIn("publish", error["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
