"""Consumer offsets and bounds of queues.

Source: `ConsumerManageProcessor`, `AdminBrokerProcessor`, `Broker2Client`. Codes 14, 15, 29, 30, 31, 32, 43,
222, 223, 308, 314; sends 221.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog
from brokerset_broker.requests.ordered_access import OrderedAccess
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.queries import StoreQueries
from brokerset_broker.store.results import Boundary
from brokerset_broker.tables.channels import Client
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.metadata.metadata_log import rejection
from brokerset_broker.tables.metadata.records import Change, OffsetsPut, ResetsPut
from brokerset_broker.tables.offsets import QUEUE_ID_MAX, OffsetManager
from brokerset_broker.tables.ordered.values import ClaimKey, SharedAcksPut
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats import fastjson
from brokerset_formats.light_queues import lite_queue
from brokerset_formats.names import TRANSACTION_GROUP
from brokerset_protocol import headers
from brokerset_protocol.bodies.queues import (
    GetConsumerStatusBody,
    MessageQueue,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
)
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.remoting import (
    DEFERRED,
    Connection,
    ConnectionClosed,
    Handler,
    RequestTimeout,
)
from brokerset_runtime.remoting.connection import Reply

log = structlog.get_logger(__name__)

CLIENT_ANSWER_SECONDS = 5.0
"""Time that one client has to tell its status."""

CLIENTS_AT_ONCE = 64
"""Clients that are asked for their status at the same time."""

INT64_MAX = 2**63 - 1

IN_MEMORY_PERCENT = 40
"""Part of the machine's memory; what is further behind the log's end counts as on disk, as in Java."""


class OffsetProcessor:
    """Serves consumer offsets and what clients need to choose their first one."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        admission: Admission,
        store: StoreQueries,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        consumers: ConsumerTable,
        memory_bytes: int | None = None,
        changes: ChangeLog,
        access: OrderedAccess | None = None,
    ) -> None:
        """`changes` makes offsets safe before they are answered; `access` knows what is claimed."""
        self._access = access
        self._changes = changes
        self._live = live
        self._admission = admission
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        memory_bytes = _physical_memory() if memory_bytes is None else memory_bytes
        self._in_memory_bytes = memory_bytes * IN_MEMORY_PERCENT // 100

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction,
        }

    # -- what every consumer asks -------------------------------------------------------------------------

    def query(self, connection: Connection, command: Command) -> Command:
        """QUERY_CONSUMER_OFFSET (14).

        A group without offset on a queue that still has its first message begins there, whatever the client's
        `consumeFromWhere` says: Java's users rely on it.
        """
        header = headers.QueryConsumerOffset.from_ext(command.ext)
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.query(header.consumer_group, topic, queue_id)
        if offset is None:
            if header.set_zero_if_not_found is False:
                raise _not_found("Not found, do not set to zero, maybe this group boot first")
            if not self._has_first_message(topic, queue_id):
                raise _not_found("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
            offset = 0
        return command.reply(ext={"offset": str(offset)})

    def _has_first_message(self, topic: str, queue_id: int) -> bool:
        """Whether the queue's message 0 is there, and so young that it is read from memory."""
        if self._store.queue_min(topic, queue_id) > 0:
            return False
        units = self._store.units(topic, queue_id, 0, 1)
        return bool(units) and self._store.max_offset - units[0][0] <= self._in_memory_bytes

    def update(self, connection: Connection, command: Command) -> Reply:
        """UPDATE_CONSUMER_OFFSET (15)."""
        header = headers.UpdateConsumerOffset.from_ext(command.ext)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if self._groups.get(group) is None:
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if self._topics.get(topic) is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        if self._access is not None:
            self._access.check_commit(group, topic, queue_id)
        if self._offsets.ignores_commit(group, topic, queue_id, header.commit_offset):
            return command.reply(remark="Offset has been previously reset")
        if self._offsets.is_held(group, topic):
            raise Rejected(
                ResponseCode.SYSTEM_BUSY, f"offsets of {group} in {topic} are being changed; commit again"
            )
        client = f"{connection.peer[0]}:{connection.peer[1]}"
        if not self._offsets.commit(group, topic, queue_id, header.commit_offset, client):
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"offset {header.commit_offset} of queue {queue_id} cannot be stored",
            )
        if command.is_oneway:
            return command.reply()
        self._changes.when_offsets_confirmed(partial(self._finish_update, connection, command))
        return DEFERRED

    @staticmethod
    def _finish_update(connection: Connection, command: Command, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            connection.answer(command.reply())
            return
        refused = rejection(status)
        connection.answer(command.reply(refused.code, refused.remark))

    def search(self, connection: Connection, command: Command) -> Command:
        """SEARCH_OFFSET_BY_TIMESTAMP (29)."""
        header = headers.SearchOffset.from_ext(command.ext)
        upper = (header.boundary_type or "").upper() == Boundary.UPPER.value
        topic = lite_queue(header.topic, header.lite_topic) if header.lite_topic else header.topic
        offset = self._store.queue_offset_by_time(
            topic, header.queue_id, header.timestamp, Boundary.UPPER if upper else Boundary.LOWER
        )
        return command.reply(ext={"offset": str(offset)})

    def max_offset(self, connection: Connection, command: Command) -> Command:
        """GET_MAX_OFFSET (30)."""
        header = headers.GetMaxOffset.from_ext(command.ext)
        return command.reply(ext={"offset": str(self._store.queue_max(header.topic, header.queue_id))})

    def min_offset(self, connection: Connection, command: Command) -> Command:
        """GET_MIN_OFFSET (31)."""
        header = headers.GetMinOffset.from_ext(command.ext)
        offset = self._store.queue_min(header.topic, header.queue_id)
        return command.reply(remark="", ext={"offset": str(offset)})

    def earliest(self, connection: Connection, command: Command) -> Command:
        """GET_EARLIEST_MSG_STORETIME (32)."""
        header = headers.GetEarliestMsgStoretime.from_ext(command.ext)
        timestamp_ms = self._store.earliest_store_time(header.topic, header.queue_id)
        return command.reply(ext={"timestamp": str(timestamp_ms)})

    # -- administration -----------------------------------------------------------------------------------

    def all_offsets(self, connection: Connection, command: Command) -> Command:
        """GET_ALL_CONSUMER_OFFSET (43): the content of consumerOffset.json."""
        ext = self._changes.answer_ext()
        return command.reply(ext=ext, body=fastjson.dumps(self._offsets.table().to_json()))

    def correction(self, connection: Connection, command: Command) -> Command:
        """QUERY_CORRECTION_OFFSET (308): for each queue the lowest offset of all groups, some left out.

        Where `compareGroup` is behind it, the highest number of Java's `long` says so. (Java's broker
        deletes the offsets of the groups that are to be left out.)
        """
        header = headers.QueryCorrectionOffset.from_ext(command.ext)
        topic, left_out = header.topic, set((header.filter_groups or "").split(","))
        lowest: dict[int, int] = {}
        for group in self._offsets.groups_of(topic):
            if group in left_out:
                continue
            for queue_id, offset in self._offsets.replicated.get(f"{topic}@{group}", {}).items():
                if offset >= self._store.queue_min(topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        for queue_id, offset in self._offsets.replicated.get(f"{topic}@{header.compare_group}", {}).items():
            if lowest.get(queue_id, 0) > offset:
                lowest[queue_id] = INT64_MAX
        return command.reply(body=QueryCorrectionOffsetBody(lowest).to_json())

    def reset(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """INVOKE_BROKER_TO_RESET_OFFSET (222): set the group's offsets here; its next pulls are told."""
        header = headers.ResetOffset.from_ext(command.ext)
        group, topic = header.group, header.topic
        if self._admission.refuses_writes:
            raise _failed("Can not reset offset in slave broker")
        config = self._topics.get(topic)
        if config is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        if self._groups.get(group) is None:
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        _check_settable(group)
        if header.queue_id >= 0:
            wanted = {header.queue_id: self._target(header)}
        else:
            queues = range(config.read_queue_nums)
            wanted = {queue: self._offset_at(topic, queue, header.timestamp) for queue in queues}
        if not wanted:
            raise _failed("No queues to reset.")
        log.info("offsets reset", group=group, topic=topic, offsets=wanted, by=connection.peer)
        name = self._live.current.broker_name
        body = ResetOffsetBody({MessageQueue(topic, name, queue): offset for queue, offset in wanted.items()})
        reply = command.reply(body=body.to_json())
        return self._reset(reply, f"{topic}@{group}", wanted)

    async def _reset(self, reply: Command, key: str, wanted: Mapping[int, int]) -> Command:
        """Parked pulls are told when the change is applied."""
        wrong = [
            f"offset {offset} of queue {queue_id} cannot be stored"
            for queue_id, offset in wanted.items()
            if offset < 0 or not 0 <= queue_id <= QUEUE_ID_MAX
        ]
        if wrong:
            raise _failed(wrong[0])
        await self._changes.change([f"offsets:{key}"], lambda: [ResetsPut({key: wanted})])
        return reply

    def _target(self, header: headers.ResetOffset) -> int:
        """The offset that the request names for one queue, or means by its time."""
        topic, queue_id, offset = header.topic, header.queue_id, header.offset
        if offset is None or offset == -1:
            return self._offset_at(topic, queue_id, header.timestamp)
        low, high = self._store.queue_min(topic, queue_id), self._store.queue_max(topic, queue_id)
        if not low <= offset <= high:
            raise _failed(f"Target offset {offset} not in consume queue range [{low}-{high}]")
        return offset

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        if timestamp_ms < 0:
            return self._store.queue_max(topic, queue_id)
        return self._store.queue_offset_by_time(topic, queue_id, timestamp_ms, Boundary.LOWER)

    def clone(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """CLONE_GROUP_OFFSET (314): let one group go on where another is."""
        header = headers.CloneGroupOffset.from_ext(command.ext)
        source, target = header.src_group, header.dest_group
        if self._groups.get_or_create(target) is None:
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {target} not exist!")
        _check_settable(target)
        topics = []
        for topic in [header.topic] if header.topic else self._offsets.topics_of(source):
            if self._topics.get(topic) is None:
                continue
            online = self._consumers.subscription_count(source) > 0
            if not header.offline and online and self._consumers.subscription(source, topic) is None:
                continue
            topics.append(topic)
        return self._clone(command, source, target, topics)

    async def _clone(self, command: Command, source: str, target: str, topics: Sequence[str]) -> Command:
        def decide() -> Sequence[Change]:
            found = {
                f"{topic}@{target}": dict(self._offsets.replicated.get(f"{topic}@{source}", {}))
                for topic in topics
            }
            found = {key: queues for key, queues in found.items() if queues}
            if not found:
                return []
            return [*self._without_acks(target, found), OffsetsPut(found), *self._instead_of_resets(found)]

        await self._changes.change([f"offsets:{topic}@{target}" for topic in topics], decide)
        return command.reply()

    def _instead_of_resets(self, offsets: Mapping[str, Mapping[int, int]]) -> Sequence[Change]:
        """A reset that waits for a pull counts more than an offset: where one waits, these are the reset.
        Else consumers would be taken past messages, or back."""
        waiting = self._offsets.resets
        again = {
            key: {queue: offset for queue, offset in offsets[key].items() if queue in waiting[key]}
            for key in offsets
            if key in waiting
        }
        again = {key: queues for key, queues in again.items() if queues}
        return [ResetsPut(again)] if again else []

    def _without_acks(self, group: str, offsets: Mapping[str, Iterable[int]]) -> Sequence[Change]:
        """A Shared group that goes on elsewhere consumes all from there, acknowledged before or not."""
        acks = {} if self._access is None else self._access.ordered.state.shared_acks
        queues = [ClaimKey(key.partition("@")[0], group, queue) for key in offsets for queue in offsets[key]]
        gone = {key: () for key in queues if key in acks}
        return [SharedAcksPut(gone)] if gone else []

    async def consumer_status(self, connection: Connection, command: Command) -> Command:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): ask the group's clients how far they are (221)."""
        header = headers.GetConsumerStatus.from_ext(command.ext)
        entry = self._consumers.group(header.group)
        if entry is None:
            raise _failed(f"No Any Consumer online in the consumer group: [{header.group}]")
        wanted = header.client_addr
        clients = [client for client in entry.members.values() if wanted in (None, "", client.client_id)]
        ext = headers.GetConsumerStatus(topic=header.topic, group=header.group).to_ext()
        gate = asyncio.Semaphore(CLIENTS_AT_ONCE)
        async with asyncio.TaskGroup() as asking:
            tasks = {
                client.client_id: asking.create_task(self._ask_status(client, dict(ext), gate))
                for client in clients
            }
        table = {client_id: task.result() for client_id, task in tasks.items()}
        found = {client_id: offsets for client_id, offsets in table.items() if offsets is not None}
        return command.reply(body=GetConsumerStatusBody(consumer_table=found).to_json())

    async def _ask_status(
        self, client: Client, ext: dict[str, str], gate: asyncio.Semaphore
    ) -> dict[MessageQueue, int] | None:
        request = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext)
        try:
            async with gate:
                answer = await client.channel.call(request, CLIENT_ANSWER_SECONDS)
            if answer.code != ResponseCode.SUCCESS:
                return None
            return GetConsumerStatusBody.from_json(answer.body).message_queue_table
        except (ConnectionClosed, RequestTimeout, Rejected) as error:
            log.info("client did not tell its status", client=client.client_id, reason=str(error))
            return None


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_settable(group: str) -> None:
    """Raise `Rejected` for offsets that are a broker's own: transactions that they pass are never ended."""
    if group == TRANSACTION_GROUP:
        raise _failed(f"the offsets of {group} are the broker's own; nobody else can set them")


def _not_found(remark: str) -> Rejected:
    return Rejected(ResponseCode.QUERY_NOT_FOUND, remark)


def _failed(remark: str) -> Rejected:
    return Rejected(ResponseCode.SYSTEM_ERROR, remark)
