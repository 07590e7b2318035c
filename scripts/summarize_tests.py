"""Sums up ctest's JUnit files: why tests were skipped, which ones failed, and how many there were of each.

    summarize_tests.py FILE...

Exits 1 if a test failed.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree

# What GoogleTest prints before and after the reason, and the file and line it stands at.
FRAME = re.compile(r"\[[ =\-A-Z]*\].*|Note: Google Test filter.*|Running main\(\).*|.*: Skipped|")


def reason(test):
    lines = (test.findtext("system-out") or "").splitlines()
    return " ".join(line.strip() for line in lines if not FRAME.fullmatch(line.strip())) or "no reason given"


def main(paths):
    passed, failed, skipped = 0, [], {}
    for path in map(pathlib.Path, paths):
        for test in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
            name = f"{path.stem}: {test.get('name')}"
            if test.get("status") == "run":
                passed += 1
            elif test.get("status") == "fail":
                failed.append(name)
            else:
                skipped.setdefault(reason(test), []).append(name)
    for why, names in skipped.items():
        print(f"skipped {len(names)}, {names[0]}{' and others' if len(names) > 1 else ''}: {why}")
    for name in failed:
        print(f"failed {name}")
    count_skipped = sum(len(names) for names in skipped.values())
    print(f"{passed} passed, {len(failed)} failed, {count_skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
