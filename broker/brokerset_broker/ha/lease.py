"""Until when a master may serve. Pure."""

from __future__ import annotations


class Lease:
    """The lease of a mastership, on a monotonic clock in seconds that runs while the machine sleeps."""

    __slots__ = ("_epoch", "_length", "_sent_at", "required")

    def __init__(self, *, required: bool = True) -> None:
        self.required = required
        """False with RocketMQ's controllers, which give none: then a master serves without."""
        self._epoch = -1
        self._sent_at = 0.0
        self._length = 0.0

    def granted(self, sent_at: float, lease_ms: int, epoch: int) -> bool:
        """A controller granted a lease for `epoch`; it runs from when the heartbeat was sent. Returns whether
        it prolongs what there was; answers may overtake each other."""
        if lease_ms <= 0 or epoch < self._epoch:
            return False
        if epoch == self._epoch and sent_at + lease_ms / 1000 <= self.ends_at:
            return False
        self._epoch, self._sent_at, self._length = epoch, sent_at, lease_ms / 1000
        return True

    @property
    def epoch(self) -> int:
        """The epoch of the last lease, -1 without any."""
        return self._epoch

    @property
    def ends_at(self) -> float:
        """When the last lease ends or ended; 0 without any."""
        return self._sent_at + self._length

    def valid(self, now: float, epoch: int) -> bool:
        """Whether the master of `epoch` may serve at `now`."""
        return not self.required or (epoch == self._epoch and now < self.ends_at)

    def urgent(self, now: float) -> bool:
        """Whether half of the lease has passed without another: ask more often."""
        return self.required and now >= self._sent_at + self._length / 2
