"""Cuts of the network between two parts of a set, both ways or one: which paths each one takes away. Pure.

A cut leaves everything else as it is: a master that is cut off from its slaves still reaches the controllers
and its clients. What stands here goes by roles; `OwnNetwork.cut_path` carries it out by address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SenderAndReceiver = tuple[str, str]


class Part(StrEnum):
    """Servers with one role at the moment of the cut, or the clients."""

    MASTER = "master"
    SLAVES = "slaves"
    CONTROLLERS = "controllers"
    """All of them, with the name servers in them."""

    LEADER = "leader"
    """The leading controller."""

    FOLLOWERS = "followers"
    """The other controllers."""

    CLIENTS = "clients"


class Way(StrEnum):
    """Which direction is cut, seen from the first part."""

    BOTH = "both"
    IN = "in"
    """What the first part would receive vanishes; what it sends arrives."""

    OUT = "out"
    """What the first part sends vanishes; what it would receive arrives."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut between two parts."""

    first: Part
    second: Part
    way: Way = Way.BOTH

    @property
    def name(self) -> str:
        """For the command line and for reports, as `master-slaves-in`."""
        return f"{self.first}-{self.second}-{self.way}"

    def paths(self, addresses: Mapping[Part, tuple[str, ...]]) -> tuple[SenderAndReceiver, ...]:
        """What vanishes, as pairs of addresses, when the parts are at these."""
        found = []
        for one in addresses[self.first]:
            for other in addresses[self.second]:
                if self.way is not Way.IN:
                    found.append((one, other))
                if self.way is not Way.OUT:
                    found.append((other, one))
        return tuple(found)


PAIRS: Final = (
    (Part.MASTER, Part.SLAVES),
    (Part.MASTER, Part.CONTROLLERS),
    (Part.MASTER, Part.LEADER),
    (Part.MASTER, Part.CLIENTS),
    (Part.SLAVES, Part.CONTROLLERS),
    (Part.SLAVES, Part.CLIENTS),
    (Part.LEADER, Part.FOLLOWERS),
    (Part.CONTROLLERS, Part.CLIENTS),
)
"""Which parts talk to each other."""

CUTS: Final[Mapping[str, Cut]] = {
    cut.name: cut for cut in (Cut(first, second, way) for first, second in PAIRS for way in Way)
}
"""Every pair, each way, by name."""
