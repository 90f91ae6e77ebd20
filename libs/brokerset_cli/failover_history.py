"""What writers and a consumer saw, in the order of time: kept in memory while it is measured, then JSON
lines."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

_DIGITS_MAX: Final = 20
"""Longest number at the head of a body."""


def body_of(number: int, size: int) -> bytes:
    """Return the body of a message: its number, and bytes that only this number has."""
    seed = hashlib.sha256(b"%d" % number).hexdigest().encode()
    return (b"%d:" % number + seed * (size // len(seed) + 1))[:size]


def number_of(body: bytes) -> int | None:
    """Return the number that a body begins with; None when it has none."""
    head = body[: _DIGITS_MAX + 1].partition(b":")
    return int(head[0]) if head[1] and head[0].isdigit() else None


def checksum(body: bytes) -> int:
    """Return what the history keeps of a body."""
    return zlib.crc32(body)


@dataclass(frozen=True, slots=True)
class Ack:
    """One acknowledgement, as the figures need it."""

    t: float
    broker: str


class History:
    """Events of one run; the keys are those of `failover_check`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: list[tuple[Any, ...]] = []
        self.acks: list[Ack] = []
        """Every acknowledgement, in order."""

    def sent(self, number: int, queue: int, broker: str, body: bytes) -> None:
        """A request leaves now."""
        self._events.append((self._clock(), "send", number, queue, None, broker, checksum(body), None))

    def acked(self, number: int, queue: int, offset: int, broker: str) -> None:
        """Its answer is `SEND_OK`."""
        now = self._clock()
        self.acks.append(Ack(now, broker))
        self._events.append((now, "ack", number, queue, offset, broker, None, None))

    def failed(self, number: int, queue: int, broker: str, why: str) -> None:
        """It was refused, its connection has ended, or there was no answer in time."""
        self._events.append((self._clock(), "fail", number, queue, None, broker, None, why))

    def consumed(self, queue: int, offset: int, broker: str, body: bytes) -> None:
        """The consumer was given this."""
        number = number_of(body)
        self._events.append((self._clock(), "consume", number, queue, offset, broker, checksum(body), None))

    def found(self, queue: int, offset: int, broker: str, body: bytes) -> None:
        """The scan at the end met this."""
        number = number_of(body)
        self._events.append((self._clock(), "final", number, queue, offset, broker, checksum(body), None))

    def note(self, kind: str, why: str = "", broker: str = "") -> None:
        """Something that the sequence is to be read with: `clock`, `fault`, `heal`, `scanned`."""
        self._events.append((self._clock(), kind, None, None, None, broker, None, why))

    def events(self) -> Iterator[dict[str, Any]]:
        """All events as objects."""
        for t, kind, number, queue, offset, broker, body, why in self._events:
            event: dict[str, Any] = {"t": round(t, 6), "kind": kind}
            if queue is not None:
                event["id"] = number
                event["queue"] = queue
            if offset is not None:
                event["offset"] = offset
            if broker:
                event["broker"] = broker
            if body is not None:
                event["body"] = body
            if why:
                event["why"] = why
            yield event

    def write(self, path: Path) -> None:
        """Write the events as JSON lines."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            for event in self.events():
                stream.write(orjson.dumps(event) + b"\n")


def read_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The events of a history file. Raises `ValueError` with the number of a line that is no object."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"line {number} is not JSON: {error}") from error
        if not isinstance(event, dict):
            raise ValueError(f"line {number} is no object")
        yield event
