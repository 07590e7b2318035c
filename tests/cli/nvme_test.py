"""penstock nvme, and stores behind a controller in software, from the outside."""

import os
import unittest

from tool import ToolTest, wait_until

MIB = 1 << 20


class Nvme(ToolTest):
    def test_lists_what_is_on_the_bus(self):
        self.assertIsInstance(self.json_of("nvme", "list")["devices"], list)
        self.assertEqual(self.run_tool("nvme", "list").returncode, 0)

    def test_asks_a_controller_what_it_is(self):
        disk = self.file("disk.img", bytes(MIB))
        controller = self.json_of("nvme", "identify", f"soft-nvme:{disk}")["controller"]
        self.assertEqual(controller["namespaces"], [{"id": 1, "block_bytes": 512, "size_bytes": MIB, "refusal": ""}])
        spoken = self.run_tool("nvme", "identify", f"soft-nvme:{disk}").stdout.decode()
        self.assertIn(controller["serial"], spoken)
        registers = self.json_of("nvme", "registers", f"soft-nvme:{disk}")["registers"]
        self.assertIn("ready", {one["name"]: one["meaning"] for one in registers}["CSTS"])
        self.assertIn(b"CAP", self.run_tool("nvme", "registers", f"soft-nvme:{disk}").stdout)

    def test_tests_a_controller_and_writes_nothing(self):
        content = bytes(i * 7 % 251 for i in range(3 * MIB))
        disk = self.file("disk.img", content)
        checks = self.json_of("nvme", "selftest", f"soft-nvme:{disk}")["checks"]
        self.assertTrue(all(check["ok"] for check in checks), checks)
        self.assertGreater(len(checks), 5)
        self.assertEqual(disk.read_bytes(), content)

    def test_has_a_gpu_read_by_itself_or_says_why_not(self):
        disk = self.file("disk.img", bytes(i * 7 % 251 for i in range(3 * MIB)))
        result = self.run_tool("nvme", "gpu-selftest", disk)
        if result.returncode != 0:
            self.assertRegex(result.stderr, rb"CUDA|GPU|nvcc")
            self.fails("unsupported" if b"without nvcc" in result.stderr else "no_device", 1, "nvme", "gpu-selftest", disk)
            self.skipTest(result.stderr.decode().splitlines()[0])
        checks = self.json_of("nvme", "gpu-selftest", disk)["checks"]
        self.assertEqual([check["name"] for check in checks], ["a block", "a batch", "a layer", "an array"])
        self.assertTrue(all(check["ok"] for check in checks), checks)

    def test_tries_the_driver_against_faults(self):
        trial = self.json_of("nvme", "soft", "--seed", "3", "--operations", "2000", "--block", "4096")["trial"]
        self.assertEqual((trial["operations"], trial["wrong"], trial["breaches"]), (2000, [], []))
        three = self.json_of("nvme", "soft", "--seed", "3", "--seeds", "3", "--operations", "100")["trial"]
        self.assertEqual((three["seed"], three["seeds"], three["operations"], three["wrong"]), (3, 3, 300, []))
        self.assertEqual(three["resets"], 3)  # after the fatal status of each
        quiet = self.json_of("nvme", "soft", "--operations", "100", "--no-faults")["trial"]
        self.assertEqual((quiet["retries"], quiet["resets"], quiet["strange_completions"]), (0, 0, 0))
        self.assertIn(b"every byte compared", self.run_tool("nvme", "soft", "--operations", "100").stdout)

    def test_ctrl_c_ends_a_trial(self):
        process = self.start("nvme", "soft", "--operations", "1000000000", "--no-faults")
        wait_until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) > 2)  # with the controller's thread
        code, _, stderr, _ = self.interrupt(process)
        self.assertEqual((code, stderr), (130, b"penstock: interrupted\n"))

    def test_names_mistakes(self):
        self.fails("not_found", 3, "nvme", "identify", f"soft-nvme:{self.folder}/nothing")
        self.fails("unknown_scheme", 2, "nvme", "selftest", "0000:01:00.0")
        for name in ["nvme:0000:01:00", "nvme:disk", "nvme:0000:01:00.0/0"]:
            self.fails("invalid_argument", 2, "nvme", "identify", name)
        self.fails("not_found", 3, "nvme", "identify", "nvme:ffff:ff:1f.7")
        self.fails("not_found", 3, "nvme", "gpu-selftest", f"{self.folder}/nothing")
        self.fails("invalid_argument", 2, "nvme", "gpu-selftest", "file", "--gpu", "-1")
        for verb in ["bind", "unbind"]:
            self.fails("invalid_argument", 2, "nvme", verb)
            self.fails("invalid_argument", 2, "nvme", verb, "../../0000:01:00.0")
            self.fails("not_found", 3, "nvme", verb, "ffff:ff:1f.7", "--dry-run")
        self.fails("invalid_argument", 2, "nvme")
        self.fails("invalid_argument", 2, "nvme", "soft", "--block", "100")
        self.fails("invalid_argument", 2, "nvme", "soft", "--seeds", "0")

    def test_loads_a_store_behind_a_controller(self):
        content = bytes(i * 13 % 253 for i in range(2 * MIB + 777))
        disk = self.file("disk.img", content)
        loaded = self.json_of("load", f"soft-nvme:{disk}", "--raw")
        self.assertEqual(loaded["bytes"], len(content))
        self.assertEqual(loaded["engine"], "soft-nvme")

    def test_writes_into_a_store_behind_a_controller(self):
        content = bytes(i * 11 % 241 for i in range(MIB + 3))
        source = self.file("source.bin", content)
        disk = self.file("disk.img", bytes(2 * MIB))
        written = self.json_of("write", source, f"soft-nvme:{disk}", "--verify")
        self.assertEqual((written["bytes"], written["replaced"], written["durable"]), (len(content), False, True))
        self.assertEqual(disk.read_bytes(), content + bytes(MIB - 3), "in place, and no byte more")
        self.json_of("write", source, f"soft-nvme:{disk}", "--offset", "100")
        self.assertEqual(disk.read_bytes()[:100 + len(content)], content[:100] + content)
        # Its blocks are what they are.
        self.fails("out_of_range", 2, "write", source, f"soft-nvme:{disk}", "--offset", str(MIB))
        self.fails("invalid_argument", 2, "write", source, f"soft-nvme:{disk}", "--replace")
        self.fails("not_found", 3, "write", source, f"soft-nvme:{self.folder}/nothing")

    def test_takes_any_seed(self):
        self.assertGreater(self.json_of("nvme", "soft", "--seed", "0", "--operations", "1000")["trial"]["retries"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
