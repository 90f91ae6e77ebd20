"""What a broker counts of ordered subjects; metrics read it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class OrderedCounters:
    """Counters since the start."""

    duplicates: int = 0
    """Messages that were sent again, and are stored once."""

    refused_sends: dict[str, int] = field(default_factory=dict)
    """By reason; the reasons are few."""

    claims: int = 0
    """Claims that were confirmed."""

    fenced: dict[str, int] = field(default_factory=dict)
    """Pulls, acks, commits and others that were refused because of a fence, by request."""

    def refused_send(self, reason: str) -> None:
        """Count a send that stored nothing."""
        self.refused_sends[reason] = self.refused_sends.get(reason, 0) + 1

    def fenced_request(self, request: str) -> None:
        """Count a request of a session that does not own the queue, or of a client that may not."""
        self.fenced[request] = self.fenced.get(request, 0) + 1
