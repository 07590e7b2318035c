"""GPU memory in load, write and doctor, over the fake CUDA driver, and what they say where there is no GPU."""

import json
import os
import pathlib
import shutil
import subprocess
import unittest

import schema
from tool import TOOL, ToolTest, environment

MIB = 1 << 20
FAKE_CUDA = os.environ.get("PENSTOCK_FAKE_CUDA", "")
FAKE_CUFILE = os.environ.get("PENSTOCK_FAKE_CUFILE", "")


class GpuTest(ToolTest):
    def setUp(self):
        super().setUp()
        if not (pathlib.Path(FAKE_CUDA) / "libcuda.so.1").exists():
            self.skipTest("PENSTOCK_FAKE_CUDA does not name the folder of the fake driver")

    def run_tool(self, *arguments, env=None, **how):
        gpus = {"LD_LIBRARY_PATH": f"{FAKE_CUDA}:{FAKE_CUFILE}", "FAKE_CUDA_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
        return super().run_tool(*arguments, env={**gpus, **(env or {})}, **how)


class LoadIntoAGpu(GpuTest):
    def test_arrives_whole_and_says_how(self):
        path = self.file("data", os.urandom(9 * MIB + 17))
        for domain in ["cuda", "cuda:0", "cuda:1"]:
            result = self.json_of("load", path, "--to", domain, "--verify")
            self.assertEqual(result["bytes"], 9 * MIB + 17)
            self.assertIs(result["verified"], True)
            self.assertEqual(sum(result["routes"].values()), 9 * MIB + 17)
            for route in result["routes"]:
                self.assertTrue(route.endswith("-staged"), route)
        self.assertEqual(result["checksum"], self.json_of("load", path, "--verify")["checksum"])

    def test_takes_every_cache_mode_and_engine(self):
        path = self.file("data", os.urandom(2 * MIB + 3))
        for engine in ["uring", "posix"]:
            if not {each["name"]: each for each in self.json_of("engines")["engines"]}[engine]["available"]:
                continue
            for cache in ["auto", "keep", "bypass"]:
                result = self.json_of("load", path, "--to", "cuda:0", "--verify", "--engine", engine, "--cache", cache)
                self.assertIs(result["verified"], True)

    def test_takes_parts_and_several_files(self):
        first, second = os.urandom(MIB + 1), os.urandom(4097)
        both = self.json_of("load", self.file("a", first), self.file("empty"), self.file("b", second), "--to", "cuda:0",
                            "--verify")
        self.assertEqual(both["bytes"], MIB + 1 + 4097)
        self.assertIs(both["verified"], True)
        part = self.json_of("load", self.folder / "a", "--offset", 1001, "--size", 5003, "--to", "cuda:0", "--verify")
        self.assertEqual(part["bytes"], 5003)
        self.assertEqual(self.json_of("load", self.folder / "empty", "--to", "cuda:0", "--verify")["bytes"], 0)

    def test_repeats_and_tells_the_steady_speed(self):
        path = self.file("data", os.urandom(MIB))
        result = self.json_of("load", path, "--to", "cuda:0", "--repeat", 4, "--verify")
        self.assertEqual(len(result["rounds"]), 4)
        later = sorted(each["gb_per_s"] for each in result["rounds"][1:])
        self.assertEqual(result["steady_gb_per_s"], later[1])
        self.assertEqual(result["seconds"], result["rounds"][0]["seconds"])
        self.assertIn(b"steady", self.run_tool("load", path, "--repeat", 2).stdout)
        once = self.json_of("load", path)
        self.assertEqual((len(once["rounds"]), once["steady_gb_per_s"]), (1, None))
        self.assertNotIn(b"steady", self.run_tool("load", path).stdout)
        for count in ["0", "-1", "x", "1001"]:
            self.fails("invalid_argument", 2, "load", path, "--repeat", count)

    def test_shows_copies_in_a_timeline(self):
        path, trace = self.file("data", os.urandom(8 * MIB)), self.folder / "trace.json"
        result = self.json_of("load", path, "--to", "cuda:0", "--timeline", trace)
        events = [each for each in json.loads(trace.read_text())["traceEvents"] if each["ph"] == "X"]
        copied = sum(each["args"]["bytes"] for each in events if each["name"] == "copy")
        self.assertEqual((copied, result["device_bytes"]), (8 * MIB, 8 * MIB))
        self.assertGreater(result["pinned_bytes"], 0)

    def test_tells_a_person_what_it_waited_for(self):
        text = self.run_tool("load", self.file("data", os.urandom(8 * MIB)), "--to", "cuda:0", "--cache", "bypass").stdout
        for word in [b"-staged", b"limit", b"waiting for storage", b"set-up"]:
            self.assertIn(word, text)


class LoadByCuFile(GpuTest):
    def setUp(self):
        super().setUp()
        engines = {each["name"]: each for each in self.json_of("engines")["engines"]}
        if not (pathlib.Path(FAKE_CUFILE) / "libcufile.so.0").exists() or not engines["cufile"]["available"]:
            self.skipTest("PENSTOCK_FAKE_CUFILE does not name the folder of the fake library")
        if engines["cufile"]["device_route"] != "cufile-compat":
            self.skipTest("this machine has GPUDirect Storage, so cuFile would not fall back")

    def test_never_falls_back_unless_asked(self):
        path = self.file("data", os.urandom(5 * MIB))
        plain = self.json_of("load", path, "--to", "cuda:0", "--verify")
        self.assertNotIn("cufile", "".join(plain["routes"]))
        self.assertIn("cufile not used", plain["reason"])
        self.fails("no_route", 1, "load", path, "--to", "cuda:0", "--engine", "cufile")
        asked = self.json_of("load", path, "--to", "cuda:0", "--engine", "cufile", "--verify", "--options",
                             '{"allowed_routes": ["cufile-compat"]}')
        self.assertEqual(asked["routes"], {"cufile-compat": 5 * MIB})
        self.assertIs(asked["verified"], True)

    def test_is_found_in_the_folder_of_gpudirect_storage(self):
        # In a mount namespace, whose /usr/local holds nothing else.
        gds = "/usr/local/cuda/gds/lib64"
        library = pathlib.Path(FAKE_CUFILE) / "libcufile.so.0"
        script = f"""mount -t tmpfs none /usr/local && mkdir -p {gds} && cp '{library}' {gds}/ &&
            env -u LD_LIBRARY_PATH '{TOOL}' engines --json"""
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, timeout=60)
        if b"unshare" in done.stderr or b"mount:" in done.stderr:
            self.skipTest(f"no mount namespace here: {done.stderr.decode().strip()}")
        engines = {each["name"]: each for each in json.loads(done.stdout)["engines"]}
        found = {each["name"]: each["detail"] for each in engines["cufile"]["conditions"]}["libcufile"]
        if engines["cufile"]["available"] and "/usr/local/" not in found:
            self.skipTest(f"the loader finds another one first: {found}")
        self.assertIn(f"{gds}/libcufile.so.0", found)

    def test_does_not_serve_host_memory(self):
        error = self.fails("unsupported", 1, "load", self.file("data", b"x" * 5000), "--engine", "cufile")
        self.assertIn("GPU", error["message"])


