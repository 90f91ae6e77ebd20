"""kvConfig.json of a name server: small texts that administrators share, by namespace and key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Self

from brokerset_formats.config import fields as json_fields
from brokerset_formats.config.fields import ConfigFile
from brokerset_formats.lazy_dataclasses import dataclass

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Namespace of the queues that ordered topics have on each broker (`broker-a:4;broker-b:4`)."""


@dataclass(frozen=True, slots=True)
class KvConfig(ConfigFile):
    """kvConfig.json: namespace -> key -> value."""

    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {"configTable": {namespace: dict(values) for namespace, values in self.namespaces.items()}}

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> Self:
        table = json_fields.get_object(fields, "configTable")
        return cls({namespace: json_fields.get_text_map(table, namespace) for namespace in table})
