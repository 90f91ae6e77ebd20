"""What a new master does with the locks of ordered pops that another one has given."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerset_broker.requests.pop.ordered_pops import OrderedPops
from brokerset_broker.tables.pop.order_lock import OrderLock
from brokerset_broker.tables.pop.order_table import OrderTable

NOW = 1_000_000


def ordered_pops(table: OrderTable, clock: SimpleNamespace, offsets: SimpleNamespace) -> OrderedPops:
    """With nothing else that these tests need."""
    settings = SimpleNamespace(pop_clock_skew_ms=0, enable_notify_after_pop_order_lock_release=True)
    return OrderedPops(
        live=cast(Any, SimpleNamespace(current=settings)),
        clock=cast(Any, clock),
        table=table,
        log_of_pops=cast(Any, None),
        offsets=cast(Any, offsets),
        groups=cast(Any, SimpleNamespace(going=())),
        changes=cast(Any, None),
    )


async def test_locks_are_taken_over_when_wanted_and_all_in_short_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred thousand locks do not stop a new master; the offset of each is what its acks say before
    anybody pops, and one that nobody has used for a day is forgotten."""
    monkeypatch.setattr("brokerset_broker.requests.pop.ordered_pops.TURN_SECONDS", -1.0)
    table, offsets = OrderTable(), dict[str, int]()
    for number in range(5):
        table.put(f"t{number}", "g", 0, OrderLock(None, NOW, 60_000, (7, 8), 1, consumed_at=NOW))
    table.put("old", "g", 0, OrderLock(None, 5, 60_000, (7,), 1, consumed_at=5))

    def commit(_group: str, topic: str, _queue_id: int, offset: int, _by: str) -> None:
        offsets[topic] = offset

    now_ms = NOW + 24 * 3_600_000
    known = SimpleNamespace(
        query=lambda _group, topic, _queue_id: offsets.get(topic, 0),
        commit=commit,
        is_held=lambda _group, _topic: False,
    )
    clock = SimpleNamespace(now_ms=lambda: now_ms, monotonic=lambda: 100.0)
    pops = ordered_pops(table, clock, known)

    pops.start()
    assert offsets == {"t0": 8}
    assert pops.admit("t4", "g", 0, None)
    assert offsets == {"t0": 8, "t4": 8}
    for _ in range(10):
        await asyncio.sleep(0)
    pops.stop()

    assert set(offsets) == {f"t{number}" for number in range(5)} | {"old"}
    assert [key for key in table.locks if key.startswith("old")] == []
    assert len(table.locks) == 5


@pytest.mark.parametrize("invisible_ms", [4, 5, 6, 7])
async def test_who_waits_is_woken_also_if_the_time_ends_between_two_readings_of_the_clock(
    invisible_ms: int,
) -> None:
    """The clock goes on by a millisecond each time that it is read."""
    ticks = itertools.count()
    clock = SimpleNamespace(now_ms=lambda: NOW, monotonic=lambda: next(ticks) / 1000)
    offsets = SimpleNamespace(is_held=lambda _group, _topic: False)
    pops = ordered_pops(OrderTable(), clock, offsets)
    pops.start()
    woken = asyncio.Event()
    pops.on_free = lambda _topic, _group: woken.set()

    pops.give(
        "t", "g", 0, attempt_id="a", pop_time=NOW, invisible_ms=invisible_ms, start=0, queue_offsets=[0]
    )

    await asyncio.wait_for(woken.wait(), 10)
    pops.stop()
