"""Passes of checks on a real store: who is asked, what is saved, and what happens when something is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from brokerset_broker.requests.transaction_log import TransactionLog
from brokerset_broker.services import transaction_checks
from brokerset_broker.services.transaction_loading import TransactionLoading
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from brokerset_formats.properties import decode_properties
from brokerset_formats.records import decode_record
from brokerset_rig.transaction_bench import COMMIT, ROLLBACK, FakePeer, TransactionBench
from brokerset_rig.waiting import until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TransactionBench]:
    made = TransactionBench(tmp_path / "store", transaction_time_out=0, transaction_check_max=3)
    made.admission.when_durable = lambda _end, answer: answer(PutStatus.PUT_OK)
    yield made
    made.close()


def register(bench: TransactionBench, peer: FakePeer, group: str = "pg") -> FakePeer:
    bench.producers.register(group, peer, f"client-{id(peer)}", 0, 0)
    return peer


def open_halves(bench: TransactionBench) -> list[int]:
    assert bench.log.resolved is not None
    return list(bench.log.resolved.open_halves())


async def make_pass(bench: TransactionBench) -> None:
    """One pass, a second later."""
    bench.clock.advance(1)
    await bench.checks._pass()


async def test_each_pass_asks_about_what_is_open_and_another_producer_each_time(
    bench: TransactionBench,
) -> None:
    """The offsets in the question are those of the newest copy."""
    bench.lead()
    peers = [register(bench, FakePeer()) for _ in range(2)]
    half = bench.half("A")
    ended = bench.half("B")
    bench.end(ended, "B", COMMIT)
    for _ in range(2):
        await make_pass(bench)

    asked = [peer.asked[0] for peer in peers]
    assert {command.ext["msgId"] for command in asked} == {"A"}
    assert {command.ext["tranStateTableOffset"] for command in asked} == {"2", "3"}
    assert bench.checks.checks == 2
    bench.end(half, "A", COMMIT)
    assert bench.bodies() == [b"B", b"A"]


async def test_a_check_counts_only_if_a_producer_is_there(bench: TransactionBench) -> None:
    """While none is, a half is not stored again nor given up; its first producer is asked the first time."""
    bench.lead()
    bench.half("A")
    for _ in range(9):
        await make_pass(bench)
    assert bench.bodies(HALF_TOPIC) == [b"A"]
    assert open_halves(bench) == [0]

    peer = register(bench, FakePeer())
    await make_pass(bench)

    assert bench.checks.given_up == 0
    [asked] = peer.asked
    assert decode_properties(decode_record(asked.body).properties)["TRANSACTION_CHECK_TIMES"] == "1"


async def test_a_producer_that_does_not_read_is_asked_nothing_more(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_checks, "UNSENT_PAUSE_SECONDS", 0)
    bench.lead()
    deaf = register(bench, FakePeer(unsent_bytes=transaction_checks.UNSENT_BYTES_MAX))
    for key in "ABC":
        bench.half(key)
    with capture_logs() as logged:
        await make_pass(bench)
    reading = register(bench, FakePeer())
    await make_pass(bench)

    assert not deaf.asked
    assert len(reading.asked) == 3
    warnings = [each for each in logged if each["event"].startswith("no producer")]
    assert len(warnings) == 1  # not one for each of them


async def test_who_may_not_see_a_message_is_not_asked(bench: TransactionBench) -> None:
    """While only such a producer is connected, a half is neither asked about nor counted."""
    bench.lead()
    stranger = register(bench, FakePeer())
    bench.checks._may_ask = lambda channel, topic: topic == "t" and channel is not stranger
    bench.half("A")
    await make_pass(bench)
    assert not stranger.asked
    assert bench.bodies(HALF_TOPIC) == [b"A"]
    peer = register(bench, FakePeer())
    for _ in range(3):
        await make_pass(bench)
    assert not stranger.asked
    assert len(peer.asked) == 3
    assert bench.checks.given_up == 0


async def test_what_is_given_up_is_put_aside_and_counted(bench: TransactionBench) -> None:
    bench.lead()
    register(bench, FakePeer())
    bench.half("A")
    for _ in range(4):
        await make_pass(bench)

    assert bench.bodies(CHECK_MAX_TIME_TOPIC) == [b"A"]
    assert bench.checks.given_up == 1
    assert bench.log.counts.topics["t"].open == 0
    assert bench.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) == 4


async def test_many_that_are_given_up_do_not_fill_the_log(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_checks, "LOGGED_MAX", 2)
    bench.live.current = replace(bench.live.current, transaction_check_max=1)
    bench.lead()
    register(bench, FakePeer())
    for number in range(7):
        bench.half(f"K{number}")
    await make_pass(bench)
    with capture_logs() as logged:
        await make_pass(bench)

    assert bench.checks.given_up == 7
    assert [each.get("count") for each in logged if each["log_level"] == "error"] == [None, None, 5]


async def test_a_question_waits_until_its_half_is_durable(bench: TransactionBench) -> None:
    """In a DLedger the answer would find nothing; a master that cannot confirm asks nobody."""
    bench.lead()
    peer = register(bench, FakePeer())
    bench.half("A")
    waiting: list[Callable[[PutStatus], None]] = []
    bench.admission.when_durable = lambda _end, answer: waiting.append(answer)
    running = asyncio.create_task(make_pass(bench))
    await until(lambda: len(waiting) == 1)
    waiting.pop()(PutStatus.PUT_OK)  # so a pass is made
    await until(lambda: len(waiting) == 2)  # the question, and the progress
    assert not peer.asked

    waiting[0](PutStatus.FLUSH_SLAVE_TIMEOUT)
    waiting[1](PutStatus.FLUSH_SLAVE_TIMEOUT)
    await running
    assert not peer.asked
    assert bench.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) is None

    bench.admission.when_durable = lambda _end, answer: answer(PutStatus.PUT_OK)
    await make_pass(bench)
    assert len(peer.asked) == 1
    assert bench.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) == 2


async def test_a_pass_waits_when_many_questions_wait(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends wait for the same thing in the same list."""
    monkeypatch.setattr(transaction_checks, "QUESTIONS_MAX", 3)
    monkeypatch.setattr(transaction_checks, "UNSENT_PAUSE_SECONDS", 0)
    bench.lead()
    peer = register(bench, FakePeer())
    for number in range(8):
        bench.half(f"K{number}")
    waiting: list[Callable[[PutStatus], None]] = []
    bench.admission.when_durable = lambda _end, answer: waiting.append(answer)
    running = asyncio.create_task(make_pass(bench))
    most = 0
    await until(lambda: len(waiting) == 1)
    waiting.pop()(PutStatus.PUT_OK)  # so a pass is made
    while not running.done():
        most = max(most, len(waiting))
        for _ in range(10):
            await asyncio.sleep(0)
        for answer in waiting[:1]:
            answer(PutStatus.PUT_OK)
        del waiting[:1]
    await running

    assert most == 3
    assert len(peer.asked) == 8


