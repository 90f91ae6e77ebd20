"""Groups of our brokers and Java's that copy the log to each other: joining, acknowledging, every kind of switch, under controllers of both makes."""

from __future__ import annotations

import time

from brokerset_rig import controller_parts, replicated_group, replication_flags, stack, wire
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import until
from brokerset_rig.replicated_group import Group, Load, Member, ready_topic
from brokerset_rig.replication_checks import (
    MESSAGES,
    OFFSET,
    compared,
    elected_by_mqadmin,
    killed,
    make_metadata,
    missing_metadata,
    note,
    topics_of,
    unexpected,
)

METADATA_SECONDS_MAX = 15.0


def run(add: Add, size: str) -> None:
    our_controllers_mixed(add, size)
    java_controllers_mixed(add, size)
    replication_flags.flags(add)
    if size == "all":
        replication_flags.java_alone(add)


# -- our controllers --------------------------------------------------------------------------------------


def our_controllers_mixed(add: Add, size: str) -> None:
    """Our controllers; one of ours is master, a Java broker and another one of ours join, everybody is master in turn."""
    with replicated_group.group("replication", 3) as found:
        first = java = second = None
        with step(
            add, "our broker leads; a Java slave with an empty store follows it and gets in sync"
        ) as problems:
            first = found.add("ours")
            ready_topic(found)
            with Load(found) as load:
                load.wait_more(MESSAGES)
            java = found.add("Java")
            seconds = found.wait_in_sync(first, java)
            note(f"in sync {seconds:.1f} s after it was registered")
            problems += load.problems(first.port)
            problems += compared(found)
        if java is None or problems:
            return
        with step(
            add, "the Java slave comes back from behind and gets in sync while messages are sent"
        ) as problems:
            java.server.stop()
            with Load(found) as load:
                load.wait_more(MESSAGES)
                found.start(java)
                note(f"in sync {found.wait_in_sync(first, java):.1f} s after it was registered")
                load.wait_more(MESSAGES)
            problems += load.problems(first.port)
            problems += compared(found)
        with step(
            add, "a send waits for the Java slave in the in-sync set, and for nobody when it has left"
        ) as problems:
            problems += waits_for(found, java)
            problems += compared(found)
        with step(
            add, "our master is killed: the Java slave is elected, and nothing acknowledged is lost"
        ) as problems:
            problems += killed(found, java)
        with step(
            add, "our old master follows the Java master, and so does a new one of ours with an empty store"
        ) as problems:
            found.start(first)
            second = found.add("ours")
            with Load(found) as load:
                note(
                    f"both in sync after {found.wait_in_sync(first, java, second):.1f} s (by the Java master's 1001)"
                )
                load.wait_more(MESSAGES)
            problems += load.problems(java.port)
            problems += compared(found)
        if second is None:
            return
        with step(
            add, "mqadmin electMaster makes one of ours master while the Java master lives, which follows it"
        ) as problems:
            problems += elected_by_mqadmin(found, first)
            found.wait_in_sync()
            problems += compared(found)
        switches(add, found, [first, java, second], 6 if size == "core" else 12)


def switches(add: Add, found: Group, members: list[Member], count: int) -> None:
    """Each is master in turn, by election, by hand-over or by the master's death, while messages are sent.

    A living Java master takes a slave out of its own in-sync set as soon as that slave's connection closes, before the
    controllers have agreed (`AutoSwitchHAService.removeConnection` of 5.5.0). So between the election and the moment it
    hears of it, it acknowledges alone, also in a group of Java's only (`replication_flags.java_alone`: 6 messages in 12
    elections). Such losses are counted, not failed.
    """
    first, java, second = members
    turns = [
        ("kill", java),
        ("elect", second),
        ("switchover", java),
        ("elect", first),
        ("kill", second),
        ("kill", first),
    ]
    with Load(found) as load:
        load.wait_more(MESSAGES)
        for number in range(count):
            way, to = turns[number % len(turns)]
            with step(
                add, f"switch {number + 1} under load: {'kill' if way == 'kill' else f'{way} to {to.make}'}"
            ) as problems:
                master, epoch = found.master()
                if to is master:
                    to = next(m for m in members if m is not master)
                if way == "switchover" and not master.is_ours:
                    way = "elect"
                found.wait_in_sync(*members)
                began = time.monotonic()
                if way == "kill":
                    master.server.kill()
                elif way == "elect":
                    found.elect(to)
                else:
                    found.switch_over(to)
                now, later = found.wait_master_after(epoch)
                if way != "kill" and now is not to:
                    problems.append(f"{now} leads in epoch {later} instead of {to}")
                load.wait_more(MESSAGES)
                pause = load.pause_since(began)
                if way == "elect" and not master.is_ours:
                    load.excuse(began, time.monotonic())
                if way == "kill":
                    found.start(master)
                note(f"{master} -> {now}, epoch {later}: sends go on after {pause:.2f} s;"
                     f" all in sync after {found.wait_in_sync(*members):.1f} s more")  # fmt: skip
        load.wait_more(MESSAGES)
    with step(
        add, "after all switches: nothing acknowledged is lost, twice or out of order, all logs are the same"
    ) as problems:
        found.wait_in_sync(*members)
        problems += compared(found)
        for member in members:
            if member is found.master()[0]:
                problems += load.problems(member.port)
        note(
            f"{load.count} messages; {len(load.excused_lost)} lost by living Java masters {load.excused_lost}; refused {load.refused}; longest pause {load.pause_since(0):.2f} s"
        )
        problems += unexpected(members)


