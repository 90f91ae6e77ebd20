"""The table of parked pulls: what wakes a pull, when its time is over, and what it costs at most."""

from __future__ import annotations

import random

import pytest

from brokerset_broker.requests.parked_pull_table import PARK_MS_MAX, SLOT_MS, ParkedPull, ParkedPullTable
from brokerset_broker.requests.parked_pulls import ParkedPulls
from brokerset_formats.hashing import java_hash
from brokerset_runtime.clock import ManualClock


def make(
    table: ParkedPullTable | None,
    queue_offset: int = 5,
    *,
    codes: frozenset[int] | None = None,
    topic: str = "t",
    queue_id: int = 0,
    owner: object = "owner",
    timeout_ms: int = 1000,
    now_ms: int = 0,
) -> tuple[ParkedPull, list[int]]:
    resumed: list[int] = []
    hold = ParkedPull(topic, queue_id, queue_offset, codes, owner, lambda: resumed.append(1))
    if table is not None:
        assert table.add(hold, now_ms, timeout_ms)
    return hold, resumed


def test_a_pull_that_was_woken_for_nothing_waits_until_its_first_deadline() -> None:
    """It ends when it would have ended, and does not come into a table that is full meanwhile."""
    table = ParkedPullTable(parked_max=1)
    pull, _ = make(table, timeout_ms=1000)
    woken = table.arrived(("t", 0), 6, None)
    added = table.add_again(pull, 500)
    early = table.expired(900)
    due = table.expired(1000 + SLOT_MS)
    late = table.add_again(pull, 1000 + SLOT_MS)
    make(table, timeout_ms=9000)

    assert (woken, added, early, due, late) == ([pull], True, [], [pull], False)
    assert not table.add_again(pull, 500)


@pytest.mark.parametrize(("next_queue_offset", "wakes"), [(5, False), (4, False), (6, True), (100, True)])
def test_a_pull_wakes_when_the_message_that_it_waits_for_is_there(
    next_queue_offset: int, wakes: bool
) -> None:
    """In the same step in which the message can be read (statement 62)."""
    table = ParkedPullTable()
    hold, _ = make(table, queue_offset=5)

    woken = table.arrived(("t", 0), next_queue_offset, None)

    assert woken == ([hold] if wakes else [])
    assert len(table) == (0 if wakes else 1)


def test_a_pull_sleeps_on_when_the_tag_is_not_wanted() -> None:
    table = ParkedPullTable()
    code = java_hash("TagA")
    hold, _ = make(table, codes=frozenset({code}))

    assert table.arrived(("t", 0), 6, java_hash("TagB")) == []
    assert table.arrived(("t", 0), 7, None) == [hold]


def test_tags_codes_are_compared_as_ints_of_java() -> None:
    """Consume queues hold the hash sign-extended to 64 bits; other writers have left out the sign."""
    negative = -1_234_567
    hold, _ = make(None, codes=frozenset({negative}))

    assert hold.wants(6, negative)
    assert hold.wants(6, negative & 0xFFFFFFFF)
    assert not hold.wants(6, -negative)


def test_only_the_queue_of_the_message_is_woken() -> None:
    table = ParkedPullTable()
    make(table, queue_id=1)
    make(table, topic="other")

    assert table.arrived(("t", 0), 100, None) == []
    assert len(table) == 2


def test_a_pull_ends_within_a_slot_of_its_time() -> None:
    """Without a message it is answered at its limit, and at most a slot later (statement 62)."""
    table = ParkedPullTable()
    hold, _ = make(table, now_ms=1_000_050, timeout_ms=15_000)

    assert table.expired(1_015_049) == []
    assert table.expired(1_015_050 + SLOT_MS) == [hold]
    assert len(table) == 0


def test_no_pull_is_held_longer_than_the_limit_whatever_it_asks_for() -> None:
    table = ParkedPullTable()
    hold, _ = make(table, timeout_ms=10**12)

    assert table.expired(PARK_MS_MAX + SLOT_MS) == [hold]


def test_a_negative_time_out_ends_at_once() -> None:
    table = ParkedPullTable()
    hold, _ = make(table, timeout_ms=-5)

    assert table.expired(SLOT_MS) == [hold]


def test_a_full_table_takes_no_more() -> None:
    table = ParkedPullTable(parked_max=2)
    make(table)
    make(table)
    third, _ = make(None)

    assert not table.add(third, 0, 1000)
    assert len(table) == 2


def test_a_closed_connection_takes_its_holds_along() -> None:
    """A parked pull of a dead connection is dropped, and others stay (statement 62)."""
    table = ParkedPullTable()
    first, _ = make(table, owner="gone")
    kept, _ = make(table, owner="stays")

    assert table.drop("gone") == [first]
    assert table.drop_all() == [kept]


@pytest.mark.parametrize("seed", range(20))
def test_a_naive_list_agrees(seed: int) -> None:
    """Whatever happens in whatever order: the same holds wake as in a list that is searched."""
    rng = random.Random(seed)
    table = ParkedPullTable()
    naive: dict[ParkedPull, int] = {}
    now_ms = rng.randrange(10**6)
    for _ in range(500):
        action = rng.randrange(5)
        if action <= 1:
            timeout_ms = rng.choice([0, 150, 15_000])
            hold, _ = make(
                table, rng.randrange(20), queue_id=rng.randrange(3), owner=rng.randrange(4), now_ms=now_ms,
                timeout_ms=timeout_ms,
            )  # fmt: skip
            naive[hold] = ((now_ms + timeout_ms) // SLOT_MS + 1) * SLOT_MS
            continue
        if action == 2:
            key, end = ("t", rng.randrange(3)), rng.randrange(20)
            woken = table.arrived(key, end, None)
            expected = [hold for hold in naive if hold.key == key and hold.queue_offset < end]
        elif action == 3:
            now_ms += rng.choice([1, 99, 1000, 60_000])
            woken = table.expired(now_ms)
            expected = [hold for hold, end in naive.items() if end <= now_ms]
        else:
            owner = rng.randrange(4)
            woken = table.drop(owner)
            expected = [hold for hold in naive if hold.owner == owner]
        assert set(woken) == set(expected)
        for hold in expected:
            del naive[hold]
        assert len(table) == len(naive)


async def _service(ends: dict[tuple[str, int], int]) -> tuple[ParkedPulls, ManualClock]:
    clock = ManualClock()
    return ParkedPulls(clock, lambda topic, queue_id: ends.get((topic, queue_id), 0)), clock


async def test_the_service_resumes_expired_pulls_and_sweeps_for_missed_messages() -> None:
    """A pull whose arrival nobody reported wakes with the sweep after five seconds."""

    ends: dict[tuple[str, int], int] = {}
    service, clock = await _service(ends)
    short, short_done = make(None, timeout_ms=0)
    missed, missed_done = make(None, queue_id=1)
    assert service.park(short, 300)
    assert service.park(missed, 15_000)

    clock.advance(400)
    service.tick()
    assert (short_done, missed_done) == ([1], [])

    ends["t", 1] = 6
    clock.advance(4_700)
    service.tick()
    assert missed_done == [1]
    assert len(service) == 0


async def test_a_closed_service_answers_what_waits_and_holds_nothing_more() -> None:

    service, _ = await _service({})
    hold, done = make(None)
    assert service.park(hold, 1000)

    service.close()

    assert done == [1]
    assert not service.park(make(None)[0], 1000)
