"""From acknowledgements to measurements: how long nobody acknowledged, and what runs have in common."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerset_bench.event_log import Broken, MessageVerdict
from brokerset_bench.history import Ack, Verdict


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the sorted values lie (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latency_summary(values: Sequence[float]) -> dict[str, float]:
    """Return the latencies that matter, in milliseconds; empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    shares = (("p50Ms", 0.5), ("p99Ms", 0.99), ("p999Ms", 0.999), ("maxMs", 1.0))
    return {name: round(percentile(ordered, share), 3) for name, share in shares}


def first_takeover(acks: Iterable[Ack], fault: float, old: str) -> float | None:
    """When another broker acknowledged first after the fault; None when none ever did."""
    return next((ack.t for ack in acks if ack.t > fault and ack.broker != old), None)


def takeover_gap(acks: Sequence[Ack], fault: float, old: str) -> float | None:
    """Seconds from the last acknowledgement by the old master to the first one by another.

    Acknowledgements by the old one that came after that first one do not count: it may not know yet, or it
    passes messages on. None when no other broker ever acknowledged, or the old one never had.
    """
    first = first_takeover(acks, fault, old)
    if first is None:
        return None
    before = [ack.t for ack in acks if ack.broker == old and ack.t <= first]
    return first - before[-1] if before else None


def pause_after_takeover(acks: Sequence[Ack], fault: float, old: str, end: float) -> float | None:
    """Longest time in seconds without acknowledgement from another master's first one until `end`.

    A takeover that acknowledges once and then stalls has a short gap. None when no other broker acknowledged.
    """
    first = first_takeover(acks, fault, old)
    return None if first is None else longest_pause(acks, first, end)


def longest_pause(acks: Sequence[Ack], begin: float, end: float) -> float:
    """Longest time in seconds without any acknowledgement that overlaps the time from `begin` to `end`."""
    last = max((ack.t for ack in acks if ack.t <= begin), default=begin)
    longest = 0.0
    for ack in acks:
        if ack.t <= begin:
            continue
        if last >= end:
            break
        longest = max(longest, ack.t - last)
        last = ack.t
    return max(longest, end - last)


@dataclass(frozen=True, slots=True)
class RunResult:
    """One fault, and what it did."""

    gap: float | None
    """Seconds without acknowledgement; None when nobody took over in time."""

    verdict: Verdict
    failed: int
    """Sends that failed at the master in use."""

    failed_at_old: int
    """Sends that failed at masters of before."""

    reasons: dict[str, int]
    whole_after: float | None
    """Seconds from the end of the load until all brokers were in sync and had equal logs; None: not in
    time."""

    later_pause: float | None = None
    """Longest time in seconds without acknowledgement after another master's first one, until the load ended;
    None when nobody took over."""

    switch_pause_ms: int | None = None
    """What a master said about how long it had held sends (planned switchover)."""

    messages: Mapping[str, MessageVerdict] = field(default_factory=dict)
    """What became of transactions and timers, by subject, where there were any."""

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return self.verdict.ok and all(verdict.ok for verdict in self.messages.values())


@dataclass(slots=True)
class KindResult:
    """All runs of one kind of fault."""

    runs: list[RunResult] = field(default_factory=list)
    problem: str = ""
    """Why there are fewer runs than were asked for."""

    not_whole: str = ""
    """What was missing after the last run whose brokers were not all in sync again in time."""

    @property
    def broken(self) -> bool:
        """Whether a promise was broken, a run could not be ended, or a group was not whole again."""
        return bool(self.problem or self.not_whole) or any(not run.ok for run in self.runs)

    def to_object(self) -> dict[str, Any]:
        """Return the measurements for JSON; times in milliseconds."""
        gaps = sorted(run.gap * 1000 for run in self.runs if run.gap is not None)
        whole = [run.whole_after for run in self.runs if run.whole_after is not None]
        later = [run.later_pause for run in self.runs if run.later_pause is not None]
        violations: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        for run in self.runs:
            violations.update(run.verdict.violations)
            for subject, verdict in run.messages.items():
                violations.update({f"{subject} {how}": count for how, count in verdict.violations.items()})
            reasons.update(run.reasons)
        made: dict[str, Any] = {
            "runs": len(self.runs),
            "unserved": sum(run.gap is None for run in self.runs),
            "p50Ms": round(percentile(gaps, 0.5), 1) if gaps else None,
            "p99Ms": round(percentile(gaps, 0.99), 1) if gaps else None,
            "maxMs": round(gaps[-1], 1) if gaps else None,
            "laterPauseMsMax": round(max(later) * 1000, 1) if later else None,
            "lost": sum(run.verdict.lost for run in self.runs),
            "duplicates": sum(run.verdict.duplicates for run in self.runs),
            "failedSends": sum(run.failed for run in self.runs),
            "failedAtOldMaster": sum(run.failed_at_old for run in self.runs),
            "acked": sum(run.verdict.acked for run in self.runs),
            "violations": dict(sorted(violations.items())),
            "texts": self._texts(),
            "reasons": dict(reasons.most_common(10)),
            "gapsMs": [None if run.gap is None else round(run.gap * 1000, 1) for run in self.runs],
            "wholeAfterMsMax": round(max(whole, default=0.0) * 1000),
            "neverWhole": len(self.runs) - len(whole),
        }
        pauses = [run.switch_pause_ms for run in self.runs if run.switch_pause_ms is not None]
        if pauses:
            made["toldPauseMsMax"] = max(pauses)
        for subject in sorted({subject for run in self.runs for subject in run.messages}):
            made[subject] = message_summary(
                [run.messages[subject] for run in self.runs if subject in run.messages]
            )
        if self.problem or self.not_whole:
            made["problem"] = self.problem or self.not_whole
        return made

    def _texts(self) -> list[str]:
        """A few violations in words, the first ones of each run."""
        return [
            texts[0]
            for run in self.runs
            for found in (run.verdict.texts, *(verdict.texts for verdict in run.messages.values()))
            for _, texts in sorted(found.items())
            if texts
        ][:10]


def message_summary(verdicts: Sequence[MessageVerdict]) -> dict[str, Any]:
    """What became of transactions or timers in several runs: counts, broken promises by kind, lateness."""
    counts: Counter[str] = Counter()
    violations: Counter[str] = Counter()
    for verdict in verdicts:
        counts.update(verdict.counts)
        violations.update(verdict.violations)
    late = sorted(value * 1000 for verdict in verdicts for value in verdict.lateness)
    made: dict[str, Any] = {
        **dict(sorted(counts.items())),
        **{how.value: violations[how.value] for how in Broken},
        "violations": sum(violations.values()),
    }
    if late:
        made["lateP50Ms"], made["lateP99Ms"] = round(percentile(late, 0.5)), round(percentile(late, 0.99))
        made["lateMaxMs"] = round(late[-1])
    return made
