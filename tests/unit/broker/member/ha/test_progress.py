"""Acknowledgements, the confirmed offset, and who keeps up."""

from __future__ import annotations

from brokerset_broker.member.ha import progress as progress_module
from brokerset_broker.member.ha.in_sync import ReplicaState
from brokerset_broker.member.ha.progress import HOLD_PAUSE_SECONDS, HOLD_SECONDS, JOIN_LAG_SECONDS, Progress

EVERYBODY = frozenset((1, 2, 3))


def of_three(log_end: int = 100) -> Progress:
    found = Progress(1, log_end=log_end, confirmed=0)
    for broker_id in (2, 3):
        found.connected(broker_id, 0.0, learner=False, is_ours=True)
    return found


def states_of(progress: Progress, confirmed: int, now: float, lag: float = 2.0) -> dict[int, ReplicaState]:
    return {state.broker_id: state for state in progress.states(confirmed, now, lag)}


def test_confirmed_is_what_all_members_have() -> None:
    """The slowest member counts, rounded down to the end of a turn of appends."""
    progress = of_three()
    for end in (110, 120, 130):
        progress.appended(end)

    assert progress.acknowledge(2, 130, 0.1, 130) is None
    assert progress.confirm(EVERYBODY, 130, 130, 0) == 0
    assert progress.acknowledge(3, 125, 0.1, 130) is None
    assert progress.confirm(EVERYBODY, 130, 130, 0) == 120
    assert progress.confirm(EVERYBODY, 115, 130, 0) == 120, "never lowered"


def test_a_member_that_never_connected_has_nothing() -> None:
    """A member without any acknowledgement in this mastership counts with 0."""
    progress = of_three()

    assert progress.confirm(frozenset((1, 4)), 100, 100, 7) == 7


def test_a_closed_connection_keeps_its_acknowledgement() -> None:
    """What was acknowledged in this mastership still counts after the end of the connection."""
    progress = of_three()
    progress.acknowledge(2, 100, 0.1, 100)
    progress.disconnected(2)
    progress.appended(200)

    assert progress.confirm(frozenset((1, 2)), 200, 200, 0) == 100


def test_the_own_part_counts() -> None:
    """With synchronous flush the master's own disk holds up what is confirmed."""
    progress = of_three()
    progress.appended(110)
    for broker_id in (2, 3):
        progress.acknowledge(broker_id, 110, 0.1, 110)

    assert progress.confirm(EVERYBODY, 100, 110, 0) == 100


def test_wrong_acknowledgements_are_told() -> None:
    """An acknowledgement behind the log's end, or a smaller one than before, cannot be."""
    progress = of_three()

    assert "behind the end" in (progress.acknowledge(2, 101, 0.0, 100) or "")
    assert progress.acknowledge(2, 90, 0.0, 100) is None
    assert "after 90" in (progress.acknowledge(2, 80, 0.0, 100) or "")
    assert progress.acknowledged(2) == 90


def test_a_new_connection_may_begin_with_less() -> None:
    """A replica that lost its tail says so with the first acknowledgement of its new connection."""
    progress = of_three()
    progress.acknowledge(2, 100, 0.0, 100)
    progress.disconnected(2)
    progress.connected(2, 1.0, learner=False, is_ours=True)

    assert progress.acknowledged(2) == 100
    assert progress.acknowledge(2, 60, 1.0, 100) is None
    assert progress.acknowledged(2) == 60


def test_a_number_of_members() -> None:
    """The n-th best of the members counts; learners and strangers do not."""
    progress = of_three()
    progress.connected(4, 0.0, learner=True, is_ours=True)
    progress.connected(5, 0.0, learner=False, is_ours=True)
    for broker_id, offset in ((2, 90), (3, 80), (4, 100), (5, 100)):
        progress.acknowledge(broker_id, offset, 0.0, 100)

    assert progress.had_by(EVERYBODY | {4}, 1, 100) == 100
    assert progress.had_by(EVERYBODY | {4}, 2, 100) == 90
    assert progress.had_by(EVERYBODY | {4}, 3, 100) == 80
    assert progress.had_by(EVERYBODY | {4}, 4, 100) == 0


def test_who_may_join() -> None:
    """A replica may join that is connected, no learner, has the start of the epoch, the confirmed offset, and
    what there was a moment ago."""
    progress = of_three()
    progress.connected(4, 0.0, learner=True, is_ours=True)
    progress.sent(2, 1.0, 100)
    progress.acknowledge(2, 99, 1.1, 100)
    for broker_id in (3, 4):
        progress.sent(broker_id, 1.0, 100)
        progress.acknowledge(broker_id, 100, 1.1, 100)

    states = states_of(progress, 100, 1.1)
    assert not states[2].may_join, "before the start of the epoch"
    assert states[3].may_join
    assert not states[4].may_join
    assert not states_of(progress, 101, 1.1)[3].may_join, "confirmed is ahead"
    assert not states_of(progress, 100, 1.2 + JOIN_LAG_SECONDS)[3].may_join, "too long ago"
    progress.disconnected(3)
    assert not states_of(progress, 100, 1.1)[3].may_join


