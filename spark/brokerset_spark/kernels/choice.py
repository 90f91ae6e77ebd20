"""Which kernels are used in this process."""

from __future__ import annotations

import importlib
import os
from typing import Any, Final, cast

from brokerset_spark.kernels.pure import Kernels

VARIABLE: Final = "BROKERSET_KERNELS"
"""`pure`, `compiled`, or not set: what there is."""


def chosen(name: str | None) -> Kernels:
    """The kernels of this name, or those that the environment asks for; else the best that there are.

    ImportError if numba is asked for and missing, ValueError for other names.
    """
    name = name or os.environ.get(VARIABLE)
    if name not in (None, "", "pure", "compiled"):
        raise ValueError(f"{VARIABLE}={name}: must be pure or compiled")
    if name != "pure":
        try:
            return cast("Kernels", importlib.import_module("brokerset_spark.kernels.compiled").Compiled())
        except ImportError:
            if name == "compiled":
                raise
    return Kernels()


class _Best:
    """The functions of the kernels that the environment asks for, which are loaded for the first of them.

    Loading the compiled ones takes most of a second and 100 MB, and many processes need none: a driver, and
    those in which Spark plans.
    """

    def __getattr__(self, name: str) -> Any:
        found = getattr(chosen(None), name)
        setattr(self, name, found)  # from now on without this function
        return found


KERNELS: Final = cast("Kernels", _Best())
