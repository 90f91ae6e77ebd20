"""The frame of the reconciles of Topics, Subjects and Users: what stands for something in a BrokerSet.

`ClaimIndex` knows which object stands for what. A kind says how its manifest is read, what is done for an
object that is there and for one that is deleted, and what its status has besides the condition Ready.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

from brokerset_kube import kinds
from brokerset_kube.errors import NotFound
from brokerset_kube.kinds import Kind
from brokerset_operator.apply import Means, NotLeading, write_status
from brokerset_operator.brokers_view import BrokerSilent, master_address
from brokerset_operator.claims import ClaimIndex
from brokerset_operator.controllers_view import ControllersView, controllers_of
from brokerset_operator.model import claim_reasons
from brokerset_operator.model.verdict import WAIT_SECONDS, Verdict
from brokerset_operator.owners import NotOurs, ensure_ours
from brokerset_operator.plan.objects import time_text
from brokerset_operator.reconcile_queue import GONE, Key, RetryAfter
from brokerset_operator.set_access import foreign_groups, has_finalizer, query_groups, set_finalizer
from brokerset_operator.set_reconciler import RESYNC_SPREAD
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_spec.manifest import BrokerSet, ManifestError, read_manifest

DELETE_SECONDS: Final = 20.0
"""Time-out of deleting what an object stands for; it is tried again then."""

Manifest = TypeVar("Manifest")
Details = TypeVar("Details")


class Stopped(Exception):
    """Nothing more can be done now; the verdict says why."""

    def __init__(
        self, reason: str, message: str, again_seconds: float | None = None, refusal: str | None = None
    ) -> None:
        super().__init__(message)
        self.verdict = Verdict(False, reason, message, again_seconds, refusal)


class ClaimReconciler(ABC, Generic[Manifest, Details]):
    """Reconciles one object of a kind at a time."""

    KIND: ClassVar[Kind]
    FINALIZER: ClassVar[str]

    def __init__(
        self,
        means: Means,
        index: ClaimIndex,
        resync_seconds: float,
        on_status: Callable[[Key, Mapping[str, Any]], None] = lambda key, status: None,
        *,
        randomness: random.Random | None = None,
    ) -> None:
        """`on_status` is called with the status of an object after each reconcile that has found one."""
        self.means = means
        self.index = index
        self.resync_seconds = resync_seconds
        self._on_status = on_status
        self._randomness = randomness or random.Random()

    # -- of each kind --------------------------------------------------------------------------------------

    @abstractmethod
    def _read(self, live: dict[str, Any]) -> Manifest:
        """The manifest. Raises `ManifestError`."""

    @abstractmethod
    def _waits_for_deletion(self, manifest: Manifest) -> bool:
        """Whether something is to be done before the object goes."""

    @abstractmethod
    async def _serve(
        self, key: Key, live: Mapping[str, Any], manifest: Manifest
    ) -> tuple[Verdict, Details | None]:
        """Do what is to be done for an object that has its name to itself. Raises `Stopped` and `NotOurs`."""

    @abstractmethod
    async def _delete_at_set(self, key: Key, live: Mapping[str, Any]) -> None:
        """Delete what a deleted object stood for, if that is wanted.

        Raises `Stopped` or `BrokerSilent`, upon which the object stays, and `NotOurs`.
        """

    @abstractmethod
    def _status(
        self, live: Mapping[str, Any], verdict: Verdict, moment: str, details: Details | None
    ) -> dict[str, Any]:
        """What to write; without `details` nobody was asked about the object."""

    # -- the frame ------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> float | None:
        """Do what is to be done now; returns after how many seconds to do it again, or `GONE`.

        Raises `RetryAfter` or a `KubeError` for what may be better next time.
        """
        try:
            live = await self.means.client.get(self.KIND, key.name, key.namespace)
        except NotFound:
            self.index.forget(key)
            return GONE
        self.index.saw(self.KIND.kind, live)
        try:
            if live["metadata"].get("deletionTimestamp"):
                await self._delete(key, live)
                return None
            return await self._reconcile(key, live)
        except NotOurs:
            return self.resync_seconds

    async def _reconcile(self, key: Key, live: Mapping[str, Any]) -> float:
        details = None
        try:
            manifest = self._read(dict(live))
        except ManifestError as error:
            verdict = Verdict(False, claim_reasons.INVALID_SPEC, str(error))
        else:
            waits = self._waits_for_deletion(manifest)
            if has_finalizer(live, self.FINALIZER) != waits:
                live = await set_finalizer(self.KIND, live, self.FINALIZER, waits, self.means)
            try:
                self._ensure_first(key)
                verdict, details = await self._serve(key, live, manifest)
            except Stopped as stop:
                verdict = stop.verdict
        await self._write(key, live, verdict, details)
        regular = self.resync_seconds * (1 - RESYNC_SPREAD * self._randomness.random())
        return regular if verdict.again_seconds is None else min(regular, verdict.again_seconds)

    def _ensure_first(self, key: Key) -> None:
        older = self.index.older(key)
        if older is not None:
            text = f"{older.kind} {older.name} was there first for {self.index.name_of(key)}"
            raise Stopped(claim_reasons.NAME_TAKEN, f"{text}; delete one of the two")

    async def _write(
        self, key: Key, live: Mapping[str, Any], verdict: Verdict, details: Details | None = None
    ) -> None:
        moment = time_text(self.means.clock.now_ms() / 1000)
        status = self._status(live, verdict, moment, details)
        await write_status(self.KIND, live, status, self.means)
        self._on_status(key, status)

    async def _delete(self, key: Key, live: Mapping[str, Any]) -> None:
        """Delete what the object stood for, then let it go. Raises `RetryAfter` while that cannot be."""
        if not has_finalizer(live, self.FINALIZER):
            return
        try:
            async with asyncio.timeout(DELETE_SECONDS):
                if not await self._is_kept(key):
                    await self._delete_at_set(key, live)
        except (Stopped, BrokerSilent) as error:
            refusal = error.verdict.refusal if isinstance(error, Stopped) else None
            waits = Verdict(False, claim_reasons.DELETION_WAITS, str(error), refusal=refusal)
            await self._write(key, live, waits)
            raise RetryAfter(str(error)) from error
        except TimeoutError as error:
            raise RetryAfter(f"deleting took longer than {DELETE_SECONDS:g} s") from error
        await set_finalizer(self.KIND, live, self.FINALIZER, False, self.means)
        self.index.forget(key)

    async def _is_kept(self, key: Key) -> bool:
        """Whether another object stands for the same; its event may be on its way, so all are listed."""
        listing = await self.means.client.list(self.KIND, key.namespace)
        for item in listing.items:
            self.index.saw(self.KIND.kind, item)
        return bool(self.index.others(key))

    # -- the set that an object belongs to ------------------------------------------------------------------

    async def _set_of(self, key: Key, name: str) -> Mapping[str, Any]:
        """The BrokerSet that an object names. Raises `Stopped` and `NotOurs`."""
        try:
            broker_set = await self.means.client.get(kinds.BROKER_SET, name, key.namespace)
        except NotFound:
            where = f"in namespace {key.namespace}"
            text = f"there is no BrokerSet {name} {where}; create it, or correct brokerSetRef"
            raise Stopped(claim_reasons.SET_MISSING, text) from None
        ensure_ours(broker_set, self.means)
        return broker_set

    async def _view_of(self, broker_set: Mapping[str, Any]) -> ControllersView:
        """What is agreed on about groups. Raises `Stopped`."""
        view = await query_groups(broker_set, self.means)
        if not view.agreed:
            serving = controllers_of(broker_set)
            text = f"no controller of {serving} leads; see the BrokerSet's condition ControllersReady"
            raise Stopped(claim_reasons.CONTROLLERS_SILENT, text, WAIT_SECONDS)
        return view

    async def _own_groups(
        self, broker_set: Mapping[str, Any], view: ControllersView, wanted: Iterable[str]
    ) -> dict[str, GroupState]:
        """Those of the wanted groups that there are. Raises `Stopped` if one belongs to another set."""
        groups = {name: view.groups[name] for name in wanted if name in view.groups}
        foreign = await foreign_groups(broker_set, groups, self.means)
        if foreign:
            where = f"see condition IdentityConflict of {broker_set['metadata']['name']}"
            text = f"not of this set: {', '.join(foreign)}; {where}"
            raise Stopped(claim_reasons.SET_INVALID, text, WAIT_SECONDS)
        return groups

    def _ensure_leading(self) -> None:
        """Before something is changed. Raises `NotLeading`."""
        if not self.means.leads():
            raise NotLeading("this operator leads no more")


def valid_manifest(broker_set: Mapping[str, Any]) -> BrokerSet:
    """The manifest of a set. Raises `Stopped`."""
    try:
        return read_manifest(broker_set)
    except ManifestError:
        text = f"the BrokerSet {broker_set['metadata']['name']} is invalid; see its condition Ready"
        raise Stopped(claim_reasons.SET_INVALID, text) from None


async def at_masters(
    wanted: Iterable[str], groups: Mapping[str, GroupState], act: Callable[[str, str], Awaitable[None]]
) -> list[tuple[str, str]]:
    """Act at the master of each wanted group, by name and address; returns problems: reason and text.

    One where that is not possible keeps no other one from it; `act` may raise `BrokerSilent` and `Stopped`.
    """
    problems = []
    for group in wanted:
        state = groups.get(group)
        address = None if state is None else master_address(state)
        if address is None:
            problems.append((claim_reasons.NO_MASTER, f"{group} has no living master"))
            continue
        try:
            await act(group, address)
        except BrokerSilent as error:
            problems.append((claim_reasons.BROKER_SILENT, str(error)))
        except Stopped as stop:
            problems.append((stop.verdict.reason, stop.verdict.message))
    return problems
