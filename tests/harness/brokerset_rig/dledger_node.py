"""One member of a DLedger group as a process: `python -m brokerset_rig.dledger_node FOLDER ID PEERS [--alone]`.

PEERS is Java's `dLegerPeers`: `n0-host:port;n1-host:port`. The bodies of its log are whatever clients append.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from brokerset_broker.store.ledger import FileLedger
from brokerset_dledger.config import NodeConfig
from brokerset_dledger.driver import Driver
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.peer_requests import PoolRequester
from brokerset_runtime.remoting.pool import ConnectionPool
from brokerset_runtime.remoting.server import RemotingServer
from brokerset_runtime.tls import Tls

DATA_FILE_BYTES = 1 << 20
INDEX_FILE_BYTES = 32 * 65_536

_T = TypeVar("_T")


def config_of(
    node_id: str, peers: str, *, group: str = "g", alone: bool = False
) -> tuple[NodeConfig, dict[str, str]]:
    """A member's settings, and the addresses of all."""
    addresses = dict(peer.split("-", 1) for peer in peers.split(";"))
    peer_ids = tuple(addresses)
    if alone:
        return NodeConfig.for_group_alone(group, node_id, peer_ids), addresses
    return NodeConfig(group=group, node_id=node_id, peers=peer_ids), addresses


async def _run_blocking(work: Callable[[], _T]) -> _T:
    return await asyncio.to_thread(work)


async def serve(
    folder: Path, node_id: str, peers: str, *, group: str = "g", alone: bool = False, tls: Tls | None = None
) -> None:
    """Run the member until it is cancelled; with `tls` its port is one of members, as a broker's."""
    config, addresses = config_of(node_id, peers, group=group, alone=alone)
    ledger = FileLedger(
        folder / f"dledger-{node_id}",
        data_file_bytes=DATA_FILE_BYTES,
        index_file_bytes=INDEX_FILE_BYTES,
        record_of_term=lambda: b"term",
    )
    pool = ConnectionPool(tls=tls, to_members=True)
    driver = Driver(
        config,
        addresses,
        ledger,
        ledger.open(),
        requester=PoolRequester(pool),
        clock=SystemClock(),
        run_blocking=_run_blocking,
        random_source=random.Random(),
    )
    server = RemotingServer(driver.handlers, tls=tls, members_only=True)
    host, port = addresses[node_id].rsplit(":", 1)
    await server.listen(host, int(port))
    try:
        await driver.run()
    finally:
        await server.close(0.5)
        await pool.close()
        ledger.close()


def main() -> None:
    """Run one member."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("id")
    parser.add_argument("peers")
    parser.add_argument("--group", default="g")
    parser.add_argument("--alone", action="store_true", help="all members are ours")
    parser.add_argument("--tls", type=Path, help="file with RocketMQ's keys of TLS")
    asked = parser.parse_args()
    tls = None if asked.tls is None else Tls(asked.tls)
    asyncio.run(serve(asked.folder, asked.id, asked.peers, group=asked.group, alone=asked.alone, tls=tls))


if __name__ == "__main__":
    main()
