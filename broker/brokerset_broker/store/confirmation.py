"""How far all in-sync replicas are, as far as this log goes: consumers read only what lies below."""

from __future__ import annotations

from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.consume_queue import NO_LIMIT

WALK_RECORDS_MAX = 5_000
"""Records that one call steps over in search of a place between two of them; about 3 ms."""


class Confirmation:
    """The confirmed offset of one log. It lies between two records, and only `truncate` makes it smaller."""

    __slots__ = ("_appends", "_log", "_offset", "_partial_target", "_target", "replicated")

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._offset = 0
        self._target = 0
        self._partial_target = 0
        self._appends = False
        self.replicated = False
        """Whether anybody confirms; without replication everything is readable at once."""

    @property
    def offset(self) -> int:
        """Everything below is confirmed."""
        return self._log.max_offset if self._appends or not self.replicated else self._offset

    @property
    def limit(self) -> int:
        """Where reading ends; `NO_LIMIT` if that is the end of the log anyway."""
        return NO_LIMIT if self._appends or not self.replicated else self._offset

    @property
    def appends(self) -> bool:
        """Whether what is appended is confirmed at once, because the log has no other replica in sync."""
        return self._appends

    @appends.setter
    def appends(self, at_once: bool) -> None:
        if at_once != self._appends:
            self._offset = self._log.max_offset
        self._appends = at_once

    def to_keep(self) -> int | None:
        """What the checkpoint shall hold; None without replication."""
        return self.offset if self.replicated else None

    def load(self, offset: int) -> None:
        """Begin with what a checkpoint held, as far as the log has it."""
        self._offset = self._target = min(max(offset, self._log.min_offset), self._log.max_offset)
        self._partial_target = 0

    def confirm(self, offset: int, *, partial: bool) -> None:
        """Take note that everything below `offset` is confirmed; `advance` makes it count."""
        if partial:
            self._partial_target = max(self._partial_target, offset)
        else:
            self._target = max(self._target, offset)

    def forget_targets(self) -> None:
        """What was told about bytes behind the end came from somebody who is not followed any more."""
        self._target = self._offset
        self._partial_target = 0

    def advance(self) -> bool:
        """Move on as far as the log now goes; False if `advance` must be called again soon for the rest."""
        if self._appends:
            return True
        end = self._log.max_offset
        self._offset = max(self._offset, min(self._target, end))
        if self._partial_target >= end:
            self._offset = max(self._offset, end)
        elif self._partial_target > self._offset:
            self._offset, done = boundary_below(self._log, self._offset, self._partial_target)
            return done
        return True

    def truncate(self, offset: int) -> None:
        """The log was truncated at `offset`, or begins there."""
        self._offset = min(max(self._offset, self._log.min_offset), offset)
        self.forget_targets()


def boundary_below(log: CommitLog, begin: int, limit: int) -> tuple[int, bool]:
    """The last place between two records at or below `limit`, found from one at `begin`.

    With it, whether it was found within `WALK_RECORDS_MAX` records; if not, the place where to go on.
    """
    offset = max(begin, log.min_offset)
    for _ in range(WALK_RECORDS_MAX):
        head = log.read(offset, 4)
        size = int.from_bytes(head, "big", signed=True) if head is not None else 0
        if size <= 0 or offset + size > limit:
            return offset, True
        offset += size
    return offset, False
