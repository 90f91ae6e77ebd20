"""Subjects: created and scaled by the controllers of their set, deleted as their policy says."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from brokerset_client.subject_admin import SubjectAdmin
from brokerset_kube import kinds
from brokerset_kube.errors import NotFound
from brokerset_operator import subject_requests
from brokerset_operator.apply import Means, NotLeading, write_status
from brokerset_operator.brokers_view import master_address
from brokerset_operator.claims import ClaimIndex
from brokerset_operator.controllers_view import ControllersView, controllers_of
from brokerset_operator.ledger_view import elects_itself
from brokerset_operator.model import names
from brokerset_operator.ordered_subjects import plan, reasons
from brokerset_operator.ordered_subjects.observed import Create, Observed, Request, newest
from brokerset_operator.ordered_subjects.plan import Progress, Verdict
from brokerset_operator.ordered_subjects.status import status_of
from brokerset_operator.owners import NotOurs, ensure_ours
from brokerset_operator.reconcile_queue import GONE, Key
from brokerset_operator.set_access import foreign_groups, has_finalizer, query_groups, set_finalizer
from brokerset_operator.set_reconciler import RESYNC_SPREAD
from brokerset_operator.subject_requests import (
    ControllersSilent,
    SubjectRefused,
    SubjectsUnserved,
)
from brokerset_protocol.bodies.ordered import SubjectState
from brokerset_spec.manifest import ManifestError, read_manifest
from brokerset_spec.subject_manifest import Subject, read_subject

log = structlog.get_logger(__name__)

SUBJECT: Final = "Subject"
"""Kind of the keys of these reconciles."""

FINALIZER: Final = f"{names.DOMAIN}/subject"
"""Keeps a Subject whose policy is Delete until controllers have let go of it."""


NOTHING_THERE: Final = (reasons.BROKER_SET_MISSING, reasons.BROKER_SET_UNSUPPORTED)
"""Reasons for which an object is let go at once: there are no controllers that have the subject."""


class _Stopped(Exception):
    """The reconcile ends here, with a verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


@dataclass(frozen=True, slots=True)
class _Found:
    """What a reconcile says; without `progress` controllers were not asked."""

    verdict: Verdict
    state: SubjectState | None = None
    progress: Progress | None = None


