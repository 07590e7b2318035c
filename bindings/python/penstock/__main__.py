"""penstock run SCRIPT [ARGUMENT...], penstock run -m MODULE [ARGUMENT...]: runs a Python program whose safetensors files
are loaded through Penstock, also in processes that it forks. Those that it starts anew (multiprocessing's spawn, torchrun)
have to call penstock.patch() themselves. Every other command is the tool's own; see penstock --help."""

from __future__ import annotations

import os
import sys


def run(arguments: list[str]) -> None:
    if arguments[:1] in (["--help"], ["-h"]):
        print(__doc__)
        return
    if not arguments or arguments[0].startswith("-") and (arguments[0] != "-m" or len(arguments) < 2):
        sys.exit(__doc__)
    if arguments[0] != "-m" and not os.path.exists(arguments[0]):
        sys.exit(f"penstock run: there is no {arguments[0]}")
    import runpy

    from . import patch

    patch()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


def main() -> None:
    if sys.argv[1:2] == ["run"]:
        return run(sys.argv[2:])
    tool = os.path.join(os.path.dirname(__file__), "bin", "penstock")
    if not os.path.exists(tool):
        sys.exit(f"penstock: the tool is not part of this installation: there is no {tool}")
    os.execv(tool, [tool, *sys.argv[1:]])


if __name__ == "__main__":
    main()
