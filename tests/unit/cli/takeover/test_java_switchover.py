"""The switchover from a living Java master to ours, cut off after each of its calls, while a client sends."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover.adoption_journal import Before, Journal
from brokerset_cli.takeover.java_switchover import (
    ACCEPTS,
    CLOSED_MS,
    ELECT_SECONDS_MAX,
    ELECTION_SECONDS_MAX,
    PERMISSION,
    UNCLEAR_SECONDS,
)
from brokerset_client.errors import AnswerTimeout, BrokerUnreachable, RequestRefused
from brokerset_protocol.codes import ResponseCode
from brokerset_rig.fake_switchover import (
    AT_FIRST,
    GROUP,
    JAVA,
    OURS,
    Killed,
    Remembered,
    World,
    begin_again,
    calls_of_one,
    go,
    journal_in,
    kill,
    later,
    pass_time,
    replica,
    switchover,
)


@pytest.mark.parametrize(
    "world",
    [
        World(),
        World(stores_for=30),  # a send that was let in stalls on the disk, and is copied like the others
    ],
)
def test_nothing_is_lost_and_the_settings_are_as_before(tmp_path: Path, world: World) -> None:
    """A client that sends on during the switchover loses nothing, and Java's settings are put back."""
    journal = journal_in(tmp_path)

    pause = go(world, journal)
    later(world)

    assert (world.master_address, world.lost, world.settings_now) == (OURS, 0, AT_FIRST)
    assert world.taken > 0
    assert world.stores_for == 0
    assert journal.changed == ()
    assert 0 < pause < 5


@pytest.mark.parametrize(
    ("world", "error", "said"),
    [
        # It started again behind our back, and takes messages.
        (World(forgets=True), CommandFailed, "takes sends again"),
        # Nobody would know when it opens by itself.
        (World(tells_clock=False), CommandFailed, "does not tell what its clock shows"),
        (World(elects=False), BrokerUnreachable, "silent"),
        # The command was halted after it had stopped sends: Java's broker may have opened, or is about to.
        (World(halted_ms=40_000), CommandFailed, "took more than 35 s.*nobody was elected"),
        (World(halted_ms=61_000), CommandFailed, "takes sends again.*nobody was elected"),
        # Our replica stands still.
        (World(lag=0), CommandFailed, "bytes behind"),
    ],
)
def test_when_nobody_is_elected_java_stays_master_and_open(
    tmp_path: Path, world: World, error: type[Exception], said: str
) -> None:
    """Whatever stands against it: Java's broker takes messages as before, and nothing is lost."""
    journal = journal_in(tmp_path)

    with pytest.raises(error, match=said):
        go(world, journal)
    later(world)

    assert (world.master_address, world.lost, world.settings_now) == (JAVA, 0, AT_FIRST)
    assert journal.changed == ()


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
        asyncio.run(switchover(world, again).put_back_all())
        closed_after = world.settings_now[PERMISSION]
        if world.master_address == JAVA:
            go(world, again)
        later(world)

        assert closed_after == "6", kill_at
        assert (world.master_address, world.lost, world.settings_now) == (OURS, 0, AT_FIRST), kill_at
        assert again.changed == (), kill_at


@pytest.mark.parametrize("deciding_ms", [50, 4_950, 5_050, 9_980])
@pytest.mark.parametrize("gap_ms", [0, 3_000, 70_000])
def test_no_call_opens_a_java_master_while_an_election_may_come(deciding_ms: int, gap_ms: int) -> None:
    """However late the controllers decide, and at whatever step one call and the next one are killed: Java's
    broker takes messages again as a master that stays one, or when it knows that it is a slave.
    """
    first = 0
    while True:
        world = World(deciding_ms=deciding_ms, lag=100)
        journal = Remembered(world)
        if not kill(world, journal, first, go):
            break
        pass_time(world, gap_ms)
        kill(world, journal, first % 7 * 9, begin_again)
        with suppress(AnswerTimeout):
            begin_again(world, journal)
        later(world)

        assert (world.rash, world.lost) == (0, 0), first
        assert (world.master_address, world.settings_now) == (OURS, AT_FIRST), first
        assert journal.changed == (), first
        first += 1 if first < 60 else 7  # from then on it only waits

    assert first > 40


