"""penstock load, from the outside."""

import json
import os
import pathlib
import signal
import threading
import unittest

import schema
from tool import NOBODY, PROMPTLY, SLOW, TOOL, ToolTest, cached_bytes, resident_bytes, wait_until

MIB = 1 << 20


class Load(ToolTest):
    def test_a_file_arrives_whole_and_says_how(self):
        path = self.file("data", os.urandom(3 * MIB + 17))
        result = self.json_of("load", path, "--verify")
        self.assertEqual(result["bytes"], 3 * MIB + 17)
        self.assertEqual(sum(result["routes"].values()), 3 * MIB + 17)
        self.assertIs(result["verified"], True)
        self.assertEqual(result["paths"], [str(path)])
        self.assertTrue(result["reason"])
        self.assertAlmostEqual(result["gb_per_s"], result["bytes"] / result["seconds"] / 1e9, places=6)

    def test_a_person_is_told_the_same(self):
        path = self.file("data", b"x" * 5000)
        done = self.run_tool("load", path, "--verify")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in [b"5.00 kB", b"routes", b"engine", b"reason", b"verified", b"xxh3"]:
            self.assertIn(word, done.stdout)
        self.assertEqual(done.stderr, b"")
        self.assertEqual(self.run_tool("load", path, "--quiet").stdout, b"")

    def test_ends_with_what_it_cost_and_what_was_not_used(self):
        path = self.file("data", os.urandom(2 * MIB))
        result = self.json_of("load", path, "--engine", "posix")
        self.assertEqual(result["device_bytes"], 0)
        self.assertGreaterEqual(result["process_cpu_seconds"], 0)
        unused = {each["engine"]: each["reason"] for each in result["not_used"]}
        self.assertNotIn("posix", unused)
        self.assertTrue(unused["uring"])
        self.assertTrue(all(unused.values()), unused)
        text = self.run_tool("load", path).stdout
        for word in [b"routes", b"reason", b"CPU", b"a GB", b"set-up"]:
            self.assertIn(word, text)

    def test_verification_is_null_unless_asked_for(self):
        result = self.json_of("load", self.file("data", b"x"))
        self.assertIsNone(result["verified"])
        self.assertIsNone(result["checksum"])

    def test_verification_finds_wrong_bytes(self):
        if os.environ.get("PENSTOCK_SANITIZE"):
            self.skipTest("a sanitizer wants to be preloaded first")
        wrong_reads = os.environ.get("PENSTOCK_WRONG_READS")
        if not wrong_reads:
            self.skipTest("PENSTOCK_WRONG_READS does not name the library that spoils reads")
        path = self.file("data", os.urandom(2 * MIB))
        done = self.run_tool("load", path, "--verify", "--json", env={"LD_PRELOAD": wrong_reads})
        result = json.loads(done.stdout)
        schema.check(result, "load")
        self.assertEqual(done.returncode, 1)
        self.assertIs(result["verified"], False)
        self.assertEqual(result["error"]["code"], "io_error")

    def test_an_empty_file_is_no_error(self):
        result = self.json_of("load", self.file("empty"), "--verify")
        self.assertEqual(result["bytes"], 0)
        self.assertEqual(result["routes"], {})
        self.assertIs(result["verified"], True)

    def test_several_files_are_one_request(self):
        first, second = os.urandom(MIB + 1), os.urandom(4097)
        both = self.json_of("load", self.file("a", first), self.file("empty"), self.file("b", second), "--verify")
        whole = self.json_of("load", self.file("ab", first + second), "--verify")
        self.assertEqual(both["bytes"], whole["bytes"])
        self.assertEqual(both["checksum"], whole["checksum"])

    def test_a_part_is_that_part(self):
        content = os.urandom(2 * MIB)
        path = self.file("data", content)
        part = self.json_of("load", path, "--offset", "1KiB", "--size", "1.5K", "--verify")
        blocks = self.json_of("load", path, "--lba", 2, "--count", 3, "--verify")
        alone = self.json_of("load", self.file("part", content[1024:2560]), "--verify")
        self.assertEqual(part["bytes"], 1536)
        self.assertEqual(part["checksum"], alone["checksum"])
        self.assertEqual(blocks["checksum"], alone["checksum"])
        tail = self.json_of("load", path, "--offset", 2 * MIB - 5)
        self.assertEqual(tail["bytes"], 5)
        self.assertEqual(self.json_of("load", path, "--offset", 2 * MIB)["bytes"], 0)

    def test_units_count_as_documented(self):
        path = self.sparse_file("sparse", 5 << 30)
        sizes = {"7": 7, "7B": 7, "2K": 2048, "2KiB": 2048, "2KB": 2000, "3M": 3 << 20, "3MiB": 3 << 20, "3MB": 3000000,
                 "0.5M": 1 << 19, "1KB": 1000}
        for text, size in sizes.items():
            self.assertEqual(self.json_of("load", path, "--size", text)["bytes"], size, text)
        for text in ["", "x", "-1", "+1", "1.", "1.5", ".5M", "1 K", "1kib", "0x10", "1e3", "1KiBx", "18446744073709551616",
                     "17179869184GiB", "16777216T"]:
            self.fails("invalid_argument", 2, "load", path, f"--size={text}")

    def test_every_engine_that_works_gives_the_same_bytes(self):
        path = self.file("data", os.urandom(MIB + 3))
        listed = self.json_of("engines")["engines"]
        # Those with a way to GPUs know no other.
        engines = [each["name"] for each in listed
                   if each["available"] and each["device_route"] is None and "file" in each["schemes"]]
        self.assertIn("posix", engines)
        for engine in engines:
            for cache in ["auto", "keep", "bypass"]:
                result = self.json_of("load", path, "--engine", engine, "--cache", cache, "--lanes", 1, "--verify")
                self.assertEqual(result["engine"], engine)
                self.assertIs(result["verified"], True)

    def test_the_environment_overrides_the_engine(self):
        path = self.file("data", b"x" * 100000)
        self.assertEqual(self.json_of("load", path, env={"PENSTOCK_ENGINE": "posix"})["engine"], "posix")
        self.fails("unknown_engine", 2, "load", path, env={"PENSTOCK_ENGINE": "warp"})

    def test_pinned_memory_keeps_to_its_budget(self):
        path = self.file("data", os.urandom(MIB))
        done = self.run_tool("load", path, "--to", "pinned", "--verify", "--json")
        if done.returncode == 5:
            self.skipTest(f"no memory can be locked here: {done.stdout}")
        self.assertIs(json.loads(done.stdout)["verified"], True)
        error = self.fails("over_budget", 5, "load", self.sparse_file("large", 512 * MIB), "--to", "pinned")
        self.assertIn("pinned_budget_bytes", error["hint"])

    def test_names_may_be_uris_and_need_not_be_text(self):
        path = self.file("with space", b"abc")
        self.assertEqual(self.json_of("load", f"file:{self.folder}/with%20space", "--verify")["bytes"], 3)
        self.assertEqual(self.json_of("load", f"file://{path}", "--verify")["bytes"], 3)
        odd = os.fsencode(self.folder) + b"/\xff\x1b[31m"
        pathlib.Path(os.fsdecode(odd)).write_bytes(b"abc")
        self.assertEqual(self.json_of("load", os.fsdecode(odd), "--verify")["bytes"], 3)
        self.assertNotIn(b"\x1b", self.run_tool("load", os.fsdecode(odd) + "missing").stderr)


