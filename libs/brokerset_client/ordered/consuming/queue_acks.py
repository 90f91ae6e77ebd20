"""Acknowledgements of one queue, and its release when the session has done with it."""

from __future__ import annotations

import asyncio

import structlog

from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.ordered.consuming.partition_handlers import MessageLanes, PartitionHandlers
from brokerset_client.ordered.consuming.queue_claim import QueueClaim, QueueWakes
from brokerset_client.ordered.consuming.queue_requests import AckRefused
from brokerset_client.ordered.consuming.registration import Registration
from brokerset_protocol.codes import ResponseCode

log = structlog.get_logger(__name__)


class QueueAcks:
    """Acknowledges what the lanes of a claim say is done, in ranges, as long as the permission lasts."""

    def __init__(
        self,
        registration: Registration,
        claim: QueueClaim,
        handlers: PartitionHandlers,
        wakes: QueueWakes,
    ) -> None:
        self._registration = registration
        self._claim = claim
        self._handlers = handlers
        self._wakes = wakes

    async def acknowledge(self) -> None:
        """One acknowledgement that was confirmed, or a wait until there is one. Raises `ClientError`."""
        registration, settings, wake = self._registration, self._registration.settings, self._wakes.ack
        wake.clear()
        lanes = self._claim.lanes
        found = None if lanes is None else lanes.ack_range
        if lanes is None or found is None or not registration.may_go_on():
            await wake.wait()
            return
        until = registration.clock.monotonic() + settings.ack_seconds
        while self._handlers.running and found[1] - found[0] + 1 < settings.ack_batch:
            # More may come with the same request.
            left = until - registration.clock.monotonic()
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    await wake.wait()
            except TimeoutError:
                break
            wake.clear()
            if lanes is not self._claim.lanes or lanes.ack_range is None:
                return
            found = lanes.ack_range
        wake.set()  # there may be more behind it
        await self._acknowledge(lanes)

    async def finish(self) -> None:
        """All acks confirmed first, then the release: whoever is next reads the final position."""
        failures = 0
        claim = self._claim
        lanes = claim.lanes
        while lanes is not None and lanes is claim.lanes and lanes.ack_range is not None:
            self._wakes.ack.clear()
            if not self._registration.may_go_on():
                await self._wakes.ack.wait()
                continue
            try:
                await self._acknowledge(lanes)
            except ClientError as error:
                claim.note(error)
                failures += 1
                await asyncio.sleep(self._registration.trouble_seconds(failures))
        if lanes is not None:
            await self._release()

    async def _acknowledge(self, lanes: MessageLanes) -> None:
        """Acknowledge what is done, if the permission allows. Raises `ClientError`."""
        claim = self._claim
        if not claim.is_confirmed:
            await claim.confirm()
        found = lanes.ack_range
        if lanes is not claim.lanes or found is None or not self._registration.may_go_on():
            return
        asked_at = self._registration.clock.monotonic()
        try:
            answer = await claim.queue.acknowledge(*found)
        except AckRefused as error:
            # The position is another one than we know: the claim says which.
            log.warning("ack was refused", queue=claim.name, reason=str(error), position=error.position)
            claim.is_confirmed = False
            raise
        if lanes is not claim.lanes:
            return
        self._registration.counters.acks += 1
        claim.acknowledged(lanes, asked_at, found[1], answer)

    async def _release(self) -> None:
        for attempt in range(1, self._registration.settings.release_attempts + 1):
            try:
                await self._claim.queue.release()
                return
            except ClientError as error:
                if isinstance(error, RequestRefused) and error.code == ResponseCode.BROKERSET_STALE_EPOCH:
                    return
                log.warning("release failed", queue=self._claim.name, attempt=attempt, reason=str(error))
                await asyncio.sleep(self._registration.trouble_seconds(attempt))
