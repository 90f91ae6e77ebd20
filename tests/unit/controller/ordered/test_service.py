"""Requests about subjects, as a controller that leads answers them."""

from __future__ import annotations

import pytest

from brokerset_protocol.bodies.ordered import OwnedReport, ReleasedPartition, SubjectStates
from brokerset_rig.subject_bench import make_subject_bench

pytestmark = pytest.mark.virtual


async def test_a_subject_is_created_consumed_and_scaled() -> None:
    """From the first request to the last partition that is open."""
    bench = make_subject_bench()
    async with bench.running():
        created = await bench.create(2)
        await bench.settle()
        assert SubjectStates.from_json(created.body).subjects[0].name == "orders"
        assert bench.net.brokers["a"].states() == {0: "Open"}

        await bench.assigned("one")
        await bench.settle()
        assert bench.owners() == {0: "one", 1: "one"}
        first = await bench.assigned("one")
        await bench.assigned("two")
        await bench.settle()
        revoked = [each for each in (await bench.assigned("one")).partitions if each.revoked]
        report = OwnedReport(released=tuple(ReleasedPartition(e.partition_id, e.epoch) for e in revoked))
        await bench.assigned("one", report)
        await bench.settle()
        assert sorted(bench.owners().values()) == ["one", "two"]
        assert len(first.partitions) == 2

        assert (await bench.scale(4)).code == 0
        await bench.settle()
        assert bench.statuses() == {0: "Sealed", 1: "Sealed", 2: "Open", 3: "Open", 4: "Open", 5: "Open"}
        assert bench.net.brokers["a"].states() == {0: "Sealed", 2: "Open", 4: "Open"}
