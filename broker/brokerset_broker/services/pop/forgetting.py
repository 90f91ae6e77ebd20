"""Forgets what pops of deleted topics and groups have left in memory, some of it in each step of the role."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from itertools import islice
from typing import Any, Final

from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.topics import TopicManager

AT_ONCE: Final = 64
"""Things that one step examines; about 0.1 ms."""

PAUSE_SECONDS: Final = 10.0
"""Time from one search to the next."""


class PopForgetting:
    """Examines every queue of a group, and every count, one after the other."""

    def __init__(self, *, pops: PopLog, topics: TopicManager, groups: GroupManager) -> None:
        self._pops = pops
        self._topics = topics
        self._groups = groups
        self._search: Iterator[None] = iter(())
        self._began = 0.0

    def begin(self) -> None:
        """This broker leads, from now on."""
        self._search = iter(())

    def step(self, now: float) -> None:
        """Go on, or begin again when it is time; `now` is in monotonic seconds."""
        before = len(list(islice(self._search, AT_ONCE)))
        if not before and now >= self._began + PAUSE_SECONDS:
            self._began = now
            self._search = self._examine()

    def _examine(self) -> Iterator[None]:
        sources = self._pops.points.sources
        for key in list(sources):
            source = sources.get(key)
            if source is None:
                continue
            topic, group, queue_id = key
            if self._is_gone(topic, group):
                self._pops.forget(source)
            else:
                self._pops.position(topic, group, queue_id)  # one that went back gets its record
            yield
        counts = self._pops.counts
        tables: list[MutableMapping[Any, int]] = [
            counts.stored, counts.not_stored, counts.expired, counts.revived
        ]  # fmt: skip
        for table in tables:
            for key in list(table):
                if self._is_gone(key[1], key[0]):
                    del table[key]
                yield

    def _is_gone(self, topic: str, group: str) -> bool:
        return self._topics.items.get(topic) is None or self._groups.items.get(group) is None
