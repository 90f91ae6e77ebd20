"""Groups of brokers of both makes on the log of a DLedger: they elect, serve, fail over and go on with each other's stores.

Each mix runs under a load, a Java producer and a Java consumer, while its leader is killed (`kill -9`) again and again and comes
back. Before each kill somebody of the wanted make leads, by the transfer of DLedger (51005) where chance does not see to it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from brokerset_rig import controller_parts, dledger_admin, replication_checks, stack
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import until
from brokerset_rig.dledger_group import JAVA, OURS, Group, Member, group
from brokerset_rig.dledger_load import DELAY_SECONDS, LATER_TOPIC, SHOWN, TOPIC, Later, Load, gaps, stored
from brokerset_rig.replication_checks import OFFSET, note
from brokerset_rig.replication_clients import CONSUMED_SECONDS_MAX, Flow

FLOW_TOPIC = "ledger-flow"
CONSUMERS = "ledger-consumers"
POLL_MS = "1000"
"""The Java clients read routes so often, instead of every 30 s."""

CLIENT_SECONDS_MAX = 40.0
CLIENT_START_SECONDS_MAX = 120.0
"""A Java consumer that is new may wait for two rounds of its own timers (`tests/peers/README.md`)."""

LOAD_MESSAGES, CLIENT_MESSAGES, LATER_MESSAGES = 200, 50, 5
METADATA_SECONDS_MAX = 40.0
"""A Java broker polls every 10 s, if it knows the leader's address, which it learns when it registers, every 10 s."""

DELIVERIES_MAX = 2


@dataclass(frozen=True, slots=True)
class Mix:
    """Who the members and the name server are, which make leads before each kill, and which one goes on with a
    store of the other."""

    name: str
    makes: tuple[str, ...]
    name_server: str
    kills: tuple[str, ...]
    carries_on: str | None = None


MIXES = (
    Mix("ooo", (OURS, OURS, OURS), OURS, (OURS,) * 2),
    Mix("joo", (JAVA, OURS, OURS), OURS, (OURS, JAVA), JAVA),
    Mix("jjo", (JAVA, JAVA, OURS), JAVA, (JAVA, OURS), OURS),
)


@dataclass
class Work:
    """The clients, and what was made before each switch."""

    load: Load
    producer: Flow
    consumer: Flow
    later: Later = field(default_factory=Later)
    kept: dict[str, int | None] = field(default_factory=dict[str, int | None])
    """Topic and group of this name; the offset, where all members can get it."""

    led: set[str] = field(default_factory=set[str])
    """The makes that served as leaders."""


def run(add: Add, names: Sequence[str] = ()) -> None:
    """All mixes, or those of these names. Raises `ValueError` for a name that there is not."""
    if unknown := sorted(set(names) - {mix.name for mix in MIXES}):
        raise ValueError(f"there is no mix {', '.join(unknown)}")
    for mix in MIXES:
        if not names or mix.name in names:
            began = time.monotonic()
            with group("dledger-brokers", mix.makes, mix.name_server) as found:
                _run(lambda *what: add(f"({mix.name}) {what[0]}", *what[1:]), found, mix)  # noqa: B023
            note(f"{mix.name} took {time.monotonic() - began:.0f} s")


def _run(add: Add, found: Group, mix: Mix) -> None:
    with ExitStack() as clients:
        work: Work | None = None
        with step(add, "the members elect a leader, the name server knows all, clients work") as problems:
            start(found)
            work = start_clients(found, clients)
        if work is None or problems:
            return
        for number, make in enumerate(mix.kills):
            if kill(add, found, work, number, make):
                return
        if mix.carries_on is not None and carry_on(add, found, work, mix.carries_on):
            return
        ended(add, found, work)


