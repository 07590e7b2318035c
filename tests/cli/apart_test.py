"""No command writes over a file that it reads, whatever the two are called."""

import os
import unittest

from models_test import header
from rows_test import npy
from tool import ToolTest


class Outputs(ToolTest):
    def setUp(self):
        super().setUp()
        self.content = os.urandom(1000 * 64)
        self.array = self.file("t.npy", npy(1000, 64) + self.content)
        self.model = self.file("m.safetensors", header({"t": ("F32", [1000, 16])}) + self.content)
        self.list = self.file("wanted", b"1,2")
        self.options = self.file("options.json", b"{}")
        self.link, self.hard = self.folder / "link", self.folder / "hard"
        self.link.symlink_to(self.array)
        os.link(self.array, self.hard)

    def refuses(self, option, *arguments, **how):
        before = {path: (path.read_bytes(), path.is_symlink()) for path in self.folder.iterdir() if path.is_file()}
        error = self.fails("invalid_argument", 2, *arguments, **how)
        self.assertIn(f"{option} ", error["message"])
        self.assertIn("would overwrite an input", error["message"])
        self.assertEqual(error["hint"], "name another file")
        for path, (content, is_link) in before.items():
            self.assertEqual((path.read_bytes(), path.is_symlink()), (content, is_link), (path, arguments))

    def test_of_rows_are_not_its_inputs(self):
        for out in (self.array, self.link, self.hard, f"file:{self.array}"):
            self.refuses("--out", "rows", self.array, "--indices", "1", "--out", out)
        self.refuses("--out", "rows", self.model, "--tensor", "t", "--indices", "1", "--out", self.model)
        self.refuses("--out", "rows", self.folder, "--tensor", "t", "--indices", "1", "--out", self.model)
        self.refuses("--out", "rows", self.array, "--indices", f"@{self.list}", "--out", self.list)
        self.refuses("--out", "rows", self.array, "--indices", "1", "--options", f"@{self.options}", "--out", self.options)

    def test_of_load_and_doctor_are_not_their_inputs(self):
        for command, option in (("load", "--timeline"), ("doctor", "--bundle")):
            self.refuses(option, command, self.array, option, self.array)
            self.refuses(option, command, self.array, option, self.link)
            self.refuses(option, command, self.model, option, self.model)
            self.refuses(option, command, self.array, "--options", f"@{self.options}", option, self.options)
        self.refuses("--timeline", "load", self.array, self.hard, "--timeline", self.link)
        self.refuses("--timeline", "load", self.folder, "--timeline", self.model)

    def test_of_load_and_doctor_are_files(self):
        for command, option in (("load", "--timeline"), ("doctor", "--bundle")):
            error = self.fails("invalid_argument", 2, command, self.array, option, "-")
            self.assertIn("standard output", error["message"])
            self.assertIn("./-", error["hint"])

    def test_of_an_index_are_not_its_shards(self):
        index = self.file("m.safetensors.index.json", b'{"weight_map": {"t": "m.safetensors"}}')
        self.refuses("--timeline", "load", index, "--timeline", self.model)
        self.refuses("--timeline", "load", index, "--timeline", index)

    def test_of_bench_tune_and_write_are_not_their_inputs(self):
        big = self.file("big", os.urandom(1 << 20))
        self.refuses("--html", "bench", big, "--html", big)
        self.refuses("--html", "bench", "--from", self.options, "--html", self.options)
        self.refuses("--file", "tune", big, "--file", big)
        self.refuses("DEST", "write", big, self.options, "--options", f"@{self.options}")
        self.refuses("DEST", "write", self.array, self.hard, "--in-place")
        self.refuses("DEST", "sample", self.options, "--options", f"@{self.options}")

    def test_of_tier_status_is_not_the_catalog(self):
        (self.folder / "fast").mkdir()
        catalog = self.folder / "catalog"
        done = self.run_tool("tier", "init", "--catalog", catalog, f"fast={self.folder}/fast")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.refuses("--html", "tier", "status", "--catalog", catalog, "--html", catalog)

    def test_are_nothing_that_tiers_keep(self):
        aside = self.folder / "aside"
        tier, catalog = aside / "fast", aside / "catalog"
        tier.mkdir(parents=True)
        used = {"env": {"PENSTOCK_TIERS": str(catalog)}}
        marker = tier / ".penstock" / "tier.json"
        for arguments in (["init", f"fast={tier}"], ["add", self.model, "m.safetensors"]):
            done = self.run_tool("tier", *arguments, **used)
            self.assertEqual(done.returncode, 0, done.stderr)
        to_catalog, to_marker, to_folder = (aside / name for name in ("to-catalog", "to-marker", "to-folder"))
        to_catalog.symlink_to(catalog)
        to_folder.symlink_to(marker.parent)
        os.link(marker, to_marker)
        kept = marker.read_bytes()
        unit = "tier:m.safetensors"
        rows = ["rows", unit, "--row-bytes", 256, "--count", 9, "--indices", 1]
        for out in (catalog, to_catalog, f"{catalog}-wal", f"{catalog}-units", marker, to_marker, to_folder / "new"):
            self.refuses("--out", *rows, "--out", out, **used)
        for out in (catalog, to_marker):
            self.refuses("--timeline", "load", unit, "--timeline", out, **used)
            self.refuses("--bundle", "doctor", unit, "--bundle", out, **used)
            self.refuses("--html", "bench", unit, "--html", out, **used)
            self.refuses("--file", "tune", unit, "--file", out, **used)
            self.refuses("DEST", "write", unit, out, **used)
            self.refuses("DEST", "write", unit, out, "--in-place", **used)
            self.refuses("--html", "tier", "status", "--html", out, **used)
        self.assertEqual(marker.read_bytes(), kept)
        self.assertEqual(len(self.json_of("tier", "list", **used)["units"]), 1)
        other = self.folder / "other"
        self.json_of("write", unit, other, **used)
        self.assertEqual(other.read_bytes(), self.model.read_bytes())

    def test_that_are_standard_output_are_no_inputs(self):
        rows = ["rows", self.array, "--row-bytes", 64, "--count", 9, "--quiet", "--out", "-", "--indices"]
        load = ["load", "--to", "-", "--quiet"]
        kinds = self.folder / "records"
        for arguments in (["create", kinds], ["add", kinds, "k", "--record", 64, "--capacity", 10],
                          ["append", kinds, "k", self.file("one", bytes(64))]):
            done = self.run_tool("kind", *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
        dictionary = self.folder / "records.kinds.json"
        read = ["kind", "read", kinds, "k", 0, "--out", "-"]
        for into, stdin, arguments in [
                (self.array, None, [*rows, 1]), (self.list, None, [*rows, f"@{self.list}"]),
                (self.list, self.list, [*rows, "@-"]), (dictionary, None, read), (kinds, None, read),
                (self.array, None, [*load, self.hard, "--offset", 4096]), (self.array, self.array, [*load, "-"])]:
            before = into.read_bytes()
            for mode, json in (("r+b", []), ("ab", []), ("ab", ["--json"])):
                with open(into, mode) as stdout, open(stdin or os.devnull, "rb") as given:
                    done = self.run_tool(*arguments, *json, stdin=given, stdout=stdout)
                self.assertEqual(done.returncode, 2, (arguments, done.stderr))
                self.assertIn(b" - would overwrite an input", done.stderr)
                self.assertEqual(into.read_bytes(), before)

    def test_to_standard_output_may_go_to_another_file(self):
        with open(self.folder / "other", "w+b") as stdout, open(self.array, "rb") as stdin:
            for arguments in (["-"], [self.array]):
                done = self.run_tool("load", "--to", "-", "--quiet", *arguments, stdin=stdin, stdout=stdout)
                self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.folder / "other").read_bytes(), self.array.read_bytes() * 2)

    def test_that_are_standard_input_are_refused(self):
        with open(self.array, "rb") as stdin:
            done = self.run_tool("write", "-", self.link, "--in-place", stdin=stdin)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(b"would overwrite an input, standard input", done.stderr)

    def test_may_replace_other_files_beside_the_inputs(self):
        other = self.file("other", b"old")
        self.json_of("rows", self.array, "--indices", "1", "--out", other)
        self.assertEqual(other.read_bytes(), self.content[64:128])
        trace = self.folder / "trace.json"
        for _ in range(2):
            self.json_of("load", self.folder, "--timeline", trace)


if __name__ == "__main__":
    unittest.main(verbosity=2)
