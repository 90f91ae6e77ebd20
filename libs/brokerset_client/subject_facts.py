"""What follows from what controllers say about an ordered subject. Pure."""

from __future__ import annotations

from brokerset_protocol.bodies.ordered import SubjectState
from brokerset_protocol.subject_words import PartitionStatus


def open_partitions(state: SubjectState) -> tuple[int, int]:
    """How many partitions of the newest generation are open, and how many it has."""
    newest = [each for each in state.partitions if each.generation == state.generation]
    return sum(each.status is PartitionStatus.OPEN for each in newest), len(newest)


def is_open(state: SubjectState) -> bool:
    """Whether all partitions of the newest generation take messages."""
    number, of = open_partitions(state)
    return of > 0 and number == of
