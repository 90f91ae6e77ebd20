"""A broker that was elected and cannot lead."""

from __future__ import annotations

from brokerset_broker.member.refused_mastership import (
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    SETS_KNOWN_MAX,
    RefusedMastership,
    SetsKnown,
)
from brokerset_broker.member.role import GroupNews, Role, RoleState


def members(*ids: int) -> frozenset[int]:
    return frozenset(ids)


def elected(set_epoch: int, *in_sync: int) -> RoleState:
    return RoleState(Role.MASTER, 8, set_epoch, 2, "2", frozenset(in_sync or (2,)))


def test_one_failure_is_tried_again_before_anybody_is_told() -> None:
    """The second one in the same epoch is told, and for some seconds after it the broker is not to be
    elected."""
    unable = RefusedMastership(1.0)

    assert unable.failed(8, 100.0)
    assert not unable.is_reported(100.0)
    assert not unable.failed(8, 100.5)
    assert unable.gives_up
    assert unable.is_reported(100.5)
    unable.took(Role.SLAVE)
    assert unable.is_reported(100.5 + PAUSE_SECONDS_MIN - 0.1)
    assert not unable.is_reported(100.5 + PAUSE_SECONDS_MIN)


def test_who_fails_in_each_epoch_is_left_alone_for_longer() -> None:
    """Two brokers that both fail do not take turns all the time; who has led starts from scratch."""
    unable, now, holds = RefusedMastership(1.0), 0.0, []
    for epoch in range(6):
        unable.failed(epoch, now)
        unable.failed(epoch, now)
        unable.took(Role.SLAVE)
        begin = now
        while unable.is_reported(now):
            now += 1.0
        holds.append(now - begin)

    assert holds == [5.0, 10.0, 20.0, 40.0, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX]
    unable.took(Role.MASTER)
    unable.failed(9, now)
    unable.failed(9, now)
    assert not unable.is_reported(now + PAUSE_SECONDS_MIN)


def test_rare_polls_keep_it_told_between_two_tries() -> None:
    """A mastership that is tried again rarely is not taken for one that may come about meanwhile."""
    unable = RefusedMastership(30.0)
    unable.failed(8, 0.0)
    unable.failed(8, 0.5)

    assert unable.is_reported(59.0)


def test_the_set_of_right_before_the_election_is_given_back() -> None:
    """Then, as controllers take nobody who is dead, without the last master, and each member alone."""
    known = SetsKnown()
    known.note(GroupNews(7, 1, "1", 4, members(1, 2, 3)))
    known.note(GroupNews(7, 1, "1", 4, members()))

    assert known.before(elected(5), 2) == (
        members(1, 2, 3),
        members(2, 3),
        members(1, 2),
    )


def test_nothing_is_given_back_that_is_not_known_for_sure() -> None:
    """Neither an older set, nor one without this broker, nor when others have joined or were started since,
    nor one of before the group was rebuilt."""
    known = SetsKnown()
    known.note(GroupNews(7, 1, "1", 4, members(1, 2, 3)))
    assert known.before(elected(6), 2) == ()
    assert known.before(elected(5, 2, 3), 2) == ()
    assert known.before(elected(5), 9) == ()

    known.note(GroupNews(9, 1, "1", 1, members(1, 2)))
    assert known.before(elected(5), 2) == ()


def test_a_bounded_number_of_sets_is_known() -> None:
    """The newest ones."""
    known = SetsKnown()
    for set_epoch in range(10):
        known.note(GroupNews(7, 1, "1", set_epoch, members(1, 2)))

    assert known.before(elected(10), 2) == (members(1, 2),)
    assert known.before(elected(10 - SETS_KNOWN_MAX), 2) == ()
