"""Names of topics and groups follow TopicValidator."""

from __future__ import annotations

import pytest

from brokerset_formats import names


@pytest.mark.parametrize(
    "name", ["TopicTest", "a", "%RETRY%group", "a|b", "x_y-z", "t" * 127, "%DLQ%" + "g" * 250]
)
def test_good_topics(name: str) -> None:
    """Letters, digits and %|_- are allowed, up to the limit of the kind of topic."""
    assert names.check_topic(name) is None


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "ä", "a\n", "t" * 128, "%RETRY%" + "g" * 249])
def test_bad_topics(name: str) -> None:
    """Anything else is refused with a text."""
    assert names.check_topic(name)


def test_the_text_is_that_of_java() -> None:
    """Clients see the same remark as from the Java broker."""
    assert names.check_topic("a b") == (
        "The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    )


def test_groups() -> None:
    """Groups have the characters of topics and a lower limit."""
    assert names.check_group("g" * 120) is None
    assert names.check_group("g" * 121)
    assert names.check_group("")
    assert names.check_group("a b")


def test_derived_names() -> None:
    """Retry and dead-letter topics are recognized by what made them."""
    assert names.retry_topic("g1") == "%RETRY%g1"
    assert names.dlq_topic("g1") == "%DLQ%g1"
    assert names.is_retry_topic(names.retry_topic("g"))
    assert names.is_dlq_topic(names.dlq_topic("g"))
    assert not names.is_retry_topic("g")
    assert names.reply_topic("DefaultCluster") == "DefaultCluster_REPLY_TOPIC"


def test_system_topics() -> None:
    """Fixed names, the system's prefix and the broker's own topics are the system's."""
    assert names.is_system_topic("TBW102")
    assert names.is_system_topic("rmq_sys_wheel_timer")
    assert names.is_system_topic("broker-a", {"broker-a"})
    assert not names.is_system_topic("broker-a")
    assert names.is_send_forbidden("SCHEDULE_TOPIC_XXXX")
    assert not names.is_send_forbidden("TBW102")
    assert names.is_system_group("CID_RMQ_SYS_TRANS")
    assert not names.is_system_group("g1")
