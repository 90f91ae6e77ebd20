"""What a Subject's reconcile asks controllers, and what each kind of failure means."""

from __future__ import annotations

from typing import Final

from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.subject_admin import SubjectAdmin
from brokerset_operator.controllers_view import ControllersView
from brokerset_operator.ordered_subjects.observed import Create, Request
from brokerset_protocol.bodies.ordered import SubjectState
from brokerset_protocol.codes import ResponseCode

ASK_SECONDS: Final = 5.0
"""Time-out of one request to the controllers, an election among them included."""


def connect(view: ControllersView) -> SubjectAdmin:
    """Reach the controllers that have answered."""
    connecting = view.connecting
    return SubjectAdmin(list(view.addresses), timeout=ASK_SECONDS, tls=connecting.tls, sign=connecting.sign)


class SubjectRefused(Exception):
    """Controllers do not do what is wanted; the text is theirs."""


class SubjectsUnserved(Exception):
    """These controllers know nothing of subjects."""


class ControllersSilent(Exception):
    """Nobody answered, or nobody leads: what was asked may have been done."""


async def describe(admin: SubjectAdmin, name: str) -> SubjectState | None:
    """A subject as agreed; None if there is none. Raises `SubjectsUnserved` and `ControllersSilent`."""
    try:
        found = await admin.subjects([name])
    except ClientError as error:
        if _has_code(error, ResponseCode.BROKERSET_SUBJECT_UNKNOWN):
            return None
        raise _meaning(error) from error
    return next((state for state in found if state.name == name), None)


async def carry_out(admin: SubjectAdmin, request: Request) -> SubjectState:
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


async def delete(admin: SubjectAdmin, name: str) -> None:
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
