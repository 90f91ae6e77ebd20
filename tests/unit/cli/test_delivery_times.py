"""Spans and moments as people write them, and combinations of options that are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli.delivery_times import parse_delay, parse_moment
from brokerset_cli.main import main


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("90s", timedelta(seconds=90)),
        ("90", timedelta(seconds=90)),
        ("1.5h", timedelta(minutes=90)),
        ("1h30m", timedelta(minutes=90)),
        ("500ms", timedelta(milliseconds=500)),
        ("2D", timedelta(days=2)),
        ("0s", timedelta()),
    ],
)
def test_spans_of_time(text: str, span: timedelta) -> None:
    """Numbers with units, added up; seconds without one."""
    assert parse_delay(text) == span


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 x", "s", "1e9d", "5s soon", "٣s", "9" * 400 + "d"])
def test_what_is_no_span(text: str) -> None:
    """It is refused with an example of one."""
    with pytest.raises(ValueError, match=r"is no span of time|is too long"):
        parse_delay(text)


def test_moments() -> None:
    """ISO 8601, local without a zone, or milliseconds."""
    moment = datetime(2030, 1, 1, 8, 0, tzinfo=UTC)

    assert parse_moment("2030-01-01T08:00Z") == moment
    assert parse_moment(moment.astimezone().strftime("%Y-%m-%dT%H:%M")) == moment
    assert parse_moment(str(int(moment.timestamp() * 1000))) == moment
    for text in ("tomorrow", "9" * 30):
        with pytest.raises(ValueError, match=r"is no time like|are too many"):
            parse_moment(text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ("--delay", "5s", "--delay-level", "1"),
            "--delay, --deliver-at and --delay-level exclude each other",
        ),
        (("--delay", "5s", "--deliver-at", "2030-01-01"), "exclude each other"),
        (("--delay", "soon"), "'soon' is no span of time"),
        (("--deliver-at", "soon"), "'soon' is no time like"),
        (("--transaction", "commit", "--delay", "5s"), "--transaction goes with no delay"),
        (("--transaction", "commit", "--check-answer", "commit"), "goes with --transaction unknown"),
        (("--check-answer", "commit"), "goes with --transaction unknown"),
        (("--transaction", "perhaps"), "'perhaps' is not one of"),
    ],
)
def test_options_that_do_not_go_together(options: tuple[str, ...], text: str, tmp_path: Path) -> None:
    """The command says so before it connects."""
    result = CliRunner().invoke(main, ["send", "t", *options, "--data", str(tmp_path)])

    assert result.exit_code == 2
    assert text in result.output
