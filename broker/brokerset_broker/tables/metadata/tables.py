"""The broker's managers as what metadata is applied to and snapshots are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from brokerset_broker.tables.access import AccessTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.metadata import records
from brokerset_broker.tables.metadata.records import (
    AccessPut,
    Change,
    DelayPut,
    ForbiddenPut,
    GroupsDeleted,
    GroupsPut,
    OffsetsPut,
    OffsetsRemoved,
    OrderLocksPut,
    RequestModesPut,
    ResetsPut,
    TimersPut,
    TopicsDeleted,
    TopicsPut,
)
from brokerset_broker.tables.metadata.snapshot import ChunkPacker, MetadataState
from brokerset_broker.tables.offsets import OffsetManager, is_replicated
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.ordered.values import FencesPut, ProducersPut, SharedAcksPut, SubjectsPut
from brokerset_broker.tables.pop.order_lock import locks_in_parts
from brokerset_broker.tables.pop.order_table import OrderTable
from brokerset_broker.tables.pop.request_modes import RequestModes
from brokerset_broker.tables.topics import TopicManager
from brokerset_broker.timers.progress import Progress
from brokerset_formats.config import DelayOffsets
from brokerset_formats.timer_files import TimerCheckpoint


class DelayProgress(Protocol):
    """The progress of delayed messages."""

    def offsets(self) -> DelayOffsets:
        """The progress of each level."""

    def put(self, levels: Mapping[int, int], *, whole: bool = False) -> bool:
        """Set progress; `whole`: other levels have none. Whether it differed."""

    async def persist(self) -> None:
        """Write it to its file."""


class TimerProgress(Protocol):
    """The progress of timer messages."""

    on_progress: Callable[[], None] | None
    """Has what is unrecorded written, while this broker leads a group."""

    def progress(self) -> Progress | None:
        """Where the group is, as this broker knows; `None` before there were timer messages."""

    def settled(self) -> Progress | None:
        """The same, as far as it is confirmed."""

    def put(self, progress: Progress) -> None:
        """Learn a progress that the log or a master has."""

    def put_checkpoint(self, checkpoint: TimerCheckpoint) -> None:
        """Learn what a Java master says of its progress."""

    def unrecorded(self) -> Progress | None:
        """A progress that the log does not have and should."""

    def recorded(self, progress: Progress, end: int) -> None:
        """What `unrecorded` gave was written; its record ends at `end`."""

    def truncated(self, offset: int) -> None:
        """The log was truncated at `offset`."""

    async def persist(self) -> None:
        """Write it to its file."""


class NoTimers:
    """Implements `TimerProgress` for a broker without timer messages; it keeps what it learns."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self.on_progress: Callable[[], None] | None = None

    def progress(self) -> Progress | None:
        return self._progress

    def settled(self) -> Progress | None:
        return self._progress

    def put(self, progress: Progress) -> None:
        self._progress = progress

    def put_checkpoint(self, checkpoint: TimerCheckpoint) -> None:
        pass

    def unrecorded(self) -> Progress | None:
        return None

    def recorded(self, progress: Progress, end: int) -> None:
        raise AssertionError("nothing was unrecorded")

    def truncated(self, offset: int) -> None:
        pass

    async def persist(self) -> None:
        pass


class Queues(Protocol):
    """The queues of the store: their numbers are metadata when the log has none of their messages."""

    def forget_topic(self, topic: str, before: int) -> None:
        """Delete the queues of a topic that have no message at or behind an offset of the log."""

    def resting_queues(self, before: int) -> Iterable[tuple[str, dict[int, int]]]:
        """The queues without a message at or behind an offset of the log: the next number, by topic."""

    def begin_queues(self, topic: str, ends: Mapping[int, int]) -> bool:
        """Let queues that nothing is known of go on with these numbers; whether any was one."""


