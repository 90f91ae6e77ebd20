"""The judge of pops accepts what is right, counts what is given out twice, and names each broken promise."""

from __future__ import annotations

from typing import Any

from brokerset_bench.event_log import Broken
from brokerset_bench.history import body_of
from brokerset_bench.measurements import message_summary
from brokerset_bench.message_tables import message_tables
from brokerset_bench.pop_history import PopHistory, check

Event = dict[str, Any]
SCANNED: Event = {"t": 99.0, "kind": "scanned", "broker": "b"}


def sent(number: int) -> list[Event]:
    """A message that was acknowledged, and is there at the end."""
    return [
        {"t": 0.0, "kind": "put", "id": number, "broker": "a"},
        {"t": 0.1, "kind": "ack", "id": number, "broker": "a"},
        {"t": 90.0, "kind": "final", "id": number, "queue": 0, "offset": number, "broker": "b"},
    ]


def event(kind: str, number: int | None, t: float) -> Event:
    return {"t": t, "kind": kind, "id": number, "broker": "a"}


def test_what_is_given_out_and_done_is_right_and_what_comes_twice_before_is_counted() -> None:
    """The invisible time of the second one ended before it was done."""
    gifts = [event("give", 1, 1.0), event("done", 1, 1.1), event("give", 2, 1.0), event("give", 2, 6.0)]
    verdict = check([*sent(1), *sent(2), *gifts, event("done", 2, 6.1), SCANNED])

    assert verdict.ok, verdict.texts
    assert (verdict.counts["acked"], verdict.counts["delivered"], verdict.counts["done"]) == (2, 2, 2)
    assert verdict.counts["twice"] == 1


def test_what_was_done_may_not_come_again() -> None:
    """A broker had confirmed the ack; one that was not confirmed may be without effect."""
    again = [event("give", 1, 1.0), event("done", 1, 1.1), event("give", 1, 6.0)]
    unconfirmed = [event("give", 1, 1.0), {"t": 1.1, "kind": "undone", "id": 1, "why": "no answer"}]

    assert dict(check([*sent(1), *again, SCANNED]).violations) == {Broken.AGAIN: 1}
    verdict = check([*sent(1), *unconfirmed, event("give", 1, 6.0), SCANNED])
    assert verdict.ok
    assert verdict.counts["undone"] == 1


def test_what_is_nowhere_is_lost_and_what_nobody_was_given_is_unread() -> None:
    """One that was refused may be there or not; a body that was not made for the run is unknown."""
    assert dict(check([*sent(1), SCANNED]).violations) == {Broken.UNREAD: 1}
    assert dict(check([*sent(1)[:2], event("give", 1, 1.0), SCANNED]).violations) == {Broken.LOST: 1}
    refused = [sent(2)[0], {"t": 0.1, "kind": "fail", "id": 2, "why": "code 14"}]
    assert check([*refused, SCANNED]).ok
    assert dict(check([event("give", None, 1.0), SCANNED]).violations) == {Broken.UNKNOWN: 1}


def test_a_history_says_what_is_owed_and_is_judged_from_its_events() -> None:
    """Owed is what was acknowledged and not given out; the table has a line with the figures."""
    now = iter(range(100))
    history = PopHistory(lambda: float(next(now)))
    history.put(1, 0.0, "a")
    history.acked(1, "a")
    assert history.owed == 1
    assert history.given(body_of(1, 64), "a") == 1
    history.done(1, "a")
    assert history.owed == 0
    history.found(0, 0, "a", body_of(1, 64))
    history.note("scanned")

    verdict = check(history.events())
    assert verdict.ok, verdict.texts
    ((heads, rows),) = message_tables([("ours", "killMaster", {"pops": message_summary([verdict])})])
    assert heads[1] == "pops: fault"
    assert rows == [("ours", "killMaster", 1, 1, 1, 0, 0, 0, 0, 0)]
