"""Who is alive, dead or unknown to one controller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_controller.liveness import (
    PROBE_SECONDS_MAX,
    TIMEOUT_MS_DEFAULT,
    TIMEOUT_MS_MAX,
    Beat,
    Liveness,
    Probe,
    ReplicaKey,
    Standing,
)

ONE, TWO = ReplicaKey("a", 1), ReplicaKey("a", 2)
ALIVE, DEAD, UNKNOWN = Standing.ALIVE, Standing.DEAD, Standing.UNKNOWN


def beat(epoch: int = 1, offset: int = 10, *, nonce: str | None = "n", timeout_ms: int = 2_000) -> Beat:
    return Beat("h:1", nonce, epoch, offset, offset, timeout_ms)


def ask(table: Liveness, now: float, *keys: ReplicaKey) -> tuple[Probe, ...]:
    return table.to_ask(now, [(key, "h:1") for key in keys or (ONE,)])


def standing(table: Liveness, now: float, key: ReplicaKey = ONE) -> Standing:
    return table.view(key.broker_name, now).standing(key.broker_id)


@pytest.fixture
def table() -> Liveness:
    """A table in which replica 1 was heard at 0 on the connection `c`."""
    table = Liveness()
    assert table.heard(ONE, beat(), "c", 0.0)
    return table


def test_a_beat_makes_alive_and_silence_makes_unknown(table: Liveness) -> None:
    """Each broker says itself how long it may be silent; nobody is dead for want of news."""
    table.heard(TWO, beat(timeout_ms=5_000), "d", 0.0)

    assert (standing(table, 2.0), standing(table, 2.1)) == (ALIVE, UNKNOWN)
    assert table.silent(2.1) == (ONE,)
    assert table.silent(2.2) == ()
    assert (standing(table, 4.9, TWO), standing(table, 0.0, ReplicaKey("b", 1))) == (ALIVE, UNKNOWN)


def test_a_closed_connection_makes_suspects_of_those_heard_on_it_last(table: Liveness) -> None:
    """A half-open connection that closes after a newer one was made means nothing."""
    table.heard(TWO, beat(), "c", 0.0)
    table.heard(ONE, beat(), "newer", 0.5)

    assert table.closed("c", 1.0) == (TWO,)
    assert (standing(table, 1.0), standing(table, 1.0, TWO)) == (ALIVE, UNKNOWN)
    assert table.closed("c", 1.0) == ()
    assert table.closed("newer", 1.0) == (ONE,)
    assert table.closed("never seen", 1.0) == ()


def test_a_suspect_is_asked_once(table: Liveness) -> None:
    """A question is out until it is answered; those that are known to be alive or dead are not asked."""
    assert ask(table, 0.0) == ()
    table.closed("c", 1.0)
    (question,) = ask(table, 1.0)

    assert (question.key, question.address) == (ONE, "h:1")
    assert ask(table, 1.1) == ()
    assert table.answered(question, False, 1.2)
    assert standing(table, 1.2) is DEAD
    assert ask(table, 9.0) == ()


def test_an_answer_makes_alive_for_one_time_out(table: Liveness) -> None:
    """Who answers but sends no heartbeats is asked again and again."""
    table.silent(3.0)
    (question,) = ask(table, 3.0)

    assert table.answered(question, True, 3.1)
    assert (standing(table, 5.0), standing(table, 5.2)) == (ALIVE, UNKNOWN)
    assert len(ask(table, 5.2)) == 1


def test_a_beat_wins_over_a_question_that_is_out(table: Liveness) -> None:
    """The broker was slow to answer, but it lives."""
    table.closed("c", 1.0)
    (question,) = ask(table, 1.0)
    table.heard(ONE, beat(), "d", 1.1)

    assert not table.answered(question, False, 1.2)
    assert standing(table, 1.2) is ALIVE


def test_a_late_answer_is_not_taken_for_another_questions(table: Liveness) -> None:
    """Only the newest question counts."""
    table.closed("c", 1.0)
    (old,) = ask(table, 1.0)
    table.heard(ONE, beat(), "d", 1.1)
    table.closed("d", 1.2)
    (new,) = ask(table, 1.2)

    assert not table.answered(old, False, 1.3)
    assert standing(table, 1.3) is UNKNOWN
    assert table.answered(new, True, 1.4)


def test_a_question_that_nobody_answers_is_forgotten(table: Liveness) -> None:
    """Its task may have died with a leadership."""
    table.closed("c", 1.0)
    (question,) = ask(table, 1.0)

    assert ask(table, 1.0 + PROBE_SECONDS_MAX) == ()
    assert len(ask(table, 1.1 + PROBE_SECONDS_MAX)) == 1
    assert not table.answered(question, False, 40.0)


def test_replicas_that_were_never_heard_are_asked() -> None:
    """A new leader judges nobody before."""
    table = Liveness()
    one, two = ask(table, 0.0, ONE, TWO)
    table.answered(one, False, 0.1)
    table.answered(two, True, 0.1, Beat("h2:1", "m", 3, 30, 20))
    view = table.view("a", 0.1)

    assert (view.standing(1), view.standing(2)) == (DEAD, ALIVE)
    assert view.alive(2)
    assert not view.alive(1)
    assert (view.lives[2].nonce, view.lives[2].epoch, view.lives[2].max_offset) == ("m", 3, 30)
    assert view.lives[1].max_offset == -1


def test_log_ends_only_grow_while_the_process_is_the_same(table: Liveness) -> None:
    """A beat that was overtaken does no harm; a new process is taken at its word."""

    def log_end() -> tuple[int, int, int]:
        live = table.view("a", 0.0).lives[1]
        return live.epoch, live.max_offset, live.confirm_offset

    table.heard(ONE, beat(2, 5), "c", 0.0)
    assert log_end() == (2, 5, 5)
    table.heard(ONE, beat(1, 99), "c", 0.0)
    assert log_end() == (2, 5, 5)
    table.heard(ONE, beat(1, 7, nonce="next"), "c", 0.0)
    assert log_end() == (1, 7, 7)


def test_a_page_cache_once_lost_stays_lost_while_the_process_is_the_same(table: Liveness) -> None:
    """Later beats need not say it, and an answer that was on its way does not take it back."""
    table.heard(ONE, replace(beat(), lost_cache=True), "c", 1.0)
    table.heard(ONE, beat(), "c", 2.0)
    lost = [table.view("a", 2.0).lives[1].lost_cache]
    table.heard(ONE, beat(nonce="next"), "c", 3.0)
    lost.append(table.view("a", 3.0).lives[1].lost_cache)

    assert lost == [True, False]


def test_java_processes_are_taken_at_their_word_after_a_break() -> None:
    """They have no nonce: the closed connection tells that a process ended."""
    table = Liveness()
    table.heard(ONE, beat(2, 90, nonce=None), "c", 0.0)
    table.heard(ONE, beat(2, 50, nonce=None), "c", 0.0)
    assert table.view("a", 0.0).lives[1].max_offset == 90

    table.closed("c", 0.1)
    table.heard(ONE, beat(2, 50, nonce=None), "d", 0.2)

    assert table.view("a", 0.2).lives[1].max_offset == 50


@pytest.mark.parametrize(
    ("asked", "given"),
    [(0, TIMEOUT_MS_DEFAULT), (-5, TIMEOUT_MS_DEFAULT), (10**12, TIMEOUT_MS_MAX), (300, 300)],
)
def test_time_outs_are_bounded(asked: int, given: int) -> None:
    """Nobody counts as alive permanently."""
    table = Liveness()
    table.heard(ONE, beat(timeout_ms=asked), "c", 0.0)

    assert standing(table, given / 1_000) is ALIVE
    assert standing(table, given / 1_000 + 0.01) is UNKNOWN


def test_forgetting_leaves_nothing(table: Liveness) -> None:
    """A cleaned replica is unknown; its question and connection are gone too."""
    table.closed("c", 0.0)
    (question,) = ask(table, 0.0)
    table.forget(ONE)
    table.forget(ONE)

    assert len(table) == 0
    assert standing(table, 0.0) is UNKNOWN
    assert not table.answered(question, True, 0.0)
    assert table.closed("c", 0.0) == ()


def test_a_full_table_takes_nobody_in() -> None:
    """Replicas that are in it already are still heard."""
    table = Liveness(records_max=1)
    first = table.heard(ONE, beat(), "c", 0.0)
    second = table.heard(TWO, beat(), "c", 0.0)
    (question,) = ask(table, 0.0, TWO)

    assert (first, second) == (True, False)
    assert not table.answered(question, False, 0.1)
    assert table.heard(ONE, beat(), "c", 0.2)
    assert len(table) == 1
