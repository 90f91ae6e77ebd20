"""The hand-over from a living Java master to ours, cut off after each of its calls, while a client sends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.handover_journal import Before, Journal
from brokerset_cli.takeover.java_handover import ACCEPTS, PERMISSION, UNCLEAR_SECONDS, HandOver
from brokerset_client.errors import AnswerTimeout, BrokerUnreachable, RequestRefused
from brokerset_protocol.bodies.replicas import EpochEntryCache
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.controller import SwitchOverResponse

JAVA, OURS = "java:1", "ours:1"
AT_FIRST = {PERMISSION: "6", ACCEPTS: "0"}
LOOKS_UNTIL_HEARD = 40
"""Calls until the relieved Java master learns that it is one no more."""


class Killed(BaseException):
    """`kill -9`: nothing of the command runs after it."""


@dataclass
class World:
    """A Java master, a replica of ours one call behind it, and a client that sends before each call."""

    permission_covers: bool = True
    settings_now: dict[str, str] = field(default_factory=lambda: dict(AT_FIRST))
    java_log: int = 10
    our_log: int = 10
    master_address: str = JAVA
    java_leads: bool = True
    heard_in: int = 0
    lost: int = 0
    taken: int = 0
    calls: int = 0
    kill_at: int = -1
    now_ms: int = 1_000_000
    lag: int = 3
    silent: bool = False
    elects: bool = True
    elected_in: int = 0
    """Calls until an election comes for which the controllers gave no answer in time."""

    refusal: int = 0
    """Code with which the controllers refuse an election."""

    halted_ms: int = 0
    """How long the command stands still once sends are stopped."""

    def tick(self) -> None:
        """A call reaches the cluster: a moment passes, in which a client sends and the replica copies."""
        if 0 <= self.kill_at <= self.calls:
            raise Killed
        self.calls += 1
        self.now_ms += 10
        if self.heard_in and self.master_address == OURS:
            self.heard_in -= 1
            if not self.heard_in:
                self.java_leads = False
        if self.elected_in:
            self.elected_in -= 1
            if not self.elected_in:
                self.become_ours()
        before = self.java_log
        if self.java_leads and int(self.settings_now[ACCEPTS]) <= self.now_ms:
            self.taken += 1
            if self.master_address == JAVA:
                self.java_log += 5
            else:
                self.lost += 1  # acknowledged by a master that is none any more
        if self.master_address == JAVA:
            self.our_log = min(before, self.our_log + self.lag)

    # -- what is asked ------------------------------------------------------------------------------------

    def check(self, address: str) -> None:
        self.tick()
        if self.silent and address == JAVA:
            raise BrokerUnreachable(address, "it is silent")

    async def settings(self, address: str) -> dict[str, str]:
        self.check(address)
        return dict(self.settings_now)

    async def change(self, address: str, changes: Mapping[str, str]) -> None:
        self.check(address)
        self.settings_now |= changes

    async def figures(self, address: str) -> dict[str, str]:
        self.check(address)
        seconds = self.now_ms // 1000
        text = f"[ 0 days, 0 hours, {seconds // 60} minutes, {seconds % 60} seconds ]"
        return {"bootTimestamp": "0", "runtime": text, "sendThreadPoolQueueSize": "0"}

    async def epochs(self, address: str) -> EpochEntryCache:
        self.check(address)
        leads = self.java_leads if address == JAVA else self.master_address == OURS
        return EpochEntryCache("c", "g", 0 if leads else 1, (), 0)

    async def log_end(self, address: str) -> int:
        self.check(address)
        return self.java_log if address == JAVA else self.our_log

    async def refuses_sends(self, address: str) -> bool:
        self.check(address)
        return int(self.settings_now[ACCEPTS]) > self.now_ms

    async def switch_over(self, address: str, group: str, to: int, seconds: float) -> SwitchOverResponse:
        raise AssertionError("nobody hands over to Java here")

    async def elect(self, group: str, broker_id: int) -> None:
        self.tick()
        if self.refusal:
            raise RequestRefused(self.refusal, "no", "controller")
        if not self.elects:
            raise BrokerUnreachable("controller", "it is silent")
        if self.elected_in:
            raise AnswerTimeout("no answer")
        self.become_ours()

    def become_ours(self) -> None:
        self.lost += self.java_log - self.our_log
        self.master_address, self.heard_in = OURS, LOOKS_UNTIL_HEARD

    async def master(self, group: str) -> str | None:
        self.tick()
        return self.master_address

    async def missing(self, one: str, other: str) -> list[str]:
        self.tick()
        if int(self.settings_now[ACCEPTS]) > self.now_ms:
            self.now_ms += self.halted_ms
        return []

    def clock(self) -> float:
        return self.now_ms / 1000

    async def sleep(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)
        self.tick()


def hand_over(world: World, journal: Journal) -> HandOver:
    return HandOver(
        world, journal, world.elect, world.master, world.missing, lambda _: None, world.clock, world.sleep
    )


def replica(address: str, broker_id: int) -> Replica:
    return Replica(broker_id, address, True, True, address == OURS)


GROUP = GroupFacts("g", 1, (replica(JAVA, 1), replica(OURS, 2)))


def journal_in(folder: Path) -> Journal:
    journal = Journal(folder)
    journal.begin({"g": (1,)}, 1)
    return journal


def later(world: World) -> None:
    """Time goes by, and the client sends on."""
    for _ in range(2 * LOOKS_UNTIL_HEARD):
        world.tick()


def go(world: World, journal: Journal) -> float:
    return asyncio.run(hand_over(world, journal).to_ours(GROUP, replica(JAVA, 1), replica(OURS, 2)))


def calls_of_one(folder: Path) -> int:
    world = World()
    go(world, journal_in(folder))
    return world.calls


def test_nothing_is_lost_and_the_settings_are_as_before(tmp_path: Path) -> None:
    """A client that sends on during the hand-over loses nothing, and Java's settings are put back."""
    world, journal = World(), journal_in(tmp_path)

    pause = go(world, journal)
    later(world)

    assert (world.master_address, world.lost, world.settings_now) == (OURS, 0, AT_FIRST)
    assert world.taken > 0
    assert journal.changed == ()
    assert 0 < pause < 5


