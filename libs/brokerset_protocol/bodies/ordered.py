"""Bodies about ordered subjects, all brokerset's own (docs/ordered-protocol.md)."""

from __future__ import annotations

from typing import Annotated

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.order_keys import LOGICAL_PARTITIONS
from brokerset_protocol.bodies.codec import JsonBody, Most
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy, PartitionStatus

REPORTED_MAX = 4_096
"""Partitions in one report or list."""


# -- routes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionRoute(JsonBody):
    """A partition as producers see it: logical partitions from `first` up to, and without, `end`."""

    partition_id: int
    first: int
    end: int
    broker_group: str
    queue_id: int
    status: PartitionStatus


@dataclass(frozen=True, slots=True)
class SubjectRoute(JsonBody):
    """Answer to BROKERSET_SUBJECT_ROUTE (21025): all partitions, older generations included."""

    subject: str
    order_strategy: OrderStrategy
    version: int
    generation: int
    partitions: Annotated[tuple[PartitionRoute, ...], Most(REPORTED_MAX)]


# -- consumers --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReleasedPartition(JsonBody):
    """A partition whose owner has stopped, with all its acks confirmed."""

    partition_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class DrainedPartition(JsonBody):
    """A sealed partition that is handled up to its end."""

    partition_id: int
    epoch: int
    position: int
    """Queue offset behind the last message whose ack is confirmed."""


@dataclass(frozen=True, slots=True)
class FinishedPartition(JsonBody):
    """A drained partition of which no copies for retry will come any more."""

    partition_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class OwnedReport(JsonBody):
    """Body of BROKERSET_CONSUMER_HEARTBEAT (21027)."""

    released: Annotated[tuple[ReleasedPartition, ...], Most(REPORTED_MAX)] = ()
    drained: Annotated[tuple[DrainedPartition, ...], Most(REPORTED_MAX)] = ()
    finished: Annotated[tuple[FinishedPartition, ...], Most(REPORTED_MAX)] = ()


@dataclass(frozen=True, slots=True)
class AssignedPartition(JsonBody):
    """A partition that a session consumes."""

    partition_id: int
    epoch: int
    revoked: bool
    broker_group: str
    queue_id: int
    first: int
    end: int
    sealed_end: int | None = None
    """Queue offset behind its last message; None unless it is sealed."""

    retries_only: bool = False
    """Whether the group has drained it: only copies for retry are consumed still, by the same epoch."""


@dataclass(frozen=True, slots=True)
class AssignmentBody(JsonBody):
    """Answer to BROKERSET_CONSUMER_HEARTBEAT: everything that the session consumes."""

    generation: int
    version: int
    order_strategy: OrderStrategy
    consume_strategy: ConsumeStrategy
    partitions: Annotated[tuple[AssignedPartition, ...], Most(REPORTED_MAX)]


# -- administrators ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionState(JsonBody):
    """A partition as agreed."""

    partition_id: int
    generation: int
    first: int
    end: int
    broker_group: str
    queue_id: int
    status: PartitionStatus
    inherits: tuple[int, ...] = ()
    sealed_end: int | None = None


@dataclass(frozen=True, slots=True)
class OwnershipState(JsonBody):
    """Who owns a partition for a group."""

    partition_id: int
    session: str
    epoch: int
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class MemberState(JsonBody):
    """One process that consumes."""

    session: str
    client_id: str
    heard_ms_ago: int | None = None
    """Since its last heartbeat was answered; None if the answering controller has answered none."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupState(JsonBody):
    """A group of consumers of one subject."""

    name: str
    strategy: ConsumeStrategy
    version: int
    members: tuple[MemberState, ...] = ()
    ownerships: tuple[OwnershipState, ...] = ()
    drained: tuple[int, ...] = ()
    """Sealed partitions that it has handled to their end."""

    finished: tuple[int, ...] = ()
    """Drained partitions of which no copies for retry will come any more."""

    epoch: int = 0
    """By which all members of a Shared group consume all partitions."""


@dataclass(frozen=True, slots=True)
class SubjectState(JsonBody):
    """One subject as agreed."""

    name: str
    order_strategy: OrderStrategy
    route: tuple[str, ...]
    version: int
    generation: int
    partitions: Annotated[tuple[PartitionState, ...], Most(REPORTED_MAX)]
    groups: tuple[ConsumerGroupState, ...] = ()
    problems: tuple[str, ...] = ()
    """What keeps it from being as it shall be, for example a broker group without a master."""


@dataclass(frozen=True, slots=True)
class SubjectStates(JsonBody):
    """Answer to BROKERSET_DESCRIBE_SUBJECTS (21024), and to creation and scaling: one subject then."""

    subjects: tuple[SubjectState, ...]


# -- brokers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubjectQueue(JsonBody):
    """A partition as its broker shall have it: `Prepared`, `Open` or `Sealed`."""

    queue_id: int
    partition_id: int
    state: PartitionStatus
    end: int | None = None
    """In answers, of a sealed one: the queue offset behind its last message."""


@dataclass(frozen=True, slots=True)
class SubjectQueues(JsonBody):
    """BROKERSET_SUBJECT_QUEUES (21031), and its answer: all partitions of a subject on one broker group."""

    subject: str
    order_strategy: OrderStrategy
    version: int
    deleted: bool = False
    queues: Annotated[tuple[SubjectQueue, ...], Most(REPORTED_MAX)] = ()


assert REPORTED_MAX >= LOGICAL_PARTITIONS
