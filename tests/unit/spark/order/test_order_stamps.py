"""Stamps read as whole arrays are what `decode_stamp` says of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from brokerset_formats.errors import FormatError
from brokerset_formats.order_stamps import OrderStamp, decode_stamp
from brokerset_spark.jobs.order.stamps import Stamps, parse_stamps

GOOD = (
    "0:0:p:0:0",
    "3:115:p-4f2a:12:4711",
    "7:1023:A.b_c-9:9223372036854775807:1",
    f"999999999999999999:1:{'p' * 64}:1000000000000000000:9223372036854775806",
)
BAD = (
    "", ":", "::::", "1:2:p:3", "1:2:p:3:4:5", "1:1024:p:3:4", "01:2:p:3:4", "1:2:p:3:04", "1:2::3:4",
    f"1:2:{'p' * 65}:3:4", "1:2:p q:3:4", "-1:2:p:3:4", "1:2:p:3:4 ", "1:2:p:+3:4", "1:2:pä:3:4", "1:2:p:3:x",
    "a:2:p:3:4", "1:2:p:3:1e3", "1:2:p:3:9223372036854775808", "1:2:p:99999999999999999999:4",
    "1:99999999999999999999:p:3:4",
)  # fmt: skip


def parse(texts: Sequence[str]) -> tuple[Stamps, bytes]:
    raw = [text.encode() for text in texts]
    flat = b"".join(raw)
    offsets = np.cumsum([0, *map(len, raw)], dtype=np.int32)
    return parse_stamps(np.frombuffer(flat, np.uint8), offsets), flat


def stamps_of(texts: Sequence[str]) -> list[OrderStamp | None]:
    """What the arrays say of each text; None for one that cannot be read."""
    found, flat = parse(texts)
    rows: list[OrderStamp | None] = []
    for row, readable in enumerate(found.readable.tolist()):
        start, size = int(found.producer.starts[row]), int(found.producer.sizes[row])
        producer = flat[start : start + size].decode() if start >= 0 else ""
        numbers = [int(each[row]) for each in (found.partition, found.logical, found.epoch, found.sequence)]
        stamp = OrderStamp(numbers[0], numbers[1], producer, numbers[2], numbers[3])
        assert readable or stamp == OrderStamp(0, 0, "", 0, 0)
        rows.append(stamp if readable else None)
    return rows


def alone(text: str) -> OrderStamp | None:
    try:
        return decode_stamp(text)
    except FormatError:
        return None


def test_good_stamps_give_their_parts() -> None:
    """Also with the largest numbers and the longest producer id, and next to each other."""
    assert stamps_of(GOOD) == [decode_stamp(text) for text in GOOD]


@pytest.mark.parametrize("text", BAD)
def test_a_bad_stamp_is_not_readable_and_disturbs_no_neighbour(text: str) -> None:
    """Whatever is wrong with it, the stamps before and behind it keep their parts."""
    assert alone(text) is None
    assert stamps_of([GOOD[1], text, GOOD[2]]) == [decode_stamp(GOOD[1]), None, decode_stamp(GOOD[2])]


def test_no_stamps_at_all() -> None:
    """A chunk whose records have no stamps gives none."""
    assert stamps_of([]) == []
    assert stamps_of(["", ""]) == [None, None]
