"""A report as people read it: what was done, counters, and the findings that come first."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from brokerset_spark.jobs.report import Level, Report

SHOWN_MAX: Final = 20
"""Findings in the table; the report has more."""

_STYLES: Final = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "cyan"}


def _console() -> Console:
    """Standard output; wide enough for whole rows when nobody looks at a terminal."""
    import sys

    width = None if sys.stdout.isatty() else 240
    return Console(highlight=False, soft_wrap=True, width=width)


def tell(report: Report, *, full: Path | None = None, console: Console | None = None) -> None:
    """Write the report to standard output; `full` is where the whole of it was written."""
    out = console or _console()
    counters = {name: value for name, value in report.counters.items() if not name.startswith("finding")}
    if counters:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in sorted(counters.items()):
            table.add_row(name, f"{value:,}")
        out.print(table)
    _tell_findings(report, out, full)
    speed = f", {report.bytes_read / report.seconds / 1e6:,.0f} MB/s" if report.seconds > 0 else ""
    out.print(f"{report.job}: read {report.bytes_read:,} bytes in {report.seconds:.1f} s{speed}")
    counts = {level: report.counters.get(f"findings.{level}", 0) for level in Level}
    if report.findings_total == 0:
        out.print(Text("clean: nothing found", style="green"))
    else:
        said = ", ".join(
            f"{count:,} {level}{'s' if count != 1 else ''}" for level, count in counts.items() if count
        )
        out.print(Text(said, style="bold red" if counts[Level.ERROR] else "yellow"))


def _tell_findings(report: Report, out: Console, full: Path | None) -> None:
    if not report.findings:
        return
    ordered = sorted(report.findings, key=lambda finding: list(Level).index(finding.level))
    for each in ordered[:SHOWN_MAX]:
        place = each.file or each.store
        if each.offset is not None:
            place += f" @ {each.offset:,}"
        if each.end is not None and each.offset is not None:
            place += f" .. {each.end:,}"
        out.print(
            Text.assemble(
                (f"{each.level:<8}", _STYLES[each.level]),
                (each.code, "bold"),
                f"  {place}\n         {each.text}",
            )
        )
    if report.findings_total > SHOWN_MAX:
        more = f"{report.findings_total - SHOWN_MAX:,} more"
        out.print(f"{more}: see {full}" if full else f"{more}: --report FILE or --findings FILE has them")


def rows_table(title: str, columns: list[str], rows: list[list[Any]]) -> Table:
    """A table of counts: numbers to the right, with thousands."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        numeric = any(isinstance(row[number], int) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    return table


ROWS_MAX: Final = 40
"""Rows of one table of counts; the report has all."""


def tell_contents(report: Report, *, console: Console | None = None) -> None:
    """The tables of `inspect`."""
    out = console or _console()
    facts = report.facts
    state = "a broker may be writing it" if facts["live"] else "closed" if facts["closed"] else "not closed"
    out.print(
        f"{facts['layout']}: offsets {facts['first']:,} to {facts['end']:,}, "
        f"{facts['files']} files of {facts['fileBytes']:,} bytes, {state}"
    )
    if facts.get("firstTime"):
        out.print(f"messages from {facts['firstTime']} to {facts['lastTime']}")
    for title, key, names in (
        ("Topics", "topics", ["topic", "messages", "bytes", "first", "last"]),
        ("Queues", "queues", ["topic", "queue", "messages", "bytes", "first", "last"]),
        ("Days", "days", ["day", "messages", "bytes"]),
        ("Bodies", "sizes", ["size", "messages", "bytes"]),
    ):
        rows = [[row[name] for name in names] for row in facts[key][:ROWS_MAX]]
        if rows:
            out.print(rows_table(title, names, rows))
            if len(facts[key]) > ROWS_MAX:
                out.print(f"{len(facts[key]) - ROWS_MAX:,} more: --json has all")


def tell_subjects(report: Report, *, console: Console | None = None) -> None:
    """The table of `audit order`: one row for each subject."""
    out = console or _console()
    names = [
        "subject", "orderStrategy", "messages", "keys", "partitions", "producers", "missing", "duplicates",
        "disorder", "fenced", "elsewhere", "behindSeal",
    ]  # fmt: skip
    rows = [[row[name] for name in names] for row in report.facts["subjects"][:ROWS_MAX]]
    if rows:
        out.print(rows_table("Subjects", names, rows))
    else:
        out.print("no message has an order stamp")
    if len(report.facts["subjects"]) > ROWS_MAX:
        out.print(f"{len(report.facts['subjects']) - ROWS_MAX:,} more: --json has all")
