"""Subscriptions of a process: heartbeats, assignments and their changes.

Each subscription has tasks of its own, so that a slow one delays no other. An error changes nothing: what
is known stays as it is, and ends with the permission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

import structlog

from brokerset_client.errors import ClientClosed, ClientError, RequestRefused
from brokerset_client.ordered.consuming import measuring
from brokerset_client.ordered.consuming.composite_pull_client import CompositePullClient
from brokerset_client.ordered.consuming.handling import Handler, HandlerCaller
from brokerset_client.ordered.consuming.measurements import SubscriptionMeasurements
from brokerset_client.ordered.consuming.registration import Registration
from brokerset_client.ordered.consuming.settings import OrderedConsumerSettings, SubscriptionOptions
from brokerset_client.ordered.consuming.slots import FixedSlots, HandlerSlots
from brokerset_client.ordered.transport import OrderedTransport
from brokerset_formats import names
from brokerset_protocol import subscriptions
from brokerset_protocol.bodies.codec import Unreadable
from brokerset_protocol.bodies.ordered import AssignmentBody
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import (
    AssignmentChanged,
    AssignmentChangedResponse,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
)
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

SUBSCRIPTIONS_MAX: Final = 1_000
"""Of one register."""

GAP_SECONDS: Final = 0.01
"""Shortest time between two heartbeats of one subscription: what happens meanwhile goes with the next."""

CLOSE_SECONDS: Final = 30.0
"""Time of `close` for handlers that run, and for what has to be said."""


_FINAL: Final = (ResponseCode.BROKERSET_SUBJECT_UNKNOWN, ResponseCode.BROKERSET_SUBJECT_REFUSED)
"""Answers that no repetition changes, as long as the subject and the subscription stay what they are."""


class AlreadySubscribed(ClientError):
    """The group consumes the subject in this process already: use that subscription, or close it first."""

    def __init__(self, subject: str, group: str) -> None:
        super().__init__(
            f"group {group!r} consumes {subject!r} in this process already: use that one, or close it"
        )


class HeartbeatRefused(ClientError):
    """The controllers do not let the session consume as it wants; the text says what to change."""


class SubscriptionTasks:
    """Heartbeats of one registration, and the request that waits for another assignment."""

    def __init__(self, registration: Registration, client_id: str) -> None:
        self.registration = registration
        self._client_id = client_id
        self.composite = CompositePullClient(registration)
        self._soon = asyncio.Event()
        self._answered = asyncio.Event()
        self._beating = asyncio.Lock()
        """Held while a heartbeat is on its way."""

        self._group_version = -1
        self._heartbeat_seconds = registration.settings.heartbeat_seconds
        self._tasks: list[asyncio.Task[None]] = []
        self._beats: asyncio.Task[None] | None = None
        """The one of them that sends heartbeats; None before the start."""

        self._closing = False
        self.problem: str | None = None
        self.refused = False
        self._denied = False
        """Whether it was logged that a right is missing."""
        registration.heartbeat_soon = self._soon.set

    def start(self) -> None:
        """Become a member."""
        loop = asyncio.get_running_loop()
        self._beats = loop.create_task(self._heartbeats())
        self._tasks = [
            self._beats,
            loop.create_task(self._watch()),
            loop.create_task(self.registration.watch_deadlines()),
        ]

    def wake(self) -> None:
        """Something may start that could not before."""
        self.composite.wake()

    async def close(self, timeout: float) -> None:
        """Stop gracefully and leave; what takes longer is ended, and the controllers notice by themselves."""
        self._closing = True
        stopped = False
        try:
            async with asyncio.timeout(timeout):
                self.composite.stop()
                await self.composite.ended()
                stopped = True
                if self._beats is not None:  # else it never was a member
                    await self._leave(self._beats)
        except TimeoutError:
            log.warning(
                "subscription was closed before it had left"
                if stopped
                else "handlers were cancelled at close",
                subject=self.registration.subject,
                group=self.registration.group,
            )
        finally:
            for task in self._tasks:
                task.cancel()
            await self.composite.kill()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.registration.caller.close()

    # -- heartbeats ---------------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        failures = 0
        while True:
            self._soon.clear()
            try:
                async with self._beating:
                    await self._heartbeat()
            except Exception as error:  # the edge of a supervised task; a bug here must not end heartbeats
                failures += 1
                self._failed(error, failures)
                pause = min(self._heartbeat_seconds, self.registration.trouble_seconds(failures))
                await asyncio.sleep(pause)
                continue
            failures = 0
            self.problem = None
            self.refused = self._denied = False
            try:
                async with asyncio.timeout(self._heartbeat_seconds):
                    await self._soon.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(GAP_SECONDS)

    def _failed(self, error: Exception, failures: int) -> None:
        self.problem = str(error) or type(error).__name__
        self.refused = isinstance(error, RequestRefused) and error.code in _FINAL
        registration = self.registration
        if isinstance(error, RequestRefused) and error.code == ResponseCode.NO_PERMISSION:
            if not self._denied:
                self._denied = True
                log.error(
                    "controllers refuse the consumer",
                    subject=registration.subject,
                    group=registration.group,
                    reason=self.problem,
                    way_out="sign as a user who may Sub on topic and group, or give the user these rights",
                )
        elif failures in (1, 10) or failures % 100 == 0:
            log.warning(
                "heartbeat failed",
                subject=registration.subject,
                group=registration.group,
                failures=failures,
                reason=self.problem,
                exc_info=None if isinstance(error, ClientError) else error,
            )

    async def _heartbeat(self, *, leaving: bool = False) -> None:
        """Raises `ClientError`; then nothing has changed."""
        registration = self.registration
        header = ConsumerHeartbeat(
            subject=registration.subject,
            consumer_group=registration.group,
            session=registration.session,
            client_id=self._client_id,
            consume_strategy=registration.options.consume_strategy,
            order_strategy=registration.options.order_strategy,
            leaving=leaving,
        )
        body = self.composite.report().to_json()
        command = Command(RequestCode.BROKERSET_CONSUMER_HEARTBEAT, header.to_ext(), body)
        sent_at = registration.clock.monotonic()
        answer = await registration.transport.ask_controllers(command, registration.settings.request_seconds)
        if answer.code != ResponseCode.SUCCESS:
            raise _refusal(answer)
        if leaving:
            return
        try:
            granted = ConsumerHeartbeatResponse.from_ext(answer.ext)
            assigned = AssignmentBody.from_json(answer.body)
        except (Rejected, Unreadable) as error:
            raise HeartbeatRefused(f"unreadable answer to a heartbeat: {error}") from error
        registration.permission = registration.permission.extended(
            sent_at, granted.permission_ms, granted.margin_ms
        )
        if granted.heartbeat_ms > 0:
            self._heartbeat_seconds = granted.heartbeat_ms / 1000
        self._group_version = granted.version
        self.composite.apply(assigned, starts=not self._closing)
        self.composite.wake()
        self._answered.set()

    async def _leave(self, heartbeats: asyncio.Task[None]) -> None:
        """The heartbeat that is on its way ends first: behind the one that leaves it would join again."""
        failures = 0
        async with self._beating:
            heartbeats.cancel()
        await asyncio.wait([heartbeats])
        while True:
            try:
                await self._heartbeat(leaving=True)
                return
            except ClientError as error:
                if isinstance(error, RequestRefused) and error.code in (*_FINAL, ResponseCode.NO_PERMISSION):
                    return  # it is no member, or one that the controllers forget soon
                failures += 1
                if failures == 1:
                    log.warning("leaving failed", subject=self.registration.subject, reason=str(error))
                await asyncio.sleep(self.registration.trouble_seconds(failures))

    # -- changes ------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Have a heartbeat sent as soon as the controllers have another assignment."""
        registration, settings = self.registration, self.registration.settings
        failures = 0
        while True:
            self._answered.clear()
            if self._group_version < 0:
                await self._answered.wait()
                continue
            header = AssignmentChanged(
                subject=registration.subject,
                consumer_group=registration.group,
                session=registration.session,
                version=self._group_version,
                wait_ms=settings.watch_ms,
            )
            command = Command(RequestCode.BROKERSET_ASSIGNMENT_CHANGED, header.to_ext())
            try:
                answer = await registration.transport.ask_controllers(
                    command, settings.watch_ms / 1000 + settings.request_seconds
                )
                if answer.code != ResponseCode.SUCCESS:
                    raise _refusal(answer)
                version = AssignmentChangedResponse.from_ext(answer.ext).version
            except (ClientError, Rejected):
                # The heartbeats say what is wrong, and go on without this.
                failures += 1
                await asyncio.sleep(registration.trouble_seconds(failures))
                continue
            except Exception as error:  # the edge of a supervised task
                failures += 1
                log.error("watch of assignments broke", subject=registration.subject, exc_info=error)
                await asyncio.sleep(registration.trouble_seconds(failures))
                continue
            failures = 0
            if version != self._group_version:
                self._answered.clear()
                self._soon.set()
                await self._answered.wait()

    def measurements(self) -> SubscriptionMeasurements:
        """A snapshot."""
        return measuring.measure(self.registration, self.composite, self.problem, self.refused)


