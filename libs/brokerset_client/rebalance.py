"""Which queues a member of a consumer group takes: every member computes the same answer for itself.

Sources: `AllocateMessageQueueAveragely`, `AllocateMessageQueueAveragelyByCircle`, `RebalanceImpl`. Members of
other languages take part in the same group, so order and arithmetic must be exactly theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from brokerset_protocol.bodies.queues import MessageQueue

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
