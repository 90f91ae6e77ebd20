"""Who is told what a store does."""

from __future__ import annotations

from typing import Protocol


class StoreObserver(Protocol):
    """Who replicates a store is told at these moments, on the event loop."""

    def loaded(self) -> None:
        """The store is open and recovered."""

    def turn_ended(self) -> None:
        """There were appends in this turn of the loop; their messages are not announced yet."""

    def flushed(self) -> None:
        """More of the log is on the disk."""

    async def closing(self) -> None:
        """The store takes nothing any more and is brought to the disk next."""
