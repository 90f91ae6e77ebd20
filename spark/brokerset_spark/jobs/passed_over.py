"""Reading on behind damage: tasks that do it, and what a job says about what they could not read."""

from __future__ import annotations

from collections.abc import Iterator

from brokerset_spark.jobs.report import Finding, Level, Report
from brokerset_spark.jobs.running import Row
from brokerset_spark.jobs.verify.plan import Target
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.reading import (
    Chunk,
    Outcome,
    Range,
    Throttle,
    damaged_ranges,
    gaps,
    read_range,
)


class ReadOn:
    """One range of a log, read to its end whatever is damaged, or until its file is gone."""

    def __init__(self, folder: StoreFolder, wanted: Range, throttle: Throttle, *, drop_cache: bool) -> None:
        self._folder, self._wanted, self._throttle, self._drop = folder, wanted, throttle, drop_cache
        self._limit = min(wanted.end, wanted.bound)
        self._damaged: list[list[int]] = []
        self._gone: list[int] | None = None

    def chunks(self) -> Iterator[Chunk]:
        """Those that have records. OSError as from the folder, but for a file that is gone."""
        outcome, read_to = Outcome(self._wanted.start, self._wanted.start), self._wanted.start
        try:
            for chunk in read_range(
                self._folder, self._wanted, outcome, resync=True, throttle=self._throttle,
                drop_cache=self._drop,
            ):  # fmt: skip
                read_to = chunk.end
                if len(chunk.starts):
                    yield chunk
            found = damaged_ranges(self._folder, self._wanted, outcome)
            self._damaged = [[begin, end] for begin, end, _ in found]
        except FileNotFoundError:
            self._gone = [read_to, self._limit]

    def said(self, path: str) -> Row:
        """What `report_unread` takes, once all chunks were."""
        count = max(0, self._limit - self._wanted.start)
        return {"bytes": count, "damaged": self._damaged, "gone": self._gone, "path": path}


def report_missing(target: Target, report: Report) -> None:
    """Files between others that are not there, and what is known to have been behind the end."""
    url, last = target.facts.url, ""
    for log in (target.facts.commit_log, target.facts.ledger):
        until = log.end if target.options.end is None else target.end
        for path, begin, end in gaps(log, target.begin, until):
            text = f"{end - begin} bytes behind {path} are in no file: messages are missing"
            report.add(Finding("file-missing", Level.ERROR, text, url, path, begin, end))
        last = log.files[-1].path if log.files else last
    if target.lost is not None and target.options.end is None:
        level = Level.WARNING if target.lost.crash else Level.ERROR
        lost = target.lost
        report.add(Finding("tail-missing", level, lost.text(), url, last, lost.begin, lost.end))


def report_unread(row: Row, report: Report, target: Target) -> None:
    """What a task says in `damaged` and `gone` of the file at `path`."""
    url = target.facts.url
    for begin, end in row["damaged"]:
        text = f"{end - begin} bytes are no records and were passed over; `verify` says what they are"
        milder = begin >= target.ending.whole and target.repairs and not target.live
        level = Level.WARNING if milder else Level.ERROR
        report.add(Finding("damage", level, text, url, row["path"], begin, end))
    if row["gone"]:
        begin, end = row["gone"]
        text = (
            "the file went while it was read, and is counted up to there: if the broker runs, it has "
            "expired; start the job again"
        )
        report.add(Finding("file-unreadable", Level.WARNING, text, url, row["path"], begin, end))
