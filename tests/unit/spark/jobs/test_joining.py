"""What the tasks of `verify` have read and claimed becomes one thing, in whatever order they end."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as some

from brokerset_spark.jobs.running import Row
from brokerset_spark.jobs.verify import joining
from brokerset_spark.jobs.verify.claims import Claimed, Claims
from brokerset_spark.jobs.verify.joining import Sections

SIZE = 10
"""Bytes of a record."""


def section(first: int, times: list[int], *, entries: bool) -> Row:
    """Of records with these times from number `first` on; times are terms, too."""
    pairs = [[(first + at) * SIZE, time] for at, time in enumerate(times)]
    both = [[first, times[0]], [first + len(times) - 1, times[-1]]] if entries and times else [None, None]
    return {
        "kind": "section", "begin": first * SIZE, "end": (first + len(times)) * SIZE, "records": len(times),
        "times": pairs[:2], "lastTimes": pairs[-2:], "entries": both[0], "lastEntry": both[1], "epochs": [],
        "path": f"file-{first}",
    }  # fmt: skip


@some.composite
def logs(draw: Any) -> tuple[list[Row], list[int]]:
    """The rows of tasks, and the order in which they come."""
    rows: list[Row] = []
    at, entries = 0, draw(some.booleans())
    for times in draw(some.lists(some.lists(some.integers(0, 5), max_size=5), min_size=1, max_size=8)):
        rows.append(section(at, times, entries=entries))
        at += len(times)
        if draw(some.booleans()):
            rows.append({"kind": "blank", "begin": at * SIZE, "end": (at + 1) * SIZE, "path": "b"})
            at += 1
        elif draw(some.booleans()):
            at += 2  # damage
    return rows, draw(some.permutations(range(len(rows))))


def said(rows: list[Row]) -> tuple[Sections, list[Row], list[tuple[int, int]]]:
    sections = Sections()
    for row in rows:
        sections.add(dict(row))
    end = max(row["end"] for row in rows) + SIZE
    found = sorted((each.row for each in sections.joints()), key=str)
    return sections, found, sections.gaps(0, end)


@given(logs())
def test_joined_sections_say_what_single_ones_do(made: tuple[list[Row], list[int]]) -> None:
    """Times, entries and terms that do not go on where two meet, and the gaps between them."""
    rows, order = made
    with mock.patch.object(joining, "_can_join", return_value=False):
        single, wanted, holes = said(rows)

    joined, found, gaps = said([rows[at] for at in order])

    assert found == wanted
    assert gaps == holes
    assert max(each["newest"] for each in joined.sections) == max(each["newest"] for each in single.sections)
    assert list(joined.overlaps()) == []


@given(some.permutations(range(40)))
def test_of_a_sound_log_one_section_is_left(order: list[int]) -> None:
    """Of 20 files that end in blank records."""
    rows: list[Row] = []
    for number in range(20):
        rows.append(section(number * 4, [1, 2, 3], entries=False))
        begin = number * 4 * SIZE + 3 * SIZE
        rows.append({"kind": "blank", "begin": begin, "end": begin + SIZE, "path": "b"})
    sections, found, gaps = said([rows[at] for at in order])

    assert [(each["begin"], each["records"]) for each in sections.sections] == [(0, 60)]
    assert gaps == [(80 * SIZE, 81 * SIZE)]
    assert all(row["offset"] % (4 * SIZE) == 0 for row in found)


@given(some.permutations(range(30)))
def test_of_a_sound_queue_one_row_is_left(order: list[int]) -> None:
    """It has what the driver needs to go on with it."""
    reducer = Claimed()
    for number in order:
        run = {"kind": "run", "topic": "t", "queue": 1, "first": number * 10, "count": 10,
               "begin": number * 1_000, "last": number * 1_000 + 900, "bad": []}  # fmt: skip
        reducer.take(run)
    (result,) = reducer.finish()
    claims = Claims.of(result.row)

    assert (claims.claimed(), claims.records, claims.restart, claims.absent) == ([[0, 300]], 300, -1, False)
    assert claims.row() == {name: result.row[name] for name in claims.row()}


@given(some.permutations(range(5)), some.sets(some.sampled_from([0, 1, 2, 5, 6, 7, 8])))
def test_a_queue_that_began_again_is_not_joined_with_its_past(order: list[int], unread: set[int]) -> None:
    """Runs come in the order of the log, and those of damaged parts behind them, in any order; where it began
    again is whole."""
    firsts = [0, 10, 20, 30, 0, 10, 20, 30, 40]
    rows = [
        {"first": first, "count": 10, "begin": number * 1_000, "last": number * 1_000 + 900, "bad": []}
        for number, first in enumerate(firsts)
    ]
    late = sorted(unread)[:5]
    late = [late[at] for at in order if at < len(late)]
    claims = Claims()

    for number in [*(each for each in range(9) if each not in late), *late]:
        claims.add(rows[number])

    assert (claims.restart, claims.claimed()) == (4_000, [[0, 50]])
