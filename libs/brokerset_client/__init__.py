"""brokerset_client: producers, consumers and administration for RocketMQ clusters, on asyncio.

async with Producer("group", namesrv="127.0.0.1:9876") as producer:
    await producer.send(Message(topic="orders", body=b"...", keys=("order-1",)))

async def on_message(message: MessageView) -> None: ...

consumer = PushConsumer("group", namesrv="127.0.0.1:9876", listener=on_message)
consumer.subscribe("orders", "created || paid")
async with consumer: ...
"""

from brokerset_client.admin import Admin, GroupProgress
from brokerset_client.calls import PullResult, PullStatus
from brokerset_client.errors import (
    AnswerTimeout,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    ClosedByListener,
    GroupOffline,
    HandleExpired,
    HandleRefused,
    MessageInvalid,
    MessageUnreadable,
    NameServerUnavailable,
    NoQueue,
    NotARequest,
    ReplyNotTaken,
    ReplyTimeout,
    RequestRefused,
    SendFailed,
    TopicNotFound,
    TransactionNotCommitted,
    TransactionNotPrepared,
    TransactionsFull,
)
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message, MessageView, SendResult, SendStatus
from brokerset_client.offset_window import WindowLimits
from brokerset_client.pop.consumer import PopConsumer
from brokerset_client.pop.popped import PoppedMessage
from brokerset_client.pop.settings import PopSettings
from brokerset_client.producer import Producer
from brokerset_client.pull_consumer import PullConsumer
from brokerset_client.push_consumer import PushConsumer
from brokerset_client.push_settings import ClientLimits, ConsumeStatus, Later, PushSettings, Verdict
from brokerset_client.replier import Answer, Replier, is_request
from brokerset_client.request_reply import reply_message
from brokerset_client.retry import Backoff, SendRetry
from brokerset_client.send_window import SendLimits
from brokerset_client.tracing import TraceSettings
from brokerset_client.transaction_producer import Transaction, TransactionProducer, TransactionSettings
from brokerset_client.transactions import EndStatus, HalfMessage, TransactionResult, TransactionState
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig
from brokerset_protocol.bodies.heartbeat import ConsumeFromWhere, MessageModel, SubscriptionData
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.queue_allocation import allocate_averagely, allocate_by_circle

Subscription = SubscriptionData
"""What a group wants of a topic: made by `PushConsumer.subscribe`."""

__all__ = [
    "Admin",
    "Answer",
    "AnswerTimeout",
    "Backoff",
    "BrokerUnreachable",
    "ClientClosed",
    "ClientError",
    "ClientInstance",
    "ClientLimits",
    "ClosedByListener",
    "ConsumeFromWhere",
    "ConsumeStatus",
    "EndStatus",
    "GroupOffline",
    "GroupProgress",
    "HalfMessage",
    "HandleExpired",
    "HandleRefused",
    "Later",
    "Message",
    "MessageInvalid",
    "MessageModel",
    "MessageQueue",
    "MessageUnreadable",
    "MessageView",
    "NameServerUnavailable",
    "NoQueue",
    "NotARequest",
    "PopConsumer",
    "PopSettings",
    "PoppedMessage",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushSettings",
    "Replier",
    "ReplyNotTaken",
    "ReplyTimeout",
    "RequestRefused",
    "SendFailed",
    "SendLimits",
    "SendResult",
    "SendRetry",
    "SendStatus",
    "Subscription",
    "SubscriptionGroupConfig",
    "TopicConfig",
    "TopicNotFound",
    "TraceSettings",
    "Transaction",
    "TransactionNotCommitted",
    "TransactionNotPrepared",
    "TransactionProducer",
    "TransactionResult",
    "TransactionSettings",
    "TransactionState",
    "TransactionsFull",
    "Verdict",
    "WindowLimits",
    "allocate_averagely",
    "allocate_by_circle",
    "is_request",
    "reply_message",
]
