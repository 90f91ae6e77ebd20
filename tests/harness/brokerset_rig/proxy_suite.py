"""Interop suite `proxy`: Java's proxy in cluster mode, unmodified, in front of our brokers, with the clients of RocketMQ 5.

What each client sees is compared with what it saw behind the same proxy in front of a Java broker (`golden/proxy`);
`python -m brokerset_rig.proxy_suite FOLDER` writes those files. Then the master of a replicated group dies under a client.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerset_rig import golden, proxy_failover, stack
from brokerset_rig.proxy_clients import CLIENTS, UNKNOWN_TO, Scenarios, fetch
from brokerset_rig.proxy_world import PROXY_SETTINGS, TYPES, prepare

Add = Callable[[str, list[str], float], None]
SETTINGS = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionTimeOut": "3000",
    "transactionCheckInterval": "5000",
}
"""Of the brokers of both makes."""

JUSTIFIED: dict[str, str] = {
    f"{client}.errors.saw.badSql": "ours also says where the expression breaks off" for client in CLIENTS
}
"""Client, scenario and path, with dots between them -> why ours may differ there."""


@dataclass(frozen=True, slots=True)
class World:
    """A name server, a broker and a proxy that run."""

    folder: Path
    broker: stack.Server
    endpoints: str


@contextmanager
def world(folder: Path, make: str) -> Iterator[World]:
    """One of each, the servers of `ours` or `java`; topics and groups of all clients are there before the proxy is."""
    ports = stack.free_ports(4, below=2)
    name_server, broker = (
        (stack.our_namesrv, stack.our_broker) if make == "ours" else (stack.java_namesrv, stack.java_broker)
    )
    with (
        name_server(folder, ports[0]) as names,
        broker(folder, ports[1], names.address, SETTINGS) as served,
    ):
        for client in CLIENTS:
            asyncio.run(prepare(names.address, client))
        with stack.java_proxy(folder, ports[2:], names.address, PROXY_SETTINGS) as proxy:
            yield World(folder, served, proxy.address)


def observed(found: World, cache: Path, *names: str) -> dict[str, dict[str, Any]]:
    """Client -> scenario -> what it saw; all clients at once, since they mostly wait."""
    clients = [Scenarios(client, cache, found.folder, found.endpoints, *names) for client in CLIENTS]
    for client in clients:
        client.start()
    return {client.client: client.result(found.broker.port) for client in clients}


def run(add: Add, cache: Path) -> None:
    """All scenarios of all clients, then a failover."""
    fetch()
    with stack.Workspace("proxy") as folder, world(folder, "ours") as found:
        started = time.monotonic()
        saw = observed(found, cache)
        seconds = time.monotonic() - started
        for client in CLIENTS:
            for scenario in [each for each in TYPES if each not in UNKNOWN_TO.get(client, ())]:
                add(f"{client}: {scenario}", differences(client, scenario, saw[client]), seconds)
    proxy_failover.run(add, cache)


def differences(client: str, scenario: str, saw: dict[str, Any]) -> list[str]:
    """Where a client saw something else than in front of Java's broker."""
    want = json.loads((golden.GOLDEN / "proxy" / f"{client}.json").read_text())
    return [
        text
        for path, text in golden.walk("", want.get(scenario), saw.get(scenario))
        if f"{client}.{scenario}.{path}" not in JUSTIFIED
    ]


def record(target: Path, cache: Path) -> None:
    """Write what the clients see in front of a Java broker. Raises `StackError` if a scenario does not end well."""
    fetch()
    with stack.Workspace("proxy") as folder, world(folder, "java") as found:
        for client, saw in observed(found, cache).items():
            failed = {scenario: what["error"] for scenario, what in saw.items() if "error" in what}
            if failed:
                raise stack.StackError(f"{client}: {failed}")
            text = json.dumps(saw, indent=1, sort_keys=True, ensure_ascii=False)
            (target / f"{client}.json").write_text(text + "\n")


if __name__ == "__main__":
    peers = os.environ.get("PEERS_CACHE") or Path(
        os.environ.get("BROKERSET_CACHE", Path.home() / ".cache" / "brokerset")
    ) / "peers"  # fmt: skip
    record(Path(sys.argv[1]), Path(peers))