def test_a_call_that_was_killed_anywhere_is_put_right_by_the_next_one(tmp_path: Path) -> None:
    """After `kill -9` at each call the next command ends with our master, nothing lost, and all put back."""
    whole = tmp_path / "whole"
    whole.mkdir()
    count = calls_of_one(whole)
    for kill_at in range(count):
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        world, journal = World(kill_at=kill_at), journal_in(folder)
        with pytest.raises(Killed):
            go(world, journal)

        world.kill_at = -1
        again = Journal(folder)
        asyncio.run(hand_over(world, again).put_back_all())
        closed_after = world.settings_now[PERMISSION]
        if world.master_address == JAVA:
            go(world, again)
        later(world)

        assert closed_after == "6", kill_at
        assert (world.master_address, world.lost, world.settings_now) == (OURS, 0, AT_FIRST), kill_at
        assert again.changed == (), kill_at


def test_an_election_that_fails_leaves_java_master_and_open(tmp_path: Path) -> None:
    """When nobody is elected, Java's broker takes messages as before."""
    world, journal = World(elects=False), journal_in(tmp_path)

    with pytest.raises(BrokerUnreachable):
        go(world, journal)

    assert (world.master_address, world.settings_now, journal.changed) == (JAVA, AT_FIRST, ())


def test_an_election_without_an_answer_is_waited_for_before_java_is_open_again(tmp_path: Path) -> None:
    """It comes after the time-out of the request: Java's broker took nothing until it had heard of it."""
    world, journal = World(elected_in=90), journal_in(tmp_path)

    with pytest.raises(AnswerTimeout):
        go(world, journal)
    later(world)

    assert (world.master_address, world.lost, world.settings_now) == (OURS, 0, AT_FIRST)
    assert journal.changed == ()


def test_a_clear_refusal_opens_java_at_once(tmp_path: Path) -> None:
    """Nothing is under way after the controllers' own no, so nobody waits; after a 1 it is waited."""
    paused = []
    for code in (ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, ResponseCode.SYSTEM_ERROR):
        folder = tmp_path / str(int(code))
        folder.mkdir()
        world, journal = World(refusal=code), journal_in(folder)
        with pytest.raises(RequestRefused):
            go(world, journal)
        assert (world.master_address, world.settings_now, world.lost) == (JAVA, AT_FIRST, 0)
        paused.append(world.clock() - World().clock())

    assert paused[0] < 5 < UNCLEAR_SECONDS <= paused[1]


def test_nobody_is_elected_once_java_may_have_opened_by_itself(tmp_path: Path) -> None:
    """The command was halted for a minute after it had stopped sends: it gives up, and nothing is lost."""
    world, journal = World(halted_ms=61_000), journal_in(tmp_path)

    with pytest.raises(CommandFailed, match="nobody was elected"):
        go(world, journal)
    later(world)

    assert (world.master_address, world.lost, world.settings_now) == (JAVA, 0, AT_FIRST)


def test_a_replica_that_does_not_catch_up_is_not_elected(tmp_path: Path) -> None:
    """Our replica stands still: it is given up, and Java's broker takes messages as before."""
    world, journal = World(lag=0), journal_in(tmp_path)

    with pytest.raises(CommandFailed, match="bytes behind"):
        go(world, journal)

    assert (world.master_address, world.settings_now, world.lost) == (JAVA, AT_FIRST, 0)


def test_a_broker_that_is_silent_gets_its_settings_back_later(tmp_path: Path) -> None:
    """What could not be put back stays in the journal until the broker answers."""
    world, journal = World(), journal_in(tmp_path)
    journal.remember(Before("g", JAVA, AT_FIRST))
    world.settings_now |= {PERMISSION: "4"}
    world.silent = True

    left = asyncio.run(hand_over(world, journal).put_back_all())

    assert [each.address for each in left] == [JAVA]
    world.silent = False
    assert asyncio.run(hand_over(world, journal).put_back_all()) == ()
    assert world.settings_now == AT_FIRST


def test_what_was_before_is_never_replaced_by_what_the_hand_over_made(tmp_path: Path) -> None:
    """A second hand-over, which finds the broker closed, does not take that for its ordinary state."""
    journal = journal_in(tmp_path)

    journal.remember(Before("g", JAVA, AT_FIRST))
    journal.remember(Before("g", JAVA, {PERMISSION: "4", ACCEPTS: "99"}))

    assert [dict(each.settings) for each in Journal(tmp_path).changed] == [AT_FIRST]


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    """A journal that cannot be read ends the command: it says what has to be put back."""
    (tmp_path / "adoption.json").write_text("{")

    with pytest.raises(CommandFailed, match="cannot be read"):
        Journal(tmp_path).read()
