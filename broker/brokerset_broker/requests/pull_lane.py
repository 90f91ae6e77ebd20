"""The way of plain pulls through the native core, which reads headers and makes answers (`native/DESIGN.md`).

A plain pull wants messages of every tag, and there are some, or it waits for the next one. Everything is
decided here, by the tables by which `PullProcessor` decides; whatever needs more than a comparison is left
to it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Final

from brokerset_acl.access_book import AccessBook
from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import PERM_READ, Admission
from brokerset_broker.requests.core_decisions import CoreDecisions
from brokerset_broker.requests.ordered_access import OrderedAccess
from brokerset_broker.requests.parked_pulls import ParkedPulls
from brokerset_broker.requests.plain_parking import PARKED, PlainParking, PlainPull
from brokerset_broker.requests.pull import (
    FLAG_COMMIT_OFFSET,
    FLAG_SUBSCRIPTION,
    PullProcessor,
    pull_bytes_max,
)
from brokerset_broker.requests.replies import pull_pieces
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.names import RETRY_PREFIX
from brokerset_protocol.commands import FRAME_SIZE_MAX
from brokerset_runtime.remoting import Connection
from brokerset_spec.broker_settings import BrokerSettings

ALL_TAGS: Final = (None, "", "*")
"""Subscriptions to messages with any tag."""


Pull = tuple[int, int, str, str, int, int, int, int, int, int, int, str | None, int]
"""End of the frame, opaque, group, topic, queue id, queue offset, most messages, system flag, offset to
commit, milliseconds that it may wait, most bytes, subscription and its version, as `PullReader.read` gives
them."""

PULL_BEGIN: Final = b'{"code":11,'
"""How clients begin the header of a pull."""

LENGTHS_SIZE: Final = 8
"""Of a frame and its header, before it."""


def begins_with_pull(data: bytes) -> bool:
    """Whether a chunk begins with a pull as clients write it: then there is nothing for the lane of sends."""
    return data.startswith(PULL_BEGIN, LENGTHS_SIZE)


class PullLane:
    """Serves the plain pulls at the beginning of a chunk; for `RemotingServer`."""

    def __init__(
        self,
        core: ModuleType,
        *,
        live: LiveSettings,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        consumers: ConsumerTable,
        offsets: OffsetManager,
        admission: Admission,
        stats: BrokerStats,
        parked_pulls: ParkedPulls,
        processor: PullProcessor,
        access: OrderedAccess | None = None,
        book: AccessBook | None = None,
    ) -> None:
        """`core` is the native module; `processor` has what is not plain; `access` knows what must not be
        read without permission. With `book` only what is signed by somebody who may pull is served, see
        `allow`."""
        settings = live.current
        self._filters_retries = settings.enable_property_filter and settings.filter_support_retry
        reader = core.PullReader(pull_pieces(), FRAME_SIZE_MAX, book is not None)
        self._read = reader.read
        self._answer = reader.answer
        self._decisions = CoreDecisions(book, reader)
        self.allow = self._decisions.allow
        """Serve what a user, who is enabled, pulls from a topic as a group from an address, as of now."""
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._admission = admission
        self._stats = stats
        self._access = access
        self.is_open: Callable[[], bool] = lambda: False
        """Whether pulls are served now, as the broker's role has it; set when the role is known."""
        self.served = 0
        """Pulls that were answered or parked this way."""
        self._parking = PlainParking(
            self._find, live=live, store=store, offsets=offsets, parked_pulls=parked_pulls,
            processor=processor, access=access,
        )  # fmt: skip
        self._use(live.current)
        live.on_change(lambda settings, _changed: self._use(settings))

    def _use(self, settings: BrokerSettings) -> None:
        self._messages_max = settings.max_transfer_count_on_message_in_memory
        self._bytes_max = pull_bytes_max(settings)

    def serve(self, connection: Connection, data: bytes) -> int:
        """Serve the plain pulls at the beginning of `data`; returns their bytes."""
        self._decisions.drop_old()
        done = answered = 0
        source = connection.peer[0]
        pull = self._read(data, 0, source)
        if (
            pull is None
            or not self._admission.permission & PERM_READ
            or not self.is_open()
            or connection.in_flight_room <= 0
        ):
            return 0
        room = connection.answers_room
        while pull is not None and answered < room:
            reply = self._reply(connection, pull)
            if reply is None:
                break
            self.served += 1
            done = pull[0]
            if reply is PARKED:
                connection.in_flight += 1
                if connection.in_flight_room <= 0:
                    break
            else:
                connection.send(reply)
                answered += len(reply)
            pull = self._read(data, done, source) if done < len(data) else None
        return done

    def _reply(self, connection: Connection, pull: Pull) -> bytes | None:
        """The answer, or `PARKED`; None for a pull that is not plain, and then nothing has been done."""
        (
            _, opaque, group, topic, queue_id, queue_offset, messages_max, sys_flag, commit_offset,
            suspend_ms, bytes_max, subscription, version,
        ) = pull  # fmt: skip
        group_config = self._groups.items.get(group)
        config = self._topics.items.get(topic)
        access, offsets = self._access, self._offsets
        if (
            group_config is None
            or config is None
            or not (group_config.consume_enable and config.readable)
            or not 0 <= queue_id < config.read_queue_nums
            or (access is not None and (topic in access.ordered.state.fences or access.ordered.claims.raised))
            or offsets.must_move(group, topic, queue_id, queue_offset)
            or (self._filters_retries and topic.startswith(RETRY_PREFIX))
        ):
            return None
        if sys_flag & FLAG_SUBSCRIPTION:
            if subscription not in ALL_TAGS:
                return None
        elif not self._wants_all(group, topic, version):
            return None
        plain = PlainPull(
            connection,
            opaque,
            group,
            topic,
            queue_id,
            queue_offset,
            min(messages_max, self._messages_max) if messages_max > 0 else 1,
            min(bytes_max, self._bytes_max) if bytes_max > 0 else self._bytes_max,
            group_config.group_sys_flag,
            config.topic_sys_flag,
        )
        reply = self._find(plain)
        if reply is None:
            if not self._parking.park(plain, sys_flag, suspend_ms):
                return None
            reply = PARKED
        if sys_flag & FLAG_COMMIT_OFFSET:
            offsets.commit(
                group, topic, queue_id, commit_offset, f"{connection.peer[0]}:{connection.peer[1]}"
            )
        return reply

    def _find(self, pull: PlainPull) -> bytes | None:
        """Count and answer a pull that finds messages; None for another, and nothing has been done."""
        topic, queue_id = pull.topic, pull.queue_id
        source = self._store.plain_source(topic, queue_id, pull.queue_offset, pull.messages_max)
        if source is None:
            return None
        units, begin, count, records, start, end, minimum, maximum = source
        following = pull.queue_offset + count
        numbers = (
            pull.group_sys_flag, following, maximum, minimum, pull.topic_sys_flag, pull.opaque,
        )  # fmt: skip
        found = self._answer(units, begin, count, records, start, end, pull.bytes_max, numbers)
        if found is None:
            return None
        reply, size = found
        self._stats.got(pull.group, topic, count, size)
        self._offsets.commit_pull(pull.group, topic, queue_id, following)
        return reply  # type: ignore[no-any-return]  # the core has no types here

    def _wants_all(self, group: str, topic: str, version: int) -> bool:
        """Whether the group's heartbeats say that it wants every message, each for one of its members."""
        members = self._consumers.group(group)
        if members is None or members.is_broadcasting or self._groups.is_read_forbidden(group, topic):
            return False
        subscription = members.subscriptions.get(topic)
        return (
            subscription is not None
            and subscription.version >= version
            and subscription.data.expression_type in (None, "", "TAG")
            and subscription.codes is None
        )