def waits_for(found: Group, slave: Member) -> list[str]:
    """What is wrong when the slave stands still: at first nothing may be acknowledged, later everything."""
    problems = []
    with Load(found, pause=0.02) as load:
        load.wait_more(50)
        with controller_parts.held([slave.server]):
            time.sleep(0.3)  # what was on its way is there
            before = load.count
            time.sleep(1.0)
            alone = load.count - before
            if alone and slave.broker_id in found.in_sync():
                problems.append(
                    f"{alone} sends were acknowledged while {slave} stood still, in the in-sync set"
                )
            until("the slave leaves the in-sync set", lambda: slave.broker_id not in found.in_sync(), 30)
            load.wait_more(50)
        found.wait_in_sync(slave)
        load.wait_more(50)
    note(f"refused meanwhile: {load.refused}")
    return problems + load.problems(found.master()[0].port)


# -- Java's controllers -----------------------------------------------------------------------------------


def java_controllers_mixed(add: Add, size: str) -> None:
    """Java's controllers: our slave of a Java master has its metadata, is elected, leads, and hands back."""
    with replicated_group.group("replication", 3, stack.java_controllers) as found:
        java = ours = None
        with step(
            add,
            "(Java's controllers) a Java broker leads, ours with an empty store follows it and gets in sync",
        ) as problems:
            found.panel.serving(60)
            java = found.add("Java")
            ready_topic(found)
            with Load(found) as load:
                load.wait_more(MESSAGES)
                ours = found.add("ours")
                note(f"in sync {found.wait_in_sync(java, ours):.1f} s after it was registered")
                load.wait_more(MESSAGES)
            problems += load.problems(java.port)
            problems += compared(found)
        if java is None or ours is None or problems:
            return
        with step(
            add,
            "(Java's controllers) topic, group and offset that were made on the Java master are seconds later on our slave",
        ):
            make_metadata(java, "polled")
            began = time.monotonic()
            until(
                "the metadata on our slave",
                lambda: not missing_metadata(ours, "polled"),
                METADATA_SECONDS_MAX,
            )
            note(f"after {time.monotonic() - began:.1f} s")
        with step(
            add,
            "(Java's controllers) the Java master is killed: ours is elected, has no lease, and takes messages",
        ) as problems:
            problems += killed(found, ours)
            problems += missing_metadata(ours, "polled")
            if ours.facts().get("brokersetLeaseMs"):
                problems.append(
                    f"a lease of {ours.facts()['brokersetLeaseMs']} ms under controllers that give none"
                )
        with step(
            add,
            "(Java's controllers) the Java broker follows ours, and copies its topics, groups and offsets",
        ) as problems:
            found.start(java)
            with Load(found) as load:
                note(f"in sync after {found.wait_in_sync(ours, java):.1f} s")
                load.wait_more(MESSAGES)
            problems += load.problems(ours.port)
            problems += compared(found)
            make_metadata(ours, "of-ours")
            until("the metadata on the Java slave", lambda: not missing_metadata(java, "of-ours"), 40)
        with step(
            add, "(Java's controllers) the Java broker is elected while ours lives, and back"
        ) as problems:
            with Load(found) as load:
                for to in (java, ours) * (1 if size == "core" else 3):
                    found.wait_in_sync(java, ours)
                    _, epoch = found.master()
                    began = time.monotonic()
                    found.elect(to)
                    now, _ = found.wait_master_after(epoch)
                    if now is not to:
                        problems.append(f"{now} leads instead of {to}")
                    load.wait_more(MESSAGES)
                    pause = load.pause_since(began)
                    if to is not java:
                        load.excuse(began, time.monotonic())
                    note(
                        f"to {to}: sends go on after {pause:.2f} s; in sync after {found.wait_in_sync(java, ours):.1f} s more"
                    )
            problems += load.problems(found.master()[0].port)
            problems += compared(found)
            problems += missing_metadata(ours, "polled") + missing_metadata(ours, "of-ours")
        with step(
            add,
            "(Java's controllers) what was changed and deleted on a Java master is what ours leads with, whatever its log had before",
        ) as problems:
            changed_meanwhile(found, java, ours)
            problems += missing_metadata(ours, "of-ours", OFFSET + 6)
            if "polled" in topics_of(ours):
                problems.append("the topic that was deleted on the Java master is back")
            problems += unexpected([ours])


def changed_meanwhile(found: Group, java: Member, ours: Member) -> None:
    """The Java broker leads, and changes what our log has; then ours leads again."""

    def lead(to: Member) -> None:
        found.wait_in_sync(java, ours)
        _, epoch = found.master()
        found.elect(to)
        found.wait_master_after(epoch)

    lead(java)
    make_metadata(java, "of-ours", OFFSET + 6)
    with wire.Client(java.port, 5.0) as client:
        client.call(wire.DELETE_TOPIC, {"topic": "polled"})
    until(
        "the changes on our slave",
        lambda: not missing_metadata(ours, "of-ours", OFFSET + 6) and "polled" not in topics_of(ours),
        METADATA_SECONDS_MAX,
    )
    lead(ours)
