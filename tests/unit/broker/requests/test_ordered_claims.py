"""Sessions that own queues: claims, pulls, acks, releases, and what others may do meanwhile."""

from __future__ import annotations

from unittest import mock

import pytest

from brokerset_broker.tables.locks import SESSION_LOCK_SECONDS
from brokerset_broker.tables.metadata import metadata_log
from brokerset_protocol.bodies.queues import LockBatchRequest, LockBatchResponse, MessageQueue
from brokerset_protocol.codes import ResponseCode
from brokerset_rig.ordered_broker import (
    GROUP,
    RETRY,
    SUBJECT,
    Brokers,
    OrderedBroker,
    bodies,
    owner,
    pull_fields,
    send_one,
    turns,
)

STALE = ResponseCode.BROKERSET_STALE_EPOCH
NOT_CLAIMED = ResponseCode.BROKERSET_NOT_CLAIMED
LOCKED = ResponseCode.BROKERSET_QUEUE_LOCKED
REFUSED = ResponseCode.BROKERSET_ACK_REFUSED
OUT_OF_RANGE = ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE
FOUND = ResponseCode.SUCCESS
LIFE_MS = int(SESSION_LOCK_SECONDS * 1000)


def lock_body(client_id: str = "java") -> bytes:
    body: bytes = LockBatchRequest(GROUP, client_id, frozenset({MessageQueue(SUBJECT, "b", 0)})).to_json()
    return body


async def java_locks(master: OrderedBroker, client_id: str = "java") -> bool:
    call = await master.call(41, lock_body(client_id))
    assert call.answer is not None
    return bool(LockBatchResponse.from_json(call.answer.body).lock_ok_mq_set)


async def test_a_session_claims_pulls_and_acknowledges(brokers: Brokers) -> None:
    """A new session begins behind what is acknowledged; a lost answer to a pull loses nothing
    (statement 60)."""
    master = await brokers.master()
    await master.send(5)
    first = await master.claim()
    pulled = await master.pull(0)
    again = await master.pull(0)
    acked = await master.ack(0, 2)
    second = await master.claim(2, "s2")
    repulled = await master.pull(3, 2, "s2")

    assert first.ext == {"position": "0", "maxOffset": "5", "sealedEnd": "-1", "groupPosition": "-1"}
    assert (pulled.code, again.code) == (FOUND, FOUND)
    assert pulled.answer is not None and again.answer is not None  # noqa: PT018  # for the type checker
    assert pulled.answer.body == again.answer.body
    assert (acked.code, acked.ext["position"]) == (0, "3")
    assert second.ext["position"] == "3"
    assert (repulled.code, repulled.ext["nextBeginOffset"]) == (FOUND, "5")


async def test_nothing_is_answered_before_it_is_confirmed(brokers: Brokers) -> None:
    """Claims, acks and releases are answered when every in-sync replica has their records (statement 54)."""
    master = await brokers.master()
    await master.send(2)
    claim = await master.start(21_032, **owner(), pulledTo=-1)
    early = [claim.code]
    await master.confirm()
    await master.pull(0)
    ack = await master.start(21_033, **owner(), first=0, last=1)
    early.append(ack.code)
    await master.confirm()
    release = await master.start(21_034, **owner())
    early.append(release.code)
    await master.confirm()

    assert early == [None, None, None]
    assert [claim.code, ack.code, release.code] == [0, 0, 0]
    assert release.ext == {"released": "true", "position": "2"}


async def test_a_claim_fences_before_it_is_confirmed(brokers: Brokers) -> None:
    """From the moment on that a newer epoch is heard of, the older one neither pulls nor acknowledges
    (statement 55)."""
    master = await brokers.master()
    await master.send(3)
    await master.claim()
    await master.pull(0)
    await master.start(21_032, **owner(2, "s2"), pulledTo=-1)
    ack = await master.start(21_033, **owner(), first=0, last=0)
    pull = await master.start(11, **pull_fields(0))
    claim = await master.start(21_032, **owner(), pulledTo=-1)

    assert {ack.code, pull.code, claim.code} == {STALE}
    assert master.position() is None


