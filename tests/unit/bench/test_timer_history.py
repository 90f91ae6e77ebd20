"""The judge of timers accepts what is right, counts what is late, and names each kind of broken promise."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_bench.event_log import Broken
from brokerset_bench.history import Verdict, body_of
from brokerset_bench.measurements import KindResult, RunResult, message_summary
from brokerset_bench.message_tables import message_tables
from brokerset_bench.timer_history import LATE_SECONDS, TimerHistory, check

Event = dict[str, Any]
SCANNED: Event = {"t": 99.0, "kind": "scanned", "broker": "b"}


def put(number: int, due: float, t: float = 0.0) -> list[Event]:
    """A timer that was acknowledged."""
    return [
        {"t": t, "kind": "put", "id": number, "due": due, "broker": "a"},
        {"t": t + 0.1, "kind": "ack", "id": number, "broker": "a"},
    ]


def delivered(number: int, t: float, offset: int = 0) -> list[Event]:
    """It was consumed at `t`, and is there at the end."""
    place = {"id": number, "queue": 0, "offset": offset, "broker": "b"}
    return [{"t": t, "kind": "consume", **place}, {"t": 90.0, "kind": "final", **place}]


def test_timers_that_come_when_they_are_due_or_a_little_later_are_right() -> None:
    """How late each was is known."""
    verdict = check([*put(1, 5.0), *put(2, 6.0), *delivered(1, 5.25), *delivered(2, 6.5, 1), SCANNED])

    assert verdict.ok
    assert verdict.lateness == [0.25, 0.5]
    assert (verdict.counts["acked"], verdict.counts["delivered"], verdict.counts["late"]) == (2, 2, 0)


def test_an_acknowledged_timer_that_never_comes_is_lost() -> None:
    """One that was refused may come or not."""
    refused = [put(2, 5.0)[0], {"t": 0.1, "kind": "fail", "id": 2, "why": "code 14"}]

    assert dict(check([*put(1, 5.0), SCANNED]).violations) == {Broken.LOST: 1}
    assert check([*refused, SCANNED]).ok
    assert check([*refused, *delivered(2, 5.0), SCANNED]).ok


def test_a_timer_that_comes_before_its_time_is_early() -> None:
    """By however little."""
    verdict = check([*put(1, 5.0), *delivered(1, 4.999), SCANNED])

    assert dict(verdict.violations) == {Broken.EARLY: 1}
    assert "0.001 s before" in verdict.texts[Broken.EARLY][0]


def test_what_comes_late_or_twice_is_counted_and_no_violation() -> None:
    late = 5.0 + LATE_SECONDS

    verdict = check(
        [*put(1, 5.0), *put(2, 5.0), *delivered(1, late), *delivered(2, late + 0.1, 1),
         *delivered(2, late + 5, 2), SCANNED]
    )  # fmt: skip

    assert verdict.ok
    assert (verdict.counts["late"], verdict.counts["duplicates"]) == (1, 1)
    assert verdict.lateness == [late - 5.0, pytest.approx(late - 4.9)]


def test_a_history_knows_what_is_owed() -> None:
    """A late acknowledgement counts, too; what failed is not waited for."""
    now = iter(range(100))
    history = TimerHistory(lambda: float(next(now)))
    history.put(0, 3.0, "a")
    history.put(1, 3.0, "a")
    history.failed(1, "no answer in time")
    history.acked(0, "a")
    owed = history.owed
    history.consumed(0, 0, "a", body_of(0, 64))
    history.found(0, 0, "a", body_of(0, 64))
    history.note("scanned", broker="a")

    assert (owed, history.owed) == (1, 0)
    assert check(history.events()).ok
    assert check(history.events()).counts["failed"] == 1


def test_runs_are_summed_up_and_a_broken_one_breaks_the_kind() -> None:
    """Losses of timers are among the violations of the fault, and each kind has a column that may be zero."""
    good = check([*put(1, 5.0), *delivered(1, 5.5), SCANNED])
    bad = check([*put(1, 5.0), *put(2, 5.0), *delivered(1, 6.0), SCANNED])
    runs = [RunResult(0.1, Verdict(), 0, 0, {}, 0.5, messages={"timers": one}) for one in (good, bad)]

    measured = KindResult(runs).to_object()

    assert KindResult(runs).broken
    assert not KindResult(runs[:1]).broken
    assert measured["violations"] == {"timers lost": 1}
    assert measured["texts"] == ["timer 2 was acknowledged and is nowhere at the end"]
    assert measured["timers"] == message_summary([good, bad])
    assert (measured["timers"]["lost"], measured["timers"]["early"], measured["timers"]["acked"]) == (1, 0, 3)
    assert (measured["timers"]["lateP50Ms"], measured["timers"]["lateMaxMs"]) == (500, 1000)


def test_only_what_was_measured_has_a_table() -> None:
    """The columns are those of the subject."""
    found = {"timers": message_summary([check([*put(1, 5.0), *delivered(1, 5.5), SCANNED])])}

    tables = list(message_tables([("ours", "killMaster", found), ("ours", "switchover", {})]))

    assert len(tables) == 1
    heads, rows = tables[0]
    assert heads[:4] == ("servers", "timers: fault", "acknowledged", "delivered")
    assert rows == [("ours", "killMaster", 1, 1, 0, 0, 0, 500, 500, 500, 0, 0)]
