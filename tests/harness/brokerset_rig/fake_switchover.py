"""A Java master that is relieved by ours while a client sends, with a command that is killed at any step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.adoption_journal import Before, Journal
from brokerset_cli.takeover.broker_queries import BrokerQueries
from brokerset_cli.takeover.java_switchover import ACCEPTS, PERMISSION, Switchover
from brokerset_client.errors import AnswerTimeout, BrokerUnreachable, RequestRefused
from brokerset_protocol.bodies.replicas import EpochEntryCache

JAVA, OURS = "java:1", "ours:1"
AT_FIRST = {PERMISSION: "6", ACCEPTS: "0"}
CALLS_UNTIL_HEARD = 40
"""Calls until the relieved Java master learns that it is one no more."""


class Killed(BaseException):
    """`kill -9`: nothing of the command runs after it."""


@dataclass
class World(BrokerQueries):
    """A Java master, a replica of ours one call behind it, and a client that sends before each call."""

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

    deciding_ms: int = 0
    """How long the controllers take to decide an election; whoever has asked waits for 5 s."""

    comes_ms: int = 0
    """When an election comes that was asked for; 0 when none is under way."""

    rash: int = 0
    """How often a Java master was opened while an election could still come."""

    halted_ms: int = 0
    """How long the command stands still once sends are stopped."""

    forgets: bool = False
    """Java's broker starts again once it is closed, and has its settings of before."""

    stores_for: int = 0
    """Calls until the last send that was let in before it was closed is stored and acknowledged."""

    tells_clock: bool = True
    late: dict[str, str] = field(default_factory=dict)
    """Settings of a change that was given up, and comes right behind the next one."""

    def step(self) -> None:
        """Where the command may be killed."""
        if 0 <= self.kill_at <= self.calls:
            raise Killed
        self.calls += 1

    def tick(self) -> None:
        """A call reaches the cluster: a moment passes, in which a client sends and the replica copies."""
        self.step()
        self.now_ms += 10
        if 0 < self.comes_ms <= self.now_ms:
            self.comes_ms = 0
            self.become_ours()
        if self.heard_in and self.master_address == OURS:
            self.heard_in -= 1
            if not self.heard_in:
                self.java_leads = False
        if self.elected_in:
            self.elected_in -= 1
            if not self.elected_in:
                self.become_ours()
        before = self.java_log
        if self.java_leads and not self.is_closed:
            self.take()
        elif self.java_leads and self.stores_for:
            self.stores_for -= 1
            if not self.stores_for:
                self.take()
        if self.master_address == JAVA:
            self.our_log = min(before, self.our_log + self.lag)

    @property
    def is_closed(self) -> bool:
        return int(self.settings_now[ACCEPTS]) > self.now_ms

    def take(self) -> None:
        """Java's broker acknowledges a message."""
        self.taken += 1
        if self.master_address == JAVA:
            self.java_log += 5
        else:
            self.lost += 1  # by a master that is none any more

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
        self.settings_now |= {**changes, **self.late}
        self.late = {}
        self.rash += self.comes_ms > 0 and self.java_leads and not self.is_closed

    async def measurements(self, address: str) -> dict[str, str]:
        self.check(address)
        seconds = self.now_ms // 1000
        text = f"[ 0 days, 0 hours, {seconds // 60} minutes, {seconds % 60} seconds ]"
        storing = str(10 * self.stores_for if self.is_closed else 0)
        found = {"bootTimestamp": "0", "sendThreadPoolQueueSize": "0", "pageCacheLockTimeMills": storing}
        return {**found, "runtime": text} if self.tells_clock else found

    async def epochs(self, address: str) -> EpochEntryCache:
        self.check(address)
        leads = self.java_leads if address == JAVA else self.master_address == OURS
        return EpochEntryCache("c", "g", 0 if leads else 1, (), 0)

    async def log_end(self, address: str) -> int:
        self.check(address)
        return self.java_log if address == JAVA else self.our_log

    async def refuses_sends(self, address: str) -> bool:
        self.check(address)
        return self.is_closed

    async def elect(self, group: str, broker_id: int) -> None:
        self.tick()
        if self.refusal:
            raise RequestRefused(self.refusal, "no", "controller")
        if not self.elects:
            raise BrokerUnreachable("controller", "it is silent")
        if self.elected_in:
            raise AnswerTimeout("no answer")
        if self.deciding_ms:
            self.comes_ms, given_up_ms = self.now_ms + self.deciding_ms, self.now_ms + 5_000
            while self.master_address != OURS:
                if self.now_ms >= given_up_ms:
                    raise AnswerTimeout("no answer")
                await self.sleep(0.05)
            return
        self.become_ours()

    def become_ours(self) -> None:
        self.lost += self.java_log - self.our_log
        self.master_address, self.heard_in = OURS, CALLS_UNTIL_HEARD

    async def master(self, group: str) -> str | None:
        self.tick()
        return self.master_address

    async def missing(self, one: str, other: str) -> list[str]:
        self.tick()
        if self.is_closed:
            self.now_ms += self.halted_ms
            if self.forgets:
                self.settings_now = dict(AT_FIRST)
        return []

    def clock(self) -> float:
        return self.now_ms / 1000

    async def sleep(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)
        self.tick()


@dataclass
class Remembered(Journal):
    """What outlives the command, which may be killed right before and right after each change of it."""

    world: World
    entries: dict[str, Before] = field(default_factory=dict)

    @property
    def changed(self) -> tuple[Before, ...]:
        return tuple(self.entries.values())

    def remember(self, before: Before) -> None:
        self.world.step()
        self.entries.setdefault(before.address, before)
        self.world.step()

    def elects(self, address: str, elected_ms: int) -> None:
        self.world.step()
        self.entries[address] = replace(self.entries[address], elected_ms=elected_ms)
        self.world.step()

    def forget(self, address: str) -> None:
        self.world.step()
        del self.entries[address]
        self.world.step()


def switchover(world: World, journal: Journal) -> Switchover:
    return Switchover(
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
    for _ in range(2 * CALLS_UNTIL_HEARD):
        world.tick()


def go(world: World, journal: Journal) -> float:
    return asyncio.run(switchover(world, journal).to_ours(GROUP, replica(JAVA, 1), replica(OURS, 2)))


def calls_of_one(folder: Path) -> int:
    world = World()
    go(world, journal_in(folder))
    return world.calls


def begin_again(world: World, journal: Journal) -> None:
    """What the next call does: it puts back first, and hands over if that is not done."""
    asyncio.run(switchover(world, journal).put_back_all())
    if world.master_address == JAVA:
        go(world, journal)


def kill(world: World, journal: Journal, kill_at: int, call: Callable[[World, Journal], object]) -> bool:
    """Let a call be killed at a step, counted from now on; whether it was, before it came to its end."""
    world.kill_at = world.calls + kill_at
    try:
        call(world, journal)
    except Killed:
        return True
    except AnswerTimeout:
        pass
    finally:
        world.kill_at = -1
    return False


def pass_time(world: World, milliseconds: int) -> None:
    until = world.now_ms + milliseconds
    while world.now_ms < until:
        world.now_ms += 40
        world.tick()
