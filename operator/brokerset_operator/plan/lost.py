"""Rule 8: an id whose volume is gone is forgotten by the controllers."""

from __future__ import annotations

from typing import Final

from brokerset_operator.model.actions import CleanBroker
from brokerset_operator.plan.draft import Draft
from brokerset_operator.plan.facts import DEAD, GroupFacts

CERTAIN_SECONDS: Final = 60.0
"""How long an id must look lost: controllers, pods and claims are not seen at the same moment."""


def forget_lost(draft: Draft, group: GroupFacts) -> None:
    """Clean ids that are on no volume any more, once that has been so for a while.

    Every broker that is wanted must run, with its id known: then each id is on one of their volumes, on a
    claim that was kept after scale-in, or nowhere.
    """
    lost = _lost(draft, group)
    work = draft.work_of(group)
    known = {broker_id: since for broker_id, since in work.orphans.items() if broker_id in lost}
    for broker_id in lost:
        since = known.setdefault(broker_id, draft.facts.now)
        if draft.facts.now - since >= CERTAIN_SECONDS:
            draft.act(
                CleanBroker(group.name, broker_id, "its volume is gone, and another broker has its place")
            )
        draft.waits(f"{group.name}/{broker_id} seems to have lost its volume")
    if known != dict(work.orphans):
        draft.remember(group, orphans=dict(sorted(known.items())))


def _lost(draft: Draft, group: GroupFacts) -> list[int]:
    state, work = group.state, draft.work_of(group)
    if (
        state is None
        or group.contested is not None
        or not draft.facts.controllers.led
        or group.master is None
    ):
        return []
    if group.current != group.wanted or work.leaving is not None:
        return []
    if any(not broker.settled for broker in group.brokers.values()) or len(group.brokers) != group.wanted:
        return []
    here = {broker.broker_id for broker in group.brokers.values()}
    kept = [ordinal for ordinal in group.claims if ordinal >= group.wanted]
    if any(ordinal not in work.ids for ordinal in kept):
        return []  # a volume with an id that nobody remembers
    here |= {work.ids[ordinal] for ordinal in kept}
    return [
        each.broker_id
        for each in state.replicas
        if each.standing == DEAD
        and each.broker_id not in here
        and each.broker_id not in state.sync_state_set
        and each.broker_id != state.master_id
    ]
