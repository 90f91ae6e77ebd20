"""The stamp of a message of an ordered subject."""

from __future__ import annotations

import pytest

from brokerset_formats.errors import FormatError
from brokerset_formats.order_stamps import OrderStamp, decode_stamp


def test_it_comes_back_as_it_was() -> None:
    """What `encode` writes `decode_stamp` reads."""
    stamp = OrderStamp(3, 115, "p-4f2a.1", 12, 2**63 - 1)

    assert decode_stamp(stamp.encode()) == stamp


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3:115:p:12",
        "3:115:p:12:1:",
        "-1:115:p:12:1",
        "3:1024:p:12:1",
        "3:115::12:1",
        "3:115:a b:12:1",
        "03:115:p:12:1",
        "3:115:p:9999999999999999999:1",
        "٣:115:p:12:1",
        f"3:115:{'p' * 65}:12:1",
    ],
)
def test_others_are_refused(text: str) -> None:
    """What is no stamp raises FormatError, which shows it."""
    with pytest.raises(FormatError):
        decode_stamp(text)
