"""`brokerset consume --pop`: what it may not be combined with."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli.main import main


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--invisible", "5"), "--invisible, --batch and --no-ack go with --pop"),
        (("--no-ack",), "--invisible, --batch and --no-ack go with --pop"),
        (("--batch", "5"), "--invisible, --batch and --no-ack go with --pop"),
        (("--pop", "--batch", "33"), "33 is not in the range"),
        (("--pop", "--invisible", "0"), "0.0 is not in the range"),
        (("--pop", "--ordered", "--shared"), "--shared does not go with --pop"),
        (("--pop", "--trace"), "--trace does not go with --pop"),
        (("--pop", "--from", "2026-01-01T00:00"), "--from TIME does not go with --pop"),
        (("--pop", "--sql", "a > 1", "--tag", "A"), "--sql goes neither with --tag"),
    ],
)
def test_what_does_not_go_together_is_said(options: tuple[str, ...], text: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["consume", "t", *options, "--data", str(tmp_path)])

    assert result.exit_code == 2
    assert text in " ".join(result.output.split())
