"""What an entry costs a leader and a follower of a group of ours: `python -m brokerset_rig.dledger_costs`.

Two processes: the leader in one, two followers in the other, which share its cost. `--turn` entries are appended
in each turn of the leader's loop, as a store appends what its producers have sent since the last one.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from brokerset_broker.store.ledger import FileLedger
from brokerset_dledger.driver import Driver
from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_rig.dledger_node import config_of
from brokerset_rig.stack import free_ports
from brokerset_rig.waiting import until
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.peer_requests import PoolRequester
from brokerset_runtime.remoting.pool import ConnectionPool
from brokerset_runtime.remoting.server import RemotingServer

DATA_FILE_BYTES = 64 << 20
INDEX_FILE_BYTES = 32 * (1 << 20)
WAITING_MAX = 1_000
"""Entries that wait to be committed."""

_T = TypeVar("_T")


async def _run_blocking(work: Callable[[], _T]) -> _T:
    return await asyncio.to_thread(work)


@dataclass
class Member:
    """A member in this process; n0 is to lead."""

    folder: Path
    member_id: str
    peers: str

    def __post_init__(self) -> None:
        config, self.addresses = config_of(self.member_id, self.peers, alone=True)
        self.ledger = FileLedger(
            self.folder / f"dledger-{self.member_id}",
            data_file_bytes=DATA_FILE_BYTES,
            index_file_bytes=INDEX_FILE_BYTES,
            record_of_term=lambda: b"term",
        )
        self.committed = asyncio.Event()
        self.driver = Driver(
            replace(config, preferred_leaders=("n0",)),
            self.addresses,
            self.ledger,
            self.ledger.open(),
            requester=PoolRequester(ConnectionPool()),
            clock=SystemClock(),
            run_blocking=_run_blocking,
            random_source=random.Random(),
            on_commit=self.committed.set,
        )

    async def start(self) -> asyncio.Task[None]:
        """Take part."""
        host, port = self.addresses[self.member_id].rsplit(":", 1)
        await RemotingServer(self.driver.handlers).listen(host, int(port))
        return asyncio.create_task(self.driver.run())


async def _follow(folder: Path, peers: str, pipe: Connection) -> None:
    """Two followers; whatever is received is answered with the CPU time so far."""
    running = [await Member(folder, name, peers).start() for name in ("n1", "n2")]
    while await asyncio.to_thread(pipe.recv):
        pipe.send(time.process_time())
    for task in running:
        task.cancel()


async def _lead(folder: Path, peers: str, pipe: Connection, count: int, size: int, turn: int) -> str:
    member = Member(folder, "n0", peers)
    running = await member.start()
    driver, ledger = member.driver, member.ledger
    await until(lambda: driver.may_serve(), 60)
    record = bytes(size)

    async def append(entries: int) -> None:
        while entries > 0:
            while ledger.end_index - ledger.committed_index > WAITING_MAX - turn:
                member.committed.clear()
                await member.committed.wait()
            driver.require_appendable(turn)
            for _ in range(turn):
                file, position = ledger.prepare(size)
                begin = position - file.start + ENTRY_HEAD_SIZE
                file.map[begin : begin + size] = record
                ledger.complete(driver.term, position, size)
            driver.appended()
            entries -= turn
            await asyncio.sleep(0)

    await append(count // 10)
    await until(lambda: min(driver.status.watermarks.values()) == ledger.end_index)
    pipe.send(True)
    followers = pipe.recv()
    begun, own = time.monotonic(), time.process_time()
    await append(count)
    await until(lambda: min(driver.status.watermarks.values()) == ledger.end_index, pause=0.0005)
    seconds, own = time.monotonic() - begun, time.process_time() - own
    pipe.send(True)
    followers = pipe.recv() - followers
    pipe.send(False)
    running.cancel()
    return (
        f"{count} entries of {size} bytes, {turn} in a turn: leader {own / count * 1e6:.1f} us, "
        f"follower {followers / 2 / count * 1e6:.1f} us, {count / seconds:.0f} entries a second"
    )


def _run_followers(folder: Path, peers: str, pipe: Connection) -> None:
    asyncio.run(_follow(folder, peers, pipe))


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=1_024)
    parser.add_argument("--turn", type=int, default=16)
    asked = parser.parse_args()
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(free_ports(3)))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as name:
        process = context.Process(target=_run_followers, args=(Path(name), peers, theirs), daemon=True)
        process.start()
        print(asyncio.run(_lead(Path(name), peers, ours, asked.count, asked.size, asked.turn)))
        process.join(10)
        process.kill()


if __name__ == "__main__":
    main()
