"""What a controller knows of stuck logs, of leases, and of deaths that are certain."""

from __future__ import annotations

import pytest

from brokerset_controller.liveness import (
    LEASE_MS_MAX,
    LEASE_SLACK_SECONDS,
    Beat,
    Liveness,
    ReplicaKey,
    Standing,
)

KEY = ReplicaKey("a", 1)
OTHER = ReplicaKey("a", 2)


def beat(append_age_ms: int | None = None, *, nonce: str = "n", all_ack: bool | None = None) -> Beat:
    return Beat("h:1", nonce, 1, 10, 10, 2_000, priority=5, append_age_ms=append_age_ms, all_ack=all_ack)


def ask(table: Liveness, now: float, alive: bool, answer: Beat | None = None, **how: bool) -> None:
    (question,) = table.to_ask(now, [(KEY, "h:1")])
    assert table.answered(question, alive, now, answer, **how)


@pytest.mark.parametrize(("age", "stuck"), [(None, False), (0, False), (2_000, False), (2_001, True)])
def test_a_log_is_stuck_after_the_beats_own_time_out(age: int | None, stuck: bool) -> None:
    """Nothing waits, or not for long: all is well."""
    table = Liveness()
    table.heard(KEY, beat(age), None, 0.0)

    view = table.view("a", 0.0)

    assert (view.alive(1), view.stuck(1), view.fit(1)) == (True, stuck, not stuck)


def test_the_next_beat_without_waiting_appends_revives() -> None:
    """As long as they wait it stays stuck."""
    table = Liveness()
    for second in range(3):
        table.heard(KEY, beat(3_000), None, float(second))
        assert table.view("a", float(second)).election_standing(1) is Standing.DEAD
    table.heard(KEY, beat(), None, 3.0)

    assert table.view("a", 3.0).fit(1)


def test_an_answer_to_a_question_tells_nothing_of_the_log() -> None:
    """A stuck process answers, too: only its next heartbeat counts. Priority and time-out stay as well."""
    table = Liveness()
    table.heard(KEY, beat(3_000), "c", 0.0)
    table.closed("c", 0.5)
    assert table.view("a", 0.5).election_standing(1) is Standing.UNKNOWN

    ask(table, 0.6, True, Beat("h:1", "n", 1, 10))

    view = table.view("a", 0.6)
    assert view.stuck(1)
    assert view.lives[1].priority == 5
    assert table.view("a", 2.7).standing(1) is Standing.UNKNOWN, "its own time-out still counts"
    ask(table, 2.8, True, Beat("h:1", "another", 1, 10))
    assert not table.view("a", 2.8).stuck(1), "another process has a log of its own"


def test_how_sends_are_acknowledged_is_remembered() -> None:
    """A registration does not tell; the next heartbeat may say otherwise."""
    table = Liveness()
    table.heard(KEY, beat(all_ack=False), None, 0.0)
    table.heard(KEY, Beat("h:1", "next"), None, 1.0)
    assert table.view("a", 1.0).lives[1].all_ack is False
    table.heard(KEY, beat(nonce="next", all_ack=True), None, 2.0)

    assert table.view("a", 2.0).lives[1].all_ack is True


def test_a_death_is_certain_until_the_replica_is_heard_again() -> None:
    """Silence is not."""
    table = Liveness()
    table.found_dead(KEY, "h:1", 0.0)
    assert not table.view("a", 0.0).surely_dead(1)
    table.found_dead(KEY, "h:1", 1.0, surely=True)
    assert table.view("a", 1.0).surely_dead(1)
    table.heard(KEY, beat(), None, 2.0)
    assert not table.view("a", 2.0).surely_dead(1)
    table.closed("c", 3.0)
    ask_later = table.view("a", 9.0)
    assert ask_later.standing(1) is Standing.UNKNOWN
    ask(table, 9.0, False, surely=True)

    assert table.view("a", 9.0).surely_dead(1)
    table.found_dead(OTHER, "h:2", 9.0, surely=True)
    assert table.view("a", 9.0).surely_dead(2), "also of one that was never heard"


def test_a_lease_that_was_given_runs_out() -> None:
    """It counts a little longer than it was given for; the newest one counts."""
    table = Liveness()
    table.leads(3, -100.0)
    assert table.lease_granted(KEY, "n", 2_000, 0.0) == 2_000
    assert table.view("a", 0.5).lease_seconds == pytest.approx(1.5 + LEASE_SLACK_SECONDS)
    table.lease_granted(KEY, "n", 2_000, 1.0)
    assert table.view("a", 2.0).lease_seconds == pytest.approx(1.0 + LEASE_SLACK_SECONDS)

    assert table.view("a", 3.1).lease_seconds == 0.0
    assert table.view("b", 2.0).lease_seconds == 0.0


def test_a_lease_is_never_longer_than_a_new_leader_waits() -> None:
    """A broker may ask for any time-out."""
    assert Liveness().lease_granted(KEY, "n", 600_000, 0.0) == LEASE_MS_MAX
    assert Liveness().lease_granted(KEY, "n", 0, 0.0) == LEASE_MS_MAX


def test_a_certain_death_ends_the_lease_and_silence_does_not() -> None:
    """Only of the replica that has it."""
    table = Liveness()
    table.leads(3, -100.0)
    table.lease_granted(KEY, "n", 2_000, 0.0)
    table.found_dead(KEY, "h:1", 0.1)
    table.found_dead(OTHER, "h:2", 0.1, surely=True)
    assert table.view("a", 0.1).lease_seconds > 1.9

    table.found_dead(KEY, "h:1", 0.2, surely=True)

    assert table.view("a", 0.2).lease_seconds == 0.0


def test_a_new_leader_counts_from_the_start_of_its_leadership() -> None:
    """Who led before may have given a lease a moment ago, for as long as brokers of the group ask for."""
    table = Liveness()
    table.heard(KEY, beat(), None, 0.0)
    table.leads(3, 50.0)

    assert table.view("a", 51.0).lease_seconds == pytest.approx(1.0 + LEASE_SLACK_SECONDS)
    assert table.view("a", 52.1).lease_seconds == 0.0
    unheard = table.view("b", 51.0).lease_seconds
    assert unheard == pytest.approx(LEASE_MS_MAX / 1_000 - 1.0 + LEASE_SLACK_SECONDS)
    table.leads(3, 52.0)
    assert table.view("a", 52.1).lease_seconds == 0.0, "told again in the same term: nothing new"
    table.leads(4, 53.0)
    assert table.view("a", 53.0).lease_seconds > 2.0
    table.leads(None, 53.5)
    assert table.view("a", 53.5).lease_seconds == 0.0, "who does not lead decides nothing"
