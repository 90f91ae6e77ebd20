"""The demo's own check sees loss, damage and doubles."""

from __future__ import annotations

import pytest

from brokerset_bench.demo import BODY_BYTES, Check
from brokerset_bench.history import body_of as any_body
from brokerset_cli.output import CommandFailed


def body_of(number: int) -> bytes:
    return any_body(number, BODY_BYTES)


def test_a_complete_set_of_messages_passes() -> None:
    check = Check(3)
    for number in (2, 0, 1, 1):
        check.add(body_of(number))

    check.finish()

    assert check.doubled == 1


def test_a_lost_message_is_noticed() -> None:
    check = Check(3)
    check.add(body_of(0))

    with pytest.raises(CommandFailed, match=r"2 of 3 acknowledged messages did not come back: 1, 2"):
        check.finish()


@pytest.mark.parametrize(
    "body", [b"", b"x", body_of(3), body_of(1)[:-1], body_of(1).replace(b"1:", b"2:", 1)]
)
def test_a_message_that_differs_is_noticed(body: bytes) -> None:
    with pytest.raises(CommandFailed, match="differs"):
        Check(3).add(body)
