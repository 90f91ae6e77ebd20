"""A message on its way: accepted, not confirmed, not failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True, eq=False, kw_only=True)
class Outgoing:
    """One send; the same `Message` sent twice makes two of them.

    Everything above `tries` stays as it was accepted; the rest belongs to the state machine.
    """

    number: int
    """Counts what the producer accepted."""

    logical: int
    """The logical partition."""

    keyed: bool
    message_id: str
    body: bytes
    """As it is stored, perhaps compressed."""

    properties: bytes
    """All but the order stamp."""

    flag: int = 0
    sys_flag: int = 0
    """Not 0: it travels alone."""

    size: int = 0
    """What it counts in the producer's budget, bytes."""

    accepted_at: float = 0.0
    """Seconds of the monotonic clock."""

    tries: int = 0
    """Attempts so far that no broker has refused for a reason of order."""

    maybe_stored: bool = False
    """Under BestTried: an attempt that was given up may have stored it."""

    strayed: bool = False
    """Under BestTried: it left its own partition, and those of its key do not wait for it any more."""

    finished: bool = False
    """Its sender was answered."""


class ExecutorKey(NamedTuple):
    """What an executor belongs to."""

    client_type: str
    subject: str
    partition_id: int
    broker_group: str


PRODUCER_CLIENT = "producer"
"""The client type of executors."""


@dataclass(slots=True, eq=False)
class Batch:
    """Messages of one request, with the sequences that they have in every attempt."""

    messages: tuple[Outgoing, ...]
    epoch: int
    first_sequence: int
    attempts: int = 0
    unknown: bool = False
    """An attempt ended without a word about what became of it, so the messages may be stored."""

    @property
    def end_sequence(self) -> int:
        """The sequence behind its last one."""
        return self.first_sequence + len(self.messages)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request to send now."""

    key: ExecutorKey
    queue_id: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Stored:
    """Messages that are confirmed."""

    key: ExecutorKey
    queue_id: int
    messages: tuple[Outgoing, ...]
    """Their senders were not answered before."""

    sequences: tuple[int, ...]
    epoch: int
    queue_offsets: tuple[int, ...] | None
    """None if the broker did not say: they were stored by an attempt whose answer was lost."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A message that is given up."""

    message: Outgoing
    error: Exception
