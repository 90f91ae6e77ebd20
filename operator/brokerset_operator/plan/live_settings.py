"""Settings that brokers take while they run reach them without a restart, in an order that stops no sends.

A lower `minInSyncReplicas` is told at once, and before any broker goes; a higher one only when so many are in
sync that nothing stops for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import Fence, SwitchOver, TellSettings
from brokerset_operator.plan import reasons
from brokerset_operator.plan.draft import Draft
from brokerset_operator.plan.facts import Broker, GroupFacts
from brokerset_operator.resources.live_settings import BROKER_NAME, MINIMUM, OWNER_UID, differing
from brokerset_operator.resources.set_facts import owner_uid_of

WHY: Final = "the manifest, or somebody, has changed them"


def keep_settings(draft: Draft, group: GroupFacts, wanted: Mapping[str, str]) -> None:
    """Tell each broker that answers what its file says by now; `wanted` is that file.

    What may be refused goes last, the minimum first of that: a scale-in waits for it.
    """
    if group.contested is not None or group.dropped:
        return
    minimums, others = [], []
    for broker in group.brokers.values():
        said = settings_of(draft, group, broker)
        if broker.pod is None or said is None:
            continue
        changes = differing(said, wanted)
        minimum = changes.pop(MINIMUM, None)
        if minimum is not None and (
            _number(minimum) <= _number(said[MINIMUM]) or _enough(draft, group, minimum)
        ):
            minimums.append(_tell(draft, group, broker, {MINIMUM: minimum}))
        if changes:
            others.append(_tell(draft, group, broker, changes))
    draft.last = [*minimums, *draft.last, *others]


def settings_of(draft: Draft, group: GroupFacts, broker: Broker) -> Mapping[str, str] | None:
    """Return what a broker of a group said of its settings; None if it did not, or was another one."""
    observed = draft.facts.observed
    pod = broker.pod
    said = observed.settings.get(pod.name) if pod is not None and not pod.terminating else None
    if said is None or said.get(BROKER_NAME) != group.name or said.get(OWNER_UID) != owner_uid_of(observed):
        return None
    return said


def minimum_of(draft: Draft, group: GroupFacts, broker: Broker | None) -> int | None:
    """Return the `minInSyncReplicas` that a broker runs with; None when it did not say it."""
    said = settings_of(draft, group, broker) if broker is not None else None
    return _number(said[MINIMUM]) if said is not None and MINIMUM in said else None


def too_strict(draft: Draft, group: GroupFacts) -> str | None:
    """Return why a broker must not go yet: one that stays would refuse sends for want of it.

    Brokers that do not answer are told when they do, or start with what their file says.
    """
    least = draft.facts.manifest.min_in_sync_replicas
    strict = [
        broker.pod.name
        for broker in group.brokers.values()
        if broker.pod is not None and (minimum_of(draft, group, broker) or 0) > least
    ]
    return f"{', '.join(strict)} must hear of the lower minimum, {least}, first" if strict else None


def _tell(draft: Draft, group: GroupFacts, broker: Broker, changes: Mapping[str, str]) -> TellSettings:
    assert broker.pod is not None, "it has answered"
    told = ", ".join(f"{name}={text}" for name, text in changes.items())
    draft.goes_on(reasons.CHANGING_SETTINGS, f"{broker.pod.name} is told {told}")
    ip = broker.pod.ip or ""
    host = f"[{ip}]" if ":" in ip else ip
    return TellSettings(
        group=group.name,
        pod=broker.pod.name,
        address=f"{host}:{names.REMOTING_PORT}",
        owner_uid=owner_uid_of(draft.facts.observed),
        settings=changes,
        why=WHY,
    )


def _enough(draft: Draft, group: GroupFacts, minimum: str) -> bool:
    """Whether a higher minimum stops nothing, and leaves one to spare if there ever will be one.

    A switch-over, and whatever else is being done to the group, may make the in-sync set smaller for a while.
    """
    work, count, least = draft.work_of(group), len(group.living_in_sync), _number(minimum)
    disturbed = any(
        isinstance(each, SwitchOver | Fence) and each.group == group.name for each in draft.actions
    )
    quiet = work.replacing is None and work.leaving is None and not disturbed
    whole = group.current == group.wanted == len(group.brokers) and all(
        broker.fenced or broker.settled for broker in group.brokers.values()
    )
    led = draft.facts.controllers.led and group.master is not None
    if led and quiet and (count > least or (count == least and whole)):
        return True
    draft.goes_on(
        reasons.CHANGING_SETTINGS,
        f"{group.name} gets {MINIMUM}={minimum} when nothing else is done to it, and every broker, or more"
        f" than {minimum}, are in sync",
    )
    return False


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
