"""An `OrderedTransport` over `ordered_send_model`, with faults that a test chooses."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from brokerset_client.errors import AnswerTimeout, BrokerUnreachable
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.ordered import (
    GetSubjectRoute,
    StartProducer,
    StartProducerResponse,
    SubjectRouteResponse,
)
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_sim.ordered_send_model import ModelSubject


class LoopClock:
    """The time of the running loop, which a `VirtualLoop` moves."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Lose:
    """A fault of one send: nothing arrives, or it is stored and the answer is lost."""

    stored: bool
    keep: int | None = None
    """How many of its messages a failed master's log keeps; all without."""


class ModelTransport:
    """Requests reach the models after `latency` seconds."""

    def __init__(self, *subjects: ModelSubject, latency: float = 0.001) -> None:
        self.subjects = {subject.name: subject for subject in subjects}
        self.latency = latency
        self.groups: tuple[str, ...] = ("broker-a", "broker-b")
        """What subjects that producers create get."""
        self.down: set[str] = set()
        """Broker groups that nobody reaches."""
        self.controllers_down = False
        self.faults: deque[Lose | Command | None] = deque()
        """What becomes of the next sends; None: nothing unusual."""
        self.answers: dict[str, Command] = {}
        """What a broker group answers to everything."""
        self.sends: list[tuple[str, int]] = []
        """Broker group and queue of every send that was tried."""
        self.in_flight: dict[tuple[str, str], int] = {}
        self.in_flight_max = 0
        self.stale: list[str] = []
        self.asked: list[RequestCode] = []
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Answer long polls: a subject has another version."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def ask_controllers(self, command: Command, timeout: float) -> Command:
        self.asked.append(RequestCode(command.code))
        await asyncio.sleep(self.latency)
        if self.controllers_down:
            await asyncio.sleep(timeout)
            raise AnswerTimeout("no controller leads")
        if command.code == RequestCode.BROKERSET_START_PRODUCER:
            subject = self.subjects.get(StartProducer.from_ext(command.ext).subject)
            if subject is None:
                return Command(ResponseCode.BROKERSET_SUBJECT_UNKNOWN)
            return Command(0, StartProducerResponse(producer_epoch=subject.start_producer()).to_ext())
        assert command.code == RequestCode.BROKERSET_SUBJECT_ROUTE
        return await self._route(GetSubjectRoute.from_ext(command.ext))

    async def ask_master(self, topic: str, broker_group: str, command: Command, timeout: float) -> Command:
        fault = self.faults.popleft() if self.faults else None
        self.sends.append((broker_group, int(command.ext["e"])))
        place = (topic + command.ext["e"], broker_group)
        self.in_flight[place] = self.in_flight.get(place, 0) + 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight[place])
        try:
            await asyncio.sleep(self.latency)
            if broker_group in self.down:
                raise BrokerUnreachable(broker_group, "it is down")
            if broker_group in self.answers:
                return self.answers[broker_group]
            if isinstance(fault, Command):
                return fault
            if isinstance(fault, Lose):
                if fault.stored:
                    self.subjects[topic].send(broker_group, command, fault.keep)
                await asyncio.sleep(timeout)
                raise AnswerTimeout("no answer in time")
            return self.subjects[topic].send(broker_group, command)
        finally:
            self.in_flight[place] -= 1

    def route_is_stale(self, topic: str) -> None:
        self.stale.append(topic)

    async def _route(self, asked: GetSubjectRoute) -> Command:
        subject = self.subjects.get(asked.subject)
        if subject is None:
            if not asked.create:
                return Command(ResponseCode.BROKERSET_SUBJECT_UNKNOWN, remark="create it first")
            order = OrderStrategy(asked.order_strategy or OrderStrategy.STRICT)
            subject = self.subjects[asked.subject] = ModelSubject(asked.subject, order, self.groups)
            subject.scale(2)
        if asked.order_strategy not in (None, subject.order_strategy):
            return Command(ResponseCode.BROKERSET_SUBJECT_REFUSED, remark=f"it is {subject.order_strategy}")
        if asked.known_version == subject.version:
            try:
                async with asyncio.timeout(asked.wait_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                return Command(0, SubjectRouteResponse(version=subject.version).to_ext())
        if asked.subject not in self.subjects:
            return Command(ResponseCode.BROKERSET_SUBJECT_UNKNOWN, remark="it was deleted")
        return Command(0, SubjectRouteResponse(version=subject.version).to_ext(), subject.route().to_json())
