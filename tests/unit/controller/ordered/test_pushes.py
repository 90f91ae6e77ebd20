"""How broker groups are brought to what is agreed on, whatever they do."""

from __future__ import annotations

import asyncio

import pytest

from brokerset_controller.ordered.events import Event, PartitionRetired, PartitionSealed
from brokerset_controller.subject_pushes import (
    ANSWER_SECONDS_MAX,
    BACK_OFF_SECONDS_MAX,
    PUSHES_AT_ONCE_MAX,
    REFUSED_SECONDS,
)
from brokerset_protocol.bodies.ordered import DrainedPartition, FinishedPartition, OwnedReport
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.ordered import CreateSubject
from brokerset_raft.engine import Overloaded
from brokerset_rig.subject_bench import SUBJECT, SubjectBench, SubjectBroker, make_subject_bench

pytestmark = pytest.mark.virtual


async def sealing(bench: SubjectBench, partitions: int = 2, order: str = "Strict") -> None:
    """A subject whose partition 0 on `a` is sealed next."""
    await bench.create(1, order, "a")
    await bench.settle()
    assert (await bench.scale(partitions)).code == 0


async def test_a_broker_that_has_everything_is_sent_nothing() -> None:
    """Over many passes of the leader."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        await bench.settle(100.0)

    assert [len(broker.pushed) for broker in bench.net.brokers.values()] == [1, 1]


async def test_a_broker_group_with_another_master_is_sent_everything_again() -> None:
    """What the one before had confirmed says nothing of it; at once, also after failures."""
    bench = make_subject_bench()
    broker = bench.net.brokers["a"]
    async with bench.running():
        await bench.create(2)
        await bench.settle()
        broker.cut_off = True
        assert (await bench.scale(4)).code == 0
        await bench.settle(60.0)
        broker.epoch, broker.cut_off = 2, False
        broker.subjects.clear()
        bench.service.master_changed("a")
        await asyncio.sleep(0.02)
        assert bench.statuses()[0] == "Sealed"
        before = len(broker.pushed)
        broker.epoch = 3
        bench.service.master_changed("a")
        await bench.settle()

    assert len(broker.pushed) == before + 1
    assert bench.subject.partitions[0].sealed_epoch == 2


async def test_a_new_leader_sends_everything_once() -> None:
    """It does not know what its predecessor sent."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        await bench.settle()
        bench.engine.lead()
        bench.service.role_changed()
        await bench.settle(10.0)

    assert [len(broker.pushed) for broker in bench.net.brokers.values()] == [2, 2]


async def test_a_broker_that_does_not_answer_is_asked_again_and_again_but_not_often() -> None:
    """With waits that grow to a second, for one subject at a time."""
    bench = make_subject_bench("a")
    broker = bench.net.brokers["a"]
    async with bench.running():
        for number in range(40):
            header = CreateSubject(subject=f"s{number}", order_strategy="Strict", partitions=1, route="a")
            assert (await bench.ask(RequestCode.BROKERSET_CREATE_SUBJECT, header)).code == 0
        await bench.settle()
        broker.cut_off = True
        broker.epoch = 2
        bench.service.master_changed("a")
        asked = bench.measurements.subject_pushes
        await asyncio.sleep(60.0)
        tries = bench.measurements.subject_pushes - asked
        problems = bench.service.pushes.problems("s0")
        broker.cut_off = False
        await bench.settle(2.0)

    assert 60 / BACK_OFF_SECONDS_MAX <= tries <= PUSHES_AT_ONCE_MAX + 10 + 2 * 60 / BACK_OFF_SECONDS_MAX
    assert problems == ("a does not answer: nobody listens",)
    assert bench.service.pushes.problems("s0") == ()
    assert len(broker.pushed) == 80


async def test_a_silent_broker_delays_no_other() -> None:
    """Each broker group has its own turn."""
    bench = make_subject_bench("a", "b")
    bench.net.brokers["b"].silent = True
    loop = asyncio.get_running_loop()
    async with bench.running():
        await bench.create(4)
        await asyncio.sleep(ANSWER_SECONDS_MAX / 2)
        since = loop.time()
        assert (await bench.scale(2, "a")).code == 0
        while bench.statuses()[0] != "Sealed":
            assert loop.time() - since < 0.02
            await asyncio.sleep(0.001)


