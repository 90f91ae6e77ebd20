"""What ordered pops have given out, and the file of that.

Source: `QueueLevelConsumerManager`; file `config/consumerOrderInfo.json`. In a group every change is a record
of the log, too: a new master gives a locked queue to nobody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import structlog

from brokerset_broker.tables.config_files import ConfigFile
from brokerset_broker.tables.metadata.journal import Journal
from brokerset_broker.tables.pop.order_lock import (
    LockChanges,
    Locks,
    OrderLock,
    apply_changes,
    file_of,
    locks_of_file,
    locks_to_json,
)
from brokerset_broker.tables.pop.values import mode_key, parts_of
from brokerset_formats import fastjson

log = structlog.get_logger(__name__)

FILE_NAME: Final = "consumerOrderInfo.json"

SAVE_PAUSE_SECONDS: Final = 1.0
"""In a group, where the file is a cache for the next start and for tools."""


class OrderTable:
    """The locks of ordered pops, by `topic@group` and queue id."""

    def __init__(self, folder: Path | None = None) -> None:
        """Without the folder of the configuration they are kept in memory alone."""
        self._locks: dict[str, dict[int, OrderLock]] = {}
        self._file = None if folder is None else ConfigFile(folder / FILE_NAME, self.snapshot)
        self._changed: dict[str, None] = {}
        self._copies: deque[dict[str, dict[int, OrderLock] | None]] = deque()
        self._texts: dict[str, object] = {}
        self.journal: Journal | None = None
        """Notes what changed, for the log, while this broker leads a group."""

    # -- file ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file. Raises `ConfigDamaged`."""
        found = None if self._file is None else self._file.load(locks_of_file)
        if found is not None:
            self._locks = found
            self._changed = dict.fromkeys(found)
            log.info("loaded locks of ordered pops", keys=len(found))

    async def saved(self) -> None:
        """Return when every change so far is on the disk. Raises OSError."""
        if self._file is not None:
            await self._file.saved()

    async def run(self) -> None:
        """Write changes down, for as long as this task runs."""
        if self._file is not None:
            await self._file.run(SAVE_PAUSE_SECONDS)

    # -- queries ------------------------------------------------------------------------------------------

    @property
    def locks(self) -> Locks:
        """The live table."""
        return self._locks

    def get(self, topic: str, group: str, queue_id: int) -> OrderLock | None:
        """What the last ordered pop of the queue has given to the group."""
        queues = self._locks.get(mode_key(topic, group))
        return None if queues is None else queues.get(queue_id)

    def copy(self) -> dict[str, dict[int, OrderLock]]:
        """The table as it is now."""
        return {key: dict(queues) for key, queues in self._locks.items()}

    # -- changes by this broker ---------------------------------------------------------------------------

    def put(self, topic: str, group: str, queue_id: int, lock: OrderLock | None) -> None:
        """Set or, with None, forget a lock: it counts at once, and gets its record soon."""
        key = mode_key(topic, group)
        apply_changes(self._locks, {key: {queue_id: lock}})
        if self.journal is not None:
            self.journal.order_lock_changed(key, queue_id)
        self._touch((key,))

    # -- by way of the log --------------------------------------------------------------------------------

    def apply(self, changes: LockChanges) -> None:
        """Set what a record says."""
        apply_changes(self._locks, changes)
        self._touch(changes)

    def offsets_reset(self, resets: Mapping[str, Iterable[int]]) -> None:
        """Offsets of `topic@group` were set from outside: what is out of these queues counts no more."""
        for key, queues in resets.items():
            if key in self._locks:
                self.apply({key: dict.fromkeys(queues)})

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self._forget(lambda key: parts_of(key)[0] == topic)

    def forget_group(self, group: str) -> None:
        """The group was deleted, or its offsets were."""
        self._forget(lambda key: parts_of(key)[1] == group)

    def take_over(self, locks: Locks) -> None:
        """Have exactly these."""
        if self._locks != locks:
            keys = {**self._locks, **locks}
            self._locks = {key: dict(queues) for key, queues in locks.items()}
            self._touch(keys)

    def _forget(self, gone: Callable[[str], bool]) -> None:
        keys = [key for key in self._locks if gone(key)]
        for key in keys:
            del self._locks[key]
        if keys:
            self._touch(keys)

    def _touch(self, keys: Iterable[str]) -> None:
        if self._file is not None:
            self._changed.update(dict.fromkeys(keys))
            self._file.touch()

    def snapshot(self) -> Callable[[], bytes]:
        """What makes the content of the file, in a thread; two of them must not run at the same time.

        What has changed since the last time is copied here; the rest of the file is there as text. A broker
        alone writes the file for the acks of each moment, and may have thousands of locks.
        """
        changed, self._changed = self._changed, {}
        copies = {key: dict(queues) if (queues := self._locks.get(key)) else None for key in changed}
        self._copies.append(copies)
        return self._encode

    def _encode(self) -> bytes:
        """Copies of a write that was given up are among those that it finds."""
        texts = self._texts
        while self._copies:
            for key, queues in self._copies.popleft().items():
                if queues is None:
                    texts.pop(key, None)
                    continue
                ((_, value),) = locks_to_json({key: queues})
                texts[key] = fastjson.ready(fastjson.dumps(value))
        return fastjson.dumps(file_of(texts))
