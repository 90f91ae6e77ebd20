"""A BrokerSet that the `brokerset` command runs in a folder, for tests that treat it as a person does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerset_cli.options import namesrv_address, observed_controllers
from brokerset_cli.status import observe
from brokerset_client import Message, Producer, SendStatus
from brokerset_client.errors import ClientError

WAIT_SECONDS = 60.0
LOOK_SECONDS = 0.05
FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0", "--http-port", "0")


@dataclass(frozen=True)
class LocalSet:
    """The command with one data folder, and what it has written there."""

    data: Path
    wait_seconds: float = WAIT_SECONDS
    """Longest time of one command, and of one wait."""

    def __call__(
        self, *arguments: str, code: int = 0, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one command; fails unless it ends with `code`."""
        command = [sys.executable, "-m", "brokerset_cli.main", *arguments]
        environment = {**os.environ, "BROKERSET_DATA": str(self.data)}
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            input=stdin,
            timeout=self.wait_seconds,
            check=False,
        )
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def up(self, manifest: str, *options: str) -> None:
        """Start in the background, on any ports unless `options` say otherwise."""
        path = self.data.parent / "set.yaml"
        path.write_text(manifest)
        done = self("up", "--detach", "-f", str(path), *FREE_PORTS, *options)
        self._said.write_text(done.stdout)

    @property
    def _said(self) -> Path:
        return self.data.parent / "said.txt"

    def said(self) -> str:
        """What the last `up` has said."""
        return self._said.read_text()

    def state(self) -> dict[str, Any]:
        """What `up` has written down."""
        state: dict[str, Any] = json.loads((self.data / "state.json").read_text())
        return state

    def processes(self, kind: str) -> dict[str, dict[str, Any]]:
        """The processes of a kind, by name."""
        return {p["name"]: p for p in self.state()["processes"] if p["kind"] == kind}

    def status(self) -> dict[str, Any]:
        """`status --json`, whether all is well or not."""
        command = [sys.executable, "-m", "brokerset_cli.main", "status", "--json", "--data", str(self.data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.wait_seconds, check=False)
        view: dict[str, Any] = json.loads(done.stdout)
        return view

    def until(self, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The first status that meets the condition."""
        deadline = time.monotonic() + self.wait_seconds
        while True:
            view = self._observe()
            if condition(view):
                return view
            assert time.monotonic() < deadline, (
                f"not within {self.wait_seconds:g} s: {what}; {view['problems']}"
            )
            time.sleep(LOOK_SECONDS)

    def _observe(self) -> dict[str, Any]:
        """What `status` finds, without a process of its own: who waits asks often, and starting Python takes long."""
        addresses = namesrv_address(None, self.data), observed_controllers(None, self.data)
        with ThreadPoolExecutor(1) as thread:  # an event loop may run in this one
            view = thread.submit(observe, addresses[0], self.data, addresses[1]).result()
        found: dict[str, Any] = json.loads(json.dumps(view.to_json()))
        return found

    def until_whole(self, brokers: int = 3) -> dict[str, Any]:
        """The first status in which nothing is wrong and every broker of the only group is in sync."""

        def is_whole(view: dict[str, Any]) -> bool:
            groups = view["groups"]
            return bool(view["healthy"]) and len(groups) == 1 and len(groups[0]["syncStateSet"]) == brokers

        return self.until(is_whole, f"{brokers} brokers are in sync and all is well")

    def until_healthy(self) -> dict[str, Any]:
        """The first status without problems."""
        return self.until(lambda view: bool(view["healthy"]), "all is well")

    def bodies(self, topic: str, group: str, wanted: set[str]) -> set[str]:
        """What a new group reads until it has all that is wanted, or nothing comes any more.

        A producer that sends again can store a message twice: a number of messages says nothing.
        """
        found: set[str] = set()
        options = ("--group", group, "--wait", "20", "--json")
        while missing := wanted - found:
            shown = self("consume", topic, "--count", str(len(missing)), *options).stdout.splitlines()
            if not shown:
                break
            found |= {json.loads(line)["body"] for line in shown}
        return found

    def kill(self, *names: str) -> None:
        """SIGKILL processes at once, and wait until `up` runs new ones."""
        before = {p["name"]: p["pid"] for p in self.state()["processes"] if p["name"] in names}
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + self.wait_seconds
        while not all(
            p["pid"] not in (0, before[p["name"]]) and p["state"] == "running"
            for p in self.state()["processes"]
            if p["name"] in before
        ):
            assert time.monotonic() < deadline, f"{names} do not run again"
            time.sleep(0.02)

    def end(self) -> None:
        """Stop everything; no process is left, whatever happened before."""
        with contextlib.suppress(AssertionError):
            self("down")
        if (self.data / "state.json").exists():
            pids = [p["pid"] for p in self.state()["processes"] if p["pid"]]
            deadline = (
                time.monotonic() + self.wait_seconds
            )  # orphans are reaped by a process that is not ours
            while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
                assert time.monotonic() < deadline, f"processes {left} are left"
                time.sleep(0.02)


@contextlib.contextmanager
def local_set(
    folder: Path, manifest: str, *options: str, wait_seconds: float = WAIT_SECONDS
) -> Iterator[LocalSet]:
    """A set that runs, and is stopped at the end."""
    found = LocalSet(folder / "data", wait_seconds)
    try:
        found.up(manifest, *options)
        yield found
    finally:
        found.end()


class Sending:
    """A producer that sends from start to end of a `with` block, in a thread of its own.

    A message that fails is counted and sent again until it is acknowledged, as an application would.
    """

    def __init__(
        self,
        local: LocalSet,
        topic: str,
        *,
        body: Callable[[int], str] = str,
        pause: float = 0.005,
        at_least: int = 1,
    ) -> None:
        """The block begins when `at_least` messages are acknowledged; `pause` in seconds is between two."""
        self._namesrv = local.state()["namesrv"]
        self._topic, self._body, self._pause, self._at_least = topic, body, pause, at_least
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._end = threading.Event()
        self._began = threading.Event()
        self.acknowledged: list[str] = []
        """Bodies, in their order."""
        self.failures: list[str] = []

    async def _run(self) -> None:
        async with Producer("e2e", namesrv=self._namesrv) as producer:
            while not self._end.is_set():
                body = self._body(len(self.acknowledged))
                if not await self._send(producer, body):
                    return
                self.acknowledged.append(body)
                if len(self.acknowledged) >= self._at_least:
                    self._began.set()
                await asyncio.sleep(self._pause)

    async def _send(self, producer: Producer, body: str) -> bool:
        """Whether it is acknowledged; the end of the block can come before."""
        while not self._end.is_set():
            try:
                result = await producer.send(Message(topic=self._topic, body=body.encode()))
            except ClientError as error:
                self.failures.append(repr(error))
                await asyncio.sleep(0.02)
                continue
            if result.status is SendStatus.SEND_OK:
                return True
            self.failures.append(result.status.name)
        return False

    def __enter__(self) -> Sending:
        self._thread.start()
        assert self._began.wait(90), (len(self.acknowledged), self.failures)
        return self

    def until(self, count: int) -> None:
        """Wait until so many messages are acknowledged."""
        deadline = time.monotonic() + 90
        while len(self.acknowledged) < count:
            assert time.monotonic() < deadline, (len(self.acknowledged), self.failures[-3:])
            time.sleep(LOOK_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def processes_of(folder: str) -> list[str]:
    """Command lines that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if folder in line:
            found.append(line)
    return found


def identities(view: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """By name of the process: group and persistent id, from a status."""
    return {
        replica["process"]: (group["brokerName"], replica["brokerId"])
        for group in view["groups"]
        for replica in group["replicas"]
        if replica["process"]
    }
