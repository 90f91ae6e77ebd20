"""Pulls (11, 361): checked in the order of Java's `PullMessageProcessor`, answered at once or held."""

from __future__ import annotations

from functools import partial
from typing import Final

from brokerset_broker.filters import FilterError
from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import ENDS_TEXT, Admission
from brokerset_broker.requests.ordered_access import OrderedAccess
from brokerset_broker.requests.ordered_shared import SharedGroups, SharedRead
from brokerset_broker.requests.parked_pull_table import ParkedPull
from brokerset_broker.requests.parked_pulls import ParkedPulls
from brokerset_broker.requests.replies import pull_reply
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.reading import PropertyFilter
from brokerset_broker.store.results import GetResult, GetStatus
from brokerset_broker.tables.consumer_filters import (
    CompiledFilter,
    ConsumerFilters,
    RegisteredFilter,
    RetryFilter,
    is_sql,
)
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.ordered.claims import PullSession
from brokerset_broker.tables.ordered.shared_pulls import PullLog
from brokerset_broker.tables.ordered.values import ClaimKey
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig
from brokerset_formats.light_queues import PREFIX, is_light, lite_queue
from brokerset_formats.names import RETRY_PREFIX
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import PULL_EPOCH
from brokerset_protocol.headers.pull import PullMessage
from brokerset_protocol.subscriptions import KEPT_SIZE_MAX, filter_codes, parse
from brokerset_runtime.remoting import DEFERRED, Connection, Handler
from brokerset_runtime.remoting.connection import Reply
from brokerset_spec.broker_settings import BrokerSettings

FLAG_COMMIT_OFFSET: Final = 1
FLAG_SUSPEND: Final = 2
FLAG_SUBSCRIPTION: Final = 4

PULL_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of one answer, whatever is set: a frame is limited to 16 MiB. One message is always given."""

EXPRESSIONS_MAX: Final = 4_096
"""Parsed tag expressions that are kept; the table is emptied when it is full, also of `KEPT_SIZE_MAX`
characters."""

SLAVE_PARK_MS: Final = 1_000
"""How long a slave holds a pull of a message that it does not have, though its master may: then the client
gets a chance to ask the master."""

ENDS_PARK_MS: Final = 2_500
"""How long a pull that does not ask for long polling waits until a new master knows where its queues end;
Java's clients give such a pull 10 s and more."""

SHARED_PARK_MS: Final = 15_000
"""Longest wait of a pull by a session of a Shared group: it is forgotten when it is silent for twice that."""

FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}

_NOT_YET: Final = (
    GetStatus.OFFSET_OVERFLOW_ONE,
    GetStatus.OFFSET_FOUND_NULL,
    GetStatus.NO_MESSAGE_IN_QUEUE,
    GetStatus.NO_MATCHED_LOGIC_QUEUE,
)
"""The next message of the queue is wanted, or the queue has none yet."""

_PASSED_BY: Final = (
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.OFFSET_TOO_SMALL,
)
"""There is nothing for the consumer up to the next offset that it is told."""


def pull_code(status: GetStatus, queue_offset: int) -> ResponseCode:
    """The answer's code for what the store said about `queue_offset`."""
    if status is GetStatus.NO_MESSAGE_IN_QUEUE or status is GetStatus.NO_MATCHED_LOGIC_QUEUE:
        return ResponseCode.PULL_NOT_FOUND if queue_offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    return _CODES[status]


def pull_bytes_max(settings: BrokerSettings) -> int:
    """Bytes of an answer with several messages."""
    return min(settings.max_transfer_bytes_on_message_in_memory, PULL_BYTES_MAX)


