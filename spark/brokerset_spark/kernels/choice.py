"""Which kernels are used in this process."""

from __future__ import annotations

import importlib
import os
from typing import Final, cast

from brokerset_spark.kernels import pure
from brokerset_spark.kernels.contract import Kernels

VARIABLE: Final = "BROKERSET_KERNELS"
"""`pure`, `compiled`, or not set: what there is."""


def chosen(name: str | None) -> Kernels:
    """The kernels of this name; ImportError if numba is asked for and missing, ValueError for other names."""
    if name not in (None, "", "pure", "compiled"):
        raise ValueError(f"{VARIABLE}={name}: must be pure or compiled")
    if name != "pure":
        try:
            return cast("Kernels", importlib.import_module("brokerset_spark.kernels.compiled"))
        except ImportError:
            if name == "compiled":
                raise
    return cast("Kernels", pure)


KERNELS: Final = chosen(os.environ.get(VARIABLE))
