"""Models in load, inspect, verify and sample, from the outside."""

import hashlib
import json
import os
import pathlib
import signal
import struct
import unittest

import schema
from tool import NOBODY, PROMPTLY, SLOW, ToolTest, resident_bytes, wait_until

MIB = 1 << 20
FAKE_CUDA = os.environ.get("PENSTOCK_FAKE_CUDA", "")
READERS = [["load"], ["inspect"], ["verify"]]
BITS = {"U8": 8, "BF16": 16, "F32": 32, "I64": 64}


def size_of(dtype, shape):
    size = BITS[dtype] // 8
    for length in shape:
        size *= length
    return size


def header(tensors, metadata=None):
    """The beginning of a safetensors file: `tensors` are name: (dtype, shape), one after the other."""
    entries, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + size_of(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def gguf(tensors, pairs=(), alignment=32):
    """A GGUF file, version 3: `tensors` are name: (type, dimensions, content), `pairs` are of strings."""
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    front, data = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)), b""
    for key, value in pairs:
        front += text(key) + struct.pack("<I", 8) + text(value)
    for name, (kind, dimensions, content) in tensors.items():
        data += bytes(-len(data) % alignment)
        front += text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, len(data))
        data += content
    return front + bytes(-len(front) % alignment) + data


class ModelTest(ToolTest):
    def model(self, name, tensors, metadata=None):
        """A safetensors file of random bytes."""
        size = sum(size_of(*each) for each in tensors.values())
        return self.file(name, header(tensors, metadata) + os.urandom(size))

    def sparse_model(self, name, size, metadata=None):
        front = header({"a": ("U8", [size - 100]), "b": ("U8", [100])}, metadata)
        path = self.file(name, front)
        os.truncate(path, len(front) + size)
        return path

    def small_model(self, name="x.safetensors"):
        """Three tensors, none where it would be convenient, and two without bytes."""
        return self.model(name, {"a": ("F32", [3, 5]), "nothing": ("BF16", [0, 4]), "b.0": ("U8", [MIB + 13]),
                                 "b.1": ("U8", [1001]), "scalar": ("I64", [])})

    def shards(self):
        """A directory with a model of two files and their index."""
        folder = self.folder / "model"
        folder.mkdir()
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        self.model(f"model/{names[0]}", {"a": ("BF16", [1000, 3]), "b": ("U8", [77])}, {"format": "pt"})
        self.model(f"model/{names[1]}", {"c": ("F32", [50000])}, {"format": "pt"})
        index = {"metadata": {}, "weight_map": {"a": names[0], "b": names[0], "c": names[1]}}
        self.file("model/model.safetensors.index.json", json.dumps(index).encode())
        return folder

    def need_wrong_reads(self):
        if os.environ.get("PENSTOCK_SANITIZE"):
            self.skipTest("a sanitizer wants to be preloaded first")
        if not os.environ.get("PENSTOCK_WRONG_READS"):
            self.skipTest("PENSTOCK_WRONG_READS does not name the library that spoils reads")
        return os.environ["PENSTOCK_WRONG_READS"]


class OddModels(ModelTest):
    def test_a_wrong_total_in_an_index_is_told(self):
        folder = self.shards()
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        for total, count in ((206077, 0), (7, 1)):
            index["metadata"]["total_size"] = total
            path.write_text(json.dumps(index))
            self.assertEqual(len(self.json_of("inspect", folder)["warnings"]), count)
            self.assertEqual("total_size is 7" in self.run_tool("inspect", folder).stdout.decode(), count == 1)
            verified = json.loads(self.run_tool("verify", folder, "--json").stdout)
            self.assertEqual(len(verified["warnings"]), count)


