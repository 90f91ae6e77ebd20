"""The kinds of faults that a failover measurement makes, and how each is mended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from brokerset_cli.failover_group import GroupLook
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


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind("killMaster", "the master is killed", True, 3.0, 500, java=True),
        Kind("stopMaster", "the master stops for 10 s (SIGSTOP), then goes on", True, 10.0, 3000, java=True),
        Kind("cutMaster", "the master's network is cut for 10 s", True, 10.0, 3000),
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
