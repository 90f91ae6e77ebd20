"""Groups of old RocketMQ releases with something in them: address-based ids (5.1.0), and master and slave (4.9.7)."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from brokerset_rig import controller_parts, controllers, java_release, stack, wire
from brokerset_rig.controllers import until

GROUP = controller_parts.NAME
IDENTITY_RELEASE, CLASSIC_RELEASE = "5.1.0", "4.9.7"
TOPIC, READERS = "upgraded", "readers"
MESSAGES = 400
QUEUES = 4
READY_SECONDS_MAX = 120.0
SYNC_SECONDS_MAX = 120.0
FILE_BYTES = 16 << 20
SMALL = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "mappedFileSizeConsumeQueue": "300000",
    "maxIndexNum": "40000",
    "maxHashSlotNum": "10000",
}
RUNTIME_INFO, ALL_TOPICS, UPDATE_OFFSET, CREATE_GROUP = 28, 21, 15, 200
RETRIES = 7
"""Not what a group has that a broker made by itself."""


@dataclass
class Old:
    """A group of old brokers and what was written to it. The first broker is not always the master."""

    folder: Path
    brokers: list[stack.Server]
    namesrv: str
    others: list[stack.Server] = field(default_factory=list)
    """Controllers and name servers."""
    bodies: dict[int, list[bytes]] = field(default_factory=dict)
    """Of each queue, in order."""

    def stores(self) -> list[Path]:
        return [broker.folder / "broker-0" / "store" for broker in self.brokers]


def write(old: Old, port: int) -> None:
    """A topic, messages with keys, and how far a group of consumers is."""
    until("the topic is made", lambda: _made(port), READY_SECONDS_MAX)
    with wire.Client(port, 20.0) as client:
        for number in range(MESSAGES):
            queue = number % QUEUES
            properties = f"KEYS\x01key-{number}\x02UNIQ_KEY\x01{number:032X}\x02TAGS\x01A\x02WAIT\x01true\x02"
            body = b"message %d " % number * 20
            answer = client.call(wire.SEND_V2, wire.send_ext(TOPIC, queue, properties), body)
            assert answer.code in (0, 10, 11, 12), f"{answer.code} {answer.remark}"
            old.bodies.setdefault(queue, []).append(body)
        group = {"groupName": READERS, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": RETRIES, "brokerId": 0,
                 "whichBrokerWhenConsumeSlowly": 1, "consumeFromMinEnable": True, "consumeBroadcastEnable": True,
                 "notifyConsumerIdsChangedEnable": True}  # fmt: skip
        answer = client.call(CREATE_GROUP, {}, json.dumps(group).encode())
        assert answer.code == 0, f"the group: {answer.code} {answer.remark}"
        for queue in range(QUEUES):
            ext = {
                "topic": TOPIC,
                "consumerGroup": READERS,
                "queueId": str(queue),
                "commitOffset": str(40 + queue),
            }
            answer = client.call(UPDATE_OFFSET, ext)
            assert answer.code == 0, f"the offset: {answer.code} {answer.remark}"


def _made(port: int) -> bool:
    try:
        controller_parts.create_topic(port, TOPIC)
    except (OSError, stack.StackError):
        return False
    with wire.Client(port, 5.0) as client:
        return TOPIC in controllers.loads(client.call(ALL_TOPICS, {}).body)["topicConfigTable"]


def log_end(port: int) -> int:
    with wire.Client(port, 5.0) as client:
        return int(controllers.loads(client.call(RUNTIME_INFO, {}).body)["table"]["commitLogMaxOffset"])


def wait_equal(brokers: list[stack.Server]) -> int:
    """Until all logs end at the same place, which is not their beginning."""

    def look() -> int | None:
        ends = {log_end(broker.port) for broker in brokers}
        return ends.pop() if len(ends) == 1 else None

    return until("all logs end at the same offset", look, SYNC_SECONDS_MAX)


def old_master(old: Old) -> stack.Server:
    """The broker that takes a send."""

    def look() -> stack.Server | None:
        for broker in old.brokers:
            if broker.running and _made(broker.port):
                with wire.Client(broker.port, 5.0) as client:
                    answer = client.call(
                        wire.SEND_V2, wire.send_ext(TOPIC, 0, "WAIT\x01true\x02"), b"who leads?"
                    )
                if answer.code in (0, 10, 11, 12):
                    old.bodies.setdefault(0, []).append(b"who leads?")
                    return broker
        return None

    return until("a broker leads", look, READY_SECONDS_MAX)


def old_identity_group(running: ExitStack, folder: Path, brokers: int) -> Old:
    """Controllers and brokers of 5.1.0, in sync, with messages."""
    ports = stack.free_ports(4 + brokers, below=2)
    group = java_release.controllers(IDENTITY_RELEASE, folder / "old", ports[:3], ports[3:4])
    running.enter_context(group)
    settings = {**SMALL, "enableControllerMode": "true", "controllerAddr": group.addresses, "inSyncReplicas": "1",
                "allAckInSyncStateSet": "true", "registerNameServerPeriod": "10000"}  # fmt: skip
    servers = [
        java_release.broker(IDENTITY_RELEASE, folder / f"b{i}", port, group.name_servers, settings)
        for i, port in enumerate(ports[4:])
    ]
    old = Old(folder, servers, group.name_servers, [*group.servers, *group.others])
    for server in servers:
        running.callback(controller_parts.kill_running, server)
        server.start()
    write(old, old_master(old).port)
    wait_equal(servers)
    return old


def old_classic_group(running: ExitStack, folder: Path) -> Old:
    """A master and a slave of 4.9.7 with messages."""
    ports = stack.free_ports(3, below=2)
    name_server = running.enter_context(
        java_release.namesrv(CLASSIC_RELEASE, folder / "old-namesrv", ports[0])
    )
    servers = []
    for number, port in enumerate(ports[1:]):
        role = {"brokerRole": "SLAVE" if number else "ASYNC_MASTER", "brokerId": str(number)}
        settings = {**SMALL, **role, "registerNameServerPeriod": "10000"}
        servers.append(
            java_release.broker(CLASSIC_RELEASE, folder / f"b{number}", port, name_server.address, settings)
        )
    old = Old(folder, servers, name_server.address, [name_server])
    for server in servers:
        running.callback(controller_parts.kill_running, server)
        server.start()
    until("the master takes the topic", lambda: _made(servers[0].port), READY_SECONDS_MAX)
    write(old, servers[0].port)
    wait_equal(servers)
    return old
