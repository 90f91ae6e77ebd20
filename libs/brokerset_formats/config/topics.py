"""Topics: their settings, the text form for registration, and the file topics.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Self

from brokerset_formats import fastjson
from brokerset_formats.config import fields as json_fields
from brokerset_formats.config.fields import ConfigFile
from brokerset_formats.config.versions import DataVersion
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass

SINGLE_TAG = "SINGLE_TAG"
MULTI_TAG = "MULTI_TAG"
_FILTER_TYPES = (SINGLE_TAG, MULTI_TAG)


class Permission:
    """Bits of a topic's or broker's permission (`PermName`)."""

    INHERIT = 1
    """Topics created automatically may take this one as their template."""
    WRITE = 2
    READ = 4
    PRIORITY = 8


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic on one broker. `topic_sys_flag`: 1 unit, 2 unit with subscription.

    `attributes` have plain names here; requests that change them prefix each with `+` or `-`.
    """

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = Permission.READ | Permission.WRITE
    topic_filter_type: str = SINGLE_TAG
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def readable(self) -> bool:
        """Whether consumers may read."""
        return bool(self.perm & Permission.READ)

    @property
    def writable(self) -> bool:
        """Whether producers may send."""
        return bool(self.perm & Permission.WRITE)

    @property
    def inheritable(self) -> bool:
        """Whether it can be the template of a new topic."""
        return bool(self.perm & Permission.INHERIT)

    def with_perm(self, perm: int) -> TopicConfig:
        """The same topic with another permission, as registrations of a read-only broker show it."""
        return replace(self, perm=perm)

    def to_json(self) -> dict[str, object]:
        """As Java's field names."""
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, object], name: str | None = None) -> TopicConfig:
        """From Java's field names; `name` is the key in a table, for entries without a name of their own."""
        topic = json_fields.get_text(fields, "topicName") or name
        if not topic:
            raise FormatError("a topic without topicName")
        return cls(
            topic_name=topic,
            read_queue_nums=_queue_count(fields, "readQueueNums"),
            write_queue_nums=_queue_count(fields, "writeQueueNums"),
            perm=json_fields.get_integer(fields, "perm", Permission.READ | Permission.WRITE),
            topic_filter_type=_filter_type(json_fields.get_text(fields, "topicFilterType", SINGLE_TAG)),
            topic_sys_flag=json_fields.get_integer(fields, "topicSysFlag", 0),
            order=json_fields.get_boolean(fields, "order", False),
            attributes=json_fields.get_text_map(fields, "attributes"),
        )

    def encode(self) -> str:
        """The text form: `name readQueues writeQueues perm filterType attributes`."""
        numbers = f"{self.read_queue_nums} {self.write_queue_nums} {self.perm}"
        attributes = fastjson.dumps(dict(self.attributes)).decode()
        return f"{self.topic_name} {numbers} {self.topic_filter_type} {attributes}"

    @classmethod
    def decode(cls, text: str) -> TopicConfig:
        """Read the text form; old brokers write it without attributes."""
        parts = text.split(" ", 5)
        if len(parts) < 5 or not parts[0]:
            raise FormatError(f"topic text {text[:100]!r} has fewer than five parts")
        attributes = json_fields.parse_object(parts[5]) if len(parts) == 6 and parts[5].strip() else {}
        return cls(
            topic_name=parts[0],
            read_queue_nums=json_fields.as_integer(parts[1], "read queues"),
            write_queue_nums=json_fields.as_integer(parts[2], "write queues"),
            perm=json_fields.as_integer(parts[3], "perm"),
            topic_filter_type=_filter_type(parts[4]),
            attributes=json_fields.get_text_map({"attributes": attributes}, "attributes"),
        )


def _queue_count(fields: Mapping[str, object], name: str) -> int:
    count = json_fields.get_integer(fields, name, 16)
    if count < 0:
        raise FormatError(f"{name} is {count}")
    return count


def _filter_type(text: str) -> str:
    if text not in _FILTER_TYPES:
        raise FormatError(f"topicFilterType {text[:60]!r} is neither {SINGLE_TAG} nor {MULTI_TAG}")
    return text


@dataclass(frozen=True, slots=True)
class TopicTable(ConfigFile):
    """topics.json: all topics of a broker, by name."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {
            "dataVersion": self.data_version.to_json(),
            "topicConfigTable": {name: topic.to_json() for name, topic in self.topics.items()},
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> Self:
        table = json_fields.get_object(fields, "topicConfigTable")
        topics = {
            name: TopicConfig.from_json(json_fields.as_object(value, f"topic {name}"), name)
            for name, value in table.items()
        }
        return cls(DataVersion.of_table(fields), topics)
