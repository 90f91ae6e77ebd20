"""Which makes run together in a group, and what that guarantees, in the words of `docs/compatibility.md`.

Pure: it is given what was answered. A make is told by what only one of them answers, never by a version
number, which both choose freely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

OUR_KEYS: Final = "brokerset"
"""Keys that our brokers add to their measurements (28) begin so."""

OUR_FIELDS: Final = ("replicaId", "nonce", "incarnation", "registration")
"""Fields that our brokers add to the answer to 1007; at least one is always there."""

SUCCESS: Final = 0
NOT_SUPPORTED: Final = 3


class Make(StrEnum):
    """Whose program a process is."""

    OURS = "brokerset"
    JAVA = "Java"
    UNKNOWN = "unknown"
    """It gave no answer that tells."""


def controller_make(status_code: int | None, metadata_code: int | None) -> Make:
    """Whose controller answers so to 21001, which is ours, and to 1005, which both know; None: no answer."""
    if status_code == SUCCESS:
        return Make.OURS
    if status_code == NOT_SUPPORTED and metadata_code == SUCCESS:
        return Make.JAVA
    return Make.UNKNOWN


def broker_make(table: Mapping[str, str] | None, identity: Mapping[str, str] | None = None) -> Make:
    """Whose broker has these measurements (28) and these fields in its answer to 1007; None: not answered.

    A broker of ours that is older than `brokersetNativeCore` has no such measurements outside a group, and
    neither make answers 1007 there: unknown.
    """
    if table is None:
        return Make.UNKNOWN
    if any(key.startswith(OUR_KEYS) for key in table):
        return Make.OURS
    if identity is None:
        return Make.UNKNOWN
    return Make.OURS if any(field in identity for field in OUR_FIELDS) else Make.JAVA


@dataclass(frozen=True, slots=True)
class MixMember:
    """A broker of a group."""

    id: int
    make: Make
    version: str = ""
    in_sync: bool = True
    all_ack: bool | None = None
    """Its `allAckInSyncStateSet`; only asked of masters, None when it is not known."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table "What each mix guarantees"."""

    master: str
    slaves: str
    controllers: str
    holds: str


ALL_OURS: Final = Row("ours", "ours", "ours", "everything, and no reads from the past")
OURS_UNDER_JAVA: Final = Row(
    "ours",
    "ours",
    "Java's",
    "everything but what Java's controllers do not do: no lease, so a master that is cut off can be read "
    "from; copied folders and lost page caches are not noticed",
)
JAVA_SLAVES: Final = Row(
    "ours",
    "Java's, or both",
    "either",
    "messages: everything while the Java slave is in sync, and it counts like any other. It joins about 5 s "
    "after it has connected. It polls topics, groups and offsets: when it becomes master it may lack the "
    "last ten seconds of these",
)
JAVA_MASTER: Final = Row(
    "Java's",
    "ours, or both",
    "either",
    "what Java's master promises; with `allAckInSyncStateSet=true` set for it, messages survive its death. "
    "Ours poll its tables every 5 s. No lease",
)
ALL_JAVA: Final = Row("Java's", "Java's", "either", "what Java's brokers promise each other")
ROWS: Final = (ALL_OURS, OURS_UNDER_JAVA, JAVA_SLAVES, JAVA_MASTER, ALL_JAVA)

UNKNOWN_HOLDS: Final = "not known: ask again when there is a master and every broker answers"


