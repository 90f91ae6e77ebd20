"""What all scenarios with replicating brokers do and look at: a master that ends, metadata, logs, what our brokers logged."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Protocol

from brokerset_rig import controller_parts, controllers, mqadmin, wire
from brokerset_rig.controllers import CLUSTER
from brokerset_rig.replicated_group import NAME, TOPIC, Group, Load, Member

MESSAGES = 300
CREATE_GROUP, UPDATE_OFFSET, ALL_TOPICS, ALL_OFFSETS, GROUP_CONFIGS = 200, 15, 21, 43, 201
OFFSET = 3


class Broker(Protocol):
    """A broker that runs, in a group of any kind."""

    @property
    def port(self) -> int:
        """Of the remoting protocol."""

    @property
    def is_ours(self) -> bool:
        """Of which make it is."""

    def log_lines(self, *words: str) -> list[str]:
        """Lines of its log with one of these words."""


def killed(found: Group, heir: Member) -> list[str]:
    problems = []
    with Load(found) as load:
        load.wait_more(MESSAGES)
        master, epoch = found.master()
        with controller_parts.held([heir.server]):
            time.sleep(controller_parts.HELD_SECONDS)
            master.server.kill()
        began = time.monotonic()
        now, _ = found.wait_master_after(epoch)
        if now is not heir:
            problems.append(f"{now} was elected instead of {heir}")
        load.wait_more(MESSAGES)
        note(f"sends go on after {load.pause_since(began):.2f} s")
    return problems + load.problems(now.port)


def elected_by_mqadmin(found: Group, to: Member) -> list[str]:
    problems = []
    with Load(found) as load:
        load.wait_more(MESSAGES)
        master, epoch = found.master()
        began = time.monotonic()
        text = mqadmin.leaders_text(
            found.env, "electMaster", "-a", f"127.0.0.1:{found.panel.ports[0]}", "-bn", NAME, "-c", CLUSTER,
            "-b", str(to.broker_id),
        )  # fmt: skip
        now, later = found.wait_master_after(epoch)
        if not master.is_ours:
            load.excuse(began, time.monotonic())
        if now is not to:
            problems.append(f"{now} leads in epoch {later}; mqadmin printed:\n{text[-800:]}")
        load.wait_more(MESSAGES)
        found.wait_in_sync(master)
        load.wait_more(MESSAGES)
    note(f"longest pause {load.pause_since(0):.2f} s; refused {load.refused}")
    return problems + load.problems(now.port)


def make_metadata(member: Broker, name: str, offset: int = OFFSET) -> None:
    """A topic, a group and an offset of it."""
    controller_parts.create_topic(member.port, name)
    group = {"groupName": name, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 7, "brokerId": 0,
             "whichBrokerWhenConsumeSlowly": 1, "consumeFromMinEnable": True, "consumeBroadcastEnable": True,
             "notifyConsumerIdsChangedEnable": True}  # fmt: skip
    with wire.Client(member.port, 5.0) as client:
        for code, ext, body in (
            (CREATE_GROUP, {}, json.dumps(group).encode()),
            (UPDATE_OFFSET, offset_ext(name, commitOffset=str(offset)), b""),
        ):
            answer = client.call(code, ext, body)
            if answer.code:
                raise controllers.Refused(code, answer)


def topics_of(member: Broker) -> dict[str, object]:
    with wire.Client(member.port, 5.0) as client:
        found = controllers.loads(client.call(ALL_TOPICS, {}).body).get("topicConfigTable", {})
    assert isinstance(found, dict)
    return found


def offset_ext(name: str, **more: str) -> dict[str, str]:
    return {"consumerGroup": name, "topic": TOPIC, "queueId": "1", **more}


def missing_metadata(member: Broker, name: str, offset: int | None = OFFSET) -> list[str]:
    """What of `make_metadata` a broker does not have; without `offset` that is not looked at."""
    problems = []
    with wire.Client(member.port, 5.0) as client:
        groups = controllers.loads(client.call(GROUP_CONFIGS, {}).body).get("subscriptionGroupTable", {})
        offsets = controllers.loads(client.call(ALL_OFFSETS, {}).body).get("offsetTable", {})
    if name not in topics_of(member):
        problems.append(f"{member} does not have the topic {name}")
    if groups.get(name, {}).get("retryMaxTimes") != 7:
        problems.append(f"{member} does not have the group {name}")
    if offset is not None and offsets.get(f"{TOPIC}@{name}", {}).get("1") != offset:
        problems.append(f"{member} does not have the offset of {name}: {offsets.get(f'{TOPIC}@{name}')}")
    return problems


def note(text: str) -> None:
    """A line of what was measured."""
    print(f"        {text}", flush=True)


def compared(found: Group, members: Sequence[Member] = ()) -> list[str]:
    problems, size = found.compare(members)
    if not problems:
        note(f"{size:,} bytes are the same on {', '.join(str(m) for m in found.members if m.server.running)}")
    return problems


def unexpected(members: Sequence[Broker]) -> list[str]:
    """Lines of our brokers' logs that no scenario should make."""
    lines = []
    for member in members:
        if member.is_ours:
            lines += [
                f"{member}: {line[:300]}"
                for line in member.log_lines(
                    "Traceback", '"level": "error"', '"level":"error"', "request failed"
                )
            ]
    return lines[:5]
