"""What the tasks of `verify` have found, put together on the driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from brokerset_spark.jobs.report import Finding, Level, Report
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.claims import BatchClaims, Claims, Queue
from brokerset_spark.jobs.verify.findings import CODES
from brokerset_spark.jobs.verify.joining import Sections


@dataclass(slots=True)
class Gathered:
    """What the tasks have reported so far."""

    report: Report
    url: str
    sections: Sections = field(default_factory=Sections)
    claims: dict[Queue, Claims] = field(default_factory=dict)
    gaps: list[Row] = field(default_factory=list)
    unclaimed: list[Row] = field(default_factory=list)
    index: list[Row] = field(default_factory=list)
    uncovered: list[Row] = field(default_factory=list)
    epochs: set[int] = field(default_factory=set)
    batches: dict[Queue, BatchClaims] = field(default_factory=dict)

    def count(self, name: str, more: int) -> None:
        """Add to a counter of the report."""
        self.report.counters[name] = self.report.counters.get(name, 0) + more

    def say(self, result: Result, level: Level | None = None) -> None:
        """Put a finding into the report, at another level than usual if one is given."""
        row = result.row
        level = level or (Level(row["level"]) if row.get("level") else CODES[row["code"]][0])
        self.report.add(
            Finding(row["code"], level, row["text"], self.url, row["file"], row["offset"], row["end"])
        )

    def take(self, result: Result) -> None:
        """A result of any task."""
        row = result.row
        match row["kind"]:
            case "finding":
                self.say(result)
            case "section":
                self.sections.add(row)
                self.count("records", row["records"])
                self.epochs.update(row["epochs"])
            case "blank":
                self.sections.add(row)
            case "run":  # of a damaged part
                self.claims.setdefault((row["topic"], row["queue"]), Claims()).add(row)
            case "claims":
                self.claims[row["topic"], row["queue"]] = Claims.of(row)
            case "gap":
                self.gaps.append(row)
            case kind if kind.startswith("batch-") or row.get("batch"):
                self.batches.setdefault((row["topic"], row["queue"]), BatchClaims()).take(row)
                self.count("queue.batches", row.get("units", 0))
            case "unclaimed":
                self.unclaimed.append(row)
            case "queue":
                self.count("queue.units", row["units"])
                self.count("queue.units.expired", row["expired"])
            case "index-file":
                self.index.append(row)
                self.count("index.files", 1)
                self.count("index.units", row["next"] - 1)
                self.report.bytes_read += row["bytes"]
            case "uncovered":
                self.uncovered.append(row)
            case "read":
                self.report.bytes_read += row["bytes"]
            case kind:
                raise AssertionError(f"a task reported {kind}")
