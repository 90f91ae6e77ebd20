"""Checks signatures with all passwords that a user has now, and logs who still signs with a former one."""

from __future__ import annotations

import structlog

from brokerset_acl.former_passwords import FormerUses
from brokerset_acl.signatures import signing_password
from brokerset_acl.users import User
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)


class PasswordChecks:
    """Checks of one process; `uses` is to be read."""

    def __init__(self, clock: Clock) -> None:
        self.uses = FormerUses()
        """Requests that were signed with former passwords."""

        self._clock = clock

    def is_right(self, user: User, signed: bytes, claimed: str | None, peer: tuple[str, int]) -> bool:
        """Whether the user made the signature `claimed` of `signed`; `peer` is where the request came from.

        It takes longer for a user that has a former password: as long for a wrong signature as for one of it.
        """
        now_ms = self._clock.now_ms()
        used = signing_password(user.passwords(now_ms), signed, claimed)
        if used:
            requests = self.uses.add(user, peer[0], now_ms)
            if requests is not None:
                former = user.former_at(now_ms)
                log.warning(
                    "former password used",
                    user=user.username,
                    peer=peer,
                    requests=requests,
                    until_ms=None if former is None else former.until_ms,
                    next_step="give the process there the new password before until_ms",
                )
        return used is not None
