"""ACK_MESSAGE and BATCH_ACK_MESSAGE in their usual form: messages that are out, of open check points.

Consumers ack the messages of one pop one after the other, so what their handles share is read once. Whatever
is not usual is left to `acks`, which says what is wrong.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from functools import partial
from typing import Final

import orjson

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.pop.check_points import OpenPoint
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.requests.replies import REPLY_TAIL, frame
from brokerset_broker.requests.send_refusals import CODES, refusal
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.errors import FormatError
from brokerset_formats.pop.handles import parse_handle
from brokerset_formats.pop.names import ORDER_REVIVE_QUEUE, real_topic
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_runtime.remoting import Connection

BATCH_POINTS_MAX: Final = 64
"""Check points of a batch that is usual."""

DIGITS_MAX: Final = 18
"""So long a text of digits is a number of 64 bits."""

Names = tuple[object, object, object, str]
"""Topic, group and queue of an ack, and its handle without the offset of the message."""

_DONE: Final = '{"code":0,"extFields":{},' + REPLY_TAIL


def done_pieces() -> list[bytes]:
    """The header of the answer that all is well: what comes before and behind its opaque."""
    return [piece.encode() for piece in _DONE.split("%d")]


class JoinedAcks:
    """One answer to several acks: it is sent when the last record is stored, and safe."""

    def __init__(self, finish: Callable[[int | StoreRefused], None]) -> None:
        self._finish = finish
        self.waits_for = 0
        self._end = 0
        self._refused: StoreRefused | None = None

    def stored(self, result: int | StoreRefused) -> None:
        """One of them is stored, or not."""
        self.waits_for -= 1
        if isinstance(result, StoreRefused):
            self._refused = result
        else:
            self._end = max(self._end, result)
        if not self.waits_for:
            self._finish(self._refused or self._end)


class PlainAcks:
    """Records acks that need no further thought."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        log_of_pops: PopLog,
        store: MessageStore,
        topics: TopicManager,
        admission: Admission,
    ) -> None:
        self._live = live
        self._log = log_of_pops
        self._store = store
        self._topics = topics
        self._admission = admission
        self._named: Names | None = None
        """Of the last ack."""
        self._source: tuple[str, str, int] = ("", "", 0)
        self._start = 0
        self._pop_time = 0

    def take(self, connection: Connection, command: Command) -> bool:
        """Record the ack and answer it when that is safe; False if it is not usual, then nothing is done."""
        ext = command.ext
        handle, offset_text = ext.get("extraInfo"), ext.get("offset")
        if type(handle) is not str or type(offset_text) is not str or command.flag & FLAG_ONEWAY:
            return False
        shared, _, last = handle.rpartition(" ")
        if last != offset_text or len(last) > DIGITS_MAX or not (last.isascii() and last.isdecimal()):
            return False
        names = (ext.get("topic"), ext.get("consumerGroup"), ext.get("queueId"), shared)
        if "liteTopic" in ext:
            return False
        if names != self._named and not self._read(names):
            return False
        point = self._named_point()
        offset = int(last)
        if point is None or not (bit := point.bit_of(offset) & point.left):
            return False
        if not self._are_stored(offset, offset):
            return False
        self._log.ack(point, bit, partial(self._stored, connection, command))
        return True

    def take_batch(self, connection: Connection, command: Command) -> bool:
        """The same for BATCH_ACK_MESSAGE, of messages that are all out, of open check points."""
        if command.flag & FLAG_ONEWAY or self._admission.refuses_writes or not self._log.is_known:
            return False
        try:
            acks = orjson.loads(command.body)["acks"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return False
        if type(acks) is not list or not 0 < len(acks) <= BATCH_POINTS_MAX:
            return False
        taken = []
        for ack in acks:
            found = self._find_batch(ack)
            if found is None:
                return False
            taken.append(found)
        log = self._log
        stored: Callable[[int | StoreRefused], None] = partial(self._stored, connection, command)
        if len(taken) > 1:
            joined = JoinedAcks(stored)
            joined.waits_for = len(taken)
            stored = joined.stored
        for point, bits in taken:
            log.ack(point, bits, stored)
            log.counts.acked += bits.bit_count()
        return True

    def _find_batch(self, ack: object) -> tuple[OpenPoint, int] | None:
        """What a part of a batch acks, if it is usual."""
        if type(ack) is not dict:
            return None
        group, topic, bits_text, flag = ack.get("c"), ack.get("t"), ack.get("b"), ack.get("r", "0")
        if type(group) is not str or type(topic) is not str or type(bits_text) is not str:
            return None
        queue_id, start, pop_time = ack.get("q"), ack.get("so"), ack.get("pt")
        if type(queue_id) is not int or type(start) is not int or type(pop_time) is not int:
            return None
        if type(ack.get("rq")) is not int or ack["rq"] == ORDER_REVIVE_QUEUE:
            return None
        if flag != "0":
            if flag not in ("1", "2"):
                return None
            topic = real_topic(group, topic, int(flag))
        try:
            distances = int.from_bytes(b64decode(bits_text, validate=True), "little")
        except ValueError:
            return None
        if not distances:
            return None
        self._named = None  # it is of single acks
        self._source, self._start, self._pop_time = (topic, group, queue_id), start, pop_time
        return self._found(distances)

    def find(self, names: Names, distances: int) -> tuple[OpenPoint, int] | None:
        """The open check point of several acks and the bits of their messages; None if one is not usual.

        Bit i of `distances` is the message i behind the start that their handles name.
        """
        return self._found(distances) if names == self._named or self._read(names) else None

    def _found(self, distances: int) -> tuple[OpenPoint, int] | None:
        """`find` for the check point that was named last."""
        point = self._named_point()
        if point is None:
            return None
        bits, start = distances, self._start
        if point.distances is not None:
            bits, rest = 0, distances
            while rest:
                distance = rest.bit_length() - 1
                if not (bit := point.bit_of(start + distance)):
                    return None
                bits |= bit
                rest ^= 1 << distance
        if bits & ~point.left:
            return None
        first = start + (distances & -distances).bit_length() - 1
        return (point, bits) if self._are_stored(first, start + distances.bit_length() - 1) else None

    def _named_point(self) -> OpenPoint | None:
        """The open check point that was named last, if all is usual so far."""
        log, source = self._log, self._source
        if self._admission.refuses_writes or not log.is_known:
            return None
        popped = log.points.sources.get(source)
        if popped is None or self._topics.items.get(source[0]) is None:
            return None
        return log.points.find(popped, self._start, self._pop_time)

    def _are_stored(self, first: int, last: int) -> bool:
        """Whether the queue that was named last has these messages."""
        topic, _, queue_id = self._source
        store = self._store
        return store.queue_min(topic, queue_id) <= first and last <= store.queue_end(topic, queue_id)

    def _read(self, names: Names) -> bool:
        """Remember what the first ack of several names."""
        topic, group, queue, shared = names
        if type(topic) is not str or type(group) is not str or type(queue) is not str:
            return False
        try:
            handle = parse_handle(f"{shared} 0")
        except FormatError:
            return False
        if handle.is_ordered or handle.log_offset is not None or queue != str(handle.queue_id):
            return False
        self._source = (topic, group, handle.queue_id)
        self._start, self._pop_time = handle.start_offset, handle.pop_time
        self._named = names
        return True

    def _stored(self, connection: Connection, command: Command, result: int | StoreRefused) -> None:
        if isinstance(result, StoreRefused):
            rejected = refusal(result, self._live.current.max_message_size)
            connection.answer(command.reply(rejected.code, rejected.remark))
            return
        when_durable = self._admission.when_durable
        if when_durable is None:
            connection.answer(_done(command))
        else:
            when_durable(result, partial(_finish, connection, command))


def _done(command: Command) -> bytes:
    return frame((_DONE % command.opaque).encode())


def _finish(connection: Connection, command: Command, status: PutStatus) -> None:
    code = CODES.get(status, ResponseCode.SYSTEM_ERROR)
    is_safe = code == ResponseCode.SUCCESS
    connection.answer(_done(command) if is_safe else command.reply(code, status.value))
