"""penstock engines, penstock doctor, help and usage, from the outside."""

import ctypes
import json
import mmap
import os
import resource
import subprocess
import unittest

import schema
from tool import NOBODY, SLOW, ToolTest, refuse_io_uring, refuse_io_uring_enter, wait_until

MIB = 1 << 20
COMMANDS = ["load", "write", "inspect", "verify", "engines", "doctor", "tune", "bench", "top", "nvme", "report", "sample",
            "completion", "manual"]


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
        self.assertIn("penstock nvme gpu-selftest --help", self.fails("invalid_argument", 2, "nvme", "gpu-selftest")["hint"])
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
        self.assertIn("io_uring", findings[0]["what"])

    def test_a_filter_that_refuses_only_the_use_of_rings_is_found_out_at_once(self):
        how = {"preexec_fn": refuse_io_uring_enter, "timeout": 30}  # requests that get nowhere end after 60 seconds
        path = self.file("data", os.urandom(MIB))
        loaded = self.json_of("load", path, "--verify", **how)
        self.assertEqual(loaded["engine"], "posix")
        error = self.fails("engine_unavailable", 1, "load", path, "--engine", "uring", **how)
        self.assertIn("io_uring_enter was refused", error["message"])
        findings = self.json_of("doctor", path, **how)["findings"]
        self.assertIn("io_uring_enter was refused", findings[0]["what"])


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
        result = self.json_of("doctor", path)
        store = result["store"]
        self.assertEqual(store["size_bytes"], 5 * MIB)
        self.assertTrue(store["explanation"])
        self.assertEqual(store["mount"]["file_system"], store["file_system"])
        # All of it, or as much as its time allows on a busy machine.
        self.assertIn(store["cached"]["bytes"], range(1, 5 * MIB + 1))
        self.assertEqual(set(store["cached"]["routes"]), {"cached"})
        if store["direct"]:
            self.assertEqual(store["cold"]["routes"], {"direct": store["cold"]["bytes"]})
        else:
            self.assertTrue(store["no_cold_because"])
        works = {each["route"] for each in result["routes"] if each["works"]}
        self.assertLessEqual({"cached", "buffered"}, works)
        measured = {each["route"]: each["gb_per_s"] for each in result["routes"] if each["gb_per_s"]}
        self.assertEqual(measured["cached"], store["cached"]["gb_per_s"])
        self.assertEqual(result["way"][-1]["to"], "host buffer")
        self.agrees_on_one_limit(result)

    def agrees_on_one_limit(self, result):
        """The verdict, the data path and the JSON name the same limit, or none."""
        marked = [place for place, edge in enumerate(result["way"]) if edge["limit"]]
        if result["limit"] is None:
            self.assertEqual(marked, [])
            self.assertNotIn("is the limit", result["verdict"])
            return
        self.assertIn(result["limit"]["what"] + " is the limit", result["verdict"])
        self.assertTrue(result["limit"]["why"])
        self.assertEqual(len(marked), 1)
        reaches_memory = result["way"][marked[0]]["to"] == "host buffer"
        self.assertEqual(reaches_memory, result["limit"]["limit"] != "storage", result["way"])
        for sample in filter(None, [result["store"]["cold"], result["store"]["cached"]]):
            self.assertNotIn("limit", sample)

    def test_names_one_limit_also_where_cold_is_faster_than_cached(self):
        path = self.file("data", os.urandom(4 * MIB))
        slow = {"LD_PRELOAD": os.environ.get("PENSTOCK_SLOW_CALLS", ""), "PENSTOCK_SLOW_CACHED": "1"}
        can_preload = slow["LD_PRELOAD"] and not os.environ.get("PENSTOCK_SANITIZE")
        for env in [{}, slow] if can_preload else [{}]:
            result = self.json_of("doctor", path, "--engine", "posix", env=env)
            self.agrees_on_one_limit(result)
            store = result["store"]
            if not store["cold"] or not store["cached"]:
                continue
            if store["cold"]["gb_per_s"] > 1.2 * store["cached"]["gb_per_s"]:
                self.assertEqual(result["limit"]["limit"], "cpu")
            if store["cached"]["gb_per_s"] > 1.21 * store["cold"]["gb_per_s"]:
                self.assertEqual(result["limit"]["limit"], "storage")

    def test_of_a_folder_takes_the_largest_file(self):
        self.file("small", b"x")
        large = self.file("large", os.urandom(MIB))
        self.assertEqual(self.json_of("doctor", self.folder)["store"]["name"], str(large))

    def test_says_when_there_is_nothing_on_the_disk(self):
        result = self.json_of("doctor", self.sparse_file("sparse", 8 * MIB))
        if result["store"]["extents"] is None:
            self.skipTest("the file system does not tell where bytes are")
        self.assertTrue([each for each in result["findings"] if "holes" in each["what"]], result["findings"])

    def test_an_empty_file_has_no_speed(self):
        result = self.json_of("doctor", self.file("empty"))
        self.assertEqual((result["store"]["cold"], result["store"]["cached"], result["way"]), (None, None, []))
        self.assertIn("is empty", result["verdict"])

    def test_memory_has_nothing_colder(self):
        path = self.mount("size=8m") / "data"
        path.write_bytes(os.urandom(MIB))
        store = self.json_of("doctor", path)["store"]
        self.assertIsNone(store["cold"])
        self.assertIn("memory", store["no_cold_because"])
        self.assertEqual(store["cached"]["bytes"], MIB)

    def test_leaves_the_page_cache_as_it_was(self):
        path = self.file("data", os.urandom(4 * MIB))
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        first = self.json_of("doctor", path)["store"]
        if first["cached_bytes"] != 0:
            self.skipTest(f"the file can't be evicted here: {first['cached_bytes']} bytes stay")
        self.assertEqual(self.json_of("doctor", path)["store"]["cached_bytes"], 0)
        # Others use the page cache too, and the kernel may take a page away at any time: once without them is enough.
        for _ in range(5):
            path.read_bytes()
            told = [self.json_of("doctor", path)["store"]["cached_bytes"] for _ in range(2)]
            if told == [4 * MIB, 4 * MIB]:
                return
        self.fail(f"of a file that is cached, the page cache held {told} bytes")

    def test_leaves_the_page_cache_of_a_file_that_was_there_in_parts(self):
        path = self.file("data", os.urandom(4 * MIB))
        for more in [[], ["--all"], ["--engine", "posix"]]:
            for _ in range(5):  # as above
                self.cache_parts(path)
                before = cached_pages(path)
                if not 0 < len(before) < 1024:
                    self.skipTest(f"{len(before)} of 1024 pages are cached: the kernel does not tell, or reads more than it "
                                  "is told to")
                self.assertTrue(self.run_tool("doctor", path, *more).stdout)
                after = cached_pages(path)
                if after == before:
                    break
            self.assertEqual(after, before, more)

    def cache_parts(self, path):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # the kernel reads nothing more than it is told to
            for place in [3, 4, 300, 1023]:
                os.pread(file.fileno(), 4096, place * 4096)

    def test_measures_for_a_second_at_most(self):
        path = self.sparse_file("sparse", 1 << 30)
        options = '{"storage_chunk_bytes": 4096, "operations_in_flight": 1}'
        store = self.json_of("doctor", path, "--engine", "posix", "--lanes", 1, "--options", options)["store"]
        for sample in filter(None, [store["cold"], store["cached"]]):
            self.assertLessEqual(sample["bytes"], 256 * MIB)
            self.assertGreater(sample["bytes"], 0)
            self.assertLess(sample["seconds"], 2)

    def test_fits_on_a_screen_unless_all_of_it_is_wanted(self):
        path = self.file("data", os.urandom(MIB))
        short, exit_code = self.on_terminal(80, "doctor", path, env={"NO_COLOR": "1", "PENSTOCK_ENGINE": "warp" * 200})
        self.assertEqual(exit_code, 0, short)
        self.assertLessEqual(len(short.splitlines()), 20, short)
        self.assertIn("--all", short)
        few = self.run_tool("doctor", path, env={"PENSTOCK_ENGINE": "warp"}).stdout.decode()
        self.assertLessEqual(len(few.splitlines()), 20, few)
        self.assertIn("PENSTOCK_ENGINE=warp", few)
        self.assertNotIn("routes", few)
        everything = self.run_tool("doctor", path, "--all").stdout.decode()
        for word in ["data path", "routes", "machine", "engines", "options"]:
            self.assertIn(word, everything)

    def test_misses_nothing_that_could_not_be_used_here(self):
        devices = self.folder / "sys" / "bus" / "pci" / "devices"
        devices.mkdir(parents=True)
        without = self.json_of("doctor", "--sysfs", self.folder / "sys")["findings"]
        self.assertFalse([each for each in without if "vfio" in each["what"] or "udev" in each["what"]], without)
        (devices / "0000:01:00.0").mkdir()
        (devices / "0000:01:00.0" / "class").write_text("0x010802\n")
        with_disk = self.json_of("doctor", "--sysfs", self.folder / "sys")
        vfio = [each for each in with_disk["findings"] if "vfio" in each["what"]]
        self.assertEqual(len(vfio), 0 if os.path.exists("/dev/vfio/vfio") else 1, with_disk["findings"])
        self.assertEqual([each["gain"]["factor"] for each in vfio], [1] * len(vfio))
        self.assertNotIn("vfio", self.run_tool("doctor", "--sysfs", self.folder / "sys").stdout.decode())

    def test_says_the_verdict_first(self):
        path = self.file("data", os.urandom(MIB))
        first_line = self.run_tool("doctor", path).stdout.decode().splitlines()[0]
        self.assertIn("expect about", first_line)
        self.assertIn("cached", first_line)
        self.assertIn(str(path), first_line)

    def test_draws_the_way_as_the_locale_allows(self):
        path = self.file("data", os.urandom(MIB))
        drawn = self.run_tool("doctor", path, "--all", env={"LC_ALL": "C.UTF-8"}).stdout.decode()
        self.assertIn("   │  measured cached\n  host buffer\n", drawn)
        self.assertIn(b"   |  measured cached\n", self.run_tool("doctor", path, "--all", env={"LC_ALL": "C"}).stdout)

    def test_tells_what_a_container_limits(self):
        limits = {each["name"]: each for each in self.json_of("doctor")["limits"]}
        self.assertLessEqual({"io_uring", "lockable memory", "memory", "CPUs", "huge pages", "udev"}, set(limits))
        self.need_other_user()
        few = self.json_of("doctor", user=NOBODY, group=NOBODY, extra_groups=[],
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536)))
        limits = {each["name"]: each for each in few["limits"]}
        self.assertEqual(limits["lockable memory"]["state"], "missing")
        self.assertIn("memlock", limits["lockable memory"]["remedy"])
        found = [each for each in few["findings"] if "lockable memory" in each["what"]]
        self.assertTrue(found[0]["gain"]["text"])

    def test_names_what_stands_in_the_way(self):
        result = self.json_of("doctor", env={"PENSTOCK_ENGINE": "warp"})
        self.assertIn("PENSTOCK_ENGINE=warp", result["findings"][0]["what"])
        self.fails("not_found", 3, "doctor", self.folder / "missing")
        error = self.fails("is_directory", 1, "doctor", self.folder)
        self.assertIn("has no file to measure", error["message"])
        self.assertIn("penstock sample", error["hint"])

    def test_fits_a_narrow_terminal(self):
        path = self.file("data", b"x" * 10000)
        text, exit_code = self.on_terminal(40, "doctor", path, "--all", env={"NO_COLOR": "1"})
        self.assertEqual(exit_code, 0, text)
        self.assertNotIn("\x1b", text)
        for line in text.split("\r\n"):
            self.assertLessEqual(len(line), 40, line)
        painted, _ = self.on_terminal(40, "doctor", path, "--all")
        self.assertIn("\x1b[32m✓\x1b[0m", painted)
        self.assertNotIn("\x1b", self.on_terminal(40, "doctor", path, env={"TERM": "dumb"})[0])
        self.assertNotIn(b"\x1b", self.run_tool("doctor", path).stdout)


