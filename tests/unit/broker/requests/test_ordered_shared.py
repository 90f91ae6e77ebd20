"""Shared groups: several sessions on one queue, their pull logs, and what a failover leaves of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from brokerset_broker.requests import ordered_shared
from brokerset_broker.requests.ordered_shared import draw_start
from brokerset_broker.store import reading
from brokerset_broker.tables.locks import SESSION_LOCK_SECONDS
from brokerset_broker.tables.ordered import shared_pulls
from brokerset_broker.tables.ordered.values import ClaimKey
from brokerset_protocol.bodies.queues import LockBatchRequest, LockBatchResponse, MessageQueue
from brokerset_protocol.codes import ResponseCode
from brokerset_rig.local_servers import bodies as pulled_bodies
from brokerset_rig.ordered_broker import (
    GROUP,
    RETRY,
    SUBJECT,
    Brokers,
    OrderedBroker,
    bodies,
    owner,
    pull_fields,
    turns,
)
from brokerset_rig.shared_sessions import Session, numbers, shared

STALE = ResponseCode.BROKERSET_STALE_EPOCH
NOT_CLAIMED = ResponseCode.BROKERSET_NOT_CLAIMED
LOCKED = ResponseCode.BROKERSET_QUEUE_LOCKED
REFUSED = ResponseCode.BROKERSET_ACK_REFUSED
OUT_OF_RANGE = ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE
MOVED = ResponseCode.PULL_OFFSET_MOVED
NOTHING = ResponseCode.PULL_NOT_FOUND
LIFE_MS = int(SESSION_LOCK_SECONDS * 1000)
KEY = ClaimKey(SUBJECT, GROUP, 0)


async def test_each_message_goes_to_one_session(brokers: Brokers) -> None:
    """Sessions of a Shared group get different messages of a queue, by pull sequences that are contiguous; a
    lost answer to a pull loses nothing (statements 60, 61)."""
    master = await brokers.master()
    await master.send(9)
    one, two = await shared(master, "s1", "s2")
    got = [await one.pull(3), await two.pull(3), await one.pull(3)]
    again = await one.pull(6, one.start)

    assert got == [numbers(0, 3), numbers(3, 6), numbers(6, 9)]
    assert again == [*numbers(0, 3), *numbers(6, 9)]
    assert (one.following, two.following) == (one.start + 6, two.start + 3)
    assert one.start != two.start


async def test_the_position_of_the_group_rises_over_what_is_contiguous(brokers: Brokers) -> None:
    """Acks above the position are kept as ranges; the position is the group's usual offset."""
    master = await brokers.master()
    await master.send(6)
    one, two = await shared(master, "s1", "s2")
    await one.pull(2)
    await two.pull(4)
    above = await two.ack(0, 2)
    kept = master.ordered.state.shared_acks.get(KEY)
    below = await one.ack(0, 1)
    known = await one.ack(0, 0)

    assert (above.code, above.ext["position"], above.ext["groupPosition"]) == (0, str(two.start + 3), "0")
    assert kept == ((2, 5),)
    assert (below.code, below.ext["position"], below.ext["groupPosition"]) == (0, str(one.start + 2), "5")
    assert (known.code, known.ext) == (0, below.ext)
    assert (master.position(), master.ordered.state.shared_acks) == (5, {})


async def test_a_repeated_ack_acknowledges_nothing_more(brokers: Brokers) -> None:
    """An ack that comes again after later ones acknowledges nothing, and makes no copies (statement 58)."""
    master = await brokers.master()
    await master.send(9)
    (one,) = await shared(master, "s1")
    await one.pull(9)
    await one.ack(0, 1)
    later = await one.ack(2, 4)
    again = await one.ack(0, 1)

    assert (again.code, again.ext) == (0, later.ext)
    assert master.position() == 5
    assert await one.pull(9, one.start + 5) == numbers(5, 9)


async def test_an_ack_is_answered_when_it_is_confirmed(brokers: Brokers) -> None:
    """Neither its range, nor a position that it makes, is in an answer before every in-sync replica has it
    (statement 54)."""
    master = await brokers.master()
    await master.send(4)
    one, two = await shared(master, "s1", "s2")
    await one.pull(2)
    await two.pull(2)
    acks = []
    for session in (two, one):
        fields = owner(1, session.name) | {"first": session.start, "last": session.start + 1}
        acks.append(await master.start(21_033, **fields))
    early = [ack.code for ack in acks]
    seen = await master.start(11, **pull_fields(one.following, 1, "s1", sysFlag=4, suspendTimeoutMillis=0))
    await master.confirm()

    assert early == [None, None]
    assert seen.ext["groupPosition"] == "0"
    assert [(ack.code, ack.ext["groupPosition"]) for ack in acks] == [(0, "4"), (0, "4")]


