"""Which files of a store may be asked for, and by which names. Pure.

Everything else does not exist for those who ask: other folders, temporary files, files with check codes, and
above all `lock`, because closing any descriptor of it would give the store up to other processes.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final
from urllib.parse import unquote_to_bytes

from brokerset_formats.lazy_dataclasses import dataclass

PATH_SIZE_MAX: Final = 2_048
"""Characters of a path as it is asked for; a topic of 255 bytes has 765 when each is escaped."""

LOG_FOLDER: Final = "commitlog"
QUEUES_FOLDER: Final = "consumequeue"
INDEX_FOLDER: Final = "index"
CONFIG_FOLDER: Final = "config"

ROOT_FILES: Final = (
    "abort",
    "brokerIdentity",
    "checkpoint",
    "epochFileCheckpoint",
    "epochFileCheckpoint.bak",
)

CONFIG_FILES: Final = tuple(
    f"{name}.json{ending}"
    for name in ("consumerOffset", "delayOffset", "subscriptionGroup", "topics")
    for ending in ("", ".bak")
)

FOLDERS: Final = (LOG_FOLDER, CONFIG_FOLDER, QUEUES_FOLDER, INDEX_FOLDER)

_SEGMENT: Final = re.compile(r"[0-9]{20}")
_INDEX: Final = re.compile(r"[0-9]{17}")
_QUEUE: Final = re.compile(r"0|[1-9][0-9]{0,9}")


class Kind(StrEnum):
    """What a file holds, which decides how much of it may be read."""

    LOG = "log"
    QUEUE = "queue"
    INDEX = "index"
    SMALL = "small"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A name that may be asked for; whether there is such a file is another question."""

    kind: Kind
    parts: tuple[str, ...]
    """Folders below the store's root, and the file's name."""

    @property
    def path(self) -> str:
        """The name as it is listed."""
        return "/".join(self.parts)

    @property
    def start(self) -> int:
        """Offset of the first byte, of files that are parts of a sequence."""
        return int(self.parts[-1])


def split_path(escaped: str) -> tuple[str, ...] | None:
    """The parts of a percent-encoded path; None unless each one is a plain name of a file or folder.

    Each part is decoded for itself, so that an escaped `/` stays what it is: no part of a name.
    """
    if len(escaped) > PATH_SIZE_MAX:
        return None
    parts = []
    for piece in escaped.split("/"):
        try:
            part = unquote_to_bytes(piece).decode()
        except UnicodeDecodeError:
            return None
        if not part or part in (".", "..") or "/" in part or "\0" in part:
            return None
        parts.append(part)
    return tuple(parts)


def wanted(parts: tuple[str, ...]) -> Wanted | None:
    """What these parts name; None for everything that is not served."""
    match parts:
        case (name,) if name in ROOT_FILES:
            return Wanted(Kind.SMALL, parts)
        case (folder, name) if folder == CONFIG_FOLDER and name in CONFIG_FILES:
            return Wanted(Kind.SMALL, parts)
        case (folder, name) if folder == LOG_FOLDER and _SEGMENT.fullmatch(name):
            return Wanted(Kind.LOG, parts)
        case (folder, name) if folder == INDEX_FOLDER and _INDEX.fullmatch(name):
            return Wanted(Kind.INDEX, parts)
        case (folder, _, queue, name) if (
            folder == QUEUES_FOLDER and _QUEUE.fullmatch(queue) and _SEGMENT.fullmatch(name)
        ):
            return Wanted(Kind.QUEUE, parts)
    return None
