"""`inspect`: what is in a store: messages and bytes by topic, queue, day and size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brokerset_spark.jobs.dispatch import topic_text
from brokerset_spark.jobs.passed_over import report_missing, report_unread
from brokerset_spark.jobs.report import JobFailed, Report
from brokerset_spark.jobs.running import Progress, Result, Row, Runner, quiet
from brokerset_spark.jobs.verify.columns import Topics, topic_numbers
from brokerset_spark.jobs.verify.options import RANGE_BYTES, VerifyOptions
from brokerset_spark.jobs.verify.plan import Target, find_target
from brokerset_spark.jobs.verify.scan import range_of
from brokerset_spark.kernels import chosen
from brokerset_spark.kernels.contract import Int64s
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Outcome, Throttle, damaged_ranges, read_range

DAY_MS: Final = 86_400_000
SIZE_CLASSES: Final = (256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
"""Upper bounds of the classes of body sizes, exclusive; the last class has no bound."""

DAYS_MAX: Final = 4_000
"""Days that are reported; a store with damaged times could have any number. The rest is counted as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """What is read, and how gently."""

    start: int | None = None
    end: int | None = None
    bound: int | None = None
    """As in `verify`."""

    rate: int = 0
    drop_cache: bool = False
    range_bytes: int = RANGE_BYTES
    kernels: str | None = None


def size_class(number: int) -> str:
    """The name of a class: `< 256`, `256 .. 1 KiB`, `>= 4 MiB`."""
    names = [
        f"{bound} B" if bound < 1024 else f"{bound >> 10} KiB" if bound < 1 << 20 else f"{bound >> 20} MiB"
        for bound in SIZE_CLASSES
    ]
    if number == 0:
        return f"< {names[0]}"
    return f">= {names[-1]}" if number >= len(names) else f"{names[number - 1]} .. {names[number]}"


def day_text(day: int) -> str:
    """The day of a store timestamp, UTC: `2026-11-21`; days that no calendar has are numbers."""
    try:
        return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return f"day {day}"


def time_text(milliseconds: int) -> str:
    """A store timestamp, UTC."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def count_range(row: Row) -> Iterator[Result]:
    """A task: the records that begin in one range, counted by queue and day, and by size class."""
    folder = open_folder(row["url"])
    kernels = chosen(row["kernels"])
    topics = Topics()
    sums: dict[tuple[int, int, int], NDArray[np.int64]] = {}
    classes = np.zeros((len(SIZE_CLASSES) + 1, 2), np.int64)
    wanted = replace(range_of(row), exact_bound=row["exact"])
    read_to, gone = wanted.start, False
    damaged: list[list[int]] = []
    try:
        outcome = Outcome(wanted.start, wanted.start)
        throttle = Throttle(row["rate"])
        chunks = read_range(
            folder, wanted, outcome, resync=True, kernels=kernels, throttle=throttle, drop_cache=row["drop"]
        )
        for chunk in chunks:
            read_to = chunk.end
            if len(chunk.starts) == 0:
                continue
            heads = kernels.heads(chunk.data, chunk.starts)
            numbers = topic_numbers(chunk.data, heads, topics, kernels)
            days = heads.store_timestamp // DAY_MS
            _add_groups(
                sums, numbers.astype(np.int64), heads.queue_id.astype(np.int64), days, heads, chunk.sizes
            )
            which = np.searchsorted(np.array(SIZE_CLASSES), heads.body_size, side="right")
            classes[:, 0] += np.bincount(which, minlength=len(classes))
            classes[:, 1] += np.bincount(which, weights=chunk.sizes, minlength=len(classes)).astype(np.int64)
        damaged = [[begin, end] for begin, end, _ in damaged_ranges(folder, wanted, outcome, kernels)]
    except FileNotFoundError:
        gone = True
    finally:
        folder.close()
    for (topic, queue_id, day), found in sums.items():
        count, size, body, first, last = found.tolist()
        yield Result(
            {
                "kind": "group", "topic": topic_text(topics.names[topic]), "queue": queue_id, "day": day,
                "count": count, "bytes": size, "body": body, "first": first, "last": last,
            }
        )  # fmt: skip
    yield Result({"kind": "sizes", "classes": classes.tolist()})
    yield Result(
        {
            "kind": "read",
            "bytes": max(0, min(wanted.end, wanted.bound) - wanted.start),
            "damaged": damaged,
            "gone": [read_to, min(wanted.end, wanted.bound)] if gone else None,
            "path": row["path"],
        }
    )


def _add_groups(
    sums: dict[tuple[int, int, int], NDArray[np.int64]],
    topic: Int64s,
    queue_id: Int64s,
    day: Int64s,
    heads: Any,
    sizes: NDArray[np.int32],
) -> None:
    order = np.lexsort((day, queue_id, topic))
    keys = np.stack([topic[order], queue_id[order], day[order]])
    edges = np.flatnonzero((np.diff(keys, axis=1) != 0).any(axis=0)) + 1
    starts = np.concatenate([[0], edges])
    counts = np.diff(np.concatenate([starts, [len(order)]]))
    times = heads.store_timestamp[order]
    columns = (
        counts,
        np.add.reduceat(sizes[order].astype(np.int64), starts),
        np.add.reduceat(heads.body_size[order].astype(np.int64), starts),
        np.minimum.reduceat(times, starts),
        np.maximum.reduceat(times, starts),
    )
    for number, start in enumerate(starts.tolist()):
        key = (int(keys[0, start]), int(keys[1, start]), int(keys[2, start]))
        new = np.array([column[number] for column in columns], np.int64)
        old = sums.get(key)
        if old is None:
            sums[key] = new
        else:
            old[:3] += new[:3]
            old[3], old[4] = min(old[3], new[3]), max(old[4], new[4])


@dataclass(slots=True)
class _Sum:
    count: int = 0
    size: int = 0
    body: int = 0
    first: int = 2**63 - 1
    last: int = -(2**63)

    def add(self, row: Row) -> None:
        self.count += row["count"]
        self.size += row["bytes"]
        self.body += row["body"]
        self.first, self.last = min(self.first, row["first"]), max(self.last, row["last"])

    def row(self) -> dict[str, Any]:
        return {
            "messages": self.count,
            "bytes": self.size,
            "bodyBytes": self.body,
            "first": time_text(self.first),
            "last": time_text(self.last),
        }


def inspect(
    runner: Runner,
    url: str,
    options: InspectOptions | None = None,
    *,
    progress: Progress = quiet,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Count what is in a store; what cannot be read is passed over, and an error of the report.

    In the report's `facts`: `topics`, `queues`, `days`, `sizes` (rows, the greatest first), and the layout.
    NoInput if there is no store.
    """
    options = options or InspectOptions()
    begun = clock()
    folder = open_folder(url)
    try:
        target = find_target(
            folder,
            VerifyOptions(
                start=options.start, end=options.end, bound=options.bound, rate=options.rate,
                drop_cache=options.drop_cache, range_bytes=options.range_bytes, kernels=options.kernels,
                queues=False, index=False,
            ),
        )  # fmt: skip
    except FileNotFoundError as error:
        advice = "if the broker runs, the file has expired: start the job again"
        raise JobFailed(f"a file went while the store was looked at: {error}", advice) from error
    finally:
        folder.close()
    report = Report("inspect", inputs={"store": url})
    rows = target.scan_rows([])
    _collect(runner, rows, report, target, progress)
    report_missing(target, report)
    _report_layout(target, report)
    report.seconds = clock() - begun
    return report


