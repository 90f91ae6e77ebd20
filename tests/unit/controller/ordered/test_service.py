"""Requests about subjects, as a controller that leads answers them."""

from __future__ import annotations

import asyncio

import pytest

from brokerset_controller.ordered.events import (
    GenerationPrepared,
    MemberJoined,
    ProducerStarted,
    SubjectCreated,
    SubjectDeleted,
)
from brokerset_protocol.bodies.ordered import (
    DrainedPartition,
    OwnedReport,
    ReleasedPartition,
    SubjectRoute,
    SubjectState,
    SubjectStates,
)
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.ordered import (
    AssignmentChanged,
    CreateSubject,
    DeleteSubject,
    GetSubjectRoute,
    RemoveConsumerGroup,
    StartProducer,
)
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy
from brokerset_raft.engine import OutcomeUnknown
from brokerset_rig.subject_bench import GROUP, SUBJECT, SubjectBench, make_subject_bench
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual

CODE = RequestCode


async def route(bench: SubjectBench, **more: object) -> Command:
    """21025."""
    header = GetSubjectRoute(subject=SUBJECT, **more)  # type: ignore[arg-type]  # fields of the header
    return await bench.ask(CODE.BROKERSET_SUBJECT_ROUTE, header)


async def states(bench: SubjectBench, body: bytes = b"") -> tuple[SubjectState, ...]:
    """21024."""
    answer = await bench.ask(CODE.BROKERSET_DESCRIBE_SUBJECTS, None, body)
    assert answer.code == 0, answer.remark
    return SubjectStates.from_json(answer.body).subjects


def requests() -> dict[RequestCode, tuple[dict[str, str], bytes]]:
    """One of each request, with everything that it must have."""
    subject = {"subject": SUBJECT}
    member = {**subject, "consumerGroup": GROUP, "session": "s", "clientId": "c"}
    return {
        CODE.BROKERSET_CREATE_SUBJECT: ({**subject, "orderStrategy": "Strict", "partitions": "2"}, b""),
        CODE.BROKERSET_SCALE_SUBJECT: ({**subject, "partitions": "3"}, b""),
        CODE.BROKERSET_DELETE_SUBJECT: (subject, b""),
        CODE.BROKERSET_DESCRIBE_SUBJECTS: ({}, b"[]"),
        CODE.BROKERSET_SUBJECT_ROUTE: (subject, b""),
        CODE.BROKERSET_START_PRODUCER: ({**subject, "producerId": "p"}, b""),
        CODE.BROKERSET_CONSUMER_HEARTBEAT: ({**member, "consumeStrategy": "Exclusive"}, b""),
        CODE.BROKERSET_ASSIGNMENT_CHANGED: ({**member, "version": "0"}, b""),
        CODE.BROKERSET_REMOVE_CONSUMER_GROUP: ({**subject, "consumerGroup": GROUP}, b""),
    }


@pytest.mark.parametrize("code", requests())
async def test_who_does_not_lead_answers_2007_and_nothing_else(code: RequestCode) -> None:
    """An error has neither assignment nor permission, and nothing was proposed."""
    bench = make_subject_bench()
    bench.engine.follow(2)
    ext, body = requests()[code]

    answer = await bench.ask(code, ext, body)

    assert (answer.code, answer.ext, answer.body) == (ResponseCode.CONTROLLER_NOT_LEADER, {}, b"")
    assert bench.engine.proposed == []


@pytest.mark.parametrize("code", requests())
async def test_a_leader_that_is_deposed_meanwhile_answers_2007(code: RequestCode) -> None:
    """At its proposal or at its barrier: what it would answer may be of the past."""
    bench = make_subject_bench()
    await bench.create(2)
    await bench.assigned("s")
    ext, body = requests()[code]

    async def deposed(*_: object) -> None:
        bench.engine.follow(None)

    bench.engine.on_propose = deposed
    bench.engine.on_barrier = deposed
    answer = await bench.ask(code, {**ext, "waitMs": "10"}, body)

    if code is not CODE.BROKERSET_ASSIGNMENT_CHANGED:  # it gives nothing
        assert (answer.code, answer.ext, answer.body) == (ResponseCode.CONTROLLER_NOT_LEADER, {}, b"")


