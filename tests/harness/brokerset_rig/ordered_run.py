"""A set on this machine, producers and consumers of an ordered subject, and what is done to them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerset_client import Admin, ClientInstance, PullStatus, calls
from brokerset_client.positions import reader_address
from brokerset_protocol import subscriptions
from brokerset_protocol.bodies.heartbeat import SUB_ALL
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy
from brokerset_rig.local_set import LocalSet
from brokerset_rig.ordered_oracle import Message, Verdict, judge, judge_stored, judge_unordered, read_act

SUBJECT = "shop"
GROUP = "billing"
PERMISSION_MS, STOP_MARGIN_MS, WAIT_MARGIN_MS, HEARTBEAT_MS = 3_000, 500, 500, 500
"""Short, so that a run sees many of them."""

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: orders}
spec:
  groups: 2
  replicas: 3
  config: {mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}
"""

HANDLED_SECONDS_MAX = 90.0


def with_short_permissions(local: LocalSet) -> None:
    """Restart the controllers with the numbers above, which a manifest cannot say."""
    wanted = {
        "consumerPermission": PERMISSION_MS,
        "consumerStopMargin": STOP_MARGIN_MS,
        "consumerWaitMargin": WAIT_MARGIN_MS,
        "consumerHeartbeatInterval": HEARTBEAT_MS,
    }
    for file in (local.data / "controllers").glob("*/controller.conf"):
        text = file.read_text()
        for name, value in wanted.items():
            text, count = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", text)
            assert count == 1, (name, file)
        file.write_text(text)
    local.kill(*local.processes("controller"))


def master_of(view: Mapping[str, Any], group: str) -> str:
    """Name of the process of a group's master in a status; empty when it has none."""
    found = (each for each in view["groups"] if each["brokerName"] == group)
    replicas = ((each, replica) for each in found for replica in each["replicas"])
    return next(
        (replica["process"] for each, replica in replicas if replica["brokerId"] == each["masterId"]), ""
    )


def _message(body: str) -> Message:
    key, number = body.split()
    return key, int(number)


