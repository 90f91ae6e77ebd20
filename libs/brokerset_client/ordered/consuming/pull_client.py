"""One queue that the session owns: claims, pulls, handlers, acknowledgements, and the way out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.ordered.consuming.partition_handlers import PartitionHandlers
from brokerset_client.ordered.consuming.queue_acks import QueueAcks
from brokerset_client.ordered.consuming.queue_claim import QueueClaim, QueueWakes
from brokerset_client.ordered.consuming.queue_pulls import QueuePulls
from brokerset_client.ordered.consuming.queue_requests import OwnedQueue
from brokerset_client.ordered.consuming.registration import Registration
from brokerset_protocol.codes import ResponseCode

log = structlog.get_logger(__name__)


class PullClient:
    """Consumes a queue from `start` until `stop` (graceful) or `drop` (somebody else owns it).

    Its tasks: one claims and pulls, one pulls again what had no room, one acknowledges, and one waits for
    the end of them. `is_ended` when nothing of it runs any more, handlers included.
    """

    def __init__(
        self,
        registration: Registration,
        queue: OwnedQueue,
        partition_id: int,
        sealed_end: int | None,
    ) -> None:
        self._registration = registration
        self.queue = queue
        self._wakes = QueueWakes()
        self._stop_wanted = asyncio.Event()
        self._dropped = False
        self._main: asyncio.Task[None] | None = None
        self._finish: asyncio.Task[None] | None = None
        self.released = False
        """Stopped, with all acks confirmed."""

        self.handlers = PartitionHandlers(
            registration,
            queue,
            progressed=self._progressed,
            blocked=self._lane_blocked,
            refused=lambda error: self.claim.note(error),
            may_start=lambda: self.claim.is_remembered,
        )
        self.claim = QueueClaim(
            registration,
            queue,
            self.handlers,
            self._wakes,
            overtaken=self._overtaken,
            sealed_end=sealed_end,
        )
        self._pulls = QueuePulls(
            registration,
            partition_id,
            self.claim,
            self.handlers,
            self._wakes,
            stopping=self._stop_wanted,
        )
        self._acks = QueueAcks(registration, self.claim, self.handlers, self._wakes)

    # -- from outside -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to consume."""
        self._main = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """The permission was extended, slots are free, or the subscription goes on."""
        self._wakes.all()
        self.handlers.dispatch()

    def retry_now(self) -> None:
        """Let messages that wait after a failure start again at once."""
        if self.claim.lanes is not None:
            self.claim.lanes.retry_now()
            self.handlers.dispatch()

    def stop(self) -> None:
        """Graceful: pull nothing, start no handler, wait for those that run, acknowledge, release."""
        self.handlers.stop()
        self._stop_wanted.set()

    def drop(self) -> None:
        """Somebody else owns the queue: stop at once; nothing that was handled is acknowledged any more."""
        self._dropped = True
        self.handlers.drop()
        self._stop_wanted.set()
        if self._finish is not None:
            self._finish.cancel()

    async def ended(self) -> None:
        """Until nothing of it runs."""
        if self._main is not None:
            await asyncio.wait([self._main])

    async def kill(self) -> None:
        """End all tasks now; handlers in threads run on, and do not count."""
        self.drop()
        if self._main is not None:
            self._main.cancel()
            await asyncio.wait([self._main])
        await self.handlers.kill()

    @property
    def is_ended(self) -> bool:
        """Whether nothing of it runs."""
        return self._main is None or self._main.done()

    @property
    def is_dropped(self) -> bool:
        """Whether somebody else owns it."""
        return self._dropped

    # -- tasks --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pull = loop.create_task(self._guarded(self._pulls.pull, "pull"))
        ack = loop.create_task(self._guarded(self._acks.acknowledge, "ack"))
        refill = loop.create_task(self._guarded(self._pulls.refill, "refill"))
        try:
            await self._stop_wanted.wait()
            pull.cancel()
            refill.cancel()
            await asyncio.wait([pull, refill])
            await self.handlers.quiet()
            ack.cancel()
            await asyncio.wait([ack])
            if not self._dropped:
                self._finish = loop.create_task(self._end())
                await asyncio.wait([self._finish])
        finally:
            tasks = [task for task in (pull, refill, ack, self._finish) if task is not None]
            for task in tasks:
                task.cancel()
            self.handlers.drop()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    log.error("partition did not end in order", queue=self.claim.name, exc_info=result)
            self._registration.heartbeat_soon()

    async def _end(self) -> None:
        await self._acks.finish()
        self.released = not self._dropped

    async def _guarded(self, step: Callable[[], Awaitable[bool | None]], what: str) -> None:
        """Repeat a step without end; one that returns False says nothing about its broker."""
        failures = 0
        while True:
            try:
                if await step() is not False:
                    failures = 0
                continue
            except ClientError as error:
                self.claim.note(error)
                failures += 1
                if failures in (1, 10) or failures % 100 == 0:
                    log.warning(
                        "request failed",
                        what=what,
                        queue=self.claim.name,
                        failures=failures,
                        reason=str(error),
                    )
                if failures == 1 and what == "pull" and _is_not_claimed(error):
                    continue  # another broker is master now: claim at once
            except Exception as error:  # the edge of a supervised task
                failures += 1
                log.error("task broke", what=what, queue=self.claim.name, failures=failures, exc_info=error)
            await asyncio.sleep(self._registration.trouble_seconds(failures))

    # -- what handlers say --------------------------------------------------------------------------------

    def _progressed(self) -> None:
        self._wakes.ack.set()
        lanes = self.claim.lanes
        if lanes is not None:
            if lanes.has_room:
                self._wakes.pull.set()
            if lanes.shed_count:
                self._wakes.refill.set()

    def _lane_blocked(self) -> None:
        """What waits behind the message that failed may be dropped from memory, for the sake of others."""
        lanes = self.claim.lanes
        if lanes is None or lanes.has_room:
            return
        self._wakes.pull.set()
        if lanes.wanted is not None:
            self._wakes.refill.set()

    def _overtaken(self) -> None:
        if not self._dropped:
            self._registration.counters.fenced += 1
            log.warning("partition is owned by somebody else", queue=self.claim.name)
            self.drop()
            self._registration.heartbeat_soon()


def _is_not_claimed(error: ClientError) -> bool:
    return isinstance(error, RequestRefused) and error.code == ResponseCode.BROKERSET_NOT_CLAIMED