class LoadAModel(ModelTest):
    def test_every_tensor_arrives_and_the_report_says_so(self):
        path = self.small_model()
        result = self.json_of("load", path, "--verify")
        self.assertEqual(result["bytes"], 60 + MIB + 13 + 1001 + 8)
        self.assertEqual(sum(result["routes"].values()), result["bytes"])
        self.assertIs(result["verified"], True)
        self.assertEqual(result["model"], {"formats": ["safetensors"], "files": 1, "tensors": 5, "tensors_in_model": 5,
                                           "over_read_bytes": 0})
        data_offset = self.json_of("inspect", path)["files"][0]["data_offset"]
        plain = self.json_of("load", path, "--offset", data_offset, "--verify")
        self.assertEqual(result["checksum"], plain["checksum"])
        text = self.run_tool("load", path).stdout
        for word in [b"1.05 MB", b"routes", b"safetensors, 5 tensors from 1 file"]:
            self.assertIn(word, text)

    def test_may_be_a_directory_an_index_or_a_list(self):
        folder = self.shards()
        files = sorted(folder.glob("*.safetensors"))
        whole = self.json_of("load", folder, "--verify")
        self.assertEqual((whole["model"]["files"], whole["model"]["tensors"]), (2, 3))
        for names in [files, [folder / "model.safetensors.index.json"], [f"file:{folder}"]]:
            same = self.json_of("load", *names, "--verify")
            self.assertEqual(same["model"], whole["model"])
            self.assertEqual(same["checksum"], whole["checksum"])

    def test_may_be_a_gguf(self):
        quantized = os.urandom(4 * 18)
        path = self.file("x.gguf", gguf({"q": (2, [32, 4], quantized), "f": (0, [5], os.urandom(20))}))
        result = self.json_of("load", path, "--verify")
        self.assertEqual((result["bytes"], result["verified"]), (92, True))
        self.assertEqual(result["model"]["formats"], ["gguf"])
        both = self.json_of("load", path, self.small_model(), "--verify")
        self.assertEqual((both["model"]["formats"], both["model"]["tensors"]), (["gguf", "safetensors"], 7))

    def test_some_tensors_by_their_names(self):
        path = self.small_model()
        some = self.json_of("load", path, "--select", "b.*", "--select", "scalar", "--verify")
        self.assertEqual(some["bytes"], MIB + 13 + 1001 + 8)
        self.assertEqual((some["model"]["tensors"], some["model"]["tensors_in_model"]), (3, 5))
        self.assertIs(some["verified"], True)
        self.assertIn(b"3 of 5 tensors", self.run_tool("load", path, "--select", "[bs]*").stdout)
        error = self.fails("not_found", 3, "load", path, "--select", "b*", "--select", "warp.*")
        self.assertIn("warp.*", error["message"])
        self.assertIn("inspect", error["hint"])

    def test_bytes_of_it_on_request(self):
        path = self.small_model()
        size = path.stat().st_size
        for arguments in [["--raw"], ["--offset", 0], ["--size", size], ["--offset", 0, "--size", size]]:
            result = self.json_of("load", path, *arguments, "--verify")
            self.assertEqual((result["bytes"], result["model"]), (size, None))
        self.assertEqual(self.json_of("load", path, "--lba", 0, "--count", 2)["bytes"], 1024)
        self.assertEqual(self.json_of("load", path, self.file("plain", b"x"), "--raw")["bytes"], size + 1)
        for arguments in [["--raw"], ["--offset", 0], ["--size", 1], ["--lba", 0], ["--count", 1]]:
            self.fails("invalid_argument", 2, "load", path, "--select", "a", *arguments)

    def test_other_names_are_bytes_unless_tensors_are_selected(self):
        path = self.small_model("blob")
        self.assertIsNone(self.json_of("load", path)["model"])
        self.assertEqual(self.json_of("load", path, "--select", "*", "--verify")["model"]["tensors"], 5)

    def test_says_how_to_load_bytes_only_where_that_would_help(self):
        error = self.fails("invalid_argument", 2, "load", self.small_model(), "--options", '{"lane": 4}')
        self.assertNotIn("--raw", error["hint"])
        error = self.fails("invalid_argument", 2, "load", self.file("text.safetensors", b"It is a text, and no model."))
        self.assertIn("another kind of file", error["hint"])
        self.assertIn("--raw", error["hint"])

    def test_takes_the_options_of_any_load(self):
        path = self.small_model()
        for arguments in [["--engine", "posix", "--lanes", 1], ["--cache", "bypass"], ["--cache", "keep"]]:
            self.assertIs(self.json_of("load", path, *arguments, "--verify")["verified"], True)
        repeated = self.json_of("load", path, "--repeat", 3, "--verify")
        rates = [each["gb_per_s"] for each in repeated["rounds"]]
        self.assertEqual(len(rates), 3)
        self.assertAlmostEqual(repeated["steady_gb_per_s"], (rates[1] + rates[2]) / 2)
        self.assertEqual(self.run_tool("load", path, "--quiet").stdout, b"")

    def test_without_any_tensor_is_no_error(self):
        result = self.json_of("load", self.model("none.safetensors", {}), "--verify")
        self.assertEqual((result["bytes"], result["model"]["tensors"], result["verified"]), (0, 0, True))

    def test_verification_names_the_tensor_with_wrong_bytes(self):
        wrong_reads = self.need_wrong_reads()
        done = self.run_tool("load", self.small_model(), "--verify", "--json", env={"LD_PRELOAD": wrong_reads})
        result = json.loads(done.stdout)
        schema.check(result, "load")
        self.assertEqual((done.returncode, result["verified"]), (1, False))
        self.assertEqual(result["error"]["code"], "io_error")
        self.assertIn("tensor b.0 of", result["error"]["message"])


