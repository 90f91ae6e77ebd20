"""Sends: single messages (10, 310) and batches (320); checked in the order of Java's `SendMessageProcessor`.

The plain case is written out in one function, because it runs more often than anything else in a broker. What
is not plain (delays, retries, properties that the broker must change) takes `_send_unusual`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Final, TypeAlias

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import PERM_WRITE, Admission
from brokerset_broker.requests.changes import ChangeLog
from brokerset_broker.requests.message_types import (
    LightQueues,
    apply_priority,
    check_type,
)
from brokerset_broker.requests.ordered_counters import OrderedCounters
from brokerset_broker.requests.ordered_sends import OrderedSends
from brokerset_broker.requests.plain_halves import half_properties, is_plain_half
from brokerset_broker.requests.plain_timers import encoded, plain_timer
from brokerset_broker.requests.replies import SendReplies, with_handle
from brokerset_broker.requests.request_classes import forwarded_peer, forwarding_fields, is_forwarded
from brokerset_broker.requests.send_lane import AsideKind, SendLane
from brokerset_broker.requests.send_properties import (
    HANDLE,
    HOST_BITS,
    PLAIN_BITS,
    TIMER_PROPERTIES,
    UNUSUAL_IN_BATCHES,
    delay_level,
    is_unusual,
    refuse_unusual,
    waits,
    with_end,
    without_handles,
)
from brokerset_broker.requests.send_refusals import (
    CODES,
    STORED,
    illegal_message,
    refusal,
)
from brokerset_broker.requests.send_topics import SendTopics, bad_queue
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.timer_puts import TimerPuts, recall_handle
from brokerset_broker.requests.topic_facts import TopicFacts
from brokerset_broker.requests.traffic import Traffic
from brokerset_broker.requests.transaction_log import TransactionLog
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.locks import QueueLocks
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.topics import TopicManager
from brokerset_broker.timers.messages import DELIVERY_PROPERTIES_SIZE
from brokerset_broker.timers.put_decision import PutAside
from brokerset_formats.batches import iterate_batch
from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import HOST_SIZE_V6, Host
from brokerset_formats.light_queues import offsets_size_max
from brokerset_formats.message_ids import UniqueIds
from brokerset_formats.names import (
    RETRY_PREFIX,
    TOPIC_SIZE_MAX,
    dlq_topic,
)
from brokerset_formats.properties import Property, decode_properties, encode_properties
from brokerset_formats.records import SysFlag
from brokerset_formats.transactions import Message, half_problem, is_half_send
from brokerset_protocol.codes import VERSION_3_4_9, RequestCode, ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.send import SendMessageV2, to_letters
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import DEFERRED, Connection, Handler
from brokerset_runtime.remoting.connection import Reply
from brokerset_spec.broker_settings import BrokerSettings

TIMED_MASK: Final = 31
"""One send of 32 is timed, since asking the clock costs as much as counting."""

_TRANSACTION_BITS: Final = 0x000C
_COMMIT_BITS: Final = 0x0008
_SMALL_NUMBERS: Final = {str(number): number for number in range(256)}
"""Most numbers of a header are small; looking them up is three times as fast as `int`."""

SendFields: TypeAlias = tuple[str, TopicFacts | None, int, int, int, int, int, str]
"""Topic, what is known of it (None: it has to be looked up), queue id, sysFlag, flag, born time, reconsume
times, properties."""


def born_host(connection: Connection, ext: Mapping[str, str], *, in_group: bool) -> bytes:
    """The client's address as records hold it; computed once for each connection of a client.

    In a group (controller mode) a slave passes sends on and says for whom; such a connection carries
    forwarded sends only, so that its own address is never kept.
    """
    known: bytes | None = connection.state.get("born_host")
    if known is None:
        client = forwarded_peer(ext) if in_group else None
        if client is not None:
            try:
                return Host.from_text(*client).encode()
            except FormatError:
                pass  # no IP address: the peer's own is used
        known = connection.state["born_host"] = Host.from_text(*connection.peer).encode()
    return known


class SendProcessor:
    """Stores what producers send, and answers when it is as safe as the settings demand."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        locks: QueueLocks,
        admission: Admission,
        levels: DelayLevels,
        stats: BrokerStats,
        traffic: Traffic,
        clock: Clock,
        changes: ChangeLog,
        ordered: OrderedTables | None = None,
        ordered_counters: OrderedCounters | None = None,
        lane: SendLane | None = None,
        transactions: TransactionLog | None = None,
        timers: TimerPuts | None = None,
    ) -> None:
        """`changes` makes new topics safe before a message is stored in them; `lane` takes plain sends.

        Without `transactions` half messages are refused, without `timers` those with a time of delivery.
        """
        self.lane = lane
        self._transactions = transactions
        self._timers = timers
        self._broker_name = live.current.broker_name
        self._ordered = OrderedTables() if ordered is None else ordered
        self._store = store
        self._append = store.append
        self.properties_max = store.properties_size_max
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._admission = admission
        self._levels = levels
        self._stats = stats
        self._traffic = traffic
        self._clock = clock
        self._host = Host.from_text(live.current.broker_ip1, live.current.listen_port)
        self._unique_ids = UniqueIds(self._host.address, os.getpid(), random.getrandbits(32))
        self._in_group = live.current.enable_controller_mode
        self._ordered_sends = OrderedSends(
            ordered=self._ordered,
            store=store,
            admission=admission,
            changes=changes,
            stats=stats,
            traffic=traffic,
            clock=clock,
            counters=OrderedCounters() if ordered_counters is None else ordered_counters,
            unique_ids=self._unique_ids,
            born_host=partial(born_host, in_group=self._in_group),
            again=self.send,
        )
        self._light_queues = LightQueues(store, live.current)
        self.topics = SendTopics(
            topics=topics,
            admission=admission,
            stats=stats,
            traffic=traffic,
            changes=changes,
            ordered=self._ordered,
            light_queues=self._light_queues,
            lane=lane,
            checks_types=live.current.refuse_other_message_types,
        )
        self._facts = self.topics.facts
        self._use(live.current)
        live.on_change(lambda settings, _changed: self._use(settings))

    def _use(self, settings: BrokerSettings) -> None:
        self.body_max = settings.max_message_size
        self._rejects_halves = settings.reject_transaction_message
        self.replies = SendReplies(self._host.encode(), settings.region_id, settings.trace_on)
        self._injected = {
            Property.CLUSTER: settings.broker_cluster_name,
            Property.MSG_REGION: settings.region_id,
            Property.TRACE_ON: "true" if settings.trace_on else "false",
        }
        self.suffix = encode_properties(self._injected).decode()
        self._light_queues.use(settings)
        self.topics.check_types(settings.refuse_other_message_types)
        self._ordered_sends.configure(self.replies, self._injected, self.body_max)
        if self.lane is not None:
            self.lane.configure(
                self.replies, self.suffix.encode(), self.body_max, takes_halves=not self._rejects_halves
            )

    def handlers(self) -> dict[int, Handler]:
        """The request codes that are served here."""
        return {
            RequestCode.SEND_MESSAGE: self.send_long_names,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
        }

    def send_long_names(self, connection: Connection, command: Command) -> Reply:
        """SEND_MESSAGE: the same fields under their long names."""
        ext = command.ext
        command.ext = to_letters(ext)
        if is_forwarded(ext):
            command.ext |= forwarding_fields(ext)
        return self.send(connection, command)

    def send(self, connection: Connection, command: Command) -> Reply:
        """SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
        admission = self._admission
        if admission.refuses_writes:
            admission.check_writes()
        ext = command.ext
        topic, facts, queue_id, sys_flag, flag, born_timestamp, reconsume_times, properties = self.read(ext)
        if facts is None:
            facts = self.topics.known(topic)
            if facts is None:
                return self._send_when_created(connection, command, topic)
        if facts.is_ordered:
            return self._ordered_sends.send(connection, command, topic, queue_id)
        if queue_id >= facts.queues:
            raise bad_queue(connection, facts.config, queue_id)
        if queue_id < 0:
            queue_id = random.randrange(facts.write_queues) if facts.write_queues > 0 else 0
        if ext.get("m") == "true":
            return self._send_batch(
                connection, command, facts, queue_id, sys_flag, born_timestamp, properties
            )
        if facts.is_special or sys_flag & ~PLAIN_BITS or is_unusual(properties):
            if self._transactions is not None and "TRAN_MSG" in properties and not facts.is_special:
                reply = self._send_plain_half(connection, command, facts, queue_id, properties)
                if reply is not None:
                    return reply
            if self._timers is not None and "TIMER_" in properties:
                reply = self._send_plain_timer(connection, command, facts, queue_id, properties)
                if reply is not None:
                    return reply
            return self._send_unusual(connection, command, facts, queue_id, properties)
        body = command.body
        properties, unique_id = with_end(properties)
        if unique_id is None:
            unique_id = self._unique_ids.next_id(self._clock.now_ms())
            properties += f"UNIQ_KEY\x01{unique_id}\x02"
        raw = (properties + self.suffix).encode()
        if not 0 < len(body) <= self.body_max or len(raw) > self.properties_max:
            raise illegal_message(self.body_max)
        stats = self._stats
        began = 0.0 if stats.put_calls & TIMED_MASK else self._clock.monotonic()
        try:
            appended = self._append(
                topic,
                queue_id,
                body,
                raw,
                flag=flag,
                sys_flag=sys_flag,
                born_timestamp=born_timestamp,
                born_host=connection.state.get("born_host")
                or born_host(connection, ext, in_group=self._in_group),
                reconsume_times=reconsume_times,
            )
        except StoreRefused as refused:
            self._stats.put_failed += 1
            raise refusal(refused, self.body_max) from None
        size = appended.size
        if began:
            stats.put_took(int((self._clock.monotonic() - began) * 1000))
        stats.put_messages += 1
        stats.put_bytes += size
        stats.put_calls += 1
        flow = facts.flow
        flow.messages += 1
        flow.size += size
        flow.calls += 1
        traffic = facts.traffic
        traffic.bytes_in += size
        traffic.sizes[(size - 1).bit_length()] += 1
        if self.lane is not None:
            self.lane.learn(facts, queue_id)
        if admission.when_durable is not None and not command.flag & FLAG_ONEWAY and waits(properties):
            ids = self.replies.message_id(appended.offset)
            answer = partial(
                self.finish, connection, command, queue_id, appended.queue_offset, ids, unique_id
            )
            admission.when_durable(appended.offset + size, answer)
            return DEFERRED
        return self.replies.stored(command, queue_id, appended.queue_offset, appended.offset, unique_id)

    def read(self, ext: dict[str, str]) -> SendFields:
        """The fields of a send, and what is known of its topic. Raises `Rejected` if they are wrong."""
        small = _SMALL_NUMBERS
        try:
            topic = ext["b"]
            text = ext["e"]
            queue_id = small[text] if text in small else int(text)
            text = ext["f"]
            sys_flag = small[text] if text in small else int(text)
            born_timestamp = int(ext["g"])
            text = ext["h"]
            flag = small[text] if text in small else int(text)
            text = ext.get("j") or "0"
            reconsume_times = small[text] if text in small else int(text)
            properties = ext.get("i") or ""
            facts = self._facts.get(topic)
            if (sys_flag | flag | reconsume_times) >> 31 or born_timestamp >> 63:
                SendMessageV2.from_ext(ext)
        except (KeyError, ValueError, TypeError):
            SendMessageV2.from_ext(ext)  # names the field
            raise
        if facts is not None and (
            facts.config is not self._topics.get(topic) or not self._admission.permission & PERM_WRITE
        ):
            facts = None
        return topic, facts, queue_id, sys_flag, flag, born_timestamp, reconsume_times, properties

    # -- what is not plain --------------------------------------------------------------------------------

    def _send_unusual(
        self, connection: Connection, command: Command, facts: TopicFacts, queue_id: int, text: str
    ) -> Reply:
        header = SendMessageV2.from_ext(command.ext)
        topic = header.topic
        properties = decode_properties(text.encode())
        properties.pop(Property.POP_CK, None)
        properties.pop(Property.CRC32, None)
        properties.update(self._injected)
        unique_id = properties.setdefault(Property.UNIQ_KEY, self._unique_ids.next_id(self._clock.now_ms()))
        reconsume_times = header.reconsume_times or 0
        sys_flag = header.sys_flag & ~HOST_BITS
        level = delay_level(properties.get(Property.DELAY))
        half = is_half_send(properties, reconsume_times)
        if half:
            self._check_half(properties)
        self._refuse_unsupported(properties, sys_flag, level, half=half)
        if not facts.is_retry:
            self._light_queues.assign(facts.config, properties)
            if facts.is_special:
                check_type(facts.config, properties)
        asked_queue_id = queue_id = apply_priority(properties, facts.write_queues, queue_id)
        if facts.is_retry:
            dead = self._dead_letter_topic(command, header, reconsume_times)
            if dead is not None:
                topic, queue_id, level = dead, 0, 0
                properties[Property.DELAY] = "-1"
        kind = "fifo" if Property.SHARDING_KEY in properties else "normal"
        timed = None if self._timers is None else self._timers.put_aside(topic, queue_id, properties)
        raw = encode_properties(properties)
        properties_max, handle = self.properties_max, None
        if level > 0:
            topic, queue_id, raw = self._levels.put_aside(topic, queue_id, level, raw)
            kind = "delay"
        elif timed is not None:
            kind = "delay"
            if isinstance(timed, PutAside):
                handle = recall_handle(topic, timed.out_ms, self._broker_name, unique_id)
                topic, queue_id = timed.topic, timed.queue_id
                properties_max -= DELIVERY_PROPERTIES_SIZE
        lights = properties.get(Property.INNER_MULTI_DISPATCH)
        if lights is not None and not facts.is_retry and (half or topic != header.topic):
            properties_max -= offsets_size_max(lights)  # it gets its numbers when it has waited
        if not 0 < len(command.body) <= self.body_max or len(raw) > properties_max:
            raise illegal_message(self.body_max)
        host = born_host(connection, command.ext, in_group=self._in_group)
        try:
            if half and self._transactions is not None:
                kind = "transaction"
                appended = self._transactions.send_half(
                    Message(
                        topic=topic,
                        queue_id=queue_id,
                        body=command.body,
                        properties=raw,
                        flag=header.flag,
                        sys_flag=sys_flag,
                        born_timestamp=header.born_timestamp,
                        born_host=Host.decode(host, v6=len(host) == HOST_SIZE_V6),
                        reconsume_times=reconsume_times,
                    )
                )
            else:
                appended = self._append(
                    topic,
                    queue_id,
                    command.body,
                    raw,
                    flag=header.flag,
                    sys_flag=sys_flag,
                    born_timestamp=header.born_timestamp,
                    born_host=host,
                    reconsume_times=reconsume_times,
                )
        except StoreRefused as refused:
            self._stats.put_failed += 1
            raise refusal(refused, self.body_max) from None
        self._stats.put(header.topic, 1, appended.size)
        self._traffic.of_topic(header.topic, kind).add(1, appended.size)
        return self._acknowledge(
            connection,
            command,
            appended.offset + appended.size,
            asked_queue_id,
            appended.queue_offset,
            self.replies.message_id(appended.offset),
            unique_id,
            wait=properties.get(Property.WAIT) != "false",
            handle=handle,
        )

    def _send_plain_half(
        self, connection: Connection, command: Command, facts: TopicFacts, queue_id: int, text: str
    ) -> Reply:
        """A half message as the standard clients send it; None for any other, of which nothing is stored."""
        halves, (text, unique_id) = self._transactions, with_end(text)
        topic, _, _, sys_flag, flag, born_timestamp, reconsume_times, _ = self.read(command.ext)
        if halves is None or self._rejects_halves or facts.is_retry or not unique_id:
            return None
        if not is_plain_half(text, sys_flag):
            return None
        raw = f"{text}{self.suffix}{half_properties(unique_id, topic, queue_id)}".encode()
        if not 0 < len(command.body) <= self.body_max or len(raw) > self.properties_max:
            raise illegal_message(self.body_max)
        try:
            appended = halves.send_plain_half(
                topic,
                unique_id.encode(),
                command.body,
                raw,
                flag=flag,
                sys_flag=sys_flag & PLAIN_BITS,
                born_timestamp=born_timestamp,
                born_host=born_host(connection, command.ext, in_group=self._in_group),
                reconsume_times=reconsume_times,
            )
        except StoreRefused as refused:
            self._stats.put_failed += 1
            raise refusal(refused, self.body_max) from None
        if appended is None:
            return None
        self._stats.put(topic, 1, appended.size)
        self._traffic.of_topic(topic, "transaction").add(1, appended.size)
        if self.lane is not None:
            self.lane.learn_aside(facts, AsideKind.HALF)
        return self._acknowledge(
            connection,
            command,
            appended.end,
            queue_id,
            appended.queue_offset,
            self.replies.message_id(appended.offset),
            unique_id,
            wait=waits(text),
        )

    def _send_plain_timer(
        self, connection: Connection, command: Command, facts: TopicFacts, queue_id: int, text: str
    ) -> Reply:
        """A timer message as the standard clients send it; None for any other, of which nothing is stored."""
        timers, (text, unique_id) = self._timers, with_end(text)
        topic, _, _, sys_flag, flag, born_timestamp, reconsume_times, _ = self.read(command.ext)
        if timers is None or facts.is_special or sys_flag & ~PLAIN_BITS or not unique_id:
            return None
        wish = plain_timer(text)
        if wish is None:
            return None
        timed = timers.put_aside(topic, queue_id, wish)
        if not isinstance(timed, PutAside):
            return None
        raw = f"{text}{self.suffix}{encoded(timed.changes)}".encode()
        if not 0 < len(command.body) <= self.body_max or (
            len(raw) > self.properties_max - DELIVERY_PROPERTIES_SIZE
        ):
            raise illegal_message(self.body_max)
        try:
            appended = self._append(
                timed.topic,
                timed.queue_id,
                command.body,
                raw,
                flag=flag,
                sys_flag=sys_flag,
                born_timestamp=born_timestamp,
                born_host=born_host(connection, command.ext, in_group=self._in_group),
                reconsume_times=reconsume_times,
            )
        except StoreRefused as refused:
            self._stats.put_failed += 1
            raise refusal(refused, self.body_max) from None
        self._stats.put(topic, 1, appended.size)
        self._traffic.of_topic(topic, "delay").add(1, appended.size)
        if self.lane is not None:
            self.lane.learn_aside(facts, AsideKind.TIMER)
        return self._acknowledge(
            connection,
            command,
            appended.end,
            queue_id,
            appended.queue_offset,
            self.replies.message_id(appended.offset),
            unique_id,
            wait=waits(text),
            handle=recall_handle(topic, timed.out_ms, self._broker_name, unique_id),
        )

    def _check_half(self, properties: dict[str, str]) -> None:
        """Raise `Rejected` for a half message that is not to be stored."""
        if self._rejects_halves or self._transactions is None:
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._admission.name}] sending transaction message is forbidden",
            )
        problem = half_problem(properties)
        if problem is None and Property.PGROUP not in properties:
            problem = (
                "a transactional message needs its producer group (property PGROUP), to be asked about it"
            )
        if problem is not None:
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, problem)

    def _refuse_unsupported(
        self, properties: dict[str, str], sys_flag: int, level: int, *, half: bool
    ) -> None:
        """Refuse what would be delivered too early or not at all if it were stored like any message."""
        if Property.INNER_NUM in properties or sys_flag & (SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH):
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL, "inner batches are not served; send messages or a client batch"
            )
        if not half and sys_flag & _TRANSACTION_BITS not in (0, _COMMIT_BITS):
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._admission.name}] sending transaction message is forbidden: "
                "sysFlag says prepared or rolled back, and the property TRAN_MSG does not",
            )
        if self._timers is None and level <= 0 and any(name in properties for name in TIMER_PROPERTIES):
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                "timer messages are not served here: use a delay level (property DELAY) instead of a time",
            )

    def _dead_letter_topic(self, command: Command, header: SendMessageV2, reconsume_times: int) -> str | None:
        """The topic for a message that a client sends to its retry topic, if it was tried too often."""
        group = header.topic.removeprefix(RETRY_PREFIX)
        config = self._groups.get_or_create(group)
        if config is None:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        times_max = config.retry_max_times
        if command.version >= VERSION_3_4_9 and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        if reconsume_times <= times_max and not self._locks.has_locks(group):
            return None
        if self._topics.create_dlq(group) is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"topic[{dlq_topic(group)}] not exist")
        self._traffic.dead_letter(group, header.topic)
        return dlq_topic(group)

    def _send_batch(
        self,
        connection: Connection,
        command: Command,
        facts: TopicFacts,
        queue_id: int,
        sys_flag: int,
        born_timestamp: int,
        properties: str,
    ) -> Reply:
        topic = facts.config.topic_name
        if facts.is_retry:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group " + topic
            )
        if facts.name_size > TOPIC_SIZE_MAX:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {facts.name_size}: {topic}"
            )
        body = command.body
        if not 0 < len(body) <= self.body_max:
            raise illegal_message(self.body_max)
        if sys_flag & ~PLAIN_BITS & ~HOST_BITS:
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, "batches of transaction messages are not served")
        try:
            items = iterate_batch(body)
            properties_of_all = b"\x02".join([item.properties for item in items])
            if any(word in properties_of_all for word in UNUSUAL_IN_BATCHES):
                refuse_unusual(items)
            if HANDLE in properties_of_all:
                items = without_handles(items)
            if facts.is_special:
                for item in items:
                    check_type(facts.config, decode_properties(item.properties))
            appended = self._store.append_batch(
                topic,
                queue_id,
                items,
                sys_flag=sys_flag & PLAIN_BITS,
                born_timestamp=born_timestamp,
                born_host=born_host(connection, command.ext, in_group=self._in_group),
            )
        except FormatError as error:
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}") from None
        except StoreRefused as refused:
            self._stats.put_failed += 1
            raise refusal(refused, self.body_max) from None
        self._stats.put(topic, len(items), appended.size)
        facts.traffic.add(len(items), appended.size)
        if self.lane is not None and not facts.is_special:
            self.lane.learn(facts, queue_id)
        unique_id = decode_properties(properties.encode()).get(Property.UNIQ_KEY, "") if properties else ""
        return self._acknowledge(
            connection,
            command,
            appended.end,
            queue_id,
            appended.queue_offset,
            self.replies.message_ids(appended.offsets),
            unique_id,
            wait=waits(properties),
        )

    # -- answers ------------------------------------------------------------------------------------------

    def _acknowledge(
        self,
        connection: Connection,
        command: Command,
        end: int,
        queue_id: int,
        queue_offset: int,
        ids: str,
        unique_id: str,
        *,
        wait: bool,
        handle: str | None = None,
    ) -> Reply:
        when_durable = self._admission.when_durable
        if when_durable is not None and wait and not command.flag & FLAG_ONEWAY:
            when_durable(
                end,
                partial(
                    self.finish, connection, command, queue_id, queue_offset, ids, unique_id, handle=handle
                ),
            )
            return DEFERRED
        return self._success(command, queue_id, queue_offset, ids, unique_id, handle)

    def finish(
        self,
        connection: Connection,
        command: Command,
        queue_id: int,
        queue_offset: int,
        ids: str,
        unique_id: str,
        status: PutStatus,
        *,
        handle: str | None = None,
    ) -> None:
        if status is PutStatus.PUT_OK:
            connection.answer(self._success(command, queue_id, queue_offset, ids, unique_id, handle))
        elif status in STORED:
            reply = self.replies.reply(
                command, CODES[status], status.value, queue_id, queue_offset, ids, unique_id
            )
            connection.answer(with_handle(reply, handle))
        else:
            code = CODES.get(status, ResponseCode.SYSTEM_ERROR)
            connection.answer(command.reply(code, status.value))

    def _success(
        self, command: Command, queue_id: int, queue_offset: int, ids: str, unique_id: str, handle: str | None
    ) -> bytes | Command:
        if handle is None:
            return self.replies.success(command, queue_id, queue_offset, ids, unique_id)
        return self.replies.waiting(command, queue_id, queue_offset, ids, unique_id, handle)

    # -- new topics ---------------------------------------------------------------------------------------

    async def _send_when_created(
        self, connection: Connection, command: Command, topic: str
    ) -> Command | bytes | None:
        """Serve a send to a new topic once the topic is as safe as a message."""
        await self.topics.create(connection, command, topic)
        reply = self.send(connection, command)
        if reply is DEFERRED:
            connection.in_flight += 1  # in addition to the one of this coroutine, which ends here
            return None
        return await reply if isinstance(reply, Coroutine) else reply
