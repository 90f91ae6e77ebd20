"""Brokers that are wrong about sends, each in one way: what a comparison of two paths must notice.

They stand for mistakes of a native path: each changes what the Python path of one of the two brokers does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from brokerset_broker.requests import send
from brokerset_broker.requests.replies import SendReplies
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.store import dispatch, message_store
from brokerset_broker.store.consume_queue import ConsumeQueue
from brokerset_broker.store.dispatch import Arrivals, Dispatcher
from brokerset_formats.hashing import java_hash
from brokerset_formats.index_file import IndexTable
from brokerset_formats.properties import Property, decode_properties
from brokerset_rig.send_reference import Broken
from brokerset_runtime.remoting import Connection


def _changed(owner: Any, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Broken:
    """A function or method with something around it."""
    return lambda: mock.patch.object(owner, name, change(getattr(owner, name)))


def _on_arguments(
    change: Callable[..., tuple[Any, ...]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda real: lambda *arguments, **named: real(*change(*arguments), **named)


@contextmanager
def pop_check_kept() -> Iterator[None]:
    """The search for POP_CK is left out of what makes a send unusual: the property is stored."""
    with mock.patch.object(Property, "POP_CK", "POP_CK_no"):
        yield


@contextmanager
def region_of_client_kept() -> Iterator[None]:
    """A client's TRACE_ON comes through."""
    real = decode_properties

    def decode(raw: bytes) -> dict[str, str]:
        found = real(raw)
        if Property.TRACE_ON in found:
            found["TRACE_ON_"] = found[Property.TRACE_ON]
        return found

    with mock.patch.object(send, "decode_properties", decode):
        yield


def _answers_one_way(real: Callable[..., Any]) -> Callable[..., Any]:
    def serve(self: Connection, command: Any) -> None:
        if command.code == 310 and command.flag == 2:
            command.flag = 0
        real(self, command)

    return serve


def _announces_no_second(real: Callable[..., Any]) -> Callable[..., Any]:
    def note(self: Arrivals, queue: ConsumeQueue, tags_code: int | None) -> None:
        if not queue.arrival_pending:
            real(self, queue, tags_code)

    return note


def _crc_of_first_bytes(real: Callable[..., int]) -> Callable[..., int]:
    return lambda body: real(bytes(body)[:400])


def _waits_always(_real: Callable[..., bool]) -> Callable[..., bool]:
    return lambda _properties: True


def _unit_of_size(self: ConsumeQueue, offset: int, size: int, code: int) -> tuple[Any, ...]:
    return self, offset, size + (size > 600), code


def _keys_of_first(
    self: Dispatcher, topic: str, uniq_key: Any, keys: Any, offset: int, now: int
) -> tuple[Any, ...]:
    return self, topic, uniq_key, keys.split(b" ")[0] if keys else keys, offset, now


def _seconds_of_file(self: IndexTable, entries: Any, now: int) -> tuple[Any, ...]:
    return self, entries, now + 1000


def _one_message(self: BrokerStats, topic: str, _messages: int, size: int) -> tuple[Any, ...]:
    return self, topic, 1, size


@contextmanager
def tags_hashed_as_bytes() -> Iterator[None]:
    """Java hashes characters; hashes that were made before are remembered."""
    with (
        mock.patch.object(dispatch, "java_hash", lambda text: java_hash(text.encode().decode("latin-1"))),
        mock.patch.dict(dispatch._tags_codes, clear=True),
        mock.patch.dict(dispatch._rests, clear=True),
    ):
        yield


BROKEN: Final[dict[str, Broken]] = {
    "POP_CK is stored": pop_check_kept,
    "TRACE_ON of a client is stored": region_of_client_kept,
    "a one-way send is answered": _changed(Connection, "_serve", _answers_one_way),
    "arrivals of several tags have the first one": _changed(Arrivals, "note", _announces_no_second),
    "the CRC is of a body's first bytes": _changed(message_store, "crc31", _crc_of_first_bytes),
    "WAIT=false waits": _changed(send, "waits", _waits_always),
    "a unit's size is wrong for large records": _changed(ConsumeQueue, "put", _on_arguments(_unit_of_size)),
    "the index has the first of several keys": _changed(
        Dispatcher, "put_index_keys", _on_arguments(_keys_of_first)
    ),
    "seconds of batches' index units are wrong": _changed(
        IndexTable, "put_many", _on_arguments(_seconds_of_file)
    ),
    "tags are hashed as bytes": tags_hashed_as_bytes,
    "a batch's answer has the ids without commas": _changed(
        SendReplies, "message_ids", lambda real: lambda *given: real(*given).replace(",", "")
    ),
    "a batch counts as one message": _changed(BrokerStats, "put", _on_arguments(_one_message)),
}
