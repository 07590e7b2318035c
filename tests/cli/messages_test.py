"""What the tool says where it can't do what it is told: what is wrong, and what to do."""

import json
import os
import socket
import subprocess
import unittest

import schema
from tool import ToolTest

MIB = 1 << 20


class OddPlaces(ToolTest):
    def test_a_file_system_that_is_read_only_is_what_the_hint_is_about(self):
        point = self.mount("size=1M")
        (point / "file").write_bytes(b"old")
        subprocess.run(["mount", "-o", "remount,ro", point], check=True)
        error = self.fails("read_only", 4, "write", "--pattern", "4KiB", point / "file")
        self.assertIn("the file system is mounted read-only", error["hint"])

    def test_a_working_folder_that_is_gone_is_told(self):
        gone = self.folder / "gone"

        def enter_and_remove():
            gone.mkdir()
            os.chdir(gone)
            gone.rmdir()

        error = self.fails("not_found", 3, "write", "--pattern", "4KiB", "copy", preexec_fn=enter_and_remove)
        self.assertIn("find the working folder", error["message"])
        self.assertIn("change to a folder that exists", error["hint"])

    def test_packing_needs_a_folder(self):
        header = b'{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
        model = self.file("m.safetensors", len(header).to_bytes(8, "little") + header + b"x")
        error = self.fails("not_found", 3, "pack", model, "--out", self.file("file", b""))
        self.assertIn("is not a folder", error["message"])
        self.assertIn("name a folder", error["hint"])


class OddStores(ToolTest):
    def check(self, code, exit_code, words, *arguments):
        error = self.fails(code, exit_code, *arguments)
        for word in words:
            self.assertIn(word, error["message"] + "\n" + error["hint"])
        return error

    def test_that_are_no_files_are_called_what_they_are(self):
        source = self.file("source", b"x")
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(str(self.folder / "socket"))
        leader, follower = os.openpty()
        self.addCleanup(os.close, leader)
        self.addCleanup(os.close, follower)
        kinds = {"/dev/null": "null device", "/dev/zero": "zeros", os.ttyname(follower): "terminal", fifo: "pipe",
                 self.folder / "socket": "socket", "/dev/full": "character device"}
        for path, kind in kinds.items():
            for arguments in [["load", path], ["write", path, self.folder / "copy"], ["write", source, path],
                              ["write", source, path, "--in-place"]]:
                if path == fifo and arguments[1] == path:
                    continue  # it is read to its end
                error = self.check("unsupported", 1, [str(path), kind], *arguments)
                self.assertTrue(error["hint"], arguments)
                self.assertNotIn("in place", error["hint"])
        self.assertIn("truncate", self.fails("unsupported", 1, "load", "/dev/zero")["hint"])
        self.check("is_directory", 1, ["is a directory", "name a file"], "write", source, self.folder)
        self.assertEqual(self.names(), ["fifo", "socket", "source"])

    def test_whose_size_says_nothing_are_loaded_only_once(self):
        for path in ["/proc/cpuinfo", "/proc/self/status", "/sys/kernel/uevent_seqnum"]:
            if not os.path.exists(path):
                self.skipTest(f"there is no {path}")
            self.assertGreater(self.json_of("load", path)["bytes"], 0)
            self.check("invalid_argument", 2, [path, "only once", f"penstock write {path} FILE"], "load", path, "--verify")
            self.check("unsupported", 1, [path, "its size is unknown", f"cat {path} > FILE"], "doctor", path)
        self.assertEqual(self.names(), [])

    def test_that_are_read_only_devices_are_called_that(self):
        image = self.sparse_file("image", MIB)
        device = self.loop_device(image)
        subprocess.run(["blockdev", "--setro", device], check=True)
        self.addCleanup(subprocess.run, ["blockdev", "--setrw", device])  # it outlives the file
        self.check("read_only", 4, ["is read-only", f"blockdev --setrw {device}"], "write", "--pattern", "4KiB", device,
                   "--allow-device-write")

    def test_that_back_a_loop_device_are_called_that(self):
        image = self.sparse_file("image", MIB)
        device = self.loop_device(image)
        for how in [["--in-place"], []]:
            self.check("in_use", 4, [f"backs {device}", f"losetup -d {device}"], "write", "--pattern", "4KiB", image, *how)
        self.assertEqual(image.read_bytes(), bytes(MIB))


