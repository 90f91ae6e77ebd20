"""All consume queues of a store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

from brokerset_broker.store.consume_queue import NO_LIMIT, ConsumeQueue
from brokerset_broker.store.errors import StoreCorrupt
from brokerset_formats.light_queues import QUEUE_ID, is_light
from brokerset_formats.queue_units import UNIT_SIZE


class ConsumeQueues:
    """The table of queues; `next_offset` of each is the number that its next message gets."""

    def __init__(self, folder: Path, file_bytes: int, executor: Executor | None = None) -> None:
        """`executor` makes files of queues ahead of their use."""
        self._folder = folder
        self._executor = executor
        self._file_bytes = -(-file_bytes // UNIT_SIZE) * UNIT_SIZE
        self.table: dict[tuple[str, int], ConsumeQueue] = {}
        self._topics: dict[str, dict[int, ConsumeQueue]] = {}
        self.light: dict[str, ConsumeQueue] = {}
        """The light queues among them, by name."""

    def load(self) -> None:
        """Find all queues and their ends; StoreCorrupt names what does not belong."""
        if not self._folder.is_dir():
            return
        for topic_path in sorted(_folders(self._folder)):
            for queue_path in sorted(_folders(topic_path)):
                if not queue_path.name.isascii() or not queue_path.name.isdigit():
                    raise StoreCorrupt(queue_path, -1, "is no queue of a message store; move it elsewhere")
                queue = self.open(topic_path.name, int(queue_path.name))
                queue.files.load()
                queue.recover()
                queue.synced_position = queue.position

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made in memory if it is new; its folder comes with its first message."""
        queue = self.table.get((topic, queue_id))
        if queue is None:
            folder = self._folder / topic / str(queue_id)
            queue = ConsumeQueue(folder, topic, queue_id, self._file_bytes, self._executor)
            self.table[topic, queue_id] = queue
            self._topics.setdefault(topic, {})[queue_id] = queue
            if queue_id == QUEUE_ID and is_light(topic):
                self.light[topic] = queue
        return queue

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.table.values()))

    def queue_ids(self, topic: str) -> list[int]:
        """Ids of the queues of a topic, sorted."""
        return sorted(self._topics.get(topic, ()))

    def topics(self) -> dict[str, list[int]]:
        """Topic -> its queue ids, sorted."""
        return {topic: sorted(queues) for topic, queues in self._topics.items()}

    @property
    def last_end(self) -> int:
        """Commit log offset behind the last message that is in its queue; 0 without queues."""
        return max((queue.last_end for queue in self.table.values()), default=0)

    def truncate(self, offset: int) -> None:
        """Drop the units of records at or behind `offset`, and all that follows them."""
        for queue in self:
            if queue.last_end > offset:
                queue.recover(offset)

    def rebuild_from(self, offset: int, *, cache_wrong: bool) -> None:
        """Drop the units of records at or behind `offset`, and whatever a crash may have left behind them.

        What stays may be in the page cache only, so the next `sync` takes every queue from its beginning.
        What is put again goes into pages that are read from the disk, see `mapping.settle`; `cache_wrong`:
        that counts for all queues.
        """
        for queue in self:
            if cache_wrong or queue.last_end > offset:
                queue.evict()
            queue.recover(min(offset, NO_LIMIT - 1))
            queue.synced_position = min(queue.files.start, queue.position)

    def correct_min_offsets(self, log_min_offset: int) -> None:
        """Let each queue begin with the first message that the log still has."""
        for queue in self:
            queue.correct_min_offset(log_min_offset)

    def remove_topic(self, topic: str, *, before: int = NO_LIMIT) -> None:
        """Delete all queues of a topic with their files; an unknown name is no folder to look into.

        `before`: only those whose last message ends at or before that offset of the log; others were begun
        again since.
        """
        queues = self._topics.pop(topic, None)
        if queues is None:
            return
        kept = {queue_id: queue for queue_id, queue in queues.items() if queue.last_end > before}
        if kept:
            self._topics[topic] = kept
        for queue_id, queue in queues.items():
            if queue_id not in kept:
                del self.table[topic, queue_id]
                if queue_id == QUEUE_ID:
                    self.light.pop(topic, None)
                queue.files.remove_all()
        folder = self._folder / topic
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()

    def forget_all(self) -> None:
        """Drop all queues from the table; their files are deleted elsewhere."""
        for queue in self:
            queue.files.forget_prepared()
        self.table.clear()
        self._topics.clear()
        self.light.clear()


def _folders(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir()]