@pytest.mark.parametrize(
    "code",
    [
        each
        for each in requests()
        if each not in (CODE.BROKERSET_CREATE_SUBJECT, CODE.BROKERSET_DESCRIBE_SUBJECTS)
    ],
)
async def test_an_unknown_subject_is_2111(code: RequestCode) -> None:
    """Nobody but who creates one makes it."""
    bench = make_subject_bench()
    ext, body = requests()[code]

    answer = await bench.ask(code, ext, body)

    assert answer.code == ResponseCode.BROKERSET_SUBJECT_UNKNOWN
    assert "brokerset subject create" in (answer.remark or "")
    assert bench.machine.subjects == {}


async def test_an_unknown_subject_is_unknown_behind_a_barrier_only() -> None:
    """A leader that lags behind itself does not deny what is there."""
    bench = make_subject_bench()

    async def created() -> None:
        bench.engine.commit(SubjectCreated(SUBJECT, OrderStrategy.STRICT, ("a",), 1))

    bench.engine.on_barrier = created

    assert (
        await bench.ask(CODE.BROKERSET_START_PRODUCER, StartProducer(subject=SUBJECT, producer_id="p"))
    ).code == 0


# Subjects.


async def test_creating_a_subject_again_changes_nothing() -> None:
    """The answer is the same; another strategy or number is refused with what to do."""
    bench = make_subject_bench()
    first = await bench.create(2)
    again = await bench.create(2)
    other = CreateSubject(subject=SUBJECT, order_strategy="BestTried", partitions=2)
    refused = await bench.ask(CODE.BROKERSET_CREATE_SUBJECT, other)

    assert first.body == again.body
    assert len(bench.engine.proposals(SubjectCreated)) == 1
    assert refused.code == ResponseCode.BROKERSET_SUBJECT_REFUSED
    assert "create another subject" in (refused.remark or "")


async def test_two_producers_that_come_first_get_one_subject() -> None:
    """Both have the same route (statement 8)."""
    bench = make_subject_bench()

    answers = await asyncio.gather(*(route(bench, order_strategy="Strict", create=True) for _ in range(2)))

    assert [answer.code for answer in answers] == [0, 0]
    assert answers[0].body == answers[1].body
    assert answers[0].ext["version"] == "1"
    assert SubjectRoute.from_json(answers[0].body).generation == 0


@pytest.mark.parametrize(("create", "code"), [(False, 2111), (True, 0)])
async def test_only_producers_that_say_so_create_a_subject(create: bool, code: int) -> None:
    """A consumer never does (statement 7)."""
    bench = make_subject_bench()

    assert (await bench.beat("s")).code == ResponseCode.BROKERSET_SUBJECT_UNKNOWN
    assert (await route(bench, order_strategy="Strict", create=create)).code == code


@pytest.mark.parametrize("partitions", [-1, 0, 1_025])
async def test_an_impossible_number_of_partitions_changes_nothing(partitions: int) -> None:
    """In creation and in scaling (statement 2)."""
    bench = make_subject_bench()
    header = CreateSubject(subject=SUBJECT, order_strategy="Strict", partitions=partitions)
    created = await bench.ask(CODE.BROKERSET_CREATE_SUBJECT, header)
    assert (created.code, bench.machine.subjects) == (ResponseCode.BROKERSET_SUBJECT_REFUSED, {})

    await bench.create(2)
    before = bench.subject
    scaled = await bench.scale(partitions)

    assert (scaled.code, bench.subject) == (ResponseCode.BROKERSET_SUBJECT_REFUSED, before)


@pytest.mark.parametrize("name", ["a%b", "a#b", "a/b", "a\rb", "a\nb", "x" * 101])
async def test_names_that_are_none_are_refused_before_anything_is_kept(name: str) -> None:
    """Of subjects and of groups (statement 9)."""
    bench = make_subject_bench()
    await bench.create(2)
    created = await bench.ask(CODE.BROKERSET_CREATE_SUBJECT, {"subject": name, "orderStrategy": "Strict"})
    joined = await bench.beat("s", group=name + "x" * 20)

    assert (created.code, joined.code) == (ResponseCode.BROKERSET_SUBJECT_REFUSED,) * 2
    assert sorted(bench.machine.subjects) == [SUBJECT]
    assert bench.subject.groups == {}


