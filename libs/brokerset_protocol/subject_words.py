"""Words that say how an ordered subject behaves, and where its partitions are on their way."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

CONTROLLERS_NAMESPACE: Final = "BROKERSET"
CONTROLLERS_KEY: Final = "CONTROLLERS"
"""Entry of the name servers' key-value configuration that names the controllers: `host:port;host:port`."""


class OrderStrategy(StrEnum):
    """What happens to a message that cannot be sent, or handled."""

    STRICT = "Strict"
    """It waits, and those of its key behind it."""

    BEST_TRIED = "BestTried"
    """It may go to another partition, or be tried again later."""


class ConsumeStrategy(StrEnum):
    """Who may consume a partition."""

    EXCLUSIVE = "Exclusive"
    """One member of a group at a time."""

    SHARED = "Shared"
    """All members of a group."""


class PartitionStatus(StrEnum):
    """Where a partition is on its way."""

    PREPARED = "Prepared"
    """It opens when all that it inherits from are sealed."""

    OPEN = "Open"
    SEALING = "Sealing"
    """A newer generation takes its keys as soon as its broker has closed it."""

    SEALED = "Sealed"
    """It takes no keyed sends any more; its end is known."""