@dataclass(slots=True)
class SubjectReconciler:
    """Reconciles one Subject at a time."""

    means: Means
    index: ClaimIndex
    resync_seconds: float
    on_status: Callable[[Key, Mapping[str, Any]], None] = lambda key, status: None
    """Called with the status of a Subject after each reconcile that has found one."""

    randomness: random.Random = field(default_factory=random.Random)

    async def reconcile(self, key: Key) -> float | None:
        """Do what is to be done now; returns after how many seconds to do it again, or `GONE`.

        Raises `RetryAfter` or a `KubeError` for what may be better next time.
        """
        try:
            live = await self.means.client.get(kinds.SUBJECT, key.name, key.namespace)
        except NotFound:
            self.index.forget(key)
            return GONE
        self.index.saw(SUBJECT, live)
        try:
            if live["metadata"].get("deletionTimestamp"):
                return await self._delete(key, live)
            return await self._reconcile(key, live)
        except NotOurs:
            return self.resync_seconds

    async def _reconcile(self, key: Key, live: Mapping[str, Any]) -> float:
        try:
            subject = read_subject(dict(live))
        except ManifestError as error:
            await self._tell(key, live, _Found(Verdict(False, reasons.INVALID_SPEC, str(error))))
            return self._regular()
        deletes = subject.spec.deletion_policy == "Delete"
        if has_finalizer(live, FINALIZER) != deletes:
            live = await set_finalizer(kinds.SUBJECT, live, FINALIZER, deletes, self.means)
        try:
            found = await self._serve(key, live, subject)
        except _Stopped as stop:
            found = _Found(stop.verdict)
        await self._tell(key, live, found)
        again = found.verdict.again_seconds
        return self._regular() if again is None else min(self._regular(), again)

    def _regular(self) -> float:
        return self.resync_seconds * (1 - RESYNC_SPREAD * self.randomness.random())

    async def _serve(self, key: Key, live: Mapping[str, Any], subject: Subject) -> _Found:
        """Ask for what is to be done, and judge what is agreed on then. Raises `_Stopped`."""
        older = self.index.older(key)
        if older is not None:
            text = f"{older.kind} {older.name} was there first for {subject.subject}; delete one of the two"
            raise _Stopped(Verdict(False, reasons.NAME_TAKEN, text))
        observed, view = await self._observe(key, subject)
        refusal = None
        async with subject_requests.connect(view) as admin:
            observed = replace(observed, state=await _described(admin, subject.subject))
            request = plan.decide_request(observed)
            if request is not None:
                try:
                    observed = replace(observed, state=await self._ask(live, admin, request))
                except SubjectRefused as error:
                    refusal = str(error)
                    await self.means.events.emit(live, reasons.REFUSED, refusal, warning=True)
        return _Found(plan.judge(observed, refusal), observed.state, plan.progress_of(observed))

    async def _ask(self, live: Mapping[str, Any], admin: SubjectAdmin, request: Request) -> SubjectState:
        if not self.means.leads():
            raise NotLeading("this operator leads no more")
        try:
            state = await subject_requests.carry_out(admin, request)
        except SubjectsUnserved as error:
            raise _Stopped(_too_old(error)) from error
        except ControllersSilent as error:
            raise _Stopped(_silent(str(error))) from error
        count = len(newest(state))
        if isinstance(request, Create):
            text = f"created {state.name} with {count} partitions on {', '.join(state.route)}"
            await self.means.events.emit(live, "SubjectCreated", text)
        else:
            where = f" on {', '.join(request.route)}" if request.route else ""
            text = f"gave {state.name} {count} partitions{where} instead of {request.before}"
            await self.means.events.emit(live, "SubjectScaled", text)
        log.info("subject requested", subject=state.name, generation=state.generation, partitions=count)
        return state

    async def _observe(
        self, key: Key, subject: Subject, *, deleting: bool = False
    ) -> tuple[Observed, ControllersView]:
        """What is known but for the subject itself; to delete it takes no valid BrokerSet.

        Raises `_Stopped` and `NotOurs`.
        """
        name = subject.spec.broker_set_ref.name
        try:
            broker_set = await self.means.client.get(kinds.BROKER_SET, name, key.namespace)
        except NotFound:
            where = f"in namespace {key.namespace}"
            text = f"there is no BrokerSet {name} {where}; create it, or correct brokerSetRef"
            raise _Stopped(Verdict(False, reasons.BROKER_SET_MISSING, text)) from None
        ensure_ours(broker_set, self.means)
        if elects_itself(broker_set):
            text = (
                f"BrokerSet {name} is in mode dledger, and ordered subjects need controllers; use a set in"
                " mode controller"
            )
            raise _Stopped(Verdict(False, reasons.BROKER_SET_UNSUPPORTED, text))
        groups: tuple[str, ...] = ()
        try:
            groups = tuple(read_manifest(broker_set).broker_names)
        except ManifestError:
            text = f"the BrokerSet {name} is invalid; see its condition Ready"
            if not deleting:
                raise _Stopped(Verdict(False, reasons.BROKER_SET_INVALID, text)) from None
        view = await query_groups(broker_set, self.means)
        if not view.agreed:
            serving = controllers_of(broker_set)
            raise _Stopped(
                _silent(f"no controller of {serving} leads; see the BrokerSet's condition ControllersReady")
            )
        foreign = frozenset(await foreign_groups(broker_set, view.groups, self.means))
        if taken := sorted(foreign.intersection(groups)):
            text = f"not of this set: {', '.join(taken)}; see condition IdentityConflict of {name}"
            raise _Stopped(Verdict(False, reasons.BROKER_SET_INVALID, text, plan.WAIT_SECONDS))
        living = {group for group, state in view.groups.items() if master_address(state) is not None}
        observed = Observed(
            wanted=subject,
            set_groups=groups,
            foreign_groups=foreign,
            with_master=frozenset(living.intersection(groups)),
        )
        return observed, view

    # -- deletion -----------------------------------------------------------------------------------------

    async def _delete(self, key: Key, live: Mapping[str, Any]) -> float | None:
        """Delete the subject if the policy says so, then let the object go."""
        if not has_finalizer(live, FINALIZER):
            return None
        try:
            await self._delete_at_controllers(key, read_subject(dict(live)))
        except ManifestError:
            log.warning("subject of an invalid manifest is kept", subject=str(key))
        except _Stopped as stop:
            if stop.verdict.reason not in NOTHING_THERE:
                text, refusal = stop.verdict.message, stop.verdict.refusal
                waits = Verdict(False, reasons.DELETION_WAITS, text, plan.WAIT_SECONDS, refusal)
                await self._tell(key, live, _Found(waits))
                return plan.WAIT_SECONDS
        await set_finalizer(kinds.SUBJECT, live, FINALIZER, False, self.means)
        self.index.forget(key)
        return None

    async def _delete_at_controllers(self, key: Key, subject: Subject) -> None:
        # Whoever turned the policy to Retain before deleting keeps the messages.
        if subject.spec.deletion_policy != "Delete" or await self._is_kept(key):
            return
        observed, view = await self._observe(key, subject, deleting=True)
        async with subject_requests.connect(view) as admin:
            observed = replace(observed, state=await _described(admin, subject.subject))
            if not plan.decide_deletion(observed):
                return
            if not self.means.leads():
                raise NotLeading("this operator leads no more")
            try:
                await subject_requests.delete(admin, subject.subject)
            except SubjectRefused as error:
                raise _Stopped(Verdict(False, reasons.REFUSED, str(error), refusal=str(error))) from error
            except (SubjectsUnserved, ControllersSilent) as error:
                raise _Stopped(_silent(str(error))) from error
        log.info("subject deleted", subject=subject.subject, set=f"{key.namespace}/{observed.set_name}")

    async def _is_kept(self, key: Key) -> bool:
        """Whether another object stands for the same subject; its event may be on its way, all are listed."""
        listing = await self.means.client.list(kinds.SUBJECT, key.namespace)
        for item in listing.items:
            self.index.saw(SUBJECT, item)
        return bool(self.index.others(key))

    async def _tell(self, key: Key, live: Mapping[str, Any], found: _Found) -> None:
        moment = datetime.fromtimestamp(self.means.clock.now_ms() // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name = str((live.get("spec") or {}).get("subject") or key.name)
        status = status_of(live, name, found.verdict, moment, state=found.state, progress=found.progress)
        await write_status(kinds.SUBJECT, live, status, self.means)
        self.on_status(key, status)


async def _described(admin: SubjectAdmin, name: str) -> SubjectState | None:
    """The subject as agreed. Raises `_Stopped`."""
    try:
        return await subject_requests.describe(admin, name)
    except SubjectsUnserved as error:
        raise _Stopped(_too_old(error)) from error
    except ControllersSilent as error:
        raise _Stopped(_silent(str(error))) from error


def _silent(text: str) -> Verdict:
    return Verdict(False, reasons.CONTROLLERS_SILENT, text, plan.WAIT_SECONDS)


def _too_old(error: SubjectsUnserved) -> Verdict:
    text = f"the controllers know no ordered subjects ({error}); give the BrokerSet a newer image"
    return Verdict(False, reasons.CONTROLLERS_TOO_OLD, text, plan.REFUSED_SECONDS)
