"""Queues of subjects as the controllers want them, and what others may not do to their topics."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.ordered_subjects import SubjectQueuesProcessor
from brokerset_protocol.bodies.ordered import REPORTED_MAX, SubjectQueues
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_rig.metadata_parts import file_changes
from brokerset_rig.ordered_broker import (
    RETRY,
    SUBJECT,
    Brokers,
    Call,
    FakeConnection,
    batch,
    bodies,
    owner,
    send_fields,
    send_one,
    turns,
)

SUBJECT_REFUSED = ResponseCode.BROKERSET_SUBJECT_REFUSED


def answered(call: Call) -> dict[int, tuple[int, str, int | None]]:
    """Queue -> partition, state, end."""
    assert call.answer is not None
    body = SubjectQueues.from_json(call.answer.body)
    return {queue.queue_id: (queue.partition_id, queue.state.value, queue.end) for queue in body.queues}


async def test_a_subject_is_made_grows_and_is_sealed(brokers: Brokers) -> None:
    """The topic has as many queues as the highest id needs, and shows RocketMQ's tools that it is ordered;
    the end of a sealed queue is that of its log, whenever it is asked for."""
    master = brokers.make()
    await master.lead()
    made = await master.put_queues((0, 10, "Open"))
    await master.call(310, b"0", **send_one(partition=10))
    grown = await master.put_queues((0, 10, "Sealed"), (2, 11, "Prepared"), version=2)
    opened = await master.put_queues((2, 11, "Open"), version=3)
    repeated = await master.put_queues((2, 11, "Open"), version=3)

    assert answered(made) == {0: (10, "Open", None)}
    assert answered(grown) == {0: (10, "Sealed", 1), 2: (11, "Prepared", None)}
    assert answered(opened) == answered(repeated) == {2: (11, "Open", None)}
    config = master.topics.get(SUBJECT)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, int(config.perm)) == (3, 3, 6)
    assert config.attributes == {"message.type": "FIFO"}


async def test_an_answer_does_not_grow_with_queues_that_were_sealed_before(brokers: Brokers) -> None:
    """A subject can have more queues over the years than a body lists: controllers can read each answer."""
    master = brokers.make()
    await master.lead()
    for part in range(3):
        first = part * 1_400
        queues = [(first + number, number) for number in range(1_367)]
        await master.put_queues(*((*each, "Open") for each in queues), version=2 * part + 1)
        sealed = await master.put_queues(*((*each, "Sealed") for each in queues), version=2 * part + 2)

    assert len(master.ordered.state.subjects[SUBJECT].queues) > REPORTED_MAX
    assert answered(sealed) == {queue: (partition, "Sealed", 0) for queue, partition in queues}


async def test_a_queue_never_goes_back(brokers: Brokers) -> None:
    """An older version is refused; a newer one that calls a sealed queue open does not open it."""
    master = await brokers.master()
    await master.put_queues((0, 100, "Sealed"), version=5)
    older = await master.put_queues((0, 100, "Open"), version=4)
    newer = await master.put_queues((0, 100, "Open"), version=6)

    assert older.code == SUBJECT_REFUSED
    assert answered(newer) == {0: (100, "Sealed", 0)}


@pytest.mark.parametrize(
    "queues",
    [
        [(0, 101, "Open")],
        [(0, 100, "Sealing")],
        [(0, 100, "Open"), (1, 100, "Open")],
        [(0, 100, "Open"), (0, 100, "Open")],
        [(0, 100, "Open"), (-1, 101, "Open")],
        [(0, 100, "Open"), (99_999, 101, "Open")],
    ],
)
async def test_what_queues_cannot_be_is_refused(brokers: Brokers, queues: list[tuple[int, int, str]]) -> None:
    """A queue keeps its partition, an open one is not forgotten, and a partition has one queue."""
    master = await brokers.master()
    call = await master.put_queues(*queues, version=2)

    assert call.code == SUBJECT_REFUSED
    assert call.remark
    assert list(master.ordered.state.subjects[SUBJECT].queues) == [0]


async def test_an_open_queue_that_the_controllers_have_done_with_is_sealed(brokers: Brokers) -> None:
    """A master whose log has lost the seal of a partition that is retired meanwhile does not refuse all
    changes of the subject after that: it seals the queue. A list of the version in force that lacks an open
    queue is refused."""
    master = await brokers.master()
    await master.send(2)
    same = await master.put_queues((1, 101, "Open"))
    newer = await master.put_queues((1, 101, "Open"), version=9)
    send = await master.call(310, b"2", **send_one(sequence=2))

    assert same.code == SUBJECT_REFUSED
    assert answered(newer) == {1: (101, "Open", None)}
    assert master.ordered.sealed_end(SUBJECT, 0) == 2
    assert send.code == ResponseCode.BROKERSET_QUEUE_SEALED


async def test_a_sealed_queue_that_a_newer_list_lacks_is_retired(brokers: Brokers) -> None:
    """What the broker kept for its groups is freed, and claims of it and of its retry queues are refused,
    whatever their epoch; a list of the same version retires nothing, and the end stays known."""
    master = await brokers.master(queues=2)
    await master.send(2)
    for session in (owner(), owner(1, "s2", topic=RETRY)):
        assert (await master.call(21_032, **session, pulledTo=-1)).code == 0
    await master.put_queues((0, 100, "Sealed"), (1, 101, "Open"), version=2)
    same = await master.put_queues((1, 101, "Open"), version=2)
    kept = master.ordered.state.fence_count()
    newer = await master.put_queues((1, 101, "Open"), version=3)
    again = await master.put_queues((0, 100, "Sealed"), (1, 101, "Open"), version=4)
    claims = [await master.claim(9, "s9"), await master.claim(9, "s9", topic=RETRY)]
    pull, release = await master.pull(0), await master.release()
    other = await master.claim(9, "s9", queue_id=1)

    assert (same.code, newer.code) == (0, 0)
    assert (kept, master.ordered.state.fence_count()) == (2, 1)
    assert answered(again)[0] == (100, "Sealed", 2)
    assert [claim.code for claim in claims] == [ResponseCode.BROKERSET_STALE_EPOCH] * 2
    assert "retired" in claims[0].remark
    assert pull.code == ResponseCode.BROKERSET_NOT_CLAIMED
    assert (release.code, release.ext["released"], other.code) == (0, "false", 0)
    assert master.ordered.claims.raised == {}


async def test_a_claim_that_is_on_its_way_does_not_survive_the_retirement(brokers: Brokers) -> None:
    """Of a claim and a retirement that are confirmed together the claim is refused, and leaves no fence."""
    master = await brokers.master(queues=2)
    await master.put_queues((0, 100, "Sealed"), (1, 101, "Open"), version=2)
    before = await master.start(21_032, **owner(), pulledTo=-1)
    retiring = await master.start(21_031, master.queues_body((1, 101, "Open"), version=3))
    after = await master.start(21_032, **owner(2, "s2"), pulledTo=-1)
    await master.confirm()

    assert retiring.code == 0
    assert (before.code, after.code) == (ResponseCode.BROKERSET_STALE_EPOCH,) * 2
    assert master.ordered.state.fence_count() == 0
    assert len(master.ordered.claims) == 0


async def test_a_plain_topic_does_not_become_a_subject(brokers: Brokers) -> None:
    """A topic that exists keeps its messages and its producers."""
    master = await brokers.master()
    await master.call(
        17, topic="plain", defaultTopic="TBW102", readQueueNums=4, writeQueueNums=4, perm=6,
        topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false",
    )  # fmt: skip
    made = await master.put_queues((0, 1, "Open"), subject="plain")
    deleted = await master.put_queues(subject="plain", deleted=True)
    system = await master.put_queues((0, 1, "Open"), subject="TBW102")
    retry = await master.put_queues((0, 1, "Open"), subject="%RETRY%g")

    assert {made.code, deleted.code, system.code, retry.code} == {SUBJECT_REFUSED}
    assert master.topics.get("plain") is not None


async def test_administrators_do_not_change_or_delete_a_subjects_topic(brokers: Brokers) -> None:
    """mqadmin is told who changes the queues of a subject."""
    master = await brokers.master(queues=2)
    fields: dict[str, Any] = {
        "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    shrunk = await master.call(17, topic=SUBJECT, **fields)
    deleted = await master.call(215, topic=SUBJECT)
    config = master.topics.get(SUBJECT)

    assert {shrunk.code, deleted.code} == {ResponseCode.INVALID_PARAMETER}
    assert "brokerset subject" in shrunk.remark
    assert config is not None
    assert config.read_queue_nums == 2


async def test_a_deleted_subject_leaves_nothing(brokers: Brokers) -> None:
    """Topic, retry topics, fences and producers go; it can be made again, and begins at 0."""
    master = await brokers.master()
    await master.send(2)
    await master.claim()
    await master.claim(topic=RETRY)
    older = await master.put_queues(version=0, deleted=True)
    deleted = await master.put_queues(version=2, deleted=True)
    repeated = await master.put_queues(version=2, deleted=True)
    late = await master.ack(0, 0)
    names = [master.topics.get(SUBJECT), master.topics.get(RETRY)]
    state = master.tables.state().ordered
    again = await master.put_queues((0, 100, "Open"), version=1)
    stored = await master.call(310, b"x", **send_one(sequence=0))

    assert [older.code, deleted.code, repeated.code] == [SUBJECT_REFUSED, 0, 0]
    assert late.code == ResponseCode.BROKERSET_NOT_CLAIMED
    assert names == [None, None]
    assert (state.subjects, state.fences, state.producers) == ({}, {}, {})
    assert (again.code, stored.code, stored.ext["queueOffset"]) == (0, 0, "0")


async def test_nothing_is_stored_while_a_subject_is_being_deleted(brokers: Brokers) -> None:
    """What comes while the deletion is not confirmed is refused, not lost."""
    master = await brokers.master()
    await master.start(21_031, master.queues_body(version=2, deleted=True))
    send = await master.start(310, b"x", **send_one())
    claim = await master.start(21_032, **owner(), pulledTo=-1)
    await master.confirm()

    assert send.code == ResponseCode.TOPIC_NOT_EXIST
    assert claim.code == ResponseCode.INVALID_PARAMETER


async def test_a_broker_in_no_group_refuses_subjects(brokers: Brokers) -> None:
    """Without a replicated log nothing could be confirmed, and the answer says what to do."""
    broker = brokers.make()
    processor = SubjectQueuesProcessor(
        ordered=broker.ordered,
        store=broker.store,
        topics=broker.topics,
        admission=Admission(LiveSettings(broker.settings).current.broker_name, 6),
        changes=file_changes(broker.topics, broker.groups, broker.offsets),
    )
    command = Command(21_031, {}, broker.queues_body((0, 1, "Open")))

    with pytest.raises(Rejected, match="need controllers") as refused:
        await processor.put(FakeConnection(), command)  # type: ignore[arg-type]  # the part that is used

    assert refused.value.code == SUBJECT_REFUSED


async def test_a_delayed_message_of_a_deleted_topic_does_not_come_into_a_subject(brokers: Brokers) -> None:
    """Its place in the subject's order is unknown: it is dropped, and those of other topics are delivered."""
    master = brokers.make()
    await master.lead()
    for topic in (SUBJECT, "plain"):
        body = b"late of " + topic.encode()
        sent = await master.call(310, body, **send_fields("DELAY\x011\x02WAIT\x01false\x02", b=topic))
        assert sent.code == 0
    assert (await master.call(215, topic=SUBJECT)).code == 0
    await master.open(4)
    await master.confirm()
    master.clock.advance(10_000)
    master.delay.start()
    await turns()
    master.delay.stop()

    assert [bodies(master, SUBJECT, queue) for queue in range(4)] == [[]] * 4
    assert bodies(master, "plain") == [b"late of plain"]


async def test_a_topic_is_made_whatever_word_is_in_a_message(brokers: Brokers) -> None:
    """That a message is one of a subject says its stamp alone, not its body or a value of a property."""
    master = brokers.make()
    await master.lead()
    word = await master.call(310, b"ORDER_STAMP", **send_fields("KEYS\x01ORDER_STAMP\x02", b="plain"))
    stamped_one = await master.call(310, b"x", **{**send_one(), "b": "other"})
    stamped_batch = await master.call(320, batch("p", 1, [0]), **send_fields(m="true", b="other"))

    assert word.code == 0
    not_open = ResponseCode.BROKERSET_QUEUE_NOT_OPEN
    assert (stamped_one.code, stamped_batch.code) == (not_open, not_open)
