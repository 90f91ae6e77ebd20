"""Ordered subjects, whole: controllers, brokers, producers, consumers and people on one virtual clock.

All parts that ordered subjects consist of run their production code. Consensus and replication are models
(`ordered_agreement`, `ordered_groups`): they have worlds of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, cast
from unittest import mock

import structlog

from brokerset_broker.tables.metadata import metadata_log
from brokerset_broker.tables.ordered import shared_pulls
from brokerset_controller import subject_reconciler
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_sim.history import Violation
from brokerset_sim.loop import OWNER
from brokerset_sim.network import Weather
from brokerset_sim.ordered_agreement import Agreement
from brokerset_sim.ordered_brokers import BrokerNode
from brokerset_sim.ordered_chaos import OrderedChaos
from brokerset_sim.ordered_clients import (
    SUBJECT,
    Administrator,
    ClientHost,
    ConsumerApp,
    ProducerApp,
    SharingConsumerApp,
)
from brokerset_sim.ordered_controllers import ControllerHost
from brokerset_sim.ordered_groups import GroupModel
from brokerset_sim.ordered_oracle import HANDLED, Oracle
from brokerset_sim.ordered_plan import OrderedPlan, draw_ordered
from brokerset_sim.ordered_shared import SharedOracle
from brokerset_sim.ordered_time import DriftingLoop, RatedHost, RatedProcess, Wire, run_drifting
from brokerset_sim.ordered_watch import StampingNetwork, Watch
from brokerset_sim.process import Process, real_error
from brokerset_sim.world import Outcome

PROGRESS: Final = "progress after the faults"
PROCESS_DIED: Final = "processes live"
TASK_FAILED: Final = "no task fails unseen"

START_SECONDS: Final = 20.0
HEALING_SECONDS: Final = 60.0
"""Besides four permissions, for everything to be sent and handled."""

HEALED_HANDLER_SECONDS: Final = 0.02
"""What handlers take then, so that what has piled up is handled in time."""

COPIES_SECONDS: Final = 100.0
"""Besides, for copies for retry."""

IDLE_SECONDS: Final = ((metadata_log, "OFFSETS_SECONDS", 0.5), (subject_reconciler, "CHECK_SECONDS", 0.25))
"""Production code wakes up so often when nothing happens: less often than in production, where it costs
nothing. Here it was a tenth of a run."""

LOOK_SECONDS: Final = 0.2
CALM: Final = Weather(delay_max=0.005)


class OrderedWorld:
    """A run. Make one, await `run`, read `failure`."""

    def __init__(self, seed: int, plan: OrderedPlan, *, show: bool = False) -> None:
        self.seed = seed
        self.plan = plan
        loop = asyncio.get_running_loop()
        assert isinstance(loop, DriftingLoop)
        self.loop = loop
        self.wire = Wire(loop)
        self.show = show
        self.failure: Violation | None = None
        self.counts: Counter[str] = Counter()
        self.events = 0
        self.trace = 0
        self.quiet = False
        """Producers send nothing more."""

        self.order = OrderStrategy.STRICT if plan.strict else OrderStrategy.BEST_TRIED
        self.healing = False
        self.slow_replication = 0.0
        self.handlers_fail = plan.fails
        self.handler_seconds = plan.handler_seconds
        self.poisoned: dict[str, tuple[str, ...]] = {}
        """Keys whose messages fail, by group."""

        self.names: dict[str, str] = {}
        """Masters as name servers know them."""

        self.hosts: dict[str, RatedHost] = {}
        self.graveyard: list[Process] = []
        self.zombies: list[RatedProcess] = []
        """Producers that were replaced and live."""

        self._addresses = 0
        self._story: asyncio.Task[None] | None = None
        self.oracle = Oracle(self.wire.time, self.fail, strict=plan.strict)
        self.oracle.subject = SUBJECT
        self.oracle.note = self.note
        self.watch = Watch(self)
        self.network = StampingNetwork(cast(Any, self.wire), self.random_for("network"), self.watch)
        self.network.weather = CALM
        self.agreement = Agreement(
            self.wire, self.network, self.random_for("agreement"), self.note, plan.controllers
        )
        self.controllers = [ControllerHost(self, number) for number in range(plan.controllers)]
        self.groups = [GroupModel(self, f"broker-{chr(97 + n)}", size) for n, size in enumerate(plan.groups)]
        self.producers = [ProducerApp(self, number) for number in range(plan.producers)]
        self.consumer_groups = tuple(f"group-{number}" for number in range(plan.consumer_groups))
        self.shared_groups = tuple(f"shared-{number}" for number in range(plan.shared_groups))
        self.oracle.all_groups = (*self.consumer_groups, *self.shared_groups)
        self.shared = SharedOracle(
            self.wire.time, self.oracle.violated, self.oracle.counts, shared_pulls.WINDOW
        )
        self.consumers: list[ConsumerApp] = []
        for group in self.oracle.all_groups:
            app = SharingConsumerApp if group in self.shared_groups else ConsumerApp
            for number in range(plan.consumers):
                self.consumers.append(app(self, group, number, len(self.consumers) + 1))
        self.admin = Administrator(self)
        self.clients: list[ClientHost] = [*self.producers, *self.consumers, self.admin]
        self.chaos = OrderedChaos(self)
        loop.set_exception_handler(self._loop_error)

    # -- parts --------------------------------------------------------------------------------------------

    def random_for(self, label: str) -> random.Random:
        """Dice of one part, so that another throw somewhere does not change all others."""
        return random.Random(f"{self.seed}/ordered/{label}")

    def new_host(self, name: str) -> RatedHost:
        """Another machine; brokers and controllers get an address."""
        plan = self.plan
        more = plan.fast_controllers if name.startswith("c") else 0.0
        more -= plan.slow_consumers if name.startswith("10.0.3.") else 0.0
        if not name.startswith("10."):
            self._addresses += 1
            name = f"10.0.1.{self._addresses}"
        dice = self.random_for(f"clock {name}")
        host = RatedHost(name, 1 + more + dice.uniform(-1, 1) * plan.drift, dice.random() * 10_000)
        self.hosts[name] = host
        self.network.add_host(host)
        return host

    def note(self, kind: str, *what: object) -> None:
        """Add to the trace."""
        self.events += 1
        line = f"{self.wire.time():.4f} {kind} {' '.join(map(str, what))}"
        self.trace = zlib.crc32(line.encode(), self.trace)
        if self.show:
            print(line)

    def fail(self, violation: Violation) -> None:
        """Something that must never happen did: the run ends."""
        if self.failure is None:
            self.failure = violation
            self.note("violated", violation)
            if self._story is not None:
                self._story.cancel()

    def process_died(self, process: Process, error: BaseException) -> None:
        """A process ended by itself."""
        cause = real_error(error)
        violation = Violation(PROCESS_DIED, f"{process} ended: {cause!r}")
        violation.__cause__ = cause
        self.fail(violation)

    def _loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.note("loop error", context.get("message"), repr(error))
        if error is not None and not self._ended:
            violation = Violation(TASK_FAILED, f"{context.get('message')}: {error!r}")
            violation.__cause__ = error
            self.fail(violation)

    _ended = False

    def heard(self, node: BrokerNode) -> None:
        """A heartbeat of a master reaches the controller that leads."""
        for controller in self.controllers:
            controller.heard(node)

    def registered(self, group: GroupModel, node: BrokerNode) -> None:
        """Name servers hear of a master, a little later."""
        epoch = group.epoch
        delay = self.random_for(f"register {group.name} {epoch}").random() * 0.3

        def register() -> None:
            if group.epoch == epoch:
                self.names[group.name] = node.address

        self.wire.call_later(delay, register)

    # -- the run ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Both phases. What was violated is in `failure`."""
        self._story = self.loop.create_task(self._tell())
        try:
            await self._story
        except asyncio.CancelledError:
            if self.failure is None:
                raise
        except Violation as violation:
            self.failure = self.failure or violation
        finally:
            self._ended = True
            await self._end()

    async def _tell(self) -> None:
        tasks = [self.loop.create_task(self.agreement.watch())]
        try:
            for controller in self.controllers:
                controller.start()
            await self._until(self._led, START_SECONDS, "no controller leads")
            for group in self.groups:
                group.start()
                tasks.append(self.loop.create_task(group.watch()))
            await self._until(
                lambda: len(self.names) == len(self.groups), START_SECONDS, "a group has no master"
            )
            await self.admin.soon(self.admin.process_call(self.admin.create))
            for consumer in self.consumers:
                consumer.start()
            # What is retired before a group exists is not the group's to consume.
            await self._until(self._joined, START_SECONDS, "a group has no member")
            for producer in self.producers:
                producer.start()
            plan = self.plan
            self.network.weather = Weather(
                delay_max=0.02,
                lost=plan.lost,
                late=plan.late,
                late_max=plan.late_max,
                doubled=plan.doubled,
                reset=plan.reset,
            )
            self.network.repeated, self.network.repeated_max = plan.repeated, 2 * plan.permission
            if plan.poisoned and self.producers:
                self.poisoned = dict.fromkeys(self.consumer_groups, (self.producers[0].keys[0],))
            await self.chaos.run()
            await self._heal()
        finally:
            for task in tasks:
                task.cancel()

    def _led(self) -> bool:
        leader = self.agreement.leader
        return leader is not None and leader.leading

    def _joined(self) -> bool:
        subject = self.agreement.head.ordered.subjects.get(SUBJECT)
        return subject is not None and set(self.oracle.all_groups) <= set(subject.groups)

    async def _until(self, reached: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = self.wire.time() + seconds
        while not reached():
            if self.wire.time() >= deadline:
                raise Violation(PROGRESS, f"{what}: {self._describe()}")
            await asyncio.sleep(LOOK_SECONDS)

    async def _heal(self) -> None:
        self.note("heal")
        await self.chaos.stop()
        self.healing = True
        self.network.heal()
        self.network.weather = CALM
        self.network.repeated = 0.0
        self.slow_replication = self.agreement.stall = 0.0
        self.handlers_fail, self.poisoned = 0.0, {}
        self.handler_seconds = min(self.plan.handler_seconds, HEALED_HANDLER_SECONDS)
        for controller in self.controllers:
            controller.start_if_down()
        for producer in self.producers:
            producer.start_if_down()
        for group in self.groups:
            for node in group.nodes:
                node.start_if_down()
        for app in self.consumers:
            app.start_if_wanted()
        for producer in self.producers:
            producer.idle_until = 0.0
        patience = HEALING_SECONDS + 4 * self.plan.permission
        if self.plan.has_copies:
            patience += COPIES_SECONDS
        await asyncio.sleep(2.0)
        self.quiet = True
        await self._until(lambda: not self._pending(), patience, "sends without an answer")
        for message in self.oracle.lost():
            raise Violation(HANDLED, f"{message} was acknowledged and is not stored")
        await self._until(lambda: not self.oracle.unhandled(), patience, "not everything is handled")
        await self._until_none(patience, {"Prepared", "Sealing"}, "scaling is not finished")
        if self.plan.has_copies:
            await self._until_none(patience, {"Sealed"}, "drained partitions are not retired")
            await self._until(lambda: not self._fences_of_retired(), patience, "retired queues have fences")
        self.note("progress")

    async def _until_none(self, patience: float, statuses: set[str], what: str) -> None:
        """No partition has one of these statuses."""
        deadline = self.wire.time() + patience
        while True:
            state = await self.admin.soon(self.admin.process_call(self.admin.describe))
            if state is not None and statuses.isdisjoint(each["status"] for each in state["partitions"]):
                return
            if self.wire.time() >= deadline:
                raise Violation(PROGRESS, f"{what}: {state} {self._describe()}")
            await asyncio.sleep(0.3)

    def _fences_of_retired(self) -> list[tuple[str, str, int]]:
        """Broker group, topic and queue of fences that masters keep for partitions that are no more.

        A broker group that has no partition of the subject left is not asked for anything any more.
        """
        subject = self.agreement.head.ordered.subjects[SUBJECT]
        kept = {(each.broker_group, each.queue_id) for each in subject.partitions.values()}
        return [
            (group.name, topic, queue_id)
            for group in self.groups
            if group.name in {name for name, _ in kept}
            for topic, queue_id in group.fenced()
            if (group.name, queue_id) not in kept
        ]

    def _pending(self) -> list[object]:
        return [message for app in self.producers for message in app.pending]

    def _describe(self) -> str:
        leader = self.agreement.leader
        groups = "; ".join(
            f"{group.name} epoch {group.epoch} master {group.master and group.master.name} in sync"
            f" {[node.name for node in group.in_sync]} confirmed {group.confirmed_end} of"
            f" {[node.store.max_offset for node in group.nodes]}"
            for group in self.groups
        )
        head = self.agreement.head.ordered.subjects.get(SUBJECT)
        return (
            f"leader {leader and leader.node_id} term {self.agreement.term}; {groups}; pending"
            f" {self._pending()[:5]}; unhandled {self.oracle.unhandled()[:5]}; subject {head}"
        )

    async def _end(self) -> None:
        await self.chaos.stop()
        last = [
            *(controller.process for controller in self.controllers),
            *(node.process for group in self.groups for node in group.nodes),
            *(client.process for client in self.clients),
        ]
        processes = [*self.graveyard, *self.zombies, *(each for each in last if each is not None)]
        for process in processes:
            if process.alive:
                process.kill()
        for process in processes:
            await process.ended()
        for _ in range(3):
            await asyncio.sleep(0)


def simulate_ordered(seed: int, plan: OrderedPlan | None = None, *, show: bool = False) -> Outcome:
    """Run one seed from beginning to end."""
    worlds: list[OrderedWorld] = []

    async def main() -> Outcome:
        world = OrderedWorld(seed, plan or draw_ordered(seed), show=show)
        worlds.append(world)
        if show:
            print(world.plan)
        await world.run()
        counts = world.counts + world.oracle.counts + world.watch.answers
        counts["elected: controllers"] += world.agreement.elections
        counts["elected: entries kept"] += world.agreement.kept
        counts["role: failovers"] += sum(group.failovers for group in world.groups)
        counts["role: entries lost"] += sum(group.lost_entries for group in world.groups)
        return Outcome(
            seed,
            world.failure,
            f"{world.trace:08x}",
            world.events,
            world.wire.time(),
            len(world.agreement.committed),
            counts,
        )

    with contextlib.ExitStack() as stack:
        for module, name, seconds in IDLE_SECONDS:
            stack.enter_context(mock.patch.object(module, name, seconds))
        stack.enter_context(_watched_logs(worlds, show=show))
        return run_drifting(main())


@contextlib.contextmanager
def _watched_logs(worlds: list[OrderedWorld], *, show: bool) -> Iterator[None]:
    """Production code that logs an exception has a mistake; all else is shown, or goes nowhere."""

    def take(_: Any, level: str, event: Any) -> str:
        world = worlds[0]
        if show:
            world.note("log", level, dict(event))
        error = event.get("exc_info")
        if isinstance(error, BaseException) and getattr(OWNER.get(), "alive", True):
            violation = Violation(TASK_FAILED, f"{event.get('event')}: {error!r}")
            violation.__cause__ = error
            world.fail(violation)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[take],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if show else logging.ERROR),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