async def test_a_subject_that_the_broker_refuses_delays_no_other_and_says_why() -> None:
    """A topic of that name exists without being a subject, for example."""
    bench = make_subject_bench("a")
    broker = bench.net.brokers["a"]
    broker.refusing = "the topic orders is no subject"
    async with bench.running():
        await bench.create(1, route="a")
        await bench.settle()
        problems = bench.service.pushes.problems(SUBJECT)
        broker.refusing = None
        header = CreateSubject(subject="other", order_strategy="Strict", partitions=1, route="a")
        assert (await bench.ask(RequestCode.BROKERSET_CREATE_SUBJECT, header)).code == 0
        await bench.settle()
        assert broker.states("other") == {0: "Open"}
        assert SUBJECT not in broker.subjects
        await bench.settle(REFUSED_SECONDS)

    assert problems == ("a refuses: the topic orders is no subject",)
    assert broker.states() == {0: "Open"}
    assert bench.service.pushes.problems(SUBJECT) == ()


class OddBroker(SubjectBroker):
    """Answers with what a test makes of the right answer."""

    odd: bytes | None = None
    code: int = 0

    def answer(self, command: Command) -> Command:
        if self.odd is None and self.code == 0:
            return SubjectBroker.answer(self, command)
        return command.reply(self.code, "because", body=self.odd or b"")


def answer_with(queues: str, version: int = 2, subject: str = SUBJECT) -> bytes:
    """An answer to 21031."""
    text = f'{{"subject":"{subject}","orderStrategy":"Strict","version":{version},"queues":[{queues}]}}'
    return text.encode()


def queue(rest: str, queue_id: int = 0) -> str:
    """A queue of partition 0."""
    return f'{{"queueId":{queue_id},"partitionId":0,{rest}}}'


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (0, b"no JSON"),
        (0, b"{}"),
        (0, answer_with(queue('"state":"Sealed","end":5'), version=99)),
        (0, answer_with(queue('"state":"Sealed","end":5'), subject="others")),
        (0, answer_with("")),
        (0, answer_with(queue('"state":"Sealed"'))),
        (0, answer_with(queue('"state":"Sealed","end":-1'))),
        (0, answer_with(queue('"state":"Open","end":5'))),
        (0, answer_with(queue('"state":"Sealed","end":5', queue_id=1))),
        (1, b""),
        (2007, b""),
        (3, b""),
    ],
)
async def test_an_answer_that_says_nothing_of_the_sealed_queue_seals_nothing(code: int, body: bytes) -> None:
    """The partition stays as it is, nothing that inherits from it is opened, and it is asked again."""
    bench = make_subject_bench("a")
    broker = OddBroker("a")
    bench.net.brokers["a"] = broker
    async with bench.running():
        await bench.create(1, route="a")
        await bench.settle()
        broker.odd, broker.code = body, code
        assert (await bench.scale(2)).code == 0
        assert bench.subject.version == 2
        await bench.settle(20.0)
        statuses = bench.statuses()
        broker.odd, broker.code = None, 0
        await bench.settle(10.0)

    assert statuses == {0: "Sealing", 1: "Prepared", 2: "Prepared"}
    assert bench.statuses() == {0: "Sealed", 1: "Open", 2: "Open"}


async def test_an_end_that_was_not_agreed_on_is_asked_for_again() -> None:
    """What a broker has confirmed counts when the controllers have it."""
    bench = make_subject_bench("a")
    refusals = 0

    async def full(event: Event) -> None:
        nonlocal refusals
        if isinstance(event, PartitionSealed) and refusals < 3:
            refusals += 1
            raise Overloaded("full")

    async with bench.running():
        bench.engine.on_propose = full
        await sealing(bench)
        await bench.settle(5.0)

    assert refusals == 3
    assert bench.statuses() == {0: "Sealed", 1: "Open", 2: "Open"}


async def test_a_later_master_may_say_that_a_queue_ends_elsewhere() -> None:
    """After an election that lost messages: else no group could reach the end. One of before may not."""
    bench = make_subject_bench("a")
    broker = bench.net.brokers["a"]
    async with bench.running():
        await sealing(bench)
        await bench.assigned("s")
        await bench.settle()
        broker.end, broker.epoch = 60, 2
        bench.service.master_changed("a")
        await bench.settle()
        assert (bench.subject.partitions[0].sealed_end, bench.statuses()[1]) == (60, "Open")
        (assigned,) = (await bench.assigned("s")).partitions
        assert assigned.sealed_end == 60
        bench.engine.commit(PartitionSealed(SUBJECT, 0, 100, 1))
        assert bench.subject.partitions[0].sealed_end == 60


