"""A broker of the world `ordered`: parts and handlers of the production broker over a model of its log.

What handlers need of the rest is there as well: the gateway, delayed messages, metadata in the log.
Replication, leases and elections are `ordered_groups`'s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from unittest import mock

from brokerset_broker import app
from brokerset_broker.app import Broker
from brokerset_broker.member.gateway.forwarding import Forwarder
from brokerset_broker.member.gateway.gateway import Gateway
from brokerset_broker.member.role import Role
from brokerset_broker.member.service_mode import ServiceFacts, decide_mode, knows_ends
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.tables.metadata.metadata_log import MetadataLog
from brokerset_broker.tables.metadata.stamp import Stamp
from brokerset_formats.hosts import Host
from brokerset_runtime.remoting import Handler
from brokerset_sim.network import Endpoint, SimAsker
from brokerset_sim.ordered_log import Entry, ModelSource, ModelStore
from brokerset_sim.ordered_plan import DELAY_LEVELS
from brokerset_sim.ordered_time import RatedHost, RatedProcess
from brokerset_spec.broker_settings import BrokerSettings

if TYPE_CHECKING:
    from brokerset_sim.ordered_groups import GroupModel

PORT: Final = 10_911
CONFIRM_SECONDS_MAX: Final = 3.0
"""How long an append waits for the replicas (`slaveTimeout`)."""

TICK_SECONDS: Final = 0.25
"""How often the gateway's modes follow what has changed by time alone."""

NEVER_MS: Final = 10**9


class NoStamp:
    """Implements `StampFile`: tables begin with what the log has."""

    def load(self) -> Stamp | None:
        return None

    def save(self, stamp: Stamp) -> None:
        """Nowhere."""


