"""The closed lists in the docs are those of the code."""

import json
import pathlib
import re
import unittest

import schema

ROOT = pathlib.Path(__file__).resolve().parents[2]


def enumerators(header, name):
    body = re.search(rf"enum class {name}\b[^{{]*{{(.*?)}};", (ROOT / header).read_text(), re.DOTALL)[1]
    return re.findall(r"^\s*(\w+)\s*(?:=\s*(\d+))?,", re.sub(r"//.*", "", body), re.MULTILINE)


def table(page, columns):
    """The rows of a page's table that have so many columns, without its head."""
    rows = [line.strip("|").split("|") for line in (ROOT / page).read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip().strip("`") for cell in row] for row in rows if len(row) == columns]
    return [row for row in rows if not set(row[0]) <= {"-"} and row[0] != "code"]


class Docs(unittest.TestCase):
    def test_list_every_error_code(self):
        codes = [name for name, _ in enumerators("include/penstock/error.h", "Code")]
        self.assertGreater(len(codes), 20)
        self.assertEqual([row[0] for row in table("docs/errors.md", 4)], codes)
        self.assertEqual(schema.load("error")["$defs"]["error"]["properties"]["code"]["enum"], codes[1:])

    def test_list_every_exit_code(self):
        codes = [int(value) for _, value in enumerators("src/cli/common.h", "Exit")]
        documented = [int(row[0]) for row in table("docs/cli.md", 2) if row[0].isdigit()]
        self.assertEqual(documented, codes)
        meanings = {row[0]: row[1] for row in table("docs/cli.md", 2) if row[0].isdigit()}
        told = re.findall(r'{Exit::\w+, "([^"]*)"}', (ROOT / "src/cli/common.h").read_text())
        self.assertEqual(told, list(meanings.values()))
        self.assertLessEqual({int(row[3]) for row in table("docs/errors.md", 4)}, set(codes))

    def test_list_every_route(self):
        routes = [name.replace("_", "-") for name, _ in enumerators("include/penstock/route.h", "Route")]
        definitions = schema.load("load")["$defs"]
        self.assertEqual(list(definitions["routes"]["properties"]), routes)
        self.assertEqual(definitions["route"]["enum"], routes)

    def test_schemas_are_strict_and_refer_to_what_exists(self):
        def walk(node, file):
            if isinstance(node, list):
                for item in node:
                    walk(item, file)
            if not isinstance(node, dict):
                return
            if "$ref" in node:
                schema.resolve(node["$ref"], file)
            if "properties" in node and "type" in node and not isinstance(node["type"], dict):
                self.assertIs(node.get("additionalProperties"), False, file)
                self.assertLessEqual(set(node.get("required", [])), set(node["properties"]))
            for item in node.values():
                walk(item, file)

        for path in schema.FOLDER.glob("*.schema.json"):
            walk(json.loads(path.read_text()), path.name)

    def test_the_validator_finds_what_is_wrong(self):
        good = {"error": {"code": "changed", "message": "m", "hint": ""}}
        schema.check(good, "error")
        for bad in [{}, {"error": {}}, {"error": {**good["error"], "code": "warp"}}, {**good, "more": 1},
                    {"error": {**good["error"], "message": 1}}, {"error": {**good["error"], "failures": [{}]}}]:
            with self.assertRaises(AssertionError):
                schema.check(bad, "error")


if __name__ == "__main__":
    unittest.main(verbosity=2)
