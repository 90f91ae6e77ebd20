"""Faults of the world `ordered`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from brokerset_sim.network import Weather
from brokerset_sim.ordered_agreement import ModelEngine
from brokerset_sim.ordered_brokers import BrokerNode
from brokerset_sim.ordered_clients import ClientHost, ConsumerApp
from brokerset_sim.process import Process

if TYPE_CHECKING:
    from brokerset_sim.ordered_world import OrderedWorld

STORM_STEPS: Final = 6
SHORTLY_SECONDS: Final = 1.0
WALL_JUMP_MS: Final = 300_000
PARTITIONS: Final = (1, 2, 2, 3, 4, 4, 5, 8)

Pair = tuple[str, str]


class OrderedChaos:
    """Draws faults, and undoes each after a while."""

    def __init__(self, world: OrderedWorld) -> None:
        self._world = world
        self._dice = world.random_for("chaos")
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._plan = world.plan

    async def run(self) -> None:
        """Until the time of faults is over."""
        loop = self._world.wire
        end = loop.time() + self._plan.seconds
        while (left := end - loop.time()) > 0:
            await asyncio.sleep(min(left, self._dice.expovariate(1 / self._plan.pause)))
            if loop.time() < end and self._plan.faults:
                self.begin(self._dice.choice(self._plan.faults))

    def begin(self, fault: str) -> None:
        """Let one thing happen."""
        work = getattr(self, "_" + fault.replace(" ", "_"))
        done = work()
        self._world.note("fault", fault, done)
        if done:
            self._world.counts[f"fault: {fault}"] += 1

    async def stop(self) -> None:
        """Undo everything at once."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*list(self._tasks), return_exceptions=True)

    # -- parts --------------------------------------------------------------------------------------------

    def _later(self, seconds: float, undo: Callable[[], object]) -> bool:
        """Undo a fault after so many seconds, or when all faults end."""

        async def wait() -> None:
            try:
                await asyncio.sleep(seconds)
            finally:
                undo()

        task = asyncio.get_running_loop().create_task(wait())
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return True

    def _hold(self) -> float:
        return self._dice.random() * self._plan.hold

    def _long(self) -> float:
        """Longer than a permission, in most cases."""
        return self._plan.permission * (0.6 + self._dice.random() * 1.2)

    def _some_hold(self) -> float:
        return self._long() if self._dice.random() < 0.4 else self._hold()

    def _cut(self, pairs: Iterable[Pair], seconds: float) -> bool:
        listed = [pair for pair in pairs if pair[0] != pair[1]]
        for pair in listed:
            self._world.network.cut(*pair)
        if not listed:
            return False
        return self._later(seconds, lambda: self._world.network.mend(*listed))

    @staticmethod
    def _both(one: str, others: Iterable[str]) -> list[Pair]:
        return [pair for other in others for pair in ((one, other), (other, one))]

    def _pause(self, process: Process, seconds: float) -> bool:
        process.pause()
        return self._later(seconds, process.unpause)

    # -- controllers --------------------------------------------------------------------------------------

    def _leader(self) -> ModelEngine | None:
        leader = self._world.agreement.leader
        return leader if leader is not None and leader.process.alive else None

    def _controllers(self) -> list[str]:
        return [node.host.name for node in self._world.controllers]

    def _brokers(self) -> list[str]:
        return [node.host.name for group in self._world.groups for node in group.nodes]

    def _clients(self) -> list[str]:
        return [client.host.name for client in self._world.clients]

    def _elect(self) -> bool:
        agreement = self._world.agreement
        if self._dice.random() < 0.5:
            agreement.elect_next = True
        else:
            agreement.elect(other=self._dice.random() < 0.8)
        return True

    def _cut_controller_leader(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        others = self._controllers()
        if self._dice.random() < 0.5:
            others += self._brokers()
        return self._cut(self._both(leader.process.host.name, others), self._some_hold())

    def _cut_controller_leader_one_way(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        name, others = leader.process.host.name, [*self._controllers(), *self._brokers(), *self._clients()]
        to = self._dice.random() < 0.5
        return self._cut([(name, each) if to else (each, name) for each in others], self._hold())

    def _pause_controller_leader(self) -> bool:
        leader = self._leader()
        return leader is not None and self._pause(leader.process, self._some_hold())

    def _kill_controller(self) -> bool:
        node = self._dice.choice(self._world.controllers)
        if not node.up:
            return False
        node.kill()
        return self._later(self._hold(), node.start_if_down)

    def _kill_controllers(self) -> bool:
        for node in self._world.controllers:
            if node.up:
                node.kill()
                self._later(self._hold(), node.start_if_down)
        return True

    def _slow_agreement(self) -> bool:
        agreement = self._world.agreement
        agreement.stall = self._dice.choice((1.0, 3.0, 6.0))

        def undo() -> None:
            agreement.stall = 0.0

        return self._later(self._hold(), undo)

    # -- brokers ------------------------------------------------------------------------------------------

    def _master(self) -> BrokerNode | None:
        masters = [
            group.master for group in self._world.groups if group.master is not None and group.master.up
        ]
        return self._dice.choice(masters) if masters else None

    def _kill_node(self, node: BrokerNode, seconds: float) -> bool:
        if not node.up:
            return False
        node.kill()
        return self._later(seconds, node.start_if_down)

    def _kill_master(self) -> bool:
        master = self._master()
        return master is not None and self._kill_node(master, self._hold())

    def _kill_slave(self) -> bool:
        group = self._dice.choice(self._world.groups)
        slaves = [node for node in group.nodes if node is not group.master]
        return bool(slaves) and self._kill_node(self._dice.choice(slaves), self._hold())

    def _kill_group(self) -> bool:
        group = self._dice.choice(self._world.groups)
        seconds = self._some_hold()
        return any([self._kill_node(node, seconds * self._dice.random()) for node in group.nodes])

    def _pause_master(self) -> bool:
        master = self._master()
        return master is not None and master.process is not None and self._pause(master.process, self._hold())

    def _cut_off_master(self) -> bool:
        """From controllers and replicas; its clients reach it still."""
        master = self._master()
        if master is None:
            return False
        others = [*self._controllers(), *(node.host.name for node in master.group.nodes)]
        return self._cut(self._both(master.host.name, others), 1.0 + self._hold())

    def _cut_master_from_controllers(self) -> bool:
        master = self._master()
        if master is None:
            return False
        pairs = self._both(master.host.name, self._controllers())
        if self._dice.random() < 0.4:
            pairs = pairs[self._dice.randrange(2) :: 2]
        return self._cut(pairs, 1.0 + self._hold())

    def _switch_over(self) -> bool:
        self._dice.choice(self._world.groups).switch_over()
        return True

    def _slow_replication(self) -> bool:
        world = self._world
        world.slow_replication = self._dice.choice((0.1, 0.5, 2.0))

        def undo() -> None:
            world.slow_replication = 0.0

        return self._later(self._hold(), undo)

    # -- consumers ----------------------------------------------------------------------------------------

    def _consumer(self) -> ConsumerApp | None:
        living = [app for app in self._world.consumers if app.up]
        return self._dice.choice(living) if living else None

    def _pause_client(self, client: ClientHost | None, seconds: float) -> bool:
        if client is None or client.process is None or client.process.paused:
            return False
        client.pause()
        return self._later(seconds, client.process.unpause)

    def _pause_consumer(self) -> bool:
        """Longer than the permission, and in the middle of a handler if one runs."""
        at_work = [app for app in self._world.consumers if app.up and app.handling]
        app = self._dice.choice(at_work) if at_work else self._consumer()
        return self._pause_client(app, self._long() + self._plan.permission * 0.6)

    def _pause_consumer_shortly(self) -> bool:
        return self._pause_client(self._consumer(), self._dice.random() * SHORTLY_SECONDS)

    def _kill_consumer(self) -> bool:
        app = self._consumer()
        if app is None:
            return False
        app.kill()
        return self._later(self._some_hold(), app.start_if_wanted)

    def _restart_consumer(self) -> bool:
        app = self._consumer()
        if app is None:
            return False
        app.leave()
        return self._later(0.2 + self._some_hold(), app.start_if_wanted)

    def _storm(self) -> bool:
        """Members come and go, about one each second."""
        world = self._world

        async def blow() -> None:
            for _ in range(STORM_STEPS):
                app = self._dice.choice(world.consumers)
                if not app.up:
                    app.start_if_wanted()
                elif self._dice.random() < 0.5:
                    app.kill()
                else:
                    app.leave()
                await asyncio.sleep(self._dice.random() * 2)

        task = asyncio.get_running_loop().create_task(blow())
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return True

    def _cut_client(self, client: ClientHost | None, others: list[str], seconds: float) -> bool:
        return client is not None and self._cut(self._both(client.host.name, others), seconds)

    def _cut_consumer_from_controllers(self) -> bool:
        return self._cut_client(self._consumer(), self._controllers(), self._some_hold())

    def _cut_consumer_from_brokers(self) -> bool:
        return self._cut_client(self._consumer(), self._brokers(), self._some_hold())

    def _cut_consumer_from_one_broker(self) -> bool:
        return self._cut_client(self._consumer(), [self._dice.choice(self._brokers())], self._some_hold())

    def _cut_off_consumer(self) -> bool:
        return self._cut_client(self._consumer(), [*self._controllers(), *self._brokers()], self._some_hold())

    def _cut_consumer_one_way(self) -> bool:
        app = self._consumer()
        if app is None:
            return False
        others = self._controllers() if self._dice.random() < 0.5 else self._brokers()
        to = self._dice.random() < 0.5
        name = app.host.name
        return self._cut([(name, each) if to else (each, name) for each in others], self._some_hold())

    # -- producers ----------------------------------------------------------------------------------------

    def _kill_producer(self) -> bool:
        app = self._dice.choice(self._world.producers)
        if not app.up:
            return False
        app.kill()
        return self._later(self._hold(), app.start_if_down)

    def _pause_producer(self) -> bool:
        return self._pause_client(self._dice.choice(self._world.producers), self._some_hold())

    def _replace_producer(self) -> bool:
        """Another process with the same producer id starts; the one before is stopped, and comes back."""
        app = self._dice.choice(self._world.producers)
        before = app.process
        if before is None or not before.alive or before.paused or app.has_epoch is not before:
            return False
        app.pause()
        app.replace()
        return self._later(self._some_hold(), before.unpause)

    def _cut_producer_from_controllers(self) -> bool:
        return self._cut_client(
            self._dice.choice(self._world.producers), self._controllers(), self._some_hold()
        )

    def _cut_producer_from_brokers(self) -> bool:
        return self._cut_client(self._dice.choice(self._world.producers), self._brokers(), self._hold())

    def _idle_producer(self) -> bool:
        app = self._dice.choice(self._world.producers)
        app.idle_until = self._world.wire.time() + self._some_hold()
        return True

    # -- others -------------------------------------------------------------------------------------------

    def _wall_jump(self) -> bool:
        hosts = self._world.hosts
        host = hosts[self._dice.choice(sorted(hosts))]
        host.clock_error_ms += self._dice.choice((-1, 1)) * self._dice.randint(0, WALL_JUMP_MS)
        return True

    def _scale(self) -> bool:
        admin = self._world.admin
        admin.soon(admin.process_call(admin.scale, self._dice.choice(PARTITIONS)))
        return True

    def _weather(self) -> bool:
        world, before = self._world, self._world.network.weather
        world.network.weather = Weather(
            delay_max=self._dice.choice((0.005, 0.05, 0.3)),
            lost=self._dice.choice((0.0, 0.05, 0.2)),
            late=self._dice.choice((0.0, 0.1)),
            late_max=self._dice.choice((0.5, 3.0, self._plan.permission * 1.5)),
            doubled=self._dice.choice((0.0, 0.2)),
            reset=self._dice.choice((0.0, 0.05)),
        )

        def undo() -> None:
            world.network.weather = before

        return self._later(self._hold(), undo)

    def _handlers_fail(self) -> bool:
        world = self._world
        world.handlers_fail = self._dice.choice((0.3, 0.8, 1.0))

        def undo() -> None:
            world.handlers_fail = self._plan.fails

        return self._later(self._hold(), undo)

    def _handlers_are_slow(self) -> bool:
        world = self._world
        world.handler_seconds = self._plan.permission * self._dice.choice((0.1, 0.3, 0.6))

        def undo() -> None:
            world.handler_seconds = self._plan.handler_seconds

        return self._later(self._some_hold(), undo)
