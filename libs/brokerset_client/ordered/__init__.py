"""Producers and consumers of ordered subjects (docs/ordered.md); `OrderedClient` is where to begin."""

from brokerset_client.ordered.client import OrderedClient
from brokerset_client.ordered.consuming import (
    FailurePolicy,
    HandlingContext,
    OrderedConsumer,
    OrderedConsumerSettings,
    OrderedMessage,
    Pending,
    PoisonPolicy,
    SubscriptionOptions,
)
from brokerset_client.ordered.instance_transport import ControllersUnknown, InstanceTransport
from brokerset_client.ordered.producing.errors import (
    OrderedSendFailed,
    OutcomeLost,
    ProducerFenced,
    ProducerFull,
    StillQueued,
    SubjectRefused,
    TooManySubjects,
)
from brokerset_client.ordered.producing.producer import OrderedProducer, OrderedSendResult
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_client.ordered.transport import OrderedTransport
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy

__all__ = [
    "ConsumeStrategy",
    "ControllersUnknown",
    "FailurePolicy",
    "HandlingContext",
    "InstanceTransport",
    "OrderStrategy",
    "OrderedClient",
    "OrderedConsumer",
    "OrderedConsumerSettings",
    "OrderedMessage",
    "OrderedProducer",
    "OrderedSendFailed",
    "OrderedSendResult",
    "OrderedTransport",
    "OutcomeLost",
    "Pending",
    "PoisonPolicy",
    "ProducerFenced",
    "ProducerFull",
    "ProducerSettings",
    "StillQueued",
    "SubjectRefused",
    "SubscriptionOptions",
    "TooManySubjects",
]
