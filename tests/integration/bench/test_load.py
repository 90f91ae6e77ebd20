"""Writer, consumer and checker of `bench failover` against brokers that lose or overwrite on purpose."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from brokerset_bench.history import History, Verdict, check
from brokerset_bench.measurements import takeover_gap
from brokerset_bench.probes import Prober
from brokerset_bench.reader import Reader
from brokerset_bench.writer import QUEUES, Route, Writer
from brokerset_client.instance import ClientInstance
from brokerset_formats.hosts import Host
from brokerset_formats.records import Record, encode_record
from brokerset_protocol.bodies.routes import BrokerData, QueueData, TopicRouteData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import DEFERRED, Connection, RemotingServer
from brokerset_runtime.remoting.connection import Reply

TOPIC, GROUP = "t", "g"
HOST = Host.from_text("127.0.0.1", 1)
RATE = 400
LATE_MESSAGES = 24
"""Messages that a bad successor lacks."""


class FakeBroker:
    """Keeps bodies by queue in memory; `hold` lets it fall silent."""

    def __init__(self) -> None:
        self.queues: list[list[bytes]] = [[] for _ in range(QUEUES)]
        self.hold = False
        self.held: list[tuple[Connection, Command]] = []
        """Sends that wait for `wake`."""

        self._server = RemotingServer(
            {
                RequestCode.SEND_MESSAGE_V2: self._send,
                RequestCode.PULL_MESSAGE: self._pull,
                RequestCode.GET_MAX_OFFSET: self._max,
            }
        )
        self.address = ""

    async def open(self) -> None:
        self.address = f"127.0.0.1:{await self._server.listen('127.0.0.1', 0)}"

    async def die(self) -> None:
        self._server.stop_accepting()
        for connection in list(self._server.connections.values()):
            connection.abort()
        await self._server.close(0)

    def wake(self) -> None:
        """Answer what was held, as a process does that was stopped."""
        self.hold = False
        for connection, command in self.held:
            connection.answer(self._store(command))

    def copy_to(self, other: FakeBroker, *, without: int = 0) -> None:
        """Give another one the log, but the last messages of it."""
        other.queues = [queue[: len(queue) - without // QUEUES] for queue in self.queues]

    def _send(self, connection: Connection, command: Command) -> Reply:
        if self.hold:
            self.held.append((connection, command))
            return DEFERRED
        return self._store(command)

    def _store(self, command: Command) -> Command:
        queue = int(command.ext["e"])
        self.queues[queue].append(bytes(command.body))
        answer = command.reply()
        answer.ext.update(msgId="1", queueId=str(queue), queueOffset=str(len(self.queues[queue]) - 1))
        return answer

    def _pull(self, connection: Connection, command: Command) -> Reply:
        if self.hold:
            return None
        number, offset = int(command.ext["queueId"]), int(command.ext["queueOffset"])
        queue = self.queues[number]
        found = queue[offset : offset + 32]
        answer = command.reply()
        if not found:
            answer.code = (
                ResponseCode.PULL_NOT_FOUND if offset == len(queue) else ResponseCode.PULL_OFFSET_MOVED
            )
        answer.body = b"".join(
            encode_record(
                Record(
                    queue_id=number,
                    queue_offset=offset + n,
                    offset=0,
                    born_timestamp=0,
                    born_host=HOST,
                    store_timestamp=0,
                    store_host=HOST,
                    body=body,
                    topic=TOPIC,
                )
            )
            for n, body in enumerate(found)
        )
        after = offset + len(found) if found else len(queue)
        answer.ext.update(
            nextBeginOffset=str(after), minOffset="0", maxOffset=str(len(queue)), suggestWhichBrokerId="0"
        )
        return answer

    def _max(self, _: Connection, command: Command) -> Reply:
        if self.hold:
            return None
        answer = command.reply()
        answer.ext["offset"] = str(len(self.queues[int(command.ext["queueId"])]))
        return answer


class FakeNameServer:
    """Tells who the master is."""

    def __init__(self) -> None:
        self.master = ""
        self.server = RemotingServer({RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route})

    def _route(self, _: Connection, command: Command) -> Reply:
        answer = command.reply()
        answer.body = TopicRouteData(
            (QueueData(GROUP, QUEUES, QUEUES, 6),), (BrokerData("c", GROUP, {0: self.master}),)
        ).to_json()
        return answer


Story = Callable[[FakeBroker, FakeBroker, FakeNameServer], Awaitable[None]]


def play(story: Story) -> tuple[History, Writer, Verdict, float, str]:
    """Run a fault under load; returns what was seen, when the fault came, and who was master before."""

    async def scene() -> tuple[History, Writer, Verdict, float, str]:
        old, new, names = FakeBroker(), FakeBroker(), FakeNameServer()
        await old.open()
        await new.open()
        names.master = old.address
        name_server = f"127.0.0.1:{await names.server.listen('127.0.0.1', 0)}"
        history = History(time.monotonic)
        async with Prober() as prober, ClientInstance(name_server) as instance:
            route = Route(prober, [name_server], TOPIC, GROUP)
            writer = Writer(history, route, TOPIC, rate=RATE, size=200, first=0)
            reader = Reader(instance, route, TOPIC, GROUP)
            stop = asyncio.Event()
            writing = asyncio.create_task(writer.run(stop))
            reading = asyncio.create_task(reader.run(history))
            await until(lambda: len(history.acks) > RATE // 2)
            fault = time.monotonic()
            await story(old, new, names)
            await until(lambda: sum(ack.broker == new.address for ack in history.acks) > RATE // 4)
            old.wake()
            await until(lambda: all(not line.waiting for line in writer._old.values()))
            stop.set()
            await writing
            await reader.until_end()
            await reader.scan(history)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        for server in (old, new):
            await server.die()
        await names.server.close(0)
        return history, writer, check(history.events()), fault, old.address

    return asyncio.run(scene())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # the load sets no event
            await asyncio.sleep(0.005)


def test_a_master_that_dies_and_leaves_everything_to_another_one_breaks_no_promise() -> None:
    async def story(old: FakeBroker, new: FakeBroker, names: FakeNameServer) -> None:
        await old.die()
        old.copy_to(new)
        await asyncio.sleep(0.1)
        names.master = new.address

    history, writer, verdict, fault, old = play(story)

    assert verdict.ok, verdict.texts
    assert verdict.acked == verdict.sent
    gap = takeover_gap(history.acks, fault, old)
    assert gap is not None
    assert 0.1 <= gap < 5
    assert writer.failed_at_old == 0


def test_a_successor_that_lacks_the_last_messages_is_seen_to_have_lost_them() -> None:
    async def story(old: FakeBroker, new: FakeBroker, names: FakeNameServer) -> None:
        await old.die()
        old.copy_to(new, without=LATE_MESSAGES)
        names.master = new.address

    _, _, verdict, _, _ = play(story)

    assert verdict.lost == LATE_MESSAGES
    assert verdict.violations["overwritten"] >= LATE_MESSAGES
    assert verdict.violations["conflict"] > 0


def test_a_master_that_wakes_and_acknowledges_what_its_successor_lacks_is_found_out() -> None:
    async def story(old: FakeBroker, new: FakeBroker, names: FakeNameServer) -> None:
        old.hold = True
        old.copy_to(new)
        await until(lambda: len(old.held) >= RATE // 5)
        names.master = new.address

    _, writer, verdict, _, _ = play(story)

    assert verdict.violations["conflict"] > 0, verdict.texts
    assert writer.unanswered == 0


@pytest.mark.parametrize("code", [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT])
def test_an_answer_other_than_send_ok_is_a_failure_and_is_tried_again(code: ResponseCode) -> None:
    async def story(old: FakeBroker, new: FakeBroker, names: FakeNameServer) -> None:
        def refuse(command: Command) -> Command:
            answer = command.reply()
            answer.code = code
            return answer

        old._store = refuse  # type: ignore[method-assign]  # it has had enough
        await asyncio.sleep(0.1)
        old.copy_to(new)
        names.master = new.address

    _, writer, verdict, _, _ = play(story)

    assert verdict.ok, verdict.texts
    assert writer.failed > 0
    assert all(reason.startswith(f"code {int(code)}") for reason in writer.reasons)
