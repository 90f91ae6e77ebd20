"""The service of ordered subjects on virtual time: an engine that a test delays, brokers that it scripts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from brokerset_controller.broker_masters import Master
from brokerset_controller.measurements import Measurements
from brokerset_controller.ordered.codec import encode_event, event_of
from brokerset_controller.ordered.events import Event
from brokerset_controller.ordered.machine import SubjectsMachine
from brokerset_controller.ordered.state import Subject
from brokerset_controller.subject_processors import SubjectProcessors
from brokerset_controller.subject_service import SubjectService
from brokerset_protocol.bodies.ordered import AssignmentBody, OwnedReport, SubjectQueue, SubjectQueues
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.codec import Header
from brokerset_protocol.headers.ordered import ConsumerHeartbeat, CreateSubject, ScaleSubject
from brokerset_protocol.subject_words import PartitionStatus
from brokerset_raft.engine import NotLeader
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_spec.controller_settings import ControllerSettings

SUBJECT: Final = "orders"
GROUP: Final = "g"
COMMIT_SECONDS: Final = 0.002
"""How long this engine takes to agree."""


class LoopClock:
    """The loop's own time, at a rate that a test sets; the wall clock is apart."""

    def __init__(self, rate: float = 1.0) -> None:
        self.rate = rate
        self.wall_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        """Milliseconds since 1970; nothing about subjects may depend on them."""
        return self.wall_ms

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return asyncio.get_running_loop().time() * self.rate


@dataclass(frozen=True, slots=True)
class Status:
    """What the service needs of an engine's status."""

    node_id: int = 0
    term: int = 3
    leader_id: int | None = 0
    leading: bool = True


class SubjectEngine:
    """Agrees after a moment; `on_propose` and `on_barrier` may wait, raise, or change what happens."""

    def __init__(self, machine: SubjectsMachine) -> None:
        self.machine = machine
        self.status = Status()
        self.proposed: list[Event] = []
        self.barriers = 0
        self.index = 0
        self.on_propose: Callable[[Event], Awaitable[None]] | None = None
        self.on_barrier: Callable[[], Awaitable[None]] | None = None

    def follow(self, leader_id: int | None = 1) -> None:
        """Lead no longer."""
        self.status = replace(self.status, leading=False, leader_id=leader_id)

    def lead(self) -> None:
        """Lead again, in another term."""
        self.status = replace(self.status, leading=True, leader_id=0, term=self.status.term + 1)

    def commit(self, event: Event) -> object:
        """Apply an entry, whoever proposed it."""
        self.index += 1
        value = event_of(orjson.loads(encode_event(event))[1:])
        assert value is not None
        return self.machine.apply(self.index, value)

    async def propose(self, data: bytes, timeout: float | None = None) -> object:
        event = event_of(orjson.loads(data)[1:])
        assert event is not None
        term = self.status.term
        self.proposed.append(event)
        if self.on_propose is not None:
            await self.on_propose(event)
        await asyncio.sleep(COMMIT_SECONDS)
        if not self.status.leading or self.status.term != term:
            raise NotLeader(self.status.leader_id)
        return self.commit(event)

    async def read_barrier(self, timeout: float | None = None) -> None:
        self.barriers += 1
        term = self.status.term
        if self.on_barrier is not None:
            await self.on_barrier()
        await asyncio.sleep(COMMIT_SECONDS)
        if not self.status.leading or self.status.term != term:
            raise NotLeader(self.status.leader_id)

    def proposals(self, kind: type[Event]) -> list[Event]:
        """What was proposed of one kind."""
        return [event for event in self.proposed if isinstance(event, kind)]


