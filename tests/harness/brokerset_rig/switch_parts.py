"""Many changes of the master among three brokers of ours: under load, with Java consumers, topics, groups and offsets that are made a moment before."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack

from brokerset_rig import replicated_group, stack
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import until
from brokerset_rig.replicated_group import TOPIC, Group, Load, ready_topic
from brokerset_rig.replication_checks import (
    MESSAGES,
    compared,
    make_metadata,
    missing_metadata,
    note,
    unexpected,
)
from brokerset_rig.replication_clients import CONSUMED_SECONDS_MAX, Flow

NUMBERS = {"core": 10, "all": 50}
WAYS = ("switchover", "kill", "elect")
CONSUMERS = 2
QUANTILE = 0.5


def run(add: Add, size: str, number: int | None = None, seed: int = 1) -> None:
    """`number` switches, each way in turn; the size tells how many if it is not given."""
    count = NUMBERS[size] if number is None else number
    with replicated_group.group("switches", 3) as found, ExitStack() as clients:
        with step(
            add, "three brokers of ours replicate; messages are sent, two Java consumers of a group take them"
        ):
            for _ in range(3):
                found.add("ours")
            found.wait_in_sync()
            ready_topic(found)
            load = clients.enter_context(Load(found))
            consumers = [
                clients.enter_context(Flow(found, mode="consume", topic=TOPIC, group="switches"))
                for _ in range(CONSUMERS)
            ]
            load.wait_more(MESSAGES)
            until("consumed messages", lambda: sum(len(c.of("got")) for c in consumers) > MESSAGES, 60)
        if len(found.members) < 3:
            return
        pauses: dict[str, list[float]] = {way: [] for way in WAYS}
        chance = random.Random(seed)
        for turn in range(count):
            way = WAYS[turn % len(WAYS)]
            with step(
                add, f"switch {turn + 1} of {count}: {way}; what was made a moment before is there"
            ) as problems:
                problems += one(found, load, way, turn, chance, pauses[way])
        at_the_end(add, found, load, consumers, pauses, count)


def one(
    found: Group, load: Load, way: str, turn: int, chance: random.Random, pauses: list[float]
) -> list[str]:
    """One switch; what is wrong after it."""
    found.wait_in_sync()
    load.wait_more(MESSAGES)
    master, epoch = found.master()
    heir = chance.choice([member for member in found.members if member is not master])
    name = f"moment-{turn}"
    make_metadata(master, name)
    began = time.monotonic()
    if way == "kill":
        master.server.kill()
    elif way == "elect":
        found.elect(heir)
    else:
        found.switch_over(heir)
    now, later = found.wait_master_after(epoch)
    problems = missing_metadata(now, name)
    if way != "kill" and now is not heir:
        problems.append(f"{now} leads in epoch {later} instead of {heir}")
    load.wait_more(MESSAGES)
    pauses.append(load.pause_since(began))
    if way == "kill":
        found.start(master)
    return problems


def at_the_end(
    add: Add, found: Group, load: Load, consumers: list[Flow], pauses: dict[str, list[float]], count: int
) -> None:
    with step(
        add, f"after {count} switches: nothing acknowledged is lost, twice or out of order"
    ) as problems:
        load.wait_more(MESSAGES)
        load.stop()
        problems += load.problems(found.master()[0].port)
        shown = {
            way: [round(f(times), 3) for f in (min, middle, max)] for way, times in pauses.items() if times
        }
        note(f"{load.count:,} acknowledged; refused {load.refused}; seconds without an acknowledgement"
             f" (least, median, most): {shown}")  # fmt: skip
    with step(add, "the Java consumers got everything that was acknowledged") as problems:
        wanted = {body.decode().rstrip("x").strip().replace(" ", "-") for body in load.acknowledged}
        try:
            until("everything is consumed", lambda: wanted <= consumed(consumers), CONSUMED_SECONDS_MAX)
        except stack.StackError:
            missing = wanted - consumed(consumers)
            problems.append(f"{len(missing)} of {len(wanted)} are not there, such as {sorted(missing)[:3]}")
        lines = sum(len(consumer.of("got")) for consumer in consumers)
        note(f"{lines - len(consumed(consumers)):,} came more than once, of {lines:,}")
        for consumer in consumers:
            consumer.end()
    with step(
        add, "the logs of all three are the same byte for byte, and so are epochs and metadata"
    ) as problems:
        found.wait_in_sync()
        problems += compared(found)
        epochs = {str(member): member.epochs() for member in found.members}
        if len({tuple(each) for each in epochs.values()}) != 1:
            problems.append(f"the epochs differ: {epochs}")
        for turn in range(count):
            for member in found.members:
                problems += missing_metadata(member, f"moment-{turn}")
        problems[5:] = []
    with step(add, "our brokers logged no unexpected failure") as problems:
        problems += unexpected(found.members)


def consumed(consumers: list[Flow]) -> set[str]:
    """Names of the load's messages that were consumed; the words of a body are joined by hyphens."""
    return {
        "-".join(line.words[2:5])
        for consumer in consumers
        for line in consumer.of("got")
        if len(line.words) > 4
    }


def middle(values: list[float]) -> float:
    return sorted(values)[int(len(values) * QUANTILE)]