def cached_pages(path):
    """Numbers of the pages that are in the page cache, as mincore tells it: reading would change it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        place = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    failed = libc.mincore(ctypes.c_void_p(place), ctypes.c_size_t(size), pages)
    libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(size))
    assert failed == 0, ctypes.get_errno()
    return [number for number, there in enumerate(pages) if there & 1]


class Interrupted(ToolTest):
    def test_leaves_no_bundle_behind(self):
        path = self.sparse_file("sparse", 1 << 30)
        process = self.start("doctor", path, "--bundle", self.folder / "report.json", *SLOW)
        wait_until(lambda: len(self.names()) == 2)
        code, _, error, _ = self.interrupt(process)
        self.assertEqual(code, 130, error)
        self.assertEqual(self.names(), ["sparse"])


class Bundle(ToolTest):
    def test_has_all_of_it_and_no_names(self):
        path = self.file("secret-project.bin", os.urandom(MIB))
        done = self.run_tool("doctor", path, "--bundle", self.folder / "report.json",
                             env={"HOME": "/home/jane-doe", "USER": "jane-doe", "API_TOKEN": "hush"})
        self.assertEqual(done.returncode, 0, done.stderr)
        text = (self.folder / "report.json").read_text()
        schema.check(json.loads(text), "bundle")
        for secret in ["secret-project", str(self.folder), "jane-doe", "hush"]:
            self.assertNotIn(secret, text)
        self.assertIn("<store>: expect about", text)

    def test_that_can_not_be_written_is_an_error_and_leaves_nothing(self):
        self.fails("not_found", 3, "doctor", "--bundle", self.folder / "missing" / "report.json")
        self.fails("is_directory", 1, "doctor", "--bundle", self.folder)
        self.assertEqual(self.names(), [])
        point = self.mount("size=4k")
        self.fails("no_space", 5, "doctor", "--bundle", point / "report.json")
        self.assertEqual(list(point.iterdir()), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
