"""penstock kind, from the outside."""

import json
import os
import pathlib
import random
import re
import subprocess
import time
import unittest

import schema
from tool import NOBODY, SLOW, TOOL, ToolTest, environment, resident_bytes, wait_until

MIB = 1 << 20
RECORD = 100


class Kinds(ToolTest):
    def setUp(self):
        super().setUp()
        self.store = self.folder / "records.bin"
        self.dictionary = self.folder / "records.bin.kinds.json"

    def kind(self, verb, *arguments, **how):
        return self.json_of("kind", verb, *arguments, **how)

    def make(self, capacity=1000):
        self.kind("create", self.store)
        return self.kind("add", self.store, "users", "--record", RECORD, "--capacity", capacity)

    def test_adds_appends_reads_and_lists(self):
        made = self.kind("create", self.store)
        self.assertEqual((made["dictionary"], made["kinds"]), (str(self.dictionary), []))
        added = self.kind("add", self.store, "users", "--type", "F32", "--shape", "5,5", "--capacity", 1000)
        self.assertEqual([added["kinds"][0][key] for key in ("id", "record_bytes", "capacity", "start_byte", "shape")],
                         [1, RECORD, 1000, 0, [5, 5]])
        content = os.urandom(7 * RECORD)
        result = self.kind("append", self.store, "users", self.file("new", content[:4 * RECORD]))
        self.assertEqual((result["append"]["index"], result["append"]["count"]), (0, 4))
        done = self.run_tool("kind", "append", self.store, "1", "-", "--json", input=content[4 * RECORD:])
        self.assertEqual((done.returncode, json.loads(done.stdout)["append"]["index"]), (0, 4), done.stderr)
        result = self.kind("read", self.store, "users", 2, "--count", 3, "--out", self.folder / "out")
        self.assertEqual((self.folder / "out").read_bytes(), content[2 * RECORD:5 * RECORD])
        self.assertEqual(result["read"]["bytes"], 3 * RECORD)
        done = self.run_tool("kind", "read", self.store, "users", 6, "--out", "-")
        self.assertEqual(done.stdout, content[6 * RECORD:])
        self.assertEqual(self.kind("list", self.store)["kinds"], self.kind("show", self.store, "users")["kinds"])
        self.assertEqual(self.kind("check", self.store)["kinds"][0]["records"], 7)
        schema.check(json.loads(self.dictionary.read_text()), "kinds")
        self.assertEqual(self.kind("remove", self.store, "users")["kinds"], [])
        self.assertIn(content, self.store.read_bytes())

    def test_shows_kinds_to_people(self):
        self.make()
        for verb in (["list"], ["show"], ["check"]):
            done = self.run_tool("kind", *verb, self.store, *(["users"] if verb == ["show"] else []))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(b"1 kind:" if verb == ["check"] else b"users", done.stdout)
        self.assertEqual(self.run_tool("kind", "list", self.store, "--quiet").stdout, b"")

    def test_keeps_records_in_an_nvme_namespace(self):
        self.sparse_file("disk.img", 1 << 20)
        store, at = f"soft-nvme:{self.folder}/disk.img", ["--at", self.folder / "disk.json"]
        error = self.fails("invalid_argument", 2, "kind", "create", store)
        self.assertIn("--at", error["hint"])
        self.kind("create", store, *at)
        added = self.kind("add", store, "logs", "--lba", 8, "--length", "64KiB", "--record", 128, *at)
        self.assertEqual(added["kinds"][0]["start_lba"], 8)
        content = os.urandom(5 * 128)
        self.kind("append", store, "logs", self.file("new", content), *at)
        self.kind("read", store, "logs", 0, "--count", 5, "--out", self.folder / "out", *at)
        self.assertEqual((self.folder / "out").read_bytes(), content)
        start = 8 * added["block_bytes"]
        self.assertEqual((self.folder / "disk.img").read_bytes()[start:start + len(content)], content)
        error = self.fails("invalid_argument", 2, "kind", "add", store, "x", "--lba", 8, "--length", 512, "--record", 1, *at)
        self.assertIn("overlap", error["message"])

    def test_refuses_what_is_wrong_with_words_that_help(self):
        self.fails("not_found", 3, "kind", "list", self.store)
        self.assertIn("folder", self.fails("not_found", 3, "kind", "create", self.folder / "none" / "x")["hint"])
        self.make(3)
        self.fails("in_use", 4, "kind", "create", self.store)
        error = self.fails("not_found", 3, "kind", "show", self.store, "user")
        self.assertIn("users", error["hint"])
        self.fails("not_found", 3, "kind", "show", self.store, "7")
        self.fails("no_space", 5, "kind", "append", self.store, "users", self.file("many", bytes(4 * RECORD)))
        self.fails("invalid_argument", 2, "kind", "append", self.store, "users", self.file("odd", bytes(RECORD + 1)))
        self.fails("out_of_range", 2, "kind", "read", self.store, "users", 0)
        self.fails("invalid_argument", 2, "kind", "read", self.store, "users", -1)
        self.fails("invalid_argument", 2, "kind", "add", self.store, "users", "--record", 1, "--capacity", 1)
        self.fails("invalid_argument", 2, "kind", "add", self.store, "x", "--type", "F31", "--capacity", 1)
        self.fails("invalid_argument", 2, "kind", "add", self.store, "x", "--type", "F32", "--shape", "4,x", "--capacity", 1)
        self.fails("invalid_argument", 2, "kind", "add", self.store, "7", "--record", 1, "--capacity", 1)
        self.fails("invalid_argument", 2, "kind", "add", self.store, "x", "--record", 1)
        text = self.dictionary.read_text()
        self.dictionary.write_text(text.replace("kinds/1", "kinds/2"))
        error = self.fails("unsupported", 1, "kind", "check", self.store)
        self.assertIn("newer", error["hint"])
        self.dictionary.write_text(text[:-5])
        self.fails("invalid_argument", 2, "kind", "check", self.store)
        self.dictionary.write_text(text)
        os.truncate(self.store, 3 * RECORD - 1)
        error = self.fails("out_of_range", 2, "kind", "check", self.store)
        self.assertIn("users", error["message"])

    def failing(self, text):
        library = os.environ.get("PENSTOCK_FAILING_SYNCS_LIBRARY")
        if not library or os.environ.get("PENSTOCK_SANITIZE"):
            self.skipTest("needs PENSTOCK_FAILING_SYNCS_LIBRARY, the library that makes syncs fail, and no sanitizer")
        return {"LD_PRELOAD": library, "PENSTOCK_FAILING_SYNCS": f"name:{text}"}

    def test_a_folder_that_is_closed_to_this_user_is_named(self):
        self.need_other_user()
        self.folder.chmod(0o755)
        error = self.fails("permission_denied", 4, "kind", "create", self.folder / "new", user=NOBODY, group=NOBODY,
                           extra_groups=[])
        self.assertIn("that folder", error["hint"])

    def test_a_start_that_is_no_place_is_refused(self):
        store = self.folder / "records.bin"
        self.json_of("kind", "create", store)
        for option in "--start", "--lba":
            self.fails("invalid_argument", 2, "kind", "add", store, "a", "--record", 1, "--capacity", 5, option, 2**64 - 1)
        self.assertEqual(self.json_of("kind", "list", store)["kinds"], [])

    def test_counts_one_byte_as_one(self):
        store = self.folder / "records.bin"
        self.json_of("kind", "create", store)
        self.json_of("kind", "add", store, "a", "--record", 1, "--capacity", 5)
        self.assertIn(b", 1 byte a record", self.run_tool("kind", "show", store, "a").stdout)

    def test_reads_no_more_than_there_is_room_for(self):
        store = self.folder / "records.bin"
        self.json_of("kind", "create", store)
        self.json_of("kind", "add", store, "small", "--record", 7, "--capacity", 3_000_000)
        with open("/dev/zero", "rb") as endless:
            done = self.run_tool("kind", "append", store, "small", "-", stdin=endless)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn(b"standard input has more", done.stderr)
        self.assertIn(b"room for 3000000 more records", done.stderr)
        records = os.urandom(7 * 3_000_000)
        done = self.run_tool("kind", "append", store, "small", "-", input=records[:-1])
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(b"20999999 bytes of standard input are no whole records", done.stderr)
        done = self.run_tool("kind", "append", store, "small", "-", "--json", input=records)
        self.assertEqual(json.loads(done.stdout)["append"]["count"], 3_000_000)
        self.run_tool("kind", "read", store, "small", 0, "--count", 3_000_000, "--out", self.folder / "out")
        self.assertEqual((self.folder / "out").read_bytes(), records)
        self.assertEqual(self.run_tool("kind", "append", store, "small", "-", input=b"").returncode, 0)
        self.assertEqual(self.run_tool("kind", "append", store, "small", "-", input=b"x").returncode, 5)

    @unittest.skipIf(os.environ.get("PENSTOCK_SANITIZE"), "sanitizers take more memory than a limit leaves")
    def test_reads_no_more_than_memory_has_room_for(self):
        store = self.folder / "records.bin"
        self.json_of("kind", "create", store)
        self.json_of("kind", "add", store, "big", "--record", 100, "--capacity", 10_000_000)
        with open("/dev/zero", "rb") as endless:
            done = self.run_tool("kind", "append", store, "big", "-", stdin=endless,
                                 preexec_fn=self.memory_group(96 << 20))
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn(b"of memory available", done.stderr)
        self.assertEqual(self.json_of("kind", "check", store)["kinds"][0]["records"], 0)

    def test_does_not_write_over_the_store_or_its_dictionary(self):
        self.make()
        subprocess.run([TOOL, "kind", "append", self.store, "users", "-"], input=b"x" * 5 * RECORD, check=True,
                       env=environment(), stdout=subprocess.DEVNULL, timeout=60)
        before = self.store.read_bytes(), self.dictionary.read_bytes()
        link = self.folder / "link"
        link.symlink_to(self.store)
        for out in (self.store, self.dictionary, link):
            self.fails("invalid_argument", 2, "kind", "read", self.store, "users", 0, "--count", 5, "--out", out)
        self.assertEqual(before, (self.store.read_bytes(), self.dictionary.read_bytes()))
        self.assertTrue(link.is_symlink())

    def test_keeps_the_dictionary_apart_from_the_store(self):
        error = self.fails("invalid_argument", 2, "kind", "create", self.store, "--at", self.store)
        self.assertIn("can't be both the dictionary and the store", error["message"])
        self.assertEqual(self.names(), [])
        self.kind("create", self.store)
        before = self.dictionary.read_bytes()
        for store in (self.dictionary, f"soft-nvme:{self.dictionary}"):
            error = self.fails("invalid_argument", 2, "kind", "add", store, "--at", self.dictionary, "more",
                               "--record", RECORD, "--capacity", 1)
            self.assertIn("can't be both the dictionary and the store", error["message"])
        self.assertEqual(self.dictionary.read_bytes(), before)

    def test_records_count_only_once_they_are_durable(self):
        at = ["--at", self.folder / "dictionary", "--engine", "posix"]
        self.kind("create", self.store, *at)
        self.kind("add", self.store, "users", "--record", RECORD, "--capacity", 10, *at)
        self.kind("append", self.store, "users", self.file("one", b"1" * RECORD), *at)
        before = (self.folder / "dictionary").read_bytes(), (self.folder / "dictionary").stat().st_ino
        for text in ("records.bin", "dictionary"):
            self.fails("io_error", 1, "kind", "append", self.store, "users", self.file("two", b"2" * RECORD), *at,
                       env=self.failing(text))
            after = (self.folder / "dictionary").read_bytes(), (self.folder / "dictionary").stat().st_ino
            self.assertEqual(after, before, f"{text} could not be synced, and the dictionary has changed")
        self.kind("append", self.store, "users", self.file("three", b"3" * RECORD), *at)
        done = self.run_tool("kind", "read", self.store, "users", 0, "--count", 2, "--out", "-", *at)
        self.assertEqual(done.stdout, b"1" * RECORD + b"3" * RECORD)

    def test_killed_writers_leave_whole_records(self):
        self.make()
        chance = random.Random(24)
        count = 0
        for _ in range(12):
            process = self.start("kind", "append", self.store, "users", self.file("new", bytes([count % 251]) * RECORD))
            time.sleep(chance.uniform(0.005, 0.05))
            process.kill()
            process.wait()
            now = self.kind("check", self.store)["kinds"][0]["records"]
            self.assertIn(now, (count, count + 1))
            count = now
        self.run_tool("kind", "append", self.store, "users", self.file("new", bytes([count % 251]) * RECORD))
        done = self.run_tool("kind", "read", self.store, "users", 0, "--count", count + 1, "--out", "-")
        self.assertEqual(done.stdout, b"".join(bytes([i % 251]) * RECORD for i in range(count + 1)))


