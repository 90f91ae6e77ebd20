"""Permissions and assignments: what consumers are answered, and what happens when things overlap."""

from __future__ import annotations

import asyncio
import random

import pytest

from brokerset_controller.ordered.events import (
    Drained,
    Event,
    MemberJoined,
    MemberLeft,
    Reassigned,
    Released,
    RetriesFinished,
)
from brokerset_protocol.bodies.ordered import (
    AssignmentBody,
    DrainedPartition,
    FinishedPartition,
    OwnedReport,
    ReleasedPartition,
)
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.ordered import ConsumerHeartbeatResponse
from brokerset_protocol.subject_words import ConsumeStrategy
from brokerset_raft.engine import OutcomeUnknown, Overloaded
from brokerset_rig.subject_bench import GROUP, SUBJECT, SubjectBench, make_subject_bench
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual


async def beating(bench: SubjectBench, *sessions: str, seconds: float, every: float = 5.0) -> None:
    """These send heartbeats for so long, and release what is revoked."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    while loop.time() < ends_at:
        for session in sessions:
            await beat_and_release(bench, session)
        await asyncio.sleep(every)


async def beat_and_release(bench: SubjectBench, session: str) -> AssignmentBody:
    """A heartbeat of one that stops at once where it shall, and says so with the next one."""
    body = await bench.assigned(session)
    revoked = tuple(
        ReleasedPartition(each.partition_id, each.epoch) for each in body.partitions if each.revoked
    )
    return await bench.assigned(session, OwnedReport(released=revoked)) if revoked else body


def joined(session: str) -> MemberJoined:
    return MemberJoined(SUBJECT, GROUP, ConsumeStrategy.EXCLUSIVE, session, "client", 30_000)


# What is answered.


async def test_a_heartbeat_is_answered_with_a_permission_and_everything_that_the_session_owns() -> None:
    """Lengths, the version that 21028 asks about, and each partition with its epoch."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        first = await bench.beat("s")
        await bench.settle()
        answer = await bench.beat("s")

    header = ConsumerHeartbeatResponse.from_ext(answer.ext)
    body = AssignmentBody.from_json(answer.body)
    assert (header.permission_ms, header.margin_ms, header.heartbeat_ms) == (30_000, 5_000, 5_000)
    assert header.version == body.version == bench.subject.groups[GROUP].version
    assert AssignmentBody.from_json(first.body).partitions == ()
    assert [(e.partition_id, e.epoch, e.broker_group, e.queue_id) for e in body.partitions] == [
        (0, 1, "a", 0),
        (1, 2, "b", 0),
    ]


async def test_partitions_are_shared_out_evenly_and_those_that_are_too_many_get_none() -> None:
    """Without being assigned again and again (statements 11, 12)."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(5)
        await beating(bench, "a", "b", "c", seconds=10.0)
        counts = sorted(list(bench.owners().values()).count(each) for each in "abc")
        await beating(bench, *"abcdefg", seconds=20.0)
        version = bench.subject.groups[GROUP].version
        await beating(bench, *"abcdefg", seconds=60.0)

    assert counts == [1, 2, 2]
    assert sorted(bench.owners()) == list(range(5))
    assert len(set(bench.owners().values())) == 5
    assert bench.subject.groups[GROUP].version == version


async def test_a_stable_group_keeps_its_version() -> None:
    """Over many heartbeats and passes of the leader (statement 14)."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(4)
        await beating(bench, "a", "b", seconds=10.0)
        before, proposed = bench.subject, len(bench.engine.proposed)
        await beating(bench, "a", "b", seconds=900.0)

    assert bench.subject == before
    assert len(bench.engine.proposed) == proposed


