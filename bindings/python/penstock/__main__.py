"""penstock run SCRIPT [ARGUMENT...], penstock run -m MODULE [ARGUMENT...]: runs a Python program whose safetensors files
are loaded through Penstock, also in processes that it forks or starts (by PENSTOCK_PATCH=1 in its environment, which has an
effect where Penstock is installed). Every other command is the tool's own; see penstock --help."""

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
    os.environ["PENSTOCK_PATCH"] = "1"  # for those that it starts
    as_module = arguments[0] == "-m"
    sys.argv = arguments[1:] if as_module else arguments
    if not getattr(sys.flags, "safe_path", False):
        # Python has put there what belongs to penstock, or the folder that it was started in.
        sys.path[0] = os.getcwd() if as_module else os.path.dirname(os.path.realpath(arguments[0]))
    if as_module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


def main() -> None:
    if sys.argv[1:2] == ["run"]:
        return run(sys.argv[2:])
    from ._errors import NotFoundError
    from ._machine import tool

    try:
        path = tool()
    except NotFoundError as error:
        sys.exit(f"penstock: {error}")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