class Tables:
    """Topics, groups, offsets and delay progress of one broker, together."""

    def __init__(
        self,
        *,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        delay: DelayProgress,
        queues: Queues,
        ordered: OrderedTables | None = None,
        timers: TimerProgress | None = None,
        request_modes: RequestModes | None = None,
        order_locks: OrderTable | None = None,
        access: AccessTable | None = None,
    ) -> None:
        """Without `ordered`, `request_modes`, `order_locks` and `access` these are kept in memory alone,
        without `timers` what is learned of them."""
        self.topics = topics
        self.groups = groups
        self.offsets = offsets
        self.delay = delay
        self.ordered = OrderedTables() if ordered is None else ordered
        self.timers: TimerProgress = NoTimers() if timers is None else timers
        self.request_modes = RequestModes() if request_modes is None else request_modes
        self.order_locks = OrderTable() if order_locks is None else order_locks
        self.access = AccessTable() if access is None else access
        self._queues = queues
        self.on_reset: Callable[[str, int], None] | None = None
        self.on_resets: Callable[[Mapping[str, Mapping[int, int]]], None] | None = None
        """Called with the offsets that an administrator has set, after `on_reset` of each queue."""
        """Gets topic and queue id of offsets that were set from outside."""
        self.changed_queues = False
        """Whether queues were deleted or begun since somebody set this to False."""

    # -- records ------------------------------------------------------------------------------------------

    def apply(self, change: Change, offset: int) -> None:
        """Apply what the record at `offset` of the log says; doing it twice is doing it once."""
        topics, groups, offsets = self.topics, self.groups, self.offsets
        match change:
            case TopicsPut():
                for topic in change.topics:
                    if not (change.if_absent and topics.get(topic.topic_name) is not None):
                        topics.put(topic)
            case TopicsDeleted():
                self.release(change)
                for name in change.topics:
                    topics.delete(name)
                    offsets.forget_topic(name)
                    self.request_modes.forget_topic(name)
                    self.order_locks.forget_topic(name)
                    self._queues.forget_topic(name, offset)
                self.ordered.forget_topics(change.topics)
                self.changed_queues = True
            case GroupsPut():
                for group in change.groups:
                    if not (change.if_absent and groups.get(group.group_name) is not None):
                        groups.put(group)
            case GroupsDeleted():
                self.release(change)
                for name in change.groups:
                    groups.delete(name)
                    self.request_modes.forget_group(name)
                    self.order_locks.forget_group(name)
            case ForbiddenPut():
                for name, masks in change.masks.items():
                    groups.put_forbidden(name, masks)
            case OffsetsPut():
                self.release(change)
                offsets.drop_resets(change.resets_taken)
                offsets.put(change.offsets)
                self.ordered.offsets_set(change.offsets)
            case ResetsPut():
                self.release(change)
                offsets.put_resets(change.resets)
                self.ordered.offsets_reset(change.resets)
                self.order_locks.offsets_reset(change.resets)
                self._tell_resets(change)
            case OffsetsRemoved():
                self.release(change)
                for name in change.groups:
                    offsets.forget_group(name)
                    self.ordered.forget_group(name)
                    self.order_locks.forget_group(name)
            case DelayPut():
                self.delay.put(change.levels)
            case TimersPut():
                self.timers.put(change.progress)
            case RequestModesPut():
                self.request_modes.put(change.modes)
            case OrderLocksPut():
                self.order_locks.apply(change.locks)
            case AccessPut():
                self.access.put(change.users, change.acls)
            case SubjectsPut() | FencesPut() | ProducersPut() | SharedAcksPut():
                self.ordered.apply(change)

    def _tell_resets(self, change: ResetsPut) -> None:
        if self.on_reset is None:
            return
        for key, queues in change.resets.items():
            for queue_id in queues:
                self.on_reset(key.partition("@")[0], queue_id)
        if self.on_resets is not None:
            self.on_resets(change.resets)

    def hold(self, change: Change) -> None:
        """Keep what `change` will overwrite from being changed until it is applied."""
        match change:
            case TopicsDeleted():
                self.offsets.hold(topics=change.topics)
                _more(self.topics.going, change.topics)
                for name in change.topics:
                    if self.topics.on_going is not None:
                        self.topics.on_going(name)
            case GroupsDeleted():
                _more(self.groups.going, change.groups)
            case OffsetsPut():
                self.offsets.hold(keys=change.offsets)
            case ResetsPut():
                self.offsets.hold(keys=change.resets)
            case OffsetsRemoved():
                self.offsets.hold(groups=change.groups)
            case SubjectsPut():
                self.ordered.hold(change)
            case _:
                pass

    def release(self, change: Change) -> None:
        """Undo `hold`."""
        match change:
            case TopicsDeleted():
                self.offsets.release(topics=change.topics)
                _fewer(self.topics.going, change.topics)
            case GroupsDeleted():
                _fewer(self.groups.going, change.groups)
            case OffsetsPut():
                self.offsets.release(keys=change.offsets)
            case ResetsPut():
                self.offsets.release(keys=change.resets)
            case OffsetsRemoved():
                self.offsets.release(groups=change.groups)
            case SubjectsPut():
                self.ordered.release(change)
            case _:
                pass

    # -- wholes -------------------------------------------------------------------------------------------

    def freeze(self, frozen: bool) -> None:
        """Whether everything changes by the log alone."""
        self.topics.frozen = self.groups.frozen = self.offsets.frozen = frozen

    def release_all(self) -> None:
        """Undo every `hold`."""
        self.offsets.release_all()
        self.topics.going.clear()
        self.groups.going.clear()
        self.ordered.release_all()

    def begin_queues(self, topic: str, ends: Mapping[int, int]) -> None:
        """Let queues that nothing is known of go on with these numbers. Raises `StoreRefused`."""
        self.changed_queues |= self._queues.begin_queues(topic, ends)

    def take_over(self, state: MetadataState) -> None:
        """Become `state`, but for its queues, touching only what differs."""
        self.topics.take_over(state.topics)
        self.groups.take_over(state.groups, state.forbidden)
        self.offsets.take_over(state.offsets, state.resets)
        self.delay.put(state.delay, whole=True)
        self.ordered.take_over(state.ordered)
        if state.timers is not None:
            self.timers.put(state.timers)
        self.request_modes.take_over(state.request_modes)
        self.order_locks.take_over(state.order_locks)
        if state.access is not None:
            self.access.take_over(state.access)

    def state(self) -> MetadataState:
        """Everything that is replicated, copied."""
        offsets = self.offsets
        return MetadataState(
            {topic.topic_name: topic for topic in self.topics},
            {group.group_name: group for group in self.groups},
            {group: dict(self.groups.forbidden_of(group)) for group in self.groups.forbidden_groups()},
            {key: dict(queues) for key, queues in offsets.replicated.items() if is_replicated(key)},
            self.waiting_resets(),
            dict(self.delay.offsets().offsets),
            ordered=self.ordered.state.copy(),
            timers=self.timers.progress(),
            request_modes=dict(self.request_modes.modes),
            order_locks=self.order_locks.copy(),
            access=self.access.book.copy(),
        )

    def waiting_resets(self) -> dict[str, dict[int, int]]:
        """Offsets that were set from outside and that no consumer has been told, copied."""
        return {key: dict(queues) for key, queues in self.offsets.resets.items()}

    def pack(self, packer: ChunkPacker, replay_from: int) -> Iterator[bytes]:
        """Pack everything, with the values it has when it is packed; yields each chunk that is full.

        Between two chunks the tables may change. Of queues with a message at or behind `replay_from` the log
        itself says where they end.
        """
        for name in [topic.topic_name for topic in self.topics]:
            topic = self.topics.get(name)
            if topic is not None:
                yield from _some(packer.add_item("topics", topic.to_json()))
        for name in [group.group_name for group in self.groups]:
            group = self.groups.get(name)
            if group is not None:
                yield from _some(packer.add_item("groups", group.to_json()))
        for name in self.groups.forbidden_groups():
            masks = self.groups.forbidden_of(name)
            if masks:
                yield from _some(packer.add_key("forbidden", name, dict(masks)))
        for section, table in (("offsets", self.offsets.replicated), ("resets", self.offsets.resets)):
            for key in filter(is_replicated, list(table)):
                for _, queues in records.split_queues({key: table.get(key, {})}):
                    if queues:
                        yield from _some(packer.add_key(section, key, queues))
        for level, queue_offset in self.delay.offsets().offsets.items():
            yield from _some(packer.add_key("delay", str(level), queue_offset))
        progress = self.timers.progress()
        if progress is not None:
            for key, value_of_key in records.timers_to_json(progress).items():
                yield from _some(packer.add_key("timers", key, value_of_key, counts=False))
        for key in list(self.request_modes.modes):
            mode = self.request_modes.modes.get(key)
            if mode is not None:
                yield from _some(packer.add_key("requestModes", key, mode.to_json(), counts=False))
        for key in list(self.order_locks.locks):
            locks = self.order_locks.locks.get(key, {})
            for _, of_queues in locks_in_parts({key: locks}):
                yield from _some(packer.add_key("popOrder", key, of_queues, counts=False))
        for section, items in (("users", self.access.book.users), ("acls", self.access.book.acls)):
            for key in list(items):
                said = items.get(key)
                if said is not None:
                    yield from _some(packer.add_key(section, key, said.to_json(), counts=False))
        for section, name, value in self.ordered.state.entries():
            item = value()
            if item is not None:
                yield from _some(packer.add_key(section, name, item, counts=False))
        for name, ends in self._queues.resting_queues(replay_from):
            yield from _some(packer.add_key("queueEnds", name, ends, counts=False))
        yield from _some(packer.take())

    async def saved(self) -> None:
        """Return when everything is in the files of config/. Raises OSError."""
        await self.topics.saved()
        await self.groups.saved()
        await self.offsets.saved()
        await self.delay.persist()
        await self.ordered.saved()
        await self.timers.persist()
        await self.request_modes.saved()
        await self.order_locks.saved()
        await self.access.saved()


def _more(counts: dict[str, int], names: Iterable[str]) -> None:
    for name in names:
        counts[name] = counts.get(name, 0) + 1


def _fewer(counts: dict[str, int], names: Iterable[str]) -> None:
    for name in names:
        if counts.get(name, 0) > 1:
            counts[name] -= 1
        else:
            counts.pop(name, None)


def _some(chunk: bytes | None) -> tuple[bytes, ...]:
    return () if chunk is None else (chunk,)