class BrokenModels(ModelTest):
    def refused(self, code, exit_code, path, commands=READERS, **how):
        for command in commands:
            error = self.fails(code, exit_code, *command, path, **how)
            self.assertIn(pathlib.Path(path).name, error["message"])
        return error

    def test_are_missing_or_empty(self):
        self.refused("not_found", 3, self.folder / "missing.safetensors")
        self.refused("truncated", 1, self.file("empty.safetensors"))
        self.refused("truncated", 1, self.file("empty.gguf"))

    def test_are_cut_short(self):
        whole = self.small_model().read_bytes()
        for size in [7, 8, 50, len(whole) - 1]:
            self.refused("truncated", 1, self.file("cut.safetensors", whole[:size]))
        error = self.fails("truncated", 1, "load", self.folder / "cut.safetensors")
        self.assertIn("--raw", error["hint"])
        whole = gguf({"f": (0, [5], bytes(20))})
        for size in [20, 40, len(whole) - 1]:
            self.refused("truncated", 1, self.file("cut.gguf", whole[:size]))

    def test_are_something_else(self):
        self.refused("invalid_argument", 2, self.file("text.safetensors", b"\x10" + bytes(7) + b"this is no JSON!" * 9))
        self.refused("invalid_argument", 2, self.file("bad.safetensors", header({"a": ("U8", [5])}) + b"123456"))
        self.refused("invalid_argument", 2, self.file("x.safetensors.index.json", b"[]"))

    def test_promise_headers_of_any_size(self):
        self.refused("invalid_argument", 2, self.file("bomb.safetensors", struct.pack("<Q", 1 << 62) + b"{}"))
        self.refused("truncated", 1, self.file("hole.safetensors", struct.pack("<Q", 99_999_999) + b"{}"))
        many = struct.pack("<4sIQQ", b"GGUF", 3, 1 << 62, 1 << 62)
        self.refused("truncated", 1, self.file("bomb.gguf", many))

    def test_may_not_be_read(self):
        self.need_other_user()
        path = self.small_model()
        path.chmod(0o600)
        self.refused("permission_denied", 4, path, user=NOBODY, group=NOBODY, extra_groups=[])

    def test_are_directories_without_one(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.refused("not_found", 3, empty)
        self.fails("is_directory", 1, "load", empty, "--raw")

    def test_are_directories_with_two(self):
        folder = self.folder / "twice"
        folder.mkdir()
        self.small_model("twice/consolidated.safetensors")
        self.small_model("twice/model.safetensors")
        error = self.refused("invalid_argument", 2, folder)
        for name in ["consolidated.safetensors", "model.safetensors"]:
            self.assertIn(name, error["message"])

    def test_lack_a_file(self):
        folder = self.shards()
        (folder / "model-00002-of-00002.safetensors").unlink()
        for command in READERS:
            error = self.fails("not_found", 3, *command, folder)
            self.assertIn("model-00002-of-00002.safetensors", error["message"])

    def test_have_an_index_that_leaves_the_directory(self):
        folder = self.shards()
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
        for command in READERS:
            self.assertIn("../x.safetensors", self.fails("invalid_argument", 2, *command, folder)["message"])

    def test_don_t_belong_together(self):
        path = self.small_model()
        error = self.fails("invalid_argument", 2, "load", path, self.file("plain", b"x"))
        self.assertIn("--raw", error["hint"])
        self.fails("invalid_argument", 2, "load", path, self.small_model("y.safetensors"))
        self.fails("is_directory", 1, "load", path, self.folder)

    def test_are_larger_than_memory(self):
        path = self.sparse_model("huge.safetensors", 1 << 43)
        self.assertIn("--select", self.fails("out_of_memory", 5, "load", path)["hint"])
        self.assertEqual(self.json_of("load", path, "--select", "b", "--verify")["bytes"], 100)


class Inspect(ModelTest):
    def test_tells_everything_as_json(self):
        path = self.small_model()
        result = self.json_of("inspect", path)
        self.assertEqual(result["formats"], ["safetensors"])
        self.assertEqual(result["bytes"], 60 + MIB + 13 + 1001 + 8)
        self.assertEqual({each["type"]: (each["tensors"], each["bytes"]) for each in result["types"]},
                         {"F32": (1, 60), "BF16": (1, 0), "U8": (2, MIB + 1014), "I64": (1, 8)})
        tensors = {each["name"]: each for each in result["tensors"]}
        self.assertEqual(tensors["a"]["shape"], [3, 5])
        self.assertEqual(tensors["scalar"]["shape"], [])
        for each in tensors.values():
            self.assertEqual(each["offset"] % each["alignment_bytes"], 0)
            self.assertNotEqual(each["offset"] % (2 * each["alignment_bytes"]), 0)
            if each["size_bytes"]:
                self.assertEqual(each["name"] in result["misaligned_256"], each["alignment_bytes"] < 256)
                self.assertEqual(each["name"] in result["misaligned_4096"], each["alignment_bytes"] < 4096)
        self.assertEqual(result["files"][0]["size_bytes"], path.stat().st_size)
        self.assertIsNone(self.json_of("inspect", path, "--no-tensors")["tensors"])

    def test_tells_a_person(self):
        text = self.run_tool("inspect", self.shards()).stdout.decode()
        for word in ["3 tensors in 2 files", "model-00002-of-00002.safetensors", "F32", "200 kB in 1 tensor", "1000 x 3",
                     "file 2 at", "no tensor begins at a multiple of 256"]:
            self.assertIn(word, text)
        some = self.run_tool("inspect", self.small_model()).stdout.decode()
        self.assertIn("4 don't begin at a multiple of 256: a, b.0, b.1, scalar", some)
        self.assertEqual(text.count("format  pt"), 1, "both files have the same metadata")
        self.assertNotIn("1000 x 3", self.run_tool("inspect", self.folder / "model", "--no-tensors").stdout.decode())

    def test_names_quantized_types_and_keeps_metadata_whole_in_json(self):
        long = "word " * 1000
        path = self.file("x.gguf", gguf({"q": (2, [32, 4], bytes(72))}, [("general.name", "small"), ("long", long)]))
        result = self.json_of("inspect", path)
        self.assertEqual(result["files"][0]["metadata"], {"general.name": "small", "long": long})
        self.assertEqual((result["tensors"][0]["dtype"], result["tensors"][0]["quantization"]), ("U8", "Q4_0"))
        self.assertEqual(result["types"][0]["type"], "Q4_0")
        text = self.run_tool("inspect", path).stdout.decode()
        self.assertIn("small", text)
        self.assertIn("(5.00 kB)", text)
        self.assertLess(len(text), 1000)

    def test_sums_up_what_is_too_long_for_a_terminal(self):
        names = [f"model.layers.{i}.{what}" for i in range(40) for what in ["q_proj.weight", "norm"]]
        path = self.model("x.safetensors", {name: ("BF16", [4, 4]) for name in names})
        text, exit_code = self.on_terminal(100, "inspect", path)
        self.assertEqual(exit_code, 0)
        self.assertIn("model.layers.*.q_proj.weight", text)
        self.assertIn("40 tensors", text)
        self.assertNotIn("layers.7.norm", text)
        self.assertEqual(self.json_of("load", path, "--select", "model.layers.*.norm")["model"]["tensors"], 40)
        whole, _ = self.on_terminal(100, "inspect", path, "--tensors")
        piped = self.run_tool("inspect", path).stdout.decode()
        for name in names:
            self.assertIn(name, whole)
            self.assertIn(name, piped)
        none, _ = self.on_terminal(100, "inspect", path, "--no-tensors")
        self.assertNotIn("q_proj", none.replace("q_proj.weight, ", "").split("files")[1])

    def test_fits_a_narrow_terminal_and_lets_names_do_nothing_to_it(self):
        names = {f"layer \x1b[31m \u009b31m \u202e \u2069 \u061c {'long' * i}": ("U8", [i + 1]) for i in range(9)}
        path = self.model("x.safetensors", names, {"text": "with\nlines and many words " * 9})
        for command in [["inspect"], ["inspect", "--tensors"], ["verify"], ["load", "--verify"]]:
            text, _ = self.on_terminal(40, *command, path, env={"NO_COLOR": "1"})
            self.assertNotIn("\x1b", text)
            for character in "\u009b\u202e\u2069\u061c":
                self.assertNotIn(character, text)
            if command[0] == "inspect":
                for line in text.split("\r\n"):
                    self.assertLessEqual(len(line), 40, line)


class OtherStores(ModelTest):
    """A model need not be a file of the kernel's: here it lies at the front of a disk behind a controller in software."""

    def setUp(self):
        super().setUp()
        path = self.folder / "x.safetensors"
        self.json_of("sample", path, "--size", "1MiB")
        self.size = path.stat().st_size
        with open(path, "ab") as file:
            file.truncate(2 * MIB)
        self.path, self.name = path, f"soft-nvme:{path}"

    def test_models_are_loaded_inspected_and_verified(self):
        result = self.json_of("load", self.name, "--verify")
        self.assertEqual((result["model"]["tensors"], result["verified"]), (10, True))
        self.assertEqual(list(result["routes"]), ["direct"])
        inspected = self.json_of("inspect", self.name)
        self.assertEqual(inspected["files"][0]["path"], self.name)
        self.assertEqual(inspected["files"][0]["size_bytes"], self.size)
        verified = self.json_of("verify", self.name)
        self.assertEqual((verified["verdict"], verified["files"][0]["how"]), ("right", "xxh3 of 10 tensors"))
        self.fails("invalid_argument", 2, "inspect", self.path)  # a file has nothing behind its last tensor

    def test_gguf_too(self):
        content = gguf({"a": (0, [4], os.urandom(16)), "b": (0, [8], os.urandom(32))})
        name = f"soft-nvme:{self.file('m.gguf', content + bytes(10_000))}"
        self.assertEqual(self.json_of("inspect", name)["files"][0]["size_bytes"], len(content))
        result = self.json_of("load", name, "--verify")
        self.assertEqual((result["bytes"], result["verified"]), (48, True))

    def test_what_is_wrong_there_is_told(self):
        content = bytearray(self.path.read_bytes())
        content[self.size - 1] ^= 1
        self.path.write_bytes(content)
        done = self.run_tool("verify", self.name, "--json")
        self.assertEqual(json.loads(done.stdout)["files"][0]["wrong_tensors"], ["layers.7.weight"])
        error = self.fails("not_found", 3, "inspect", f"soft-nvme:{self.folder}/nothing.safetensors")
        self.assertIn("nothing.safetensors", error["message"])

    def test_an_index_names_files_of_its_own_scheme(self):
        self.model("a.safetensors", {"a": ("U8", [100])})
        self.model("b.safetensors", {"b": ("U8", [200])})
        index = self.file("m.safetensors.index.json",
                          json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}).encode())
        result = self.json_of("inspect", f"soft-nvme:{index}")
        self.assertEqual([each["path"] for each in result["files"]],
                         [f"soft-nvme:{self.folder}/{name}.safetensors" for name in "ab"])
        self.assertEqual(self.json_of("load", f"soft-nvme:{index}")["model"]["files"], 2)