class OddNumbers(ToolTest):
    def test_are_refused_in_one_line_that_names_the_allowed_ones(self):
        path = self.file("data", b"x")
        ends = {("load", path, "--lanes"): "0 to 1024", ("load", path, "--repeat"): "1 to 1000",
                ("sample", self.folder / "sample", "--seed"): "0 to 18446744073709551615",
                ("nvme", "soft", "--operations"): "1 to 18446744073709551615",
                ("nvme", "soft", "--seed"): "0 to 18446744073709551615",
                ("bench", path, "--seconds"): "0.1 to 3600", ("tune", path, "--seconds"): "0.1 to 3600",
                ("top", "--interval"): "0.25 to 3600", ("load", path, "--lba"): "0 to 18446744073709551615",
                ("load", path, "--count"): "0 to 18446744073709551615"}
        for arguments, range_text in ends.items():
            odd = ["", "x", "1x", "nan"] if arguments[-1] in ("--lanes", "--seconds") else []
            for value in ["-1", "99999999999999999999999", *odd]:
                with self.subTest(arguments=arguments, value=value):
                    error = self.fails("invalid_argument", 2, *arguments, value)
                    self.assertIn(f"from {range_text}", error["message"])
                    self.assertIn(arguments[-1], error["message"])
                    self.assertLess(len(error["message"]), 160)
                    self.assertNotIn("\n", error["message"])

    def test_are_decimal_everywhere(self):
        table = self.file("rows", bytes(64 * 20))
        store = self.folder / "records"
        self.json_of("kind", "create", store)
        add = ["kind", "add", store, "k", "--record", 1]
        for arguments in [[*add, "--capacity"], [*add, "--capacity", 1, "--lba"], [*add, "--capacity", 1, "--records"],
                          [*add, "--capacity", 1, "--id"], ["kind", "read", store, "k", 0, "--count"],
                          ["kind", "append", store, "k", table, "--window", 0],
                          ["write", table, self.folder / "copy", "--window", 0],
                          ["rows", table, "--row-bytes", 64, "--indices", 0, "--count"],
                          ["rows", table, "--row-bytes", 64, "--indices", 0, "--seed"],
                          ["rows", table, "--row-bytes", 64, "--indices", 0, "--repeat"],
                          ["load", table, "--lba"], ["load", table, "--lanes"], ["nvme", "soft", "--seed"],
                          ["nvme", "soft", "--block"], ["tier", "list", "--limit"]]:
            for value in ["-1", "-18446744073709551606", "0x200", "1.5"]:
                with self.subTest(arguments=arguments, value=value):
                    self.assertIn(value, self.fails("invalid_argument", 2, *arguments, value)["message"])
        self.assertEqual(self.json_of(*add, "--capacity", "010")["kinds"][0]["capacity"], 10)
        result = self.json_of("rows", table, "--row-bytes", 64, "--indices", "010", "--count", "012")
        self.assertEqual(result["table"]["rows"], 12)

    def test_for_sizes_too(self):
        path = self.file("data", b"x")
        for option in ["--size", "--offset"]:
            for value in ["-1", "-1KiB", "1e400"]:
                error = self.fails("invalid_argument", 2, "load", path, option, value)
                self.assertIn(f'"{value}"', error["message"])
                self.assertLess(len(error["message"]), 160)

    def test_of_blocks_past_the_end_of_everything(self):
        path = self.file("data", b"x" * 1024)
        for arguments in [["--lba", 2**64 - 1], ["--lba", 2**55], ["--lba", 1, "--count", 2**64 - 1]]:
            error = self.fails("invalid_argument", 2, "load", path, *arguments)
            self.assertIn("--lba and --count", error["message"])
            self.assertIn("2 whole blocks of 512 bytes", error["hint"])
        self.assertIn("2 whole blocks", self.fails("out_of_range", 2, "load", path, "--lba", 2, "--count", 1)["hint"])
        self.assertIn("from 0 to", self.fails("invalid_argument", 2, "load", path, "--lba", 2**64)["message"])


