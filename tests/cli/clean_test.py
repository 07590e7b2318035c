"""What a writer that was killed leaves, and penstock clean, which removes it."""

import contextlib
import errno
import os
import platform
import re
import signal
import stat
import subprocess
import time
import unittest

from tool import NOBODY, ToolTest, refuse, wait_until

MIB = 1 << 20
NAME = re.compile(r"\.data\.[0-9a-f]{16}\.part")
FLOCK = {"x86_64": 73, "aarch64": 32}.get(platform.machine())


class CleanTest(ToolTest):
    def start_writer(self, path, size=4 * MIB, **how):
        """A writer that has reserved its room and waits for input, and the name of its unfinished file."""
        time.sleep(0.02)  # more than file systems round times down by: one that was left before may have the same name
        started = time.time_ns() - 10_000_000
        process = self.start("write", "-", path, "--size", size, stdin=subprocess.PIPE, **how)

        def unfinished():
            for name in os.listdir(path.parent):
                with contextlib.suppress(FileNotFoundError):
                    status = (path.parent / name).stat()
                    if name.endswith(".part") and status.st_ctime_ns >= started and status.st_size == size:
                        return path.parent / name
            return None

        wait_until(unfinished)
        return process, unfinished()

    def leftover(self, path, size=4 * MIB, **how):
        """What a writer left that was killed."""
        process, unfinished = self.start_writer(path, size, **how)
        process.kill()
        process.wait()
        self.assertTrue(unfinished.exists())
        return unfinished


class KilledWriter(CleanTest):
    def test_leaves_what_the_next_write_of_the_name_removes(self):
        path = self.file("data", b"old")
        self.assertRegex(self.leftover(path).name, NAME)
        self.leftover(path)
        self.assertEqual(path.read_bytes(), b"old")
        self.json_of("write", self.file("source", b"new"), path)
        self.assertEqual(self.names(), ["data", "source"])
        self.assertEqual(path.read_bytes(), b"new")

    def test_leaves_room_for_the_next_write(self):
        point = self.mount("size=6M")
        self.leftover(point / "data")
        self.json_of("write", "--pattern", 4 * MIB, point / "data")
        self.assertEqual(os.listdir(point), ["data"])

    def test_of_another_name_is_no_business_of_a_write(self):
        left = [self.leftover(self.folder / name) for name in ["data.old", "dat", "data.0123456789abcdef.part"]]
        self.json_of("write", "--pattern", 1, self.folder / "data")
        self.assertTrue(all(path.exists() for path in left))

    def test_does_not_end_another_that_lives(self):
        process, unfinished = self.start_writer(self.folder / "data", 3)
        self.json_of("write", "--pattern", 1, self.folder / "data")
        kept = self.json_of("clean", self.folder)["kept"]
        self.assertEqual([(entry["path"], entry["code"]) for entry in kept], [(str(unfinished), "in_use")])
        stdout, stderr = process.communicate(b"abc", timeout=60)
        self.assertEqual(process.returncode, 0, stdout + stderr)
        self.assertEqual((self.folder / "data").read_bytes(), b"abc")
        self.assertEqual(self.names(), ["data"])

    def test_may_be_killed_at_any_time(self):
        contents = [os.urandom(4 * MIB) for _ in range(2)]
        sources = [self.file(f"source-{i}", content) for i, content in enumerate(contents)]
        path = self.file("data", contents[0])
        for i in range(20):
            process = self.start("write", sources[i % 2], path)
            time.sleep(0.004 * i)
            process.kill()
            process.wait()
            self.assertIn(path.read_bytes(), contents)
        self.json_of("clean", self.folder)
        self.assertEqual(self.names(), ["data", "source-0", "source-1"])

    def test_where_nothing_can_be_locked_leaves_what_stays(self):
        if FLOCK is None:
            self.skipTest(f"the number of flock on {platform.machine()} is not known here")
        left = self.leftover(self.folder / "data", preexec_fn=lambda: refuse(FLOCK, errno.EOPNOTSUPP))
        self.assertRegex(left.name, r"^\.data\.[0-9a-f]{16}\.nolock\.part$")
        self.json_of("write", "--pattern", 1, self.folder / "data")
        result = self.json_of("clean", self.folder)
        self.assertEqual([(entry["path"], entry["code"]) for entry in result["kept"]], [(str(left), "unsupported")])
        self.assertTrue(left.exists())


