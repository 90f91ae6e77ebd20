"""Counting what becomes of many messages, and the bodies that are sent."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from brokerset_cli.messages import made_bodies, may_wait, read_lines
from brokerset_cli.output import CommandFailed
from brokerset_cli.sending import Sent, check_statuses, send_all
from brokerset_client.errors import SendFailed
from brokerset_client.messages import Message, SendResult, SendStatus
from brokerset_client.producer import Producer
from brokerset_protocol.bodies.queues import MessageQueue


class FakeProducer:
    """Answers each request in the next turn of the loop; remembers how many were on their way."""

    def __init__(self, *, fail_at: int = -1, status: SendStatus = SendStatus.SEND_OK) -> None:
        self.bodies: list[bytes] = []
        self.on_their_way = 0
        self.most = 0
        self._fail_at = fail_at
        self._status = status

    async def send_async(self, message: Message) -> asyncio.Future[SendResult]:
        return await self.send_batch_async([message])

    async def send_batch_async(self, messages: Sequence[Message]) -> asyncio.Future[SendResult]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[SendResult] = loop.create_future()
        number = len(self.bodies)
        self.bodies += [message.body for message in messages]
        self.on_their_way += 1
        self.most = max(self.most, self.on_their_way)
        queue = MessageQueue("t", "broker-a", number % 2)
        loop.call_later(0, self._answer, future, SendResult(self._status, f"id{number}", "", queue, number))
        return future

    def _answer(self, future: asyncio.Future[SendResult], result: SendResult) -> None:
        self.on_their_way -= 1
        if result.queue_offset == self._fail_at:
            future.set_exception(SendFailed("t", ["no answer"]))
        else:
            future.set_result(result)


def _send(fake: FakeProducer, count: int, *, batch: int = 1, in_flight_max: int = 4) -> tuple[Sent, int]:
    told: list[int] = []
    messages = (Message(topic="t", body=b"%d" % n) for n in range(count))
    producer = cast(Producer, fake)
    work = send_all(
        producer, messages, done=told.append, in_flight_max=in_flight_max, batch=batch, measure=True
    )
    return asyncio.run(work), sum(told)


def test_every_message_is_sent_in_order_and_counted() -> None:
    fake = FakeProducer()

    sent, told = _send(fake, 100)

    assert fake.bodies == [b"%d" % n for n in range(100)]
    assert (sent.count, told, len(sent.latencies_ms), sent.body_bytes) == (100, 100, 100, 190)
    assert {name: (q.count, q.first, q.last) for name, q in sent.queues.items()} == {
        "broker-a/0": (50, 0, 98),
        "broker-a/1": (50, 1, 99),
    }


def test_no_more_requests_than_asked_for_are_on_their_way() -> None:
    fake = FakeProducer()

    _send(fake, 50, in_flight_max=3)

    assert fake.most == 3


def test_messages_of_a_batch_share_a_request() -> None:
    sent, told = _send(FakeProducer(), 10, batch=4)

    assert (sent.count, told, len(sent.latencies_ms)) == (10, 10, 3)


def test_a_failure_ends_the_sending_and_says_how_many_were_acknowledged() -> None:
    with pytest.raises(CommandFailed, match=r"after \d+ acknowledged messages: .*no answer") as caught:
        _send(FakeProducer(fail_at=20), 10_000)

    assert "may be stored nevertheless" in caught.value.advice


def test_sending_that_is_stopped_says_how_many_were_acknowledged() -> None:
    """What was on its way is waited for, the rest is not sent, and that is no success."""
    fake = FakeProducer()
    stop = asyncio.Event()

    def done(_more: int) -> None:
        if len(fake.bodies) >= 20:
            stop.set()

    messages = (Message(topic="t", body=b"%d" % n) for n in range(10_000))
    work = send_all(cast(Producer, fake), messages, done=done, in_flight_max=4, stop=stop)
    with pytest.raises(CommandFailed, match="stopped before everything was sent") as caught:
        asyncio.run(work)

    assert f"{len(fake.bodies)} messages acknowledged" in caught.value.message


def test_a_stop_after_the_last_message_changes_nothing() -> None:
    fake = FakeProducer()
    stop = asyncio.Event()

    def done(_more: int) -> None:
        if len(fake.bodies) == 3:
            stop.set()

    messages = (Message(topic="t", body=b"%d" % n) for n in range(3))
    work = send_all(cast(Producer, fake), messages, done=done, in_flight_max=1, stop=stop)

    assert asyncio.run(work).count == 3


def test_a_message_is_sent_and_answered_while_the_next_one_is_long_in_coming() -> None:
    """As from a pipe into which somebody writes a line now and then; a stop is no failure then."""
    fake = FakeProducer()
    stop = asyncio.Event()
    never = threading.Event()

    def messages() -> Iterator[Message]:
        yield Message(topic="t", body=b"first")
        never.wait(10)

    work = send_all(
        cast(Producer, fake),
        messages(),
        done=lambda _more: stop.set(),
        in_flight_max=4,
        stop=stop,
        waits=True,
    )

    assert asyncio.run(work).count == 1
    never.set()


def test_what_comes_from_a_pipe_is_sent_to_its_end() -> None:
    fake = FakeProducer()
    messages = (Message(topic="t", body=b"%d" % n) for n in range(50))
    work = send_all(cast(Producer, fake), messages, done=lambda _more: None, in_flight_max=4, waits=True)

    assert asyncio.run(work).count == 50
    assert fake.bodies == [b"%d" % n for n in range(50)]


def test_a_pipe_that_cannot_be_read_is_an_error() -> None:
    def messages() -> Iterator[Message]:
        yield Message(topic="t", body=b"first")
        raise CommandFailed("it broke")

    work = send_all(
        cast(Producer, FakeProducer()), messages(), done=lambda _more: None, in_flight_max=4, waits=True
    )
    with pytest.raises(CommandFailed, match="it broke"):
        asyncio.run(work)


def test_pipes_are_waited_for_and_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")

    assert may_wait(tmp_path / "pipe")
    assert not may_wait(tmp_path / "file")
    assert not may_wait(tmp_path / "none")


def test_messages_that_are_stored_less_safely_than_asked_for_are_no_success() -> None:
    sent, _ = _send(FakeProducer(status=SendStatus.FLUSH_DISK_TIMEOUT), 3)

    with pytest.raises(CommandFailed, match="3 x FLUSH_DISK_TIMEOUT"):
        check_statuses(sent)


def test_a_body_says_which_message_it_is_and_is_filled_to_its_size() -> None:
    assert list(made_bodies(2, None, None)) == [b"message 1 of 2", b"message 2 of 2"]
    assert list(made_bodies(1, 20, None)) == [b"message 1 of 1......"]
    assert list(made_bodies(2, None, "ü")) == ["ü".encode()] * 2
    assert list(made_bodies(1, 3, "hello")) == [b"hel"]


def test_each_line_of_a_file_that_is_not_empty_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"a\r\n\nb \nlast")

    assert list(read_lines(tmp_path / "f", None)) == [b"a", b"b ", b"last"]
    assert list(read_lines(tmp_path / "f", 1)) == [b"a"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    assert list(read_lines(Path("-"), None)) == [b"x"]
    with pytest.raises(CommandFailed, match="none cannot be read"):
        list(read_lines(tmp_path / "none", None))
