"""kvConfig.json of a name server: small texts that administrators share, by namespace and key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brokerset_formats import fastjson
from brokerset_formats.config import fields as json_fields

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Namespace of the queues that ordered topics have on each broker (`broker-a:4;broker-b:4`)."""


@dataclass(frozen=True, slots=True)
class KvConfig:
    """kvConfig.json: namespace -> key -> value."""

    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """As the file holds it."""
        return {"configTable": {namespace: dict(values) for namespace, values in self.namespaces.items()}}

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> KvConfig:
        """From the file's object."""
        table = json_fields.get_object(fields, "configTable")
        return cls({namespace: json_fields.get_text_map(table, namespace) for namespace in table})

    def encode(self) -> bytes:
        """The file's bytes."""
        return fastjson.dumps_pretty(self.to_json())

    @classmethod
    def decode(cls, data: bytes) -> KvConfig:
        """Read the file."""
        return cls.from_json(json_fields.parse_object(data))
