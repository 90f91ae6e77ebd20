"""Topics, groups and progress of the target: the files of `config/`, changed where records were left out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerset_formats import fastjson
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_spark.jobs.migrate.tallies import Queue

FOLDER: Final = "config"
STAMP: Final = f"{FOLDER}/brokersetMetadata.json"
"""Up to which offset of the log the other files are complete; of brokerset brokers alone."""

_BY_TOPIC: Final = {
    "topics.json": ("topicConfigTable",),
    "consumerOffset.json": ("offsetTable", "pullOffsetTable"),
    "consumerFilter.json": ("filterDataByTopic",),
    "consumerOrderInfo.json": ("table",),
    "topicQueueMapping.json": ("topicQueueMappingInfoMap",),
    "messageRequestMode.json": ("messageRequestModeMap",),
    "timermetrics": ("timingCount",),
    "brokersetMetadata.json": ("resets",),
}
"""Tables whose keys are a topic, or `topic@group`."""

_OFFSETS: Final = {
    "consumerOffset.json": ("offsetTable", "pullOffsetTable"),
    "brokersetMetadata.json": ("resets",),
}


@dataclass(slots=True)
class ConfigChange:
    """What becomes of the files."""

    chooses: Callable[[str], bool]
    """Whether a topic stays."""

    ends: Mapping[Queue, int]
    """Queue offsets that no progress may lie behind; empty if no queue was truncated."""

    applied_offset: int | None = None
    """End of a log whose offsets are new."""

    topics_dropped: int = 0
    offsets_dropped: int = 0
    offsets_lowered: int = 0

    def change(self, name: str, data: bytes) -> bytes:
        """The new content of a file; the same bytes if nothing in it changes. FormatError for bad JSON."""
        tables = _BY_TOPIC.get(name, ())
        if not tables and name != "delayOffset.json":
            return data
        content = fastjson.loads(data)
        if not isinstance(content, dict):
            return data
        changed = False
        for table in tables:
            changed |= self._drop(name, content.get(table))
        for table in _OFFSETS.get(name, ()):
            changed |= self._lower(content.get(table))
        if name == "delayOffset.json":
            changed |= self._lower_delays(content.get("offsetTable"))
        if name == "brokersetMetadata.json" and self.applied_offset is not None:
            epoch = content.get("epoch", 0)
            crc = zlib.crc32(f"{self.applied_offset} {epoch}".encode())
            content.update(appliedOffset=self.applied_offset, crc=crc)
            changed = True
        return fastjson.dumps_pretty(content) if changed else data

    def _drop(self, name: str, table: Any) -> bool:
        if not isinstance(table, dict):
            return False
        gone = [key for key in table if not self.chooses(key.partition("@")[0])]
        for key in gone:
            del table[key]
        self.topics_dropped += len(gone) if name == "topics.json" else 0
        self.offsets_dropped += len(gone) if name == "consumerOffset.json" else 0
        return bool(gone)

    def _lower(self, table: Any) -> bool:
        changed = False
        for key, queues in table.items() if isinstance(table, dict) else ():
            topic = key.partition("@")[0]
            for queue_id, offset in list(queues.items()):
                end = self.ends.get((topic, int(queue_id)))
                if end is not None and offset > end:
                    queues[queue_id] = end
                    self.offsets_lowered += 1
                    changed = True
        return changed

    def _lower_delays(self, table: Any) -> bool:
        changed = False
        for level, offset in list(table.items()) if isinstance(table, dict) else ():
            end = self.ends.get((SCHEDULE_TOPIC, int(level) - 1))
            if end is not None and offset > end:
                table[level] = end
                self.offsets_lowered += 1
                changed = True
        return changed


def unread(offsets: Mapping[str, Any], firsts: Mapping[Queue, int]) -> int:
    """How many queues of a group have messages that it has not consumed and that are gone now. Pure.

    `offsets` is the table of consumerOffset.json, `firsts` the first queue offset that each queue has left.
    """
    total = 0
    for key, queues in offsets.items():
        topic = key.partition("@")[0]
        for queue_id, offset in queues.items():
            total += offset < firsts.get((topic, int(queue_id)), 0)
    return total


def stamp_offset(data: bytes | None) -> int:
    """Up to where the files are complete by their stamp; -1 without one. FormatError."""
    if data is None:
        return -1
    content = fastjson.loads(data)
    found = content.get("appliedOffset") if isinstance(content, dict) else None
    return found if isinstance(found, int) else -1


def topic_names(data: bytes | None) -> set[str] | None:
    """The topics of topics.json; None if there is no such file. FormatError."""
    if data is None:
        return None
    content = fastjson.loads(data)
    table = content.get("topicConfigTable") if isinstance(content, dict) else None
    return set(table) if isinstance(table, dict) else None
