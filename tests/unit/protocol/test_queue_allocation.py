"""Queue allocation must be the one that Java members of the same group compute."""

from __future__ import annotations

import pytest

from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.queue_allocation import (
    ANY_QUEUE,
    Allocation,
    allocate,
    allocate_averagely,
    allocate_by_circle,
    allocate_for_pop,
    sorted_members,
)


def queues(count: int, broker: str = "a") -> list[MessageQueue]:
    return [MessageQueue("t", broker, number) for number in range(count)]


def shares(count: int, members: int) -> list[list[int]]:
    names = [f"m{number}" for number in range(members)]
    return [[queue.queue_id for queue in allocate(name, queues(count), names)] for name in names]


@pytest.mark.parametrize(
    ("count", "members", "expected"),
    [
        (8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (4, 1, [[0, 1, 2, 3]]),
        (3, 5, [[0], [1], [2], [], []]),
        (1, 3, [[0], [], []]),
        (5, 5, [[0], [1], [2], [3], [4]]),
        (7, 4, [[0, 1], [2, 3], [4, 5], [6]]),
        (0, 2, [[], []]),
    ],
)
def test_queues_are_shared_as_java_does_it(count: int, members: int, expected: list[list[int]]) -> None:
    """Results of `AllocateMessageQueueAveragely` for even, uneven and too many members."""
    assert shares(count, members) == expected


@pytest.mark.parametrize(
    ("count", "members", "expected"),
    [(8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]), (2, 3, [[0], [1], []]), (4, 4, [[0], [1], [2], [3]])],
)
def test_the_circle_deals_queues_out(count: int, members: int, expected: list[list[int]]) -> None:
    """Results of `AllocateMessageQueueAveragelyByCircle`."""
    names = [f"m{number}" for number in range(members)]
    got = [
        [queue.queue_id for queue in allocate(name, queues(count), names, allocate_by_circle)]
        for name in names
    ]

    assert got == expected


def test_the_order_in_which_brokers_list_queues_and_members_does_not_matter() -> None:
    everything = queues(3, "b") + queues(3, "a")

    one = allocate("x@2", everything, ["x@2", "x@10"])
    other = allocate("x@2", reversed(everything), ["x@10", "x@2"])

    assert one == other == queues(3, "b")


def test_members_are_ordered_by_utf16_units() -> None:
    """Java compares chars: a character beyond the basic plane sorts before U+FF5E, unlike its code point."""
    assert sorted_members(["\uff5e", "\U0001f600", "a"]) == ["a", "\U0001f600", "\uff5e"]


@pytest.mark.parametrize("strategy", [allocate_averagely, allocate_by_circle])
def test_a_member_that_the_broker_does_not_list_gets_nothing(strategy: Allocation) -> None:
    assert allocate("me", queues(4), ["others"], strategy) == []
    assert allocate("me", queues(4), [], strategy) == []


@pytest.mark.parametrize(
    ("count", "members", "share", "expected"),
    [
        (4, 1, 1, [[-1]]),
        (4, 3, 0, [[-1], [-1], [-1]]),
        (4, 3, -1, [[-1], [-1], [-1]]),
        (4, 2, 1, [[-1], [-1]]),
        (6, 3, 1, [[0, 1, 2, 3], [2, 3, 4, 5], [0, 1, 4, 5]]),
        (2, 4, 1, [[0], [1], [0], [1]]),
        (0, 4, 1, [[], [], [], []]),
    ],
)
def test_popping_members_share_queues_with_those_behind_them(
    count: int, members: int, share: int, expected: list[list[int]]
) -> None:
    """Results of `QueryAssignmentProcessor.allocate4Pop`: any queue with few members, else shared ones, and
    one queue for each member where there are fewer queues than members."""
    names = [f"m{number}" for number in range(members)]

    got = [
        [queue.queue_id for queue in allocate_for_pop(name, queues(count), names, allocate_averagely, share)]
        for name in names
    ]

    assert got == expected


def test_each_broker_is_popped_once_for_any_queue() -> None:
    """A member without own queues gets one assignment for each broker, also if the group does not list it."""
    got = allocate_for_pop("m9", queues(2) + queues(3, "b"), ["m0"], allocate_averagely, 0)

    assert got == [MessageQueue("t", "a", ANY_QUEUE), MessageQueue("t", "b", ANY_QUEUE)]