class LoadIntoAGpuRefuses(GpuTest):
    def test_a_gpu_that_is_not_there(self):
        path = self.file("data", b"x")
        error = self.fails("no_device", 1, "load", path, "--to", "cuda:7")
        self.assertIn("cuda:7", error["message"])
        self.assertIn("2 GPUs", error["message"])
        self.fails("no_device", 1, "load", path, "--to", "cuda:1", env={"CUDA_VISIBLE_DEVICES": "1"})
        self.fails("invalid_argument", 2, "load", path, "--to", "cuda:x")

    def test_when_none_may_be_seen(self):
        error = self.fails("no_device", 1, "load", self.file("data", b"x"), "--to", "cuda:0",
                           env={"CUDA_VISIBLE_DEVICES": ""})
        self.assertTrue(error["hint"])

    def test_when_there_is_no_driver(self):
        path = self.file("data", b"x")
        nothing = {"LD_LIBRARY_PATH": "", "CUDA_VISIBLE_DEVICES": ""}
        error = self.fails("no_device", 1, "load", path, "--to", "cuda:0", env=nothing)
        self.assertTrue(error["hint"])
        self.assertEqual(self.json_of("load", path, "--verify", env=nothing)["bytes"], 1)

    def test_a_driver_that_is_too_old(self):
        path = self.file("data", b"x")
        old = pathlib.Path(FAKE_CUDA).parent / "cuda_old"
        for env, cause in [({"FAKE_CUDA_VERSION": "10020"}, "CUDA 10"), ({"LD_LIBRARY_PATH": str(old)}, "it has no cu")]:
            error = self.fails("no_device", 1, "load", path, "--to", "cuda:0", env=env)
            self.assertIn(cause, error["message"])
            self.assertIn("too old", error["message"])
            self.assertIn("CUDA 11 or newer", error["hint"])
            self.assertEqual(self.json_of("doctor", env=env)["no_gpu"]["reason"], error["message"])
            self.assertEqual(self.json_of("load", path, "--verify", env=env)["bytes"], 1)

    def test_what_does_not_fit_before_allocating_it(self):
        path = self.file("data", os.urandom(2 * MIB))
        small = {"FAKE_CUDA_MEMORY": str(MIB)}
        error = self.fails("out_of_memory", 5, "load", path, "--to", "cuda:0", env=small)
        self.assertIn("cuda:0", error["message"])
        self.assertIn("--size", error["hint"])
        error = self.fails("out_of_memory", 5, "write", path, self.folder / "copy", "--from", "cuda:0", env=small)
        self.assertFalse((self.folder / "copy").exists())

    def test_more_than_its_budget(self):
        path = self.file("data", os.urandom(2 * MIB))
        error = self.fails("over_budget", 5, "load", path, "--to", "cuda:0", "--options", '{"device_budget_bytes": 65536}')
        self.assertIn("device_budget_bytes", error["message"] + error["hint"])