async def test_the_progress_keeps_up_without_checks(bench: TransactionBench) -> None:
    """It stops at what is open, and never passes an end that no op record names."""
    bench.lead()
    halves = [bench.half(f"K{number}") for number in range(5)]
    for number in (0, 1, 3):
        bench.end(halves[number], f"K{number}", COMMIT)
    await bench.checks._keep_up()

    assert bench.bodies(OP_HALF_TOPIC) == [b"0,1,3,"]
    saved = [bench.offsets.query(TRANSACTION_GROUP, topic, 0) for topic in (HALF_TOPIC, OP_HALF_TOPIC)]
    assert saved == [2, 0]

    for number in (2, 4):
        bench.end(halves[number], f"K{number}", ROLLBACK)
    await bench.checks._keep_up()
    saved = [bench.offsets.query(TRANSACTION_GROUP, topic, 0) for topic in (HALF_TOPIC, OP_HALF_TOPIC)]
    assert saved == [5, 2]


async def test_nothing_is_given_up_while_nobody_can_be_asked(bench: TransactionBench) -> None:
    """What is stored now is not safe, for longer than all checks take: these are no checks without answer."""
    bench.lead()
    peer = register(bench, FakePeer())
    half = bench.half("A")
    safe = bench.admission.when_durable
    bench.admission.when_durable = lambda _end, answer: answer(PutStatus.FLUSH_SLAVE_TIMEOUT)
    for _ in range(10):
        await make_pass(bench)
    assert bench.bodies(HALF_TOPIC) == [b"A"]

    bench.admission.when_durable = safe
    await make_pass(bench)

    assert len(peer.asked) == 1
    bench.end(half, "A", COMMIT)
    assert [answer.code for answer in bench.peer.answers] == [0]


