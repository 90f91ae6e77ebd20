"""Unmodified Java clients and mqadmin with a group of three brokers of ours, whose master changes while they work."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from brokerset_rig import controller_parts, mqadmin, replicated_group, stack
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import CLUSTER, until
from brokerset_rig.replicated_group import NAME, Group, ready_topic
from brokerset_rig.replication_checks import compared, elected_by_mqadmin, note, unexpected

FLOW_SECONDS_MAX = 60.0
CONSUMED_SECONDS_MAX = 60.0
FLOW_TOPIC = "flow"
SENDS_AGAIN_SECONDS_MAX = 35.0
"""A client whose master's address is dead learns another route every 30 s at the latest."""

BACK_SECONDS_MAX = 12.0
"""When the old address answers again sooner, its broker passes requests on to the new master."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a client."""

    kind: str
    at: float
    """On the monotonic clock of this process, about."""
    words: list[str]


class Environment(Protocol):
    """What a client needs of a group."""

    @property
    def folder(self) -> Path:
        """For what it writes."""

    @property
    def env(self) -> dict[str, str]:
        """Among others the name servers' addresses."""


class Flow:
    """The standard Java producer or consumer (`tests/peers/java/Flow.java`). A context manager."""

    def __init__(self, found: Environment, **arguments: str) -> None:
        self.lines: list[Line] = []
        offset = time.monotonic() - time.time()
        self._errors = (found.folder / f"flow-{arguments['mode']}.err").open("ab")
        self._process = subprocess.Popen(
            [str(stack.ROOT / "tests" / "java" / "flow"), *(f"{key}={value}" for key, value in arguments.items())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env={**os.environ, **found.env, "CLIENT_HEAP": "256m"},
        )  # fmt: skip

        def read() -> None:
            assert self._process.stdout is not None
            for raw in self._process.stdout:
                words = raw.decode(errors="replace").split()
                if len(words) > 2 and words[0] in ("ack", "fail", "got"):
                    self.lines.append(Line(words[0], int(words[1]) / 1000 + offset, words[2:]))

        self._reader = threading.Thread(target=read, daemon=True)

    def __enter__(self) -> Flow:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Shut the client down in order."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        self._errors.close()

    def of(self, kind: str) -> list[Line]:
        return [line for line in list(self.lines) if line.kind == kind]

    @property
    def acked(self) -> list[str]:
        return [line.words[0] for line in self.of("ack")]

    @property
    def got(self) -> set[str]:
        return {line.words[2] for line in self.of("got")}

    def wait_lines(self, kind: str, more: int, seconds: float = FLOW_SECONDS_MAX) -> None:
        count = len(self.of(kind))
        until(
            f"{more} more lines `{kind}` of the Java client",
            lambda: len(self.of(kind)) >= count + more,
            seconds,
        )

    def wait_acked_since(self, moment: float, more: int) -> None:
        """Until so many sends are acknowledged after a moment and the longest pause is over."""
        until(
            f"{more} acknowledged sends",
            lambda: sum(line.at > moment + 1.0 for line in self.of("ack")) >= more,
            SENDS_AGAIN_SECONDS_MAX + 10,
        )

    def pause_around(self, moment: float, kind: str = "ack") -> float:
        """The longest time without a line, of those that end after a moment."""
        times = [line.at for line in self.of(kind)]
        gaps = [b - a for a, b in itertools.pairwise(times) if b > moment]
        return max(gaps, default=0.0)


def run(add: Add, size: str) -> None:
    with replicated_group.group("clients", 3) as found:
        with step(
            add, "three brokers of ours replicate, a standard Java producer and consumer work with them"
        ):
            for _ in range(3):
                found.add("ours")
            found.wait_in_sync()
            ready_topic(found)
            ready_topic(found, FLOW_TOPIC)
        clients(add, found, 2 if size == "core" else 6)
        administration(add, found)
        with step(add, "our brokers logged no unexpected failure") as problems:
            problems += unexpected(found.members)


def clients(add: Add, found: Group, kills: int) -> None:
    """The master dies again and again, and hands over, under a Java producer and a Java consumer."""
    with (
        Flow(found, mode="consume", topic=FLOW_TOPIC, group="flow-group") as consumer,
        Flow(found, mode="produce", topic=FLOW_TOPIC, pause="5") as producer,
    ):
        with step(add, "the Java consumer gets what the Java producer sends"):
            producer.wait_lines("ack", 100)
            consumer.wait_lines("got", 100)
        pauses: list[float] = []
        for number in range(kills):
            at_once = number > 0
            how = "is started again at once" if at_once else "stays away"
            with step(
                add,
                f"kill {number + 1} of the master, which {how}: the Java producer goes on, with default settings",
            ) as problems:
                found.wait_in_sync()
                failed_before = len(producer.of("fail"))
                moment = time.monotonic()
                dead = found.kill_master()
                if at_once:
                    found.start(dead)
                producer.wait_acked_since(moment, 200)
                pauses.append(producer.pause_around(moment))
                if not at_once:
                    found.start(dead)
                failed = producer.of("fail")[failed_before:]
                note(f"no send acknowledged for {pauses[-1]:.2f} s, {len(failed)} sends failed"
                     f" {[' '.join(e.words[:1] + e.words[2:12]) for e in failed[:2]]};"
                     f" the consumer got nothing for {consumer.pause_around(moment, 'got'):.2f} s")  # fmt: skip
                if pauses[-1] > (BACK_SECONDS_MAX if at_once else SENDS_AGAIN_SECONDS_MAX):
                    problems.append(f"the producer was stuck for {pauses[-1]:.1f} s")
        with step(add, "a hand-over in order: the Java producer sees no failed send") as problems:
            found.wait_in_sync()
            count = len(producer.of("fail"))
            for _ in range(3):
                master, epoch = found.master()
                moment = time.monotonic()
                found.switch_over(next(m for m in found.members if m is not master))
                found.wait_master_after(epoch)
                producer.wait_lines("ack", 200)
                note(f"longest pause {producer.pause_around(moment):.3f} s,"
                     f" of the consumer {consumer.pause_around(moment, 'got'):.2f} s")  # fmt: skip
                found.wait_in_sync()
            errors = producer.of("fail")[count:]
            problems += [f"failed: {' '.join(e.words)[:200]}" for e in errors[:3]]
        with step(
            add, "everything that was acknowledged to the Java producer comes to the Java consumer"
        ) as problems:
            producer.end()
            acked = set(producer.acked)

            def all_there() -> bool:
                return acked <= consumer.got

            try:
                until("everything is consumed", all_there, CONSUMED_SECONDS_MAX)
            except stack.StackError:
                missing = acked - consumer.got
                problems.append(
                    f"{len(missing)} of {len(acked)} are not there, such as {sorted(missing)[:3]}"
                )
            again = len(consumer.of("got")) - len(consumer.got)
            note(f"{len(acked)} acknowledged, {len(consumer.got)} consumed, {again} of them more than once;"
                 f" pauses of the kills {[round(p, 2) for p in pauses]}")  # fmt: skip
            problems += compared(found)
    with step(add, "the Java consumer's group goes on at the offsets it had, on another master") as problems:
        master, epoch = found.master()
        dead = found.kill_master()
        found.wait_master_after(epoch)
        with Flow(found, mode="consume", topic=FLOW_TOPIC, group="flow-group") as consumer:
            with Flow(found, mode="produce", topic=FLOW_TOPIC, pause="5", prefix="later") as producer:
                producer.wait_lines("ack", 100)
            until("the new messages", lambda: set(producer.acked) <= consumer.got, CONSUMED_SECONDS_MAX)
            again = len([body for body in consumer.got if not body.startswith("later-")])
        note(f"{again} old messages came again")
        if again:
            problems.append(f"{again} messages were consumed again though the consumer had ended in order")
        found.start(dead)


def administration(add: Add, found: Group) -> None:
    """mqadmin's view of the group, in the form of the golden texts."""
    found.wait_in_sync()
    ready_topic(found, "shown")
    controller_parts.send(found.master()[0].port, b"one", "shown")
    controller = ("-a", f"127.0.0.1:{found.panel.ports[0]}")
    names = ("-n", found.servers.name_servers)
    for name, arguments in (
        ("getSyncStateSet", (*controller, "-b", NAME)),
        ("getBrokerEpoch", (*names, "-b", NAME)),
        ("clusterList", names),
        ("topicStatus", (*names, "-t", "shown")),
    ):
        with step(add, f"mqadmin {name} shows our replicated group as it shows Java's") as problems:
            text = mqadmin.leaders_text(found.env, name, *arguments)
            problems += mqadmin.form_problems(name, text)
            if name == "clusterList":
                shown = re.findall(rf"(?m)^{CLUSTER}\s+{NAME}\s+(\d+)", text)
                if len(shown) != 3 or "0" not in shown:
                    problems.append(f"brokers {shown}:\n{text}")
            if name == "getSyncStateSet" and text.count("InSyncReplica:") != 3:
                problems.append(text)
    for golden, member in (
        ("haStatus", found.master()[0]),
        ("haStatus-2", next(m for m in found.members if m is not found.master()[0])),
    ):
        with step(
            add,
            f"mqadmin haStatus shows {'the master' if golden == 'haStatus' else 'a slave'} of ours as Java's",
        ) as problems:
            text = mqadmin.text_of(found.env, "haStatus", *names, "-b", f"127.0.0.1:{member.port}")
            problems += mqadmin.form_problems(golden, text)
            slaves = re.findall(r"(?m)^#InSyncSlaveNum\s+(\d+)", text)
            if golden == "haStatus" and slaves != ["2"]:
                problems.append(f"in-sync slaves {slaves}:\n{text}")
    for member in found.members:
        role = "master" if member is found.master()[0] else "slave"
        with step(add, f"mqadmin brokerStatus reads our {role} {member.broker_id}") as problems:
            text = mqadmin.text_of(found.env, "brokerStatus", *names, "-b", f"127.0.0.1:{member.port}")
            golden_keys = set(
                re.findall(r"(?m)^(\w+)\s*:", (mqadmin.GOLDEN / "brokerStatus.txt").read_text())
            )
            lacking = sorted(golden_keys - set(re.findall(r"(?m)^(\w+)\s*:", text)))
            if "brokerVersionDesc" in lacking or "commitLogMaxOffset" in lacking:
                problems.append(text[-1500:])
            note(f"keys of Java's that are lacking: {', '.join(lacking) or 'none'}")
    with step(
        add,
        "mqadmin electMaster of a living slave while the master lives: a switch, the old master becomes a slave",
    ) as problems:
        master, _ = found.master()
        problems += elected_by_mqadmin(found, next(m for m in found.members if m is not master))
        problems += compared(found)
