"""Tables of `spark_run.py`, from its records: rates, MB for each second of a core, memory, and ratios to the plain side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.bench.history import Record, Values
from tests.bench.ratios import middle

from brokerset_rig.measuring import markdown

BASE: Final = "loop"
SIDES: Final = {
    "loop": "a plain loop of brokerset_client",
    "alone": "the source in one Python process, without Spark",
    "one": "one core, executor or process",
    "two": "two",
}
READS: Final = {
    ("spark-read", "loop"): "read: `PullConsumer`, a loop",
    ("spark-read", "alone"): "read: the source's Arrow batches, without Spark",
    ("spark-read", "one"): 'read: `format("rocketmq")` into `noop`, 1 core',
    ("spark-read", "two"): "… 2 cores",
    ("spark-send", "loop"): "send: `Producer.send_batch`, a loop",
    ("spark-send", "one"): 'send: `write.format("rocketmq")`, 1 core',
    ("spark-send", "two"): "… 2 cores",
    ("spark-lake", "one"): "lake export into Delta, 1 executor",
    ("spark-lake", "two"): "… 2 executors",
}
STORES: Final = {
    "store-cp": "`cp`",
    "store-verify": "`verify`",
    "store-migrate-copy": "`migrate` by copy, read back, synced",
    "store-migrate-rewrite": "`migrate`, rewritten, read back, synced",
    "store-export": "`export` (Parquet)",
}


def is_spark(record: Record) -> bool:
    """Whether `spark_run.py` has made it."""
    return record.base == BASE and any(case.startswith(("spark-", "store-")) for case in record.cases)


def results(cases: Mapping[str, Values]) -> str:
    """Both tables; what was not measured is left out."""
    return "\n\n".join(part for part in (_topics(cases), _stores(cases)) if part)


def _topics(cases: Mapping[str, Values]) -> str:
    rows = []
    for (case, side), words in READS.items():
        found = cases.get(case, {})
        rate, bytes_rate = _value(found, "mbPerSecond", side), _value(found, "mbPerCpuSecond", side)
        if rate is None:
            continue
        base = _value(found, "mbPerSecond", BASE if BASE in found["mbPerSecond"] else "one")
        memory = [
            _number(_value(found, f"{kind}MiB", side)) for kind in ("driver", "jvm", "executor", "worker")
        ]
        rows.append(
            (
                words,
                _number(_value(found, "perSecond", side)),
                _number(rate),
                _number(bytes_rate),
                f"{rate / base:.2f} ×" if base else "",
                f"{rate * 3.6:,.0f}" if case == "spark-lake" else "",
                *memory,
            )
        )
    heads = (
        "topic", "rows/s", "MB/s", "MB per CPU second", "to the first", "GB/h", "driver MiB", "its JVM",
        "executor JVM", "Python worker",
    )  # fmt: skip
    return markdown(heads, rows) if rows else ""


def _stores(cases: Mapping[str, Values]) -> str:
    rows = []
    for case, words in STORES.items():
        found, copied = cases.get(case, {}), cases.get("store-cp", {})
        for side, processes in (("one", 1), ("two", 2)):
            rate, own = _value(found, "mbPerSecond", side), _value(found, "mbPerCpuSecond", side)
            if rate is None or own is None:
                continue
            of_cp = _value(copied, "mbPerCpuSecond", side)
            share = f"{own / of_cp:.2f} ×" if of_cp else ""
            rows.append(
                (words, processes, _number(rate), _number(own), share, _number(_value(found, "allMiB", side)))
            )
    heads = ("store files", "processes", "MB/s", "MB per CPU second", "to `cp`", "memory MiB")
    return markdown(heads, rows) if rows else ""


def _value(found: Values, metric: str, side: str) -> float | None:
    """The median of the runs."""
    values = [each for each in found.get(metric, {}).get(side, ()) if each is not None]
    return middle(values) if values else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
