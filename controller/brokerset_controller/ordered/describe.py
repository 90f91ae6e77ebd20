"""Subjects as producers, consumers and administrators see them."""

from __future__ import annotations

from collections.abc import Callable

from brokerset_controller.ordered.membership import Assignment
from brokerset_controller.ordered.state import ConsumerGroup, Subject
from brokerset_protocol.bodies.ordered import (
    AssignedPartition,
    AssignmentBody,
    ConsumerGroupState,
    MemberState,
    OwnershipState,
    PartitionRoute,
    PartitionState,
    SubjectRoute,
    SubjectState,
)

HeardAgo = Callable[[str, str], int | None]
"""Milliseconds since a heartbeat of a group's session was answered; None if none was."""


def describe_route(subject: Subject) -> SubjectRoute:
    """All partitions, older generations included."""
    return SubjectRoute(
        subject.name,
        subject.order,
        subject.version,
        subject.generation,
        tuple(
            PartitionRoute(number, *each.keys, each.broker_group, each.queue_id, each.status)
            for number, each in sorted(subject.partitions.items())
        ),
    )


def describe_assignment(subject: Subject, assignment: Assignment) -> AssignmentBody:
    """What a session consumes."""
    return AssignmentBody(
        assignment.generation,
        assignment.version,
        subject.order,
        assignment.strategy,
        tuple(
            AssignedPartition(
                each.partition.partition_id,
                each.epoch,
                each.revoked,
                each.partition.broker_group,
                each.partition.queue_id,
                *each.partition.keys,
                each.partition.sealed_end,
                each.retries_only,
            )
            for each in assignment.partitions
        ),
    )


def describe_subject(subject: Subject, heard_ago: HeardAgo, problems: tuple[str, ...] = ()) -> SubjectState:
    """Everything that is agreed about a subject."""
    return SubjectState(
        subject.name,
        subject.order,
        subject.route,
        subject.version,
        subject.generation,
        tuple(
            PartitionState(
                number,
                each.generation,
                *each.keys,
                each.broker_group,
                each.queue_id,
                each.status,
                tuple(sorted(each.inherits)),
                each.sealed_end,
            )
            for number, each in sorted(subject.partitions.items())
        ),
        tuple(_group_state(each, heard_ago) for _, each in sorted(subject.groups.items())),
        problems,
    )


def _group_state(group: ConsumerGroup, heard_ago: HeardAgo) -> ConsumerGroupState:
    return ConsumerGroupState(
        group.name,
        group.strategy,
        group.version,
        tuple(
            MemberState(session, each.client_id, heard_ago(group.name, session))
            for session, each in sorted(group.members.items())
        ),
        tuple(
            OwnershipState(number, each.session, each.epoch, each.revoked)
            for number, each in sorted(group.ownerships.items())
        ),
        tuple(sorted(group.drained)),
        tuple(sorted(group.finished)),
        group.epoch,
    )
