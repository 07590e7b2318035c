"""Stores whose server is slow or does not answer: a file system of FUSE, served here."""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import struct
import subprocess
import threading
import time
import unittest

from tool import ToolTest, refuse_cachestat, wait_until

# <linux/fuse.h>
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, INTERRUPT, BATCH_FORGET = (
    1, 2, 3, 14, 15, 17, 18, 25, 26, 36, 42)
DIRECT_IO = 1  # what is read does not depend on the size
FORCE, DETACH = 1, 2  # of umount2(2)
FILE_BYTES = 8 << 20
SOON = ["--options", '{"deadlines": {"close_seconds": 0.2}}']


class Server:
    """One file in one folder. Once a request of the first kind in `hangs` has come, those of all of them are never
    answered. Where `passes` is given, the file can be read from its front so often before. `size_told` need not be the
    size."""

    def __init__(self, point, hangs, seconds_of_a_read=0, passes=-1, size_told=FILE_BYTES):
        self.point, self.hangs, self.seconds_of_a_read, self.passes = point, hangs, seconds_of_a_read, passes
        self.size_told = size_told
        self.hanging = threading.Event()
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.fuse},rootmode=40000,user_id=0,group_id=0"
        if self.libc.mount(b"penstock-test", os.fsencode(point), b"fuse", 0, options.encode()) != 0:
            number = ctypes.get_errno()
            os.close(self.fuse)
            raise OSError(number, os.strerror(number))
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def stop(self):
        """Whoever still waits for an answer gets an error. May be called again."""
        if self.thread is None:
            return
        unmounted = self.libc.umount2(os.fsencode(self.point), FORCE | DETACH)
        assert unmounted == 0, os.strerror(ctypes.get_errno())
        self.thread.join()
        self.thread = None

    def serve(self):
        while True:
            try:
                request = os.read(self.fuse, 1 << 20)
            except OSError:  # ENODEV: unmounted
                break
            _, kind, unique, node, *_ = struct.unpack_from("<IIQQIIII", request)
            if self.leaves(kind, request[40:]):
                self.hanging.set()
            elif kind not in (FORGET, BATCH_FORGET, INTERRUPT):
                answer = self.answer(kind, node, request[40:])
                error = answer if isinstance(answer, int) else 0
                body = b"" if error else answer
                with contextlib.suppress(OSError):  # ENOENT: who asked is gone
                    os.write(self.fuse, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
        os.close(self.fuse)

    def leaves(self, kind, body):
        if kind == READ and struct.unpack_from("<QQ", body)[1] == 0:
            self.passes -= 1
        return kind in self.hangs[:1] and self.passes < 0 or self.hanging.is_set() and kind in self.hangs

    def answer(self, kind, node, body):
        if kind == INIT:  # as few requests at a time in the background as can be
            return struct.pack("<IIIIHHI", 7, 31, 131072, 1, 1, 1, 131072) + bytes(40)
        if kind == LOOKUP:
            return struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + self.attributes(2) if body == b"file\0" else -2
        if kind == GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self.attributes(node)
        if kind == OPEN:
            return struct.pack("<QII", 0, DIRECT_IO if self.size_told != FILE_BYTES else 0, 0)
        if kind == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            time.sleep(self.seconds_of_a_read)
            return bytes(max(min(size, FILE_BYTES - offset), 0))
        if kind == STATFS:
            return bytes(80)
        return b"" if kind in (FLUSH, RELEASE) else -38  # ENOSYS

    def attributes(self, node):
        mode = 0o40755 if node == 1 else 0o100644
        return struct.pack("<6Q10I", node, self.size_told, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


class Hanging(ToolTest):
    def serve(self, *hangs, **how):
        self.need_root()
        point = self.folder / "mount"
        point.mkdir()
        try:
            self.server = Server(point, hangs, **how)
        except OSError as error:
            self.skipTest(f"can't mount a file system of FUSE here: {error}")
        return point / "file"

    def start(self, *arguments, **how):
        process = super().start(*arguments, **how)
        self.addCleanup(lambda: self.server.stop())  # before it is waited for
        return process

    @staticmethod
    def wait_for_state(process, state):
        status = pathlib.Path(f"/proc/{process.pid}/status")
        wait_until(lambda: f"State:\t{state}" in status.read_text())

    def end_of(self, process):
        """Waits until the command has ended, and then lets go of its threads, which the kernel keeps until then."""
        self.wait_for_state(process, "Z")
        self.server.stop()
        stdout, stderr = process.communicate(timeout=30)
        return process.returncode, stdout, stderr

    def test_doctor_measures_what_is_only_slow(self):
        process = self.start("doctor", self.serve(seconds_of_a_read=0.02), *SOON, "--json")
        stdout, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, stderr)
        report = json.loads(stdout)
        self.assertGreaterEqual(report["store"]["cold"]["bytes"], 1 << 20)
        self.assertEqual(report["limit"]["limit"], "storage")

    def test_doctor_says_so(self):
        process = self.start("doctor", self.serve(READ, FLUSH), *SOON, "--json")
        code, stdout, stderr = self.end_of(process)
        self.assertEqual(code, 0, stderr)
        report = json.loads(stdout)
        self.assertIn("could not be measured: reads did not come back in time", report["verdict"])
        self.assertIn("did not come back", report["store"]["no_cold_because"])
        self.assertIn("does not close", stderr.decode())

    def test_doctor_keeps_what_it_measured_before(self):
        process = self.start("doctor", self.serve(READ, FLUSH, passes=1), *SOON, "--json")
        code, stdout, stderr = self.end_of(process)
        self.assertEqual(code, 0, stderr)
        store = json.loads(stdout)["store"]
        self.assertGreaterEqual(store["cold"]["bytes"], 1 << 20)
        self.assertIn("did not come back", store["no_cached_because"])

    def test_doctor_is_ended_by_ctrl_c(self):
        process = self.start("doctor", self.serve(READ), *SOON)
        self.server.hanging.wait(30)
        process.send_signal(signal.SIGINT)
        code, _, stderr = self.end_of(process)
        self.assertEqual((code, stderr.splitlines()[-1]), (130, b"penstock: interrupted"))

    def test_load_is_ended_by_ctrl_c(self):
        path = self.serve(READ)
        for engine in "posix", "uring":
            if engine == "uring" and self.run_tool("load", "--engine", engine, os.devnull).stderr.count(b"io_uring"):
                continue
            with self.subTest(engine):
                self.server.hanging.clear()
                process = self.start("load", "--raw", path, "--engine", engine, *SOON)
                self.server.hanging.wait(30)
                process.send_signal(signal.SIGINT)
                code, _, stderr = self.end_of(process)
                self.assertEqual(code, 130, stderr)
                self.assertIn(b"penstock: interrupted; operations under way did not come back", stderr)
                self.server = Server(path.parent, (READ,))

    def test_load_ends_by_its_deadline_where_nobody_tells_whether_the_file_has_changed(self):
        path = self.serve(GETATTR, passes=0)  # once the file is being read
        process = self.start("load", "--raw", path, "--options", '{"deadlines": {"request_seconds": 1}}')
        code, _, stderr = self.end_of(process)
        self.assertEqual(code, 124, stderr)
        self.assertIn(b"did not say in time whether it has changed", stderr)

    def test_load_ends_by_its_deadline_where_the_kernel_does_not_tell_what_is_cached(self):
        path = self.serve(GETATTR, passes=0)
        try:
            options = '{"deadlines": {"request_seconds": 0.5}, "operations_in_flight": 1}'
            process = self.start("load", "--raw", path, "--lanes", "1", "--options", options,
                                 preexec_fn=refuse_cachestat)
        except subprocess.SubprocessError as error:
            self.skipTest(f"no seccomp filter can be installed here: {error}")
        code, _, stderr = self.end_of(process)
        self.assertEqual(code, 124, stderr)

    def test_a_file_that_calls_itself_empty_and_is_not_is_refused(self):
        process = self.start("load", "--raw", self.serve(size_told=0), "--verify")
        code, _, stderr = self.end_of(process)
        self.assertEqual(code, 1, stderr)
        self.assertIn(b"claims to be empty but has bytes", stderr)

    def test_a_file_that_does_not_open_is_not_waited_for(self):
        for hangs, size_told in ((OPEN, FILE_BYTES), (READ, 0)):  # what calls itself empty is asked for a byte
            for engine in "posix", "uring":
                path = self.folder / "mount" / "file"
                if path.parent.exists():
                    self.server = Server(path.parent, (hangs,), size_told=size_told)
                else:
                    self.serve(hangs, size_told=size_told)
                process = self.start("load", "--raw", path, "--engine", engine,
                                     "--options", '{"deadlines": {"stall_seconds": 0.5}}')
                code, _, stderr = self.end_of(process)
                if b"io_uring" in stderr:
                    continue
                self.assertEqual(code, 124, stderr)
                self.assertIn(b"its server does not answer", stderr)

    def test_ctrl_c_is_heard_in_a_call_that_hangs(self):
        process = self.start("inspect", self.serve(LOOKUP))
        self.server.hanging.wait(30)
        process.send_signal(signal.SIGINT)
        self.assertIn(b"storage may hang", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        # It has been told to end, all threads but one have, and only the kernel keeps that.
        status = pathlib.Path(f"/proc/{process.pid}/status")
        wait_until(lambda: "Threads:\t1\n" in status.read_text())
        self.wait_for_state(process, "D")
        self.server.stop()
        self.assertEqual(process.wait(30), -signal.SIGINT)


if __name__ == "__main__":
    unittest.main(verbosity=2)
