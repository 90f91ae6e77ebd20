"""Topics and groups for the scenarios of the RocketMQ 5 clients, and what is to be read behind their back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from brokerset_client import Admin, TopicConfig
from brokerset_formats.config.groups import SubscriptionGroupConfig
from brokerset_rig import wire
from brokerset_rig.controllers import until
from brokerset_rig.stack import StackError

TYPES: Final = {
    "normal": "NORMAL",
    "again": "NORMAL",
    "fifo-push": "FIFO",
    "fifo-simple": "FIFO",
    "fifo-dead": "FIFO",
    "delay": "DELAY",
    "recall": "DELAY",
    "transaction": "TRANSACTION",
    "push": "NORMAL",
    "slow": "NORMAL",
    "dead": "NORMAL",
    "filter-tag": "NORMAL",
    "filter-sql": "NORMAL",
    "priority": "PRIORITY",
    "errors": "NORMAL",
}
"""Scenario -> type of its topic."""

QUEUES: Final = {"fifo-simple": 1, "fifo-dead": 1, "priority": 4}
"""Scenario -> queues, where it is not the usual number."""

QUEUES_USUAL = 2
REGISTERED_SECONDS_MAX = 60.0
DEAD: Final = ("dead", "fifo-dead")
"""Scenarios that end with a dead letter."""

ATTEMPTS_OF_DEAD = 2
PROXY_SETTINGS: Final = {"defaultInvisibleTimeMills": "20000"}
"""How long a push consumer has a message before the proxy renews that (60 s by default): less than `slow` takes."""


def topics(client: str) -> Iterator[TopicConfig]:
    """The topics of a client's scenarios."""
    for scenario, kind in TYPES.items():
        queues = QUEUES.get(scenario, QUEUES_USUAL)
        yield TopicConfig(
            topic_name=f"{client}-{scenario}",
            read_queue_nums=queues,
            write_queue_nums=queues,
            attributes={"+message.type": kind},
        )


def groups(client: str) -> Iterator[SubscriptionGroupConfig]:
    """The consumer groups of a client's scenarios."""
    for scenario in TYPES:
        yield SubscriptionGroupConfig(
            group_name=f"{client}-{scenario}",
            consume_message_orderly=scenario.startswith("fifo"),
            retry_max_times=ATTEMPTS_OF_DEAD - 1 if scenario in DEAD else 16,
        )


async def prepare(namesrv: str, client: str) -> None:
    """Make what a client's scenarios use, and wait until routes show it."""
    async with Admin(namesrv=namesrv) as admin:
        async with asyncio.timeout(REGISTERED_SECONDS_MAX):
            while not await admin.masters():  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.1)
        for topic in topics(client):
            await admin.create_topic(topic)
        for group in groups(client):
            await admin.create_group(group)
        for topic in topics(client):
            await admin.wait_for_route(topic.topic_name, topic.write_queue_nums)


def dead_letters(port: int, group: str, seconds: float) -> list[dict[str, Any]]:
    """The dead letters of a group as the broker at this port has them; none if they do not come in this time."""
    try:
        return until(f"dead letters of {group}", partial(_stored, port, f"%DLQ%{group}"), seconds)
    except StackError:
        return []


def _stored(port: int, topic: str) -> list[dict[str, Any]]:
    """Bodies and names of properties in queue 0, the only one of a topic for dead letters; empty while there is none."""
    with wire.Client(port) as broker:
        found = broker.call(wire.MAX_OFFSET, {"topic": topic, "queueId": "0"})
        if found.code or int(found.ext.get("offset", "0")) <= 0:
            return []
        answer = broker.call(wire.PULL, wire.pull_ext(topic, 0, 0))
        return [
            {"body": each.body.decode(), "properties": _names(each.properties)}
            for each in wire.records(answer.body)
        ]


def _names(properties: str) -> list[str]:
    return sorted(each.partition("\x01")[0] for each in properties.split("\x02") if each)
