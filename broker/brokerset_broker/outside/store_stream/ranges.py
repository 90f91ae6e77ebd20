"""Which bytes of a file a request asks for (RFC 9110, sections 13.1.5 and 14). Pure."""

from __future__ import annotations

import re
from typing import Final

from brokerset_formats.lazy_dataclasses import dataclass

_RANGE: Final = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes from `start` to before `end`."""

    start: int
    end: int
    whole: bool
    """Whether this is an answer to a request without a range that counts (200 rather than 206)."""


def wanted_part(header: str | None, if_range: str | None, etag: str, size: int) -> Part | None:
    """The part to send; None if the range has nothing of the `size` bytes that there are (416).

    A header that makes no sense, several ranges, and an `If-Range` about another content are answered with
    the whole, as the RFC allows. Dates in `If-Range` never match: they are too coarse.
    """
    whole = Part(0, size, True)
    if header is None or (if_range is not None and if_range.strip() != etag):
        return whole
    found = _RANGE.fullmatch(header.strip())
    if found is None or found[0] == "bytes=-":
        return whole
    first, last = found[1], found[2]
    if not first:
        count = min(int(last), size)
        return Part(size - count, size, False) if count else None
    start = int(first)
    if last and int(last) < start:
        return whole
    if start >= size:
        return None
    return Part(start, min(int(last) + 1, size) if last else size, False)
