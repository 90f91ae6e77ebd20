"""Names of folders for topics and days, as Hive and all that followed it have them. Pure."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Final

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""What readers take for null."""

DAY_MS: Final = 86_400_000
NAME_SIZE_MAX: Final = 200
"""Bytes of an escaped topic; file systems allow 255 for a name, of which `topic=` needs some."""

_KEPT: Final = 160
_SAFE: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS: Final = (
    (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH).days,
    (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH).days,
)


def topic_folder(topic: str) -> str:
    """`topic=…`: all but letters, digits, `-`, `_`, `.` as `%XX` of its UTF-8.

    A name that would be too long is cut, and ends with `~` and a digest; then only the manifest and the
    metadata of the files have the whole. Different topics never share a folder.
    """
    pieces = [_escaped(letter) for letter in topic]
    if topic == NULL or not topic.strip("."):  # names that mean something else to some reader
        pieces[:1] = [f"%{ord(topic[0]):02X}"] if topic else [NULL]
    if sum(map(len, pieces)) > NAME_SIZE_MAX:
        digest = hashlib.blake2b(topic.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        while sum(map(len, pieces)) > _KEPT:
            pieces.pop()
        pieces.append(f"~{digest}")
    return f"topic={''.join(pieces)}"


def _escaped(letter: str) -> str:
    raw = letter.encode("utf-8", "surrogatepass")
    return letter if raw[0] in _SAFE else "".join(f"%{each:02X}" for each in raw)


def date_folder(day: int | None) -> str:
    """`date=YYYY-MM-DD` of a number of days since 1970; null for days that no calendar has."""
    if day is None or not _DAYS[0] <= day <= _DAYS[1]:
        return f"date={NULL}"
    return f"date={(_EPOCH + timedelta(days=day)).date().isoformat()}"
