"""The links of the HA port next to the kernel's floor: `replication_links.py [--size small|full]`.

Two processes on loopback. The floor is a loop of blocking `sendfile` on one side and `recv_into` into the mapped files on the other;
the links send the same files through `TcpHaNetwork`, with chunks of several sizes. Both receive into new files with and without
reserved pages in memory. Prints JSON; nothing is judged by time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import multiprocessing
import os
import resource
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from brokerset_broker.member.ha.links import LinkClosed
from brokerset_broker.member.ha.tcp_links import TcpHaNetwork
from brokerset_broker.member.ha.tcp_slave_link import TcpSlaveLink
from brokerset_protocol.ha_packets import Ack, MasterHandshake, SlaveHandshake, TransferHeader
from brokerset_rig.fake_replica_log import FakeReplicaLog

MIB = 1024 * 1024
SEGMENT_BYTES = 256 * MIB
FLOOR_CHUNK_BYTES = 256 * 1024
"""The size with which the floor was fastest; 1 MiB does not stay in the processor's cache."""
FORK = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is sent, and how often."""

    total: int
    tries: int


SIZES = {"small": Size(512 * MIB, 1), "full": Size(1024 * MIB, 3)}


class PreparedLog(FakeReplicaLog):
    """A log whose files are made before anything is measured; `prefault` brings their pages to memory, too."""

    def __init__(self, folder: Path, total: int, *, prefault: bool) -> None:
        super().__init__(folder, segment_bytes=SEGMENT_BYTES)
        for offset in range(0, total, SEGMENT_BYTES):
            file, _ = self._file(offset)
            if prefault:
                for position in range(0, SEGMENT_BYTES, mmap.PAGESIZE):
                    file.map[position] = 0


def fill(folder: Path, total: int) -> None:
    """Make a log of `total` bytes that are neither zeros nor holes."""
    log = FakeReplicaLog(folder, segment_bytes=SEGMENT_BYTES)
    piece = os.urandom(MIB)
    for _ in range(total // MIB):
        log.append(piece)


def opened(folder: Path, total: int) -> FakeReplicaLog:
    """The same log again."""
    log = FakeReplicaLog(folder, segment_bytes=SEGMENT_BYTES)
    log.end = total
    return log


def cpu_seconds() -> float:
    """Of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# -- the floor --------------------------------------------------------------------------------------------


def floor_receiver(pipe: Connection, folder: Path, total: int, prefault: bool) -> None:
    """Takes everything in a plain loop."""
    log = PreparedLog(folder, total, prefault=prefault)
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(server.getsockname()[1])
        connection, _ = server.accept()
        begun, cpu = time.perf_counter(), cpu_seconds()
        while log.end < total:
            log.end += connection.recv_into(log.room(FLOOR_CHUNK_BYTES))
        pipe.send({"seconds": time.perf_counter() - begun, "cpu": cpu_seconds() - cpu})
        connection.close()


def floor_sender(log: FakeReplicaLog, total: int, pipe: Connection) -> dict[str, float]:
    """Sends everything in a plain loop."""
    with socket.create_connection(("127.0.0.1", pipe.recv())) as connection:
        cpu, offset = cpu_seconds(), 0
        while offset < total:
            source = log.source(offset, FLOOR_CHUNK_BYTES)
            offset += os.sendfile(connection.fileno(), source.descriptor, source.position, source.size)
        connection.recv(1)
        return {"cpu": cpu_seconds() - cpu}


# -- the links --------------------------------------------------------------------------------------------


def link_receiver(pipe: Connection, folder: Path, total: int, prefault: bool) -> None:
    """A slave that acknowledges each turn of reading."""

    async def main() -> None:
        log = PreparedLog(folder, total, prefault=prefault)
        network = TcpHaNetwork(host="127.0.0.1", port=0)
        port = await asyncio.to_thread(pipe.recv)
        link = await network.connect(f"127.0.0.1:{port}", 5)
        await link.shake_hands(SlaveHandshake(2))
        begun, cpu = time.perf_counter(), cpu_seconds()
        link.receive_into(log, lambda header: link.send_ack(Ack(log.end)))
        link.send_ack(Ack(0))
        await link.closed()
        assert log.end == total, (log.end, total)
        pipe.send({"seconds": time.perf_counter() - begun, "cpu": cpu_seconds() - cpu})

    uvloop.run(main())


