"""Offsets that were reset survive the death of the master that did it, under controllers and in DLedger mode."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from brokerset_client import (
    Admin,
    ClientInstance,
    ConsumeFromWhere,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    PushSettings,
    TopicConfig,
)
from brokerset_client.errors import ClientError
from brokerset_rig.local_set import LocalSet, local_set
from brokerset_rig.waiting import until

MESSAGES, QUEUES = 200, 2
QUICK = PushSettings(commit_seconds=0.05, rebalance_seconds=1.0)
SECONDS_MAX = 60.0

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {{name: resets}}
spec:
  {mode}
  config: {{mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}}
"""


def is_whole(view: dict[str, Any]) -> bool:
    """Whether all is well, and three brokers have everything."""
    return bool(view["healthy"]) and len(_in_sync(view)) == 3


def _in_sync(view: dict[str, Any]) -> list[dict[str, Any]]:
    group = _group(view)
    return [each for each in group.get("replicas") or group["members"] if each["inSync"]]


def _group(view: dict[str, Any]) -> dict[str, Any]:
    (group,) = view.get("groups") or view["dledgerGroups"]
    return dict(group)


def kill_master(local: LocalSet) -> None:
    """SIGKILL the process of the group's master."""
    view = local.until(is_whole, "three brokers are in sync")
    master_id = _group(view)["masterId"]
    (master,) = [each["process"] for each in _in_sync(view) if each["brokerId"] == master_id]
    local.kill(master)


async def persistently(work: object) -> None:
    """Repeat a change until it is answered: there may be no master for a moment."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                await work()  # type: ignore[operator]  # a function without arguments
            except ClientError:
                await asyncio.sleep(0.05)
            else:
                return


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["controllers: {replicas: 1}", "replication: {mode: dledger}"])
async def test_a_reset_is_where_the_group_goes_on_after_the_death_of_the_master(
    tmp_path: Path, mode: str
) -> None:
    """Back to the start, and the master dies at once: every message comes again, and offsets end at the ends."""
    with local_set(tmp_path, MANIFEST.format(mode=mode)) as local:
        await asyncio.to_thread(local.until, is_whole, "three brokers are in sync")
        got: list[tuple[int, int]] = []

        async def listener(message: MessageView) -> None:
            got.append((message.queue_id, message.queue_offset))

        async with ClientInstance(local.state()["namesrv"]) as instance:
            admin = Admin(instance=instance)
            await admin.create_topic(TopicConfig("t", QUEUES, QUEUES))
            await admin.wait_for_route("t", QUEUES)
            async with Producer("p", instance=instance) as producer:
                for number in range(MESSAGES):
                    await producer.send(Message(topic="t", body=b"%d" % number))
            consumer = PushConsumer(
                "g", instance=instance, listener=listener, settings=QUICK,
                consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            )  # fmt: skip
            consumer.subscribe("t")
            async with consumer:
                await until(lambda: len(set(got)) == MESSAGES, SECONDS_MAX)
                mark = len(got)
                moved = await admin.reset_offsets("g", "t", 0)
                assert set(moved.values()) == {0}

                await asyncio.to_thread(kill_master, local)
                await until(lambda: len(set(got[mark:])) == MESSAGES, SECONDS_MAX)

            async def is_at_the_end() -> None:
                progress = await admin.consume_progress("g", "t")
                if sum(each.lag for each in progress):
                    raise ClientError("not there yet")

            await persistently(is_at_the_end)
