"""Ordered subjects of this broker: what is replicated, what is on its way there, and what only a master has.

The replicated part is in `config/brokersetOrdered.json`, too, as a cache for the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from brokerset_broker.tables.config_files import ConfigFile
from brokerset_broker.tables.metadata.journal import Journal
from brokerset_broker.tables.ordered.claims import Claims
from brokerset_broker.tables.ordered.live_producers import LiveProducers
from brokerset_broker.tables.ordered.state import OrderedState
from brokerset_broker.tables.ordered.values import (
    ClaimKey,
    Fence,
    FencesPut,
    OrderedChange,
    OrderedQueue,
    Ranges,
    Subject,
    SubjectsPut,
    subject_name,
)
from brokerset_formats import fastjson
from brokerset_formats.config import fields
from brokerset_protocol.subject_words import PartitionStatus

log = structlog.get_logger(__name__)

FILE_NAME = "brokersetOrdered.json"


class OrderedTables:
    """Everything about ordered subjects that requests ask for."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` is the file; without one nothing is kept over a restart."""
        self.state = OrderedState()
        self.live = LiveProducers()
        self.claims = Claims()
        self._coming: dict[str, list[Subject]] = {}
        self.on_subjects: Callable[[Iterable[str]], object] | None = None
        """Told of subjects that were changed or deleted."""

        self.on_role_change: Callable[[], object] | None = None
        """Called when this broker begins to lead, or ends."""

        self.journal: Journal | None = None
        """Notes what Shared groups have acknowledged, for the log."""

        self._file = None if path is None else ConfigFile(path, self._encoder)

    # -- file ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file. Raises `ConfigDamaged`."""
        if self._file is None:
            return
        found = self._file.load(_decode)
        if found is not None:
            self.state = found
            log.info("loaded ordered subjects", subjects=len(found.subjects), fences=found.fence_count())

    async def saved(self) -> None:
        """Return when every change so far is on the disk. Raises OSError."""
        if self._file is not None:
            await self._file.saved()

    def _encoder(self) -> Callable[[], bytes]:
        sections = self.state.to_json()
        return lambda: fastjson.dumps(sections)

    def _touch(self) -> None:
        if self._file is not None:
            self._file.touch()

    # -- queries ------------------------------------------------------------------------------------------

    def is_subject(self, topic: str) -> bool:
        """Whether a topic is an ordered subject, or is about to be one."""
        return topic in self.state.subjects or topic in self._coming

    def queue(self, topic: str, queue_id: int) -> OrderedQueue | None:
        """A queue as sends see it: closed from the moment on that its seal is in the log.

        Until that is confirmed nobody is answered that it is sealed; it is Prepared instead.
        """
        subject = self.state.subjects.get(topic)
        found = None if subject is None else subject.queues.get(queue_id)
        if found is None or topic not in self._coming or found.state is not PartitionStatus.OPEN:
            return found
        for subject in self._coming[topic]:
            coming = subject.queues.get(queue_id)
            if coming is None or coming.state is PartitionStatus.SEALED:
                return found._replace(state=PartitionStatus.PREPARED)
        return found

    def sealed_end(self, topic: str, queue_id: int) -> int:
        """Where a sealed queue ends; -1 for others."""
        found = self.queue(topic, queue_id)
        return found.end if found is not None else -1

    def is_retired(self, topic: str, queue_id: int) -> bool:
        """Whether a queue of a subject, or of a retry topic for it, is retired, or is about to be."""
        name = subject_name(topic)
        known = [*self._coming.get(name, ()), self.state.subjects.get(name)]
        return any(subject is not None and queue_id in subject.retired for subject in known)

    def fence(self, key: ClaimKey) -> Fence | None:
        """The fence that counts: confirmed, or on its way there."""
        return self.claims.fence(key, self.state.fence(*key))

    def has_fences(self, topic: str) -> bool:
        """Whether some group's session has claimed a queue of the topic, ever; or one is about to, of any."""
        return topic in self.state.fences or bool(self.claims.raised)

    # -- changes ------------------------------------------------------------------------------------------

    def hold(self, change: SubjectsPut) -> None:
        """The change is in the log, and not confirmed: what it closes is closed."""
        for topic, subject in change.subjects.items():
            self._coming.setdefault(topic, []).append(subject)

    def release(self, change: SubjectsPut) -> None:
        """Undo `hold`."""
        for topic, subject in change.subjects.items():
            coming = self._coming.get(topic, [])
            if subject in coming:
                coming.remove(subject)
            if not coming:
                self._coming.pop(topic, None)

    def apply(self, change: OrderedChange) -> None:
        """Apply what a record says."""
        self.state.apply(change)
        if isinstance(change, SubjectsPut):
            self.release(change)
            retired = change.retired
            if retired:
                self.claims.forget(lambda key: key.queue_id in retired.get(subject_name(key.topic), ()))
            self._tell(change.subjects)
        elif isinstance(change, FencesPut):
            for name, queues in change.fences.items():
                topic, _, group = name.partition("@")
                for queue_id, fence in queues.items():
                    self.claims.confirmed(ClaimKey(topic, group, queue_id), fence)
        self._touch()

    def forget_topics(self, topics: Iterable[str]) -> None:
        """The topics were deleted."""
        for topic in topics:
            self.state.forget_topic(topic)
            self.live.forget_topic(topic)
            self.claims.forget_topic(topic)
        self._tell(topics)
        self._touch()

    def offsets_set(self, offsets: Mapping[str, Iterable[int]]) -> None:
        """Offsets of `topic@group` were set from outside: sessions that pull there must claim again."""
        for key, queues in offsets.items():
            topic, _, group = key.partition("@")
            fenced = self.state.fences.get(topic, {}).get(group)
            if fenced:
                self.claims.offsets_set(topic, group, [queue for queue in queues if queue in fenced])

    def offsets_reset(self, resets: Mapping[str, Iterable[int]]) -> None:
        """An administrator has set offsets of `topic@group`: what lies behind them is consumed again."""
        self.state.offsets_reset(resets)
        self.offsets_set(resets)

    def forget_group(self, group: str) -> None:
        """The offsets of a group are gone."""
        self.state.forget_acks(lambda key: key.group == group)
        self.claims.forget_group(group)
        self._touch()

    def acknowledged(self, key: ClaimKey, ranges: Ranges, *, moved: bool) -> None:
        """What a Shared group has acknowledged above its position: counts at once, is written later.

        When the position has `moved`, ranges are written again: a replica that led before may have passed
        them by a position that nobody else has, and does not have them any more.
        """
        if ranges != self.state.shared_acks.get(key, ()) or (moved and ranges):
            self.state.put_acks(key, ranges)
            if self.journal is not None:
                self.journal.acks_changed(key)
            self._touch()

    def take_over(self, state: OrderedState) -> None:
        """Become `state`, a snapshot's."""
        if state == self.state:
            return
        changed = {*self.state.subjects, *state.subjects}
        self.state = state.copy()
        self._tell(sorted(changed))
        self._touch()

    def release_all(self) -> None:
        """This broker begins to lead, or ends: only what is replicated counts."""
        self._coming.clear()
        self.live.clear()
        self.claims.clear()
        if self.on_role_change is not None:
            self.on_role_change()

    def _tell(self, topics: Iterable[str]) -> None:
        if self.on_subjects is not None:
            self.on_subjects(topics)


def _decode(data: bytes) -> OrderedState:
    state = OrderedState()
    state.add_sections(fields.parse_object(data))
    return state