async def test_a_stale_epoch_changes_nothing(brokers: Brokers) -> None:
    """A pull, an ack, a copy and a release of a stale epoch are refused, and change nothing
    (statements 53, 55)."""
    master = await brokers.master()
    await master.send(3)
    await master.claim()
    await master.pull(0)
    await master.claim(2, "s2")
    end = master.store.max_offset
    pull = await master.pull(0)
    ack = await master.ack(0, 1)
    back = await master.call(21_035, **owner(), queueOffset=0, dead="false", maxReconsumeTimes=16)
    release = await master.release()

    assert {pull.code, ack.code, back.code} == {STALE}
    assert (release.code, release.ext["released"]) == (0, "false")
    assert master.store.max_offset == end
    assert (await master.pull(0, 2, "s2")).code == FOUND
    refused = {kind: count for kind, count in master.counters.fenced.items() if count}
    assert refused == {"pull": 1, "ack": 1, "send back": 1}


async def test_an_epoch_belongs_to_one_session(brokers: Brokers) -> None:
    """Another session with the same epoch is refused; the same one may claim again (statement 53)."""
    master = await brokers.master()
    await master.claim()
    other = await master.claim(1, "s2")
    same = await master.claim()

    assert (other.code, same.code) == (STALE, 0)


async def test_an_ack_neither_jumps_nor_goes_back(brokers: Brokers) -> None:
    """An ack with a gap is refused, and the position never jumps over what was not acknowledged; one that
    comes again, or overlaps, changes nothing or the rest (statements 56, 58)."""
    master = await brokers.master()
    await master.send(6)
    await master.claim()
    await master.pull(0)
    gap = await master.ack(1, 2)
    first = await master.ack(0, 2)
    again = await master.ack(0, 2)
    overlapping = await master.ack(1, 4)
    old = await master.ack(0, 0)

    assert (gap.code, gap.ext["position"]) == (REFUSED, "0")
    assert [call.ext["position"] for call in (first, again, overlapping, old)] == ["3", "3", "5", "5"]
    assert master.position() == 5


async def test_acks_in_flight_build_on_each_other(brokers: Brokers) -> None:
    """Two acks on their way are decided as one after the other, whatever is confirmed (statement 56)."""
    master = await brokers.master()
    await master.send(6)
    await master.claim()
    await master.pull(0)
    calls = [
        await master.start(21_033, **owner(), first=first, last=last)
        for first, last in ((0, 1), (2, 3), (5, 5), (4, 4))
    ]
    assert [call.code for call in calls] == [None] * 4
    await master.confirm()

    assert [call.code for call in calls] == [0, 0, REFUSED, 0]
    assert master.position() == 5


async def test_an_ack_beyond_what_was_given_is_refused(brokers: Brokers) -> None:
    """What the session was not given, or what is not in the log, is not acknowledged (statement 57)."""
    master = await brokers.master()
    await master.send(6)
    await master.claim()
    await master.pull(0, maxMsgNums=3)
    not_given = await master.ack(0, 3)
    beyond = await master.ack(0, 99)
    given = await master.ack(0, 2)

    assert (not_given.code, beyond.code, given.code) == (REFUSED, REFUSED, 0)
    assert master.position() == 3


async def test_a_session_cannot_pull_past_what_it_was_given(brokers: Brokers) -> None:
    """A pull further on would count as given what nobody has seen (statement 57)."""
    master = await brokers.master()
    await master.send(6)
    await master.claim()
    jump = await master.pull(3)
    claimed = await master.claim(pulled_to=3)
    following = await master.pull(3)

    assert (jump.code, claimed.code, following.code) == (OUT_OF_RANGE, 0, FOUND)


async def test_pulled_to_behind_the_end_is_an_error(brokers: Brokers) -> None:
    """A position behind the end of the queue after a failover is an explicit error, with the real end
    (statement 66)."""
    master = await brokers.master()
    await master.send(2)
    beyond = await master.claim(pulled_to=7)
    pull = await master.pull(0)
    resynced = await master.claim(pulled_to=-1)

    assert (beyond.code, beyond.ext["maxOffset"]) == (OUT_OF_RANGE, "2")
    assert pull.code == NOT_CLAIMED
    assert (resynced.code, resynced.ext["position"]) == (0, "0")


async def test_a_position_behind_the_end_comes_back_to_it(brokers: Brokers) -> None:
    """Messages that get the numbers of lost ones are not skipped (statement 66)."""
    master = await brokers.master()
    await master.send(2)
    master.offsets.commit(GROUP, SUBJECT, 0, 50)
    claimed = await master.claim()
    await master.call(310, b"2", **_next(2))
    pulled = await master.pull(2)

    assert claimed.ext["position"] == "2"
    assert (pulled.code, pulled.ext["nextBeginOffset"]) == (FOUND, "3")