class Clean(CleanTest):
    def test_removes_leftovers_and_says_what_that_frees(self):
        left = [self.leftover(self.folder / name) for name in ["a", "b"]]
        dry = self.json_of("clean", self.folder, "--dry-run")
        self.assertTrue(all(path.exists() for path in left))
        result = self.json_of("clean", self.folder)
        self.assertEqual(result["removed"], dry["removed"])
        self.assertEqual([entry["path"] for entry in result["removed"]], sorted(map(str, left)))
        self.assertGreaterEqual(result["bytes"], 8 * MIB)
        self.assertEqual((dry["dry_run"], result["dry_run"], result["kept"]), (True, False, []))
        self.assertEqual(self.names(), [])
        self.assertEqual(self.json_of("clean", self.folder)["removed"], [])

    def test_tells_a_person_the_same(self):
        left = self.leftover(self.folder / "a")
        done = self.run_tool("clean", self.folder, "--dry-run")
        self.assertEqual(done.stdout.decode(), f"would remove {left}, 4.19 MB\n1 leftover, 4.19 MB to free\n")
        done = self.run_tool("clean", self.folder)
        self.assertEqual(done.stdout.decode(), f"removed {left}, 4.19 MB\n1 leftover, 4.19 MB freed\n")
        self.assertEqual(self.run_tool("clean", self.folder, "--quiet").stdout, b"")

    def test_looks_at_nothing_that_is_named_otherwise(self):
        for name in ["x.0123456789abcdef.part", ".x.0123456789abcde.part", ".x.0123456789ABCDEF.part",
                     "..0123456789abcdef.part", ".x0123456789abcdef.part", ".x.0123456789abcdef.part~", ".part"]:
            self.file(name, b"mine")
        before = self.names()
        result = self.json_of("clean", self.folder)
        self.assertEqual((result["removed"], result["kept"]), ([], []))
        self.assertEqual(self.names(), before)

    def test_looks_at_nothing_but_files(self):
        target = self.file("target", b"mine")
        (self.folder / ".a.0123456789abcdef.part").symlink_to(target)
        (self.folder / ".b.0123456789abcdef.part").mkdir()
        os.mkfifo(self.folder / ".c.0123456789abcdef.part")
        before = self.names()
        result = self.json_of("clean", self.folder)
        self.assertEqual((result["removed"], result["kept"]), ([], []))
        self.assertEqual(self.names(), before)

    def test_goes_below_if_it_is_told_and_never_through_a_link(self):
        for name in ["a", "a/b", "elsewhere"]:
            (self.folder / name).mkdir()
        here, below, elsewhere = (self.leftover(self.folder / name) for name in ["a/data", "a/b/data", "elsewhere/data"])
        (self.folder / "a" / "link").symlink_to(self.folder / "elsewhere")
        self.assertEqual([entry["path"] for entry in self.json_of("clean", self.folder / "a")["removed"]], [str(here)])
        removed = self.json_of("clean", self.folder / "a", "--recursive")["removed"]
        self.assertEqual([entry["path"] for entry in removed], [str(below)])
        self.assertTrue(elsewhere.exists())

    def test_does_not_go_into_another_file_system(self):
        point = self.mount("size=16m")
        here, there = self.leftover(self.folder / "data"), self.leftover(point / "data")
        removed = self.json_of("clean", self.folder, "--recursive")["removed"]
        self.assertEqual([entry["path"] for entry in removed], [str(here)])
        self.assertTrue(there.exists())

    def test_goes_256_folders_deep_and_names_what_lies_deeper(self):
        left = self.leftover(self.folder / "data")
        levels = [self.folder]
        for _ in range(258):
            levels.append(levels[-1] / "d")
            levels[-1].mkdir()
        for level in levels[256], levels[257]:
            (level / left.name).write_bytes(b"x")
        result = self.json_of("clean", self.folder, "--recursive")
        self.assertEqual([entry["path"] for entry in result["removed"]], [str(left), str(levels[256] / left.name)])
        self.assertEqual([entry["path"] for entry in result["kept"]], [str(levels[257])])
        self.assertIn("clean it separately", result["kept"][0]["reason"])
        self.assertEqual(len(self.json_of("clean", levels[257])["removed"]), 1)

    def test_takes_several_folders(self):
        folders = [self.folder / name for name in ["a", "b"]]
        for folder in folders:
            folder.mkdir()
            self.leftover(folder / "data")
        self.assertEqual(len(self.json_of("clean", *folders)["removed"]), 2)

    def test_says_what_it_may_not_remove(self):
        self.need_other_user()
        left = self.leftover(self.folder / "data")
        self.folder.chmod(0o755)
        done = self.run_tool("clean", self.folder, user=NOBODY, group=NOBODY, extra_groups=[])
        self.assertEqual(done.returncode, 4)
        self.assertIn(b"hint: ", done.stderr)
        self.assertTrue(left.exists())

    def test_refuses_what_is_no_folder(self):
        left = self.leftover(self.folder / "a")
        self.fails("not_found", 3, "clean", self.folder, self.folder / "missing")
        self.assertTrue(left.exists(), "nothing is removed where a name is wrong")
        self.fails("not_found", 3, "clean", self.folder / "missing")
        self.fails("invalid_argument", 2, "clean", self.file("file"))
        self.fails("invalid_argument", 2, "clean")


if __name__ == "__main__":
    unittest.main(verbosity=2)
