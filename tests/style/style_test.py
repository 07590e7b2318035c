"""The style rules find what they look for, and nothing in clean files."""

import pathlib
import tempfile
import unittest

import style


class Rules(unittest.TestCase):
    def findings(self, name, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True)
            path.write_text(text)
            return list(style.rules(pathlib.Path(folder)))

    def test_a_clean_file_has_no_findings(self):
        self.assertEqual(self.findings("src/cli/main.cc", '#include "penstock/penstock.h"\nint main() {}\n'), [])

    def test_each_violation_is_found_at_its_line(self):
        violations = {
            "src/core/CamelCase.cc": "\n",
            "src/core/tab.cc": "\n\tint x;\n",
            "src/core/trailing.cc": "int x; \n",
            "src/core/wide.cc": "//" + "x" * 119 + "\n",
            "src/core/unfinished.cc": "// TO" + "DO\n",
            "src/core/upwards.cc": '#include "../base/log.h"\n',
            "src/core/vendor.cc": "#include <liburing.h>\n",
            "src/base/vendor.cc": "#include <nlohmann/json.hpp>\n",
            "src/core/parser.cc": "#include <CLI/CLI.hpp>\n",
            "src/cli/internal.cc": '#include "core/planner.h"\n',
            "src/services/internal.cc": '#include "base/futex.h"\n',
            "src/cli/environment.cc": 'const char* home = std::getenv("HOME");\n',
            "include/penstock/internal.h": '#include "memory/allocation.h"\n',
        }
        for name, text in violations.items():
            with self.subTest(name):
                found = self.findings(name, text)
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(name), found)

    def test_services_share_some_helpers(self):
        self.assertEqual(self.findings("src/services/file.cc", '#include "base/bounded.h"\n'), [])
        self.assertNotEqual(self.findings("src/cli/file.cc", '#include "base/bounded.h"\n'), [])

    def test_tests_may_ask_the_environment(self):
        for name in "src/core/a_test.cc", "src/files/test_machine.h", "tests/support/environment.h":
            self.assertEqual(self.findings(name, 'const char* home = std::getenv("HOME");\n'), [])
        self.assertEqual(self.findings("src/core/a.cc", 'const char* home = ::secure_getenv("HOME");\n'), [])

    def test_vendor_headers_are_fine_at_home(self):
        self.assertEqual(self.findings("src/engines/uring/queue.cc", "#include <liburing.h>\n"), [])
        self.assertEqual(self.findings("src/core/options.cc", "#include <nlohmann/json.hpp>\n"), [])


if __name__ == "__main__":
    unittest.main()
