"""What a job that reads on behind damage says about what it could not read."""

from __future__ import annotations

from brokerset_spark.jobs.report import Finding, Level, Report
from brokerset_spark.jobs.running import Row
from brokerset_spark.jobs.verify.plan import Target
from brokerset_spark.stores.reading import gaps


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
