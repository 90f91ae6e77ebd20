"""Handles of timer messages that can be recalled: URL-safe base64 of `v1 topic broker time id`.

Source: RocketMQ's `RecallMessageHandle`.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Final

from brokerset_formats.errors import FormatError

RECALL_TAG: Final = "_RECALL_TAG_"
"""Tag of the message that recalls another one."""

RECALL_BODY: Final = b"0"
"""Its body."""

HANDLE_SIZE_MAX: Final = 1024
"""Characters of the longest handle that is read: a topic, a broker name, a time and an id have far fewer."""

INVALID: Final = "recall handle is invalid"
"""What Java says of every handle that it cannot read; its clients show it."""

_VERSION: Final = "v1"
_is_time = re.compile(r"[0-9]{1,18}").fullmatch
_is_base64 = re.compile(r"[A-Za-z0-9_-]+={0,2}").fullmatch


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """What a broker needs to find a waiting message."""

    topic: str
    broker_name: str
    timestamp_ms: int
    """`TIMER_OUT_MS` of the message plus 1: a recall with this time of delivery comes into the same slot."""
    message_id: str
    """Its `UNIQ_KEY`."""

    def encode(self) -> str:
        """The text that goes to the producer. FormatError if a part is empty or has a space."""
        parts = [_VERSION, self.topic, self.broker_name, str(self.timestamp_ms), self.message_id]
        if any(not part or " " in part for part in parts):
            raise FormatError(f"a recall handle needs parts without spaces, not {parts[1:]}")
        return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Read a handle, with or without padding; FormatError with Java's words if it is none.

    A time that is no number becomes -1, which is in the past, as in Java.
    """
    bare = text.rstrip("=")
    if len(text) > HANDLE_SIZE_MAX or not _is_base64(text) or ("=" in text and len(text) % 4):
        raise FormatError(INVALID)
    try:
        parts = base64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4)).decode().split(" ")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise FormatError(INVALID) from error
    if parts[0] != _VERSION or len(parts) < 5:
        raise FormatError(INVALID)
    _, topic, broker_name, timestamp, message_id = parts[:5]
    return RecallHandle(topic, broker_name, int(timestamp) if _is_time(timestamp) else -1, message_id)