def link_sender(log: FakeReplicaLog, total: int, chunk: int, pipe: Connection) -> dict[str, float]:
    """A master with one slave, without any decisions."""

    async def serve(link: TcpSlaveLink) -> float:
        await link.handshake()
        await link.send_handshake(MasterHandshake(total, 1, ((1, 0),)))
        arrived = asyncio.Event()
        link.on_ack(lambda packet: arrived.set() if packet.offset == total else None)
        cpu, offset = cpu_seconds(), 0
        while offset < total:
            size = min(chunk, total - offset, SEGMENT_BYTES - offset % SEGMENT_BYTES)
            await link.send(TransferHeader(offset, 1, 0, offset, size), log)
            offset += size
        while not arrived.is_set():
            await link.send(TransferHeader(offset, 1, 0, offset, 0), log)
            await asyncio.sleep(0.001)
        cpu = cpu_seconds() - cpu
        link.close("done")
        return cpu

    async def main() -> dict[str, float]:
        network = TcpHaNetwork(host="127.0.0.1", port=0)
        connected: asyncio.Future[TcpSlaveLink] = asyncio.get_running_loop().create_future()
        network.on_slave(connected.set_result)
        pipe.send(await network.listen())
        used = await serve(await connected)
        network.close()
        return {"cpu": used}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(main())
        except LinkClosed as closed:
            raise SystemExit(f"the slave left: {closed}") from None


# -- all of it --------------------------------------------------------------------------------------------


def measure(
    folder: Path, total: int, prefault: bool, receiver: Callable[..., None], send: Callable[[Connection], Any]
) -> dict[str, float]:
    """One run with a new receiver; MiB/s and the processor time of both ends for each GiB."""
    target = folder / "received"
    here, there = FORK.Pipe()
    process = FORK.Process(target=receiver, args=(there, target, total, prefault))
    process.start()
    there.close()
    try:
        sent = send(here)
        received = here.recv()
    finally:
        process.join(60)
        shutil.rmtree(target)
    gib = total / 1024 / MIB
    return {
        "mib_per_second": total / MIB / received["seconds"],
        "sender_cpu_per_gib": sent["cpu"] / gib,
        "receiver_cpu_per_gib": received["cpu"] / gib,
    }


def middle(runs: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]}


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--folder", type=Path, help="where the files go; needs twice the size")
    parser.add_argument("--chunks", default="4,16,32,64,128,256,1024,4000", help="KiB of one packet")
    options = parser.parse_args()
    size = SIZES[options.size]
    chunks = [int(number) for number in options.chunks.split(",")]
    measurements: dict[str, Any] = {"total_mib": size.total // MIB, "tries": size.tries}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        fill(folder / "log", size.total)
        log = opened(folder / "log", size.total)
        floor = partial(floor_sender, log, size.total)
        for prefault in (True, False):
            floors: list[dict[str, float]] = []
            links: dict[int, list[dict[str, float]]] = {chunk: [] for chunk in chunks}
            measure(folder, size.total, prefault, floor_receiver, floor)  # the first run finds cold caches
            for _ in range(size.tries):
                floors.append(measure(folder, size.total, prefault, floor_receiver, floor))
                for chunk in chunks:
                    send = partial(link_sender, log, size.total, chunk * 1024)
                    links[chunk].append(measure(folder, size.total, prefault, link_receiver, send))
            base = middle(floors)
            found: dict[str, Any] = {"floor": base}
            for chunk in chunks:
                measurement = middle(links[chunk])
                measurement["of_floor"] = round(measurement["mib_per_second"] / base["mib_per_second"], 3)
                found[f"links_{chunk}_kib"] = measurement
            measurements["pages_in_memory" if prefault else "pages_not_in_memory"] = found
    print(json.dumps(measurements, indent=2))


if __name__ == "__main__":
    main()
