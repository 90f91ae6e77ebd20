"""The message store: commit log, consume queues and key index in RocketMQ's own file formats."""

from __future__ import annotations

from brokerset_broker.store.errors import PutStatus, StoreCorrupt, StoreRefused
from brokerset_broker.store.folder import StoreUnusable
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.results import (
    Appended,
    AppendedBatch,
    Boundary,
    GetResult,
    GetStatus,
    QueryResult,
)

__all__ = [
    "Appended",
    "AppendedBatch",
    "Boundary",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "PutStatus",
    "QueryResult",
    "StoreCorrupt",
    "StoreRefused",
    "StoreUnusable",
]
