"""From Arrow batches to messages and where each of them goes. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from brokerset_client.messages import Message
from brokerset_spark.topics.sink.options import SinkOptions

MESSAGE_OVERHEAD: Final = 160
"""Bytes that a message takes in a request besides what the row gives: its id, lengths, separators."""


class RowInvalid(ValueError):
    """A row that no broker would take; the text names it and what to change."""


@dataclass(frozen=True, slots=True)
class Row:
    """One message, and what it wants of its place."""

    message: Message
    order_key: str | None
    queue: tuple[str, int] | None
    """Broker name and queue id, if the row names them."""
    size: int
    """About its bytes in a request."""
    rank: Any = None
    """The value of the column `orderBy`."""


def rows_of(batch: pa.RecordBatch, options: SinkOptions) -> Iterator[Row]:
    """The messages of a batch, in its order. Raises `RowInvalid`."""
    columns = {name: batch.column(at).to_pylist() for at, name in enumerate(batch.schema.names)}
    none: list[Any] = [None] * batch.num_rows
    bodies = columns.get("value", columns.get("body", none))
    topics = columns.get("topic", none)
    keys, tags = columns.get("key", none), columns.get("tags", none)
    headers = columns.get("headers", columns.get("properties", none))
    order_keys = columns.get("orderKey", none)
    brokers, queues = columns.get("brokerName", none), columns.get("queueId", none)
    delays = columns.get("delay", none)
    ranks = none if options.order_by is None else columns[options.order_by]
    for at, body in enumerate(bodies):
        topic = options.topic or topics[at]
        if not topic:
            raise RowInvalid("a row has no topic: it is null or empty, and the option topic is not given")
        if not body:
            raise RowInvalid(
                f"a row for topic {topic} has no value: brokers refuse empty bodies; leave such rows out"
            )
        if (queues[at] is None) != (brokers[at] is None) and queues is not none:
            raise RowInvalid(f"a row for topic {topic} has only one of queueId and brokerName")
        if queues[at] is not None and queues[at] < 0:
            raise RowInvalid(f"a row for topic {topic} has queueId {queues[at]}: they count from 0")
        raw = body.encode() if isinstance(body, str) else body
        properties = _properties(headers[at], topic)
        key = _text(keys[at], "key", topic)
        message = Message(
            topic=topic,
            body=raw,
            tags=tags[at] or None,
            keys=() if key is None else tuple(key.split()),
            properties=properties,
            delay_ms=delays[at] or None,
            sharding_key=None if options.ordered else order_keys[at],
        )
        problem = message.problem()
        if problem is not None:
            raise RowInvalid(f"a row for topic {topic} cannot be sent: {problem}")
        if options.idempotence and order_keys[at] is None:
            raise RowInvalid(f"a row for subject {topic} has no orderKey: idempotence needs one in each row")
        texts = (key, tags[at], order_keys[at], *properties, *properties.values())
        size = len(raw) + MESSAGE_OVERHEAD + sum(len(each.encode()) for each in texts if each)
        queue = None if queues[at] is None else (brokers[at], queues[at])
        yield Row(message, order_keys[at], queue, size, ranks[at])


def _text(value: str | bytes | None, column: str, topic: str) -> str | None:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise RowInvalid(
                f"a row for topic {topic} has a {column} that is no UTF-8 text: properties are text; "
                "write it as hex or base64"
            ) from error
    return value


def _properties(value: Any, topic: str) -> dict[str, str]:
    if not value:
        return {}
    pairs = [(entry["key"], entry["value"]) for entry in value] if isinstance(value[0], dict) else list(value)
    made: dict[str, str] = {}
    for name, raw in pairs:
        text = _text(raw, "header", topic)
        if not name or not text:
            raise RowInvalid(f"a row for topic {topic} has an empty header ({name!r}): leave it out")
        if name in made:
            raise RowInvalid(
                f"a row for topic {topic} has the header {name!r} twice: properties have one value"
            )
        made[name] = text
    return made


# -- one order of rows for each attempt --------------------------------------------------------------------


def digest_of(row: Row) -> bytes:
    """What tells a message from others: everything of it that is stored."""
    message = row.message
    made = hashlib.blake2b(digest_size=16)
    for part in (
        message.topic,
        row.order_key or "",
        message.tags or "",
        " ".join(message.keys),
        "\0".join(f"{name}\0{value}" for name, value in sorted(message.properties.items())),
    ):
        encoded = part.encode()
        made.update(len(encoded).to_bytes(4, "big") + encoded)
    made.update(message.body)
    return made.digest()


def in_order(rows: Sequence[Row], order_by: str) -> list[Row]:
    """Sorted by the column `orderBy`; equal ones by what is in them, so that each attempt has one order."""
    for row in rows:
        if row.rank is None:
            raise RowInvalid(f"a row for topic {row.message.topic} has no {order_by}, which is the orderBy")
    return sorted(rows, key=lambda row: (row.rank, digest_of(row)))


def digest_of_all(rows: Sequence[Row]) -> int:
    """32 bits that stand for the rows and their order."""
    made = hashlib.blake2b(digest_size=4)
    for row in rows:
        made.update(digest_of(row))
    return int.from_bytes(made.digest(), "big")
