"""The native core, if there is one: `brokerset_native`, built from `native/` (decision 28).

Everything works without it. `BROKERSET_NATIVE=off` in the environment keeps it out of a process, and
`BROKERSET_NATIVE=require` ends a process that would have to go without it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

VARIABLE: Final = "BROKERSET_NATIVE"
WISHES: Final = ("auto", "off", "require")

INTERFACE: Final = 10
"""The interface that this code speaks; a module with another number is not used."""


class NativeCoreMissing(ImportError):
    """`BROKERSET_NATIVE=require`, and there is no native core that can be used."""


def load(wish: str) -> tuple[ModuleType | None, str]:
    """The module, or None; and in a few words which path runs, and why. `wish` is one of `WISHES`.

    Raises `NativeCoreMissing` if the module is required and missing, `ValueError` for an unknown wish.
    """
    if wish not in WISHES:
        raise ValueError(f"{VARIABLE}={wish} is none of {', '.join(WISHES)}; set one of them, or nothing")
    if wish == "off":
        return None, f"off ({VARIABLE}=off)"
    try:
        import brokerset_native
    except ImportError as error:
        if wish == "require":
            raise NativeCoreMissing(f"{VARIABLE}=require, but {error}; install brokerset-native") from error
        return None, "off (brokerset-native is not installed)"
    if brokerset_native.INTERFACE != INTERFACE:
        reason = (
            f"brokerset-native {brokerset_native.__version__} has interface {brokerset_native.INTERFACE}, "
            f"this code needs {INTERFACE}; install the same versions of both"
        )
        if wish == "require":
            raise NativeCoreMissing(reason)
        return None, f"off ({reason})"
    return brokerset_native, f"on ({brokerset_native.__version__})"


core, description = load(os.environ.get(VARIABLE) or "auto")
"""The module (None: pure Python runs), and what `brokerset --version` says of it."""

version: Final[str] = core.__version__ if core is not None else ""
"""Version of the module that runs; empty without one."""