def _next(sequence: int) -> dict[str, object]:
    return send_one(sequence=sequence)


async def test_a_session_without_claim_on_this_master_must_claim(brokers: Brokers) -> None:
    """Without a claim there is neither pull nor ack, and the code says so (statement 68)."""
    master = await brokers.master()
    await master.send(1)
    pull = await master.pull(0)
    ack = await master.ack(0, 0)

    assert (pull.code, ack.code) == (NOT_CLAIMED, NOT_CLAIMED)


async def test_a_new_owner_ends_the_parked_pull_of_the_old_one(brokers: Brokers) -> None:
    """A claim ends the old owner's parked pull, which cannot take the queue again (statement 63)."""
    master = await brokers.master()
    await master.claim()
    parked = await master.start(11, **pull_fields(0))
    waiting = parked.code
    await master.start(21_032, **owner(2, "s2"), pulledTo=-1)
    ended = parked.code
    await master.confirm()
    back = await master.claim()

    assert (waiting, ended, back.code) == (None, STALE, STALE)
    assert len(master.parked) == 0


async def test_a_release_ends_the_parked_pull_and_the_session(brokers: Brokers) -> None:
    """Who has released neither pulls nor acknowledges nor claims by the same epoch, and a second release is
    answered as the first (statement 63)."""
    master = await brokers.master()
    await master.send(2)
    await master.claim()
    await master.pull(0)
    parked = await master.start(11, **pull_fields(2))
    released = await master.release()
    repeated = await master.release()
    refused = [await master.claim(), await master.pull(0), await master.ack(0, 0)]
    successor = await master.claim(2, "s2")

    assert parked.code == STALE
    assert released.ext == repeated.ext == {"released": "true", "position": "0"}
    assert [call.code for call in refused] == [STALE] * 3
    assert successor.code == 0


async def test_a_filtered_pull_moves_on(brokers: Brokers) -> None:
    """A pull whose messages are all filtered moves on, and what was passed by can be acknowledged
    (statement 64)."""
    master = await brokers.master()
    await master.send(4)
    await master.claim()
    filtered = await master.pull(0, subscription="nobody")
    acked = await master.ack(0, 3)

    assert filtered.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert filtered.ext["nextBeginOffset"] == "4"
    assert (acked.code, acked.ext["position"]) == (0, "4")


# -- RocketMQ's clients next to sessions ------------------------------------------------------------------


async def test_a_rocketmq_client_and_a_session_do_not_hold_a_queue_together(brokers: Brokers) -> None:
    """The lock of codes 41 and 42 is the session's, too: each keeps the other out, and a higher epoch
    replaces a session's lock at once (statement 53)."""
    master = await brokers.master()
    assert await java_locks(master)
    refused = await master.claim()
    await master.call(42, lock_body())
    claimed = await master.claim()
    kept_out = await java_locks(master)
    replaced = await master.claim(2, "s2")

    assert (refused.code, claimed.code, replaced.code) == (LOCKED, 0, 0)
    assert not kept_out


async def test_a_lock_lives_30_s_from_the_last_pull_or_ack(brokers: Brokers) -> None:
    """A session's lock ends 30 s after its last pull, ack or claim, on the monotonic clock (statements 49,
    53)."""
    master = await brokers.master()
    await master.send(3)
    await master.claim()
    master.clock.advance(LIFE_MS - 1)
    await master.pull(0)
    master.clock.advance(LIFE_MS - 1)
    await master.ack(0, 0)
    master.clock.advance(LIFE_MS - 1)
    master.clock.jump(3_600_000)
    early = await java_locks(master)
    master.clock.advance(2)
    late = await java_locks(master)
    pull, ack = await master.pull(0), await master.ack(1, 1)

    assert (early, late) == (False, True)
    assert (pull.code, ack.code) == (LOCKED, LOCKED)
    assert master.position() == 1


