"""Reconciles a BrokerSet: observe, plan, carry out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from brokerset_kube.patches import digest
from brokerset_operator.apply import Means, carry_out
from brokerset_operator.controllers_view import controllers_of
from brokerset_operator.model.actions import EmitEvent, Plan
from brokerset_operator.model.observed import Observed, Operator
from brokerset_operator.observe import ClusterFacts, observe
from brokerset_operator.owners import AGAIN_SECONDS, NotOurs, Owners
from brokerset_operator.plan import reasons
from brokerset_operator.plan.steps import IDLE_SECONDS
from brokerset_operator.quiescence import QuiescentSets
from brokerset_operator.reconcile_queue import GONE, Key, RetryAfter

log = structlog.get_logger(__name__)

SET: Final = "BrokerSet"
"""Kind of the keys of these reconciles."""

RESYNC_SPREAD: Final = 0.2
"""By how much, at most, a reconcile without an event comes earlier, so that they do not all come at once."""

PLANNED_FOR: Final = (*reasons.ALWAYS, *reasons.OTHERS)
"""Conditions whose presence says nothing."""

DIGESTS_MAX: Final = 50_000

QUIET_RECONCILES: Final = 10
"""After so many reconciles in a row that changed nothing a set is requeued later than it asks for."""

QUIET_FACTOR: Final = 1.5
QUIET_SECONDS_MAX: Final = 30.0
"""Longest that such a set waits, if nothing is heard of it; it may be one that will never be ready."""


@dataclass(slots=True)
class SharedControllers:
    """Which sets use the controllers of which other set, from the sets' events."""

    _serving: dict[Key, Key] = field(default_factory=dict)

    def saw(self, live: Mapping[str, Any]) -> None:
        """A BrokerSet as it is now."""
        metadata, serving = live["metadata"], controllers_of(live)
        namespace = str(metadata.get("namespace") or "")
        key = Key(SET, namespace, metadata["name"])
        if serving == metadata["name"]:
            self._serving.pop(key, None)
        else:
            self._serving[key] = Key(SET, namespace, serving)

    def forget(self, key: Key) -> None:
        """A BrokerSet is gone."""
        self._serving.pop(key, None)

    def served_by(self, key: Key) -> tuple[Key, ...]:
        """The other sets that use the controllers of a set."""
        return tuple(user for user, serving in self._serving.items() if serving == key)

    def peers_of(self, key: Key) -> tuple[Key, ...]:
        """The other sets with which a set shares controllers, as far as their pods talk to each other."""
        serving = self._serving.get(key)
        return self.served_by(key) if serving is None else (serving,)

    def serving(self, namespace: str, name: str) -> str:
        """Name of the set whose controllers serve a set; its own if nothing else is known."""
        serving = self._serving.get(Key(SET, namespace, name))
        return name if serving is None else serving.name


