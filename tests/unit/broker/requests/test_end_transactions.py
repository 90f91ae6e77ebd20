"""Ends of transactions on a real store: what is stored, what is answered, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.requests import transaction_log
from brokerset_broker.requests.transaction_log import TransactionLog
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.tables.offsets import BROKER
from brokerset_broker.transactions.resolved import Resolved
from brokerset_formats.config import TopicConfig
from brokerset_formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_rig.transaction_bench import COMMIT, ROLLBACK, UNKNOWN, TransactionBench
from brokerset_runtime.remoting import DEFERRED


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TransactionBench]:
    made = TransactionBench(tmp_path / "store")
    yield made
    made.close()


async def turn() -> None:
    """The end of this turn of the loop, and of what it has scheduled."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_commit_is_answered_when_it_is_durable_and_a_rollback_when_its_op_is(
    bench: TransactionBench,
) -> None:
    """What was not confirmed is not answered; the answer says what became of the record."""
    bench.lead()
    waiting: list[tuple[int, Callable[[PutStatus], None]]] = []
    bench.admission.when_durable = lambda end, answer: waiting.append((end, answer))
    committed, dropped = bench.half("A"), bench.half("B")

    assert bench.end(committed, "A", COMMIT) is DEFERRED
    assert bench.end(dropped, "B", ROLLBACK) is DEFERRED
    assert [end for end, _ in waiting] == [bench.store.max_offset]
    await turn()
    assert [end for end, _ in waiting][1:] == [bench.store.max_offset]
    assert bench.bodies(OP_HALF_TOPIC) == [b"0,1,"]
    assert not bench.peer.answers

    waiting[0][1](PutStatus.PUT_OK)
    waiting[1][1](PutStatus.FLUSH_SLAVE_TIMEOUT)
    assert [answer.code for answer in bench.peer.answers] == [0, ResponseCode.FLUSH_SLAVE_TIMEOUT]


async def test_ends_of_the_standard_client_get_no_answer(bench: TransactionBench) -> None:
    bench.lead()
    halves = {key: bench.half(key) for key in "ABC"}

    kinds = {"A": COMMIT, "B": ROLLBACK, "C": UNKNOWN}
    replies = [bench.end(halves[key], key, kind, one_way=True) for key, kind in kinds.items()]
    await turn()

    assert replies == [None, None, None]
    assert not bench.peer.answers
    assert bench.bodies() == [b"A"]


async def test_a_slave_answers_as_java_does(bench: TransactionBench) -> None:
    bench.lead()
    half = bench.half("A")
    bench.admission.refuse_writes()

    reply = bench.end(half, "A", COMMIT)

    assert (reply.code, reply.remark) == (ResponseCode.SLAVE_NOT_AVAILABLE, None)
    assert bench.bodies() == []


async def test_ends_wait_until_all_that_is_open_is_known(bench: TransactionBench) -> None:
    """They are served from scratch then, and when the mastership has ended before."""
    bench.store.start()
    bench.log.begin_loading()
    half = bench.half("A")
    assert bench.end(half, "A", COMMIT) is DEFERRED
    assert not bench.peer.deferred

    resolved = Resolved()
    bench.log.loaded(resolved, {})
    assert [command.code for command in bench.peer.deferred] == [37]
    assert resolved.half_end == 1
    assert bench.log.counts.topics["t"].open == 1

    bench.log.stop()
    bench.log.begin_loading()
    assert bench.end(half, "A", COMMIT) is DEFERRED
    bench.log.stop()
    assert len(bench.peer.deferred) == 2
    with pytest.raises(Rejected):
        bench.end(half, "A", COMMIT)


