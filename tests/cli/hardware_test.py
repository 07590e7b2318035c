"""penstock report hardware: what it does, what is in its file, and what is not."""

import json
import os
import pathlib
import unittest

import schema
from tool import ToolTest, wait_until

FAKE_CUDA = os.environ.get("PENSTOCK_FAKE_CUDA", "")
SECRETS = {"serial": "S3R1AL-0F-JANE", "uuid": "8d1ff5a0-6d4e-4c77-9a0a-6f3f2d9a1b2c", "mac": "52:54:00:ab:cd:ef",
           "address": "192.168.17.23", "address6": "fe80::5054:ff:feab:cdef"}


class Hardware(ToolTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "report.json"
        (self.folder / "test").mkdir()

    def report(self, *arguments, **how):
        done = self.run_tool("report", "hardware", "--out", self.out, *arguments, **how)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(self.out.read_text())
        schema.check(report, "hardware")
        return report, done

    def made_up_sysfs(self):
        """A machine with an NVMe disk whose files tell more than anybody should."""
        sysfs = self.folder / "sys"
        disk = sysfs / "block" / "nvme0n1"
        (disk / "device").mkdir(parents=True)
        (disk / "size").write_text("1953525168\n")
        (disk / "device" / "serial").write_text(SECRETS["serial"] + "\n")
        # Nobody expects them there, which is when they slip through.
        (disk / "device" / "model").write_text(
            f"Fast Disk 9000 {SECRETS['uuid']} {SECRETS['mac']} {SECRETS['address']} {SECRETS['address6']} "
            f"of jane-doe in /home/jane-doe/disks on /dev/mapper/rhel_janes-box-root of vg_janes-box\n")
        device = sysfs / "bus" / "pci" / "devices" / "0000:01:00.0"
        device.mkdir(parents=True)
        (device / "class").write_text("0x010802\n")
        return sysfs

    def test_runs_every_step_and_writes_nothing_but_the_report(self):
        report, done = self.report(self.folder / "test", "--size", "2MiB")
        steps = {step["name"]: step for step in report["steps"]}
        for name in ["facts", "engines", "doctor", "nvme list", "nvme soft 512", "selftest", "doctor of a file", "read"]:
            self.assertEqual(steps[name]["status"], "done", steps[name])
            self.assertIn(f"] {name} … done".encode(), done.stderr)
            self.assertIn(name.encode(), done.stdout)
        self.assertIs(steps["read"]["result"]["verified"], True)
        self.assertEqual(steps["read cold"]["result"]["bytes"], 2 << 20)
        self.assertEqual(steps["read to a GPU"]["status"] == "skipped", steps["read to a GPU"]["reason"] == "there is no GPU")
        self.assertIn(b"read it before you send it", done.stdout)
        self.assertEqual((self.names(), list((self.folder / "test").iterdir())), (["report.json", "test"], []))

    def test_tells_no_names(self):
        env = {"HOME": "/home/jane-doe", "USER": "jane-doe", "HOSTNAME": "janes-box"}
        sysfs = self.made_up_sysfs()
        self.report(self.folder / "test", "--size", "1MiB", "--sysfs", sysfs, env=env)
        text = self.out.read_text()
        self.assertIn("Fast Disk 9000 <UUID> <address> <address> <address> of <private> in <private><path> on <path><private>-root of vg_<private>", text)
        self.assertIn("0000:01:00.0", text)
        for secret in [*SECRETS.values(), "jane-doe", "janes-box", str(self.folder)]:
            self.assertNotIn(secret, text)
        name = os.uname().nodename
        if len(name) > 5 and name != "localhost":
            self.assertNotIn(name, text)
        self.report("--sysfs", sysfs, "--with-names", env=env)
        for secret in [*SECRETS.values(), "jane-doe"]:
            self.assertIn(secret, self.out.read_text())

    def test_steps_that_hang_or_fail_are_told_and_the_rest_goes_on(self):
        report, _ = self.report(self.folder / "test", "--size", "1MiB", "--step-seconds", 0.001)
        late = [step for step in report["steps"] if step["status"] == "timed out"]
        self.assertTrue(late, report["steps"])
        self.assertEqual(report["steps"][-1]["name"], "read to a GPU")
        report, _ = self.report(self.folder / "test", "--size", "1MiB", env={"PENSTOCK_ENGINE": "warp"})
        steps = {step["name"]: step for step in report["steps"]}
        self.assertEqual((steps["read"]["status"], steps["doctor"]["status"]), ("failed", "done"))
        self.assertIn("warp", json.dumps(steps["read"]["result"]["error"]))

    def test_without_a_folder_no_speed_is_measured(self):
        report, _ = self.report("--quiet")
        skipped = {step["name"]: step["reason"] for step in report["steps"] if step["status"] == "skipped"}
        self.assertIn("no folder was given", skipped["read"])
        self.assertNotIn("engines", skipped)

    def test_a_gpu_is_read_to(self):
        if not (pathlib.Path(FAKE_CUDA) / "libcuda.so.1").exists():
            self.skipTest("PENSTOCK_FAKE_CUDA does not name the folder of the fake driver")
        report, _ = self.report(self.folder / "test", "--size", "1MiB", env={"LD_LIBRARY_PATH": FAKE_CUDA})
        steps = {step["name"]: step for step in report["steps"]}
        self.assertEqual(steps["read to a GPU"]["status"], "done", steps["read to a GPU"])
        self.assertIs(steps["read to a GPU"]["result"]["verified"], True)

    def test_says_what_it_would_do_and_does_nothing(self):
        done = self.run_tool("report", "hardware", self.folder / "test", "--out", self.out, "--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in [b"writes", b"contains", b"nvme soft 512", b"read cold"]:
            self.assertIn(word, done.stdout)
        self.assertEqual(self.names(), ["test"])

    def test_what_can_not_be_written_is_known_at_once(self):
        self.fails("not_found", 3, "report", "hardware", "--out", self.folder / "missing" / "report.json")
        self.fails("not_found", 3, "report", "hardware", self.folder / "missing", "--out", self.out)
        self.assertEqual(self.names(), ["test"])

    def test_ctrl_c_leaves_nothing_behind(self):
        process = self.start("report", "hardware", self.folder / "test", "--size", "1MiB", "--out", self.out)
        wait_until(lambda: process.poll() is not None or len(children_of(process.pid)) > 0)
        code, _, error, _ = self.interrupt(process)
        if code == 0:
            self.skipTest("it had ended before it was interrupted")
        self.assertEqual(code, 130, error)
        self.assertEqual((self.names(), list((self.folder / "test").iterdir())), (["test"], []))


def children_of(process):
    try:
        return pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []


if __name__ == "__main__":
    unittest.main(verbosity=2)
