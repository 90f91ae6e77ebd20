"""Requests that wait for a reply, and the replies that brokers pass on (326). Pure, but for the futures.

Source: `RequestFutureHolder`, `ClientRemotingProcessor.receiveReplyMessage`. Java's client takes every reply
and drops those that nobody waits for any more; this one says so, and whoever replied hears of it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from brokerset_client.errors import ClientClosed, ClientError
from brokerset_client.messages import MessageView
from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import Host
from brokerset_formats.properties import Property, decode_properties, encode_properties
from brokerset_formats.records import Record, encode_record, magic_for
from brokerset_protocol import headers
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import Connection

REQUESTS_MAX: Final = 65_536
"""Requests of one client that wait for a reply; a further one is an error."""

ANSWERED_MAX: Final = 4_096
"""Requests whose reply has come, which are remembered: a reply that comes twice is taken twice."""

_NOWHERE: Final = Host(bytes(4), 0)


class ReplyTable:
    """The requests of one client that wait, by correlation id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[MessageView]] = {}
        self._answered: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, correlation_id: str) -> asyncio.Future[MessageView]:
        """Wait for the reply to a request that is sent now; whoever waits ends that with `forget`.

        Raises `ClientError` for one too many.
        """
        if len(self._waiting) >= REQUESTS_MAX:
            raise ClientError(
                f"{len(self._waiting)} requests of this client wait for a reply already: send fewer at a time"
            )
        future: asyncio.Future[MessageView] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return future

    def forget(self, correlation_id: str) -> None:
        """Wait no more; a late reply is refused."""
        self._waiting.pop(correlation_id, None)

    def close(self) -> None:
        """Fail what waits."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ClientClosed("the client was closed before a reply came"))
                future.exception()  # nobody may be waiting any more; that is no error
        self._waiting.clear()

    def received(self, _: Connection, command: Command) -> Command:
        """PUSH_REPLY_MESSAGE_TO_CLIENT (326): give a reply to the request that waits for it."""
        reply = reply_of(command, self._clock.now_ms())
        correlation_id = reply.properties.get(Property.CORRELATION_ID, "")
        future = self._waiting.pop(correlation_id, None)
        if future is None or future.done():
            if correlation_id in self._answered:
                return command.reply()
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"no request with the correlation id {correlation_id[:64]!r} waits here (any more)",
            )
        if len(self._answered) >= ANSWERED_MAX:
            del self._answered[next(iter(self._answered))]
        self._answered[correlation_id] = None
        future.set_result(reply)
        return command.reply()


def reply_of(command: Command, now_ms: int) -> MessageView:
    """The reply in a PUSH_REPLY_MESSAGE_TO_CLIENT. Raises `Rejected` if it cannot be read.

    It has no place in a log: its offsets are 0, and its queue is the one that the reply was sent to.
    """
    header = headers.PushReplyMessageToClient.from_ext(command.ext)
    try:
        properties = decode_properties((header.properties or "").encode())
        properties[Property.ARRIVE_TIME] = str(now_ms)
        record = Record(
            magic=magic_for(header.topic.encode()),
            queue_id=header.queue_id,
            flag=header.flag,
            queue_offset=0,
            offset=0,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=_host(header.born_host),
            store_timestamp=header.store_timestamp,
            store_host=_host(header.store_host),
            reconsume_times=header.reconsume_times or 0,
            body=command.body,
            topic=header.topic,
            properties=encode_properties(properties),
        )
        return MessageView(encode_record(record))
    except (FormatError, UnicodeError) as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"the reply cannot be read: {error}") from None


def _host(text: str) -> Host:
    """`ip:port`; nowhere for a host with a name, which does not matter to a reply."""
    address, _, port = text.rpartition(":")
    try:
        return Host.from_text(address.strip("/[]"), int(port))
    except (FormatError, ValueError):
        return _NOWHERE
