"""Requests about ordered subjects from the wire to the service, and back (docs/ordered-protocol.md)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, Final, TypeVar

from brokerset_controller.ordered import limits
from brokerset_controller.request_limits import SHOWN_MAX, broker_names, check_body, check_size
from brokerset_controller.subject_service import SubjectService
from brokerset_protocol.bodies.ordered import OwnedReport, SubjectStates
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import (
    AssignmentChanged,
    AssignmentChangedResponse,
    ConsumerHeartbeat,
    CreateSubject,
    DeleteSubject,
    GetSubjectRoute,
    RemoveConsumerGroup,
    ScaleSubject,
    StartProducer,
    StartProducerResponse,
    SubjectRouteResponse,
)
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy

ROUTE_BYTES_MAX: Final = limits.BROKER_GROUPS_MAX * 256
"""Bytes of a route: as many broker groups as a subject can have, with the longest names."""

_E = TypeVar("_E", bound=StrEnum)


class SubjectProcessors:
    """The handlers of requests about subjects."""

    def __init__(self, service: SubjectService) -> None:
        self._service = service

    def handlers(self) -> dict[RequestCode, Callable[[object, Command], Coroutine[Any, Any, Command]]]:
        """The handler of each request code; connections do not matter to them."""
        code = RequestCode
        return {
            code.BROKERSET_CREATE_SUBJECT: self.create,
            code.BROKERSET_SCALE_SUBJECT: self.scale,
            code.BROKERSET_DELETE_SUBJECT: self.delete,
            code.BROKERSET_DESCRIBE_SUBJECTS: self.describe,
            code.BROKERSET_SUBJECT_ROUTE: self.route,
            code.BROKERSET_START_PRODUCER: self.start_producer,
            code.BROKERSET_CONSUMER_HEARTBEAT: self.heartbeat,
            code.BROKERSET_ASSIGNMENT_CHANGED: self.assignment_changed,
            code.BROKERSET_REMOVE_CONSUMER_GROUP: self.remove_group,
        }

    # -- administrators -----------------------------------------------------------------------------------

    async def create(self, connection: object, command: Command) -> Command:
        """21021."""
        header = CreateSubject.from_ext(command.ext)
        _check_subject(header.subject)
        order = _word(OrderStrategy, header.order_strategy, "orderStrategy")
        return _states(
            command,
            await self._service.create(header.subject, order, header.partitions, _route(header.route)),
        )

    async def scale(self, connection: object, command: Command) -> Command:
        """21022."""
        header = ScaleSubject.from_ext(command.ext)
        _check_subject(header.subject)
        states = await self._service.scale(header.subject, header.partitions, _route(header.route))
        return _states(command, states)

    async def delete(self, connection: object, command: Command) -> Command:
        """21023."""
        header = DeleteSubject.from_ext(command.ext)
        _check_subject(header.subject)
        await self._service.delete(header.subject)
        return command.reply()

    async def describe(self, connection: object, command: Command) -> Command:
        """21024."""
        names = broker_names(command.body) if command.body else ()
        return _states(command, await self._service.describe(names))

    async def remove_group(self, connection: object, command: Command) -> Command:
        """21029."""
        header = RemoveConsumerGroup.from_ext(command.ext)
        _check_subject(header.subject)
        _refuse(limits.consumer_group_problem(header.consumer_group))
        await self._service.remove_group(header.subject, header.consumer_group)
        return command.reply()

    # -- producers ----------------------------------------------------------------------------------------

    async def route(self, connection: object, command: Command) -> Command:
        """21025."""
        header = GetSubjectRoute.from_ext(command.ext)
        _check_subject(header.subject)
        order = _optional_word(OrderStrategy, header.order_strategy, "orderStrategy")
        version, route = await self._service.route(
            header.subject,
            order,
            create=header.create,
            known_version=header.known_version,
            wait_ms=header.wait_ms,
        )
        return command.reply(
            ext=SubjectRouteResponse(version=version).to_ext(),
            body=b"" if route is None else route.to_json(),
        )

    async def start_producer(self, connection: object, command: Command) -> Command:
        """21026."""
        header = StartProducer.from_ext(command.ext)
        _check_subject(header.subject)
        epoch = await self._service.start_producer(header.subject, header.producer_id)
        return command.reply(ext=StartProducerResponse(producer_epoch=epoch).to_ext())

    # -- consumers ----------------------------------------------------------------------------------------

    async def heartbeat(self, connection: object, command: Command) -> Command:
        """21027."""
        header = ConsumerHeartbeat.from_ext(command.ext)
        _check_member(header.subject, header.consumer_group, header.session, header.client_id)
        consume = _word(ConsumeStrategy, header.consume_strategy, "consumeStrategy")
        order = _optional_word(OrderStrategy, header.order_strategy, "orderStrategy")
        report = OwnedReport.from_json(check_body(command.body)) if command.body else OwnedReport()
        answer, body = await self._service.heartbeat(header, consume, order, report)
        return command.reply(ext=answer.to_ext(), body=body.to_json())

    async def assignment_changed(self, connection: object, command: Command) -> Command:
        """21028."""
        header = AssignmentChanged.from_ext(command.ext)
        _check_member(header.subject, header.consumer_group, header.session, "")
        version = await self._service.assignment_changed(
            header.subject, header.consumer_group, header.session, header.version, header.wait_ms
        )
        return command.reply(ext=AssignmentChangedResponse(version=version).to_ext())


def _states(command: Command, states: SubjectStates) -> Command:
    return command.reply(body=states.to_json())


def _refusal(problem: str) -> Rejected:
    return Rejected(ResponseCode.BROKERSET_SUBJECT_REFUSED, problem)


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise _refusal(problem)


def _check_subject(name: str) -> None:
    _refuse(limits.subject_problem(name))


def _check_member(subject: str, group: str, session: str, client_id: str) -> None:
    _check_subject(subject)
    _refuse(limits.consumer_group_problem(group))
    _refuse(limits.session_problem(session, client_id))


def _word(kind: type[_E], text: str, field: str) -> _E:
    try:
        return kind(text)
    except ValueError:
        words = " or ".join(each.value for each in kind)
        raise _refusal(f"the header field {field} is {text[:SHOWN_MAX]!r}; send {words}") from None


def _optional_word(kind: type[_E], text: str | None, field: str) -> _E | None:
    return None if text is None else _word(kind, text, field)


def _route(text: str | None) -> tuple[str, ...]:
    """Broker groups that are joined by semicolons."""
    check_size(text, "route", ROUTE_BYTES_MAX, "ROUTE_BYTES_MAX")
    return tuple(name for name in (part.strip() for part in (text or "").split(";")) if name)