@dataclass(frozen=True, slots=True)
class GroupMix:
    """What runs in a group, what holds, and what does not."""

    group: str
    controllers: Make
    master: MixMember | None
    slaves: tuple[MixMember, ...]
    row: Row | None
    """None without a master, or when its make or that of a slave in sync is not known."""

    lacks: tuple[str, ...]
    """What does not hold, with who is the reason."""

    @property
    def mixed(self) -> bool:
        """Whether something of Java's takes part."""
        return Make.JAVA in {self.controllers, *(member.make for member in _all(self))}

    def line(self) -> str:
        """The mix, and what does not hold, as one line for people."""
        if not self.mixed and not self.lacks:
            return f"all brokerset: {ALL_OURS.holds}"
        who = [] if self.master is None else [f"{_whose(self.master.make)} master {self.master.id}"]
        for make in Make:
            ids = [str(member.id) for member in self.slaves if member.make is make]
            if ids:
                who.append(f"{_whose(make)} slave{'s' if len(ids) > 1 else ''} {', '.join(ids)}")
        who.append(f"{_whose(self.controllers)} controllers")
        lacks = "; ".join(self.lacks) or "nothing that is known"
        return f"mix: {', '.join(who)}. Does not hold: {lacks}"

    def to_json(self) -> dict[str, Any]:
        """For scripts; every key is always there."""
        return {
            "mixed": self.mixed,
            "controllers": self.controllers.value,
            "brokers": {
                str(member.id): {"make": member.make.value, "version": member.version or None}
                for member in _all(self)
            },
            "holds": self.row.holds if self.row is not None else UNKNOWN_HOLDS,
            "lacks": list(self.lacks),
        }


def decide_mix(
    group: str, controllers: Make, members: Sequence[MixMember], master_id: int | None
) -> GroupMix:
    """Which row of the table a group is in, and what does not hold there."""
    master = next((member for member in members if member.id == master_id), None)
    slaves = tuple(member for member in members if member.id != master_id)
    lacks = [*_of_controllers(controllers), *_of_master(group, master)]
    for slave in slaves:
        lacks += _of_slave(group, slave, master)
    return GroupMix(group, controllers, master, slaves, _row(controllers, master, slaves), tuple(lacks))


def _row(controllers: Make, master: MixMember | None, slaves: Sequence[MixMember]) -> Row | None:
    makes = {slave.make for slave in slaves if slave.make is not Make.UNKNOWN or slave.in_sync}
    if master is None or Make.UNKNOWN in {master.make, *makes}:
        return None
    if master.make is Make.JAVA:
        return JAVA_MASTER if Make.OURS in makes else ALL_JAVA
    if Make.JAVA in makes:
        return JAVA_SLAVES
    return {Make.OURS: ALL_OURS, Make.JAVA: OURS_UNDER_JAVA, Make.UNKNOWN: None}[controllers]


def _of_controllers(make: Make) -> list[str]:
    if make is Make.JAVA:
        return [
            "Java's controllers: no lease, so a master that is cut off can be read from; copied folders and "
            "lost page caches are not noticed"
        ]
    return ["the controllers do not answer: whose they are is not known"] if make is Make.UNKNOWN else []


def _of_master(group: str, master: MixMember | None) -> list[str]:
    if master is None:
        return [f"{group} has no master"]
    name = f"{group}/{master.id}"
    if master.make is Make.UNKNOWN:
        return [f"master {name} does not answer: whose it is is not known"]
    if master.make is Make.OURS:
        if master.all_ack is False:
            return [f"our master {name} has allAckInSyncStateSet=false: what it acknowledged can die with it"]
        return []
    found = [
        f"Java master {name}: no lease; told to follow while it lives it may lose what it acknowledged: stop "
        "it, or let `brokerset adopt` hand over"
    ]
    if master.all_ack is False:
        found.append(
            f"Java master {name} has allAckInSyncStateSet=false, Java's default: what it acknowledged can "
            "die with it"
        )
    return found


def _of_slave(group: str, slave: MixMember, master: MixMember | None) -> list[str]:
    name = f"{group}/{slave.id}"
    if slave.make is Make.UNKNOWN:
        return [f"slave {name} does not answer: whose it is is not known"]
    if slave.make is Make.JAVA:
        behind = "" if slave.in_sync else "; it is not in sync, so it lacks messages, too"
        return [f"Java slave {name}: metadata by polling, up to 10 s{behind}"]
    if master is not None and master.make is Make.JAVA:
        return [f"our slave {name} of a Java master: metadata by polling, up to 5 s"]
    return []


def _whose(make: Make) -> str:
    return {Make.OURS: "our", Make.JAVA: "Java", Make.UNKNOWN: "unknown"}[make]


def _all(mix: GroupMix) -> list[MixMember]:
    return sorted([*([mix.master] if mix.master else []), *mix.slaves], key=lambda member: member.id)
