"""Our NVMe driver against QEMU's controllers, in a guest, through VFIO and an emulated IOMMU.

    nvme_guest.py [--all] TOOL EXERCISE CONFORMANCE FOLDER [ARCHITECTURE]

Boots a Debian kernel under plain emulation with an initramfs made on the spot. FOLDER keeps the kernel, which is
downloaded once, and the last log. ARCHITECTURE is aarch64 or x86_64, this machine's if not told. With --all the whole
conformance suite runs, in blocks of 512 and of 4096 bytes, and not only those tests that a block makes a difference to.
Exits 0 when all is well, 1 with what was not, 77 when it can't run here.

Five controllers: SMALL has blocks of 512 bytes and a block that can't be read; LARGE has blocks of 4096 bytes, shorter
transfers, and belongs to a subsystem, so that the kernel knows it by several paths; SLOW takes half a second for each
write, and shares its IOMMU group with TWIN, which has no disk; BOTH has one interrupt for all its I/O queues, and
namespaces of both block sizes, whose images are also virtio disks, so that the conformance suite reaches their bytes
past our driver. After the guest has gone, the images are compared with what it said that it had written; and QEMU's own
traces of protocol errors must be empty.
"""

import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from getpass import getuser

MIB = 1 << 20
DISK_BYTES = 16 * MIB
MODEL_BYTES = 8 * MIB
BAD_BLOCK = 24 * MIB // 2 // 512  # beyond the model, before what is hammered
TIME_LIMIT = {"some": 480, "all": 500}
CONFORMANCE = {"some": "*alignment*/nvme_4096:*block*/nvme_4096:*what_it_wrote/nvme_4096",
               "all": "*/nvme_512:*/nvme_4096"}

MODULES = ["vfio-pci", "vfio_iommu_type1", "nvme", "virtio_pci", "virtio_blk"]
MACHINES = {
    "aarch64": {
        "debian": "arm64",
        "qemu": ["qemu-system-aarch64", "-M", "virt,iommu=smmuv3,gic-version=3", "-cpu", "neoverse-n1"],
        "kernel": "console=ttyAMA0 iommu.passthrough=0",
    },
    "x86_64": {
        "debian": "amd64",
        "qemu": ["qemu-system-x86_64", "-M", "q35", "-cpu", "max", "-vga", "none",
                 "-device", "intel-iommu,intremap=on,caching-mode=on"],
        # A busy machine serves the emulated timer late, and the kernel would take it for broken.
        "kernel": "console=ttyS0 intel_iommu=on iommu=nopt no_timer_check",
    },
}
QUEUE_DELETED = "pci_nvme_del_sq"  # no error
# Errors that are provoked on purpose: a block that can't be read; a controller that is cut off from memory, by us or by
# the kernel when a process dies, and fails.
CUT_OFF = {"pci_nvme_err_addr_read", "pci_nvme_err_addr_write", "pci_nvme_err_cfs"}
PROVOKED = {
    "media": {"pci_nvme_err_aio", "pci_nvme_err_req_status"},
    "isolation": CUT_OFF,
    "kill": CUT_OFF,
}


class Skipped(Exception):
    pass


def find(program):
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise Skipped(f"there is no {program} here")
    return path


