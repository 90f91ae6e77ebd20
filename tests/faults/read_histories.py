"""Reads during faults, judged: `read_histories.py [--faults NAME,…] [--histories N]`.

Three controllers and three brokers run as real processes, each in a network namespace of its own; clients in
another one send to a queue and read it: max offset, offset by time, pulls. They go where the route says, and
go on asking brokers that were master before. For each history one fault is made and mended; when the group is
whole again the queue is read to its end, and what everybody was answered must be linearizable
(`brokerset_rig.queue_history`). A pull that finds nothing counts if the broker says, before and after it, that
it is master: a slave only says that it has no message yet. Prints a line for each history; exit code 1 when
one has no explanation, 2 when no network of its own can be had.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from brokerset_bench.faults import CUTS, KINDS, Kind, inject
from brokerset_bench.network import INSIDE, OwnNetwork, inside_command, why_not
from brokerset_bench.probes import GroupView, NoAnswer, Prober
from brokerset_bench.sets import BenchSet, our_set
from brokerset_formats.records import decode_record
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.queue_history import Asked, Read, Send, violations
from brokerset_runtime.logs import configure_logs
from brokerset_runtime.remoting import ConnectionClosed, ConnectionPool, RequestTimeout

TOPIC = "reads"
WRITERS = 2
READERS = 4
ANSWER_SECONDS = 3.0
ROUTE_SECONDS = 0.02
"""A client reads the route again when it is older than this."""

WARM_SECONDS = 0.7
FOLLOW_SECONDS = 1.5
FOLLOW_SECONDS_MAX = 15.0
"""Clients go on for so long after a fault until each kind of request was answered."""

CUT_SECONDS = 5.0
HANG_SECONDS = 4.0
WHOLE_SECONDS_MAX = 90.0
READ_BACK_SECONDS_MAX = 30.0
"""A master has its lease again soon after the controllers are there again; until then it refuses reads."""

FAR_FUTURE_MS = 1 << 50
PULL_MESSAGES = 32
TOPIC_SECONDS_MAX = 20.0


@dataclass(slots=True)
class Clients:
    """Writers and readers of one queue, and what they saw."""

    bench: BenchSet
    source: random.Random
    first: int
    """Number of the first message of this history; earlier ones are in the queue already."""

    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    refused: int = 0
    _counter: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def saw_enough(self) -> bool:
        """A send was acknowledged, and each kind of read was answered."""
        answered = {read.asked for read in self.reads}
        return answered == set(Asked) and any(send.ended is not None for send in self.sends)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`; every request that has begun then is waited for."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WRITERS):
                tasks.create_task(self._work(stop, self._write))
            for _ in range(READERS):
                tasks.create_task(self._work(stop, self._read))

    async def _work(self, stop: asyncio.Event, turn: Callable[[Client, str], Awaitable[None]]) -> None:
        async with Client(self.bench) as client:
            while not stop.is_set():
                # Now and then somebody has an old route: he asks whoever he asked before, slave or not.
                stray = self.source.random() < 0.15
                address = self.source.choice(self.bench.broker_addresses) if stray else await client.master()
                if not address:
                    await asyncio.sleep(ROUTE_SECONDS)
                    continue
                try:
                    await turn(client, address)
                except NoAnswer:
                    self.refused += 1
                    await asyncio.sleep(ROUTE_SECONDS)

    async def _write(self, client: Client, address: str) -> None:
        body = f"{self.first}-{next(self._counter)}".encode()
        began = time.monotonic()
        place = len(self.sends)
        self.sends.append(Send(body, began))
        answer = await client.send(address, body)
        self.sends[place] = Send(body, began, time.monotonic(), int(answer.ext["queueOffset"]))

    async def _read(self, client: Client, address: str) -> None:
        match self.source.randrange(4):
            case 0:
                await self._read_max(client, address, RequestCode.GET_MAX_OFFSET, {})
            case 1:
                future = {"timestamp": str(FAR_FUTURE_MS)}
                await self._read_max(client, address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, future)
            case 2:
                end = max((read.number for read in self.reads if read.asked is Asked.MAX), default=self.first)
                await self._pull(client, address, max(self.first, end - self.source.randrange(3)))
            case _:
                await self._pull(client, address, self.first)

    async def _read_max(
        self, client: Client, address: str, code: RequestCode, ext: Mapping[str, str]
    ) -> None:
        began = time.monotonic()
        answer = await client.ask(address, code, {"topic": TOPIC, "queueId": "0", **ext})
        number = int(answer.ext["offset"])
        self.reads.append(Read(Asked.MAX, began, time.monotonic(), number, broker=address))

    async def _pull(self, client: Client, address: str, number: int) -> None:
        was_master = await client.says_master(address)
        began = time.monotonic()
        bodies = await client.pull(address, number)
        ended = time.monotonic()
        if bodies:
            self.reads.append(Read(Asked.FOUND, began, ended, number, tuple(bodies), address))
        elif was_master and await client.says_master(address):
            self.reads.append(Read(Asked.NOTHING, began, ended, number, broker=address))


class Client:
    """One client: its own connections, and a route that is some milliseconds old."""

    def __init__(self, bench: BenchSet) -> None:
        self._bench = bench
        self._prober = Prober()
        self._pool = ConnectionPool()
        self._master = ""
        self._route_at = 0.0
        self._name_server = 0

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()
        await self._prober.__aexit__()

    async def master(self) -> str:
        """The master by the route."""
        if time.monotonic() - self._route_at > ROUTE_SECONDS:
            servers = self._bench.name_servers
            server = servers[self._name_server % len(servers)]
            try:
                self._master = await self._prober.master_of(server, TOPIC, self._bench.group) or self._master
            except NoAnswer:
                self._name_server += 1
            self._route_at = time.monotonic()
        return self._master

    async def ask(
        self, address: str, code: RequestCode, ext: Mapping[str, str], body: bytes = b""
    ) -> Command:
        """Send a request; raises `NoAnswer` unless it is answered with 0."""
        answer = await self._call(address, code, ext, body)
        if answer.code != ResponseCode.SUCCESS:
            raise NoAnswer(f"{address} answers {answer.code}: {answer.remark}", answer.code)
        return answer

    async def _call(self, address: str, code: RequestCode, ext: Mapping[str, str], body: bytes) -> Command:
        try:
            connection = await self._pool.get(address, 0.5)
            return await connection.call(Command(code, dict(ext), body, version=479), ANSWER_SECONDS)
        except RequestTimeout as error:
            self._pool.forget(address)
            raise NoAnswer(f"{address}: {error}") from error
        except (ConnectionClosed, ValueError) as error:
            raise NoAnswer(f"{address}: {error}") from error

    async def send(self, address: str, body: bytes) -> Command:
        """SEND_MESSAGE_V2 to the one queue."""
        ext = {
            "a": "writers", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0",
            "g": str(int(time.time() * 1000)), "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        return await self.ask(address, RequestCode.SEND_MESSAGE_V2, ext, body)

    async def pull(self, address: str, number: int, seconds: float = 0.0) -> list[bytes]:
        """The bodies from a number on; none if the broker says that there is nothing."""
        ext = {
            "consumerGroup": "readers", "topic": TOPIC, "queueId": "0", "queueOffset": str(number),
            "maxMsgNums": str(PULL_MESSAGES), "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": str(int(1000 * seconds)), "subscription": "*", "subVersion": "0",
            "expressionType": "TAG",
        }  # fmt: skip
        answer = await self._call(address, RequestCode.PULL_MESSAGE, ext, b"")
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise NoAnswer(f"{address} answers {answer.code}: {answer.remark}", answer.code)
        bodies, position = [], 0
        while position < len(answer.body):
            record = decode_record(answer.body, position, verify_crc=True)
            bodies.append(bytes(record.body))
            position += record.size
        return bodies

    async def says_master(self, address: str) -> bool:
        """Whether the broker says that it is master (907)."""
        answer = await self.ask(address, RequestCode.GET_BROKER_HA_STATUS, {})
        return bool(json.loads(answer.body)["master"])

    async def whole_queue(self, address: str, first: int) -> list[bytes]:
        """Every message from a number on; nobody may send meanwhile."""
        end = {"topic": TOPIC, "queueId": "0"}
        until = int((await self.ask(address, RequestCode.GET_MAX_OFFSET, end)).ext["offset"])
        bodies: list[bytes] = []
        while first + len(bodies) < until:
            bodies += await self.pull(address, first + len(bodies))
        return bodies


# -- faults -----------------------------------------------------------------------------------------------

Fault = Callable[[BenchSet, GroupView, Prober], Awaitable[None]]
"""Makes a fault and mends it."""


def _of_kind(kind: Kind, seconds: float) -> Fault:
    async def make(bench: BenchSet, look: GroupView, prober: Prober) -> None:
        mend = inject(kind, bench, look)
        try:
            await asyncio.sleep(seconds)
        finally:
            mend()

    return make


async def _switch_over(bench: BenchSet, look: GroupView, prober: Prober) -> None:
    await prober.switch_over(look.master, bench.group, 10_000)


def _signalled(
    number: signal.Signals, choose: Callable[[BenchSet, GroupView], list[str]], seconds: float
) -> Fault:
    """Kill, end or stop some processes together, and have them back after a while."""

    async def make(bench: BenchSet, look: GroupView, prober: Prober) -> None:
        processes = [bench.process(address) for address in choose(bench, look)]
        for process in processes:
            process.send(number)
        await asyncio.sleep(seconds)
        for process in processes:
            if number is signal.SIGSTOP:
                process.send(signal.SIGCONT)
                continue
            while process.running:  # noqa: ASYNC110  # another process sets no event
                await asyncio.sleep(0.02)
            process.start()

    return make


def _slaves(bench: BenchSet, look: GroupView) -> list[str]:
    return [address for address in bench.broker_addresses if address != look.master]


def _everything(bench: BenchSet, look: GroupView) -> list[str]:
    return [*bench.broker_addresses, *bench.controller_addresses]


FAULTS: Mapping[str, Fault] = {
    "killMaster": _of_kind(KINDS["killMaster"], 1.5),
    "stopMaster": _of_kind(KINDS["stopMaster"], HANG_SECONDS),
    "cutMaster": _of_kind(KINDS["cutMaster"], CUT_SECONDS),
    "cutSlaves": _of_kind(KINDS["cutSlaves"], CUT_SECONDS),
    "killAllBrokers": _signalled(signal.SIGKILL, lambda bench, look: list(bench.broker_addresses), 0.3),
    "killBoth": _of_kind(KINDS["killBoth"], 1.5),
    "switchover": _switch_over,
    "stopBoth": _signalled(signal.SIGSTOP, lambda bench, look: [look.master, look.leader], HANG_SECONDS),
    "endMaster": _signalled(signal.SIGTERM, lambda bench, look: [look.master], 1.0),
    "killLeader": _of_kind(KINDS["killLeader"], 1.5),
    "hangSlave": _of_kind(KINDS["hangSlave"], HANG_SECONDS),
    "killSlaves": _signalled(signal.SIGKILL, _slaves, 1.0),
    "stopSlaves": _signalled(signal.SIGSTOP, _slaves, HANG_SECONDS),
    "killMasterAndSlave": _signalled(
        signal.SIGKILL, lambda bench, look: [look.master, *_slaves(bench, look)[:1]], 1.0
    ),
    "restartMaster": _signalled(signal.SIGKILL, lambda bench, look: [look.master], 0.0),
    "stopLeader": _signalled(signal.SIGSTOP, lambda bench, look: [look.leader], HANG_SECONDS),
    "stopControllers": _signalled(
        signal.SIGSTOP, lambda bench, look: list(bench.controller_addresses), HANG_SECONDS
    ),
    "killControllers": _signalled(
        signal.SIGKILL, lambda bench, look: list(bench.controller_addresses), 0.5
    ),
    "killEverything": _signalled(signal.SIGKILL, _everything, 0.3),
    "endAllBrokers": _signalled(signal.SIGTERM, lambda bench, look: list(bench.broker_addresses), 0.5),
    **{name: _of_kind(Kind(name, name, False, CUT_SECONDS, 0, cut=cut), CUT_SECONDS) for name, cut in CUTS.items()},
}  # fmt: skip
"""By name. Whoever asks for fewer histories than there are faults gets the first ones."""


# -- histories --------------------------------------------------------------------------------------------


async def _whole(bench: BenchSet, prober: Prober) -> GroupView:
    return await prober.until_whole(
        bench.controller_addresses, bench.group, bench.broker_addresses, WHOLE_SECONDS_MAX, bench.ended
    )


async def history(
    bench: BenchSet, fault: Fault, seed: str, first: int, prober: Prober
) -> tuple[Clients, list[str], int]:
    """One history: the clients with what they saw, what has no explanation, and where the queue ends now."""
    clients = Clients(bench, random.Random(seed), first)
    stop = asyncio.Event()
    working = asyncio.create_task(clients.run(stop))
    try:
        await asyncio.sleep(WARM_SECONDS)
        look = await prober.group(bench.controller_addresses, bench.group)
        await fault(bench, look, prober)
        await asyncio.sleep(FOLLOW_SECONDS)
        follow_until = time.monotonic() + FOLLOW_SECONDS_MAX - FOLLOW_SECONDS
        while not clients.saw_enough and time.monotonic() < follow_until:  # noqa: ASYNC110  # seldom twice
            await asyncio.sleep(ROUTE_SECONDS)
    finally:
        stop.set()
        await working
    log = await _read_back(bench, first, prober)
    return clients, _judge(clients, log, first), first + len(log)


async def _read_back(bench: BenchSet, first: int, prober: Prober) -> list[bytes]:
    """The whole queue from a number on, from the master of the whole group. Raises `NoAnswer`."""
    read_until = time.monotonic() + READ_BACK_SECONDS_MAX
    async with Client(bench) as client:
        while True:
            look = await _whole(bench, prober)
            try:
                return await client.whole_queue(look.master, first)
            except NoAnswer:
                if time.monotonic() > read_until:
                    raise
            await asyncio.sleep(ROUTE_SECONDS)


def _judge(clients: Clients, log: list[bytes], first: int) -> list[str]:
    """Numbers count from the first message of the history."""
    sends = [
        Send(
            each.body,
            each.began,
            each.ended,
            each.queue_offset - first if each.queue_offset is not None else None,
        )
        for each in clients.sends
    ]
    reads = [
        Read(each.asked, each.began, each.ended, each.number - first, each.bodies, each.broker)
        for each in clients.reads
    ]
    return violations(sends, [read for read in reads if read.number >= 0], log) + [
        f"{read.asked} {read.number + first} of {read.broker} lies before the history"
        for read in reads
        if read.number < 0
    ]


async def work(bench: BenchSet, names: list[str], seed: int) -> int:
    """Make the histories; returns how many have no explanation."""
    wrong, first = 0, 0
    async with Prober() as prober:
        look = await _whole(bench, prober)
        await prober.create_topic(look.master, TOPIC, 1)
        async with asyncio.timeout(TOPIC_SECONDS_MAX), Client(bench) as client:
            while not await client.master():  # noqa: ASYNC110  # name servers set no event here
                await asyncio.sleep(ROUTE_SECONDS)
        for number, name in enumerate(names):
            began = time.monotonic()
            await _whole(bench, prober)
            clients, found, first = await history(bench, FAULTS[name], f"{seed}-{number}", first, prober)
            acknowledged = sum(send.ended is not None for send in clients.sends)
            counts = {asked: sum(read.asked is asked for read in clients.reads) for asked in Asked}
            print(
                f"{number:3} {name:28} {'WRONG' if found else 'linearizable'}: {acknowledged} of"
                f" {len(clients.sends)} sends acknowledged, "
                + ", ".join(f"{count} × {asked}" for asked, count in counts.items())
                + f", {clients.refused} refused, {time.monotonic() - began:.0f} s",
                flush=True,
            )
            for text in found[:10]:
                print(f"      {text}", flush=True)
            wrong += bool(found)
            if not clients.saw_enough:
                print("      too little was seen to judge", flush=True)
                wrong += not found
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", default=",".join(FAULTS), metavar="NAME,…", help="some of the faults")
    parser.add_argument("--histories", type=int, metavar="N", help="number of histories; one for each fault")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), metavar="N")
    options = parser.parse_args()
    names = options.faults.split(",")
    if unknown := [name for name in names if name not in FAULTS]:
        parser.error(f"there is no fault {unknown[0]!r}; there are {', '.join(FAULTS)}")
    if os.environ.get(INSIDE) != "1":
        if why := why_not():
            print(f"not run: no network of its own can be had: {why}")
            return 2
        command = inside_command([__file__, *sys.argv[1:]])
        os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})

    configure_logs("error", json=False)
    print(f"seed {options.seed}", flush=True)
    chosen = list(itertools.islice(itertools.cycle(names), options.histories or len(names)))
    folder = Path(tempfile.mkdtemp(prefix="brokerset-reads-"))
    bench = our_set(
        folder, replicas=3, settings=("mappedFileSizeCommitLog=16777216",), port=0, network=OwnNetwork(folder)
    )
    wrong = -1
    try:
        bench.start()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            wrong = runner.run(work(bench, chosen, options.seed))
    finally:
        bench.end()
        if wrong == 0:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"kept {folder}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} histories are linearizable", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
