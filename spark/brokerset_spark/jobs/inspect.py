"""`inspect`: what is in a store: messages and bytes by topic, queue, day and size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from brokerset_spark.jobs.dispatch import topic_text
from brokerset_spark.jobs.passed_over import ReadOn, report_missing, report_unread
from brokerset_spark.jobs.report import JobFailed, Report
from brokerset_spark.jobs.running import Progress, Result, Row, Runner, quiet
from brokerset_spark.jobs.verify.columns import Topics, topic_numbers
from brokerset_spark.jobs.verify.options import RANGE_BYTES, VerifyOptions
from brokerset_spark.jobs.verify.plan import ScanRows, Target, find_target
from brokerset_spark.jobs.verify.scan import range_of
from brokerset_spark.kernels import KERNELS
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Throttle

DAY_MS: Final = 86_400_000
SIZE_CLASSES: Final = (256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
"""Upper bounds of the classes of body sizes, exclusive; the last class has no bound."""

DAYS_MAX: Final = 4_000
"""Days that are reported; a store with damaged times could have any number. The rest is counted as one."""

OTHER_DAYS: Final = -(2**40)
_PARTS_MAX: Final = 16
"""Tables of counts that are put together at once."""


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


_KEYS: Final = ("topic", "queue", "day")
_SUMS: Final = (
    ("messages", "sum"),
    ("bytes", "sum"),
    ("bodyBytes", "sum"),
    ("first", "min"),
    ("last", "max"),
)
"""Columns of a table of counts, and how those of several rows become one."""


def _grouped(parts: Sequence[pa.Table], keys: Sequence[str] = _KEYS) -> pa.Table:
    """One row for each group of these tables of counts."""
    table = pa.concat_tables(parts, promote_options="permissive")
    found = table.group_by(list(keys), use_threads=False).aggregate(list(_SUMS))
    found = found.select([*keys, *(f"{name}_{how}" for name, how in _SUMS)])
    return found.rename_columns([*keys, *(name for name, _ in _SUMS)])


def count_range(row: Row) -> Iterator[Result]:
    """A task: the records that begin in one range, as a table of counts, and by size class."""
    topics, parts = Topics(), list[pa.Table]()
    classes = np.zeros((len(SIZE_CLASSES) + 1, 2), np.int64)
    wanted = replace(range_of(row), exact_bound=row["exact"])
    with closing(open_folder(row["url"])) as folder:
        reading = ReadOn(folder, wanted, Throttle(row["rate"]), drop_cache=row["drop"])
        for chunk in reading.chunks():
            heads = KERNELS.heads(chunk.data, chunk.starts)
            values = {
                "topic": topic_numbers(chunk.data, heads, topics),
                "queue": heads.queue_id,
                "day": heads.store_timestamp // DAY_MS,
                "messages": np.ones(len(chunk.starts), np.int64),
                "bytes": chunk.sizes,
                "bodyBytes": heads.body_size,
                "first": heads.store_timestamp,
                "last": heads.store_timestamp,
            }
            parts.append(_grouped([pa.table(values)]))
            if len(parts) >= _PARTS_MAX:
                parts = [_grouped(parts)]
            which = np.searchsorted(np.array(SIZE_CLASSES), heads.body_size, side="right")
            classes[:, 0] += np.bincount(which, minlength=len(classes))
            classes[:, 1] += np.bincount(which, weights=chunk.sizes, minlength=len(classes)).astype(np.int64)
    data = b""
    if parts:
        names = pa.array([topic_text(name) for name in topics.names], pa.string())
        found = _grouped(parts)
        found = found.set_column(0, "topic", names.take(found["topic"].combine_chunks()))
        with pa.BufferOutputStream() as stream:
            with pa.ipc.new_stream(stream, found.schema) as writer:
                writer.write_table(found)
            data = stream.getvalue().to_pybytes()
    yield Result({"classes": classes.tolist(), **reading.said(row["path"])}, data)


def _few_days(table: pa.Table) -> pa.Table:
    """The same with at most `DAYS_MAX` days: those with the most messages, all others are one."""
    days = _grouped([table], ["day"])
    if len(days) <= DAYS_MAX:
        return table
    kept = days.sort_by([("messages", "descending")])["day"][: DAYS_MAX - 1]
    day = pc.if_else(pc.is_in(table["day"], kept), table["day"], OTHER_DAYS)
    return _grouped([table.set_column(table.schema.get_field_index("day"), "day", day)])


def _rows(table: pa.Table, *keys: str) -> list[dict[str, Any]]:
    """Rows of the report."""
    found: list[dict[str, Any]] = _grouped([table], keys).to_pylist()
    times = ("first", "last")
    return [{**each, **{name: time_text(each[name]) for name in times}} for each in found]


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
                drop_cache=options.drop_cache, range_bytes=options.range_bytes,
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


def _collect(runner: Runner, rows: ScanRows, report: Report, target: Target, progress: Progress) -> None:
    parts: list[pa.Table] = []
    classes = np.zeros((len(SIZE_CLASSES) + 1, 2), np.int64)
    total = rows.bytes
    progress("records", 0, total)
    for result in runner.run("brokerset_spark.jobs.inspect:count_range", rows):
        if result.data:
            parts.append(pa.ipc.open_stream(result.data).read_all())
        if len(parts) >= _PARTS_MAX:
            parts = [_few_days(_grouped(parts))]
        classes += np.array(result.row["classes"], np.int64)
        report.bytes_read += result.row["bytes"]
        progress("records", report.bytes_read, total)
        report_unread(result.row, report, target)
    counts = dict.fromkeys(("messages", "bytes", "bodyBytes"), 0)
    topics, queues, days = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    if parts:
        table = _few_days(_grouped(parts))
        counts = {name: pc.sum(table[name]).as_py() for name in counts}
        topics, queues, days = (_rows(table, *keys) for keys in (["topic"], ["topic", "queue"], ["day"]))
        first, last = pc.min(table["first"]).as_py(), pc.max(table["last"]).as_py()
        report.facts |= {"firstTime": time_text(first), "lastTime": time_text(last)}
    report.counters |= {
        "messages": counts["messages"], "bytes": counts["bytes"], "bytes.bodies": counts["bodyBytes"],
        "topics": len(topics), "queues": len(queues), "ranges": len(rows),
    }  # fmt: skip
    report.facts |= {
        "topics": sorted(topics, key=lambda each: (-each["bytes"], each["topic"])),
        "queues": sorted(queues, key=lambda each: (each["topic"], each["queue"])),
        "days": [
            {**each, "day": day_text(each["day"])} for each in sorted(days, key=lambda each: each["day"])
        ],
        "sizes": [
            {"size": size_class(number), "messages": count, "bytes": size}
            for number, (count, size) in enumerate(classes.tolist())
            if count
        ],
    }


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
