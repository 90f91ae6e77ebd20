"""How a change of role is carried out, and what replication asks of the membership."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from brokerset_broker.member.core import Step
from brokerset_broker.member.group_link import ProposalEnd
from brokerset_broker.member.ha.links import LinkClosed
from brokerset_broker.member.membership.diagnosis import ProblemKind
from brokerset_broker.member.refused_mastership import CANNOT_LEAD_AGE_MS, PAUSE_SECONDS_MIN
from brokerset_broker.member.role import Role, RoleState
from brokerset_broker.member.shell import StepFailed
from brokerset_protocol.bodies.replicas import EpochEntry, EpochEntryCache, SyncStateSet
from brokerset_protocol.commands import Command
from brokerset_protocol.headers import controller as headers
from brokerset_rig.membership_bench import C0, Broker, LoopClock, World, running

pytestmark = pytest.mark.virtual


class Switcher:
    """Notes which changes of role are carried out; each can be held up, or fail, at its first step."""

    def __init__(self) -> None:
        self.asked: list[tuple[RoleState, RoleState]] = []
        self.fails = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = 0

    async def __call__(self, step: Step, before: RoleState, after: RoleState) -> None:
        again = bool(self.asked) and self.asked[-1][1] is after
        if step is not Step.STOP_FOLLOWING and (step is not Step.FOLLOW or again):
            return
        self.asked.append((before, after))
        self.under_way += 1
        assert self.under_way == 1, "one after the other"
        try:
            await self.gate.wait()
            if self.fails:
                self.fails -= 1
                raise StepFailed("it cannot be done")
        finally:
            self.under_way -= 1


async def test_a_role_is_taken_when_the_switch_says_so(tmp_path: Path) -> None:
    """Until then the old one is shown, heartbeats go on, and a newer epoch waits its turn."""

    world, switch = World(), Switcher()
    world.master, world.epoch = 9, 1
    broker = Broker(world, tmp_path, switch=switch)
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.SLAVE)
        switch.gate.clear()
        broker.notice(world.notice(1, 2, 2))
        await broker.until(lambda: len(switch.asked) == 2)
        beats = len(world.beats[C0])
        await asyncio.sleep(5)

        assert broker.member.role is Role.SLAVE
        assert broker.epoch_cache()[0].master_epoch is None
        assert len(world.beats[C0]) - beats >= 9
        broker.notice(world.notice(9, 3, 3))
        await asyncio.sleep(1)
        assert len(switch.asked) == 2
        switch.gate.set()
        await broker.until(lambda: broker.member.now.epoch == 3)
        assert [after.role for _, after in switch.asked] == [Role.SLAVE, Role.MASTER, Role.SLAVE]
        assert [change.role for change in broker.changes] == [Role.SLAVE, Role.MASTER, Role.SLAVE]


async def test_a_switch_that_fails_leaves_no_role_and_is_tried_again(tmp_path: Path) -> None:
    """At the next poll, and the reason is shown until then."""

    world, switch = World(), Switcher()
    world.master, world.epoch = 9, 1
    broker = Broker(world, tmp_path, switch=switch, sync_broker_metadata_period=1_000)
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.SLAVE)
        switch.fails = 1
        broker.notice(world.notice(1, 2, 2))
        await broker.until(lambda: broker.member.role is Role.NONE)
        problem = broker.member.problem

        assert problem is not None
        assert problem.kind is ProblemKind.SWITCH
        assert "it cannot be done" in problem.text + problem.detail
        assert broker.changes[-1] == RoleState(epoch=2, set_epoch=2)
        await broker.until(lambda: broker.member.role is Role.MASTER)
        assert broker.member.problem is None
        assert switch.asked[-1][0] == RoleState(epoch=2, set_epoch=2)


async def test_another_set_in_the_same_epoch_is_news_and_no_switch(tmp_path: Path) -> None:
    """By notice and by poll; replication takes it over."""

    world, switch = World(), Switcher()
    broker = Broker(world, tmp_path, switch=switch, sync_broker_metadata_period=1_000)
    news = broker.news
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.MASTER)
        broker.notice(world.notice(1, 1, 5))
        await broker.until(lambda: bool(news))
        world.set_epoch = 7
        await broker.until(lambda: len(news) == 2)

        assert [change.set_epoch for change in news] == [5, 7]
        assert len(switch.asked) == 1
        assert broker.member.now.set_epoch == 7
        broker.notice(world.notice(1, 1, 7))
        await asyncio.sleep(3)
        assert len(news) == 2


async def test_a_slave_follows_its_master_to_another_address(tmp_path: Path) -> None:
    """That is a switch: another connection is made."""

    world, switch = World(), Switcher()
    world.master, world.epoch = 9, 1
    broker = Broker(world, tmp_path, switch=switch)
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.SLAVE)
        header = headers.NotifyBrokerRoleChanged(
            master_address="10.0.1.9:10911", master_epoch=1, sync_state_set_epoch=2, master_broker_id=9
        )
        body = SyncStateSet(frozenset({9}), 2).to_json()
        broker.notice(Command(1008, header.to_ext(), body))
        await broker.until(lambda: len(switch.asked) == 2)

        assert switch.asked[1][1].master_address == "10.0.1.9:10911"


async def test_who_is_overtaken_leaves_its_role_by_a_switch(tmp_path: Path) -> None:
    """Replication and services end in the same order as ever."""

    world, switch = World(), Switcher()
    broker = Broker(world, tmp_path, switch=switch)
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.MASTER)
        world.nonce = "another process"
        await broker.until(lambda: broker.member.role is Role.NONE)

        assert [after.role for _, after in switch.asked] == [Role.MASTER, Role.NONE]


async def test_an_accepted_set_is_known_at_once(tmp_path: Path) -> None:
    """The request names master, epoch and the set that it is based on; the poll brings no news of it."""

    world = World()
    broker = Broker(world, tmp_path, sync_broker_metadata_period=1_000)
    news = broker.news
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.MASTER)

        made = await broker.member.propose(frozenset({1, 2}), 1, 1, {2: "n2"})

        assert (made.end, made.sync_state_set, made.set_epoch) == (
            ProposalEnd.ACCEPTED,
            frozenset({1, 2}),
            2,
        )
        header, body = world.sets[0]
        assert (header.broker_name, header.master_broker_id, header.master_epoch) == ("b", 1, 1)
        assert header.member_nonces == "2:n2"
        assert body == SyncStateSet(frozenset({1, 2}), 1)
        assert broker.member.now.set_epoch == 2
        await asyncio.sleep(3)
        assert news == []


async def test_a_refused_set_and_one_without_answer_are_told_apart(tmp_path: Path) -> None:
    """After both the controllers are asked at once what is in force."""

    world = World()
    broker = Broker(world, tmp_path)
    news = broker.news
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.MASTER)
        world.set_epoch = 4

        refused = await broker.member.propose(frozenset({1, 2}), 1, 1, {})
        await broker.until(lambda: bool(news), 0.5)

        assert refused.end is ProposalEnd.REFUSED
        assert "code 2002: another set is in force" in refused.remark
        assert news[0].set_epoch == 4
        world.lose.append((1001, "reply"))
        unknown = await broker.member.propose(frozenset({1, 2}), 4, 1, {})
        assert unknown.end is ProposalEnd.UNKNOWN
        world.refuse[1001] = (2007, "does not lead")
        assert (await broker.member.propose(frozenset({1}), 5, 1, {})).end is ProposalEnd.UNKNOWN


SLAVE = RoleState(Role.SLAVE, 3, 5, 2, "m:10911", frozenset({2}), "nonce-2")
OURS = headers.BrokerIdentityAnswer(
    replica_id=2, nonce="nonce-2", ha_address="m:9000", master_epoch=3, registration="registered, master"
)


def cache(broker_id: int = 0, *, name: str = "b", cluster: str = "c") -> EpochEntryCache:
    return EpochEntryCache(cluster, name, broker_id, (EpochEntry(3, 0, 2**63 - 1),), 100)


def find(
    tmp_path: Path, reply: Command | None, change: RoleState = SLAVE, java: str | None = None
) -> tuple[str, bool] | str:
    """What is found when the master answers so; None: nobody listens."""

    async def scenario() -> tuple[str, bool] | str:
        world = World()
        if reply is not None:
            world.elsewhere["m:10911"] = lambda _: reply
        else:
            world.elsewhere["m:10911"] = refuse_connection
        broker = Broker(world, tmp_path)
        broker.java = java
        try:
            found = await broker.member.find_master(change)
        except LinkClosed as closed:
            return str(closed)
        return found.ha_address, found.is_ours

    return asyncio.run(scenario())


def refuse_connection(_: Command) -> Command:
    from brokerset_runtime.remoting import ConnectionClosed

    raise ConnectionClosed("nobody listens")


def answer(identity: headers.BrokerIdentityAnswer | None, body: EpochEntryCache | None = None) -> Command:
    ext = {} if identity is None else identity.to_ext()
    return Command(0, ext, (body or cache()).to_json())


def test_our_master_says_where_slaves_connect(tmp_path: Path) -> None:
    """In its answer to 1007; without the field it is the port above."""
    assert find(tmp_path, answer(OURS)) == ("m:9000", True)
    assert find(tmp_path, answer(replace(OURS, ha_address=None))) == ("m:10912", True)
    assert find(tmp_path, answer(OURS), replace(SLAVE, master_nonce=None)) == ("m:9000", True)


def test_a_java_master_is_found_by_name_servers_or_by_its_port(tmp_path: Path) -> None:
    """It sends none of our fields."""
    assert find(tmp_path, answer(None), java="m:7000") == ("m:7000", False)
    assert find(tmp_path, answer(None)) == ("m:10912", False)
    assert "not become master yet" in find(tmp_path, answer(None, cache(2)))


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (None, "does not answer: nobody listens"),
        (Command(1, {}, remark="broken"), "answers code 1 when asked who it is: broken"),
        (Command(0, {}, b"{"), "cannot be read"),
        (answer(OURS, cache(name="x")), "of the group x in the cluster c"),
        (answer(OURS, cache(cluster="x")), "of the group b in the cluster x"),
        (answer(replace(OURS, replica_id=7)), "is replica 7, the master is replica 2"),
        (answer(replace(OURS, nonce="old")), "another process than the master"),
        (answer(replace(OURS, master_epoch=None)), "has not become master yet"),
        (answer(replace(OURS, master_epoch=4)), "is master in epoch 4"),
    ],
)
def test_who_is_not_the_master_is_not_followed(tmp_path: Path, reply: Command | None, text: str) -> None:
    """The reason is said, and the caller tries again."""
    found = find(tmp_path, reply)

    assert isinstance(found, str)
    assert text in found


def test_without_a_master_nobody_is_asked(tmp_path: Path) -> None:
    """A slave that knows an epoch, but no master in it."""
    nobody = replace(SLAVE, master_id=None, master_address=None)

    assert find(tmp_path, None, nobody) == "the controllers name no master"


async def test_a_new_problem_is_told_once_and_its_end_too(tmp_path: Path) -> None:
    """What clients are told while nothing is served follows it."""

    world, seen = World(), list[ProblemKind | None]()
    broker = Broker(world, tmp_path)

    def note(reason: ProblemKind | None) -> None:
        if reason is not (seen[-1] if seen else None):
            seen.append(reason)

    broker.on_circumstances = note
    world.refuse[1003] = (2100, "a copy")
    async with running(broker):
        await broker.until(lambda: bool(seen))
        await asyncio.sleep(3)
        assert seen == [ProblemKind.CONFLICT]
        del world.refuse[1003]
        await broker.until(lambda: broker.member.role is Role.MASTER)

        assert seen == [ProblemKind.CONFLICT, None]


async def test_what_keeps_a_slave_from_following_is_shown(tmp_path: Path) -> None:
    """It is a member and has a role; still something must be done."""

    world = World()
    world.master, world.epoch = 9, 1
    broker = Broker(world, tmp_path)
    broker.trouble = ("the logs have nothing in common", "replace it")
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.SLAVE)
        found = broker.member.diagnosis()

        assert (found.ready, found.problem, found.advice) == (
            True, "the logs have nothing in common", "replace it",
        )  # fmt: skip
        assert broker.member.problem is not None
        assert broker.member.problem.kind is ProblemKind.REPLICATION


async def test_who_cannot_lead_says_so_and_gives_the_set_back(tmp_path: Path) -> None:
    """After a second failure it proposes the set of before its election and tells controllers that its log is
    stuck; what it proposed goes along with each further try; as a slave it is let be after a while."""

    world, switch = World(), Switcher()
    world.master, world.epoch, world.set_epoch = 9, 1, 4
    world.members = frozenset((1, 3, 9))
    broker = Broker(world, tmp_path, switch=switch, clock=LoopClock(), sync_broker_metadata_period=1_000)
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.SLAVE)
        switch.fails = 1_000
        world.refuse_sets = [frozenset((1, 3, 9))]  # 9 is dead
        world.members = frozenset((1,))
        broker.notice(world.notice(1, 2, 5))
        await broker.until(lambda: bool(world.beats[C0][-1].append_age_ms))
        tries = [after for _, after in switch.asked if after.role is Role.MASTER]

        assert len(tries) == 2
        assert [made.sync_state_set for _, made in world.sets] == [{1, 3, 9}, {1, 3}]
        assert [header.master_epoch for header, _ in world.sets] == [2, 2]
        assert tries[-1].given_back == ()
        await broker.until(lambda: len(switch.asked) >= 4)
        given = switch.asked[-1][1].given_back
        assert [each.sync_state_set for each in given] == [{1, 3, 9}, {1, 3}]
        assert broker.member.problem is not None
        assert broker.member.problem.kind is ProblemKind.SWITCH

        switch.fails = 0
        world.members = frozenset((3,))
        broker.notice(world.notice(3, 3, 7))
        await broker.until(lambda: broker.member.role is Role.SLAVE)
        assert world.beats[C0][-1].append_age_ms
        await asyncio.sleep(PAUSE_SECONDS_MIN + 1)
        assert world.beats[C0][-1].append_age_ms is None
        broker.notice(world.notice(1, 4, 8))
        await broker.until(lambda: broker.member.role is Role.MASTER)


async def test_who_has_taken_the_role_in_an_epoch_gives_no_set_back_in_it(tmp_path: Path) -> None:
    """Since then replicas may have followed it, and what is confirmed may be lacking there."""

    world, tries = World(), list[RoleState]()
    world.master, world.epoch, world.set_epoch = 9, 1, 4
    world.members = frozenset((1, 3, 9))

    async def fails_late(step: Step, before: RoleState, after: RoleState) -> None:
        if step is Step.WRITE_SNAPSHOT:
            tries.append(after)
            raise StepFailed("the disk is full")

    broker = Broker(world, tmp_path, switch=fails_late, clock=LoopClock(), sync_broker_metadata_period=1_000)
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.SLAVE)
        world.members = frozenset((1,))
        broker.notice(world.notice(1, 2, 5))
        await broker.until(lambda: bool(world.beats[C0][-1].append_age_ms))
        await asyncio.sleep(5)

        assert len(tries) > 2
        assert world.sets == []


async def test_one_failure_costs_no_election(tmp_path: Path) -> None:
    """It is tried again half a second later, and nobody is told."""

    world, switch = World(), Switcher()
    world.master, world.epoch = 9, 1
    broker = Broker(world, tmp_path, switch=switch, clock=LoopClock(), sync_broker_metadata_period=5_000)
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.SLAVE)
        switch.fails = 1
        broker.notice(world.notice(1, 2, 2))
        await broker.until(lambda: broker.member.role is Role.NONE)
        began = asyncio.get_running_loop().time()
        await broker.until(lambda: broker.member.role is Role.MASTER)

        assert asyncio.get_running_loop().time() - began < 1.0
        assert all(beat.append_age_ms is None for beat in world.beats[C0])
        assert world.sets == []


async def test_an_incomplete_log_is_told_and_shown(tmp_path: Path) -> None:
    """Controllers do not elect such a replica, and the problem says what it lacks; or it is accepted."""

    world = World()
    world.master, world.epoch = 9, 1
    broker = Broker(world, tmp_path, switch=Switcher())
    broker.epochs.set_incomplete("record at 16: wrong CRC")
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.SLAVE)
        await broker.until(lambda: bool(world.beats[C0]) and bool(world.beats[C0][-1].append_age_ms))
        assert world.registrations[0].append_age_ms == CANNOT_LEAD_AGE_MS
        assert broker.epoch_cache()[0].append_age_ms == CANNOT_LEAD_AGE_MS
        problem = broker.member.problem
        assert problem is not None
        assert problem.kind is ProblemKind.INCOMPLETE
        assert "wrong CRC" in problem.text
        assert broker.member.diagnosis().problem == problem.text
    accepting = Broker(world, tmp_path, seed=2, switch=Switcher(), accept_damaged_store=True)
    assert accepting.epochs.incomplete
    async with running(accepting):
        await accepting.until(lambda: accepting.member.role is Role.SLAVE)
        assert accepting.epochs.incomplete == ""
        assert accepting.member.problem is None


async def test_damage_is_shown_by_who_is_not_elected_because_of_it(tmp_path: Path) -> None:
    """The controllers say only that its log takes nothing; file and place are what people need."""

    world = World()
    world.refuse[1002] = (2012, "its log takes nothing any more")
    broker = Broker(world, tmp_path, switch=Switcher())
    broker.damage = "commitlog/0 at byte 16: wrong CRC"
    async with running(broker):
        await broker.until(lambda: bool(world.elections) or 1002 in world.asked)
        await asyncio.sleep(1)
        found = broker.member.diagnosis()

        assert not found.ready
        assert "commitlog/0 at byte 16: wrong CRC" in (found.problem or "")
        assert "acceptDamagedStore" in (found.advice or "")


async def test_who_asks_is_told_though_nothing_has_changed(tmp_path: Path) -> None:
    """A slave that needs the controllers' word of now gets it."""

    world = World()
    world.master, world.epoch = 9, 1
    broker = Broker(world, tmp_path, switch=Switcher(), sync_broker_metadata_period=5_000)
    news = broker.news
    async with running(broker):
        await broker.until(lambda: broker.member.role is Role.SLAVE)
        await asyncio.sleep(12)
        assert news == []
        broker.member.ask_soon()
        await broker.until(lambda: len(news) == 1)
        await asyncio.sleep(12)
        assert len(news) == 1
