"""penstock write, from the outside."""

import json
import os
import pathlib
import platform
import resource
import signal
import struct
import subprocess
import time
import unittest

import schema
from tool import (NOBODY, PROMPTLY, SLOW, TOOL, ToolTest, cached_bytes, die_at, environment, resident_bytes,
                  wait_until)

MIB = 1 << 20


class Write(ToolTest):
    def test_a_copy_is_equal(self):
        for size in [0, 1, 4095, 4096, 3 * MIB + 17, 64 * MIB, 64 * MIB + 1]:
            content = os.urandom(size)
            source, destination = self.file("source", content), self.folder / "destination"
            result = self.json_of("write", source, destination, "--verify")
            self.assertEqual(destination.read_bytes(), content)
            self.assertEqual(result["bytes"], size)
            self.assertEqual(sum(result["routes"].values()), size)
            self.assertEqual((result["verified"], result["durable"], result["in_place"]), (True, True, False))
            self.assertIs(result["replaced"], size != 0, "the first one is new")
        self.assertEqual(self.names(), ["destination", "source"])

    def test_what_was_written_is_in_the_page_cache_if_it_fits(self):
        source, destination = self.file("source", os.urandom(3 * MIB + 17)), self.folder / "destination"
        if not self.json_of("load", source, "--cache", "bypass")["routes"].get("direct"):
            self.skipTest("no direct I/O here")
        for options in [[], ["--no-durable"]]:
            result = self.json_of("write", source, destination, *options)
            self.assertEqual(result["routes"], {"buffered": result["bytes"]})
            self.assertIn("the file fits", result["reason"])
            self.assertEqual(self.json_of("load", destination)["routes"], {"cached": result["bytes"]})
        for options, reason in [({"env": {"PENSTOCK_CACHE_LIMIT": "1"}}, "does not fit"), ({}, "cache=bypass")]:
            flags = [] if options else ["--cache", "bypass"]
            result = self.json_of("write", source, destination, *flags, **options)
            self.assertGreater(result["routes"]["direct"], result["bytes"] - 4096)
            self.assertIn(reason, result["reason"])
            with open(destination, "rb") as file:
                self.assertLess(cached_bytes(file) or 0, result["bytes"] // 2)

    def test_checksums_of_load_and_write_agree(self):
        source = self.file("source", os.urandom(MIB + 5))
        written = self.json_of("write", source, self.folder / "copy", "--verify")
        self.assertEqual(self.json_of("load", source, "--verify")["checksum"], written["checksum"])

    def test_a_person_is_told_the_same(self):
        done = self.run_tool("write", self.file("source", b"x" * 5000), self.folder / "copy", "--verify")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in [b"5.00 kB", b"routes", b"durable", b"verified"]:
            self.assertIn(word, done.stdout)
        self.assertEqual(done.stderr, b"")

    def test_standard_input_of_any_size(self):
        for size in [0, 1, 65 * MIB + 3]:
            content = os.urandom(size)
            result = self.json_of("write", "-", self.folder / "copy", "--verify", input=content)
            self.assertEqual(result["source"], "-")
            self.assertEqual((self.folder / "copy").read_bytes(), content)
        self.json_of("write", "-", self.folder / "copy", "--size", 3, input=b"abcdef")
        self.assertEqual((self.folder / "copy").read_bytes(), b"abc")
        self.fails("truncated", 1, "write", "-", self.folder / "copy", "--size", 7, input=b"abcdef")
        self.assertEqual((self.folder / "copy").read_bytes(), b"abc")

    def test_pipes_and_files_without_a_size_are_copied_whole(self):
        pipe, copy = self.folder / "pipe", self.folder / "copy"
        os.mkfifo(pipe)
        content = os.urandom(3 * MIB + 1)
        process = self.start("write", pipe, copy, "--verify", "--quiet")
        pipe.write_bytes(content)
        self.assertEqual(process.wait(timeout=60), 0)
        self.assertEqual(copy.read_bytes(), content)
        result = self.json_of("write", "/proc/version", copy)
        self.assertEqual(result["source"], "/proc/version")
        self.assertEqual(copy.read_bytes(), pathlib.Path("/proc/version").read_bytes())
        self.json_of("write", "/dev/zero", copy, "--size", 5)
        self.assertEqual(copy.read_bytes(), bytes(5))
        error = self.fails("truncated", 1, "write", "/proc/version", copy, "--size", MIB)
        self.assertIn("/proc/version ended after", error["message"])
        self.assertEqual(copy.read_bytes(), bytes(5))

    def test_patterns_depend_on_size_and_seed_alone(self):
        def pattern(text):
            self.json_of("write", "--pattern", text, self.folder / "pattern")
            return (self.folder / "pattern").read_bytes()

        long = pattern("65MiB,7")
        self.assertEqual(len(long), 65 * MIB)
        self.assertEqual(pattern("1000001,7"), long[:1000001])
        self.assertNotEqual(pattern("1000,8"), long[:1000])
        self.assertEqual(pattern("1000"), pattern("1000,0"))

    def test_writing_in_place_leaves_the_rest(self):
        path = self.file("disk", b"." * 20000)
        patch = self.file("patch", b"patch")
        result = self.json_of("write", patch, path, "--in-place", "--offset", 4094, "--verify")
        self.assertEqual(result["offset"], 4094)
        self.assertEqual((result["replaced"], result["in_place"]), (False, True))
        self.assertEqual(path.read_bytes(), b"." * 4094 + b"patch" + b"." * (20000 - 4099))
        self.json_of("write", patch, path, "--in-place", "--offset", 20001, "--no-durable")
        self.assertEqual(path.read_bytes()[19999:], b".\0patch")
        self.assertIs(self.json_of("write", patch, self.folder / "new", "--in-place", "--no-durable")["durable"], False)

    def test_a_replaced_file_keeps_its_mode_and_may_be_its_own_source(self):
        path = self.file("data", b"abcdef")
        path.chmod(0o640)
        self.json_of("write", path, path, "--size", 3)
        self.assertEqual(path.read_bytes(), b"abc")
        self.assertEqual(path.stat().st_mode & 0o777, 0o640)

    def test_a_link_is_followed_and_stays(self):
        path, source = self.file("data", b"old"), self.file("source", b"new")
        (self.folder / "link").symlink_to("data")
        self.json_of("write", source, self.folder / "link")
        self.assertTrue((self.folder / "link").is_symlink())
        self.assertEqual(path.read_bytes(), b"new")

    def test_a_closed_standard_stream_is_a_failure(self):
        source = self.file("source", b"abc")
        table = self.file("table", bytes(64))
        for command in (["load", source, "--to", "-", ">&-"], ["load", source, ">&-"], ["--version", ">&-"],
                        ["load", "-", "<&-"], ["load", "-", "--to", "-", "<&-"], ["write", "-", self.folder / "new", "<&-"],
                        ["rows", table, "--row-bytes", 16, "--indices", "@-", "<&-"]):
            script = '"$0" "$@" ' + command[-1]
            done = subprocess.run(["sh", "-c", script, TOOL, *map(str, command[:-1])], capture_output=True,
                                  env=environment())
            self.assertEqual(done.returncode, 1, (command, done.stderr))
            self.assertIn(b"standard input" if command[-1] == "<&-" else b"standard output", done.stderr)

    def test_a_verification_that_is_interrupted_says_that_the_file_is_new(self):
        for how in [], ["--json"]:
            copy = self.folder / f"copy{len(how)}"
            process = self.start("write", "--pattern", "48MiB", copy, "--verify", *SLOW, *how)
            wait_until(copy.exists)
            code, stdout, stderr, _ = self.interrupt(process)
            self.assertEqual(code, 130, stderr)
            message = f"{copy} was written and is the new file, but could not be read back: "
            if how:
                result = json.loads(stdout)
                schema.check(result, "write")
                self.assertEqual((result["verified"], result["bytes"]), (False, 48 << 20))
                self.assertTrue(result["error"]["message"].startswith(message), result)
            else:
                self.assertIn(message.encode(), stderr)
            self.assertEqual(copy.stat().st_size, 48 << 20)

    def test_with_few_descriptors_says_whether_the_file_is_new(self):
        source = self.file("source", b"abc")
        told = 0
        for limit in range(5, 30):
            copy = self.folder / f"copy{limit}"
            limits = (resource.RLIMIT_NOFILE, (limit, limit))
            done = self.run_tool("write", source, copy, "--verify", preexec_fn=lambda: resource.setrlimit(*limits))
            is_told = b"was written and is the new file, but could not be read back: " in done.stderr
            self.assertEqual(copy.exists(), done.returncode == 0 or is_told, (limit, done))
            told += is_told
        self.assertGreater(told, 0)

    def test_a_closed_standard_output_does_not_end_up_in_the_file(self):
        source, destination = self.file("source", b"abc"), self.folder / "destination"
        script = '"$0" write "$1" "$2" --in-place >&-'
        done = subprocess.run(["sh", "-c", script, TOOL, source, destination], capture_output=True, env=environment())
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"standard output", done.stderr)
        self.assertEqual(destination.read_bytes(), b"abc")


