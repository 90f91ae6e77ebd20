"""asyncLearner and syncFromLastFile in groups of both makes, and a control run with Java's brokers alone."""

from __future__ import annotations

import time

from brokerset_rig import controllers, replicated_group, stack, wire
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.replicated_group import TOPIC, Group, Load, Member, ready_topic
from brokerset_rig.replication_checks import MESSAGES, compared, note, unexpected

SMALL_FILES = {"mappedFileSizeCommitLog": str(16 * 1024 * 1024)}
BIG_BODY = 1_000_000
JAVA_ELECTIONS = 12


# -- control ----------------------------------------------------------------------------------------------


def java_alone(add: Add) -> None:
    """Java's controllers and brokers without any of ours: what an election takes from a living Java master."""
    sentence = (
        f"(control, all Java) {JAVA_ELECTIONS} elections while the master lives, with allAckInSyncStateSet"
    )
    with replicated_group.group("replication", 2, stack.java_controllers) as found, step(add, sentence):
        found.panel.serving(60)
        pair = [found.add("Java"), found.add("Java")]
        ready_topic(found)
        with Load(found, threads=4) as load:
            for number in range(JAVA_ELECTIONS):
                found.wait_in_sync(*pair)
                load.wait_more(MESSAGES)
                master, epoch = found.master()
                began = time.monotonic()
                found.elect(pair[1 - pair.index(master)])
                found.wait_master_after(epoch)
                load.wait_more(MESSAGES)
                load.excuse(began, time.monotonic())
                note(f"election {number + 1}: sends go on after {load.pause_since(began):.2f} s")
            found.wait_in_sync(*pair)
        other = load.problems(found.master()[0].port)
        note(
            f"{len(load.excused_lost)} of {load.count} acknowledged messages lost in elections, seconds after them and from their send: {load.excused_lost}; refused {load.refused}; besides: {other}"
        )


# -- flags ------------------------------------------------------------------------------------------------


def flags(add: Add) -> None:
    """asyncLearner and syncFromLastFile, of Java slaves of ours and the other way round; small files, so that several are crossed."""
    with replicated_group.group("replication", 6) as found:
        learner: Member | None = None
        with step(
            add, "a Java slave with asyncLearner copies our master's log and never gets in sync"
        ) as problems:
            first = found.add("ours", SMALL_FILES)
            ready_topic(found)
            fill(found, 40)
            learner = found.add("Java", {**SMALL_FILES, "asyncLearner": "true"})
            problems += compared(found)
            problems += stays_out(found, learner)
        if learner is None:
            return
        with step(
            add, "a Java slave with syncFromLastFile gets the last file of our log only, and gets in sync"
        ) as problems:
            last = found.add("Java", {**SMALL_FILES, "syncFromLastFile": "true"})
            found.wait_in_sync(last)
            problems += last_file_only(last)
            problems += compared(found)
        with step(
            add, "an empty Java slave copies several files of ours byte for byte, is elected and leads on"
        ) as problems:
            heir = found.add("Java", SMALL_FILES)
            found.wait_in_sync(heir)
            _, epoch = found.master()
            found.elect(heir)
            found.wait_master_after(epoch)
            found.wait_in_sync(first, last, heir)
            problems += compared(found)
        with step(
            add, "our slaves with asyncLearner and with syncFromLastFile do the same under a Java master"
        ) as problems:
            fill(found, 20)
            ours_learner = found.add("ours", {**SMALL_FILES, "asyncLearner": "true"})
            ours_last = found.add("ours", {**SMALL_FILES, "syncFromLastFile": "true"})
            found.wait_in_sync(ours_last)
            problems += last_file_only(ours_last)
            problems += compared(found)
            problems += stays_out(found, ours_learner)
            problems += unexpected([m for m in found.members if m.is_ours])


def stays_out(found: Group, learner: Member) -> list[str]:
    with Load(found) as load:
        load.wait_more(MESSAGES)
        deadline = time.monotonic() + 6.0
        while time.monotonic() < deadline:
            if learner.broker_id in found.in_sync():
                return [f"the learner {learner} is in the in-sync set"]
            time.sleep(0.2)
    return []


def fill(found: Group, megabytes: int) -> None:
    """Large messages to the master."""
    port = found.master()[0].port
    with wire.Client(port, 20.0) as client:
        for number in range(megabytes):
            body = b"%d " % number
            answer = client.call(
                wire.SEND_V2, wire.send_ext(TOPIC, 3, "WAIT\x01true\x02"), body.ljust(BIG_BODY, b"z")
            )
            if answer.code:
                raise controllers.Refused(wire.SEND_V2, answer)


def last_file_only(member: Member) -> list[str]:
    begin = replicated_group.first_offset(member.commit_log)
    return [] if begin > 0 else [f"the log of {member} begins at {begin}"]
