"""Replies as a client takes them: which request they are for, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from brokerset_client import ClientClosed, ClientError, Message, MessageView, NotARequest, reply_message
from brokerset_client import replies as replies_module
from brokerset_client.messages import BODY_SIZE_MAX
from brokerset_client.replies import ReplyTable, reply_of
from brokerset_client.sending import prepare
from brokerset_formats.hosts import Host
from brokerset_formats.message_ids import UniqueIds
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import Record, encode_record
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting import Connection

NOBODY = cast(Connection, None)
HOST = Host(bytes((10, 0, 0, 1)), 1)


def push(correlation_id: str | None = "id-1", body: bytes = b"reply", **changes: str) -> Command:
    """PUSH_REPLY_MESSAGE_TO_CLIENT as brokers send it."""
    properties = {"PUSH_REPLY_TIME": "5"} | (
        {} if correlation_id is None else {"CORRELATION_ID": correlation_id}
    )
    ext = {
        "producerGroup": "pg", "topic": "C_REPLY_TOPIC", "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "7", "flag": "3",
        "reconsumeTimes": "0",
        "unitMode": "false", "bornHost": "10.0.0.1:54321", "storeHost": "10.0.0.2:10911",
        "storeTimestamp": "8",
        "properties": encode_properties(properties).decode(),
    } | changes  # fmt: skip
    return Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, body, opaque=9)


def table() -> ReplyTable:
    return ReplyTable(ManualClock())


async def test_a_reply_is_given_to_the_request_with_its_id() -> None:
    """The others wait on; the broker gets code 0."""
    replies = table()
    first, second = replies.expect("id-1"), replies.expect("id-2")

    answer = replies.received(NOBODY, push("id-2", b"two"))

    assert (answer.code, answer.opaque) == (0, 9)
    assert (second.result().body, first.done(), len(replies)) == (b"two", False, 1)


async def test_a_reply_that_nobody_waits_for_is_refused() -> None:
    """Whoever replied hears that it came too late; one that comes twice is taken twice."""
    replies = table()
    late = replies.expect("late")
    replies.forget("late")
    replies.expect("id-1")
    replies.received(NOBODY, push())

    again = replies.received(NOBODY, push())
    for command in (push("late"), push("unknown"), push(None)):
        with pytest.raises(Rejected, match=r"waits here \(any more\)"):
            replies.received(NOBODY, command)

    assert again.code == 0
    assert not late.done()


async def test_a_request_that_was_cancelled_takes_no_reply() -> None:
    """Its future is not touched."""
    replies = table()
    replies.expect("id-1").cancel()

    with pytest.raises(Rejected):
        replies.received(NOBODY, push())


async def test_waiting_requests_and_remembered_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request too many is an error with the number; the oldest of the remembered ids is forgotten."""
    monkeypatch.setattr(replies_module, "REQUESTS_MAX", 2)
    monkeypatch.setattr(replies_module, "ANSWERED_MAX", 1)
    replies = table()
    for name in ("a", "b"):
        replies.expect(name)

    with pytest.raises(ClientError, match="2 requests of this client wait for a reply already"):
        replies.expect("c")
    for name in ("a", "b"):
        replies.received(NOBODY, push(name))

    assert replies.received(NOBODY, push("b")).code == 0
    with pytest.raises(Rejected):
        replies.received(NOBODY, push("a"))


async def test_closing_a_client_fails_what_waits() -> None:
    """With a reason."""
    replies = table()
    waiting = replies.expect("id-1")

    replies.close()

    with pytest.raises(ClientClosed, match="closed before a reply came"):
        await waiting
    assert len(replies) == 0


