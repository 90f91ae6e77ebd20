"""A broker that was elected and cannot become master: when it says so, and which set it gives back. Pure.

An election leaves its winner alone in the in-sync set. So long as it has not led, everybody who was in sync
at the election has all that was acknowledged; the winner proposes that set again, so that another replica can
be elected instead.
"""

from __future__ import annotations

from typing import Final

from brokerset_broker.member.role import GroupNews, Role, RoleState

TRIES_MAX: Final = 2
"""Failures in one epoch after which the controllers know: what one repetition mends costs no election."""

RETRY_SECONDS: Final = 0.5
"""After the first failure in an epoch it is tried again so soon; after others when the controllers are asked
the next time."""

PAUSE_SECONDS_MIN: Final = 5.0
PAUSE_SECONDS_MAX: Final = 60.0
"""For so long after its last failure a broker is not to be elected, doubled with each epoch that it could not
lead in: two that both fail are not elected in turn all the time."""

CANNOT_LEAD_AGE_MS: Final = 24 * 3_600_000
"""What such a broker tells as the age of its oldest append: controllers take its log for stuck."""

SETS_KNOWN_MAX: Final = 4
"""In-sync sets that are remembered, the newest ones."""


class RefusedMastership:
    """Whether this broker tells the controllers that it cannot lead. Times are seconds of one clock."""

    def __init__(self, poll_seconds: float) -> None:
        """`poll_seconds` is how often controllers are asked, so how often a mastership is tried again."""
        self._pause_seconds_min = max(PAUSE_SECONDS_MIN, 2 * poll_seconds)
        self._epoch = -1
        self._tries = 0
        self._pause_seconds = 0.0
        self._until = 0.0

    def failed(self, epoch: int, now: float) -> bool:
        """A step on the way to master failed; returns whether it is the first time in this epoch."""
        if epoch != self._epoch:
            self._epoch, self._tries = epoch, 0
        self._tries += 1
        if self._tries == TRIES_MAX:
            longer = min(2 * self._pause_seconds, PAUSE_SECONDS_MAX)
            self._pause_seconds = max(longer, self._pause_seconds_min)
        if self._tries >= TRIES_MAX:
            self._until = now + self._pause_seconds
        return self._tries == 1

    def took(self, role: Role) -> None:
        """Another role was taken."""
        self._tries = 0
        self._epoch = -1
        if role is Role.MASTER:
            self._pause_seconds = self._until = 0.0

    @property
    def gives_up(self) -> bool:
        """Whether it was tried often enough in the epoch that the controllers gave this broker."""
        return self._tries >= TRIES_MAX

    def is_reported(self, now: float) -> bool:
        """Whether the controllers are to know that this broker cannot lead."""
        return now < self._until


class SetsKnown:
    """The last in-sync sets received from the controllers, by set epoch: each has one set only."""

    def __init__(self) -> None:
        self._sets: dict[int, GroupNews] = {}

    def note(self, received: GroupNews) -> None:
        """Remember what was received, if it names a set."""
        if not received.sync_state_set:
            return
        epoch = received.epoch or 0
        if any(
            known > received.set_epoch and (word.epoch or 0) < epoch for known, word in self._sets.items()
        ):
            self._sets.clear()  # the group was rebuilt: set epochs started from scratch
        self._sets[received.set_epoch] = received
        while len(self._sets) > SETS_KNOWN_MAX:
            del self._sets[min(self._sets)]

    def before(self, elected: RoleState, own_id: int) -> tuple[frozenset[int], ...]:
        """Sets to propose, in turn until one is taken, for who was elected out of them and has not led.

        The set that was in force right before the election, if it is known, then smaller ones: controllers
        take nobody who is dead. Every member had everything at the election, and whoever is started after it
        raises the set epoch, so that none of these is taken any more.
        """
        received = self._sets.get(elected.set_epoch - 1)
        if received is None or own_id not in received.sync_state_set or elected.sync_state_set - {own_id}:
            return ()
        found = [received.sync_state_set]
        if received.master_id is not None:
            found.append(received.sync_state_set - {received.master_id} | {own_id})
        others = sorted(
            received.sync_state_set - {own_id}, key=lambda each: (each == received.master_id, each)
        )
        found += [frozenset((own_id, other)) for other in others]
        return tuple(dict.fromkeys(each for each in found if len(each) > 1))