def start(found: Group) -> None:
    """All members; then the topics, and a message for `mqadmin`."""
    began = time.monotonic()
    found.start()
    leader = found.leader()
    note(f"{leader} leads, and all are registered, after {time.monotonic() - began:.1f} s")
    for topic in (TOPIC, FLOW_TOPIC, LATER_TOPIC, controller_parts.TOPIC):
        until(f"the topic {topic} is made", partial(made, found, topic), CLIENT_SECONDS_MAX)
    dledger_admin.prepare(found)


def made(found: Group, topic: str) -> bool:
    """Whether the leader made a topic."""
    controller_parts.create_topic(found.leader().port, topic)
    return True


def start_clients(found: Group, clients: ExitStack) -> Work:
    """A load, a Java producer and a Java consumer, which work."""
    load = clients.enter_context(Load(found))
    consumer = clients.enter_context(
        Flow(found, mode="consume", topic=FLOW_TOPIC, group=CONSUMERS, poll=POLL_MS)
    )
    producer = clients.enter_context(Flow(found, mode="produce", topic=FLOW_TOPIC, pause="5", poll=POLL_MS))
    work = Work(load, producer, consumer)
    load.wait_more(LOAD_MESSAGES)
    producer.wait_lines("ack", CLIENT_MESSAGES)
    consumer.wait_lines("got", CLIENT_MESSAGES, CLIENT_START_SECONDS_MAX)
    return work


def go_on(work: Work) -> None:
    """Until the load and both clients have got on."""
    work.load.wait_more(LOAD_MESSAGES)
    work.producer.wait_lines("ack", CLIENT_MESSAGES, CLIENT_SECONDS_MAX)
    work.consumer.wait_lines("got", CLIENT_MESSAGES, CLIENT_SECONDS_MAX)


def lead(found: Group, make: str) -> Member:
    """Somebody of this make leads, by transfer unless it is so."""
    leader = found.leader()
    if leader.make != make:
        leader = next(member for member in found.members if member.make == make)
        found.transfer(leader)
    return leader


def keep(found: Group, work: Work, leader: Member) -> None:
    """Make a topic, a group and an offset, and wait until every member has them.

    Java's brokers do not get offsets from each other: 5.5.0 with the fastjson2 that it links cannot read its own answer to
    GET_ALL_CONSUMER_OFFSET (43), "not support unquoted name". They get those of ours, and ours get theirs.
    """
    name = f"kept-{len(work.kept)}"
    replication_checks.make_metadata(leader, name)
    work.kept[name] = OFFSET if sum(not member.is_ours for member in found.members) < 2 else None
    began = time.monotonic()

    def observe() -> bool:
        if problems := metadata_problems(found, work):
            raise ValueError(problems[:SHOWN])
        return True

    until(f"{name} is everywhere", observe, METADATA_SECONDS_MAX)
    note(f"topic, group and offset made at {leader} were everywhere after {time.monotonic() - began:.1f} s")


def metadata_problems(found: Group, work: Work) -> list[str]:
    """What members lack of what was made before switches."""
    return [
        problem
        for member in found.members
        if member.server.running
        for name, offset in work.kept.items()
        for problem in replication_checks.missing_metadata(member, name, offset)
    ]


def kill(add: Add, found: Group, work: Work, number: int, make: str) -> list[str]:
    """A leader of this make is killed under load; another one takes over, and the killed one comes back."""
    with step(
        add, f"kill {number + 1}: a leader of the make {make} is killed, another one takes over"
    ) as problems:
        leader = lead(found, make)
        work.load.wait_more(LOAD_MESSAGES)
        keep(found, work, leader)
        work.later.send(leader, LATER_MESSAGES)
        killed = time.monotonic()
        leader.server.kill()
        successor = found.leader(other_than=leader)
        elected = time.monotonic() - killed
        work.load.wait_more(1)
        served = time.monotonic() - killed
        problems += metadata_problems(found, work)
        work.led |= {leader.make, successor.make}
        leader.server.start()
        go_on(work)
        found.wait_registered()
        note(
            f"{leader} -> {successor}: elected after {elected:.1f} s, acknowledges after {served:.1f} s; the Java producer"
            f" had none for {work.producer.pause_around(killed):.1f} s; all registered after {time.monotonic() - killed:.1f} s"
        )
    return problems