class LoadToStandardOutput(ToolTest):
    def test_bytes_of_all_paths_come_in_order_and_the_report_goes_to_standard_error(self):
        first, second = os.urandom(5 * MIB + 3), os.urandom(70_001)
        paths = [self.file("first", first), self.file("second", second)]
        done = self.run_tool("load", *paths, "--to", "-", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, first + second)
        report = json.loads(done.stderr)
        self.assertEqual((report["to"], report["bytes"]), ("-", len(first) + len(second)))
        part = self.run_tool("load", paths[0], "--to", "-", "--offset", "1000", "--size", "4000", "--quiet")
        self.assertEqual((part.stdout, part.stderr), (first[1000:5000], b""))

    def test_a_reader_that_goes_away_is_an_error(self):
        path = self.file("data", bytes(8 * MIB))
        reading, writing = os.pipe()
        os.close(reading)
        try:
            done = self.run_tool("load", path, "--to", "-", stdout=writing)
        finally:
            os.close(writing)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"the program that reads it has exited", done.stderr)

    def test_a_reader_that_stops_reading_is_waited_for_until_the_deadline(self):
        path = self.file("data", bytes(8 * MIB))
        reading, writing = os.pipe()
        try:
            done = self.run_tool("load", path, "--to", "-", "--deadline", "0.3", stdout=writing)
        finally:
            os.close(reading)
            os.close(writing)
        self.assertEqual(done.returncode, 124, done.stderr)
        self.assertIn(b"had not taken everything by the deadline", done.stderr)

    def test_what_makes_no_sense_there_is_refused(self):
        path = self.file("data", b"x" * 5000)
        done = self.run_tool("load", path, "--to", "-", "--verify")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, b"")
        self.assertIn(b"--to - excludes --verify", done.stderr)


