"""Progress: consumerOffset.json (what groups have consumed) and delayOffset.json (what was delivered)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Self

from brokerset_formats.config import fields as json_fields
from brokerset_formats.config.fields import ConfigFile
from brokerset_formats.config.versions import DataVersion
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.light_queues import QUEUE_ID, is_light

_SEPARATOR = "@"

QueueOffsets = Mapping[int, int]
"""Queue id, or delay level -> queue offset of the next message."""


def offset_key(topic: str, group: str) -> str:
    """The key of a group's progress on a topic."""
    return f"{topic}{_SEPARATOR}{group}"


def split_offset_key(key: str) -> tuple[str, str]:
    """Topic and group of a key. Broadcasting groups keep an `@` in theirs (`topic@group@broadcast`)."""
    topic, separator, group = key.partition(_SEPARATOR)
    if not (separator and topic and group):
        raise FormatError(f"offset key {key[:200]!r} is not topic@group")
    return topic, group


@dataclass(frozen=True, slots=True)
class ConsumerOffsets(ConfigFile):
    """consumerOffset.json: `topic@group` -> queue offsets to consume next.

    `pull_offsets` has those of consumers whose progress the broker merely watches.
    """

    data_version: DataVersion = field(default_factory=DataVersion)
    offsets: Mapping[str, QueueOffsets] = field(default_factory=dict)
    pull_offsets: Mapping[str, QueueOffsets] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """See `ConfigFile`. `groupTopicMap` is derived, for Java's sake."""
        return {
            "dataVersion": self.data_version.to_json(),
            "groupTopicMap": self._topics_of_groups(),
            "offsetTable": _to_json(self.offsets),
            "pullOffsetTable": _to_json(self.pull_offsets),
        }

    def _topics_of_groups(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key in self.offsets:
            topic, _, group = key.partition(_SEPARATOR)
            if group:
                found.setdefault(group, []).append(topic)
        return found

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> Self:
        return cls(
            DataVersion.of_table(fields),
            _from_json(fields, "offsetTable"),
            _from_json(fields, "pullOffsetTable"),
        )


@dataclass(frozen=True, slots=True)
class LightOffsets(ConsumerOffsets):
    """lmqConsumerOffset.json, which Java has instead of consumerOffset.json when `enableLmq` is true.

    Groups of light queues have a table of their own there, `topic@group` -> offset.
    """

    def to_json(self) -> dict[str, object]:
        """See `ConfigFile`."""
        light = {key: queues for key, queues in self.offsets.items() if _is_of_light_group(key)}
        others = {key: queues for key, queues in self.offsets.items() if key not in light}
        table = ConsumerOffsets(self.data_version, others, self.pull_offsets).to_json()
        found = {key: queues[QUEUE_ID] for key, queues in light.items() if QUEUE_ID in queues}
        return {**table, "lmqOffsetTable": found}

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> Self:
        offsets = _from_json(fields, "offsetTable")
        for key, offset in json_fields.get_object(fields, "lmqOffsetTable").items():
            if type(offset) is not int:
                raise FormatError(f"lmqOffsetTable.{key[:200]} is no number")
            offsets[key] = {QUEUE_ID: offset}
        return cls(DataVersion.of_table(fields), offsets, _from_json(fields, "pullOffsetTable"))


def _is_of_light_group(key: str) -> bool:
    return is_light(key.partition(_SEPARATOR)[2])


def _to_json(table: Mapping[str, QueueOffsets]) -> dict[str, object]:
    return {key: {str(queue): offset for queue, offset in queues.items()} for key, queues in table.items()}


def _from_json(fields: Mapping[str, object], name: str) -> dict[str, QueueOffsets]:
    table = json_fields.get_object(fields, name)
    return {key: json_fields.integer_map(queues, f"{name}.{key}") for key, queues in table.items()}


@dataclass(frozen=True, slots=True)
class DelayOffsets(ConfigFile):
    """delayOffset.json: delay level (from 1) -> queue offset of the next message to deliver."""

    data_version: DataVersion = field(default_factory=DataVersion)
    offsets: QueueOffsets = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        offsets = {str(level): offset for level, offset in self.offsets.items()}
        return {"dataVersion": self.data_version.to_json(), "offsetTable": offsets}

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> Self:
        offsets = json_fields.integer_map(json_fields.get_object(fields, "offsetTable"), "offsetTable")
        return cls(DataVersion.of_table(fields), offsets)
