"""One pass of the lake export: observe, plan, write on executors, commit, tell."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from brokerset_client.errors import ClientError, RequestRefused
from brokerset_protocol.codes import ResponseCode
from brokerset_spark.jobs.lake import observing
from brokerset_spark.jobs.lake.avro_columns import AvroTarget
from brokerset_spark.jobs.lake.catalog import CatalogOptions
from brokerset_spark.jobs.lake.commits import Commit, LakeTable
from brokerset_spark.jobs.lake.files import WrittenFile
from brokerset_spark.jobs.lake.formats import FORMATS, guarded, open_lake
from brokerset_spark.jobs.lake.json_columns import JsonColumn
from brokerset_spark.jobs.lake.ranges import (
    Control,
    Event,
    Exported,
    PassPlan,
    others,
    plan_pass,
    split_tasks,
)
from brokerset_spark.jobs.lake.storage import Storage, url_problems
from brokerset_spark.jobs.lake.writing import TASK, Task
from brokerset_spark.jobs.report import Finding, JobFailed, Level, Report
from brokerset_spark.jobs.running import Runner
from brokerset_spark.json_values import from_value, to_value
from brokerset_spark.topics.client_thread import ClientThread, client_of
from brokerset_spark.topics.offsets import QueueKey
from brokerset_spark.topics.planning import Range
from brokerset_spark.topics.pulls import GROUP

T = TypeVar("T")
OBSERVE_SECONDS: Final = 120.0
BELIEVE_SECONDS: Final = 5.0
"""How long a queue is gone, or seems to be another one, before that is believed: a broker that has just
become master builds its queues, and one that starts registers its topics late. As in the wire source."""

AGAIN_SECONDS: Final = 0.25
TRIES: Final = 3
"""How often a pass begins again because a topic is made again while it reads."""

RIGHTS_ADVICE: Final = (
    f"sign as a user with Get and Sub on the topics, and Sub on Group:{GROUP}; to ask for all topics of a "
    "pattern takes a Super user"
)
"""What to do about a refusal for want of rights."""

LOSSES: Final = (Event.EXPIRED, Event.GAP)
"""Events that mean that messages, or offsets, are in no table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions:
    """What is exported, and where to."""

    name_servers: str
    """`host:port`, several with `;` between them."""
    target: str
    """A path, `file://…`, `s3://bucket/path` (also `s3a://`), `gs://…`, `abfss://…` or `hdfs://…`."""
    format: str = "delta"
    """One of `FORMATS`."""
    catalog: CatalogOptions | None = None
    """Where Iceberg tables are registered."""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    """A regular expression for further topics; new ones are found by each pass."""
    json_columns: tuple[JsonColumn, ...] = ()
    """Fields of JSON bodies that are columns of their own."""
    avro: AvroTarget | None = None
    """What Avro bodies are read as; its fields are columns."""
    compression: str = "zstd"
    messages_per_task: int = 1_000_000
    """Messages that one task reads at most; its files are about as large."""
    messages_per_queue: int | None = None
    """Messages of one queue in a pass at most; None: all that are there."""
    compact_bytes: int = 0
    """Make files of about so many bytes after the commit; 0: leave them as they are."""
    vacuum_hours: int | None = None
    """Delete files that no version of the last hours names, after a commit; None: none."""

    def takes(self, topic: str) -> bool:
        """Whether this export wants a topic."""
        return topic in self.topics or bool(self.pattern and re.fullmatch(self.pattern, topic))

    def problems(self) -> list[str]:
        """What is wrong, one sentence each."""
        found = []
        if not self.topics and not self.pattern:
            found.append("no topics: name some, or give a pattern")
        if "://" not in self.target and not os.path.isabs(self.target):
            found.append(f"target {self.target!r}: give the whole path, executors have other folders")
        found += url_problems(self.target, delta=self.format == "delta")
        if self.messages_per_task < 1 or (
            self.messages_per_queue is not None and self.messages_per_queue < 1
        ):
            found.append("messages per task and per queue must be positive")
        if self.format not in FORMATS:
            found.append(f"format {self.format!r} is none of {', '.join(FORMATS)}")
        if (self.format == "iceberg") != (self.catalog is not None):
            found.append("a catalog belongs to the format iceberg: give both, or neither")
        if self.catalog is not None:
            found += self.catalog.problems()
        if self.avro is not None and self.json_columns:
            found.append("bodies are JSON or Avro: give columns of one of them")
        try:
            re.compile(self.pattern)
        except re.error as error:
            found.append(f"topic pattern {self.pattern!r} is no regular expression: {error}")
        return found


