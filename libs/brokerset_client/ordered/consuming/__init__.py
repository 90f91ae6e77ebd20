"""Consumer of ordered subjects: one message of a key at a time, in the order they were sent.

Members of Shared groups have no order, and share the messages of all partitions.

It starts when its subjects are subscribed:

    async def on_order(message: OrderedMessage, context: HandlingContext) -> None: ...

    consumer = OrderedConsumer(transport, group="billing", client_id="host-1")
    consumer.subscribe("orders", on_order)
    async with consumer: ...
"""

from brokerset_client.ordered.consuming.consumer import OrderedConsumer
from brokerset_client.ordered.consuming.failures import FailurePolicy, PoisonPolicy
from brokerset_client.ordered.consuming.handling import Handler, HandlingContext, HandlingFailed, Pending
from brokerset_client.ordered.consuming.lanes import LaneLimits
from brokerset_client.ordered.consuming.measurements import (
    BlockedKey,
    PartitionMeasurements,
    SubscriptionMeasurements,
)
from brokerset_client.ordered.consuming.ordered_message import OrderedMessage
from brokerset_client.ordered.consuming.pull_register import AlreadySubscribed, PullRegister
from brokerset_client.ordered.consuming.pulling import PulledBatch, PulledMessage, Puller
from brokerset_client.ordered.consuming.settings import OrderedConsumerSettings, SubscriptionOptions

__all__ = [
    "AlreadySubscribed",
    "BlockedKey",
    "FailurePolicy",
    "Handler",
    "HandlingContext",
    "HandlingFailed",
    "LaneLimits",
    "OrderedConsumer",
    "OrderedConsumerSettings",
    "OrderedMessage",
    "PartitionMeasurements",
    "Pending",
    "PoisonPolicy",
    "PullRegister",
    "PulledBatch",
    "PulledMessage",
    "Puller",
    "SubscriptionMeasurements",
    "SubscriptionOptions",
]