class Verify(ModelTest):
    def verdict(self, exit_code, *arguments, **how):
        done = self.run_tool("verify", *arguments, "--json", **how)
        result = json.loads(done.stdout)
        schema.check(result, "verify")
        self.assertEqual(done.returncode, exit_code, result)
        return result

    def test_finds_what_was_recorded(self):
        path = self.folder / "x.safetensors"
        self.json_of("sample", path, "--size", "1MiB")
        result = self.verdict(0, path)
        self.assertEqual((result["verdict"], result["files"][0]["how"]), ("right", "xxh3 of 10 tensors"))
        done = self.run_tool("verify", path, env={"LC_ALL": "C.UTF-8"})
        self.assertIn("✓".encode(), done.stdout)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(self.run_tool("verify", path, "--quiet").stdout, b"")

    def test_names_tensors_with_other_bytes(self):
        path = self.folder / "x.safetensors"
        self.json_of("sample", path, "--size", "1MiB")
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        result = self.verdict(1, path)
        self.assertEqual((result["verdict"], result["error"]["code"]), ("wrong", "io_error"))
        self.assertEqual(result["files"][0]["wrong_tensors"], ["layers.7.weight"])
        done = self.run_tool("verify", path)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"layers.7.weight", done.stdout)
        self.assertIn(b"the bytes differ from the recorded checksums", done.stderr)

    def test_says_when_nothing_is_known(self):
        path = self.small_model()
        result = self.verdict(1, path)
        self.assertEqual((result["verdict"], result["error"]["code"]), ("unknown", "unsupported"))
        self.assertIn("no recorded checksums", result["files"][0]["how"])
        done = self.run_tool("verify", path)
        self.assertIn(b"no checksum is known for", done.stderr)
        self.assertIn(b"checksums=True", done.stderr)

    def test_compares_blobs_of_the_hugging_face_cache(self):
        (self.folder / "blobs").mkdir()
        snapshot = self.folder / "snapshots" / "main"
        snapshot.mkdir(parents=True)
        content = self.small_model().read_bytes()
        blob = self.folder / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / "model.safetensors").symlink_to(f"../../blobs/{blob.name}")
        done = json.loads(self.run_tool("verify", snapshot, "--json").stdout)
        if done["verdict"] == "unknown":
            self.skipTest(done["files"][0]["how"])
        self.assertEqual(self.verdict(0, snapshot)["files"][0]["how"], "sha256 of the blob")
        blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        self.assertEqual(self.verdict(1, snapshot)["verdict"], "wrong")


