"""Delay levels: the table of the setting, delivery times, and how a message is put aside."""

from __future__ import annotations

import pytest

from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_spec.broker_settings import BrokerSettings

DEFAULT = DelayLevels.parse(BrokerSettings().message_delay_level)


def test_the_default_table_is_javas() -> None:
    seconds = [1, 5, 10, 30, *(60 * n for n in range(1, 11)), 1200, 1800, 3600, 7200]

    assert DEFAULT.highest == 18
    assert [DEFAULT.delay_ms(level) for level in range(1, 19)] == [1000 * second for second in seconds]


def test_days_are_a_unit_too() -> None:
    assert DelayLevels.parse("1s 2d").delay_ms(2) == 172_800_000


@pytest.mark.parametrize("text", ["", "1", "s", "1w", "0s", "-1s", "1.5s", "1s x"])
def test_an_unreadable_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="level"):
        DelayLevels.parse(text)


def test_a_level_without_an_entry_waits_a_second() -> None:
    assert DEFAULT.delay_ms(19) == 1000


def test_a_message_is_due_its_delay_after_it_was_stored() -> None:
    assert DEFAULT.due_ms(2, 1_000_000, 1_000_100) == 1_005_000


def test_a_message_from_the_future_is_due_at_once() -> None:
    """The clock was set back by an hour: nobody waits an hour longer."""
    assert DEFAULT.due_ms(1, 4_600_000, 1_000_000) == 1_000_000


def test_a_message_put_aside_knows_where_it_belongs() -> None:
    raw = encode_properties({"DELAY": "3", "KEYS": "k", "REAL_TOPIC": "of an earlier delay"})

    topic, queue_id, properties = DEFAULT.put_aside("orders", 7, 3, raw)

    assert (topic, queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert decode_properties(properties) == {
        "DELAY": "3",
        "KEYS": "k",
        "REAL_TOPIC": "orders",
        "REAL_QID": "7",
    }


def test_a_level_above_the_highest_is_the_highest() -> None:
    """Golden: level 99 is accepted."""
    _, queue_id, properties = DEFAULT.put_aside("t", 0, 99, b"")

    assert queue_id == 17
    assert decode_properties(properties)["DELAY"] == "18"