async def test_refusals_have_codes_of_their_own(brokers: Brokers) -> None:
    """A queue that is locked and a parameter that is wrong are told apart by their codes (statement 68)."""
    master = await brokers.master()
    await java_locks(master)
    locked = await master.claim()
    wrong = await master.claim(queue_id=9)
    unknown = await master.claim(topic="nothing")

    assert locked.code == LOCKED
    assert wrong.code == ResponseCode.INVALID_PARAMETER
    assert unknown.code == ResponseCode.BROKERSET_SUBJECT_UNKNOWN


async def test_plain_pulls_and_commits_of_the_group_are_refused_while_it_is_claimed(
    brokers: Brokers,
) -> None:
    """A client without epoch neither reads nor moves what a session has claimed; other groups are free."""
    master = await brokers.master()
    await master.send(2)
    await master.claim()
    pull = await master.pull(0, None)
    commit = await master.call(15, topic=SUBJECT, consumerGroup=GROUP, queueId=0, commitOffset=2)
    other = await master.pull(0, None, group="audit")
    before = master.position()
    await master.release()
    released = await master.pull(0, None)

    assert (pull.code, commit.code, before) == (STALE, STALE, None)
    assert (other.code, released.code) == (FOUND, FOUND)


async def test_a_pull_commits_no_offset_of_a_claimed_queue(brokers: Brokers) -> None:
    """The offset that a pull may carry is no ack; other groups commit by it as ever."""
    master = await brokers.master()
    await master.send(4)
    await master.claim()
    await master.pull(0, sysFlag=7, commitOffset=3)
    await master.pull(0, None, group="audit", sysFlag=7, commitOffset=3)

    assert master.position() is None
    assert master.offsets.query("audit", SUBJECT, 0) == 3


# -- resets -----------------------------------------------------------------------------------------------


async def reset(master: OrderedBroker, offset: int) -> None:
    call = await master.call(
        222, topic=SUBJECT, group=GROUP, queueId=0, timestamp=-1, isForce="true", offset=offset
    )
    assert call.code == 0, call.remark


