"""`kubectl brokerset` as people call it, against a real API server and kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import Cluster, CommandFailed, run
from tests.e2e.kubernetes.test_external_access import all_received, create_topic, more, sending

SPACE = "kubectl-plugin"
SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def orders(cluster: Cluster) -> Iterator[Deployed]:
    """A set of two brokers and one controller."""
    found = Deployed(cluster, cluster.namespace(SPACE))
    found.create(replicas=2, controllers={"replicas": 1})
    found.wait_settled(2, 1)
    yield found
    cluster.delete_namespace(SPACE)


def command(orders: Deployed, verb: str, *arguments: str) -> list[str]:
    """A command line of the plugin, which kubectl finds on the PATH."""
    return [orders.cluster.kubectl_path, "brokerset", verb, orders.name, *arguments, "-n", orders.namespace]


def env(orders: Deployed) -> dict[str, str]:
    """What it runs with."""
    return {**orders.cluster.env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def plugin(orders: Deployed, verb: str, *arguments: str) -> str:
    """What `kubectl brokerset VERB` prints. Raises `CommandFailed`."""
    return run(command(orders, verb, *arguments), seconds=120, env=env(orders))


@contextlib.contextmanager
def running(orders: Deployed, verb: str, *arguments: str) -> Iterator[queue.Queue[str]]:
    """Lines of a verb that runs until Ctrl-C, which must then be a success."""
    process = subprocess.Popen(
        command(orders, verb, *arguments), stdout=subprocess.PIPE, text=True, env=env(orders)
    )
    assert process.stdout is not None, "a pipe was asked for"
    lines: queue.Queue[str] = queue.Queue()

    def read(stream: IO[str]) -> None:
        for line in stream:
            lines.put(line)

    reader = threading.Thread(target=read, args=[process.stdout])
    reader.start()
    try:
        yield lines
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()


async def switch_over_while_sending(orders: Deployed, namesrv: str) -> None:
    """Every message that was acknowledged can be read afterwards."""
    await create_topic(namesrv)
    async with sending(namesrv) as account:
        await more(account)
        before = await asyncio.to_thread(orders.master)
        await asyncio.to_thread(plugin, orders, "switchover", "orders-0")
        assert await asyncio.to_thread(orders.master) != before
        await more(account)
    await all_received(namesrv, set(account.acked))


def test_people_see_a_set_and_its_logs(orders: Deployed, tmp_path: Path) -> None:
    """A tree, lines of all pods, lines as they come, and a report without anything missing."""
    tree = plugin(orders, "status")
    logs = plugin(orders, "logs", "--tail", "5").splitlines()
    with running(orders, "logs", "orders-0", "-f") as lines:
        followed = lines.get(timeout=SECONDS_MAX)
    plugin(orders, "report", "-o", str(tmp_path / "report.tar.gz"))

    assert tree.startswith(f"orders  Ready  2/2 in sync  namespace {SPACE}")
    assert {line.split()[0] for line in logs} >= {"orders-0-0", "orders-0-1", "orders-controller-0"}
    assert followed.startswith("orders-0-")
    with tarfile.open(tmp_path / "report.tar.gz") as archive:
        (name,) = (each for each in archive.getnames() if each.endswith("missing.txt"))
        file = archive.extractfile(name)
        assert file is not None
        assert file.read() == b"nothing is missing\n"


def test_clients_on_this_machine_follow_a_switchover(orders: Deployed) -> None:
    """They send before and after it at the same local address, and nothing that they sent is lost."""
    with running(orders, "port-forward", "--namesrv-port", "0") as lines:
        told = lines.get(timeout=SECONDS_MAX)
        while "Ctrl-C ends" not in told:
            told = lines.get(timeout=SECONDS_MAX)
        namesrv = told.partition("name server ")[2].partition(";")[0]
        asyncio.run(switch_over_while_sending(orders, namesrv))


def test_a_request_that_cannot_be_done_now_is_taken_back(orders: Deployed) -> None:
    """Of two brokers the operator fences none; it says why, and is told that it need not go on."""
    orders.wait_settled(2, 1)
    (slave,) = (str(number) for number, role in orders.roles().items() if role == "slave")

    with pytest.raises(CommandFailed, match="only the master would stay in sync"):
        plugin(orders, "fence", "orders-0", slave, "--timeout", "10")

    assert "takes part again" in plugin(orders, "unfence", "orders-0", slave)
    assert orders.roles()[int(slave)] == "slave"


@pytest.mark.parametrize("verb", ["status", "logs", "pause", "port-forward"])
def test_who_may_not_is_told_so(orders: Deployed, verb: str) -> None:
    """Acting as another user counts for every verb."""
    with pytest.raises(CommandFailed) as refused:
        plugin(orders, verb, "--as", "nobody")

    assert 'User "nobody" cannot' in refused.value.err
    assert "docs/kubectl-plugin.md" in refused.value.err
