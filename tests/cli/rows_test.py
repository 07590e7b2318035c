"""penstock rows, from the outside."""

import json
import os
import subprocess
import unittest

from models_test import gguf, header
from tool import SLOW, ToolTest, resident_bytes, wait_until

FAKE_CUDA = os.environ.get("PENSTOCK_FAKE_CUDA", "")


def npy(rows, row_bytes):
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows}, {row_bytes}), }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


class Rows(ToolTest):
    def setUp(self):
        super().setUp()
        self.content = os.urandom(1000 * 64)
        self.out = self.folder / "out"

    def row(self, number):
        return self.content[number * 64:(number + 1) * 64]

    def test_gathers_rows_of_every_kind_of_table(self):
        model = self.file("a.safetensors", header({"t": ("F32", [1000, 16])}) + self.content)
        array = self.file("a.npy", npy(1000, 64) + self.content)
        raw = self.file("a.bin", b"front" + self.content)
        for arguments in ([model, "--tensor", "t"], [array], [raw, "--row-bytes", 64, "--offset", 5]):
            result = self.json_of("rows", *arguments, "--indices", "7,0,999,7", "--out", self.out)
            self.assertEqual(self.out.read_bytes(), self.row(7) + self.row(0) + self.row(999) + self.row(7))
            self.assertEqual(result["table"]["rows"], 1000)
            self.assertEqual((result["rows"], result["bytes"]), (4, 256))
            self.assertEqual(result["cached_rows"] + result["cold_rows"], 4)

    def test_quantized_rows_are_whole_blocks_or_refused(self):
        q8_0, row_bytes = 8, 2 * 34  # blocks of 32 elements in 34 bytes
        content = os.urandom(5 * row_bytes)
        path = self.file("a.gguf", gguf({"matrix": (q8_0, [64, 5], content), "vector": (q8_0, [64], content[:68])}))
        result = self.json_of("rows", path, "--tensor", "matrix", "--indices", "4,0", "--out", self.out)
        self.assertEqual(result["table"], {"rows": 5, "row_bytes": row_bytes, "dtype": "Q8_0"})
        self.assertEqual(self.out.read_bytes(), content[4 * row_bytes:] + content[:row_bytes])
        error = self.fails("invalid_argument", 2, "rows", path, "--tensor", "vector", "--indices", "0")
        self.assertIn("vector", error["message"])
        self.assertIn("Q8_0", error["message"])

    def test_joins_files_and_takes_indices_from_a_file_or_at_random(self):
        first, second = self.file("a.npy", npy(400, 64) + self.content[:400 * 64]), self.file(
            "b.npy", npy(600, 64) + self.content[400 * 64:])
        self.json_of("rows", first, second, "--indices", f"@{self.file('list', b'399, 400 ' + bytes([10]) + b'999')}",
                     "--out", self.out)
        self.assertEqual(self.out.read_bytes(), self.row(399) + self.row(400) + self.row(999))
        result = self.json_of("rows", first, second, "--indices", "random:5000", "--repeat", 2, "--no-mapping")
        self.assertEqual((result["rows"], result["cached_rows"]), (5000, 0))
        self.assertLessEqual(result["read_bytes"], 3 * len(self.content))

    def test_indices_that_are_out_of_range_are_errors_or_zeros(self):
        array = self.file("a.npy", npy(1000, 64) + self.content)
        error = self.fails("out_of_range", 2, "rows", array, "--indices", "1,1000")
        self.assertIn("the number 1000 at position 1", error["message"])
        self.assertIn("--zeros", error["hint"])
        result = self.json_of("rows", array, "--indices", "1,1000,-3", "--zeros", "--out", self.out)
        self.assertEqual(result["missing_rows"], 2)
        self.assertEqual(self.out.read_bytes(), self.row(1) + bytes(128))
        self.assertEqual(self.json_of("rows", array, "--indices", "random:0")["bytes"], 0)

    def test_says_what_is_wrong(self):
        array = self.file("a.npy", npy(1000, 64) + self.content)
        raw = self.file("a.bin", self.content)
        self.fails("invalid_argument", 2, "rows", array, "--indices", "1,x")
        self.fails("invalid_argument", 2, "rows", array, "--indices", "random:many")
        self.fails("invalid_argument", 2, "rows", raw, "--indices", "1")
        self.fails("invalid_argument", 2, "rows", raw, "--indices", "1", "--row-bytes", 63)
        self.fails("not_found", 3, "rows", self.folder / "missing.npy", "--indices", "1")
        self.fails("truncated", 1, "rows", self.file("short.npy", npy(1000, 64) + self.content[:-1]), "--indices", "1")
        self.fails("not_found", 3, "rows", self.file("a.safetensors", header({"t": ("U8", [2, 2])}) + b"1234"),
                   "--tensor", "u", "--indices", "1")

    def test_fills_memory_of_a_gpu(self):
        if not os.path.isdir(FAKE_CUDA):
            self.skipTest("the fake driver is not built")
        array = self.file("a.npy", npy(1000, 64) + self.content)
        self.json_of("rows", array, "--indices", "5,3", "--to", "cuda:0", "--out", self.out,
                     env={"LD_LIBRARY_PATH": FAKE_CUDA})
        self.assertEqual(self.out.read_bytes(), self.row(5) + self.row(3))

    def test_says_what_to_give_instead(self):
        array = self.file("a.npy", npy(1000, 64) + self.content)
        error = self.fails("is_directory", 1, "rows", array, "--indices", f"@{self.folder}")
        self.assertIn(str(self.folder), error["message"])
        self.assertIn("--indices 1,5,9", error["hint"])
        error = self.fails("not_found", 3, "rows", array, "--indices", f"@{self.folder}/none")
        self.assertIn("--indices 1,5,9", error["hint"])
        error = self.fails("invalid_argument", 2, "rows", array, "--tensor", "x", "--indices", "1")
        self.assertIn("is a .npy file", error["message"])
        self.assertIn("--tensor", error["hint"])
        error = self.fails("invalid_argument", 2, "rows", array, "--row-bytes", 64, "--indices", "1")
        self.assertIn("begins with a header", error["message"])
        self.json_of("rows", array, "--row-bytes", 64, "--offset", os.path.getsize(array) - len(self.content), "--indices",
                     "1", "--out", self.out)
        self.assertEqual(self.out.read_bytes(), self.row(1))
        error = self.fails("out_of_range", 2, "rows", self.file("none.npy", npy(0, 64)), "--indices", "0")
        self.assertIn("a table that has rows", error["hint"])
        many = self.file("many.npy", npy(0, 4 << 30))
        error = self.fails("invalid_argument", 2, "rows", many, "--indices", "0", "--zeros")
        self.assertIn("no rows", error["message"])

    def test_counts_one_row_as_one(self):
        array = self.file("a.npy", npy(1000, 64) + self.content)
        self.assertTrue(self.run_tool("rows", array, "--indices", "1").stdout.startswith(b"1 row, "))

    def test_memory_is_checked_before_numbers_are_made(self):
        array = self.file("a.npy", npy(1000, 64) + self.content)
        error = self.fails("out_of_memory", 5, "rows", array, "--indices", "random:1000000000000")
        self.assertEqual(error["hint"], "ask for fewer rows")

    def test_an_interrupt_ends_a_gather_and_leaves_nothing(self):
        table = self.sparse_file("a.bin", 1 << 30)
        process = self.start("rows", table, "--row-bytes", 4096, "--indices", "random:262144", "--no-mapping",
                             "--repeat", 1000, "--out", self.out, *SLOW)
        wait_until(lambda: resident_bytes(process) > 64 << 20)
        code, stdout, stderr, _ = self.interrupt(process)
        self.assertEqual((code, stdout, stderr), (130, b"", b"penstock: interrupted\n"))
        self.assertEqual(self.names(), ["a.bin"])

    def test_an_interrupt_ends_the_wait_for_indices(self):
        array = self.file("a.npy", npy(1000, 64) + self.content)
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        process = self.start("rows", array, "--indices", f"@{fifo}")
        with open(fifo, "wb", buffering=0) as writer:
            writer.write(b"1,")
            code, stdout, stderr, _ = self.interrupt(process)
        self.assertEqual((code, stdout, stderr), (130, b"", b"penstock: interrupted\n"))

    def test_writes_rows_to_standard_output(self):
        array = self.file("a.npy", npy(1000, 64) + self.content)
        done = self.run_tool("rows", array, "--indices", "7,0", "--out", "-", "--json", cwd=self.folder)
        self.assertEqual((done.returncode, done.stdout), (0, self.row(7) + self.row(0)), done.stderr)
        self.assertEqual(json.loads(done.stderr)["bytes"], 128)
        self.assertEqual(self.names(), ["a.npy"])

    def test_a_list_without_end_is_refused(self):
        table = self.file("table", bytes(4096))
        rows = ["rows", table, "--row-bytes", 16, "--indices"]
        for device in "/dev/zero", "/dev/urandom":
            self.fails("invalid_argument", 2, *rows, f"@{device}")
            with open(device, "rb") as endless:
                self.assertEqual(self.run_tool(*rows, "@-", stdin=endless).returncode, 2)
        self.fails("invalid_argument", 2, *rows, "@" + str(self.file("long", b"0" * 100)))
        self.assertEqual(self.json_of(*rows, "@" + str(self.file("many", b"255,\n" * 500_000)))["rows"], 500_000)

    @unittest.skipIf(os.environ.get("PENSTOCK_SANITIZE"), "sanitizers take more memory than a limit leaves")
    def test_numbers_without_end_are_more_than_memory_has_room_for(self):
        table = self.file("table", bytes(4096))
        numbers = subprocess.Popen(["yes", "1"], stdout=subprocess.PIPE)
        try:
            done = self.run_tool("rows", table, "--row-bytes", 16, "--indices", "@-", stdin=numbers.stdout,
                                 preexec_fn=self.memory_group(64 << 20))
        finally:
            numbers.kill()
            numbers.communicate()
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn(b"of memory available", done.stderr)

    def test_takes_indices_from_a_pipe(self):
        array = self.file("a.npy", npy(1000, 64) + self.content)
        done = self.run_tool("rows", array, "--indices", "@-", "--out", self.out, input=b"5\n3\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.out.read_bytes(), self.row(5) + self.row(3))


if __name__ == "__main__":
    unittest.main(verbosity=2)
