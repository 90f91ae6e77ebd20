"""What an administrator asks controllers about ordered subjects: create, scale, describe, delete them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import AnswerTimeout, ClientError, RequestRefused
from brokerset_client.instance import readable
from brokerset_client.subject_facts import is_open, open_partitions
from brokerset_protocol.bodies.ordered import SubjectState, SubjectStates
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers import ordered as fields
from brokerset_protocol.subject_words import OrderStrategy

OPEN_SECONDS: Final = 30.0
"""How long is waited by default until all partitions of the newest generation take messages."""

OPEN_PAUSE_SECONDS: Final = 0.1
"""Pause between two requests how far the partitions are."""


class SubjectAdmin(ControllerAdmin):
    """Requests about ordered subjects, each to the controller that leads; use it with `async with`.

    All raise `ClientError`s: `RequestRefused` with code 2111 for an unknown subject, and with 2110 and a text
    that says what to do for what cannot be done.
    """

    async def create_subject(
        self,
        subject: str,
        order_strategy: OrderStrategy,
        *,
        partitions: int | None = None,
        route: Sequence[str] = (),
    ) -> SubjectState:
        """Create a subject, on the broker groups of `route` or on some of the controllers' choice.

        To repeat it is harmless.
        """
        header = fields.CreateSubject(
            subject=subject,
            order_strategy=order_strategy,
            partitions=partitions,
            route=";".join(route) or None,
        )
        return _one(await self.ask_leader(RequestCode.BROKERSET_CREATE_SUBJECT, header), subject)

    async def scale_subject(
        self, subject: str, partitions: int, *, route: Sequence[str] = ()
    ) -> SubjectState:
        """Give a subject another number of partitions. Answered when that is agreed on, and not yet open."""
        header = fields.ScaleSubject(subject=subject, partitions=partitions, route=";".join(route) or None)
        return _one(await self.ask_leader(RequestCode.BROKERSET_SCALE_SUBJECT, header), subject)

    async def wait_until_open(
        self,
        subject: str,
        *,
        generation: int = 0,
        timeout: float = OPEN_SECONDS,
        progress: Callable[[SubjectState], None] = lambda _state: None,
    ) -> SubjectState:
        """Wait until all partitions of the newest generation, at least `generation`, take messages.

        `progress` gets each state that is seen. Controllers that do not answer for a while are asked again.
        Raises `AnswerTimeout`, whose text says what keeps it, after `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        why = "the controllers have not answered"
        while True:
            try:
                state = await self.subject(subject)
            except RequestRefused:
                raise
            except ClientError as error:
                why = str(error)
            else:
                progress(state)
                if state.generation >= generation and is_open(state):
                    return state
                number, of = open_partitions(state)
                why = f"{number} of {of} partitions are open"
                why += f"; {'; '.join(state.problems)}" if state.problems else ""
            if loop.time() >= deadline:
                raise AnswerTimeout(f"subject {subject!r} is not open after {timeout:g} s: {why}")
            await asyncio.sleep(OPEN_PAUSE_SECONDS)

    async def delete_subject(self, subject: str) -> None:
        """Delete a subject with all its messages. Refused while a group of consumers has members."""
        await self.ask_leader(RequestCode.BROKERSET_DELETE_SUBJECT, fields.DeleteSubject(subject=subject))

    async def subjects(self, names: Sequence[str] = ()) -> tuple[SubjectState, ...]:
        """The subjects of these names, or all, as agreed and as the leader hears their consumers."""
        body = orjson.dumps(list(names)) if names else b""
        answer = await self.ask_leader(RequestCode.BROKERSET_DESCRIBE_SUBJECTS, body=body)
        return readable(SubjectStates.from_json, answer.body).subjects

    async def subject(self, name: str) -> SubjectState:
        """One subject."""
        for state in await self.subjects([name]):
            if state.name == name:
                return state
        raise RequestRefused(ResponseCode.BROKERSET_SUBJECT_UNKNOWN, f"there is no subject {name!r}")

    async def remove_consumer_group(self, subject: str, group: str) -> None:
        """Forget a group of consumers, and with it how it consumes and which partitions it has drained.

        Refused while it has members. Its positions at the brokers stay.
        """
        header = fields.RemoveConsumerGroup(subject=subject, consumer_group=group)
        await self.ask_leader(RequestCode.BROKERSET_REMOVE_CONSUMER_GROUP, header)


def _one(answer: Command, subject: str) -> SubjectState:
    for state in readable(SubjectStates.from_json, answer.body).subjects:
        if state.name == subject:
            return state
    raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the answer does not describe {subject!r}")
