"""Plain sends without the native core: those at the beginning of a chunk of input are stored by one call.

A part of what `SendProcessor.send` stores without further ado is served here, with the same records and
answers. Everything else, and what follows it in the chunk, is left to the handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.send import SendProcessor
from brokerset_broker.requests.send_properties import PLAIN_BITS, is_unusual, waits, with_end
from brokerset_broker.requests.signed_sends import SignedSends
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.topic_facts import TopicFacts
from brokerset_broker.store.dispatch import Derived, derived
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.message_store import MessageStore, Placed, PlainMessage
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import FLAG_ONEWAY, FLAG_RESPONSE, Command, whole_commands
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import Connection

TIMED_MASK: Final = 31
"""One run of 32 is timed, as one send of 32 is."""

RUN_MIN: Final = 4
"""Chunks that cannot have so many requests like their first are left to the handlers: a run costs 6 µs, and
saves 2 µs for each of its messages."""

UNIQUE_ID_SIZE_MAX: Final = 64
"""Letters and digits of a client-made id; those of clients have 32. Others are left to the handler."""

UNIQ_KEY: Final = "UNIQ_KEY\x01"
ID_START: Final = len(UNIQ_KEY)
HEXADECIMAL: Final = "0123456789ABCDEF"

RESTS_MAX: Final = 1024
REST_SIZE_MAX: Final = 256
"""Of the properties behind the id that are remembered, and the longest ones' characters."""

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_NO_ANSWER: Final = FLAG_RESPONSE | FLAG_ONEWAY

Send: TypeAlias = tuple[Command, TopicFacts, int, str]
"""A request, what is known of its topic, queue id, client-made id."""


class SendRuns:
    """Serves the plain sends at the beginning of a chunk; for `RemotingServer`."""

    def __init__(
        self,
        processor: SendProcessor,
        *,
        store: MessageStore,
        admission: Admission,
        stats: BrokerStats,
        clock: Clock,
        is_open: Callable[[], bool],
        signed: SignedSends | None = None,
    ) -> None:
        """`is_open`: whether sends are served now, as the broker's role has it; `signed`: whose sends are
        served, None where nobody is asked."""
        self._processor = processor
        self._store = store
        self._admission = admission
        self._stats = stats
        self._clock = clock
        self._is_open = is_open
        self._signed = signed
        self._properties = _Properties()
        self._runs = 0
        self.served = 0
        """Messages that were stored this way."""

    def serve(self, connection: Connection, data: bytes) -> int:
        """Serve the plain sends at the beginning of `data`; returns their bytes."""
        born_host = connection.state.get("born_host")
        if (
            born_host is None
            or len(data) < RUN_MIN * (int.from_bytes(data[:4], "big") + 4)
            or self._admission.refuses_writes
            or not self._is_open()
        ):
            return 0
        sends, messages, size = self._read(connection, data)
        if not sends:
            return 0
        self._runs += 1
        began = 0.0 if self._runs & TIMED_MASK else self._clock.monotonic()
        try:
            placed = self._store.append_run(messages, born_host)
        except StoreRefused:
            return 0  # the handlers hear it, too, and tell each
        if placed is None:
            return 0
        if began:
            self._stats.put_took(int((self._clock.monotonic() - began) * 1000 / len(sends)))
        self.served += len(sends)
        self._count(sends, placed)
        when_durable = self._admission.when_durable
        if when_durable is not None:
            connection.in_flight += len(sends)
            offset, last_size, _ = placed[-1]
            when_durable(offset + last_size, partial(self._finish, connection, sends, placed))
            return size
        stored = self._processor.replies.stored
        answers: list[bytes] = []
        for (command, _, queue_id, unique_id), (offset, _, queue_offset) in zip(sends, placed, strict=True):
            answer = stored(command, queue_id, queue_offset, offset, unique_id)
            assert type(answer) is bytes, "the id is plain, and the header is JSON"
            answers.append(answer)
        connection.send(b"".join(answers))
        return size

    def _read(self, connection: Connection, data: bytes) -> tuple[list[Send], list[PlainMessage], int]:
        """The plain sends at the beginning of `data` that may be served now, and how many bytes they are."""
        processor, signed = self._processor, self._signed
        waiting = self._admission.when_durable is not None
        count_max = connection.in_flight_room
        if not waiting and count_max > 0:
            count_max = connection.answers_room // (processor.replies.stored_size_max + UNIQUE_ID_SIZE_MAX)
        read, properties_of = processor.read, self._properties.of
        body_max, properties_max = processor.body_max, processor.properties_max
        self._properties.use(processor.suffix)
        sends: list[Send] = []
        messages: list[PlainMessage] = []
        size = 0
        for command, end in whole_commands(data):
            ext, body = command.ext, command.body
            if (
                len(sends) >= count_max
                or command.code != _SEND
                or command.flag & _NO_ANSWER
                or command.binary
                or ext.get("m") == "true"
                or (signed is not None and not signed.admits(connection, command))
            ):
                break
            try:
                topic, facts, queue_id, sys_flag, flag, born_timestamp, reconsume_times, text = read(ext)
                found = properties_of(text)
            except (Rejected, KeyError, ValueError, TypeError):
                break
            if (
                facts is None
                or found is None
                or facts.is_ordered
                or facts.is_special
                or not 0 <= queue_id < facts.queues
                or sys_flag & ~PLAIN_BITS
                or not 0 < len(body) <= body_max
            ):
                break
            properties, unique_id, keys, wants_to_wait = found
            if len(properties) > properties_max or (waiting and not wants_to_wait):
                break
            messages.append(
                (topic, queue_id, body, properties, keys, flag, sys_flag, born_timestamp, reconsume_times)
            )
            sends.append((command, facts, queue_id, unique_id))
            size = end
        return sends, messages, size

    def _count(self, sends: Sequence[Send], placed: Sequence[Placed]) -> None:
        sizes_of: dict[TopicFacts, list[int]] = {}
        for (_, facts, _, _), (_, size, _) in zip(sends, placed, strict=True):
            sizes = sizes_of.get(facts)
            if sizes is None:
                sizes = sizes_of[facts] = []
            sizes.append(size)
        stats = self._stats
        for facts, sizes in sizes_of.items():
            total, count = sum(sizes), len(sizes)
            stats.put_messages += count
            stats.put_calls += count
            stats.put_bytes += total
            flow, traffic = facts.flow, facts.traffic
            flow.messages += count
            flow.size += total
            flow.calls += count
            traffic.bytes_in += total
            for size in sizes:
                traffic.sizes[(size - 1).bit_length()] += 1

    def _finish(
        self, connection: Connection, sends: Sequence[Send], placed: Sequence[Placed], status: PutStatus
    ) -> None:
        """Answer the sends of one run: they wait together, for the end of its last record."""
        processor = self._processor
        for (command, _, queue_id, unique_id), (offset, _, queue_offset) in zip(sends, placed, strict=True):
            ids = processor.replies.message_id(offset)
            processor.finish(connection, command, queue_id, queue_offset, ids, unique_id, status)