async def test_a_claim_says_no_position_that_is_not_confirmed(brokers: Brokers) -> None:
    """Also if all sessions before have gone with acks that are on their way (statement 54)."""
    master = await brokers.master()
    await master.send(2)
    (one,) = await shared(master, "s1")
    await one.pull()
    claim = await master.start(21_032, **owner(1, "s2"), pulledTo=-1, shared="true")
    end = master.log.max_offset
    await master.start(21_033, **owner(1, "s1"), first=one.start, last=one.start + 1)
    await master.start(21_034, **owner(1, "s1"))
    await master.confirm(end)
    early = claim.code
    await master.confirm()

    assert early is None
    assert (claim.code, claim.ext["groupPosition"]) == (0, "2")


async def failover(brokers: Brokers, master: OrderedBroker, until: int) -> OrderedBroker:
    """The master ends; a slave that has its log up to `until` leads."""
    slave = brokers.make("slave")
    await slave.metadata.start_following()
    await master.copy_to(slave, until)
    master.crash()
    await slave.lead(2)
    await slave.confirm()
    return slave


async def test_a_failover_forgets_what_was_given_and_keeps_what_was_acknowledged(brokers: Brokers) -> None:
    """Nothing that was acknowledged with an answer is given again by the next master, everything else is."""
    master = await brokers.master()
    await master.send(8)
    one, two = await shared(master, "s1", "s2")
    await one.pull(3)
    await two.pull(3)
    await two.ack(0, 1)
    end = master.log.max_offset
    unconfirmed = await master.start(21_033, **owner(1, "s1"), first=one.start, last=one.start + 1)
    slave = await failover(brokers, master, end)
    pulls = await Session(slave, "s1").pull_call(one.following)
    known = await Session(slave, "s1").claim(one.following)
    three = (await shared(slave, "s1"))[0]
    got = await three.pull()

    assert unconfirmed.code is None
    assert (pulls.code, known.code) == (NOT_CLAIMED, OUT_OF_RANGE)
    assert got == [*numbers(0, 3), *numbers(5, 8)]


async def test_a_late_ack_of_an_earlier_pull_log_means_nothing(brokers: Brokers) -> None:
    """Pull sequences of one log are of no other, whatever the session claims again."""
    master = await brokers.master()
    await master.send(4)
    (one,) = await shared(master, "s1")
    await one.pull(2)
    earlier = one.start
    await one.claim()
    got = await one.pull(2)
    late = await master.ack(earlier, earlier + 1)

    assert got == numbers(0, 2)
    assert (late.code, late.ext["position"]) == (REFUSED, str(one.start))
    assert master.position() == 0


def test_pull_logs_begin_apart() -> None:
    """Starts are drawn with room for all sequences of a log between two of them, and fit their field."""
    starts = {draw_start() for _ in range(100)}

    assert len(starts) == 100
    assert all(start % (1 << 20) == 0 and 0 <= start < 1 << 62 for start in starts)


async def test_what_a_session_leaves_is_given_again(brokers: Brokers) -> None:
    """After a release, and when a session was silent for 30 s, others get what it has not acknowledged; those
    that wait hear of it."""
    master = await brokers.master()
    await master.send(6)
    one, two, three = await shared(master, "s1", "s2", "s3")
    await one.pull(2)
    await two.pull(3)
    await one.ack(0, 0)
    await three.pull()
    parked = await master.start(11, **pull_fields(three.following, 1, "s3"))
    waiting = parked.code
    released = await master.release(1, "s1")
    again = await master.release(1, "s1")
    await turns()
    got = [] if parked.answer is None else pulled_bodies(parked.answer)
    master.clock.advance(LIFE_MS - 1)
    three.following += 1
    await three.pull()
    master.shared.forget_silent()
    known = (await two.pull_call(two.start)).code
    master.clock.advance(LIFE_MS - 1)
    await three.pull()
    master.clock.advance(2)
    master.shared.forget_silent()
    silent = (await two.pull_call(two.start)).code
    left = await three.pull()

    assert waiting is None
    assert (released.code, released.ext["released"], again.ext) == (0, "true", released.ext)
    assert got == [b"1"]
    assert (known, silent) == (0, NOT_CLAIMED)
    assert left == numbers(2, 5)
    assert master.counters.given_again == 4


