"""Commits positions of pops as consumer offsets, in waves: each when all that was stored before it is safe.

A queue that is popped without a pause has records that are not safe yet at any time. So a wave commits the
positions as they were when it began.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from brokerset_broker.pop.check_points import Source
from brokerset_broker.requests.admission import Admission
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.offsets import BROKER, OffsetManager


class PositionCommits:
    """Positions that wait until their records are safe."""

    def __init__(
        self, *, store: MessageStore, offsets: OffsetManager, admission: Admission, end: Callable[[], int]
    ) -> None:
        """`end`: the offset behind the last record of POP."""
        self._store = store
        self._offsets = offsets
        self._admission = admission
        self._end = end
        self._leads = False
        self._era = 0
        self._waiting: dict[Source, None] = {}
        self._wave: dict[Source, int] | None = None
        self._wave_end = 0
        self._is_asked = False
        self._safe_end = 0
        self._begun = 0
        self._wanted = 0
        self.done = 0
        """The number of the last wave whose positions are consumer offsets."""

    def __len__(self) -> int:
        """Positions that wait."""
        return len(self._waiting) + (0 if self._wave is None else len(self._wave))

    def lead(self) -> None:
        """Commit from now on."""
        self._leads = True
        self.go_on()

    def stop(self) -> None:
        """Commit nothing any more."""
        self._leads = False
        self._era += 1
        self._waiting, self._wave, self._safe_end = {}, None, 0

    def moved(self, source: Source) -> None:
        """A position has moved: it is committed when its record is safe."""
        if self._leads and source.position_end <= self._safe_end:
            self._waiting.pop(source, None)
            self._commit(source, source.position)
        else:
            self._waiting[source] = None

    def forget(self, source: Source) -> None:
        """Somebody else has committed the offset: that one counts."""
        self._waiting.pop(source, None)
        self.went_back(source)

    def went_back(self, source: Source) -> None:
        """The position of before is nobody's any more."""
        if self._wave is not None:
            self._wave.pop(source, None)

    def cover(self) -> int:
        """The number of the wave that will have committed all positions of this moment, when all that was
        stored so far is safe."""
        self._wanted = self._begun + 1
        self.go_on()
        return self._wanted

    def go_on(self) -> None:
        """Begin a wave if there is none, and end it if it is safe."""
        when_durable = self._admission.when_durable
        while self._leads:
            if self._wave is None:
                if not self._waiting and self._wanted <= self.done:
                    return
                self._begin()
            if self._is_asked:
                return
            if when_durable is not None:  # also for a wave that began before there were replicas
                self._is_asked = True
                when_durable(self._wave_end, partial(self._safe, self._era))
                return
            if self._store.flushed_offset < self._wave_end:
                return
            self._finish()

    def _begin(self) -> None:
        self._begun += 1
        self._is_asked = False
        self._wave_end = self._end()
        self._wave = {source: source.position or 0 for source in self._waiting}

    def _safe(self, era: int, status: PutStatus) -> None:
        if era != self._era:
            return
        if status is PutStatus.PUT_OK:
            self._finish()
            self.go_on()
        else:
            self._wave = None

    def _finish(self) -> None:
        wave, self._wave = self._wave or {}, None
        self.done, self._safe_end = self._begun, self._wave_end
        for source, position in wave.items():
            if source.position_end <= self._safe_end:
                self._waiting.pop(source, None)
                self._commit(source, source.position)
            else:
                self._commit(source, position)

    def _commit(self, source: Source, position: int | None) -> None:
        if position is None or position == source.committed:
            return
        group, topic, queue_id = source.group, source.topic, source.queue_id
        if self._offsets.query(group, topic, queue_id) != source.committed:
            return  # somebody else has moved it meanwhile: the next pop goes by that
        self._offsets.commit(group, topic, queue_id, position, BROKER)
        source.committed = self._offsets.query(group, topic, queue_id)
