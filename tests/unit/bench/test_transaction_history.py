"""The judge of transactions accepts what is right, and names each kind of broken promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brokerset_bench.event_log import Broken, whole_number
from brokerset_bench.history import body_of, read_events
from brokerset_bench.transaction_history import TransactionHistory, check
from brokerset_bench.transaction_load import is_committed, is_left

Event = dict[str, Any]
SCANNED: Event = {"kind": "scanned", "broker": "b"}


def story(*events: Event) -> list[Event]:
    """The events, one second after the other."""
    return [{"t": float(t), **event} for t, event in enumerate(events)]


def half(number: int, *, commits: bool = True) -> list[Event]:
    """A half message that was stored."""
    return [
        {"kind": "half", "id": number, "commits": commits, "broker": "a"},
        {"kind": "halfAck", "id": number, "broker": "a"},
    ]


def end(number: int, *, commits: bool = True) -> Event:
    return {"kind": "end", "id": number, "commits": commits, "broker": "a"}


def end_ack(number: int, *, commits: bool = True) -> Event:
    return {"kind": "endAck", "id": number, "commits": commits, "broker": "a"}


def seen(kind: str, number: int | None, offset: int = 0) -> Event:
    return {"kind": kind, "id": number, "queue": 0, "offset": offset, "broker": "b"}


def both(number: int | None, offset: int = 0) -> list[Event]:
    return [seen("consume", number, offset), seen("final", number, offset)]


def kinds(*events: Event) -> dict[str, int]:
    return dict(check(story(*events)).violations)


def test_what_was_committed_and_is_visible_and_what_was_rolled_back_and_is_not_is_right() -> None:
    """Counted are stored halves, acknowledged commits, rollbacks, and questions of brokers."""
    verdict = check(
        story(
            {"kind": "subject", "of": "transactions"},
            *half(1),
            *half(2, commits=False),
            *half(3),
            end(1),
            end_ack(1),
            end(2, commits=False),
            end_ack(2, commits=False),
            {"kind": "asked", "id": 3, "broker": "b"},
            end(3),
            end_ack(3),
            *both(1, 0),
            *both(3, 1),
            SCANNED,
        )
    )

    assert verdict.ok
    assert dict(verdict.counts) == {
        "halves": 3, "committed": 2, "rolledBack": 1, "asked": 1, "duplicates": 0,
    }  # fmt: skip


def test_an_acknowledged_commit_that_is_nowhere_is_lost() -> None:
    """Not so one whose commit was not acknowledged and whose half was never stored."""
    begun = half(1)[0]

    assert kinds(*half(1), end(1), end_ack(1), SCANNED) == {Broken.LOST: 1}
    assert kinds(begun, {"kind": "giveUp", "id": 1, "why": "no answer"}, SCANNED) == {}


def test_a_stored_half_that_is_to_be_committed_must_be_settled() -> None:
    """The broker has to ask where the end did not arrive."""
    assert kinds(*half(1), end(1), SCANNED) == {Broken.UNSETTLED: 1}
    assert kinds(*half(1), SCANNED) == {Broken.UNSETTLED: 1}


def test_a_message_that_is_seen_before_its_commit_left_was_half() -> None:
    """Also if nobody ever committed it."""
    assert kinds(*half(1), *both(1), end(1), end_ack(1), SCANNED) == {Broken.HALF_VISIBLE: 1}
    assert kinds(*half(1), *both(1), SCANNED) == {Broken.HALF_VISIBLE: 1}
    assert kinds(*half(1), end(1), *both(1), SCANNED) == {}


def test_a_message_that_was_rolled_back_must_not_be_visible() -> None:
    """The same is true of one that its producer has given up, and of what only the last scan meets."""
    rolled_back = [*half(1, commits=False), end(1, commits=False)]
    given_up = [half(1)[0], {"kind": "giveUp", "id": 1, "why": "connection closed"}]

    assert kinds(*rolled_back, *both(1), SCANNED) == {Broken.ROLLED_BACK_VISIBLE: 1}
    assert kinds(*given_up, *both(1), SCANNED) == {Broken.ROLLED_BACK_VISIBLE: 1}
    assert kinds(*rolled_back, seen("final", 1), SCANNED) == {
        Broken.ROLLED_BACK_VISIBLE: 1, Broken.UNREAD: 1,
    }  # fmt: skip


def test_a_message_that_is_there_twice_is_counted_and_no_violation() -> None:
    verdict = check(story(*half(1), end(1), end(1), end_ack(1), *both(1, 0), *both(1, 1), SCANNED))

    assert verdict.ok
    assert verdict.counts["duplicates"] == 1


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        ([*both(None)], {Broken.UNKNOWN: 1}),
        ([*both(7)], {Broken.UNKNOWN: 1}),
        ([*half(1), end(1), seen("consume", 1), seen("final", 1, 5)], {Broken.VANISHED: 1}),
        ([*half(1), end(1), seen("final", 1)], {Broken.UNREAD: 1}),
    ],
)
def test_what_consumer_and_scan_see_must_fit(events: list[Event], broken: dict[str, int]) -> None:
    """A message that nobody made, one that goes away, one that the consumer was not given."""
    assert kinds(*events, SCANNED) == broken


def test_without_the_last_scan_nothing_is_known() -> None:
    """That is a violation, too: a run that ends too early must not pass."""
    assert kinds(*half(1), end(1), end_ack(1)) == {Broken.UNFINISHED: 1}


def test_an_event_of_a_transaction_that_never_began_is_an_error() -> None:
    """A damaged history is not judged."""
    with pytest.raises(KeyError):
        check(story(end(1), SCANNED))


def test_a_history_is_written_as_it_is_judged(tmp_path: Path) -> None:
    """And it knows what the consumer is still owed."""
    now = iter(range(100))
    history = TransactionHistory(lambda: float(next(now)))
    for number in (0, 4):
        history.half(number, "a", commits=is_committed(number))
        history.half_acked(number, "a")
    owed = history.owed
    history.ended(0, "a", commits=True)
    history.end_acked(0, "a", commits=True)
    history.consumed(0, 0, "a", body_of(0, 100))
    history.found(0, 0, "a", body_of(0, 100))
    history.note("scanned", broker="a")

    history.write(tmp_path / "deep" / "x.jsonl")

    with (tmp_path / "deep" / "x.jsonl").open("rb") as lines:
        assert list(read_events(lines)) == list(history.events())
    assert (owed, history.owed) == (1, 0)
    assert check(history.events()).ok


def test_a_body_that_is_not_as_it_was_made_has_no_number() -> None:
    assert whole_number(body_of(12, 100)) == 12
    assert whole_number(body_of(12, 100)[:-1] + b"?") is None
    assert whole_number(b"12") is None


def test_every_kind_of_end_is_there() -> None:
    """Commits and rollbacks, each also left to the broker's question."""
    kinds_of_end = {(is_committed(number), is_left(number)) for number in range(40)}

    assert kinds_of_end >= {(True, False), (False, False), (True, True)}
