"""What is measured of signed acks and ends is what it is called: requests go the one way or the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.signed_requests import (
    ACK,
    CHUNK,
    END,
    HANDLERS,
    NATIVE,
    POPPED_AND_ACKED,
    SETTINGS,
    Measurement,
    measure,
    table,
)

from brokerset_formats import native
from brokerset_rig.local_servers import running_broker

pytestmark = pytest.mark.skipif(native.core is None, reason="there is no native core")


async def test_each_pass_has_a_cost_for_each_way(tmp_path: Path) -> None:
    """All requests were served the way that the pass is for, or `measure` would have failed."""
    costs = await measure(tmp_path, 2 * CHUNK, passes=2)

    assert set(costs) == {(what, way) for what in (POPPED_AND_ACKED, ACK, END) for way in (HANDLERS, NATIVE)}
    assert all(len(found) == 2 and min(found) > 0 for found in costs.values())
    assert len(table(costs).splitlines()) == 5


async def test_requests_that_go_the_other_way_are_not_measured(tmp_path: Path) -> None:
    """A native core that serves nothing, as on a slave, would be measured as the handlers."""
    async with running_broker(tmp_path, **SETTINGS) as broker:
        measurement = Measurement(broker)
        await measurement.prepare()
        assert broker._ack_lane is not None
        broker._ack_lane.is_open = lambda: False

        with pytest.raises(AssertionError, match="went by the native core"):
            await measurement.one_pass(NATIVE, 2 * CHUNK)
