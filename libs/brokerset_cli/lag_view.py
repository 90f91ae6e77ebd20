"""What `brokerset status --groups` shows: how far behind each consumer group is, topic by topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from brokerset_cli.topics import moment
from brokerset_client.admin import Admin, GroupProgress
from brokerset_client.errors import GroupOffline, TopicNotFound
from brokerset_formats import names

AT_ONCE: Final = 16
"""Groups that are asked for at the same time."""


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A consumer group in one topic."""

    group: str
    topic: str
    queues: int
    lag: int
    """Messages that wait; those in flight are among them, but not of a group that pops."""

    in_flight: int
    """Messages that members have, and have not acknowledged."""

    last_timestamp: int
    """When the newest message was stored that it has consumed, in milliseconds; 0: it consumed none."""


def lags_of(group: str, progress: Iterable[GroupProgress]) -> list[GroupLag]:
    """A row for each topic; topics of retries only where something waits in them."""
    topics: dict[str, list[GroupProgress]] = {}
    for each in progress:
        topics.setdefault(each.queue.topic, []).append(each)
    rows = [
        GroupLag(
            group,
            topic,
            len(queues),
            sum(each.lag for each in queues),
            sum(each.in_flight for each in queues),
            max(each.last_timestamp_ms for each in queues),
        )
        for topic, queues in sorted(topics.items())
    ]
    return [row for row in rows if row.lag or row.topic != names.retry_topic(group)]


async def fetch_lags(admin: Admin) -> tuple[GroupLag, ...]:
    """All groups that people made, and that have consumed something. Raises `ClientError`."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(group: str) -> list[GroupLag]:
        async with slots:
            try:
                return lags_of(group, await admin.consume_progress(group))
            except (GroupOffline, TopicNotFound):
                return []

    wanted = [group for group in await admin.groups() if not names.is_system_group(group)]
    return tuple(row for rows in await asyncio.gather(*map(one, wanted)) for row in rows)


LAG_COLUMNS: Final[dict[str, str | Callable[[GroupLag], object]]] = {
    "group": "group",
    "topic": "topic",
    "queues": "queues",
    "lag": "lag",
    "in flight": "in_flight",
    "last consumed": lambda row: moment(row.last_timestamp),
}
