"""Results as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.bench.goals import BASE, FLOOR, ROWS, Judged, Row, judged
from tests.bench.history import Record
from tests.bench.ratios import middle, sparkline

from brokerset_rig.measuring import markdown, shown

VERDICTS = {True: "", False: " **missed**", None: ""}
RECORDS_SHOWN = 6
"""Columns of the history; more do not fit on a page."""


def cell(found: Judged | None, unit: str) -> tuple[str, str]:
    """A measurement and its ratio with its spread."""
    if found is None:
        return "", ""
    value = shown(found.value, unit)
    if found.ratio is None:
        return value, ""
    ratio = found.ratio
    spread = f" ({ratio.least:.2f}–{ratio.most:.2f})" if ratio.pairs > 1 else ""
    return value, f"{ratio.median:.2f} ×{spread}"


def row_cells(row: Row, record: Record, sides: Sequence[str]) -> list[str] | None:
    """What a record has of a row; None when nothing was measured."""
    case = record.cases.get(row.case, {})
    base = judged(row, record.base, record.base, case)
    cells = [row.label, cell(base, row.unit)[0]]
    measured = base is not None
    for side in sides:
        found = judged(row, side, record.base, case)
        measured |= found is not None
        value, ratio = cell(found, row.unit)
        goal = row.goal(side).text() if record.base == BASE else ""
        missed = VERDICTS[found.reached] if found is not None and goal else ""
        cells += [value, f"{ratio}{missed}", *([goal] if record.base == BASE else [])]
    floor = middle(case.get(row.metric, {}).get(FLOOR, ()))
    return [*cells, shown(floor, row.unit) if floor is not None else ""] if measured else None


def results(record: Record, rows: Iterable[Row] = ROWS) -> str:
    """Every row of one record."""
    sides = [side for side in record.sides if side != record.base]
    columns = ["what", record.base]
    for side in sides:
        columns += [side, f"{side} / {record.base}", *(["goal"] if record.base == BASE else [])]
    columns.append(FLOOR)
    found = [cells for row in rows if (cells := row_cells(row, record, sides)) is not None]
    texts = [number for number, name in enumerate(columns) if name in ("what", "goal")]
    return markdown(columns, found, texts)


def missed(record: Record, rows: Iterable[Row] = ROWS) -> list[str]:
    """Goals that a record does not reach, one phrase each."""
    found = []
    for row in rows:
        for side in record.sides:
            one = judged(row, side, record.base, record.cases.get(row.case, {}))
            if one is not None and one.reached is False:
                value, ratio = cell(one, row.unit)
                share = f"{one.floor:.2f} of the floor" if one.floor is not None else ""
                said = ", ".join(part for part in (ratio, value, share) if part)
                label = labelled(row)
                found.append(f"{label}, {side}: {said}; goal {row.goal(side).text()}")
    return found


def labelled(row: Row) -> str:
    """Its label, with that of its case where it is a continuation."""
    if not row.label.startswith("…"):
        return row.label
    first = next(one for one in ROWS if one.case == row.case)
    return f"{first.label.removesuffix(', p50')}{row.label.replace('… ', ', ')}"


def disturbances(record: Record) -> list[str]:
    """What disturbed which case."""
    return [f"{case}: {'; '.join(said)}" for case, said in record.remarks.items() if said]


def history(records: Sequence[Record], side: str, rows: Iterable[Row] = ROWS) -> str:
    """One row for each measurement: its ratio to Java in the newest records of each commit; empty without records."""
    against = [record for record in records if record.base == BASE and side in record.sides]
    newest = newest_of_commits(against)
    table = []
    for row in rows:
        ratios: list[float | None] = []
        for commit in newest:
            ones = [judged(row, side, BASE, record.cases.get(row.case, {})) for record in commit]
            known = [one.ratio.median for one in ones if one is not None and one.ratio is not None]
            ratios.append(known[-1] if known else None)
        if any(ratio is not None for ratio in ratios):
            line = sparkline([ratio for ratio in ratios if ratio is not None])
            shown_ratios = [
                f"{ratio:.2f} ×" if ratio is not None else "" for ratio in ratios[-RECORDS_SHOWN:]
            ]
            table.append((labelled(row), *shown_ratios, line))
    if not table:
        return ""
    columns = [f"`{commit[-1].commit}`, {commit[-1].date[:10]}" for commit in newest[-RECORDS_SHOWN:]]
    return markdown(("what", *columns, ""), table, (0, len(columns) + 1))


def newest_of_commits(records: Sequence[Record]) -> list[list[Record]]:
    """Records by commit, in the order in which commits were first measured."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.commit, []).append(record)
    return list(found.values())
