"""What a Subject's reconcile asks controllers, and what each kind of failure means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import orjson

from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.instance import readable
from brokerset_operator.ordered_subjects.observed import Create, Request
from brokerset_protocol.bodies.ordered import SubjectState, SubjectStates
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.headers.ordered import CreateSubject, DeleteSubject, ScaleSubject
from brokerset_protocol.subject_words import OrderStrategy

ASK_SECONDS: Final = 5.0
"""Time-out of one request to the controllers, an election among them included."""


class SubjectRequests(Protocol):
    """Requests about subjects to the controllers of one set; all raise a `ClientError`."""

    async def subjects(self, names: Sequence[str]) -> Sequence[SubjectState]:
        """Subjects as agreed, those that there are."""

    async def create_subject(
        self, subject: str, order_strategy: OrderStrategy, *, partitions: int | None, route: Sequence[str]
    ) -> SubjectState:
        """Create a subject; harmless when it is there, just so."""

    async def scale_subject(self, subject: str, partitions: int, *, route: Sequence[str]) -> SubjectState:
        """Give a subject another number of partitions; answered when that is agreed on."""

    async def delete_subject(self, subject: str) -> None:
        """Delete a subject with its messages; refused while a group of consumers has members."""


Connect = Callable[[Sequence[str]], AbstractAsyncContextManager[SubjectRequests]]
"""Reaches the controllers at some addresses, of which the first is thought to lead."""


class ControllerSubjects(ControllerAdmin):
    """The requests over remoting."""

    async def subjects(self, names: Sequence[str]) -> Sequence[SubjectState]:
        """See `SubjectRequests`."""
        body = orjson.dumps(list(names))
        answer = await self._ask_leader(RequestCode.BROKERSET_DESCRIBE_SUBJECTS, None, body)
        return readable(SubjectStates.from_json, answer.body).subjects

    async def create_subject(
        self, subject: str, order_strategy: OrderStrategy, *, partitions: int | None, route: Sequence[str]
    ) -> SubjectState:
        """See `SubjectRequests`."""
        header = CreateSubject(
            subject=subject,
            order_strategy=order_strategy,
            partitions=partitions,
            route=";".join(route) or None,
        )
        answer = await self._ask_leader(RequestCode.BROKERSET_CREATE_SUBJECT, header)
        return _only(readable(SubjectStates.from_json, answer.body))

    async def scale_subject(self, subject: str, partitions: int, *, route: Sequence[str]) -> SubjectState:
        """See `SubjectRequests`."""
        header = ScaleSubject(subject=subject, partitions=partitions, route=";".join(route) or None)
        answer = await self._ask_leader(RequestCode.BROKERSET_SCALE_SUBJECT, header)
        return _only(readable(SubjectStates.from_json, answer.body))

    async def delete_subject(self, subject: str) -> None:
        """See `SubjectRequests`."""
        await self._ask_leader(RequestCode.BROKERSET_DELETE_SUBJECT, DeleteSubject(subject=subject))


def _only(answer: SubjectStates) -> SubjectState:
    if len(answer.subjects) != 1:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"{len(answer.subjects)} subjects in the answer, not one"
        )
    return answer.subjects[0]


def connect(addresses: Sequence[str]) -> ControllerSubjects:
    """Reach controllers; see `Connect`."""
    return ControllerSubjects(list(addresses), timeout=ASK_SECONDS)


class SubjectRefused(Exception):
    """Controllers do not do what is wanted; the text is theirs."""


class SubjectsUnserved(Exception):
    """These controllers know nothing of subjects."""


class ControllersSilent(Exception):
    """Nobody answered, or nobody leads: what was asked may have been done."""


async def describe(admin: SubjectRequests, name: str) -> SubjectState | None:
    """A subject as agreed; None if there is none. Raises `SubjectsUnserved` and `ControllersSilent`."""
    try:
        found = await admin.subjects([name])
    except ClientError as error:
        if _has_code(error, ResponseCode.BROKERSET_SUBJECT_UNKNOWN):
            return None
        raise _meaning(error) from error
    return next((state for state in found if state.name == name), None)


async def carry_out(admin: SubjectRequests, request: Request) -> SubjectState:
    """Have something done; returns the subject as it is agreed on then.

    Raises `SubjectRefused`, `SubjectsUnserved` and `ControllersSilent`.
    """
    try:
        if isinstance(request, Create):
            return await admin.create_subject(
                request.subject, request.order, partitions=request.partitions, route=request.route
            )
        return await admin.scale_subject(request.subject, request.partitions, route=request.route)
    except ClientError as error:
        raise _meaning(error) from error


async def delete(admin: SubjectRequests, name: str) -> None:
    """Delete a subject, if there is one. Raises as `carry_out`."""
    try:
        await admin.delete_subject(name)
    except ClientError as error:
        if not _has_code(error, ResponseCode.BROKERSET_SUBJECT_UNKNOWN):
            raise _meaning(error) from error


def _has_code(error: ClientError, code: ResponseCode) -> bool:
    return isinstance(error, RequestRefused) and error.code == code


def _meaning(error: ClientError) -> Exception:
    if _has_code(error, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
        return SubjectsUnserved(str(error))
    if isinstance(error, RequestRefused) and error.code in (
        ResponseCode.BROKERSET_SUBJECT_REFUSED,
        ResponseCode.BROKERSET_SUBJECT_UNKNOWN,
    ):
        return SubjectRefused(error.remark)
    return ControllersSilent(str(error))
