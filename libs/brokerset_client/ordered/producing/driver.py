"""One subject of a producer: its route by long polls, its epoch, its requests, its timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final, Protocol

import structlog

from brokerset_client.errors import ClientError
from brokerset_client.ordered.producing.breaker import Breakers
from brokerset_client.ordered.producing.encoding import request
from brokerset_client.ordered.producing.errors import SubjectRefused
from brokerset_client.ordered.producing.outcomes import Outcome, Unclear, classify
from brokerset_client.ordered.producing.outgoing import Attempt, Failed, Outgoing, Stored
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_client.ordered.producing.subject import SubjectSender
from brokerset_client.ordered.transport import OrderedTransport
from brokerset_protocol.bodies.ordered import SubjectRoute
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import (
    GetSubjectRoute,
    StartProducer,
    StartProducerResponse,
)
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

REFUSALS: Final = frozenset({
    ResponseCode.BROKERSET_SUBJECT_REFUSED,
    ResponseCode.BROKERSET_SUBJECT_UNKNOWN,
})  # fmt: skip
"""Answers of the controllers that no repetition changes; all others are asked again."""

TICK_SECONDS: Final = 0.001
"""Shortest timer: loops wake up a little before its time, and must not spin until it is there."""

ROUTE_POLL_SECONDS: Final = 1.0
"""Least time between two questions for the route, while its answer stays the same: not all of them wait."""


class Senders(Protocol):
    """Who answers the senders: the producer."""

    def stored(self, stored: Stored) -> None:
        """Messages are confirmed."""

    def failed(self, failed: Failed) -> None:
        """A message is given up."""

    def fenced(self, reason: str) -> None:
        """Another process has the producer's id now."""

    def forget(self, driver: SubjectDriver) -> None:
        """The driver has failed everything, and is not to be used any more."""

    async def may_use_epoch(self, subject: str, epoch: int) -> bool:
        """Whether an epoch that was given may be used."""