async def test_the_default_route_has_two_groups_and_stays() -> None:
    """Also when groups are added, and under another leader (statements 5, 6)."""
    bench = make_subject_bench("a", "b", "c")
    await bench.create(2, route=None)
    chosen = bench.subject.route
    bench.net.brokers["d"] = type(bench.net.brokers["a"])("d")
    bench.engine.lead()
    assert (await bench.scale(4)).code == 0

    assert len(chosen) == 2
    assert bench.subject.route == chosen
    assert {each.broker_group for each in bench.subject.partitions.values()} == set(chosen)


@pytest.mark.parametrize("problem", ["fenced", "down", "masterless", "forgotten"])
async def test_a_group_that_takes_no_sends_gets_no_new_partitions(problem: str) -> None:
    """From the next request on (statement 10)."""
    bench = make_subject_bench("a", "b")
    setattr(bench.net.brokers["a"], problem, True)

    await bench.create(4, route=None)
    named = await bench.scale(2, "a;b")

    assert {each.broker_group for each in bench.subject.partitions.values()} == {"b"}
    assert named.code == ResponseCode.BROKERSET_SUBJECT_REFUSED
    assert "a take no sends" in (named.remark or "")


async def test_a_deleted_subject_can_be_created_again_when_brokers_have_nothing_of_it() -> None:
    """With ids, queues, epochs and versions that go on."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        header = StartProducer(subject=SUBJECT, producer_id="p")
        first = await bench.ask(CODE.BROKERSET_START_PRODUCER, header)
        await bench.settle()
        bench.net.brokers["b"].down = True
        deletion = DeleteSubject(subject=SUBJECT)
        assert (await bench.ask(CODE.BROKERSET_DELETE_SUBJECT, deletion)).code == 0
        await bench.settle()
        early = await bench.ask(
            CODE.BROKERSET_CREATE_SUBJECT, {"subject": SUBJECT, "orderStrategy": "Strict"}
        )
        bench.net.brokers["b"].down = False
        await bench.settle(3.0)
        again = await bench.ask(CODE.BROKERSET_DELETE_SUBJECT, deletion)
        await bench.create(2)
        second = await bench.ask(CODE.BROKERSET_START_PRODUCER, header)
        await bench.settle()

    assert early.code == ResponseCode.BROKERSET_SUBJECT_REFUSED
    assert "being deleted on b" in (early.remark or "")
    assert again.code == 0
    assert sorted(bench.subject.partitions) == [2, 3]
    assert {each.queue_id for each in bench.subject.partitions.values()} == {1}
    assert int(second.ext["producerEpoch"]) > int(first.ext["producerEpoch"])
    assert [each.deleted for each in bench.net.brokers["b"].pushed] == [False, True, False]
    assert len(bench.engine.proposals(SubjectDeleted)) == 1


async def test_who_has_members_is_neither_deleted_nor_removed() -> None:
    """The refusal names them."""
    bench = make_subject_bench()
    await bench.create(2)
    await bench.assigned("s")
    removal = RemoveConsumerGroup(subject=SUBJECT, consumer_group=GROUP)

    for code, header in (
        (CODE.BROKERSET_DELETE_SUBJECT, DeleteSubject(subject=SUBJECT)),
        (CODE.BROKERSET_REMOVE_CONSUMER_GROUP, removal),
    ):
        answer = await bench.ask(code, header)
        assert answer.code == ResponseCode.BROKERSET_SUBJECT_REFUSED
        assert GROUP in (answer.remark or "")

    async with bench.running():
        await bench.assigned("s", leaving=True)
    assert (await bench.ask(CODE.BROKERSET_REMOVE_CONSUMER_GROUP, removal)).code == 0
    assert (await bench.ask(CODE.BROKERSET_REMOVE_CONSUMER_GROUP, removal)).code == 0
    assert bench.subject.groups == {}


async def test_the_last_member_that_leaves_leaves_its_group() -> None:
    """It is there when somebody comes, with what it has drained (statement 17)."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        await bench.assigned("s")
        await bench.settle()
        await bench.assigned("s", leaving=True)
        await bench.settle()
        assert bench.owners() == {}
        assert bench.subject.groups[GROUP].members == {}

        await bench.assigned("t")
        await bench.settle()
        assert bench.owners() == {0: "t", 1: "t"}


