"""The kinds of faults that a failover measurement makes, and how each is mended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from brokerset_cli.failover_group import GroupLook
from brokerset_cli.failover_network import HOST
from brokerset_cli.failover_partitions import Cut, Part
from brokerset_cli.failover_set import BenchSet

Mend = Callable[[], None]

PAUSE_SECONDS: Final = 15.0
"""Time over which the longest pause is looked for where no other master is expected."""


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

    @property
    def needs_network(self) -> bool:
        """Whether it is made in a network of the set's own."""
        return self.name == "cutMaster" or self.cut is not None


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
        Kind("switchover", "a planned switch-over", False, 0.0, 200),
    )
}
"""By name. The goals are section 6 of the design; for `killLeader`, that the data path does not notice."""


def inject(kind: Kind, bench: BenchSet, look: GroupLook) -> Mend:
    """Make the fault now; returns what mends it. `switchover` is no fault: there is nothing to do here."""
    master, leader = bench.process(look.master), bench.process(look.leader)
    if kind.cut is not None:
        return _cut(kind.cut, bench, look)
    match kind.name:
        case "killMaster":
            master.send(signal.SIGKILL)
            return master.start
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
            number = bench.members[look.master]
            network.cut(number)
            return lambda: network.mend(number)
        case _:
            return lambda: None


def _stop(send: Callable[[signal.Signals], bool]) -> Mend:
    send(signal.SIGSTOP)

    def go_on() -> None:
        send(signal.SIGCONT)

    return go_on


def _cut(cut: Cut, bench: BenchSet, look: GroupLook) -> Mend:
    network = bench.network
    assert network is not None, "the command starts itself in a network of its own for this kind"
    for sender, receiver in cut.paths(_parts(bench, look)):
        network.cut_path(sender, receiver)
    return network.mend_paths


def _parts(bench: BenchSet, look: GroupLook) -> dict[Part, tuple[str, ...]]:
    """Where each part is now."""
    controllers = tuple(map(_host, bench.controller_addresses))
    master, leader = _host(look.master), _host(look.leader)
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