class PullRegister:
    """All subscriptions of one process to ordered subjects; each has one session, drawn at its start."""

    def __init__(
        self,
        transport: OrderedTransport,
        *,
        client_id: str,
        clock: Clock,
        settings: OrderedConsumerSettings,
        random: Random,
    ) -> None:
        problems = settings.problems()
        if problems:
            raise ValueError("; ".join(problems))
        self._transport = transport
        self._client_id = client_id
        self._clock = clock
        self._settings = settings
        self._random = random
        self._subscriptions: dict[tuple[str, str], SubscriptionTasks] = {}
        self._closed = False

    def subscribe(
        self,
        subject: str,
        group: str,
        handler: Handler,
        options: SubscriptionOptions,
        slots: Callable[[Callable[[], None]], HandlerSlots] | None = None,
    ) -> SubscriptionTasks:
        """Register; `start` of what is returned begins. `slots` makes them from a function that wakes.

        Raises `AlreadySubscribed`, `ClientClosed`, `ValueError` for names and options that cannot be.
        """
        if self._closed:
            raise ClientClosed("the register was closed: make another consumer")
        if (subject, group) in self._subscriptions:
            raise AlreadySubscribed(subject, group)
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise ValueError(f"a process has {SUBSCRIPTIONS_MAX} subscriptions at most")
        _check(subject, group, options)
        settings = self._settings
        caller = HandlerCaller(handler, settings.threads_max)

        def wake() -> None:
            tasks.wake()

        limit = settings.handlers_max
        if caller.is_plain:
            limit = min(limit, settings.threads_max)
        registration = Registration(
            subject=subject,
            group=group,
            session=f"{self._random.getrandbits(128):032x}",
            transport=self._transport,
            clock=self._clock,
            random=self._random,
            settings=settings,
            options=options,
            filter=subscriptions.parse(subject, options.tags),
            caller=caller,
            slots=FixedSlots(limit, wake) if slots is None else slots(wake),
            heartbeat_soon=lambda: None,
        )
        tasks = SubscriptionTasks(registration, self._client_id)
        self._subscriptions[subject, group] = tasks
        return tasks

    def forget(self, subject: str, group: str) -> None:
        """The subscription was closed; it may be made again, with another session."""
        self._subscriptions.pop((subject, group), None)

    def measurements(self) -> tuple[SubscriptionMeasurements, ...]:
        """Snapshots of all subscriptions."""
        return tuple(tasks.measurements() for tasks in self._subscriptions.values())


def _check(subject: str, group: str, options: SubscriptionOptions) -> None:
    problems = options.failures.problems()
    wrong = names.check_topic(subject)
    if wrong is not None:
        problems.append(wrong)
    wrong = names.check_group(group)
    if wrong is not None:
        problems.append(wrong)
    try:
        subscriptions.parse(subject, options.tags)
    except Rejected as error:
        problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))


def _refusal(answer: Command) -> ClientError:
    return RequestRefused(answer.code, answer.remark or "no reason given", "the controllers")