# Routes and producers.


async def test_a_route_is_answered_at_once_unless_it_is_known() -> None:
    """A known one is answered as soon as it changes, or without a body when the time is over."""
    bench = make_subject_bench()
    loop = asyncio.get_running_loop()
    await bench.create(2)
    version = bench.subject.version

    since = loop.time()
    assert (await route(bench, known_version=version - 1, wait_ms=10_000)).body
    assert loop.time() - since < 0.1
    over = await route(bench, known_version=version, wait_ms=3_000)
    assert 3.0 <= loop.time() - since < 3.2
    waiting = asyncio.create_task(route(bench, known_version=version, wait_ms=60_000))
    await asyncio.sleep(1.0)
    assert (await bench.scale(4)).code == 0
    since = loop.time()
    changed = await waiting
    assert loop.time() - since < 0.1

    assert (over.ext, over.body) == ({"version": str(version)}, b"")
    assert SubjectRoute.from_json(changed.body).version == version + 1
    assert len(SubjectRoute.from_json(changed.body).partitions) == 6
    since = loop.time()
    await route(bench, known_version=version + 1, wait_ms=3_600_000)
    assert loop.time() - since < 10.1, "nobody waits for longer"


async def test_a_producer_that_expects_another_order_is_refused() -> None:
    """It would not do what the subject promises."""
    bench = make_subject_bench()
    await bench.create(2)

    for create in (False, True):
        answer = await route(bench, order_strategy="BestTried", create=create)
        assert answer.code == ResponseCode.BROKERSET_SUBJECT_REFUSED
        assert "is Strict" in (answer.remark or "")


async def test_each_start_of_a_producer_gets_a_higher_epoch() -> None:
    """Also those that come at the same time, and after grants to consumers (statement 26)."""
    bench = make_subject_bench()
    await bench.create(2)

    async def start() -> int:
        header = StartProducer(subject=SUBJECT, producer_id="p")
        answer = await bench.ask(CODE.BROKERSET_START_PRODUCER, header)
        assert answer.code == 0, answer.remark
        return int(answer.ext["producerEpoch"])

    together = await asyncio.gather(*(start() for _ in range(5)))
    async with bench.running():
        await bench.assigned("s")
        await bench.settle()
    owned = [each.epoch for each in bench.subject.groups[GROUP].ownerships.values()]

    assert len({*together, *owned}) == 7
    assert await start() > max(*together, *owned)
    assert len(bench.engine.proposals(ProducerStarted)) == 6


@pytest.mark.parametrize("producer_id", ["", "x" * 65, "a b", "a:b", "ü"])
async def test_a_producer_id_that_a_stamp_cannot_have_is_refused(producer_id: str) -> None:
    """Before an epoch is given."""
    bench = make_subject_bench()
    await bench.create(2)

    answer = await bench.ask(
        CODE.BROKERSET_START_PRODUCER, StartProducer(subject=SUBJECT, producer_id=producer_id)
    )

    assert answer.code == ResponseCode.BROKERSET_SUBJECT_REFUSED
    assert bench.subject.epoch == 0


# Scaling.