class UsageErrors(ToolTest):
    def test_are_json_wherever_the_flag_stands(self):
        path = self.file("data", b"x")
        for arguments in [["--json", "--bogus"], ["--bogus", "--json"], ["--json"], ["load", path, "--json", "--bogus"],
                          ["load", "--json", "--bogus", path], ["load", "--bogus", path, "--json"], ["load", "--json"],
                          ["--json", "load", path, "--bogus"], ["frobnicate", "--json"], ["--json", "frobnicate"],
                          ["load", path, "--lanes", "--json"], ["nvme", "--json"], ["nvme", "list", "--json", "--bogus"]]:
            with self.subTest(arguments=arguments):
                done = self.run_tool(*arguments)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(done.stderr, b"")
                result = json.loads(done.stdout)
                schema.check(result, "error")
                self.assertEqual(result["error"]["code"], "invalid_argument")
                wrong = arguments[0] if arguments[0].startswith("--") else "--bogus"
                if wrong in arguments:
                    self.assertIn(wrong, result["error"]["message"])

    def test_name_the_word_that_nobody_knows(self):
        path = self.file("data", b"x")
        for arguments, words in [(["kind", "foo", path], 'unknown command "foo"'),
                                 (["rows", path, "--index", 1], 'unknown option "--index"'),
                                 (["nvme", "foo"], 'unknown command "foo"'),
                                 (["kind", "add", path, "--nam"], 'unknown option "--nam"')]:
            self.assertIn(words, self.fails("invalid_argument", 2, *arguments)["message"])

    def test_name_the_option_whose_name_is_empty(self):
        path = self.file("data", bytes(4096))
        result = self.file("result.json", b"{}")
        for option, *arguments in [
                ("--out", "rows", path, "--row-bytes", 256, "--indices", 1), ("--out", "kind", "read", path, "k", 0),
                ("--out", "pack", path), ("--out", "report", "hardware"), ("--timeline", "load", path),
                ("--bundle", "doctor", path), ("--html", "bench", "--from", result), ("--html", "tier", "status"),
                ("--from", "bench"), ("--file", "tune", path)]:
            error = self.fails("invalid_argument", 2, *arguments, option, "")
            self.assertEqual(error["message"], f"{option}: the name is empty", arguments)

    def test_name_a_directory_that_was_given_for_options(self):
        error = self.fails("is_directory", 1, "load", self.file("data", b"x"), "--options", f"@{self.folder}")
        self.assertIn(str(self.folder), error["message"])
        self.assertIn("name a file", error["hint"])


    def test_name_what_has_no_meaning_for_the_destination(self):
        source = self.file("source", b"x")
        for arguments in [["--serial", "A"], ["--window", 0, 8]]:
            error = self.fails("invalid_argument", 2, "write", source, self.folder / "copy", *arguments)
            self.assertIn("nvme:ADDRESS", error["message"])
        self.assertEqual(self.names(), ["source"])

    def test_name_stores_that_are_the_same_behind_a_controller(self):
        image = self.file("image", bytes(MIB))
        for source, destination in [(image, f"soft-nvme:{image}"), (f"soft-nvme:{image}", f"soft-nvme:{image}")]:
            self.assertIn("overwrite an input", self.fails("invalid_argument", 2, "write", source, destination)["message"])

    def test_say_what_to_name_instead(self):
        data = self.file("data", bytes(MIB))
        self.assertIn("penstock write - FILE", self.fails("invalid_argument", 2, "load", "-", "--verify")["hint"])
        error = self.fails("invalid_argument", 2, "tune", data, "--file", self.folder)
        self.assertNotIn("rm", error["hint"])
        self.assertIn("check the name", self.fails("not_found", 3, "bench", self.folder / "none")["hint"])


class Loads(ToolTest):
    def test_into_more_pinned_memory_than_the_budget_say_which_option_raises_it(self):
        error = self.fails("over_budget", 5, "load", self.sparse_file("large", 512 * MIB), "--to", "pinned")
        self.assertIn(str(512 * MIB), error["message"])
        self.assertIn(f"the budget is {320 * MIB} bytes", error["message"])
        self.assertIn("--options '{\"pinned_budget_bytes\":", error["hint"])

    def test_of_a_byte_have_no_speed(self):
        text = self.run_tool("load", self.file("data", b"x"), "--repeat", 3).stdout.decode()
        self.assertIn("1 B in ", text)
        self.assertNotIn("B/s", text.replace("ceiling", ""))
        self.assertNotIn("a GB", text)
        self.assertIn("MB/s", self.run_tool("load", self.file("more", bytes(MIB))).stdout.decode().replace("GB/s", "MB/s"))

    def test_from_memory_wait_for_no_storage(self):
        path = self.file("data", os.urandom(8 * MIB))
        path.read_bytes()
        result = self.json_of("load", path, "--engine", "posix")
        self.assertEqual(set(result["routes"]), {"cached"})
        self.assertEqual((result["limit"], result["storage_seconds"]), ("cpu", 0))
        self.assertGreater(result["cpu_seconds"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