class WriteNeverShowsAReplacedFile(ToolTest):
    """The new file has what the old one had, and never more on the way there."""

    def with_list(self, mode):
        """A file whose group may do nothing, while a user that is named may read: acl(5)."""
        path = self.file("data", b"secret")
        path.chmod(mode)
        nobody_in_particular = 0xFFFFFFFF
        entries = [(1, 6, nobody_in_particular), (2, 4, 12345), (4, 0, nobody_in_particular),
                   (16, 4, nobody_in_particular), (32, 0, nobody_in_particular)]
        text = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
        try:
            os.setxattr(path, "system.posix_acl_access", text)
        except OSError as error:
            self.skipTest(f"no access lists here: {error}")
        self.assertEqual(path.stat().st_mode & 0o777, 0o640, "the list's mask stands where the group's bits were")
        return path

    def test_to_its_group_before_it_has_its_access_list(self):
        call = {"x86_64": 190, "aarch64": 7}.get(platform.machine())  # fsetxattr
        if call is None:
            self.skipTest(f"the number of fsetxattr on {platform.machine()} is not known")
        path = self.with_list(0o600)
        done = self.run_tool("write", "--pattern", 100, path, preexec_fn=lambda: die_at(call))
        self.assertEqual(done.returncode, -signal.SIGSYS, done.stderr)
        unfinished, = set(self.folder.iterdir()) - {path}
        self.assertEqual(unfinished.stat().st_mode & 0o077, 0)

    def test_to_another_group(self):
        self.need_other_user()
        path = self.file("data", b"secret")
        path.chmod(0o664)
        os.chown(path, NOBODY, 0)
        self.json_of("write", "--pattern", 100, path, user=NOBODY, group=NOBODY, extra_groups=[])
        status = path.stat()
        self.assertEqual((status.st_gid, status.st_mode & 0o777), (NOBODY, 0o604))

    def test_to_another_group_by_its_access_list(self):
        self.need_other_user()
        path = self.with_list(0o600)
        os.chown(path, NOBODY, 0)
        error = self.fails("permission_denied", 4, "write", "--pattern", 100, path, user=NOBODY, group=NOBODY,
                           extra_groups=[])
        self.assertIn("in place", error["hint"])
        self.assertEqual((path.read_bytes(), self.names()), (b"secret", ["data"]))


