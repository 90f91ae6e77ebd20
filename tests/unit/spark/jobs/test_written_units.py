"""Which units of a preallocated queue file are read, and what a check makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brokerset_formats.queue_units import UNIT_SIZE
from brokerset_spark.jobs.verify import unclaimed
from brokerset_spark.stores import units as unit_files
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.units import QUEUE, QueueReader

COUNT = 300_000
"""Units of a queue's file as brokers preallocate it."""

PLACES = [0, 1, 4095, 4096, 4097, 65_535, 65_536, 131_072, 200_001, 250_000, COUNT - 1]


def write_queue(root: Path, places: list[int], *, count: int = COUNT, holes: bool = True) -> None:
    """A queue of one file with units at these places, and holes or written zeros everywhere else."""
    folder = root / "consumequeue" / "T" / "0"
    folder.mkdir(parents=True)
    unit = np.array([(1 << 30, 7, 5)], QUEUE.dtype).tobytes()
    with (folder / f"{0:020d}").open("wb") as file:
        if not holes:
            file.write(bytes(count * UNIT_SIZE))
        file.truncate(count * UNIT_SIZE)
        for place in places:
            file.seek(place * UNIT_SIZE)
            file.write(unit)


def check(root: Path) -> list[dict[str, Any]]:
    """What a check tells of the queue, whose log ends before all its units."""
    queue = {"topic": "T", "queue": 0, "claims": []}
    row = {"url": str(root), "queues": [queue], "first": 0, "end": 1 << 20, "damage": [], "live": False}
    return [dict(result.row) for result in unclaimed.check_queues({**row, "batch": False})]


@pytest.mark.parametrize("holes", [True, False])
@pytest.mark.parametrize("block", [65_536, 5_000, 1])
def test_units_among_zeros(tmp_path: Path, holes: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every unit is seen, wherever it is among holes or zeros, and however much is read at once."""
    count = COUNT if block > 1 else 5_000
    places = [place for place in PLACES if place < count - 1] + [count - 1]
    write_queue(tmp_path, places, count=count, holes=holes)
    monkeypatch.setattr(unit_files, "BLOCK_BYTES", block * UNIT_SIZE)

    *rows, total = check(tmp_path)

    assert total["units"] == len(places)
    told = [place for row in rows for place in range(row["first"], row["end"])]
    assert told == places
    assert {row["why"] for row in rows} == {"beyond"}


@pytest.mark.parametrize("holes", [True, False])
def test_only_zeros(tmp_path: Path, holes: bool) -> None:
    """A queue without units has nothing to tell."""
    write_queue(tmp_path, [], holes=holes)

    (total,) = check(tmp_path)

    assert total["units"] == 0


@pytest.mark.parametrize("holes", [True, False])
def test_written_spans(tmp_path: Path, holes: bool) -> None:
    """The spans outside holes ascend, do not overlap, lie in the file, and hold each unit."""
    write_queue(tmp_path, PLACES, holes=holes)
    units = QueueReader(LocalFolder(tmp_path), QUEUE).of("T", 0)
    (file,) = units.files

    spans = units.written(file)

    bounds = [bound for span in spans for bound in span]
    assert bounds == sorted(bounds)
    assert bounds[0] >= 0
    assert bounds[-1] <= COUNT
    assert all(any(first <= place < end for first, end in spans) for place in PLACES)
    if not holes:
        assert spans == [(0, COUNT)]


@pytest.mark.parametrize(("skip", "end"), [(0, 16), (16, 20)])
def test_half_a_unit(tmp_path: Path, skip: int, end: int) -> None:
    """A unit across two pages, of which one was never written, is seen, and once."""
    write_queue(tmp_path, [])
    place = 4096 // UNIT_SIZE
    (path,) = (tmp_path / "consumequeue" / "T" / "0").iterdir()
    with path.open("r+b") as file:
        file.seek(place * UNIT_SIZE + skip)
        file.write(np.array([(1 << 30, 7, 5)], QUEUE.dtype).tobytes()[skip:end])

    *_, total = check(tmp_path)

    assert total["units"] == 1
