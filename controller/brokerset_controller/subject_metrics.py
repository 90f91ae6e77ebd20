"""What a controller measures of ordered subjects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from brokerset_controller.measurements import Measurements
from brokerset_protocol.subject_words import PartitionStatus

if TYPE_CHECKING:
    from brokerset_controller.subject_service import SubjectService


def gauges(service: SubjectService) -> Iterator[tuple[str, str, float]]:
    """Name, text and value of what has one value."""
    machine = service.machine
    groups = [group for subject in machine.subjects.values() for group in subject.groups.values()]
    yield "subjects", "Ordered subjects.", len(machine.subjects)
    yield "subjects_deleted", "Deleted subjects whose numbers are kept.", len(machine.tombstones)
    yield "subject_parts", "Partitions, groups and members of all subjects, as limited.", machine.parts
    yield "subject_members", "Members of groups of consumers.", sum(len(each.members) for each in groups)
    yield "subject_groups", "Groups of consumers.", len(groups)
    yield (
        "subject_sealing_seconds",
        "Age of the oldest partition that is being sealed.",
        service.sealing_seconds,
    )
    yield "subject_long_polls", "Requests that wait for a change of a subject.", service.waiting


def counters(measurements: Measurements) -> Iterator[tuple[str, str, float]]:
    """Name, text and value of what only grows."""
    yield "subject_joins", "Members that joined groups.", measurements.joins
    yield "subject_departures", "Members that left groups, or were not heard.", measurements.departures
    yield "subject_reassignments", "Changes of assignments.", measurements.reassignments
    yield "subject_permissions", "Heartbeats of consumers with a permission.", measurements.permissions
    yield (
        "subject_permissions_refused",
        "Heartbeats of consumers that were refused, or not answered in time.",
        measurements.permissions_refused,
    )
    yield "subject_pushes", "Requests to brokers about queues of subjects.", measurements.subject_pushes
    yield (
        "subject_pushes_failed",
        "Requests to brokers about queues of subjects that failed.",
        measurements.subject_pushes_failed,
    )


def partitions(service: SubjectService) -> dict[PartitionStatus, int]:
    """How many partitions have each status."""
    found = Counter(
        each.status for subject in service.machine.subjects.values() for each in subject.partitions.values()
    )
    return {status: found[status] for status in PartitionStatus}