class Sample(ModelTest):
    def test_is_the_same_for_the_same_seed(self):
        one, same, other = (self.folder / f"{name}.safetensors" for name in "abc")
        for path, seed in [(one, 7), (same, 7), (other, 8)]:
            result = self.json_of("sample", path, "--size", "3MiB", "--seed", seed)
            self.assertEqual(result["bytes"], path.stat().st_size)
        self.assertEqual(one.read_bytes(), same.read_bytes())
        self.assertNotEqual(one.read_bytes(), other.read_bytes())
        inspected = self.json_of("inspect", one)
        self.assertEqual(inspected["bytes"], 3 * MIB)
        self.assertEqual(inspected["misaligned_256"], [])
        self.assertIs(self.json_of("load", one, "--verify")["verified"], True)

    def test_refuses_what_can_t_be_made(self):
        self.fails("invalid_argument", 2, "sample", self.folder / "x.safetensors", "--size", "1K")
        self.fails("out_of_memory", 5, "sample", self.folder / "x.safetensors", "--size", "8T")
        self.fails("not_found", 3, "sample", self.folder / "missing" / "x.safetensors")
        self.assertEqual(self.names(), [])

    def test_leaves_nothing_on_a_full_disk(self):
        point = self.mount("size=1M")
        self.fails("no_space", 5, "sample", point / "x.safetensors", "--size", "4M")
        self.assertEqual(list(point.iterdir()), [])


