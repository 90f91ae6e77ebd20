"""What requests that change topics and groups have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from brokerset_broker.requests.admission import Admission
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.tables.metadata.records import Change
from brokerset_formats.config import DataVersion, fields
from brokerset_formats.errors import FormatError
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected

PAGE_MAX = 2_000
"""Most topics or groups in one page of a table (`splitMetadataSize`)."""

_NOT_HERE = (
    "Can't modify topic or subscription group from slave broker, please execute it from master broker."
)


class ChangeLog(Protocol):
    """What makes changes of the tables safe: `MetadataLog` in a group, `FileChanges` without controllers."""

    async def change(self, keys: Sequence[str], decide: Callable[[], Sequence[Change]]) -> None:
        """Make the change that `decide` finds; it is safe when this returns. Raises `Rejected`."""
        ...

    def when_offsets_confirmed(self, callback: Callable[[PutStatus], None]) -> None:
        """Call back when all offsets committed so far are safe, or why they are not."""
        ...

    def when_order_stored(self, callback: Callable[[PutStatus], None]) -> None:
        """Call back when all locks of ordered pops so far are safe, or why they are not."""
        ...

    @property
    def replicated(self) -> bool:
        """Whether changes are records of a log that others have; ordered subjects need that."""
        ...

    @property
    def taken_over_end(self) -> int:
        """All that this mastership found in the log, confirmed or not, lies below this offset."""
        ...

    def flush_producers(self) -> None:
        """Write what ordered subjects' queues have got of their producers since the last time."""
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
