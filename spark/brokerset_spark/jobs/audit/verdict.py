"""The audit in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from brokerset_spark.jobs.audit.byte_checks import PairBytes
from brokerset_spark.jobs.audit.replica_map import ReplicaMap
from brokerset_spark.jobs.audit.truncations import Election
from brokerset_spark.jobs.report import Level, Report

_ORDER = ("damage", "bytes", "confirm", "truncate-point", "files", "identity", "layout")
"""What is told first: what costs messages."""


def verdict_of(
    maps: Sequence[ReplicaMap], report: Report, pairs: Sequence[PairBytes], elected: Sequence[Election]
) -> str:
    """What to think, and whom not to elect."""
    errors = [each for each in report.findings if each.level is Level.ERROR]
    if errors:
        worst = min(errors, key=lambda each: _ORDER.index(each.code) if each.code in _ORDER else len(_ORDER))
        names = {each.url: each.name for each in maps}
        wrong = sorted(
            {names[each.store] for each in errors if each.store in names and each.code != "epoch-start"}
        )
        about = f"{', '.join(wrong)} must not become master: " if wrong and len(wrong) < len(maps) else ""
        where = (
            f" (offset {worst.offset:,})"
            if worst.offset is not None and f"{worst.offset:,}" not in worst.text
            else ""
        )
        sentence = worst.text.split(". ")[0].rstrip(".")
        if about and len(wrong) == 1:
            sentence = sentence.removeprefix(f"{wrong[0]}: ")
        rest = len(errors) - 1
        more = f"; {rest} more error{'s' if rest > 1 else ''} below" if rest else ""
        return f"{about}{sentence}{where}{more}."
    if not maps:
        return "No replica was audited."
    if len(maps) == 1:
        only = maps[0]
        return f"{only.name} is sound from {only.first:,} to {only.bound:,}; nothing to compare it with."
    start, limit = max(pair.start for pair in pairs), min(pair.limit for pair in pairs)
    who = "Both" if len(maps) == 2 else f"All {len(maps)}"
    sound = f"{who} replicas hold the same bytes from {start:,} to {max(start, limit):,}"
    losers = [
        maps[each.candidate].name
        for each in elected
        if each.lost_from is not None and not each.may_have_grown
    ]
    if losers:
        named = ", ".join(losers)
        verb = "lack" if len(losers) > 1 else "lacks"
        return f"{sound}; {named} {verb} confirmed messages, and must not be elected."
    if report.counters.get("findings.warning"):
        return f"{sound}; {report.counters['findings.warning']} warning(s) below."
    return f"{sound}; no confirmed message would be lost whoever becomes master."
