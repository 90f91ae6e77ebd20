"""Settings that brokers take while they run reach them without a restart, in an order that stops no sends.

A lower `minInSyncReplicas` is told at once, and before any broker goes; a higher one only when so many are in
sync that nothing stops for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import TellSettings
from brokerset_operator.plan import reasons, steps
from brokerset_operator.plan.facts import Broker, Facts, GroupFacts
from brokerset_operator.plan.steps import Steps
from brokerset_operator.resources.live_settings import BROKER_NAME, MINIMUM, OWNER_UID, differing
from brokerset_operator.resources.set_facts import owner_uid_of
from brokerset_operator.resources.settings_files import read_file

WHY: Final = "the manifest, or somebody, has changed them"


def keep_settings(facts: Facts) -> Steps:
    """Tell each broker that answers what its file says by now; a scale-in waits for the minimum."""
    files = {str(each["metadata"]["name"]): each for each in facts.objects if each["kind"] == "ConfigMap"}
    for group in facts.groups.values():
        if group.contested is None and not group.dropped:
            wanted = read_file(files.get(group.resource, {}))
            for broker in group.brokers.values():
                yield from _keep(facts, group, broker, wanted)


def _keep(facts: Facts, group: GroupFacts, broker: Broker, wanted: Mapping[str, str]) -> Steps:
    said = settings_of(facts, group, broker)
    if broker.pod is None or said is None:
        return
    changes = differing(said, wanted)
    minimum = changes.pop(MINIMUM, None)
    if minimum is not None:
        sent = _tell(facts, group, broker, {MINIMUM: minimum}, steps.Stage.MINIMUM)
        if _number(minimum) <= _number(said[MINIMUM]):
            yield from sent
        else:
            later = steps.GoesOn(
                reasons.CHANGING_SETTINGS,
                f"{group.name} gets {MINIMUM}={minimum} when nothing else is done to it, and every broker,"
                f" or more than {minimum}, are in sync",
            )
            yield steps.Unless(group.name, sent, (later,)) if is_enough(facts, group, minimum) else later
    if changes:
        yield from _tell(facts, group, broker, changes, steps.Stage.SETTINGS)


def settings_of(facts: Facts, group: GroupFacts, broker: Broker) -> Mapping[str, str] | None:
    """Return what a broker of a group said of its settings; None if it did not, or was another one."""
    observed = facts.observed
    pod = broker.pod
    said = observed.settings.get(pod.name) if pod is not None and not pod.terminating else None
    if said is None or said.get(BROKER_NAME) != group.name or said.get(OWNER_UID) != owner_uid_of(observed):
        return None
    return said


def minimum_of(facts: Facts, group: GroupFacts, broker: Broker | None) -> int | None:
    """Return the `minInSyncReplicas` that a broker runs with; None when it did not say it."""
    said = settings_of(facts, group, broker) if broker is not None else None
    return _number(said[MINIMUM]) if said is not None and MINIMUM in said else None


def too_strict(facts: Facts, group: GroupFacts) -> str | None:
    """Return why a broker must not go yet: one that stays would refuse sends for want of it.

    Brokers that do not answer are told when they do, or start with what their file says.
    """
    least = facts.manifest.min_in_sync_replicas
    strict = [
        broker.pod.name
        for broker in group.brokers.values()
        if broker.pod is not None and (minimum_of(facts, group, broker) or 0) > least
    ]
    return f"{', '.join(strict)} must hear of the lower minimum, {least}, first" if strict else None


def _tell(
    facts: Facts, group: GroupFacts, broker: Broker, changes: Mapping[str, str], stage: steps.Stage
) -> tuple[steps.Step, ...]:
    assert broker.pod is not None, "it has answered"
    sent = ", ".join(f"{name}={text}" for name, text in changes.items())
    ip = broker.pod.ip or ""
    host = f"[{ip}]" if ":" in ip else ip
    action = TellSettings(
        group=group.name,
        pod=broker.pod.name,
        address=f"{host}:{names.REMOTING_PORT}",
        owner_uid=owner_uid_of(facts.observed),
        settings=changes,
        why=WHY,
    )
    return steps.At(stage, action), steps.GoesOn(
        reasons.CHANGING_SETTINGS, f"{broker.pod.name} is told {sent}"
    )


def is_enough(facts: Facts, group: GroupFacts, minimum: str) -> bool:
    """Return whether a higher minimum stops nothing, and leaves one to spare if there ever will be one.

    What is being done to the group may make the in-sync set smaller for a while.
    """
    work, count, least = facts.work_of(group), len(group.living_in_sync), _number(minimum)
    whole = group.current == group.wanted == len(group.brokers) and all(
        broker.fenced or broker.settled for broker in group.brokers.values()
    )
    led = facts.led and group.master is not None
    quiet = work.replacing is None and work.leaving is None
    return led and quiet and (count > least or (count == least and whole))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
