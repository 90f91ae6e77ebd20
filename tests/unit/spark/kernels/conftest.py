"""Both kinds of kernels, one after the other."""

from __future__ import annotations

import pytest

from brokerset_rig.both_kernels import COMPILED, PURE, EitherKernels


@pytest.fixture(params=[PURE, COMPILED], ids=["pure", "compiled"])
def kernels(request: pytest.FixtureRequest) -> EitherKernels:
    found: EitherKernels = request.param
    return found
