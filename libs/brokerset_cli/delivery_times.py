"""When a message shall be delivered, as people say it: `--delay 90s`, `--deliver-at 2026-11-27T08:00`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_parts = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_delay(text: str) -> timedelta:
    """Read a span of time: `90s`, `1.5h`, `1d12h`, `500ms`; a bare number is seconds. Raises `ValueError`."""
    bare = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", bare, re.ASCII):
        bare += "s"
    if not re.fullmatch(rf"(?:{_parts.pattern})+", bare, re.ASCII):
        raise ValueError(f"{text!r} is no span of time: give 90s, 15m, 1h30m, 2d or 500ms")
    try:
        return sum((float(count) * _UNITS[unit] for count, unit in _parts.findall(bare)), timedelta())
    except OverflowError:
        raise ValueError(f"{text!r} is too long") from None


def parse_moment(text: str) -> datetime:
    """Read a time in ISO 8601, local without a zone, or milliseconds since 1970; raises `ValueError`."""
    if text.isascii() and text.isdigit():
        try:
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        except (OverflowError, ValueError):
            raise ValueError(f"{text} milliseconds since 1970 are too many") from None
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ValueError(
            f"{text!r} is no time like 2026-01-31T08:00, and no milliseconds since 1970"
        ) from None
