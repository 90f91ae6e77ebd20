"""Spoilt packets at the HA ports of a live group: `ha_fuzz.py [--frames 1000000] [--seed N]`.

Two attacks at once. Strangers connect to the master as slaves do, and say odd things or nothing. And all slaves reach their master through a
proxy (brokerIP2 names its address), which changes heads of packets on the connection of one of them, both ways: that slave has a master that
lies. Bytes of the log are not changed: what a CRC does not protect, and what a damaged disk does, is another subject.

Writers and a consumer work meanwhile. At the end the promises of the group were kept, its logs are the same, no process has ended or grown, and none has logged an
unexpected exception. A slave whose log has become unreadable by a lie has to say so; it is restarted then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

from brokerset_bench.probes import Prober
from brokerset_bench.server_process import ServerProcess
from brokerset_cli.replication_view import fetch_broker_facts
from brokerset_protocol.codes import RequestCode
from brokerset_rig import ha_mutations
from brokerset_rig.judged_load import judged_load
from brokerset_rig.own_group import OwnGroup
from brokerset_rig.process_memory import anonymous_mib
from brokerset_rig.stack import StackError
from brokerset_runtime.logs import configure_logs

PROXY_HOST = "127.0.0.2"
GROWTH_MIB_MAX = 48
LIE_EVERY_MAX = 40
"""A lie at the latest after so many heads of a connection."""

FRAMES_OF_A_LIE = 2_000
"""One head is changed for so many frames of strangers: after each a slave connects again, which takes a while."""

LIES_MAX = 1_000
FOLLOWS_AGAIN_SECONDS = 20.0
CLUSTER = "DefaultCluster"
NAMES = re.compile(r"\S*/\S*|\d+")
"""What differs between two problems of one kind."""


def ha_port(process: ServerProcess) -> int:
    """Where a broker listens for slaves: in its settings, or above its own port."""
    lines = Path(process.arguments[-1]).read_text().splitlines()
    values = dict(line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("#"))
    return int(values.get("haListenPort") or 0) or int(process.address.rpartition(":")[2]) + 1


class Proxy:
    """Stands between slaves and their master, and changes heads on the connection of one slave."""

    def __init__(self, source: random.Random, wanted: int) -> None:
        self._source = source
        self._wanted = wanted
        self.victim = 0
        """Id of the slave whose connection is changed; 0 for none."""
        self.lies = 0
        self.ack_lies = 0
        self.connections = 0
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, port: int) -> None:
        """Take connections for the broker that has this port at 127.0.0.1."""

        def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._serve(port, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._servers.append(await asyncio.start_server(take, PROXY_HOST, port, reuse_address=True))

    async def close(self) -> None:
        """Break every connection."""
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def done(self) -> bool:
        """Whether there were as many lies as were wanted."""
        return self.lies >= self._wanted

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        ends = [writer]
        try:
            master_reader, master_writer = await asyncio.open_connection("127.0.0.1", port)
            ends.append(master_writer)
            hello = await reader.readexactly(ha_mutations.SLAVE_HANDSHAKE.size)
            slave = int(ha_mutations.SLAVE_HANDSHAKE.unpack(hello)[3])
            if slave == self.victim and not self.done and self._source.random() < 0.1:
                hello = ha_mutations.spoil(hello, self._source)
                self.ack_lies += 1
            master_writer.write(hello)
            pumps = [
                asyncio.ensure_future(self._from_slave(reader, master_writer, slave)),
                asyncio.ensure_future(self._from_master(master_reader, writer, slave)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for end in ends:
                end.transport.abort()

    async def _from_slave(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slave: int
    ) -> None:
        countdown = self._source.randrange(1, 4 * LIE_EVERY_MAX)
        while data := await reader.read(1 << 16):
            countdown -= slave == self.victim
            if countdown <= 0 and not self.done:
                countdown = self._source.randrange(1, 4 * LIE_EVERY_MAX)
                self.ack_lies += 1
                data = ha_mutations.spoil(data, self._source)
            writer.write(data)
            await writer.drain()

    async def _from_master(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slave: int
    ) -> None:
        stream = ha_mutations.MasterStream()
        countdown = self._source.choice((1, 2, self._source.randrange(1, LIE_EVERY_MAX)))
        while data := await reader.read(1 << 18):
            for part in stream.feed(data):
                if isinstance(part, bytes):
                    writer.write(part)
                    continue
                countdown -= slave == self.victim
                if countdown > 0 or self.done:
                    writer.write(part.head)
                    continue
                countdown = self._source.randrange(1, LIE_EVERY_MAX)
                self.lies += 1
                writer.write(ha_mutations.lie(part, self._source))
            await writer.drain()


class Strangers:
    """Slaves that nobody knows, one connection after the other."""

    def __init__(self, port: int, group: str, frames: int, source: random.Random) -> None:
        self._port = port
        self._group = group
        self._frames = frames
        self._source = source
        self.sent = 0
        self.connections = 0
        self.accepted = 0

    async def run(self) -> None:
        """Until so many frames were sent."""
        while self.sent < self._frames:
            self.connections += 1
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                await asyncio.sleep(0.01)
                continue
            try:
                async with asyncio.timeout(5.0):
                    await self._talk(reader, writer)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                pass
            finally:
                writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source = self._source
        hello = ha_mutations.stranger(
            source, CLUSTER, self._group, source.choice((0, 1, 2)), source.randrange(10_000)
        )
        if source.random() < 0.4:
            hello = ha_mutations.spoil(hello, source)
        writer.write(hello)
        self.sent += 1
        if source.random() < 0.1:  # says no more, and reads nothing
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            await asyncio.sleep(0.05)
            return
        stream = ha_mutations.MasterStream()
        end = 0
        for _ in range(source.randrange(1, 20)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    if not (data := await reader.read(1 << 16)):
                        return
                    for part in stream.feed(data):
                        if isinstance(part, bytes):
                            end += len(part)
                        elif part.is_handshake:
                            self.accepted += 1
                        else:
                            end = ha_mutations.TRANSFER.unpack(part.head)[2]
            packets = [ha_mutations.ack(source, end) for _ in range(source.randrange(1, 60))]
            if source.random() < 0.1:
                packets.append(ha_mutations.spoil(packets[-1], source))
            writer.write(b"".join(packets))
            self.sent += len(packets)
            await writer.drain()


class Nurse:
    """Restarts the lied-to slave when it says that its log is damaged, as a person would after reading the problem."""

    def __init__(self, victim: ServerProcess) -> None:
        self._victim = victim
        self.said: Counter[str] = Counter()
        self.restarts = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(0.3)
            problem = await self._problem()
            if problem:
                self.said[NAMES.sub("…", problem)[:80]] += 1
                await asyncio.sleep(1.2)  # does it go on by itself?
                await self.help()

    async def _problem(self) -> str:
        """Why the slave follows nobody; empty when it follows, looks for its master, or says nothing."""
        facts = (await fetch_broker_facts([self._victim.address])).get(self._victim.address)
        return facts.problem or "no reason" if facts is not None and facts.following == "refused" else ""

    async def help(self) -> None:
        """Restart the slave if it follows nobody."""
        if not await self._problem():
            return
        self.restarts += 1
        self._victim.send(signal.SIGTERM)
        async with asyncio.timeout(FOLLOWS_AGAIN_SECONDS):
            while self._victim.running:  # noqa: ASYNC110  # another process sets no event
                await asyncio.sleep(0.02)
        self._victim.start()


async def attack(options: argparse.Namespace, group: OwnGroup) -> None:
    """Everything at once. Raises `StackError` with what is wrong."""
    source = random.Random(options.seed)
    lies = min(LIES_MAX, max(20, options.frames // FRAMES_OF_A_LIE))
    proxy = Proxy(source, lies)
    for broker in group.set.brokers:
        await proxy.listen(ha_port(broker))
    async with Prober() as prober:
        look = await group.all_in_sync(prober)
        master = group.set.process(look.master)
        slaves = [broker for broker in group.set.brokers if broker is not master]
        facts = await fetch_broker_facts([master.address])
        proxy.victim = max(replica.broker_id for replica in facts[master.address].replicas)
        victim = await process_of(group, prober, proxy.victim)
        nurse = Nurse(victim)
        memory: dict[int, float] = {}
        async with judged_load(group, prober, "ha-fuzz", writers=1, rate=400) as load:
            strangers = Strangers(ha_port(master), group.set.group, options.frames, source)
            nursing = asyncio.create_task(nurse.run())
            talking = asyncio.create_task(strangers.run())
            shown = 0
            try:
                while not (talking.done() and proxy.done):
                    await asyncio.sleep(0.5)
                    if talking.done():
                        talking.result()
                    share = min(strangers.sent / options.frames, proxy.lies / lies)
                    if not memory and share > 0.25:
                        memory = {each.pid: anonymous_mib(each.pid) for each in (master, *slaves)}
                    if int(share * 10) > shown:
                        shown = int(share * 10)
                        print(
                            f"{strangers.sent:,} frames of strangers, {proxy.lies} lies of the master, {proxy.ack_lies} of the slave; "
                            f"{load.acknowledged:,} sends acknowledged",
                            flush=True,
                        )
            finally:
                for task in (nursing, talking):
                    task.cancel()
                await asyncio.gather(nursing, talking, return_exceptions=True)
            await asyncio.sleep(1.0)  # what was on its way has arrived
            await nurse.help()
            await group.all_in_sync(prober)
            await load.more_acknowledged()
            after = await prober.group(group.set.controller_addresses, group.set.group)
            if (after.master, after.epoch) != (look.master, look.epoch):
                raise StackError(
                    f"{look.master} was master in epoch {look.epoch}, and {after} is what is left"
                )
            pause = load.longest_pause()
    problems = [
        f"{each.name} has grown by {anonymous_mib(each.pid) - memory[each.pid]:.0f} MiB"
        for each in (master, *slaves)
        if each.pid in memory and anonymous_mib(each.pid) - memory[each.pid] > GROWTH_MIB_MAX
    ]
    problems += [f"an unexpected exception is in {path}" for path in group.tracebacks()]
    await proxy.close()
    print(
        f"{strangers.sent:,} frames on {strangers.connections:,} connections of strangers, {strangers.accepted:,} of them accepted; "
        f"{proxy.lies} lies to a slave and {proxy.ack_lies} to its master on {proxy.connections} connections; the slave refused to follow: "
        f"{dict(nurse.said) or 'never'}, and was restarted {nurse.restarts} times; longest pause of sends {pause:.1f} s"
    )
    print(f"judged: {load}")
    if problems:
        raise StackError("; ".join(problems))


async def process_of(group: OwnGroup, prober: Prober, broker_id: int) -> ServerProcess:
    """The broker with this id, which each says of itself."""
    for broker in group.set.brokers:
        answer = await prober.request(broker.address, RequestCode.GET_BROKER_EPOCH_CACHE)
        if answer.ext.get("replicaId") == str(broker_id):
            return broker
    raise StackError(f"no broker says that it is {broker_id}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--port", type=int, default=0, help="first of 300 ports; free ones otherwise")
    options = parser.parse_args()
    print(f"ha fuzz: {options.frames} frames, seed {options.seed}", flush=True)
    configure_logs("error", json=False)
    with OwnGroup("ha-fuzz", port=options.port, settings=[f"brokerIP2={PROXY_HOST}"]) as group:
        asyncio.run(attack(options, group))
    print("no crash, no growth, all promises kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
