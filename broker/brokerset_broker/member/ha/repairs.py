"""How often a replica may rebuild what is damaged of its log before people have to look. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

from brokerset_formats.lazy_dataclasses import dataclass

REPAIRS_SECONDS: Final = 3_600.0
"""Repairs are counted over so long."""

REPAIRS_AT_ONE_PLACE_MAX: Final = 3
"""Repairs at one offset under one master: who gets the same wrong bytes again has no fault of its own."""

REPAIRS_MAX: Final = 8
"""Repairs anywhere: a disk that damages more than that is not to be trusted."""

DAMAGE_ADVICE: Final = (
    "compare the disks of this broker and of its master; a damaged replica is replaced with `brokerset"
    " replica replace --empty`, a damaged master is left with `brokerset switchover`"
)


@dataclass(frozen=True, slots=True)
class _Repair:
    at: float
    epoch: int
    offset: int


class Repairs:
    """The repairs of one process. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._made: deque[_Repair] = deque(maxlen=REPAIRS_MAX)
        self.count = 0
        """Repairs since the start."""

    def refusal(self, epoch: int, offset: int, now: float) -> str:
        """Why the log must not be repaired at `offset` now; empty when it may be."""
        made = [each for each in self._made if now - each.at < REPAIRS_SECONDS]
        if sum((each.epoch, each.offset) == (epoch, offset) for each in made) >= REPAIRS_AT_ONE_PLACE_MAX:
            return (
                f"the master sent the same {REPAIRS_AT_ONE_PLACE_MAX} times: its own copy is damaged, or what"
                " lies between both brokers"
            )
        if len(made) >= REPAIRS_MAX:
            return f"this log was repaired {REPAIRS_MAX} times in an hour: its disk is not to be trusted"
        return ""

    def made(self, epoch: int, offset: int, now: float) -> None:
        """The log was truncated at `offset`, to be filled again by the master of `epoch`."""
        self._made.append(_Repair(now, epoch, offset))
        self.count += 1
