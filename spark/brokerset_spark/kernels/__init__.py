"""The loops over bytes: walking, checking, taking apart and rewriting records.

`pure.Kernels` needs nothing; `compiled.Compiled` needs numba, does the same, and is 5 to 40 times as fast.
`KERNELS` is the faster one that works here, loaded when it is first used; `BROKERSET_KERNELS=pure` decides
otherwise.
"""

from brokerset_spark.kernels.choice import KERNELS, chosen
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
from brokerset_spark.kernels.pure import Kernels
from brokerset_spark.kernels.pure_texts import GroupNumbers

__all__ = [
    "GROUP_SUMS", "KERNELS", "PROBLEMS", "Entries", "GroupNumbers", "Heads", "Kernels", "Laid",
    "Numbered", "Pairs", "Stop", "Texts", "Walked", "chosen",
]  # fmt: skip