@dataclass(frozen=True, slots=True)
class LakeReport:
    """What a pass did. `as_report` is what commands and operators read."""

    number: int
    """Of the pass; 0 if there was nothing to commit."""
    messages: int
    files: int
    bytes: int
    queues: int
    behind: int
    """Messages that this pass left for later ones."""
    unreachable: tuple[str, ...]
    """Brokers whose masters did not answer."""
    seconds: float
    compaction: dict[str, Any] = field(default_factory=dict)
    vacuumed: int = 0

    control: tuple[Control, ...] = ()
    """The rows that the pass added to the control table."""

    def as_report(self, options: LakeOptions) -> Report:
        """The same as the report of a job; messages that are lost to the table are warnings."""
        events = Counter(each.event for each in self.control)
        lost = sum(each.end - each.start for each in self.control if each.event in LOSSES)
        report = Report(
            "lake",
            inputs={
                "topics": list(options.topics),
                "pattern": options.pattern,
                "target": options.target,
            },
            counters={
                "export.rows": self.messages,
                "export.bytes": self.bytes,
                "export.files": self.files,
                "export.lag": self.behind,
                "export.gaps": lost,
            }
            | {f"export.event.{event}": count for event, count in sorted(events.items())},
            facts={
                "pass": self.number,
                "queues": self.queues,
                "compaction": self.compaction,
                "vacuumed": self.vacuumed,
            },
            seconds=self.seconds,
            bytes_read=self.bytes,
        )
        for each in self.control:
            if each.event in (
                *LOSSES,
                Event.RECREATED,
                Event.UNREADABLE,
                Event.JSON_MISFIT,
                Event.AVRO_MISFIT,
            ):
                code = "gap" if each.event in LOSSES else str(each.event)
                text = f"{each.event}: offsets {each.start} to {each.end} of queue {each.queue.text}"
                report.add(
                    Finding(
                        code, Level.WARNING, f"{text}; {each.detail}" if each.detail else text,
                        offset=each.start, end=each.end,
                    )
                )  # fmt: skip
        for broker in self.unreachable:
            text = f"no master of broker {broker} answers: its queues are left for a later run"
            report.add(Finding("unreachable", Level.ERROR, text))
        return report


def export_pass(runner: Runner, options: LakeOptions) -> LakeReport:
    """Export what is new since the last pass. Each message is in the table once, whatever fails in between.

    Raises ValueError for wrong options, JobFailed for what cannot be read or committed: nothing of the pass
    is in the table then, and the next one begins where this one did.
    """
    problems = options.problems()
    if problems:
        raise ValueError("; ".join(problems))
    client = _client(options.name_servers)
    with contextlib.closing(_opened(options)) as lake:
        return _pass(runner, options, client, lake)


def _pass(runner: Runner, options: LakeOptions, client: ClientThread, lake: LakeTable) -> LakeReport:
    began = time.monotonic()
    with guarded(options.target):
        known = lake.known_queues()
    for _ in range(TRIES):
        observed, exported, marks = settled(
            lambda: _observe(client, lake, options, known),
            lambda found: others(found[1], found[0].extents, found[2]) or _gone(options, found[0], known),
        )
        plan = plan_pass(exported, observed.extents, marks, messages_max=options.messages_per_queue)
        plan = _asked(client, observing.confirmed(client.instance, options.name_servers, plan))
        with guarded(options.target):
            prefix = lake.begin() if plan.ranges else ""
        files, found = _write(runner, options, plan, prefix)
        other = [str(each.queue) for each in found if each.event is Event.RECREATED]
        if not other:
            break  # else nobody names these files, and the next plan begins such queues at their beginning
    else:
        raise JobFailed(f"{other[0]} is made again and again while it is read", "run the export later")
    missing = _gone(options, observed, known)
    control = [*plan.control, *found]
    control += [Control(Event.QUEUE_GONE, queue, 0, 0, "no route names it") for queue in missing]
    control += [
        Control(Event.QUEUE_ADDED, queue, before.next_offset, observed.extents[queue].last, "there again")
        for queue, before in exported.items()
        if queue not in known and queue in observed.extents
    ]
    ends = {
        queue: end
        for queue, end in plan.ends.items()
        if queue not in exported or exported[queue].next_offset != end.next_offset or end.mark_ms is not None
    }
    with guarded(options.target):
        number = lake.commit(Commit(files, ends, control)) if files or control or ends else 0
        compaction = lake.compact(options.compact_bytes) if options.compact_bytes else {}
        # Who has committed knows that no pass that began before it can name files any more.
        vacuumed = lake.vacuum(options.vacuum_hours) if number and options.vacuum_hours is not None else 0
    return LakeReport(
        number=number,
        messages=sum(each.rows for each in files),
        files=len(files),
        bytes=sum(each.size for each in files),
        queues=len(observed.extents),
        behind=sum(each.last - plan.ends[queue].next_offset for queue, each in observed.extents.items()),
        unreachable=tuple(sorted({broker for _, broker in observed.silent})),
        seconds=time.monotonic() - began,
        compaction=compaction,
        vacuumed=vacuumed,
        control=tuple(control),
    )


