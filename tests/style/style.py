"""The house style, as far as a machine can check it.

    style.py rules ROOT     what can be read off the text: names, columns, includes across layers
    style.py format ROOT    clang-format leaves every source file as it is

Exits 0 when clean, 1 with a line per finding, 77 when the check can't run here.
"""

import pathlib
import re
import subprocess
import sys

CLANG_FORMAT_VERSION = "18.1.8"
FOLDERS = ["include", "src", "tests", "bench", "bindings", "examples", "cmake", "scripts", "docs"]
SOURCES = {".h", ".cc", ".c", ".cu", ".cuh"}
TEXTS = SOURCES | {".py", ".sh", ".cmake", ".in", ".txt", ".md", ".json"}
MAX_COLUMNS = 120

SNAKE_CASE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z]+)+")
PYTHON_PRIVATE = re.compile(r"_{1,2}[a-z][a-z0-9_]*\.py")  # what a package keeps to itself, and __init__.py
INCLUDE = re.compile(r'\s*#\s*include\s+([<"])([^>"]+)[>"]')
# Split, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")

# A program that runs with more rights than its user must not be steered by his environment.
INSECURE = re.compile(r"\bgetenv\(")
TEST_FILE = re.compile(r".*(_test\.cc|/test_[a-z_]*\.h)")

# A third-party header, and the only folders that may know of it.
VENDORS = {
    re.compile(r"liburing.*|linux/io_uring\.h"): ["src/engines/uring/", "src/services/tiers/", "bench/bench_queue.cc"],
    re.compile(r"CLI/.*"): ["src/cli/", "bench/"],
    re.compile(r"nlohmann/.*"): ["src/core/", "src/cli/", "src/services/", "tests/", "bench/"],
    re.compile(r"xxhash\.h"): ["src/base/", "tests/", "bench/"],
    re.compile(r"sqlite3\.h"): ["src/services/tiers/"],
    re.compile(r"gtest/.*|gmock/.*"): ["src/", "tests/"],
    re.compile(r"benchmark/.*"): ["bench/"],
    re.compile(r"nanobind/.*"): ["bindings/python/"],
}
# Built on the public API alone, but for the helpers that services, which are in the same library, share with it, and
# for services on GPUs: what kernels are given, and streams that wait.
USERS = {"src/cli/": (),
         "src/services/": ("base/bounded.h", "base/callback.h", "base/clock.h", "base/descriptors.h", "base/fork_guard.h",
                           "base/fork_safe_mutex.h", "base/held_folder.h", "base/keyed_hash.h", "base/link_target.h",
                           "base/log.h",
                           "base/made_folders.h", "base/open_hint.h", "base/out_of_memory.h", "base/runs_callback.h",
                           "base/test_syncs.h", "base/uninterrupted.h", "base/unique_fd.h", "base/writers.h",
                           "cuda/row_cache.h"),
         "src/daemon/": (), "src/capi/": (), "bindings/": ()}


def files(root, suffixes):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path, path.relative_to(root).as_posix()


def line_findings(name, line):
    if "\t" in line:
        yield "has a tab"
    if line != line.rstrip():
        yield "ends in white space"
    if UNFINISHED.search(line):
        yield "is marked as unfinished"
    if name.startswith(("src/", "bindings/")) and INSECURE.search(line) and not TEST_FILE.fullmatch(name):
        yield "calls getenv, not secure_getenv"


def include_findings(name, quote, header, own_folder):
    if header.startswith("../") or "/../" in header:
        yield f"includes {header} by a way upwards"
    for vendor, homes in VENDORS.items():
        if vendor.fullmatch(header) and not name.startswith(tuple(homes)):
            yield f"includes {header}, which only {', '.join(homes)} may"
    if quote != '"' or header.startswith("penstock/"):
        return
    if name.startswith("include/"):
        yield f"is public and includes {header}, which is not"
    for user, helpers in USERS.items():
        is_own = header.startswith(user.removeprefix("src/")) or (own_folder / header).exists()
        if name.startswith(user) and not is_own and header not in helpers:
            yield f"includes {header}: {user} uses {', '.join(('the public headers', *helpers))} and its own"


def rules(root):
    for path, name in files(root, TEXTS):
        if path.suffix in SOURCES | {".py"} and not (SNAKE_CASE.fullmatch(path.name) or PYTHON_PRIVATE.fullmatch(path.name)):
            yield f"{name}: is not named in snake_case"
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            findings = list(line_findings(name, line))
            if path.suffix in SOURCES:
                if len(line) > MAX_COLUMNS:
                    findings.append(f"is longer than {MAX_COLUMNS} columns")
                if include := INCLUDE.match(line):
                    findings += include_findings(name, include[1], include[2], path.parent)
            yield from (f"{name}:{number}: {finding}" for finding in findings)


def find_clang_format(root):
    """The pinned version, or nothing: other versions format differently."""
    for candidate in [str(root / ".venv/bin/clang-format"), "clang-format"]:
        try:
            version = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        if f"version {CLANG_FORMAT_VERSION}" in version:
            return candidate
    return None


def format_findings(root, clang_format):
    names = [str(path) for path, _ in files(root, SOURCES)]
    check = subprocess.run([clang_format, "--dry-run", "--style=file", *names], capture_output=True, text=True)
    if check.returncode != 0:
        yield check.stderr.strip()
    for line in check.stderr.splitlines():
        if ": warning: " in line:
            yield line.replace(f"{root}/", "").split(": warning:")[0] + ": is not as clang-format would have it"


def main(check, root):
    root = pathlib.Path(root).resolve()
    if check == "format":
        clang_format = find_clang_format(root)
        if clang_format is None:
            print(f"skipped: clang-format {CLANG_FORMAT_VERSION} is not installed; scripts/install-deps.sh puts it in .venv")
            return 77
        findings = list(format_findings(root, clang_format))
        if findings:
            findings.append(f"To fix: {clang_format} -i on the files above")
    else:
        findings = list(rules(root))
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("rules", "format"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
