"""`brokerset consume --sql`: what it may not be combined with."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli.main import main


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--sql", "a > 1", "--tag", "A"), "--sql goes neither with --tag nor with --ordered"),
        (("--sql", "a > 1", "--ordered"), "--sql goes neither with --tag nor with --ordered"),
        (("--sql", ""), "--sql needs an expression"),
    ],
)
def test_a_topic_has_one_filter(options: tuple[str, ...], text: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["consume", "t", *options, "--data", str(tmp_path)])

    assert result.exit_code == 2
    assert text in result.output
