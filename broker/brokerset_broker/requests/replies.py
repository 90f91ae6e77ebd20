"""Replies of the hot paths, written as text instead of through a header class."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import orjson

from brokerset_protocol.codes import LANGUAGE_NAMES, Language
from brokerset_protocol.commands import PROTOCOL_VERSION, Command, encode
from brokerset_protocol.headers.ordered import PULL_GROUP_POSITION

_prefix = struct.Struct(">II").pack

REPLY_TAIL: Final = (
    f'"flag":1,"language":"{LANGUAGE_NAMES[Language.PYTHON]}",'
    f'"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION},"opaque":%d}}'
)
"""End of a reply's header; whoever fills in the rest gives the request's opaque."""


def frame(header: bytes, body_size: int = 0) -> bytes:
    """The beginning of a JSON frame: lengths and header. The body of `body_size` bytes follows it."""
    size = len(header)
    return _prefix(4 + size + body_size, size) + header


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode().replace("%", "%%")


class SendReplies:
    """Successful answers to sends; the host of the message ids and the region are fixed for a broker."""

    __slots__ = ("_batch_json", "_host", "_json", "_region", "_store_host", "_trace", "stored_size_max")

    def __init__(self, store_host: bytes, region: str, trace_on: bool) -> None:
        self._store_host = store_host
        self._host = store_host.hex().upper()
        self._region = region
        self._trace = "true" if trace_on else "false"
        start = '{"code":0,"extFields":{"queueId":"%d","transactionId":"%s","msgId":"'
        end = f'","TRACE_ON":"{self._trace}","MSG_REGION":{_quoted(region)},"queueOffset":"%d"}},{REPLY_TAIL}'
        self._json = f"{start}{self._host}%016X{end}"
        self._batch_json = f"{start}%s{end}"
        self.stored_size_max = len(self._json.encode()) + 128
        """Bytes of an answer for one stored message at most, without its client-made id."""

    def pieces(self, *, with_id: bool) -> list[bytes]:
        """The text of `success` before queue id, client-made id, message ids, queue offset and opaque, and
        behind them, in JSON. Without such an id there is no piece for it."""
        unique_id = "uniqueId700000000001" if with_id else ""
        queue_id, ids, queue_offset, opaque = (
            700_000_000_002,
            "ids700000000003",
            700_000_000_004,
            700_000_000_005,
        )
        answer = self.success(Command(0, opaque=opaque), queue_id, queue_offset, ids, unique_id)
        rest, pieces = (encode(answer) if isinstance(answer, Command) else answer)[8:], list[bytes]()
        for value in (str(queue_id), unique_id, ids, str(queue_offset), str(opaque)):
            piece, _, rest = rest.partition(value.encode()) if value else (b"", b"", rest)
            pieces.append(piece)
        return [*pieces, rest]

    def waiting_pieces(self) -> list[bytes]:
        """The text of `waiting` before queue id, message id, queue offset, client-made id, recall handle and
        opaque, and behind them, in JSON."""
        queue_id, queue_offset, opaque = 700_000_000_002, 700_000_000_004, 700_000_000_005
        ids, unique_id, handle = "ids700000000003", "uniqueId700000000001", "handle700000000006"
        answer = self.waiting(Command(0, opaque=opaque), queue_id, queue_offset, ids, unique_id, handle)
        rest, pieces = encode(answer)[8:], list[bytes]()
        for value in (str(queue_id), ids, str(queue_offset), unique_id, handle, str(opaque)):
            piece, _, rest = rest.partition(value.encode())
            pieces.append(piece)
        return [*pieces, rest]

    def waiting(
        self, command: Command, queue_id: int, queue_offset: int, ids: str, unique_id: str, handle: str
    ) -> Command:
        """The answer for a message that waits for its time, with the handle by which it can be recalled."""
        return with_handle(self.reply(command, 0, None, queue_id, queue_offset, ids, unique_id), handle)

    def message_id(self, offset: int) -> str:
        """The offsetMsgId of a record of this broker."""
        return f"{self._host}{offset:016X}"

    def message_ids(self, offsets: Sequence[int]) -> str:
        """The offsetMsgIds of several records, joined by commas."""
        host = self._store_host
        ids = b"".join([host + offset.to_bytes(8, "big") for offset in offsets])
        return ids.hex(",", len(host) + 8).upper()

    def stored(
        self, command: Command, queue_id: int, queue_offset: int, offset: int, unique_id: str
    ) -> bytes | Command:
        """The answer for one stored message at `offset` of the log."""
        if command.binary or not unique_id.isalnum():  # letters and digits of any script need no escape
            return self.reply(command, 0, None, queue_id, queue_offset, self.message_id(offset), unique_id)
        header = (self._json % (queue_id, unique_id, offset, queue_offset, command.opaque)).encode()
        size = len(header)
        return _prefix(4 + size, size) + header

    def success(
        self, command: Command, queue_id: int, queue_offset: int, ids: str, unique_id: str
    ) -> bytes | Command:
        """The answer for a stored message, or a batch: `ids`, joined by commas, may not fit a frame."""
        if command.binary or not unique_id.isalnum():
            return self.reply(command, 0, None, queue_id, queue_offset, ids, unique_id)
        return frame((self._batch_json % (queue_id, unique_id, ids, queue_offset, command.opaque)).encode())

    def reply(
        self,
        command: Command,
        code: int,
        remark: str | None,
        queue_id: int,
        queue_offset: int,
        ids: str,
        unique_id: str,
    ) -> Command:
        """The same as a command, also for the codes that tell of a stored message that is not yet safe."""
        ext = {
            "queueId": str(queue_id),
            "msgId": ids,
            "queueOffset": str(queue_offset),
            "TRACE_ON": self._trace,
            "MSG_REGION": self._region,
        }
        if unique_id:
            ext["transactionId"] = unique_id
        return command.reply(code, remark, ext=ext)


def with_handle(reply: Command, handle: str | None) -> Command:
    """Tell how the message can be recalled, if it can."""
    if handle is not None:
        reply.ext["recallHandle"] = handle
    return reply


_PULL_JSON: Final = (
    '{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","groupSysFlag":"%d","nextBeginOffset":"%d",'
    '"maxOffset":"%d","minOffset":"%d","topicSysFlag":"%d"},"remark":"%s",' + REPLY_TAIL
)


def pull_pieces() -> list[bytes]:
    """The fixed texts of an answer that gives messages. Between them: flags of the group, next, largest and
    smallest offset, flags of the topic, and the request's opaque."""
    start, middle, *pieces = _PULL_JSON.replace("%s", "FOUND").split("%d")
    return [f"{start}0{middle}0{pieces[0]}".encode(), *(piece.encode() for piece in pieces[1:])]


def pull_reply(
    command: Command,
    code: int,
    remark: str,
    *,
    suggested_broker_id: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    topic_sys_flag: int,
    group_sys_flag: int,
    parts: Sequence[memoryview],
    size: int,
    group_position: int | None = None,
) -> bytes:
    """The whole frame of an answer to a pull; `parts` are records, `size` bytes together."""
    if command.binary or group_position is not None:
        ext = {
            "suggestWhichBrokerId": str(suggested_broker_id),
            "groupSysFlag": str(group_sys_flag),
            "nextBeginOffset": str(next_offset),
            "maxOffset": str(max_offset),
            "minOffset": str(min_offset),
            "topicSysFlag": str(topic_sys_flag),
        }
        if group_position is not None:
            ext[PULL_GROUP_POSITION] = str(group_position)
        return encode(command.reply(code, remark, ext=ext, body=b"".join(parts)))
    header = (
        _PULL_JSON
        % (
            code,
            suggested_broker_id,
            group_sys_flag,
            next_offset,
            max_offset,
            min_offset,
            topic_sys_flag,
            remark,
            command.opaque,
        )
    ).encode()
    if not size:
        return frame(header)
    return b"".join((frame(header, size), *parts))
