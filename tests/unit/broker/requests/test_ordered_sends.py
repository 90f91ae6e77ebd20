"""Sends to queues of subjects: what is stored, once, and what every refusal says."""

from __future__ import annotations

from unittest import mock

import pytest

from brokerset_broker.requests import ordered_sends
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.tables.ordered import live_producers
from brokerset_broker.tables.ordered.live_producers import PRODUCER_KEPT_MS
from brokerset_formats.batches import BatchItem, encode_batch
from brokerset_protocol.codes import ResponseCode
from brokerset_rig.ordered_broker import (
    SUBJECT,
    Brokers,
    batch,
    bodies,
    send_fields,
    send_one,
    stamped,
)


async def test_a_message_that_is_sent_again_after_a_lost_answer_is_in_the_log_once(brokers: Brokers) -> None:
    """A response lost after storing: the log contains each message once (statement 25)."""
    master = await brokers.master()
    first = await master.call(310, b"a", **send_one(sequence=0))
    again = await master.call(310, b"a", **send_one(sequence=0))

    assert (first.code, again.code) == (0, 0)
    assert again.ext["queueOffset"] == first.ext["queueOffset"] == "0"
    assert again.ext["msgId"] == first.ext["msgId"]
    assert bodies(master) == [b"a"]
    assert master.counters.duplicates == 1


async def test_a_batch_is_stored_in_its_order_and_once(brokers: Brokers) -> None:
    """A batch that comes again, whole or in part, leaves each message in the log once, in order
    (statements 24, 25)."""
    master = await brokers.master()
    whole = batch("p", 1, [0, 1, 2])
    first = await master.call(320, whole, **send_fields(m="true"))
    again = await master.call(320, whole, **send_fields(m="true"))
    overlapping = await master.call(320, batch("p", 1, [1, 2, 3, 4]), **send_fields(m="true"))

    assert [call.code for call in (first, again, overlapping)] == [0, 0, 0]
    assert first.ext["msgId"] == again.ext["msgId"]
    assert bodies(master) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_batch_that_the_store_refuses_leaves_nothing_and_can_be_sent_again(brokers: Brokers) -> None:
    """A batch of which a part cannot be stored is not stored at all, so that sent again it is in order
    (statement 24)."""
    master = await brokers.master()
    await master.call(310, b"0", **send_one(sequence=0))
    refusal = StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")
    with mock.patch.object(master.store, "append_batch", side_effect=refusal):
        refused = await master.call(320, batch("p", 1, [1, 2, 3]), **send_fields(m="true"))
    stored = await master.call(320, batch("p", 1, [1, 2, 3]), **send_fields(m="true"))

    assert (refused.code, stored.code) == (ResponseCode.SERVICE_NOT_AVAILABLE, 0)
    assert bodies(master) == [b"0", b"1", b"2", b"3"]


async def test_a_duplicate_is_answered_only_when_what_is_stored_is_confirmed(brokers: Brokers) -> None:
    """Nobody is told that a message is stored before it is confirmed, also not by its second sending
    (statement 25)."""
    master = await brokers.master()
    first = await master.start(310, b"a", **send_one(sequence=0))
    again = await master.start(310, b"a", **send_one(sequence=0))
    gap = await master.start(310, b"b", **send_one(sequence=5))
    before = [first.code, again.code, gap.code]
    await master.confirm()

    assert before == [None, None, None]
    assert [first.code, again.code, gap.code] == [0, 0, ResponseCode.BROKERSET_SEQUENCE_GAP]


async def test_wait_false_does_not_let_a_send_be_answered_early(brokers: Brokers) -> None:
    """The property WAIT=false changes nothing for a subject."""
    master = await brokers.master()
    call = await master.start(310, b"a", **send_fields(stamped("p", 1, 0) + "WAIT\x01false\x02"))
    before = call.code
    await master.confirm()

    assert (before, call.code) == (None, 0)


async def test_a_newer_epoch_fences_the_older_one_and_begins_at_zero(brokers: Brokers) -> None:
    """After a restart with the same producer id the older epoch is fenced, and no sequence is used again
    (statement 26)."""
    master = await brokers.master()
    await master.call(310, b"old", **send_one(epoch=1, sequence=0))
    jumped = await master.call(310, b"new", **send_one(epoch=2, sequence=1))
    new = await master.call(310, b"new", **send_one(epoch=2, sequence=0))
    old = await master.call(310, b"late", **send_one(epoch=1, sequence=1))
    repeated = await master.call(310, b"old", **send_one(epoch=1, sequence=0))

    assert (jumped.code, new.code) == (ResponseCode.BROKERSET_SEQUENCE_GAP, 0)
    assert jumped.ext["nextSequence"] == "0"
    assert old.code == repeated.code == ResponseCode.BROKERSET_PRODUCER_FENCED
    assert bodies(master) == [b"old", b"new"]


