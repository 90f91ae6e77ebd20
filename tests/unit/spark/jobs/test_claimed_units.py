"""Units that the log claims are passed over at once; what is said of all others stays the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from brokerset_formats.queue_units import BLANK_SIZE, UNIT
from brokerset_spark.jobs.verify import unclaimed
from brokerset_spark.jobs.verify.unclaimed import check_queues
from brokerset_spark.stores import units as unit_files

FIRST, END = 10_000, 90_000
"""Bounds of the log."""


def checked(store: Path, claims: list[list[int]]) -> list[dict[str, Any]]:
    row = {
        "url": str(store),
        "queues": [{"topic": "orders", "queue": 0, "claims": claims}],
        "first": FIRST,
        "end": END,
        "damage": [[40_000, 41_000]],
        "live": False,
        "batch": False,
    }
    return [result.row for result in check_queues(row)]


def write(store: Path, units: list[tuple[int, int, int]]) -> None:
    folder = store / "consumequeue/orders/0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{0:020d}").write_bytes(b"".join(UNIT.pack(*each) for each in units))


def test_units_behind_the_claimed_ones_are_named(tmp_path: Path) -> None:
    """Of a full file, whose first units are claimed, exactly the others are dangling."""
    write(tmp_path, [(FIRST + 100 * n, 100, 0) for n in range(50)])

    rows, counts = checked(tmp_path, [[0, 30], [40, 45]])[:-1], checked(tmp_path, [[0, 30]])[-1]

    assert [(row["why"], row["first"], row["end"]) for row in rows] == [
        ("dangling", 30, 40),
        ("dangling", 45, 50),
    ]
    assert (counts["units"], counts["blank"], counts["expired"]) == (50, 0, 0)
    assert checked(tmp_path, [[0, 50]])[:-1] == []


@pytest.mark.parametrize("seed", range(60))
def test_what_is_said_does_not_depend_on_the_short_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Zeros, place holders, expired, damaged and wrong units among claimed ones are told as one by one."""
    dice = random.Random(seed)
    kinds = [(0, 0, 0), (0, BLANK_SIZE, 0), (50, 100, 0), (40_500, 100, 0), (END + 5, 100, 0), (-7, 100, 1)]
    count, share = dice.randrange(1, 60), dice.choice([0.0, 0.02, 0.3])
    units = [dice.choice(kinds) if dice.random() < share else (FIRST + 100 * n, 100, n) for n in range(count)]
    write(tmp_path, units)
    cuts = sorted(dice.sample(range(70), 2 * dice.randrange(3)))
    claims = [[0, cuts[0]]] if cuts and dice.random() < 0.5 else []
    claims += [[a, b] for a, b in zip(cuts[len(claims) :: 2], cuts[len(claims) + 1 :: 2], strict=False)]
    monkeypatch.setattr(unit_files, "BLOCK_BYTES", dice.choice([7, 64]) * UNIT.size)

    quick = checked(tmp_path, claims)
    monkeypatch.setattr(unclaimed, "_claimed_from", lambda first, count, claims: 0)

    assert quick == checked(tmp_path, claims)
