"""Checks JSON against the schemas in docs/schema: the part of draft 2020-12 that they use, and nothing else.

A keyword that is not known here is an error, so that no schema promises what is not checked.
"""

import json
import pathlib
import re

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schema"
TYPES = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
}
NUMBERS = {
    "minimum": lambda v, bound: v >= bound,
    "maximum": lambda v, bound: v <= bound,
    "exclusiveMinimum": lambda v, bound: v > bound,
    "multipleOf": lambda v, bound: v % bound == 0,
}
NOTES = {"$schema", "$id", "$defs", "title", "description"}


def load(name):
    return json.loads((FOLDER / f"{name}.schema.json").read_text())


def resolve(reference, file):
    name, _, pointer = reference.partition("#")
    file = name or file
    schema = json.loads((FOLDER / file).read_text())
    for key in filter(None, pointer.split("/")):
        schema = schema[key]
    return schema, file


def errors(value, schema, file, where="$"):
    for keyword, rule in schema.items():
        if keyword in NOTES or keyword == "required" and not isinstance(value, dict):
            continue
        if keyword == "$ref":
            yield from errors(value, *resolve(rule, file), where)
        elif keyword == "type":
            kinds = rule if isinstance(rule, list) else [rule]
            if not any(TYPES[kind](value) for kind in kinds):
                yield f"{where}: {value!r} is not of type {rule}"
        elif keyword == "const":
            if value != rule:
                yield f"{where}: {value!r} is not {rule!r}"
        elif keyword == "enum":
            if value not in rule:
                yield f"{where}: {value!r} is not one of {rule}"
        elif keyword == "pattern":
            if isinstance(value, str) and not re.search(rule, value):
                yield f"{where}: {value!r} does not match {rule}"
        elif keyword in NUMBERS:
            if TYPES["number"](value) and not NUMBERS[keyword](value, rule):
                yield f"{where}: {value!r} breaks {keyword} {rule}"
        elif keyword == "minItems":
            if isinstance(value, list) and len(value) < rule:
                yield f"{where}: has fewer than {rule} items"
        elif keyword == "items":
            for i, item in enumerate(value if isinstance(value, list) else []):
                yield from errors(item, rule, file, f"{where}[{i}]")
        elif keyword == "required":
            yield from (f"{where}: {key} is missing" for key in rule if key not in value)
        elif keyword == "properties":
            for key, part in rule.items():
                if isinstance(value, dict) and key in value:
                    yield from errors(value[key], part, file, f"{where}.{key}")
        elif keyword == "additionalProperties":
            assert rule is False, "the schemas are strict"
            known = schema.get("properties", {})
            yield from (f"{where}: {key} is not known" for key in (value or {}) if key not in known)
        else:
            raise AssertionError(f"{file}: {where}: the keyword {keyword} is not checked here")


def check(value, name):
    found = list(errors(value, load(name), f"{name}.schema.json"))
    assert not found, "\n".join(found)