class WriteKeepsHoles(ToolTest):
    def sparse(self, name, size, runs):
        """A file that has data at some places only."""
        path = self.sparse_file(name, size)
        with open(path, "r+b") as file:
            for offset, data in runs:
                os.pwrite(file.fileno(), data, offset)
        if path.stat().st_blocks * 512 >= size:
            self.skipTest("this file system has no holes")
        return path

    def test_of_a_tebibyte_at_once(self):
        data = os.urandom(MIB)
        source, copy = self.sparse("source", 1 << 40, [(1 << 39, data)]), self.folder / "copy"
        result = self.json_of("write", source, copy)
        self.assertEqual((result["bytes"], result["hole_bytes"]), (MIB, (1 << 40) - MIB))
        self.assertEqual(copy.stat().st_size, 1 << 40)
        self.assertLess(copy.stat().st_blocks * 512, 4 * MIB)
        with open(copy, "rb") as file:
            self.assertEqual(os.pread(file.fileno(), MIB + 2, (1 << 39) - 1), b"\0" + data + b"\0")

    def test_wherever_they_are(self):
        block = os.urandom(4096)
        for size, runs in [(MIB, []), (65 * MIB + 3, [(0, block)]), (65 * MIB + 3, [(65 * MIB, b"end")]),
                           (40 * MIB, [(i * 8192, block) for i in range(5000)])]:
            source, copy = self.sparse("source", size, runs), self.folder / "copy"
            written = self.json_of("write", source, copy, "--verify")
            self.assertEqual(copy.read_bytes(), source.read_bytes())
            self.assertEqual(written["bytes"] + written["hole_bytes"], size)
            self.assertLessEqual(copy.stat().st_blocks, source.stat().st_blocks + 1024)
            self.assertEqual(self.json_of("load", source, "--verify")["checksum"], written["checksum"])

    def test_in_place_as_zeros(self):
        source = self.sparse("source", 3 * MIB, [(MIB, b"data")])
        for offset in [0, 4096, 12345]:
            path = self.file("copy", b"x" * 4 * MIB)
            self.json_of("write", source, path, "--in-place", "--offset", offset, "--verify")
            expected = b"x" * offset + source.read_bytes() + b"x" * (MIB - offset)
            self.assertTrue(path.read_bytes() == expected, offset)
            self.assertLess(path.stat().st_blocks * 512, 2 * MIB)

    def test_past_the_end_in_place(self):
        source = self.sparse("source", 3 * MIB, [(MIB, b"data")])
        path = self.file("copy", b"x" * 10)
        self.json_of("write", source, path, "--in-place", "--offset", 5)
        self.assertEqual(path.read_bytes(), b"x" * 5 + source.read_bytes())

    def test_before_what_is_written_far_past_the_end(self):
        path, patch = self.file("disk", b"old"), self.file("patch", b"patch")
        self.sparse("probe", MIB, [])
        for arguments in [[patch, path], ["-", path]]:
            self.json_of("write", *arguments, "--in-place", "--offset", 1 << 40, **{"input": b"patch"})
            self.assertEqual(path.stat().st_size, (1 << 40) + 5)
            self.assertLess(path.stat().st_blocks * 512, MIB)

    def test_and_knows_before_the_first_byte_that_there_is_no_room(self):
        source = self.sparse("source", 8 * MIB, [(0, b"x" * 3 * MIB)])
        point = self.mount("size=2M")
        (point / "copy").write_bytes(b"old")
        self.fails("no_space", 5, "write", source, point / "copy")
        self.assertEqual((point / "copy").read_bytes(), b"old")