def test_a_replica_that_comes_back_with_less_does_not_join() -> None:
    """It had all there was a moment ago, and lost it: below the start of the epoch it is not in sync."""
    progress = of_three()
    progress.acknowledge(2, 100, 1.0, 100)
    assert states_of(progress, 50, 1.0)[2].may_join

    progress.connected(2, 1.1, learner=False, is_ours=True)
    progress.acknowledge(2, 60, 1.1, 100)

    assert not states_of(progress, 50, 1.1)[2].may_join


def test_a_replica_is_caught_up_when_it_has_what_there_was() -> None:
    """An acknowledgement proves that everything was there at the send that it covers, not later."""
    progress = of_three()
    progress.sent(2, 1.0, 100)
    progress.appended(200)
    progress.sent(2, 2.0, 200)
    progress.acknowledge(2, 150, 2.5, 200)

    assert not states_of(progress, 0, 3.0)[2].must_leave
    assert states_of(progress, 0, 3.1)[2].must_leave
    progress.acknowledge(2, 200, 3.2, 200)
    assert not states_of(progress, 0, 5.1)[2].must_leave


def test_silence_counts_for_our_own_replicas_only() -> None:
    """Java's replicas say nothing while nothing happens; ours answer heartbeats."""
    progress = of_three()
    progress.connected(3, 0.0, learner=False, is_ours=False)
    for broker_id in (2, 3):
        progress.acknowledge(broker_id, 100, 0.0, 100)

    states = states_of(progress, 100, 10.0)
    assert states[2].must_leave
    assert not states[3].must_leave
    progress.appended(101)
    assert states_of(progress, 100, 10.0)[3].must_leave


def test_members_have_time_to_connect() -> None:
    """A member of the set that a mastership begins with has until the limit to catch up."""
    progress = Progress(1, log_end=0, confirmed=0)
    progress.expect(frozenset((1, 2)), 5.0)

    assert not states_of(progress, 0, 7.0)[2].must_leave
    assert states_of(progress, 0, 7.1)[2].must_leave


def test_confirming_waits_for_who_is_about_to_join() -> None:
    """A replica that keeps up is waited for, for a moment, and then not for a while."""
    progress = of_three()
    progress.sent(2, 1.0, 100)
    progress.acknowledge(2, 100, 1.0, 100)
    alone = frozenset((1,))

    assert progress.hold(alone, 100, 1.0) == frozenset(), "nothing to wait for"
    progress.appended(120)
    assert progress.hold(alone, 120, 1.0) == {2}
    progress.sent(2, 1.0 + HOLD_SECONDS, 120)
    progress.acknowledge(2, 110, 1.0, 120)
    assert progress.hold(alone, 120, 1.0 + 0.9 * HOLD_SECONDS) == {2}
    assert progress.hold(alone, 120, 1.0 + HOLD_SECONDS) == frozenset()
    progress.sent(2, 4.0, 130)
    progress.acknowledge(2, 120, 4.0, 120)
    progress.appended(130)
    assert progress.hold(alone, 130, 4.0) == frozenset(), "not again so soon"
    progress.sent(2, 2 + HOLD_PAUSE_SECONDS, 130)
    progress.acknowledge(2, 130, 2 + HOLD_PAUSE_SECONDS, 130)
    progress.appended(140)
    assert progress.hold(alone, 140, 2 + HOLD_PAUSE_SECONDS) == {2}
    progress.disconnected(2)
    assert progress.hold(alone, 140, 2 + HOLD_PAUSE_SECONDS) == frozenset()


def test_memory_is_bounded(monkeypatch: object) -> None:
    """Ends of turns and sends are remembered up to a limit; then rounding is coarser, and right."""
    progress = of_three(0)
    for end in range(1, progress_module.BOUNDARIES_MAX + 100):
        progress.appended(end)
        progress.sent(2, float(end), end)
    last = progress_module.BOUNDARIES_MAX + 99

    progress.acknowledge(2, last - 1, 0.0, last)
    assert progress.confirm(frozenset((1, 2)), last, last, 0) == progress_module.BOUNDARIES_MAX - 2
    progress.acknowledge(2, last, 0.0, last)
    assert progress.confirm(frozenset((1, 2)), last, last, 0) == last
