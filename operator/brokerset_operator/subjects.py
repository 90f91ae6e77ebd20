"""Subjects: created and scaled by the controllers of their set, deleted as their policy says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from brokerset_client.subject_admin import SubjectAdmin
from brokerset_kube import kinds
from brokerset_operator import subject_requests
from brokerset_operator.brokers_view import master_address
from brokerset_operator.claim_reconciler import ClaimReconciler, Stopped, valid_manifest
from brokerset_operator.controllers_view import ControllersView
from brokerset_operator.ledger_view import elects_itself
from brokerset_operator.model import claim_reasons, names
from brokerset_operator.model.verdict import WAIT_SECONDS, Verdict
from brokerset_operator.ordered_subjects import plan, reasons
from brokerset_operator.ordered_subjects.observed import Create, Observed, Request, newest
from brokerset_operator.ordered_subjects.plan import Progress
from brokerset_operator.ordered_subjects.status import status_of
from brokerset_operator.reconcile_queue import Key
from brokerset_operator.set_access import foreign_groups
from brokerset_operator.subject_requests import (
    ControllersSilent,
    SubjectRefused,
    SubjectsUnserved,
)
from brokerset_protocol.bodies.ordered import SubjectState
from brokerset_spec.manifest import ManifestError
from brokerset_spec.subject_manifest import Subject, read_subject

log = structlog.get_logger(__name__)

SUBJECT: Final = "Subject"
"""Kind of the keys of these reconciles."""

FINALIZER: Final = f"{names.DOMAIN}/subject"
"""Keeps a Subject whose policy is Delete until controllers have let go of it."""


NOTHING_THERE: Final = (claim_reasons.SET_MISSING, reasons.BROKER_SET_UNSUPPORTED)
"""Reasons for which an object is let go at once: there are no controllers that have the subject."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What controllers said of a subject."""

    state: SubjectState | None
    progress: Progress


class SubjectReconciler(ClaimReconciler[Subject, Agreed]):
    """Reconciles one Subject at a time; details are what controllers agree on."""

    KIND = kinds.SUBJECT
    FINALIZER = FINALIZER

    def _read(self, live: dict[str, Any]) -> Subject:
        return read_subject(live)

    def _waits_for_deletion(self, manifest: Subject) -> bool:
        return manifest.spec.deletion_policy == "Delete"

    async def _serve(
        self, key: Key, live: Mapping[str, Any], manifest: Subject
    ) -> tuple[Verdict, Agreed | None]:
        """Ask for what is to be done, and judge what is agreed on then."""
        observed, view = await self._observe(key, manifest)
        refusal = None
        async with subject_requests.connect(view) as admin:
            observed = replace(observed, state=await _described(admin, manifest.subject))
            request = plan.decide_request(observed)
            if request is not None:
                try:
                    observed = replace(observed, state=await self._ask(live, admin, request))
                except SubjectRefused as error:
                    refusal = str(error)
                    await self.means.events.emit(live, reasons.REFUSED, refusal, warning=True)
        return plan.judge(observed, refusal), Agreed(observed.state, plan.progress_of(observed))

    async def _ask(self, live: Mapping[str, Any], admin: SubjectAdmin, request: Request) -> SubjectState:
        self._ensure_leading()
        try:
            state = await subject_requests.carry_out(admin, request)
        except SubjectsUnserved as error:
            raise _too_old(error) from error
        except ControllersSilent as error:
            raise _silent(str(error)) from error
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

        Raises `Stopped` and `NotOurs`.
        """
        name = subject.spec.broker_set_ref.name
        broker_set = await self._set_of(key, name)
        if elects_itself(broker_set):
            text = (
                f"BrokerSet {name} is in mode dledger, and ordered subjects need controllers; use a set in"
                " mode controller"
            )
            raise Stopped(reasons.BROKER_SET_UNSUPPORTED, text)
        groups: tuple[str, ...] = ()
        try:
            groups = tuple(valid_manifest(broker_set).broker_names)
        except Stopped:
            if not deleting:
                raise
        view = await self._view_of(broker_set)
        await self._own_groups(broker_set, view, groups)
        foreign = frozenset(await foreign_groups(broker_set, view.groups, self.means))
        living = {group for group, state in view.groups.items() if master_address(state) is not None}
        observed = Observed(
            wanted=subject,
            set_groups=groups,
            foreign_groups=foreign,
            with_master=frozenset(living.intersection(groups)),
        )
        return observed, view

    # -- deletion -----------------------------------------------------------------------------------------

    async def _delete_at_set(self, key: Key, live: Mapping[str, Any]) -> None:
        try:
            subject = read_subject(dict(live))
        except ManifestError:
            log.warning("subject of an invalid manifest is kept", subject=str(key))
            return
        # Whoever turned the policy to Retain before deleting keeps the messages.
        if subject.spec.deletion_policy != "Delete":
            return
        try:
            await self._delete_at_controllers(key, subject)
        except Stopped as stop:
            if stop.verdict.reason not in NOTHING_THERE:
                raise

    async def _delete_at_controllers(self, key: Key, subject: Subject) -> None:
        observed, view = await self._observe(key, subject, deleting=True)
        async with subject_requests.connect(view) as admin:
            observed = replace(observed, state=await _described(admin, subject.subject))
            if not plan.decide_deletion(observed):
                return
            self._ensure_leading()
            try:
                await subject_requests.delete(admin, subject.subject)
            except SubjectRefused as error:
                raise Stopped(reasons.REFUSED, str(error), refusal=str(error)) from error
            except (SubjectsUnserved, ControllersSilent) as error:
                raise _silent(str(error)) from error
        log.info("subject deleted", subject=subject.subject, set=f"{key.namespace}/{observed.set_name}")

    def _status(
        self, live: Mapping[str, Any], verdict: Verdict, moment: str, details: Agreed | None
    ) -> dict[str, Any]:
        name = str((live.get("spec") or {}).get("subject") or live["metadata"]["name"])
        if details is None:
            return status_of(live, name, verdict, moment)
        return status_of(live, name, verdict, moment, state=details.state, progress=details.progress)


async def _described(admin: SubjectAdmin, name: str) -> SubjectState | None:
    """The subject as agreed. Raises `Stopped`."""
    try:
        return await subject_requests.describe(admin, name)
    except SubjectsUnserved as error:
        raise _too_old(error) from error
    except ControllersSilent as error:
        raise _silent(str(error)) from error


def _silent(text: str) -> Stopped:
    return Stopped(claim_reasons.CONTROLLERS_SILENT, text, WAIT_SECONDS)


def _too_old(error: SubjectsUnserved) -> Stopped:
    text = f"the controllers know no ordered subjects ({error}); give the BrokerSet a newer image"
    return Stopped(reasons.CONTROLLERS_TOO_OLD, text, plan.REFUSED_SECONDS)
