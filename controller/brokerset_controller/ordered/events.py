"""What is agreed on about a subject: each event carries the guards that are checked when it is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy


@dataclass(frozen=True, slots=True)
class SubjectCreated:
    """A subject with its first generation, all of it open. Guards: there is none, nor what is left of one."""

    subject: str
    order: OrderStrategy
    route: tuple[str, ...]
    partitions: int


@dataclass(frozen=True, slots=True)
class GenerationPrepared:
    """Another number of partitions; those of the generation before are to be sealed.

    Guards: the generation, and none of its partitions is PREPARED.
    """

    subject: str
    expected_generation: int
    partitions: int
    route: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionSealed:
    """The broker has closed a partition by a confirmed record.

    Guard: it is SEALING, or a later master says that it ends elsewhere: messages were lost with an election.
    """

    subject: str
    partition_id: int
    end: int
    """Queue offset behind its last message."""

    master_epoch: int
    """Of the master that said so."""


@dataclass(frozen=True, slots=True)
class PartitionRetired:
    """A sealed partition is forgotten. Guards: it is SEALED, and all groups have finished it."""

    subject: str
    partition_id: int


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A process consumes. Guards: the group has that strategy, or is new; room for one more."""

    subject: str
    group: str
    strategy: ConsumeStrategy
    session: str
    client_id: str
    permission_ms: int


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A process has stopped, with all acks stored, or its permission is surely over: it owns nothing more."""

    subject: str
    group: str
    session: str


@dataclass(frozen=True, slots=True)
class Reassigned:
    """Partitions are taken from their owners, in two phases, and given to members.

    Guards: the group's version; who is granted is a member; what is granted is owned by nobody.
    """

    subject: str
    group: str
    expected_version: int
    revoked: frozenset[int]
    granted: Mapping[int, str]
    """Sessions by partition."""


@dataclass(frozen=True, slots=True)
class Released:
    """An owner has stopped, and its acks are stored. Guard: it owns the partition by that epoch."""

    subject: str
    group: str
    partition_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Drained:
    """A sealed partition is handled up to its end: by its owner, in a SHARED group by all members together.

    It stays assigned while copies for retry may come. Guards: the epoch by which it is consumed, the
    owner's or that of a SHARED group; the position; it is not drained yet.
    """

    subject: str
    group: str
    partition_id: int
    epoch: int
    position: int
    """Queue offset behind the last message whose ack the broker has confirmed."""


@dataclass(frozen=True, slots=True)
class RetriesFinished:
    """No copies for retry of a drained partition will come any more.

    Guards: the epoch by which it is consumed, as with `Drained`; it is drained.
    """

    subject: str
    group: str
    partition_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class GroupRemoved:
    """A group is forgotten. Guard: it has no member."""

    subject: str
    group: str


@dataclass(frozen=True, slots=True)
class SubjectDeleted:
    """A subject is no more; its numbers are kept. Guard: no group has a member."""

    subject: str


@dataclass(frozen=True, slots=True)
class QueuesDeleted:
    """A broker group has nothing of a deleted subject any more. Guard: it was not created again since."""

    subject: str
    broker_group: str
    version: int
    """The deleted subject's."""


@dataclass(frozen=True, slots=True)
class ProducerStarted:
    """A producer gets an epoch above all that were given for the subject. Guard: the subject is there.

    Nothing is kept of it but the epoch, so producers need no table.
    """

    subject: str


Event = (
    SubjectCreated
    | GenerationPrepared
    | PartitionSealed
    | PartitionRetired
    | MemberJoined
    | MemberLeft
    | Reassigned
    | Released
    | Drained
    | RetriesFinished
    | GroupRemoved
    | SubjectDeleted
    | QueuesDeleted
    | ProducerStarted
)