class LoadTellsWhatHappened(ToolTest):
    """About what is in the page cache, and what only came there by reading."""

    SIZE = 48 * MIB

    def file_with_cached_half(self, cached):
        path = self.file("data", os.urandom(self.SIZE))
        os.chmod(path, 0o644)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if cached_bytes(file) != 0:
                self.skipTest("the kernel does not tell what is cached, or keeps it all")
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            file.read(cached)
            self.cached = cached_bytes(file)
        return path

    def left_of(self, path):
        with open(path, "rb") as file:
            return cached_bytes(file)

    def test_what_the_kernel_reads_ahead_was_not_cached(self):
        result = self.json_of("load", self.file_with_cached_half(0), "--cache", "keep")
        self.assertEqual(result["routes"], {"buffered": self.SIZE})
        self.assertIn("cache=keep", result["reason"])

    def test_a_file_that_fits_stays_in_the_page_cache(self):
        path = self.file_with_cached_half(0)
        first = self.json_of("load", path)
        self.assertEqual(first["routes"], {"buffered": self.SIZE})
        self.assertIn("the file fits", first["reason"])
        self.assertEqual(self.left_of(path), self.SIZE)
        self.assertEqual(self.json_of("load", path)["routes"], {"cached": self.SIZE})

    def test_a_cached_half_is_told_apart_and_the_rest_leaves_nothing_where_it_does_not_fit(self):
        path = self.file_with_cached_half(16 * MIB)
        result = self.json_of("load", path, env={"PENSTOCK_CACHE_LIMIT": "1"})
        self.assertEqual(sum(result["routes"].values()), self.SIZE)
        self.assertLessEqual(result["routes"]["cached"], self.cached)
        self.assertGreater(result["routes"]["cached"], 0)
        self.assertLessEqual(self.left_of(path), self.cached)

    def test_what_is_guessed_of_a_file_of_somebody_else_is_called_a_guess(self):
        self.need_other_user()
        path = self.file_with_cached_half(16 * MIB)
        done = self.run_tool("load", path, "--json", user=NOBODY, group=NOBODY, extra_groups=[],
                             env={"PENSTOCK_CACHE_LIMIT": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertIn("a guess", result["reason"])
        self.assertLessEqual(result["routes"].get("cached", 0), self.cached, result["reason"])
        self.assertLess(self.left_of(path), self.SIZE, "what was cold is not left in the page cache")


class LoadFromAStream(ToolTest):
    def test_standard_input_goes_into_memory_or_on_to_standard_output(self):
        for content in [b"", b"abc", os.urandom(66 * MIB + 5)]:
            report = self.json_of("load", "-", input=content)
            self.assertEqual((report["paths"], report["bytes"], report["engine"]), (["-"], len(content), ""))
            self.assertEqual(report["routes"], {"buffered": len(content)} if content else {})
        done = self.run_tool("load", "-", "--to", "-", "--json", input=content)
        self.assertEqual((done.returncode, done.stdout), (0, content))
        self.assertEqual(json.loads(done.stderr)["bytes"], len(content))
        said = self.run_tool("load", "-", input=b"abc")
        self.assertIn(b"engine      none", said.stdout)

    def test_part_of_it_has_exactly_the_size_that_was_asked_for(self):
        self.assertEqual(self.json_of("load", "-", "--size", 3, input=b"abcdef")["bytes"], 3)
        self.assertEqual(self.json_of("load", "/dev/zero", "--size", "2MiB")["bytes"], 2 * MIB)
        error = self.fails("truncated", 1, "load", "-", "--size", 7, input=b"abcdef")
        self.assertIn("ended after 6 of 7 bytes", error["message"])

    def test_pipes_and_files_without_a_size_are_streams_too(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(b"x" * 100_000,))
        writer.start()
        self.addCleanup(writer.join)
        self.assertEqual(self.json_of("load", pipe)["bytes"], 100_000)
        done = self.run_tool("load", "/proc/self/comm", "--to", "-", "--quiet")
        self.assertEqual(done.stdout, os.path.basename(TOOL)[:15].encode() + b"\n")

    def test_that_does_not_end_is_given_up_at_the_deadline(self):
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        os.write(writing, b"abc")
        for where in ["host", "-"]:
            done = self.run_tool("load", "-", "--to", where, "--deadline", 0.2, stdin=reading)
            self.assertEqual(done.returncode, 124, done.stderr)
            self.assertIn(b"the deadline passed, and standard input had not ended", done.stderr)

    def test_that_ends_early_says_how_much_had_arrived(self):
        error = self.fails("truncated", 1, "load", "-", "--size", 10, input=b"hello\n")
        self.assertIn("ended after 6 of 10 bytes; 6 bytes had arrived", error["message"])

    def test_is_refused_what_only_a_file_can_give(self):
        other = self.file("data", b"x")
        for more in [["--verify"], ["--repeat", 2], ["--offset", 1], ["--lba", 1], ["--select", "*"], [other]]:
            error = self.fails("invalid_argument", 2, "load", "-", *more, input=b"abc")
            self.assertIn("penstock write - FILE", error["hint"])


class LoadRefuses(ToolTest):
    def test_what_is_missing(self):
        error = self.fails("not_found", 3, "load", self.folder / "missing")
        self.assertIn("missing", error["message"])
        self.fails("not_found", 3, "load", self.file("there", b"x"), self.folder / "missing")

    def test_what_is_not_a_store(self):
        self.fails("is_directory", 1, "load", self.folder, "--raw")
        self.fails("unsupported", 1, "load", "/dev/zero")

    def test_what_this_user_may_not_read(self):
        self.need_other_user()
        path = self.file("secret", b"x")
        path.chmod(0o600)
        self.fails("permission_denied", 4, "load", path, user=NOBODY, group=NOBODY, extra_groups=[])

    def test_ranges_past_the_end(self):
        path = self.file("data", b"x" * 1000)
        for part in [["--offset", 1001], ["--size", 1001], ["--offset", 999, "--size", 2], ["--lba", 1, "--count", 1]]:
            error = self.fails("out_of_range", 2, "load", path, *part)
            self.assertIn("1000", error["hint"])

    def test_ranges_that_overflow(self):
        path = self.file("data", b"x")
        most = 2**64 - 1
        self.fails("invalid_argument", 2, "load", path, "--offset", most, "--size", most)
        self.fails("invalid_argument", 2, "load", path, "--lba", most, "--count", 1)
        self.fails("out_of_range", 2, "load", path, "--offset", most)

    def test_ranges_in_two_units(self):
        path = self.file("data", b"x")
        self.fails("invalid_argument", 2, "load", path, "--offset", 0, "--count", 1)
        self.fails("invalid_argument", 2, "load", path, "--size", 0, "--lba", 1)

    def test_more_than_memory_before_allocating_it(self):
        path = self.sparse_file("huge", 1 << 43)
        error = self.fails("out_of_memory", 5, "load", path)
        self.assertIn("--offset", error["hint"])
        self.assertEqual(self.json_of("load", path, "--offset", "1T", "--size", "4K")["bytes"], 4096)

    def test_malformed_options(self):
        path = self.file("data", b"x")
        for options in ["{", "[]", '{"lanes": "many"}', '{"lanes": -1}', '{"warp": 1}', '{"cache": "maybe"}', "7"]:
            self.fails("invalid_argument", 2, "load", path, "--options", options)
        self.fails("not_found", 3, "load", path, "--options", f"@{self.folder}/missing")
        self.fails("invalid_argument", 2, "load", path, "--options", f"@{self.sparse_file('large', 2 * MIB)}")
        good = self.file("options.json", b'{"engine": "posix", "lanes": 2}')
        self.assertEqual(self.json_of("load", path, "--options", f"@{good}")["engine"], "posix")

    def test_unknown_engines_schemes_and_domains(self):
        path = self.file("data", b"x")
        self.fails("unknown_engine", 2, "load", path, "--engine", "warp")
        self.fails("unknown_scheme", 2, "load", "warp://data")
        self.fails("invalid_argument", 2, "load", path, "--to", "moon")
        self.fails("invalid_argument", 2, "load", path, "--cache", "maybe")
        self.fails("invalid_argument", 2, "load", path, "--lanes", "-1")


class LoadIsInterrupted(ToolTest):
    def test_promptly_and_says_so(self):
        path = self.sparse_file("sparse", 2 << 30)
        for signal_number in [signal.SIGINT, signal.SIGTERM]:
            process = self.start("load", path, *SLOW, "--json")
            wait_until(lambda: resident_bytes(process) > 32 * MIB)
            exit_code, stdout, stderr, seconds = self.interrupt(process, signal_number)
            self.assertEqual(exit_code, 130, stderr)
            self.assertLess(seconds, PROMPTLY)
            result = json.loads(stdout)
            schema.check(result, "error")
            self.assertEqual(result["error"]["code"], "cancelled")

    def test_by_a_signal_between_short_rounds(self):
        path = self.file("weights", bytes(16 * MIB))
        model = self.folder / "model"
        self.assertEqual(self.run_tool("sample", model).returncode, 0)
        for signal_number, source in [(signal.SIGINT, path), (signal.SIGTERM, path), (signal.SIGTERM, model)]:
            process = self.start("load", source, "--repeat", 1000, "--lanes", 1, "--timeline", self.folder / "trace")
            wait_until(lambda: len(self.names()) == 3)
            code, _, stderr, _ = self.interrupt(process, signal_number)
            self.assertEqual(code, 130)
            self.assertRegex(stderr, rb"\Apenstock: interrupted(; \d+ of \d+ bytes were transferred)?\n\Z")

    def test_by_the_deadline_that_was_given(self):
        path = self.sparse_file("sparse", 2 << 30)
        error = self.fails("timed_out", 124, "load", path, *SLOW, "--deadline", 0.1)
        self.assertIn("the deadline passed", error["message"])
        model = self.folder / "model"
        self.assertEqual(self.run_tool("sample", model).returncode, 0)
        self.json_of("load", model, "--deadline", 60)
        for wrong in ["0", "-1", "nan", "soon"]:
            self.fails("invalid_argument", 2, "load", path, "--deadline", wrong)

    def test_by_a_deadline(self):
        path = self.sparse_file("sparse", 2 << 30)
        options = {"storage_chunk_bytes": 4096, "operations_in_flight": 1, "deadlines": {"request_seconds": 0.2}}
        done = self.run_tool("load", path, "--engine", "posix", "--lanes", 1, "--options", json.dumps(options), "--json")
        self.assertEqual(done.returncode, 124, done.stdout)
        self.assertIn(json.loads(done.stdout)["error"]["code"], ["timed_out", "abandoned"])


class LoadOfAChangingFile(ToolTest):
    def test_that_is_cut_short_is_an_error_with_its_failures(self):
        path = self.sparse_file("sparse", 128 * MIB)
        process = self.start("load", path, *SLOW, "--json")
        wait_until(lambda: resident_bytes(process) > 32 * MIB)
        os.truncate(path, 0)
        stdout, stderr = process.communicate(timeout=60)
        result = json.loads(stdout)
        schema.check(result, "error")
        self.assertEqual(process.returncode, 1, stderr)
        self.assertIn(result["error"]["code"], ["truncated", "changed"])
        self.assertEqual(len(result["error"]["failures"]), min(64, result["error"]["failure_count"]))
        self.assertGreater(result["error"]["failure_count"], 0)


class Progress(ToolTest):
    def test_is_drawn_on_a_terminal_and_fits(self):
        path = self.sparse_file("sparse", 128 * MIB)
        text, exit_code = self.on_terminal(40, "load", path, *SLOW)
        self.assertEqual(exit_code, 0, text)
        self.assertIn("of 134 MB", text)
        self.assertNotIn("\x1b", text)
        for line in text.replace("\r", "\n").split("\n"):
            self.assertLessEqual(len(line), 40, line)

    def test_is_not_drawn_elsewhere(self):
        path = self.sparse_file("sparse", 64 * MIB)
        self.assertEqual(self.run_tool("load", path, *SLOW).stderr, b"")
        text, _ = self.on_terminal(80, "load", path, *SLOW, "--quiet")
        self.assertEqual(text, "")
        text, _ = self.on_terminal(80, "load", path, *SLOW, "--json")
        self.assertTrue(text.startswith("{"), text)


class Timeline(ToolTest):
    def test_shows_every_operation_of_every_lane(self):
        path, trace = self.file("data", os.urandom(5 * MIB)), self.folder / "trace.json"
        self.json_of("load", path, "--timeline", trace, "--lanes", 2, "--cache", "bypass")
        events = [each for each in json.loads(trace.read_text())["traceEvents"] if each["ph"] == "X"]
        storage = [each for each in events if each["name"] == "storage"]
        self.assertEqual(sum(each["args"]["bytes"] for each in storage), 5 * MIB)
        rows = {}
        for event in sorted(events, key=lambda each: each["ts"]):
            row = (event["pid"], event["tid"])
            self.assertGreaterEqual(event["ts"] + 0.01, rows.get(row, 0), event)
            rows[row] = event["ts"] + event["dur"]
        self.assertIn(b"timeline", self.run_tool("load", path, "--timeline", trace).stdout)

    def test_that_can_not_be_written_is_known_before_the_load(self):
        path = self.file("data", os.urandom(MIB))
        self.fails("not_found", 3, "load", path, "--timeline", self.folder / "missing" / "trace.json")
        self.fails("is_directory", 1, "load", path, "--timeline", self.folder)
        self.assertEqual(self.names(), ["data"])

    def test_on_a_full_disk_leaves_nothing(self):
        path, point = self.file("data", os.urandom(16 * MIB)), self.mount("size=4k")
        self.fails("no_space", 5, "load", path, "--timeline", point / "trace.json", *SLOW[:4], "--options",
                   '{"storage_chunk_bytes": 65536}')
        self.assertEqual(list(point.iterdir()), [])

    def test_of_an_interrupted_load_is_not_kept(self):
        path = self.sparse_file("sparse", 4 << 30)
        process = self.start("load", path, "--timeline", self.folder / "trace.json", *SLOW)
        wait_until(lambda: len(self.names()) == 2)
        code, _, error, _ = self.interrupt(process)
        self.assertEqual(code, 130, error)
        self.assertEqual(self.names(), ["sparse"])


class Watch(ToolTest):
    def test_shows_the_lanes_on_a_terminal_and_then_makes_room(self):
        path = self.sparse_file("sparse", 128 * MIB)
        text, code = self.on_terminal(40, "load", path, "--watch", *SLOW)
        self.assertEqual(code, 0, text)
        self.assertIn("lane 0 ", text)
        self.assertIn("waits for storage", text)
        for line in text.replace("\x1b[J", "\r").split("\r\n"):
            self.assertLessEqual(len(line.split("\r")[-1]), 44, line)  # with the codes that colour it
        self.assertTrue(text.split("\x1b[J")[-1].startswith("134 MB in"), text[-300:])

    def test_is_silent_elsewhere(self):
        path = self.file("data", os.urandom(MIB))
        done = self.run_tool("load", path, "--watch")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertNotIn(b"\x1b", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
