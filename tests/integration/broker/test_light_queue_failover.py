"""Light queues when a master crashes, in groups of both kinds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from brokerset_protocol.codes import RequestCode
from brokerset_rig.crashing_groups import CrashingGroup, controlled_group, dledger_group
from brokerset_rig.local_servers import bodies
from brokerset_rig.transaction_client import transaction_client

pytestmark = pytest.mark.long

Groups: TypeAlias = Callable[..., AbstractAsyncContextManager[CrashingGroup]]


@pytest.mark.parametrize("groups", [controlled_group, dledger_group])
async def test_light_queues_and_their_progress_are_those_of_before_the_crash(
    tmp_path: Path, groups: Groups
) -> None:
    """Every message that was answered is in its light queues, numbers go on, and deletions hold."""
    where: dict[str, Any] = {"consumerGroup": "%LMQ%g", "topic": "%LMQ%a", "queueId": "0"}
    async with groups(tmp_path, enable_lmq=True, enable_multi_dispatch=True) as group:
        first = await group.master()
        async with transaction_client(first.port) as client:
            await client.create_topic("t", attributes="+message.type=LITE")
            for number in range(9):
                named = "%LMQ%a" if number % 3 else "%LMQ%a,%LMQ%b"
                sent = await client.send("t", b"%d" % number, properties={"INNER_MULTI_DISPATCH": named})
                assert sent.code == 0
            for child in ("kept", "deleted", "deleted"):
                assert (await client.send("t", b"lite", properties={"__LITE_TOPIC": child})).code == 0
            deleted = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="%LMQ%$t$deleted")
            assert deleted.code == 0
            committed = await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=4, **where)
            assert committed.code == 0
            await group.crash(first)

        second = await group.master()
        async with transaction_client(second.port) as client:
            assert second is not first
            assert bodies(await client.pull("%LMQ%a", 0)) == [b"%d" % number for number in range(9)]
            assert (await client.call(RequestCode.QUERY_CONSUMER_OFFSET, **where)).ext["offset"] == "4"
            for name, value in (
                ("INNER_MULTI_DISPATCH", "%LMQ%b"), ("__LITE_TOPIC", "kept"), ("__LITE_TOPIC", "deleted"),
            ):  # fmt: skip
                assert (await client.send("t", b"new", properties={name: value})).code == 0
            in_b = await client.pull("%LMQ%b", 0)
            assert bodies(in_b) == [b"0", b"3", b"6", b"new"]
            assert b"INNER_MULTI_QUEUE_OFFSET\x013\x02" in in_b.body
            assert bodies(await client.pull("t", 0, liteTopic="kept")) == [b"lite", b"new"]
            assert bodies(await client.pull("t", 0, liteTopic="deleted")) == [b"new"]
