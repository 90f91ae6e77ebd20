"""Small files as they were at one moment: the checkpoint is written in place while it is read."""

from __future__ import annotations

import os
from typing import Final

from brokerset_broker.outside.store_stream.files import OpenFile

WHOLE_MAX: Final = 8 << 20
"""Bytes of a file that is read as a whole, and told with its digest; a longer one is sent piece by piece."""

ATTEMPTS_MAX: Final = 8
"""How often a file is read again that changes while it is read."""


def read_at_once(file: OpenFile) -> bytes | None:
    """The content, read twice with the same result; None if it changes each time. OSError.

    `file` gets the status that goes with it. Two reads can only agree on a mixture if the same two contents
    were written in turn around both of them, in the same places: not by a writer that counts offsets up.
    """
    for _ in range(ATTEMPTS_MAX):
        before = os.fstat(file.descriptor)
        content = _read(file.descriptor, before.st_size)
        again = _read(file.descriptor, before.st_size)
        after = os.fstat(file.descriptor)
        same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
        if same and content == again and len(content) == after.st_size:
            file.status, file.readable = after, len(content)
            return content
    return None


def _read(descriptor: int, size: int) -> bytes:
    parts: list[bytes] = []
    position = 0
    while position < size:
        piece = os.pread(descriptor, size - position, position)
        if not piece:
            break
        parts.append(piece)
        position += len(piece)
    return b"".join(parts)
