"""Which long suites `.ci/run` owes to a change, and in which lane those of interop run."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import pytest

from brokerset_rig import long_suites
from brokerset_rig.long_suites import INTEROP_LONG, SUITES, changed_since, due, matches
from brokerset_rig.suite_lanes import lanes

NEW_YEAR = datetime.date(2027, 1, 1)


def _names(*changed: str) -> set[str]:
    return {suite.name for suite, _ in due(changed, NEW_YEAR)}


@pytest.mark.parametrize(
    ("path", "suites"),
    [
        ("docs/ARCHITECTURE.md", set()),
        ("tests/unit/cli/test_up.py", set()),
        (
            "libs/brokerset_cli/takeover/steps.py",
            {"interop-upgrades", "interop-adopt", "interop-releases", "dledger-takeover"},
        ),
        ("spark/brokerset_spark/kernels/scan.py", {"test-spark"}),
        (
            "spark/brokerset_spark/jobs/migrate/copy.py",
            {"test-spark", "interop-migrated-stores", "dledger-takeover"},
        ),
        ("Dockerfile", {"image-spark"}),
        ("operator/brokerset_operator/store_jobs/export_plan.py", {"store-export"}),
        ("native/src/frames.rs", {"fuzz-native", "interop-migrated-stores"}),
    ],
)
def test_a_change_needs_the_suites_that_are_about_it(path: str, suites: set[str]) -> None:
    """Other suites are left out."""
    assert _names(path) == suites


def test_a_reason_names_what_changed() -> None:
    """The report says why a suite ran."""
    assert [reason for _, reason in due(["Dockerfile", "README.md"], NEW_YEAR)] == ["Dockerfile changed"]


def test_without_a_known_commit_every_suite_is_due() -> None:
    """A clone that does not have the commit proves nothing about what changed since."""
    assert changed_since(None) is changed_since("0" * 40) is None
    assert [suite for suite, _ in due(None, NEW_YEAR)] != []
    assert {suite for suite, _ in due(None, NEW_YEAR)} == set(SUITES)


def test_each_day_another_suite_is_the_first() -> None:
    """What a run has no time for today comes first another day."""
    first = [due(None, NEW_YEAR + datetime.timedelta(days=day))[0][0] for day in range(len(SUITES))]

    assert set(first) == set(SUITES)


def test_what_is_changed_but_not_committed_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs it before a commit gets the suites of that commit."""
    monkeypatch.setattr(long_suites, "ROOT", tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t"]
    (tmp_path / "old").write_text("1")
    for command in (["init", "-q"], ["add", "old"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    assert changed_since("HEAD") == set()

    (tmp_path / "old").rename(tmp_path / "new")

    assert changed_since("HEAD") == {"old", "new"}


def test_every_pattern_names_something() -> None:
    """A path that was moved does not take its suite out of sight."""
    files = subprocess.run(
        ["git", "ls-files"], cwd=long_suites.ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()

    lost = [
        (suite.name, each)
        for suite in SUITES
        for each in suite.paths
        if not any(matches(f, [each]) for f in files)
    ]

    assert lost == []


def test_every_suite_of_interop_is_in_one_lane() -> None:
    """None is forgotten, and none runs twice."""
    names = ["java", "stores", "controllers", *INTEROP_LONG]

    assert sorted(name for lane in lanes(names) for name in lane) == sorted(names)
