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
    assert names.ordered_retry_topic("a_b", "c") == "%RETRY%a_b%c"
    assert names.reply_topic("DefaultCluster") == "DefaultCluster_REPLY_TOPIC"


@pytest.mark.parametrize(("group", "subject"), [("a", "b_c"), ("a_b", "c"), ("g" * 120, "s" * 100)])
def test_the_retry_topic_of_a_subject_says_whose_it_is(group: str, subject: str) -> None:
    """Its name is allowed, and gives back the group and the subject."""
    topic = names.ordered_retry_topic(group, subject)

    assert names.check_topic(topic) is None
    assert names.split_ordered_retry_topic(topic) == (group, subject)


@pytest.mark.parametrize("topic", ["orders", "a%b", "%RETRY%group", "%RETRY%%orders", "%DLQ%a%b"])
def test_other_topics_are_nobodys_retry_topic_of_a_subject(topic: str) -> None:
    """Topics of subjects, of other groups and of other kinds have no group and subject in their name."""
    assert names.split_ordered_retry_topic(topic) is None


def test_system_topics() -> None:
    """Fixed names, the system's prefix and the broker's own topics are the system's."""
    assert names.is_system_topic("TBW102")
    assert names.is_system_topic("rmq_sys_wheel_timer")
    assert names.is_system_topic("broker-a", {"broker-a"})
    assert not names.is_system_topic("broker-a")
    assert names.is_send_forbidden("SCHEDULE_TOPIC_XXXX")
    assert names.is_send_forbidden("rmq_sys_REVIVE_LOG_C")
    assert not names.is_send_forbidden("TBW102")
    assert names.is_system_group("CID_RMQ_SYS_TRANS")
    assert not names.is_system_group("g1")
