"""The parts that `cmake --install` knows, which are the Debian packages, share no file and leave none out.

    components_test.py CMAKE BUILD
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

CMAKE, BUILD = sys.argv[1:3]


class Components(unittest.TestCase):
    def installed(self, *arguments):
        with tempfile.TemporaryDirectory() as prefix:
            subprocess.run([CMAKE, "--install", BUILD, "--prefix", prefix, *arguments], check=True, timeout=60,
                           stdout=subprocess.DEVNULL)
            root = pathlib.Path(prefix)
            return {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}

    def test_together_they_are_all_and_none_has_what_another_has(self):
        parts = {name: self.installed("--component", name) for name in ("tool", "runtime", "dev")}
        every = [name for part in parts.values() for name in part]
        self.assertEqual(len(every), len(set(every)))
        self.assertEqual(set(every), self.installed())
        self.assertIn("bin/penstock", parts["tool"])
        self.assertIn("include/penstock/penstock.h", parts["dev"])
        names = {pathlib.Path(name).name for name in parts["runtime"]}
        self.assertLessEqual({"libpenstock.so.0", "LICENSE", "third-party.txt"}, names)
        self.assertNotIn("libpenstock.so", names)

    def test_packages_invent_no_maintainer(self):
        text = (pathlib.Path(BUILD) / "CPackConfig.cmake").read_text()
        contact = re.search(r'CPACK_PACKAGE_CONTACT "(.*)"', text)[1]
        self.assertTrue(contact.endswith("@localhost.invalid>") or os.environ.get("DEBEMAIL", "nobody") in contact, contact)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
