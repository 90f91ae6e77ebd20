"""`PopConsumer` while the master of a group crashes: nothing is lost, nothing comes twice without a word."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from brokerset_client import (
    Admin,
    ClientError,
    ConsumeFromWhere,
    Message,
    PopConsumer,
    PoppedMessage,
    PopSettings,
    Producer,
    TopicConfig,
)
from brokerset_rig.crashing_groups import CrashingGroup, controlled_group, dledger_group
from brokerset_rig.local_servers import HOST, running_name_server
from brokerset_rig.waiting import until

pytestmark = pytest.mark.long

Groups: TypeAlias = Callable[..., AbstractAsyncContextManager[CrashingGroup]]

KINDS = pytest.mark.parametrize("groups", [controlled_group, dledger_group])
COUNT = 200
SECONDS_MAX = 60.0


@asynccontextmanager
async def cluster(folder: Path, groups: Groups) -> AsyncIterator[tuple[str, CrashingGroup]]:
    """A group whose master has the topic `t` with messages, and a name server that knows it."""
    async with running_name_server(folder) as server:
        namesrv = f"{HOST}:{server.port}"
        async with groups(folder, namesrv_addr=namesrv, pop_clock_skew_ms=0) as group:
            master = await group.master()
            async with Admin(namesrv=namesrv) as admin:
                await admin.create_topic(TopicConfig("t", 2, 2), address=f"{HOST}:{master.port}")
                await admin.wait_for_route("t", 1)
            async with Producer("p", namesrv=namesrv) as producer:
                for number in range(COUNT):
                    await producer.send(Message(topic="t", body=b"%d" % number, sharding_key=f"{number % 4}"))
            yield namesrv, group


@KINDS
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_listener_goes_on_at_the_next_master(tmp_path: Path, groups: Groups, ordered: bool) -> None:
    """Each message is handled; twice only if its consumer heard that it is lost. Ordered, each key stays in
    its order."""
    async with cluster(tmp_path, groups) as (namesrv, group):
        seen: list[bytes] = []
        lost: list[bytes] = []

        async def listener(message: PoppedMessage) -> None:
            seen.append(message.body)
            await asyncio.sleep(0.02)

        def on_lost(message: PoppedMessage, _: ClientError) -> None:
            lost.append(message.body)

        consumer = PopConsumer(
            "g",
            namesrv=namesrv,
            listener=listener,
            ordered=ordered,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            settings=PopSettings(workers=2, invisible_seconds=20.0),
            on_lost=on_lost,
        )
        consumer.subscribe("t")
        async with consumer:
            await until(lambda: len(seen) >= COUNT // 4, SECONDS_MAX)
            await group.crash(await group.master())
            await until(lambda: len(set(seen)) == COUNT, SECONDS_MAX)
            await until(lambda: consumer.counts.acked + consumer.counts.lost >= COUNT, SECONDS_MAX)
    # What was popped by an answer that the crash has swallowed was seen by nobody.
    assert {body for body, count in Counter(seen).items() if count > 1} <= set(lost)
    if ordered:
        for key in range(4):
            first_seen = [number for number in map(int, dict.fromkeys(seen)) if number % 4 == key]
            assert first_seen == sorted(first_seen)
