"""Results of runs, one JSON line for each, kept in the repository: `docs/benchmarks/history.jsonl`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from brokerset_rig import stack

FILE: Final = Path("docs/benchmarks/history.jsonl")
"""Below the root."""

Values: TypeAlias = dict[str, dict[str, list[float | None]]]
"""Metric -> side -> a value for each round."""


@dataclass(frozen=True, slots=True)
class Record:
    """One run."""

    commit: str
    """Short; with `+` behind it when files had been changed since."""

    date: str
    machine: Mapping[str, Any]
    size: Mapping[str, Any]
    sides: Mapping[str, str]
    """By name, what it is."""

    base: str
    """The side that ratios are to."""

    notes: Sequence[str]
    """How the machine was set, and what was refused."""

    cases: dict[str, Values] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)
    """By case, what disturbed it."""

    def add(self, case: str, metric: str, side: str, value: float | None) -> None:
        """The value of one more round."""
        sides = self.cases.setdefault(case, {}).setdefault(metric, {})
        sides.setdefault(side, []).append(None if value is None else float(f"{value:.4g}"))


def to_line(record: Record) -> str:
    """As it stands in the file."""
    return json.dumps(asdict(record), ensure_ascii=False, separators=(",", ":")) + "\n"


def from_line(line: str) -> Record:
    """Raises `ValueError` or `TypeError` for what `to_line` does not make."""
    return Record(**json.loads(line))


def read(path: Path) -> list[Record]:
    """All records, oldest first; none when there is no file. Raises `ValueError` that names the line."""
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            records.append(from_line(line))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: {error}; correct or delete it") from error
    return records


def append(path: Path, record: Record) -> None:
    """Add one record at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(to_line(record))


def commit_of(checkout: Path) -> str:
    """The short name of the commit that is checked out, with `+` when files have been changed; empty without git.

    Documents and the tests of properties are no part of what is measured.
    """
    try:
        named = git(checkout, "rev-parse", "--short=9", "HEAD")
        changed = git(
            checkout, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs", ":!tests/property"
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{named}{'+' if changed else ''}"


def git(checkout: Path, *arguments: str) -> str:
    """What git answers."""
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def machine_facts() -> dict[str, Any]:
    """Of this machine, what matters for figures; no names."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {"cores": os.cpu_count(), "memoryGiB": round(memory), "linux": platform.release().partition("-")[0],
            "architecture": platform.machine(), "python": platform.python_version()}  # fmt: skip


def new_record(size: Mapping[str, Any], sides: Mapping[str, str], base: str, notes: Sequence[str]) -> Record:
    """An empty record of this checkout, now."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    return Record(commit_of(stack.ROOT), now, machine_facts(), size, sides, base, notes)
