"""When old segments go, and when a full disk forbids writing: decisions only.

Source of the rules: RocketMQ's `CleanCommitLogService`.
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerset_formats.lazy_dataclasses import dataclass

DELETE_BATCH_MAX = 10
"""Segments deleted in one turn, so that other disk work is not held up (`deleteFileBatchMax`)."""

FORCE_PERCENT_RANGE = (30, 85)
WARNING_PERCENT_RANGE = (35, 90)
EXPIRE_PERCENT_RANGE = (10, 95)

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of the log: its first offset, its bytes, and when it was last written (ms)."""

    first_offset: int
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """The settings. Percentages of the disk's use; out of range they count as the nearest allowed one."""

    reserved_hours: int = 72
    """Age at which a segment expires (`fileReservedTime`)."""

    delete_hours: frozenset[int] = frozenset({4})
    """Hours of the day at which expired segments are deleted (`deleteWhen`)."""

    expire_percent: int = 75
    """Above it, expired segments are deleted at any hour (`diskMaxUsedSpaceRatio`)."""

    force_percent: int = 85
    """Above it, the oldest segments are deleted even if not expired (`diskSpaceCleanForciblyRatio`)."""

    warning_percent: int = 90
    """Above it, writes are refused too (`diskSpaceWarningLevelRatio`)."""

    force: bool = True
    """Whether unexpired segments may be deleted at all (`cleanFileForciblyEnable`)."""


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """What to do now: delete these, oldest first, and answer writes according to `refuse_writes`."""

    delete: tuple[Segment, ...]
    refuse_writes: bool
    reason: str
    forced: bool = False
    """Whether the disk needs them gone, expired or not, and whoever still waits for what they have."""


def decide_retention(
    segments: Sequence[Segment],
    rules: RetentionRules,
    *,
    used_percent: int,
    now_ms: int,
    hour: int,
    manual: bool = False,
) -> RetentionDecision:
    """Decide for one log directory. `segments` are in order; the last is being written and never goes.

    `hour` is the local hour of the day; `manual` says that an administrator asked for deletion now.
    """
    refuse = used_percent > _clamped(rules.warning_percent, WARNING_PERCENT_RANGE)
    forced = refuse or used_percent > _clamped(rules.force_percent, FORCE_PERCENT_RANGE)
    crowded = forced or used_percent > _clamped(rules.expire_percent, EXPIRE_PERCENT_RANGE)
    if not (crowded or manual or hour in rules.delete_hours):
        return RetentionDecision((), refuse, "not the hour, and enough room")
    expired_before_ms = now_ms - rules.reserved_hours * _HOUR_MS
    chosen: list[Segment] = []
    for segment in segments[:-1]:
        if len(chosen) >= DELETE_BATCH_MAX:
            break
        if not (forced and rules.force) and segment.modified_ms > expired_before_ms:
            break
        chosen.append(segment)
    if forced and rules.force:
        reason = f"the disk is {used_percent} % full: oldest segments go"
    elif crowded:
        reason = f"the disk is {used_percent} % full: expired segments go"
    else:
        reason = "expired segments go by request" if manual else "expired segments go at this hour"
    return RetentionDecision(tuple(chosen), refuse, reason, forced and rules.force)


def used_percent(used_bytes: int, available_bytes: int) -> int:
    """How full a disk is, in percent, rounded up. `available_bytes` is without what only root may use."""
    total = used_bytes + available_bytes
    return -(-100 * used_bytes // total) if total > 0 else 0


def parse_delete_hours(text: str) -> frozenset[int]:
    """The hours of a `deleteWhen` setting such as `04` or `04;16`; ValueError if one is no hour."""
    hours = frozenset(int(part) for part in text.split(";") if part.strip())
    wrong = sorted(hour for hour in hours if not 0 <= hour <= 23)
    if wrong:
        raise ValueError(f"deleteWhen {text!r} has no hour {wrong[0]}; hours go from 0 to 23")
    return hours


def expired_queue_files(last_offsets: Sequence[int], min_offset: int) -> int:
    """How many of a queue's files, from the oldest, point only to deleted messages; never the last file.

    `last_offsets` has the commit-log offset in the last unit of each file, oldest file first.
    """
    count = 0
    for last_offset in last_offsets[:-1]:
        if last_offset >= min_offset:
            break
        count += 1
    return count


def _clamped(percent: int, bounds: tuple[int, int]) -> int:
    return min(max(percent, bounds[0]), bounds[1])
