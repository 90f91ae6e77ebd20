from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from brokerset_rig.steady_time import SteadyUvloop


@pytest.fixture(autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Tests that are coroutines run on the loop that servers use, on steady time."""
    return SteadyUvloop
