"""Answers of POP, as text instead of through a header class; the codes come with JSON headers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerset_broker.requests.replies import REPLY_TAIL, frame

_POP: Final = (
    '{"code":%d,"extFields":{"popTime":"%d","invisibleTime":"%d","reviveQid":"%d","restNum":"%d",'
    '"startOffsetInfo":"%s","msgOffsetInfo":"%s"%s},"remark":"%s",' + REPLY_TAIL
)
_ORDER_COUNTS: Final = ',"orderCountInfo":"%s"'
_NOTIFICATION: Final = '{"code":0,"extFields":{"hasMsg":"%s","pollingFull":"%s"},' + REPLY_TAIL


def pop_answer(
    opaque: int,
    *,
    code: int,
    remark: str,
    pop_time: int,
    invisible_ms: int,
    revive_queue: int,
    rest: int,
    starts: str = "",
    offsets: str = "",
    order_counts: str | None = None,
    parts: Sequence[bytes | memoryview] = (),
    size: int = 0,
) -> bytes:
    """The frame of an answer to POP_MESSAGE; `parts` are records, `size` bytes together."""
    counts = "" if order_counts is None else _ORDER_COUNTS % order_counts
    header = (
        _POP
        % (
            code,
            pop_time,
            invisible_ms,
            revive_queue,
            rest,
            starts,
            offsets,
            counts,
            remark,
            opaque,
        )
    ).encode()
    return b"".join((frame(header, size), *parts)) if size else frame(header)


def notification_answer(opaque: int, *, has_messages: bool, full: bool = False) -> bytes:
    """The frame of an answer to NOTIFICATION."""
    return frame((_NOTIFICATION % (_text(has_messages), _text(full), opaque)).encode())


def _text(value: bool) -> str:
    return "true" if value else "false"