class WriteIsDurable(ToolTest):
    def failing(self, what):
        """The environment in which syncing fails."""
        library = os.environ.get("PENSTOCK_FAILING_SYNCS_LIBRARY")
        if os.environ.get("PENSTOCK_SANITIZE") or not library:
            self.skipTest("needs PENSTOCK_FAILING_SYNCS_LIBRARY, the library that makes syncs fail, and no sanitizer")
        return {"LD_PRELOAD": library, "PENSTOCK_FAILING_SYNCS": what}

    def test_and_says_how_long_that_took(self):
        source, copy = self.file("source", b"x" * MIB), self.folder / "copy"
        result = self.json_of("write", source, copy)
        self.assertGreater(result["sync_seconds"], 0)
        self.assertLessEqual(result["sync_seconds"], result["seconds"])
        self.assertIn(b"sync", self.run_tool("write", source, copy).stdout)
        self.assertEqual(self.json_of("write", source, copy, "--no-durable")["sync_seconds"], 0)

    def test_or_fails_and_leaves_the_old_file(self):
        source, path = self.file("source", b"new"), self.file("data", b"old")
        self.fails("io_error", 1, "write", source, path, env=self.failing("all"))
        self.assertEqual(path.read_bytes(), b"old")
        self.assertEqual(self.names(), ["data", "source"])

    def test_but_syncs_nothing_if_that_is_not_wanted(self):
        source, path = self.file("source", b"new"), self.file("data", b"old")
        for mode in [[], ["--in-place"]]:
            result = self.json_of("write", source, path, "--no-durable", *mode, env=self.failing("all"))
            self.assertIs(result["durable"], False)
            self.assertEqual(path.read_bytes(), b"new")

    def test_down_to_the_name_or_says_that_only_this_is_missing(self):
        source, path = self.file("source", b"new"), self.file("data", b"old")
        error = self.fails("not_durable", 1, "write", source, path, env=self.failing("folders"))
        self.assertIn("is complete under its name", error["message"])
        self.assertIn("power cut", error["hint"])
        self.assertEqual(path.read_bytes(), b"new")
        self.assertEqual(self.names(), ["data", "source"])

    def test_with_the_name_of_a_file_that_is_new_in_place(self):
        source, path = self.file("source", b"new"), self.file("data", b"old")
        self.json_of("write", source, path, "--in-place", env=self.failing("folders"))
        done = self.run_tool("write", source, self.folder / "made", "--in-place", "--json", env=self.failing("folders"))
        self.assertEqual(json.loads(done.stdout)["error"]["code"], "not_durable")
        self.assertEqual((self.folder / "made").read_bytes(), b"new")

    def test_nowhere_in_memory(self):
        point = self.mount("size=4M")
        source = self.file("source", b"x" * 5000)
        for mode in [[], ["--in-place"]]:
            result = self.json_of("write", source, point / "copy", *mode)
            self.assertEqual((result["durable"], result["not_durable_because"]), (False, "tmpfs is memory"))
        self.assertIn(b"tmpfs is memory", self.run_tool("write", source, point / "copy").stdout)
        result = self.json_of("write", source, self.folder / "copy")
        if result["durable"]:
            self.assertIsNone(result["not_durable_because"])

    def test_nowhere_on_an_overlay_over_memory(self):
        point = self.mount("size=4M")
        for name in ["lower", "upper", "work", "merged"]:
            (point / name).mkdir()
        options = f"lowerdir={point}/lower,upperdir={point}/upper,workdir={point}/work"
        done = subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", point / "merged"], capture_output=True)
        if done.returncode != 0:
            self.skipTest(f"can't mount an overlayfs here: {done.stderr}")
        self.addCleanup(subprocess.run, ["umount", point / "merged"])
        result = self.json_of("write", "--pattern", 5000, point / "merged" / "copy")
        self.assertEqual(result["not_durable_because"], "overlayfs is over tmpfs, which is memory")