async def test_a_reset_ends_the_session_of_pulls(brokers: Brokers) -> None:
    """An administrator's reset fences who owns the queue: acks of before are refused, the next pull is told,
    and the session claims again from the new position (statement 70)."""
    master = await brokers.master()
    await master.send(6)
    await master.claim()
    await master.pull(0)
    await master.ack(0, 3)
    await reset(master, 1)
    late = await master.ack(4, 5)
    told = await master.pull(6)
    unclaimed = await master.pull(1)
    claimed = await master.claim(pulled_to=6)
    stale = await master.ack(1, 5)
    pulled, acked = await master.pull(1), await master.ack(1, 5)

    assert late.code == NOT_CLAIMED
    assert (told.code, told.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    assert unclaimed.code == NOT_CLAIMED
    assert (claimed.code, claimed.ext["position"]) == (0, "1")
    assert (stale.code, stale.ext["position"]) == (REFUSED, "1")
    assert (pulled.code, acked.ext["position"]) == (FOUND, "6")


async def test_a_reset_ends_a_parked_pull(brokers: Brokers) -> None:
    """A parked pull is told of the reset at once (statement 70)."""
    master = await brokers.master()
    await master.send(2)
    await master.claim()
    await master.pull(0)
    parked = await master.start(11, **pull_fields(2))
    before = parked.code
    await reset(master, 0)

    assert before is None
    assert (parked.code, parked.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")


async def test_a_claim_tells_a_reset_that_waits(brokers: Brokers) -> None:
    """A reset that no pull was told is in the position that a claim answers; what was pulled before counts no
    more (statement 70)."""
    master = await brokers.master()
    await master.send(6)
    await master.claim()
    await master.pull(0)
    await reset(master, 2)
    claimed = await master.claim(pulled_to=6)
    stale = await master.ack(2, 5)
    pulled = await master.pull(2)

    assert claimed.ext["position"] == "2"
    assert stale.code == REFUSED
    assert pulled.code == FOUND


# -- copies for retry -------------------------------------------------------------------------------------


async def test_a_message_comes_again_later_from_the_retry_topic(brokers: Brokers) -> None:
    """A copy goes to the queue of the same number of the group's retry topic, once, not before its delay; the
    owner claims that queue by the same epoch (statement 69)."""
    master = await brokers.master(queues=2)
    await master.send(3, queue_id=1)
    await master.claim(queue_id=1)
    await master.pull(0, queueId=1)
    fields = owner(queue_id=1) | {"queueOffset": 1, "dead": "false", "maxReconsumeTimes": 16}
    first = await master.call(21_035, **fields)
    again = await master.call(21_035, **fields)
    claimed = await master.claim(topic=RETRY, queue_id=1)
    early = await master.pull(0, topic=RETRY, queueId=1, suspendTimeoutMillis=0, sysFlag=4)

    assert (first.code, again.code, claimed.code) == (0, 0, 0)
    assert early.code == ResponseCode.PULL_NOT_FOUND
    assert bodies(master, "SCHEDULE_TOPIC_XXXX", 2) == [b"1"]
    config = master.topics.get(RETRY)
    assert config is not None
    assert config.read_queue_nums == 2
    assert master.position(1) is None


async def test_a_message_that_is_given_up_is_dead(brokers: Brokers) -> None:
    """After its tries, or when the session says so, a message goes to the group's dead letters."""
    master = await brokers.master()
    await master.send(2)
    await master.claim()
    await master.pull(0)
    for queue_offset, dead, times in ((0, "true", 16), (1, "false", 0)):
        call = await master.call(
            21_035, **owner(), queueOffset=queue_offset, dead=dead, maxReconsumeTimes=times
        )
        assert call.code == 0

    assert bodies(master, f"%DLQ%{GROUP}") == [b"0", b"1"]


async def test_only_what_was_given_is_sent_back(brokers: Brokers) -> None:
    """A session has no copies made of what it was not given."""
    master = await brokers.master()
    await master.send(3)
    await master.claim()
    await master.pull(0, maxMsgNums=1)
    call = await master.call(21_035, **owner(), queueOffset=2, dead="false", maxReconsumeTimes=16)

    assert call.code == OUT_OF_RANGE


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (21_032, {"epoch": -1, "pulledTo": -1}),
        (21_032, {"epoch": "x", "pulledTo": -1}),
        (21_032, {"session": "", "pulledTo": -1}),
        (21_032, {"session": "s" * 500, "pulledTo": -1}),
        (21_032, {"pulledTo": -2}),
        (21_032, {"consumerGroup": "no/group", "pulledTo": -1}),
        (21_033, {"first": 3, "last": 1}),
        (21_033, {"first": -1, "last": 1}),
        (21_034, {"queueId": -1}),
        (21_035, {"queueOffset": 0, "dead": "false", "maxReconsumeTimes": -1}),
        (11, {"brokersetEpoch": "1x"}),
        (11, {"brokersetSession": ""}),
    ],
)
async def test_bad_fields_are_refused_by_name(brokers: Brokers, code: int, fields: dict[str, object]) -> None:
    """What cannot be is refused, and changes nothing (statement 68)."""
    master = await brokers.master()
    base = pull_fields(0) if code == 11 else owner()
    call = await master.call(code, **(base | fields))

    assert call.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)
    assert call.remark
    assert master.ordered.state.fences == {}


async def test_a_slave_serves_no_session(brokers: Brokers) -> None:
    """A slave answers no pull of a session, and refuses plain ones of what is claimed."""
    master, slave = await brokers.master(), brokers.make("slave")
    await slave.metadata.start_following()
    await master.send(2)
    await master.claim()
    await master.copy_to(slave)
    slave.log.confirm(master.log.max_offset)
    await turns()
    pull = await slave.start(11, **pull_fields(0))
    plain = await slave.start(11, **pull_fields(0, None))
    other = await slave.start(11, **pull_fields(0, None, group="audit"))

    assert pull.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (plain.code, other.code) == (STALE, FOUND)


@pytest.mark.parametrize("late", [False, True])
async def test_a_release_leaves_no_mark_that_a_fence_is_on_its_way(brokers: Brokers, late: bool) -> None:
    """Neither one that is repeated, nor one of a claim that was not confirmed in time: while there is a mark,
    pulls of all topics have to search for fences."""
    master = await brokers.master()
    with mock.patch.object(metadata_log, "CHANGE_SECONDS_MAX", 0.0 if late else 15.0):
        claim = await (master.start if late else master.call)(21_032, **owner(), pulledTo=-1)
    releases = [await master.release() for _ in range(1 if late else 2)]

    assert (claim.code == 0) is not late
    assert {release.ext["released"] for release in releases} == {"true"}
    assert master.ordered.state.fence(SUBJECT, GROUP, 0) == (1, "s1", True)
    assert master.ordered.claims.raised == {}
