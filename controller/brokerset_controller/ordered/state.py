"""The agreed state of one ordered subject: its partitions, and who consumes them. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from brokerset_formats.order_keys import Range, overlap
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy, PartitionStatus

DEFAULT_ROUTE_GROUPS: Final = 2
"""Broker groups of a subject for which nobody gave a route."""


WRITABLE: Final = (PartitionStatus.OPEN, PartitionStatus.SEALING)


@dataclass(frozen=True, slots=True)
class Partition:
    """A queue of the subject's topic on one broker group."""

    partition_id: int
    generation: int
    keys: Range
    broker_group: str
    queue_id: int
    status: PartitionStatus
    inherits: frozenset[int] = frozenset()
    """Partitions of the generation before whose keys it takes."""

    sealed_end: int | None = None
    """Queue offset behind the last message that it has, once it is sealed."""

    sealed_epoch: int = 0
    """Epoch of the master that said so. One of a later epoch, elected with a loss, may say otherwise."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process that consumes."""

    session: str
    """Drawn at each start, so two processes with the same client id are two members."""

    client_id: str
    permission_ms: int
    """How long it may consume after a heartbeat that was answered. It was agreed on with its joining, so that
    every controller that comes to lead knows how long to wait, whatever its own settings say."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who consumes a partition for a group, and since which grant."""

    session: str
    epoch: int
    revoked: bool = False
    """Whether the owner shall stop, and say when it has."""


NO_MEMBERS: Mapping[str, Member] = MappingProxyType({})
NO_OWNERSHIPS: Mapping[int, Ownership] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """The members of a group of consumers, and what each owns; nothing is owned in a SHARED one."""

    name: str
    strategy: ConsumeStrategy
    epoch: int = 0
    """By which all members of a SHARED group consume all partitions; 0 in an EXCLUSIVE one."""

    version: int = 0
    """Grows with each change of members, ownerships, or of the subject's partitions."""

    members: Mapping[str, Member] = field(default_factory=lambda: NO_MEMBERS)
    """By session."""

    ownerships: Mapping[int, Ownership] = field(default_factory=lambda: NO_OWNERSHIPS)
    """By partition."""

    drained: frozenset[int] = frozenset()
    """Sealed partitions that the group has handled to their end."""

    finished: frozenset[int] = frozenset()
    """Those of the drained ones of which no copies for retry will come any more."""

    @property
    def is_shared(self) -> bool:
        """Whether all members consume all partitions."""
        return self.strategy is ConsumeStrategy.SHARED


NO_PARTITIONS: Mapping[int, Partition] = MappingProxyType({})
NO_GROUPS: Mapping[str, ConsumerGroup] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Subject:
    """Everything that is agreed about one ordered subject."""

    name: str
    order: OrderStrategy
    route: tuple[str, ...]
    """Broker groups that partitions are put on, in turn."""

    version: int = 0
    """Grows with each change of partitions, over deletions, too; producers and brokers go by it."""

    generation: int = 0
    """The newest. Its partitions may be PREPARED still."""

    next_partition_id: int = 0
    """Never falls."""

    epoch: int = 0
    """The last one that was given with an ownership, to a SHARED group, or to a producer: a group that is
    removed and comes again must not be given those that brokers refuse already. Never falls."""

    group_version: int = 0
    """The highest version of groups that were removed: one that comes again goes on from it."""

    next_queue_ids: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """By broker group; never falls."""

    partitions: Mapping[int, Partition] = field(default_factory=lambda: NO_PARTITIONS)
    groups: Mapping[str, ConsumerGroup] = field(default_factory=lambda: NO_GROUPS)

    def inheritors(self, partition: Partition) -> list[Partition]:
        """The partitions that take its keys."""
        return [each for each in self.partitions.values() if partition.partition_id in each.inherits]

    @property
    def is_scaling(self) -> bool:
        """Whether a partition of the newest generation does not take sends yet."""
        return any(each.status is PartitionStatus.PREPARED for each in self.partitions.values())

    def has_retries(self, group: ConsumerGroup) -> bool:
        """Whether copies for retry of what a group has not handled may come after it drained a partition."""
        return group.is_shared or self.order is OrderStrategy.BEST_TRIED

    def assignable(self, group: ConsumerGroup) -> frozenset[int]:
        """The partitions that members of a group may consume now; of the drained ones, copies for retry."""
        return frozenset(number for number in self.partitions if self.is_assignable(group, number))

    def is_assignable(self, group: ConsumerGroup, number: int) -> bool:
        """Whether members of a group may consume a partition now, or copies for retry of it."""
        partition = self.partitions.get(number)
        return (
            partition is not None
            and partition.status is not PartitionStatus.PREPARED
            and number not in group.finished
            and all(
                ancestor in group.drained or ancestor not in self.partitions
                for ancestor in partition.inherits
            )
        )

    def writable(self, number: int) -> Partition | None:
        """The partition that takes sends of a logical partition; None between two generations."""
        for each in self.partitions.values():
            if each.status in WRITABLE and overlap(each.keys, (number, number + 1)):
                return each
        return None


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is kept of a deleted subject: were it created again with numbers that were given before, brokers
    would refuse the new owners, and consumers would ignore their assignments."""

    name: str
    order: OrderStrategy
    version: int
    generation: int
    next_partition_id: int
    epoch: int
    group_version: int
    next_queue_ids: Mapping[str, int]
    unclean: frozenset[str]
    """Broker groups that may have the topic still. Until there are none it cannot be created again."""


Entry = Subject | Tombstone
"""What stands behind a name."""
