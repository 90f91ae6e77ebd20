"""`brokerset request` and `brokerset consume --reply`: options, and the text of a reply."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli.main import main
from brokerset_cli.requests import reply_text


@pytest.mark.parametrize(
    ("text", "body", "reply"),
    [
        ("pong", b"ping", b"pong"),
        ("re: {body}", b"\xff\x00", b"re: \xff\x00"),
        ("{body}{body}", b"{body}", b"{body}{body}"),
        ("{other} grüße", b"x", "{other} grüße".encode()),
    ],
)
def test_the_bodys_place_in_a_reply_takes_any_bytes(text: str, body: bytes, reply: bytes) -> None:
    """What stands in the request is not read as a place itself."""
    assert reply_text(text, body) == reply


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("request", "t", ""), "brokers refuse messages without a body"),
        (("request", "t", "x", "--timeout", "0"), "0 is not in the range"),
        (("consume", "t", "--reply", ""), "--reply needs a text"),
        (("consume", "t", "--reply", "x", "--ordered"), "does not go with --ordered"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    arguments: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    """Before anything is sent or read."""
    result = CliRunner().invoke(main, [*arguments, "--data", str(tmp_path)])

    assert result.exit_code == 2
    assert text in result.output
