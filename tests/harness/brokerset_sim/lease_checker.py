"""Computes leases from outside, and judges who serves as master, and when another one may be elected."""

from __future__ import annotations

from dataclasses import dataclass

from brokerset_sim.history import Violation
from brokerset_sim.process import Process

SERVED_WITH_LEASE = "7 a master serves reads, locks and what it acknowledges alone only with a lease"
ELECTED_AFTER_LEASE = "6 an election that needs the old master's silence waits for the end of its lease"


@dataclass(slots=True)
class _Lease:
    epoch: int = -1
    ends_at: float = 0.0
    counts_from: float = 0.0
    """Heartbeats that were sent earlier give nothing: the master has asked to be followed by another."""


class LeaseChecker:
    """The leases of all brokers; a lease runs from when the heartbeat was sent that got it."""

    def __init__(self) -> None:
        self._leases: dict[Process, _Lease] = {}

    def granted(self, process: Process, sent_at: float, seconds: float, epoch: int) -> None:
        """A controller answers a heartbeat with a lease; the answer may get lost."""
        lease = self._leases.setdefault(process, _Lease())
        if sent_at < lease.counts_from:
            return
        if epoch > lease.epoch:
            lease.epoch, lease.ends_at = epoch, 0.0
        if epoch == lease.epoch:
            lease.ends_at = max(lease.ends_at, sent_at + seconds)

    def given_up(self, process: Process, now: float) -> None:
        """A master asks the controllers for a successor."""
        lease = self._leases.setdefault(process, _Lease())
        lease.counts_from, lease.ends_at = now, 0.0

    def valid(self, process: Process, epoch: int, now: float) -> bool:
        """Whether a process has a lease for its epoch."""
        lease = self._leases.get(process)
        return lease is not None and lease.epoch == epoch and now < lease.ends_at

    def had_older(self, address: str, epoch: int, then: float) -> bool:
        """Whether the broker at an address had a lease of an epoch before this one at that moment.

        Elections of who is in sync do not wait for leases, so it may tell what was confirmed in the past.
        """
        return any(
            process.node.address == address and lease.epoch < epoch and then < lease.ends_at
            for process, lease in self._leases.items()
        )

    def served(self, process: Process, epoch: int, now: float, what: str) -> None:
        """A process serves as master what needs a lease."""
        if not self.valid(process, epoch, now):
            raise Violation(
                SERVED_WITH_LEASE,
                f"{process} serves {what} in {epoch} at {now:.3f}; its lease: {self._leases.get(process)}",
            )

    def elected(self, group: str, epoch: int, now: float) -> None:
        """An election of this group takes effect that has to wait for leases.

        Who has taken a later role serves nothing with the lease of before.
        """
        for process, lease in self._leases.items():
            node = process.node
            overtaken = node.role.epoch > lease.epoch
            if (
                node.group == group
                and process.alive
                and lease.epoch < epoch
                and now < lease.ends_at
                and not overtaken
            ):
                raise Violation(
                    ELECTED_AFTER_LEASE,
                    f"{group}: a master for {epoch} at {now:.3f}, {process} has a lease: {lease}",
                )
