"""From a logical partition to the partition that takes it now."""

from __future__ import annotations

from collections.abc import Iterable

from brokerset_formats.order_keys import LOGICAL_PARTITIONS
from brokerset_protocol.bodies.ordered import PartitionRoute, SubjectRoute
from brokerset_protocol.subject_words import PartitionStatus

TAKING = frozenset({PartitionStatus.OPEN, PartitionStatus.SEALING})
"""States in which a partition may still take sends: a sealing one until its broker has closed it."""


class RouteIndex:
    """One version of a subject's route, ready to be asked for each message."""

    __slots__ = ("_by_id", "_by_logical", "order_strategy", "version")

    def __init__(self, route: SubjectRoute) -> None:
        self.version = route.version
        self.order_strategy = route.order_strategy
        self._by_id = {partition.partition_id: partition for partition in route.partitions}
        taking: list[PartitionRoute | None] = [None] * LOGICAL_PARTITIONS
        # Two that take one logical partition cannot be. If they were, the older one came first in the order
        # of the log, and answers that it is sealed if it is: so of two the lower id counts.
        for partition in sorted(route.partitions, key=lambda each: -each.partition_id):
            if partition.status in TAKING:
                width = partition.end - partition.first
                taking[partition.first : partition.end] = [partition] * width
        self._by_logical = taking

    def partition_of(self, logical: int) -> PartitionRoute | None:
        """Who takes it: None while its older partition is sealed and the newer one is not open."""
        return self._by_logical[logical]

    def knows(self, partition_id: int) -> bool:
        """Whether the route lists the partition, in whatever state."""
        return partition_id in self._by_id

    def takes(self, partition_id: int) -> bool:
        """Whether the partition is open or sealing."""
        partition = self._by_id.get(partition_id)
        return partition is not None and partition.status in TAKING

    def open_partitions(self) -> Iterable[PartitionRoute]:
        """All open ones, by id."""
        return (
            self._by_id[number]
            for number in sorted(self._by_id)
            if self._by_id[number].status == PartitionStatus.OPEN
        )
