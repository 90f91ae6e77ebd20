"""What subjects need to know of broker groups: where the master is, and which groups take new partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from brokerset_controller.liveness import Liveness
from brokerset_controller.machine import ReplicasMachine
from brokerset_runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Master:
    """Where the master of a broker group is."""

    address: str
    epoch: int


class BrokerMasters(Protocol):
    """The broker groups, as subjects see them; a simulation may give others."""

    def master(self, broker_group: str) -> Master | None:
        """The master of a group; None while there is none."""

    def writable(self) -> list[str]:
        """The groups that take sends: their masters are alive, and not out of service."""

    def forgotten(self, broker_group: str) -> bool:
        """Whether there is no such group, or all of its brokers were cleaned."""


class RegisteredMasters:
    """Those of the groups that brokers have registered for."""

    def __init__(self, machine: ReplicasMachine, liveness: Liveness, clock: Clock) -> None:
        self._machine = machine
        self._liveness = liveness
        self._clock = clock

    def master(self, broker_group: str) -> Master | None:
        """The master as it was elected, alive or not: a push to it shows that."""
        group = self._machine.groups.get(broker_group)
        if group is None or group.master_id is None:
            return None
        return Master(group.replicas[group.master_id].address, group.master_epoch)

    def writable(self) -> list[str]:
        """The groups whose master is heard, takes appends, and was not taken out of service."""
        now = self._clock.monotonic()
        return [
            name
            for name, group in sorted(self._machine.groups.items())
            if group.master_id is not None
            and group.master_id not in group.fenced
            and self._liveness.view(name, now).fit(group.master_id)
        ]

    def forgotten(self, broker_group: str) -> bool:
        """Whether no broker of the group is registered."""
        group = self._machine.groups.get(broker_group)
        return group is None or not group.known
