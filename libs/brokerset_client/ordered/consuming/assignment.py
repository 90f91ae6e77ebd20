"""What a new assignment means for the partitions that a session consumes already.

Only the difference is stopped or started: a partition that stays runs on without a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from brokerset_protocol.bodies.ordered import AssignedPartition, AssignmentBody


class AssignmentVersion(NamedTuple):
    """Compared as a pair: a newer generation counts more than any version of an older one."""

    generation: int
    version: int


@dataclass(frozen=True, slots=True)
class AssignmentChanges:
    """What is to be done, each list in the order of partition ids."""

    version: AssignmentVersion
    revoked: tuple[AssignedPartition, ...]
    """They run, and shall be stopped and released."""

    gone: tuple[int, ...]
    """Ids of those that run and are not the session's any more: nothing of them is acknowledged."""

    kept: tuple[AssignedPartition, ...]
    """They run, and go on; a sealed end may be known now."""

    started: tuple[AssignedPartition, ...]
    never_started: tuple[AssignedPartition, ...]
    """Revoked before they ran here: they count as released at once."""


def plan_changes(
    known: AssignmentVersion | None, running: Mapping[int, int], assigned: AssignmentBody
) -> AssignmentChanges | None:
    """How to get from what runs (partition id to epoch) to what is assigned.

    None: the assignment is older than the known one, and changes nothing. One with another epoch for a
    partition that runs is another ownership: the old one is gone, and the partition starts again.
    """
    version = AssignmentVersion(assigned.generation, assigned.version)
    if known is not None and version < known:
        return None
    wanted = {partition.partition_id: partition for partition in assigned.partitions}
    revoked: list[AssignedPartition] = []
    kept: list[AssignedPartition] = []
    started: list[AssignedPartition] = []
    never_started: list[AssignedPartition] = []
    for partition_id in sorted(wanted):
        partition = wanted[partition_id]
        runs = running.get(partition_id) == partition.epoch
        if partition.revoked:
            (revoked if runs else never_started).append(partition)
        else:
            (kept if runs else started).append(partition)
    gone = tuple(
        partition_id
        for partition_id, epoch in sorted(running.items())
        if partition_id not in wanted or wanted[partition_id].epoch != epoch
    )
    return AssignmentChanges(version, tuple(revoked), gone, tuple(kept), tuple(started), tuple(never_started))