def test_the_longest_election_ends_before_java_opens_by_itself() -> None:
    """Its clock is told in whole seconds, so it may open one sooner than it was asked to."""
    assert ELECT_SECONDS_MAX + ELECTION_SECONDS_MAX + UNCLEAR_SECONDS < CLOSED_MS / 1000 - 1


def test_the_election_is_on_the_disk_before_it_is_asked_for(tmp_path: Path) -> None:
    """The next call, another process, reads that one may be under way, and when it was asked for."""
    world, journal = World(), journal_in(tmp_path)
    found: list[int] = []

    async def elect(group: str, broker_id: int) -> None:
        found.extend(each.elected_ms for each in Journal(tmp_path).changed)
        await world.elect(group, broker_id)

    way = replace(switchover(world, journal), elect=elect, wall_clock=lambda: 1_700_000_000.0)
    asyncio.run(way.to_ours(GROUP, replica(JAVA, 1), replica(OURS, 2)))

    assert found == [1_700_000_000_000]


def test_a_journal_without_elections_is_read(tmp_path: Path) -> None:
    """One that an older release has written knows of none."""
    old = {"group": "g", "address": JAVA, "settings": AT_FIRST}
    (tmp_path / "adoption.json").write_text(
        json.dumps({"groups": {"g": [1]}, "replicas": 1, "changed": [old]})
    )

    assert Journal(tmp_path).changed == (Before("g", JAVA, AT_FIRST, 0),)


def test_an_election_is_not_asked_for_without_end(tmp_path: Path) -> None:
    """Controllers that take the request and say nothing are given up, and it counts as one that may come."""
    world, journal = World(), journal_in(tmp_path)

    async def never(group: str, broker_id: int) -> None:
        await asyncio.Event().wait()

    began = world.now_ms
    way = replace(switchover(world, journal), elect=never, elect_seconds=0.01)
    with pytest.raises(CommandFailed, match="no answer to the election"):
        asyncio.run(way.to_ours(GROUP, replica(JAVA, 1), replica(OURS, 2)))

    assert world.now_ms - began > UNCLEAR_SECONDS * 1000
    assert (world.settings_now, journal.changed) == (AT_FIRST, ())


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


def test_a_broker_that_is_silent_gets_its_settings_back_later(tmp_path: Path) -> None:
    """What could not be put back stays in the journal until the broker answers."""
    world, journal = World(), journal_in(tmp_path)
    journal.remember(Before("g", JAVA, AT_FIRST))
    world.settings_now |= {PERMISSION: "4"}
    world.silent = True

    left = asyncio.run(switchover(world, journal).put_back_all())

    assert [each.address for each in left] == [JAVA]
    world.silent = False
    assert asyncio.run(switchover(world, journal).put_back_all()) == ()
    assert world.settings_now == AT_FIRST


def test_settings_are_back_when_they_are_seen(tmp_path: Path) -> None:
    """An older change that comes late closes the broker again: it stays in the journal, and the next call
    puts it right.
    """
    world, journal = World(late={PERMISSION: "4"}), journal_in(tmp_path)
    journal.remember(Before("g", JAVA, AT_FIRST))

    left = asyncio.run(switchover(world, journal).put_back_all())

    assert [each.address for each in left] == [JAVA]
    assert asyncio.run(switchover(world, journal).put_back_all()) == ()
    assert (world.settings_now, journal.changed) == (AT_FIRST, ())


def test_what_was_before_is_never_replaced_by_what_the_switchover_made(tmp_path: Path) -> None:
    """A second switchover, which finds the broker closed, does not take that for its ordinary state."""
    journal = journal_in(tmp_path)

    journal.remember(Before("g", JAVA, AT_FIRST))
    journal.remember(Before("g", JAVA, {PERMISSION: "4", ACCEPTS: "99"}))

    assert [dict(each.settings) for each in Journal(tmp_path).changed] == [AT_FIRST]


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    """A journal that cannot be read ends the command: it says what has to be put back."""
    (tmp_path / "adoption.json").write_text("{")

    with pytest.raises(CommandFailed, match="cannot be read"):
        Journal(tmp_path).read()
