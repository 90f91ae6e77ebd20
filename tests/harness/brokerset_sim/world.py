"""One simulated installation: controllers, brokers, an administrator, one network, one virtual clock."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import structlog

from brokerset_broker.member.membership.diagnosis import ProblemKind
from brokerset_broker.member.role import Role, RoleState
from brokerset_controller.replicas.state import Group
from brokerset_raft import driver
from brokerset_raft.configuration import Configuration, Member
from brokerset_raft.node import NodeConfig
from brokerset_sim.admin import Admin
from brokerset_sim.broker_node import BrokerNode
from brokerset_sim.chaos import Chaos
from brokerset_sim.clients import Client
from brokerset_sim.controller_node import ControllerNode
from brokerset_sim.disk import ProcessGone
from brokerset_sim.group_checker import ID_USED
from brokerset_sim.ha_network import SimHaNetwork
from brokerset_sim.history import History, Violation
from brokerset_sim.java_broker import JavaBroker
from brokerset_sim.loop import VirtualLoop, run
from brokerset_sim.metadata_clients import MetadataClient
from brokerset_sim.metadata_node import small_pieces
from brokerset_sim.metadata_watch import MetadataWatch
from brokerset_sim.name_servers import NameServers
from brokerset_sim.network import Network, Weather
from brokerset_sim.plan import Plan, draw
from brokerset_sim.process import Host, Process, real_error
from brokerset_sim.raft_checker import NEVER_FORGOTTEN, RaftChecker
from brokerset_sim.replica_node import ReplicaNode
from brokerset_sim.replica_watch import ReplicaWatch
from brokerset_sim.survivors import survived
from brokerset_sim.witness import Witness

PROGRESS = "progress after the faults"
PROCESS_DIED = "processes live"

UNANSWERED = "every send is answered"

SENDING_SECONDS = 20.0
"""Time that each client has to get a send acknowledged, once everything is healed."""

QUIET_SECONDS = 8.0
"""Longer than any send may wait."""

HEALING_SECONDS = 60.0
"""Time that a healed installation has to make progress."""

NAMED = (
    ProblemKind.CONFLICT,
    ProblemKind.RETIRED,
    ProblemKind.OWNED,
    ProblemKind.UNKNOWN_ID,
    ProblemKind.IDENTITY_DAMAGED,
)
"""Problems that only people end; a broker may be left with one of them, as it says so."""


class World:
    """A run. Make one, await `run`, read `witness`."""

    def __init__(self, seed: int, plan: Plan | None = None, *, show: bool = False) -> None:
        self.seed = seed
        self.plan = plan or draw(seed)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.witness = Witness(loop.time, show=show)
        self.network = Network(loop, self.random_for("network"), self.witness)
        self.watch = ReplicaWatch(self)
        self.metadata = MetadataWatch(self)
        self.ha = SimHaNetwork(self.network, loop, self.watch)
        self.names = NameServers()
        self.clients: list[Client] = []
        self.metadata_clients: list[MetadataClient] = []
        self.quiet = False
        """Clients send nothing more."""

        self.graveyard: list[Process] = []
        self.hosts: dict[str, Host] = {}
        self.controllers: dict[int, ControllerNode] = {}
        self.brokers: list[BrokerNode] = []
        self.java: list[JavaBroker] = []
        self.healing = False
        self.frozen = False
        """Nothing is restarted by itself, while the controllers' data is lost."""

        self.emptied = False
        """Whether a folder was emptied, so that an id may be nobody's."""

        self._restarts: list[asyncio.Task[None]] = []
        size = self.plan.controllers
        members = [Member(i, f"c{i}:9877", f"c{i}:9878") for i in range(size)]
        self.initial = Configuration(tuple(members))
        for member in members:
            self.controllers[member.node_id] = ControllerNode(self, member.node_id)
        for number, count in enumerate(self.plan.brokers):
            for each in range(count):
                self.add_broker(f"group-{number}", expected=count, name=f"b{number}{each}")
        for each in range(self.plan.java_brokers):
            self.java.append(JavaBroker(self, f"j{each}", "group-java"))
        if self.plan.replicating:
            for number in range(len(self.plan.brokers)):
                for each in range(self.plan.clients):
                    self.clients.append(Client(self, f"w{number}{each}", f"group-{number}"))
                for each in range(self.plan.metadata_clients):
                    client = MetadataClient(self, f"m{number}{each}", f"group-{number}")
                    self.metadata_clients.append(client)
        self.chaos = Chaos(self)
        self.admin = Admin(self)
        self._begin_era()

    # -- parts --------------------------------------------------------------------------------------------

    def random_for(self, label: str) -> random.Random:
        """Dice of one part, so that another throw somewhere does not change all others."""
        return random.Random(f"{self.seed}/{label}")

    def new_host(self, name: str) -> Host:
        """Another machine."""
        host = self.hosts[name] = Host(name)
        self.network.add_host(host)
        return host

    def add_broker(self, group: str, *, expected: int, name: str) -> BrokerNode:
        """Another broker with an empty folder, not started."""
        kind = ReplicaNode if self.plan.replicating else BrokerNode
        node = kind(self, name, group, expected=expected, owner=f"uid-{group}")
        self.brokers.append(node)
        return node

    def controller_addresses(self) -> list[str]:
        """Of all controllers that were not removed."""
        return [node.service_address for node in self.controllers.values() if not node.removed]

    def brokers_of(self, group: str) -> list[BrokerNode]:
        """Our brokers of a group."""
        return [node for node in self.brokers if node.group == group]

    def leader(self) -> ControllerNode | None:
        """The controller that leads, if one does."""
        leading = [node for node in self.controllers.values() if node.up and node.engine is not None]
        leading = [node for node in leading if node.engine.status.leading]  # type: ignore[union-attr]  # filtered
        return max(leading, key=lambda node: node.engine.status.term, default=None)  # type: ignore[union-attr]  # too

    def new_era(self) -> None:
        """The controllers' data is lost: the history of another raft group begins."""
        for name, checker in self.witness.groups.items():
            known = survived(self, name)
            checker.controllers_lost(known)
            self.watch.controllers_lost(name, known.epoch)
            self.metadata.controllers_lost(name, known.epoch)
        self.witness.end_era()
        self._begin_era()

    def _begin_era(self) -> None:
        self.witness.history = History()
        self.witness.raft = RaftChecker(
            self.witness.history, self.random_for("looks"), disk_checks=self.plan.disk_checks
        )

    # -- what parts tell ----------------------------------------------------------------------------------

    def note(self, kind: str, *what: object) -> None:
        """Add to the trace."""
        self.witness.note(kind, *what)

    def guard(self, check: Callable[[], object]) -> None:
        """Run a check."""
        self.witness.guard(check)

    def applied(self, node: ControllerNode, index: int, data: bytes) -> None:
        """A controller applied a command."""
        if node.machine is not None:
            self.witness.applied(node, index, data, node.machine.groups, self._disks)

    # -- disks and processes ------------------------------------------------------------------------------

    def _disks(self) -> dict[int, Any]:
        return {node_id: node.durable() for node_id, node in self.controllers.items()}

    def power_lost(self, node: ControllerNode) -> None:
        """A controller's disk lost what was not synced."""
        self.guard(lambda: self.witness.raft.check_durable(node.node_id, node.durable(), NEVER_FORGOTTEN))

    def cache_lost(self, node: BrokerNode) -> None:
        """A broker's host lost its page cache while the log was open."""
        identity = node.identity()
        group = self.witness.history.groups.get(node.group)
        if identity is None or group is None:
            return
        replica = group.replicas.get(identity.broker_id)
        if replica is not None and replica.nonce is not None and replica.nonce in node.nonces:
            self.note("cache lost", node.name, identity.broker_id)
            self.witness.group(node.group).lost[identity.broker_id] = frozenset(node.nonces)

    def rolled_back(self, node: BrokerNode, broker_id: int) -> None:
        """A broker's volume is about to be rolled back to a copy from since its last start."""
        self.note("rolled back in sync", node.name, broker_id)
        self.witness.group(node.group).rolled_back[broker_id] = None
        node.power_lost_at = self.loop.time()

    def crashed(self, node: ControllerNode | BrokerNode) -> None:
        """A process ended at a chosen point; it comes back."""
        if not self.frozen:
            self.restart_later(node, self.chaos.dice.random() * 2)

    def process_died(self, process: Process, error: BaseException) -> None:
        """A process ended by itself."""
        node = process.node
        cause = real_error(error)
        if isinstance(cause, OSError) and not isinstance(cause, TimeoutError | ConnectionError):
            self.note("died", process.name, str(cause))
            node.stop(
                power=self.chaos.dice.random() < 0.3
            )  # else the page cache is read again by who comes next
            self.crashed(node)
            return
        violation = Violation(PROCESS_DIED, f"{process} ended: {cause!r}")
        violation.__cause__ = cause
        self.witness.fail(violation)

    def role_changed(self, node: BrokerNode, process: Process, before: RoleState, after: RoleState) -> None:
        """A broker has another role."""
        self.witness.role_changed(process, node.group, node.role_id, before, after)

    # -- faults end ---------------------------------------------------------------------------------------

    def restart_later(self, node: ControllerNode | BrokerNode | JavaBroker, seconds: float) -> None:
        """Start a process again after a while, unless somebody did."""
        self._restarts.append(self.loop.create_task(self._restart(node, seconds)))

    async def _restart(self, node: ControllerNode | BrokerNode | JavaBroker, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if not node.up and not self.frozen and self.may_start(node):
            node.start()

    def may_start(self, node: ControllerNode | BrokerNode | JavaBroker) -> bool:
        """Whether the node still belongs to the world."""
        return not getattr(node, "removed", False) and not getattr(node, "retired", False)

    def everybody(self) -> Iterator[ControllerNode | BrokerNode | JavaBroker]:
        """All nodes, in order."""
        yield from self.controllers.values()
        yield from self.brokers
        yield from self.java

    # -- the run ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Both phases. What was violated is in `witness.failure`."""
        story = self.loop.create_task(self._story())
        self.witness.on_failure = story.cancel
        try:
            await story
        except asyncio.CancelledError:
            if self.witness.failure is None:
                raise
        except Violation as violation:
            self.witness.fail(violation)
        finally:
            self.witness.on_failure = lambda: None
            await self._end()
            self.witness.end_era()

    async def _story(self) -> None:
        plan = self.plan
        self.network.weather = Weather(lost=plan.lost, doubled=plan.doubled, late=plan.late, reset=plan.reset)
        for node in self.everybody():
            if not isinstance(node, JavaBroker):
                node.slow.stall_chance = plan.stalls
            node.start()
        for client in (*self.clients, *self.metadata_clients):
            client.start()
        self.admin.start()
        chaos = self.loop.create_task(self.chaos.run(plan.seconds))
        admin = self.loop.create_task(self.admin.run())
        try:
            await chaos
        finally:
            chaos.cancel()
            admin.cancel()
            await asyncio.gather(chaos, admin, return_exceptions=True)
        await self._heal()

    async def _heal(self) -> None:
        self.note("heal")
        self.healing = True
        self.network.heal()
        self.network.weather = Weather()
        for node in self.everybody():
            if node.process is not None:
                node.process.unpause()
            if not isinstance(node, JavaBroker):
                node.slow.stall_chance = 0.0
                node.crash_at = None
                node.disk.fail_sync = False
            if isinstance(node, BrokerNode):
                node.crash_after_step = None
            if not node.up and self.may_start(node):
                node.start()
        self._correct_settings()
        if self.plan.replicating:
            await self.admin.unfence_all()
        deadline = self.loop.time() + HEALING_SECONDS
        missing = "everything"
        while self.loop.time() < deadline:
            await asyncio.sleep(0.5)
            self._correct_settings()
            found = self._missing()
            if found is None:
                if self.plan.replicating:
                    await self._settle()
                self._check_ids_used()
                await self.admin.read_everything()
                self.note("progress")
                return
            missing = found
        raise Violation(PROGRESS, missing)

    async def _settle(self) -> None:
        """Let every client send once more, then let them end, and compare the logs."""
        healed = self.loop.time()
        everybody = (*self.clients, *self.metadata_clients)
        waiting = [client for client in everybody if self._may_send(client.group)]
        while waiting and self.loop.time() < healed + SENDING_SECONDS:
            await asyncio.sleep(0.5)
            waiting = [each for each in waiting if each.last_acknowledged < healed]
        if waiting:
            raise Violation(PROGRESS, f"nothing of {[each.name for each in waiting]} is acknowledged")
        self.quiet = True
        await asyncio.sleep(QUIET_SECONDS)
        for name in self.watch.names():
            group = self.witness.history.groups.get(name)
            nodes = [node for node in self.brokers_of(name) if isinstance(node, ReplicaNode) and node.up]
            for node in nodes:
                self._check_unanswered(node)
            master = next((node for node in nodes if self._is_master(node, group)), None)
            if group is None or master is None:
                continue
            log, volume = self.watch.logs(name), master.volume
            history = self.watch.placed(master, volume.start, volume.end)
            log.final(f"the last master {master.name}", history, volume.start)
            followers = [each for each in nodes if each is not master and self._is_in_sync(each, group)]
            if self.plan.metadata_clients:
                self.metadata.final(name, master, followers)
            for node in followers:
                assert node.running is not None
                end = node.running.log.confirmed_offset
                log.same(master.name, history, node.name, self.watch.placed(node, node.volume.start, end))
                self.witness.counts["replica compared"] += 1

    def _is_master(self, node: ReplicaNode, group: Group | None) -> bool:
        return group is not None and (node.role.role, node.role.epoch) == (Role.MASTER, group.master_epoch)

    def _is_in_sync(self, node: ReplicaNode, group: Group) -> bool:
        """Whether its process is in sync; not one whose identity another one has taken over."""
        members = [group.replicas[broker_id] for broker_id in sorted(group.sync_state_set)]
        return any(replica.nonce in node.nonces for replica in members)

    def _may_send(self, name: str) -> bool:
        """Whether sends must be acknowledged, now that everything is healed."""
        group = self.witness.history.groups.get(name)
        if group is None or group.master_id is None:
            return False
        nodes = [node for node in self.brokers_of(name) if isinstance(node, ReplicaNode)]
        needed = min(self.plan.min_in_sync, nodes[0].expected)
        return any(self._is_master(node, group) for node in nodes) and len(group.sync_state_set) >= needed

    def _check_unanswered(self, node: ReplicaNode) -> None:
        """Nobody waits for an answer permanently."""
        running = node.running
        if running is None:
            return
        held, forwarded = len(running.gateway.holding), running.forwarder.in_flight
        waiting = running.replication.status().waiting
        deferred = self.network.deferred(running.process)
        if held or forwarded or waiting or deferred:
            raise Violation(
                UNANSWERED,
                f"{node.name} holds {held}, forwards {forwarded}, waits for replicas with {waiting} requests;"
                f" {deferred} are not answered",
            )

    def _correct_settings(self) -> None:
        """Restart brokers none of whose controllers is a member, as an operator would, with today's list.

        Members are those of the leader's configuration. A controller that was started to be added, but never
        was, and one that was removed run on and answer, but know no leader.
        """
        leader = self.leader()
        if leader is None or leader.engine is None:
            return
        members = leader.engine.status.configuration.members
        now = {self.controllers[member.node_id].service_address for member in members}
        for broker in self.brokers:
            membership = broker.membership
            if broker.up and membership is not None and now.isdisjoint(membership.controllers.addresses):
                self.note("other controllers", broker.name)
                broker.stop(power=False, cleanly=True)
                broker.start()

    def _missing(self) -> str | None:
        """What is still to come; None when all is well."""
        leader = self.leader()
        if leader is None or leader.engine is None:
            return "no controller leads"
        status = leader.engine.status
        for member in status.configuration.members:
            node = self.controllers[member.node_id]
            if not node.up or node.engine is None or node.engine.status.applied_index < status.commit_index:
                return f"controller {member.node_id} has not applied everything"
        for broker in self.brokers:
            if self.may_start(broker) and (text := self._missing_of(broker)) is not None:
                return text
        for java in self.java:
            group = self.witness.history.groups.get(java.group)
            cleaned = java.broker_id is not None and (group is None or java.broker_id not in group.replicas)
            if not java.registered and not cleaned:
                return f"{java.name} is not registered"
        for name, group in self.witness.history.groups.items():
            if (text := self._missing_master(name, group)) is not None:
                return text
            if self.plan.replicating and (text := self._missing_in_sync(name, group)) is not None:
                return text
        return None

    def _missing_in_sync(self, name: str, group: Group) -> str | None:
        """Which replica could be in sync, and is not."""
        if group.master_id is None:
            return None
        for broker in self.brokers_of(name):
            membership = broker.membership
            if not broker.up or membership is None or not membership.registered:
                continue
            if membership.problem is not None and membership.problem.kind in NAMED:
                continue
            broker_id = membership.broker_id
            if broker_id in group.fenced or broker_id not in group.replicas:
                continue
            if broker_id not in group.sync_state_set:
                assert isinstance(broker, ReplicaNode)
                assert broker.running is not None
                view = broker.running.replication.status().follower
                if view.state == "refused" and view.advice and self.watch.logs(name).lost_everything:
                    continue  # nothing in common with the group's log: people decide what becomes of it
                return f"{broker.name} is not in sync: {view}, {group}"
        return None

    def _check_ids_used(self) -> None:
        """Whoever asked for an id and got it has it, whatever happened in between.

        An id that was adopted was not granted: it came with a volume. That one may have been set back to
        before its first start; it is a stranger's then, which owns no id, but nothing was burnt.
        """
        for name, group in self.witness.history.groups.items():
            ours = self.brokers_of(name)
            if not ours or self.emptied:
                continue
            brought = {found.broker_id for node in ours if node.foreign and (found := node.identity())}
            for broker_id, replica in group.replicas.items():
                if replica.check_code.startswith("adopted;") and broker_id in brought:
                    continue
                if broker_id not in self.witness.group(name).owners:
                    raise Violation(ID_USED, f"{name}: id {broker_id} was granted, and no folder has it")

    def _missing_of(self, broker: BrokerNode) -> str | None:
        membership = broker.membership
        if not broker.up or membership is None:
            return f"{broker.name} does not run"
        problem = membership.problem
        if problem is not None and problem.kind in NAMED:
            return None
        if not membership.registered:
            return f"{broker.name} is not registered: {membership.diagnosis()}"
        return None

    def _missing_master(self, name: str, group: Group) -> str | None:
        serving: dict[int, BrokerNode | JavaBroker] = {}
        for broker in self.brokers_of(name):
            membership = broker.membership
            if (
                broker.up
                and membership is not None
                and membership.registered
                and membership.broker_id is not None
            ):
                replica = group.replicas.get(membership.broker_id)
                if replica is not None and replica.nonce == membership.nonce:
                    serving[membership.broker_id] = broker
        for java in self.java:
            if (
                java.group == name
                and java.registered
                and java.broker_id is not None
                and java.broker_id in group.replicas
            ):
                serving[java.broker_id] = java
        if group.master_id is not None:
            master = serving.get(group.master_id)
            told = (group.master_epoch, group.master_id)
            if isinstance(master, BrokerNode) and (
                (master.role.role.value, master.role.epoch) != ("master", group.master_epoch)
            ):
                return f"{master.name} does not know that it is master of {name} in {group.master_epoch}"
            if master is not None:
                for each in serving.values():
                    if isinstance(each, BrokerNode) and (each.role.epoch, each.role.master_id) != told:
                        return f"{each.name} does not know the master of {name}: {each.role}, {group}"
                return None
        sound = group.sync_state_set - group.suspects
        electable = any(broker_id in serving for broker_id in sound)
        if not sound and group.suspects and all(broker_id in serving for broker_id in group.suspects):
            electable = True
        if group.virgin and serving:
            electable = len(serving) >= max(1, group.expected_replicas)
        if electable:
            return f"{name} has no master, and could have: {group}, serving {sorted(serving)}"
        return None

    async def _end(self) -> None:
        for node in self.brokers:
            if isinstance(node, ReplicaNode):
                node.count_up()
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        processes = [node.process for node in self.everybody()] + [self.admin.process]
        for process in processes:
            if process is not None and process.alive:
                handle = getattr(process.node, "_handle", None)
                if handle is not None:
                    handle.gone = True
                process.kill()
                self.graveyard.append(process)
        for process in self.graveyard:
            await process.ended()


@contextlib.contextmanager
def logs_as_trace(shown: Callable[[str, dict[str, Any]], None] | None = None) -> Iterator[None]:
    """What production code logs goes to `shown`, or nowhere."""

    def show(_: Any, level: str, event: Any) -> str:
        if shown is not None:
            shown(level, dict(event))
        raise structlog.DropEvent

    before = structlog.get_config()
    lowest = logging.DEBUG if shown is not None else logging.CRITICAL
    structlog.configure(
        processors=[show],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    seed: int
    failure: Violation | None
    trace: str
    events: int
    virtual_seconds: float
    commands: int
    counts: Counter[str]
    """What happened how often."""


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody awaits; tasks of a killed process end with its disk, which means nothing."""
    if not isinstance(context.get("exception"), ProcessGone):
        loop.default_exception_handler(context)


def simulate(seed: int, plan: Plan | None = None, *, show: bool = False) -> Outcome:
    """Run one seed from beginning to end."""

    async def main() -> Outcome:
        asyncio.get_running_loop().set_exception_handler(_report)
        world = World(seed, plan, show=show)
        if show:
            print(world.plan)
            shown.append(lambda level, event: world.note("log", level, event))
        await world.run()
        witness = world.witness
        return Outcome(
            seed,
            witness.failure,
            witness.trace,
            witness.events,
            world.loop.time(),
            witness.history.moment,
            witness.counts,
        )

    shown: list[Callable[[str, dict[str, Any]], None]] = []
    sizes = plan or draw(seed)
    small = functools.partial(NodeConfig, append_bytes_max=sizes.append_bytes, chunk_bytes=sizes.chunk_bytes)
    with (
        mock.patch.object(driver, "NodeConfig", small),
        small_pieces(),
        logs_as_trace((lambda level, event: shown[0](level, event)) if show else None),
    ):
        return run(main())
