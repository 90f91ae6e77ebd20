"""What requests that change topics and groups have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from brokerset_broker.admission import Admission
from brokerset_broker.metadata.records import Change
from brokerset_broker.store.errors import PutStatus
from brokerset_formats.config import DataVersion, fields
from brokerset_formats.errors import FormatError
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected

PAGE_MAX = 2_000
"""Most topics or groups in one page of a table (`splitMetadataSize`)."""

_NOT_HERE = (
    "Can't modify topic or subscription group from slave broker, please execute it from master broker."
)


class Saved(Protocol):
    """A manager whose changes reach the disk by themselves; `saved` waits for that."""

    async def saved(self) -> None:
        """Return when every change so far is on the disk."""
        ...


class ChangeLog(Protocol):
    """What makes changes safe in controller mode: `MetadataLog`."""

    async def change(self, keys: Sequence[str], decide: Callable[[], Sequence[Change]]) -> None:
        """Make the change that `decide` finds, once it is confirmed. Raises `Rejected`."""
        ...

    def when_offsets_safe(self, callback: Callable[[PutStatus], None]) -> None:
        """Call back when all offsets committed so far are confirmed, or why they are not."""
        ...

    def answer_ext(self) -> dict[str, str]:
        """Fields for answers that carry a table."""
        ...


def topic_key(topic: str) -> str:
    """The name under which changes of a topic take turns."""
    return f"topic:{topic}"


def group_key(group: str) -> str:
    """The name under which changes of a group take turns."""
    return f"group:{group}"


def check_changeable(admission: Admission) -> None:
    """Raise `Rejected` unless this broker is the one that changes the tables."""
    if admission.refuses_writes:
        raise Rejected(ResponseCode.SYSTEM_ERROR, _NOT_HERE)


async def reply_when_saved(reply: Command, *managers: Saved) -> Command:
    """The reply, once what it confirms is on the disk."""
    for manager in managers:
        await manager.saved()
    return reply


def page_of(
    names: list[str], start: int | None, count: int | None, version: DataVersion, known_version: str | None
) -> list[str]:
    """The part of a table that a slave asks for, sorted; from the beginning if its version is an older one.

    Without any of the fields an old slave means everything.
    """
    if start is None and count is None and known_version is None:
        return names
    start = max(0, start or 0)
    if start and not _same_version(version, known_version):
        start = 0
    return sorted(names)[start : start + min(PAGE_MAX, PAGE_MAX if count is None else max(0, count))]


def _same_version(version: DataVersion, text: str | None) -> bool:
    if not text:
        return False
    try:
        return DataVersion.from_json(fields.parse_object(text)) == version
    except FormatError:
        return False
