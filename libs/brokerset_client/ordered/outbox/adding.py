"""Messages into the outbox, inside of a business transaction."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any, Final

from sqlalchemy import Connection, Row, insert

from brokerset_client.errors import MessageInvalid
from brokerset_client.messages import Message
from brokerset_client.ordered.outbox.tables import OutboxTables
from brokerset_client.ordered.producing.encoding import prepare
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_formats.order_keys import LOGICAL_PARTITIONS, logical_partition
from brokerset_runtime.clock import Clock, SystemClock

OUTBOX_ID: Final = "OUTBOX_ID"
"""Property of a message from an outbox: `name:row`, the same in a repetition."""

_CHECKED: Final = ProducerSettings(compress_from_bytes=2**31)
"""A message that cannot be sent is refused before it is in the table; nothing is compressed for that."""

_LONGEST_ID: Final = "x" * 64 + ":" + "9" * 19


class Outbox:
    """Adds messages to the table. Any number of processes and threads may use one each."""

    def __init__(
        self, tables: OutboxTables | None = None, *, clock: Clock | None = None, random: Random | None = None
    ) -> None:
        self.tables = tables or OutboxTables()
        self._clock = clock or SystemClock()
        self._random = random or Random()

    def add(self, connection: Connection, message: Message, key: str | None = None) -> int:
        """Write a message as part of the connection's transaction; returns the row's id.

        `key` is the order key; without it the message's `sharding_key`. Messages of one key are sent in the
        order of their rows. Of a message its topic (the subject), body, tags, keys, free properties and flag
        are kept. Raises `MessageInvalid`, so that nothing that no broker takes gets into the table.

        With an `AsyncConnection`: `await connection.run_sync(outbox.add, message, key)`.
        """
        key = key if key is not None else message.sharding_key
        logical = self._random.randrange(LOGICAL_PARTITIONS) if key is None else logical_partition(key)
        self._check(message, key, logical)
        properties = json.dumps(
            {
                "tags": message.tags,
                "keys": message.keys if isinstance(message.keys, str) else list(message.keys),
                "flag": message.flag,
                "free": dict(message.properties),
            },
            ensure_ascii=False,
        )
        statement = insert(self.tables.messages).values(
            subject=message.topic,
            logical=logical,
            order_key=key,
            body=message.body,
            properties=properties,
            created_ms=self._clock.now_ms(),
        )
        (number,) = connection.execute(statement).inserted_primary_key or (0,)
        return int(number)

    def _check(self, message: Message, key: str | None, logical: int) -> None:
        if message.system_properties:
            raise MessageInvalid("an outbox keeps no system properties: use the fields of Message")
        if OUTBOX_ID in message.properties:
            raise MessageInvalid(f"property {OUTBOX_ID!r} is made by the outbox: use another name")
        stamped = replace(message, properties={**message.properties, OUTBOX_ID: _LONGEST_ID})
        prepare(stamped, key, number=0, logical=logical, message_id="0" * 56, now=0.0, settings=_CHECKED)


def message_of(row: Row[Any], name: str) -> Message:
    """The message of a row, with its `OUTBOX_ID`."""
    columns = row._mapping
    made = json.loads(columns["properties"])
    return Message(
        topic=columns["subject"],
        body=bytes(columns["body"]),
        tags=made["tags"],
        keys=made["keys"],
        flag=made["flag"],
        properties={**made["free"], OUTBOX_ID: f"{name}:{columns['id']}"},
        sharding_key=columns["order_key"],
    )
