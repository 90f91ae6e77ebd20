"""The `-master` Services: masters lead them to themselves; what stays wrong is corrected."""

from __future__ import annotations

from typing import Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import PointMasterService
from brokerset_operator.plan.draft import BUSY_SECONDS, Draft
from brokerset_operator.plan.facts import GroupFacts, slice_target

ASTRAY_SECONDS: Final = 10.0
"""How long a master has to lead its Service to itself, which takes it less than a second."""


def correct_master_service(draft: Draft, group: GroupFacts) -> None:
    """Point the Service to the master when it has led elsewhere for too long; never to an older epoch."""
    service = names.master_service(draft.facts.meta.name, group.index)
    master, since = group.master, draft.work_of(group).astray_since
    if group.state is None or master is None or master.pod is None or master.pod.ip is None:
        return
    if not draft.facts.controllers.led or group.contested is not None or master.pod.terminating:
        return
    address, epoch = slice_target(draft.facts.observed, service)
    if (address == master.pod.ip and epoch == group.state.master_epoch) or epoch > group.state.master_epoch:
        if since is not None:
            draft.remember(group, astray_since=None)
        return
    if since is None:
        draft.remember(group, astray_since=draft.facts.now)
    elif draft.facts.now - since > ASTRAY_SECONDS:
        draft.act(PointMasterService(service, master.pod.name, master.pod.ip, group.state.master_epoch))
    draft.waits(f"Service {service} does not lead to the master of {group.name}", BUSY_SECONDS)
