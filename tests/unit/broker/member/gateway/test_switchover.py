"""Handing over: the order of its steps, and what each failure leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from brokerset_broker.member.gateway.switchover import SwitchOver, choose_successor, says_master
from brokerset_broker.member.ha.replication import ReplicaView
from brokerset_broker.member.membership.controllers import NoAnswer
from brokerset_broker.member.role import GroupNews, Role, RoleState
from brokerset_protocol.bodies.replicas import EpochEntry, EpochEntryCache
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import BrokerIdentityAnswer, SwitchOverResponse
from brokerset_protocol.headers.controller import SwitchOver as SwitchOverHeader
from brokerset_runtime.remoting import Connection, ConnectionClosed

pytestmark = pytest.mark.virtual

MASTER = RoleState(Role.MASTER, 5, 2, 1, "127.0.0.1:23200", frozenset({1, 2, 3}))
TOLD = GroupNews(6, 2, "127.0.0.1:23201", 3, frozenset({2}))


def view(
    broker_id: int, acknowledged: int = 100, *, in_sync: bool = True, learner: bool = False
) -> ReplicaView:
    return ReplicaView(broker_id, f"127.0.0.1:{broker_id}", acknowledged, 0, in_sync, learner, True, 0, 0)


class Parts:
    """A broker whose parts do what the test says, and note the order."""

    def __init__(self) -> None:
        self.now = MASTER
        self.views: Sequence[ReplicaView] = (view(2), view(3))
        self.steps: list[str] = []
        self.waits = 0
        self.slow = False
        self.answers: list[GroupNews | Exception] = [TOLD]
        self.serves_after = 0
        self.change_while_waiting: RoleState | None = None
        self.gate: asyncio.Event | None = None
        self.takes = True

    def replicas(self) -> Sequence[ReplicaView]:
        return self.views

    def end_of_log(self) -> int:
        return 100

    def waiting(self) -> int:
        self.waits -= 1
        return max(0, self.waits)

    def set_switching(self, on: bool) -> None:
        self.steps.append("hold" if on else "unhold")

    async def caught_up(self, broker_id: int, offset: int, timeout: float) -> bool:
        self.steps.append(f"caught up {broker_id} {offset}")
        if self.slow:
            await asyncio.sleep(timeout)
            return False
        return True

    async def hand_over(self, to_broker_id: int, epoch: int) -> GroupNews:
        self.steps.append(f"hand over {to_broker_id} {epoch}")
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.pop(0)
        if self.change_while_waiting is not None and not self.answers:
            self.now = self.change_while_waiting
        if isinstance(answer, Exception):
            raise answer
        if answer.master_id != 1 and self.takes:
            asyncio.get_running_loop().call_later(0.02, self._take, answer)
        return answer

    async def be_relieved(self, epoch: int, needed: int) -> GroupNews:
        return await self.hand_over(-needed, epoch)

    def _take(self, told: GroupNews) -> None:
        self.steps.append("take")
        self.now = RoleState(Role.SLAVE, told.epoch or 0, told.set_epoch, told.master_id, told.master_address)

    async def serves(self, address: str, epoch: int) -> bool:
        self.serves_after -= 1
        await asyncio.sleep(0.01)
        return self.serves_after < 0


class Admin:
    """Stands in for the administrator's connection."""

    peer = ("127.0.0.1", 1)


def ask(switch: SwitchOver, **fields: Any) -> Coroutine[Any, Any, Command]:
    header = SwitchOverHeader(**({"broker_name": "b"} | fields))
    return switch.switch_over(cast(Connection, Admin()), Command(21011, header.to_ext()))


async def refused(switch: SwitchOver, **fields: Any) -> Rejected:
    with pytest.raises(Rejected) as caught:
        await ask(switch, **fields)
    return caught.value


async def test_everything_happens_in_its_order() -> None:
    """ParkedPull, catch up, all sends answered, catch up again, hand over, take the role, un-hold, watch."""

    parts = Parts()
    parts.waits, parts.serves_after = 4, 5
    switch = SwitchOver("b", parts)

    reply = await ask(switch, to_broker_id=3)

    answer = SwitchOverResponse.from_ext(reply.ext)
    assert parts.steps == [
        "hold", "caught up 3 100", "caught up 3 100", "hand over 3 5", "take", "unhold",
    ]  # fmt: skip
    assert (answer.master_broker_id, answer.master_address, answer.master_epoch) == (
        2,
        "127.0.0.1:23201",
        6,
    )
    assert answer.pause_ms is not None
    assert 60 <= answer.pause_ms <= 200
    await asyncio.sleep(0)
    assert (switch.completed, switch.running) == (1, False)


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        ({"slow": True}, ["hold", "caught up 2 100", "unhold"]),
        ({"waits": 10_000}, ["hold", "caught up 2 100", "unhold"]),
        (
            {"answers": [Rejected(2012, "nobody can take over")]},
            ["hold", "caught up 2 100", "caught up 2 100", "hand over 2 5", "unhold"],
        ),
        (
            {"answers": [replace(TOLD, master_id=1)]},
            ["hold", "caught up 2 100", "caught up 2 100", "hand over 2 5", "unhold"],
        ),
    ],
)
async def test_after_a_failure_this_broker_serves_on(change: dict[str, Any], steps: list[str]) -> None:
    """The hold ends, the administrator is told why, and another try is possible."""

    parts = Parts()
    for name, value in change.items():
        setattr(parts, name, list(value) if name == "answers" else value)
    switch = SwitchOver("b", parts)

    error = await refused(switch, timeout_ms=300)

    assert parts.steps == steps
    assert error.remark
    await asyncio.sleep(0)
    assert (switch.failed, switch.running) == (1, False)


