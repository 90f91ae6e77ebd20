"""Until when a master may serve. Pure."""

from __future__ import annotations

from typing import Final, Protocol

URGENT_SECONDS: Final = 0.1
"""Pause between heartbeats while half of the lease has passed without a renewal."""


class MemberLease(Protocol):
    """Until when a master may serve: what controllers give, or what a DLedger's heartbeats prove."""

    @property
    def required(self) -> bool:
        """Whether a master may not serve without."""

    @property
    def ends_at(self) -> float:
        """When it ends, or has to be looked at again."""

    @property
    def is_short(self) -> bool:
        """Whether a pause of the machine may end it for a moment."""

    @property
    def given_up(self) -> bool:
        """Whether the master has given it up on purpose, to hand over."""

    def valid(self, now: float, epoch: int) -> bool:
        """Whether the master of `epoch` may serve at `now`."""


class Lease:
    """The lease of a mastership, on a monotonic clock in seconds that runs while the machine sleeps."""

    __slots__ = ("_counts_from", "_epoch", "_given_up", "_length", "_sent_at", "required")

    def __init__(self, *, required: bool = True) -> None:
        self.required = required
        """False with RocketMQ's controllers, which give none: then a master serves without."""
        self._epoch = -1
        self._sent_at = 0.0
        self._length = 0.0
        self._counts_from = 0.0
        self._given_up = False

    def granted(self, sent_at: float, lease_ms: int, epoch: int) -> bool:
        """A controller that leads granted a lease for `epoch` in its answer to a heartbeat sent at `sent_at`.

        It runs from then. Returns whether it prolongs what there was: answers may overtake each other, and
        one to a heartbeat of before `give_up` counts for nothing.
        """
        if sent_at < self._counts_from or lease_ms <= 0 or epoch < self._epoch:
            return False
        if epoch == self._epoch and sent_at + lease_ms / 1000 <= self.ends_at:
            return False
        self._epoch, self._sent_at, self._length = epoch, sent_at, lease_ms / 1000
        self._given_up = False
        return True

    def overtaken(self, epoch: int) -> bool:
        """A controller knows of a master of `epoch`. Returns whether that ends what there was."""
        if epoch <= self._epoch:
            return False
        self._epoch, self._length = epoch, 0.0
        return True

    def give_up(self, now: float) -> None:
        """Do not serve until a lease comes that a later heartbeat asked for."""
        self._counts_from = now
        self._given_up = True

    @property
    def is_short(self) -> bool:
        """It lasts seconds."""
        return False

    @property
    def given_up(self) -> bool:
        """Whether it was given up, and none has come since."""
        return self._given_up

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
        if not self.required:
            return True
        return not self._given_up and epoch == self._epoch and now < self.ends_at

    def pause_seconds(self, now: float, epoch: int | None, interval_seconds: float) -> float:
        """Until the next heartbeat: the master of `epoch` beats more often when its lease is not renewed.

        `epoch` is None for who is not master.
        """
        if epoch is None or not self.required:
            return interval_seconds
        half_at = self._sent_at + self._length / 2
        if not self.valid(now, epoch) or now >= half_at:
            return min(URGENT_SECONDS, interval_seconds)
        return min(interval_seconds, half_at - now)
