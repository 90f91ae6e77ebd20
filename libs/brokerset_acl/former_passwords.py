"""Former passwords: which one a user has after a change, and who still signs with one; pure.

Not in Java, where a change counts at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from brokerset_acl.users import USERS_MAX, FormerPassword, User, UserStatus

FORMER_SECONDS_MAX: Final = 30 * 86_400
"""Longest time for which a former password may be accepted: 30 days."""

LINE_MS: Final = 60_000
"""Least time between two log lines about one user."""


def with_former(old: User, wanted: User, seconds: int, now_ms: int) -> User:
    """The user to be stored in place of `old`, with the former password that is accepted for `seconds` more.

    0 seconds: none is. Another password makes the one before it the former one, whatever was that until then.
    The same password, as of a request that was repeated, leaves the time as it is, or shortens it.
    """
    former = None
    if seconds and wanted.status is UserStatus.ENABLE:
        until_ms = now_ms + 1_000 * seconds
        if wanted.password != old.password:
            former = FormerPassword(old.password, until_ms)
        elif (kept := old.former_at(now_ms)) is not None:
            former = replace(kept, until_ms=min(kept.until_ms, until_ms))
    return replace(wanted, former=former)


@dataclass(frozen=True, slots=True)
class FormerUse:
    """The last request that a user signed with the former password."""

    at_ms: int
    source: str
    """Address that it came from."""


@dataclass(slots=True)
class _Overlap:
    former: FormerPassword
    last: FormerUse
    line_ms: int
    """When the last log line was due."""

    since_line: int = 0
    """Requests since that line."""


class FormerUses:
    """Which users have signed with their former passwords, as one process has seen it since its start."""

    def __init__(self) -> None:
        self.total = 0
        """Requests of all users."""

        self._overlaps: dict[str, _Overlap] = {}

    def add(self, user: User, source: str, now_ms: int) -> int | None:
        """A request was signed with the former password of its user, who has one. If a log line is due: how
        many requests it is about; else None."""
        assert user.former is not None
        self.total += 1
        last = FormerUse(now_ms, source)
        known = self._known(user)
        if known is None:
            if len(self._overlaps) >= USERS_MAX:  # of users that are there no more
                self._overlaps.clear()
            self._overlaps[user.username] = _Overlap(user.former, last, now_ms)
            return 1
        known.last = last
        known.since_line += 1
        if abs(now_ms - known.line_ms) < LINE_MS:  # the clock may be set back
            return None
        known.line_ms, count, known.since_line = now_ms, known.since_line, 0
        return count

    def last(self, user: User) -> FormerUse | None:
        """The last request that was signed with the password that is now the former one."""
        known = self._known(user)
        return None if known is None else known.last

    def _known(self, user: User) -> _Overlap | None:
        known = self._overlaps.get(user.username)
        if known is None or user.former is None or known.former.password != user.former.password:
            return None
        return known
