"""What services and containers limit: descriptors, memory, threads, the size of files."""

import json
import os
import resource
import struct
import unittest

from tool import ToolTest

MB, MIB = 10**6, 1 << 20
SANITIZED = bool(os.environ.get("PENSTOCK_SANITIZE"))


def limit(what, value):
    """For preexec_fn: as soft and hard limit."""
    return lambda: resource.setrlimit(what, (value, value))


def safetensors(entries, data=b""):
    text = b"{" + b",".join(entries) + b"}"
    return struct.pack("<Q", len(text)) + text + data


def gguf(pairs=b"", pair_count=0, tensors=b"", tensor_count=0):
    front = struct.pack("<4sIQQ", b"GGUF", 3, tensor_count, pair_count) + pairs + tensors
    return front + bytes(-len(front) % 32)


def gguf_array(kind, count, content):
    return gguf(struct.pack("<Q1sIIQ", 1, b"k", 9, kind, count) + content, 1)


class ManyFiles(ToolTest):
    """A model of more files than the process may have open."""

    count = 1500

    def setUp(self):
        super().setUp()
        self.how = {"preexec_fn": limit(resource.RLIMIT_NOFILE, 1024)}
        weights = {}
        for number in range(self.count):
            name = f"{number:05}.safetensors"
            entry = b'"t%d":{"dtype":"U8","shape":[100],"data_offsets":[0,100]}' % number
            self.file(name, safetensors([entry], bytes([number % 251]) * 100))
            weights[f"t{number}"] = name
        self.file("model.safetensors.index.json", json.dumps({"weight_map": weights}).encode())

    def test_is_loaded(self):
        loaded = self.json_of("load", self.folder, "--verify", **self.how)
        self.assertEqual((loaded["bytes"], loaded["verified"]), (self.count * 100, True))
        self.assertEqual(loaded["model"]["files"], self.count)

    def test_is_inspected_and_verified(self):
        self.assertEqual(self.json_of("inspect", self.folder, **self.how)["tensor_count"], self.count)
        done = self.run_tool("verify", self.folder, "--json", **self.how)
        self.assertEqual(json.loads(done.stdout)["verdict"], "unknown", done.stdout[:500])

    def test_takes_as_many_descriptors_as_the_tool_may_have(self):
        soft = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))}
        self.assertEqual(self.json_of("load", self.folder, **soft)["bytes"], self.count * 100)


class FewDescriptors(ToolTest):
    def test_are_what_the_hint_is_about(self):
        data = self.file("data", os.urandom(MIB))
        entry = b'"t":{"dtype":"BF16","shape":[4096],"data_offsets":[0,8192]}'
        model = self.file("model.safetensors", safetensors([entry], bytes(8192)))
        os.mkdir(self.folder / "packed")
        for arguments in [["load", data], ["write", data, self.folder / "copy"], ["write", data, data, "--in-place"],
                          ["load", data, "--to", "-"], ["pack", model, "--out", self.folder / "packed"]]:
            told = 0
            for count in range(3, 24):
                done = self.run_tool(*arguments, preexec_fn=limit(resource.RLIMIT_NOFILE, count))
                with self.subTest(arguments=arguments, descriptors=count):
                    if done.returncode != 0 and b"Too many open files" in done.stderr:
                        told += 1
                        self.assertIn(b"ulimit -n", done.stderr)
                    self.assertNotIn(b"can't be used\n", done.stderr)
            self.assertGreater(told, 0, arguments)