class WriteFromAGpu(GpuTest):
    def test_gives_an_equal_copy(self):
        for size in [0, 1, 4097, 65 * MIB + 3]:
            content = os.urandom(size)
            source, destination = self.file("source", content), self.folder / "copy"
            result = self.json_of("write", source, destination, "--from", "cuda:1", "--verify")
            self.assertEqual(destination.read_bytes(), content)
            self.assertEqual((result["bytes"], result["from"], result["verified"]), (size, "cuda:1", True))
            self.assertTrue(all(route.endswith("-staged") for route in result["routes"]), result["routes"])

    def test_writes_patterns_and_standard_input(self):
        self.json_of("write", "--pattern", "3MiB,7", self.folder / "host")
        self.json_of("write", "--pattern", "3MiB,7", self.folder / "gpu", "--from", "cuda:0", "--verify")
        self.assertEqual((self.folder / "gpu").read_bytes(), (self.folder / "host").read_bytes())
        self.json_of("write", "-", self.folder / "copy", "--size", 3, "--from", "cuda:0", input=b"abcdef")
        self.assertEqual((self.folder / "copy").read_bytes(), b"abc")

    def test_standard_input_is_loaded_too(self):
        loaded = self.json_of("load", "-", "--to", "cuda:0", input=b"x" * (3 * MIB + 1))
        self.assertEqual((loaded["device_bytes"], loaded["routes"]), (3 * MIB + 1, {"buffered-staged": 3 * MIB + 1}))

    def test_writes_in_place_and_leaves_the_rest(self):
        path = self.file("whole", b"a" * 10000)
        self.json_of("write", self.file("patch", b"b" * 5000), path, "--in-place", "--offset", 1003, "--from", "cuda:0",
                     "--verify")
        self.assertEqual(path.read_bytes(), b"a" * 1003 + b"b" * 5000 + b"a" * 3997)

    def test_needs_to_know_the_size(self):
        error = self.fails("invalid_argument", 2, "write", "-", self.folder / "copy", "--from", "cuda:0", input=b"abc")
        self.assertIn("--size", error["hint"])
        self.assertEqual(self.names(), [])

    def test_leaves_a_file_as_it_was_without_a_gpu(self):
        path = self.file("kept", b"kept")
        self.fails("no_device", 1, "write", self.file("source", b"new"), path, "--from", "cuda:7")
        self.assertEqual(path.read_bytes(), b"kept")


