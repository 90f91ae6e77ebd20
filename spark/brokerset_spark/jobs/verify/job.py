"""`verify`: plan, tasks, and the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from brokerset_spark.jobs.report import JobFailed, Level, Report
from brokerset_spark.jobs.running import Progress, Result, Row, Runner, quiet
from brokerset_spark.jobs.verify.extended_units import extended_folders
from brokerset_spark.jobs.verify.files import check_archive, check_log_files, check_small_files
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.jobs.verify.gathered import Gathered
from brokerset_spark.jobs.verify.light_queues import has_light_queues
from brokerset_spark.jobs.verify.log_judge import judge_checkpoints, judge_gaps, judge_ledger
from brokerset_spark.jobs.verify.options import VerifyOptions
from brokerset_spark.jobs.verify.plan import Target, find_target, index_rows, log_of
from brokerset_spark.jobs.verify.queue_judge import judge_queues
from brokerset_spark.jobs.verify.topic_settings import batched_topics
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import COMMIT_LOG, DLEDGER_PREFIX, QUEUES
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.units import BATCH, queues_of

_TASKS = "brokerset_spark.jobs.verify"
QUEUE_BATCH = 64
"""Queues of one task in the second direction."""


def verify(
    runner: Runner,
    url: str,
    options: VerifyOptions | None = None,
    *,
    progress: Progress = quiet,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Check a store as far as it is sure, and report what is wrong, by file and offset.

    NoInput if there is no store; JobFailed and OSError if it cannot be read. A store that a broker writes is
    read up to what is confirmed; one that a crash left is read as the broker's next start would.
    """
    options = options or VerifyOptions()
    begun = clock()
    folder = open_folder(url)
    try:
        report = _verify(runner, folder, options, progress)
    except FileNotFoundError as error:  # of the log it is a finding, and the rest is checked
        advice = "if the broker runs, the file has expired: start the job again"
        raise JobFailed(f"a file went while the store was read: {error}", advice) from error
    finally:
        folder.close()
    report.seconds = clock() - begun
    return report


def _verify(runner: Runner, folder: StoreFolder, options: VerifyOptions, progress: Progress) -> Report:
    target = replace(
        find_target(folder, options), light=has_light_queues(folder), batched=batched_topics(folder)
    )
    facts = target.facts
    if facts.archive is not None:  # it has neither, and a broker that starts from it makes them
        options = replace(options, queues=False, index=False)
        target = replace(target, options=options)
    report = Report("verify", inputs={"store": facts.url})
    gathered = Gathered(report, facts.url)
    _check_files(folder, target, gathered)
    index: list[Row] = []
    if options.index:
        index = _check_index(runner, folder, target, gathered, progress)
    rows = target.scan_rows(index)
    gathered.count("ranges", len(rows))
    _run(
        runner,
        "scan:scan_range",
        rows,
        gathered,
        progress,
        "records",
        rows.bytes,
        f"{_TASKS}.claims:Claimed",
    )
    _examine_gaps(runner, target, index, gathered, progress)
    for result in [*gathered.sections.overlaps(), *gathered.sections.joints()]:
        gathered.say(result)
    end, damage = judge_gaps(target, gathered)
    if options.queues:
        _check_queues(runner, folder, target, gathered, progress, end, damage)
    if options.index:
        _judge_index(gathered, target, end)
    judge_checkpoints(target, gathered, end)
    if facts.ledger.files and facts.archive is None:
        judge_ledger(folder, target, gathered)
    report.counters["log.bytes"] = max(0, end - target.begin)
    report.counters["queues"] = len(facts.queues)
    report.facts |= {
        "layout": facts.layout,
        "first": target.first,
        "end": end,
        "live": target.live,
        "closed": not facts.aborted,
    }
    return report


def _run(
    runner: Runner,
    task: str,
    rows: Sequence[Row],
    gathered: Gathered,
    progress: Progress,
    label: str,
    total: int,
    reducer: str = "",
) -> None:
    done = 0
    progress(label, 0, total)
    for result in runner.run(f"{_TASKS}.{task}", rows, reducer):
        gathered.take(result)
        if result.row["kind"] == "read":
            done += result.row["bytes"]
            progress(label, done, total)


