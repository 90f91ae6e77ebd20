"""A set leaves the controllers and name servers of another cluster, with real processes that are killed on the way.

Controllers of ours stand for Java's here, which `adopt` itself would refuse; real ones are in the interop
suite `adopt`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from brokerset_cli.folder import DataFolder
from brokerset_cli.takeover.finish_observation import ORDER_TOPICS
from brokerset_client import Admin
from brokerset_rig.local_set import LocalSet, identities, local_set

HOST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: host}
spec:
  replicas: 1
  controllers: {replicas: 1}
  config: {mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}
"""
GROUP = "taken"
MESSAGES = 50
YOURS = 3
COMMAND_SECONDS_MAX = 100.0


class JoinedSet(LocalSet):
    """Two brokers of a group, whose controllers are the host's."""

    def finish(self, *more: str, code: int = 0) -> dict[str, Any]:
        """One call of `adopt --finish`, and what it wrote as JSON."""
        ports = ("--namesrv-port", "0")
        options = ("adopt", "--data", str(self.data), "--finish", "--yes", "--json", *ports, *more)
        found = json.loads(self(*options, code=code).stdout)
        assert isinstance(found, dict)
        return found

    def killed_at(self, text: str, *more: str) -> None:
        """A call that is ended with `kill -9` when it says something."""
        command = [sys.executable, "-m", "brokerset_cli.main", "adopt", "--data", str(self.data)]
        command += ["--finish", "--yes", *more]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            said = ""
            for line in process.stderr:
                said += line
                if text in line:
                    break
            else:
                raise AssertionError(f"it never said {text!r}:\n{said}")
            process.send_signal(signal.SIGKILL)

    def memory(self) -> Any:
        return DataFolder(self.data).memory()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[LocalSet]:
    """The other cluster: a controller with a name server, and a broker of its own."""
    with local_set(tmp_path, HOST) as found:
        yield found


JOIN = f"""
import sys
from pathlib import Path
from brokerset_cli.folder import DataFolder
from brokerset_cli.takeover import joined_set
from brokerset_cli.takeover.cluster_observation import Cluster
folder, name_servers, controllers = sys.argv[1:]
manifest = joined_set.make_manifest("DefaultCluster", ["{GROUP}"], 2, {{"mappedFileSizeCommitLog": "16777216"}})
cluster = Cluster("DefaultCluster", name_servers, controllers, {{}})
joined_set.join(DataFolder(Path(folder)), cluster, manifest, "127.0.0.1", {{"{GROUP}": ()}})
"""
"""The step `join`, in a process that ends behind it."""


@pytest.fixture
def joined(tmp_path: Path, host: LocalSet) -> Iterator[JoinedSet]:
    """Our brokers have joined, and nobody else's are in their group."""
    state = host.state()
    found = JoinedSet(tmp_path / "ours")
    command = [sys.executable, "-c", JOIN, str(found.data), state["namesrv"], state["controllers"]]
    try:
        subprocess.run(command, check=True, timeout=COMMAND_SECONDS_MAX)
        yield found
    finally:
        found.end()


def current(answer: Mapping[str, Any]) -> str:
    """The step that is next, with its state; empty when all are done."""
    return next((f"{s['name']} {s['state']}" for s in answer["steps"] if s["state"] != "done"), "")


def test_a_set_leaves_the_cluster_that_it_joined_whoever_kills_the_command(
    tmp_path: Path, host: LocalSet, joined: JoinedSet
) -> None:
    """Killed at each piece of `own` it goes on; ids and messages stay, the host forgets ours, and may go."""
    before = joined.status()

    first = joined.finish(code=YOURS)
    joined("send", "kept", "--count", str(MESSAGES), "--namesrv", first["nameServers"])
    beside = joined.status()
    again = joined.finish(code=YOURS)
    for text in ("our brokers stop", "our brokers start under", "our controllers know"):
        joined.killed_at(text, "--clients-moved")
    last = joined.finish()
    host("down")
    after = joined.until_healthy()

    assert current(first) == current(again) == "clients yours"
    assert first["nameServers"] in next(s["hint"] for s in first["steps"] if s["name"] == "clients")
    assert len(first["nameServers"].split(";")) == 3
    assert {broker["address"] for broker in beside["brokers"]} >= {
        process["address"] for process in joined.processes("broker").values()
    }
    assert current(last) == ""
    assert not (joined.data / "adoption.json").exists()
    assert joined.memory().joined_cluster_of is None
    assert identities(after) == identities(before)
    assert {member["brokerId"] for member in after["groups"][0]["replicas"]} == {1, 2}
    assert after["groups"][0]["nextBrokerId"] == 3
    assert after["groups"][0]["masterEpoch"] > before["groups"][0]["masterEpoch"]
    assert after["namesrv"] == first["nameServers"]
    read = joined(
        "consume", "kept", "--group", "all", "--count", str(MESSAGES), "--from", "earliest", "--json",
        "--namesrv", first["nameServers"],
    )  # fmt: skip
    assert len(read.stdout.splitlines()) == MESSAGES
    assert joined.finish()["steps"] == [], "a call too many finds nothing to do"


@pytest.mark.slow
def test_the_pause_is_told_and_the_host_forgets_who_left(host: LocalSet, joined: JoinedSet) -> None:
    """Without a kill: the JSON has the seconds in which nobody took messages; the host has one group less.

    Our name servers know what the host's said of ordered topics. A set that was stopped on the way is started.
    """
    known = {group["brokerName"] for group in host.until_healthy()["groups"]}
    asyncio.run(order_topic(host.state()["namesrv"], f"{GROUP}:4"))
    first = joined.finish(code=YOURS)
    joined("down")
    again = joined.finish(code=YOURS)

    answer = joined.finish("--clients-moved")

    assert current(first) == current(again) == "clients yours"
    assert current(answer) == ""
    assert answer["nameServers"] == again["nameServers"] == first["nameServers"]
    assert 0 < answer["pauseSeconds"][GROUP] < COMMAND_SECONDS_MAX
    assert GROUP in known
    left = [group for group in host.status()["groups"] if group["brokerName"] == GROUP]
    assert not any(group["replicas"] for group in left)
    for name_server in answer["nameServers"].split(";"):
        assert asyncio.run(order_topic(name_server)) == f"{GROUP}:4"
    joined("down", "--purge", "--yes")
    assert not joined.data.exists()


async def order_topic(name_server: str, value: str | None = None) -> str | None:
    """What a name server says of an ordered topic, or is told."""
    async with Admin(namesrv=name_server) as admin:
        if value is not None:
            await admin.kv_put(ORDER_TOPICS, "in-order", value)
        return await admin.kv_get(ORDER_TOPICS, "in-order")


@pytest.mark.slow
def test_a_set_whose_host_has_ended_leaves_it_all_the_same(host: LocalSet, joined: JoinedSet) -> None:
    """Once every group was seen to be ours the other controllers may be stopped: our brokers tell enough."""
    joined.finish(code=YOURS)
    host("down")

    answer = joined.finish("--clients-moved")

    assert current(answer) == ""
    assert joined.until_healthy()["groups"][0]["masterId"] is not None
