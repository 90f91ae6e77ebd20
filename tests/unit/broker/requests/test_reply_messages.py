"""Replies to requests: what is checked, where they go, how they are answered, and what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.requests import reply_messages
from brokerset_broker.requests.reply_messages import ReplyProcessor
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.tables.producers import ProducerTable
from brokerset_formats.hosts import Host
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.send import PushReplyMessageToClient
from brokerset_rig.waiting import until
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout

from .test_send_checks import Bench

TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKED = {
    "MSG_TYPE": "reply",
    "CORRELATION_ID": "id-1",
    "REPLY_TO_CLIENT": "client-1",
    "TTL": "3000",
    "UNIQ_KEY": "AB",
}
LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes",
    "k": "unitMode",
}  # fmt: skip


class FakeChannel:
    """A client that waits for replies; `answers` says how."""

    def __init__(self) -> None:
        self.peer = ("10.0.0.9", 4000)
        self.pushed: list[Command] = []
        self.code = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.unsent_bytes = 0

    def notify(self, command: Command) -> None:
        raise AssertionError("a reply is acknowledged")

    async def call(self, command: Command, timeout: float) -> Command:
        assert timeout == 10.0
        self.pushed.append(command)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return command.reply(self.code, "no thanks" if self.code else None)


class ReplyBench(Bench):
    """A processor for replies, and a client `client-1` that waits for them."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        clock = ManualClock()
        self.producers = ProducerTable(clock)
        self.channel = FakeChannel()
        self.producers.register("pg", self.channel, "client-1", 0, 0)
        self.replies = ReplyProcessor(
            live=self.live,
            sends=self.processor,
            store=self.store,  # type: ignore[arg-type]  # the part of it that sends use
            producers=self.producers,
            admission=self.admission,
            stats=self.stats,
            clock=clock,
        )

    def start(
        self, properties: dict[str, str] | None = None, body: bytes = b"reply", *, code: int = 325, **ext: Any
    ) -> Coroutine[Any, Any, Command]:
        """What the handler returns. Raises `Rejected` where it refuses at once."""
        fields = {
            "a": "pg", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
            "h": "3", "i": encode_properties(ASKED if properties is None else properties).decode(), "j": "0",
            "k": "false",
        } | ext  # fmt: skip
        if code == RequestCode.SEND_REPLY_MESSAGE:
            fields = {LONG_NAMES[letter]: value for letter, value in fields.items()}
        command = Command(code, fields, body, opaque=7, version=479)
        work: Any = self.replies.handlers()[code](self.connection, command)  # type: ignore[arg-type]  # a fake one
        assert asyncio.iscoroutine(work)
        return work

    async def reply(self, *arguments: Any, **options: Any) -> Command:
        return await self.start(*arguments, **options)


@pytest.fixture
def bench(tmp_path: Path) -> ReplyBench:
    return ReplyBench(tmp_path)


@pytest.mark.parametrize("code", [324, 325])
async def test_a_reply_goes_to_the_client_that_asked(bench: ReplyBench, code: int) -> None:
    """With Java's header: both hosts, when it was pushed, and the properties of a stored message."""
    answer = await bench.reply(code=code)

    assert (answer.code, answer.remark, answer.opaque) == (0, None, 7)
    [push] = bench.channel.pushed
    assert (push.code, push.body) == (326, b"reply")
    header = PushReplyMessageToClient.from_ext(push.ext)
    assert (header.topic, header.queue_id, header.flag, header.born_timestamp) == (
        TOPIC,
        0,
        3,
        1_700_000_000_000,
    )
    assert (header.born_host, header.store_host) == ("10.0.0.1:54321", "127.0.0.1:10911")
    assert set(decode_properties((header.properties or "").encode())) == {
        *ASKED, "PUSH_REPLY_TIME", "MSG_REGION", "TRACE_ON",
    }  # fmt: skip


async def test_a_reply_is_stored_as_java_stores_it(bench: ReplyBench) -> None:
    """Without the time of the push, and without CLUSTER; but with the flag of a compressed body."""
    answer = await bench.reply(f="1")

    [stored] = bench.store.stored
    assert (stored.topic, stored.queue_id, stored.body) == (TOPIC, 0, b"reply")
    assert stored.properties == {**ASKED, "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert stored.facts["sys_flag"] == 1
    assert answer.ext["msgId"] == bench.processor.replies.message_id(4096)
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0")


async def test_replies_need_not_be_stored(tmp_path: Path) -> None:
    """The answer has Java's id then: a number that clients can read."""
    bench = ReplyBench(tmp_path, store_reply_message_enable=False)

    answer = await bench.reply(e="-1")

    assert bench.store.stored == []
    assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in ASKED.items() if key != name}