class _Pull:
    """A checked pull, which may have to be run again when messages come."""

    __slots__ = (
        "broadcaster",
        "bytes_max",
        "codes",
        "command",
        "connection",
        "group",
        "group_sys_flag",
        "messages_max",
        "owner",
        "parked",
        "queue_id",
        "queue_offset",
        "read_topic",
        "registered",
        "topic",
        "topic_sys_flag",
        "waiting",
        "wanted_only",
    )

    connection: Connection
    command: Command
    group: str
    topic: str
    read_topic: str
    """Whose queue is read: the topic's, or the light queue of the lite topic that is wanted."""

    queue_id: int
    queue_offset: int
    messages_max: int
    bytes_max: int
    codes: frozenset[int] | None
    wanted_only: PropertyFilter | None
    """Examines the messages with such codes by their properties."""

    registered: RegisteredFilter | None
    """Where that comes from if the group's heartbeats registered it."""

    waiting: ParkedPull | None
    """Set while a pull with `wanted_only` is parked: messages that do not match let it go on waiting."""

    topic_sys_flag: int
    group_sys_flag: int
    broadcaster: str | None
    """Client id of a member of a broadcasting group, whose progress is watched."""

    owner: PullSession | PullLog | None
    """The session of an ordered subject that pulls, and is noted what it was given."""

    parked: ParkedPull
    """Set for a session of a Shared group: it may be woken for what another session gets."""


