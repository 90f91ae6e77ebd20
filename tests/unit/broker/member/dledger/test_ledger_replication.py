"""When the leader of a DLedger serves, and what it does at once when it leads no more."""

from __future__ import annotations

import asyncio

import pytest

from brokerset_broker.member.dledger.ledger_replication import LedgerReplication
from brokerset_broker.member.role import Role, RoleState
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.replica_log import ReplicaLogFailed

LEADS = RoleState(Role.MASTER, 3, 0, 1)


class Store:
    """What a change of role does to a store."""

    def __init__(self) -> None:
        self.is_dispatched = False
        self.stopped: str | None = None
        self.max_offset = 7
        self.calls: list[str] = []

    def follow(self, reason: str) -> None:
        self.calls.append("follow")

    def lead(self) -> None:
        self.calls.append("lead")

    def begin_leading(self) -> None:
        self.calls.append("begin leading")

    def answer_waiting(self, status: PutStatus) -> None:
        self.calls.append(f"answer {status.value}")


class Place:
    """A replication whose member leads or not."""

    def __init__(self) -> None:
        self.store = Store()
        self.term: int | None = 3
        self.replication = LedgerReplication(self.store, self.leads)  # type: ignore[arg-type]
        self.store.calls.clear()

    def leads(self, term: int) -> bool:
        return term == self.term


async def _turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_leader_waits_until_all_of_its_log_is_dispatched() -> None:
    place = Place()
    place.replication.wait_for(LEADS)
    waiting = asyncio.create_task(place.replication.finish_received())
    await _turns()
    assert not waiting.done()
    place.store.is_dispatched = True
    place.replication.news()
    assert await waiting == 7


async def test_a_follower_waits_for_nothing() -> None:
    place = Place()
    place.replication.wait_for(RoleState(Role.SLAVE, 3, 0, 2))
    assert await place.replication.finish_received() == 7


async def test_who_leads_no_more_does_not_wait_on() -> None:
    place = Place()
    place.replication.wait_for(LEADS)
    waiting = asyncio.create_task(place.replication.finish_received())
    await _turns()
    place.term = None
    place.replication.news()
    with pytest.raises(ReplicaLogFailed, match="epoch 3 ended"):
        await waiting


async def test_a_log_that_fails_ends_the_wait() -> None:
    place = Place()
    place.replication.wait_for(LEADS)
    place.store.stopped = "the disk failed"
    with pytest.raises(ReplicaLogFailed, match="the disk failed"):
        await place.replication.finish_received()


async def test_appends_are_taken_only_in_a_term_that_this_member_leads() -> None:
    place = Place()
    assert not await place.replication.begin_epoch(2)
    assert place.store.calls == []
    assert await place.replication.begin_epoch(3)
    assert place.store.calls == ["begin leading", "lead"]


async def test_a_lost_leadership_refuses_appends_and_answers_at_once() -> None:
    place = Place()
    assert not place.replication.lost()
    await place.replication.begin_epoch(3)
    assert not place.replication.lost()
    place.store.calls.clear()
    place.term = None
    assert place.replication.lost()
    assert place.store.calls == ["follow", "answer SERVICE_NOT_AVAILABLE"]
    assert not place.replication.lost()