class WriteStaysWithinItsControlGroup(ToolTest):
    """What takes more memory there is killed."""

    def test_whatever_the_source(self):
        source, copy = self.folder / "source", self.folder / "copy"
        size, limit = 140 * MIB, 60 * MIB
        self.json_of("write", "--pattern", size, source, "--no-durable")
        for arguments in [["--pattern", size, copy], [source, copy, "--verify"], ["-", copy, "--engine", "posix"],
                          [source, copy, "--options", '{"allowed_routes": ["buffered", "cached"]}']]:
            with open(source, "rb") as stdin:
                result = self.json_of("write", *arguments, "--no-durable", stdin=stdin,
                                      preexec_fn=self.memory_group(limit))
            self.assertEqual(result["bytes"], size)

    def test_or_says_that_a_file_in_memory_has_no_room(self):
        point = self.mount("size=200M")
        limited = self.memory_group(60 * MIB)
        for mode in [[], ["--in-place"]]:
            self.fails("out_of_memory", 5, "write", "--pattern", 100 * MIB, point / "copy", *mode, preexec_fn=limited)
        self.assertEqual(os.listdir(point), [])


class WriteOnAFileSystemOfNoSize(ToolTest):
    """ramfs tells that it has no blocks and none free, and takes whatever it is given."""

    def test_finds_it_not_full(self):
        point = self.mount("mode=700", "ramfs")
        self.assertEqual(os.statvfs(point).f_blocks, 0)
        self.json_of("write", "--pattern", MIB, point / "whole")
        sparse = self.sparse_file("sparse", 8 * MIB)
        with open(sparse, "r+b") as file:
            file.write(b"x" * MIB)
        self.json_of("write", sparse, point / "sparse")
        self.assertEqual((point / "sparse").read_bytes(), sparse.read_bytes())