class ModelBroker(Broker):
    """The production broker without sockets and files, on one process of a node."""

    def __init__(self, node: BrokerNode, process: RatedProcess) -> None:
        super().__init__(node.settings(), clock=process.clock)
        self.node = node
        self.process = process
        self.role = Role.NONE
        self.epoch = 0
        self.switching = False
        self.accepts_replicas = False
        self.lease_until = 0.0
        """By the host's clock."""

        self.in_sync = 1
        self.master_address: str | None = None
        self.epoch_end = 0
        """What is to be confirmed before this master knows where queues end."""

        self._epoch_confirmed = False
        self._no_master_since = 0.0
        self._waiters: deque[tuple[int, Callable[[PutStatus], None]]] = deque()
        self._switch = asyncio.Lock()
        node.store.clock = process.clock
        with mock.patch.object(app, "MessageStore", return_value=node.store):
            self._build()
        self.admission.when_durable = self.when_confirmed
        self._source = cast(Any, ModelSource(node.store, process.clock))
        self._tables._queues = self._source
        self.metadata = MetadataLog(
            settings=lambda: self.settings,
            store=self._source,
            tables=self._tables,
            stamp=cast(Any, NoStamp()),
            run_blocking=_at_once,
            when_confirmed=self.when_confirmed,
        )
        self._part = cast(Any, self)
        self.changes = self.metadata
        self.forwarder = Forwarder(SimAsker(node.group.world.network, process))
        self.gateway = Gateway(forwarder=self.forwarder, lease_ok=self._lease_ok, on_lapse=self._lapsed)
        self.handlers = self.gateway.handlers

    # -- what the production broker asks of its part ------------------------------------------------------

    def _make_releases(self) -> None:
        """None: the model of a store has no files for the native core."""

    def serves_writes(self) -> bool:
        """Whether pops that have waited are served here."""
        return self.gateway.serves_writes()

    def table(self) -> list[Any]:
        """Facts for administrators."""
        return []

    def role_id(self) -> int:
        """As name servers know it."""
        return 0 if self.role is Role.MASTER else 1

    def connection_closed(self, connection: Any) -> None:
        """For the gateway."""
        self.gateway.closed(connection)

    # -- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the process ends."""
        self.node.store.refusal = "this broker does not lead"
        self.metadata.load()
        dice = self.node.group.world.random_for(f"pull logs {self.process.name}")
        with mock.patch.object(app, "draw_start", lambda: dice.getrandbits(40) << 20):  # noqa: PT008
            self.gateway.register(self._handlers())
        self._follow_facts()
        self.node.group.world.network.listen(
            Endpoint(self.process, self.node.address, self.gateway.handlers, self._closed)
        )
        self.node.ready(self)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.metadata.run())
            tasks.create_task(self._tick())
            tasks.create_task(self._shared_groups.run())
            for work in self.more_tasks():
                tasks.create_task(work)

    def more_tasks(self) -> list[Any]:
        """What else of the production broker runs all the time."""
        return []

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._follow_facts()

    # -- roles --------------------------------------------------------------------------------------------

    async def lead(self, epoch: int) -> None:
        """Become master: everything in the log is applied first."""
        if epoch <= self.epoch:
            return
        self.switching = True
        self.accepts_replicas = False
        self._follow_facts()
        async with self._switch:
            await self.services.stop()
            self.metadata.stop_leading()
            self.answer_waiters(PutStatus.SERVICE_NOT_AVAILABLE)
            if not self.node.group.begins(self.node, epoch):
                return
            self.epoch, self.role, self.master_address = epoch, Role.MASTER, None
            await self.metadata.lead(epoch)
            self.node.store.refusal = None
            self.epoch_end = self.node.store.max_offset
            self._role_taken(cast(Any, self))
            self.accepts_replicas = True
            await self.metadata.write_snapshot()
            if self.role is not Role.MASTER or self.epoch != epoch:
                return
            self.services.start()
            self.switching = False
            self._follow_facts()
            self.node.group.leads(self.node, epoch)

    async def follow(self, epoch: int, address: str | None) -> None:
        """Another one is master, or nobody."""
        if epoch < self.epoch or (epoch == self.epoch and self.role is Role.MASTER and address is not None):
            return
        was = self.role
        self.switching = self.accepts_replicas = False
        self.epoch, self.role, self.master_address = epoch, Role.SLAVE, address
        self.node.store.refusal = "this broker does not lead"
        self._no_master_since = self.clock.monotonic()
        self._follow_facts()
        async with self._switch:
            if was is Role.MASTER:
                await self.services.stop()
                self.metadata.stop_leading()
                self.answer_waiters(PutStatus.SERVICE_NOT_AVAILABLE)
            if self.role is Role.SLAVE:
                await self.metadata.start_following()

    def give_lease(self, epoch: int, until: float) -> None:
        """A heartbeat was answered."""
        if epoch == self.epoch:
            had = self._lease_ok()
            self.lease_until = max(self.lease_until, until)
            if not had:
                self._follow_facts()

    def _lease_ok(self) -> bool:
        return self.clock.monotonic() < self.lease_until

    def _lapsed(self) -> None:
        self._follow_facts()

    def _follow_facts(self) -> None:
        self._epoch_confirmed = self.node.store.confirmed_offset >= self.epoch_end
        now = self.clock.monotonic()
        lost_for = max(0.0, now - self.lease_until)
        facts = ServiceFacts(
            role=self.role,
            epoch=self.epoch,
            lease_required=True,
            lease_valid=self.role is not Role.MASTER or self._lease_ok(),
            lease_lost_for_ms=int(lost_for * 1000),
            in_sync=self.in_sync,
            epoch_confirmed=self._epoch_confirmed,
            acknowledged_alone=self.in_sync <= 1,
            switching=self.switching,
            master_address=self.master_address,
            no_master_for_ms=int((now - self._no_master_since) * 1000),
            name=self.node.name,
        )
        self.admission.know_ends(knows_ends(facts))
        self.gateway.use(decide_mode(facts))

    # -- confirmation -------------------------------------------------------------------------------------

    def when_confirmed(self, end: int, callback: Callable[[PutStatus], None]) -> None:
        """Call back when all in-sync replicas have the log up to there, or why they have not."""
        if end <= self.node.store.confirmed_offset:
            asyncio.get_running_loop().call_soon(callback, PutStatus.PUT_OK)
            return
        waiter = (end, callback)
        self._waiters.append(waiter)
        asyncio.get_running_loop().call_later(CONFIRM_SECONDS_MAX, self._too_late, waiter)

    def _too_late(self, waiter: tuple[int, Callable[[PutStatus], None]]) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            waiter[1](PutStatus.FLUSH_SLAVE_TIMEOUT)

    def confirmed(self, entries: list[Entry]) -> None:
        """The log is confirmed further than before."""
        end = self.node.store.confirmed_offset
        self.metadata.confirmed(end)
        done = [waiter for waiter in self._waiters if waiter[0] <= end]
        for waiter in done:
            self._waiters.remove(waiter)
        for _, callback in done:
            callback(PutStatus.PUT_OK)
        self.node.store.announce(entries)
        if not self._epoch_confirmed:
            self._follow_facts()

    def answer_waiters(self, status: PutStatus) -> None:
        """This mastership is over."""
        waiting = list(self._waiters)
        self._waiters.clear()
        for _, callback in waiting:
            callback(status)


