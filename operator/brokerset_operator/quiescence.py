"""Sets in which all was well, and nothing was heard since: a regular reconcile does not ask the API server.

Listing everything for each regular reconcile would be 45 requests a second with 1,000 sets. What changes in
Kubernetes is told by watches, which list again after every gap; controllers and brokers tell nobody, so they
are asked. A complete reconcile comes all the same, once in `COMPLETE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from brokerset_kube.kinds import Kind
from brokerset_kube.patches import digest
from brokerset_operator.brokers_view import settings_at
from brokerset_operator.connecting import Connecting
from brokerset_operator.controllers_view import ControllersView, query_controllers
from brokerset_operator.ledger_view import Member, query_groups
from brokerset_operator.model import names
from brokerset_operator.model.certificates import OwnCertificates, earliest
from brokerset_operator.model.observed import Observed
from brokerset_operator.observe import Seen, optional_names
from brokerset_operator.plan import reasons
from brokerset_operator.plan.objects import part, seconds
from brokerset_operator.reconcile_queue import Key
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_runtime.clock import Clock

COMPLETE_SECONDS: Final = 12 * 3600.0
"""Longest time between two complete reconciles; what nobody tells of, as a storage class, is seen then."""

COMPLETE_SPREAD: Final = 0.5
"""By how much, at most, a complete reconcile comes earlier: all sets were read together at the start."""

SECRETS_SECONDS: Final = 3600.0
"""How often Secrets that the operator keeps are read, and not in each regular reconcile: of 1,000 sets that
would be 8 requests a second. Somebody who deletes one harms no pod before it starts, which is heard."""

GOOD: Final = frozenset({reasons.READY, reasons.CONTROLLERS_READY})
"""Conditions that are true when all is well; every other one is false or absent."""

AGING: Final = ("confirmOffset", "heardMsAgo")
"""What of a replica changes though nothing happens. Its end of the log does not, while nobody sends."""


@dataclass(frozen=True, slots=True)
class _Quiescent:
    until: float
    """When it is read completely anyway, by the monotonic clock."""

    controllers: Mapping[int, str]
    brokers: Mapping[str, str]
    """Addresses, as they were asked at in the complete reconcile."""

    members: tuple[Member, ...] | None
    """Of DLedger groups, which were asked as well; see `Seen.members`."""

    connecting: Connecting
    """How all of them are connected to."""

    said: str
    """A hash of what they said then."""

    namespace: str
    secrets: Mapping[str, str]
    """Resource versions of Secrets that the operator keeps: nobody tells of them, as they are not watched."""

    secrets_until: float
    """When these are read again, by the monotonic clock."""

    api_kinds: frozenset[str]
    version: str


@dataclass(slots=True)
class _Observing:
    """A complete reconcile that is on."""

    disturbed: bool = False
    version: str | None = None
    """Of the BrokerSet in its last event since it began."""


SecretVersions = Callable[[str, Iterable[str]], Awaitable[Mapping[str, str]]]


async def _no_versions(_: str, __: Iterable[str]) -> Mapping[str, str]:
    return {}


@dataclass(slots=True)
class QuiescentSets:
    """Which sets need no complete reconcile. Whoever hears of a set says so with `heard` or `saw`."""

    clock: Clock
    watching: Callable[[], bool]
    """Whether every watch of what sets consist of is to be relied on."""

    optional_kinds: Callable[[], Awaitable[tuple[Kind, ...]]]
    """The optional kinds that the cluster has now; may raise a `KubeError`."""

    randomness: random.Random = field(default_factory=random.Random)
    secret_versions: SecretVersions = _no_versions
    """Reads the resource versions of Secrets of a namespace, by name."""

    _quiescent: dict[Key, _Quiescent] = field(default_factory=dict)
    _observing: dict[Key, _Observing] = field(default_factory=dict)

    def heard(self, key: Key) -> None:
        """Something that this set consists of, or what is wanted, has changed, or may have."""
        self._quiescent.pop(key, None)
        if (observing := self._observing.get(key)) is not None:
            observing.disturbed = True

    def all_dirty(self) -> None:
        """Some change of some set may have been missed."""
        self._quiescent.clear()
        for observing in self._observing.values():
            observing.disturbed = True

    def saw(self, key: Key, version: str) -> None:
        """The BrokerSet itself is at this resource version: a new one means a new status, or more."""
        quiescent, observing = self._quiescent.get(key), self._observing.get(key)
        if quiescent is not None and quiescent.version != version:
            del self._quiescent[key]
        if observing is not None:
            observing.version = version

    def begin(self, key: Key) -> None:
        """A complete reconcile begins: what is heard from now on counts against it."""
        self._quiescent.pop(key, None)
        self._observing[key] = _Observing()

    def end(self, key: Key, seen: Seen, status: Mapping[str, Any], version: str) -> None:
        """A complete reconcile has left nothing to do, and wants no soon one; `status` is what it found.

        `version` is the BrokerSet's now, which may have a new status.
        """
        observing = self._observing.pop(key, None)
        expected = (None, version, str(seen.live["metadata"]["resourceVersion"]))
        if observing is None or observing.disturbed or observing.version not in expected:
            return
        if not (seen.asked or seen.members) or not all_is_well(status):
            return
        lasts = COMPLETE_SECONDS * (1 - COMPLETE_SPREAD * self.randomness.random())
        if (renewal := renewal_in(status)) is not None:
            lasts = min(lasts, renewal - self.clock.now_ms() / 1000)
        self._quiescent[key] = _Quiescent(
            until=self.clock.monotonic() + lasts,
            controllers=seen.asked,
            brokers=seen.brokers,
            members=seen.members,
            connecting=seen.view.connecting,
            said=said_by(seen.view, seen.observed.settings),
            namespace=key.namespace,
            secrets=secrets_of(seen.observed),
            secrets_until=self.clock.monotonic() + SECRETS_SECONDS,
            api_kinds=seen.observed.operator.api_kinds,
            version=version,
        )

    def forget(self, key: Key) -> None:
        """The set is gone."""
        self._quiescent.pop(key, None)
        self._observing.pop(key, None)

    async def is_quiescent(self, key: Key) -> bool:
        """Ask controllers and brokers; whether they say what they said, and nothing was heard meanwhile.

        Raises a `KubeError` when the cluster cannot be asked which kinds it has.
        """
        quiescent = self._quiescent.get(key)
        if quiescent is None or not self.watching() or self.clock.monotonic() >= quiescent.until:
            return False
        if optional_names(await self.optional_kinds()) != quiescent.api_kinds:
            return False
        if quiescent.secrets and self.clock.monotonic() >= quiescent.secrets_until:
            versions = await self.secret_versions(quiescent.namespace, quiescent.secrets)
            if versions != quiescent.secrets or self._quiescent.get(key) is not quiescent:
                return False
            quiescent = replace(quiescent, secrets_until=self.clock.monotonic() + SECRETS_SECONDS)
            self._quiescent[key] = quiescent
        members = quiescent.members
        view, settings, groups = await asyncio.gather(
            query_controllers(quiescent.controllers, quiescent.connecting),
            settings_at(quiescent.brokers, quiescent.connecting),
            query_groups(members or (), quiescent.connecting),
        )
        if members is not None:
            view = replace(view, groups=groups)
        return said_by(view, settings) == quiescent.said and self._quiescent.get(key) is quiescent


def said_by(view: ControllersView, settings: Mapping[str, Mapping[str, str]]) -> str:
    """A hash of what controllers and brokers say, without what changes though nothing happens."""
    known = view.controllers
    return digest(
        [
            known.leader,
            sorted(known.members.items()),
            sorted(known.answers),
            sorted(known.waiting_to_join),
            sorted(known.caught_up),
            [_steady(state) for _, state in sorted(view.groups.items())],
            settings,
        ]
    )


def secrets_of(observed: Observed) -> dict[str, str]:
    """Resource versions of the Secrets that the operator keeps for a set, by name."""
    seen = observed.certificates
    if not isinstance(seen, OwnCertificates):
        return {}
    name = observed.meta.name
    kept = {names.authority(name): seen.authority, names.certificate(name): seen.certificate}
    return {of: each.version for of, each in kept.items() if each is not None}


def renewal_in(status: Mapping[str, Any]) -> float | None:
    """When a certificate or authority is to be renewed, as a status says, in seconds since 1970."""
    tls = part(status, "tls")
    return earliest(seconds(each.get("renewal")) for each in (tls, part(tls, "authority")))


def all_is_well(status: Mapping[str, Any]) -> bool:
    """Whether every condition of a set is as it is in one that is well."""
    found = {
        str(c.get("type")): c.get("status")
        for c in status.get("conditions") or ()
        if c.get("type") != reasons.AUDIT_PASSED
    }
    return bool(found) and all((kind in GOOD) == (holds == "True") for kind, holds in found.items())


def _steady(state: GroupState) -> dict[str, Any]:
    replicas = [
        {name: value for name, value in replica.to_object().items() if name not in AGING}
        for replica in state.replicas
    ]
    return {**state.to_object(), "replicas": replicas}
