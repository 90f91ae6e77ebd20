"""The loops over bytes: walking, checking, taking apart and rewriting records.

numba compiles them (`compiled.Kernels`); `KERNELS` loads them when the first one is used. The tests compare
them with the same functions in plain Python (`brokerset_rig.pure_kernels`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, cast

from brokerset_spark.kernels.contract import (
    GROUP_SUMS,
    PROBLEMS,
    Entries,
    Heads,
    Laid,
    Numbered,
    Pairs,
    Stop,
    Texts,
    Walked,
)

if TYPE_CHECKING:
    from brokerset_spark.kernels.compiled import Kernels

__all__ = [
    "GROUP_SUMS", "KERNELS", "PROBLEMS", "Entries", "Heads", "Laid", "Numbered", "Pairs", "Stop", "Texts",
    "Walked",
]  # fmt: skip


class _Late:
    """The functions of the kernels, which are loaded for the first of them.

    Loading takes most of a second and 100 MB, and many processes need none: a driver, and those in which
    Spark plans. ModuleNotFoundError where numba is not installed.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            module = importlib.import_module("brokerset_spark.kernels.compiled")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("numba", "llvmlite"):
                raise
            raise ModuleNotFoundError(
                f"{error.name} is missing, and jobs read records with it: install brokerset[spark]",
                name=error.name,
            ) from error
        found = getattr(module.Kernels(), name)
        setattr(self, name, found)  # from now on without this function
        return found


KERNELS: Final = cast("Kernels", _Late())