async def test_a_reply_to_nobody_is_refused_and_stored(bench: ReplyBench) -> None:
    """In Java's words: no client is named, or it is not connected here."""
    unnamed = await bench.reply(without("REPLY_TO_CLIENT"))
    gone = await bench.reply({**ASKED, "REPLY_TO_CLIENT": "c2", "UNIQ_KEY": "CD"})

    assert (unnamed.code, unnamed.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
    assert (gone.code, gone.remark) == (1, "push reply message fail, channel of <c2> not found.")
    assert len(bench.store.stored) == 2
    assert gone.ext["queueOffset"] == "1"


@pytest.mark.parametrize(
    "change",
    [
        lambda channel: setattr(channel, "code", 1),
        lambda channel: setattr(channel, "error", RequestTimeout("silent")),
    ],
)
async def test_a_client_that_does_not_take_a_reply_is_named(
    bench: ReplyBench, change: Callable[[FakeChannel], None]
) -> None:
    """Java's remark, and the reason behind it; the reply is stored, and nothing is left on its way."""
    change(bench.channel)

    answer = await bench.reply()

    assert answer.code == 1
    assert (answer.remark or "").startswith("push reply message to client-1fail.")
    assert len(bench.store.stored) == 1
    assert (bench.replies.pushes, bench.replies.push_bytes) == (0, 0)


async def test_a_client_that_goes_while_it_gets_a_reply_counts_as_not_found(bench: ReplyBench) -> None:
    """So the reply is tried again, also at other brokers: the client may be back by then."""
    bench.channel.error = ConnectionClosed("gone")

    answer = await bench.reply()

    assert (answer.code, answer.remark) == (1, "push reply message fail, channel of <client-1> not found.")
    assert (bench.replies.pushes, bench.replies.push_bytes) == (0, 0)


async def test_a_reply_that_is_sent_again_is_not_stored_again(bench: ReplyBench) -> None:
    """It is passed on again, and the answer names the first place."""
    bench.channel.code = 1
    first = await bench.reply()
    bench.channel.code = 0

    second = await bench.reply()

    assert (first.code, second.code) == (1, 0)
    assert first.ext["msgId"] == second.ext["msgId"]
    assert len(bench.store.stored) == 1
    assert len(bench.channel.pushed) == 2


async def test_only_so_many_replies_are_remembered(
    bench: ReplyBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest one is forgotten; one without an id is stored each time."""
    monkeypatch.setattr(reply_messages, "STORED_MAX", 2)

    for key in ("A", "B", "C", "C", "A"):
        await bench.reply({**ASKED, "UNIQ_KEY": key})
    for _ in range(2):
        await bench.reply(without("UNIQ_KEY"))

    assert len(bench.store.stored) == 6


async def test_a_reply_that_the_store_refuses_is_passed_on_all_the_same(bench: ReplyBench) -> None:
    """As in Java, the code is that of the push; the answer claims no place."""
    bench.store.refuses = StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, "full")

    answer = await bench.reply()

    assert (answer.code, answer.ext["msgId"]) == (0, "0")
    assert len(bench.channel.pushed) == 1


async def test_an_answer_names_a_place_only_when_it_is_durable(bench: ReplyBench) -> None:
    """Client and store are waited for side by side; a reply that is lost is stored when it comes again."""
    waiting: list[Callable[[PutStatus], None]] = []
    bench.admission.when_durable = lambda _end, callback: waiting.append(callback)

    lost = asyncio.create_task(bench.start())
    await until(lambda: bench.channel.pushed)
    assert not lost.done()
    waiting[0](PutStatus.SERVICE_NOT_AVAILABLE)
    again = asyncio.create_task(bench.start())
    await asyncio.sleep(0)
    waiting[1](PutStatus.PUT_OK)

    assert ((await lost).code, (await lost).ext["msgId"]) == (0, "0")
    assert (await again).ext["msgId"] != "0"
    assert len(bench.store.stored) == 2


async def test_a_client_that_is_slow_holds_nobody_up(bench: ReplyBench) -> None:
    """Replies to others are answered meanwhile; whoever replied may go, which leaves nothing behind."""
    other = FakeChannel()
    bench.producers.register("pg", other, "client-2", 0, 0)
    bench.channel.gate.clear()
    slow = asyncio.create_task(bench.start())
    await asyncio.sleep(0)

    answer = await bench.reply({**ASKED, "REPLY_TO_CLIENT": "client-2", "UNIQ_KEY": "CD"})

    assert answer.code == 0
    assert (slow.done(), bench.replies.pushes) == (False, 1)
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    assert (bench.replies.pushes, bench.replies.push_bytes) == (0, 0)


@pytest.mark.parametrize(("name", "value"), [("PUSHES_MAX", 1), ("PUSH_BYTES_MAX", 100)])
async def test_replies_on_their_way_are_bounded(
    bench: ReplyBench, monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    """One too many is refused with code 2 before it is stored; it is taken when there is room."""
    monkeypatch.setattr(reply_messages, name, value)
    if name == "PUSHES_MAX":
        bench.channel.gate.clear()
        slow = asyncio.create_task(bench.start())
        await asyncio.sleep(0)

    with pytest.raises(Rejected, match="on their way") as refused:
        await bench.reply({**ASKED, "UNIQ_KEY": "CD"})

    assert refused.value.code == 2
    assert len(bench.store.stored) == (name == "PUSHES_MAX")
    if name == "PUSHES_MAX":
        bench.channel.gate.set()
        assert (await slow).code == 0
        assert (await bench.reply({**ASKED, "UNIQ_KEY": "CD"})).code == 0


@pytest.mark.parametrize(
    ("properties", "ext", "code", "remark"),
    [
        ({"DELAY": "3"}, {}, 13, "without the property DELAY"),
        ({"TIMER_DELAY_MS": "3"}, {}, 13, "without the property TIMER_DELAY_MS"),
        ({"TRAN_MSG": "true"}, {}, 13, "without the property TRAN_MSG"),
        ({"INNER_MULTI_DISPATCH": "%LMQ%a"}, {}, 13, "without the property INNER_MULTI_DISPATCH"),
        ({}, {"f": "4"}, 13, "cannot have the sysFlag 0x4"),
        ({"x": "y" * 40_000}, {}, 13, "the message is illegal"),
        ({}, {"e": "1"}, 29, r"request queueId\[1\] is illegal"),
        ({}, {"b": "SCHEDULE_TOPIC_XXXX"}, 16, "is forbidden"),
        ({}, {"b": "a b"}, 29, "contains illegal characters"),
        ({}, {"e": "x"}, 1, "field e "),
    ],
)
async def test_what_is_no_reply_is_refused_before_it_goes_anywhere(
    bench: ReplyBench, properties: dict[str, str], ext: dict[str, str], code: int, remark: str
) -> None:
    """Checks are those of a send; a reply is delivered at once."""
    with pytest.raises(Rejected, match=remark) as refused:
        await bench.reply({**ASKED, **properties}, **ext)

    assert refused.value.code == code
    assert (bench.store.stored, bench.channel.pushed) == ([], [])


@pytest.mark.parametrize("body", [b"", bytes(4_194_305)])
async def test_bodies_have_the_limits_of_a_send(bench: ReplyBench, body: bytes) -> None:
    """Nothing is pushed or stored."""
    with pytest.raises(Rejected, match="the message is illegal"):
        await bench.reply(body=body)

    assert (bench.store.stored, bench.channel.pushed) == ([], [])


async def test_a_broker_that_takes_no_writes_takes_no_replies(bench: ReplyBench) -> None:
    """The refusal is that of a send."""
    bench.admission.refuse_writes()

    with pytest.raises(Rejected, match="system busy") as refused:
        await bench.reply()

    assert refused.value.code == 2
    assert (bench.store.stored, bench.channel.pushed) == ([], [])


async def test_the_reply_topic_of_another_cluster_is_made(bench: ReplyBench) -> None:
    """As a send makes its topic: a request may have been copied here from another cluster."""
    answer = await bench.reply(b="Other_REPLY_TOPIC")

    assert answer.code == 0
    assert bench.topics.get("Other_REPLY_TOPIC") is not None
    assert bench.store.stored[0].topic == "Other_REPLY_TOPIC"


async def test_the_host_of_an_ipv6_client_has_brackets(bench: ReplyBench) -> None:
    """As Java's clients can read it."""
    bench.connection.peer = ("fd00::1", 54321)

    await bench.reply()

    header = PushReplyMessageToClient.from_ext(bench.channel.pushed[0].ext)
    assert header.born_host == "[fd00::1]:54321" == Host.from_text("fd00::1", 54321).text
