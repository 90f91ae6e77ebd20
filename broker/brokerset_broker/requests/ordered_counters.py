"""What a broker counts of ordered subjects; metrics read it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

REFUSED_SENDS: Final = ("fenced", "full", "gap", "illegal", "not open", "sealed", "unknown")
"""Why sends are refused: `Verdict`s, messages without order, and queues with too many producers."""

FENCED_REQUESTS: Final = ("ack", "claim", "plain commit", "plain pull", "pull", "send back")
"""What is refused because of a fence; plain are those of clients without a session."""

LOSSES: Final = ("position", "producer", "producers")
"""What shows that confirmed messages are gone: a group's position behind the end, a producer that goes on
behind the end, a record of producers that counts more."""


@dataclass(slots=True)
class OrderedCounters:
    """Counters since the start."""

    duplicates: int = 0
    """Messages that were sent again, and are stored once."""

    refused_sends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSED_SENDS, 0))
    """Requests that stored nothing, by reason."""

    claims: int = 0
    """Claims that were confirmed."""

    losses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOSSES, 0))
    """How often it showed that the log has lost confirmed messages, by what showed it."""

    given_again: int = 0
    """Messages that went to a session of a Shared group after another one had not acknowledged them."""

    fenced: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FENCED_REQUESTS, 0))
    """Requests of sessions that do not own the queue, or of clients that may not, by kind."""

    def refused_send(self, reason: str) -> None:
        """Count a send that stored nothing."""
        self.refused_sends[reason] += 1

    def loss(self, shown_by: str) -> None:
        """Count a sign that confirmed messages are lost."""
        self.losses[shown_by] += 1

    def fenced_request(self, request: str) -> None:
        """Count a request that was refused because of a fence."""
        self.fenced[request] += 1
