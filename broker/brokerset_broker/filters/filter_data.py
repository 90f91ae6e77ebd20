"""The filters of consumer groups as a broker keeps them: `consumerFilter.json`.

A client's heartbeat registers its expressions, and pulls name only their version; so a broker that starts
again must still know them. All times are milliseconds since 1970.

Sources: `ConsumerFilterManager` and `ConsumerFilterData` of 5.5.0, and a file that these wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from brokerset_broker.filters.bloom import BloomBits, BloomParameters
from brokerset_formats.config import fields as json_fields
from brokerset_formats.config.fields import ConfigFile
from brokerset_formats.errors import FormatError

SQL92: Final = "SQL92"

DEAD_BEFORE_START_MS: Final = 30_000
"""After a start every group counts as gone for so long, until its heartbeat comes."""

KEPT_MS: Final = 24 * 3_600_000
"""How long the filter of a group that is gone is kept by default (`filterDataCleanTimeSpan`)."""

BLOOM_HASHES_MAX: Final = 64
"""Positions of one group in a file; Java's settings give at most 7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterData:
    """The filter of one group for one topic."""

    topic: str
    group: str
    expression: str
    client_version: int
    """The client's `subVersion`: pulls with a higher one are refused until the heartbeat has come."""
    born_ms: int
    """When this expression was registered; a Java broker has no bits of it for older messages."""
    dead_ms: int = 0
    """When the group left, or 0."""
    expression_type: str = SQL92
    bloom: BloomBits | None = None

    @property
    def is_dead(self) -> bool:
        """Whether the group is gone; it may come back."""
        return self.dead_ms >= self.born_ms

    def is_expired(self, now_ms: int, kept_ms: int = KEPT_MS) -> bool:
        """Whether the group is gone for so long that its filter is to be removed."""
        return self.is_dead and now_ms - self.dead_ms >= kept_ms

    def left(self, now_ms: int) -> FilterData:
        """As it is when the group has left; of one that is gone already the time does not change."""
        return self if self.is_dead else replace(self, dead_ms=now_ms)

    def loaded(self, now_ms: int) -> FilterData:
        """As it is after a start, when no group has been heard of."""
        if self.dead_ms != 0:
            return self
        return replace(self, dead_ms=max(self.born_ms, now_ms - DEAD_BEFORE_START_MS))

    def to_json(self) -> dict[str, object]:
        """As Java's field names; `dead` is derived, for Java's sake."""
        found: dict[str, object] = {
            "bornTime": self.born_ms,
            "clientVersion": self.client_version,
            "consumerGroup": self.group,
            "dead": self.is_dead,
            "deadTime": self.dead_ms,
            "expression": self.expression,
            "expressionType": self.expression_type,
            "topic": self.topic,
        }
        if self.bloom is not None:
            found["bloomFilterData"] = {
                "bitNum": self.bloom.bit_count,
                "bitPos": list(self.bloom.positions),
            }
        return found

    @classmethod
    def from_json(cls, fields: Mapping[str, object], topic: str, group: str) -> FilterData:
        """From Java's field names; topic and group are the keys of the tables that it stands in."""
        integer, text = json_fields.get_integer, json_fields.get_text
        return cls(
            topic=text(fields, "topic") or topic,
            group=text(fields, "consumerGroup") or group,
            expression=text(fields, "expression"),
            expression_type=text(fields, "expressionType", SQL92),
            client_version=integer(fields, "clientVersion", 0),
            born_ms=integer(fields, "bornTime", 0),
            dead_ms=integer(fields, "deadTime", 0),
            bloom=_bloom(fields, f"{topic}.{group}"),
        )


def _bloom(fields: Mapping[str, object], where: str) -> BloomBits | None:
    data = json_fields.get_object(fields, "bloomFilterData")
    if not data:
        return None
    positions = data.get("bitPos")
    if not isinstance(positions, list) or len(positions) > BLOOM_HASHES_MAX:
        raise FormatError(f"bitPos of {where} should be a list of at most {BLOOM_HASHES_MAX} integers")
    return BloomBits(
        json_fields.get_integer(data, "bitNum", 0),
        tuple(json_fields.as_integer(position, f"bitPos of {where}") for position in positions),
    )


@dataclass(frozen=True, slots=True)
class FilterFile(ConfigFile):
    """consumerFilter.json: topic -> group -> filter."""

    filters: Mapping[str, Mapping[str, FilterData]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """See `ConfigFile`. Topics without a filter are left out."""
        topics = {
            topic: {
                "groupFilterData": {group: data.to_json() for group, data in groups.items()},
                "topic": topic,
            }
            for topic, groups in self.filters.items()
            if groups
        }
        return {"filterDataByTopic": topics}

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> Self:
        """See `ConfigFile`. Raises `FormatError` for what has another form; a null entry is skipped."""
        filters: dict[str, Mapping[str, FilterData]] = {}
        for topic, value in json_fields.get_object(fields, "filterDataByTopic").items():
            if value is None:
                continue
            groups = json_fields.get_object(json_fields.as_object(value, topic), "groupFilterData")
            filters[topic] = {
                group: FilterData.from_json(json_fields.as_object(data, f"{topic}.{group}"), topic, group)
                for group, data in groups.items()
                if data is not None
            }
        return cls(filters)

    def fits(self, parameters: BloomParameters) -> bool:
        """Whether Java would read the file with these settings: the bits of all groups must fit."""
        return all(
            parameters.fits(data.bloom) for groups in self.filters.values() for data in groups.values()
        )
