"""One queue that the session owns: claims, pulls, handlers, acknowledgements, and the way out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from brokerset_client.calls import PullStatus
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.ordered.consuming.lanes import Lanes
from brokerset_client.ordered.consuming.ordered_message import OrderedMessage, read_ordered
from brokerset_client.ordered.consuming.partition_handlers import PartitionHandlers
from brokerset_client.ordered.consuming.queue_requests import AckRefused, OwnedQueue, PulledMessages
from brokerset_client.ordered.consuming.registration import Registration
from brokerset_client.retry import STALE_ROUTE_CODES
from brokerset_protocol.codes import ResponseCode

log = structlog.get_logger(__name__)

QUICK_SECONDS: Final = 0.05
EMPTY_ANSWERS_MAX: Final = 8
"""Empty answers in a row that came so quickly: the broker has no long polling, and pulls slow down."""

EMPTY_PAUSE_SECONDS: Final = 0.2

SEALED_SUSPEND_MS: Final = 2_000
"""How long a broker may keep a pull of a partition that is sealed: its end waits for answers that there is
nothing more."""


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
        is_sealed: Callable[[], bool] | None = None,
    ) -> None:
        """`is_sealed`: whether no further copies are made for retry; None: when this queue is sealed."""
        self._registration = registration
        self._is_sealed = is_sealed or (lambda: self._sealed_end is not None)
        self.queue = queue
        self._partition_id = partition_id
        self._sealed_end = sealed_end
        self._claimed = False
        self._claiming = asyncio.Lock()
        self._fresh = False
        self._empty = 0
        self._pull_wake = asyncio.Event()
        self._ack_wake = asyncio.Event()
        self._refill_wake = asyncio.Event()
        self._stop_wanted = asyncio.Event()
        self._dropped = False
        self._main: asyncio.Task[None] | None = None
        self._finish: asyncio.Task[None] | None = None
        self.lanes: Lanes[OrderedMessage] | None = None
        """What was pulled; None until the queue was claimed."""

        self.began_at = -1
        """The group's position when the session claimed the queue first."""

        self.max_offset = -1
        """What the next message of the queue will get, as last known."""

        self.empty_since: float | None = None
        """Since when pulls have found nothing behind what is handled, by the consumer's monotonic clock."""

        self.empty_at: float | None = None
        """When the broker said so the last time; without an answer nothing is known of what came since."""

        self.released = False
        """Stopped, with all acks confirmed."""

        self.handlers = PartitionHandlers(
            registration,
            queue,
            progressed=self._progressed,
            blocked=self._lane_blocked,
            refused=self._note,
            is_sealed=self._is_sealed,
        )

    # -- from outside -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to consume."""
        self._main = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """The permission was extended, slots are free, or the subscription goes on."""
        self._pull_wake.set()
        self._ack_wake.set()
        self._refill_wake.set()
        self.handlers.dispatch()

    def retry_now(self) -> None:
        """Let messages that wait after a failure start again at once."""
        if self.lanes is not None:
            self.lanes.retry_now()
            self.handlers.dispatch()

    def seal(self, sealed_end: int | None) -> None:
        """The queue offset behind the last message is known."""
        if sealed_end is not None and self._sealed_end is None:
            self._sealed_end = sealed_end
            self._pull_wake.set()

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

    @property
    def sealed_end(self) -> int | None:
        """The queue offset behind the last message, if the queue is sealed."""
        return self._sealed_end

    @property
    def position(self) -> int:
        """What is confirmed as acknowledged; -1 as long as it is not known."""
        return -1 if self.lanes is None else self.lanes.position

    @property
    def is_drained(self) -> bool:
        """Whether everything up to the sealed end is acknowledged."""
        return self._sealed_end is not None and 0 <= self._sealed_end <= self.position

    # -- tasks --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pull = loop.create_task(self._guarded_pulls())
        ack = loop.create_task(self._guarded(self._acknowledge_on, "acks"))
        refill = loop.create_task(self._guarded(self._refill_on, "refills"))
        try:
            await self._stop_wanted.wait()
            pull.cancel()
            refill.cancel()
            await asyncio.wait([pull, refill])
            await self.handlers.quiet()
            ack.cancel()
            await asyncio.wait([ack])
            if not self._dropped:
                self._finish = loop.create_task(self._acknowledge_and_release())
                await asyncio.wait([self._finish])
        finally:
            tasks = [task for task in (pull, refill, ack, self._finish) if task is not None]
            for task in tasks:
                task.cancel()
            self.handlers.drop()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    log.error("partition did not end in order", queue=self._name, exc_info=result)
            self._registration.heartbeat_soon()

    async def _guarded_pulls(self) -> None:
        failures = 0
        while True:
            try:
                if await self._pull_on():
                    failures = 0
                continue
            except ClientError as error:
                self._note(error)
                failures += 1
                if failures in (1, 10) or failures % 100 == 0:
                    log.warning("pull failed", queue=self._name, failures=failures, reason=str(error))
                if failures == 1 and _is_not_claimed(error):
                    continue  # another broker is master now: claim at once
            except Exception as error:  # the edge of a supervised task
                failures += 1
                log.error("pull broke", queue=self._name, failures=failures, exc_info=error)
            await asyncio.sleep(self._registration.trouble_seconds(failures))

    async def _guarded(self, step: Callable[[], Awaitable[None]], what: str) -> None:
        failures = 0
        while True:
            try:
                await step()
                failures = 0
                continue
            except ClientError as error:
                self._note(error)
                failures += 1
                if failures in (1, 10) or failures % 100 == 0:
                    log.warning(
                        "request failed", what=what, queue=self._name, failures=failures, reason=str(error)
                    )
            except Exception as error:  # the edge of a supervised task
                failures += 1
                log.error("task broke", what=what, queue=self._name, failures=failures, exc_info=error)
            await asyncio.sleep(self._registration.trouble_seconds(failures))

    # -- pulling ------------------------------------------------------------------------------------------

    async def _pull_on(self) -> bool:
        """A pull, a claim, or a wait until one may start; True: a pull was answered."""
        registration, settings = self._registration, self._registration.settings
        self._pull_wake.clear()
        if not registration.may_begin() or registration.paused or self._stop_wanted.is_set():
            await self._pull_wake.wait()
            return False
        if not self._claimed or self.lanes is None:
            await self._claim()
            return False
        lanes = self.lanes
        if not lanes.has_room:
            lanes.shed()
        if not lanes.has_room or self.is_drained:
            await self._pull_wake.wait()
            return False
        now = registration.clock.monotonic()
        suspend_ms = min(settings.suspend_ms, int(registration.permission.remaining(now) * 1000))
        if self._is_sealed():
            suspend_ms = min(suspend_ms, SEALED_SUSPEND_MS)
        pulled = await self.queue.pull(lanes.pulled_to, settings.pull_batch, registration.filter, suspend_ms)
        if lanes is not self.lanes or self._stop_wanted.is_set():
            return False
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            await self._moved(lanes, pulled)
        else:
            await self._take(lanes, pulled, now)
        return True

    async def _refill_on(self) -> None:
        """Pull what was shed and is the next one of its lane, or wait until there is such a message."""
        registration, settings = self._registration, self._registration.settings
        self._refill_wake.clear()
        lanes = self.lanes
        wanted = None if lanes is None else lanes.wanted
        may = registration.may_begin() and not registration.paused and self._claimed
        full = settings.lanes.unhandled_max
        if lanes is not None and wanted is not None and lanes.unhandled >= full:
            lanes.shed()  # also what came later for the same lanes, and waits behind what is wanted
        if lanes is None or wanted is None or not may or lanes.unhandled >= full:
            await self._refill_wake.wait()
            return
        pulled = await self.queue.pull(wanted, settings.pull_batch, registration.filter, 0)
        if lanes is not self.lanes or self._stop_wanted.is_set():
            return
        if pulled.status is PullStatus.OFFSET_ILLEGAL or pulled.next_queue_offset <= wanted:
            # The group was reset, or the messages are gone: the claim says where to go on.
            self._claimed = False
            self._fresh = False
            await self._forget()
            self._registration.counters.resynced += 1
            log.warning("position was moved", queue=self._name, wanted=wanted, next=pulled.next_queue_offset)
            self._pull_wake.set()
            return
        subject = registration.subject
        messages = [read_ordered(view, subject, self._partition_id) for view in pulled.messages]
        lanes.refill(
            ((message.queue_offset, message.lane, message) for message in messages),
            wanted,
            pulled.next_queue_offset,
        )
        self.handlers.dispatch()

    async def _take(self, lanes: Lanes[OrderedMessage], pulled: PulledMessages, asked_at: float) -> None:
        registration = self._registration
        self._fresh = False
        self.max_offset = pulled.max_queue_offset
        before = lanes.pulled_to
        subject = registration.subject
        messages = [read_ordered(view, subject, self._partition_id) for view in pulled.messages]
        lanes.add(
            ((message.queue_offset, message.lane, message) for message in messages),
            pulled.next_queue_offset,
        )
        if lanes.pulled_to > before:
            self.empty_since = self.empty_at = None
            self._empty = 0
            self.handlers.dispatch()
            self._ack_wake.set()  # what was filtered away is done
            return
        now = registration.clock.monotonic()
        self._note_empty()
        if now - asked_at < QUICK_SECONDS:
            self._empty += 1
            if self._empty > EMPTY_ANSWERS_MAX:
                await asyncio.sleep(EMPTY_PAUSE_SECONDS)
        else:
            self._empty = 0

    def _note_empty(self) -> None:
        lanes = self.lanes
        if lanes is None or lanes.position >= lanes.pulled_to:
            self.empty_at = self._registration.clock.monotonic()
            if self.empty_since is None:
                self.empty_since = self.empty_at

    async def _moved(self, lanes: Lanes[OrderedMessage], pulled: PulledMessages) -> None:
        """The broker does not go on where we would: somebody reset the group, or retention was faster."""
        registration = self._registration
        if self._fresh and pulled.next_queue_offset > lanes.pulled_to:
            # The position has just been claimed, so it is the group's; the messages there are gone.
            count = pulled.next_queue_offset - lanes.pulled_to
            registration.counters.expired += count
            log.error(
                "messages expired before they were consumed",
                queue=self._name,
                position=lanes.pulled_to,
                next=pulled.next_queue_offset,
            )
            lanes.add((), pulled.next_queue_offset)
            self._fresh = False
            self._ack_wake.set()
            return
        registration.counters.resynced += 1
        log.warning(
            "position was moved", queue=self._name, wanted=lanes.pulled_to, next=pulled.next_queue_offset
        )
        if self._fresh:
            await asyncio.sleep(registration.trouble_seconds(3))
        await self._forget()
        await self._claim()

    async def _claim(self) -> None:
        """Make the broker know our epoch, and learn the group's position."""
        async with self._claiming:
            if self._claimed and self.lanes is not None:
                return
            lanes = self.lanes
            try:
                answer = await self.queue.claim(-1 if lanes is None else lanes.pulled_to)
            except RequestRefused as error:
                if error.code != ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE or lanes is None:
                    raise
                self._registration.counters.resynced += 1
                log.error(
                    "the queue ends before what was pulled: its broker has lost messages",
                    queue=self._name,
                    pulled_to=lanes.pulled_to,
                    reason=str(error),
                )
                await self._forget()
                return
            self._claimed = True
            if self.began_at < 0:
                self.began_at = answer.position
            self.max_offset = answer.max_offset
            self.seal(answer.sealed_end if answer.sealed_end >= 0 else None)
            if lanes is not None and lanes.position <= answer.position <= lanes.handled_to:
                lanes.acknowledged(answer.position)
            else:
                if lanes is not None:
                    log.warning(
                        "position was moved", queue=self._name, ours=lanes.position, next=answer.position
                    )
                    self._registration.counters.resynced += 1
                    await self._forget()
                    self._claimed = True
                await self.handlers.quiet()  # keys of what was forgotten may still be handled
                self.lanes = Lanes(answer.position, self._registration.settings.lanes)
                self._fresh = True
                self.handlers.use(self.lanes)
            if answer.max_offset <= answer.position:
                self._note_empty()
        self._after_progress()

    async def _forget(self) -> None:
        """Drop what was pulled, and wait for its handlers: their keys come again."""
        self._claimed = False
        self.lanes = None
        self.empty_since = self.empty_at = None
        self.handlers.use(None)
        await self.handlers.quiet()

    # -- acknowledging ------------------------------------------------------------------------------------

    def _progressed(self) -> None:
        self._ack_wake.set()
        lanes = self.lanes
        if lanes is not None:
            if lanes.has_room:
                self._pull_wake.set()
            if lanes.shed_count:
                self._refill_wake.set()

    def _lane_blocked(self) -> None:
        """What waits behind the message that failed may be dropped from memory, for the sake of others."""
        lanes = self.lanes
        if lanes is None or lanes.has_room:
            return
        self._pull_wake.set()
        if lanes.wanted is not None:
            self._refill_wake.set()

    async def _acknowledge_on(self) -> None:
        """One acknowledgement that was confirmed, or a wait until there is one to send."""
        registration, settings = self._registration, self._registration.settings
        self._ack_wake.clear()
        lanes = self.lanes
        found = None if lanes is None else lanes.ack_range
        if lanes is None or found is None or not registration.may_go_on():
            await self._ack_wake.wait()
            return
        until = registration.clock.monotonic() + settings.ack_seconds
        while self.handlers.running and found[1] - found[0] + 1 < settings.ack_batch:
            # More may come with the same request.
            left = until - registration.clock.monotonic()
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    await self._ack_wake.wait()
            except TimeoutError:
                break
            self._ack_wake.clear()
            if lanes is not self.lanes or lanes.ack_range is None:
                return
            found = lanes.ack_range
        self._ack_wake.set()  # there may be more behind it
        await self._acknowledge(lanes)

    async def _acknowledge(self, lanes: Lanes[OrderedMessage]) -> None:
        """Acknowledge what is done, if the permission allows. Raises `ClientError`."""
        if not self._claimed:
            await self._claim()
        found = lanes.ack_range
        if lanes is not self.lanes or found is None or not self._registration.may_go_on():
            return
        try:
            position = await self.queue.acknowledge(*found)
        except AckRefused as error:
            # The position is another one than we know: the claim says which.
            log.warning("ack was refused", queue=self._name, reason=str(error), position=error.position)
            self._claimed = False
            raise
        if lanes is not self.lanes:
            return
        self._registration.counters.acks += 1
        lanes.acknowledged(min(max(position, found[1] + 1), lanes.handled_to))
        self._after_progress()

    def _after_progress(self) -> None:
        if self.is_drained:
            self._registration.heartbeat_soon()
        self._pull_wake.set()

    # -- the end ------------------------------------------------------------------------------------------

    async def _acknowledge_and_release(self) -> None:
        """All acks confirmed first, then the release: whoever is next reads the final position."""
        failures = 0
        lanes = self.lanes
        while lanes is not None and lanes is self.lanes and lanes.ack_range is not None:
            self._ack_wake.clear()
            if not self._registration.may_go_on():
                await self._ack_wake.wait()
                continue
            try:
                await self._acknowledge(lanes)
            except ClientError as error:
                self._note(error)
                failures += 1
                await asyncio.sleep(self._registration.trouble_seconds(failures))
        if lanes is not None:
            await self._release()
        self.released = not self._dropped

    async def _release(self) -> None:
        for attempt in range(1, self._registration.settings.release_attempts + 1):
            try:
                await self.queue.release()
                return
            except ClientError as error:
                if isinstance(error, RequestRefused) and error.code == ResponseCode.BROKERSET_STALE_EPOCH:
                    return
                log.warning("release failed", queue=self._name, attempt=attempt, reason=str(error))
                await asyncio.sleep(self._registration.trouble_seconds(attempt))

    def _note(self, error: ClientError) -> None:
        """What an error of any request says about our claim."""
        if not isinstance(error, RequestRefused):
            return
        registration = self._registration
        if error.code == ResponseCode.BROKERSET_STALE_EPOCH:
            if not self._dropped:
                registration.counters.fenced += 1
                log.warning("partition is owned by somebody else", queue=self._name, reason=str(error))
                self.drop()
                registration.heartbeat_soon()
        elif error.code in (ResponseCode.BROKERSET_NOT_CLAIMED, ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE):
            self._claimed = False
            self._pull_wake.set()
        elif error.code == ResponseCode.TOPIC_NOT_EXIST and self.queue.topic != self.queue.subject:
            self._note_empty()  # nothing was ever sent back
        elif error.code in STALE_ROUTE_CODES:
            registration.transport.route_is_stale(self.queue.subject)

    @property
    def _name(self) -> str:
        queue = self.queue
        return f"{queue.topic}/{queue.broker_group}/{queue.queue_id} epoch {queue.epoch}"


def _is_not_claimed(error: ClientError) -> bool:
    return isinstance(error, RequestRefused) and error.code == ResponseCode.BROKERSET_NOT_CLAIMED
