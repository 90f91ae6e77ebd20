"""Which queues this consumer has now: divides them with the group, locks them, starts and ends their tasks.

Source: `RebalanceImpl`. Only one task calls `rebalance`; what else changes the table does so without waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from brokerset_client import calls
from brokerset_client.assigned_queue import AssignedQueue, Budget
from brokerset_client.errors import BrokerUnreachable, ClientError, RequestRefused, TopicNotFound
from brokerset_client.instance import ClientInstance
from brokerset_client.positions import Positions, first_offset
from brokerset_client.push_settings import PushSettings
from brokerset_client.routes import Route
from brokerset_protocol.bodies.heartbeat import ConsumeFromWhere, SubscriptionData
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.queue_allocation import allocate, sorted_queues

log = structlog.get_logger(__name__)

MOVE_PAUSE_SECONDS = 1.0
"""Wait before a queue is taken again whose new offset could not be stored."""


class Assignment:
    """The queues of one consumer."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        *,
        settings: PushSettings,
        subscriptions: Mapping[str, SubscriptionData],
        positions: Positions,
        where: ConsumeFromWhere | None,
        from_timestamp_ms: int,
        shared: bool,
        orderly: bool,
        opened: Callable[[AssignedQueue], None],
    ) -> None:
        self.queues: dict[MessageQueue, AssignedQueue] = {}
        self.wanted = asyncio.Event()
        """Set to divide again at once."""
        self._instance = instance
        self._group = group
        self._settings = settings
        self._subscriptions = subscriptions
        self._positions = positions
        self._where = where or ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        self._where_is_wished = where is not None
        self._seen_first: dict[str, frozenset[MessageQueue]] = {}
        """The queues that a topic had when we asked first. What was in later ones when we took them is not
        old: a wish to begin at the end does not mean them."""
        self._from_timestamp_ms = from_timestamp_ms
        self._shared = shared
        self._orderly = orderly
        self._opened = opened
        self._budget = Budget(settings.client_limits)
        self._leaving: dict[MessageQueue, asyncio.Task[object]] = {}
        self._denied: set[str] = set()
        """Topics that were refused for want of rights, which is said once."""

    @property
    def needs_locks(self) -> bool:
        """Whether queues are handled under a lock of the broker."""
        return self._orderly and self._shared

    async def rebalance(self) -> bool:
        """Divide the queues of every subscribed topic. False if something is missing: call again soon."""
        complete = True
        for topic in list(self._subscriptions):
            try:
                complete &= await self._rebalance_topic(topic)
            except ClientError as error:
                self._note("topic is not balanced yet", error, topic=topic)
                complete = False
        for assigned in list(self.queues.values()):
            if assigned.queue.topic not in self._subscriptions:
                self._let_go(assigned)
        return complete

    def _note(self, what: str, error: ClientError, *, topic: str) -> None:
        """Log why a topic's queues are not here yet: as an error what does not get better by itself."""
        denied = isinstance(error, RequestRefused) and error.code == ResponseCode.NO_PERMISSION
        if denied and topic not in self._denied:
            self._denied.add(topic)
            log.error(what, topic=topic, group=self._group, reason=str(error))
        else:
            log.debug(what, topic=topic, reason=str(error))

    async def renew_locks(self) -> bool:
        """Renew the locks of all queues. False if a broker did not answer: call again soon."""
        complete = True
        for broker_name, queues in _by_broker(self.queues).items():
            try:
                held = await self._lock(broker_name, queues)
            except ClientError as error:
                log.warning("locks are not renewed", broker=broker_name, reason=str(error))
                complete = False
                continue
            for queue in queues:
                assigned = self.queues.get(queue)
                if assigned is None or not assigned.active:
                    continue
                if queue in held:
                    assigned.locked_until = (
                        asyncio.get_running_loop().time() + self._settings.lock_valid_seconds
                    )
                else:
                    self.lock_lost(assigned)
        return complete

    def lock_lost(self, assigned: AssignedQueue) -> None:
        """Somebody else may handle the queue: forget what we have of it, then try to get it again."""
        log.warning("lost queue lock", queue=str(assigned.queue))
        self._forget(assigned)
        self._leave_soon(assigned.queue, _handler_ended(assigned))

    def move(self, assigned: AssignedQueue, queue_offset: int) -> None:
        """Go on at another queue offset, which is stored first."""
        self._forget(assigned)
        self._leave_soon(assigned.queue, self._move(assigned, queue_offset))

    async def save(self, *, surely: bool = False) -> None:
        """Store the offsets that changed. With `surely` all of them, as those that were sent may be lost, for
        `commit_timeout`; raises `ClientError` if one could not be stored."""
        changed = {}
        for queue, assigned in self.queues.items():
            queue_offset = assigned.window.commit_offset
            if assigned.was_pulled and (surely or assigned.committed != queue_offset):
                assigned.committed = changed[queue] = queue_offset
        if changed:
            await self._positions.save(changed, surely=surely, seconds=self._seconds(surely))

    def _seconds(self, surely: bool) -> float:
        """How long to try to store an offset."""
        return self._settings.commit_timeout if surely else 0.0

    async def close(self) -> None:
        """Store all offsets, give all locks back, have no queue any more."""
        for assigned in self.queues.values():
            assigned.stop()
        handlers = [a.handler for a in self.queues.values() if a.handler is not None]
        if handlers:
            _, late = await asyncio.wait(handlers, timeout=self._settings.close_timeout)
            for task in late:
                task.cancel()
        for leaving in list(self._leaving.values()):
            await asyncio.gather(leaving, return_exceptions=True)
        try:
            await self.save(surely=True)
        except (ClientError, OSError) as error:
            log.warning("offsets are not stored: their messages will come again", reason=str(error))
        queues = list(self.queues)
        for assigned in list(self.queues.values()):
            self._forget(assigned)
        if self.needs_locks:
            await self._unlock(queues)

    # -- inside -------------------------------------------------------------------------------------------

    async def _rebalance_topic(self, topic: str) -> bool:
        try:
            route = await self._instance.route(topic)
        except TopicNotFound:
            self._seen_first.setdefault(topic, frozenset())
            raise
        if not route.subscribe_queues:
            return False
        self._seen_first.setdefault(topic, frozenset(route.subscribe_queues))
        if self._shared:
            members = await self._members(route)
            if self._instance.client_id not in members:
                # The broker has not had our heartbeat, or lost it with its connection.
                self._instance.heartbeat_soon()
                return False
            mine = allocate(
                self._instance.client_id, route.subscribe_queues, members, self._settings.allocation
            )
        else:
            mine = sorted_queues(route.subscribe_queues)
        wanted = set(mine)
        for queue, assigned in list(self.queues.items()):
            if queue.topic == topic and queue not in wanted:
                self._let_go(assigned)
        missing = [queue for queue in mine if queue not in self.queues]
        if not missing:
            return True
        return await self._take(missing)

    async def _members(self, route: Route) -> tuple[str, ...]:
        """The group's members, from the first broker that answers. Raises `ClientError` if none does."""
        problem: ClientError | None = None
        for broker_name in route.addresses:
            address = route.reader(broker_name)
            if address is None:
                continue
            try:
                return await calls.member_ids(self._instance, address, self._group)
            except ClientError as error:
                problem = error
        raise problem or ClientError(f"no broker of topic {route.topic!r} is reachable")

    async def _take(self, queues: list[MessageQueue]) -> bool:
        """Start with these queues, as far as they can be locked and their offsets are known."""
        complete = True
        free = [queue for queue in queues if queue not in self._leaving]
        locked_until = 0.0
        if self.needs_locks:
            held: set[MessageQueue] = set()
            locked_until = asyncio.get_running_loop().time() + self._settings.lock_valid_seconds
            for broker_name, some in _by_broker(free).items():
                try:
                    held |= await self._lock(broker_name, some)
                except ClientError as error:  # the queues of other brokers need not wait for it
                    log.debug("queues are not locked yet", broker=broker_name, reason=str(error))
            free = [queue for queue in free if queue in held]
        for queue in free:
            try:
                strict = self._where_is_wished and queue in self._seen_first.get(queue.topic, ())
                start = await self._positions.load(queue, strict=strict)
                if start is None:
                    start = await first_offset(self._instance, queue, self._where, self._from_timestamp_ms)
            except ClientError as error:
                self._note("queue has no start yet", error, topic=queue.topic)
                complete = False
                continue
            if queue.topic not in self._subscriptions:
                continue
            assigned = AssignedQueue(queue, start, self._settings, self._budget, orderly=self._orderly)
            assigned.locked_until = locked_until
            self.queues[queue] = assigned
            log.debug("took queue", queue=str(queue), start=start)
            self._opened(assigned)
        return complete and len(free) == len(queues)

    def _let_go(self, assigned: AssignedQueue) -> None:
        """The group gives the queue to somebody else."""
        log.debug("let queue go", queue=str(assigned.queue))
        self.queues.pop(assigned.queue, None)
        self._leave_soon(assigned.queue, self._hand_over(assigned))

    async def _hand_over(self, assigned: AssignedQueue) -> None:
        assigned.stop()
        if assigned.handler is not None:
            # The next owner cannot lock the queue before we unlock it, so the running message may finish.
            await asyncio.wait([assigned.handler], timeout=self._settings.close_timeout)
            assigned.handler.cancel()
        try:
            if assigned.was_pulled and assigned.active:
                await self._positions.save(
                    {assigned.queue: assigned.window.commit_offset},
                    surely=self.needs_locks,
                    seconds=self._seconds(self.needs_locks),
                )
        except (ClientError, OSError) as error:
            log.warning(
                "offset is not stored: its messages will come again",
                queue=str(assigned.queue),
                reason=str(error),
            )
        finally:
            assigned.retire()
        if self.needs_locks:
            await self._unlock([assigned.queue])

    async def _move(self, assigned: AssignedQueue, queue_offset: int) -> None:
        # Nothing is consumed from there before a master knows of it: with its death the group would move
        # again, and get what it has got.
        try:
            await self._positions.save(
                {assigned.queue: queue_offset}, surely=True, seconds=self._seconds(True)
            )
        except (ClientError, OSError) as error:
            log.warning("queue offset is not stored", queue=str(assigned.queue), reason=str(error))
            await asyncio.sleep(MOVE_PAUSE_SECONDS)
        await _handler_ended(assigned)

    def _forget(self, assigned: AssignedQueue) -> None:
        assigned.retire()
        if self.queues.get(assigned.queue) is assigned:
            del self.queues[assigned.queue]

    def _leave_soon(self, queue: MessageQueue, work: object) -> None:
        """Run `work` in the background; until it is over the queue is not taken again."""
        task = self._instance.spawn(work, f"leave {queue.topic}/{queue.queue_id}")  # type: ignore[arg-type]  # a coroutine
        self._leaving[queue] = task

        def left(done: asyncio.Task[object]) -> None:
            if self._leaving.get(queue) is done:
                del self._leaving[queue]
            self.wanted.set()

        task.add_done_callback(left)

    async def _lock(self, broker_name: str, queues: list[MessageQueue]) -> frozenset[MessageQueue]:
        address = (await self._instance.route(queues[0].topic)).master(broker_name)
        if address is None:
            # Nobody else can get the locks meanwhile either: those that we have are not lost yet.
            raise BrokerUnreachable(broker_name, "it has no master now, who would lock queues")
        return await calls.lock_queues(self._instance, address, self._group, queues)

    async def _unlock(self, queues: Iterable[MessageQueue]) -> None:
        for broker_name, some in _by_broker(queues).items():
            try:
                address = (await self._instance.route(some[0].topic)).master(broker_name)
                if address is not None:
                    await calls.unlock_queues(self._instance, address, self._group, some)
            except ClientError as error:
                log.debug("queues are not unlocked, the broker will do it later", reason=str(error))


async def _handler_ended(assigned: AssignedQueue) -> None:
    """Orderly: wait for the message that the listener still has. Who takes the queue next, perhaps we
    ourselves, must not handle it at the same time."""
    if assigned.handler is not None:
        await asyncio.wait([assigned.handler])


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found