async def test_a_pull_that_waits_is_woken_by_a_message_and_only_one_gets_it(brokers: Brokers) -> None:
    """A message wakes all that wait; those that get nothing go on waiting until their time is over."""
    master = await brokers.master()
    one, two = await shared(master, "s1", "s2")
    calls = [await master.start(11, **pull_fields(each.start, 1, each.name)) for each in (one, two)]
    await master.send(1)
    codes = [call.code for call in calls]
    master.clock.advance(15_200)
    master.parked.tick()

    assert codes == [0, None]
    assert calls[1].code == NOTHING
    assert calls[1].ext["nextBeginOffset"] == str(two.start)


async def test_what_the_filter_drops_is_acknowledged(brokers: Brokers) -> None:
    """It gets no pull sequence, and the group's position passes it."""
    master = await brokers.master()
    await master.send(5)
    (one,) = await shared(master, "s1")
    got = await one.pull(subscription="other")
    claimed = await one.claim(one.start)

    assert (got, one.following) == ([], one.start)
    assert (master.position(), claimed.ext["groupPosition"]) == (5, "5")


async def test_a_filter_that_drops_much_does_not_keep_others_waiting(brokers: Brokers) -> None:
    """A pull gives up after a few reads, and is to be repeated at once; then it goes on where it was."""
    master = await brokers.master()
    await master.send(5)
    (one,) = await shared(master, "s1")
    with mock.patch.object(reading, "FILTER_UNITS_MIN", 1), mock.patch.object(ordered_shared, "SKIPS_MAX", 3):
        calls = [await one.pull_call(one.start, subscription="other") for _ in range(2)]

    assert [call.code for call in calls] == [ResponseCode.PULL_RETRY_IMMEDIATELY, NOTHING]
    assert [call.ext["nextBeginOffset"] for call in calls] == [str(one.start)] * 2
    assert master.position() == 5


async def test_a_gap_in_an_ack_sends_copies_once(brokers: Brokers) -> None:
    """What a session passes over goes to the retry topic, each once, also if it asked for a copy before or
    repeats the ack; then it is acknowledged (statement 59)."""
    master = await brokers.master()
    await master.send(5)
    (one,) = await shared(master, "s1")
    await one.pull()
    fields = owner() | {"queueOffset": 1, "dead": "false", "maxReconsumeTimes": 16}
    back = await master.call(21_035, **fields)
    acked = await one.ack(3, 4)
    again = await one.ack(3, 4)
    other = Session(master, "s1")
    claimed = await other.claim(topic=RETRY)

    assert (back.code, acked.code, again.code, claimed.code) == (0, 0, 0, 0)
    assert acked.ext["groupPosition"] == "5"
    assert bodies(master, "SCHEDULE_TOPIC_XXXX", 2) == [b"1", b"0", b"2"]


async def test_what_is_passed_over_counts_when_its_copies_are_confirmed(brokers: Brokers) -> None:
    """A copy may be lost with the end of the log until then: the message is not acknowledged before it."""
    master = await brokers.master()
    await master.send(3)
    (one,) = await shared(master, "s1")
    await one.pull()
    ack = await master.start(21_033, **owner(), first=one.start + 1, last=one.start + 2)
    master.log.confirm(master.log.max_offset)  # the retry topic
    await turns()
    copied = bodies(master, "SCHEDULE_TOPIC_XXXX", 2)
    early = (ack.code, master.position())
    await master.confirm()

    assert (early, copied) == ((None, 0), [b"0"])
    assert (ack.code, master.position()) == (0, 3)


async def test_a_reset_that_is_on_its_way_is_not_overtaken_by_an_ack(brokers: Brokers) -> None:
    """What an ack with a gap counts while the reset is not confirmed would be skipped by the next master."""
    master = await brokers.master()
    await master.send(6)
    one, two = await shared(master, "s1", "s2")
    await one.pull(1)
    await two.pull()
    ack = await master.start(21_033, **owner(1, "s2"), first=two.start + 1, last=two.start + 2)
    end = master.log.max_offset
    fields: dict[str, Any] = {"topic": SUBJECT, "group": GROUP, "queueId": 0, "offset": 0, "timestamp": -1}
    reset = await master.start(222, **fields, isForce="true")
    await master.confirm(end)
    await master.confirm()
    slave = await failover(brokers, master, master.log.max_offset)
    (three,) = await shared(slave, "s3")

    assert (ack.code, reset.code) == (ResponseCode.SYSTEM_BUSY, 0)
    assert await three.pull() == numbers(0, 6)


