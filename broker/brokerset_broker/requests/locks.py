"""Orderly consumers lock and free queues (codes 41 and 42). Source: `AdminBrokerProcessor.lockBatchMQ`."""

from __future__ import annotations

import asyncio

from brokerset_broker.requests.ordered_access import OrderedAccess
from brokerset_broker.tables.locks import QueueLocks
from brokerset_broker.tables.topics import TopicManager
from brokerset_protocol.bodies.queues import LockBatchRequest, LockBatchResponse
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection, Handler

EXPIRE_SECONDS = 60.0
"""Time between two removals of locks that nobody renews."""


class LockProcessor:
    """Serves locks of queues; only those of known topics can be locked."""

    def __init__(self, locks: QueueLocks, topics: TopicManager, access: OrderedAccess | None = None) -> None:
        """`access` knows which queues are kept for sessions of ordered subjects."""
        self._access = access
        self._locks = locks
        self._topics = topics

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, connection: Connection, command: Command) -> Command:
        """LOCK_BATCH_MQ (41): answers what the client holds now; what it may not have is just left out."""
        request = LockBatchRequest.from_json(command.body)
        access, group = self._access, request.consumer_group
        known = [
            queue
            for queue in sorted(request.mq_set)
            if self._topics.get(queue.topic) is not None and (access is None or access.may_lock(group, queue))
        ]
        granted = self._locks.lock(request.consumer_group, request.client_id, known)
        return command.reply(body=LockBatchResponse(frozenset(granted)).to_json())

    def unlock(self, connection: Connection, command: Command) -> Command:
        """UNLOCK_BATCH_MQ (42)."""
        request = LockBatchRequest.from_json(command.body)
        self._locks.unlock(request.consumer_group, request.client_id, request.mq_set)
        return command.reply()

    async def run(self) -> None:
        """Remove expired locks for as long as this task runs."""
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            self._locks.expire()
