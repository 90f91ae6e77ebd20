"""A broker of the simulation in DLedger mode: the whole production broker on a simulated host."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brokerset_broker.app import Broker
from brokerset_broker.member.alone import Alone
from brokerset_broker.member.dledger.ledger_member import LedgerMember, LedgerParts
from brokerset_broker.member.group_member import GroupMember
from brokerset_broker.member.role import Role, RoleState
from brokerset_broker.store.ledger_store import LedgerStore
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting import Handler
from brokerset_sim.controller_node import SlowDisk
from brokerset_sim.loop import VirtualLoop
from brokerset_sim.network import Endpoint, SimAsker
from brokerset_sim.page_files import PageFiles
from brokerset_sim.process import Host, HostClock, Process
from brokerset_spec.broker_settings import BrokerSettings

if TYPE_CHECKING:
    import socket

    from brokerset_sim.ledger_world import LedgerWorld

PORT = 10_911
MEMBER_PORT = 40_911
QUEUE_FILE_BYTES = 20 * 64
MESSAGE_SIZE_MAX = 8_000
DELAY_LEVELS = "1s"
WALL_BEGIN_MS = 1_700_000_000_000


class DriftingClock(HostClock):
    """A host's clock that runs faster or slower than that of the world."""

    def __init__(self, loop: VirtualLoop, host: Host, rate: float, start: float) -> None:
        super().__init__(loop, host)
        self._virtual = loop
        self.rate = rate
        self._start = start

    def now_ms(self) -> int:
        passed_ms = int(self._virtual.time() * 1_000 * self.rate)
        return WALL_BEGIN_MS + passed_ms + self._host.clock_error_ms

    def monotonic(self) -> float:
        """Never a whole millisecond: a timer for one may fire an instant before it, and virtual time would
        not pass until it is set again."""
        return round(self._start + self._virtual.time() * self.rate, 6) + 1e-7


class SimMemberPort:
    """Implements `MemberPort` on the simulated network."""

    def __init__(self, node: LedgerNode, process: Process) -> None:
        self._node = node
        self._process = process
        self.asker: Asker = SimAsker(node.world.network, process)
        self.member_asker = self.asker

    async def serve(self, handlers: Mapping[int, Handler]) -> None:
        """Listen until cancelled."""
        self._node.world.network.listen(Endpoint(self._process, self._node.member_address, handlers))
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Connections end with the process."""


class SimBroker(Broker):
    """The production broker without sockets; the world hears of its role."""

    store: LedgerStore

    def __init__(self, node: LedgerNode, process: Process) -> None:
        super().__init__(node.settings(), clock=node.clock)
        self._node = node
        self._process = process
        self._served = False

    def _bind(self) -> tuple[list[socket.socket], None]:
        self.port = PORT
        return [], None

    async def _take_part(self, group_socket: socket.socket | None) -> GroupMember | LedgerMember | Alone:
        self._load()
        return self._ledger_member(SimMemberPort(self._node, self._process))

    def _ledger_parts(self, store: LedgerStore) -> LedgerParts:
        dice = random.Random(self._node.world.random_for(f"broker {self._process.name}").random())
        return replace(super()._ledger_parts(store), random_source=dice)

    def _role_taken(self, role: RoleState) -> None:
        super()._role_taken(role)
        if self._process.alive:
            self._node.world.checker.role_taken(self._node, role)

    def listen(self) -> None:
        """Serve clients, once started."""
        assert self._server is not None
        network = self._node.world.network
        network.listen(Endpoint(self._process, self._node.address, self._server._handlers, self._closed))

    @property
    def member_part(self) -> LedgerMember:
        """The member of the group."""
        assert isinstance(self._part, LedgerMember)
        return self._part


class LedgerNode:
    """One member's host, whether its process runs or not."""

    def __init__(self, world: LedgerWorld, number: int, files: PageFiles) -> None:
        self.world = world
        self.number = number
        self.name = f"n{number}"
        self.host = Host(f"10.0.0.{number + 1}")
        world.network.add_host(self.host)
        self.files = files
        self.address = f"{self.host.name}:{PORT}"
        self.member_address = f"{self.host.name}:{MEMBER_PORT}"
        self.slow = SlowDisk(world.random_for(f"delay {self.name}"))
        self.slow.stall_chance = world.plan.stalls
        self.slow.stall_max = world.plan.stall_max
        dice = world.random_for(f"clock {self.name}")
        self.clock = DriftingClock(
            world.loop, self.host, 1 + dice.uniform(-1, 1) * world.plan.drift, dice.random() * 10_000
        )
        self.process: Process | None = None
        self.broker: SimBroker | None = None
        """Once its process has loaded the store."""

        self.starts = 0

    # -- for the world ------------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.alive

    @property
    def member(self) -> LedgerMember | None:
        """The member of its process, if that has come so far."""
        return self.broker.member_part if self.up and self.broker is not None else None

    @property
    def leads(self) -> bool:
        """Whether it has the master's role."""
        member = self.member
        return member is not None and member.core.role.role is Role.MASTER

    def settings(self, **changes: Any) -> BrokerSettings:
        """Small files; everything else as people have it."""
        plan = self.world.plan
        values: dict[str, Any] = {
            "store_path_root_dir": self.files.folder,
            "broker_ip1": self.host.name,
            "listen_port": PORT,
            "http_port": 0,
            "broker_name": "orders",
            "mapped_file_size_commit_log": plan.file_bytes,
            "mapped_file_size_consume_queue": QUEUE_FILE_BYTES,
            "max_message_size": MESSAGE_SIZE_MAX,
            "message_index_enable": False,
            "message_delay_level": DELAY_LEVELS,
            "flush_disk_type": "SYNC_FLUSH" if plan.sync_flush else "ASYNC_FLUSH",
            "enable_dledger_commit_log": True,
            "dledger_peers": self.world.peers,
            "dledger_self_id": self.name,
            "dledger_brokerset_only": True,
        }
        return BrokerSettings(**(values | changes))

    def start(self) -> None:
        """Run the process, on what the disk has."""
        assert not self.up, "one process at a time"
        self.starts += 1
        process = Process(self.world.loop, f"{self.name}.{self.starts}", self.host, self.world.process_died)
        process.node = self
        process.threads = self.slow
        self.process, self.broker = process, None
        self.world.note("start", process.name)
        process.spawn(process.call(self._main, process), vital=True)

    def _make_broker(self, process: Process) -> SimBroker:
        return SimBroker(self, process)

    async def _main(self, process: Process) -> None:
        broker = self._make_broker(process)
        await broker.start()
        if not process.alive:
            return
        self.broker = broker
        broker.listen()
        await broker.run()

    def stop(self, *, power: bool) -> None:
        """Kill the process; with `power`, what its disk does not have is gone, too."""
        process, broker = self.process, self.broker
        if process is not None and process.alive:
            self.world.note("kill", process.name, power)
            self.world.checker.stopped(self)
            process.kill()
            if broker is not None:
                process.call(broker.services.stop_now)  # only so that it works for nobody no longer
            self.world.network.gone(process, silent=power)
            self.world.graveyard.append((process, broker))
        self.files.end_life(power=power)
        if power:
            self.host.boots += 1

    async def end(self) -> None:
        """Let the process end in order, and wait for that."""
        process, broker = self.process, self.broker
        if process is None or broker is None or not process.alive:
            return
        self.world.note("end", process.name)
        closing = process.spawn(process.call(broker.close))
        await asyncio.wait([closing])
        if process is self.process and process.alive:
            self.world.note("ended", process.name)
            self.stop(power=False)
