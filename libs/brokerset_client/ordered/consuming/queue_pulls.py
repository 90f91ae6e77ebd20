"""Pulls of one queue: what comes next, and once more what was dropped from memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import structlog

from brokerset_client.calls import PullStatus
from brokerset_client.ordered.consuming.ordered_message import OrderedMessage, read_ordered
from brokerset_client.ordered.consuming.partition_handlers import MessageLanes, PartitionHandlers
from brokerset_client.ordered.consuming.queue_claim import QueueClaim, QueueWakes
from brokerset_client.ordered.consuming.queue_requests import PulledMessages
from brokerset_client.ordered.consuming.registration import Registration

log = structlog.get_logger(__name__)

QUICK_SECONDS: Final = 0.05
EMPTY_ANSWERS_MAX: Final = 8
"""Empty answers in a row that came so quickly: the broker has no long polling, and pulls slow down."""

EMPTY_PAUSE_SECONDS: Final = 0.2


class QueuePulls:
    """Pulls into the lanes of a claim as long as they have room and the permission allows."""

    def __init__(
        self,
        registration: Registration,
        partition_id: int,
        claim: QueueClaim,
        handlers: PartitionHandlers,
        wakes: QueueWakes,
        *,
        stopping: asyncio.Event,
    ) -> None:
        self._registration = registration
        self._partition_id = partition_id
        self._claim = claim
        self._handlers = handlers
        self._wakes = wakes
        self._stopping = stopping
        self._empty = 0

    async def pull(self) -> bool:
        """A pull, a claim, or a wait until one may start; True: a pull was answered. Raises `ClientError`."""
        registration, settings, claim = self._registration, self._registration.settings, self._claim
        self._wakes.pull.clear()
        paused = registration.paused
        if not registration.may_begin() or (paused and not self._handlers.running) or self._stopping.is_set():
            await self._wakes.pull.wait()
            return False
        if not claim.is_confirmed or claim.lanes is None:
            await claim.confirm()
            return False
        lanes = claim.lanes
        if not lanes.has_room:
            lanes.shed()
        if paused or not lanes.has_room or claim.is_drained:
            await self._wait()
            return False
        now = registration.clock.monotonic()
        suspend_ms = min(settings.suspend_ms, int(registration.permission.remaining(now) * 1000))
        suspend_ms = registration.rules.suspend_ms(suspend_ms, sealed=claim.sealed_end is not None)
        pulled = await claim.queue.pull(lanes.pulled_to, settings.pull_batch, registration.filter, suspend_ms)
        if lanes is not claim.lanes or self._stopping.is_set():
            return False
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            await self._moved(lanes, pulled)
        else:
            await self._take(lanes, pulled, now)
        return True

    async def refill(self) -> None:
        """Pull what was shed and is the next one of its lane, or wait until there is such a message."""
        registration, settings, claim = self._registration, self._registration.settings, self._claim
        self._wakes.refill.clear()
        lanes = claim.lanes
        wanted = None if lanes is None else lanes.wanted
        may = registration.may_begin() and not registration.paused and claim.is_confirmed
        full = settings.lanes.unhandled_max
        if lanes is not None and wanted is not None and lanes.unhandled >= full:
            lanes.shed()  # also what came later for the same lanes, and waits behind what is wanted
        if lanes is None or wanted is None or not may or lanes.unhandled >= full:
            await self._wakes.refill.wait()
            return
        pulled = await claim.queue.pull(wanted, settings.pull_batch, registration.filter, 0)
        if lanes is not claim.lanes or self._stopping.is_set():
            return
        if pulled.status is PullStatus.OFFSET_ILLEGAL or pulled.next_sequence <= wanted:
            # The group was reset, or the messages are gone: the claim says where to go on.
            claim.is_fresh = False
            await claim.forget()
            registration.counters.resynced += 1
            log.warning("position was moved", queue=claim.name, wanted=wanted, next=pulled.next_sequence)
            self._wakes.pull.set()
            return
        lanes.refill(self._read(pulled), wanted, pulled.next_sequence)
        self._handlers.dispatch()

    async def _take(self, lanes: MessageLanes, pulled: PulledMessages, asked_at: float) -> None:
        registration, claim = self._registration, self._claim
        claim.is_fresh = False
        before = lanes.pulled_to
        lanes.add(self._read(pulled), pulled.next_sequence)
        claim.observe(asked_at, pulled.max_queue_offset, pulled.group_position)
        if lanes.pulled_to > before:
            self._empty = 0
            self._handlers.dispatch()
            self._wakes.ack.set()  # what was filtered away is done
            return
        if pulled.status is PullStatus.NO_MATCHED_MSG:
            return  # a filter has dropped so many that the broker wants to be asked again
        now = registration.clock.monotonic()
        if now - asked_at < QUICK_SECONDS:
            self._empty += 1
            if self._empty > EMPTY_ANSWERS_MAX:
                await asyncio.sleep(EMPTY_PAUSE_SECONDS)
        else:
            self._empty = 0

    def _read(self, pulled: PulledMessages) -> Iterator[tuple[int, int, OrderedMessage]]:
        registration = self._registration
        for sequence, view in pulled.messages:
            message = read_ordered(view, registration.subject, self._partition_id)
            yield sequence, registration.rules.lane(sequence, message), message

    async def _wait(self) -> None:
        """Until there may be room; whoever shares the queue is not silent for long meanwhile."""
        silence, claim = self._registration.rules.silence_seconds, self._claim
        left = None if silence is None else claim.asked_at + silence - self._registration.clock.monotonic()
        try:
            async with asyncio.timeout(left):
                await self._wakes.pull.wait()
        except TimeoutError:
            claim.is_confirmed = False

    async def _moved(self, lanes: MessageLanes, pulled: PulledMessages) -> None:
        """The broker does not go on where we would: somebody reset the group, or retention was faster."""
        registration, claim = self._registration, self._claim
        if claim.is_fresh and pulled.next_sequence > lanes.pulled_to:
            # The position has just been claimed, so it is the group's; the messages there are gone.
            count = pulled.next_sequence - lanes.pulled_to
            registration.counters.expired += count
            log.error(
                "messages expired before they were consumed",
                queue=claim.name,
                position=lanes.pulled_to,
                next=pulled.next_sequence,
            )
            lanes.add((), pulled.next_sequence)
            claim.is_fresh = False
            self._wakes.ack.set()
            return
        registration.counters.resynced += 1
        log.warning("position was moved", queue=claim.name, wanted=lanes.pulled_to, next=pulled.next_sequence)
        if claim.is_fresh:
            await asyncio.sleep(registration.trouble_seconds(3))
        await claim.forget()
        await claim.confirm()