def output_of(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def is_debian():
    release = pathlib.Path("/etc/os-release")
    return release.exists() and re.search(r"^ID=debian$", release.read_text(), re.MULTILINE) is not None


def fetch_packages(folder, architecture):
    """The small kernel that Debian makes for guests, and busybox, unpacked.

    With a state of apt's of our own: nothing of this system changes, its lists may be old or of another architecture,
    and root is not needed."""
    unpacked = folder / f"packages-{architecture}"
    if (unpacked / "complete").exists():
        return unpacked
    if not is_debian():
        raise Skipped("the guest's kernel is Debian's, and this is not Debian")
    shutil.rmtree(unpacked, ignore_errors=True)
    state = unpacked / "apt"
    for name in ["state/lists/partial", "cache/archives/partial"]:
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    settings = [f"APT::Architecture={architecture}", f"APT::Architectures={architecture}", f"Dir::State={state}/state",
                f"Dir::State::status={state}/status", f"Dir::Cache={state}/cache", f"APT::Sandbox::User={getuser()}",
                "Acquire::Retries=1", "Acquire::http::Timeout=15"]
    options = ["-qq", *(word for setting in settings for word in ("-o", setting))]
    try:
        output_of("apt-get", *options, "update", timeout=120)
        depends = output_of("apt-cache", *options, "depends", f"linux-image-cloud-{architecture}")
        kernel = re.search(r"Depends: (linux-image-\S+)", depends).group(1)
        output_of("apt-get", *options, "download", kernel, "busybox-static", cwd=unpacked, timeout=120)
        for package in unpacked.glob("*.deb"):
            output_of("dpkg-deb", "-x", str(package), str(unpacked))
    except (AttributeError, OSError, subprocess.SubprocessError) as error:
        raise Skipped(f"the guest's kernel can't be downloaded: {getattr(error, 'stderr', None) or error}") from error
    shutil.rmtree(state)
    (unpacked / "complete").touch()
    return unpacked


def modules_in_order(packages):
    """Those that are not built in, each after what it needs."""
    release = next((packages / "lib/modules").iterdir()).name
    output_of(find("depmod"), "-b", str(packages), release)
    files = []
    for module in MODULES:
        shown = output_of(find("modprobe"), "-d", str(packages), "-S", release, "--show-depends", module)
        for line in shown.splitlines():
            if line.startswith("insmod ") and line.split()[1] not in files:
                files.append(line.split()[1])
    return [pathlib.Path(file) for file in files]


def libraries_of(program, architecture):
    """All that a program is linked with, and its loader."""
    if architecture == platform.machine():
        return {pathlib.Path(path) for path in re.findall(r"(/\S+)", output_of("ldd", str(program)))}
    # Of another architecture, built by a cross compiler, which has the system's libraries of it.
    folders = [program.parent, pathlib.Path(f"/usr/{architecture}-linux-gnu/lib")]
    found, left = set(), [program]
    while left:
        text = output_of("readelf", "-l", "-d", str(left.pop()))
        names = re.findall(r"\(NEEDED\).*\[(.*)\]|program interpreter: (.*)\]", text)
        for name in (pathlib.Path(needed or interpreter).name for needed, interpreter in names):
            library = next((folder / name for folder in folders if (folder / name).exists()), None)
            if library is None:
                raise Skipped(f"{program.name} needs {name}, which is not among the libraries for {architecture}")
            if library not in found:
                found.add(library)
                left.append(library)
    return found


def make_initramfs(root, packages, programs, architecture, extent):
    for folder in ["bin", "dev", "etc", "lib", "lib64", "modules", "mnt", "proc", "sys", "tmp"]:
        (root / folder).mkdir(parents=True)
    shutil.copy(next(packages.glob("**/bin/busybox")), root / "bin/busybox")
    shutil.copy(pathlib.Path(__file__).with_name("init"), root / "init")
    (root / "init").chmod(0o755)
    (root / "bad_block").write_text(str(BAD_BLOCK))
    (root / "conformance").write_text(CONFORMANCE[extent])
    for program in programs:
        shutil.copy(program, root / "bin" / program.name)
        for library in libraries_of(program, architecture):
            # The loader is looked for where the architecture has it, the others where init says.
            for folder in ["lib", "lib64"] if library.name.startswith("ld-linux") else ["lib"]:
                shutil.copy(library, root / folder / library.name)
    if architecture == platform.machine():  # those of a debug build would not fit the guest's memory
        output_of(find("strip"), "--strip-debug", *(str(root / "bin" / program.name) for program in programs))
    modules = modules_in_order(packages)
    for module in modules:
        shutil.copy(module, root / "modules" / module.name)
    (root / "modules/order").write_text("\n".join(module.name for module in modules))
    names = "\n".join(str(path.relative_to(root)) for path in [root, *root.rglob("*")])
    archive = root.with_suffix(".cpio")
    with archive.open("wb") as stream:
        subprocess.run([find("cpio"), "--quiet", "-o", "-H", "newc"], input=names.encode(), stdout=stream, cwd=root,
                       check=True)
    return archive


def qemu_command(machine, packages, initramfs, folder, traces):
    bad = {"event": "none", "iotype": "read", "errno": 5, "sector": BAD_BLOCK}
    faulty = ",".join([f"driver=blkdebug,node-name=small,image.driver=file,image.filename={folder}/small.img",
                       *(f"inject-error.0.{key}={value}" for key, value in bad.items())])
    both = []
    for number, block_bytes in [(1, 512), (2, 4096)]:
        sizes = f"logical_block_size={block_bytes},physical_block_size={block_bytes},share-rw=on"
        both += ["-blockdev", f"driver=file,node-name=both{number},filename={folder}/both{number}.img,discard=unmap",
                 "-device", f"nvme-ns,drive=both{number},bus=both,nsid={number},{sizes}",
                 "-device", f"virtio-blk-pci,drive=both{number},serial=BOTH{number},{sizes}"]
    return [*machine["qemu"], "-accel", "tcg,thread=multi", "-smp", "2", "-m", "512", "-nic", "none", "-nographic",
            "-no-reboot", "-kernel", str(next((packages / "boot").glob("vmlinuz-*"))), "-initrd", str(initramfs),
            # Nobody attacks this guest: what guards it takes a quarter of the time.
            "-append", machine["kernel"] + " quiet panic=-1 mitigations=off init_on_alloc=0 nokaslr",
            "-D", str(traces), "-msg", "timestamp=on", "-trace", "pci_nvme_err*", "-trace", "pci_nvme_ub*",
            "-trace", "pci_nvme_del_sq",
            "-blockdev", faulty,
            "-blockdev", f"driver=file,node-name=large,filename={folder}/large.img",
            "-object", "throttle-group,id=limit,x-iops-write=2",
            "-blockdev", "driver=throttle,node-name=slow,throttle-group=limit,file.driver=file,"
                         f"file.filename={folder}/slow.img",
            "-device", "nvme,serial=SLOW,drive=slow,addr=8.0,multifunction=on",
            "-device", "nvme,serial=TWIN,addr=8.1",
            "-device", "nvme,serial=SMALL,mdts=5,drive=small",
            "-device", "nvme-subsys,id=subsystem",
            "-device", "nvme,serial=LARGE,mdts=3,subsys=subsystem,id=controller",
            "-device", "nvme-ns,drive=large,bus=controller,logical_block_size=4096,physical_block_size=4096",
            "-device", "nvme,serial=BOTH,id=both,msix_qsize=2", *both]


def boot(command, log, seconds):
    """Runs the guest to its end; its lines, each with the time at which it came."""
    lines = []
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    watchdog = threading.Timer(seconds, process.kill)
    watchdog.start()
    with log.open("w") as copy:
        for raw in process.stdout:
            lines.append((time.time(), raw.decode(errors="replace").rstrip()))
            copy.write(f"{lines[-1][0]:.3f} {lines[-1][1]}\n")
    process.wait()
    watchdog.cancel()
    return lines


def traces_by_mark(lines, traces):
    """The controllers' traces while our driver had them, each with its mark: those of before are the kernel's."""
    marks = [(moment, line.removeprefix("mark ")) for moment, line in lines if line.startswith("mark ")]
    spans = [(first, last, name) for (first, name), (last, _) in zip(marks, marks[1:])]
    found = []
    for line in traces.read_text().splitlines() if traces.exists() else []:
        trace = re.match(r"\d+@(\d+\.\d+):(\w+)", line)
        if trace is None:
            continue
        for first, last, name in spans:
            if first <= float(trace.group(1)) <= last:
                found.append((name, trace.group(2), line))
    return found


def judge(lines, found, folder):
    """What is wrong; nothing if all is well."""
    texts = [line for _, line in lines]
    wrong = [line for line in texts if line.startswith(("not ok ", "kernel "))]
    if "done, 0 not ok" not in texts:
        wrong.append("the guest did not come to its end, or some of its steps failed")
    for name in ["SMALL", "LARGE"]:
        image = (folder / f"{name.lower()}.img").read_bytes()[:MODEL_BYTES]
        if f"model {name} {hashlib.sha256(image).hexdigest()}" not in texts:
            wrong.append(f"the image of {name} does not hold what the guest wrote")
    wrong += [f"QEMU found a fault in our driver: {line}" for span, event, line in found
              if event not in PROVOKED.get(span, set()) | {QUEUE_DELETED}]
    if sum(span == "ladder" and event == QUEUE_DELETED for span, event, _ in found) < 2:
        wrong.append("a queue with commands that took too long was not deleted before its time")
    if all(span != "media" for span, _, _ in found):
        wrong.append("QEMU traced no bad block: are its traces on?")
    return wrong


def run(programs, folder, architecture, extent):
    machine = MACHINES.get(architecture)
    if machine is None:
        raise Skipped(f"there is no guest for {architecture}")
    for program in [machine["qemu"][0], "cpio", "depmod", "modprobe"]:
        find(program)
    packages = fetch_packages(folder, machine["debian"])
    with tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = pathlib.Path(name)
        initramfs = make_initramfs(scratch / "root", packages, programs, architecture, extent)
        for image in ["small.img", "large.img", "slow.img", "both1.img", "both2.img"]:
            with (scratch / image).open("wb") as stream:
                stream.truncate(DISK_BYTES)
        traces = scratch / "traces"
        log = folder / f"{architecture}.log"
        lines = boot(qemu_command(machine, packages, initramfs, scratch, traces), log, TIME_LIMIT[extent])
        found = traces_by_mark(lines, traces)
        wrong = judge(lines, found, scratch)
    steps = sum(1 for _, line in lines if line.startswith("ok "))
    if wrong:
        print("\n".join(line for _, line in lines))
        print("\n".join(wrong))
        return 1
    provoked = sorted({f"{event} by {span}" for span, event, _ in found if event != QUEUE_DELETED})
    print(f"{steps} steps in the guest went well, and the images hold what was written. Errors that QEMU traced, all "
          f"of them provoked: {', '.join(provoked)}. The log is {log}")
    return 0


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--all"]
    *programs, folder = (pathlib.Path(argument).resolve() for argument in arguments[:4])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return run(programs, folder, arguments[4] if len(arguments) > 4 else platform.machine(),
                   "all" if "--all" in sys.argv else "some")
    except Skipped as reason:
        print(f"skipped: {reason}")
        return 77


if __name__ == "__main__":
    sys.exit(main())