class Interrupted(ModelTest):
    def check(self, process):
        exit_code, stdout, stderr, seconds = self.interrupt(process, signal.SIGINT)
        self.assertEqual(exit_code, 130, stdout + stderr)
        self.assertLess(seconds, PROMPTLY)
        result = json.loads(stdout)
        schema.check(result, "error")
        self.assertEqual(result["error"]["code"], "cancelled")

    def test_load(self):
        process = self.start("load", self.sparse_model("x.safetensors", 2 << 30), *SLOW, "--json")
        wait_until(lambda: resident_bytes(process) > 32 * MIB)
        self.check(process)

    def test_verify(self):
        sums = json.dumps({"a": "0" * 16, "b": "0" * 16})
        path = self.sparse_model("x.safetensors", 8 << 30, {"penstock.xxh3": sums})
        process = self.start("verify", path, *SLOW, "--json")
        wait_until(lambda: resident_bytes(process) > 32 * MIB)
        self.check(process)

    def test_sample_and_leaves_nothing(self):
        process = self.start("sample", self.folder / "x.safetensors", "--size", "512M", *SLOW, "--json")
        wait_until(lambda: any(self.folder.iterdir()))
        self.check(process)
        self.assertEqual(self.names(), [])


class Progress(ModelTest):
    def test_is_drawn_on_a_terminal_and_fits(self):
        path = self.sparse_model("x.safetensors", 128 * MIB)
        text, exit_code = self.on_terminal(40, "load", path, *SLOW)
        self.assertEqual(exit_code, 0, text)
        self.assertIn("of 134 MB", text)
        for line in text.replace("\r", "\n").split("\n"):
            self.assertLessEqual(len(line), 40, line)
        self.assertEqual(self.run_tool("load", path, *SLOW).stderr, b"")


