"""A group of three brokers of ours behind Java's proxy: the master dies while clients of RocketMQ 5 send and consume."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from brokerset_client import Admin, TopicConfig
from brokerset_formats.config.groups import SubscriptionGroupConfig
from brokerset_rig import replicated_group, stack, wire
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import CLUSTER, until
from brokerset_rig.proxy_steady import Steady, out_of_order, pause, repeated
from brokerset_rig.proxy_world import PROXY_SETTINGS
from brokerset_rig.replicated_group import Group, ready_topic
from brokerset_rig.replication_checks import compared, note, unexpected

TOPIC: Final = "flow"
FIFO_TOPIC: Final = "flow-fifo"
PYTHON_TOPIC: Final = "flow-python"
MESSAGE_GROUPS: Final = 5
REVIVE_TOPIC: Final = f"rmq_sys_REVIVE_LOG_{CLUSTER}"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
REVIVE_QUEUES: Final = 8
START_SECONDS_MAX = 60.0
AGAIN_SECONDS_MAX = 60.0
"""The proxy reads routes every 20 s."""

CONSUMED_SECONDS_MAX = 120.0
"""What was handed out and not acknowledged when the master died comes back after the proxy's invisible time."""

Change: TypeAlias = tuple[float, float]
"""On the monotonic clock: when it began, and when the clients had gone on."""


def run(add: Add, cache: Path) -> None:
    """A kill and a hand-over; then all that was acknowledged to producers has come, and what consumers acknowledged only once."""
    with replicated_group.group("proxy", 3) as found:
        with step(add, "three brokers of ours replicate, a proxy in front of them") as problems:
            for _ in range(3):
                found.add("ours")
            found.wait_in_sync()
            ready_topic(found, TOPIC)
            ready_topic(found, PYTHON_TOPIC)
            asyncio.run(_ready_fifo(found.servers.name_servers))
        if problems:
            return
        ports, names = stack.free_ports(2, below=2), found.servers.name_servers
        with (
            stack.java_proxy(found.folder, ports, names, PROXY_SETTINGS) as proxy,
            Steady("java", cache, found.folder, proxy.address, TOPIC) as plain,
            Steady("java", cache, found.folder, proxy.address, FIFO_TOPIC, MESSAGE_GROUPS) as fifo,
            Steady("python", cache, found.folder, proxy.address, PYTHON_TOPIC) as python,
        ):
            _all(add, found, (plain, fifo, python))
        with step(add, "our brokers logged no unexpected failure") as problems:
            problems += unexpected(found.members)


async def _ready_fifo(namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(
            TopicConfig(
                topic_name=FIFO_TOPIC,
                read_queue_nums=4,
                write_queue_nums=4,
                attributes={"+message.type": "FIFO"},
            )
        )
        await admin.create_group(SubscriptionGroupConfig(group_name=FIFO_TOPIC, consume_message_orderly=True))
        await admin.wait_for_route(FIFO_TOPIC, 4)


def _all(add: Add, found: Group, clients: Sequence[Steady]) -> None:
    with step(add, "5.x clients send and consume through the proxy"):
        for client in clients:
            client.wait("sends and consumes", client.flows, START_SECONDS_MAX)
    changes: list[Change] = []
    with step(add, "the master dies: the clients go on through the proxy") as problems:
        dead: list[replicated_group.Member] = []
        changes.append(_change("killed", clients, lambda: dead.append(found.kill_master())))
        found.start(dead[0])
        found.wait_in_sync()
    if problems:
        return
    with step(add, "the master hands over in order: the clients go on through the proxy") as problems:
        changes.append(_change("handed over", clients, lambda: _hand_over(found)))
    if problems:
        return
    with step(add, "everything that was acknowledged to the producers is consumed") as problems:
        for client in clients:
            client.send_no_more()
            client.wait("consumes everything", client.complete, CONSUMED_SECONDS_MAX)
        problems += compared(found)
    with step(add, "what consumers acknowledged is not delivered again, and groups are in order") as problems:
        until("nothing is out", lambda: nothing_out(found.master()[0].port), CONSUMED_SECONDS_MAX)
        for client in clients:
            why, not_why = repeated(client.got, changes)
            note(f"{client.topic}: {len(client.acked)} acknowledged, {len(why)} came again after a change")
            problems += [f"{client.topic}: {body} came again, and no master had changed" for body in not_why]
            if client.groups:
                problems += out_of_order(client.got, client.groups)


def _hand_over(found: Group) -> None:
    master, epoch = found.master()
    found.switch_over(next(member for member in found.members if member is not master))
    found.wait_master_after(epoch)


def _change(what: str, clients: Sequence[Steady], happens: Callable[[], object]) -> Change:
    before = [len(client.failed) for client in clients]
    moment = time.monotonic()
    happens()
    for client in clients:
        client.goes_on_after(moment, AGAIN_SECONDS_MAX)
    for client, failed in zip(clients, before, strict=True):
        note(
            f"{what}: {client.topic}: {len(client.failed) - failed} sends failed,"
            f" none acknowledged for {pause(client.acked, moment):.1f} s,"
            f" none delivered for {pause(client.got, moment):.1f} s"
        )
    return moment, time.monotonic()


def nothing_out(port: int) -> bool:
    """Whether every message that was popped is done: revival has passed all records of its topic at this master."""
    with wire.Client(port) as master:
        return all(_done(master, queue) for queue in range(REVIVE_QUEUES))


def _done(master: wire.Client, queue: int) -> bool:
    """Whether the last record of the queue is done, or there is none. The progress is the last one's offset."""
    at = {"topic": REVIVE_TOPIC, "queueId": str(queue)}
    last = int(master.call(wire.MAX_OFFSET, at).ext.get("offset", "0")) - 1
    progress = master.call(wire.QUERY_CONSUMER_OFFSET, {**at, "consumerGroup": REVIVE_GROUP})
    return last < 0 or (progress.code == 0 and int(progress.ext["offset"]) >= last)
