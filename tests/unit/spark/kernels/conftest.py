"""Both modules of kernels, one after the other."""

from __future__ import annotations

import pytest

from brokerset_spark.kernels import Kernels, chosen


@pytest.fixture(params=["pure", "compiled"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "compiled":
        pytest.importorskip("numba")
    return chosen(request.param)