def _check_files(folder: StoreFolder, target: Target, gathered: Gathered) -> None:
    facts = target.facts
    folders = [(COMMIT_LOG, "the commit log")]
    if facts.ledger_id is not None:
        ledger = f"{DLEDGER_PREFIX}{facts.ledger_id}"
        folders += [(f"{ledger}/data", "the DLedger"), (f"{ledger}/index", "the DLedger's index")]
    folders += [
        (f"{QUEUES}/{each.topic}/{each.queue_id}", f"queue {each.topic}/{each.queue_id}")
        for each in facts.queues
    ]
    folders += [
        (f"{BATCH.folder}/{topic}/{queue_id}", f"{BATCH.name} {topic}/{queue_id}")
        for topic, queue_id in queues_of(folder, BATCH)
    ]
    folders += extended_folders(folder)
    for path, what in folders:
        files = folder.files(path)
        gathered.count("files", len(files))
        for result in check_log_files(files, what):
            gathered.say(result)
    for result in (*check_archive(folder, facts), *check_small_files(folder, facts)):
        gathered.say(result)


def _check_index(
    runner: Runner, folder: StoreFolder, target: Target, gathered: Gathered, progress: Progress
) -> list[Row]:
    rows, unknown = index_rows(folder, target.facts)
    for file in unknown:
        gathered.say(
            finding("index-layout", "the number of its slots cannot be told; it is not checked", file.path)
        )
    _run(runner, "index_files:check_index_file", rows, gathered, progress, "index files", 0)
    return sorted(gathered.index, key=lambda row: str(row["path"]))


def _examine_gaps(
    runner: Runner, target: Target, index: list[Row], gathered: Gathered, progress: Progress
) -> None:
    """What no range could read, file by file; a range's own view of it does not count."""
    begin = target.begin
    if target.options.start is not None and gathered.sections.sections:
        begin = max(begin, min(each["begin"] for each in gathered.sections.sections))
    rows = []
    for first, last in gathered.sections.gaps(begin, target.end):
        at = first
        while at < last:
            log, entries = log_of(target.facts, at)
            file = log.at(at)
            if file is None:  # between two files: a finding of its own
                at = min(
                    (each.base for each in (*log.files, *target.facts.ledger.files) if each.base > at),
                    default=last,
                )
                continue
            stop = min(last, file.end)
            rows.append(target.row(file.path, file.base, file.size, at, stop, entries, index))
            at = stop
    _run(runner, "gaps:examine_gap", rows, gathered, progress, "damaged parts", 0)


def _check_queues(
    runner: Runner,
    folder: StoreFolder,
    target: Target,
    gathered: Gathered,
    progress: Progress,
    end: int,
    damage: list[list[int]],
) -> None:
    if not target.options.partial:
        wanted = set(target.options.topics)
        plain = [(each.topic, each.queue_id) for each in target.facts.queues]
        claims = {queue: each.claimed() for queue, each in gathered.claims.items()}
        batches = {queue: each.claimed for queue, each in gathered.batches.items()}
        for label, queues, claimed in (
            ("queues", plain, claims),
            ("batch queues", queues_of(folder, BATCH), batches),
        ):
            chosen = [
                {"topic": topic, "queue": queue_id, "claims": claimed.get((topic, queue_id), [])}
                for topic, queue_id in queues
                if not wanted or topic in wanted
            ]
            rows: list[Row] = [
                {
                    "url": target.facts.url,
                    "queues": chosen[at : at + QUEUE_BATCH],
                    "batch": label != "queues",
                    "first": target.first,
                    "end": end,
                    "damage": damage,
                    "live": target.live,
                }
                for at in range(0, len(chosen), QUEUE_BATCH)
            ]
            _run(runner, "unclaimed:check_queues", rows, gathered, progress, label, 0)
    judge_queues(folder, target, gathered)


def _judge_index(gathered: Gathered, target: Target, end: int) -> None:
    for row in gathered.index:
        if row["next"] > 1 and row["end"] >= end and not target.live and not target.options.partial:
            text = f"its last unit points to offset {row['end']}, the log ends at {end}"
            found = finding("index-dangling", text, row["path"])
            gathered.say(Result({**found.row, "level": Level.WARNING}))
    if not gathered.uncovered:
        return
    keys = sum(row["keys"] for row in gathered.uncovered)
    first = min(row["first"] for row in gathered.uncovered)
    last = max(row["last"] for row in gathered.uncovered)
    level = Level.INFO if target.live or target.crash else Level.WARNING
    text = f"{keys} keys of records between offsets {first} and {last} are in no index file"
    found = finding("index-uncovered", text, "index", first, last)
    gathered.say(Result({**found.row, "level": level}))
