"""What this machine offers."""

from __future__ import annotations

import os
from typing import Any, Optional

from . import _core
from ._context import Context, context_of
from ._errors import make, naming


def engines(context: Optional[Context] = None) -> list[dict[str, Any]]:
    """The engines: the name of each, what it does, its schemes, whether it works here, and if not, why."""
    found: list[dict[str, Any]] = context_of(context)._core.engines()
    return found


def gpus() -> list[dict[str, Any]]:
    """The GPUs that this process may use, in CUDA's order; none where there is no CUDA. Starts CUDA."""
    return _core.gpus()


def tool() -> str:
    """The command-line tool that comes with the package."""
    path = os.path.join(os.path.dirname(__file__), "bin", "penstock")
    if not os.path.exists(path):
        raise make("not_found", 2, f"the tool is not part of this installation: there is no {path}",
                   "install the package from its wheel")
    return path


def doctor(path: Any = None) -> dict[str, Any]:
    """What `penstock doctor --json` prints about this machine, or about a path (docs/schema/doctor.schema.json)."""
    import json
    import subprocess

    of = [] if path is None else ["--", os.fsdecode(path)]
    done = subprocess.run([tool(), "doctor", "--json", *of], capture_output=True, text=True, check=False)
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise make("internal", 0, f"penstock doctor ended with {done.returncode}: {done.stderr.strip()}",
                   "run it in a shell") from None
    if "error" in said:
        error = said["error"]
        with naming(path):
            raise make(error["code"], error.get("system_error", 0), error["message"], error.get("hint", ""))
    return said
