"""penstock tier: files on tiers of disks, as a user moves them."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import time
import unittest
import xml.etree.ElementTree

import schema
from tool import NOBODY, TOOL, ToolTest, environment, wait_until


class TierTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.tiers = ["nvme", "ssd", "hdd"]
        for tier in self.tiers:
            (self.folder / tier).mkdir()
        self.env = {"PENSTOCK_TIERS": str(self.folder / "catalog.db")}
        self.tier("init", *[f"{tier}={self.folder / tier}" for tier in self.tiers], "--capacity", "1GiB", "--least-stay", 0)

    def tier(self, *arguments):
        return self.json_of("tier", *arguments, env=self.env)

    def put(self, name, content=b"content"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def use(self, name, times):
        for _ in range(times):
            self.assertEqual(self.run_tool("load", f"tier:{name}", "--quiet", env=self.env).returncode, 0)


class Commands(TierTest):
    def test_import_list_move_and_check(self):
        content = os.urandom(300_000)
        self.put("hdd/models/a.bin", content)
        self.put("hdd/b", b"b")
        self.assertEqual(self.tier("import", "--all")["unit_count"], 2)
        self.assertEqual([unit["name"] for unit in self.tier("list")["units"]], ["b", "models/a.bin"])
        self.assertEqual(self.tier("list", "--prefix", "models/")["units"][0]["bytes"], 300_000)
        moved = self.tier("move", "models/a.bin", "nvme")
        self.assertEqual((moved["unit_count"], moved["bytes"]), (1, 300_000))
        self.assertEqual((self.folder / "nvme/models/a.bin").read_bytes(), content)
        self.assertFalse((self.folder / "hdd/models/a.bin").exists())
        where = self.tier("where", "models/a.bin")["path"]
        self.assertEqual(where, str(self.folder / "nvme/models/a.bin"))
        self.assertEqual(self.tier("check", "--bytes")["findings"], [])
        self.fails("not_found", 3, "tier", "where", "models/c", env=self.env)
        self.fails("not_found", 3, "tier", "move", "b", "tape", env=self.env)

    @unittest.skipIf(os.environ.get("PENSTOCK_SANITIZE"), "sanitizers take more memory than a limit leaves")
    def test_move_and_check_through_as_much_memory_as_there_is(self):
        content = os.urandom(40 << 20)
        self.put("hdd/a", content)
        self.tier("import", "--all")
        for limit, tier in [(20, "nvme"), (32, "ssd")]:
            for arguments in [["move", "a", tier], ["check", "--bytes"]]:
                self.json_of("tier", *arguments, env=self.env, preexec_fn=self.memory_group(limit << 20))
            self.assertEqual((self.folder / tier / "a").read_bytes(), content)

    def test_other_commands_read_and_write_units(self):
        content = os.urandom(2_000_000)
        self.json_of("write", self.file("source", content), "tier:out/new.bin", env=self.env)
        self.assertEqual((self.folder / "nvme/out/new.bin").read_bytes(), content)
        self.tier("move", "out/new.bin", "hdd")
        loaded = self.json_of("load", "tier:out/new.bin", "--verify", env=self.env)
        self.assertEqual(loaded["bytes"], 2_000_000)
        doctor = self.json_of("doctor", "tier:out/new.bin", env=self.env)
        self.assertIn(str(self.folder / "hdd/out/new.bin"), json.dumps(doctor))
        self.json_of("sample", "tier:model/model.safetensors", "--size", "1MiB", env=self.env)
        self.tier("forget", "model/model.safetensors")
        self.tier("import", "model")
        self.assertEqual(self.json_of("load", "tier:model", env=self.env)["bytes"], 1 << 20)
        self.assertEqual(self.tier("where", "model/model.safetensors")["path"],
                         str(self.folder / "nvme/model/model.safetensors"))
        self.assertFalse([name for name in os.listdir() if name.startswith("tier:")])
        self.fails("not_found", 3, "load", "tier:nothing", env=self.env)
        self.fails("not_found", 3, "doctor", "tier:nothing", env=self.env)
        self.fails("not_found", 3, "load", "tier:nothing", env={"PENSTOCK_TIERS": str(self.folder / "none.db")})

    def test_use_decides_and_says_why(self):
        self.put("hdd/warm", b"x" * 5000)
        self.put("nvme/cold", b"y")
        self.tier("import", "warm", "cold")
        self.use("warm", 11)
        plan = {move["name"]: move for move in self.json_of("tier", "rebalance", "--dry-run", env=self.env)["moves"]}
        self.assertEqual((plan["warm"]["to"], plan["cold"]["to"]), ("ssd", "hdd"))
        self.assertIn("heat 11 reaches 10", plan["warm"]["reason"])
        self.assertEqual(self.tier("why", "warm")["belongs_to"], "ssd")
        self.tier("pin", "cold", "nvme")
        self.assertEqual(self.tier("rebalance")["unit_count"], 1)
        self.assertTrue((self.folder / "ssd/warm").exists() and (self.folder / "nvme/cold").exists())
        self.tier("unpin", "cold")
        self.assertEqual(self.tier("rebalance")["unit_count"], 1)

    def test_status_is_a_table_a_page_and_metrics(self):
        self.put("nvme/<odd> & \"name\"\xff", b"z" * 100_000)
        self.tier("import", "--all")
        self.tier("probe", "nvme")
        status = self.tier("status", "--html", self.folder / "page.html")
        self.assertGreater(status["tiers"][0]["read_bytes_per_second"], 0)
        page = (self.folder / "page.html").read_text(encoding="utf-8")
        picture = xml.etree.ElementTree.fromstring(page[page.index("<svg"):page.index("</svg>") + 6])
        titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
        self.assertTrue(any(text.startswith('<odd> & "name"') for text in titles), titles)
        metrics = self.run_tool("tier", "status", "--prometheus", env=self.env).stdout.decode()
        self.assertRegex(metrics, r'(?m)^penstock_tier_units\{tier="nvme",path="[^"]*"\} 1$')
        text, code = self.on_terminal(120, "tier", "status", env=self.env)
        self.assertEqual(code, 0)
        self.assertIn("nvme", text)

    def test_names_that_are_not_utf_8_are_percent_encoded_and_taken_back(self):
        self.put(os.fsdecode(b"nvme/a\xff100%"), b"odd")
        self.put("nvme/50%41", b"plain")
        self.tier("import", "--all")
        names = [unit["name"] for unit in self.tier("list")["units"]]
        self.assertEqual(names, ["./50%2541", "./a%FF100%25"])
        self.tier("move", "a%FF100%25", "hdd")
        self.assertEqual((self.folder / os.fsdecode(b"hdd/a\xff100%")).read_bytes(), b"odd")
        self.assertEqual(self.tier("where", "a%FF100%25")["path"], f"{self.folder}/hdd/a%FF100%25")
        for name in "50%41", "50%2541", "./50%2541":
            self.assertEqual(self.tier("where", name)["path"], f"{self.folder}/nvme/50%2541")
        self.assertEqual(self.json_of("load", "tier:a%FF100%25", env=self.env)["bytes"], 3)
        self.assertEqual([unit["name"] for unit in self.tier("list", "--after", "50%41")["units"]], ["./a%FF100%25"])
        self.assertEqual([unit["name"] for unit in self.tier("list", "--prefix", "./a%FF")["units"]], ["./a%FF100%25"])
        self.tier("forget", "a%FF100%25")
        self.tier("import", "a%FF100%25")
        self.tier("forget", "./a%FF100%25")
        self.tier("import", "./a%FF100%25")
        self.assertEqual(len(self.tier("list")["units"]), 2)

    def test_what_list_prints_stands_for_one_unit(self):
        names = [b"\xff", b"%FF", b"%25FF", b"%2525FF", b"100%", b"A", b"%41", b"a\x01b"]
        for form in "json", "text":
            for name in names:
                self.put(os.fsdecode(b"nvme/" + name), name)
            self.tier("import", "--all")
            for left in range(len(names), 0, -1):
                if form == "json":
                    printed = self.tier("list", "--limit", 1)["units"][0]["name"]
                else:
                    listed = self.run_tool("tier", "list", "--limit", 1, env=self.env).stdout
                    printed = os.fsdecode(listed.splitlines()[1].split()[-1])
                names_left = [name for name in names if (self.folder / os.fsdecode(b"nvme/" + name)).exists()]
                first = min(names_left)
                self.assertEqual(len(names_left), left)
                self.assertEqual(self.run_tool("tier", "remove", printed, env=self.env).returncode, 0, printed)
                self.assertFalse((self.folder / os.fsdecode(b"nvme/" + first)).exists(), (form, printed, first))

    def test_the_next_page_begins_after_what_was_printed(self):
        for name in b"\xff", b"%FF", b"%25FF", b"100%":
            self.put(os.fsdecode(b"nvme/" + name), name)
        self.tier("import", "--all")
        names, after = [], []
        for _ in range(5):
            units = self.tier("list", "--limit", 1, *after)["units"]
            names += [unit["name"] for unit in units]
            after = ["--after", names[-1]]
        self.assertEqual(names, ["./%2525FF", "./%25FF", "100%", "./%FF"])
        self.tier("move", "./%FF", "hdd")
        self.assertEqual((self.folder / os.fsdecode(b"hdd/\xff")).read_bytes(), b"\xff")
        self.tier("forget", "./%FF")
        self.assertEqual(self.tier("list", "--after", "./%FF")["units"], [])

    def test_a_name_is_taken_as_it_stands_first(self):
        for name in "A", "%41":
            self.put(f"nvme/{name}", name.encode())
        self.tier("import", "%41")
        self.assertEqual([unit["name"] for unit in self.tier("list")["units"]], ["./%2541"])
        self.tier("import", "A")
        self.assertEqual(self.tier("where", "%41")["path"], f"{self.folder}/nvme/%2541")
        self.tier("remove", "%41")
        self.assertFalse((self.folder / "nvme/%41").exists())
        self.fails("not_found", 3, "tier", "remove", "%41", env=self.env)
        self.assertEqual((self.folder / "nvme/A").read_bytes(), b"A")
        self.tier("add", self.file("new", b"new"), "%41")
        self.assertEqual((self.folder / "nvme/%41").read_bytes(), b"new")
        self.assertEqual((self.folder / "nvme/A").read_bytes(), b"A")

    def test_a_uri_is_the_unit_of_that_very_name_first(self):
        for name in "A", "%41", "50%.bin", "%2F":
            self.put(f"nvme/{name}", name.encode())
        self.tier("import", "--all")
        for uri, name in [("%41", "%41"), ("./%2541", "%41"), ("A", "A"), ("50%.bin", "50%.bin"), ("50%25.bin", "50%.bin"),
                          ("%2F", "%2F")]:
            self.assertEqual(self.json_of("load", f"tier:{uri}", env=self.env)["bytes"], len(name), uri)
            self.assertIn(f"{self.folder}/nvme/{name}", json.dumps(self.json_of("doctor", f"tier:{uri}", env=self.env)))
        error = self.fails("not_found", 3, "load", "tier:60%.bin", env=self.env)
        self.assertIn('there is no unit "60%.bin"', error["message"])
        self.json_of("write", self.file("new", b"new"), "tier:%41", env=self.env)
        self.json_of("write", self.file("new", b"new"), "tier:%42", env=self.env)
        self.assertEqual((self.folder / "nvme/A").read_bytes(), b"A")
        self.assertEqual((self.folder / "nvme/%41").read_bytes(), b"new")
        self.assertEqual((self.folder / "nvme/B").read_bytes(), b"new")

    def test_where_prints_a_path_as_it_is_to_programs(self):
        self.put("nvme/a\tb\x01", b"odd")
        self.tier("import", "--all")
        printed = self.run_tool("tier", "where", "a\tb\x01", env=self.env).stdout
        self.assertEqual(printed, f"{self.folder}/nvme/a\tb\x01\n".encode())
        text, code = self.on_terminal(200, "tier", "where", "a\tb\x01", env=self.env)
        self.assertEqual(code, 0)
        self.assertIn("a?b?", text)

    def test_what_fails_is_told_on_the_error_output_also_when_quiet(self):
        self.put("nvme/a", b"new")
        self.tier("import", "--all")
        self.put("hdd/a", b"in the way")
        for arguments in ("rebalance",), ("move", "a", "hdd"):
            ended = self.run_tool("tier", *arguments, "--quiet", env=self.env)
            self.assertNotEqual(ended.returncode, 0)
            self.assertEqual(ended.stdout, b"")
            self.assertIn(b"exists, and is not the unit's", ended.stderr)

    def test_clean_says_who_clears_tiers_up(self):
        error = self.fails("invalid_argument", 2, "clean", "tier:models", env=self.env)
        self.assertIn("penstock tier check", error["hint"])

    def test_a_move_that_is_paused_says_so(self):
        self.put("nvme/a", b"a" * (20 << 20))
        self.tier("import", "a")
        moving = subprocess.Popen([TOOL, "tier", "move", "a", "hdd", "--rate", "10MB"], env=environment(**self.env),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            wait_until(lambda: self.tier("list")["units"][0]["moving_to"] == "hdd")
            self.tier("pause")
            self.assertIn(b"paused", moving.stderr.readline())
            self.assertIn("paused", self.run_tool("tier", "status", env=self.env).stdout.decode())
            self.tier("resume")
            self.assertEqual(moving.wait(60), 0)
        finally:
            moving.kill()
            moving.communicate()

    def test_a_catalog_in_a_folder_that_is_closed_to_this_user_is_refused_as_such(self):
        self.need_other_user()
        self.folder.chmod(0o755)
        error = self.fails("permission_denied", 4, "tier", "init", f"a={self.folder / 'nvme'}", "--catalog",
                           self.folder / "new.db", user=NOBODY, group=NOBODY, extra_groups=[])
        self.assertIn("folder of the catalog", error["hint"])

    def test_init_that_fails_leaves_no_folder(self):
        (self.folder / "empty").mkdir()
        before = self.names()
        for catalog in ("new/below/catalog", "empty/catalog"):
            self.fails("not_found", 3, "tier", "init", f"a={self.folder}/none", "--catalog", self.folder / catalog)
            self.assertEqual(self.names(), before)

    def test_a_tier_that_is_gone_is_told(self):
        self.put("hdd/a")
        self.tier("import", "a")
        (self.folder / "hdd").rename(self.folder / "away")
        (self.folder / "hdd").mkdir()
        error = self.fails("not_found", 3, "load", "tier:a", env=self.env)
        self.assertIn("marker is missing", error["message"])
        done = self.run_tool("tier", "check", "--json", env=self.env)
        self.assertEqual(done.returncode, 1)
        schema.check(json.loads(done.stdout), "tier")

    def test_what_is_mounted_within_a_unit_is_not_deleted(self):
        self.put("nvme/model/part/file")
        self.tier("import", "model")
        other = self.put("other/precious").parent
        for mount in (f"--bind {other}", "-t tmpfs none"):
            for verb in ("remove model", "move model hdd"):
                script = (f"mount {mount} nvme/model/part; touch nvme/model/part/precious; "
                          f"{TOOL} tier {verb}; echo code $?; ls nvme/model/part")
                done = subprocess.run(["unshare", "-m", "bash", "-c", script], cwd=self.folder, text=True, timeout=60,
                                      capture_output=True, env=environment(**self.env))
                if "permitted" in done.stderr or "denied" in done.stderr:
                    self.skipTest("nothing can be mounted here")
                self.assertRegex(done.stderr, "model/part is (a mount|on another file system)", (mount, verb))
                self.assertNotIn("code 0", done.stdout)
                self.assertIn("precious", done.stdout)
                self.assertEqual((other / "precious").read_bytes(), b"content")
        self.assertEqual((self.folder / "nvme/model/part/file").read_bytes(), b"content")
        self.assertEqual(self.tier("check")["findings"], [])

    def test_a_lost_marker_is_written_anew(self):
        self.put("hdd/a")
        self.tier("import", "a")
        marker = self.folder / "hdd/.penstock/tier.json"
        marker.unlink()
        at = ("tier", "change", "hdd", "--path", self.folder / "hdd")
        self.fails("not_found", 3, *at, env=self.env)
        self.assertFalse(marker.exists())
        self.json_of(*at, "--adopt", env=self.env)
        self.assertEqual(self.tier("check")["findings"], [])

    def test_what_is_told_has_no_empty_parts(self):
        marker = self.folder / "ssd/.penstock/tier.json"
        content = marker.read_bytes()
        marker.unlink()
        marker.mkdir()  # can't be read, and there is no hint for that
        lines = self.run_tool("tier", "status", env=self.env).stdout.decode().splitlines()
        self.assertTrue([line for line in lines if line.endswith("tier.json: Is a directory")], lines)
        marker.rmdir()
        marker.write_bytes(content)
        # A move that can't be ended: a link lies where the copy was.
        self.put("nvme/a")
        self.tier("import", "a")
        (self.folder / "hdd/a").symlink_to("/etc")
        with contextlib.closing(sqlite3.connect(self.env["PENSTOCK_TIERS"])) as catalog, catalog:
            (unit, source), = catalog.execute("SELECT id, tier FROM unit")
            (target,), = catalog.execute("SELECT id FROM tier WHERE name = 'hdd'")
            catalog.execute("INSERT INTO move VALUES(?, 0, 1, ?, ?, 1, 1, '', 0, 0, 0, 0)", (unit, source, target))
        lines = self.run_tool("tier", "check", env=self.env).stdout.decode().splitlines()
        self.assertTrue([line for line in lines if "hdd/a" in line], lines)
        self.assertFalse([line for line in lines if re.match(r"\W*:", line)], lines)

    def test_tiers_are_changed_added_and_removed(self):
        (self.folder / "tape").mkdir()
        self.tier("add-tier", f"tape={self.folder / 'tape'}", "--behind", "hdd")
        self.tier("change", "tape", "--capacity", "5GiB", "--high", "0.5", "--low", "0.4")
        tape = self.tier("status")["tiers"][3]
        self.assertEqual((tape["name"], tape["capacity_bytes"], tape["high_water"]), ("tape", 5 << 30, 0.5))
        self.tier("remove-tier", "tape")
        for place, options in ((3, []), (0, ["--first"])):
            self.tier("add-tier", f"tape={self.folder / 'tape'}", *options)
            self.assertEqual(self.tier("status")["tiers"][place]["name"], "tape")
            self.tier("remove-tier", "tape")
        self.assertFalse((self.folder / "tape/.penstock/tier.json").exists())
        self.fails("invalid_argument", 2, "tier", "change", "--from-heat", 3, env=self.env)
        self.fails("invalid_argument", 2, "tier", "change", "nvme", env=self.env)
        error = self.fails("invalid_argument", 2, "tier", "change", "nvme", "--high", 0.5, env=self.env)
        self.assertIn("0.80 (low) and 0.50 (high)", error["message"])
        self.assertEqual(len(self.tier("status")["tiers"]), 3)
        self.fails("invalid_argument", 2, "tier", "add-tier", f"x={self.folder / 'nvme'}", env=self.env)
        self.fails("in_use", 4, "tier", "init", f"x={self.folder / 'tape'}", env=self.env)

    def test_a_capacity_is_less_than_2_to_the_63(self):
        (self.folder / "tape").mkdir()
        tape = f"tape={self.folder / 'tape'}"
        for capacity in 1 << 63, (1 << 64) - 1, "9000000TiB":
            for arguments in (["change", "nvme"], ["add-tier", tape], ["init", tape, "--catalog", self.folder / "new.db"]):
                self.fails("invalid_argument", 2, "tier", *arguments, "--capacity", capacity, env=self.env)
        self.assertEqual([tier["capacity_bytes"] for tier in self.tier("status")["tiers"]], [1 << 30] * 3)
        self.tier("change", "nvme", "--capacity", (1 << 63) - 1)
        self.assertEqual(self.tier("status")["tiers"][0]["capacity_bytes"], (1 << 63) - 1)

    def test_what_is_no_unit_of_a_user_is_left_alone(self):
        (self.folder / "x").mkdir()
        env = {"PENSTOCK_TIERS": str(self.folder / "x/c.db")}
        self.fails("not_found", 3, "tier", "init", f"a={self.folder / 'x'}", f"b={self.folder / 'none'}", env=env)
        self.assertEqual(os.listdir(self.folder / "x"), [])
        self.json_of("tier", "init", f"a={self.folder / 'x'}", env=env)
        self.put("x/deep/.penstock/tier.json")
        self.put("x/b")
        self.assertEqual(self.json_of("tier", "import", "--all", env=env)["unit_count"], 1)
        for limit in (0, -1):
            self.fails("invalid_argument", 2, "tier", "list", "--limit", limit, env=env)

    def test_a_file_that_is_no_unit_is_a_remark(self):
        self.put("hdd/a")
        self.tier("import", "a")
        self.tier("forget", "a")
        findings = self.tier("check")["findings"]
        self.assertEqual([(each["text"], each["harmless"]) for each in findings], [("it is no unit", True)])
        self.tier("import", "a")
        self.assertEqual(self.tier("check")["findings"], [])
        self.tier("where", "a")
        self.assertEqual(self.tier("list")["units"][0]["accesses"], 0)

    def test_while_movers_are_paused_moves_are_refused(self):
        self.put("nvme/cold")
        self.tier("import", "cold")
        self.tier("pause")
        for command in (["move", "cold", "hdd"], ["rebalance"], ["add", self.folder / "nvme/cold", "copy"]):
            error = self.fails("in_use", 4, "tier", *command, env=self.env)
            self.assertIn("paused", error["message"])
            self.assertIn("penstock tier resume", error["hint"])
        self.assertEqual(self.tier("check", "--bytes")["findings"], [])
        text, code = self.on_terminal(120, "tier", "run", "--interval", 0.1, env=self.env, until="tier resume")
        self.assertEqual(code, 130, text)
        self.tier("resume")
        self.assertEqual(self.tier("rebalance")["unit_count"], 1)

    def test_a_configuration_makes_tiers(self):
        (self.folder / "one").mkdir()
        configuration = self.file("tiers.json", json.dumps(
            {"tiers": [{"name": "one", "path": str(self.folder / "one"), "capacity_bytes": 1000}]}).encode())
        made = self.json_of("tier", "init", "--config", configuration, "--catalog", self.folder / "other.db")
        self.assertEqual(made["tiers"][0]["capacity_bytes"], 1000)
        self.fails("invalid_argument", 2, "tier", "init", "--config", self.file("bad.json", b"{"), "--catalog",
                   self.folder / "bad.db")
        self.assertFalse((self.folder / "bad.db").exists())
        error = self.fails("invalid_argument", 2, "tier", "init", "--config", "/dev/zero", "--catalog", self.folder / "bad.db")
        self.assertIn("larger than 1 MiB", error["message"])


class Example(ToolTest):
    """That of docs/tiers.md, as a reader would type it, with /mnt and its loop devices in a namespace of its own."""

    def setUp(self):
        super().setUp()
        if os.environ.get("PENSTOCK_SANITIZE"):
            self.skipTest("140 loads of 60 MB take too long under a sanitizer")
        if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
            self.skipTest("loop devices need root, and mkfs.ext4")
        loop = subprocess.run(["losetup", "-f"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if loop.returncode != 0:
            self.skipTest("there are no loop devices here")

    def test_runs_as_it_is_written(self):
        page = (pathlib.Path(__file__).resolve().parents[2] / "docs/tiers.md").read_text()
        block = page.split("## An example with three disks")[1].split("```\n")[1]
        script, shown = ["mount -t tmpfs none /mnt"], []
        for line in block.splitlines():
            if line.startswith("$ "):
                script += [f"echo {shlex.quote(line)}", line[2:]]
            shown.append(line)
        script.append("umount /mnt/nvme /mnt/ssd /mnt/hdd")
        path = f"{pathlib.Path(TOOL).parent}:{os.environ['PATH']}"
        done = subprocess.run(["unshare", "-m", "bash"], input="\n".join(script), cwd=self.folder, text=True, timeout=200,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=environment(PATH=path, LC_ALL="C.UTF-8"))

        def timeless(text):
            return re.sub(r" in [0-9.]+ \w+: [0-9.]+ \w+/s$", "", text, flags=re.MULTILINE).strip()

        self.assertEqual(timeless(done.stdout), timeless("\n".join(shown)))


class Running(TierTest):
    def start_tier(self, *arguments):
        process = subprocess.Popen([TOOL, "tier", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment(**self.env))
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_the_mover_moves_until_it_is_interrupted(self):
        self.put("nvme/cold")
        self.tier("import", "cold")
        process = self.start_tier("run", "--interval", 0.1)
        wait_until(lambda: (self.folder / "hdd/cold").exists() and not (self.folder / "nvme/cold").exists())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)

    def test_a_large_copy_that_was_interrupted_goes_on(self):
        content = os.urandom(48 << 20)
        self.put("nvme/large", content)
        self.tier("import", "large")
        process = self.start_tier("move", "large", "hdd", "--rate", "16MiB", "--json")
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, stdout)
        self.assertEqual((self.folder / "nvme/large").read_bytes(), content)
        process = self.start_tier("rebalance", "--rate", "4MiB")
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, stderr)
        self.assertIn(b"the move was stopped", stderr)
        moved = self.tier("move", "large", "hdd")
        self.assertGreater(moved["resumed_bytes"], 0)
        self.assertEqual((self.folder / "hdd/large").read_bytes(), content)
        self.assertFalse((self.folder / "nvme/large").exists())


if __name__ == "__main__":
    unittest.main()