async def test_scaling_is_a_few_requests_to_each_broker() -> None:
    """Sealing, opening and the answers follow each other at once (statement 76)."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        await bench.settle()
        since = asyncio.get_running_loop().time()
        assert (await bench.scale(4)).code == 0
        await until(lambda: not bench.subject.is_scaling, pause=0.001)
        took = asyncio.get_running_loop().time() - since
        await bench.settle()

    assert took < 0.02, "commits take 2 ms, requests 1 ms"
    assert bench.statuses() == {0: "Sealed", 1: "Sealed", **dict.fromkeys(range(2, 6), "Open")}
    assert bench.subject.partitions[0].sealed_end == 100
    for broker in bench.net.brokers.values():
        assert len(broker.pushed) <= 5
        assert broker.states() == {
            each.partition_id: "Open" if each.partition_id > 1 else "Sealed"
            for each in broker.subjects[SUBJECT].queues
        }


async def test_a_broker_that_is_down_delays_its_own_keys_only() -> None:
    """The others are sealed and open; when it comes back the rest follows (statement 76)."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        await bench.settle()
        header = CreateSubject(subject="other", order_strategy="Strict", partitions=2, route="a;b")
        bench.net.brokers["b"].silent = True
        assert (await bench.scale(4, "a")).code == ResponseCode.SUCCESS
        assert (await bench.ask(CODE.BROKERSET_CREATE_SUBJECT, header)).code == 0
        await bench.settle(20.0)
        assert bench.statuses() == {
            0: "Sealed",
            1: "Sealing",
            2: "Open",
            3: "Open",
            4: "Prepared",
            5: "Prepared",
        }
        assert bench.net.brokers["a"].states("other") == {0: "Open"}
        (state,) = await states(bench, b'["orders"]')
        assert "b does not answer" in state.problems[0]
        second = await bench.scale(8)
        assert second.code == ResponseCode.BROKERSET_SUBJECT_REFUSED
        assert "b have not yet closed" in (second.remark or "")

        bench.net.brokers["b"].silent = False
        await bench.settle(5.0)
        assert bench.statuses() == {0: "Sealed", 1: "Sealed", **dict.fromkeys(range(2, 6), "Open")}
        assert bench.net.brokers["b"].states("other") == {1: "Open"}


async def test_a_group_goes_on_with_new_partitions_when_it_has_drained_the_old_ones() -> None:
    """Range by range: what the owner has handled up to the sealed end opens what inherits from it."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        await bench.assigned("s")
        await bench.settle()
        assert (await bench.scale(4)).code == 0
        await bench.settle()
        old = await bench.assigned("s")
        assert [(each.partition_id, each.sealed_end) for each in old.partitions] == [(0, 100), (1, 100)]
        first = old.partitions[0]

        for position in (99, 100, 100):
            drained = DrainedPartition(first.partition_id, first.epoch, position)
            await bench.assigned("s", OwnedReport(drained=(drained,)))
            await bench.settle()
            owned = sorted(bench.owners())
            assert owned == ([0, 1] if position == 99 else [1, 2, 3])


async def test_a_scaling_is_superseded_by_one_that_comes_in_between() -> None:
    """It decides again on what is there then, and says so."""
    bench = make_subject_bench()
    await bench.create(2)

    async def other(event: object) -> None:
        bench.engine.on_propose = None
        bench.engine.commit(GenerationPrepared(SUBJECT, 0, 3, ("a", "b")))

    bench.engine.on_propose = other
    answer = await bench.scale(4)

    assert answer.code == ResponseCode.BROKERSET_SUBJECT_REFUSED
    assert "3 partitions already" in (answer.remark or "")


# Others.


async def test_subjects_are_described_with_their_members() -> None:
    """All, or those that are named; what is unknown is left out."""
    bench = make_subject_bench()
    await bench.create(2)
    await bench.assigned("s", client_id="here")
    await asyncio.sleep(2.0)
    (everything,), (named,) = await asyncio.gather(states(bench), states(bench, b'["orders","nothing"]'))
    bench.engine.lead()
    (later,) = await states(bench)

    assert everything == named
    (member,) = everything.groups[0].members
    assert (member.session, member.client_id, member.heard_ms_ago) == ("s", "here", 2_002)
    assert later.groups[0].members[0].heard_ms_ago is None


async def test_too_many_subjects_for_one_answer_are_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, and by what they have."""
    bench = make_subject_bench()
    for name in ("one", "two"):
        header = CreateSubject(subject=name, order_strategy="Strict", partitions=2, route="a")
        assert (await bench.ask(CODE.BROKERSET_CREATE_SUBJECT, header)).code == 0

    for limit in ("SUBJECTS_SHOWN_MAX", "PARTS_SHOWN_MAX"):
        with monkeypatch.context() as patch:
            patch.setattr(f"brokerset_controller.subject_service.{limit}", 1)
            answer = await bench.ask(CODE.BROKERSET_DESCRIBE_SUBJECTS)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "name" in (answer.remark or "")
            assert (await bench.ask(CODE.BROKERSET_DESCRIBE_SUBJECTS, None, b'["one"]')).code == 0


