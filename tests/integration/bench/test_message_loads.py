"""Transactions and timers of `bench failover` against a broker in memory that breaks a promise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from brokerset_bench import timer_load
from brokerset_bench.event_log import Broken, MessageVerdict
from brokerset_bench.message_loads import MessageLoads
from brokerset_client.instance import ClientInstance
from brokerset_formats.hosts import Host
from brokerset_formats.message_ids import encode_offset_id
from brokerset_formats.properties import Property, decode_properties
from brokerset_formats.records import Record, encode_record
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection, RemotingServer
from brokerset_runtime.remoting.connection import Reply

HOST = Host.from_text("127.0.0.1", 1)
RATE = 200
ENOUGH = 60
"""Messages that are acknowledged before the load ends; every kind of end is among them."""

ASK_SECONDS = 0.2
"""After so long the broker asks about a half that is open."""


def record(topic: str, queue: int, offset: int, body: bytes) -> bytes:
    return encode_record(
        Record(
            queue_id=queue, queue_offset=offset, offset=0, born_timestamp=0, born_host=HOST,
            store_timestamp=0, store_host=HOST, body=body, topic=topic,
        )
    )  # fmt: skip


@dataclass
class Half:
    topic: str
    queue: int
    body: bytes
    number: int
    ended: bool = False


@dataclass
class MemoryBroker:
    """Serves transactions and timers, but for what `breaks` says, each third time."""

    breaks: str = ""
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    halves: list[Half] = field(default_factory=list)
    producers: list[Connection] = field(default_factory=list)
    refused: int = 0
    acked: int = 0
    times: int = 0
    address: str = ""

    def __post_init__(self) -> None:
        self.server = RemotingServer({
            RequestCode.SEND_MESSAGE_V2: self._send, RequestCode.END_TRANSACTION: self._end,
            RequestCode.PULL_MESSAGE: self._pull, RequestCode.GET_MAX_OFFSET: self._max,
            RequestCode.HEART_BEAT: self._beat,
        })  # fmt: skip

    def _broken(self, how: str) -> bool:
        if self.breaks == how:
            self.times += 1
        return self.breaks == how and self.times % 3 == 0

    def _put(self, topic: str, queue: int, body: bytes) -> int:
        messages = self.queues.setdefault((topic, queue), [])
        messages.append(body)
        return len(messages) - 1

    def _beat(self, connection: Connection, _: Command) -> Reply:
        self.producers.append(connection)
        return None

    def _send(self, _: Connection, command: Command) -> Reply:
        topic, queue, body = command.ext["b"], int(command.ext["e"]), bytes(command.body)
        properties = decode_properties(command.ext["i"].encode())
        answer = command.reply()
        loop = asyncio.get_running_loop()
        if Property.TRAN_MSG in properties:
            half = Half(topic, queue, body, len(self.halves))
            self.halves.append(half)
            loop.call_later(ASK_SECONDS, self._ask, half)
            offset = half.number
            if self._broken("halfVisible"):
                self._put(topic, queue, body)
        else:
            offset = 0
            due = int(properties[Property.TIMER_DELIVER_MS]) / 1000 - time.time()
            if self._broken("early"):
                due = 0.0
            for _again in range(2 if self._broken("twice") else 1):
                if not self._broken("lost"):
                    loop.call_later(max(0.0, due) + 0.002, self._put, topic, queue, body)
        if self._broken("refuses"):
            self.refused += 1
            answer.code = ResponseCode.SERVICE_NOT_AVAILABLE
            return answer
        self.acked += 1
        answer.ext.update(msgId=encode_offset_id(HOST, offset), queueId=str(queue), queueOffset=str(offset))
        return answer

    def _end(self, _: Connection, command: Command) -> Reply:
        half = self.halves[int(command.ext["tranStateTableOffset"])]
        assert int(command.ext["commitLogOffset"]) == half.number
        commits = command.ext["commitOrRollback"] == "8"
        stores = not self._broken("lost") if commits else self._broken("rolledBackVisible")
        if stores and (not half.ended or self.breaks == "twice"):
            self._put(half.topic, half.queue, half.body)
        half.ended = True
        return command.reply()

    def _ask(self, half: Half) -> None:
        if (half.ended and self.breaks != "twice") or self.breaks == "unsettled" or not self.producers:
            return
        ext = {"tranStateTableOffset": str(half.number), "commitLogOffset": str(half.number)}
        body = record(half.topic, half.queue, 0, half.body)
        self.producers[-1].notify(Command(RequestCode.CHECK_TRANSACTION_STATE, ext, body))

    def _pull(self, _: Connection, command: Command) -> Reply:
        topic, queue, offset = (
            command.ext["topic"],
            int(command.ext["queueId"]),
            int(command.ext["queueOffset"]),
        )
        messages = self.queues.get((topic, queue), [])
        found = messages[offset : offset + 32]
        answer = command.reply()
        if not found:
            answer.code = ResponseCode.PULL_NOT_FOUND
        answer.body = b"".join(record(topic, queue, offset + n, body) for n, body in enumerate(found))
        answer.ext.update(
            nextBeginOffset=str(offset + len(found)), minOffset="0", maxOffset=str(len(messages)),
            suggestWhichBrokerId="0",
        )  # fmt: skip
        return answer

    def _max(self, _: Connection, command: Command) -> Reply:
        answer = command.reply()
        key = command.ext["topic"], int(command.ext["queueId"])
        answer.ext["offset"] = str(len(self.queues.get(key, [])))
        return answer


def play(breaks: str, *, transactions: int = 0, timers: int = 0) -> tuple[MessageVerdict, MemoryBroker]:
    """Run one load against a broker that breaks a promise."""

    async def scene() -> tuple[MessageVerdict, MemoryBroker]:
        broker = MemoryBroker(breaks)
        broker.address = f"127.0.0.1:{await broker.server.listen('127.0.0.1', 0)}"

        async def read() -> str:
            return broker.address

        route: Any = SimpleNamespace(master=broker.address, read=read)
        async with ClientInstance(broker.address) as instance:
            loads = MessageLoads(instance, route, "g", "x", transactions=transactions, timers=timers)
            stop = asyncio.Event()
            loads.start(stop)
            try:
                await until(lambda: broker.acked >= ENOUGH)
                stop.set()
                (verdict,) = (await loads.finish(1.5)).values()
            finally:
                await loads.close()
        await broker.server.close(0)
        return verdict, broker

    return asyncio.run(scene())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # the load sets no event
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers that are due soon; a broken broker has them early all the same."""
    monkeypatch.setattr(timer_load, "DELAYS_SECONDS", (0.3, 0.1))