async def test_a_pass_ends_where_what_is_stored_is_not_safe_any_more(bench: TransactionBench) -> None:
    """The others are not checked in vain; the next pass goes on with them."""
    bench.lead()
    peer = register(bench, FakePeer())
    for key in "ABC":
        bench.half(key)
    safe = bench.admission.when_durable
    answers = [PutStatus.PUT_OK, PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT]
    bench.admission.when_durable = lambda _end, answer: answer(answers.pop(0))
    await make_pass(bench)
    assert len(bench.bodies(HALF_TOPIC)) == 3 + 2

    bench.admission.when_durable = safe
    await make_pass(bench)

    assert {command.ext["msgId"] for command in peer.asked} == {"A", "B", "C"}


async def test_an_open_transaction_shows_as_a_lag_of_the_group(bench: TransactionBench) -> None:
    """From the first one on; a broker that never had one has no progress, as with Java."""
    bench.lead()
    await bench.checks._keep_up()
    assert bench.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) is None

    half = bench.half("A")
    await bench.checks._keep_up()
    assert bench.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) == 0

    bench.end(half, "A", ROLLBACK)
    await bench.checks._keep_up()
    assert bench.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) == 1


async def test_a_pass_ends_where_the_store_takes_nothing_and_goes_on_later(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.lead()
    peer = register(bench, FakePeer())
    bench.half("A")

    def full(_self: TransactionLog, _message: Any) -> Any:
        raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(TransactionLog, "append", full)
        await make_pass(bench)
    assert not peer.asked

    await make_pass(bench)
    assert len(peer.asked) == 1


async def test_the_role_starts_reading_and_its_end_leaves_nothing(bench: TransactionBench) -> None:
    bench.store.start()
    bench.half("A")
    bench.checks.start()
    await until(lambda: bench.log.resolved is not None)
    await bench.checks.drain()
    bench.checks.stop()
    bench.checks.stop()

    assert bench.log.resolved is None
    bench.checks.start()
    await until(lambda: bench.log.resolved is not None)
    assert open_halves(bench) == [0]
    bench.checks.stop()


async def test_a_store_that_cannot_be_read_is_tried_again(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is ended before it works, and halves are taken meanwhile."""
    monkeypatch.setattr(transaction_checks, "RETRY_SECONDS", 0)
    failures = [OSError("the disk fails")]
    steps = TransactionLoading.steps

    def failing(self: TransactionLoading) -> Any:
        if failures:
            raise failures.pop()
        return steps(self)

    monkeypatch.setattr(TransactionLoading, "steps", failing)
    bench.store.start()
    bench.checks.start()
    bench.half("A")
    await until(lambda: bench.log.resolved is not None)

    assert open_halves(bench) == [0]
    bench.checks.stop()


async def test_the_file_of_metrics_is_written_when_something_changed(bench: TransactionBench) -> None:
    bench.lead()
    bench.half("A")
    await bench.checks.persist()
    first = bench.checks.metrics_path.read_bytes()
    bench.checks.metrics_path.unlink()
    await bench.checks.persist()

    assert b'"count":1' in first
    assert not bench.checks.metrics_path.exists()
