"""Transactions against the model of `transaction_world`: whatever producers do, and wherever the log ends."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.transaction_world import COMMIT, PROGRESS, ROLLBACK, TARGET, World, random_tape, run

from brokerset_broker.transactions import resolved
from brokerset_formats import transactions as formats
from brokerset_formats.names import HALF_TOPIC, OP_HALF_TOPIC
from brokerset_formats.records import Record

tapes = st.lists(st.integers(0, 2**20), min_size=1, max_size=120)


@given(tapes)
def test_each_commit_is_delivered_once_and_no_rollback_ever(tape: list[int]) -> None:
    """With producers that answer late, twice, differently or never, and logs that end at any record.

    No half is delivered before its commit, none is lost after an acknowledged one, none that was rolled back
    appears, and the progress never passes what is open. When the faults end, everything ends.
    """
    run(tape)


@given(tapes, st.integers(1, 40))
def test_a_store_of_java_is_led_on(tape: list[int], java: int) -> None:
    """Its ops come late, in batches or in the old form, or never; its commits are not stored again."""
    run(tape, java=java)


@pytest.mark.parametrize("seed", range(40))
def test_long_histories(seed: int) -> None:
    """The same with numbers that are not shrunk, so that much happens in each."""
    world = run(random_tape(seed), java=seed % 3 * 20)

    assert len(world.log) > 50


@given(tapes, st.integers(0, 40))
def test_a_replica_knows_what_a_restart_finds(tape: list[int], java: int) -> None:
    """At every end of the log: the same halves are resolved, and the same ops are to be written."""
    world = World()
    for number in tape[:java]:
        world.java(number)
        world.now += 100
    world.confirmed = len(world.log)
    world.crash(0)
    for number in tape[java:]:
        getattr(world, ("send", "end_one", "answer_one", "write_ops", "check")[number % 5])(1 + number // 5)
        world.now += 5_000
    log = world.log
    for end in range(len(log) + 1):
        world.log = log[:end]
        replica, restarted = world.replica(), world.restarted()
        halves = world.counts.get(HALF_TOPIC, 0)
        assert replica.half_progress == restarted.half_progress
        assert replica.op_progress >= restarted.op_progress
        assert [replica.state_at(each) for each in range(halves)] == [
            restarted.state_at(each) for each in range(halves)
        ]
        assert sorted(replica.ops_to_write()) == sorted(restarted.ops_to_write())


def java_finds_open(log: Sequence[Record], *, from_the_first: bool = False) -> list[int]:
    """The halves that the check of a Java master would ask about: from the progress on, without an op.

    `from_the_first`: as a slave that has never asked how far the progress is.
    """
    half, op = 0, 0
    halves: list[Record] = []
    ops: list[Record] = []
    for record in log:
        match record.topic:
            case topic if topic == HALF_TOPIC:
                halves.append(record)
            case topic if topic == OP_HALF_TOPIC and formats.is_op(record.properties):
                ops.append(record)
            case topic if topic == PROGRESS and not from_the_first:
                half, op = json.loads(record.body)
    removed = {int(text) for each in ops[op:] for text in each.body.decode().split(",") if text}
    return [each.queue_offset for each in halves[half:] if each.queue_offset not in removed]


@given(tapes)
def test_java_can_carry_on_the_store(tape: list[int]) -> None:
    """Whenever the ops of a turn are written, Java finds all that has ended, and one copy of each other
    transaction, also if the progress that it knows is an old one. Of immune ones it may find older copies."""
    world = World(check_max=1_000)
    for number in tape:
        getattr(world, ("send", "end_one", "answer_one", "end_one", "check")[number % 5])(1 + number // 5)
        world.now += 5_000
        world.write_ops()

        states = {each.queue_offset: world.resolved.state_at(each.queue_offset) for each in world.halves()}
        wanted = [each for each, state in states.items() if state is resolved.State.OPEN]
        immune = {each.queue_offset for each in world.halves() if formats.immunity_ms_of(each) is not None}
        for from_the_first in (False, True):
            found = java_finds_open(world.log, from_the_first=from_the_first)
            assert [each for each in found if each in wanted or each not in immune] == wanted


@pytest.mark.parametrize("end", range(7))
def test_a_commit_is_stored_once_wherever_the_log_ends(end: int) -> None:
    """Two commits and a rollback of one turn; the log ends after any record, and all three ask again."""
    world = World()
    first, second, third = world.send(0), world.send(0), world.send(2)
    for producer, kind in ((first, COMMIT), (second, COMMIT), (third, ROLLBACK)):
        world.end(producer, producer.places[0], kind, check=False)
    world.write_ops()
    assert [record.topic for record in world.log] == [HALF_TOPIC] * 3 + [TARGET] * 2 + [OP_HALF_TOPIC]

    for choice in (end, end + 7):  # a replica, or a restart
        world.crash(choice)
        world.write_ops()
        for producer, kind in ((first, COMMIT), (second, COMMIT), (third, ROLLBACK)):
            world.end(producer, producer.places[0], kind, check=False)
        world.write_ops()
        world.confirm(len(world.log))
        world.verify()

    world.heal()
