"""The pull loop of one queue of a push consumer: long polls, flow control, trouble.

Source: `DefaultMQPushConsumerImpl.pullMessage`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from brokerset_client import calls
from brokerset_client.assigned_queue import AssignedQueue
from brokerset_client.calls import PullStatus
from brokerset_client.consume_rates import ConsumerWork
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import MessageView
from brokerset_client.positions import reader_address
from brokerset_client.retry import Backoff
from brokerset_protocol.bodies.heartbeat import SubscriptionData
from brokerset_protocol.codes import ResponseCode

log = structlog.get_logger(__name__)

TROUBLE = Backoff(first_ms=50, factor=2.0, max_ms=3000)
"""Waits after pulls that failed; Java waits 3 s always."""

EMPTY_ANSWERS_MAX = 8
"""Empty answers in a row without a parked pull after which the loop slows down: the broker has no long
polling."""

EMPTY_PAUSE_SECONDS = 0.2
QUICK_SECONDS = 0.05

_UNKNOWN_TO_BROKER = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)
"""Answers of a broker that has not had our latest heartbeat (it restarted, or we reconnected)."""


async def fetch(
    instance: ClientInstance,
    group: str,
    assigned: AssignedQueue,
    *,
    subscription: Callable[[], SubscriptionData | None],
    deliver: Callable[[AssignedQueue, list[MessageView]], Awaitable[None]],
    moved: Callable[[AssignedQueue, int], None],
    commits: bool,
    batch: int,
    work: ConsumerWork,
) -> None:
    """Pull for as long as the queue is ours.

    `deliver` gets what was found, `moved` is told once when the queue offset was no good, and where it goes
    on; then the loop ends. `commits`: pulls carry the finished offset along. `work` counts the answers.
    """
    queue = assigned.queue
    clock = instance.clock
    failures = 0
    empty = 0
    while not assigned.stopping:
        if assigned.suspended:
            await assigned.wait_resumed()
            continue
        if assigned.is_full:
            await assigned.wait_for_room()
            continue
        wanted = subscription()
        if wanted is None:
            return
        begun = asyncio.get_running_loop().time()
        try:
            address = await reader_address(instance, queue, assigned.broker_id)
            route = instance.cached_route(queue.topic)
            at_master = route is not None and route.master(queue.broker_name) == address
            commit = assigned.window.commit_offset
            result = await calls.pull(
                instance,
                address,
                group=group,
                queue=queue,
                queue_offset=assigned.next_queue_offset,
                subscription=wanted,
                messages_max=batch,
                commit_offset=commit if commits and at_master and commit > 0 else None,
            )
        except ClientError as error:
            failures += 1
            assigned.broker_id = 0
            if isinstance(error, RequestRefused) and error.code in _UNKNOWN_TO_BROKER:
                instance.heartbeat_soon()
            else:
                instance.refresh_soon(queue.topic)
            if failures in (1, 10) or failures % 100 == 0:
                denied = isinstance(error, RequestRefused) and error.code == ResponseCode.NO_PERMISSION
                note = log.error if denied else log.warning  # it does not get better by itself
                note("pull failed", queue=str(queue), failures=failures, reason=str(error))
            await asyncio.sleep(TROUBLE.delay_ms(failures) / 1000)
            continue
        failures = 0
        if assigned.stopping:
            return
        assigned.last_pull_ms = clock.now_ms()
        assigned.broker_id = result.suggested_broker_id
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "queue offset moved",
                queue=str(queue),
                wanted=assigned.next_queue_offset,
                next=result.next_queue_offset,
            )
            moved(assigned, result.next_queue_offset)
            return
        work.pulled(queue.topic, len(result.messages), asyncio.get_running_loop().time() - begun)
        messages = assigned.add(result.messages, result.next_queue_offset)
        assigned.was_pulled = True
        if messages:
            empty = 0
            await deliver(assigned, messages)
        elif asyncio.get_running_loop().time() - begun < QUICK_SECONDS:
            empty += 1
            if empty > EMPTY_ANSWERS_MAX and result.status is not PullStatus.NO_MATCHED_MSG:
                await asyncio.sleep(EMPTY_PAUSE_SECONDS)