@dataclass
class OrderedRun:
    """Processes around one subject; `end` stops those that run."""

    local: LocalSet
    folder: Path
    subject: str = SUBJECT
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    consumers: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def acts(self, group: str) -> Path:
        """Where a group's consumers write down what they do."""
        return self.folder / f"acts-{group}.txt"

    def _start(self, part: str, name: str, *more: str, enter: Sequence[str]) -> subprocess.Popen[str]:
        namesrv = self.local.state()["namesrv"]
        command = [*enter, sys.executable, "-m", "brokerset_rig.ordered_load", part, "--namesrv", namesrv]
        command += ["--subject", self.subject, "--name", name, *more]
        with (self.folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.started.append(process)
        return process

    def produce(
        self,
        name: str,
        *,
        keys: int,
        count: int,
        rate: float,
        order: str = OrderStrategy.STRICT,
        enter: Sequence[str] = (),
    ) -> subprocess.Popen[str]:
        """Start a producer with keys of its own; `enter` goes before its command, as into a namespace."""
        numbers = ("--keys", str(keys), "--count", str(count), "--rate", str(rate))
        return self._start("send", name, *numbers, "--order", order, enter=enter)

    def consume(
        self,
        name: str,
        group: str = GROUP,
        strategy: str = ConsumeStrategy.EXCLUSIVE,
        *,
        failing: float = 0.0,
        enter: Sequence[str] = (),
    ) -> None:
        """Start a consumer, of whose attempts a share is `failing`."""
        words = ("--group", group, "--acts", str(self.acts(group)), "--consume", strategy)
        self.consumers[name] = self._start("handle", name, *words, "--failing", str(failing), enter=enter)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Do something to a consumer."""
        self.consumers[name].send_signal(number)
        if number == signal.SIGKILL:
            self.consumers.pop(name).wait()

    def state(self) -> dict[str, Any]:
        """The subject, as `describe` says it."""
        found: dict[str, Any] = json.loads(self.local("subject", "describe", self.subject, "--json").stdout)
        return found

    def scale(self, partitions: int) -> None:
        """Give the subject another number of partitions, and wait until they are open."""
        self.local("subject", "scale", self.subject, str(partitions))

    def master(self, group: str) -> str:
        """Name of the process of a group's master, as soon as it has one."""
        return master_of(
            self.local.until(lambda view: bool(master_of(view, group)), f"{group} has a master"), group
        )

    def signal_broker(self, name: str, number: int) -> None:
        """Do something to a broker's process; `up` starts it again when it has ended."""
        os.kill(self.local.processes("broker")[name]["pid"], number)

    def kill_master(self, group: str) -> None:
        """SIGKILL the process of a group's master."""
        self.signal_broker(self.master(group), signal.SIGKILL)

    def attempted(self, producers: Sequence[subprocess.Popen[str]]) -> tuple[dict[str, int], set[Message]]:
        """Wait for producers: by key how many messages were sent, and those of them whose sends failed."""
        counts: dict[str, int] = {}
        failures: dict[str, str] = {}
        for process in producers:
            output, _ = process.communicate(timeout=150)
            found = json.loads(output)
            counts |= found["sent"]
            failures |= dict(found["failures"])
        return counts, {_message(body) for body in failures}

    def sent(self, producers: Sequence[subprocess.Popen[str]]) -> dict[str, int]:
        """Wait for producers; by key how many messages were sent, all of them confirmed."""
        counts, failed = self.attempted(producers)
        assert not failed, f"sends failed, see the producers' logs: {sorted(failed)[:20]}"
        return counts

    def wait_until_handled(
        self,
        total: int,
        seconds: float = HANDLED_SECONDS_MAX,
        group: str = GROUP,
        unconfirmed: Collection[Message] = (),
    ) -> None:
        """Until so many different messages that are not `unconfirmed` are handled, or the time is over: the verdict
        says which are not."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            acts = map(read_act, self._lines(group))
            ended = {(act.key, act.number) for act in acts if act.what == "end"}
            if len(ended.difference(unconfirmed)) >= total:
                return
            time.sleep(0.3)

    def _lines(self, group: str) -> list[str]:
        acts = self.acts(group)
        return acts.read_text().splitlines() if acts.exists() else []

    def verdict(self, sent: dict[str, int]) -> Verdict:
        """What the consumers did."""
        return judge(map(read_act, self._lines(GROUP)), sent)

    def unordered_verdict(
        self, sent: dict[str, int], group: str, unconfirmed: Collection[Message] = ()
    ) -> Verdict:
        """What the members of a Shared group, or of a BestTried subject, did."""
        return judge_unordered(map(read_act, self._lines(group)), sent, unconfirmed)

    def stored(self, sent: dict[str, int]) -> Verdict:
        """What the queues hold, read as any RocketMQ client reads them."""
        return judge_stored(asyncio.run(self._queues()), sent)

    async def _queues(self) -> list[list[Message]]:
        subscription = subscriptions.parse(self.subject, SUB_ALL)
        found = []
        async with ClientInstance(self.local.state()["namesrv"]) as instance:
            admin = Admin(instance=instance)
            for queue, ends in (await admin.topic_stats(self.subject)).items():
                messages: list[Message] = []
                position = ends.min_offset
                while position < ends.max_offset:
                    address = await reader_address(instance, queue)
                    result = await calls.pull(
                        instance,
                        address,
                        group="audit",
                        queue=queue,
                        queue_offset=position,
                        subscription=subscription,
                        suspend_ms=0,
                        with_subscription=True,
                    )
                    assert result.status is PullStatus.FOUND, (queue, position, result.status)
                    for message in result.messages:
                        messages.append(_message(message.body.decode()))
                    position = result.next_queue_offset
                found.append(messages)
        return found

    def stop_consumers(self) -> None:
        """SIGTERM; they leave their group."""
        for process in self.consumers.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.consumers.values():
            process.wait(timeout=30)

    def end(self) -> None:
        """No process is left, whatever happened before."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