def test_a_broker_that_keeps_its_promises_about_transactions_breaks_none() -> None:
    """What is left open is asked about, and is settled."""
    verdict, broker = play("", transactions=RATE)

    assert verdict.ok, verdict.texts
    assert verdict.counts["halves"] == len(broker.halves)
    assert 0 < verdict.counts["asked"] < verdict.counts["halves"] / 5
    assert verdict.counts["committed"] == sum(map(len, broker.queues.values()))
    assert verdict.counts["duplicates"] == 0


@pytest.mark.parametrize(
    ("breaks", "violation"),
    [
        ("lost", Broken.LOST), ("unsettled", Broken.UNSETTLED), ("halfVisible", Broken.HALF_VISIBLE),
        ("rolledBackVisible", Broken.ROLLED_BACK_VISIBLE),
    ],
)  # fmt: skip
def test_a_broker_that_breaks_a_promise_about_transactions_is_found_out(
    breaks: str, violation: Broken
) -> None:
    """By the name of that promise."""
    verdict, _ = play(breaks, transactions=RATE)

    assert verdict.violations[violation] > 0, verdict.violations
    assert set(verdict.violations) <= {violation, Broken.ROLLED_BACK_VISIBLE}


def test_commits_that_are_made_twice_are_counted() -> None:
    """They break no promise."""
    verdict, _ = play("twice", transactions=RATE)

    assert verdict.ok, verdict.texts
    assert verdict.counts["duplicates"] > 0


def test_halves_that_were_refused_are_given_up_and_never_committed() -> None:
    """Though this broker has stored them, and asks about them."""
    verdict, broker = play("refuses", transactions=RATE)

    assert verdict.ok, verdict.texts
    assert verdict.counts["failed"] == broker.refused > 0
    assert verdict.counts["asked"] > 0


def test_a_broker_that_keeps_its_promises_about_timers_breaks_none() -> None:
    """Each comes once, when it is due or a little later."""
    verdict, broker = play("", timers=RATE)

    assert verdict.ok, verdict.texts
    assert verdict.counts["acked"] == broker.acked == verdict.counts["delivered"]
    assert min(verdict.lateness) >= 0


@pytest.mark.parametrize(("breaks", "violation"), [("lost", Broken.LOST), ("early", Broken.EARLY)])
def test_a_broker_that_breaks_a_promise_about_timers_is_found_out(breaks: str, violation: Broken) -> None:
    """By the name of that promise, and no other."""
    verdict, _ = play(breaks, timers=RATE)

    assert set(verdict.violations) == {violation}


def test_timers_that_come_twice_are_counted() -> None:
    """They break no promise."""
    verdict, _ = play("twice", timers=RATE)

    assert verdict.ok, verdict.texts
    assert verdict.counts["duplicates"] > 0
