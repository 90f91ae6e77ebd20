"""The checker of histories accepts what is right, and names each kind of broken promise."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from brokerset_bench.history import TEXTS_MAX, Violation, check
from brokerset_rig.history_check import main

Event = dict[str, Any]


def story(*events: Event) -> list[Event]:
    """The events, one second after the other."""
    return [{"t": float(t), **event} for t, event in enumerate(events)]


def send(number: int, queue: int = 0, body: int | None = None) -> Event:
    return {"kind": "send", "id": number, "queue": queue, "broker": "a", "body": body or number * 11}


def ack(number: int, offset: int, queue: int = 0, broker: str = "a") -> Event:
    return {"kind": "ack", "id": number, "queue": queue, "offset": offset, "broker": broker}


def fail(number: int) -> Event:
    return {"kind": "fail", "id": number, "queue": 0, "broker": "a", "why": "connection closed"}


def seen(kind: str, number: int | None, offset: int, queue: int = 0, body: int | None = None) -> Event:
    checksum = body if body is not None else (number or 0) * 11
    return {"kind": kind, "id": number, "queue": queue, "offset": offset, "broker": "b", "body": checksum}


def both(number: int, offset: int) -> list[Event]:
    """Consumed, and there at the end."""
    return [seen("consume", number, offset), seen("final", number, offset)]


SCANNED: Event = {"kind": "scanned", "broker": "b"}


def kinds(events: Iterable[Event]) -> dict[str, int]:
    return dict(check(events).violations)


def test_a_history_in_which_all_was_kept_is_right() -> None:
    verdict = check(
        story(
            send(1),
            ack(1, 0),
            send(2),
            ack(2, 1),
            {"kind": "fault", "why": "x"},
            *both(1, 0),
            *both(2, 1),
            SCANNED,
        )
    )

    assert verdict.ok
    assert (verdict.sent, verdict.acked, verdict.consumed, verdict.lost, verdict.duplicates) == (
        2,
        2,
        2,
        0,
        0,
    )


def test_what_was_never_acknowledged_may_be_missing_or_there() -> None:
    events = story(send(1), send(2), fail(1), fail(2), *both(2, 0), SCANNED)

    verdict = check(events)

    assert verdict.ok
    assert (verdict.acked, verdict.failed) == (0, 2)


def test_a_message_that_was_sent_again_and_is_there_twice_is_counted_only() -> None:
    events = story(send(1), fail(1), send(1), ack(1, 1), *both(1, 0), *both(1, 1), SCANNED)

    verdict = check(events)

    assert verdict.ok
    assert verdict.duplicates == 1


def test_reading_the_same_again_is_counted_only() -> None:
    events = story(
        send(1), ack(1, 0), seen("consume", 1, 0), seen("consume", 1, 0), seen("final", 1, 0), SCANNED
    )

    verdict = check(events)

    assert verdict.ok
    assert (verdict.consumed, verdict.reread) == (1, 1)


def test_an_acknowledged_message_that_is_nowhere_is_lost() -> None:
    verdict = check(story(send(1), ack(1, 0), SCANNED))

    assert verdict.lost == 1
    assert dict(verdict.violations) == {"lost": 1, "overwritten": 1, "unread": 1}
    assert verdict.texts["lost"] == ["message 1 was acknowledged and is nowhere at the end"]


def test_an_acknowledged_place_that_another_message_took_is_noticed_though_the_message_is_elsewhere() -> None:
    events = story(send(1), ack(1, 0), send(2), send(1), ack(1, 1), *both(2, 0), *both(1, 1), SCANNED)

    assert kinds(events) == {"overwritten": 1, "conflict": 1}


def test_two_messages_that_were_acknowledged_at_one_place_conflict() -> None:
    events = story(send(1), send(2), ack(1, 0), ack(2, 0, broker="b"), *both(2, 0), SCANNED)

    found = check(events)

    assert found.violations["conflict"] == 1
    assert found.texts["conflict"] == ["queue 0 offset 0 held message 1, and message 2, acknowledged by b"]
    assert found.lost == 1


def test_a_consumer_that_is_given_two_messages_at_one_place_shows_a_conflict() -> None:
    events = story(
        send(1), send(2), seen("consume", 1, 0), seen("consume", 2, 0), seen("final", 2, 0), SCANNED
    )

    assert kinds(events) == {"conflict": 1, "vanished": 1}


def test_what_was_consumed_and_is_gone_has_vanished() -> None:
    events = story(send(1), seen("consume", 1, 0), SCANNED)

    assert kinds(events) == {"vanished": 1}


def test_a_message_before_one_that_was_acknowledged_before_it_was_sent_is_reordered() -> None:
    events = story(send(1), ack(1, 1), send(2), ack(2, 0), *both(2, 0), *both(1, 1), SCANNED)

    assert kinds(events) == {"reordered": 1}


def test_messages_that_were_on_their_way_together_may_take_any_order() -> None:
    assert check(story(send(1), send(2), ack(2, 0), ack(1, 1), *both(2, 0), *both(1, 1), SCANNED)).ok


def test_a_hole_in_a_queue_is_noticed() -> None:
    events = story(
        send(1), send(2), ack(1, 0), ack(2, 2),
        seen("consume", 1, 0), seen("consume", 2, 2), seen("final", 1, 0), seen("final", 2, 2), SCANNED,
    )  # fmt: skip

    assert kinds(events) == {"gap": 2}


def test_a_body_that_is_not_the_one_sent_is_noticed() -> None:
    events = story(send(1), ack(1, 0), seen("consume", 1, 0, body=5), seen("final", 1, 0), SCANNED)

    assert kinds(events) == {"damaged": 1}


def test_a_body_that_names_no_message_is_noticed() -> None:
    events = story(send(1), ack(1, 0), seen("consume", None, 0), seen("final", 1, 0), SCANNED)

    assert kinds(events) == {"damaged": 1, "conflict": 1, "vanished": 1, "unread": 1}


def test_a_message_that_nobody_sent_is_noticed() -> None:
    assert kinds(story(*both(7, 0), SCANNED)) == {"unknown": 2}
    assert kinds(story(ack(7, 0), SCANNED)) == {"unknown": 1}


def test_an_acknowledged_message_that_the_consumer_never_got_is_noticed() -> None:
    assert kinds(story(send(1), ack(1, 0), seen("final", 1, 0), SCANNED)) == {"unread": 1}


def test_a_late_acknowledgement_of_what_was_given_up_is_a_promise_too() -> None:
    """A master that sleeps and wakes must not acknowledge what its successor lacks."""
    events = story(
        send(1), fail(1), send(1), ack(1, 0, broker="b"), ack(1, 5, broker="a"), *both(1, 0), SCANNED
    )

    assert kinds(events) == {"overwritten": 1}


def test_a_history_without_a_scan_proves_nothing() -> None:
    assert kinds(story(send(1), ack(1, 0), seen("consume", 1, 0))) == {"unfinished": 1}


def test_the_order_of_the_lines_does_not_matter() -> None:
    events = story(send(1), ack(1, 0), send(2), ack(2, 1), *both(1, 0), *both(2, 1), SCANNED)

    assert check(reversed(events)) == check(events)


def test_many_violations_are_counted_and_few_are_told() -> None:
    events = story(*(event for n in range(1, 60) for event in (send(n), ack(n, n))), SCANNED)

    verdict = check(events)

    assert verdict.lost == 59
    assert len(verdict.texts["lost"]) == TEXTS_MAX


def test_the_program_judges_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong, broken = tmp_path / "right", tmp_path / "wrong", tmp_path / "broken"
    right.write_text(
        "".join(json.dumps(event) + "\n" for event in story(send(1), ack(1, 0), *both(1, 0), SCANNED))
    )
    wrong.write_text("".join(json.dumps(event) + "\n" for event in story(send(1), ack(1, 0), SCANNED)))
    broken.write_text('{"t": 1, "kind": "ack"}\n')

    assert main([str(right)]) == 0
    assert main([str(right), str(wrong)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["lost"] for line in lines] == [0, 0, 1]
    assert main([str(broken)]) == 2
    assert main([str(tmp_path / "none")]) == 2
    assert main([]) == 2


def test_every_kind_of_violation_is_planted_here() -> None:
    """A kind that no test plants is a kind that nobody has seen work."""
    text = Path(__file__).read_text()

    assert all(f'"{kind}"' in text for kind in Violation), list(Violation)
