"""Faults, one after the other, drawn from the seed."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING

from brokerset_broker.member.membership.diagnosis import ProblemKind
from brokerset_broker.member.role import Role
from brokerset_formats.epochs import EpochEntry, EpochHistory, encode_epoch_file
from brokerset_formats.identity import BrokerIdentity
from brokerset_sim.broker_node import BrokerNode
from brokerset_sim.controller_node import ControllerNode
from brokerset_sim.drills import DRILLS
from brokerset_sim.java_broker import JavaBroker
from brokerset_sim.process import Process

if TYPE_CHECKING:
    from brokerset_sim.world import World

STEPS = ("WriteTemp", "ApplyId", "WriteIdentity", "WriteStart", "DeleteTemp", "Register", "FinishStart")
DOWN_SECONDS_MAX = 3.0
PAUSE_SECONDS_MAX = 4.0
CUT_SECONDS_MAX = 4.0
BROKERS_MAX = 7


class Chaos:
    """Breaks things in a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dice: random.Random = world.random_for("chaos")
        self._waits: list[asyncio.Task[None]] = []
        self._copies = itertools.count()

    async def run(self, seconds: float) -> None:
        """Break things for a while."""
        world = self.world
        plan = world.plan
        names, weights = list(plan.faults), list(plan.faults.values())
        rebuild_at = seconds * self.dice.uniform(0.3, 0.7) if plan.rebuild else None
        try:
            await asyncio.sleep(1.5)
            if plan.drill:
                world.witness.counts[f"drill: {plan.drill}"] += await DRILLS[plan.drill](world)
                return
            until = world.loop.time() + seconds
            begun = world.loop.time()
            while (now := world.loop.time()) < until:
                if rebuild_at is not None and now - begun > rebuild_at:
                    rebuild_at = None
                    await self.lose_controllers()
                    until += world.loop.time() - now
                elif names:
                    fault = self.dice.choices(names, weights)[0]
                    world.note("fault", fault)
                    if self._do(fault):
                        world.witness.counts[f"fault: {fault}"] += 1
                for broker in world.brokers:
                    if self.dice.random() < (0.5 if "roll back replica" in plan.faults else 0.1):
                        broker.back_up()
                await asyncio.sleep(self.dice.expovariate(1 / plan.pause_between))
        finally:
            for wait in self._waits:
                wait.cancel()
            await asyncio.gather(*self._waits, return_exceptions=True)

    # -- faults -------------------------------------------------------------------------------------------

    def _do(self, fault: str) -> bool:
        """Break one thing; tells whether there was anything to break."""
        dice = self.dice
        world = self.world
        controllers = [node for node in world.controllers.values() if not node.removed]
        running = [node for node in controllers if node.up]
        brokers = [node for node in world.brokers if node.up]
        match fault:
            case "kill controller" | "power controller" if running:
                self._stop(dice.choice(running), power=fault == "power controller")
            case "crash controller at a write" if running:
                self._crash_at(dice.choice(running), dice.randint(1, 40))
            case "pause controller" if running:
                self._pause(dice.choice(running))
            case "pause leader":
                leader = world.leader()
                if leader is None:
                    return False
                self._pause(leader)
            case "cut off controller" if running:
                self._cut_off(dice.choice(running))
            case "kill broker" if brokers or world.java:
                victims: list[BrokerNode | JavaBroker] = [*brokers, *world.java]
                self._stop(dice.choice(victims), power=False)
            case "reboot broker host" if brokers:
                self._stop(dice.choice(brokers), power=True)
            case "crash broker at a write" if world.brokers:
                node = dice.choice(world.brokers)
                self._crash_at(node, dice.randint(1, 12))
                if node.up and dice.random() < 0.7:
                    node.stop(power=False)
                    world.restart_later(node, dice.random())
            case "crash broker after a step" if world.brokers:
                node = dice.choice(world.brokers)
                node.crash_after_step = dice.choice(STEPS)
                node.crash_loses_power = dice.random() < 0.3
                if node.up and dice.random() < 0.7:
                    node.stop(power=False)
                    world.restart_later(node, dice.random())
            case "close broker" if brokers:
                node = dice.choice(brokers)
                node.stop(power=False, cleanly=True)
                if dice.random() < 0.5:
                    node.stop(power=True)
                world.restart_later(node, dice.random() * DOWN_SECONDS_MAX)
            case "pause broker" if brokers:
                self._pause(dice.choice(brokers))
            case "move broker" if brokers:
                node = dice.choice(brokers)
                node.stop(power=False)
                node.port += 1
                world.restart_later(node, dice.random() * DOWN_SECONDS_MAX)
            case "move Java broker" if world.java:
                java = dice.choice(world.java)
                java.stop(power=False)
                java.port += 1
                world.restart_later(java, dice.random() * DOWN_SECONDS_MAX)
            case "isolate" | "isolate leader" | "split" | "one way":
                self._cut(fault)
            case "jump clock":
                host = world.hosts[dice.choice(list(world.hosts))]
                host.clock_error_ms += dice.choice((-3_600_000, -2_000, 2_000, 3_600_000))
            case "fail sync" if running:
                everybody: list[ControllerNode | BrokerNode] = [*running, *brokers]
                dice.choice(everybody).disk.fail_sync = True
            case "copy broker" if world.brokers and len(world.brokers) < BROKERS_MAX:
                self._copy(dice.choice(world.brokers))
            case "replace by copy" if world.brokers and len(world.brokers) < BROKERS_MAX:
                old = dice.choice(world.brokers)
                if old.retired:
                    return False
                old.retired = True
                if old.up:
                    old.stop(power=False)
                self._copy(old)
            case "roll back broker" if world.brokers:
                return self._roll_back()
            case "roll back replica" if world.brokers:
                return self._roll_back_in_sync()
            case "power everything":
                for each in world.everybody():
                    self._stop(each, power=True)
            case "empty broker":
                return self._empty()
            case "new broker" if world.brokers and len(world.brokers) < BROKERS_MAX:
                old = dice.choice(world.brokers)
                node = world.add_broker(old.group, expected=old.expected, name=f"n{next(self._copies)}")
                node.start()
            case "kill master" | "reboot master" | "pause master" | "cut off master":
                masters = [node for node in brokers if node.role.role is Role.MASTER]
                if not masters:
                    return False
                self._hit_master(fault, dice.choice(masters))
            case "cut replication" if len(brokers) > 1:
                self._cut_replication(dice.choice(brokers))
            case "swap brokers" if len(world.brokers) > 1:
                self._swap(*dice.sample(world.brokers, 2))
            case "break replication":
                return world.ha.break_some(lambda: dice.random() < 0.5) > 0
            case "foreign volume" if world.brokers and len(world.brokers) < BROKERS_MAX:
                self._bring_volume(dice.choice(world.brokers))
            case _:
                return False
        return True

    def _hit_master(self, fault: str, node: BrokerNode) -> None:
        match fault:
            case "kill master" | "reboot master":
                self._stop(node, power=fault == "reboot master")
            case "pause master":
                self._pause(node)
            case _:
                for other in self.world.hosts:
                    if other != node.host.name:
                        self.world.network.cut(node.host.name, other)
                        self.world.network.cut(other, node.host.name)
                self._later(self.dice.random() * CUT_SECONDS_MAX, None)

    def _stop(self, node: ControllerNode | BrokerNode | JavaBroker, *, power: bool) -> None:
        node.stop(power=power)
        self.world.restart_later(node, self.dice.random() * DOWN_SECONDS_MAX)

    def _crash_at(self, node: ControllerNode | BrokerNode, operations: int) -> None:
        node.crash_at = node.disk.operations + operations
        node.crash_loses_power = self.dice.random() < 0.7

    def _pause(self, node: ControllerNode | BrokerNode) -> None:
        process = node.process
        assert process is not None
        process.pause()
        self._later(self.dice.random() * PAUSE_SECONDS_MAX, process)

    def _cut(self, kind: str) -> None:
        world, dice = self.world, self.dice
        names = list(world.hosts)
        if kind == "isolate leader":
            leader = world.leader()
            chosen = [leader.host.name] if leader is not None else [dice.choice(names)]
        elif kind == "split":
            chosen = [name for name in names if dice.random() < 0.5]
        else:
            chosen = [dice.choice(names)]
        both = kind != "one way"
        out = dice.random() < 0.5
        for one in chosen:
            for other in names:
                if other in chosen:
                    continue
                if both or out:
                    world.network.cut(one, other)
                if both or not out:
                    world.network.cut(other, one)
        self._later(dice.random() * CUT_SECONDS_MAX, None)

    def _cut_off(self, node: ControllerNode) -> None:
        """Brokers still reach it; other controllers do not."""
        for other in self.world.controllers.values():
            if other is not node:
                self.world.network.cut(node.host.name, other.host.name)
                self.world.network.cut(other.host.name, node.host.name)
        self._later(self.dice.random() * CUT_SECONDS_MAX, None)

    def _cut_replication(self, node: BrokerNode) -> None:
        """Other brokers of its group do not reach it, nor it them; controllers and clients do."""
        for other in self.world.brokers_of(node.group):
            if other is not node:
                self.world.network.cut(node.host.name, other.host.name)
                self.world.network.cut(other.host.name, node.host.name)
        self._later(self.dice.random() * CUT_SECONDS_MAX, None)

    def _swap(self, one: BrokerNode, other: BrokerNode) -> None:
        """Two brokers start again, each with the address of the other."""
        for node in (one, other):
            node.stop(power=False)
        one.host, other.host = other.host, one.host
        one.port, other.port = other.port, one.port
        for node in (one, other):
            self.world.restart_later(node, self.dice.random() * DOWN_SECONDS_MAX)

    def _later(self, seconds: float, process: Process | None) -> None:
        self._waits.append(self.world.loop.create_task(self._undo(seconds, process)))

    async def _undo(self, seconds: float, process: Process | None) -> None:
        await asyncio.sleep(seconds)
        if process is None:
            self.world.network.heal()
        else:
            process.unpause()

    def _copy(self, node: BrokerNode) -> None:
        """Somebody starts a copy of the volume elsewhere; the original may live."""
        copy = self.world.add_broker(node.group, expected=node.expected, name=f"k{next(self._copies)}")
        copy.disk.put(node.disk.durable() if self.dice.random() < 0.5 else node.disk.content())
        copy.copy_volume(node)
        copy.closed_cleanly = False
        copy.lineage = node.lineage
        copy.start()

    def _roll_back(self) -> bool:
        """A volume is restored from before its latest committed start."""
        choices = [(node, backup) for node in self.world.brokers for backup in self._old_backups(node)]
        if not choices:
            return False
        node, (files, log) = self.dice.choice(choices)
        node.stop(power=False)
        node.roll_back(files, log)
        self.world.restart_later(node, self.dice.random())
        return True

    def _roll_back_in_sync(self) -> bool:
        """A volume is restored from since its latest committed start; others have what it then lacks."""
        world = self.world
        choices = []
        for node in world.brokers:
            group, checker = world.witness.history.groups.get(node.group), world.witness.group(node.group)
            identity = node.identity()
            if group is None or identity is None or group.unproven or checker.rolled_back:
                continue
            in_sync = group.sync_state_set - checker.lost.keys()
            if identity.broker_id in in_sync and len(in_sync) > 1:
                choices += [(node, identity.broker_id, each) for each in self._new_backups(node)]
        if not choices:
            return False
        node, broker_id, (files, log) = self.dice.choice(choices)
        node.stop(power=False)
        world.rolled_back(node, broker_id)
        node.roll_back(files, log)
        world.restart_later(node, self.dice.random())
        return True

    def _new_backups(self, node: BrokerNode) -> list[tuple[dict[str, bytes], object]]:
        old = self._old_backups(node)
        return [each for each in node.backups if "brokerIdentity" in each[0] and each not in old]

    def _old_backups(self, node: BrokerNode) -> list[tuple[dict[str, bytes], object]]:
        identity = node.identity()
        group = self.world.witness.history.groups.get(node.group)
        replica = (
            group.replicas.get(identity.broker_id) if identity is not None and group is not None else None
        )
        if replica is None or replica.nonce is None:
            return []
        nonce = replica.nonce.encode()
        return [
            (files, log)
            for files, log in node.backups
            if "brokerIdentity" in files and nonce not in b"".join(files.values())
        ]

    def _bring_volume(self, old: BrokerNode) -> None:
        """A broker starts on a volume whose identity was made elsewhere."""
        number = next(self._copies)
        node = self.world.add_broker(old.group, expected=old.expected, name=f"f{number}")
        identity = BrokerIdentity("sim", old.group, 20 + 10 * number)
        epochs = EpochHistory((EpochEntry(self.dice.randint(1, 3), 0),))
        node.disk.put({"brokerIdentity": identity.encode(), "epochFileCheckpoint": encode_epoch_file(epochs)})
        node.foreign_volume(self.dice.randint(0, 5000))
        node.foreign = True
        node.start()

    def _empty(self) -> bool:
        """An administrator empties the folder of a broker that can do no more."""
        for node in self.world.brokers:
            membership = node.membership
            problem = membership.problem if membership is not None else None
            if (
                node.up
                and problem is not None
                and problem.kind in (ProblemKind.CONFLICT, ProblemKind.RETIRED)
            ):
                node.stop(power=False)
                node.empty()
                self.world.restart_later(node, self.dice.random())
                return True
        return False

    async def lose_controllers(self) -> None:
        """All controllers' data is gone; an administrator rebuilds the groups from what the brokers hold."""
        world = self.world
        if world.java:
            return
        world.note("lose controllers")
        world.frozen = True
        world.network.heal()
        for node in world.controllers.values():
            node.stop(power=True)
        for broker in world.brokers:
            if broker.process is not None:
                broker.process.unpause()
            broker.crash_at = None
            broker.crash_after_step = None
            if broker.disk.durable().get("brokerIdentity") is None or broker.is_stranger():
                broker.stop(power=False)
            elif not broker.up and world.may_start(broker):
                broker.start()
        await asyncio.sleep(2.0)
        world.new_era()
        for node in world.controllers.values():
            node.disk.put({})
            node.removed = node.joins
            if not node.removed:
                node.crash_at = None
                node.start()
        rebuilt = await world.admin.rebuild()
        world.note("rebuilt", rebuilt)
        world.frozen = False
        for each in world.everybody():
            if not each.up and world.may_start(each):
                world.restart_later(each, self.dice.random())
