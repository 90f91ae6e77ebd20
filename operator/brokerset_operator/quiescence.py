"""Sets in which all was well, with nothing heard since: a regular look at one does not ask the API server.

Listing everything again for each regular look would be 45 requests a second with 1,000 sets. What changes in
Kubernetes is told by watches, which list anew after every gap; controllers and brokers tell nobody, so they
are asked. A complete look comes all the same, once in `COMPLETE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_kube.kinds import Kind
from brokerset_kube.patches import digest
from brokerset_operator.brokers_view import settings_at
from brokerset_operator.controllers_view import ControllersView, look_at_controllers
from brokerset_operator.observe import Seen, optional_names
from brokerset_operator.plan import reasons
from brokerset_operator.reconcile_queue import Key
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_runtime.clock import Clock

COMPLETE_SECONDS: Final = 12 * 3600.0
"""Longest time between two complete looks; what nobody tells of, as a storage class, is seen then."""

COMPLETE_SPREAD: Final = 0.5
"""By how much, at most, a complete look comes earlier: all sets were looked at together at the start."""

GOOD: Final = frozenset({reasons.READY, reasons.CONTROLLERS_READY})
"""Conditions that are true when all is well; every other one is false or absent."""

AGING: Final = ("confirmOffset", "heardMsAgo")
"""What of a replica changes though nothing happens. Its end of the log does not, while nobody sends."""


@dataclass(frozen=True, slots=True)
class _Calm:
    until: float
    """When it is looked at completely anyway, by the monotonic clock."""

    controllers: Mapping[int, str]
    brokers: Mapping[str, str]
    """Addresses, as they were asked at in the complete look."""

    said: str
    """A hash of what they said then."""

    api_kinds: frozenset[str]
    version: str


@dataclass(slots=True)
class _Look:
    """A complete look that is on."""

    disturbed: bool = False
    version: str | None = None
    """Of the BrokerSet in its last event since the look began."""


@dataclass(slots=True)
class QuiescentSets:
    """Which sets need no complete look. Whoever hears of a set says so with `heard` or `saw`."""

    clock: Clock
    watching: Callable[[], bool]
    """Whether every watch of what sets consist of is to be relied on."""

    optional_kinds: Callable[[], Awaitable[tuple[Kind, ...]]]
    """The optional kinds that the cluster has now; may raise a `KubeError`."""

    randomness: random.Random = field(default_factory=random.Random)
    _calm: dict[Key, _Calm] = field(default_factory=dict)
    _looks: dict[Key, _Look] = field(default_factory=dict)

    def heard(self, key: Key) -> None:
        """Something that this set consists of, or what is wanted, has changed, or may have."""
        self._calm.pop(key, None)
        if (look := self._looks.get(key)) is not None:
            look.disturbed = True

    def heard_of_all(self) -> None:
        """Some change of some set may have been missed."""
        self._calm.clear()
        for look in self._looks.values():
            look.disturbed = True

    def saw(self, key: Key, version: str) -> None:
        """The BrokerSet itself is at this resource version: a new one means a new status, or more."""
        calm, look = self._calm.get(key), self._looks.get(key)
        if calm is not None and calm.version != version:
            del self._calm[key]
        if look is not None:
            look.version = version

    def begin(self, key: Key) -> None:
        """A complete look begins: what is heard from now on counts against it."""
        self._calm.pop(key, None)
        self._looks[key] = _Look()

    def end(self, key: Key, seen: Seen, status: Mapping[str, Any], version: str) -> None:
        """A complete look has left nothing to do, and wants no soon one; `status` is what it found.

        `version` is the BrokerSet's now, which may have a new status.
        """
        look = self._looks.pop(key, None)
        expected = (None, version, str(seen.live["metadata"]["resourceVersion"]))
        if look is None or look.disturbed or look.version not in expected:
            return
        if not seen.asked or not all_is_well(status):
            return
        lasts = COMPLETE_SECONDS * (1 - COMPLETE_SPREAD * self.randomness.random())
        self._calm[key] = _Calm(
            until=self.clock.monotonic() + lasts,
            controllers=seen.asked,
            brokers=seen.brokers,
            said=said_by(seen.view, seen.observed.settings),
            api_kinds=seen.observed.operator.api_kinds,
            version=version,
        )

    def forget(self, key: Key) -> None:
        """The set is gone."""
        self._calm.pop(key, None)
        self._looks.pop(key, None)

    async def is_calm(self, key: Key) -> bool:
        """Ask controllers and brokers; whether they say what they said, and nothing was heard meanwhile.

        Raises a `KubeError` when the cluster cannot be asked which kinds it has.
        """
        calm = self._calm.get(key)
        if calm is None or not self.watching() or self.clock.monotonic() >= calm.until:
            return False
        if optional_names(await self.optional_kinds()) != calm.api_kinds:
            return False
        view, settings = await asyncio.gather(
            look_at_controllers(calm.controllers), settings_at(calm.brokers)
        )
        return said_by(view, settings) == calm.said and self._calm.get(key) is calm


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
