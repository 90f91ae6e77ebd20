"""The status of a Subject, as the CRD declares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model.verdict import Verdict, condition, status_with
from brokerset_operator.ordered_subjects import reasons
from brokerset_operator.ordered_subjects.observed import newest, open_count, with_status
from brokerset_operator.ordered_subjects.plan import Progress
from brokerset_protocol.bodies.ordered import ConsumerGroupState, SubjectState
from brokerset_protocol.subject_words import PartitionStatus

GROUPS_SHOWN_MAX: Final = 64
"""Groups of consumers in a status; the CRD allows no more."""

NAME_LENGTH_MAX: Final = 127
"""Longest name in a status; an object that is invalid may have a longer one."""

KEPT: Final = ("generation", "partitions", "sealing", "route", "groups", "groupCount")
"""Fields that say what controllers agree on; they stay while nobody can be asked."""


def status_of(
    live: Mapping[str, Any],
    name: str,
    verdict: Verdict,
    moment: str,
    *,
    state: SubjectState | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What to write; `moment` is now, as the API writes it.

    `progress` is None when controllers were not asked: what they said before stays then.
    """
    before: Mapping[str, Any] = live.get("status") or {}
    found = {**status_with(live, verdict, moment), "subject": name[:NAME_LENGTH_MAX]}
    conditions: list[Mapping[str, Any]] = found["conditions"]
    if progress is not None:
        found |= {} if state is None else _agreed(state)
        scaling = progress.scaling, progress.reason, progress.message
        conditions.append(condition(live, reasons.SCALING, *scaling, moment))
    else:
        found |= {key: before[key] for key in KEPT if key in before}
        conditions += [one for one in before.get("conditions") or () if one.get("type") == reasons.SCALING]
    if verdict.refusal is not None:
        conditions.append(condition(live, reasons.REFUSED, True, verdict.reason, verdict.refusal, moment))
    return found


def _agreed(state: SubjectState) -> dict[str, Any]:
    groups = sorted(state.groups, key=lambda group: group.name)
    return {
        "generation": state.generation,
        "partitions": open_count(state),
        "sealing": len(with_status(state, PartitionStatus.SEALING)),
        "route": sorted({each.broker_group for each in newest(state)} or state.route),
        "groupCount": len(groups),
        "groups": [_group(group, state) for group in groups[:GROUPS_SHOWN_MAX]],
    }


def _group(group: ConsumerGroupState, state: SubjectState) -> dict[str, Any]:
    sealed = {each.partition_id for each in with_status(state, PartitionStatus.SEALED)}
    return {
        "name": group.name,
        "strategy": str(group.strategy),
        "members": len(group.members),
        "undrained": len(sealed.difference(group.drained)),
    }
