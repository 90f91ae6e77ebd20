"""A session's claim of one queue: what its broker has confirmed of it, and the messages that were pulled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.ordered.consuming.lanes import Lanes
from brokerset_client.ordered.consuming.partition_handlers import MessageLanes, PartitionHandlers
from brokerset_client.ordered.consuming.queue_requests import OwnedQueue
from brokerset_client.ordered.consuming.registration import Registration
from brokerset_client.retry import STALE_ROUTE_CODES
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.ordered import AcknowledgeResponse

log = structlog.get_logger(__name__)

ABSENCE_SECONDS: Final = 60.0
"""A broker that has not answered for so long may have been down, and be late with delayed messages. The time
that a pull may wait comes on top."""


@dataclass(frozen=True, slots=True)
class QueueWakes:
    """What each task of a queue waits for when it has nothing to do."""

    pull: asyncio.Event = field(default_factory=asyncio.Event)
    refill: asyncio.Event = field(default_factory=asyncio.Event)
    ack: asyncio.Event = field(default_factory=asyncio.Event)

    def all(self) -> None:
        """Something that each of them may wait for has changed."""
        self.pull.set()
        self.refill.set()
        self.ack.set()


class QueueClaim:
    """Claims the queue when that is needed; pulls and acknowledgements read and advance it.

    `overtaken` is called when the broker says that a newer owner is known.
    """

    def __init__(
        self,
        registration: Registration,
        queue: OwnedQueue,
        handlers: PartitionHandlers,
        wakes: QueueWakes,
        *,
        overtaken: Callable[[], None],
        sealed_end: int | None,
    ) -> None:
        self._registration = registration
        self.queue = queue
        self._handlers = handlers
        self._wakes = wakes
        self._overtaken = overtaken
        self._claiming = asyncio.Lock()
        self.sealed_end = sealed_end
        """The queue offset behind the last message, if the queue is sealed."""

        self.is_confirmed = False
        """Whether the present master knows the claim, as far as it has said."""

        self.is_fresh = False
        """Whether nothing was pulled since the position was confirmed."""

        self.lanes: MessageLanes | None = None
        """What was pulled; None until the queue was claimed."""

        self.began_at = -1
        """The group's position when the session claimed the queue first."""

        self._said_position = -1
        self.asked_at = -math.inf
        """When the latest request was sent that was answered, by the consumer's monotonic clock."""

        self.max_offset = -1
        """What the next message of the queue will get, as last known."""

        self.empty_since: float | None = None
        """Since when there was nothing that the group has not handled, by the consumer's monotonic clock, and
        the broker was never absent."""

        self.empty_at: float | None = None
        """When the broker said so the last time; without an answer nothing is known of what came since."""

    @property
    def position(self) -> int:
        """The pull sequence below which all is confirmed as acknowledged; -1 as long as it is not known."""
        return -1 if self.lanes is None else self.lanes.position

    @property
    def group_position(self) -> int:
        """The queue offset below which the group has acknowledged everything; -1: not known."""
        return self._registration.rules.group_position(self.position, self._said_position)

    @property
    def is_drained(self) -> bool:
        """Whether everything up to the sealed end is acknowledged."""
        return self.sealed_end is not None and 0 <= self.sealed_end <= self.group_position

    @property
    def is_remembered(self) -> bool:
        """Whether the broker has not given the session's messages to others for its silence."""
        registration = self._registration
        return registration.clock.monotonic() < self.asked_at + registration.rules.remembered_seconds

    @property
    def name(self) -> str:
        """For logs."""
        queue = self.queue
        return f"{queue.topic}/{queue.broker_group}/{queue.queue_id} epoch {queue.epoch}"

    def seal(self, sealed_end: int | None) -> None:
        """The queue offset behind the last message is known."""
        if sealed_end is not None and self.sealed_end is None:
            self.sealed_end = sealed_end
            self.progressed()

    async def confirm(self) -> None:
        """Make the broker know our epoch, and learn where to go on. Raises `ClientError`."""
        async with self._claiming:
            if self.is_confirmed and self.lanes is not None:
                return
            lanes = self.lanes
            asked_at = self._registration.clock.monotonic()
            try:
                answer = await self.queue.claim(-1 if lanes is None else lanes.pulled_to)
            except RequestRefused as error:
                if error.code != ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE or lanes is None:
                    raise
                self._registration.counters.resynced += 1
                if self._registration.rules.shared:
                    log.warning("what was pulled is given again", queue=self.name, reason=str(error))
                else:
                    log.error(
                        "the queue ends before what was pulled: its broker has lost messages",
                        queue=self.name,
                        pulled_to=lanes.pulled_to,
                        reason=str(error),
                    )
                await self.forget()
                return
            self.is_confirmed = True
            self.seal(answer.sealed_end if answer.sealed_end >= 0 else None)
            if lanes is not None and lanes.position <= answer.position <= lanes.handled_to:
                lanes.acknowledged(answer.position)
            else:
                if lanes is not None:
                    log.warning(
                        "position was moved", queue=self.name, ours=lanes.position, next=answer.position
                    )
                    self._registration.counters.resynced += 1
                    await self.forget()
                    self.is_confirmed = True
                await self._handlers.quiet()  # keys of what was forgotten may still be handled
                self.lanes = Lanes(answer.position, self._registration.settings.lanes)
                self.is_fresh = True
                self._handlers.use(self.lanes)
            self.observe(asked_at, answer.max_offset, answer.group_position)
            if self.began_at < 0:
                self.began_at = self.group_position

    async def forget(self) -> None:
        """Drop what was pulled, and wait for its handlers: their messages come again."""
        self.is_confirmed = False
        self.lanes = None
        self.empty_since = self.empty_at = None
        self._handlers.use(None)
        await self._handlers.quiet()

    def progressed(self) -> None:
        """The confirmed position, or the end, may be another one."""
        if self.is_drained:
            self._registration.heartbeat_soon()
        self._wakes.pull.set()

    def observe(self, asked_at: float, max_offset: int, said_position: int) -> None:
        """What a claim or a pull has found: the end of the queue, and the position of a Shared group."""
        self._answered(asked_at, said_position)
        now = self._registration.clock.monotonic()
        usual = self._registration.settings.suspend_ms / 1000
        absent = self.empty_at is not None and now - self.empty_at > usual + ABSENCE_SECONDS
        if self.group_position < max_offset or max_offset != self.max_offset or absent:
            self.empty_since = self.empty_at = None
        if self.group_position >= max_offset:
            self.empty_at = now
            self.empty_since = now if self.empty_since is None else self.empty_since
        self.max_offset = max_offset
        self.progressed()

    def acknowledged(
        self, lanes: MessageLanes, asked_at: float, last: int, answer: AcknowledgeResponse
    ) -> None:
        """The broker has confirmed everything up to, and with, the pull sequence `last`."""
        lanes.acknowledged(min(max(answer.position, last + 1), lanes.handled_to))
        self._answered(asked_at, answer.group_position)
        self.progressed()

    def _answered(self, asked_at: float, said_position: int) -> None:
        if said_position >= 0:
            self._said_position = said_position
        was_remembered = self.is_remembered
        self.asked_at = max(self.asked_at, asked_at)
        if not was_remembered:
            self._handlers.dispatch()

    def note(self, error: ClientError) -> None:
        """What an error of any request says about the claim."""
        if not isinstance(error, RequestRefused):
            return
        if error.code == ResponseCode.BROKERSET_STALE_EPOCH:
            self._overtaken()
        elif error.code in (ResponseCode.BROKERSET_NOT_CLAIMED, ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE):
            self.is_confirmed = False
            self._wakes.pull.set()
        elif error.code in STALE_ROUTE_CODES:
            self._registration.transport.route_is_stale(self.queue.subject)
