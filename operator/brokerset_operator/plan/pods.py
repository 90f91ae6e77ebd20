"""Pods and StatefulSets as the plan reads them: which pods are old, and which do not run, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerset_operator.model.names import COMPONENT_LABEL, HASH_ANNOTATION
from brokerset_operator.model.observed import Object
from brokerset_operator.plan.objects import items, kept_by_stateful_set, part, seconds, text

SLOW_SECONDS: Final = 300.0
"""A pod that was not ready for so long counts as broken when it is old and its broker is not in sync."""

CRASHES_MIN: Final = 2
"""Restarts of a container from which on it counts as one that crashes again and again, as for the kubelet."""

STEADY_SECONDS: Final = 60.0
"""A pod that is ready is believed after so long, when its container has crashed again and again."""

RECOVERED_SECONDS: Final = 600.0
"""After so long a container that runs is no longer blamed for crashes: the kubelet forgets them, too."""

STALE_SECONDS: Final = 30.0
"""What was seen is never older. A pod that is still there then, under the same UID, was not deleted."""

CRASH_LOOP: Final = "CrashLoopBackOff"

BROKEN_REASONS: Final = frozenset(
    {
        CRASH_LOOP,
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Why a container waits when it will not start without help; its process does not run meanwhile."""

LAST_WORDS_MAX: Final = 300
"""Longest part of what a container wrote last that is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What tells an old pod from a new one."""

    hash: str | None
    images: Mapping[str, str]
    """Image of each container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of the set."""

    name: str
    uid: str
    ordinal: int
    ip: str | None
    node: str | None
    ready: bool
    unready_since: float | None
    """When it stopped being ready, in seconds since 1970; None while it is, or when that is not known."""

    gone_by: float | None
    """When it is to have ended, because somebody deleted it."""

    broken: str | None
    """Why no process of it runs, nor will without help."""

    restarts: int
    """How often our own container was started again."""

    running_since: float | None
    """When its process was started, in seconds since 1970; None while none runs, or if that is not known."""

    last_end: str | None
    """How our own container ended last: its name, exit code, and what it wrote last."""

    template: Template
    revision: str | None
    kept: bool
    """Whether it belongs to a StatefulSet, there or not, and goes with it; one left as an orphan stays."""

    awaits: str | None = None
    """The Secret without which it does not start, while none of its containers has run yet."""

    @property
    def terminating(self) -> bool:
        """Whether somebody deleted it."""
        return self.gone_by is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """A StatefulSet."""

    name: str
    uid: str
    replicas: int
    template: Template
    revision: str | None
    """Revision of the newest template, when the API server has seen it."""

    deleting: bool
    retained: bool
    """Whether its claims stay when it is deleted."""


def read_pod(pod: Object) -> Pod | None:
    """Return a pod; None for one that is not numbered."""
    meta, spec, status = part(pod, "metadata"), part(pod, "spec"), part(pod, "status")
    name = str(meta.get("name", ""))
    number = name.rpartition("-")[2]
    if not number.isdecimal():
        return None
    conditions = {c.get("type"): c for c in items(status, "conditions")}
    own = _own_container(status, part(meta, "labels").get(COMPONENT_LABEL))
    ready = conditions.get("Ready", {})
    return Pod(
        name=name,
        uid=str(meta.get("uid", "")),
        ordinal=int(number),
        ip=text(status.get("podIP")),
        node=text(spec.get("nodeName")),
        ready=ready.get("status") == "True",
        unready_since=None if ready.get("status") == "True" else seconds(ready.get("lastTransitionTime")),
        gone_by=seconds(meta.get("deletionTimestamp")),
        broken=_why_broken(
            status, conditions.get("PodScheduled", {}), part(meta, "labels").get(COMPONENT_LABEL)
        ),
        restarts=int(own.get("restartCount") or 0),
        running_since=seconds(part(part(own, "state"), "running").get("startedAt")),
        last_end=_how_it_ended(own),
        template=_template(meta, spec),
        revision=text(part(meta, "labels").get("controller-revision-hash")),
        kept=kept_by_stateful_set(pod),
        awaits=None if part(own, "state").keys() - {"waiting"} or own.get("lastState") else _secret(spec),
    )


def read_keeper(stateful_set: Object) -> Keeper:
    """Return a StatefulSet as observed, or as it is wanted."""
    meta, spec, status = (part(stateful_set, key) for key in ("metadata", "spec", "status"))
    retention = part(spec, "persistentVolumeClaimRetentionPolicy")
    seen = status.get("observedGeneration") == meta.get("generation")
    return Keeper(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        replicas=int(spec.get("replicas", 1)),
        template=template_of(stateful_set),
        revision=text(status.get("updateRevision")) if seen else None,
        deleting=meta.get("deletionTimestamp") is not None,
        retained=retention.get("whenDeleted", "Retain") == "Retain",
    )