class _Properties:
    """The properties of plain sends as they are stored.

    Those of a client mostly differ in the id at their beginning only, so what follows from the rest is
    remembered, in a table that is cleared when it is full.
    """

    def __init__(self) -> None:
        self._suffix = ""
        self._rests: dict[str, tuple[bytes, int, bool]] = {}

    def use(self, suffix: str) -> None:
        """Add `suffix` to all properties."""
        if suffix is not self._suffix:
            self._suffix = suffix
            self._rests.clear()

    def of(self, text: str) -> tuple[bytes, str, Derived, bool] | None:
        """The properties of a send as they are stored, the client-made id, what the store derives from them,
        and whether the answer waits for the disk. None if they are not plain."""
        end = text.find("\x02", ID_START)
        rest, unique_id = text[end:], text[ID_START:end]
        known = self._rests.get(rest)
        if (
            known is not None
            and ID_START < end <= ID_START + UNIQUE_ID_SIZE_MAX
            and not unique_id.strip(HEXADECIMAL)
            and text.startswith(UNIQ_KEY)
        ):
            raw_rest, tags_code, waiting = known
            key = unique_id.encode()
            return b"UNIQ_KEY\x01%b%b" % (key, raw_rest), unique_id, (tags_code, key, None), waiting
        return self._of_new(text, rest)

    def _of_new(self, text: str, rest: str) -> tuple[bytes, str, Derived, bool] | None:
        if is_unusual(text):
            return None
        text, unique_id = with_end(text)
        if (
            unique_id is None
            or len(unique_id) > UNIQUE_ID_SIZE_MAX
            or not (unique_id.isalnum() and unique_id.isascii())
        ):
            return None
        raw = (text + self._suffix).encode()
        found = derived(raw)
        waiting = waits(text)
        if (
            found[2] is None
            and text.startswith(UNIQ_KEY)
            and rest.startswith("\x02")
            and len(rest) <= REST_SIZE_MAX
        ):
            if len(self._rests) >= RESTS_MAX:
                self._rests.clear()
            self._rests[rest] = raw[ID_START + len(unique_id) :], found[0], waiting
        return raw, unique_id, found, waiting
