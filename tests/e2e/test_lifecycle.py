"""`brokerset up` and its processes from start to end, as a user and a careless kernel treat them.

What one crash, one `down` and one killed `up` do is shown in `tests/integration/cli`; here the same things happen repeatedly and at
bad moments, and the files that are left are looked at.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from brokerset_cli.processes import start_ticks
from brokerset_rig import wire
from brokerset_rig.local_set import FREE_PORTS, WAIT_SECONDS, LocalSet

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: life}
spec:
  replicas: 1
  config: {mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000, flushDiskType: SYNC_FLUSH}
"""


class OneBroker(LocalSet):
    """A BrokerSet with one broker in a data folder."""

    @property
    def options(self) -> tuple[str, ...]:
        """What `up` is told: the manifest, and to take any ports."""
        manifest = self.data.parent / "set.yaml"
        manifest.write_text(MANIFEST)
        return "-f", str(manifest), *FREE_PORTS

    def up_in_foreground(self) -> subprocess.Popen[str]:
        """Start, and return the process once it says that the set runs."""
        command = [
            sys.executable,
            "-u",
            "-m",
            "brokerset_cli.main",
            "up",
            *self.options,
            "--data",
            str(self.data),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Try: "):
                return process
        raise AssertionError(f"up ended with {process.wait()}")

    def broker(self) -> dict[str, Any]:
        """The part of the state about the only broker."""
        return next(iter(self.processes("broker").values()))

    @property
    def store(self) -> Path:
        return Path(self.broker()["folder"]) / "store"

    def up_log(self) -> str:
        return (self.data / "logs" / "up.log").read_text()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[OneBroker]:
    found = OneBroker(tmp_path / "data")
    yield found
    found.end()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS:g} s: {what}"
        time.sleep(0.02)


def broker_runs_again(local: OneBroker, restarts: int) -> bool:
    broker = local.broker()
    return (broker["restarts"], broker["state"]) == (restarts, "running")


def port_of(broker: dict[str, Any]) -> int:
    return int(broker["address"].rpartition(":")[2])


def bodies(local: OneBroker, topic: str, count: int) -> set[str]:
    """What a new group reads."""
    group = f"g{time.monotonic_ns()}"
    shown = local("consume", topic, "--group", group, "--count", str(count), "--json").stdout
    return {json.loads(line)["body"] for line in shown.splitlines()}


@pytest.mark.slow
def test_a_broker_that_crashes_again_and_again_waits_longer_each_time_and_loses_nothing(
    local: OneBroker,
) -> None:
    """Three times `kill -9`, each right after acknowledged messages: pauses double, all messages are there."""
    local.up(MANIFEST)
    for number in range(3):
        local("send", "crashes", "--count", "20", "--key", f"round{number}")
        os.kill(local.broker()["pid"], signal.SIGKILL)
        until(partial(broker_runs_again, local, number + 1), "the broker runs again")

    shown = local("consume", "crashes", "--count", "60", "--json").stdout

    pauses = re.findall(r"was ended by SIGKILL; starts again in ([\d.]+) s", local.up_log())
    assert pauses == ["0.2", "0.4", "0.8"]
    assert local.up_log().count("serves again") == 3
    assert len({(m["keys"][0], m["body"]) for m in map(json.loads, shown.splitlines())}) == 60
    view = json.loads(local("status", "--json").stdout)
    assert view["healthy"]
    assert [p["restarts"] for p in view["local"]["processes"] if p["kind"] == "broker"] == [3]


def test_the_abort_file_is_there_while_a_broker_runs_and_gone_after_an_orderly_end(local: OneBroker) -> None:
    local.up(MANIFEST)
    running = (local.store / "abort").exists()

    local("down")

    assert running
    assert not (local.store / "abort").exists()
    assert (local.store / "checkpoint").exists()


def test_an_up_killed_in_the_foreground_takes_its_processes_along_in_order(local: OneBroker) -> None:
    """They are told to stop, so they flush and close: no `abort` stays, and the next `up` finds all messages."""
    process = local.up_in_foreground()
    local("send", "kept", "--count", "30")
    pids = [p["pid"] for p in local.state()["processes"]]
    process.kill()
    process.communicate(timeout=WAIT_SECONDS)
    until(lambda: not any(start_ticks(pid) for pid in pids), "all processes have ended")
    abort_stays = (local.store / "abort").exists()

    local.up(MANIFEST)

    assert not abort_stays
    assert len(bodies(local, "kept", 30)) == 30


def test_everything_killed_at_once_is_recovered_by_the_next_up(local: OneBroker) -> None:
    """As after a loss of power: what was acknowledged with SYNC_FLUSH is there, and no old state stands in the way."""
    local.up(MANIFEST)
    local("send", "power", "--count", "40")
    state = local.state()
    for pid in [state["pid"], *(p["pid"] for p in state["processes"])]:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(start_ticks(p["pid"]) for p in state["processes"]), "all processes have ended")

    local.up(MANIFEST)

    assert len(bodies(local, "power", 40)) == 40


def test_sigterm_ends_up_with_0_while_a_client_sends(local: OneBroker) -> None:
    """A send in flight is answered or its connection closes; what was acknowledged is there after the next start."""
    process = local.up_in_foreground()
    acknowledged = []
    with wire.Client(port_of(local.broker()), 20) as client:
        for number in range(200):
            if number == 100:
                process.terminate()
            try:
                answer = client.call(wire.SEND_V2, wire.send_ext("term", 0, ""), str(number).encode())
            except OSError:
                break
            if answer.code == 0:
                acknowledged.append(str(number))
    output, _ = process.communicate(timeout=WAIT_SECONDS)

    assert process.returncode == 0, output
    assert not (local.store / "abort").exists()
    local.up(MANIFEST)
    assert set(acknowledged) <= bodies(local, "term", len(acknowledged))


def test_a_second_up_on_the_folder_is_refused_and_harms_nothing(local: OneBroker) -> None:
    local.up(MANIFEST)
    before = local.state()

    refused = local("up", *local.options, code=1)
    detached = local("up", "--detach", *local.options, code=1)

    assert f"{local.data} is in use" in refused.stderr
    assert f"{local.data} is in use" in detached.stderr
    assert local.state() == before
    assert json.loads(local("status", "--json").stdout)["healthy"]


def test_a_broker_cannot_take_a_store_that_another_one_has(local: OneBroker) -> None:
    """Not even under another port and another name: the folder is locked, and its files are left as they are."""
    local.up(MANIFEST)
    before = sorted(path.name for path in local.store.iterdir())
    command = [sys.executable, "-m", "brokerset_broker", "--storePathRootDir", str(local.store), "--brokerName", "other",
               "--listenPort", "0", "--httpPort", "0", "--bindAddress", "127.0.0.1"]  # fmt: skip

    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)

    assert done.returncode == 1
    assert str(local.store) in done.stderr
    assert sorted(path.name for path in local.store.iterdir()) == before
