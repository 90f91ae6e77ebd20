"""The newest results and their history in `docs/benchmarks.md`, from the records of `tests/bench/run.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from textwrap import fill
from typing import Final

from generate.lists import COLUMNS
from generate.marked import replaced
from tests.bench.goals import BASE, ROWS
from tests.bench.history import Record
from tests.bench.report import disturbances, history, missed, results
from tests.bench.spark_report import is_spark
from tests.bench.spark_report import results as spark_results

NOTHING: Final = "Nothing has been recorded yet."


def renewed(text: str, records: Sequence[Record]) -> str:
    """The page with the results of these records, oldest first."""
    against_java = [record for record in records if record.base == BASE]
    text = replaced(text, "newest results", _newest(against_java) or NOTHING)
    text = replaced(text, "spark results", _spark(records) or NOTHING)
    return replaced(text, "history", _history(against_java) or NOTHING)


def _newest(records: Sequence[Record]) -> str:
    """Each case of its newest record; cases of one record stand together."""
    of_case = {case: record for record in records for case in record.cases}
    rows = [row for row in ROWS if row.case in of_case]
    parts = []
    for _, neighbours in groupby(rows, key=lambda row: id(of_case[row.case])):
        some = list(neighbours)
        record = of_case[some[0].case]
        cases = {row.case for row in some}
        parts.append(_wrapped(_introduction(record)))
        parts.append(results(record, some))
        parts.append(_list("Missed", missed(record, some)))
        disturbed = [one for one in disturbances(record) if one.partition(":")[0] in cases]
        parts.append(_list("Disturbed", disturbed))
    return "\n\n".join(part for part in parts if part)


def _spark(records: Sequence[Record]) -> str:
    """The newest values of each case, and the records that they come from."""
    of_case = {case: record for record in records if is_spark(record) for case in record.cases}
    some = {id(record): record for record in of_case.values()}
    heads = [_wrapped(_spark_introduction(record)) for record in some.values()]
    cases = {case: record.cases[case] for case, record in of_case.items()}
    return "\n\n".join([*heads, spark_results(cases)]) if cases else ""


def _spark_introduction(record: Record) -> str:
    machine, size = record.machine, record.size
    return (
        f"Commit `{record.commit}`, {record.date} UTC, {machine['cores']} cores, {machine['memoryGiB']} GiB, "
        f"Linux {machine['linux']}, Python {machine['python']}; {size['messages']:,} messages read and "
        f"exported, {size['sent']:,} sent, runs of each side: {size['runs']}."
    )


def _introduction(record: Record) -> str:
    machine, size = record.machine, record.size
    sides = "; ".join(f"`{name}` is {what}" for name, what in record.sides.items())
    return (
        f"Commit `{record.commit}`, {record.date} UTC, {machine['cores']} cores, {machine['memoryGiB']} GiB, "
        f"Linux {machine['linux']}, Python {machine['python']}; {size['rounds']} rounds, {size['seconds']:g} "
        f"s each run; {'; '.join(record.notes)}. Medians; in parentheses the least and the most of all "
        f"pairs. {sides}."
    )


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = (fill(line, COLUMNS, initial_indent="* ", subsequent_indent="  ", break_long_words=False,
                  break_on_hyphens=False) for line in lines)  # fmt: skip
    return "\n".join([f"{title}:", "", *items])


def _wrapped(text: str) -> str:
    return fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def _history(records: Sequence[Record]) -> str:
    tables = []
    for side, words in (("native", "With the native core"), ("python", "Without it")):
        if table := history(records, side):
            tables.append(f"{words}, ratio to Java:\n\n{table}")
    return "\n\n".join(tables)
