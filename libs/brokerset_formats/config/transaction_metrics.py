"""config/transactionMetrics: how many half messages each topic has open (Java: TransactionMetrics)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from brokerset_formats import fastjson
from brokerset_formats.config import fields as json_fields
from brokerset_formats.config.fields import ConfigFile
from brokerset_formats.config.versions import DataVersion


@dataclass(frozen=True, slots=True)
class TopicTransactions:
    """Open half messages of one topic."""

    count: int = 0
    timestamp: int = 0
    """Of the last change, milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class TransactionMetrics(ConfigFile):
    """transactionMetrics: topic that half messages are for -> how many are open."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, TopicTransactions] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """See `ConfigFile`."""
        counts = {
            topic: {"count": each.count, "timeStamp": each.timestamp} for topic, each in self.topics.items()
        }
        return {"dataVersion": self.data_version.to_json(), "transactionCount": counts}

    def encode(self) -> bytes:
        """The file's bytes: other than most, on one line."""
        return fastjson.dumps(self.to_json())

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> Self:
        """See `ConfigFile`; missing numbers are 0."""
        found = {}
        for topic, value in json_fields.get_object(fields, "transactionCount").items():
            counts = json_fields.as_object(value, f"transactionCount.{topic}")
            found[topic] = TopicTransactions(
                json_fields.get_integer(counts, "count", 0), json_fields.get_integer(counts, "timeStamp", 0)
            )
        return cls(DataVersion.of_table(fields), found)
