"""The sdist holds what a wheel is built from, and nothing else. Nothing is built here.

    sdist_test.py ROOT VERSION
"""

import email
import os
import pathlib
import re
import sys
import tarfile
import tempfile
import unittest

try:
    from scikit_build_core.build import build_sdist
except ImportError:
    print(f"skipped: {sys.executable} has no scikit-build-core; scripts/install-deps.sh installs it in .venv")
    sys.exit(77)

ROOT, VERSION = pathlib.Path(sys.argv[1]), sys.argv[2]
FOLDERS = ["bindings", "cmake", "include", "src", "bench/peers"]
SINGLE = {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "LICENSES/third-party.txt", "bench/harness.py"}
TESTS = re.compile(r"_test\.[a-z]+$")
QUOTED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def wanted(path):
    return path.is_file() and "__pycache__" not in path.parts and not TESTS.search(path.name)


class Sdist(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(ROOT)
            name = build_sdist(folder)
            with tarfile.open(os.path.join(folder, name)) as archive:
                prefix = name.removesuffix(".tar.gz") + "/"
                cls.files = {member.name.removeprefix(prefix): archive.extractfile(member).read()
                             for member in archive if member.isfile()}

    def test_holds_what_a_wheel_is_built_from_and_nothing_else(self):
        expected = set(SINGLE)
        for folder in FOLDERS:
            expected |= {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if wanted(path)}
        self.assertEqual(set(self.files) - {"PKG-INFO"}, expected)

    def test_every_header_that_is_included_is_there(self):
        for name, content in self.files.items():
            if not name.endswith((".cc", ".h", ".cu", ".cuh", ".in")):
                continue
            for header in QUOTED.findall(content.decode()):
                beside = os.path.normpath(os.path.join(os.path.dirname(name), header))
                places = {beside, f"src/{header}", f"include/{header}", f"bindings/python/{header}"}
                self.assertTrue(places & set(self.files), f"{name} includes {header}")

    def test_its_metadata_is_complete(self):
        metadata = email.message_from_bytes(self.files["PKG-INFO"])
        self.assertEqual((metadata["Name"], metadata["Version"]), ("penstock", VERSION))
        self.assertEqual(set(metadata.get_all("License-File")), {"LICENSE", "LICENSES/third-party.txt"})
        for field in ["Summary", "License-Expression", "Requires-Python", "Description-Content-Type"]:
            self.assertTrue(metadata[field], field)
        self.assertIn("Typing :: Typed", metadata.get_all("Classifier"))

    def test_names_the_licence_of_all_that_is_compiled_in(self):
        text = self.files["LICENSES/third-party.txt"].decode().lower()
        linked = re.findall(r"penstock_find_library\(penstock_third_party_(\w+)", self.files["cmake/dependencies.cmake"].decode())
        self.assertIn("uring", linked)
        for name in [*linked, "nanobind", "nvtx"]:
            self.assertIn(name, text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
