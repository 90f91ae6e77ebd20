"""How long a session may consume, by its own clock alone."""

from __future__ import annotations

import pytest

from brokerset_client.ordered.consuming.permission import NO_PERMISSION, Permission

LENGTH_MS = 30_000
MARGIN_MS = 5_000


def test_nothing_begins_before_the_first_answer() -> None:
    """Without an answer of the controllers a session may do nothing."""
    assert not NO_PERMISSION.may_begin(0.0)
    assert not NO_PERMISSION.may_go_on(0.0)
    assert NO_PERMISSION.remaining(0.0) == 0.0


def test_it_counts_from_when_the_heartbeat_was_sent() -> None:
    """However late the answer arrives, the permission ends 30 s after the sending (statement 20)."""
    permission = NO_PERMISSION.extended(100.0, LENGTH_MS, MARGIN_MS)

    assert permission.ends_at == 130.0
    assert permission.may_begin(124.999)
    assert not permission.may_go_on(130.0)


def test_nothing_new_begins_in_the_margin_and_what_runs_goes_on() -> None:
    """Between margin and end nothing starts, and what runs still counts (statement 48)."""
    permission = NO_PERMISSION.extended(0.0, LENGTH_MS, MARGIN_MS)

    assert not permission.may_begin(25.0)
    assert permission.may_go_on(29.999)
    assert permission.remaining(29.0) == 1.0


def test_an_answer_to_an_older_heartbeat_takes_nothing_away() -> None:
    """Answers that overtake each other leave the longest permission (statement 18)."""
    newer = NO_PERMISSION.extended(10.0, LENGTH_MS, MARGIN_MS)

    assert newer.extended(5.0, LENGTH_MS, MARGIN_MS) == newer
    assert newer.extended(12.0, LENGTH_MS, MARGIN_MS) == Permission(42.0, 5.0)


@pytest.mark.parametrize("rate", [0.9, 0.95, 1.0, 1.05, 1.1])
def test_a_clock_that_runs_wrong_by_a_tenth_stops_before_others_may_start(rate: float) -> None:
    """30 s with a margin of 5 s bear a rate that is wrong by 10 %: who runs slowly begins nothing after
    27.8 s of true time, and has ended all after 33.4 s, before the leader's 35 s are over (statement 82)."""
    permission = NO_PERMISSION.extended(0.0, LENGTH_MS, MARGIN_MS)
    lease_end, given_away = LENGTH_MS / 1000, (LENGTH_MS + MARGIN_MS) / 1000

    begins_until = next(n / 100 for n in range(4_000) if not permission.may_begin(n / 100 * rate))
    counts_until = next(n / 100 for n in range(4_000) if not permission.may_go_on(n / 100 * rate))

    assert begins_until < lease_end
    assert counts_until < given_away
