"""Modules that the program may have imported, of which this package imports none by itself.

A thread that is ended by a fork while it imports a module leaves the module locked in the child for good, and a signal
handler may come in the middle of an import. So reads import nothing, and use only modules that are there as a whole.
"""

from __future__ import annotations

import sys
from typing import Any

_whole: dict[str, Any] = {}  # by name: modules that were found to be so


def loaded(name: str) -> Any:
    """A module that has been imported; None where it has not, or where its import is under way."""
    module = sys.modules.get(name)
    if module is None or _whole.get(name) is module:
        return module
    if getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    _whole[name] = module
    return module