class BrokerNode:
    """One broker's folder on a host, whether its process runs or not."""

    def __init__(self, group: GroupModel, number: int, host: RatedHost) -> None:
        self.group = group
        self.number = number
        self.broker_id = number + 1
        self.name = f"{group.name}-{number}"
        self.host = host
        self.address = f"{host.name}:{PORT}"
        self.store = ModelStore(Host.from_text(host.name, PORT))
        self.process: RatedProcess | None = None
        self.broker: ModelBroker | None = None
        """Once its tables are loaded."""

        self.starts = 0

    @property
    def up(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.alive

    @property
    def awake(self) -> bool:
        """Whether it runs, too."""
        return self.process is not None and self.process.alive and not self.process.paused

    def settings(self) -> BrokerSettings:
        """As people have it, but for what is not there."""
        return BrokerSettings(
            store_path_root_dir=Path("/nonexistent"),
            broker_ip1=self.host.name,
            listen_port=PORT,
            http_port=0,
            broker_name=self.group.name,
            broker_cluster_name="sim",
            enable_controller_mode=True,
            message_index_enable=False,
            auto_create_topic_enable=False,
            message_delay_level=DELAY_LEVELS,
            flush_consumer_offset_interval=NEVER_MS,
        )

    def start(self) -> None:
        """Run the process, on the log that is there."""
        assert not self.up, "one process at a time"
        world = self.group.world
        self.starts += 1
        process = RatedProcess(world.loop, f"{self.name}.{self.starts}", self.host, world.process_died)
        process.node = self
        self.process, self.broker = process, None
        world.note("start", process.name)
        process.spawn(process.call(self._main, process), vital=True)

    async def _main(self, process: RatedProcess) -> None:
        await ModelBroker(self, process).run()

    def ready(self, broker: ModelBroker) -> None:
        """Its process serves."""
        if broker.process is self.process and broker.process.alive:
            self.broker = broker
            self.group.came(self)

    def start_if_down(self) -> None:
        """Run it again, unless it runs."""
        if not self.up:
            self.start()

    def kill(self) -> None:
        """End the process; what is in the log stays."""
        process = self.process
        if process is None or not process.alive:
            return
        self.group.world.note("kill", process.name)
        process.kill()
        self.group.world.network.gone(process, silent=False)
        self.group.world.graveyard.append(process)
        self.broker = None


async def _at_once(work: Callable[[], Any]) -> Any:
    return work()


Handlers = Mapping[int, Handler]