async def test_an_unclear_end_is_asked_for_again_and_nothing_is_served_meanwhile() -> None:
    """Without an answer the broker holds on; a refusal because its epoch is over is no failure."""

    parts = Parts()
    parts.answers = [NoAnswer("silent"), Rejected(2000, "not the master of epoch 5 any more")]
    parts.change_while_waiting = RoleState(Role.SLAVE, 6, 3, 2, "127.0.0.1:23201")
    switch = SwitchOver("b", parts)

    reply = await ask(switch)

    answer = SwitchOverResponse.from_ext(reply.ext)
    assert parts.steps[-3:] == ["hand over 2 5", "hand over 2 5", "unhold"]
    assert (answer.master_broker_id, answer.master_epoch) == (2, 6)


async def test_an_administrator_is_told_when_the_controllers_stay_silent() -> None:
    """The request ends, the asking goes on, and no second switchover begins."""

    parts = Parts()
    parts.answers = [NoAnswer("silent") for _ in range(1000)]
    switch = SwitchOver("b", parts)

    error = await refused(switch)
    second = await refused(switch)

    assert error.code == 14
    assert "holds sends until it knows" in error.remark
    assert (second.code, switch.running) == (2, True)
    assert "unhold" not in parts.steps
    await switch.close()


async def test_a_role_that_is_not_taken_ends_the_hold_at_last() -> None:
    """The administrator hears that something is wrong; without a lease this broker refuses by itself."""

    parts = Parts()
    parts.takes = False
    switch = SwitchOver("b", parts)

    error = await refused(switch)
    await asyncio.sleep(5)

    assert error.code == 14
    assert parts.steps[-1] == "unhold"
    assert not switch.running


async def test_one_switch_over_at_a_time_also_when_its_administrator_leaves() -> None:
    """The task is not ended with the request that began it."""

    parts = Parts()
    parts.gate = asyncio.Event()
    switch = SwitchOver("b", parts)
    first = asyncio.create_task(ask(switch))
    await asyncio.sleep(0.01)

    second = await refused(switch)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    parts.gate.set()
    await asyncio.sleep(1)

    assert second.code == 2
    assert parts.steps[-2:] == ["take", "unhold"]
    assert (switch.completed, switch.running) == (1, False)


async def test_only_a_master_of_this_group_hands_over() -> None:
    """A slave names the master; a wrong name and a replica that may not lead are refused."""

    parts = Parts()
    switch = SwitchOver("b", parts)

    wrong = await refused(switch, broker_name="c")
    absent = await refused(switch, to_broker_id=9)
    own = await refused(switch, to_broker_id=1)
    parts.now = RoleState(Role.SLAVE, 5, 2, 1, "127.0.0.1:23200")
    slave = await refused(switch)

    assert (wrong.code, absent.code, own.code) == (29, 29, 29)
    assert "those that are: 2, 3" in absent.remark
    assert (slave.code, "127.0.0.1:23200" in slave.remark) == (2, True)
    assert parts.steps == []


def test_the_furthest_replica_in_sync_follows() -> None:
    """Of equals the smallest id; learners and those out of sync do not count."""
    views = (view(5, 90), view(4, 80), view(3, 90), view(6, 99, in_sync=False), view(7, 99, learner=True))

    assert choose_successor(None, 1, views).broker_id == 3
    assert choose_successor(4, 1, views).broker_id == 4
    with pytest.raises(Rejected, match="no other replica"):
        choose_successor(None, 1, views[3:])


class Answers:
    """An asker with one answer."""

    def __init__(self, answer: Command | Exception) -> None:
        self.answer = answer

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Command(0, BrokerIdentityAnswer(master_epoch=6).to_ext()), True),
        (Command(0, BrokerIdentityAnswer(master_epoch=5).to_ext()), False),
        (Command(0, {}), False),
        (Command(14, {}), False),
        (ConnectionClosed("gone"), False),
    ],
)
async def test_a_broker_says_whether_it_is_master(answer: Command | Exception, expected: bool) -> None:
    """Only an answer with this epoch, or a later one, counts."""

    assert await says_master(Answers(answer), "127.0.0.1:1", 6) is expected


@pytest.mark.parametrize(("role_id", "last", "expected"), [(0, 6, True), (0, 5, False), (2, 6, False)])
async def test_a_java_successor_serves_when_it_calls_itself_0_in_the_epoch(
    role_id: int, last: int, expected: bool
) -> None:
    """It does not name the epoch in a field of its own."""

    body = EpochEntryCache("c", "b", role_id, (EpochEntry(1, 0, 9), EpochEntry(last, 9, 9)), 9).to_json()

    assert await says_master(Answers(Command(0, {}, body, flag=1)), "127.0.0.1:1", 6) is expected


async def test_a_master_that_hears_no_replica_waits_for_nothing_before_it_hands_over() -> None:
    """Its sends cannot be confirmed; it must not serve before it knows who leads. A refusal costs a pause."""

    parts = Parts()
    parts.answers = [Rejected(2012, "they are down"), NoAnswer("?"), TOLD]
    switch = SwitchOver("b", parts)

    assert not switch.relieve(2, begin=False)
    assert switch.relieve(2, begin=True)
    assert switch.relieve(2, begin=False)  # it is being tried
    await asyncio.sleep(0.01)
    assert parts.steps == ["hold", "hand over -2 5", "unhold"]
    assert switch.relieve(2, begin=True)
    assert not switch.running
    await asyncio.sleep(0.5)
    switch.relieve(2, begin=True)
    await asyncio.sleep(0.5)

    assert parts.steps[3:] == ["hold", "hand over -2 5", "hand over -2 5", "take", "unhold"]
    assert not switch.running
    assert not switch.relieve(2, begin=True)  # it is master no more
