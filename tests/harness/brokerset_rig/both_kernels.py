"""The compiled kernels and those in plain Python, for tests that compare them."""

from __future__ import annotations

from typing import Final, TypeAlias

from brokerset_rig.pure_kernels import PureKernels
from brokerset_spark.kernels.compiled import Kernels

EitherKernels: TypeAlias = PureKernels | Kernels
PURE: Final = PureKernels()
COMPILED: Final = Kernels()
