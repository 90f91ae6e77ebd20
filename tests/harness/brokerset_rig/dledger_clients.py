"""The C++ and the Node client with a DLedger group of ours, whose leader is killed while they send and consume."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType

from brokerset_rig import controller_parts, replication_checks, stack
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import until
from brokerset_rig.dledger_group import OURS, Group, group
from brokerset_rig.dledger_load import SHOWN, gaps, stored
from brokerset_rig.replication_checks import note

MESSAGES = 100
START_SECONDS_MAX = 90.0
AGAIN_SECONDS_MAX = 60.0
"""Both clients read routes every 30 s, and one that had been wrong then goes by the next."""

CONSUMED_SECONDS_MAX = 90.0
TOPIC_SECONDS_MAX = 40.0


def command_of(client: str, cache: Path) -> list[str]:
    """How `cpp` or `node` is started; `cache` is where `fetch clients` put them."""
    if client == "cpp":
        return [str(cache / "venv" / "bin" / "python"), str(stack.PEERS / "clients" / "cpp_flow.py")]
    return ["node", str(stack.PEERS / "clients" / "node_flow.js")]


class Client:
    """A process that sends and consumes, and tells each line when it happens. A context manager."""

    def __init__(self, name: str, found: Group, topic: str, cache: Path) -> None:
        self.name = name
        self.acked: list[tuple[float, str]] = []
        """When, on the monotonic clock, and what."""
        self.failed: list[str] = []
        self.got: list[str] = []
        folder = found.folder / f"client-{name}"
        folder.mkdir()
        self._errors = (folder / "errors").open("ab")
        self._process = subprocess.Popen(
            [*command_of(name, cache), found.name_server.address, topic],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=folder,
            env={**os.environ, "NODE_PATH": str(cache / "node_modules"), "HOME": str(folder)},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            kind, _, rest = raw.decode(errors="replace").strip().partition(" ")
            body = rest.partition(" ")[2]
            if kind == "ack":
                self.acked.append((time.monotonic(), body))
            elif kind == "fail":
                self.failed.append(body)
            elif kind == "got":
                self.got.append(body)

    def __enter__(self) -> Client:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.send_no_more()
        self._process.kill()
        self._process.wait()
        self._reader.join(5)
        self._errors.close()

    def send_no_more(self) -> None:
        """Close its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Until it is so. Raises `StackError`."""
        until(
            f"the {self.name} client {what} ({len(self.acked)} sent, {len(self.got)} got)",
            condition,
            seconds,
        )

    def pause_around(self, moment: float) -> float:
        """The longest time without an acknowledgement, of those that end after a moment."""
        times = [at for at, _ in self.acked]
        return max((b - a for a, b in itertools.pairwise(times) if b > moment), default=0.0)


def run(add: Add, cache: Path) -> None:
    """Both clients, one after the other, on one group."""
    with group("dledger-clients", (OURS,) * 3, OURS) as found:
        with step(add, "three members of ours elect a leader") as problems:
            found.start()
        if problems:
            return
        for client in ("cpp", "node"):
            with step(
                add, f"the {client} client sends and consumes over a kill of the leader, and nothing is lost"
            ) as problems:
                problems += _over_a_kill(found, client, cache)
        with step(add, "our brokers logged no unexpected failure") as problems:
            problems += replication_checks.unexpected(found.members)


def _over_a_kill(found: Group, name: str, cache: Path) -> list[str]:
    topic = f"flow-{name}"
    until("the topic is made", partial(_made, found, topic), TOPIC_SECONDS_MAX)
    with Client(name, found, topic, cache) as client:
        client.wait(
            "sends and consumes",
            lambda: min(len(client.acked), len(client.got)) >= MESSAGES,
            START_SECONDS_MAX,
        )
        leader = found.leader()
        killed = time.monotonic()
        leader.server.kill()
        successor = found.leader(other_than=leader)
        before = len(client.got)
        client.wait(
            "sends again",
            lambda: sum(at > killed + 1.0 for at, _ in client.acked) >= MESSAGES,
            AGAIN_SECONDS_MAX,
        )
        client.wait("consumes again", lambda: len(client.got) >= before + MESSAGES, AGAIN_SECONDS_MAX)
        leader.server.start()
        found.wait_registered()
        client.send_no_more()
        acked = {body for _, body in client.acked}
        client.wait("consumes everything", lambda: acked <= set(client.got), CONSUMED_SECONDS_MAX)
        note(
            f"{name}: {leader} -> {successor}, {len(acked)} acknowledged, {len(client.failed)} failed,"
            f" none acknowledged for {client.pause_around(killed):.1f} s,"
            f" {len(client.got) - len(set(client.got))} consumed again"
        )
    there = stored(found.leader().port, topic)
    bodies = {each.body.decode() for each in there}
    lost = sorted(acked - bodies)
    return gaps(there) + ([f"{len(lost)} acknowledged are not stored: {lost[:SHOWN]}"] if lost else [])


def _made(found: Group, topic: str) -> bool:
    controller_parts.create_topic(found.leader().port, topic)
    return True