class SubjectDriver:
    """Runs a `SubjectSender`. It has a task for the route, one for epochs, and one for each request.

    A wish for a route has a task of its own, too: the question that waits at a controller has no answer for
    many seconds if that controller is not there any more.
    """

    def __init__(
        self,
        subject: str,
        producer_id: str,
        transport: OrderedTransport,
        clock: Clock,
        settings: ProducerSettings,
        breakers: Breakers,
        roll: Callable[[], float],
        senders: Senders,
    ) -> None:
        self.subject = subject
        self.sender = SubjectSender(subject, settings, breakers, roll)
        self._producer_id = producer_id
        self._transport = transport
        self._clock = clock
        self._settings = settings
        self._roll = roll
        self._senders = senders
        self._order: OrderStrategy | None = None
        """What senders expect the subject's order strategy to be."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pumping: asyncio.Handle | None = None
        self._stopped = False
        self._epoch_running = False
        self._routed = False
        self._route_wanted = False
        self._asking_route = False
        self._denied = False
        self._vain_wishes = 0
        """Questions in a row, for a route that was wanted at once, that brought no newer one."""
        self._next_wish_at = 0.0
        """No such question before."""

    # -- life ---------------------------------------------------------------------------------------------

    def accept(self, message: Outgoing, order: OrderStrategy | None) -> None:
        """A message of this subject."""
        if order is not None:
            known = self.sender.route.order_strategy if self.sender.route is not None else self._order
            if known is not None and known != order:
                # It gets no place, and what it expects is not asked for: others expect something else.
                self.sender.refuse(message, SubjectRefused(_mismatch(self.subject, known, order)))
                self._pump_soon()
                return
            self._order = order
        self.sender.accept(message, self._clock.monotonic())
        if not self._routed:
            self._routed = True
            self._spawn(self._follow_route())
        self._pump_soon()

    def abort(self, error: Callable[[Outgoing, bool], Exception]) -> None:
        """Fail everything on its way."""
        self.sender.abort(error)
        self._answer_senders()

    def stop(self) -> None:
        """Send and ask nothing more."""
        self._stopped = True
        for handle in (self._timer, self._pumping):
            if handle is not None:
                handle.cancel()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    async def ended(self) -> None:
        """Wait until all tasks have ended; after `stop`."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks)

    @property
    def has_ended(self) -> bool:
        """Whether it has no task left."""
        return not self._tasks

    # -- requests -----------------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        """Once for all messages that are accepted in this turn of the loop: they leave in one request."""
        if self._pumping is None and not self._stopped:
            self._pumping = asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Do what the state machine wants now."""
        if self._pumping is not None:
            self._pumping.cancel()
            self._pumping = None
        if self._stopped:
            return
        now = self._clock.monotonic()
        effects = self.sender.take_effects(now)
        for stored in effects.stored:
            self._senders.stored(stored)
        for failed in effects.failed:
            self._senders.failed(failed)
        if effects.fenced is not None:
            self._senders.fenced(effects.fenced)
            return
        for attempt in effects.attempts:
            self._spawn(self._attempt(attempt))
        if effects.route_wanted and self.sender.route is not None:
            self._route_wanted = True
            if not self._asking_route:
                self._asking_route = True
                self._spawn(self._ask_route())
        if effects.epoch_wanted and self.sender.route is not None and not self._epoch_running:
            self._epoch_running = True
            self._spawn(self._ask_epoch())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if effects.wake_at is not None:
            delay = max(TICK_SECONDS, effects.wake_at - now)
            self._timer = asyncio.get_running_loop().call_later(delay, self._pump)

    def _answer_senders(self) -> None:
        effects = self.sender.take_effects(self._clock.monotonic())
        for stored in effects.stored:
            self._senders.stored(stored)
        for failed in effects.failed:
            self._senders.failed(failed)

    async def _attempt(self, attempt: Attempt) -> None:
        command = request(attempt, self._producer_id, self._clock.now_ms())
        outcome: Outcome
        try:
            answer = await self._transport.ask_master(
                self.subject, attempt.key.broker_group, command, self._settings.request_ms / 1000
            )
        except ClientError as error:
            outcome = Unclear(str(error))
        else:
            outcome = classify(answer)
        if isinstance(outcome, Unclear) and outcome.stale_route:
            self._transport.route_is_stale(self.subject)
        if not self._stopped:
            self.sender.take_outcome(attempt, outcome, self._clock.monotonic())
            self._pump()

    # -- the controllers ----------------------------------------------------------------------------------

    async def _follow_route(self) -> None:
        """Keep the route: each question waits at the controllers until there is another version."""
        failures = 0
        while not self._stopped:
            route = self.sender.route
            wait_ms = 0 if route is None else self._settings.route_wait_ms
            asked_at = self._clock.monotonic()
            answer = await self._ask_for_route(wait_ms)
            waited = self._clock.monotonic() - asked_at
            problem = self._take_route(answer, waited=waited * 1000 >= wait_ms / 2)
            if problem is not None:
                failures += 1
                await self._back_off(failures)
                continue
            failures = 0
            if self.sender.route is route and waited < ROUTE_POLL_SECONDS and not self._stopped:
                await asyncio.sleep(ROUTE_POLL_SECONDS - waited)

    async def _ask_route(self) -> None:
        """Ask at once, and again with growing waits as long as messages wait for another route."""
        try:
            while self._route_wanted and not self._stopped:
                self._route_wanted = False
                await asyncio.sleep(self._next_wish_at - self._clock.monotonic())
                route = self.sender.route
                self._take_route(await self._ask_for_route(0), waited=True)
                self._vain_wishes = 0 if self.sender.route is not route else self._vain_wishes + 1
                self._next_wish_at = self._clock.monotonic() + self._delay(self._vain_wishes)
                self._route_wanted |= self.sender.waits_for_route
        finally:
            self._asking_route = False

    async def _ask_for_route(self, wait_ms: int) -> Command | None:
        route = self.sender.route
        header = GetSubjectRoute(
            subject=self.subject,
            order_strategy=self._order,
            # A subject that was deleted must not come back by itself: only its first message creates it.
            create=route is None,
            known_version=None if route is None else route.version,
            wait_ms=wait_ms,
        )
        return await self._ask(RequestCode.BROKERSET_SUBJECT_ROUTE, header.to_ext(), wait_ms)

    def _take_route(self, answer: Command | None, *, waited: bool) -> str | None:
        """Use an answer; a text says why it cannot be used: then the next request comes later."""
        if answer is None:
            return "no answer"
        if answer.code in REFUSALS:
            self._refused(answer)
            return None
        if answer.code != ResponseCode.SUCCESS:
            self._note_denial(answer)
            return f"answer {answer.code}"
        if not answer.body:
            return None if self.sender.route is not None and waited else "an answer without a route"
        try:
            route = SubjectRoute.from_json(answer.body)
        except Rejected as error:
            return str(error)
        if self._order is not None and route.order_strategy != self._order:
            self._end(SubjectRefused(_mismatch(self.subject, route.order_strategy, self._order)))
            return None
        known = self.sender.route
        if known is not None and route.version <= known.version:
            return "an answer with an old route"
        self.sender.take_route(route, self._clock.monotonic())
        self._pump()
        return None

    async def _ask_epoch(self) -> None:
        header = StartProducer(subject=self.subject, producer_id=self._producer_id)
        failures = 0
        try:
            while not self._stopped:
                answer = await self._ask(RequestCode.BROKERSET_START_PRODUCER, header.to_ext(), 0)
                if answer is not None and answer.code in REFUSALS:
                    self._refused(answer)
                    return
                if answer is not None and await self._take_epoch(answer):
                    return
                failures += 1
                await self._back_off(failures)
        finally:
            self._epoch_running = False

    async def _take_epoch(self, answer: Command) -> bool:
        """Use an epoch that was given; False: ask for another one."""
        if answer.code != ResponseCode.SUCCESS:
            self._note_denial(answer)
            return False
        self._denied = False
        try:
            epoch = StartProducerResponse.from_ext(answer.ext).producer_epoch
        except Rejected:
            return False
        if not await self._senders.may_use_epoch(self.subject, epoch):
            self._senders.fenced("its owner may not use another epoch")
        elif not self._stopped:
            self._epoch_running = False
            self.sender.take_epoch(epoch, self._clock.monotonic())
            self._pump()
        return True

    async def _ask(self, code: RequestCode, ext: dict[str, str], wait_ms: int) -> Command | None:
        try:
            return await self._transport.ask_controllers(
                Command(code, ext), (wait_ms + self._settings.control_ms) / 1000
            )
        except ClientError:
            return None

    def _note_denial(self, answer: Command) -> None:
        """Log once that a right is missing: messages wait for it, and fail when their time is over."""
        if answer.code == ResponseCode.NO_PERMISSION and not self._denied:
            self._denied = True
            log.error(
                "controllers refuse the producer",
                subject=self.subject,
                reason=answer.remark,
                way_out="sign as a user who may Pub on the topic of this name, or give the user this right",
            )

    async def _back_off(self, failures: int) -> None:
        await asyncio.sleep(self._delay(failures))

    def _delay(self, failures: int) -> float:
        return self._settings.backoff.delay_ms(failures) * (0.5 + 0.5 * self._roll()) / 1000

    def _refused(self, answer: Command) -> None:
        remark = answer.remark or "no reason given"
        if answer.code == ResponseCode.BROKERSET_SUBJECT_UNKNOWN:
            text = f"subject {self.subject!r} was deleted, or never created: {remark}"
        else:
            text = f"the controllers refuse subject {self.subject!r}: {remark}"
        self._end(SubjectRefused(text))

    def _end(self, error: SubjectRefused) -> None:
        self._give_up(
            lambda message, unknown: SubjectRefused(str(error) + ("; it may be stored" if unknown else ""))
        )

    def _give_up(self, error: Callable[[Outgoing, bool], Exception]) -> None:
        """Fail everything and end; whoever sends to the subject after this gets another driver."""
        # First of all: each message that fails makes room, in which one that waited is accepted at once. It
        # must not come to this driver, which does nothing for it any more.
        self._senders.forget(self)
        self.abort(error)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended_task)

    def _ended_task(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            # A bug of ours: what waits must not wait permanently for a task that is gone.
            self._give_up(lambda message, unknown: error)


def _mismatch(subject: str, found: OrderStrategy, expected: OrderStrategy) -> str:
    return f"subject {subject!r} is {found}, and {expected} was expected: change one of the two"
