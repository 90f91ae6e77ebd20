"""How commands talk to people and to scripts: tables, JSON, progress, errors."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, NoReturn, TypeVar

import click

T = TypeVar("T")


class CommandFailed(click.ClickException):
    """What the command was asked for did not happen; says why and what to do next."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the error to standard error, the advice on a line of its own."""
        click.secho("Error: ", fg="red", bold=True, nl=False, err=True, file=file)
        click.echo(self.format_message(), err=True, file=file)
        if self.advice:
            click.secho("What to do: ", bold=True, nl=False, err=True, file=file)
            click.echo(self.advice, err=True, file=file)


def fail(message: str, advice: str = "") -> NoReturn:
    """End the command with exit code 1."""
    raise CommandFailed(message, advice)


def write_json(value: Any) -> None:
    """Write one JSON document for scripts, indented on a terminal."""
    indent = 2 if sys.stdout.isatty() else None
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False))


def write_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "nothing") -> None:
    """Write a table; numbers are aligned to the right. Plain columns without a terminal."""
    if not rows:
        click.echo(empty)
        return
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [_is_numeric([row[n] for row in rows]) for n in range(len(columns))]
    widths = [max(len(column), *(len(row[n]) for row in cells)) for n, column in enumerate(columns)]
    click.secho(_line([column.upper() for column in columns], widths, numeric), bold=True)
    for row in cells:
        click.echo(_line(row, widths, numeric))


def write_columns(
    rows: Sequence[T], columns: Mapping[str, str | Callable[[T], object]], *, empty: str = "nothing"
) -> None:
    """Write a table of objects: under each title a key or attribute of the row, or what a function gives."""
    cells = [[_field(row, field) for field in columns.values()] for row in rows]
    write_table(tuple(columns), cells, empty=empty)


def write_names(names: Sequence[str], title: str, *, as_json: bool, empty: str) -> None:
    """Write names as a JSON list, or as a table of one column."""
    if as_json:
        write_json(names)
    else:
        write_table((title,), [(name,) for name in names], empty=empty)


def _field(row: Any, field: str | Callable[[Any], object]) -> object:
    if callable(field):
        return field(row)
    return row[field] if isinstance(row, Mapping) else getattr(row, field)


def camel_name(name: str) -> str:
    """Return a field's name as JSON has it: `http_port` is `httpPort`."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def camel_json(value: Any) -> Any:
    """Return dataclasses, mappings and sequences as JSON has them, with camelCase names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {camel_name(f.name): camel_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {camel_name(key): camel_json(item) for key, item in value.items()}
    return [camel_json(item) for item in value] if isinstance(value, list | tuple) else value


def _is_numeric(column: Sequence[object]) -> bool:
    known = [value for value in column if value is not None]
    return bool(known) and all(isinstance(value, int | float) for value in known)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    )
    return "  ".join(padded).rstrip()


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error while work goes on; yields a function to call with how much more is done.

    Nothing is shown when standard error is no terminal, so that logs and pipes stay readable.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _more: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class TransferRate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:,.0f}/s")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TransferRate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=10) as bars:
        task = bars.add_task(label, total=total)
        yield lambda more: bars.advance(task, more)


def counted(count: int, one: str) -> str:
    """Return a number with what is counted: `1 queue`, `1,000 queues`."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


def duration(seconds: float) -> str:
    """Return a time span as people say it: `3 s`, `4 min`, `2 h 5 min`, `3 d 2 h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
