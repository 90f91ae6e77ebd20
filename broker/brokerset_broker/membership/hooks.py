"""What membership asks of, and tells, the rest of the broker; everything has a default that does nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from brokerset_broker.membership.role import RoleChange

TakeRole = Callable[[RoleChange], None]
"""Makes a role the one that everybody sees; a switch calls it once, when it is time."""

Switch = Callable[[RoleChange, RoleChange, TakeRole], Awaitable[bool]]
"""Carries out a change of role (before, after, take_role); False when the broker must stay without role."""


def _ignore(_: object) -> None:
    """Nobody wants to know."""


def _unknown() -> None:
    """Nobody can tell."""


def _nothing() -> None:
    """Nobody wants to know."""


def _no_text() -> str:
    """Nothing is wrong."""
    return ""


def _no_address(_: str) -> str | None:
    """No name server is asked."""
    return None


@dataclass(slots=True)
class Hooks:
    """Set before `Membership.run` begins. All are called on the loop, and must not block."""

    on_news: Callable[[RoleChange], None] = _ignore
    """Another in-sync set is in force in the same epoch; for a slave that asked, also one that is not new."""

    on_fenced: Callable[[bool], None] = _ignore
    """An administrator took this broker out of service, or back."""

    on_lease_change: Callable[[], None] = _nothing
    """`Membership.may_serve` has changed."""

    on_problem: Callable[[], None] = _nothing
    """`Membership.problem` is another one, or none any more: what clients are told may change."""

    append_age_ms: Callable[[], int | None] = _unknown
    """Milliseconds since the log last took an append that was asked for; None when nothing waits."""

    all_ack: Callable[[], bool | None] = _unknown
    """Whether sends wait for all in-sync replicas; None: as the settings say."""

    replication_problem: Callable[[], tuple[str, str] | None] = _unknown
    """Why this broker cannot follow its master, and what to do; None when it can."""

    log_damage: Callable[[], str] = _no_text
    """What is wrong with the log, so that this broker cannot lead; empty when nothing is."""

    java_ha_address: Callable[[str], str | None] = _no_address
    """The HA address that name servers tell for a Java master's remoting address."""
