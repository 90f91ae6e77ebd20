"""Deciding on what the controllers ask of a subject's queues (SUBJECT_QUEUES). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from brokerset_broker.tables.ordered.values import NO_END, OrderedQueue, Subject
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus

SUBJECTS_MAX: Final = 10_000
"""Ordered subjects of a broker group; one more is refused."""

_STATES: Final = (PartitionStatus.PREPARED, PartitionStatus.OPEN, PartitionStatus.SEALED)
"""What a queue can be here, in the order in which it becomes so."""


@dataclass(frozen=True, slots=True)
class WantedSubject:
    """A subject as the controllers want it."""

    order_strategy: OrderStrategy
    version: int
    queues: Mapping[int, tuple[int, PartitionStatus]]
    """Queue id -> partition id, state."""


@dataclass(frozen=True, slots=True)
class RefusedSubject:
    """Why the queues cannot be so."""

    reason: str


def plan_subject(
    current: Subject | None, wanted: WantedSubject, end_of: Callable[[int], int], queue_id_max: int
) -> Subject | RefusedSubject:
    """The subject with its queues as wanted; `end_of` tells where a queue that is sealed now ends.

    A queue never goes back: one that was open stays so although an older list says `Prepared`, and what is
    sealed stays sealed, with the same end, listed or not. A sealed one that a newer list lacks is retired.
    One that is open and not listed is sealed: the controllers have done with it, and this log has lost its
    seal.
    """
    problem = _problem(current, wanted, queue_id_max)
    if problem is not None:
        return RefusedSubject(problem)
    before: Mapping[int, OrderedQueue] = {} if current is None else current.queues
    is_newer = current is not None and wanted.version > current.version
    queues: dict[int, OrderedQueue] = {}
    for queue_id, queue in before.items():
        if queue_id in wanted.queues:
            queues[queue_id] = queue
        elif queue.state is PartitionStatus.SEALED:
            queues[queue_id] = queue._replace(retired=queue.retired or is_newer)
        elif queue.state is PartitionStatus.OPEN:
            queues[queue_id] = queue._replace(state=PartitionStatus.SEALED, end=end_of(queue_id))
    for queue_id, (partition_id, state) in sorted(wanted.queues.items()):
        known = before.get(queue_id)
        if known is not None and _STATES.index(known.state) >= _STATES.index(state):
            continue
        end = end_of(queue_id) if state is PartitionStatus.SEALED else NO_END
        queues[queue_id] = OrderedQueue(partition_id, state, end)
    return Subject(wanted.order_strategy, wanted.version, dict(sorted(queues.items())))


def _problem(current: Subject | None, wanted: WantedSubject, queue_id_max: int) -> str | None:
    for queue_id, (partition_id, state) in wanted.queues.items():
        if not 0 <= queue_id <= queue_id_max or partition_id < 0:
            return f"queue {queue_id} with partition {partition_id}: queues are from 0 to {queue_id_max}"
        if state not in _STATES:
            return f"queue {queue_id} cannot be {state.value} here: it is Prepared, Open or Sealed"
    partitions = [partition_id for partition_id, _ in wanted.queues.values()]
    if len(set(partitions)) != len(partitions):
        return "a partition has two queues"
    if current is None:
        return None
    if wanted.version < current.version:
        return f"version {wanted.version} is older than {current.version}, which is in force"
    if wanted.order_strategy is not current.order_strategy:
        return f"its order strategy is {current.order_strategy.value} permanently"
    for queue_id, queue in current.queues.items():
        listed = wanted.queues.get(queue_id)
        if listed is not None and listed[0] != queue.partition_id:
            return f"queue {queue_id} is that of partition {queue.partition_id} permanently"
        if listed is None and queue.state is PartitionStatus.OPEN and wanted.version == current.version:
            return f"queue {queue_id} is open in version {current.version}, and not listed: seal it first"
    return None