async def test_a_sequence_that_is_not_the_next_one_is_refused(brokers: Brokers) -> None:
    """A gap is refused with the sequence that is waited for, and is counted once as a sign of a loss; an
    unknown producer begins at 0 (statement 24)."""
    master = await brokers.master()
    unknown = await master.call(310, b"x", **send_one(sequence=3))
    await master.call(310, b"0", **send_one(sequence=0))
    gap = await master.call(310, b"2", **send_one(sequence=2))
    await master.call(310, b"2", **send_one(sequence=2))

    assert unknown.code == ResponseCode.BROKERSET_PRODUCER_UNKNOWN
    assert gap.code == ResponseCode.BROKERSET_SEQUENCE_GAP
    assert gap.ext["nextSequence"] == "1"
    assert master.counters.losses["producer"] == 1
    assert bodies(master) == [b"0"]


async def test_a_sealed_queue_takes_nothing_but_knows_what_it_has(brokers: Brokers) -> None:
    """A sealed queue answers what it has stored with success, and everything else with QUEUE_SEALED."""
    master = await brokers.master()
    await master.call(310, b"0", **send_one(sequence=0))
    sealed = await master.put_queues((0, 100, "Sealed"), version=2)
    stored = await master.call(310, b"0", **send_one(sequence=0))
    later = await master.call(310, b"1", **send_one(sequence=1))

    assert sealed.code == 0
    assert stored.code == 0
    assert later.code == ResponseCode.BROKERSET_QUEUE_SEALED
    assert later.ext["nextSequence"] == "1"
    assert bodies(master) == [b"0"]


async def test_no_message_comes_between_a_seal_and_its_end(brokers: Brokers) -> None:
    """From the moment on that a seal is asked for nothing is stored, though nobody is told that the queue is
    sealed before that is confirmed."""
    master = await brokers.master()
    await master.call(310, b"0", **send_one(sequence=0))
    seal = await master.start(21_031, master.queues_body((0, 100, "Sealed"), version=2))
    meanwhile = await master.start(310, b"1", **send_one(sequence=1))
    answered = seal.code
    await master.confirm()
    afterwards = await master.call(310, b"1", **send_one(sequence=1))

    assert answered is None
    assert meanwhile.code == ResponseCode.BROKERSET_QUEUE_NOT_OPEN
    assert seal.code == 0
    assert afterwards.code == ResponseCode.BROKERSET_QUEUE_SEALED
    assert bodies(master) == [b"0"]


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ("", "no order stamp"),
        ("__SHARDINGKEY\x01k\x02", "no order stamp"),
        ("ORDER_STAMP\x01nonsense\x02", "is no order stamp"),
        ("ORDER_STAMP\x01100:2000:p:1:0\x02", "too large"),
        (stamped("p", 1, 0) + "DELAY\x013\x02", "DELAY"),
        (stamped("p", 1, 0) + "TIMER_DELAY_MS\x0199\x02", "TIMER_DELAY_MS"),
        (stamped("p", 1, 0) + "TRAN_MSG\x01true\x02", "TRAN_MSG"),
    ],
)
async def test_what_has_no_order_is_refused_with_a_reason(
    brokers: Brokers, properties: str, why: str
) -> None:
    """A plain producer is refused, and told what the topic is."""
    master = await brokers.master()
    call = await master.call(310, b"a", **send_fields(properties))

    assert call.code == ResponseCode.MESSAGE_ILLEGAL
    assert why in call.remark
    assert "ordered subject" in call.remark
    assert bodies(master) == []


