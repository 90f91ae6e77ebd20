"""Deleting old files, and refusing messages while the disk is nearly full."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.consume_queues import ConsumeQueues
from brokerset_broker.store.index import IndexService
from brokerset_broker.store.retention import (
    RetentionRules,
    Segment,
    decide_retention,
    expired_queue_files,
    parse_delete_hours,
    used_percent,
)
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_runtime.clock import Clock
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes of the file system that the log is on."""

    used: int
    available: int


def disk_use(path: Path) -> DiskUse:
    """Ask the system; raises OSError."""
    status = os.statvfs(path)
    return DiskUse((status.f_blocks - status.f_bfree) * status.f_frsize, status.f_bavail * status.f_frsize)


def rules_of(settings: BrokerSettings, more_hours: int = 0) -> RetentionRules:
    """The settings that retention is about; files stay for `more_hours` longer than they say."""
    return RetentionRules(
        reserved_hours=settings.file_reserved_time + more_hours,
        delete_hours=parse_delete_hours(settings.delete_when),
        expire_percent=settings.disk_max_used_space_ratio,
        force_percent=settings.disk_space_clean_forcibly_ratio,
        warning_percent=settings.disk_space_warning_level_ratio,
        force=settings.clean_file_forcibly_enable,
    )


class RetentionTask:
    """Checks regularly what may go. `on_disk_full` is told whether messages must be refused now."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexService | None,
        on_disk_full: Callable[[bool], None],
        measure: Callable[[Path], DiskUse] = disk_use,
        more_hours: int = 0,
    ) -> None:
        """Files stay for `more_hours` longer than the settings say."""
        self._more_hours = more_hours
        self._rules = rules_of(settings, more_hours)
        self._interval_s = settings.clean_resource_interval / 1000
        self._pause_s = settings.delete_commit_log_files_interval / 1000
        self._clock = clock
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._on_disk_full = on_disk_full
        self._measure = measure
        self._manual = False
        self.keep_from: Callable[[], int] | None = None
        """Tells from which offset on the log is needed, for instance by a snapshot; None: from nowhere."""
        self.waiting_from: Callable[[], int] | None = None
        """Tells from which offset on messages wait to be delivered; only a full disk goes over that."""
        self.after_delete: Callable[[], None] | None = None
        """Called when files of the log were deleted."""

    def use(self, settings: BrokerSettings) -> None:
        """Go by changed settings from the next turn on."""
        self._rules = rules_of(settings, self._more_hours)

    def request(self) -> None:
        """Delete expired files at the next turn, whatever the hour (an administrator asked for it)."""
        self._manual = True

    async def run(self) -> None:
        """Repeat it until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(self._interval_s)

    async def check(self) -> int:
        """Check once; returns how many files of the log were deleted."""
        try:
            use = self._measure(self._folder())
        except OSError as error:
            log.warning("cannot tell how full the disk is", error=str(error))
            return 0
        now_ms = self._clock.now_ms()
        decision = decide_retention(
            self._segments(),
            self._rules,
            used_percent=used_percent(use.used, use.available),
            now_ms=now_ms,
            hour=time.localtime(now_ms / 1000).tm_hour,
            manual=self._manual,
        )
        self._manual = False
        self._on_disk_full(decision.refuse_writes)
        deleted = 0
        for segment in decision.delete:
            end = segment.first_offset + segment.size
            if end > self._needed_from() or (not decision.forced and end > self._waiting_from()):
                break
            deleted += await self._delete(segment, decision.reason)
        if deleted:
            self._clean_derived()
            if self.after_delete is not None:
                self.after_delete()
        return deleted

    def _needed_from(self) -> int:
        """Files that reach behind this offset stay: what was received there is not in its queues yet."""
        end = self._log.max_offset
        return end if self.keep_from is None else min(end, self.keep_from())

    def _waiting_from(self) -> int:
        end = self._log.max_offset
        return end if self.waiting_from is None else min(end, self.waiting_from())

    def _folder(self) -> Path:
        folder = self._log.files.folder
        return folder if folder.exists() else folder.parent

    def _segments(self) -> list[Segment]:
        """The files that are written full, and the one being written: what is made ahead is not counted."""
        segments = []
        for file in self._log.files.files:
            modified = file.path.stat().st_mtime_ns // 1_000_000
            segments.append(Segment(file.start, file.size, modified))
        return segments

    async def _delete(self, segment: Segment, reason: str) -> bool:
        files = self._log.files
        if len(files.files) < 2 or files.files[0].start != segment.first_offset:
            return False
        removed = self._log.detach_first()
        log.info("deleting a commit log file", file=removed.path.name, reason=reason)
        await asyncio.to_thread(removed.unlink)
        await asyncio.sleep(self._pause_s)
        return True

    def _clean_derived(self) -> None:
        """Let queues and index forget what the log does not have any more."""
        min_offset = self._log.min_offset
        for queue in self._queues:
            queue.files.remove_first(expired_queue_files(queue.last_unit_offsets(), min_offset))
            queue.correct_min_offset(min_offset)
        if self._index is not None:
            self._index.delete_before(min_offset)