class MadeUpBus:
    """A folder that looks like /sys of a machine with the fake's first GPU, and a file's disk."""

    GPU = "0000:17:00.0"

    def __init__(self, folder, file, gpu, disk):
        self.folder = folder
        device = os.stat(file).st_dev
        self.link(f"bus/pci/devices/{self.GPU}", f"devices/{gpu}/{self.GPU}")
        self.link(f"dev/block/{os.major(device)}:{os.minor(device)}", f"devices/{disk}")
        for name, text in {"numa_node": "0", "current_link_speed": "2.5 GT/s PCIe", "current_link_width": "8",
                           "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
                           "resource": "0x0 0xffffff 0x40200\n0x1000000000 0x11ffffffff 0x14220c"}.items():
            self.write(f"devices/{gpu}/{self.GPU}/{name}", text)
        self.link(f"devices/{gpu}/{self.GPU}/driver", "bus/pci/drivers/nvidia")

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def link(self, name, target):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / target).mkdir(parents=True, exist_ok=True)
        (self.folder / name).symlink_to(self.folder / target)


class DoctorOfAGpu(GpuTest):
    def test_tells_about_every_gpu(self):
        result = self.json_of("doctor")
        self.assertIsNone(result["no_gpu"])
        self.assertEqual([gpu["domain"] for gpu in result["gpus"]], ["cuda:0", "cuda:1"])
        for gpu in result["gpus"]:
            self.assertTrue(gpu["name"])
            self.assertGreater(gpu["copy_engines"], 0)
            self.assertIsNone(gpu["bus"])  # the fake's boards are not in this machine
        text = self.run_tool("doctor", "--all").stdout
        for word in [b"cuda:0", b"cuda:1", b"compute capability", b"copy engines", b"BAR1", b"CUDA 1", b"our kernels"]:
            self.assertIn(word, text)

    def test_says_why_there_is_none_and_what_helps(self):
        for env in [{"CUDA_VISIBLE_DEVICES": ""}, {"LD_LIBRARY_PATH": "", "CUDA_VISIBLE_DEVICES": ""}]:
            result = self.json_of("doctor", env=env)
            self.assertEqual(result["gpus"], [])
            self.assertTrue(result["no_gpu"]["reason"])
            self.assertTrue(result["no_gpu"]["remedy"])
            self.assertFalse([each for each in result["findings"] if "cufile" in each["what"]])
            text = self.run_tool("doctor", "--all", env=env).stdout.decode()
            self.assertIn(result["no_gpu"]["reason"], text)
            self.assertIn(result["no_gpu"]["remedy"], text)

    def test_expects_a_route_and_measures_it_if_asked(self):
        path = self.file("data", os.urandom(4 * MIB))
        expected = self.json_of("doctor", path)["store"]
        self.assertEqual(expected["cached"]["to"], "host")
        self.assertEqual([each["gpu"] for each in expected["gpu_routes"]], ["cuda:0", "cuda:1"])
        self.assertTrue(expected["gpu_routes"][0]["reason"])
        result = self.json_of("doctor", path, "--to", "cuda:1")
        cached = result["store"]["cached"]
        self.assertEqual((cached["to"], cached["routes"]), ("cuda:1", {"cached-staged": 4 * MIB}))
        sample = result["store"]["cold"] or cached
        self.assertIn(result["store"]["gpu_routes"][1]["route"], sample["routes"])
        self.assertIn("into cuda:1", result["verdict"])
        self.assertTrue(result["way"][-1]["to"].startswith("cuda:1"))
        self.assertEqual(result["way"][-1]["gb_per_s"], cached["gb_per_s"])
        routes = {each["route"]: each for each in result["routes"]}
        self.assertTrue(routes["cached-staged"]["works"])
        self.assertEqual(routes["cached-staged"]["gb_per_s"], cached["gb_per_s"])
        for route in ["gds", "p2pdma"]:
            self.assertTrue(routes[route]["works"] or routes[route]["cause"], route)
        self.fails("no_device", 1, "doctor", path, "--to", "cuda:7")
        self.fails("invalid_argument", 2, "doctor", "--to", "cuda:0")

    def test_shows_disk_and_gpu_below_one_switch(self):
        path = self.file("data", os.urandom(MIB))
        switch = "pci0000:15/0000:15:01.0"
        bus = MadeUpBus(self.folder / "sys", path, f"{switch}/0000:16:00.0",
                        f"{switch}/0000:16:01.0/0000:18:00.0/nvme/nvme0/nvme0n1")
        bus.write(f"devices/{switch}/0000:16:01.0/0000:18:00.0/current_link_speed", "16.0 GT/s PCIe")
        bus.write(f"devices/{switch}/0000:16:01.0/0000:18:00.0/current_link_width", "4")
        result = self.json_of("doctor", path, "--sysfs", bus.folder)
        gpu = result["gpus"][0]
        self.assertEqual(gpu["bus"]["bridges"], ["0000:15:01.0", "0000:16:00.0"])
        self.assertEqual(gpu["bar1_bytes"], 0x200000000)
        self.assertEqual((gpu["bus"]["link"]["width"], gpu["bus"]["link_max"]["width"]), (8, 16))
        self.assertEqual(result["store"]["place"]["disks"][0]["name"], "nvme0n1")
        self.assertEqual(result["store"]["gpu_routes"][0]["relation"], "same-switch")
        lanes = [each for each in result["findings"] if "8 of its 16" in each["what"]]
        self.assertEqual(lanes[0]["gain"]["factor"], 2)
        way = [(edge["from"], edge["to"].split(",")[0]) for edge in result["way"]]
        self.assertEqual(way, [("nvme0n1", "controller at 0000:18:00.0"), ("controller at 0000:18:00.0", "memory"),
                               ("memory, node 0", "host buffer"), ("host buffer", "cuda:0")])
        self.assertAlmostEqual(result["way"][1]["gb_per_s"], 7.88, 2)
        self.assertAlmostEqual(result["way"][3]["gb_per_s"], 31.5, 1)

        text = self.run_tool("doctor", path, "--all", "--sysfs", bus.folder, env={"LC_ALL": "C.UTF-8"}).stdout.decode()
        picture = ["└─ 0000:15:01.0", "├─ 0000:16:01.0", "└─ nvme0n1 at 0000:18:00.0, 16 GT/s x 4: 7.88 GB/s",
                   "└─ 0000:16:00.0", "└─ cuda:0 at 0000:17:00.0, 32 GT/s x 8: 31.5 GB/s"]
        places = [text.index(line) for line in picture]
        self.assertEqual(places, sorted(places), text)
        self.assertIn("slowed down to 2.5 GT/s", text)
        plain = self.run_tool("doctor", path, "--all", "--sysfs", bus.folder, env={"LC_ALL": "C"}).stdout
        self.assertIn(b"`- cuda:0", plain)

    def test_finds_disk_and_gpu_at_different_cpus(self):
        path = self.file("data", os.urandom(MIB))
        bus = MadeUpBus(self.folder / "sys", path, "pci0000:15/0000:15:01.0", "pci0000:80/0000:81:00.0/nvme/nvme0/nvme0n1")
        bus.write("devices/pci0000:80/0000:81:00.0/numa_node", "1")
        result = self.json_of("doctor", path, "--sysfs", bus.folder)
        self.assertEqual(result["store"]["gpu_routes"][0]["relation"], "across-nodes")
        self.assertTrue([each for each in result["findings"] if "different CPUs" in each["what"]])

    def test_says_when_the_disk_has_no_place(self):
        path = self.file("data", os.urandom(MIB))
        bus = MadeUpBus(self.folder / "sys", path, "pci0000:15/0000:15:01.0", "pci0000:00/0000:00:02.0/virtio1/block/vda")
        result = self.json_of("doctor", path, "--sysfs", bus.folder)
        self.assertEqual(result["store"]["gpu_routes"][0]["relation"], "virtual-disk")
        self.assertTrue(result["store"]["place"]["disks"][0]["virtual"])
        nowhere = self.json_of("doctor", path, "--sysfs", self.folder / "missing")
        self.assertIsNone(nowhere["store"]["place"])
        self.assertEqual(nowhere["store"]["gpu_routes"][0]["relation"], "unknown")

    def test_names_a_mount_that_bars_direct_storage(self):
        image, point = self.sparse_file("image", 16 * MIB), self.folder / "mount"
        point.mkdir()
        make = subprocess.run(["mkfs.ext4", "-q", "-F", image], capture_output=True) if shutil.which("mkfs.ext4") else None
        if os.geteuid() != 0 or make is None or make.returncode != 0:
            self.skipTest("needs root and mkfs.ext4")
        script = (f"mount -o loop,data=writeback {image} {point} || exit 77; head -c 1M /dev/urandom > {point}/data; "
                  f"exec {TOOL} doctor {point}/data --json")
        env = environment(LD_LIBRARY_PATH=f"{FAKE_CUDA}:{FAKE_CUFILE}")
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, env=env, timeout=60)
        if done.returncode == 77:
            self.skipTest(f"no loop device here: {done.stderr}")
        self.assertEqual(done.returncode, 0, done.stderr)
        routes = {each["route"]: each for each in json.loads(done.stdout)["routes"]}
        for route in ["gds", "p2pdma"]:
            self.assertFalse(routes[route]["works"])
            self.assertIn("data=writeback", routes[route]["cause"])
            self.assertIn("data=ordered", routes[route]["remedy"])

    def test_tells_every_condition_of_an_engine_for_gpus(self):
        engines = {each["name"]: each for each in self.json_of("engines")["engines"]}
        if "cufile" not in engines:
            self.skipTest("the cufile engine is not built in")
        self.assertTrue(engines["cufile"]["conditions"])
        lacking = [each for each in engines["cufile"]["conditions"] if each["state"] == "missing"]
        text = self.run_tool("engines", env={"LC_ALL": "C.UTF-8"}).stdout.decode()
        for condition in engines["cufile"]["conditions"]:
            self.assertIn(condition["name"], text)
        for condition in lacking:
            self.assertTrue(condition["remedy"], condition)
            self.assertIn(f"  ✗ {condition['name']}", text)
        if lacking:
            disk = self.folder / "sys" / "bus" / "pci" / "devices" / "0000:01:00.0"
            disk.mkdir(parents=True)
            unable = self.json_of("doctor", "--sysfs", self.folder / "sys")["findings"]
            self.assertFalse([each for each in unable if "cufile" in each["what"]], unable)
            (disk / "class").write_text("0x010802\n")
            diagnosis = self.json_of("doctor", "--sysfs", self.folder / "sys")
            findings = diagnosis["findings"]
            self.assertTrue([each for each in findings if "cufile" in each["what"]], findings)
            routes = {each["route"]: each for each in diagnosis["routes"]}
            for condition in lacking:
                of_p2pdma, of_gds = (condition["name"].startswith(start) for start in ("P2PDMA", "nvidia-fs"))
                for route, is_about_it in (("gds", not of_p2pdma), ("p2pdma", not of_gds)):
                    self.assertEqual(condition["name"] in routes[route]["cause"], is_about_it, routes[route])


class WrongBytes(GpuTest):
    def test_in_gpu_memory_are_found(self):
        if os.environ.get("PENSTOCK_SANITIZE"):
            self.skipTest("a sanitizer wants to be preloaded first")
        wrong_reads = os.environ.get("PENSTOCK_WRONG_READS")
        if not wrong_reads:
            self.skipTest("PENSTOCK_WRONG_READS does not name the library that spoils reads")
        path = self.file("data", os.urandom(2 * MIB))
        done = self.run_tool("load", path, "--to", "cuda:0", "--verify", "--json", env={"LD_PRELOAD": wrong_reads})
        result = json.loads(done.stdout)
        schema.check(result, "load")
        self.assertEqual(done.returncode, 1)
        self.assertIs(result["verified"], False)


if __name__ == "__main__":
    unittest.main(verbosity=2)