def test_a_reply_reads_like_any_message() -> None:
    """Hosts, times and properties are those of the push, with the time of its arrival."""
    reply = reply_of(push(), 1234)

    assert (reply.topic, reply.body, reply.flag, reply.queue_offset) == ("C_REPLY_TOPIC", b"reply", 3, 0)
    assert (reply.born_host.text, reply.store_host.text) == ("10.0.0.1:54321", "10.0.0.2:10911")
    assert (reply.born_timestamp, reply.store_timestamp) == (7, 8)
    assert reply.properties == {"PUSH_REPLY_TIME": "5", "CORRELATION_ID": "id-1", "ARRIVE_TIME": "1234"}


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("/10.0.0.1:5", "10.0.0.1:5"), ("[fd00::1]:5", "[fd00::1]:5"), ("fd00::1:5", "[fd00::1]:5"),
        ("broker.local:5", "0.0.0.0:0"), ("", "0.0.0.0:0"), ("10.0.0.1:x", "0.0.0.0:0"),
        ("10.0.0.1:99999", "0.0.0.0:0"),
    ],
)  # fmt: skip
def test_a_host_that_cannot_be_read_costs_no_reply(text: str, host: str) -> None:
    """Hosts are told, and decide nothing."""
    assert reply_of(push(bornHost=text), 0).born_host.text == host


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "x" * 40_000},
        {"queueId": "x"},
        {"properties": "\ud800\x01x\x02"},
        {"properties": "a\x01" + "b" * 40_000},
    ],
)
def test_a_push_that_cannot_be_read_is_refused(changes: dict[str, Any]) -> None:
    """With a reason, and without an exception that is none of the protocol."""
    with pytest.raises(Rejected):
        reply_of(push(**changes), 0)


def request_with(**properties: str) -> MessageView:
    record = Record(
        queue_id=0, queue_offset=0, offset=0, born_timestamp=0, born_host=HOST, store_timestamp=0,
        store_host=HOST, body=b"ask", topic="t", properties=encode_properties(properties),
    )  # fmt: skip
    return MessageView(encode_record(record))


ASKED = {"CLUSTER": "C", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "client", "TTL": "3000"}


def test_a_reply_message_is_javas() -> None:
    """To the reply topic of the request's cluster, with the four properties that Java's has."""
    made = reply_message(request_with(**ASKED, KEYS="k"), b"answer", properties={"own": "1"})

    assert (made.topic, made.body) == ("C_REPLY_TOPIC", b"answer")
    assert made.to_properties("ID") == {
        "MSG_TYPE": "reply", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "client", "TTL": "3000", "own": "1",
        "WAIT": "true", "UNIQ_KEY": "ID",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_a_message_that_lacks_something_is_no_request(name: str) -> None:
    """The error names what it lacks."""
    asked = {key: value for key, value in ASKED.items() if key != name}

    with pytest.raises(NotARequest, match=f"it has no property {name}:"):
        reply_message(request_with(**asked), b"answer")


@pytest.mark.parametrize(
    ("topic", "properties", "code"),
    [
        ("C_REPLY_TOPIC", {"MSG_TYPE": "reply"}, 325),
        ("%RETRY%g", {"MSG_TYPE": "reply"}, 310),
        ("t", {"MSG_TYPE": "other"}, 310),
        ("t", {}, 310),
    ],
)
def test_the_type_of_a_message_decides_how_it_is_sent(
    topic: str, properties: dict[str, Any], code: int
) -> None:
    """A reply that its consumer gives back is no reply any more."""
    message = Message(topic=topic, body=b"x", system_properties=properties)

    sending = prepare(
        message, UniqueIds(bytes(4), 1, 1), 0, body_size_max=BODY_SIZE_MAX, compress_from_bytes=4096
    )

    assert sending.code == code
    assert ("WAIT" in sending.properties) == (code == 310)


async def test_nothing_waits_behind_a_reply_that_came_first() -> None:
    """A reply may come before the broker's answer to the request."""
    replies = table()
    waiting = replies.expect("id-1")

    replies.received(NOBODY, push())

    assert waiting.done()
    replies.forget("id-1")
    await asyncio.sleep(0)
    assert len(replies) == 0