async def test_a_sealed_partition_is_retired_when_all_have_drained_it_and_its_time_is_over() -> None:
    """The broker hears of it; and not before each group has handled it, also one without members."""
    bench = make_subject_bench("a", sealed_partition_retention=60_000)
    async with bench.running():
        await sealing(bench)
        await bench.assigned("s")
        await bench.settle()
        await bench.assigned("quiet", group="other")
        await bench.settle()
        drained = {}
        for group, session in (("g", "s"), ("other", "quiet")):
            (each,) = (await bench.assigned(session, group=group)).partitions
            drained[group] = OwnedReport(drained=(DrainedPartition(each.partition_id, each.epoch, 100),))
        await bench.assigned("s", drained["g"])
        await bench.assigned("quiet", group="other", leaving=True)
        await bench.settle(120.0)
        assert 0 in bench.subject.partitions, "a group without members is a group"
        await bench.assigned("quiet", group="other")
        await bench.settle()
        (each,) = (await bench.assigned("quiet", group="other")).partitions
        report = OwnedReport(drained=(DrainedPartition(each.partition_id, each.epoch, 100),))
        await bench.assigned("quiet", report, group="other")
        await bench.settle(3.0)

    assert sorted(bench.subject.partitions) == [1, 2]
    assert bench.net.brokers["a"].states() == {1: "Open", 2: "Open"}
    assert len(bench.engine.proposals(PartitionRetired)) == 1


async def test_a_best_tried_partition_is_retired_when_no_copies_for_retry_can_come() -> None:
    """However long ago it was drained, or sealed."""
    bench = make_subject_bench("a", sealed_partition_retention=60_000)
    async with bench.running():
        await sealing(bench, order="BestTried")
        await bench.assigned("s")
        await bench.settle()
        (each,) = (await bench.assigned("s")).partitions
        drained = OwnedReport(drained=(DrainedPartition(each.partition_id, each.epoch, 100),))
        for beat in range(120):
            body = await bench.assigned("s", OwnedReport() if beat else drained)
            await bench.settle()
        assert [(at.partition_id, at.retries_only) for at in body.partitions] == [
            (0, True),
            (1, False),
            (2, False),
        ]
        await bench.assigned("s", OwnedReport(finished=(FinishedPartition(each.partition_id, each.epoch),)))
        await bench.settle(3.0)

    assert sorted(bench.subject.partitions) == [1, 2]
    assert bench.net.brokers["a"].states() == {1: "Open", 2: "Open"}


async def test_a_new_leader_keeps_sealed_partitions_for_their_time() -> None:
    """It has not seen when they were sealed."""
    bench = make_subject_bench("a", sealed_partition_retention=60_000)
    async with bench.running():
        await sealing(bench)
        await bench.settle(50.0)
        bench.engine.lead()
        await bench.settle(50.0)
        assert 0 in bench.subject.partitions
        await bench.settle(15.0)
        assert 0 not in bench.subject.partitions


async def test_how_long_a_sealing_takes_is_measured() -> None:
    """Nothing when nothing is sealed."""
    bench = make_subject_bench("a")
    bench.net.brokers["a"].silent = True
    async with bench.running():
        await bench.create(1, route="a")
        assert bench.service.sealing_seconds == 0.0
        assert (await bench.scale(2)).code == 0
        await asyncio.sleep(7.0)
        assert 7.0 <= bench.service.sealing_seconds < 7.1
        bench.net.brokers["a"].silent = False
        await bench.settle(10.0)
        assert bench.service.sealing_seconds == 0.0


async def test_what_is_left_on_a_forgotten_broker_group_does_not_keep_a_name() -> None:
    """An administrator has cleaned it: nobody is there who could delete."""
    bench = make_subject_bench()
    async with bench.running():
        await bench.create(2)
        await bench.settle()
        bench.net.brokers["b"].forgotten = True
        assert (await bench.ask(RequestCode.BROKERSET_DELETE_SUBJECT, {"subject": SUBJECT})).code == 0
        await bench.settle(3.0)
        await bench.create(1, route="a")

    assert sorted(bench.subject.partitions) == [2]


async def test_a_leader_that_is_deposed_while_a_broker_answers_agrees_on_nothing() -> None:
    """The next one asks the broker itself."""
    bench = make_subject_bench("a")
    async with bench.running():
        await bench.create(1, route="a")
        await bench.settle()
        bench.net.brokers["a"].delay = 2.0
        assert (await bench.scale(2)).code == 0
        await asyncio.sleep(0.1)
        bench.engine.follow(1)
        bench.service.role_changed()
        await bench.settle(10.0)
        assert bench.engine.proposals(PartitionSealed) == []
        bench.engine.lead()
        await bench.settle(5.0)

    assert bench.statuses() == {0: "Sealed", 1: "Open", 2: "Open"}