async def test_only_what_a_session_has_is_sent_back_or_acknowledged(brokers: Brokers) -> None:
    """Messages of another session, and pull sequences that nobody was given, are refused."""
    master = await brokers.master()
    await master.send(4)
    one, two = await shared(master, "s1", "s2")
    await one.pull(2)
    await two.pull(2)
    back = await master.call(21_035, **owner(), queueOffset=2, dead="false", maxReconsumeTimes=16)
    ahead = await one.ack(0, 2)
    before = await one.ack(-1, 0)
    far = await one.pull_call(one.following + 1)

    assert (back.code, ahead.code, before.code, far.code) == (OUT_OF_RANGE, REFUSED, REFUSED, OUT_OF_RANGE)
    assert master.position() == 0


async def test_at_most_a_window_lies_above_the_position(brokers: Brokers) -> None:
    """With a gap nothing new is given when the window is used up, or the ranges are too many; closing the gap
    wakes who waits."""
    master = await brokers.master()
    await master.send(9)
    one, two = await shared(master, "s1", "s2")
    with mock.patch.object(shared_pulls, "WINDOW", 4), mock.patch.object(shared_pulls, "RANGES_MAX", 1):
        got = [await one.pull(1), await two.pull(), await two.pull()]
        parked = await master.start(11, **pull_fields(two.following, 1, "s2", maxMsgNums=2))
        waiting = parked.code
        await one.ack(0, 0)
        await turns()

    assert got == [[b"0"], numbers(1, 4), []]
    assert waiting is None
    assert parked.answer is not None
    assert pulled_bodies(parked.answer) == [b"4"]


async def test_a_reset_ends_all_pull_logs(brokers: Brokers) -> None:
    """After a reset sessions claim again, and get everything from there, acknowledged before or not."""
    master = await brokers.master()
    await master.send(6)
    one, two = await shared(master, "s1", "s2")
    await one.pull(2)
    await two.pull(4)
    await two.ack(1, 2)
    fields: dict[str, Any] = {"topic": SUBJECT, "group": GROUP, "queueId": 0, "offset": 1, "timestamp": -1}
    reset = await master.call(222, **fields, isForce="true")
    calls = [await one.ack(0, 0), await two.pull_call(two.following), await two.claim(two.following)]
    (three,) = await shared(master, "s2")

    assert reset.code == 0
    assert [call.code for call in calls] == [NOT_CLAIMED, NOT_CLAIMED, OUT_OF_RANGE]
    assert await three.pull() == numbers(1, 6)


async def test_a_group_whose_offsets_are_cloned_begins_there(brokers: Brokers) -> None:
    """What the group acknowledged above its position before is consumed again, as everything from there."""
    master = await brokers.master()
    await master.send(6)
    one, two = await shared(master, "s1", "s2")
    await one.pull(2)
    await two.pull(2)
    await two.ack(0, 1)
    master.offsets.commit("source", SUBJECT, 0, 1)
    cloned = await master.call(314, srcGroup="source", destGroup=GROUP, topic=SUBJECT, offline="true")
    refused = await one.ack(0, 1)
    (three,) = await shared(master, "s2")

    assert (cloned.code, refused.code) == (0, NOT_CLAIMED)
    assert await three.pull() == numbers(1, 6)


async def test_cloned_offsets_replace_a_reset_that_waits(brokers: Brokers) -> None:
    """A reset of the target that no pull has taken would take its consumers past messages that the source has
    not consumed."""
    master = await brokers.master()
    await master.send(6)
    master.offsets.commit("source", SUBJECT, 0, 1)
    master.groups.get_or_create("target")
    await master.call(222, group="target", topic=SUBJECT, timestamp="-1", isForce="true")
    skipping = master.offsets.query("target", SUBJECT, 0)
    cloned = await master.call(314, srcGroup="source", destGroup="target", topic=SUBJECT, offline="true")

    assert (cloned.code, skipping) == (0, 6)
    assert master.offsets.query("target", SUBJECT, 0) == 1
    assert master.offsets.take_reset("target", SUBJECT, 0) == 1


