"""penstock bench: what it measures, checks, leaves behind and refuses. Behaviour, not speed."""

import copy
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import unittest
import venv

import schema
from models_test import header
from tool import PROMPTLY, ToolTest, wait_until

MIB = 1 << 20
FAKE_CUDA = os.environ.get("PENSTOCK_FAKE_CUDA", "")
QUICK = ["--seconds", 0.2]
ROOT = pathlib.Path(__file__).resolve().parent


def embedded(page):
    return json.loads(re.search(r'<script type="application/json" id="bench">(.*?)</script>', page, re.DOTALL)[1])


class Bench(ToolTest):
    def test_measures_a_file_and_leaves_it_as_it_was(self):
        content = os.urandom(MIB + 17)
        path = self.file("data", content)
        before = path.stat()
        result = self.json_of("bench", path, *QUICK)
        after = path.stat()
        self.assertEqual((path.read_bytes(), after.st_mtime_ns), (content, before.st_mtime_ns))
        self.assertEqual(self.names(), ["data"])
        self.assertEqual([race["state"] for race in result["races"]], ["cached", "cold", "rows"])
        *loads, rows = result["races"]
        if rows["refused"]:
            self.assertIn("page cache", rows["refused"])
        else:
            by_hand, gather = rows["rows"]
            self.assertEqual((by_hand["plain"], gather["name"]), (True, "penstock, gather"))
            self.assertIs(gather["bytes_right"], True)
            self.assertEqual(sum(gather["routes"].values()), len(content) // 256 * 256)
        for race in loads:
            if race["refused"]:
                self.assertIn("page cache", race["refused"])
                continue
            yardstick, *others = race["rows"]
            self.assertTrue(yardstick["plain"])
            self.assertEqual(yardstick["ratio"]["median"], 1)
            self.assertTrue(any(row["name"] == "posix, auto" for row in others), race)
            for row in others:
                self.assertIs(row["bytes_right"], True)
                self.assertEqual(sum(row["routes"].values()), result["bytes"])
                self.assertEqual(len(row["ratio"]["rounds"]), len(yardstick["gb_per_s"]["rounds"]))
            self.assertEqual(race["conclusive"], yardstick["gb_per_s"]["spread"] <= 0.05)
            self.assertTrue(all(one["reason"] for one in race["left_out"]), race["left_out"])
        for curve in result["latency"]["curves"]:
            self.assertEqual([point["depth"] for point in curve["points"]], [1, 2, 4, 8, 16, 32, 64])

    def test_a_packed_model_is_measured_by_decoded_bytes_too(self):
        count = 2_400_000
        # One exponent, so half of the bits are told by one entry of the dictionary.
        plain = self.file("a.safetensors", header({"w": ("BF16", [count])}) + bytes([1, 0x3f]) * count)
        packed = self.folder / "packed" / "a.safetensors"
        self.json_of("pack", plain, "--out", packed.parent)
        self.assertIsNone(self.json_of("bench", plain, *QUICK)["packed"])
        result = self.json_of("bench", packed, "--seconds", 1)
        told = result["packed"]
        self.assertEqual((told["tensors"], told["decoded_bytes"]), (1, 2 * count))
        self.assertEqual(told["stored_bytes"], self.json_of("inspect", packed)["stored_bytes"])
        self.assertAlmostEqual(told["ratio"], told["stored_bytes"] / told["decoded_bytes"])
        self.assertLess(told["ratio"], 0.6)
        self.assertEqual([race["state"] for race in told["races"]], ["cached", "cold"])
        for race in told["races"]:
            if race["refused"]:
                self.assertIn("page cache", race["refused"])
            else:
                self.assertGreaterEqual(len(race["gb_per_s"]["rounds"]), 3)
        shown = self.run_tool("bench", "--from", self.file("result.json", json.dumps(result).encode())).stdout.decode()
        self.assertRegex(shown, r"decoded from .* stored, 0\.5\d\d of it")
        if not told["races"][0]["refused"]:
            self.assertRegex(shown, r"GB/s decoded, [0-9.]+ of ")
        del result["packed"]
        earlier = self.run_tool("bench", "--from", self.file("earlier.json", json.dumps(result).encode()))
        self.assertEqual((earlier.returncode, b"decoded" in earlier.stdout), (0, False))

    def test_layers_go_through_a_budget(self):
        layers, size = 8, 40_000
        tensors = {f"layers.{i}.weight": ("U8", [size]) for i in range(layers)}
        path = self.file("a.safetensors", header(tensors) + os.urandom(layers * size))
        arguments = ["bench", path, "--layers", *QUICK, "--budget"]
        done = self.run_tool(*arguments, "128KiB", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        schema.check(result, "layers")
        self.assertLessEqual(result["memory_bytes"], 128 << 10)
        self.assertEqual([each["name"] for each in result["groups"]], [f"layers.{i}" for i in range(layers)])
        self.assertAlmostEqual(result["hits_per_pass"] + result["waits_per_pass"], layers)
        self.assertGreater(result["smallest_budget_that_does_not"], result["largest_budget_that_waits"] or 0)
        text = self.run_tool(*arguments, "128KiB").stdout.decode()
        for word in ["a pass", "8 groups", "slots"]:
            self.assertIn(word, text)
        enough = json.loads(self.run_tool(*arguments, "1MiB", "--json").stdout)
        self.assertEqual((enough["waits_per_pass"], enough["loaded_bytes_per_pass"]), (0, 0))

    def test_layers_refuse_what_makes_no_sense(self):
        path = self.file("a.safetensors", header({"layers.0.weight": ("U8", [50_000])}) + bytes(50_000))
        error = self.fails("invalid_argument", 2, "bench", path, "--layers", "--budget", "4KiB")
        self.assertIn("budget", error["message"])
        self.fails("not_found", 3, "bench", path, "--layers", "--groups", "blk.*")
        self.fails("not_found", 3, "bench", self.folder / "nothing", "--layers")
        self.assertEqual(self.run_tool("bench", path, "--budget", "1MiB").returncode, 2)
        self.assertEqual(self.run_tool("bench", path, "--layers", "--write").returncode, 2)

    def test_a_directory_is_measured_with_a_file_that_is_gone_afterwards(self):
        result = self.json_of("bench", self.folder, "--size", "1MiB", "--write", *QUICK)
        self.assertIs(result["store"]["scratch"], True)
        written = result["races"][-1]
        self.assertEqual((written["state"], written["refused"]), ("written", None))
        self.assertTrue(all(row["bytes_right"] for row in written["rows"]))
        self.assertEqual(self.names(), [])

    def test_a_page_holds_the_data_and_needs_nothing_else(self):
        (self.folder / "<").mkdir()
        path = self.file("</script><b>&'\"\u00e9", os.urandom(MIB))
        page_file, json_file = self.folder / "page.html", self.folder / "result.json"
        result = self.json_of("bench", path, *QUICK, "--html", page_file)
        page = page_file.read_text()
        self.assertEqual(embedded(page), result)
        self.assertEqual(page.count("</script>"), 2)
        self.assertNotIn("<b>", page)
        outside = [word for word in re.findall(r"https?:[^\"' ]*|(?:src|href)=|@import", page)
                   if word != "http://www.w3.org/2000/svg"]
        self.assertEqual(outside, [])

        json_file.write_text(json.dumps(result))
        again = self.json_of("bench", "--from", json_file, "--html", self.folder / "again.html")
        self.assertEqual(again, result)
        self.assertEqual((self.folder / "again.html").read_text(), page)
        text = self.run_tool("bench", "--from", json_file).stdout.decode()
        for word in ["cached:", "cold:", "4 KiB", "plain", "posix, auto", "verdict", "p99.9"]:
            self.assertIn(word, text)
        text, code = self.on_terminal(40, "bench", "--from", json_file, env={"NO_COLOR": "1"})
        self.assertEqual(code, 0)
        self.assertTrue(all(len(line) <= 40 for line in text.replace("\r", "\n").split("\n")), text)

    def test_every_chart_says_when_it_is_inconclusive(self):
        if not shutil.which("node"):
            self.skipTest("there is no node to draw the page with")
        data, page = self.folder / "result.json", self.folder / "page.html"
        result = self.json_of("bench", self.file("data", os.urandom(MIB)), *QUICK)
        figures = {key: result["races"][0]["rows"][0][key] for key in ("gb_per_s", "ratio", "cpu_seconds_per_gb")}
        for conclusive in [True, False]:
            for race in result["races"]:
                race["conclusive"] = conclusive
            for point in (point for curve in result["latency"]["curves"] for point in curve["points"]):
                point["conclusive"] = conclusive or point["depth"] != 4
            ceiling = copy.deepcopy(figures)
            ceiling["gb_per_s"]["spread"] = 0.01 if conclusive else 0.2
            result["peers"] = {"device": "cpu", "python": "python3", "missing": [],
                               "ceiling": {"cached": ceiling, "cold": ceiling},
                               "loaders": [{"name": "penstock", "version": "1", "setting": {}, "cached": figures,
                                            "cold": figures, "start_seconds": 1, "extra_device_bytes": 0,
                                            "extra_host_bytes": 0, "wrong": []}]}
            data.write_text(json.dumps(result))
            shown = self.run_tool("bench", "--from", data, "--html", page).stdout.decode()
            self.assertEqual("inconclusive" in shown.split("loaders of")[1], not conclusive, shown)
            drawn = subprocess.run(["node", ROOT / "draw_page.js", page], capture_output=True, text=True, timeout=60)
            self.assertEqual(drawn.returncode, 0, drawn.stderr)
            charts = json.loads(drawn.stdout)
            self.assertGreaterEqual(len(charts), 4)
            for chart in charts:
                self.assertEqual("inconclusive" in chart["beside"], not conclusive, chart)

    def test_wrong_bytes_fail_the_run(self):
        wrong_reads = os.environ.get("PENSTOCK_WRONG_READS")
        if os.environ.get("PENSTOCK_SANITIZE") or not wrong_reads:
            self.skipTest("needs PENSTOCK_WRONG_READS, the library that spoils reads, and no sanitizer")
        path = self.file("data", os.urandom(MIB))
        done = self.run_tool("bench", path, "--json", *QUICK, env={"LD_PRELOAD": wrong_reads})
        result = json.loads(done.stdout)
        schema.check(result, "bench")
        self.assertEqual(done.returncode, 1)
        self.assertFalse(all(row["bytes_right"] for row in result["races"][0]["rows"]))

    def test_memory_is_not_storage(self):
        mount = self.mount("size=32m")
        (mount / "data").write_bytes(os.urandom(MIB))
        result = self.json_of("bench", mount / "data", *QUICK)
        cached, cold, rows = result["races"]
        self.assertEqual((cached["refused"], cold["rows"], rows["refused"]), (None, [], None))
        self.assertIn("tmpfs is memory", cold["refused"])
        self.assertIn("memory", " ".join(result["notes"]))

    def test_into_a_gpu_the_bus_is_the_yardstick(self):
        if not (pathlib.Path(FAKE_CUDA) / "libcuda.so.1").exists():
            self.skipTest("PENSTOCK_FAKE_CUDA does not name the folder of the fake driver")
        result = self.json_of("bench", self.folder, "--size", "1MiB", "--write", "--to", "cuda:0", *QUICK,
                              env={"LD_LIBRARY_PATH": FAKE_CUDA})
        cached = result["races"][0]
        self.assertEqual(cached["rows"][0]["name"], "pinned copies")
        self.assertTrue(all(row["bytes_right"] for race in result["races"] for row in race["rows"]))
        self.assertTrue(result["machine"]["gpu"]["name"])

    def test_interruption_leaves_nothing(self):
        page = self.folder / "page.html"
        for signal_number in [signal.SIGINT, signal.SIGTERM]:
            process = self.start("bench", self.folder, "--size", "4MiB", "--seconds", 600, "--write", "--html", page)
            wait_until(lambda: len([name for name in open_files(process.pid) if ".penstock-scratch-" in name]) > 2)
            code, _, stderr, seconds = self.interrupt(process, signal_number)
            self.assertEqual((code, stderr), (130, b"penstock: interrupted\n"))
            self.assertLess(seconds, PROMPTLY)
            self.assertEqual(self.names(), [])

    def test_a_person_sees_it_work(self):
        path = self.file("data", os.urandom(MIB))
        text, code = self.on_terminal(60, "bench", path, "--seconds", 1, env={"NO_COLOR": "1"})
        self.assertEqual(code, 0, text)
        self.assertIn("round 2", text)
        self.assertTrue(all(len(line) <= 60 for line in text.replace("\r", "\n").split("\n")), text)


class Refusals(ToolTest):
    def test_paths_that_cannot_be_measured(self):
        small = self.file("small", b"x" * 1000)
        self.assertIn("small", self.fails("invalid_argument", 2, "bench", small)["message"])
        self.fails("invalid_argument", 2, "bench", self.file("empty"))
        self.fails("not_found", 3, "bench", self.folder / "missing")
        os.mkfifo(self.folder / "fifo")
        for special in [self.folder / "fifo", "/dev/null"]:
            self.assertNotEqual(self.run_tool("bench", special).returncode, 0)
        self.assertEqual(self.names(), ["empty", "fifo", "small"])

    def test_paths_of_others(self):
        self.need_other_user()
        path = self.file("data", b"x" * MIB)
        path.chmod(0o600)
        locked = self.folder / "locked"
        locked.mkdir(0o755)
        for place in [path, locked]:
            done = self.run_tool("bench", place, "--json", user=65534, group=65534, extra_groups=[])
            self.assertEqual((json.loads(done.stdout)["error"]["code"], done.returncode), ("permission_denied", 4))

    def test_wishes_that_do_not_go_together(self):
        data = self.file("data", b"x" * MIB)
        self.assertIn("directory", self.fails("invalid_argument", 2, "bench", data, "--write")["message"])
        self.fails("invalid_argument", 2, "bench")
        self.fails("invalid_argument", 2, "bench", data, "--from", data)
        self.fails("invalid_argument", 2, "bench", data, "--python", "python3")
        self.fails("invalid_argument", 2, "bench", data, "--to", "mars")
        self.fails("invalid_argument", 2, "bench", data, "--seconds", 0)
        self.fails("invalid_argument", 2, "bench", data, "--seconds", "nan")
        self.fails("out_of_memory", 5, "bench", data, "--size", "1000TiB")
        self.assertIn("safetensors", self.fails("invalid_argument", 2, "bench", self.folder, "--peers")["message"])

    def test_no_gpu(self):
        data = self.file("data", b"x" * MIB)
        self.fails("no_device", 1, "bench", data, "--to", "cuda:0", env={"CUDA_VISIBLE_DEVICES": ""})

    def test_results_that_are_none(self):
        self.fails("not_found", 3, "bench", "--from", self.folder / "missing")
        whole = {"schema": "penstock.bench/1", "races": []}
        for text in ["", "{", "[]", "{}", '{"schema": 1}', json.dumps(whole), json.dumps({**whole, "races": 7})]:
            self.fails("invalid_argument", 2, "bench", "--from", self.file("result", text.encode()))
        for deep in ["[" * 500_000, "[" * 500_000 + "]" * 500_000]:
            for text in [deep, '{"schema": "penstock.bench/1", "races": ' + deep + "}", '{"schema": ' + deep + "}"]:
                self.fails("invalid_argument", 2, "bench", "--from", self.file("result", text.encode()))

    def test_a_page_that_cannot_be_written_is_known_before_measuring(self):
        data = self.file("data", b"x" * MIB)
        self.fails("not_found", 3, "bench", data, "--seconds", 3600, "--html", self.folder / "no" / "page.html")
        self.fails("invalid_argument", 2, "bench", data, "--seconds", 3600, "--html", self.folder)
        self.fails("invalid_argument", 2, "bench", data, "--seconds", 3600, "--html", "/dev/null")
        self.assertTrue(pathlib.Path("/dev/null").is_char_device())
        (self.folder / "link").hardlink_to(data)
        self.fails("invalid_argument", 2, "bench", data, "--seconds", 3600, "--html", self.folder / "link")
        self.assertEqual(data.read_bytes(), b"x" * MIB)

    def test_a_full_disk_leaves_no_page(self):
        mount = self.mount("size=16k")
        data = self.file("data", os.urandom(MIB))
        self.fails("no_space", 5, "bench", data, *QUICK, "--html", mount / "page.html")
        self.assertEqual(list(mount.iterdir()), [])


def series(median, width=0.01):
    return {"median": median, "p25": median * (1 - width / 2), "p75": median * (1 + width / 2), "spread": width,
            "rounds": [median]}


def result_of(speeds, *, yardstick=10, conclusive=True, width=0.01):
    """As much of a result as is compared."""
    rows = [{"name": "plain reads", "plain": True, "gb_per_s": series(yardstick)}]
    rows += [{"name": name, "plain": False, "gb_per_s": series(speed, width)} for name, speed in speeds.items()]
    point = {"depth": 1, "iops": series(1000), "conclusive": conclusive}
    return {"schema": "penstock.bench/1", "to": "host", "bytes": 1, "machine": {"cpu": "one"}, "peers": None,
            "races": [{"state": "cached", "conclusive": conclusive, "rows": rows}],
            "latency": {"curves": [{"name": "penstock", "plain": False, "points": [point]}]}}


class Comparison(ToolTest):
    def compare(self, before, after, worse=0):
        old, new = (self.file(name, json.dumps(content).encode()) for name, content in [("old", before), ("new", after)])
        done = self.run_tool("bench", "--compare", old, new, "--json")
        result = json.loads(done.stdout)
        schema.check(result, "compare")
        self.assertEqual((done.returncode, result["worse"]), (1 if worse else 0, worse), result)
        text = self.run_tool("bench", "--compare", old, new)
        self.assertEqual(text.returncode, done.returncode)
        verdicts = {row["name"]: row["verdict"] for row in result["rows"] if row["group"] != "4 KiB, 1 at a time"}
        for name, verdict in verdicts.items():
            self.assertRegex(text.stdout.decode(), rf"{name}.*{verdict}")
        return result, verdicts

    def test_tells_what_changed_by_more_than_the_noise(self):
        before = result_of({"uring": 8, "posix": 6, "cufile": 5, "gone": 1})
        after = result_of({"uring": 9, "posix": 5, "cufile": 5.1, "fresh": 1})
        result, verdicts = self.compare(before, after, worse=1)
        self.assertEqual(verdicts, {"plain reads": "same within noise", "uring": "better", "posix": "worse",
                                    "cufile": "same within noise", "gone": "only in the old", "fresh": "only in the new"})
        row = next(row for row in result["rows"] if row["name"] == "posix")
        self.assertEqual((row["old"], row["new"], round(row["ratio"], 3), row["spread"]), (6, 5, 0.833, 0.03))
        self.assertEqual(result["notes"], [])

    def test_noise_is_no_change(self):
        self.compare(result_of({"uring": 8}, width=0.3), result_of({"uring": 6}), worse=0)

    def test_what_is_inconclusive_is_no_change(self):
        for other in [result_of({"uring": 4}, conclusive=False), result_of({"uring": 4}, yardstick=5)]:
            _, verdicts = self.compare(result_of({"uring": 8}), other)
            self.assertEqual(verdicts["uring"], "inconclusive")

    def test_other_machines_are_told(self):
        other = {**result_of({"uring": 8}), "machine": {"cpu": "two"}, "to": "cuda:0"}
        result, _ = self.compare(result_of({"uring": 8}), other)
        self.assertEqual(len(result["notes"]), 2)

    def test_results_of_the_script_are_compared_too(self):
        def report(seconds):
            row = {"kind": "ratio", "title": "small reads", "ours_name": "penstock", "peer_name": "fio",
                   "unit": "p50_seconds", "lower_is_better": True, "ours": series(seconds), "peer": series(1)}
            return {"schema": "penstock-bench-1", "settings": {"spread_limit": 0.05}, "machine": {},
                    "results": {"small": {"rows": [row, {"kind": "figure"}]}}}

        _, verdicts = self.compare(report(1), report(2), worse=1)
        self.assertEqual(verdicts, {"fio": "same within noise", "penstock": "worse"})
        self.assertEqual(self.compare(report(2), report(1))[1]["penstock"], "better")

    def test_what_is_no_result_is_refused(self):
        good = self.file("good", json.dumps(result_of({})).encode())
        script = self.file("script", b'{"schema": "penstock-bench-1", "results": {}}')
        self.fails("invalid_argument", 2, "bench", "--compare", good, self.file("bad", b"{}"))
        self.fails("invalid_argument", 2, "bench", "--compare", good, self.file("part", b'{"schema": "penstock.bench/1"}'))
        self.fails("invalid_argument", 2, "bench", "--compare", good, script)
        self.fails("invalid_argument", 2, "bench", "--compare", good)
        self.fails("invalid_argument", 2, "bench", good, "--compare", good, good)
        self.fails("not_found", 3, "bench", "--compare", good, self.folder / "missing")


class Peers(ToolTest):
    def test_loaders_that_are_not_installed_are_named(self):
        # A new environment has none of the loaders, whatever is installed beside its Python, and says so at once.
        venv.create(self.folder / "python", symlinks=True)
        python = self.folder / "python" / "bin" / "python"
        model = self.folder / "model.safetensors"
        self.assertEqual(self.run_tool("sample", model, "--size", "2MiB").returncode, 0)
        result = self.json_of("bench", model, "--peers", "--python", python, *QUICK)
        missing = {one["name"]: one["reason"] for one in result["peers"]["missing"]}
        self.assertIn("No module named", missing["safetensors"])
        self.assertIn("beside the model", missing["torch.load"])
        self.assertEqual((missing["NIXL"], missing["pageable copy"]), ("needs a GPU", "needs a GPU"))
        self.assertEqual((result["peers"]["loaders"], result["peers"]["python"]), ([], str(python)))
        self.assertEqual(self.names(), ["model.safetensors", "python"])
        self.fails("not_found", 3, "bench", model, "--peers", "--python", self.folder / "no python", *QUICK)

    def test_interruption_ends_all_processes(self):
        python = self.file("python", b"#!/bin/sh\nsleep 1000 &\necho $! > \"$0.child\"\nwait\n")
        python.chmod(0o755)
        model = self.folder / "model.safetensors"
        self.assertEqual(self.run_tool("sample", model, "--size", "2MiB").returncode, 0)
        process = self.start("bench", model, "--peers", "--python", python, *QUICK)
        child = self.folder / "python.child"
        wait_until(lambda: child.exists() and child.read_text().endswith("\n"))
        self.assertEqual(self.interrupt(process)[0], 130)
        # Whoever inherits it may not have looked yet: then it is a zombie.
        status = pathlib.Path(f"/proc/{child.read_text().strip()}/stat")
        wait_until(lambda: not status.exists() or status.read_text().split()[2] in "ZX")


def open_files(process):
    folder = pathlib.Path(f"/proc/{process}/fd")
    names = []
    for link in folder.iterdir():
        try:
            names.append(os.readlink(link))
        except OSError:
            continue
    return names


if __name__ == "__main__":
    unittest.main(verbosity=2)
