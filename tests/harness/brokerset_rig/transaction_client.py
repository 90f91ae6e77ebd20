"""A producer of transactions over a raw connection: sends halves, ends them, and is asked about them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from brokerset_formats.message_ids import decode_offset_id
from brokerset_formats.records import Record, decode_record
from brokerset_protocol.bodies.heartbeat import HeartbeatData, ProducerData
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import Client, connected
from brokerset_runtime.remoting import Connection

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "pg"


@dataclass(frozen=True)
class Half:
    """Where a half message is, as its producer was told."""

    key: str
    queue_offset: int
    offset: int
    msg_id: str


@dataclass(frozen=True)
class Question:
    """A check that came from the broker."""

    fields: dict[str, str]
    record: Record

    @property
    def half(self) -> Half:
        fields = self.fields
        return Half(
            fields["msgId"],
            int(fields["tranStateTableOffset"]),
            int(fields["commitLogOffset"]),
            fields["offsetMsgId"],
        )


class TransactionClient(Client):
    """Checks that come are kept in `questions`."""

    def __init__(self, connection: Connection, questions: asyncio.Queue[Question]) -> None:
        super().__init__(connection)
        self.questions = questions

    async def register(self, group: str = GROUP) -> None:
        """Be a producer of the group."""
        data = HeartbeatData(client_id="producer-1", producer_data_set=(ProducerData(group),))
        assert (await self.call(34, data.to_json())).code == 0

    async def send_half(
        self,
        topic: str,
        body: bytes,
        key: str,
        *,
        properties: dict[str, str] | None = None,
        queue_id: int = 0,
        group: str = GROUP,
        **ext: Any,
    ) -> Half:
        """Send one, which has to be stored."""
        reply = await self.half_reply(
            topic, body, key, properties=properties, queue_id=queue_id, group=group, **ext
        )
        assert reply.code == 0, reply.remark
        assert reply.ext["transactionId"] == key
        _, offset = decode_offset_id(reply.ext["msgId"])
        return Half(key, int(reply.ext["queueOffset"]), offset, reply.ext["msgId"])

    async def half_reply(
        self,
        topic: str,
        body: bytes,
        key: str,
        *,
        properties: dict[str, str] | None = None,
        queue_id: int = 0,
        group: str = GROUP,
        **ext: Any,
    ) -> Command:
        """Send one, as the standard client does."""
        every = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": key, "WAIT": "true"}
        fields: dict[str, Any] = {"f": 4, "g": time.time_ns() // 1_000_000, **ext}
        return await self.send(
            topic, body, queue_id=queue_id, properties=every | (properties or {}), **fields
        )

    def _end_fields(self, half: Half, kind: int, group: str, *, check: bool) -> dict[str, str]:
        return {
            "producerGroup": group,
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.offset),
            "commitOrRollback": str(kind),
            "fromTransactionCheck": str(check).lower(),
            "msgId": half.key,
            "transactionId": half.key,
        }

    async def end(
        self, half: Half, kind: int, *, group: str = GROUP, check: bool = False, **changes: Any
    ) -> Command:
        """End it, and wait for the answer, which the standard client does not."""
        return await self.call(37, **(self._end_fields(half, kind, group, check=check) | changes))

    def end_one_way(self, half: Half, kind: int, *, group: str = GROUP, check: bool = False) -> None:
        """End it as the standard client does."""
        self.connection.notify(Command(37, self._end_fields(half, kind, group, check=check)))

    async def asked(self) -> Question:
        """The next check, however long it takes."""
        return await self.questions.get()


@asynccontextmanager
async def transaction_client(port: int) -> AsyncIterator[TransactionClient]:
    """A producer that is connected, and registered in `GROUP`."""
    questions: asyncio.Queue[Question] = asyncio.Queue()

    def note(_connection: Connection, command: Command) -> None:
        questions.put_nowait(Question(dict(command.ext), decode_record(command.body)))

    async with connected(port, {39: note}) as connection:
        client = TransactionClient(connection, questions)
        await client.register()
        yield client
