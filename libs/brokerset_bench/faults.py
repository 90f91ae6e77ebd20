"""The kinds of faults that a failover measurement makes, and how each is mended.

A cut of the network goes by roles: it takes some paths away and leaves everything else as it is, so a master
that is cut off from its slaves still reaches the controllers and its clients.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from brokerset_bench.network import HOST
from brokerset_bench.probes import GroupView
from brokerset_bench.sets import BenchSet
from brokerset_spec.set_memory import CONTROLLER
from brokerset_spec.set_parts import DLEDGER

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


# -- kinds of faults --------------------------------------------------------------------------------------

Mend = Callable[[], None]

PAUSE_SECONDS: Final = 15.0
"""Time over which the longest pause is searched where no other master is expected."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault."""

    name: str
    what: str
    """For people."""

    takeover: bool
    """Whether another broker is to become master: then the gap is until it acknowledges, else the longest
    pause counts."""

    mend_after: float
    """Seconds from the fault until it is mended; where another master is expected, not before it serves."""

    goal_ms: int
    """Most that the design allows for the 99th percentile."""

    brokers_min: int = 3
    java: bool = False
    """Whether it is measured with Java's servers, too."""

    cut: Cut | None = None
    """Which part of the network is cut."""

    makes: str = ""
    """The fault that is made, where that has a name of its own: a DLedger's leader is the master."""

    @property
    def fault(self) -> str:
        """The fault that is made."""
        return self.makes or self.name

    @property
    def needs_network(self) -> bool:
        """Whether it is made in a network of the set's own."""
        return self.fault == "cutMaster" or self.cut is not None


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind("killMaster", "the master is killed", True, 3.0, 500, java=True),
        Kind("stopMaster", "the master stops for 10 s (SIGSTOP), then goes on", True, 10.0, 3000, java=True),
        Kind("cutMaster", "the master's network is cut for 10 s", True, 10.0, 3000),
        Kind(
            "cutSlaves",
            "master and slaves are cut off from each other for 10 s, and from nobody else",
            True,
            10.0,
            5000,
            cut=Cut(Part.MASTER, Part.SLAVES),
        ),
        Kind("killLeader", "the leading controller is killed", False, 5.0, 100, brokers_min=1, java=True),
        Kind("killBoth", "master and leading controller are killed", True, 3.0, 3000),
        Kind("hangSlave", "a slave stops for 5 s (SIGSTOP)", False, 5.0, 2500),
        Kind("switchover", "a planned switchover", False, 0.0, 200),
    )
}
"""By name. docs/benchmarks.md has the goals; that of `killLeader` is that the data path does not notice."""

LEDGER_KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind("killLeader", "the leading broker is killed", True, 3.0, 1000, makes="killMaster"),
        Kind(
            "stopLeader", "the leading broker is ended in order (SIGTERM)", True, 3.0, 1000, makes="endMaster"
        ),
        Kind(
            "hangLeader",
            "the leading broker stops for 10 s (SIGSTOP), then goes on",
            True,
            10.0,
            3000,
            makes="stopMaster",
        ),
        Kind(
            "cutLeader", "the leading broker's network is cut for 10 s", True, 10.0, 3000, makes="cutMaster"
        ),
        Kind(
            "cutFollowers",
            "leader and followers are cut off from each other for 10 s, and from nobody else",
            True,
            10.0,
            3000,
            cut=Cut(Part.MASTER, Part.SLAVES),
        ),
        Kind(
            "cutLeaderIn",
            "what followers send to the leader vanishes for 10 s",
            True,
            10.0,
            3000,
            cut=Cut(Part.MASTER, Part.SLAVES, Way.IN),
        ),
        Kind(
            "cutLeaderOut",
            "what the leader sends to followers vanishes for 10 s",
            True,
            10.0,
            3000,
            cut=Cut(Part.MASTER, Part.SLAVES, Way.OUT),
        ),
        Kind("transfer", "the leadership is transferred", False, 0.0, 200, makes="switchover"),
    )
}
"""The kinds for a set in mode dledger, by name."""

KINDS_OF_MODE: Final[Mapping[str, Mapping[str, Kind]]] = {CONTROLLER: KINDS, DLEDGER: LEDGER_KINDS}


def inject(kind: Kind, bench: BenchSet, view: GroupView) -> Mend:
    """Make the fault now; returns what mends it. `switchover` is no fault: there is nothing to do here."""
    master, leader = bench.process(view.master), bench.process(view.leader)
    if kind.cut is not None:
        return _cut(kind.cut, bench, view)
    match kind.fault:
        case "killMaster":
            master.send(signal.SIGKILL)
            return master.start
        case "endMaster":
            master.send(signal.SIGTERM)

            def start_again() -> None:
                master.end()
                master.start()

            return start_again
        case "killLeader":
            leader.send(signal.SIGKILL)
            return leader.start
        case "killBoth":
            leader.send(signal.SIGKILL)
            master.send(signal.SIGKILL)

            def start_both() -> None:
                leader.start()
                master.start()

            return start_both
        case "stopMaster":
            return _stop(master.send)
        case "hangSlave":
            slave = next(process for process in bench.brokers if process is not master)
            return _stop(slave.send)
        case "cutMaster":
            network = bench.network
            assert network is not None, "the command starts itself in a network of its own for this kind"
            number = bench.members[view.master]
            network.cut(number)
            return lambda: network.mend(number)
        case _:
            return lambda: None


def _stop(send: Callable[[signal.Signals], bool]) -> Mend:
    send(signal.SIGSTOP)

    def go_on() -> None:
        send(signal.SIGCONT)

    return go_on


def _cut(cut: Cut, bench: BenchSet, view: GroupView) -> Mend:
    network = bench.network
    assert network is not None, "the command starts itself in a network of its own for this kind"
    for sender, receiver in cut.paths(_parts(bench, view)):
        network.cut_path(sender, receiver)
    return network.mend_paths


def _parts(bench: BenchSet, view: GroupView) -> dict[Part, tuple[str, ...]]:
    """Where each part is now."""
    controllers = tuple(map(_host, bench.controller_addresses))
    master, leader = _host(view.master), _host(view.leader)
    return {
        Part.MASTER: (master,),
        Part.SLAVES: tuple(host for host in map(_host, bench.broker_addresses) if host != master),
        Part.CONTROLLERS: controllers,
        Part.LEADER: (leader,),
        Part.FOLLOWERS: tuple(host for host in controllers if host != leader),
        Part.CLIENTS: (HOST,),
    }


def _host(address: str) -> str:
    return address.rpartition(":")[0]