@pytest.mark.parametrize(
    "texts",
    [
        [stamped("p", 1, 0), stamped("p", 1, 2)],
        [stamped("p", 1, 0), stamped("q", 1, 1)],
        [stamped("p", 1, 0), stamped("p", 2, 1)],
        [stamped("p", 1, 0), stamped("p", 1, 1, 101)],
        [stamped("p", 1, 0), ""],
    ],
)
async def test_a_batch_of_several_kinds_is_refused_whole(brokers: Brokers, texts: list[str]) -> None:
    """The messages of a request follow each other, of one producer epoch and partition (statement 24)."""
    master = await brokers.master()
    body = encode_batch([BatchItem(0, b"x", text.encode()) for text in texts])
    call = await master.call(320, body, **send_fields(m="true"))

    assert call.code == ResponseCode.MESSAGE_ILLEGAL
    assert bodies(master) == []


async def test_a_transaction_message_is_refused(brokers: Brokers) -> None:
    """Messages of transactions have no place in an order."""
    master = await brokers.master()
    call = await master.call(310, b"a", **(send_one() | {"f": 4}))

    assert call.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_stamp_for_another_partition_or_queue_is_refused(brokers: Brokers) -> None:
    """A queue takes the messages of its partition alone; a queue that is not there yet is not open."""
    master = await brokers.master()
    other = await master.call(310, b"a", **send_one(partition=7))
    absent = await master.call(310, b"a", **send_one(queue_id=9))
    random = await master.call(310, b"a", **send_fields(stamped("p", 1, 0), queue_id=-1))

    assert {other.code, absent.code, random.code} == {ResponseCode.BROKERSET_QUEUE_NOT_OPEN}
    assert bodies(master) == []


async def test_a_prepared_queue_takes_nothing(brokers: Brokers) -> None:
    """Prepared: the queue exists, and takes nothing until it is open."""
    master = await brokers.master()
    await master.put_queues((0, 100, "Open"), (1, 101, "Prepared"), version=2)
    early = await master.call(310, b"a", **send_one(queue_id=1))
    await master.put_queues((0, 100, "Open"), (1, 101, "Open"), version=3)
    later = await master.call(310, b"a", **send_one(queue_id=1))

    assert (early.code, later.code) == (ResponseCode.BROKERSET_QUEUE_NOT_OPEN, 0)


async def test_a_stamped_message_creates_no_topic(brokers: Brokers) -> None:
    """A subject that this broker has not heard of yet is not made a plain topic by its first message."""
    master = await brokers.master()
    call = await master.call(310, b"a", **(send_one() | {"b": "unheard"}))

    assert call.code == ResponseCode.BROKERSET_QUEUE_NOT_OPEN
    assert master.topics.get("unheard") is None


async def test_other_topics_are_not_touched(brokers: Brokers) -> None:
    """A plain topic takes messages as ever, next to a subject."""
    master = await brokers.master()
    call = await master.call(310, b"a", **(send_fields() | {"b": "plain"}))

    assert call.code == 0
    assert bodies(master, "plain") == [b"a"]


async def test_a_queue_remembers_a_bounded_number_of_producers(brokers: Brokers) -> None:
    """Too many producers: those that were idle for hours are forgotten, younger ones never; a new one is
    refused before it stores anything."""
    master = await brokers.master()
    with mock.patch.object(live_producers, "PRODUCERS_MAX", 3):
        for name in ("a", "b", "c"):
            assert (await master.call(310, b"x", **send_one(name))).code == 0
        refused = await master.call(310, b"x", **send_one("d"))
        known = await master.call(310, b"x", **send_one("a", sequence=1))
        master.clock.advance(PRODUCER_KEPT_MS + 1)
        accepted = await master.call(310, b"x", **send_one("d"))

    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert (known.code, accepted.code) == (0, 0)
    live = master.ordered.live.get(SUBJECT, 0)
    assert live is not None
    assert list(live.producers) == ["c", "a", "d"]


async def test_producers_are_recorded_after_many_messages_and_in_time(brokers: Brokers) -> None:
    """A record says what the queue has of its producers, and up to which message."""
    master = await brokers.master()
    with mock.patch.object(ordered_sends, "RECORD_MESSAGES", 2):
        await master.call(310, b"0", **send_one(sequence=0))
        before = master.ordered.state.producers.get(SUBJECT)
        await master.call(310, b"1", **send_one(sequence=1))
    written = repr(master.ordered.state.producers[SUBJECT][0])
    await master.call(310, b"2", **send_one(sequence=2))
    master.metadata.flush_producers()
    await master.confirm()
    later = master.ordered.state.producers[SUBJECT][0]

    assert before is None
    assert "complete_to=2" in written
    assert (later.complete_to, later.producers["p"].next_sequence) == (3, 3)
