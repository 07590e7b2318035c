"""penstock pack and unpack, and what the other commands say of packed models."""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import unittest

from tool import PROMPTLY, ToolTest, wait_until

MIB = 1 << 20


def weights(count, seed=1):
    """BF16 with exponents as trained weights have them: few values, most of them near each other."""
    rng = random.Random(seed)
    exponents = [125 - min(12, int(rng.expovariate(0.7))) for _ in range(4096)]
    block = b"".join(struct.pack("<H", rng.getrandbits(1) << 15 | e << 7 | rng.getrandbits(7)) for e in exponents)
    return (block * (count // 4096 + 1))[:count * 2]


class PackTest(ToolTest):
    def model(self, name, tensors, metadata=None):
        """`tensors` are name: (dtype, shape, bytes)."""
        entries, data = {"__metadata__": metadata} if metadata else {}, b""
        for tensor, (dtype, shape, content) in tensors.items():
            entries[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            data += content
        text = json.dumps(entries).encode()
        return self.file(name, struct.pack("<Q", len(text)) + text + data)

    def shards(self):
        folder = self.folder / "model"
        folder.mkdir()
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        self.model(f"model/{names[0]}", {"a": ("BF16", [300, 1000], weights(300_000)), "b": ("U8", [77], os.urandom(77))},
                   {"format": "pt"})
        self.model(f"model/{names[1]}", {"c": ("BF16", [200_000], weights(200_000, 2)),
                                         "d": ("F32", [50_000], os.urandom(200_000))})
        index = {"metadata": {"total_size": 1_200_077}, "weight_map": {"a": names[0], "b": names[0], "c": names[1],
                                                                      "d": names[1]}}
        self.file("model/model.safetensors.index.json", json.dumps(index).encode())
        self.file("model/config.json", b'{"architectures": []}')
        return folder


    def failing_syncs(self, text):
        library = os.environ.get("PENSTOCK_FAILING_SYNCS_LIBRARY")
        if not library or os.environ.get("PENSTOCK_SANITIZE"):
            self.skipTest("needs PENSTOCK_FAILING_SYNCS_LIBRARY, the library that makes syncs fail, and no sanitizer")
        return {"LD_PRELOAD": library, "PENSTOCK_FAILING_SYNCS": f"name:{text}"}


class Pack(PackTest):
    def test_a_sharded_model_gets_smaller_and_comes_back(self):
        folder, packed, again = self.shards(), self.folder / "packed", self.folder / "again"
        told = self.json_of("pack", folder, "--out", packed)
        self.assertEqual(told["bytes"], 1_200_077)
        self.assertLess(told["ratio"], 0.8)
        self.assertEqual([file["packed_tensors"] for file in told["files"]], [1, 1])
        self.assertTrue((packed / "config.json").exists())
        self.assertEqual(self.json_of("verify", packed)["verdict"], "right")
        inspected = self.json_of("inspect", packed)
        self.assertEqual((inspected["bytes"], inspected["stored_bytes"]), (1_200_077, told["stored_bytes"]))
        by_name = {tensor["name"]: tensor for tensor in inspected["tensors"]}
        self.assertEqual((by_name["a"]["dtype"], by_name["a"]["shape"], by_name["a"]["packing"]),
                         ("BF16", [300, 1000], "planes"))
        self.assertEqual((by_name["d"]["packing"], by_name["d"]["stored_bytes"]), (None, 200_000))
        loaded = self.json_of("load", packed, "--verify")
        self.assertNotIn("can't reach this memory", loaded["reason"])
        self.assertEqual(loaded["bytes"], 1_200_077)
        self.assertEqual(loaded["model"]["packed_bytes"], 1_000_000)
        self.assertLess(loaded["model"]["stored_bytes"], 800_000)
        self.json_of("unpack", packed, "--out", again)
        plain = {tensor["name"]: tensor for tensor in self.json_of("inspect", again)["tensors"]}
        for name, (dtype, count, content) in {"a": ("BF16", 300_000, weights(300_000)),
                                              "c": ("BF16", 200_000, weights(200_000, 2))}.items():
            path = again / f"model-0000{plain[name]['file'] + 1}-of-00002.safetensors"
            data = path.read_bytes()[plain[name]["offset"]:][:plain[name]["size_bytes"]]
            self.assertEqual((plain[name]["dtype"], data == content), (dtype, True), name)

    def test_a_dry_run_estimates_and_writes_nothing(self):
        path = self.model("m.safetensors", {"a": ("BF16", [300_000], weights(300_000))})
        before = self.names()
        told = self.json_of("pack", path, "--dry-run")
        self.assertEqual(self.names(), before)
        self.assertTrue(told["dry_run"])
        self.assertLess(told["ratio"], 0.8)
        self.assertGreater(told["load_seconds"], 0)
        spoken = self.run_tool("pack", path, "--dry-run").stdout.decode()
        self.assertIn("1 of 1 tensor", spoken)

    def test_what_can_not_be_packed_is_told(self):
        path = self.model("m.safetensors", {"a": ("BF16", [300_000], weights(300_000))})
        self.assertIn("--out", self.fails("invalid_argument", 2, "pack", path)["message"])
        self.assertIn("its", self.fails("invalid_argument", 2, "pack", path, "--out", self.folder)["message"])
        self.assertIn("a file", self.fails("invalid_argument", 2, "pack", path, "--out", "out.safetensors")["message"])
        odd = path.rename(self.folder / "m.st")
        for verb in ("pack", "unpack"):
            self.assertIn("end in .safetensors",
                          self.fails("invalid_argument", 2, verb, odd, "--out", self.folder / "out")["message"])
        self.assertFalse((self.folder / "out").exists())
        odd.rename(path)
        self.fails("not_found", 3, "pack", self.folder / "nothing.safetensors", "--out", self.folder / "out")
        gguf = self.file("m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
        self.fails("unsupported", 1, "pack", gguf, "--out", self.folder / "out")
        self.fails("unsupported", 1, "pack", gguf, "--dry-run")

    def test_a_model_is_not_replaced_through_a_link(self):
        path = self.model("m.safetensors", {"a": ("BF16", [300_000], weights(300_000))})
        before = path.read_bytes()
        out = self.folder / "out"
        out.mkdir()
        (out / "m.safetensors").symlink_to(path)
        self.assertIn("itself", self.fails("invalid_argument", 2, "pack", path, "--out", out)["message"])
        self.assertEqual(path.read_bytes(), before)

    def test_no_file_of_the_model_is_replaced_under_another_name(self):
        folder = self.shards()
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        for command in ("pack", "unpack"):
            for own, target in (("model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"),
                                ("config.json", "model.safetensors.index.json"),
                                ("model.safetensors.index.json", "config.json")):
                for link in (os.symlink, os.link):
                    with self.subTest(command=command, own=own, link=link):
                        out = self.folder / "out"
                        out.mkdir()
                        link(folder / own, out / target)
                        error = self.fails("invalid_argument", 2, command, folder, "--out", out)
                        self.assertIn(f"{target} is a file of the model itself", error["message"])
                        self.assertEqual([path.name for path in out.iterdir()], [target])
                        (out / target).unlink()
                        out.rmdir()
        for name, content in before.items():
            self.assertTrue((folder / name).read_bytes() == content, name)

    def test_nothing_is_written_through_a_link(self):
        folder, out, other = self.shards(), self.folder / "out", self.file("other", b"other")
        for target in ("model-00002-of-00002.safetensors", "model.safetensors.index.json", "config.json"):
            for to in (other, self.folder / "missing"):
                with self.subTest(target=target, to=to):
                    out.mkdir()
                    (out / target).symlink_to(to)
                    error = self.fails("invalid_argument", 2, "pack", folder, "--out", out)
                    self.assertIn("symbolic link", error["message"])
                    self.assertEqual([path.name for path in out.iterdir()], [target])
                    (out / target).unlink()
                    out.rmdir()
        self.assertEqual(other.read_bytes(), b"other")

    def test_small_files_are_replaced_as_weights_are(self):
        folder, out, other = self.shards(), self.folder / "out", self.file("other", b"other")
        self.file("model/empty.txt")
        self.file("model/tokenizer.json", os.urandom(9 * MIB + 5))
        out.mkdir()
        for name in ("config.json", "model.safetensors.index.json"):
            (out / f".{name}.new").symlink_to(other)  # a name that can be guessed
            (out / name).write_bytes(b"old")
            writer = self.start("write", "-", out / name, "--size", 4096, stdin=subprocess.PIPE)
            wait_until(lambda: any(path.name.startswith(f".{name}.") and path.suffix == ".part"
                                   for path in out.iterdir()))
            writer.kill()
            writer.wait()
        with open(out / "config.json", "rb") as old:
            copied = self.json_of("pack", folder, "--out", out)["copied"]
            self.assertEqual(old.read(), b"old")
        self.assertEqual(other.read_bytes(), b"other")
        names = ["config.json", "empty.txt", "model.safetensors.index.json", "tokenizer.json"]
        self.assertEqual(sorted(copied), [str(out / name) for name in names])
        for name in names:
            self.assertEqual((out / name).read_bytes(), (folder / name).read_bytes(), name)
        self.assertEqual([path.name for path in out.iterdir() if path.name.endswith(".part")], [])

    def test_small_files_are_synced(self):
        folder, out = self.shards(), self.folder / "out"
        out.mkdir()
        for name in ("config.json", "model.safetensors.index.json"):
            (out / name).write_bytes(b"old")
            self.fails("io_error", 1, "pack", folder, "--out", out, env=self.failing_syncs(f"/.{name}"))
            self.assertEqual((out / name).read_bytes(), b"old")

    def test_a_folder_with_other_weights_is_refused(self):
        folder, out = self.shards(), self.folder / "out"
        one = self.model("one.safetensors", {"a": ("BF16", [100_000], weights(100_000))})
        index = "model.safetensors.index.json"
        for source, other in ((folder, "model-00003-of-00003.safetensors"), (folder, "other.safetensors.index.json"),
                              (one, index)):
            for command in ("pack", "unpack"):
                with self.subTest(source=source, other=other, command=command):
                    out.mkdir()
                    shutil.copy(folder / index if other.endswith("json") else one, out / other)
                    error = self.fails("invalid_argument", 2, command, source, "--out", out)
                    self.assertIn(other, error["message"])
                    self.assertIn("empty folder", error["hint"])
                    self.assertEqual([path.name for path in out.iterdir()], [other])
                    shutil.rmtree(out)
        out.mkdir()
        (out / index).write_text('{"weight_map": {"x": "x.safetensors"}}')  # which is replaced
        (out / "notes.txt").touch()
        self.json_of("pack", folder, "--out", out)
        self.assertEqual(self.json_of("verify", out)["verdict"], "right")

    def test_a_mix_of_old_and_new_does_not_pass_for_a_model(self):
        folder, out = self.shards(), self.folder / "out"
        without_index = self.folder / "without_index"
        without_index.mkdir()
        for number in range(3):
            self.model(f"without_index/part{number}.safetensors", {f"t{number}": ("BF16", [100_000], weights(100_000))})
        for source, fails_at in ((folder, "model-00002"), (folder, "config.json"), (without_index, "part2")):
            with self.subTest(source=source, fails_at=fails_at):
                self.json_of("pack", source, "--out", out)
                self.fails("io_error", 1, "pack", source, "--out", out, env=self.failing_syncs(f"/.{fails_at}"))
                for command in ("load", "verify", "inspect"):
                    error = self.fails("invalid_argument", 2, command, out)
                    self.assertIn("has not ended", error["message"])
                self.json_of("pack", source, "--out", out)
                self.assertEqual(self.json_of("verify", out)["verdict"], "right")
                shutil.rmtree(out)

    def test_a_run_that_replaced_nothing_leaves_the_old_model(self):
        folder, out = self.shards(), self.folder / "out"
        self.json_of("pack", folder, "--out", out)
        self.fails("io_error", 1, "pack", folder, "--out", out, env=self.failing_syncs("/.model-00001"))
        self.assertEqual(self.json_of("verify", out)["verdict"], "right")

    def test_a_full_disk_gets_no_folder(self):
        folder = self.shards()
        point = self.mount("size=64k")
        (point / "other").write_bytes(bytes(64 << 10))
        for out in ("packed", "new/packed/"):
            self.fails("no_space", 5, "pack", folder, "--out", f"{point}/{out}")
            self.assertEqual([path.name for path in point.iterdir()], ["other"])

    def test_an_interrupt_leaves_the_old_file(self):
        path = self.folder / "long.safetensors"
        size = 512 * MIB
        text = json.dumps({"a": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
        block = weights(2 * MIB)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for _ in range(size // len(block)):
                file.write(block)
        out = self.folder / "out"
        out.mkdir()
        (out / "long.safetensors").write_bytes(b"old")
        for signal_number, exit_code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
            process = self.start("pack", path, "--out", out, "--threads", 1)
            wait_until(lambda: any(each.stat().st_size > 4 * MIB for each in out.iterdir() if each.name.startswith(".")))
            process.send_signal(signal.SIGSTOP)
            self.fails("in_use", 4, "pack", path, "--out", out)
            process.send_signal(signal.SIGCONT)
            code, _, _, seconds = self.interrupt(process, signal_number)
            self.assertEqual(code, exit_code)
            self.assertLess(seconds, PROMPTLY)
            self.assertEqual((out / "long.safetensors").read_bytes(), b"old")
            if signal_number == signal.SIGINT:
                self.assertEqual([each.name for each in out.iterdir()], ["long.safetensors"])
        self.assertIn("has not ended", self.fails("invalid_argument", 2, "inspect", out)["message"])

    def test_damage_is_told_with_tensor_and_place(self):
        path = self.model("m.safetensors", {"a": ("BF16", [300_000], weights(300_000))})
        self.json_of("pack", path, "--out", self.folder / "out")
        packed = self.folder / "out" / "m.safetensors"
        data = bytearray(packed.read_bytes())
        data[-8192] ^= 64
        packed.write_bytes(data)
        self.assertIn('tensor "a": chunk 4 of 5', self.fails("io_error", 1, "load", packed)["message"])
        self.assertIn("differ", self.run_tool("verify", packed).stderr.decode())
        self.fails("io_error", 1, "unpack", packed, "--out", self.folder / "again")
        self.assertFalse((self.folder / "again" / "m.safetensors").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
