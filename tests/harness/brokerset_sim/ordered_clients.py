"""Producers, consumers and an administrator of the world `ordered`: they run the production clients."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from brokerset_client.errors import ClientError
from brokerset_client.messages import Message
from brokerset_client.ordered.consuming import (
    HandlingContext,
    OrderedConsumer,
    OrderedConsumerSettings,
    OrderedMessage,
    SubscriptionOptions,
)
from brokerset_client.ordered.producing.errors import OrderedSendFailed
from brokerset_client.ordered.producing.producer import OrderedProducer, OrderedSendResult
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_formats.names import ordered_retry_topic
from brokerset_formats.order_keys import logical_partition
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.ordered import CreateSubject, ScaleSubject
from brokerset_protocol.subject_words import ConsumeStrategy
from brokerset_sim.ordered_oracle import Handling, body_of, message_of
from brokerset_sim.ordered_oracle import Message as Sent
from brokerset_sim.ordered_time import RatedHost, RatedProcess
from brokerset_sim.ordered_transport import SimTransport

if TYPE_CHECKING:
    from brokerset_sim.ordered_world import OrderedWorld

SUBJECT: Final = "orders"
ASK_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 5.0


class HandlerError(Exception):
    """A handler of the simulation failed on purpose."""


class ClientHost:
    """A machine on which one client runs, again and again."""

    def __init__(self, world: OrderedWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.dice = world.random_for(f"client {name}")
        self.host: RatedHost = world.new_host(name)
        self.process: RatedProcess | None = None
        self.starts = 0
        self.pauses = 0
        """How often its process was stopped."""

    @property
    def up(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.alive

    def _new_process(self) -> RatedProcess:
        self.starts += 1
        process = RatedProcess(
            self.world.loop, f"{self.name}.{self.starts}", self.host, self.world.process_died
        )
        process.node = self
        self.process = process
        self.world.note("start", process.name)
        return process

    def kill(self) -> None:
        """End its process by SIGKILL."""
        process = self.process
        if process is not None and process.alive:
            self.world.note("kill", process.name)
            process.kill()
            self.world.network.gone(process, silent=False)
            self.world.graveyard.append(process)
            self._killed(process)

    def _killed(self, process: RatedProcess) -> None:
        """Its sends and handlers are no more."""

    def process_call(self, function: Any, *args: Any) -> Any:
        """Call a function as its process."""
        assert self.process is not None
        return self.process.call(function, *args)

    def start(self) -> None:
        """Run a process."""

    def start_if_down(self) -> None:
        """Run it again, unless it runs."""
        if not self.up:
            self.start()

    start_if_wanted = start_if_down

    def pause(self) -> None:
        """Stop its process."""
        if self.process is not None and self.process.alive:
            self.pauses += 1
            self.process.pause()

    def unpause(self) -> None:
        """Let its process go on."""
        if self.process is not None:
            self.process.unpause()


class ProducerApp(ClientHost):
    """Sends messages of its own keys, in order, and keeps account of what it was told."""

    def __init__(self, world: OrderedWorld, number: int) -> None:
        super().__init__(world, f"10.0.2.{number + 1}")
        self.id = f"producer-{number}"
        self.keys = [f"k{number}-{each}" for each in range(world.plan.keys)]
        self.idle_until = 0.0
        self.pending: dict[Sent, RatedProcess] = {}
        """Sends of the present process without an answer."""

        self.has_epoch: RatedProcess | None = None
        """The process that has got an answer: it has a producer epoch."""

        self._next = dict.fromkeys(self.keys, 0)

    def start(self) -> None:
        """Run a process."""
        process = self._new_process()
        process.spawn(process.call(self._run, process))

    def replace(self) -> None:
        """Start another process with the same producer id while the one before may live still."""
        before = self.process
        self.pending.clear()
        if before is not None:
            self.world.zombies.append(before)
        self.start()

    def _killed(self, process: RatedProcess) -> None:
        self.pending.clear()

    def _settings(self) -> ProducerSettings:
        return ProducerSettings()

    async def _run(self, process: RatedProcess) -> None:
        world = self.world
        producer = OrderedProducer(
            SimTransport(world, process),
            clock=process.clock,
            producer_id=self.id,
            settings=self._settings(),
            random=world.random_for(f"producer {process.name}"),
        )
        await producer.start()
        while not world.quiet and process is self.process:
            await asyncio.sleep(self.dice.expovariate(1 / world.plan.send_pause))
            if world.quiet or process is not self.process:
                break
            if world.wire.time() < self.idle_until:
                continue
            for _ in range(1 if self.dice.random() < 0.8 else self.dice.randint(2, 6)):
                await self._send(process, producer)

    async def _send(self, process: RatedProcess, producer: OrderedProducer) -> None:
        key = self.dice.choice(self.keys)
        self._next[key] += 1
        message = (key, self._next[key])
        oracle = self.world.oracle
        oracle.sending(message)
        self.world.note("send", process.name, *message)
        try:
            future = await producer.send_async(
                Message(topic=SUBJECT, body=body_of(*message)), key=key, order=self.world.order
            )
        except ClientError as error:
            self.world.counts[f"send refused: {type(error).__name__}"] += 1
            oracle.refused(message)
            return
        self.pending[message] = process
        future.add_done_callback(partial(self._answered, process, message))

    def _answered(
        self, process: RatedProcess, message: Sent, future: asyncio.Future[OrderedSendResult]
    ) -> None:
        if not process.alive:
            if not future.cancelled():
                future.exception()
            return
        if self.pending.get(message) is process:
            del self.pending[message]
        if future.cancelled():
            return
        error = future.exception()
        oracle = self.world.oracle
        if error is None:
            self.has_epoch = process
            result = future.result()
            self.world.note("acknowledged", *message, result.queue_offset)
            oracle.acknowledged(message, None, result.queue_offset)
        else:
            self.world.note("failed", *message, error)
            self.world.counts[f"send failed: {type(error).__name__}"] += 1
            if not isinstance(error, ClientError):
                self.world.process_died(process, error)
            oracle.failed(
                message, maybe_stored=not isinstance(error, OrderedSendFailed) or error.maybe_stored
            )


class ConsumerApp(ClientHost):
    """Consumes as a member of a group; its handlers take time, and fail now and then."""

    def __init__(self, world: OrderedWorld, group: str, number: int, address: int) -> None:
        super().__init__(world, f"10.0.3.{address}")
        self.group = group
        self.number = number
        self.closing: asyncio.Task[None] | None = None
        self.handling = 0
        """Handlers that run."""

        self._consumer: OrderedConsumer | None = None

    def start(self) -> None:
        """Run a process."""
        process = self._new_process()
        self.closing = None
        process.spawn(process.call(self._run, process))

    def leave(self) -> None:
        """Close in order, and end."""
        process, consumer = self.process, self._consumer
        if process is None or not process.alive or consumer is None or self.closing is not None:
            return
        self.world.note("leave", process.name)
        self.closing = process.spawn(process.call(self._leave, process, consumer))

    async def _leave(self, process: RatedProcess, consumer: OrderedConsumer) -> None:
        await consumer.close(CLOSE_SECONDS)
        self.world.note("left", process.name)
        self.world.counts["left"] += 1
        if process is self.process:
            self.world.wire.call_soon(self._ended)

    def _ended(self) -> None:
        self.kill()
        if self.world.healing:
            self.start()

    def _killed(self, process: RatedProcess) -> None:
        self._consumer = None
        self.world.watch.consumer_gone(process)

    def _settings(self) -> OrderedConsumerSettings:
        return OrderedConsumerSettings(
            heartbeat_seconds=self.world.plan.heartbeat,
            retry_finished_seconds=self.world.plan.finished_seconds,
        )

    async def _run(self, process: RatedProcess) -> None:
        world = self.world
        consumer = OrderedConsumer(
            SimTransport(world, process),
            group=self.group,
            client_id="client",
            clock=process.clock,
            settings=self._settings(),
            random=world.random_for(f"consumer {process.name}"),
        )
        self._consumer = consumer
        consumer.subscribe(SUBJECT, partial(self._handle, process), self._options())
        consumer.start()
        await asyncio.get_running_loop().create_future()

    def _options(self) -> SubscriptionOptions:
        return SubscriptionOptions()

    async def _handle(self, process: RatedProcess, message: OrderedMessage, context: HandlingContext) -> None:
        world, oracle = self.world, self.world.oracle
        sent = message_of(message.body)
        assert sent is not None, "nobody else sends"
        assert process.alive, "a killed process runs nothing"
        handling = Handling(
            message=sent,
            group=self.group,
            session=process.name,
            token=context.epoch,
            partition_id=message.partition_id,
            begun=world.wire.time(),
            alive=lambda: process.alive,
            pauses=self.pauses,
            pauses_now=lambda: self.pauses,
        )
        world.note("handle", process.name, *sent, context.epoch, context.attempt)
        oracle.handler_started(handling)
        completed = False
        try:
            await self._work(sent)
            completed = True
        finally:
            if process.alive:
                oracle.handler_ended(handling, completed=completed)

    async def _work(self, sent: Sent) -> None:
        """What a handler does: it takes time, and may fail."""
        world = self.world
        self.handling += 1
        try:
            seconds = world.handler_seconds * self.dice.expovariate(1.0) if world.handler_seconds else 0.0
            if seconds > 0:
                await asyncio.sleep(min(seconds, world.handler_seconds * 10))
            if self.dice.random() < world.handlers_fail or sent[0] in world.poisoned.get(self.group, ()):
                raise HandlerError("on purpose")
        finally:
            self.handling -= 1


class SharingConsumerApp(ConsumerApp):
    """A member of a Shared group: its messages have no order."""

    def _options(self) -> SubscriptionOptions:
        return SubscriptionOptions(consume_strategy=ConsumeStrategy.SHARED)

    async def _handle(self, process: RatedProcess, message: OrderedMessage, context: HandlingContext) -> None:
        world = self.world
        sent = message_of(message.body)
        assert sent is not None, "nobody else sends"
        assert process.alive, "a killed process runs nothing"
        broker_group, queue_id = world.watch.queues[message.partition_id]
        topic = ordered_retry_topic(self.group, SUBJECT) if message.reconsume_times else SUBJECT
        queue = (self.group, broker_group, topic, queue_id)
        world.note("handle", process.name, *sent, context.epoch, message.reconsume_times)
        world.shared.handler_started(process, queue)
        try:
            await self._work(sent)
            if process.alive:
                world.oracle.handled(self.group, sent)
        finally:
            world.shared.handler_ended(process, queue)


class Administrator(ClientHost):
    """Creates the subject and scales it."""

    def __init__(self, world: OrderedWorld) -> None:
        super().__init__(world, "10.0.4.1")
        self.process = self._new_process()
        self._transport = SimTransport(world, self.process)
        self.wanted = world.plan.partitions
        self.scalings: deque[int] = deque(maxlen=100)

    def soon(self, work: Any) -> asyncio.Task[Any]:
        """Do something as a process of its own."""
        assert self.process is not None
        return self.process.spawn(work)

    async def create(self) -> None:
        """Make the subject; repeated until it is there."""
        world = self.world
        header = CreateSubject(
            subject=SUBJECT,
            order_strategy="Strict" if world.plan.strict else "BestTried",
            partitions=world.plan.partitions,
            route=";".join(group.name for group in world.groups),
        )
        while not await self._succeeds(RequestCode.BROKERSET_CREATE_SUBJECT, header.to_ext()):  # noqa: ASYNC110
            await asyncio.sleep(0.3)

    async def scale(self, partitions: int) -> bool:
        """Ask for another number of partitions."""
        route = None
        if self.dice.random() < 0.3:
            names = [group.name for group in self.world.groups]
            route = ";".join(self.dice.sample(names, self.dice.randint(1, len(names))))
        header = ScaleSubject(subject=SUBJECT, partitions=partitions, route=route)
        done = await self._succeeds(RequestCode.BROKERSET_SCALE_SUBJECT, header.to_ext())
        if done:
            self.wanted = partitions
            self.scalings.append(partitions)
            self.world.counts["scaled"] += 1
        return done

    async def describe(self) -> dict[str, Any] | None:
        """The subject, as the controllers say."""
        command = Command(RequestCode.BROKERSET_DESCRIBE_SUBJECTS, {}, orjson.dumps([SUBJECT]))
        try:
            answer = await self._transport.ask_controllers(command, ASK_SECONDS)
        except ClientError:
            return None
        if answer.code != ResponseCode.SUCCESS:
            return None
        subjects = orjson.loads(answer.body)["subjects"]
        return subjects[0] if subjects else None

    async def _succeeds(self, code: int, ext: dict[str, str]) -> bool:
        try:
            answer = await self._transport.ask_controllers(Command(code, ext), ASK_SECONDS)
        except ClientError:
            self.world.counts[f"answer: {int(code)} None"] += 1
            return False
        self.world.note("answered", int(code), answer.code, answer.remark)
        self.world.counts[f"answer: {int(code)} {answer.code}"] += 1
        return answer.code == ResponseCode.SUCCESS


def spread(keys: list[str]) -> int:
    """How many logical partitions keys are in."""
    return len({logical_partition(key) for key in keys})