class Interrupted(ToolTest):
    """Records of 1 MiB, slowly."""

    def setUp(self):
        super().setUp()
        self.store = self.folder / "records.bin"
        self.json_of("kind", "create", self.store)

    def add(self, records):
        os.truncate(self.store, records * MIB)
        self.json_of("kind", "add", self.store, "big", "--record", "1MiB", "--capacity", 1024, "--start", 0, "--records",
                     records)

    def end(self, process):
        code, stdout, stderr, _ = self.interrupt(process)
        self.assertEqual((code, stdout), (130, b""), stderr)
        self.assertTrue(stderr.startswith(b"penstock: interrupted"), stderr)
        self.assertNotIn(b"hang", stderr)

    def test_read_leaves_nothing(self):
        self.add(1024)
        before = self.names()
        process = self.start("kind", "read", self.store, "big", 0, "--count", 1000, "--out", self.folder / "out", *SLOW)
        wait_until(lambda: resident_bytes(process) > 64 * MIB)
        self.end(process)
        self.assertEqual(self.names(), before)

    def test_append_that_reads_its_records(self):
        self.add(0)
        process = self.start("kind", "append", self.store, "big", self.sparse_file("new", 1 << 30), *SLOW)
        wait_until(lambda: resident_bytes(process) > 64 * MIB)
        self.end(process)
        self.assertEqual(self.json_of("kind", "check", self.store)["kinds"][0]["records"], 0)

    def test_append_that_writes_its_records(self):
        self.add(0)
        before = os.stat(self.store).st_mtime_ns
        with open(self.sparse_file("new", 256 * MIB), "rb") as new:
            process = self.start("kind", "append", self.store, "big", "-", *SLOW, stdin=new)
        wait_until(lambda: os.stat(self.store).st_mtime_ns != before)
        self.end(process)
        self.assertEqual(self.json_of("kind", "check", self.store)["kinds"][0]["records"], 0)
        self.assertEqual(self.names(), ["new", "records.bin", "records.bin.kinds.json", "records.bin.kinds.json.lock"])


class Docs(ToolTest):
    def test_the_commands_run(self):
        page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "kinds.md").read_text()
        commands = re.findall(r"^\$ (.*)$", page, re.MULTILINE)
        self.assertGreaterEqual(len(commands), 5)
        for command in commands:
            done = subprocess.run(["bash", "-c", command.replace("penstock ", f"{TOOL} ")], cwd=self.folder,
                                  capture_output=True, env=environment(), timeout=60)
            self.assertEqual(done.returncode, 0, (command, done.stderr))
        self.assertEqual((self.folder / "three.bin").read_bytes(), bytes(3 * 64))
        for example in re.findall(r"```json\n(.*?)```", page, re.DOTALL):
            schema.check(json.loads(example), "kinds")


if __name__ == "__main__":
    unittest.main()
