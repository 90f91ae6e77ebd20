"""Bodies about consumer offsets: reset, status, corrections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

from brokerset_protocol.bodies.json_objects import JsonBody, JsonObject, integer
from brokerset_protocol.bodies.queues import MessageQueue, queue_items, queue_keyed


def _offsets(value: JsonObject, name: str) -> dict[MessageQueue, int]:
    return {queue: integer(entry, f"{name} of {value.what}") for queue, entry in queue_items(value, name)}


@dataclass(frozen=True, slots=True)
class ResetOffsetBody(JsonBody):
    """The offsets after a reset: answer to 222, body of RESET_CONSUMER_CLIENT_OFFSET (220)."""

    object_keys: ClassVar[bool] = True

    offset_table: dict[MessageQueue, int]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        return cls(_offsets(value, "offsetTable"))

    def to_object(self) -> dict[str, object]:
        return {"offsetTable": queue_keyed(self.offset_table)}


@dataclass(frozen=True, slots=True)
class GetConsumerStatusBody(JsonBody):
    """How far clients are: of one client (221) in `message_queue_table`, by client id (223)."""

    object_keys: ClassVar[bool] = True

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        clients = value.inner("consumerTable")
        return cls(
            _offsets(value, "messageQueueTable"),
            {name: _offsets(clients, name) for name in clients.names()} if clients else {},
        )

    def to_object(self) -> dict[str, object]:
        return {
            "consumerTable": {name: queue_keyed(table) for name, table in self.consumer_table.items()},
            "messageQueueTable": queue_keyed(self.message_queue_table),
        }


@dataclass(frozen=True, slots=True)
class QueryCorrectionOffsetBody(JsonBody):
    """Answer to QUERY_CORRECTION_OFFSET (308): by queue id."""

    correction_offsets: dict[int, int]

    @classmethod
    def from_object(cls, value: JsonObject) -> Self:
        what = f"correctionOffsets of {value.what}"
        return cls(
            {integer(key, what): integer(entry, what) for key, entry in value.items("correctionOffsets")}
        )

    def to_object(self) -> dict[str, object]:
        return {"correctionOffsets": self.correction_offsets}
