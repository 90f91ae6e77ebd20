"""When a message shall be delivered, as properties; and handles of messages that are taken back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from brokerset_client import Message, MessageInvalid
from brokerset_client.timers import read_handle, timed

PLAIN = Message(topic="t", body=b"x")

HANDLE = "djEgVCBiIDE3MDAwMDAwNjAwMDEgVU5JUQ=="
"""Made by the original classes: topic T, broker b, message UNIQ."""


def timer_properties(message: Message) -> dict[str, str]:
    return {name: value for name, value in message.to_properties("id").items() if "TIMER" in name}


@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [(0, 0), (90, 90_000), (1.5, 1500), (timedelta(days=40), 3_456_000_000), (0.0001, 1), (0.1 + 0.2, 300)],
)
def test_a_delay_becomes_milliseconds(delay: float | timedelta, milliseconds: int) -> None:
    """Seconds or a timedelta; a fraction of a millisecond counts as one, what floats add does not."""
    assert timer_properties(timed(PLAIN, delay, None)) == {"TIMER_DELAY_MS": str(milliseconds)}


def test_a_time_of_delivery_becomes_milliseconds() -> None:
    """With a time zone, or in local time without one."""
    moment = datetime(2026, 11, 27, 12, 0, 0, 1500, tzinfo=UTC)
    expected = int(moment.timestamp()) * 1000 + 2

    assert timer_properties(timed(PLAIN, None, moment)) == {"TIMER_DELIVER_MS": str(expected)}
    local = moment.astimezone().replace(tzinfo=None)
    assert timer_properties(timed(PLAIN, None, local)) == {"TIMER_DELIVER_MS": str(expected)}


def test_without_a_delay_nothing_changes() -> None:
    """The plain send pays nothing for it."""
    assert timed(PLAIN, None, None) is PLAIN


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), timedelta(seconds=-1)])
def test_a_delay_that_is_none_is_refused(delay: float | timedelta) -> None:
    """Negative, endless, or no number."""
    with pytest.raises(MessageInvalid, match="is no time from now on"):
        timed(PLAIN, delay, None)


@pytest.mark.parametrize(
    ("message", "delay", "deliver_at"),
    [
        (PLAIN, 1, datetime.now(UTC)),
        (Message(topic="t", delay_level=1), 1, None),
        (Message(topic="t", delay_ms=1), None, datetime.now(UTC)),
        (Message(topic="t", deliver_at_ms=1), 1, None),
    ],
)
def test_two_delays_are_refused(message: Message, delay: float | None, deliver_at: datetime | None) -> None:
    """Nobody could say which one counts."""
    with pytest.raises(MessageInvalid, match="has one delay"):
        timed(message, delay, deliver_at)


def test_a_handle_names_broker_and_message() -> None:
    """As the original classes wrote it."""
    handle = read_handle("T", HANDLE)

    assert (handle.broker_name, handle.timestamp_ms, handle.message_id) == ("b", 1700000060001, "UNIQ")


@pytest.mark.parametrize(
    ("topic", "text", "problem"),
    [
        ("T", "nonsense!", "recall handle is invalid: take"),
        ("T", "", "recall handle is invalid: take"),
        ("other", HANDLE, "is of topic 'T', not 'other'"),
    ],
)
def test_a_bad_handle_is_refused_here(topic: str, text: str, problem: str) -> None:
    """Nothing is sent for it."""
    with pytest.raises(MessageInvalid, match=problem):
        read_handle(topic, text)
