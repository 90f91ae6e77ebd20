"""Ordered subjects over real controllers and sockets: what was agreed on outlives leaders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from brokerset_protocol.bodies.ordered import (
    AssignmentBody,
    DrainedPartition,
    FinishedPartition,
    OwnedReport,
    ReleasedPartition,
    SubjectQueues,
    SubjectState,
    SubjectStates,
)
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.codec import Header
from brokerset_protocol.headers.controller import TransferLeader
from brokerset_protocol.headers.ordered import (
    AssignmentChanged,
    ConsumerHeartbeat,
    CreateSubject,
    GetSubjectRoute,
    RemoveConsumerGroup,
    ScaleSubject,
    StartProducer,
)
from brokerset_protocol.subject_words import PartitionStatus
from brokerset_rig.controller_group import GROUP, HOST, ControllerGroup, FakeBroker, controllers
from brokerset_rig.stack import free_port
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import Connection, RemotingServer, connect

SUBJECT = "orders"
CODE = RequestCode


class SubjectBroker(FakeBroker):
    """A broker that confirms what it is sent of subjects; all its queues end at 7."""

    def __init__(self) -> None:
        super().__init__(1, "start-1")
        self.pushed: list[SubjectQueues] = []

    async def listen(self) -> None:
        """As other brokers do, and with 21031."""
        self._server = RemotingServer(
            {
                CODE.GET_BROKER_EPOCH_CACHE: self._epochs,
                CODE.NOTIFY_BROKER_ROLE_CHANGED: self._notified,
                CODE.BROKERSET_SUBJECT_QUEUES: self._queues,
            }
        )
        self.port = await self._server.listen(HOST, self.port or free_port())

    def _queues(self, connection: Connection, command: Command) -> Command:
        body = SubjectQueues.from_json(command.body)
        self.pushed.append(body)
        queues = tuple(
            replace(each, end=7) if each.state is PartitionStatus.SEALED else each for each in body.queues
        )
        return command.reply(body=replace(body, queues=queues).to_json())


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[tuple[ControllerGroup, SubjectBroker]]:
    """Three controllers, and a broker that is master of its group."""
    async with controllers(folder, 3) as group:
        broker = SubjectBroker()
        try:
            await broker.join(group)
            assert (await broker.elect(group)).code == 0
            await broker.beat(group)
            yield group, broker
        finally:
            await broker.kill()


async def agreed(
    group: ControllerGroup, broker: SubjectBroker, code: int, header: Header, body: bytes = b""
) -> Command:
    """The answer of who leads, which must be a good one."""
    answer = await broker.ask_leader(group, code, header, body)
    assert answer.code == 0, answer.remark
    return answer


async def subject_of(group: ControllerGroup, broker: SubjectBroker) -> SubjectState:
    """21024."""
    answer = await broker.ask_leader(
        group, CODE.BROKERSET_DESCRIBE_SUBJECTS, GetSubjectRoute(subject=SUBJECT)
    )
    assert answer.code == 0, answer.remark
    return SubjectStates.from_json(answer.body).subjects[0]


def beat(session: str, consume: str = "Exclusive", *, leaving: bool = False) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        subject=SUBJECT,
        consumer_group="g",
        session=session,
        client_id="client",
        consume_strategy=consume,
        leaving=leaving,
    )


async def assigned(
    group: ControllerGroup,
    broker: SubjectBroker,
    session: str,
    report: OwnedReport | None = None,
    consume: str = "Exclusive",
) -> AssignmentBody:
    """21027."""
    body = report.to_json() if report is not None else b""
    answer = await agreed(group, broker, CODE.BROKERSET_CONSUMER_HEARTBEAT, beat(session, consume), body)
    return AssignmentBody.from_json(answer.body)


async def owning(group: ControllerGroup, broker: SubjectBroker, session: str, count: int) -> AssignmentBody:
    """Send heartbeats until the session owns so many partitions."""
    async with asyncio.timeout(10.0):
        while True:
            body = await assigned(group, broker, session)
            if len(body.partitions) == count:
                return body
            await asyncio.sleep(0.01)


async def test_a_subject_lives_on_when_its_leader_is_killed_in_the_middle_of_everything(
    tmp_path: Path,
) -> None:
    """Creation, consumers, scaling, a producer: the next leader has it all, and gives nothing twice."""
    async with scene(tmp_path) as (group, broker):
        create = CreateSubject(subject=SUBJECT, order_strategy="Strict", partitions=2)
        await agreed(group, broker, CODE.BROKERSET_CREATE_SUBJECT, create)
        start = StartProducer(subject=SUBJECT, producer_id="p")
        first = await agreed(group, broker, CODE.BROKERSET_START_PRODUCER, start)
        before = await owning(group, broker, "one", 2)

        await group.stop(await group.leader())
        await broker.beat(group)
        after = await owning(group, broker, "one", 2)
        second = await agreed(group, broker, CODE.BROKERSET_START_PRODUCER, start)
        await until(lambda: len(broker.pushed) >= 2)
        scale = ScaleSubject(subject=SUBJECT, partitions=4)
        await agreed(group, broker, CODE.BROKERSET_SCALE_SUBJECT, scale)
        leader = group.running[await group.leader()].service.machine.ordered
        await until(lambda: not leader.subjects[SUBJECT].is_scaling)
        state = await subject_of(group, broker)

        assert after == before
        assert int(second.ext["producerEpoch"]) > max(
            int(first.ext["producerEpoch"]), *(each.epoch for each in before.partitions)
        )
        assert {each.broker_group for each in state.partitions} == {GROUP}
        assert [each.sealed_end for each in state.partitions] == [7, 7, None, None, None, None]
        assert [each.status.value for each in state.partitions] == ["Sealed"] * 2 + ["Open"] * 4
        last = ["Sealed"] * 2 + ["Open"] * 4
        await until(lambda: [each.state.value for each in broker.pushed[-1].queues] == last)
        assert [each.session for each in state.groups[0].members] == ["one"]


async def test_all_controllers_have_the_same_and_keep_it_over_a_restart(tmp_path: Path) -> None:
    """From the log of one, and from the snapshot of another."""
    async with scene(tmp_path) as (group, broker):
        create = CreateSubject(subject=SUBJECT, order_strategy="BestTried", partitions=3)
        await agreed(group, broker, CODE.BROKERSET_CREATE_SUBJECT, create)
        await owning(group, broker, "one", 3)
        before = (await subject_of(group, broker)).partitions
        index = group.running[await group.leader()].status.commit_index
        await until(lambda: all(each.status.applied_index >= index for each in group.running.values()))
        snapshots = {each.service.machine.snapshot() for each in group.running.values()}
        await group.ask(0, CODE.BROKERSET_TAKE_SNAPSHOT)
        for node_id in range(3):
            await group.stop(node_id)
        for node_id in range(3):
            await group.start(node_id)
        after = await subject_of(group, broker)

        assert len(snapshots) == 1
        assert after.partitions == before
        assert [each.session for each in after.groups[0].ownerships] == ["one"] * 3


async def test_a_partition_changes_hands_in_a_few_requests(tmp_path: Path) -> None:
    """Whoever waits for changes hears of each at once, so an orderly change takes no heartbeat interval."""
    async with scene(tmp_path) as (group, broker):
        create = CreateSubject(subject=SUBJECT, order_strategy="Strict", partitions=2)
        await agreed(group, broker, CODE.BROKERSET_CREATE_SUBJECT, create)
        first = await owning(group, broker, "one", 2)
        since = asyncio.get_running_loop().time()

        changes = AssignmentChanged(
            subject=SUBJECT, consumer_group="g", session="one", version=first.version, wait_ms=9_000
        )
        waiting = asyncio.create_task(broker.ask_leader(group, CODE.BROKERSET_ASSIGNMENT_CHANGED, changes))
        await assigned(group, broker, "two")
        assert int((await waiting).ext["version"]) > first.version
        revoked: tuple[ReleasedPartition, ...] = ()
        async with asyncio.timeout(5.0):
            while not revoked:
                body = await assigned(group, broker, "one")
                revoked = tuple(
                    ReleasedPartition(each.partition_id, each.epoch)
                    for each in body.partitions
                    if each.revoked
                )
        await assigned(group, broker, "one", OwnedReport(released=revoked))
        await owning(group, broker, "two", 1)
        took = asyncio.get_running_loop().time() - since

        left = await agreed(group, broker, CODE.BROKERSET_CONSUMER_HEARTBEAT, beat("one", leaving=True))
        await owning(group, broker, "two", 2)
        assert AssignmentBody.from_json(left.body).partitions == ()
        assert took < 3.0, "no heartbeat interval (5 s) was waited for"


async def test_who_waits_at_a_leader_that_leads_no_longer_is_sent_away(tmp_path: Path) -> None:
    """2007, not only when the wait is over."""
    async with scene(tmp_path) as (group, broker):
        create = CreateSubject(subject=SUBJECT, order_strategy="Strict", partitions=1)
        await agreed(group, broker, CODE.BROKERSET_CREATE_SUBJECT, create)
        leader = await group.leader()
        version = group.running[leader].service.machine.ordered.subjects[SUBJECT].version
        route = GetSubjectRoute(subject=SUBJECT, known_version=version, wait_ms=10_000)
        connection = await connect(group.address(leader))
        try:
            since = asyncio.get_running_loop().time()
            waiting = asyncio.create_task(
                connection.call(Command(CODE.BROKERSET_SUBJECT_ROUTE, route.to_ext()), 15.0)
            )
            await until(lambda: group.running[leader].service.subjects.waiting == 1)
            target = TransferLeader(node_id=(leader + 1) % 3)
            moved = await group.ask(leader, CODE.BROKERSET_TRANSFER_LEADER, target)
            assert moved.code == 0, moved.remark
            answer = await waiting
        finally:
            connection.close()
            await connection.wait_closed()

        assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
        assert asyncio.get_running_loop().time() - since < 8.0


async def test_members_of_a_shared_group_have_all_partitions_by_one_epoch_whoever_leads(
    tmp_path: Path,
) -> None:
    """Removed, and consuming as an Exclusive one, the group is given higher epochs."""
    async with scene(tmp_path) as (group, broker):
        create = CreateSubject(subject=SUBJECT, order_strategy="Strict", partitions=3)
        await agreed(group, broker, CODE.BROKERSET_CREATE_SUBJECT, create)
        one = await assigned(group, broker, "one", consume="Shared")
        two = await assigned(group, broker, "two", consume="Shared")

        await group.stop(await group.leader())
        await broker.beat(group)
        again = [await assigned(group, broker, each, consume="Shared") for each in ("one", "two", "three")]
        (state,) = (await subject_of(group, broker)).groups
        for session in ("one", "two", "three"):
            leaving = beat(session, "Shared", leaving=True)
            await agreed(group, broker, CODE.BROKERSET_CONSUMER_HEARTBEAT, leaving)
        removal = RemoveConsumerGroup(subject=SUBJECT, consumer_group="g")
        await agreed(group, broker, CODE.BROKERSET_REMOVE_CONSUMER_GROUP, removal)
        exclusive = await owning(group, broker, "one", 3)

        (epoch,) = {each.epoch for body in (one, two, *again) for each in body.partitions}
        assert epoch == state.epoch > 0
        for body in (one, two, *again):
            assert [(each.partition_id, each.revoked) for each in body.partitions] == [
                (0, False),
                (1, False),
                (2, False),
            ]
        assert state.ownerships == ()
        assert min(each.epoch for each in exclusive.partitions) > epoch
        assert exclusive.version > again[-1].version


async def test_copies_for_retry_stay_assigned_over_a_change_of_the_leader_until_they_are_finished(
    tmp_path: Path,
) -> None:
    """By the same owner and epoch, which the next leader knows."""
    async with scene(tmp_path) as (group, broker):
        create = CreateSubject(subject=SUBJECT, order_strategy="BestTried", partitions=1)
        await agreed(group, broker, CODE.BROKERSET_CREATE_SUBJECT, create)
        (owned,) = (await owning(group, broker, "one", 1)).partitions
        scale = ScaleSubject(subject=SUBJECT, partitions=2)
        await agreed(group, broker, CODE.BROKERSET_SCALE_SUBJECT, scale)
        leader = group.running[await group.leader()].service.machine.ordered
        await until(lambda: not leader.subjects[SUBJECT].is_scaling)
        drained = OwnedReport(drained=(DrainedPartition(0, owned.epoch, 7),))
        await assigned(group, broker, "one", drained)
        before = await owning(group, broker, "one", 3)

        await group.stop(await group.leader())
        await broker.beat(group)
        after = await assigned(group, broker, "one")
        finished = OwnedReport(finished=(FinishedPartition(0, owned.epoch),))
        last = await assigned(group, broker, "one", finished)

        assert after == before
        assert [(each.partition_id, each.retries_only) for each in before.partitions] == [
            (0, True),
            (1, False),
            (2, False),
        ]
        assert before.partitions[0].epoch == owned.epoch
        assert [each.partition_id for each in last.partitions] == [1, 2]
        assert (await subject_of(group, broker)).groups[0].finished == (0,)
