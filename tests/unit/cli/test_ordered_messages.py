"""Order keys of `send`, and what `consume --ordered` shows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli import ordered_messages
from brokerset_cli.main import main
from brokerset_cli.messages import order_key_of
from brokerset_cli.ordered_messages import OrderedSends, take_ordered
from brokerset_cli.output import CommandFailed
from brokerset_cli.sending import Sent
from brokerset_client import ClientInstance, Message
from brokerset_client.ordered import OrderedClient, OrderedSendResult, StillQueued
from brokerset_client.ordered.consuming import OrderedConsumer, PulledMessage
from brokerset_protocol.subject_words import ConsumeStrategy
from brokerset_rig.fake_subject import GROUP, FakeSubject, FakeTransport
from brokerset_rig.ordered_consumers import LoopClock

RESULT = OrderedSendResult("id", "s", 3, 115, "broker-a", 1, 42, 7, 0)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b"order-1:paid", "order-1"),
        (b"order-1:paid:twice", "order-1"),
        (b":empty", ""),
        (b"nothing", None),
        ("é:x".encode("latin-1"), "\\xe9"),
    ],
)
def test_the_order_key_of_a_line_stands_before_the_first_separator(line: bytes, key: str | None) -> None:
    """Without one the line has no key; the empty key is one."""
    assert order_key_of(line, ":") == key


@pytest.mark.parametrize(
    "options",
    [
        ("--order-key-from", ":"),
        ("--file", "-", "--order-key-from", ":", "--order-key", "k"),
        ("--file", "-", "--order-key-from", ""),
    ],
)
def test_keys_of_lines_need_lines_and_no_other_key(options: tuple[str, ...], tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["send", "s", *options, "--data", str(tmp_path)])

    assert result.exit_code == 2
    assert "--order-key-from goes with --file" in result.output


class _Producer:
    """Answers when the test wants."""

    def __init__(self) -> None:
        self.future: asyncio.Future[OrderedSendResult] = asyncio.get_running_loop().create_future()

    async def send_async(self, message: Message, **_: object) -> asyncio.Future[OrderedSendResult]:
        return self.future


def sends(producer: _Producer) -> OrderedSends:
    return OrderedSends(producer)  # type: ignore[arg-type]  # a stand-in of OrderedProducer


async def test_a_confirmed_message_is_shown_with_its_queue() -> None:
    producer = _Producer()
    answer = await sends(producer).send_async(Message(topic="s", body=b"x"))

    producer.future.set_result(RESULT)

    sent = await answer
    assert (sent.queue.broker_name, sent.queue.queue_id, sent.queue_offset) == ("broker-a", 1, 42)


async def test_a_message_that_fails_fails_with_its_own_error() -> None:
    producer = _Producer()
    answer = await sends(producer).send_async(Message(topic="s", body=b"x"))

    producer.future.set_exception(StillQueued("because"))

    with pytest.raises(StillQueued, match="because"):
        await answer


async def test_the_command_does_not_wait_without_end_for_a_broker_that_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The producer would: Strict tries until the message is stored. A late answer harms nobody."""
    monkeypatch.setattr(ordered_messages, "CONFIRM_SECONDS", 0.01)
    producer = _Producer()
    answer = await sends(producer).send_async(Message(topic="s", body=b"x"))

    with pytest.raises(StillQueued, match="may be stored"):
        await answer
    producer.future.set_result(RESULT)
    await asyncio.sleep(0)


async def test_a_message_whose_place_was_not_said_is_counted_without_one() -> None:
    """A repeated request is answered without queue offset: no number is shown instead of it."""
    sent = Sent()
    for known in (False, True, False):
        producer = _Producer()
        answer = await sends(producer).send_async(Message(topic="s", body=b"x"))
        producer.future.set_result(RESULT if known else replace(RESULT, queue_offset=None))
        sent.add(await answer, 1, 1)
        if not known and sent.count == 1:
            unknown = sent.to_json()["queues"]["broker-a/1"]

    assert unknown == {"count": 1, "firstOffset": None, "lastOffset": None}
    assert sent.to_json()["queues"]["broker-a/1"] == {"count": 3, "firstOffset": 42, "lastOffset": 42}


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeSubject:
    """What `take_ordered` finds; a parameter says how its group consumes it."""
    made = FakeSubject(consume=getattr(request, "param", ConsumeStrategy.EXCLUSIVE))

    async def found(*_: object) -> object:
        return made

    def consumer(_: OrderedClient, *, group: str) -> OrderedConsumer:
        return OrderedConsumer(FakeTransport(made), group=group, client_id="c", clock=LoopClock())

    monkeypatch.setattr(ordered_messages, "find_subject", found)
    monkeypatch.setattr(ordered_messages, "stop_event", asyncio.Event)
    monkeypatch.setattr(OrderedClient, "consumer", consumer)
    return made


async def take(subject: FakeSubject, count: int, *, shared: bool = False) -> list[bytes]:
    handled: list[bytes] = []

    def handle(pulled: PulledMessage) -> None:
        handled.append(pulled.message.body)

    instance = ClientInstance("127.0.0.1:1")
    await take_ordered(instance, subject.name, GROUP, handle=handle, count=count, shared=shared)
    return handled


@pytest.mark.virtual
async def test_a_member_that_is_refused_is_an_error_with_the_reason(subject: FakeSubject) -> None:
    """`consume --ordered` does not wait silently for what never comes."""
    subject.exists = False

    with pytest.raises(CommandFailed, match="no such subject"):
        await asyncio.wait_for(take(subject, 1), 60)


@pytest.mark.virtual
async def test_as_many_messages_as_wanted_are_taken_and_no_more(subject: FakeSubject) -> None:
    """The others stay for the next member of the group."""
    for number in range(5):
        subject.send(f"key-{number}", b"%d" % number)

    handled = await asyncio.wait_for(take(subject, 3), 60)

    assert len(handled) == 3
    assert subject.members == {}


@pytest.mark.virtual
@pytest.mark.parametrize("subject", [ConsumeStrategy.SHARED], indirect=True)
async def test_a_member_of_a_shared_group_leaves_the_others_what_it_does_not_want(
    subject: FakeSubject,
) -> None:
    """Runs that follow each other get each message once."""
    for number in range(5):
        subject.send("one-key", b"%d" % number)

    first = await asyncio.wait_for(take(subject, 3, shared=True), 60)
    second = await asyncio.wait_for(take(subject, 2, shared=True), 60)

    assert sorted(first + second) == [b"0", b"1", b"2", b"3", b"4"]
    assert subject.violations == []


def test_only_members_of_ordered_groups_can_share_partitions(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["consume", "s", "--shared", "--data", str(tmp_path)])

    assert result.exit_code == 2
    assert "--shared goes with --ordered" in result.output
