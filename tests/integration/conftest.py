from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop


@pytest.fixture(autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Tests that are coroutines run on the loop that servers use."""
    return uvloop.new_event_loop
