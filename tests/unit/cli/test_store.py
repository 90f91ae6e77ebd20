"""`brokerset store`: starts the job, hands through output and exit code, and says how to install what is
missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli import store
from brokerset_spark.commands import table


def test_the_jobs_are_those_of_the_package() -> None:
    """Names and lines of the help are the same on both sides, which may not import each other."""
    assert {name: line for name, (_, line) in table.JOBS.items()} == store.JOBS


def test_the_exit_code_of_a_job_is_handed_through(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A folder without a store: 3, and what to do."""
    result = CliRunner().invoke(store.store, ["verify", str(tmp_path)])

    assert result.exit_code == 3
    assert "What to do:" in capfd.readouterr().err


def test_the_help_is_that_of_the_job(capfd: pytest.CaptureFixture[str]) -> None:
    """Under the name by which it was called."""
    result = CliRunner().invoke(store.store, ["verify", "--help"])

    assert result.exit_code == 0
    said = capfd.readouterr().out
    assert "brokerset store verify" in said
    assert "--max-bytes-per-second" in said


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line to install it, and the code of a job that could not be done."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "numpy" else found(name))

    result = CliRunner().invoke(store.store, ["verify", "x"])

    assert result.exit_code == 2
    assert "brokerset[spark]" in result.output


def test_an_unknown_job_is_refused() -> None:
    """By click, with the names that there are."""
    assert CliRunner().invoke(store.store, ["fly"]).exit_code == 2
