"""Runs the tool for the tests: with pipes, as another user, or on a terminal of a given width."""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pathlib
import pty
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

import schema

TOOL = os.environ.get("PENSTOCK_TOOL") or str(pathlib.Path(__file__).resolve().parents[2] / "build" / "penstock")
NOBODY = 65534
PROMPTLY = 20  # seconds: far less than what is interrupted would take, and enough for a busy machine
# Slow on purpose, so that there is time to interrupt it; and on a busy machine, what is stopped comes home late.
SLOW = ["--engine", "posix", "--lanes", "1", "--options", json.dumps({
    "storage_chunk_bytes": 4096, "operations_in_flight": 1,
    "deadlines": {"cancel_grace_seconds": 5, "close_seconds": 10}})]


def environment(**changes):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    # What was tuned on this machine must not change what a test sees.
    return {**clean, "PENSTOCK_TUNING": "", **changes}


class ToolTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="penstock-cli-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def file(self, name, content=b""):
        path = self.folder / name
        path.write_bytes(content)
        return path

    def sparse_file(self, name, size):
        path = self.folder / name
        with open(path, "wb") as file:
            file.truncate(size)
        return path

    def names(self):
        return sorted(path.name for path in self.folder.iterdir())

    def run_tool(self, *arguments, env=None, timeout=60, **how):
        how.setdefault("stdin", subprocess.DEVNULL) if "input" not in how else None
        how.setdefault("stdout", subprocess.PIPE)
        return subprocess.run([TOOL, *map(str, arguments)], stderr=subprocess.PIPE, timeout=timeout,
                              env=environment(**(env or {})), **how)

    def json_of(self, *arguments, **how):
        """The object that a command prints, checked against its schema."""
        done = self.run_tool(*arguments, "--json", **how)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        result = json.loads(done.stdout)
        schema.check(result, arguments[0])
        return result

    def fails(self, code, exit_code, *arguments, **how):
        """Both ways of telling an error agree; returns the error object."""
        if "input" not in how:
            spoken = self.run_tool(*arguments, **how)
            self.assertEqual(spoken.returncode, exit_code, spoken.stderr)
            self.assertEqual(spoken.stdout, b"")
            self.assertTrue(spoken.stderr.startswith(b"penstock: "), spoken.stderr)
        done = self.run_tool(*arguments, "--json", **how)
        result = json.loads(done.stdout)
        schema.check(result, "error")
        self.assertEqual((result["error"]["code"], done.returncode), (code, exit_code), result)
        return result["error"]

    def start(self, *arguments, **how):
        process = subprocess.Popen([TOOL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment(), **how)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def interrupt(self, process, signal_number=signal.SIGINT):
        """Ends a command that is under way; says how it ended and how long that took."""
        begin = time.monotonic()
        process.send_signal(signal_number)
        stdout, stderr = process.communicate(timeout=30)
        return process.returncode, stdout, stderr, time.monotonic() - begin

    def on_terminal(self, columns, *arguments, env=None, until=None):
        """What appears on a terminal: (text, exit code). Standard output and error are both the terminal.

        When the text `until` has appeared, the command is interrupted.
        """
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([TOOL, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=follower,
                                   stderr=follower, env=environment(**{"LC_ALL": "C.UTF-8", "TERM": "xterm", **(env or {})}))
        os.close(follower)
        text = b""
        end = time.monotonic() + 60
        with contextlib.suppress(OSError):  # EIO: the last writer is gone
            while time.monotonic() < end and select.select([leader], [], [], 60)[0]:
                text += os.read(leader, 65536)
                if until and until.encode() in text:
                    process.send_signal(signal.SIGINT)
                    until = None
        os.close(leader)
        return text.decode(), process.wait(timeout=60)

    def need_root(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")

    def need_other_user(self):
        self.need_root()
        self.folder.chmod(0o777)
        try:
            done = self.run_tool("--version", user=NOBODY, group=NOBODY, extra_groups=[])
        except OSError as error:
            self.skipTest(f"another user can't run {TOOL}: {error}")
        if done.returncode != 0:
            self.skipTest(f"another user can't run {TOOL}: {done.stderr}")

    def loop_device(self, image):
        """A loop device over the file. What protects devices is to be tested wherever all tests should run."""
        done = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True)
        if done.returncode != 0:
            reason = f"no loop device here: {done.stderr}"
            self.fail(f"in CI: {reason}") if os.environ.get("CI") == "true" else self.skipTest(reason)
        device = done.stdout.strip()
        self.addCleanup(subprocess.run, ["losetup", "--detach", device])
        return device

    def memory_group(self, limit_bytes):
        """For preexec_fn: makes the process a member of a new memory control group with that limit."""
        self.need_root()
        for folder, limit in [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")]:
            group = pathlib.Path(folder) / f"penstock-{os.getpid()}-{time.monotonic_ns()}"
            try:
                group.mkdir()
            except OSError:
                continue
            self.addCleanup(os.rmdir, group)
            if (group / limit).exists():  # the kernel makes it, where this is a hierarchy with that controller
                (group / limit).write_text(str(limit_bytes))
                return lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        self.skipTest("no memory control group can be made here")

    def mount(self, options, kind="tmpfs"):
        """A file system of its own, in memory."""
        self.need_root()
        point = self.folder / "mount"
        point.mkdir()
        done = subprocess.run(["mount", "-t", kind, "-o", options, kind, point], capture_output=True)
        if done.returncode != 0:
            self.skipTest(f"can't mount a {kind} here: {done.stderr}")
        self.addCleanup(subprocess.run, ["umount", point])
        return point


def refuse(call, error):
    """From now on the system call of this number gives the error."""
    filter_call(call, 0x00050000 | error)


def die_at(call):
    """From now on the system call of this number ends the process."""
    filter_call(call, 0x80000000)


def filter_call(call, instead):
    set_no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    load_number, jump_if_equal, answer = 0x20, 0x15, 0x06
    allowed = 0x7FFF0000
    instructions = [(load_number, 0, 0, 0), (jump_if_equal, 0, 1, call), (answer, 0, 0, instead),
                    (answer, 0, 0, allowed)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in instructions))
    program = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(set_no_new_privileges, 1, 0, 0, 0) != 0 or libc.prctl(set_seccomp, filter_mode, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "can't install a seccomp filter")


def refuse_io_uring():
    """For preexec_fn: as in most containers."""
    refuse(425, errno.EPERM)


def refuse_io_uring_enter():
    """For preexec_fn: a filter that has forgotten a part of io_uring. Rings can be made, and not used."""
    refuse(426, errno.EPERM)


def refuse_cachestat():
    """For preexec_fn: as on kernels before 6.5."""
    refuse(451, errno.ENOSYS)


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def cached_bytes(file):
    """How much of a file the page cache has; None where the kernel has no cachestat."""
    whole = (ctypes.c_uint64 * 2)(0, 0)
    counts = (ctypes.c_uint64 * 5)()
    failed = ctypes.CDLL(None).syscall(451, file.fileno(), whole, counts, 0) != 0
    return None if failed else counts[0] * os.sysconf("SC_PAGE_SIZE")


def resident_bytes(process):
    return int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
