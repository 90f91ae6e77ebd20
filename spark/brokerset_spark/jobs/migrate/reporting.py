"""What a migration says about the records that it found, and about those that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brokerset_spark.jobs.migrate.plan import LogEnd
from brokerset_spark.jobs.migrate.source import Source
from brokerset_spark.jobs.migrate.tallies import Tallies
from brokerset_spark.jobs.report import Finding, Level, Report


def report_scan(
    report: Report,
    source: Source,
    tallies: Tallies,
    scanned: Sequence[Mapping[str, Any]],
    end: LogEnd,
    files_read: int,
) -> None:
    """Put counts and findings of the scan into the report: what is left out, and why."""
    counters, store = report.counters, str(source.root)
    counters["records"] = sum(each["records"] for each in scanned)
    counters["recordsKept"] = sum(tally.count for tally in tallies.values())
    counters["recordBytesKept"] = sum(tally.size for tally in tallies.values())
    counters["recordsLeftOut"] = sum(each["leftOut"] for each in scanned)
    counters["entriesWithoutMessage"] = sum(each["noMessage"] for each in scanned)
    counters["entriesUncommitted"] = source.uncommitted
    report.bytes_read += sum(each["bytesRead"] for each in scanned)
    report.facts["sourceEnd"] = end.offset
    dropped: dict[str, int] = {}
    for each in scanned:
        for topic, count in each["dropped"].items():
            dropped[topic] = dropped.get(topic, 0) + count
    report.facts["droppedTopics"] = dict(sorted(dropped.items()))
    by_topic = sum(dropped.values())
    outside = counters["recordsLeftOut"] - by_topic
    skipped = len(source.files) - files_read
    left_out = {
        "dropped-topics": (by_topic, "messages of topics that were not chosen are left out"),
        "dropped-range": (
            outside + skipped,
            f"messages or files lie outside of the times and offsets ({skipped} files were not read)",
        ),
        "dropped-no-message": (counters["entriesWithoutMessage"], "entries without message are left out"),
        "dropped-uncommitted": (
            counters["entriesUncommitted"],
            "entries that are not known to be committed are left out",
        ),
    }
    for code, (count, text) in left_out.items():
        if count:
            report.add(Finding(code, Level.INFO, f"{count} {text}", store))
    if end.lost is not None:
        report.add(Finding("tail-missing", Level.WARNING, end.lost.text(), store, offset=end.lost.begin))
    if not end.clean:
        text = (
            "what follows the last whole record is no record; it is left out, as a broker would at its start"
        )
        report.add(Finding("torn-tail", Level.INFO, text, store, offset=end.offset))


def report_queues(report: Report, store: str, faults: str, replaced: int) -> None:
    """Say what is unusual in queues that were built again; `faults` were accepted."""
    if faults:
        text = f"{faults}; place holders stand where there is no message, and the newer one of two counts"
        report.add(Finding("queue-hole", Level.WARNING, text, store))
    if replaced:
        text = f"{replaced} messages of deleted topics that were made again are in the log and in no queue"
        report.add(Finding("queue-replaced", Level.INFO, text, store))