class OnAGpu(ModelTest):
    def setUp(self):
        super().setUp()
        if not (pathlib.Path(FAKE_CUDA) / "libcuda.so.1").exists():
            self.skipTest("PENSTOCK_FAKE_CUDA does not name the folder of the fake driver")

    def run_tool(self, *arguments, env=None, **how):
        gpus = {"LD_LIBRARY_PATH": FAKE_CUDA, "FAKE_CUDA_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
        return super().run_tool(*arguments, env={**gpus, **(env or {})}, **how)

    def test_every_tensor_arrives(self):
        path = self.small_model()
        for domain in ["cuda:0", "cuda:1"]:
            result = self.json_of("load", path, "--to", domain, "--verify")
            self.assertIs(result["verified"], True)
            self.assertTrue(all(route.endswith("-staged") for route in result["routes"]), result["routes"])
        self.assertEqual(result["checksum"], self.json_of("load", path, "--verify")["checksum"])
        some = self.json_of("load", self.shards(), "--to", "cuda:0", "--select", "[ac]", "--verify", "--repeat", 2)
        self.assertEqual((some["verified"], some["model"]["tensors"], some["bytes"]), (True, 2, 206000))

    def test_wrong_bytes_are_found(self):
        wrong_reads = self.need_wrong_reads()
        done = self.run_tool("load", self.small_model(), "--to", "cuda:0", "--verify", "--json",
                             env={"LD_PRELOAD": wrong_reads})
        self.assertEqual((done.returncode, json.loads(done.stdout)["verified"]), (1, False))

    def test_refuses_what_is_not_there_or_does_not_fit(self):
        path = self.small_model()
        self.fails("no_device", 1, "load", path, "--to", "cuda:7")
        error = self.fails("out_of_memory", 5, "load", path, "--to", "cuda:0", env={"FAKE_CUDA_MEMORY": str(MIB)})
        self.assertIn("--select", error["hint"])
        self.fails("over_budget", 5, "load", path, "--to", "cuda:0", "--options", '{"device_budget_bytes": 65536}')


if __name__ == "__main__":
    unittest.main(verbosity=2)
