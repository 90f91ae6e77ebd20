"""`brokerset group …` about consumers that run, against a broker and consumers of this process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner, Result

from brokerset_broker.app import Broker
from brokerset_broker.requests.pop.log import Popped
from brokerset_cli.groups import group
from brokerset_cli.status import status
from brokerset_client import (
    ClientInstance,
    ConsumeFromWhere,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    PushSettings,
)
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_rig.local_servers import running_broker, running_name_server
from brokerset_rig.waiting import until

QUICK = PushSettings(commit_seconds=0.02, rebalance_seconds=0.5)


@dataclass
class World:
    """A broker with topic t, and a client."""

    broker: Broker
    instance: ClientInstance
    namesrv: str
    got: list[bytes]
    failing: bool = False

    async def listener(self, message: MessageView) -> None:
        """Note it, or fail."""
        if self.failing:
            raise LookupError("no such order")
        self.got.append(message.body)

    async def send(self, *bodies: bytes) -> str:
        """Send messages; the id of the last one."""
        last = ""
        async with Producer("p", instance=self.instance) as producer:
            for body in bodies:
                last = (await producer.send(Message(topic="t", body=body))).message_id
        return last

    def consumer(self, name: str = "g") -> PushConsumer:
        """A member of a group."""
        made = PushConsumer(
            name, instance=self.instance, listener=self.listener, settings=QUICK,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )  # fmt: skip
        made.subscribe("t")
        return made

    async def run(self, *arguments: str) -> Result:
        """`brokerset group …`."""
        return await asyncio.to_thread(
            CliRunner().invoke, group, [*arguments, "--namesrv", self.namesrv], catch_exceptions=True
        )

    async def json(self, *arguments: str) -> Any:
        """What the command writes for scripts."""
        result = await self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.output)


@pytest.fixture(autouse=True)
def logs_to_standard_error() -> None:
    """A command's standard output is the process's while it runs in a thread: others must not log there."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """Name server, broker and client; the broker makes topics when they are sent to."""
    async with running_name_server(folder / "ns") as names:
        address = f"127.0.0.1:{names.port}"
        async with (
            running_broker(folder / "b", namesrv_addr=address) as broker,
            ClientInstance(address) as instance,
        ):
            made = World(broker, instance, address, [])
            await until(lambda: names.table.broker_count > 0)
            yield made


async def test_the_state_of_running_consumers(tmp_path: Path) -> None:
    """Queues, what is in hand and how quick they are; stacks when they are asked for; a wrong client is
    refused."""
    async with world(tmp_path) as here:
        await here.send(*[b"%d" % number for number in range(8)])
        async with here.consumer() as member:
            await until(lambda: len(here.got) == 8)
            found = await here.json("status", "g", "--stacks")
            shown = await here.run("status", "g")
            wrong = await here.run("status", "g", "--client", "nobody")
        nobody = await here.run("status", "g")

    (one,) = found["members"]
    assert one["clientId"] == member.instance.client_id
    assert sum(queue["next"] for queue in one["queues"] if queue["topic"] == "t") == 8
    assert {topic["topic"] for topic in one["topics"]} == {"t", "%RETRY%g"}
    assert "fetch t/0" in one["stacks"]
    assert "IN HAND" in shown.output
    assert "DONE/S" in shown.output
    assert "has no consumer nobody" in str(wrong.exception) + wrong.output
    assert nobody.exit_code == 1


async def test_a_group_is_moved_while_it_consumes(tmp_path: Path) -> None:
    """Back to the beginning, and one queue to an offset; both forms at once are refused."""
    async with world(tmp_path) as here:
        await here.send(*[b"%d" % number for number in range(8)])
        async with here.consumer():
            await until(lambda: len(here.got) == 8)
            moved = await here.json("reset-offsets", "g", "t", "--to", "earliest", "--yes")
            await until(lambda: len(here.got) == 16)
            (queue,) = [each for each in moved["queues"] if each["queueId"] == 0]
            where = f"{queue['broker']}/0"
            await here.json("reset-offsets", "g", "t", "--queue", where, "--offset", "0", "--yes")
            await until(lambda: len(here.got) > 16)
        refused = [
            await here.run("reset-offsets", "g", "t", *wrong)
            for wrong in (
                (), ("--to", "latest", "--queue", where, "--offset", "1"), ("--queue", "x", "--offset", "1"),
                ("--to", "yesterday"), ("--offset", "1"),
            )
        ]  # fmt: skip

    assert all(queue["offset"] == 0 for queue in moved["queues"])
    assert [result.exit_code for result in refused] == [2] * 5


async def test_offsets_are_cloned_to_a_group_that_does_not_run(tmp_path: Path) -> None:
    """A target with consumers is refused: they would go on where they are."""
    async with world(tmp_path) as here:
        await here.send(b"a", b"b")
        async with here.consumer():
            await until(lambda: len(here.got) == 2)
            await until(
                lambda: sum(here.broker.offsets.query("g", "t", queue) or 0 for queue in range(8)) == 2
            )
            done = await here.json("clone-offsets", "g", "h")
            busy = await here.run("clone-offsets", "h", "g")

        assert len(done["brokers"]) == 1
        assert sum(here.broker.offsets.query("h", "t", queue) or 0 for queue in range(8)) == 2
        assert "1 consumer online" in str(busy.exception) + busy.output


async def test_offsets_are_cloned_between_groups_without_members(tmp_path: Path) -> None:
    """Neither has a retry topic: the source commits without heartbeats, and the target was just created."""
    async with world(tmp_path) as here:
        await here.send(b"a")
        here.broker.groups.update(SubscriptionGroupConfig("g"))
        here.broker.groups.update(SubscriptionGroupConfig("h"))
        for queue in range(8):
            here.broker.offsets.commit("g", "t", queue, 1)
        cloned = await here.run("clone-offsets", "g", "h")
        status = await here.run("status", "h")

        assert cloned.exit_code == 0, cloned.output
        assert [here.broker.offsets.query("h", "t", queue) for queue in range(8)] == [1] * 8
        assert "nobody consumes for group" in status.output


async def test_a_change_of_a_group_leaves_it_suspended(tmp_path: Path) -> None:
    """`create --update` is about retries and order; it is `resume` that lets a group consume again."""
    async with world(tmp_path) as here:
        here.broker.groups.update(SubscriptionGroupConfig("g", consume_enable=False))
        changed = await here.run("create", "g", "--update", "--retries", "3")
        found = here.broker.groups.get("g")

    assert changed.exit_code == 0, changed.output
    assert found is not None
    assert (found.consume_enable, found.retry_max_times) == (False, 3)


async def test_a_group_is_suspended_and_resumed(tmp_path: Path) -> None:
    """Its consumer stays connected and gets nothing meanwhile; a group that nobody knows is refused."""
    async with world(tmp_path) as here:
        await here.send(b"a")
        async with here.consumer():
            await until(lambda: here.got == [b"a"])
            suspended = await here.run("suspend", "g", "--yes")
            await here.send(b"b")
            assert here.got == [b"a"]
            described = await here.run("describe", "g")
            resumed = await here.run("resume", "g")
            await until(lambda: here.got == [b"a", b"b"])
        unknown = await here.run("suspend", "nobody", "--yes")

    assert "It is suspended at 127.0.0.1:" in described.output
    assert (suspended.exit_code, resumed.exit_code, unknown.exit_code) == (0, 0, 1)


async def test_suspension_leaves_the_attributes_of_a_group(tmp_path: Path) -> None:
    """A group with attributes can be suspended, and keeps them."""
    async with world(tmp_path) as here:
        config = SubscriptionGroupConfig("g", attributes={"+priority.factor": "7"})
        here.broker.groups.update(config, config.attributes)
        suspended = await here.run("suspend", "g", "--yes")
        found = here.broker.groups.get("g")

    assert suspended.exit_code == 0, suspended.output
    assert found is not None
    assert (found.consume_enable, dict(found.attributes)) == (False, {"priority.factor": "7"})


@pytest.mark.parametrize("failing", [False, True])
async def test_a_consumer_handles_a_message_directly(tmp_path: Path, failing: bool) -> None:
    """The outcome of its listener is shown, with the reason why it failed; then the command fails, too."""
    async with world(tmp_path) as here:
        message_id = await here.send(b"a")
        async with here.consumer():
            await until(lambda: here.got == [b"a"])
            here.failing = failing
            result = await here.run("consume-directly", "g", "t", message_id, "--json")
            missing = await here.run("consume-directly", "g", "t", "0" * 32)

    (line,) = [line for line in result.output.splitlines() if line.startswith("{")]  # logs are there, too
    found = json.loads(line)
    assert found["result"] == ("CR_THROW_EXCEPTION" if failing else "CR_SUCCESS")
    assert found["remark"] == ("LookupError: no such order" if failing else None)
    assert result.exit_code == int(failing)
    assert here.got == ([b"a"] if failing else [b"a", b"a"])
    assert missing.exit_code == 1


async def test_what_is_popped_is_shown_as_in_flight(tmp_path: Path) -> None:
    """The lag of a group that pops is what nobody was given; who has messages is a column of its own."""
    async with world(tmp_path) as here:
        await here.send(*[b"%d" % number for number in range(8)])
        broker = here.broker
        broker.groups.put(SubscriptionGroupConfig("g"))
        await until(lambda: broker.pop_log.is_known and broker.store.queue_max("t", 0) > 0)
        end = broker.store.queue_max("t", 0)
        name, now = broker.settings.broker_name, broker.clock.now_ms()
        broker.offsets.commit("g", "t", 0, 0, "test")
        assert broker.pop_log.position("t", "g", 0) == 0
        broker.pop_log.pop([Popped("t", "g", 0, 0, tuple(range(end)), end, now, 60_000, 0, name)])
        found = await here.json("describe", "g")
        shown = await here.run("describe", "g")

    (queue,) = [each for each in found["queues"] if (each["topic"], each["queueId"]) == ("t", 0)]
    assert (queue["lag"], queue["inFlight"]) == (0, end)
    assert "IN FLIGHT" in shown.output


async def test_status_shows_how_far_behind_groups_are(tmp_path: Path) -> None:
    """A row for each topic of a group, whether its members are there or not; system groups are left out."""
    async with world(tmp_path) as here:
        await here.send(b"a")
        async with here.consumer():
            await until(lambda: here.got == [b"a"])
        await here.send(b"b", b"c")
        found = await asyncio.to_thread(
            CliRunner().invoke, status, ["--namesrv", here.namesrv, "--groups", "--json"]
        )

    view = json.loads(found.stdout[found.stdout.index("{") :])
    (row,) = view["consumerGroups"]
    assert (row["group"], row["topic"], row["lag"]) == ("g", "t", 2)
    assert row["lastTimestamp"] > 0
