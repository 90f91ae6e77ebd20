"""What must be there after `brokerset upgrade`: messages, keys, offsets, topics, equal replicas, and a master that can change."""

from __future__ import annotations

import time
from functools import partial

from brokerset_rig import controller_parts, controllers, stack, wire
from brokerset_rig.controllers import CLUSTER, Panel, until
from brokerset_rig.old_groups import GROUP, MESSAGES, QUEUES, READERS, RETRIES, TOPIC, Old, wait_equal
from brokerset_rig.replicated_group import first_difference

Add = controller_parts.Add
ALL_TOPICS, ALL_OFFSETS, ALL_GROUPS = 21, 43, 201
STARTED_LOG = "broker-0/store/upgrade-backup/start.log"
"""What a broker of ours printed that the command started."""


def check(add: Add, prefix: str, old: Old, new: list[stack.Server], group: stack.Controllers) -> None:
    panel = Panel(group.ports)
    port = until("a master", lambda: panel.master(GROUP), 60)[1]
    with controller_parts.step(
        add, f"{prefix}: every message is there, in order, and found by its keys"
    ) as problems:
        for queue, bodies in sorted(old.bodies.items()):
            found = controller_parts.bodies(port, TOPIC, queue)
            if found != bodies:
                problems.append(f"queue {queue} has {len(found)} messages, {len(bodies)} were sent")
        problems += key_problems(port)[:5]
    with controller_parts.step(
        add, f"{prefix}: topics, groups and consumer offsets are there on every broker"
    ) as problems:
        for server in new:
            until(f"the tables at {server.port}", partial(_no_table_problems, server.port), 60)
            problems += table_problems(server.port)
    with controller_parts.step(
        add, f"{prefix}: appends go on, and all replicas are equal byte for byte"
    ) as problems:
        for number in range(20):
            answer = controller_parts.send(port, b"after %d" % number, TOPIC, 1)
            if answer.code or int(answer.ext["queueOffset"]) != len(old.bodies[1]):
                problems.append(f"{answer.code} {answer.remark} at {answer.ext.get('queueOffset')}")
            old.bodies[1].append(b"after %d" % number)
        end = wait_equal(new)
        whole, *others = [each.folder / "broker-0" / "store" / "commitlog" for each in new]
        for other in others:
            place = first_difference(whole, other, 0, end)
            if place is not None:
                problems.append(f"{whole} and {other} differ at {place}")
        logs = [each.folder / name for each in new for name in ("broker.log", STARTED_LOG)]
        lines = [line for log in logs if log.exists() for line in log.read_text().splitlines()]
        problems += [line[:300] for line in lines if '"level":"error"' in line or "Traceback" in line][:3]
    with controller_parts.step(add, f"{prefix}: the other broker takes over and has everything") as problems:
        found_master = until("a master", lambda: panel.master(GROUP), 30)
        heir = next(i for i in panel.replicas(GROUP) if i != found_master[0])
        ext = {"clusterName": CLUSTER, "brokerName": GROUP, "brokerId": str(heir), "designateElect": "true",
               "invokeTime": str(time.time_ns() // 1_000_000)}  # fmt: skip
        panel.sure(controllers.ELECT, ext)
        later = until("the heir leads", lambda: _leads(panel, heir), 60)
        until("it serves", lambda: controller_parts.send(later, b"heir", TOPIC, 2).code == 0, 60)
        for queue, bodies in sorted(old.bodies.items()):
            found = controller_parts.bodies(later, TOPIC, queue)
            if found[: len(bodies)] != bodies:
                problems.append(f"queue {queue} has {len(found)} messages, {len(bodies)} were sent")


def _leads(panel: Panel, wanted: int) -> int | None:
    found = panel.master(GROUP)
    return found[1] if found is not None and found[0] == wanted else None


def key_problems(port: int) -> list[str]:
    problems = []
    with wire.Client(port, 10.0) as client:
        for number in range(0, MESSAGES, 7):
            for key in (f"key-{number}", f"{number:032X}"):
                ext = {
                    "topic": TOPIC,
                    "key": key,
                    "maxNum": "32",
                    "beginTimestamp": "0",
                    "endTimestamp": str(2**62),
                }
                answer = client.call(wire.QUERY_MESSAGE, ext)
                bodies = [each.body for each in wire.records(answer.body)] if answer.code == 0 else []
                if b"message %d " % number * 20 not in bodies:
                    problems.append(f"{key}: {answer.code} {answer.remark}, {len(bodies)} found")
    return problems


def _no_table_problems(port: int) -> bool:
    return not table_problems(port)


def table_problems(port: int) -> list[str]:
    problems = []
    with wire.Client(port, 10.0) as client:
        topics = controllers.loads(client.call(ALL_TOPICS, {}).body)["topicConfigTable"]
        if topics.get(TOPIC, {}).get("writeQueueNums") != QUEUES:
            problems.append(f"the topic at {port} is {topics.get(TOPIC)}")
        groups = controllers.loads(client.call(ALL_GROUPS, {}).body)["subscriptionGroupTable"]
        if groups.get(READERS, {}).get("retryMaxTimes") != RETRIES:
            problems.append(f"the group at {port} is {groups.get(READERS)}")
        offsets = (
            controllers.loads(client.call(ALL_OFFSETS, {}).body)
            .get("offsetTable", {})
            .get(f"{TOPIC}@{READERS}", {})
        )
    wanted = {str(queue): 40 + queue for queue in range(QUEUES)}
    if offsets != wanted:
        problems.append(f"the offsets at {port} are {offsets}, not {wanted}")
    return problems