@dataclass
class SubjectBroker:
    """A master that has what it is pushed, as the protocol says; `down`, `silent` and `refusing` as a test wants."""

    name: str
    epoch: int = 1
    down: bool = False
    silent: bool = False
    cut_off: bool = False
    """Whether the controllers cannot reach it, although it reaches them."""

    refusing: str | None = None
    fenced: bool = False
    masterless: bool = False
    forgotten: bool = False
    delay: float = 0.001
    """Seconds until it answers."""

    end: int = 100
    """Queue offset behind the last message of each of its queues."""

    pushed: list[SubjectQueues] = field(default_factory=list)
    subjects: dict[str, SubjectQueues] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where it is."""
        return f"{self.name}:10911"

    def answer(self, command: Command) -> Command:
        """21031."""
        assert command.code == RequestCode.BROKERSET_SUBJECT_QUEUES
        body = SubjectQueues.from_json(command.body)
        self.pushed.append(body)
        known = self.subjects.get(body.subject)
        if self.refusing is not None or (known is not None and known.version > body.version):
            return command.reply(ResponseCode.BROKERSET_SUBJECT_REFUSED, self.refusing or "an older version")
        self.subjects[body.subject] = body
        answered = replace(body, queues=tuple(map(self._with_end, body.queues)))
        return command.reply(body=answered.to_json())

    def _with_end(self, queue: SubjectQueue) -> SubjectQueue:
        return replace(queue, end=self.end) if queue.state is PartitionStatus.SEALED else queue

    def states(self, subject: str = SUBJECT) -> dict[int, str]:
        """By partition: how it has its queues."""
        return {each.partition_id: each.state.value for each in self.subjects[subject].queues}


class SubjectNet:
    """`BrokerMasters` and `Asker` over scripted brokers."""

    def __init__(self, *brokers: SubjectBroker) -> None:
        self.brokers = {broker.name: broker for broker in brokers}

    def master(self, broker_group: str) -> Master | None:
        broker = self.brokers.get(broker_group)
        if broker is None or broker.masterless or broker.forgotten:
            return None
        return Master(broker.address, broker.epoch)

    def writable(self) -> list[str]:
        return [
            name
            for name, each in sorted(self.brokers.items())
            if not (each.fenced or each.down or each.masterless or each.forgotten)
        ]

    def forgotten(self, broker_group: str) -> bool:
        broker = self.brokers.get(broker_group)
        return broker is None or broker.forgotten

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        broker = self.brokers[address.partition(":")[0]]
        await asyncio.sleep(broker.delay)
        if broker.silent:
            await asyncio.sleep(timeout)
            raise RequestTimeout("no answer")
        if broker.down or broker.cut_off:
            raise ConnectionClosed("nobody listens") from ConnectionRefusedError()
        return broker.answer(command)

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        raise AssertionError("nothing about subjects is one-way")


@dataclass
class SubjectBench:
    """Everything that a test of the service touches."""

    settings: ControllerSettings
    net: SubjectNet
    clock: LoopClock = field(default_factory=LoopClock)
    machine: SubjectsMachine = field(default_factory=SubjectsMachine)
    measurements: Measurements = field(default_factory=Measurements)

    def __post_init__(self) -> None:
        self.engine = SubjectEngine(self.machine)
        self.service = SubjectService(
            settings=lambda: self.settings,
            engine=self.engine,
            machine=self.machine,
            masters=self.net,
            clock=self.clock,
            asker=self.net,
            source=random.Random(7),
            measurements=self.measurements,
        )
        self.handlers = SubjectProcessors(self.service).handlers()

    @property
    def subject(self) -> Subject:
        """The one of most tests."""
        return self.machine.subjects[SUBJECT]

    async def ask(
        self, code: int, header: Header | dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """The answer to a request, as the server would send it."""
        ext = header.to_ext() if isinstance(header, Header) else dict(header or {})
        command = Command(code, ext, body)
        try:
            return await self.handlers[RequestCode(code)](None, command)
        except Rejected as rejected:
            return command.reply(rejected.code, rejected.remark)

    async def create(self, partitions: int = 2, order: str = "Strict", route: str | None = "a;b") -> Command:
        """21021, which must be agreed to."""
        header = CreateSubject(subject=SUBJECT, order_strategy=order, partitions=partitions, route=route)
        answer = await self.ask(RequestCode.BROKERSET_CREATE_SUBJECT, header)
        assert answer.code == 0, answer.remark
        return answer

    async def scale(self, partitions: int, route: str | None = None) -> Command:
        """21022."""
        header = ScaleSubject(subject=SUBJECT, partitions=partitions, route=route)
        return await self.ask(RequestCode.BROKERSET_SCALE_SUBJECT, header)

    async def beat(
        self,
        session: str,
        report: OwnedReport | None = None,
        *,
        group: str = GROUP,
        consume: str = "Exclusive",
        order: str | None = None,
        leaving: bool = False,
        client_id: str = "client",
    ) -> Command:
        """21027."""
        header = ConsumerHeartbeat(
            subject=SUBJECT,
            consumer_group=group,
            session=session,
            client_id=client_id,
            consume_strategy=consume,
            order_strategy=order,
            leaving=leaving,
        )
        body = report.to_json() if report is not None else b""
        return await self.ask(RequestCode.BROKERSET_CONSUMER_HEARTBEAT, header, body)

    async def assigned(
        self, session: str, report: OwnedReport | None = None, **more: object
    ) -> AssignmentBody:
        """21027, which must be agreed to; the assignment."""
        answer = await self.beat(session, report, **more)  # type: ignore[arg-type]  # names of arguments
        assert answer.code == 0, answer.remark
        return AssignmentBody.from_json(answer.body)

    def owners(self, group: str = GROUP) -> dict[int, str]:
        """Sessions by partition."""
        found = self.subject.groups[group].ownerships
        return {number: each.session for number, each in sorted(found.items())}

    def statuses(self) -> dict[int, str]:
        """Of all partitions."""
        return {number: each.status.value for number, each in sorted(self.subject.partitions.items())}

    async def settle(self, seconds: float = 1.0) -> None:
        """Let the tasks work for so long; it takes no time."""
        await asyncio.sleep(seconds)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """With the leader's tasks."""
        task = asyncio.create_task(self.service.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def make_subject_bench(*names: str, **changes: object) -> SubjectBench:
    """A bench with broker groups of these names, `a` and `b` without any."""
    brokers = [SubjectBroker(name) for name in names or ("a", "b")]
    return SubjectBench(ControllerSettings(**changes), SubjectNet(*brokers))  # type: ignore[arg-type]  # of settings