def template_of(stateful_set: Object) -> Template:
    """Return the pod template of a StatefulSet."""
    template = part(part(stateful_set, "spec"), "template")
    return _template(part(template, "metadata"), part(template, "spec"))


def is_old(pod: Pod, template: Template | None, keeper: Keeper | None) -> bool:
    """Return whether a pod differs from the newest template.

    The image of a pod, or of the StatefulSet itself, may have been rewritten on its way in (a mirror, a
    digest): a pod of the newest revision is new though its image differs, or it would be replaced in
    every reconcile.
    """
    if template is None:
        return False
    if pod.template.hash != template.hash:
        return True
    if pod.template.images == template.images:
        return False
    if keeper is None or keeper.revision is None or keeper.template.hash != template.hash:
        return True
    return pod.revision != keeper.revision


def why_failing(pod: Pod, now: float) -> str | None:
    """Return why a pod does not serve, nor soon will by itself: it crashes, does not start, or takes long.

    One that crashes again and again runs, and may even be ready, between two crashes.
    """
    if pod.terminating:
        return None
    if pod.broken is not None:
        return pod.broken
    enough = STEADY_SECONDS if pod.ready else RECOVERED_SECONDS
    steady = pod.running_since is not None and now - pod.running_since >= enough
    if pod.restarts >= CRASHES_MIN and pod.last_end is not None and not steady:
        return f"it was started again {pod.restarts} times; {pod.last_end}"
    if is_slow(pod, now):
        missing = f"; it may wait for the Secret {pod.awaits}" if pod.awaits is not None else ""
        return f"it has not been ready for more than {SLOW_SECONDS / 60:g} minutes{missing}"
    return None


def is_slow(pod: Pod, now: float) -> bool:
    """Return whether a pod has not been ready for very long."""
    return not pod.ready and pod.unready_since is not None and now - pod.unready_since > SLOW_SECONDS


def _template(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> Template:
    return Template(
        hash=text(part(meta, "annotations").get(HASH_ANNOTATION)),
        images={str(c.get("name")): str(c.get("image")) for c in items(spec, "containers")},
    )


def _secret(spec: Mapping[str, Any]) -> str | None:
    """The Secret that a pod mounts, if it does."""
    named = (text(part(volume, "secret").get("secretName")) for volume in items(spec, "volumes"))
    return next((name for name in named if name is not None), None)


def _why_broken(status: Mapping[str, Any], scheduled: Mapping[str, Any], component: object) -> str | None:
    """Why our own container does not run; others that somebody has put into the pod do not count then."""
    if status.get("phase") in ("Failed", "Succeeded"):
        return f"it has ended: {status.get('reason') or status.get('phase')}"
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return f"no node takes it: {scheduled.get('message', 'unschedulable')}"
    running = items(status, "containerStatuses")
    if any("running" in part(c, "state") for c in running if c.get("name") == component):
        return None
    containers = [*items(status, "initContainerStatuses"), *running]
    waiting = [part(part(c, "state"), "waiting") for c in containers]
    reasons = _reasons(waiting)
    ended = _how_it_ended(_own_container(status, component))
    if reasons and ended is not None:
        reasons.append(ended)
    return "; ".join(reasons) if reasons else None


def _own_container(status: Mapping[str, Any], component: object) -> Mapping[str, Any]:
    """The status of our own container, or of the only one; empty when there is none yet."""
    running = items(status, "containerStatuses")
    own = [each for each in running if each.get("name") == component]
    return own[0] if own else running[0] if len(running) == 1 else {}


def _how_it_ended(container: Mapping[str, Any]) -> str | None:
    ends = [part(part(container, state), "terminated") for state in ("state", "lastState")]
    end = next((each for each in ends if each), None)
    if end is None:
        return None
    reason, lines = end.get("reason"), str(end.get("message") or "").strip().splitlines()
    how = f" ({reason})" if reason and reason not in ("Error", "Completed") else ""
    words = f": {lines[-1][-LAST_WORDS_MAX:]}" if lines else ""
    return f"container {container.get('name')} ended with exit code {end.get('exitCode')}{how}{words}"


def _reasons(waiting: Iterable[Mapping[str, Any]]) -> list[str]:
    # What a crash loop's message has is a delay, which is another one each time.
    return [
        f"{each.get('reason')}: {each['message']}"
        if each.get("message") and each.get("reason") != CRASH_LOOP
        else str(each.get("reason"))
        for each in waiting
        if each.get("reason") in BROKEN_REASONS
    ]
