"""Subjects as controllers tell of them, and manifests, in few words."""

from __future__ import annotations

from typing import Any

from brokerset_formats.order_keys import partition_ranges
from brokerset_operator.ordered_subjects.observed import Observed
from brokerset_protocol.bodies.ordered import (
    ConsumerGroupState,
    MemberState,
    PartitionState,
    SubjectState,
)
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy, PartitionStatus
from brokerset_spec.subject_manifest import Subject, read_subject

ROUTE = ("orders-0", "orders-1")


def manifest(name: str = "events", **spec: Any) -> dict[str, Any]:
    """A Subject as somebody applies it."""
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "Subject",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"brokerSetRef": {"name": "orders"}, **spec},
    }


def wanted(**spec: Any) -> Subject:
    """The same, read."""
    return read_subject(manifest(**spec))


def generation(
    number: int, count: int, status: PartitionStatus, route: tuple[str, ...] = ROUTE, first: int = 0
) -> tuple[PartitionState, ...]:
    """All partitions of a generation, all of them so far."""
    return tuple(
        PartitionState(
            first + index,
            number,
            keys[0],
            keys[1],
            route[index % len(route)],
            first + index,
            status,
            sealed_end=7 if status is PartitionStatus.SEALED else None,
        )
        for index, keys in enumerate(partition_ranges(count))
    )


def state(
    *generations: tuple[PartitionState, ...],
    route: tuple[str, ...] = ROUTE,
    order: OrderStrategy = OrderStrategy.STRICT,
    groups: tuple[ConsumerGroupState, ...] = (),
    problems: tuple[str, ...] = (),
) -> SubjectState:
    """A subject with these partitions."""
    partitions = tuple(each for one in generations for each in one)
    newest = max(each.generation for each in partitions)
    return SubjectState("events", order, route, newest + 1, newest, partitions, groups, problems)


OPEN_2 = state(generation(0, 2, PartitionStatus.OPEN))
"""Two partitions, all is well."""

SCALING_TO_4 = state(
    generation(0, 2, PartitionStatus.SEALING), generation(1, 4, PartitionStatus.PREPARED, first=2)
)
"""Two partitions are being closed, four are to come."""

OPEN_4 = state(generation(0, 2, PartitionStatus.SEALED), generation(1, 4, PartitionStatus.OPEN, first=2))
"""Four are open; two sealed ones may still be consumed."""


def observed(agreed: SubjectState | None, **spec: Any) -> Observed:
    """What a reconcile knows of a set with two groups of its own."""
    return Observed(wanted=wanted(**spec), set_groups=ROUTE, with_master=frozenset(ROUTE), state=agreed)


def consumers(name: str, members: int, drained: tuple[int, ...] = ()) -> ConsumerGroupState:
    """A group of consumers."""
    found = tuple(MemberState(f"s{number}", "c") for number in range(members))
    return ConsumerGroupState(name, ConsumeStrategy.EXCLUSIVE, 1, found, (), drained)
