"""The version that goes with every table which brokers copy from each other or register."""

from __future__ import annotations

from collections.abc import Mapping

from brokerset_formats.config import fields as json_fields
from brokerset_formats.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Two tables are the same if all three numbers are (`DataVersion` of Java).

    `state_version` is the master's epoch in controller mode, else 0; `timestamp` in milliseconds.
    """

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    def next(self, now_ms: int, state_version: int | None = None) -> DataVersion:
        """The version after one more change."""
        state = self.state_version if state_version is None else state_version
        return DataVersion(self.counter + 1, state, now_ms)

    def is_newer_than(self, other: DataVersion) -> bool:
        """Order by state version, then counter, then timestamp."""
        own = (self.state_version, self.counter, self.timestamp)
        return own > (other.state_version, other.counter, other.timestamp)

    def to_json(self) -> dict[str, object]:
        """As Java's field names."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> DataVersion:
        """From Java's field names; missing ones are 0."""
        return cls(
            json_fields.get_integer(fields, "counter", 0),
            json_fields.get_integer(fields, "stateVersion", 0),
            json_fields.get_integer(fields, "timestamp", 0),
        )

    @classmethod
    def of_table(cls, fields: Mapping[str, object]) -> DataVersion:
        """The `dataVersion` field of a table."""
        return cls.from_json(json_fields.get_object(fields, "dataVersion"))