async def test_acks_count_after_a_client_was_sent_a_reset(brokers: Brokers) -> None:
    """Commits of the RocketMQ client that was sent it are ignored for a while; a session that claims the
    queue afterwards begins at the reset, and its acks are none of these."""
    master = await brokers.master()
    await master.send(6)
    master.clock.advance(LIFE_MS + 1)  # it leads for long
    master.groups.get_or_create(GROUP)
    await master.call(222, group=GROUP, topic=SUBJECT, queueId="0", offset="2", timestamp="0")
    told = await master.pull(0, None)
    (one,) = await shared(master, "s1")
    got = await one.pull(2)
    acked = await one.ack(0, 1)

    assert (told.code, acked.code, got) == (MOVED, 0, numbers(2, 4))
    assert master.offsets.query(GROUP, SUBJECT, 0) == 4


async def test_an_epoch_is_of_one_kind(brokers: Brokers) -> None:
    """What was claimed with `shared` is refused without, and the reverse; a higher epoch ends all
    logs, and an Exclusive group has none (statements 21, 55, 61)."""
    master = await brokers.master(queues=2)
    await master.send(2)
    (one,) = await shared(master, "s1")
    await one.pull(1)
    alone = await master.claim()
    await master.claim(1, "s1", queue_id=1)
    together = await Session(master, "s1").claim(queue_id=1)
    higher = await master.claim(2, "s3")
    late = await one.ack(0, 0)
    star = await master.claim(5, "*", queue_id=1)

    assert (alone.code, together.code) == (STALE, STALE)
    assert (higher.code, late.code) == (0, STALE)
    assert master.ordered.claims.shared == {}
    assert star.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("ending", ["released", "silent"])
async def test_rocketmq_clients_get_nothing_while_a_session_is_known(brokers: Brokers, ending: str) -> None:
    """They neither pull nor lock the queue; afterwards they do (statement 53)."""
    master = await brokers.master()
    await master.send(2)
    master.clock.advance(LIFE_MS + 1)  # it leads for long
    (one,) = await shared(master, "s1")
    await one.pull(1)
    body: bytes = LockBatchRequest(GROUP, "java", frozenset({MessageQueue(SUBJECT, "b", 0)})).to_json()

    async def java() -> Sequence[Any]:
        lock = await master.call(41, body)
        assert lock.answer is not None
        pull = await master.pull(0, None)
        locked = bool(LockBatchResponse.from_json(lock.answer.body).lock_ok_mq_set)
        return pull.code, locked

    before = await java()
    if ending == "released":
        await master.release()
    else:
        master.clock.advance(LIFE_MS + 1)
        master.shared.forget_silent()
    after = await java()
    claimed = await Session(master, "s2").claim()

    assert (before, after) == ((STALE, False), (0, True))
    assert claimed.code == LOCKED


async def test_expired_messages_are_passed(brokers: Brokers) -> None:
    """A pull from what has expired says where to go on; the position passes it, and nothing is copied."""
    master = await brokers.master()
    await master.send(4)
    (one,) = await shared(master, "s1")
    await one.pull(3)
    with (
        mock.patch.object(master.store, "queue_min", return_value=2),
        mock.patch.object(master.store, "get", side_effect=_expired(master.store.get, 2)),
    ):
        moved = await one.pull_call(one.start)
        got = await one.pull(sequence=one.start + 2)
        rest = await one.pull()
        acked = await one.ack(2, 3)

    assert (moved.code, moved.ext["nextBeginOffset"]) == (MOVED, str(one.start + 2))
    assert (got, rest) == ([b"2"], [b"3"])
    assert (acked.code, acked.ext["groupPosition"]) == (0, "4")
    assert bodies(master, "SCHEDULE_TOPIC_XXXX", 2) == []


def _expired(get: Any, oldest: int) -> Any:
    def reading(topic: str, queue_id: int, queue_offset: int, *more: Any) -> Any:
        if queue_offset >= oldest:
            return get(topic, queue_id, queue_offset, *more)
        found = get(topic, queue_id, 1 << 40, *more)
        found.status, found.next_queue_offset = type(found.status).OFFSET_TOO_SMALL, oldest
        return found

    return reading
