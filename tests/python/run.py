"""Runs files of tests with pytest.

    run.py FILE...

Exits 77, with the reason, where nothing in them can be tried here.
"""

import importlib.util
import pathlib
import sys

NEEDED = {
    "pytest": "pytest is not installed",
    "penstock": "the Python package was not built: see PENSTOCK_PYTHON",
    "numpy": "NumPy is not installed",
}


class Tally:
    """Counts, so that a file in which everything was skipped does not pass for one that was tried."""

    def __init__(self):
        self.tried = 0
        self.skipped = set()

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            self.skipped.add(report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr))
        elif report.when == "call":
            self.tried += 1

    def pytest_collectreport(self, report):
        if report.skipped:
            self.skipped.add(report.longrepr[2])


def main(names):
    for module, reason in NEEDED.items():
        if importlib.util.find_spec(module) is None:
            print(f"skipped: {reason}")
            return 77
    import pytest

    here = pathlib.Path(__file__).parent
    tally = Tally()
    code = pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *(str(here / name) for name in names)], [tally])
    if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not tally.tried and tally.skipped:
        return 77
    return int(code)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
