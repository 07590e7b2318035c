"""Runs examples one after the other in this process, as `python EXAMPLE.py` would: torch is imported once.

    run_examples.py FOLDER NAME...

Exits 77, with the reason, where they can't run here.
"""

import importlib.util
import pathlib
import runpy
import sys


def main(folder, *names):
    if importlib.util.find_spec("torch") is None:
        print("skipped: torch is not installed")
        return 77
    sys.path[0] = folder
    for name in names:
        path = str(pathlib.Path(folder, f"{name}.py"))
        print(f"{path}:", flush=True)
        sys.argv = [path]
        runpy.run_path(path, run_name="__main__")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
