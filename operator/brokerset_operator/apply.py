"""Carries out a plan: actions in their order, then the status; after the first that fails only the status.

Every action is safe on its own, so stopping between two of them is what a crash would do, too: the next
reconcile sees what is and goes on. The status is written as the plan has it also when an action failed: it
tells what is going to be done, one reconcile before that is done, and never what this reconcile has done.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError
from brokerset_kube import kinds
from brokerset_kube.client import KubeClient, Object
from brokerset_kube.errors import KubeError, NotFound
from brokerset_kube.kinds import Kind, kind_named, kind_of
from brokerset_kube.patches import covers, digest, merge_patch, substance
from brokerset_operator.brokers_view import Brokers, BrokerSilent
from brokerset_operator.certificate_secrets import SecretOvertaken, issue_certificate, write_authority
from brokerset_operator.controllers_view import QUERY_SECONDS
from brokerset_operator.events import Events
from brokerset_operator.ledger_view import LedgerAdmin
from brokerset_operator.member_passwords import change_passwords, end_former_passwords
from brokerset_operator.model import actions, names
from brokerset_operator.model.actions import Action, Plan
from brokerset_operator.model.observed import Observed
from brokerset_operator.observe import LISTED, Seen
from brokerset_operator.reconcile_queue import RetryAfter
from brokerset_operator.resources.live_settings import BROKER_NAME, OWNER_UID
from brokerset_operator.store_jobs.labels import AUDITED_POD
from brokerset_operator.store_jobs.outcomes import has_ended
from brokerset_operator.user_requests import UserRefused
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

ACTION_FAILED: Final = "ActionFailed"
"""Condition that is there while something fails that is to be done; its reason is the kind of failure."""

SETTLED_MAX: Final = 50_000
"""Objects that are remembered as never looking just like what was sent; the oldest is forgotten first."""

MESSAGE_LENGTH_MAX: Final = 2048
"""Longest text of a condition."""

_FIELDS: Final = {kind: field_name for field_name, kind in LISTED.items()}


class ActionFailed(Exception):
    """An action was not carried out; `reason` is one word, for the condition."""

    def __init__(self, action: Action, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{type(action).__name__}: {message}")
        self.action = action
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        """Seconds to wait at least."""


class NotLeading(RetryAfter):
    """This process leads no more, so it changes nothing."""


@dataclass(slots=True)
class Settled:
    """Objects that the API server keeps in another form than was sent, though nothing is amiss."""

    _digests: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def is_settled(self, live: Mapping[str, Any], sent: str) -> bool:
        """Whether the object is what it was when `sent` (a hash) had just been applied to it."""
        return self._digests.get(_uid(live)) == _combined(live, sent)

    def remember(self, live: Mapping[str, Any], sent: str) -> None:
        """The object as the server answered when `sent` was applied."""
        self._digests[_uid(live)] = _combined(live, sent)
        self._digests.move_to_end(_uid(live))
        if len(self._digests) > SETTLED_MAX:
            self._digests.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What carrying out needs; one for the process."""

    client: KubeClient
    events: Events
    clock: Clock
    leads: Callable[[], bool]
    """Asked before everything that changes something."""

    settled: Settled = field(default_factory=Settled)
    installation: str = ""
    """Name of this installation of the operator, see `plan/owner`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a plan."""

    requeue_seconds: float
    status: Mapping[str, Any]
    """As it is now."""

    failure: ActionFailed | None = None
    status_version: str | None = None
    """Resource version of the BrokerSet after its status was written; None when it was not."""


async def carry_out(plan: Plan, seen: Seen, means: Means) -> Outcome:
    """Do what the plan says and write the status.

    Raises `NotLeading`, or a `KubeError` when the status cannot be written; a failed action is part of the
    outcome.
    """
    failure: ActionFailed | None = None
    for action in plan.actions:
        if not means.leads():
            raise NotLeading("this operator leads no more")
        try:
            await _carry_out(action, seen, means)
        except ActionFailed as error:
            failure = error
            break
    status = plan.status if failure is None else with_failure(plan.status, seen.observed, failure)
    version = await write_status(kinds.BROKER_SET, seen.live, status, means)
    return Outcome(plan.requeue_seconds, status, failure, version)


