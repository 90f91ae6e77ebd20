"""Which queues a member of a consumer group takes: every member computes the same answer for itself, or a
broker does it for those that ask (QUERY_ASSIGNMENT).

Sources: `AllocateMessageQueueAveragely`, `AllocateMessageQueueAveragelyByCircle`, `RebalanceImpl`,
`QueryAssignmentProcessor`. Members of other languages take part in the same group, so order and arithmetic
must be exactly theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from brokerset_formats.config import Permission
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.bodies.routes import QueueData

Allocation = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(own client id, sorted queues, sorted member ids) -> own queues."""


def sorted_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """In the order of Java's `MessageQueue.compareTo`: topic, broker name, queue id; without duplicates."""
    unique = {(_java_order(q.topic), _java_order(q.broker_name), q.queue_id): q for q in queues}
    return [unique[key] for key in sorted(unique)]


def sorted_members(client_ids: Iterable[str]) -> list[str]:
    """In the order of Java's `String.compareTo`, which compares UTF-16 units."""
    return sorted(client_ids, key=_java_order)


def allocate_averagely(
    client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """Neighbouring queues for each member; the first members get one more if it does not divide evenly.

    A member that the broker does not list (yet) gets nothing.
    """
    if client_id not in members:
        return []
    index = members.index(client_id)
    rest = len(queues) % len(members)
    share = len(queues) // len(members)
    if len(queues) <= len(members):
        share = 1
    elif index < rest:
        share += 1
    start = index * share if rest > 0 and index < rest else index * share + rest
    return list(queues[start : start + share]) if start < len(queues) else []


def allocate_by_circle(
    client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """Every n-th queue, so that the queues of one broker are spread over the members."""
    if client_id not in members:
        return []
    return list(queues[members.index(client_id) :: len(members)])


STRATEGIES: Final[Mapping[str, Allocation]] = {
    "AVG": allocate_averagely,
    "AVG_BY_CIRCLE": allocate_by_circle,
}
"""Those that a broker applies, by Java's names."""

ANY_QUEUE: Final = -1
"""In a pop, instead of the number of a queue: all of the broker's queues of the topic."""


def readable_queues(topic: str, queue_datas: Iterable[QueueData]) -> list[MessageQueue]:
    """The queues of a route that may be consumed, by broker name."""
    return [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(queue_datas, key=lambda data: data.broker_name)
        if data.perm & Permission.READ
        for queue_id in range(data.read_queue_nums)
    ]


def allocate_for_pop(
    client_id: str,
    queues: Iterable[MessageQueue],
    members: Iterable[str],
    strategy: Allocation,
    share_queues: int,
) -> list[MessageQueue]:
    """The queues that a member pops.

    With few members, or without a positive `share_queues`, any queue of each broker; else its own and those
    of the next `share_queues` members, so that a slow member delays none.
    """
    in_order, all_members = sorted_queues(queues), sorted_members(members)
    if share_queues <= 0 or share_queues >= len(all_members) - 1:
        return sorted_queues(replace(queue, queue_id=ANY_QUEUE) for queue in in_order)
    if client_id not in all_members or not in_order:
        return []
    index = all_members.index(client_id)
    if len(all_members) > len(in_order):
        return [in_order[index % len(in_order)]]
    sharing = [all_members[(index + step) % len(all_members)] for step in range(share_queues + 1)]
    return sorted_queues(queue for member in sharing for queue in strategy(member, in_order, all_members))


def allocate(
    client_id: str,
    queues: Iterable[MessageQueue],
    members: Iterable[str],
    strategy: Allocation = allocate_averagely,
) -> list[MessageQueue]:
    """Sort both lists as Java does, then apply `strategy`."""
    return strategy(client_id, sorted_queues(queues), sorted_members(members))


def _java_order(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")
