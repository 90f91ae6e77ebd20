"""Damage of stores that were closed, killed or are written: what jobs give and what they report is
everything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_rig.made_stores import unpack_fixture
from brokerset_rig.store_damages import (
    STATES,
    Case,
    Places,
    State,
    bodies_right,
    draw_case,
    intact,
    judge_jobs,
    judge_reading,
    laid_out,
    read_messages,
    silent,
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """Undamaged stores in all states."""
    with laid_out(tmp_path_factory.mktemp("damages")) as found:
        yield found


@pytest.mark.parametrize("state", STATES)
def test_what_is_read_and_what_is_reported_is_everything(places: Places, state: State) -> None:
    """Nothing is missing without a word, and nothing is given that was not stored."""
    for number in range(60):
        case = draw_case(places.bases, number, state)

        problems, _ = judge_reading(places, case)

        assert not problems, case


FOUND = (625, 650, 1350, 4558, 5025, 7423, 8875)
"""Damages of `tests/faults/store_damage.py` that once were judged wrong."""


@pytest.mark.parametrize("number", [*FOUND, *range(10_000, 10_008)])
def test_jobs_publish_nothing_that_verify_rejects(places: Places, number: int, tmp_path: Path) -> None:
    """Export, verify, inspect and migrate agree on what is damaged."""
    for state in STATES:
        case = draw_case(places.bases, number, state)
        problems, given = judge_reading(places, case)

        problems += judge_jobs(places, case, given, tmp_path / "targets")

        assert not problems, case


def test_the_judge_sees_what_is_lost(places: Places) -> None:
    """A reading that leaves out the messages behind a bad bit, or changes one, does not pass."""
    base = places.bases["log"]
    path = base.logs[-1]
    flipped = bytes([base.image[path][4] ^ 1])
    changed: dict[str, bytes | None] = {path: base.image[path][:4] + flipped + base.image[path][5:]}
    case = Case(0, "log", "abort", ("a bit",), changed)
    given = read_messages(places.folder("log", "closed"), skip=False)
    before = [each for each in base.stored if each.offset < int(path[-20:])]
    assert not intact(base, case, base.stored[len(before)])
    assert not bodies_right(base, given)

    given.bodies = {each.offset: each.body for each in before}
    assert "is missing without an error" in silent(base, case, given, [])[0]
    given.bodies[0] = b"changed"
    assert bodies_right(base, given)


def run(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "brokerset_spark", *arguments, "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store of Java with `abort`, and one bad bit in its newest log file; where the bit is."""
    root = unpack_fixture(tmp_path_factory.mktemp("crashed"), "classic") / "broker-0" / "store"
    (root / "abort").touch()
    newest = [each for each in sorted((root / "commitlog").iterdir()) if each.read_bytes()[:8].strip(b"\0")][
        -1
    ]
    data = bytearray(newest.read_bytes())
    bad = int.from_bytes(data[:4], "big")
    data[bad + 5] ^= 1
    newest.write_bytes(bytes(data))
    return root, int(newest.name) + bad


@pytest.mark.parametrize("job", ["export", "migrate", "verify", "inspect"])
def test_a_bad_bit_in_the_newest_file_of_a_crashed_store_is_told(
    crashed: tuple[Path, int], job: str, tmp_path: Path
) -> None:
    """Every command ends with an error that names the place, and writes nothing."""
    store, bad = crashed
    target = [str(tmp_path / "target")] if job in ("export", "migrate") else []
    target += ["--to", "commitlog"] if job == "migrate" else []

    code, said = run(job, str(store), *target)

    assert code in (1, 2), said
    assert str(bad) in said.replace(",", "")
    if job in ("export", "migrate"):
        assert "whole records follow that were stored later" in " ".join(said.split())
        assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("damage", "base", "state", "job", "words"),
    [
        ("first", "log", "closed", "verify", "chain-gap"),
        ("first", "log", "abort", "export", "error empty commitlog/00000000000000000000"),
        ("random", "whole", "closed", "export", "bad-magic"),
        ("random", "whole", "abort", "inspect", "damage"),
        ("middle", "whole", "closed", "inspect", "are in no file"),
        ("middle", "log", "abort", "export", "missing-file"),
        ("last", "whole", "closed", "export", "knows of"),
        ("last", "whole", "abort", "export", "knows of"),
        ("last", "whole", "abort", "verify", "files are missing"),
        ("last", "whole", "closed", "inspect", "knows of"),
    ],
)
def test_what_was_passed_over_is_an_error_with_its_cause(
    places: Places, damage: str, base: str, state: State, job: str, words: str, tmp_path: Path
) -> None:
    """A zeroed first record, a random log, a missing file in the middle, and a missing last one that queues
    know."""
    one = places.bases[base]
    first = one.stored[0].end
    changed: dict[str, bytes | None] = {
        "first": {one.logs[0]: bytes(first) + one.image[one.logs[0]][first:]},
        "random": {path: bytes(range(1, 129)) * 32 for path in one.logs},
        "middle": {one.logs[1]: None},
        "last": {one.logs[-1]: None},
    }[damage]  # type: ignore[assignment]
    target = [str(tmp_path / "target")] if job == "export" else []

    with places.with_damage(Case(0, base, state, (damage,), changed)) as store:
        code, said = run(job, str(store), *target)

    assert code == 1, said
    assert words in " ".join(said.split())
    assert not (tmp_path / "target").exists()
