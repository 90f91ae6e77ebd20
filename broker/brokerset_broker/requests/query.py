"""Single messages by key (12) and by their address (33)."""

from __future__ import annotations

from typing import Final

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.access_control import CheckRecord
from brokerset_broker.requests.copies import message_at
from brokerset_broker.store.message_store import MessageStore
from brokerset_formats.records import decode_record
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import FRAME_SIZE_MAX, Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.pull import QueryMessage, QueryMessageResponse, ViewMessage
from brokerset_runtime.remoting import Connection, Handler
from brokerset_runtime.remoting.connection import Reply

UNIQUE_KEY_MESSAGES_MAX: Final = 32
"""Messages looked for by a client-made id (Java's `defaultQueryMaxNum`)."""

QUERY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of one answer; what does not fit is left out."""


class QueryProcessor:
    """Finds messages for people and tools."""

    def __init__(
        self, *, live: LiveSettings, store: MessageStore, check_record: CheckRecord | None = None
    ) -> None:
        """`check_record` says whether a record may be seen: an address names no topic."""
        self._check_record = check_record
        self._live = live
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """The request codes that are served here."""
        return {RequestCode.QUERY_MESSAGE: self.query, RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    def query(self, _connection: Connection, command: Command) -> Reply:
        """QUERY_MESSAGE: whole records whose index entry has the key."""
        header = QueryMessage.from_ext(command.ext)
        wanted = UNIQUE_KEY_MESSAGES_MAX if header.unique_key_query else header.max_num
        wanted = min(wanted, self._live.current.max_msgs_num_batch)
        found = self._store.query(
            header.topic, header.key, wanted, header.begin_timestamp, header.end_timestamp
        )
        ext = QueryMessageResponse(
            index_last_update_timestamp=found.index_timestamp, index_last_update_phyoffset=found.index_offset
        ).to_ext()
        records: list[memoryview] = []
        size = 0
        for record in found.records:
            if self._check_record is not None and decode_record(record).topic != header.topic:
                continue  # its key has the same hash, and it is of a topic that nobody has checked
            size += len(record)
            if records and size > QUERY_BYTES_MAX:
                break
            records.append(record)
        if not records:
            return command.reply(
                ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", ext=ext
            )
        return command.reply(ext=ext, body=b"".join(records))

    def view(self, connection: Connection, command: Command) -> Reply:
        """VIEW_MESSAGE_BY_ID: the record at an address of the commit log."""
        header = ViewMessage.from_ext(command.ext)
        record = self._store.read_announced(header.offset)
        if record is None or len(record) > FRAME_SIZE_MAX:  # then it is no record
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
        data = bytes(record)
        if self._check_record is not None:
            self._check_record(connection, command, message_at(data, header.offset))
        return command.reply(body=data)