@pytest.mark.parametrize("members", [1, 2, 3, 5])
async def test_one_that_joins_or_leaves_moves_no_more_than_its_part(members: int) -> None:
    """At most ceil(P/n) of 16 partitions (statement 15)."""
    bench = make_subject_bench()
    sessions = [f"s{number}" for number in range(members)]
    async with bench.running():
        await bench.create(16)
        await beating(bench, *sessions, seconds=10.0)
        before = bench.owners()
        await beating(bench, *sessions, "new", seconds=10.0)
        more = bench.owners()
        await bench.assigned("new", leaving=True)
        await beating(bench, *sessions, seconds=10.0)
        after = bench.owners()

    most = -(-16 // members)
    assert sum(more[number] != before[number] for number in before) <= most
    assert sum(after[number] != more[number] for number in more) <= most
    assert set(after.values()) == set(sessions)


async def test_two_processes_with_one_client_id_never_own_one_partition() -> None:
    """Each has a session (statement 22)."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(1)
        for session in ("first", "second"):
            await bench.assigned(session, client_id="the same")
        await bench.settle()
        owned = [
            (await bench.assigned(each, client_id="the same")).partitions for each in ("first", "second")
        ]

    assert sorted(len(each) for each in owned) == [0, 1]


@pytest.mark.parametrize("more", [{"consume": "Shared"}, {"order": "BestTried"}, {"consume": "Neither"}])
async def test_who_wants_another_strategy_is_refused_and_gets_nothing(more: dict[str, str]) -> None:
    """A group does not change, and strategies are not mixed (statement 21)."""
    bench = make_subject_bench()
    await bench.create(2)
    await bench.assigned("s")
    before = bench.subject

    answer = await bench.beat("t", **more)  # type: ignore[arg-type]  # names of arguments

    assert answer.code == ResponseCode.BROKERSET_SUBJECT_REFUSED
    assert (answer.ext, answer.body) == ({}, b"")
    assert bench.subject == before


async def test_members_of_a_shared_group_have_everything_and_drain_together() -> None:
    """By the epoch of the group: nobody owns anything. Any member says what all have drained and finished."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        for session in ("s", "t"):
            body = await bench.assigned(session, group="shared", consume="Shared")
            assert [(each.partition_id, each.epoch) for each in body.partitions] == [(0, 1), (1, 1)]
        assert (await bench.scale(1)).code == 0
        await bench.settle()
        drained = OwnedReport(drained=(DrainedPartition(0, 1, 100), DrainedPartition(1, 1, 100)))
        after = await bench.assigned("s", drained, group="shared", consume="Shared")
        assert [(each.partition_id, each.retries_only) for each in after.partitions] == [
            (0, True),
            (1, True),
            (2, False),
        ]
        finished = OwnedReport(finished=(FinishedPartition(0, 1), FinishedPartition(1, 9)))
        await bench.assigned("t", finished, group="shared", consume="Shared")
        last = await bench.assigned("s", group="shared", consume="Shared")

    assert [each.partition_id for each in last.partitions] == [1, 2]


async def test_drained_finished_and_released_may_be_reported_at_once() -> None:
    """Each needs the one before it to be agreed on; repeated they change nothing."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2, order="BestTried")
        await bench.assigned("s")
        await bench.settle()
        assert (await bench.scale(1)).code == 0
        await bench.settle()
        owned = (await bench.assigned("s")).partitions
        await bench.assigned("t")
        await bench.settle()
        (revoked,) = (each for each in (await bench.assigned("s")).partitions if each.revoked)
        kept = next(each for each in owned if each.partition_id != revoked.partition_id)
        report = OwnedReport(
            released=(ReleasedPartition(revoked.partition_id, revoked.epoch),),
            drained=tuple(DrainedPartition(each.partition_id, each.epoch, 100) for each in owned),
            finished=(FinishedPartition(kept.partition_id, kept.epoch),),
        )
        await bench.assigned("s", report)
        group = bench.subject.groups[GROUP]
        await bench.assigned("s", report)
        await bench.settle()
        await bench.assigned("s", report)

    assert (group.drained, group.finished) == (frozenset({0, 1}), frozenset({kept.partition_id}))
    assert len(bench.engine.proposals(Drained)) == 2
    assert len(bench.engine.proposals(RetriesFinished)) == len(bench.engine.proposals(Released)) == 1
    assert kept.partition_id not in bench.owners()


async def test_a_change_of_partitions_is_another_version_for_the_group() -> None:
    """Also when no owner changes: the end of a sealed partition must be heard of, in order (statement 18)."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(1)
        await bench.assigned("s")
        await bench.settle()
        before = await bench.assigned("s")
        assert (await bench.scale(2)).code == 0
        await bench.settle()
        after = await bench.assigned("s")

    assert (after.generation, after.version) > (before.generation, before.version)
    assert after.version > before.version
    assert (before.partitions[0].sealed_end, after.partitions[0].sealed_end) == (None, 100)


async def test_a_group_that_is_removed_and_comes_again_goes_on_with_its_version() -> None:
    """A session that lives on would ignore lower ones (statement 18)."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        await bench.assigned("s")
        await bench.settle()
        before = (await bench.assigned("s")).version
        await bench.assigned("s", leaving=True)
        answer = await bench.ask(21_029, {"subject": SUBJECT, "consumerGroup": GROUP})
        assert answer.code == 0
        again = (await bench.assigned("s")).version

    assert again > before


# Reports.


async def test_what_is_released_is_granted_to_who_waits_for_it() -> None:
    """With a higher epoch; repeating the report changes nothing."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        await bench.assigned("s")
        await bench.settle()
        await bench.assigned("t")
        await bench.settle()
        (revoked,) = [each for each in (await bench.assigned("s")).partitions if each.revoked]
        report = OwnedReport(released=(ReleasedPartition(revoked.partition_id, revoked.epoch),) * 2)
        for _ in range(3):
            await bench.assigned("s", report)
            await bench.settle()
        (granted,) = (await bench.assigned("t")).partitions

    assert granted.partition_id == revoked.partition_id
    assert granted.epoch > revoked.epoch
    assert len(bench.engine.proposals(Released)) == 1


async def test_nobody_releases_drains_or_finishes_what_another_session_owns() -> None:
    """Whoever guesses an epoch takes nothing from others."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2, order="BestTried")
        await bench.assigned("s")
        await bench.settle()
        assert (await bench.scale(4)).code == 0
        await bench.settle()
        owned = (await bench.assigned("s")).partitions
        report = OwnedReport(
            tuple(ReleasedPartition(each.partition_id, each.epoch) for each in owned),
            tuple(DrainedPartition(each.partition_id, each.epoch, 100) for each in owned),
            tuple(FinishedPartition(each.partition_id, each.epoch) for each in owned),
        )
        await bench.assigned("stranger", report)
        assert [bench.engine.proposals(kind) for kind in (Released, Drained, RetriesFinished)] == [[]] * 3
        await bench.assigned("s", OwnedReport(drained=report.drained))
        await bench.assigned("stranger", report)

    assert [len(bench.engine.proposals(kind)) for kind in (Released, Drained, RetriesFinished)] == [0, 2, 0]
    assert set(bench.owners().values()) >= {"s"}


async def test_one_that_leaves_reports_leaves_and_owns_nothing() -> None:
    """Others get its partitions at once (statement 16)."""
    bench = make_subject_bench()
    loop = asyncio.get_running_loop()
    async with bench.running():
        await bench.create(2)
        await beating(bench, "s", "t", seconds=10.0)
        assert sorted(bench.owners().values()) == ["s", "t"]
        since = loop.time()
        body = await bench.assigned("s", leaving=True)
        await until(lambda: bench.owners() == {0: "t", 1: "t"}, pause=0.001)
        took = loop.time() - since
        again = await bench.beat("s", leaving=True)

    assert body.partitions == ()
    assert again.code == 0
    assert ConsumerHeartbeatResponse.from_ext(again.ext).permission_ms == 0
    assert took < 0.02
    assert bench.measurements.departures == 1


# Permissions.


@pytest.mark.parametrize("beat_at", [0.0, 3.0, 17.5])
async def test_a_silent_member_is_replaced_after_permission_and_margin(beat_at: float) -> None:
    """Not before, and no more than a few moments later (statement 16)."""
    bench = make_subject_bench()
    loop = asyncio.get_running_loop()
    async with bench.running():
        await bench.create(1)
        await bench.assigned("s")
        await bench.settle()
        await bench.assigned("t")
        await asyncio.sleep(beat_at)
        await bench.assigned("s")
        silent_since = loop.time()
        while bench.owners() != {0: "t"}:
            assert bench.owners() in ({0: "s"}, {})
            await bench.assigned("t")
            await asyncio.sleep(0.05)
        took = loop.time() - silent_since

    assert 35.0 <= took < 35.5


async def test_wall_clocks_mean_nothing() -> None:
    """Jumps of a minute on the controller change no assignment (statements 20, 79)."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        await beating(bench, "s", "t", seconds=10.0)
        before = bench.subject
        for jump in (60_000, -120_000, 300_000):
            bench.clock.wall_ms += jump
            await beating(bench, "s", "t", seconds=40.0)

    assert bench.subject == before
    assert bench.engine.proposals(MemberLeft) == []


@pytest.mark.parametrize("rate", [0.9, 1.0, 1.1])
async def test_a_controller_whose_clock_runs_at_another_rate_waits_long_enough(rate: float) -> None:
    """A member with a true clock has stopped before another owns what it had (statement 82)."""
    bench = make_subject_bench()
    bench.clock.rate = rate
    loop = asyncio.get_running_loop()
    async with bench.running():
        await bench.create(1)
        await bench.assigned("s")
        await bench.settle()
        sent_at = loop.time()
        await bench.assigned("s")
        await bench.assigned("t")
        while bench.owners() != {0: "t"}:
            await bench.assigned("t")
            await asyncio.sleep(0.05)

        assert loop.time() - sent_at > 30.0


async def test_a_new_leader_waits_for_members_that_it_has_not_heard() -> None:
    """Its predecessor may have given permissions until it began to lead (statements 19, 20)."""
    bench = make_subject_bench()
    loop = asyncio.get_running_loop()
    async with bench.running():
        await bench.create(2)
        await beating(bench, "s", "t", seconds=31.0)
        bench.engine.follow(1)
        bench.service.role_changed()
        await bench.settle(20.0)
        refused = await bench.beat("s")
        bench.engine.lead()
        bench.service.role_changed()
        since = loop.time()
        while "s" in bench.subject.groups[GROUP].members:
            await bench.assigned("t")
            await asyncio.sleep(0.1)
        took = loop.time() - since

    assert (refused.code, refused.body) == (ResponseCode.CONTROLLER_NOT_LEADER, b"")
    assert 35.0 <= took < 35.5
    assert set(bench.owners().values()) == {"t"}


async def test_five_minutes_without_agreement_change_nothing() -> None:
    """Consumers get neither another assignment nor a permission, and go on by themselves (statement 19)."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        await beating(bench, "s", "t", seconds=10.0)
        before = bench.owners()

        async def stuck(*_: object) -> None:
            await asyncio.sleep(5.0)
            raise OutcomeUnknown("no majority")

        bench.engine.on_barrier = bench.engine.on_propose = stuck
        for _ in range(30):
            answers = [await bench.beat(each) for each in ("s", "t")]
            assert {answer.code for answer in answers} <= {
                ResponseCode.SYSTEM_ERROR,
                ResponseCode.SYSTEM_BUSY,
            }
            assert {answer.body for answer in answers} == {b""}
        assert bench.owners() == before
        bench.engine.on_barrier = bench.engine.on_propose = None
        bench.engine.lead()  # who had no majority had stepped down; what it proposed is nowhere
        bench.service.role_changed()
        await beating(bench, "s", "t", seconds=60.0)

    assert bench.owners() == before
    assert bench.engine.proposals(MemberLeft) != []


async def test_the_length_of_a_permission_is_that_of_the_joining() -> None:
    """Another setting counts for those that join later: a leader with a shorter one must wait for others."""
    bench = make_subject_bench()
    loop = asyncio.get_running_loop()
    async with bench.running():
        await bench.create(2)
        await bench.assigned("s")
        bench.settings = type(bench.settings)(consumer_permission=12_000)
        long, short = await bench.beat("s"), await bench.beat("t")
        since = loop.time()
        bench.engine.lead()
        gone: dict[str, float] = {}
        while len(gone) < 2:
            await asyncio.sleep(0.1)
            for session in {"s", "t"} - set(bench.subject.groups[GROUP].members) - set(gone):
                gone[session] = loop.time() - since

    assert ConsumerHeartbeatResponse.from_ext(long.ext).permission_ms == 30_000
    assert ConsumerHeartbeatResponse.from_ext(short.ext).permission_ms == 12_000
    assert 17.0 <= gone["t"] < 17.5
    assert 35.0 <= gone["s"] < 35.5


# What overlaps.


async def test_who_has_just_joined_is_not_taken_for_a_silent_member_of_before() -> None:
    """Although its heartbeat is not answered yet, and the leadership is old."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(1)
        await asyncio.sleep(100.0)

        async def slow() -> None:
            await asyncio.sleep(3.0)

        bench.engine.on_barrier = slow
        bench.engine.commit(joined("s"))
        await bench.settle(34.5)
        assert list(bench.subject.groups[GROUP].members) == ["s"]
        assert bench.engine.proposals(MemberLeft) == []
        await bench.settle(1.0)
        assert list(bench.subject.groups[GROUP].members) == [], "nor stays one that is never heard again"


async def test_a_heartbeat_waits_for_a_departure_that_may_be_applied_yet_and_joins_again() -> None:
    """The session gets a permission only as the member that it is after it."""
    bench = make_subject_bench()
    loop = asyncio.get_running_loop()
    release = asyncio.Event()

    async def delayed(event: Event) -> None:
        if isinstance(event, MemberLeft):
            await release.wait()

    async with bench.running():
        await bench.create(1)
        await bench.assigned("s")
        await bench.settle()
        bench.engine.on_propose = delayed
        await bench.settle(40.0)
        assert len(bench.engine.proposals(MemberLeft)) == 1
        assert bench.owners() == {0: "s"}
        beat = asyncio.create_task(bench.beat("s"))
        await asyncio.sleep(1.0)
        assert not beat.done()
        since = loop.time()
        release.set()
        answer = await beat
        assert loop.time() - since < 0.1
        await bench.settle()

    assert answer.code == 0
    assert AssignmentBody.from_json(answer.body).partitions == ()
    assert bench.subject.groups[GROUP].ownerships[0].epoch == 2
    kinds = [type(each).__name__ for each in bench.engine.proposed[-4:]]
    assert kinds[1:3] == ["MemberLeft", "MemberJoined"]


async def test_a_heartbeat_is_not_answered_over_a_departure_that_began_meanwhile() -> None:
    """It arrived before the permission ended, and its barrier took longer: it joins again."""
    bench = make_subject_bench()
    release = asyncio.Event()

    async def delayed(event: Event) -> None:
        if isinstance(event, MemberLeft):
            await release.wait()

    async def slow() -> None:
        await asyncio.sleep(2.0)

    async with bench.running():
        await bench.create(1)
        await bench.assigned("s")
        bench.engine.on_propose, bench.engine.on_barrier = delayed, slow
        await asyncio.sleep(34.5)
        assert bench.engine.proposals(MemberLeft) == []
        beat = asyncio.create_task(bench.beat("s"))
        await asyncio.sleep(3.0)
        assert len(bench.engine.proposals(MemberLeft)) == 1
        assert not beat.done()
        release.set()
        answer = await beat

    assert answer.code == 0
    assert len(bench.engine.proposals(MemberJoined)) == 2
    assert "s" in bench.subject.groups[GROUP].members


async def test_a_departure_whose_outcome_is_unknown_counts_until_it_is_applied() -> None:
    """Heartbeats are refused meanwhile, without a permission; then the session joins again."""
    bench = make_subject_bench()

    async def lost(event: Event) -> None:
        if isinstance(event, MemberLeft):
            raise OutcomeUnknown("no majority in time")

    async with bench.running():
        await bench.create(1)
        await bench.assigned("s")
        bench.engine.on_propose = lost
        await bench.settle(40.0)
        refused = await bench.beat("s")
        proposed = len(bench.engine.proposals(MemberLeft))
        bench.engine.on_propose = None
        bench.engine.commit(MemberLeft(SUBJECT, GROUP, "s"))
        answer = await bench.beat("s")

    assert proposed == 1, "it is not proposed again while it may be applied"
    assert (refused.code, refused.body) == (ResponseCode.SYSTEM_BUSY, b"")
    assert "is leaving" in (refused.remark or "")
    assert answer.code == 0
    assert "s" in bench.subject.groups[GROUP].members


async def test_a_departure_that_was_not_agreed_on_is_proposed_again() -> None:
    """Else what the member had would stay nobody's."""
    bench = make_subject_bench()
    refusals = 0

    async def full(event: Event) -> None:
        nonlocal refusals
        if isinstance(event, MemberLeft) and refusals < 3:
            refusals += 1
            raise Overloaded("full")

    async with bench.running():
        await bench.create(1)
        await bench.assigned("s")
        bench.engine.on_propose = full
        await bench.settle(40.0)

    assert refusals == 3
    assert bench.subject.groups[GROUP].members == {}


async def test_a_departure_of_an_earlier_leadership_does_not_refuse_heartbeats_permanently() -> None:
    """It was applied before this one began, or never will be."""
    bench = make_subject_bench()

    async def lost(event: Event) -> None:
        if isinstance(event, MemberLeft):
            raise OutcomeUnknown("no majority in time")

    async with bench.running():
        await bench.create(1)
        await bench.assigned("s")
        bench.engine.on_propose = lost
        await bench.settle(40.0)
        waiting = asyncio.create_task(bench.beat("s"))
        await asyncio.sleep(0.5)
        bench.engine.lead()
        bench.engine.on_propose = None
        bench.service.role_changed()
        interrupted, answer = await waiting, await bench.beat("s")

    assert answer.code == 0
    assert interrupted.code in (0, ResponseCode.CONTROLLER_NOT_LEADER)


async def test_a_session_that_leaves_while_its_heartbeat_is_answered_joins_again_or_gets_nothing() -> None:
    """The permission is given to what is a member in the same step."""
    bench = make_subject_bench()
    await bench.create(1)
    await bench.assigned("s")

    async def left() -> None:
        bench.engine.on_barrier = None
        bench.engine.commit(MemberLeft(SUBJECT, GROUP, "s"))

    bench.engine.on_barrier = left
    answer = await bench.beat("s")
    assert answer.code == 0
    assert "s" in bench.subject.groups[GROUP].members

    async def always() -> None:
        if "s" in bench.subject.groups[GROUP].members:
            bench.engine.commit(MemberLeft(SUBJECT, GROUP, "s"))

    async def always_after(event: Event) -> None:
        asyncio.get_running_loop().call_later(
            0.002, lambda: bench.engine.commit(MemberLeft(SUBJECT, GROUP, "s"))
        )

    bench.engine.on_barrier, bench.engine.on_propose = always, always_after
    refused = await bench.beat("s")
    assert refused.code in (0, ResponseCode.SYSTEM_BUSY)


async def test_a_leader_of_another_term_gives_nothing_to_a_heartbeat_of_before() -> None:
    """It has waited for other permissions than the one that was on its way."""
    bench = make_subject_bench()
    await bench.create(1)
    await bench.assigned("s")

    async def again(event: Event) -> None:
        bench.engine.on_propose = None
        bench.engine.follow(1)
        asyncio.get_running_loop().call_later(0.001, bench.engine.lead)

    bench.engine.on_propose = again
    answer = await bench.beat("t")

    assert (answer.code, answer.body) == (ResponseCode.CONTROLLER_NOT_LEADER, b"")


async def test_of_two_plans_that_come_at_once_one_is_applied() -> None:
    """The loser changes nothing, and the version grows once (statement 13)."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        await bench.assigned("s")
        await bench.settle()
        await bench.assigned("s", leaving=True)
        await bench.settle()
        version = bench.subject.groups[GROUP].version

        async def other(event: Event) -> None:
            if isinstance(event, Reassigned):
                bench.engine.on_propose = None
                bench.engine.commit(event)

        bench.engine.on_propose = other
        await bench.assigned("t")
        await bench.settle()

    assert bench.subject.groups[GROUP].version == version + 2  # one that joins, one plan
    assert bench.owners() == {0: "t", 1: "t"}


async def test_members_that_come_and_go_every_second_leave_each_partition_one_owner() -> None:
    """A minute of it; then everything is owned (statement 77, the controllers' part)."""
    bench = make_subject_bench()
    source = random.Random(5)
    async with bench.running():
        await bench.create(8)
        present: list[str] = []
        for second in range(60):
            if present and source.random() < 0.4:
                await bench.assigned(present.pop(source.randrange(len(present))), leaving=True)
            else:
                present.append(f"s{second}")
            for session in present:
                await beat_and_release(bench, session)
            await asyncio.sleep(1.0)
        await beating(bench, *present, seconds=10.0)
        counts = [list(bench.owners().values()).count(each) for each in present]

    assert sorted(bench.owners()) == list(range(8))
    assert max(counts) - min(counts) <= 1