def _collect(runner: Runner, rows: list[Row], report: Report, target: Target, progress: Progress) -> None:
    queues: dict[tuple[str, int], _Sum] = {}
    topics: dict[str, _Sum] = {}
    days: dict[int, _Sum] = {}
    whole = _Sum()
    classes = np.zeros((len(SIZE_CLASSES) + 1, 2), np.int64)
    total = sum(row["end"] - row["start"] for row in rows)
    progress("records", 0, total)
    for result in runner.run("brokerset_spark.jobs.inspect:count_range", rows):
        row = result.row
        if row["kind"] == "group":
            queues.setdefault((row["topic"], row["queue"]), _Sum()).add(row)
            topics.setdefault(row["topic"], _Sum()).add(row)
            day = row["day"] if row["day"] in days or len(days) < DAYS_MAX else -(2**40)
            days.setdefault(day, _Sum()).add(row)
            whole.add(row)
        elif row["kind"] == "sizes":
            classes += np.array(row["classes"], np.int64)
        else:
            report.bytes_read += row["bytes"]
            progress("records", report.bytes_read, total)
            report_unread(row, report, target)
    report.counters |= {"messages": whole.count, "bytes": whole.size, "bytes.bodies": whole.body}
    report.counters |= {"topics": len(topics), "queues": len(queues), "ranges": len(rows)}
    report.facts |= {
        "topics": [
            {"topic": name, **found.row()}
            for name, found in sorted(topics.items(), key=lambda item: (-item[1].size, item[0]))
        ],
        "queues": [
            {"topic": topic, "queue": queue_id, **found.row()}
            for (topic, queue_id), found in sorted(queues.items())
        ],
        "days": [{"day": day_text(day), **found.row()} for day, found in sorted(days.items())],
        "sizes": [
            {"size": size_class(number), "messages": count, "bytes": size}
            for number, (count, size) in enumerate(classes.tolist())
            if count
        ],
    }
    if whole.count:
        report.facts |= {"firstTime": time_text(whole.first), "lastTime": time_text(whole.last)}


def _report_layout(target: Target, report: Report) -> None:
    facts = target.facts
    logs = (*facts.commit_log.files, *facts.ledger.files)
    report.facts |= {
        "layout": facts.layout,
        "first": target.first,
        "end": target.end,
        "files": len(logs),
        "fileBytes": logs[0].size,
        "indexFiles": len(facts.index_files),
        "queueFolders": len(facts.queues),
        "closed": not facts.aborted,
        "live": target.live,
        "identity": None
        if facts.identity is None
        else {
            "cluster": facts.identity.cluster_name,
            "broker": facts.identity.broker_name,
            "id": facts.identity.broker_id,
        },
        "epochs": None
        if facts.epochs is None
        else [[each.epoch, each.start_offset] for each in facts.epochs.entries],
    }
