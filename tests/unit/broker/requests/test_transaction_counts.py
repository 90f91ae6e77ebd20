"""Counters of transactions by topic."""

from __future__ import annotations

import orjson

from brokerset_broker.requests import transaction_counts
from brokerset_broker.requests.transaction_counts import TransactionCounts

NOW = 1_700_000_000_000


def counts() -> TransactionCounts:
    return TransactionCounts(lambda: NOW)


def test_each_end_closes_what_was_begun() -> None:
    """A half is open until it is committed, rolled back or given up."""
    found = counts()
    for _ in range(4):
        found.begun("t")
    found.committed("t", NOW - 1_500)
    found.rolled_back("t")
    found.given_up("t")

    topic = found.topics["t"]
    assert (topic.open, topic.committed, topic.rolled_back, topic.latency_sum) == (1, 1, 1, 1.5)


def test_a_commit_is_counted_in_the_bucket_of_its_age() -> None:
    """Java's bounds: 5 s, 1 and 10 min, 1, 12 and 24 h; a clock that is ahead counts as no age."""
    found = counts()
    for seconds in (-7, 5, 6, 90_000):
        found.committed("t", NOW - seconds * 1000)

    assert [count for _, count in found.latency_buckets("t")] == [2, 3, 3, 3, 3, 3, 4]
    assert found.topics["t"].open == 0


def test_what_a_new_master_found_replaces_what_was_open() -> None:
    found = counts()
    found.begun("gone")
    found.committed("kept", NOW)
    found.set_open(["t", "t", "kept"])

    assert {topic: each.open for topic, each in found.topics.items()} == {"gone": 0, "kept": 1, "t": 2}
    assert found.topics["kept"].committed == 1


def test_the_file_is_on_one_line_as_javas_is() -> None:
    found = counts()
    found.begun("t")

    written = found.table().encode()

    assert b"\n" not in written
    assert orjson.loads(written)["transactionCount"] == {"t": {"count": 1, "timeStamp": NOW}}


def test_the_number_of_topics_is_bounded() -> None:
    """Further topics are not counted, and harm nothing."""
    found = counts()
    for number in range(transaction_counts.TOPICS_MAX + 5):
        found.begun(f"t{number}")
    found.committed("other", NOW)

    assert len(found.topics) == transaction_counts.TOPICS_MAX


def test_a_deleted_topic_is_forgotten() -> None:
    found = counts()
    found.begun("t")
    found.changed = False
    found.forget_topic("t")
    found.forget_topic("unknown")

    assert (found.topics, found.changed) == ({}, True)