async def write_status(
    kind: Kind, live: Mapping[str, Any], status: Mapping[str, Any], means: Means
) -> str | None:
    """Make the status of an object what is given, if it is not; returns the new resource version.

    Nothing is written over a newer object: what was decided may not fit it any more.
    """
    patch = merge_patch(live.get("status") or {}, status)
    if not patch:
        return None
    if not means.leads():
        raise NotLeading("this operator leads no more")
    metadata = live["metadata"]
    try:
        written = await means.client.merge_patch(
            kind,
            metadata["name"],
            metadata["namespace"],
            {"status": patch},
            subresource="status",
            resource_version=metadata["resourceVersion"],
        )
    except NotFound:
        return None
    return str(written["metadata"]["resourceVersion"])


def with_failure(status: Mapping[str, Any], observed: Observed, failure: ActionFailed) -> dict[str, Any]:
    """The status of a reconcile that was not carried out to its end, with a condition that says so."""
    before: Mapping[str, Any] = next(
        (one for one in observed.status.get("conditions") or () if one.get("type") == ACTION_FAILED), {}
    )
    now = datetime.fromtimestamp(int(observed.now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": ACTION_FAILED,
        "status": "True",
        "observedGeneration": observed.meta.generation,
        "reason": failure.reason,
        "message": str(failure)[:MESSAGE_LENGTH_MAX],
        "lastTransitionTime": before.get("lastTransitionTime") or now,
    }
    kept = [one for one in status.get("conditions") or () if one.get("type") != ACTION_FAILED]
    return {**status, "conditions": [*kept, condition]}


async def _carry_out(action: Action, seen: Seen, means: Means) -> None:
    """Do one thing. Raises `ActionFailed`."""
    try:
        match action:
            case actions.ApplyObject():
                await _apply(action, seen.observed, means)
            case actions.EmitEvent():
                await means.events.emit(seen.live, action.reason, action.message, warning=action.warning)
            case actions.DeletePod():
                await _delete_pod(action, seen, means)
            case actions.WriteAuthority():
                await write_authority(means.client, seen.observed.meta, action, seen.observed.now)
            case actions.IssueCertificate():
                await issue_certificate(means.client, seen.observed.meta, action, seen.observed.now)
            case actions.DeleteObject() | actions.ResizeClaim() | actions.PointMasterService():
                await _change_object(action, seen.observed, means)
            case actions.ChangePasswords():
                await change_passwords(seen.signing, seen.view, action.kept_seconds)
            case actions.EndFormerPasswords():
                await end_former_passwords(seen.signing, seen.view)
            case actions.SetPermission():
                await _set_permission(action, seen)
            case actions.TellSettings():
                await _tell_settings(action, seen)
            case actions.SwitchOver():
                await _switch_over(action, seen)
            case _:
                await _ask_controllers(action, seen)
    except KubeError as error:
        raise ActionFailed(action, error.reason, str(error), error.retry_after) from error
    except SecretOvertaken as error:
        raise ActionFailed(action, "Overtaken", str(error)) from error
    except BrokerSilent as error:
        raise ActionFailed(action, "BrokerSilent", str(error)) from error
    except (ClientError, UserRefused) as error:
        raise ActionFailed(action, "Refused", str(error)) from error
    except TimeoutError as error:
        raise ActionFailed(action, "TimedOut", "no answer in time; whether it was done is unknown") from error


# -- objects ------------------------------------------------------------------------------------------------


async def _apply(action: actions.ApplyObject, observed: Observed, means: Means) -> None:
    """Send an object that differs, unless it was sent and is what the server makes of it."""
    manifest = action.manifest
    sent = digest(manifest)
    live = _live(observed, manifest)
    if live is not None and means.settled.is_settled(live, sent):
        return
    answer = await means.client.apply(dict(manifest))
    log.info(
        "applied",
        set=f"{observed.meta.namespace}/{observed.meta.name}",
        object=f"{manifest['kind']}/{manifest['metadata']['name']}",
        new=live is None,
    )
    if not covers(answer, manifest):
        means.settled.remember(answer, sent)


def _live(observed: Observed, manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    kind = kind_of(manifest)
    name = manifest["metadata"]["name"]
    field_name = _FIELDS.get(kind)
    if field_name is None:
        return observed.other.get(f"{kind.kind}/{name}")
    found: Mapping[str, Mapping[str, Any]] = getattr(observed, field_name)
    return found.get(name)


def _annotation(live: Mapping[str, Any], name: str) -> str | None:
    found: str | None = (live["metadata"].get("annotations") or {}).get(name)
    return found


async def _delete_pod(action: actions.DeletePod, seen: Seen, means: Means) -> None:
    """Delete a pod, if its group is still in the master epoch that this was decided on."""
    namespace = seen.observed.meta.namespace
    await _end_audits_of(action.name, namespace, means)
    if action.group is not None and action.epoch is not None:
        async with _who_tells_groups(action, seen) as admin:
            await _same_epoch(admin, action, action.group, action.epoch)
    await means.client.delete(
        kinds.POD, action.name, namespace, uid=action.uid, grace_seconds=0 if action.force else None
    )
    log.info(
        "pod deleted",
        set=f"{namespace}/{seen.observed.meta.name}",
        pod=action.name,
        reason=action.why,
        force=action.force,
    )


async def _end_audits_of(pod: str, namespace: str, means: Means) -> None:
    """End Jobs that read a broker's volume: on another node the broker would wait for them.

    Those that have ended use it no more, and their logs may tell why they failed.
    """
    listing = await means.client.list(kinds.JOB, namespace, labels=f"{AUDITED_POD}={pod}")
    for job in listing.items:
        metadata = job["metadata"]
        if not metadata.get("deletionTimestamp") and not has_ended(job):
            await means.client.delete(kinds.JOB, metadata["name"], namespace, uid=metadata["uid"])
            log.info("job ended", job=f"{namespace}/{metadata['name']}", reason=f"{pod} is replaced")


async def _change_object(
    action: actions.DeleteObject | actions.ResizeClaim | actions.PointMasterService,
    observed: Observed,
    means: Means,
) -> None:
    namespace = observed.meta.namespace
    logger = log.bind(set=f"{namespace}/{observed.meta.name}")
    match action:
        case actions.DeleteObject(ref, why, orphan):
            kind = kind_named(ref.api_version, ref.kind)
            await means.client.delete(kind, ref.name, namespace, uid=ref.uid, orphan=orphan)
            logger.info("deleted", object=f"{ref.kind}/{ref.name}", reason=why, orphan=orphan)
        case actions.ResizeClaim(name, size):
            await means.client.merge_patch(
                kinds.CLAIM, name, namespace, {"spec": {"resources": {"requests": {"storage": size}}}}
            )
            logger.info("volume grows", claim=name, size=size)
        case actions.PointMasterService():
            if await point_master_service(means.client, namespace, action):
                logger.info(
                    "master service corrected", service=action.service, pod=action.pod, epoch=action.epoch
                )


async def point_master_service(
    client: KubeClient, namespace: str, action: actions.PointMasterService
) -> bool:
    """Let a group's `-master` Service lead to a pod, unless it knows a later epoch; True if it was changed.

    The master itself does the same; whoever comes second finds the object changed and observes again.
    """
    live = await client.get(kinds.ENDPOINT_SLICE, action.service, namespace)
    known = _annotation(live, names.EPOCH_ANNOTATION)
    if known is not None and known.isdecimal() and int(known) > action.epoch:
        return False
    endpoints = [
        {
            "addresses": [action.pod_ip],
            "conditions": {"ready": True},
            "targetRef": {"kind": "Pod", "name": action.pod, "namespace": namespace},
        }
    ]
    patch: Object = {
        "metadata": {"annotations": {names.EPOCH_ANNOTATION: str(action.epoch)}},
        "endpoints": endpoints,
    }
    await client.merge_patch(
        kinds.ENDPOINT_SLICE,
        action.service,
        namespace,
        patch,
        resource_version=live["metadata"]["resourceVersion"],
    )
    return True


# -- controllers and brokers --------------------------------------------------------------------------------


async def _set_permission(action: actions.SetPermission, seen: Seen) -> None:
    group = _group(action, seen.observed)
    living = [replica for replica in group.replicas if replica.standing == "alive" and replica.address]
    async with Brokers(seen.view.connecting) as brokers:
        for replica in living:
            await brokers.set_permission(replica.address, action.permission)
    log.info("permission set", group=action.group, permission=action.permission, reason=action.why)


async def _tell_settings(action: actions.TellSettings, seen: Seen) -> None:
    observed = seen.observed
    async with Brokers(seen.view.connecting) as brokers:
        said = await brokers.settings(action.address)
        if (said.get(BROKER_NAME), said.get(OWNER_UID)) != (action.group, action.owner_uid):
            raise ActionFailed(action, "Overtaken", f"{action.address} is not {action.pod}'s any more")
        await brokers.change_settings(action.address, action.settings)
    log.info(
        "settings told",
        set=f"{observed.meta.namespace}/{observed.meta.name}",
        pod=action.pod,
        settings=dict(action.settings),
        reason=action.why,
    )


async def _switch_over(action: actions.SwitchOver, seen: Seen) -> None:
    async with _who_tells_groups(action, seen) as admin:
        await _same_epoch(admin, action, action.group, action.epoch)
        answer = await admin.switch_over(action.group, action.to_broker_id)
    log.info(
        "switched over",
        set=f"{seen.observed.meta.namespace}/{seen.observed.meta.name}",
        group=action.group,
        master=answer.master_broker_id,
        pause_ms=answer.pause_ms,
        reason=action.why,
    )


async def _ask_controllers(action: Action, seen: Seen) -> None:
    logger = log.bind(set=f"{seen.observed.meta.namespace}/{seen.observed.meta.name}")
    async with _controllers(action, seen) as admin:
        match action:
            case actions.Fence(group, broker_id, fenced, why, force):
                await admin.fence(group, broker_id, fenced=fenced, force=force)
                logger.info("fenced" if fenced else "unfenced", group=group, broker_id=broker_id, reason=why)
            case actions.CleanBroker(group, broker_id, why):
                await admin.clean(await _group_now(admin, action, group), [broker_id])
                logger.info("id forgotten", group=group, broker_id=broker_id, reason=why)
            case actions.AddController(node_id, raft_address, service_address):
                await admin.add_member(node_id, raft_address, service_address)
                logger.info("controller added", node=node_id)
            case actions.PromoteController(node_id):
                await admin.promote_member(node_id)
                logger.info("controller votes", node=node_id)
            case actions.RemoveController(node_id, why):
                await _remove_controller(admin, action, node_id)
                logger.info("controller removed", node=node_id, reason=why)
            case actions.MoveLeadership(to_node_id, why):
                await admin.transfer(to_node_id)
                logger.info("leadership moved", node=to_node_id, reason=why)
            case _:
                raise AssertionError(f"an action that nobody carries out: {action}")


def _controllers(action: Action, seen: Seen) -> ControllerAdmin:
    """For `async with`: requests to the controllers that answered in this reconcile."""
    if not seen.controllers:
        raise ActionFailed(action, "ControllersSilent", "no controller answers")
    connecting = seen.view.connecting
    return ControllerAdmin(
        list(seen.controllers), timeout=QUERY_SECONDS, tls=connecting.tls, sign=connecting.sign
    )


def _who_tells_groups(action: Action, seen: Seen) -> ControllerAdmin | LedgerAdmin:
    """For `async with`: who knows which master a group has, the controllers or the members of its DLedger."""
    if seen.members is None:
        return _controllers(action, seen)
    return LedgerAdmin(seen.members, seen.view.connecting)


async def _same_epoch(admin: ControllerAdmin | LedgerAdmin, action: Action, group: str, epoch: int) -> None:
    """Ask once more, because what was observed is a moment old. Raises `ActionFailed`."""
    now = (await _group_now(admin, action, group)).master_epoch
    if now != epoch:
        raise ActionFailed(action, "Overtaken", f"{group} is in master epoch {now} by now, not in {epoch}")


async def _group_now(admin: ControllerAdmin | LedgerAdmin, action: Action, name: str) -> GroupState:
    found = await admin.groups([name])
    if not found:
        raise ActionFailed(action, "NotFound", f"nobody tells of a group {name}")
    return found[0]


async def _remove_controller(admin: ControllerAdmin, action: Action, node_id: int) -> None:
    status = await admin.status()
    if status.leader_id == node_id:
        others = [member for member in status.members if member.voter and member.node_id != node_id]
        if not others:
            raise ActionFailed(action, "Refused", f"controller {node_id} is the only one that votes")
        best = max(others, key=lambda member: (member.match_index or 0, -member.node_id))
        await admin.transfer(best.node_id)
        async with asyncio.timeout(QUERY_SECONDS):
            while (await admin.status()).leader_id == node_id:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.05)
    await admin.remove_member(node_id)


def _group(action: actions.SetPermission, observed: Observed) -> GroupState:
    state = observed.groups.get(action.group)
    if state is None:
        raise ActionFailed(action, "NotFound", f"the controllers know no group {action.group}")
    return state


def _uid(live: Mapping[str, Any]) -> str:
    return str(live["metadata"]["uid"])


def _combined(live: Mapping[str, Any], sent: str) -> str:
    return f"{sent}/{digest(substance(live))}"
