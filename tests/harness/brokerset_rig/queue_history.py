"""Whether what clients saw of one queue can be explained by one order of all requests: linearizability. Pure.

The log of a queue, read to its end when all is over, says which message has which number. So the order of the
sends is known, and only their moments are open: the send of message k takes effect at some moment between its
request and its answer (any time after the request, if the answer was lost), and not before that of message
k - 1. A max offset n lies between message n - 1 and message n; a pull that finds nothing at n comes before
message n; one that finds message n comes behind it. Each of these only bounds the moment of one message from
below or above, so there is an order that explains everything exactly if no lower bound of a message lies
above an upper bound of the same message or of a later one. `tests/property/test_queue_history.py` compares
this with a search through all orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Send:
    """One attempt to send one message; no two have the same body."""

    body: bytes
    began: float
    """Seconds, on the clock of all clients."""

    ended: float | None = None
    """When it was acknowledged; None if it was not: then it may be stored, also later."""

    queue_offset: int | None = None
    """The number in the acknowledgement."""


class Asked(StrEnum):
    """What was read."""

    MAX = "max offset"
    """The answer is `number`; a search for a time in the future is asked for the same."""

    FOUND = "pull"
    """A pull found `bodies`, the first of which has `number`."""

    NOTHING = "pull at the end"
    """A pull at `number` found nothing."""


@dataclass(frozen=True, slots=True)
class Read:
    """One read that was answered."""

    asked: Asked
    began: float
    ended: float
    number: int
    bodies: tuple[bytes, ...] = ()
    broker: str = ""
    """Who answered, for people."""


@dataclass(frozen=True, slots=True)
class _Bound:
    at: float
    why: str


def violations(sends: Sequence[Send], reads: Sequence[Read], log: Sequence[bytes]) -> list[str]:
    """What cannot be explained, in words; empty if the history is linearizable and nothing is lost.

    `log` has the bodies of all messages of the queue in order, read when nobody sends any more and every
    replica has everything.
    """
    found: list[str] = []
    numbers: dict[bytes, int] = {}
    for number, body in enumerate(log):
        if body in numbers:
            found.append(f"{body!r} is stored twice, as {numbers[body]} and {number}")
        numbers.setdefault(body, number)
    lower = [_Bound(float("-inf"), "") for _ in log]
    upper = [_Bound(float("inf"), "") for _ in log]
    for send in sends:
        _add_send(send, numbers, lower, upper, found)
    for read in reads:
        _add_read(read, log, lower, upper, found)
    latest = _Bound(float("-inf"), "")
    for number in range(len(log)):
        latest = max(latest, lower[number], key=lambda bound: bound.at)
        if latest.at > upper[number].at:
            found.append(
                f"message {number}: {upper[number].why} at {upper[number].at:.4f}, but {latest.why}"
                f" at {latest.at:.4f}"
            )
    return found


def _add_send(
    send: Send, numbers: dict[bytes, int], lower: list[_Bound], upper: list[_Bound], found: list[str]
) -> None:
    number = numbers.get(send.body)
    if send.ended is not None and number != send.queue_offset:
        found.append(
            f"{send.body!r} was acknowledged as {send.queue_offset} at {send.ended:.4f}, and is "
            + ("lost" if number is None else f"stored as {number}")
        )
    if number is None:
        return
    _raise(lower, number, send.began, f"{send.body!r} was sent only")
    if send.ended is not None:
        _reduce(upper, number, send.ended, f"{send.body!r} was acknowledged")


def _add_read(
    read: Read, log: Sequence[bytes], lower: list[_Bound], upper: list[_Bound], found: list[str]
) -> None:
    what = f"{read.asked} {read.number}{f' of {read.broker}' if read.broker else ''}"
    match read.asked:
        case Asked.FOUND:
            end = read.number + len(read.bodies)
            if tuple(log[read.number : end]) != read.bodies:
                found.append(f"{what} at {read.ended:.4f} found other messages than the queue has there")
                return
            seen, unseen = end, None
        case Asked.NOTHING:
            seen, unseen = 0, read.number
        case Asked.MAX:
            seen, unseen = read.number, read.number
    if seen > len(log):
        found.append(f"{what} at {read.ended:.4f}, and the queue has {len(log)} messages")
        return
    if seen > 0:
        _reduce(upper, seen - 1, read.ended, f"{what} was answered")
    if unseen is not None and unseen < len(lower):
        _raise(lower, unseen, read.began, f"{what} was asked only")


def _raise(bounds: list[_Bound], number: int, at: float, why: str) -> None:
    if at > bounds[number].at:
        bounds[number] = _Bound(at, why)


def _reduce(bounds: list[_Bound], number: int, at: float, why: str) -> None:
    if at < bounds[number].at:
        bounds[number] = _Bound(at, why)
