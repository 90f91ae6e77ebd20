"""The transaction producer while the master of a group crashes: each message is delivered once, or never."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from brokerset_client import (
    Admin,
    ConsumeFromWhere,
    EndStatus,
    HalfMessage,
    Message,
    MessageView,
    PushConsumer,
    TopicConfig,
    TransactionProducer,
    TransactionSettings,
    TransactionState,
)
from brokerset_rig.crashing_groups import CrashingGroup, controlled_group, dledger_group
from brokerset_rig.local_servers import HOST, running_name_server
from brokerset_rig.waiting import until

pytestmark = pytest.mark.long

Groups: TypeAlias = Callable[..., AbstractAsyncContextManager[CrashingGroup]]

KINDS = pytest.mark.parametrize("groups", [controlled_group, dledger_group])


@asynccontextmanager
async def cluster(folder: Path, groups: Groups) -> AsyncIterator[tuple[str, CrashingGroup]]:
    """A group whose master has the topic `t`, and a name server that knows it."""
    async with running_name_server(folder) as server:
        namesrv = f"{HOST}:{server.port}"
        settings = {"transaction_time_out": 0, "transaction_check_interval": 100}
        async with groups(folder, namesrv_addr=namesrv, **settings) as group:
            master = await group.master()
            async with Admin(namesrv=namesrv) as admin:
                await admin.create_topic(TopicConfig("t", 1, 1), address=f"{HOST}:{master.port}")
                await admin.wait_for_route("t", 1)
            yield namesrv, group


def consumer(namesrv: str, seen: list[bytes]) -> PushConsumer:
    async def listener(message: MessageView) -> None:
        seen.append(message.body)

    made = PushConsumer(
        "g", namesrv=namesrv, listener=listener, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    made.subscribe("t")
    return made


@KINDS
async def test_transactions_that_are_open_at_a_crash_end_at_the_next_master(
    tmp_path: Path, groups: Groups
) -> None:
    """The end finds the new master by itself; what was left open is asked for by it, and answered."""
    seen: list[bytes] = []

    async def check(message: MessageView) -> TransactionState:
        return TransactionState.COMMIT if message.body == b"asked" else TransactionState.ROLLBACK

    async with (
        cluster(tmp_path, groups) as (namesrv, group),
        TransactionProducer(
            "p",
            namesrv=namesrv,
            check=check,
            timeout=30,
            transactions=TransactionSettings(end_timeout=30),
        ) as producer,
    ):

        async def crash(_: HalfMessage) -> TransactionState:
            for body, state in ((b"asked", None), (b"not asked", TransactionState.ROLLBACK)):
                async with producer.transaction(Message(topic="t", body=body)) as transaction:
                    transaction.leave_to_check()
                    if state is not None:
                        transaction.rollback()
            await group.crash(await group.master())
            return TransactionState.COMMIT

        result = await producer.send_in_transaction(Message(topic="t", body=b"committed"), crash)
        assert result.end is EndStatus.CONFIRMED, result.problem
        async with consumer(namesrv, seen):
            async with producer.transaction(Message(topic="t", body=b"after")):
                pass
            await until(lambda: len(seen) >= 3, 60)
            await producer.send(Message(topic="t", body=b"last"))
            await until(lambda: b"last" in seen)

    assert sorted(seen) == [b"after", b"asked", b"committed", b"last"]
