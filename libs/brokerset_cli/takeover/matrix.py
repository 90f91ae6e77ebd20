"""Which releases work together: brokers and controllers before RocketMQ 5.1.1, and from it on, as ours.

Until 5.1.0 controllers know a broker by its address, since 5.1.1 by a persistent id. Requests, files and the
HA handshake changed with it, so no broker of one age works under controllers of the other. Pure. "Releases"
in `docs/compatibility.md` has the same as a table; the suite `releases` of `tests/interop` shows each cell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Age(StrEnum):
    """How a release knows the brokers of a group."""

    NO_CONTROLLERS = "before 5.0"
    """Master and slaves are settings: 4.x."""

    ADDRESSES = "5.0.0 to 5.1.0"
    """Controllers know a broker by its address."""

    IDS = "from 5.1.1 on"
    """Controllers know a broker by an id that it keeps. Our brokers and controllers, too."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a broker under controllers."""

    served: bool
    words: str
    """What happens, as a sentence."""

    way_out: str = ""
    """What to do about it; empty if it is served."""


_VERSION: Final = re.compile(r"[vV]?(\d+)[._](\d+)[._](\d+)(?:[-_].*)?")
_FIRST_WITH_CONTROLLERS: Final = (5, 0, 0)
FIRST_WITH_IDS: Final = (5, 1, 1)
"""From this release on brokers and controllers know persistent ids, as ours do."""

UPGRADE_BROKER: Final = (
    "upgrade the broker to RocketMQ 5.1.1 or later, or replace it by one of ours; `brokerset upgrade"
    " identity` leads its store over"
)
UPGRADE_CONTROLLERS: Final = (
    "replace the controllers by ours, or by RocketMQ's of 5.1.1 or later, with empty stores; `brokerset"
    " upgrade identity` leads over from the old ones"
)
TO_CONTROLLERS: Final = (
    "a broker of 4.x takes part without controllers only; `brokerset upgrade classic` leads its store under"
    " controllers"
)


def release_of(version: str) -> tuple[int, int, int]:
    """A release as RocketMQ writes it, in numbers: `5.1.0`, `V5_1_0`, `V4_9_7_SNAPSHOT`.

    A snapshot counts as its release. Raises `ValueError` for what is no version.
    """
    found = _VERSION.fullmatch(version.strip())
    if found is None:
        raise ValueError(
            f"{version!r} is no version of RocketMQ: expected three numbers, as in V5_1_0 or 5.1.0"
        )
    return int(found[1]), int(found[2]), int(found[3])


def age_of(version: str) -> Age:
    """The age of a release. Raises `ValueError` for what is no version."""
    numbers = release_of(version)
    if numbers < _FIRST_WITH_CONTROLLERS:
        return Age.NO_CONTROLLERS
    return Age.ADDRESSES if numbers < FIRST_WITH_IDS else Age.IDS


def under_controllers(broker: Age, controllers: Age) -> Verdict:
    """What becomes of a broker under controllers. Raises `ValueError` for those of 4.x: there are none."""
    if controllers is Age.NO_CONTROLLERS:
        raise ValueError("RocketMQ 4.x has no controllers")
    if broker is Age.NO_CONTROLLERS:
        return Verdict(
            False,
            "the broker knows no controllers: it ignores controllerAddr and serves alone",
            TO_CONTROLLERS,
        )
    if broker is controllers:
        return Verdict(True, "the controllers register the broker, elect and replace masters")
    if controllers is Age.IDS:
        return Verdict(
            False,
            "the controllers refuse the broker, which names its address and no id; it is not registered at"
            " name servers, but takes messages from clients that know its address, into its log alone",
            UPGRADE_BROKER,
        )
    return Verdict(
        False,
        "the broker gets no id, for the controllers do not know that request; it takes no messages and is not"
        " registered at name servers",
        UPGRADE_CONTROLLERS,
    )


def following(slave: Age, master: Age) -> Verdict:
    """What becomes of a slave's connection to the HA port of a master."""
    if slave is master:
        return Verdict(True, "the slave copies the master's log")
    if slave is Age.NO_CONTROLLERS or master is Age.NO_CONTROLLERS:
        return Verdict(
            False,
            "the one follows under controllers and the other without: the connection ends, nothing is copied",
            TO_CONTROLLERS,
        )
    older = "slave" if slave is Age.ADDRESSES else "master"
    return Verdict(
        False,
        f"the {older} is of an age in which a slave's handshake names its address: nothing is copied",
        UPGRADE_BROKER,
    )
