"""Headers of requests about ordered subjects, all brokerset's own (docs/ordered-protocol.md)."""

from __future__ import annotations

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.headers.codec import Header, Int, Long

PULL_EPOCH = "brokersetEpoch"
PULL_SESSION = "brokersetSession"
"""Fields of a pull (11) by a session that owns the queue."""

PULL_GROUP_POSITION = "groupPosition"
"""Field of the answer to a pull by a session of a Shared group: the queue offset below which the group has
acknowledged everything."""


# -- controllers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSubject(Header):
    """BROKERSET_CREATE_SUBJECT (21021)."""

    subject: str
    order_strategy: str
    partitions: Int | None = None
    route: str | None = None
    """Broker groups, joined by semicolons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSubject(Header):
    """BROKERSET_SCALE_SUBJECT (21022)."""

    subject: str
    partitions: Int
    route: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubject(Header):
    """BROKERSET_DELETE_SUBJECT (21023)."""

    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSubjectRoute(Header):
    """BROKERSET_SUBJECT_ROUTE (21025)."""

    subject: str
    order_strategy: str | None = None
    create: bool = False
    known_version: Long | None = None
    wait_ms: Int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectRouteResponse(Header):
    """Answer to BROKERSET_SUBJECT_ROUTE."""

    version: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProducer(Header):
    """BROKERSET_START_PRODUCER (21026)."""

    subject: str
    producer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProducerResponse(Header):
    """Answer to BROKERSET_START_PRODUCER."""

    producer_epoch: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat(Header):
    """BROKERSET_CONSUMER_HEARTBEAT (21027)."""

    subject: str
    consumer_group: str
    session: str
    client_id: str
    consume_strategy: str
    order_strategy: str | None = None
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResponse(Header):
    """Answer to BROKERSET_CONSUMER_HEARTBEAT; milliseconds count from when the heartbeat was sent."""

    permission_ms: Long
    margin_ms: Long
    heartbeat_ms: Long
    """How often the next ones are expected."""

    version: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentChanged(Header):
    """BROKERSET_ASSIGNMENT_CHANGED (21028)."""

    subject: str
    consumer_group: str
    session: str
    version: Long
    wait_ms: Int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentChangedResponse(Header):
    """Answer to BROKERSET_ASSIGNMENT_CHANGED."""

    version: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveConsumerGroup(Header):
    """BROKERSET_REMOVE_CONSUMER_GROUP (21029)."""

    subject: str
    consumer_group: str


# -- brokers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRefusedResponse(Header):
    """Answer with BROKERSET_SEQUENCE_GAP or BROKERSET_PRODUCER_UNKNOWN to a send."""

    next_sequence: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimQueue(Header):
    """BROKERSET_CLAIM_QUEUE (21032)."""

    topic: str
    consumer_group: str
    queue_id: Int
    epoch: Long
    session: str
    pulled_to: Long = -1
    """Behind the last that the session was given before: a queue offset; a pull sequence with `shared`."""

    shared: bool = False
    """Whether the group is Shared; without it the session is the only owner of the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimQueueResponse(Header):
    """Answer to BROKERSET_CLAIM_QUEUE."""

    position: Long
    """What is to be consumed next: a queue offset, of a Shared group a pull sequence."""

    max_offset: Long
    sealed_end: Long = -1
    group_position: Long = -1
    """Of a Shared group: the queue offset below which it has acknowledged everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge(Header):
    """BROKERSET_ACKNOWLEDGE (21033)."""

    topic: str
    consumer_group: str
    queue_id: Int
    epoch: Long
    session: str
    first: Long
    last: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeResponse(Header):
    """Answer to BROKERSET_ACKNOWLEDGE, also with BROKERSET_ACK_REFUSED."""

    position: Long
    """What is to be acknowledged next: a queue offset, of a Shared group a pull sequence."""

    group_position: Long = -1
    """Of a Shared group: the queue offset below which it has acknowledged everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseQueue(Header):
    """BROKERSET_RELEASE_QUEUE (21034)."""

    topic: str
    consumer_group: str
    queue_id: Int
    epoch: Long
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseQueueResponse(Header):
    """Answer to BROKERSET_RELEASE_QUEUE."""

    released: bool
    position: Long
    """The group's, a queue offset, also of a Shared group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBack(Header):
    """BROKERSET_SEND_BACK (21035)."""

    topic: str
    consumer_group: str
    queue_id: Int
    epoch: Long
    session: str
    queue_offset: Long
    dead: bool = False
    max_reconsume_times: Int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedPull(Header):
    """The two fields that a session adds to a pull (11)."""

    epoch: Long | None = None
    session: str | None = None


__all__ = [
    name for name in dir() if isinstance(globals()[name], type) and issubclass(globals()[name], Header)
]
