"""The load generator of `tests/peers`, run against one broker and measured with it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.bench import priority
from tests.bench.machine import Usage, snapshot, usage

from brokerset_rig import stack, wire

QUEUES = 8
RUN_SECONDS_MAX = 600.0
INDEX_SECONDS_MAX = 60.0

Values: TypeAlias = dict[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a case gave."""

    values: Values
    """By metric: `perSecond`, `p50ms`, `p99ms`, `cpuUs` (of the servers for each message), and the like."""

    use: Usage
    generator: float
    """Cores that the load generator used."""


class WrongAnswer(Exception):
    """The load generator has found an answer that makes the measurement worthless."""


@dataclass(frozen=True, slots=True)
class Generator:
    """The program, where it runs, and what it does."""

    program: str
    core: str | None = None
    flags: Mapping[str, object] = field(default_factory=dict)
    """Of every run."""

    def answer(self, address: str, mode: str, topic: str, flags: Mapping[str, object]) -> dict[str, Any]:
        """Run it once. Raises `WrongAnswer`."""
        command = [self.program, mode, "-addr", address, "-topic", topic]
        command += [
            item for key, value in {**self.flags, **flags}.items() for item in (f"-{key}", str(value))
        ]
        process = subprocess.Popen(
            priority.pinned(command, self.core),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        priority.raise_session(process.pid)
        try:
            output, problem = process.communicate(timeout=RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        found: dict[str, Any] = json.loads(output) if output else {"ok": False}
        if not found["ok"]:
            raise WrongAnswer(f"{' '.join(command)}: {problem.strip()[-500:]} {found}")
        return found

    def measured(
        self,
        address: str,
        cpu_seconds: Callable[[], float],
        runs: Sequence[tuple[str, str, Mapping[str, object]]],
        again_until: float = 0.0,
    ) -> Run:
        """The runs (mode, topic, flags) one after the other, and all again until so many seconds have gone."""
        cpu, own, before = cpu_seconds(), children_seconds(), snapshot()
        answers: list[dict[str, Any]] = []
        while not answers or time.monotonic() - before.at < again_until:
            answers += [self.answer(address, *run) for run in runs]
        after = snapshot()
        messages = sum(answer.get("acked") or answer["messages"] for answer in answers)
        last = answers[-1]
        values: Values = {key: float(last[key]) for key in ("p50ms", "p99ms", "maxms") if key in last}
        values["cpuUs"] = (cpu_seconds() - cpu) / messages * 1e6
        if "perSecond" in last:
            seconds = sum(answer["seconds"] for answer in answers)
            values["perSecond"] = sum(answer["messages"] for answer in answers) / seconds
        cores = (children_seconds() - own) / (after.at - before.at)
        return Run(values, usage(before, after), cores)


def children_seconds() -> float:
    """Processor time of children that have ended; between two calls here only the load generator's end."""
    times = os.times()
    return times.children_user + times.children_system


def new_topic(port: int, name: str, access: wire.Access | None = None) -> str:
    """Make a topic of its own name; the load generator demands queue offsets without gaps."""
    topic = f"{name}-{time.time_ns() // 1_000_000}"
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
           "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    with wire.Client(port, access=access) as client:
        answer = client.call(wire.CREATE_TOPIC, ext)
    if answer.code:
        raise stack.StackError(f"topic {topic} was refused with {answer.code}: {answer.remark}")
    return topic


def await_indexed(port: int, topic: str, messages: int, access: wire.Access | None = None) -> None:
    """Wait until all queues together have so many messages: they are indexed behind the log. Raises `StackError`."""
    deadline = time.monotonic() + INDEX_SECONDS_MAX
    with wire.Client(port, access=access) as client:
        while time.monotonic() < deadline:
            ends = [
                client.call(wire.MAX_OFFSET, {"topic": topic, "queueId": str(queue)}).ext["offset"]
                for queue in range(QUEUES)
            ]
            if sum(map(int, ends)) >= messages:
                return
            time.sleep(0.01)
    raise stack.StackError(f"{topic} has not {messages} messages in its queues after {INDEX_SECONDS_MAX:g} s")


def log_end(port: int) -> int:
    """Where the commit log ends."""
    with wire.Client(port) as client:
        body = client.call(28, {}).body
    return int(json.loads(body)["table"]["commitLogMaxOffset"])
