"""Which role a broker has, and what an answer or a notice of a controller means for it. Pure.

Epochs only grow: news of a smaller one is ignored. Why news that name this broker as master can be trusted
from the epoch on that the answer to its registration named: the controllers' state behind that answer has
this process's start in it, and the start took away whatever mastership an earlier process had, with a higher
epoch. So a mastership in that epoch or a later one was given to this process. Controllers of RocketMQ name no
epoch there, and let a restarted master go on in the old one; then any epoch is taken, as Java's broker does.
"""

from __future__ import annotations

from dataclasses import field, replace
from enum import StrEnum

from brokerset_formats.lazy_dataclasses import dataclass


class Role(StrEnum):
    """What the broker is in its group."""

    NONE = "none"
    SLAVE = "slave"
    MASTER = "master"


@dataclass(frozen=True, slots=True)
class LogEnd:
    """What the log has: its last master epoch (-1 without any), its end, and up to where it is confirmed."""

    epoch: int
    offset: int
    confirmed: int


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The set of before an election, which its winner proposed as it could not lead."""

    sync_state_set: frozenset[int]
    set_epoch: int
    """The set epoch that the proposal was based on: a higher one in force settles it."""


@dataclass(frozen=True, slots=True)
class RoleState:
    """A role, and everything known that belongs to it. Each one replaces the one before."""

    role: Role = Role.NONE
    epoch: int = 0
    """Master epoch in which the role was told; without a role the smallest epoch that counts as news."""

    set_epoch: int = 0
    master_id: int | None = None
    master_address: str | None = None
    sync_state_set: frozenset[int] = frozenset()
    master_nonce: str | None = None
    """Which process is master, if that was told."""

    reason: str = field(default="", compare=False)
    """Why there is no role: what failed on the way to it."""

    given_back: tuple[GivenBack, ...] = field(default=(), compare=False)
    """What this broker has proposed in this epoch because it could not lead; each may be in force."""


@dataclass(frozen=True, slots=True)
class GroupNews:
    """What a controller said: an answer to 1002, 1003 or 1004, or the notice 1008."""

    epoch: int | None
    """None when it said nothing about a master (Java's answer to 1003)."""

    master_id: int | None = None
    master_address: str | None = None
    set_epoch: int = 0
    sync_state_set: frozenset[int] = frozenset()
    master_nonce: str | None = None
    """Which process is master; None when it is a Java process, or RocketMQ's controllers speak."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do: take another role, ask for an election, find out whether this process was overtaken, or
    nothing."""

    change: RoleState | None = None
    elect: bool = False
    suspect: bool = False


NOTHING = Verdict()


def decide_role(now: RoleState, news: GroupNews, own_id: int, own_nonce: str | None = None) -> Verdict:
    """What `news` means for the broker with `own_id`, started with `own_nonce`, whose role is `now`.

    A master with our id and another nonce is a process that was registered after this one with a copy of its
    store: its mastership is not ours.
    """
    if news.master_id == own_id and news.master_nonce not in (None, own_nonce):
        return Verdict(suspect=True)
    if news.epoch is None:
        return Verdict(elect=now.master_id is None)
    if news.epoch < now.epoch:
        return NOTHING
    is_newer = news.epoch > now.epoch
    if news.master_id is None:
        return _without_master(now, news.epoch, is_newer)
    role = Role.MASTER if news.master_id == own_id else Role.SLAVE
    wanted = RoleState(
        role,
        news.epoch,
        news.set_epoch,
        news.master_id,
        news.master_address,
        news.sync_state_set,
        news.master_nonce,
    )
    if news.epoch <= 0:  # no election has epoch 0
        return NOTHING
    if is_newer or now.master_id is None:
        # In an epoch whose master is not known yet, whoever is named is news. The answer to a registration
        # names no master that the controller has not heard yet, so a slave may know the epoch of its own
        # mastership before it knows of the mastership.
        return Verdict(wanted)
    return _same_epoch(now, wanted)


def is_switch(now: RoleState, wanted: RoleState) -> bool:
    """Whether a change needs more than to know another in-sync set: another role, master, or place of it."""
    if (now.role, now.epoch, now.master_id) != (wanted.role, wanted.epoch, wanted.master_id):
        return True
    if wanted.role is not Role.SLAVE:
        return False
    return (now.master_address, now.master_nonce) != (wanted.master_address, wanted.master_nonce)


def stood_down(now: RoleState) -> RoleState:
    """The role of a broker that another process has overtaken."""
    return RoleState(epoch=now.epoch, set_epoch=now.set_epoch)


def registered(now: RoleState, group_epoch: int | None) -> RoleState:
    """The role after a registration: one that the broker has goes on, else epochs begin with the group's."""
    if now.role is not Role.NONE or group_epoch is None:
        return now
    return RoleState(epoch=max(now.epoch, group_epoch), set_epoch=now.set_epoch)


def _without_master(now: RoleState, epoch: int, is_newer: bool) -> Verdict:
    if now.role is Role.MASTER:
        if is_newer:
            return Verdict(RoleState(epoch=epoch, set_epoch=now.set_epoch), elect=True)
        # What ends a mastership raises the epoch. So the group was rebuilt, and its election waits for who
        # asks; or this is the answer to a registration, which names no master that was not heard yet.
        return Verdict(elect=True)
    if now.role is Role.SLAVE and is_newer:
        gone = replace(now, epoch=epoch, master_id=None, master_address=None, master_nonce=None)
        return Verdict(gone, elect=True)
    return Verdict(elect=True)


def _same_epoch(now: RoleState, wanted: RoleState) -> Verdict:
    """News within an epoch: another set, or another address of the master; never another master."""
    if wanted.role is not now.role or wanted.master_id != now.master_id:
        return NOTHING
    if wanted.set_epoch < now.set_epoch:
        return NOTHING
    if wanted.set_epoch == now.set_epoch:
        wanted = replace(wanted, sync_state_set=now.sync_state_set or wanted.sync_state_set)
    if wanted.master_address is None:
        wanted = replace(wanted, master_address=now.master_address)
    if wanted.master_nonce is None:
        wanted = replace(wanted, master_nonce=now.master_nonce)
    return Verdict(wanted) if wanted != now else NOTHING
