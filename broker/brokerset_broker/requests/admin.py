"""The broker's own configuration, state and measurements; requests that are passed on to one consumer.

Source: `AdminBrokerProcessor`. Codes 25, 26, 28, 45, 306, 307, 309, 315, 321, 329, 401, 402.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from brokerset_acl.signatures import SIGNING_FIELDS
from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.access_control import CheckRecord
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog, check_changeable
from brokerset_broker.requests.copies import message_at
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.store.queries import StoreQueries
from brokerset_broker.tables.consumer_filters import ConsumerFilters, is_sql
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats import fastjson, native
from brokerset_formats.config import DataVersion, DelayOffsets
from brokerset_formats.errors import FormatError
from brokerset_formats.message_ids import decode_offset_id
from brokerset_formats.records import store_timestamp_at
from brokerset_protocol import headers
from brokerset_protocol.bodies import properties_text
from brokerset_protocol.bodies.queues import KVTable
from brokerset_protocol.bodies.stats import ConsumeQueueUnit, QueryConsumeQueueResponse
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import Connection, ConnectionClosed, Handler, RequestTimeout
from brokerset_runtime.settings import settings_values
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

VERSION_TEXT: Final = "V5_5_0"
"""The RocketMQ version whose behaviour this is."""

CLIENT_ANSWER_SECONDS: Final = 10.0
"""Time that a client has to answer what is passed on to it."""

UNITS_MAX: Final = 1_000
"""Most queue units that one request shows."""

NO_TIMERS: Final = {
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
}
"""What a broker without timer messages says of them."""

_QUEUE_NAMES: Final = ("send", "pull", "litePull", "query", "ack")
_QUEUE_CAPACITY: Final = {
    "send": 10_000,
    "pull": 100_000,
    "litePull": 100_000,
    "query": 20_000,
    "ack": 100_000,
}


class DelayView(Protocol):
    """What administration needs of delayed messages."""

    def offsets(self) -> DelayOffsets:
        """The progress of delivery."""
        ...

    def progress(self) -> Mapping[int, tuple[int, int]]:
        """For each used level the next queue offset to deliver, and the end of its queue."""
        ...


class AdminProcessor:
    """Answers administrators about the broker as a whole."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        clock: Clock,
        admission: Admission,
        store: StoreQueries,
        topics: TopicManager,
        groups: GroupManager,
        consumers: ConsumerTable,
        stats: BrokerStats,
        delay: DelayView,
        timer_status: Callable[[], Mapping[str, str]] = lambda: NO_TIMERS,
        pop_status: Callable[[], Mapping[str, str]] = dict,
        waiting_sends: Callable[[], int] = lambda: 0,
        membership: Callable[[], dict[str, str]] = dict,
        changes: ChangeLog,
        filters: ConsumerFilters | None = None,
        check_record: CheckRecord | None = None,
    ) -> None:
        """`membership` adds to the runtime info what controllers say of this broker. `filters`: those by
        SQL92, if they are served. `check_record` says whether a message may be given to a consumer."""
        self._check_record = check_record
        self._filters = filters
        self._changes = changes
        self._live = live
        self._clock = clock
        self._admission = admission
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._stats = stats
        self._delay = delay
        self._timer_status = timer_status
        self._pop_status = pop_status
        self._waiting_sends = waiting_sends
        self._membership = membership
        self._config_version = DataVersion(0, 0, stats.started_ms)

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_CONFIG: self.config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats_data,
            RequestCode.QUERY_CONSUME_QUEUE: self.queue_units,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    # -- configuration ------------------------------------------------------------------------------------

    def update_config(self, connection: Connection, command: Command) -> Command:
        """UPDATE_BROKER_CONFIG (25): all of the settings in the body, or none; until the next start."""
        wanted = properties_text.from_text(command.body)
        if not wanted:
            raise _failed("string2Properties error")
        changed = self._live.update(wanted)
        if changed:
            self._config_version = self._config_version.next(self._clock.now_ms())
            log.info("settings changed", changed={name: wanted[name] for name in changed}, by=connection.peer)
        if "brokerPermission" in changed:
            self._topics.bump()
        return command.reply()

    def config(self, connection: Connection, command: Command) -> Command:
        """GET_BROKER_CONFIG (26)."""
        version = fastjson.dumps(self._config_version.to_json()).decode()
        ext = headers.GetBrokerConfigResponse(version=version).to_ext()
        return command.reply(ext=ext, body=properties_text.to_text(settings_values(self._live.current)))

    # -- state and measurements ---------------------------------------------------------------------------

    def runtime_info(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """GET_BROKER_RUNTIME_INFO (28)."""
        return self._runtime_info(command, self._queue_table())

    async def _runtime_info(self, command: Command, queues: dict[str, str]) -> Command:
        """`queues` was made before this request itself was one that waits."""
        usage = await asyncio.to_thread(_disk_usage, _commit_log_folder(self._live.current))
        table = {
            **self._stats.runtime_table(),
            **self._state_table(),
            **self._membership(),
            **queues,
            **self._disk_table(usage),
            **{
                f"scheduleMessageOffset_{level}": f"{delivered},{end}"
                for level, (delivered, end) in self._delay.progress().items()
            },
        }
        return command.reply(body=KVTable(table).to_json())

    def _state_table(self) -> dict[str, str]:
        store = self._store
        uptime_ms = self._clock.now_ms() - self._stats.started_ms
        return {
            "bootTimestamp": str(self._stats.started_ms),
            "runtime": _duration(uptime_ms),
            "brokerActive": "false" if self._admission.refuses_writes else "true",
            "brokerVersionDesc": VERSION_TEXT,
            "brokersetNativeCore": native.description,
            "commitLogMinOffset": str(store.min_offset),
            "commitLogMaxOffset": str(store.max_offset),
            "remainHowManyDataToFlush": _bytes(max(0, store.max_offset - store.flushed_offset)),
            "earliestMessageTimeStamp": str(self._earliest_message_ms()),
            "dispatchBehindBytes": "0",
            "dispatchMaxBuffer": "0",
            "pageCacheLockTimeMills": "0",
            "remainTransientStoreBufferNumbs": "2147483647",
            "startAcceptSendRequestTimeStamp": "0",
            **self._timer_status(),
            **self._pop_status(),
        }

    def _queue_table(self) -> dict[str, str]:
        """Java's thread pools: here requests are served at once; only sends wait, for disk or replicas."""
        table = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "100000"}
        for name in _QUEUE_NAMES:
            size = self._waiting_sends() if name == "send" else 0
            table[f"{name}ThreadPoolQueueSize"] = str(size)
            table[f"{name}ThreadPoolQueueCapacity"] = str(_QUEUE_CAPACITY[name])
            table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        return table

    def _disk_table(self, usage: tuple[int, int, int] | None) -> dict[str, str]:
        folder = _commit_log_folder(self._live.current)
        total, used, free = usage if usage is not None else (0, 0, 0)
        ratio = f"{used / total:.2f}" if total else "-1.0"
        return {
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{folder}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_bytes(total)}, Free : {_bytes(free)}.",
        }

    def _earliest_message_ms(self) -> int:
        """Store time of the first record of the log, -1 without one."""
        if self._store.max_offset <= self._store.min_offset:
            return -1
        record = self._store.read(self._store.min_offset)
        return store_timestamp_at(record, 0) if record is not None else -1

    def stats_data(self, connection: Connection, command: Command) -> Command:
        """VIEW_BROKER_STATS_DATA (315)."""
        header = headers.ViewBrokerStatsData.from_ext(command.ext)
        found = self._stats.view(header.stats_name, header.stats_key)
        if found is None:
            raise _failed(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        return command.reply(body=found.to_json())

    def delay_offsets(self, connection: Connection, command: Command) -> Command:
        """GET_ALL_DELAY_OFFSET (45): the content of delayOffset.json."""
        ext = self._changes.answer_ext()
        return command.reply(ext=ext, body=fastjson.dumps(self._delay.offsets().to_json()))

    # -- store --------------------------------------------------------------------------------------------

    def queue_units(self, connection: Connection, command: Command) -> Command:
        """QUERY_CONSUME_QUEUE (321): units of a queue, and whether a group's filter wants them."""
        header = headers.QueryConsumeQueue.from_ext(command.ext)
        topic, queue_id = header.topic, header.queue_id
        low, high = self._store.queue_min(topic, queue_id), self._store.queue_max(topic, queue_id)
        if queue_id not in self._store.queues().get(topic, ()):
            raise _failed(f"{queue_id}@{topic} is not exist!")
        subscription = None
        filter_text = None
        if header.consumer_group is not None:
            subscription = self._consumers.subscription(header.consumer_group, topic)
            registered = None if self._filters is None else self._filters.get(topic, header.consumer_group)
            if subscription is None:
                filter_text = f"{header.consumer_group}@{topic} is not online!"
            elif registered is None:
                filter_text = "null"  # what Java writes for a filter by tags
            else:
                filter_text = fastjson.dumps(registered.data.to_json()).decode()
        if not low <= header.index < high:
            return command.reply(remark=f"Index {header.index} of {queue_id}@{topic} is not exist!")
        units = []
        count = min(max(header.count, 0), UNITS_MAX, high - header.index)
        for offset, size, tags_code in self._store.units(topic, queue_id, header.index, count):
            wanted = subscription is not None and (
                _int32(tags_code) in subscription.codes
                if subscription.codes is not None
                else not is_sql(subscription.data.expression_type)  # units do not say what SQL92 needs
            )
            units.append(ConsumeQueueUnit(offset, size, tags_code, wanted))
        body = QueryConsumeQueueResponse(
            tuple(units), high, low, subscription.data if subscription is not None else None, filter_text
        )
        return command.reply(body=body.to_json())

    def clean_queues(self, connection: Connection, command: Command) -> Command:
        """CLEAN_EXPIRED_CONSUMEQUEUE (306): queues follow the log by themselves, so there is nothing left."""
        return command.reply()

    def delete_expired(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """DELETE_EXPIRED_COMMITLOG (329): look for expired files now instead of at `deleteWhen`."""
        check_changeable(self._admission)
        return self._delete_expired(command)

    async def _delete_expired(self, command: Command) -> Command:
        await self._store.delete_expired()
        return command.reply()

    # -- passed on to a consumer --------------------------------------------------------------------------

    def running_info(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """GET_CONSUMER_RUNNING_INFO (307)."""
        header = headers.GetConsumerRunningInfo.from_ext(command.ext)
        return self._call_consumer(
            command, header.consumer_group, header.client_id, command.ext, command.body
        )

    def consume_directly(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """CONSUME_MESSAGE_DIRECTLY (309): let one consumer process one stored message now."""
        header = headers.ConsumeMessageDirectlyResult.from_ext(command.ext)
        try:
            _, offset = decode_offset_id(header.msg_id or "")
        except FormatError as error:
            raise _failed(f"msgId {header.msg_id} is no offset message id: {error}") from None
        record = self._store.read(offset)
        if record is None:
            raise _failed(f"can not find message by the offset, {offset}")
        if self._check_record is not None:
            self._check_record(connection, command, message_at(record, offset))
        ext = {**command.ext, "brokerName": self._live.current.broker_name}
        topic = self._topics.get(header.topic) if header.topic else None
        group = self._groups.get(header.consumer_group)
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        return self._call_consumer(command, header.consumer_group, header.client_id or "", ext, bytes(record))

    async def _call_consumer(
        self, command: Command, group: str, client_id: str, ext: Mapping[str, str], body: bytes
    ) -> Command:
        """The answer of a consumer. Raises `Rejected`.

        It does not get the signature of who asks: no code is signed, so it could send other requests with it.
        """
        client = self._consumers.find(group, client_id)
        if client is None:
            raise _failed(f"The Consumer <{group}> <{client_id}> not online")
        try:
            passed_on = {name: value for name, value in ext.items() if name not in SIGNING_FIELDS}
            answer = await client.channel.call(Command(command.code, passed_on, body), CLIENT_ANSWER_SECONDS)
        except RequestTimeout as error:
            raise Rejected(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {error}"
            ) from None
        except ConnectionClosed as error:
            raise _failed(f"invoke consumer <{group}> <{client_id}> Exception: {error}") from None
        return command.reply(answer.code, answer.remark, ext=answer.ext, body=answer.body)


def _commit_log_folder(settings: BrokerSettings) -> Path:
    if settings.enable_dledger_commit_log:
        return settings.store_path_d_ledger_commit_log or settings.store_path_root_dir
    return settings.store_path_commit_log or settings.store_path_root_dir / "commitlog"


def _disk_usage(folder: Path) -> tuple[int, int, int] | None:
    """Total, used and free bytes of the disk, `None` if the folder is not there (yet)."""
    try:
        return shutil.disk_usage(folder)
    except OSError:
        return None


def _duration(ms: int) -> str:
    seconds, minutes, hours = ms // 1000 % 60, ms // 60_000 % 60, ms // 3_600_000 % 24
    return f"[ {ms // 86_400_000} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _bytes(count: int) -> str:
    """As `MixAll.humanReadableByteCount` writes it: `415 B`, `252.0 GiB`."""
    if count < 1024:
        return f"{count} B"
    value, exponent = float(count), 0
    while value >= 1024 and exponent < 6:
        value /= 1024
        exponent += 1
    return f"{value:.1f} {'KMGTPE'[exponent - 1]}iB"


def _int32(code: int) -> int:
    return ((code + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def _failed(remark: str) -> Rejected:
    return Rejected(ResponseCode.SYSTEM_ERROR, remark)
