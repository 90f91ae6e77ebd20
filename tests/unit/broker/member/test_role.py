"""What answers and notices mean for the role."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_broker.member import role
from brokerset_broker.member.role import NOTHING, GroupNews, Role, RoleState, Verdict, decide_role

OWN = 1
NONE_AT_5 = RoleState(epoch=5)
MASTER_AT_5 = RoleState(Role.MASTER, 5, 9, 1, "a:1", frozenset({1}))
SLAVE_AT_5 = RoleState(Role.SLAVE, 5, 9, 2, "b:1", frozenset({2}))
SLAVE_WITHOUT_MASTER = RoleState(Role.SLAVE, 6, 9, None, None, frozenset({2}))


def own(epoch: int, set_epoch: int = 10) -> GroupNews:
    return GroupNews(epoch, 1, "a:1", set_epoch, frozenset({1}))


def other(epoch: int, set_epoch: int = 10, master_id: int = 2, address: str | None = "b:1") -> GroupNews:
    return GroupNews(epoch, master_id, address, set_epoch, frozenset({2}))


def nobody(epoch: int) -> GroupNews:
    return GroupNews(epoch, None, None, 10, frozenset({1}))


def master(epoch: int, set_epoch: int = 10) -> RoleState:
    return RoleState(Role.MASTER, epoch, set_epoch, 1, "a:1", frozenset({1}))


def slave(epoch: int, set_epoch: int = 10, address: str = "b:1") -> RoleState:
    return RoleState(Role.SLAVE, epoch, set_epoch, 2, address, frozenset({2}))


@pytest.mark.parametrize(
    ("now", "told", "verdict"),
    [
        # older epochs mean nothing
        (NONE_AT_5, own(4), NOTHING),
        (NONE_AT_5, nobody(4), NOTHING),
        (MASTER_AT_5, other(4), NOTHING),
        (SLAVE_AT_5, own(4), NOTHING),
        # without a role the epoch of the registration counts
        (NONE_AT_5, own(5), Verdict(master(5))),
        (NONE_AT_5, own(6), Verdict(master(6))),
        (NONE_AT_5, other(5), Verdict(slave(5))),
        (NONE_AT_5, nobody(5), Verdict(elect=True)),
        (NONE_AT_5, nobody(6), Verdict(elect=True)),
        (RoleState(), GroupNews(None), Verdict(elect=True)),
        (RoleState(), own(1), Verdict(master(1))),
        (RoleState(), own(0), NOTHING),
        # a master
        (MASTER_AT_5, own(6), Verdict(master(6))),
        (MASTER_AT_5, own(5, 10), Verdict(master(5, 10))),
        (MASTER_AT_5, own(5, 9), NOTHING),
        (MASTER_AT_5, own(5, 8), NOTHING),
        (MASTER_AT_5, other(6), Verdict(slave(6))),
        (MASTER_AT_5, other(5), NOTHING),
        (MASTER_AT_5, nobody(5), Verdict(elect=True)),  # the group was rebuilt
        (MASTER_AT_5, nobody(6), Verdict(RoleState(epoch=6, set_epoch=9), elect=True)),
        (MASTER_AT_5, GroupNews(None), NOTHING),
        # a slave
        (SLAVE_AT_5, own(6), Verdict(master(6))),
        (SLAVE_AT_5, own(5), NOTHING),
        (SLAVE_AT_5, other(6), Verdict(slave(6))),
        (SLAVE_AT_5, other(5, 9, address="b:2"), Verdict(slave(5, 9, "b:2"))),
        (SLAVE_AT_5, other(5, 9, address=None), NOTHING),
        (SLAVE_AT_5, other(5, master_id=3), NOTHING),
        (SLAVE_AT_5, nobody(6), Verdict(SLAVE_WITHOUT_MASTER, elect=True)),
        (SLAVE_AT_5, nobody(5), Verdict(elect=True)),
        (SLAVE_WITHOUT_MASTER, GroupNews(None), Verdict(elect=True)),
        (SLAVE_WITHOUT_MASTER, other(7), Verdict(slave(7))),
        # a registration named the epoch, but not its master, who was not heard yet
        (SLAVE_WITHOUT_MASTER, own(6), Verdict(master(6))),
        (SLAVE_WITHOUT_MASTER, own(6, 8), Verdict(master(6, 8))),
        (SLAVE_WITHOUT_MASTER, other(6), Verdict(slave(6))),
        (SLAVE_WITHOUT_MASTER, own(5), NOTHING),
        (SLAVE_WITHOUT_MASTER, nobody(6), Verdict(elect=True)),
    ],
)
def test_what_is_told_and_what_follows(now: RoleState, told: GroupNews, verdict: Verdict) -> None:
    """One row for each meeting of a role and news."""
    assert decide_role(now, told, OWN) == verdict


def test_an_overtaken_broker_has_no_role_but_keeps_its_epoch() -> None:
    """So that old news cannot make it master again."""
    assert role.stood_down(MASTER_AT_5) == RoleState(epoch=5, set_epoch=9)


def test_a_registration_without_a_role_begins_at_the_groups_epoch() -> None:
    """What was decided before it concerns an earlier process."""
    now = role.registered(RoleState(), 8)

    assert decide_role(now, own(7), OWN) == NOTHING
    assert decide_role(now, own(8), OWN).change == master(8)


def test_with_controllers_of_java_any_epoch_counts() -> None:
    """They let a restarted master go on in its old epoch."""
    assert role.registered(RoleState(), None) == RoleState()


def test_a_repeated_registration_takes_no_role_away() -> None:
    """A master whose controllers had to be told again goes on."""
    assert role.registered(MASTER_AT_5, 8) is MASTER_AT_5


@pytest.mark.parametrize("now", [NONE_AT_5, MASTER_AT_5, SLAVE_AT_5])
def test_a_master_with_our_id_and_another_nonce_is_not_us(now: RoleState) -> None:
    """A process that was registered later with a copy of the store never makes this one master."""
    twin = GroupNews(6, OWN, "c:1", 10, frozenset({1}), "nonce-of-the-twin")

    assert decide_role(now, twin, OWN, "own-nonce") == Verdict(suspect=True)


def test_a_master_with_our_id_and_our_nonce_is_us() -> None:
    """The nonce of this start, or none (Java's controllers name none), confirms the mastership."""
    for nonce in ("own-nonce", None):
        told = GroupNews(6, OWN, "a:1", 10, frozenset({1}), nonce)

        assert decide_role(NONE_AT_5, told, OWN, "own-nonce").change == replace(master(6), master_nonce=nonce)


@pytest.mark.parametrize(
    ("now", "wanted", "expected"),
    [
        (NONE_AT_5, master(5), True),
        (MASTER_AT_5, master(6), True),
        (MASTER_AT_5, slave(6), True),
        (SLAVE_AT_5, slave(6), True),
        (SLAVE_WITHOUT_MASTER, slave(6), True),
        (SLAVE_AT_5, slave(5, address="c:1"), True),
        (SLAVE_AT_5, replace(SLAVE_AT_5, master_nonce="n"), True),
        (MASTER_AT_5, master(5, 12), False),
        (MASTER_AT_5, replace(MASTER_AT_5, master_address="c:1"), False),
        (SLAVE_AT_5, slave(5, 12), False),
    ],
)
def test_a_switch_is_more_than_another_set(now: RoleState, wanted: RoleState, expected: bool) -> None:
    """Another role, epoch or master; and for a slave another place or process of its master."""
    assert role.is_switch(now, wanted) is expected


def test_the_masters_nonce_is_kept_when_news_do_not_name_it() -> None:
    """Old controllers' answers within an epoch lack it."""
    now = replace(SLAVE_AT_5, master_nonce="m")

    change = decide_role(now, other(5), OWN).change

    assert change is not None
    assert change.master_nonce == "m"