async def test_a_change_of_the_assignment_is_heard_of_at_once() -> None:
    """Who waits is answered when its group changes, and gets no permission with it (statement 16)."""
    bench = make_subject_bench()
    loop = asyncio.get_running_loop()
    async with bench.running():
        await bench.create(2)
        await bench.assigned("s")
        await bench.settle()
        version = bench.subject.groups[GROUP].version
        header = AssignmentChanged(
            subject=SUBJECT, consumer_group=GROUP, session="s", version=version, wait_ms=9_000
        )
        since = loop.time()
        unchanged = await bench.ask(CODE.BROKERSET_ASSIGNMENT_CHANGED, header)
        assert 9.0 <= loop.time() - since < 9.1
        waiting = asyncio.create_task(bench.ask(CODE.BROKERSET_ASSIGNMENT_CHANGED, header))
        await bench.settle()
        since = loop.time()
        await bench.assigned("t")
        changed = await waiting

    assert unchanged.ext == {"version": str(version)}
    assert list(changed.ext) == ["version"]
    assert int(changed.ext["version"]) > version
    assert changed.body == b""
    assert loop.time() - since < 0.1


async def test_who_is_no_member_is_not_kept_waiting() -> None:
    """It is to send a heartbeat."""
    bench = make_subject_bench()
    await bench.create(2)
    header = AssignmentChanged(subject=SUBJECT, consumer_group=GROUP, session="s", version=0, wait_ms=9_000)

    answer = await bench.ask(CODE.BROKERSET_ASSIGNMENT_CHANGED, header)

    assert answer.code == ResponseCode.BROKERSET_SUBJECT_REFUSED
    assert "send a heartbeat" in (answer.remark or "")


async def test_requests_that_wait_are_bounded_and_end_with_the_leadership(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One too many may come again; the others hear who does not lead."""
    bench = make_subject_bench()
    monkeypatch.setattr(bench.service._polls, "_waiting_max", 2)
    async with bench.running():
        await bench.create(2)
        version = bench.subject.version
        waiting = [asyncio.create_task(route(bench, known_version=version, wait_ms=9_000)) for _ in range(2)]
        await bench.settle()
        assert bench.service.waiting == 2
        assert (await route(bench, known_version=version, wait_ms=9_000)).code == ResponseCode.SYSTEM_BUSY
        bench.engine.follow(1)
        bench.service.role_changed()
        async with asyncio.timeout(0.2):
            answers = await asyncio.gather(*waiting)

    assert [answer.code for answer in answers] == [ResponseCode.CONTROLLER_NOT_LEADER] * 2
    assert bench.service.waiting == 0


async def test_an_outcome_that_is_unknown_is_said_to_be() -> None:
    """The request may be repeated."""
    bench = make_subject_bench()

    async def unknown(event: object) -> None:
        raise OutcomeUnknown("lost")

    bench.engine.on_propose = unknown
    header = CreateSubject(subject=SUBJECT, order_strategy="Strict", partitions=2, route="a")
    answer = await bench.ask(CODE.BROKERSET_CREATE_SUBJECT, header)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "repeat it" in (answer.remark or "")


async def test_what_all_subjects_have_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would grow it is refused, with what to do, in the decision and when it is applied."""
    bench = make_subject_bench()
    await bench.create(2)
    monkeypatch.setattr("brokerset_controller.ordered.limits.PARTS_MAX", bench.machine.parts + 1)

    joined = await bench.beat("s")
    scaled = await bench.scale(64)
    applied = bench.engine.commit(MemberJoined(SUBJECT, GROUP, ConsumeStrategy.EXCLUSIVE, "s", "c", 30_000))
    report = OwnedReport(released=(ReleasedPartition(0, 1),))

    assert (joined.code, scaled.code) == (ResponseCode.BROKERSET_SUBJECT_REFUSED,) * 2
    assert "remove groups that nobody uses" in (joined.remark or "")
    assert "remove groups that nobody uses" in str(applied)
    assert (await bench.beat("s", report)).body == b""