def _client(name_servers: str) -> ClientThread:
    try:
        return client_of(name_servers)
    except (ClientError, TimeoutError) as error:
        raise JobFailed(
            f"no name server of {name_servers} answers: {error}", "check --name-servers, then run it again"
        ) from error


def _opened(options: LakeOptions) -> LakeTable:
    with guarded(options.target):
        lake = open_lake(options.format, Storage(options.target), options.catalog)
        try:
            lake.add_columns(Task("", options.target, "", (), options.json_columns, options.avro).columns)
        except BaseException:
            lake.close()
            raise
        return lake


def _gone(options: LakeOptions, observed: observing.Observed, known: set[QueueKey]) -> list[QueueKey]:
    return [each for each in observed.gone(known) if options.takes(each.topic)]


def settled(
    ask: Callable[[], T],
    is_doubtful: Callable[[T], object],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What `ask` gives once nothing of it is doubtful, or when it has been for `BELIEVE_SECONDS`.

    Else a master that is not as far yet would have its queues exported a second time, as new ones.
    """
    deadline = clock() + BELIEVE_SECONDS
    while True:
        found = ask()
        if not is_doubtful(found) or clock() > deadline:
            return found
        sleep(AGAIN_SECONDS)


def _observe(
    client: ClientThread, lake: LakeTable, options: LakeOptions, known: set[QueueKey]
) -> tuple[observing.Observed, dict[QueueKey, Exported], dict[QueueKey, int | None]]:
    instance, servers = client.instance, options.name_servers
    observed = _asked(client, observing.observe(instance, servers, options.topics, options.pattern, known))
    exported = lake.exported(observed.extents)
    marks = _asked(client, observing.marks(instance, servers, exported, observed.extents))
    there = {queue.topic for queue in (*observed.extents, *known)} | {topic for topic, _ in observed.silent}
    missing = sorted(set(options.topics) - there)
    if missing:
        raise JobFailed(f"topics {', '.join(missing)} do not exist", "create them, or name others")
    # A queue whose end cannot be compared now is left for a later pass.
    unsure = {
        queue
        for queue, before in exported.items()
        if observed.extents[queue].first < before.next_offset <= observed.extents[queue].last
        and queue not in marks
    }
    extents = {queue: each for queue, each in observed.extents.items() if queue not in unsure}
    silent = observed.silent | {(queue.topic, queue.broker) for queue in unsure}
    return replace(observed, extents=extents, silent=silent), exported, marks


def _asked(client: ClientThread, question: Coroutine[Any, Any, T]) -> T:
    try:
        return client.run(question, OBSERVE_SECONDS)
    except (ClientError, TimeoutError) as error:
        if isinstance(error, RequestRefused) and error.code == ResponseCode.NO_PERMISSION:
            raise JobFailed(f"the topics may not be read: {error}", RIGHTS_ADVICE) from error
        raise JobFailed(
            f"the brokers cannot be asked what they have: {error!r}", "look at `brokerset status`"
        ) from error


def _write(
    runner: Runner, options: LakeOptions, plan: PassPlan, prefix: str
) -> tuple[list[WrittenFile], list[Control]]:
    """The files, and what tasks have to tell."""
    tasks = split_tasks(plan.ranges, options.messages_per_task)
    rows = [
        to_value(
            Task(
                options.name_servers,
                options.target,
                options.compression,
                tuple(each),
                options.json_columns,
                options.avro,
                prefix,
                partitions_in_files=options.format == "iceberg",
            )
        )
        for each in tasks
    ]
    files: list[WrittenFile] = []
    read: set[Range] = set()
    control: list[Control] = []
    for result in runner.run(TASK, rows):
        files += [from_value(WrittenFile, each) for each in result.row["files"]]
        for each in result.row["ranges"]:
            read.add(from_value(Range, each["range"]))
            control += [from_value(Control, row) for row in each["control"]]
    wanted = {each for task in tasks for each in task}
    if read != wanted:
        raise JobFailed(
            f"{len(wanted - read)} of {len(wanted)} ranges have no result", "report this as a bug"
        )
    return files, control