class PullProcessor:
    """Gives consumers their messages."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        consumers: ConsumerTable,
        offsets: OffsetManager,
        parked_pulls: ParkedPulls,
        admission: Admission,
        stats: BrokerStats,
        access: OrderedAccess | None = None,
        shared: SharedGroups | None = None,
        filters: ConsumerFilters | None = None,
    ) -> None:
        """`access` says who may pull from ordered subjects, `shared` gives to Shared groups, and `filters`
        are those by SQL92; without them there are none."""
        self._filters = filters
        self._filters_retries = filters is not None and live.current.filter_support_retry
        self._access = access
        self._shared = shared
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._parked_pulls = parked_pulls
        self._admission = admission
        self._stats = stats
        self._expressions: dict[tuple[str, str], frozenset[int] | None] = {}
        self._expressions_size = 0
        self._use(live.current)
        live.on_change(lambda settings, _changed: self._use(settings))

    def _use(self, settings: BrokerSettings) -> None:
        self._messages_max = settings.max_transfer_count_on_message_in_memory
        self._bytes_max = pull_bytes_max(settings)
        self._park_ms = None if settings.long_polling_enable else settings.short_polling_time_mills

    def handlers(self) -> dict[int, Handler]:
        """The request codes that are served here."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, connection: Connection, command: Command) -> Reply:
        """PULL_MESSAGE and LITE_PULL_MESSAGE."""
        ext = command.ext
        pull = _Pull()
        pull.connection = connection
        pull.command = command
        try:
            pull.group = group = ext["consumerGroup"]
            pull.topic = topic = ext["topic"]
            pull.queue_id = queue_id = int(ext["queueId"])
            pull.queue_offset = int(ext["queueOffset"])
            messages_max = int(ext["maxMsgNums"])
            sys_flag = int(ext["sysFlag"])
            commit_offset = int(ext["commitOffset"])
            suspend_ms = int(ext["suspendTimeoutMillis"])
            if type(group) is not str or type(topic) is not str:
                raise TypeError
        except (KeyError, ValueError, TypeError):
            PullMessage.from_ext(ext)  # names the field
            raise
        config, group_config = self._check(connection, group, topic, queue_id)
        lite_topic = ext.get("liteTopic")
        pull.read_topic = lite_queue(topic, lite_topic) if lite_topic else topic
        pull.topic_sys_flag = config.topic_sys_flag
        pull.group_sys_flag = group_config.group_sys_flag
        pull.broadcaster = pull.owner = pull.wanted_only = pull.registered = pull.waiting = None
        access = self._access
        if access is not None and (
            PULL_EPOCH in ext or topic in access.ordered.state.fences or access.ordered.claims.raised
        ):  # what most pulls pay, so without a call
            pull.owner = access.admit_pull(ClaimKey(topic, group, queue_id), pull.queue_offset, ext)
            if PULL_EPOCH in ext:
                sys_flag &= ~FLAG_COMMIT_OFFSET
        if sys_flag & FLAG_SUBSCRIPTION:
            pull.codes = self._own_subscription(pull)
        else:
            pull.codes = self._group_subscription(pull, group_config)
        pull.messages_max = min(messages_max, self._messages_max) if messages_max > 0 else 1
        bytes_text = ext.get("maxMsgBytes")
        pull.bytes_max = self._bytes_limit(bytes_text) if bytes_text else self._bytes_max
        if isinstance(pull.owner, PullLog):
            self._check_shared(pull)
            return self._pull_shared(pull, pull.owner, suspend_ms if sys_flag & FLAG_SUSPEND else 0)
        if self._filters_retries and pull.wanted_only is None:
            pull.wanted_only = self._retry_filter(topic)
        if sys_flag & FLAG_COMMIT_OFFSET:
            self._offsets.commit(
                group, topic, queue_id, commit_offset, f"{connection.peer[0]}:{connection.peer[1]}"
            )
        reset = self._offsets.take_reset(group, topic, queue_id, pulled_from=pull.queue_offset)
        if reset is not None:
            return self._reset_reply(pull, reset)
        result = self._read(pull)
        if result.status is GetStatus.FOUND:
            return self._found(pull, result)
        code, next_offset = self._nothing(pull, result)
        if code == ResponseCode.PULL_NOT_FOUND and sys_flag & FLAG_SUSPEND and not command.is_oneway:
            parked = ParkedPull(
                pull.read_topic, queue_id, pull.queue_offset, pull.codes, connection,
                partial(self._resume, pull),
            )  # fmt: skip
            if pull.wanted_only is not None:
                pull.waiting = parked
            park_ms = suspend_ms if self._park_ms is None else self._park_ms
            if result.status not in _NOT_YET or self._offsets.has_reset(group, topic, queue_id):
                # What is not told here is soon told by the master.
                park_ms = min(park_ms, SLAVE_PARK_MS)
            if self._parked_pulls.park(parked, park_ms):
                return DEFERRED
        elif not self._may_say(result, code) and not command.is_oneway:
            parked = ParkedPull(
                pull.read_topic,
                queue_id,
                pull.queue_offset,
                pull.codes,
                connection,
                partial(self._resume, pull),
                until_ends_known=True,
            )
            if self._parked_pulls.park(parked, ENDS_PARK_MS):
                return DEFERRED
        if not self._may_say(result, code):
            raise self._ends_unknown()
        return self._missed(pull, result, code, next_offset)

    def _read(self, pull: _Pull) -> GetResult:
        if pull.wanted_only is None:
            return self._store.get(
                pull.read_topic, pull.queue_id, pull.queue_offset, pull.messages_max, pull.bytes_max,
                pull.codes,
            )  # fmt: skip
        return self._store.get(
            pull.read_topic, pull.queue_id, pull.queue_offset, pull.messages_max, pull.bytes_max, pull.codes,
            pull.wanted_only,
        )  # fmt: skip

    def _may_say(self, result: GetResult, code: ResponseCode) -> bool:
        """Whether the answer says nothing about the end of the queue, or this broker knows where that is."""
        return (
            self._admission.ends_known
            or code == ResponseCode.PULL_RETRY_IMMEDIATELY
            or result.status is GetStatus.OFFSET_TOO_SMALL
        )

    def _ends_unknown(self) -> Rejected:
        self._stats.missed()
        return Rejected(ResponseCode.SERVICE_NOT_AVAILABLE, f"broker {self._admission.name} {ENDS_TEXT}")

    def _nothing(self, pull: _Pull, result: GetResult) -> tuple[ResponseCode, int]:
        """Code and next offset of an answer without messages.

        Only a master moves the offset of a consumer: a slave may have less at both ends than its master, so
        it just has no message there (Java: `nextOffsetCorrection`, `offsetCheckInSlave` being false).
        """
        code = pull_code(result.status, pull.queue_offset)
        if code == ResponseCode.PULL_OFFSET_MOVED and self._offsets.frozen:
            return ResponseCode.PULL_NOT_FOUND, pull.queue_offset
        return code, result.next_queue_offset

    def resume(
        self,
        connection: Connection,
        opaque: int,
        group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        messages_max: int,
        bytes_max: int,
        group_sys_flag: int,
        topic_sys_flag: int,
    ) -> None:
        """Run a pull of every tag again that `PlainParking` has parked, and answer it."""
        pull = _Pull()
        pull.connection = connection
        pull.command = Command(RequestCode.PULL_MESSAGE, opaque=opaque)
        pull.group = group
        pull.topic = pull.read_topic = topic
        pull.queue_id = queue_id
        pull.queue_offset = queue_offset
        pull.messages_max = messages_max
        pull.bytes_max = bytes_max
        pull.codes = pull.broadcaster = pull.owner = pull.wanted_only = pull.registered = pull.waiting = None
        pull.group_sys_flag = group_sys_flag
        pull.topic_sys_flag = topic_sys_flag
        self._resume(pull)

    def _resume(self, pull: _Pull) -> None:
        """Run a parked pull again and answer it, whatever it yields."""
        access, ext = self._access, pull.command.ext
        if access is not None and (PULL_EPOCH in ext or access.ordered.has_fences(pull.topic)):
            try:
                key = ClaimKey(pull.topic, pull.group, pull.queue_id)
                pull.owner = access.admit_pull(key, pull.queue_offset, ext)
            except Rejected as rejected:
                self._stats.missed()
                pull.connection.answer_at_once(pull.command.reply(rejected.code, rejected.remark))
                return
            if isinstance(pull.owner, PullLog):
                self._resume_shared(pull, pull.owner)
                return
        if pull.registered is not None and self._is_replaced(pull.registered):
            pull.connection.answer_at_once(
                self._redirect(
                    pull, ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", pull.queue_offset
                )
            )
            return
        reset = self._offsets.take_reset(pull.group, pull.topic, pull.queue_id, pulled_from=pull.queue_offset)
        if reset is not None:
            pull.connection.answer_at_once(self._reset_reply(pull, reset))
            return
        result = self._read(pull)
        if result.status is GetStatus.FOUND:
            pull.connection.answer_at_once(self._found(pull, result))
            return
        if pull.waiting is not None and self._goes_on_waiting(pull, pull.waiting, result):
            return
        code, next_offset = self._nothing(pull, result)
        if self._may_say(result, code):
            pull.connection.answer_at_once(self._missed(pull, result, code, next_offset))
        else:
            refusal = self._ends_unknown()
            pull.connection.answer_at_once(pull.command.reply(refusal.code, refusal.remark))

    def _goes_on_waiting(self, pull: _Pull, parked: ParkedPull, result: GetResult) -> bool:
        """Park a pull again that was woken by messages that do not match; it waits for those behind them."""
        if (
            result.status is not GetStatus.NO_MATCHED_MESSAGE
            or result.next_queue_offset < result.max_queue_offset  # there are more to be examined
            or pull.owner is not None  # its session knows it by its offset
        ):
            return False
        pull.queue_offset = parked.queue_offset = result.next_queue_offset
        return self._parked_pulls.park_again(parked)

    # -- Shared groups ------------------------------------------------------------------------------------

    def _pull_shared(self, pull: _Pull, log: PullLog, suspend_ms: int) -> Reply:
        found = self._read_shared(pull, log)
        if found.code == ResponseCode.PULL_NOT_FOUND and suspend_ms > 0 and not pull.command.is_oneway:
            pull.parked = ParkedPull(
                pull.topic,
                pull.queue_id,
                log.queue.next_new,
                pull.codes,
                pull.connection,
                partial(self._resume, pull),
            )
            if self._parked_pulls.park(
                pull.parked, min(suspend_ms, self._park_ms or suspend_ms, SHARED_PARK_MS)
            ):
                return DEFERRED
        return self._shared_reply(pull, log, found)

    def _resume_shared(self, pull: _Pull, log: PullLog) -> None:
        found = self._read_shared(pull, log)
        if found.code == ResponseCode.PULL_NOT_FOUND:
            pull.parked.queue_offset = log.queue.next_new
            if self._parked_pulls.park_again(pull.parked):
                return
        pull.connection.answer_at_once(self._shared_reply(pull, log, found))

    def _read_shared(self, pull: _Pull, log: PullLog) -> SharedRead:
        assert self._shared is not None, "who has a pull log has got it there"
        key = ClaimKey(pull.topic, pull.group, pull.queue_id)
        return self._shared.read(key, log, pull.queue_offset, pull.messages_max, pull.bytes_max, pull.codes)

    def _shared_reply(self, pull: _Pull, log: PullLog, found: SharedRead) -> bytes:
        """Offsets are pull sequences, but for the end of the queue and the group's position."""
        if found.count:
            self._stats.got(pull.group, pull.topic, found.count, found.size)
            self._watch(pull, log.queue.next_new)
        else:
            self._stats.missed()
        return pull_reply(
            pull.command,
            found.code,
            found.status.value,
            suggested_broker_id=0,
            next_offset=found.next_sequence,
            min_offset=log.position,
            max_offset=self._store.queue_max(pull.topic, pull.queue_id),
            topic_sys_flag=pull.topic_sys_flag,
            group_sys_flag=pull.group_sys_flag,
            parts=found.parts,
            size=found.size,
            group_position=log.queue.confirmed_position,
        )

    # -- checks -------------------------------------------------------------------------------------------

    def _check(
        self, connection: Connection, group: str, topic: str, queue_id: int
    ) -> tuple[TopicConfig, SubscriptionGroupConfig]:
        self._admission.check_readable()
        group_config = self._groups.get_or_create(group)
        if group_config is None:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist, {FAQ}",
            )
        if not group_config.consume_enable:
            raise Rejected(ResponseCode.NO_PERMISSION, "subscription group no permission, " + group)
        config = self._topics.get(topic)
        if config is None:
            raise Rejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {FAQ}"
            )
        if not config.readable:
            raise Rejected(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
        if not 0 <= queue_id < config.read_queue_nums:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
                f"[{config.read_queue_nums}] consumer:[{connection.peer[0]}:{connection.peer[1]}]",
            )
        return config, group_config

    def _own_subscription(self, pull: _Pull) -> frozenset[int] | None:
        """The wanted tags of a pull that says them itself, or its filter."""
        ext = pull.command.ext
        expression_type = ext.get("expressionType")
        if expression_type and expression_type != "TAG":
            pull.wanted_only = self._compile(expression_type, ext.get("subscription") or "")
            return None
        return self._parse(pull.topic, ext.get("subscription") or "*")

    def _compile(self, expression_type: str, expression: str) -> CompiledFilter:
        if self._filters is None or not is_sql(expression_type):
            raise self._no_filter(expression_type)
        try:
            return self._filters.compile(expression)
        except FilterError as error:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error.remark}",
            ) from None

    def _group_subscription(
        self, pull: _Pull, group_config: SubscriptionGroupConfig
    ) -> frozenset[int] | None:
        """The wanted tags of a pull that relies on its group's heartbeats."""
        topic = pull.topic
        group = group_config.group_name
        members = self._consumers.group(group)
        if members is None:
            raise Rejected(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist {FAQ}")
        if members.is_broadcasting and not group_config.consume_broadcast_enable:
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group}] can not consume by broadcast way",
            )
        if self._groups.is_read_forbidden(group, topic):
            raise Rejected(
                ResponseCode.NO_PERMISSION, f"the consumer group[{group}] is forbidden for topic[{topic}]"
            )
        subscription = members.subscriptions.get(topic)
        if subscription is None:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist {FAQ}"
            )
        version = int(pull.command.ext.get("subVersion") or 0)
        if subscription.version < version:
            raise Rejected(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        expression_type = subscription.data.expression_type
        if expression_type and expression_type != "TAG":
            pull.registered = self._registered_filter(expression_type, topic, group, version)
            pull.wanted_only = pull.registered.compiled
        if members.is_broadcasting:
            member = members.members.get(pull.connection)
            pull.broadcaster = member.client_id if member is not None else None
        return subscription.codes

    def _registered_filter(
        self, expression_type: str, topic: str, group: str, version: int
    ) -> RegisteredFilter:
        if self._filters is None or not is_sql(expression_type):
            raise self._no_filter(expression_type)
        entry = self._filters.get(topic, group)
        if entry is None:
            raise Rejected(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if entry.data.client_version < version:
            raise Rejected(
                ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
            )
        assert entry.compiled is not None, "without that everything would match"
        return entry

    def _is_replaced(self, registered: RegisteredFilter) -> bool:
        """Whether the group has another filter by now, or none: then what it wants has changed."""
        data = registered.data
        return self._filters is None or self._filters.get(data.topic, data.group) is not registered

    def _retry_filter(self, topic: str) -> RetryFilter | None:
        if self._filters is None or not topic.startswith(RETRY_PREFIX):
            return None
        return RetryFilter(self._filters, topic.removeprefix(RETRY_PREFIX))

    def _check_shared(self, pull: _Pull) -> None:
        if pull.wanted_only is not None:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support the Shared group[{pull.group}] to filter message by SQL92",
            )

    def _parse(self, topic: str, expression: str) -> frozenset[int] | None:
        if expression == "*":
            return None
        key = (topic, expression)
        if key in self._expressions:
            return self._expressions[key]
        codes = filter_codes(parse(topic, expression))
        self._expressions_size += len(expression)
        if len(self._expressions) >= EXPRESSIONS_MAX or self._expressions_size > KEPT_SIZE_MAX:
            self._expressions.clear()
            self._expressions_size = len(expression)
        self._expressions[key] = codes
        return codes

    @staticmethod
    def _no_filter(expression_type: str) -> Rejected:
        return Rejected(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}",
        )

    def _bytes_limit(self, text: str) -> int:
        wanted = int(text)
        return min(wanted, self._bytes_max) if wanted > 0 else self._bytes_max

    # -- answers ------------------------------------------------------------------------------------------

    def _found(self, pull: _Pull, result: GetResult) -> bytes:
        # Light queues share their counters, as in Java: there may be very many.
        group, topic = (PREFIX if is_light(name) else name for name in (pull.group, pull.topic))
        self._stats.got(group, topic, result.message_count, result.size)
        self._watch(pull, result.next_queue_offset)
        if pull.owner is not None:
            pull.owner.give(result.next_queue_offset)
        return pull_reply(
            pull.command,
            0,
            "FOUND",
            suggested_broker_id=0,
            next_offset=result.next_queue_offset,
            min_offset=result.min_queue_offset,
            max_offset=result.max_queue_offset,
            topic_sys_flag=pull.topic_sys_flag,
            group_sys_flag=pull.group_sys_flag,
            parts=result.parts,
            size=result.size,
        )

    def _missed(self, pull: _Pull, result: GetResult, code: ResponseCode, next_offset: int) -> bytes:
        self._stats.missed()
        if pull.owner is not None and result.status in _PASSED_BY:
            pull.owner.give(next_offset)
        return pull_reply(
            pull.command,
            code,
            result.status.value,
            suggested_broker_id=0,
            next_offset=next_offset,
            min_offset=result.min_queue_offset,
            max_offset=result.max_queue_offset,
            topic_sys_flag=pull.topic_sys_flag,
            group_sys_flag=pull.group_sys_flag,
            parts=[],
            size=0,
        )

    def _watch(self, pull: _Pull, next_queue_offset: int) -> None:
        """Note what was handed out, so that people can see what is in flight."""
        if pull.broadcaster is not None:
            self._offsets.broadcast_pulled(
                pull.group, pull.topic, pull.queue_id, pull.broadcaster, next_queue_offset
            )
        else:
            self._offsets.commit_pull(pull.group, pull.topic, pull.queue_id, next_queue_offset)

    def _reset_reply(self, pull: _Pull, queue_offset: int) -> bytes:
        """The offset of the group was reset here: the consumer goes on from there."""
        return self._redirect(pull, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", queue_offset)

    def _redirect(self, pull: _Pull, code: ResponseCode, remark: str, queue_offset: int) -> bytes:
        """An answer without messages that names where to go on, whatever the store has there."""
        self._stats.missed()
        return pull_reply(
            pull.command,
            code,
            remark,
            suggested_broker_id=0,
            next_offset=queue_offset,
            min_offset=self._store.queue_min(pull.read_topic, pull.queue_id),
            max_offset=self._store.queue_max(pull.read_topic, pull.queue_id),
            topic_sys_flag=pull.topic_sys_flag,
            group_sys_flag=pull.group_sys_flag,
            parts=[],
            size=0,
        )