@unittest.skipIf(SANITIZED, "sanitizers take more memory than a limit leaves")
class LongHeaders(ToolTest):
    """Of what a command may take, the tool itself needs a few megabytes; the rest is for the header."""

    own = 40 * MB

    def within(self, times, header, *arguments):
        path = self.file("model." + ("gguf" if header.startswith(b"GGUF") else "safetensors"), header)
        how = {"preexec_fn": limit(resource.RLIMIT_DATA, self.own + times * len(header))}
        return self.run_tool(arguments[0], path, *arguments[1:], **how)

    def check_inspect(self, header):
        for arguments in ["--json"], ["--tensors"]:
            done = self.within(4, header, "inspect", *arguments)
            self.assertEqual(done.returncode, 0, done.stderr[:500])
        return json.loads(self.within(4, header, "inspect", "--json").stdout)

    def test_of_many_tensors_take_four_times_their_size(self):
        entries = [b'"%05x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % each for each in range(100_000)]
        self.assertEqual(self.check_inspect(safetensors(entries))["tensor_count"], 100_000)
        backwards = [b'"%05x":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}' % (each, each, each + 1)
                     for each in reversed(range(100_000))]
        found = self.check_inspect(safetensors(backwards, bytes(100_000)))
        self.assertEqual([found["tensors"][at]["name"] for at in (0, -1)], ["00000", "1869f"])
        tensors = b"".join(struct.pack("<Q5sIQIQ", 5, b"%05x" % each, 1, 0, 0, 0) for each in range(100_000))
        found = self.check_inspect(gguf(tensors=tensors, tensor_count=100_000))
        self.assertEqual(found["tensors"][-1]["shape"], [0])

    def test_of_arrays_of_numbers_take_four_times_their_size(self):
        count = 1_000_000
        for kind, content, last in [(6, struct.pack("<f", 0.1) * count, "0.1]"), (7, b"\0" * count * 5, "false]"),
                                    (1, b"\x80" * count * 5, "-128]")]:
            found = self.check_inspect(gguf_array(kind, count * (1 if kind == 6 else 5), content))
            self.assertTrue(found["files"][0]["metadata"]["k"].endswith(last))

    def test_of_long_texts_take_four_times_their_size(self):
        found = self.check_inspect(safetensors([b'"__metadata__":{"k":"' + b'\\"' * 2 * MB + b'"}']))
        self.assertEqual(found["files"][0]["metadata"]["k"], '"' * 2 * MB)

    def test_can_be_loaded_and_verified(self):
        entries = [b'"%05x":{"dtype":"U8","shape":[],"data_offsets":[%d,%d]}' % (each, each, each + 1)
                   for each in range(20_000)]
        header = safetensors(entries, b"x" * 20_000)
        for command in "load", "verify":
            done = self.within(30, header, command, "--json")
            self.assertNotIn(b"out_of_memory", done.stdout)

    def test_that_only_an_attack_needs_are_refused(self):
        many = safetensors([b'"__metadata__":{' + b",".join(b'"%x":""' % each for each in range(300_000)) + b"}"])
        self.assertIn("262144", self.fails("invalid_argument", 2, "inspect", self.file("m", many))["message"])
        deep = safetensors([b'"a":' + b"[" * 100_000 + b"]" * 100_000])
        self.fails("invalid_argument", 2, "inspect", self.file("d", deep))

    def test_are_one_object_or_one_error_whatever_the_limit(self):
        """Of a value that is longer as JSON, so that there might be memory to read it and none to print it."""
        text = b'"' * MB
        path = self.file("model.gguf", gguf_array(8, 1, struct.pack("<Q", len(text)) + text))

        def is_enough(megabytes):
            done = self.run_tool("inspect", path, "--json", preexec_fn=limit(resource.RLIMIT_AS, megabytes * MB))
            if done.returncode in (0, 5):
                self.assertEqual("error" in json.loads(done.stdout), done.returncode == 5)
            return done.returncode == 0

        too_little, enough = 1, 1024
        while enough - too_little > 1:
            middle = (too_little + enough) // 2
            too_little, enough = (too_little, middle) if is_enough(middle) else (middle, enough)
        self.assertIn(False, [is_enough(too_little - less) for less in range(6)])

    def test_without_memory_are_an_error_in_words_and_in_json(self):
        entries = [b'"%05x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % each for each in range(400_000)]
        path = self.file("model.safetensors", safetensors(entries))
        for command in "inspect", "load", "verify":
            error = self.fails("out_of_memory", 5, command, path, preexec_fn=limit(resource.RLIMIT_DATA, self.own))
            self.assertIn("memory", error["message"])
            self.assertTrue(error["hint"])


@unittest.skipIf(SANITIZED, "sanitizers take more memory than a limit leaves")
class WithoutMemory(ToolTest):
    def test_every_command_ends_with_an_exit_code(self):
        """Whatever the limit: from where the tool hardly begins to where it has enough."""
        data = self.file("data", os.urandom(4 * MB))
        commands = [["load", data], ["doctor", data], ["engines"], ["write", data, self.folder / "copy"]]
        for arguments in commands:
            for size in range(4, 60, 14):
                done = self.run_tool(*arguments, "--json", preexec_fn=limit(resource.RLIMIT_DATA, size * MB))
                with self.subTest(command=arguments[0], megabytes=size):
                    self.assertIn(done.returncode, (0, 5), done.stderr)
                    if done.returncode == 5:
                        self.assertEqual(json.loads(done.stdout)["error"]["code"], "out_of_memory")
        self.assertLessEqual(set(self.names()), {"data", "copy"}, "no unfinished file is left")


@unittest.skipIf(SANITIZED, "sanitizers take more memory than a limit leaves")
class SmallControlGroups(ToolTest):
    """What takes more memory than its group has is killed."""

    def test_refuse_what_leaves_nothing_for_the_tool_itself(self):
        size = 64 * MIB
        data = self.sparse_file("data", size)
        entry = b'"t":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}' % (size, size)
        model = self.file("model.safetensors", safetensors([entry]))
        os.truncate(model, model.stat().st_size + size)
        store = self.sparse_file("store", size)
        self.json_of("kind", "create", store)
        self.json_of("kind", "add", store, "k", "--record", MIB, "--capacity", 64, "--start", 0, "--records", 64)
        for arguments in [["load", data], ["load", model], ["kind", "read", store, "k", 0, "--count", 64]]:
            error = self.fails("out_of_memory", 5, *arguments, preexec_fn=self.memory_group(size))
            self.assertRegex(error["message"], r"67\.1 MB is more than the 4\d\.\d MB of memory available")

    def test_pack_and_unpack_through_as_much_memory_as_there_is(self):
        size = 16 * MIB
        entry = b'"t":{"dtype":"BF16","shape":[%d],"data_offsets":[0,%d]}' % (size // 2, size)
        model = self.file("m.safetensors", safetensors([entry], b"\x12\x3f\x07\x3e" * (size // 4)))
        for limit in 24, 32, 64:
            packed, plain = self.folder / f"packed{limit}", self.folder / f"plain{limit}"
            for verb, source, folder in [("pack", model, packed), ("unpack", packed, plain)]:
                self.json_of(verb, source, "--out", folder, preexec_fn=self.memory_group(limit * MIB))
            self.assertEqual((plain / model.name).read_bytes()[-size:], model.read_bytes()[-size:])
        for verb, source in [("pack", model), ("unpack", packed)]:
            error = self.fails("out_of_memory", 5, verb, source, "--out", self.folder / "new",
                               preexec_fn=self.memory_group(8 * MIB))
            self.assertIn("are available", error["message"])

    def test_serve_what_they_have_room_for(self):
        for limit, size in [(8, 2), (16, 6), (32, 13), (64, 44)]:
            data = self.file("data", os.urandom(size * MIB))
            for how in [[], ["--cache", "bypass"], ["--engine", "posix"], ["--options", '{"lanes": 16}']]:
                loaded = self.json_of("load", data, "--verify", *how, preexec_fn=self.memory_group(limit * MIB))
                self.assertTrue(loaded["verified"])


class FileSizes(ToolTest):
    """Beyond RLIMIT_FSIZE the kernel sends a signal that ends most programs."""

    how = {"preexec_fn": limit(resource.RLIMIT_FSIZE, 4096)}

    def test_beyond_the_limit_are_an_error(self):
        data = self.file("data", os.urandom(MB))
        self.fails("no_space", 5, "write", data, self.folder / "copy", **self.how)
        done = self.run_tool("load", data, "--timeline", self.folder / "trace", "--json",
                             preexec_fn=limit(resource.RLIMIT_FSIZE, 100))
        self.assertEqual(json.loads(done.stdout)["error"]["code"], "no_space")
        self.assertEqual(self.names(), ["data"])

    def test_of_the_output_are_an_error_too(self):
        entries = [b'"%05x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % each for each in range(1000)]
        path = self.file("model.safetensors", safetensors(entries))
        with open(self.folder / "out", "wb") as out:
            done = self.run_tool("inspect", path, "--json", stdout=out, **self.how)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"can't write to standard output: File too large", done.stderr)

    def test_of_a_full_disk_are_told_as_that(self):
        for arguments in (["--help"], ["manual"], ["engines", "--json"], ["engines"]):
            with open("/dev/full", "wb") as out:
                done = self.run_tool(*arguments, stdout=out)
            self.assertEqual((done.returncode, done.stderr),
                             (1, b"penstock: can't write to standard output: No space left on device\n"), arguments)


if __name__ == "__main__":
    unittest.main()
