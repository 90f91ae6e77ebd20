"""What `verify` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brokerset_spark.jobs.dispatch import DELAY_LEVELS

RANGE_BYTES: Final = 128 << 20
"""Of the log, for one task: long enough that starting it costs nothing, short enough to be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Which parts of a store are checked, and how gently."""

    start: int | None = None
    """Offset from which on; None for all. Queues and index are then checked in one direction only."""

    end: int | None = None
    """Offset up to which."""

    bound: int | None = None
    """Nothing behind it is read: what a running broker has confirmed."""

    topics: tuple[str, ...] = ()
    """Whose queues are checked; none for all."""

    queues: bool = True
    index: bool = True
    rate: int = 0
    """Bytes per second of one task; 0 for no limit."""

    drop_cache: bool = False
    """Let the kernel forget what was read, for the sake of a broker on this machine."""

    delay_levels: str = DELAY_LEVELS
    range_bytes: int = RANGE_BYTES

    @property
    def partial(self) -> bool:
        """Whether only a part of the log is read."""
        return self.start is not None or self.end is not None