class WriteRefuses(ToolTest):
    def test_what_is_missing(self):
        self.fails("not_found", 3, "write", self.folder / "missing", self.folder / "copy")
        self.fails("not_found", 3, "write", self.file("source", b"x"), self.folder / "missing" / "copy")
        self.assertEqual(self.names(), ["source"])

    def test_what_is_not_a_store(self):
        source = self.file("source", b"x")
        self.fails("is_directory", 1, "write", source, self.folder)
        self.fails("is_directory", 1, "write", self.folder, self.folder / "copy")
        self.fails("unsupported", 1, "write", source, "/dev/full")
        self.fails("unsupported", 1, "write", source, "/dev/full", "--in-place")

    def test_arguments_that_make_no_sense(self):
        source, copy = self.file("source", b"x"), self.folder / "copy"
        for arguments in [[source], [source, copy, copy], ["--pattern", "1", source, copy], ["--pattern", "x", copy],
                          ["--pattern", "1,", copy], ["--pattern", "1,-1", copy], ["--pattern", "1", "--size", 1, copy],
                          [source, copy, "--offset", 1], [source, copy, "--replace", "--in-place"],
                          [source, copy, "--offset", "1x", "--in-place"],
                          [source, copy, "--offset", 2**64 - 1, "--in-place"],
                          [source, source, "--in-place"], [source, source, "--in-place", "--offset", 1]]:
            self.fails("invalid_argument", 2, "write", *arguments)
        self.fails("out_of_range", 2, "write", source, copy, "--size", 2)
        self.assertEqual(self.names(), ["source"])
        self.assertEqual(source.read_bytes(), b"x")

    def test_a_file_that_this_user_may_not_write(self):
        self.need_other_user()
        source, path = self.file("source", b"new"), self.file("locked", b"old")
        path.chmod(0o444)
        for mode in [[], ["--in-place"]]:
            self.fails("permission_denied", 4, "write", source, path, *mode, user=NOBODY, group=NOBODY, extra_groups=[])
        self.assertEqual(path.read_bytes(), b"old")
        self.assertEqual(self.names(), ["locked", "source"])

    def test_a_folder_that_this_user_may_not_write_to(self):
        self.need_other_user()
        source, path = self.file("source", b"new"), self.file("data", b"old")
        path.chmod(0o666)
        self.folder.chmod(0o755)
        nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        error = self.fails("permission_denied", 4, "write", source, path, **nobody)
        self.assertIn("in place", error["hint"])
        self.assertEqual(path.read_bytes(), b"old")
        self.json_of("write", source, path, "--in-place", **nobody)
        self.assertEqual(path.read_bytes(), b"new")

    def test_a_read_only_file_system(self):
        point = self.mount("ro")
        self.fails("read_only", 4, "write", self.file("source", b"x"), point / "copy")

    def test_a_full_disk_and_keeps_the_old_file(self):
        point = self.mount("size=1M")
        source, path = self.file("source", bytes(4 * MIB)), point / "copy"
        path.write_bytes(b"old")
        for arguments in [[source, path], [source, path, "--in-place"], ["--pattern", "4MiB", path]]:
            self.fails("no_space", 5, "write", *arguments)
            self.assertEqual(path.read_bytes(), b"old")
        self.fails("no_space", 5, "write", "-", path, input=b"x" * 4 * MIB)
        self.assertEqual(path.read_bytes(), b"old")
        self.assertEqual([entry.name for entry in point.iterdir()], ["copy"])

    def test_a_source_that_is_cut_short_meanwhile_and_keeps_the_old_file(self):
        """A file that ends early looks as if it had a hole there."""
        truncating_seeks = os.environ.get("PENSTOCK_TRUNCATING_SEEKS")
        if os.environ.get("PENSTOCK_SANITIZE") or not truncating_seeks:
            self.skipTest("needs PENSTOCK_TRUNCATING_SEEKS, the library that cuts a file, and no sanitizer")
        old, source = self.file("copy", b"old"), self.file("source", b"x" * MIB)
        os.truncate(source, 2 * MIB)
        done = self.run_tool("write", source, old, "--json", env={
            "LD_PRELOAD": truncating_seeks, "TRUNCATED_FILE": str(source), "TRUNCATED_BYTES": str(MIB)})
        self.assertEqual(source.stat().st_size, MIB)
        error = json.loads(done.stdout)["error"]
        self.assertEqual((error["code"], done.returncode != 0), ("truncated", True), error)
        self.assertIn("became shorter", error["message"])
        self.assertEqual((old.read_bytes(), self.names()), (b"old", ["copy", "source"]))

    def test_more_than_the_process_may_write(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
        self.fails("no_space", 5, "write", "--pattern", "2MiB", self.folder / "copy", preexec_fn=limit)
        self.assertEqual(self.names(), [])

    def test_a_block_device_without_the_word(self):
        image = self.sparse_file("image", 4 * MIB)
        device = self.loop_device(image)
        source = self.file("source", os.urandom(10000))

        refused = self.run_tool("write", source, device, "--json")
        error = json.loads(refused.stdout)
        schema.check(error, "error")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("--allow-device-write", error["error"]["hint"])

        self.json_of("write", source, device, "--offset", 1000, "--allow-device-write", "--verify")
        blocks = self.json_of("load", device, "--lba", 1, "--count", 8, "--verify")
        self.assertEqual(blocks["bytes"], 4096)
        self.assertEqual(image.read_bytes()[1000:11000], source.read_bytes())
        self.fails("out_of_range", 2, "write", source, device, "--offset", 4 * MIB - 1, "--allow-device-write")
        before = image.read_bytes()
        self.fails("out_of_range", 2, "write", "--pattern", "70MiB", device, "--allow-device-write")
        self.assertEqual(image.read_bytes(), before)
        self.fails("invalid_argument", 2, "write", source, device, "--replace", "--allow-device-write")


class WriteIsInterrupted(ToolTest):
    def test_and_leaves_the_old_file(self):
        path = self.file("data", b"old")
        process = self.start("write", "-", path, stdin=subprocess.PIPE)
        process.stdin.write(b"x" * 70 * MIB)
        process.stdin.flush()
        wait_until(lambda: resident_bytes(process) > 64 * MIB)
        exit_code, _, stderr, seconds = self.interrupt(process)
        self.assertEqual(exit_code, 130, stderr)
        self.assertRegex(stderr, rb"interrupted; [0-9]+ bytes were written\n")
        self.assertLess(seconds, PROMPTLY)
        self.assertEqual(path.read_bytes(), b"old")
        self.assertEqual(self.names(), ["data"])

    def test_with_a_count_of_the_whole_file(self):
        size = 1 << 30
        process = self.start("write", "--pattern", size, self.folder / "copy", *SLOW)
        wait_until(lambda: self.names() and resident_bytes(process) > 64 * MIB)
        exit_code, _, stderr, _ = self.interrupt(process)
        self.assertEqual(exit_code, 130, stderr)
        self.assertRegex(stderr.decode(), f"interrupted; [0-9]+ of {size} bytes were written")

    def test_by_a_deadline_and_leaves_the_old_file(self):
        path = self.file("data", b"old")
        error = self.fails("timed_out", 124, "write", "--pattern", 1 << 30, path, *SLOW, "--deadline", 0.3)
        self.assertRegex(error["message"], f"the deadline passed; [0-9]+ of {1 << 30} bytes were written")
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        error = self.fails("timed_out", 124, "write", "-", path, "--deadline", 0.2, stdin=reading)
        self.assertIn("standard input had not ended; 0 bytes were written", error["message"])
        self.assertEqual((path.read_bytes(), self.names()), (b"old", ["data"]))
        self.json_of("write", "--pattern", 5000, path, "--deadline", 60)
        self.fails("invalid_argument", 2, "write", "--pattern", 5000, path, "--deadline", "soon")

    def test_while_nobody_writes_to_the_pipe(self):
        os.mkfifo(self.folder / "pipe")
        process = self.start("write", self.folder / "pipe", self.folder / "copy")
        wait_until(lambda: len(self.names()) == 2)
        exit_code, _, _, seconds = self.interrupt(process, signal.SIGINT)
        self.assertEqual(exit_code, 130)
        self.assertLess(seconds, PROMPTLY)
        self.assertEqual(self.names(), ["pipe"])

    def test_by_two_signals_at_once_as_by_one(self):
        process = self.start("write", "-", self.folder / "copy", stdin=subprocess.PIPE)
        process.stdin.write(b"x" * MIB)
        process.stdin.flush()
        wait_until(lambda: len(self.names()) == 1)
        process.send_signal(signal.SIGTERM)
        exit_code, _, stderr, _ = self.interrupt(process, signal.SIGINT)
        self.assertEqual((exit_code, self.names()), (130, []), stderr)

    def test_while_it_waits_for_input(self):
        process = self.start("write", "-", self.folder / "copy", stdin=subprocess.PIPE)
        wait_until(lambda: len(self.names()) == 1)
        time.sleep(0.2)
        exit_code, _, _, seconds = self.interrupt(process, signal.SIGTERM)
        self.assertEqual(exit_code, 130)
        self.assertLess(seconds, PROMPTLY)
        self.assertEqual(self.names(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