def carry_on(add: Add, found: Group, work: Work, make: str) -> list[str]:
    """A leader of the other make ends in order, and this make goes on with its store, follows, and leads."""
    with step(
        add, f"the make {make} goes on with the store of a leader of the other make, and leads"
    ) as problems:
        leader = lead(found, OURS if make == JAVA else JAVA)
        keep(found, work, leader)
        leader.server.stop()
        found.replace(leader, make)
        leader.server.start()
        found.wait_registered()
        found.transfer(leader)
        found.wait_registered()
        go_on(work)
        problems += metadata_problems(found, work)
    return problems


def ended(add: Add, found: Group, work: Work) -> None:
    """What must be true when nobody sends any more."""
    with step(add, "the Java consumer got everything that was acknowledged to the Java producer") as problems:
        work.load.stop()
        work.producer.end()
        problems += not_consumed(work)
    with step(add, f"the delay messages were delivered, each at most {DELIVERIES_MAX} times") as problems:
        leader = found.leader()
        until(
            "all delay messages are delivered",
            lambda: not work.later.missing(leader.port),
            DELAY_SECONDS + CLIENT_SECONDS_MAX,
        )
        counts = work.later.delivered(leader.port)
        note(
            f"{len(work.later.sent)} delay messages, so many delivered more than once: {sum(n > 1 for n in counts.values())}"
        )
        problems += [
            f"{body!r} came {count} times" for body, count in counts.items() if count > DELIVERIES_MAX
        ]
    shown: set[str] = set()
    for member in found.members:
        with step(
            add, f"{member} leads: each acknowledged message is where it was acknowledged, once"
        ) as problems:
            found.transfer(member)
            found.wait_registered()
            problems += work.load.problems(member)
            problems += flow_problems(member, work)
            problems += metadata_problems(found, work)
        if member.make not in shown:
            shown.add(member.make)
            dledger_admin.run(add, found, member)
    with step(add, "data and index of all members are equal byte for byte") as problems:
        differ, size, entries = found.compare()
        problems += differ
        note(f"{size:,} bytes, {entries:,} entries")
    with step(add, "leaders of all makes served, and our brokers logged no unexpected failure") as problems:
        if work.led != {member.make for member in found.members}:
            problems.append(f"only {work.led} led")
        problems += replication_checks.unexpected(found.members)
    note(
        f"{len(work.load.acked):,} and {len(work.producer.acked):,} acknowledged; refused {dict(work.load.refused)}"
    )


def not_consumed(work: Work) -> list[str]:
    """What the consumer lacks."""
    acked = set(work.producer.acked)
    try:
        until("everything is consumed", lambda: acked <= work.consumer.got, CONSUMED_SECONDS_MAX)
    except stack.StackError:
        missing = acked - work.consumer.got
        return [f"{len(missing)} of {len(acked)} are not there, such as {sorted(missing)[:SHOWN]}"]
    return []


def flow_problems(member: Member, work: Work) -> list[str]:
    """What was acknowledged to the Java producer, or read by the consumer, and is not so at a member."""
    there = stored(member.port, FLOW_TOPIC)
    bodies = {each.body.decode() for each in there}
    problems = gaps(there)
    if lost := [body for body in work.producer.acked if body not in bodies]:
        problems.append(f"{len(lost)} acknowledged to the Java producer are gone: {lost[:SHOWN]}")
    at = {(each.place.queue_id, each.place.queue_offset): each.body.decode() for each in there}
    other = [
        line.words[:3]
        for line in work.consumer.of("got")
        if at.get((int(line.words[0]), int(line.words[1]))) != line.words[2]
    ]
    if other:
        problems.append(f"{len(other)} messages were read that are not stored so: {other[:SHOWN]}")
    return [f"{member}: {problem}" for problem in problems]
