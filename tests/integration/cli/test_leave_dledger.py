"""`brokerset upgrade dledger` on stores of real groups: all is there in controller mode."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import sys
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.app import Broker
from brokerset_formats.records import Record, SysFlag
from brokerset_rig.controller_group import ControllerGroup
from brokerset_rig.local_servers import HOST, Client, connected, properties, running_broker
from brokerset_rig.made_stores import unpack_fixture
from brokerset_rig.stack import free_ports
from brokerset_rig.waiting import until

GROUP, TOPIC, CONSUMERS = "broker-a", "orders", "cg"
MEMBERS, MESSAGES, DELAYED, CONSUMED = 3, 2400, 12, 77
DELAY_LEVEL, DELAY_QUEUE = "4", 3
"""30 seconds: longer than the way into controller mode, so that messages wait in the middle."""

FILE_BYTES = 8 << 20
JAVA_SIZES = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 6_000}
"""Of the files in the fixtures."""

STEPS_MAX = 40
PENDING_EXIT = 3

pytestmark = [pytest.mark.long, pytest.mark.timeout(170)]


class Place:
    """Folders, ports and servers of one group."""

    def __init__(self, folder: Path, stores: list[Path]) -> None:
        self.stores = stores
        self.namesrv, self.http, *rest = free_ports(2 + 2 * MEMBERS, below=1)
        self.ports, self.members = rest[:MEMBERS], rest[MEMBERS:]
        self.controllers = ControllerGroup(
            folder / "controllers", 1, enable_name_server=True, namesrv_listen_port=self.namesrv,
            kv_config_path=folder / "kv.json", raft_tick=10,
        )  # fmt: skip
        self.running: dict[int, AsyncExitStack] = {}

    async def start(self, number: int, **changes: Any) -> Broker:
        stack = AsyncExitStack()
        broker = await stack.enter_async_context(
            running_broker(
                self.stores[number], broker_name=GROUP, broker_ip1=HOST, listen_port=self.ports[number],
                namesrv_addr=f"{HOST}:{self.namesrv}",
                **({"mapped_file_size_commit_log": FILE_BYTES} | changes),
            )
        )  # fmt: skip
        self.running[number] = stack
        return broker

    async def start_member(self, number: int) -> Broker:
        peers = ";".join(f"n{n}-{HOST}:{port}" for n, port in enumerate(self.members))
        return await self.start(
            number, enable_dledger_commit_log=True, dledger_peers=peers, dledger_self_id=f"n{number}",
            dledger_brokerset_only=True,
        )  # fmt: skip

    async def start_replica(self, number: int, **changes: Any) -> Broker:
        return await self.start(
            number, enable_controller_mode=True, controller_addr=self.controllers.address(0),
            sync_broker_metadata_period=100, broker_heartbeat_interval=100, **changes,
        )  # fmt: skip

    async def start_all(self, step: dict[str, Any], **changes: Any) -> Broker:
        """Do what `start-master` and `start-slaves` ask for; the first broker, when all are in sync."""
        chosen = next(n for n, store in enumerate(self.stores) if f"{store} " in step["detail"])
        first = await self.start_replica(chosen, **changes)
        if len(self.stores) > 1:
            await self.lead_to("start-slaves")
        for n in range(len(self.stores)):
            if n != chosen:
                await self.start_replica(n, **changes)
        await until(lambda: not first.admission.refuses_writes)
        for _ in range(STEPS_MAX):
            if (await self.observe())["done"]:
                return first
            await asyncio.sleep(0.5)
        raise AssertionError("not all are in sync")

    def logs(self) -> set[bytes]:
        """The commit logs of all stores; one, when they are equal."""
        files = [sorted((store / "commitlog").iterdir()) for store in self.stores]
        return {b"".join(each.read_bytes() for each in log) for log in files}

    async def stop(self, number: int) -> None:
        await self.running.pop(number).aclose()

    def command(self, *more: str) -> list[str]:
        stores = [each for store in self.stores for each in ("--store", str(store))]
        servers = ["--namesrv", f"{HOST}:{self.namesrv}", "--controllers", self.controllers.address(0)]
        known = ["--group", GROUP, "--members", str(len(self.stores))]
        program = [sys.executable, "-m", "brokerset_cli.main", "upgrade", "dledger"]
        return [*program, *stores, *servers, *known, *more]

    async def call(self, *more: str, kill_after: float | None = None) -> tuple[int, str]:
        """Run the command, killed with all that it needs after a while; its exit code and output."""
        process = await asyncio.create_subprocess_exec(
            *self.command(*more), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        if kill_after is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), kill_after)
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, (out if process.returncode in (0, PENDING_EXIT) else out + err).decode()

    async def observe(self) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            *self.command("--look", "--json"), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        found = json.loads(out)
        assert isinstance(found, dict)
        return found

    async def lead_to(self, step: str, *, kill_after: float | None = None) -> dict[str, Any]:
        """Give the command, and do what it asks for, until it comes to a step; how that stands."""
        for number in range(STEPS_MAX):
            early = kill_after if number == 1 else None
            code, said = await self.call("--yes", "--wait", "0", "--json", kill_after=early)
            assert code in (0, PENDING_EXIT, -signal.SIGKILL), said
            seen = json.loads(said) if code != -signal.SIGKILL else await self.observe()
            now = next(each for each in seen["steps"] if each["state"] != "done")
            if now["name"] == step:
                return dict(now)
            assert now["state"] != "blocked", now
            if now["name"] in ("slaves-stopped", "master-stopped"):
                for n in [n for n in self.running if str(self.stores[n]) in now["detail"]]:
                    await self.stop(n)
        raise AssertionError(f"it never comes to {step}")


@asynccontextmanager
async def place_at(folder: Path, stores: list[Path]) -> AsyncIterator[Place]:
    place = Place(folder, stores)
    await place.controllers.start(0)
    try:
        yield place
    finally:
        for number in list(place.running):
            await place.stop(number)
        await place.controllers.stop(0)


async def fill(client: Client) -> None:
    """Messages with keys, delayed ones in their middle, a group and its offset."""
    await client.create_topic(TOPIC)
    group = {"groupName": CONSUMERS, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 7}
    assert (await client.call(200, json.dumps(group).encode())).code == 0
    for n in range(MESSAGES):
        given = {"KEYS": f"k{n}", "TAGS": "t"}
        assert (await client.send(TOPIC, b"message %d" % n, queue_id=n % 3, properties=given)).code == 0
        if n % (MESSAGES // DELAYED) == 0:
            late = {"DELAY": DELAY_LEVEL}
            assert (await client.send(TOPIC, b"late %d" % n, queue_id=DELAY_QUEUE, properties=late)).code == 0
    commit = await client.call(15, consumerGroup=CONSUMERS, topic=TOPIC, queueId=0, commitOffset=CONSUMED)
    assert commit.code == 0


async def leader_of(brokers: list[Broker]) -> int:
    """Which of them serves."""
    for _ in range(600):
        for number, broker in enumerate(brokers):
            async with connected(broker.port) as connection:
                if (await Client(connection).call(26)).code == 0 and not broker.admission.refuses_writes:
                    return number
        await asyncio.sleep(0.1)
    raise AssertionError("nobody leads")


async def read(client: Client) -> dict[str, Any]:
    """All that clients can ask for: messages by queue with their queue offsets, keys, groups, offsets."""
    queues: dict[int, list[tuple[int, bytes, str | None]]] = {}
    for queue in range(3):
        rows: list[tuple[int, bytes, str | None]] = []
        while len(rows) < MESSAGES // 3:
            for each in await client.wait_for(TOPIC, len(rows), queue_id=queue):
                rows.append((each.queue_offset, each.body, properties(each).get("KEYS")))
        queues[queue] = rows
    found = await client.call(
        12, topic=TOPIC, key="k1234", maxNum=8, beginTimestamp=0, endTimestamp=1 << 60, _uniq_key="false"
    )
    offset = await client.call(14, consumerGroup=CONSUMERS, topic=TOPIC, queueId=0)
    groups = json.loads((await client.call(201)).body)["subscriptionGroupTable"]
    topics = json.loads((await client.call(21)).body)["topicConfigTable"]
    return {
        "queues": queues,
        "by key": b"message 1234" in found.body,
        "offset": offset.ext.get("offset"),
        "retries": groups[CONSUMERS]["retryMaxTimes"],
        "topic": topics[TOPIC],
    }


def test_a_group_of_three_comes_into_controller_mode_with_all_it_has(tmp_path: Path) -> None:
    """Messages, keys, delayed messages, topics, groups, offsets; killed on its way, and back once."""
    asyncio.run(_leave(tmp_path))


async def _leave(tmp_path: Path) -> None:
    stores = [tmp_path / f"store-{n}" for n in range(MEMBERS)]
    async with place_at(tmp_path, stores) as place:
        old = [await place.start_member(n) for n in range(MEMBERS)]
        leader = await leader_of(old)
        async with connected(old[leader].port) as connection:
            await fill(Client(connection))
            before = await read(Client(connection))
        assert before["by key"]
        assert before["offset"] == str(CONSUMED)

        await place.lead_to("start-master", kill_after=2.5)
        code, said = await place.call("--back", "--yes")
        assert code == 0, said
        assert all(any(place.stores[n].glob("dledger-*")) for n in range(MEMBERS))
        start = await place.lead_to("start-master")

        first = await place.start_all(start)

        async with connected(first.port) as connection:
            client = Client(connection)
            after = await read(client)
            late: list[bytes] = []
            while len(late) < DELAYED:
                late += [each.body for each in await client.wait_for(TOPIC, len(late), queue_id=DELAY_QUEUE)]
        assert after == before
        assert late == [b"late %d" % n for n in range(0, MESSAGES, MESSAGES // DELAYED)]
        assert len(place.logs()) == 1


@pytest.mark.parametrize("archive", ["dledger", "dledger-mixed"])
def test_stores_of_javas_brokers_come_along(tmp_path: Path, archive: str) -> None:
    """Of a group of three, and of one that was master and slaves before: every message is in its queue."""
    folder = unpack_fixture(tmp_path, archive)
    asyncio.run(_leave_java(folder, sorted(folder.glob("broker-*/store")), tmp_path))


async def _leave_java(folder: Path, stores: list[Path], tmp_path: Path) -> None:
    tables = [json.loads((each / "config" / "topics.json").read_text()) for each in stores]
    topics = {topic for topic in tables[0]["topicConfigTable"] if topic.startswith("fx")}
    queues: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for line in map(json.loads, (folder / "expected.jsonl").read_text().splitlines()):
        if line["topic"] in topics:
            queues.setdefault((line["topic"], line["queueId"]), {})[line["queueOffset"]] = line
    assert sum(map(len, queues.values())) > 100
    async with place_at(tmp_path, stores) as place:
        start = await place.lead_to("start-master")
        first = await place.start_all(start, accept_unserved_messages=True, **JAVA_SIZES)

        async with connected(first.port) as connection:
            for (topic, queue), lines in queues.items():
                found: dict[int, Record] = {}
                while not lines.keys() <= found.keys():
                    at = max(found, default=min(lines) - 1) + 1
                    for each in await Client(connection).wait_for(topic, at, queue_id=queue):
                        found[each.queue_offset] = each
                for offset, line in lines.items():
                    body = found[offset].body
                    body = zlib.decompress(body) if found[offset].sys_flag & SysFlag.COMPRESSED else body
                    assert hashlib.sha256(body).hexdigest() == line["bodySha256"]
                    assert properties(found[offset]).items() >= line["properties"].items()
        assert len(place.logs()) == 1
