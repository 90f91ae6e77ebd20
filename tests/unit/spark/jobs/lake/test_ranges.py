"""What a pass of the lake export reads, and what it tells of what it cannot read."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from brokerset_spark.jobs.lake.observing import Observed
from brokerset_spark.jobs.lake.ranges import (
    Event,
    Exported,
    plan_pass,
    split_tasks,
)
from brokerset_spark.jobs.lake.storage import Storage, folder_name
from brokerset_spark.topics.following import Ends
from brokerset_spark.topics.offsets import Mark, QueueKey
from brokerset_spark.topics.planning import Range

QUEUE = QueueKey("orders", "broker-a", 0)


def planned(
    exported: Exported | None, extent: Ends, mark: int | None = None
) -> tuple[list[Event], list[Range]]:
    plan = plan_pass({} if exported is None else {QUEUE: exported}, {QUEUE: extent}, {QUEUE: mark})
    return [each.event for each in plan.control], list(plan.ranges)


def test_a_pass_begins_where_the_table_ends() -> None:
    """A queue that the table has is read from its end, and nothing is said about it."""
    assert planned(Exported(5, 77), Ends(0, 9), 77) == ([], [Range(QUEUE, 5, 9, mark=Mark(77))])
    assert planned(Exported(9, 77), Ends(0, 9), 77) == ([], [])


def test_a_new_queue_is_reported_and_what_expired_before_it() -> None:
    """The first pass of a queue begins at its first message; what was deleted before is a row."""
    assert planned(None, Ends(0, 3)) == ([Event.QUEUE_ADDED], [Range(QUEUE, 0, 3)])
    assert planned(None, Ends(2, 3)) == ([Event.QUEUE_ADDED, Event.EXPIRED], [Range(QUEUE, 2, 3)])


def test_expired_messages_are_reported() -> None:
    """Messages that were deleted before the pass came are a row, and the pass goes on behind them."""
    plan = plan_pass({QUEUE: Exported(5, 1)}, {QUEUE: Ends(8, 9)}, {})

    (control,) = plan.control
    assert (control.event, control.start, control.end) == (Event.EXPIRED, 5, 8)
    assert plan.ranges == (Range(QUEUE, 8, 9),)


def test_a_topic_that_was_created_again_is_reported() -> None:
    """An end below the table's, or another message before it, means another queue of the same name."""
    assert planned(Exported(5, 1), Ends(0, 3)) == ([Event.RECREATED], [Range(QUEUE, 0, 3)])
    assert planned(Exported(5, 1), Ends(0, 9), 2) == ([Event.RECREATED], [Range(QUEUE, 0, 9)])


def test_what_is_not_confirmed_is_left_for_a_later_pass() -> None:
    """A queue whose last message brokers do not give stays where the table is, and others get their marks."""
    other = QueueKey("orders", "broker-b", 0)
    plan = plan_pass({QUEUE: Exported(5, 1)}, {QUEUE: Ends(0, 9), other: Ends(2, 4)}, {QUEUE: 1})

    settled = plan.settled({other: 70, QUEUE: None}, frozenset((QUEUE,)))

    assert settled.ranges == (Range(other, 2, 4),)
    assert settled.ends == {QUEUE: Exported(5), other: Exported(4, 70)}


def test_queues_of_brokers_that_do_not_answer_are_not_gone() -> None:
    """Only what a living broker that answers has no more is gone."""
    other, absent = QueueKey("orders", "broker-b", 0), QueueKey("orders", "broker-c", 0)
    observed = Observed({}, frozenset({("orders", "broker-b")}), frozenset({"broker-a", "broker-b"}))

    assert observed.gone([QUEUE, other, absent]) == [QUEUE]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 50), st.integers(1, 60)),
        max_size=8,
        unique_by=lambda each: each[:2],
    ),
    st.integers(1, 25),
)
def test_tasks_have_every_message_once(queues: list[tuple[str, int, int, int]], per_task: int) -> None:
    """However ranges are divided: each offset is in one task, a task has one topic, and is not too large."""
    ranges = [Range(QueueKey(topic, "b", number), at, at + size) for topic, number, at, size in queues]

    tasks = split_tasks(ranges, per_task)

    def offsets(found: list[Range]) -> Counter[tuple[QueueKey, int]]:
        return Counter((each.key, at) for each in found for at in range(each.start, each.end))

    assert offsets([piece for task in tasks for piece in task]) == offsets(ranges)
    for task in tasks:
        assert len({piece.key.topic for piece in task}) == 1
        assert sum(piece.end - piece.start for piece in task) <= per_task


def test_places_are_known_to_both_libraries() -> None:
    """`s3a` is `s3` for deltalake; a server without TLS and its own keys come from the environment."""
    environment = {"AWS_ENDPOINT_URL": "http://127.0.0.1:5000", "AWS_ACCESS_KEY_ID": "k", "HOME": "/"}
    bucket = Storage("s3a://lake/exports/")

    assert bucket.table_url("messages") == "s3://lake/exports/messages"
    assert bucket.options(environment) == {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:5000",
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_ALLOW_HTTP": "true",
        "conditional_put": "etag",
    }
    assert Storage("/data/lake").options(environment) is None
    assert folder_name("%RETRY%g") == "%25RETRY%25g"
