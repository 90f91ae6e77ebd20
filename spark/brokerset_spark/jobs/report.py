"""What a job found, as a value and as JSON (`report.json`); its findings as a DataFrame or a Parquet file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA_VERSION: Final = 1
FINDINGS_MAX: Final = 1_000
"""Findings that a report names; all are counted."""

SUMMARY_BYTES_MAX: Final = 4_096
"""Of the summary for `/dev/termination-log`, which Kubernetes cuts there."""

SUMMED_UP: Final = ("finding", "export.")
"""Counters of the summary begin so; the operator reads both."""

EXIT_CLEAN: Final = 0
EXIT_FINDINGS: Final = 1
EXIT_FAILED: Final = 2
EXIT_NO_INPUT: Final = 3
"""Exit codes of jobs. The last: the input is missing, or a broker runs on it."""


class _Ended(Exception):
    """A job ended without a result: what happened, and what to do next."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class NoInput(_Ended):
    """The input is missing, or a broker runs on it: the process ends with `EXIT_NO_INPUT`."""


class JobFailed(_Ended):
    """The job cannot be done or go on: the process ends with `EXIT_FAILED`."""


class Level(StrEnum):
    """How bad a finding is; only errors make a job end with `EXIT_FINDINGS`."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    code: str
    """A stable name (`crc-mismatch`, `chain-gap`, …); `docs/spark.md` lists them."""

    level: Level
    text: str
    """What happened, and what to do, in one sentence or two."""

    store: str = ""
    file: str = ""
    offset: int | None = None
    """Offset in the log, or in the queue for queues: where it begins."""

    end: int | None = None


@dataclass(slots=True)
class Report:
    """The result of one job."""

    job: str
    inputs: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """What this job tells beyond counters."""

    findings: list[Finding] = field(default_factory=list)
    findings_total: int = 0
    seconds: float = 0.0
    bytes_read: int = 0
    further: list[dict[str, Any]] = field(default_factory=list)
    """What would have to be read to say more, for who runs the job in steps; only the summary has it."""

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it if there is room. Errors push out milder ones."""
        self.count(finding.code, finding.level)
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        elif finding.level is Level.ERROR:
            for number in range(len(self.findings) - 1, -1, -1):
                if self.findings[number].level is not Level.ERROR:
                    self.findings[number] = finding
                    break

    def count(self, code: str, level: Level) -> None:
        """Count a finding that is not named, because its place has enough of them."""
        self.findings_total += 1
        for name in (f"findings.{level}", f"finding.{code}"):
            self.counters[name] = self.counters.get(name, 0) + 1

    @property
    def clean(self) -> bool:
        """Whether there is no error."""
        return self.counters.get("findings.error", 0) == 0

    @property
    def exit_code(self) -> int:
        """Of the process."""
        return EXIT_CLEAN if self.clean else EXIT_FINDINGS

    def to_json(self) -> bytes:
        """`report.json`."""
        more = {
            "inputs": self.inputs,
            "counters": dict(sorted(self.counters.items())),
            "facts": self.facts,
            "findings": [asdict(each) for each in self.findings],
            "bytesPerSecond": round(self.bytes_read / self.seconds) if self.seconds else 0,
        }
        return orjson.dumps(self._head() | more, option=orjson.OPT_INDENT_2)

    def _head(self) -> dict[str, Any]:
        return {
            "schemaVersion": SCHEMA_VERSION,
            "job": self.job,
            "clean": self.clean,
            "findingsTotal": self.findings_total,
            "bytesRead": self.bytes_read,
            "seconds": round(self.seconds, 3),
        }

    def summary(self) -> bytes:
        """The same without what does not fit `SUMMARY_BYTES_MAX`: as many findings as there is room for.

        Of the counters it has those of findings, which count what there was no room for, too, and those of an
        export.
        """
        counters = {name: n for name, n in sorted(self.counters.items()) if name.startswith(SUMMED_UP)}
        said: dict[str, Any] = {**self._head(), "counters": counters, "findings": []}
        if self.further:
            said["further"] = self.further
        text = orjson.dumps(said)
        for each in sorted(self.findings, key=lambda finding: list(Level).index(finding.level)):
            said["findings"].append({**asdict(each), "text": each.text[:300]})
            longer = orjson.dumps(said)
            if len(longer) > SUMMARY_BYTES_MAX:
                break
            text = longer
        return text


FINDINGS_SCHEMA: Final = (
    "job string, level string, code string, store string, file string, offset bigint, end bigint, text string"
)
"""Columns, as Spark writes them."""


def _rows(report: Report) -> list[tuple[str, str, str, str, str, int | None, int | None, str]]:
    return [
        (report.job, str(each.level), each.code, each.store, each.file, each.offset, each.end, each.text)
        for each in report.findings
    ]


def findings_frame(spark: SparkSession, report: Report) -> DataFrame:
    """The findings that the report names, one row each, with the columns of `FINDINGS_SCHEMA`."""
    return spark.createDataFrame(_rows(report), FINDINGS_SCHEMA)


def write_findings(report: Report, path: Path) -> None:
    """The same as a Parquet file, which appears when it is whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"string": pa.string(), "bigint": pa.int64()}
    columns = (column.split() for column in FINDINGS_SCHEMA.split(", "))
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns])
    rows = [dict(zip(schema.names, row, strict=True)) for row in _rows(report)]
    part = path.with_name(f".{path.name}.writing")
    pq.write_table(pa.Table.from_pylist(rows, schema), part)
    part.replace(path)