@dataclass(slots=True)
class SetReconciler:
    """Reconciles one set at a time, and remembers nothing that a decision rests on."""

    means: Means
    facts: ClusterFacts
    installed: Operator
    plan: Callable[[Observed], Plan]
    resync_seconds: float
    on_groups: Callable[[str, str], None]
    """Called with a set's namespace and name when its groups or their masters have changed."""

    on_status: Callable[[Key, Mapping[str, Any]], None]
    """Called with the status of a set after each reconcile that has found one."""

    quiescent: QuiescentSets
    """Spares complete reconciles of sets of which nothing was heard."""

    randomness: random.Random = field(default_factory=random.Random)
    owners: Owners = field(init=False)
    _groups: dict[Key, str] = field(default_factory=dict)
    _notes: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    _quiet: dict[Key, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.owners = Owners(self.means)

    async def reconcile(self, key: Key) -> float | None:
        """Do what is to be done now; returns after how many seconds to do it again, or `GONE`.

        Raises `RetryAfter` or a `KubeError` for what may be better next time.
        """
        means = self.means
        try:
            if await self.quiescent.is_quiescent(key):
                return self._resync()
            self.quiescent.begin(key)
            seen = await observe(
                means.client,
                self.facts,
                means.clock,
                namespace=key.namespace,
                name=key.name,
                installed=self.installed,
                admit=self.owners.admit,
            )
            if seen is None:
                self._groups.pop(key, None)
                self._notes.pop(key, None)
                self._quiet.pop(key, None)
                self.on_groups(key.namespace, key.name)
                return GONE
            if seen.observed.meta.deleting:
                return None  # what it owns goes by itself
            plan = self.plan(seen.observed)
            self._tell(key, plan)
            outcome = await carry_out(plan, seen, means)
        except NotOurs:
            self.on_status(key, {})
            return min(AGAIN_SECONDS, self._resync())
        self.on_status(key, outcome.status)
        self._compare_groups(key, seen.observed)
        if outcome.failure is not None:
            raise RetryAfter(f"{outcome.failure.reason}: {outcome.failure}", outcome.failure.retry_after)
        changed = outcome.status_version is not None
        quiet = self._quiet[key] = 0 if changed else self._quiet.get(key, 0) + 1
        idle = outcome.requeue_seconds >= IDLE_SECONDS and keeps_no_copies(seen.observed)
        if idle and (not changed or is_final(plan, seen.observed)):
            version = outcome.status_version or str(seen.live["metadata"]["resourceVersion"])
            self.quiescent.end(key, seen, plan.status, version)
        return min(patience(outcome.requeue_seconds, quiet), self._resync())

    def _resync(self) -> float:
        return self.resync_seconds * (1 - RESYNC_SPREAD * self.randomness.random())

    def _tell(self, key: Key, plan: Plan) -> None:
        """Log why something waits, once for as long as the reasons stay the same."""
        if plan.notes and plan.notes != self._notes.get(key):
            log.info("waiting", set=f"{key.namespace}/{key.name}", reasons=list(plan.notes))
        if plan.notes:
            self._notes[key] = plan.notes
        else:
            self._notes.pop(key, None)

    def _compare_groups(self, key: Key, observed: Observed) -> None:
        if not observed.groups:
            return
        now = digest({name: state.master_id for name, state in observed.groups.items()})
        if self._groups.get(key) != now:
            if len(self._groups) >= DIGESTS_MAX:
                self._groups.clear()
            self._groups[key] = now
            self.on_groups(key.namespace, key.name)


def keeps_no_copies(observed: Observed) -> bool:
    """Whether nothing is written into objects of the set that changes without an event.

    Authorities of sets that share controllers are, which may be in ConfigMaps that people keep.
    """
    kept = observed.manifest is not None and observed.manifest.spec.tls.trust_config_map is not None
    return not observed.peers or (not kept and all(peer.is_watched for peer in observed.peers))


def is_final(plan: Plan, observed: Observed) -> bool:
    """Whether a plan would be made again, with nothing to do, though its status is another than before.

    Of a status later plans read what is remembered in it, and conditions that are not always there.
    """
    before, now = observed.status, plan.status
    return (
        all(isinstance(action, EmitEvent) for action in plan.actions)
        and all(one.get("type") in PLANNED_FOR for one in before.get("conditions") or ())
        and all(before.get(part) == now.get(part) for part in ("workflow", "requests"))
        and _formed(before) == _formed(now)
    )


def _formed(status: Mapping[str, Any]) -> object:
    return (status.get("controllers") or {}).get("formed")


def patience(requeue_seconds: float, quiet_reconciles: int) -> float:
    """When to requeue a set whose last so many reconciles changed nothing."""
    over = min(max(0, quiet_reconciles - QUIET_RECONCILES), 32)
    grown: float = QUIET_FACTOR**over if over else 0.0  # in seconds, from 1.5 on
    return max(requeue_seconds, min(grown, QUIET_SECONDS_MAX))


def interest(live: Mapping[str, Any]) -> str:
    """What of a BrokerSet or Topic a person changes; our own writes of status leave it as it is."""
    metadata = live["metadata"]
    annotations = {
        name: text
        for name, text in (metadata.get("annotations") or {}).items()
        if not name.startswith("kubectl.kubernetes.io/")
    }
    return digest(
        [
            metadata.get("uid"),
            metadata.get("generation"),
            metadata.get("deletionTimestamp"),
            annotations,
            sorted(metadata.get("finalizers") or ()),
        ]
    )
