"""Handles of popped messages: the property `POP_CK`, and `extraInfo` of acks and changes.

Eight fields, each separated by one space; the gRPC proxy adds a ninth. Source: `ExtraInfoUtil`,
`ReceiptHandle` of Java 5.5.
"""

from __future__ import annotations

import re
from typing import Final

from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.pop.names import ORDER_REVIVE_QUEUE, RETRY_FLAGS

HANDLE_SIZE_MAX: Final = 1024
"""Characters of the longest handle that is read: a broker's name and eight numbers have far fewer."""

_INT64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
_INT32_MAX: Final = 0x7FFF_FFFF

_FIELDS: Final = (
    "the start of its check point",
    "the pop time",
    "the invisible time",
    "the revive queue",
    "the retry flag",
    "the broker's name",
    "the queue id",
    "the queue offset",
    "the offset in the log",
)
_TEXT_FIELD: Final = 5
_FIELDS_MIN: Final = 8

_is_number = re.compile(r"[0-9]{1,19}").fullmatch


@dataclass(frozen=True, slots=True)
class Handle:
    """Who has a message, until when, and where its check point is."""

    start_offset: int
    """Queue offset at which the pop began; with `pop_time` it names the check point."""
    pop_time: int
    """When the message was popped: milliseconds since 1970, by the broker's clock."""
    invisible_time: int
    """Milliseconds from the pop on for which nobody else gets the message."""
    revive_queue: int
    """Queue of the revive topic; 999 for an ordered pop."""
    retry_flag: int
    """0: of the topic, 1 or 2: of a retry topic of V1 or V2."""
    broker: str
    """Name of the broker group."""
    queue_id: int
    queue_offset: int
    log_offset: int | None = None
    """Offset of the message in the commit log; only proxies add it."""

    @property
    def is_ordered(self) -> bool:
        """Whether the message comes from an ordered pop."""
        return self.revive_queue == ORDER_REVIVE_QUEUE

    @property
    def visible_time(self) -> int:
        """When the message becomes visible again: milliseconds since 1970."""
        return self.pop_time + self.invisible_time

    def encode(self) -> str:
        """The text. FormatError if the broker's name is empty or has a space."""
        if not self.broker or " " in self.broker:
            raise FormatError(f"a handle cannot name broker {self.broker!r}")
        text = (
            f"{self.start_offset} {self.pop_time} {self.invisible_time} {self.revive_queue} "
            f"{self.retry_flag} {self.broker} {self.queue_id} {self.queue_offset}"
        )
        return text if self.log_offset is None else f"{text} {self.log_offset}"


def parse_handle(text: str) -> Handle:
    """Read a handle; FormatError if the text is none, with the field that is wrong."""
    if len(text) > HANDLE_SIZE_MAX:
        raise FormatError(f"a handle of {len(text)} characters; {HANDLE_SIZE_MAX} is the limit")
    parts = text.split(" ")
    if not _FIELDS_MIN <= len(parts) <= len(_FIELDS):
        raise FormatError(f"a handle has 8 or 9 fields, not {len(parts)}: {text[:80]!r}")
    numbers = []
    for place, part in enumerate(parts):
        if place == _TEXT_FIELD:
            if not part:
                raise FormatError("the handle names no broker")
            continue
        number = int(part) if _is_number(part) else -1
        limit = _INT32_MAX if place in (3, 6) else _INT64_MAX
        if not 0 <= number <= limit:
            raise FormatError(f"{part[:40]!r} cannot be {_FIELDS[place]} of a handle")
        numbers.append(number)
    start, pop_time, invisible, revive_queue, flag, queue_id, queue_offset, *rest = numbers
    if flag not in RETRY_FLAGS:
        raise FormatError(f"{flag} cannot be {_FIELDS[4]} of a handle: it is 0, 1 or 2")
    log_offset = rest[0] if rest else None
    return Handle(
        start, pop_time, invisible, revive_queue, flag, parts[_TEXT_FIELD], queue_id, queue_offset, log_offset
    )