async def test_what_waits_is_bounded(bench: TransactionBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One end or half too many is refused, to be tried again."""
    monkeypatch.setattr(transaction_log, "WAITING_ENDS_MAX", 2)
    monkeypatch.setattr(transaction_log, "KEPT_HALVES_MAX", 2)
    bench.store.start()
    bench.log.begin_loading()
    half = bench.half("A")
    bench.half("B")
    with pytest.raises(Rejected) as too_many_halves:
        bench.half("C")
    for _ in range(2):
        bench.end(half, "A", COMMIT)
    with pytest.raises(Rejected) as too_many_ends:
        bench.end(half, "A", COMMIT)

    codes = [too_many_halves.value.code, too_many_ends.value.code]
    assert codes == [ResponseCode.SYSTEM_BUSY] * 2


async def test_too_many_open_transactions_are_refused(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.lead()
    monkeypatch.setattr("brokerset_broker.transactions.resolved.OPEN_MAX", 2)
    first = bench.half("A")
    bench.half("B")
    with pytest.raises(Rejected) as refused:
        bench.half("C")
    bench.end(first, "A", ROLLBACK)
    await turn()

    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert bench.half("C").queue_offset == 2


def refusing(method: Callable[..., Any], topic: str) -> Callable[..., Any]:
    @wraps(method)
    def append(self: TransactionLog, message: Any) -> Any:
        if message.topic == topic:
            raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")
        return method(self, message)

    return append


async def test_a_rollback_that_the_disk_did_not_take_is_no_success_and_is_written_later(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.lead()
    half = bench.half("A")
    with monkeypatch.context() as full:
        full.setattr(TransactionLog, "append", refusing(TransactionLog.append, OP_HALF_TOPIC))
        assert bench.end(half, "A", ROLLBACK) is DEFERRED
        await turn()
    assert [answer.code for answer in bench.peer.answers] == [ResponseCode.SYSTEM_ERROR]
    assert bench.bodies(OP_HALF_TOPIC) == []

    bench.log.write_ops()

    assert bench.bodies(OP_HALF_TOPIC) == [b"0,"]


async def test_a_commit_that_the_disk_did_not_take_can_come_again(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.lead()
    half = bench.half("A")
    with monkeypatch.context() as full:
        full.setattr(TransactionLog, "append", refusing(TransactionLog.append, "t"))
        with pytest.raises(Rejected) as refused:
            bench.end(half, "A", COMMIT)
    again = bench.end(half, "A", COMMIT)

    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert again.code == 0
    assert bench.bodies() == [b"A"]


async def test_a_topic_that_became_an_ordered_subject_gets_no_commit(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.lead()
    half = bench.half("A")
    monkeypatch.setattr(bench.ordered, "is_subject", lambda topic: topic == "t")
    with pytest.raises(Rejected, match="ordered subject"):
        bench.end(half, "A", COMMIT)

    assert bench.bodies() == []


async def test_resuming_puts_a_given_up_half_back_with_its_counter_at_zero(bench: TransactionBench) -> None:
    bench.lead()
    half = bench.half("A", TRANSACTION_CHECK_TIMES="15")
    resolved = bench.log.resolved
    assert resolved is not None
    resolved.given_up(0)
    bench.log.counts.given_up("t")
    command = Command(323, {"msgId": "7F00000100002A9F" + f"{half.offset:016X}"})

    reply: Any = bench.processor.resume(bench.peer, command)  # type: ignore[arg-type]  # a fake one

    assert reply.code == 0
    assert bench.bodies(HALF_TOPIC) == [b"A", b"A"]
    unit = bench.store.unit(HALF_TOPIC, 0, 1)
    assert unit is not None
    record = bench.log.read(unit[0])
    assert record is not None
    assert b"TRANSACTION_CHECK_TIMES\x010\x02" in record.properties
    assert bench.log.counts.topics["t"].open == 1


def resume(bench: TransactionBench, offset: int) -> Any:
    """The code of the answer."""
    command = Command(323, {"msgId": "7F00000100002A9F" + f"{offset:016X}"})
    try:
        return bench.processor.resume(bench.peer, command).code  # type: ignore[arg-type, union-attr]
    except Rejected as rejected:
        return rejected.code


async def given_up(bench: TransactionBench) -> int:
    """Have passes give up what is open; the offset of its record."""
    bench.live.current = replace(bench.live.current, transaction_check_max=1, transaction_time_out=0)
    bench.producers.register("pg", bench.peer, "client", 0, 0)
    for _ in range(2):
        bench.clock.advance(1)
        await bench.checks._pass()
    unit = bench.store.unit(CHECK_MAX_TIME_TOPIC, 0, 0)
    assert unit is not None
    return unit[0]


async def test_what_is_resumed_twice_is_one_open_transaction(bench: TransactionBench) -> None:
    bench.lead()
    bench.half("A")
    offset = await given_up(bench)

    assert [resume(bench, offset), resume(bench, offset)] == [0, 0]

    assert bench.log.counts.topics["t"].open == 1
    assert bench.log.resolved is not None
    assert len(list(bench.log.resolved.open_halves())) == 1


@pytest.mark.parametrize(("kind", "restarted"), [(COMMIT, False), (ROLLBACK, False), (COMMIT, True)], ids=str)
async def test_what_was_resumed_and_ended_is_not_resumed_again(
    bench: TransactionBench, kind: int, restarted: bool
) -> None:
    """Its record among those that were given up stays there; a second message must not come of it."""
    bench.lead()
    half = bench.half("A")
    offset = await given_up(bench)
    resume(bench, offset)
    bench.end(half, "A", kind)
    await turn()
    if restarted:
        bench = bench.reopened()
        for topic in (HALF_TOPIC, OP_HALF_TOPIC):
            bench.offsets.commit(TRANSACTION_GROUP, topic, 0, bench.store.queue_end(topic, 0), BROKER)
        bench.lead()
    before = len(bench.bodies(HALF_TOPIC))

    assert resume(bench, offset) == 1

    assert len(bench.bodies(HALF_TOPIC)) == before
    assert sum(counts.open for counts in bench.log.counts.topics.values()) == 0
    bench.close()


async def test_a_commit_finds_a_queue_of_a_topic_that_has_become_smaller(bench: TransactionBench) -> None:
    """Nobody reads a queue that the topic does not have any more."""
    bench.topics.update(TopicConfig("t", 8, 8))
    bench.lead()
    every = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "A"}
    half = bench.log.send_half(replace(bench.message("t", b"A", every), queue_id=6))
    bench.topics.update(TopicConfig("t", 4, 4))

    assert bench.end(half, "A", COMMIT).code == 0

    assert [bench.store.queue_end("t", number) for number in (2, 6)] == [1, 0]
