"""A model of broker groups: who is master, what of its log is confirmed, and what becomes of the rest.

It stands in for replication, leases and elections, which have worlds of their own. What it keeps of them: a
message is confirmed when every in-sync replica has it; no confirmed one is ever lost, of the others what the
next master happens to have stays; a master that is cut off serves as its lease lasts, and confirms nothing;
nobody is elected before the lease of the last master has surely ended; masters become known to controllers by
their agreed log.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from brokerset_controller.replicas.codec import encode_event
from brokerset_controller.replicas.events import GroupRebuilt, MasterElected
from brokerset_controller.replicas.state import Group, Replica
from brokerset_sim.ordered_brokers import BrokerNode
from brokerset_sim.ordered_log import Entry

if TYPE_CHECKING:
    from brokerset_sim.ordered_world import OrderedWorld

LEASE_SECONDS: Final = 2.0
LEASE_OF_MASTER: Final = 0.85
"""The part of it that a master counts on: its clock may run slower than the world's by a tenth."""

WATCH_SECONDS: Final = 0.15
HEARTBEAT_SECONDS: Final = 0.5
NOT_IN_SYNC_SECONDS: Final = 1.0
"""A replica that is not reached for so long leaves the in-sync set."""

PART_CHANCE: Final = 0.3
"""Of a copy to bring only a part of what is missing."""

ENTRIES_MAX: Final = 400
"""Copied at once to a replica that is behind."""


class GroupModel:
    """One broker group."""

    def __init__(self, world: OrderedWorld, name: str, size: int) -> None:
        self.world = world
        self.name = name
        self.dice = world.random_for(f"group {name}")
        self.nodes = [BrokerNode(self, number, world.new_host(f"{name}-{number}")) for number in range(size)]
        self.epoch = 0
        self.master: BrokerNode | None = None
        """Of the present epoch, whether it lives or not."""

        self.in_sync: list[BrokerNode] = []
        self.lease_end = 0.0
        """By the world's clock: before it nobody else is elected."""

        self.confirmed_end = 0
        """All in-sync replicas have what lies below, permanently."""

        self.failovers = 0
        self.lost_entries = 0
        """Records that nobody was told of, and that went with a master."""

        self._heartbeat = 0.0
        self._unreached: dict[BrokerNode, float] = {}
        self._joined: dict[BrokerNode, int] = {}
        """Epoch in which a replica's log was made to follow the master's."""

        self._copying: dict[BrokerNode, None] = {}
        for node in self.nodes:
            node.store.on_append = self._appended

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with all brokers, nobody being master."""
        replicas = {
            node.broker_id: Replica(node.broker_id, node.address, f"sim;{node.name}") for node in self.nodes
        }
        group = Group(
            cluster_name="sim",
            broker_name=self.name,
            expected_replicas=len(self.nodes),
            next_broker_id=len(self.nodes) + 1,
            replicas=replicas,
        )
        self.world.agreement.append(encode_event(GroupRebuilt(group)))
        self.in_sync = list(self.nodes)
        for node in self.nodes:
            node.start()

    async def watch(self) -> None:
        """Renew leases, keep the in-sync set, elect; until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self._renew()
            self._keep_in_sync()
            self._elect_if_needed()
            self._copy_to_all()

    def came(self, node: BrokerNode) -> None:
        """A process serves; it is told who is master."""
        self._joined.pop(node, None)
        if self.epoch and node.broker is not None:
            self._tell(node)

    def _tell(self, node: BrokerNode) -> None:
        """Somebody is told of the present epoch, when it runs and packets get there."""
        broker = node.broker
        if broker is None or node.process is None or self.master is None:
            return
        if self.master is node:
            if broker.epoch < self.epoch and not self._restarted(node):
                node.process.soon(self._spawn, node, broker.lead(self.epoch))
            return
        if broker.epoch < self.epoch or broker.master_address != self.master.address:
            node.process.soon(self._spawn, node, broker.follow(self.epoch, self.master.address))

    def _restarted(self, node: BrokerNode) -> bool:
        """Whether another process of it was given the mastership: this one must be elected itself."""
        return self.mastered_by != (node.starts, self.epoch)

    mastered_by: tuple[int, int] = (0, 0)
    """Number of the start of the master's process, and epoch."""

    @staticmethod
    def _spawn(node: BrokerNode, work: object) -> None:
        assert node.process is not None
        node.process.spawn(work)  # type: ignore[arg-type]  # a coroutine

    # -- the log ------------------------------------------------------------------------------------------

    def _appended(self) -> None:
        self.world.wire.call_later(self._delay(), self._copy_to_all)

    def _delay(self) -> float:
        slow = self.world.slow_replication
        return 0.0005 + self.dice.random() * (slow if slow and self.dice.random() < 0.3 else 0.008)

    def reaches(self, one: BrokerNode, other: BrokerNode) -> bool:
        """Whether packets go both ways, and both run."""
        network = self.world.network
        return (
            one.awake
            and other.awake
            and network.open(one.host, other.host)
            and network.open(other.host, one.host)
        )

    def _leads_now(self) -> BrokerNode | None:
        """The master, if its process has the role of the present epoch."""
        master = self.master
        if master is None or not master.awake or master.broker is None:
            return None
        return master if master.broker.epoch == self.epoch and master.broker.accepts_replicas else None

    def _copy_to_all(self) -> None:
        master = self._leads_now()
        if master is None:
            return
        for node in self.nodes:
            if node is not master and node.broker is not None and self.reaches(master, node):
                self._copy(master, node)
        self._confirm(master)

    def _copy(self, master: BrokerNode, node: BrokerNode) -> None:
        if self._joined.get(node) != self.epoch:
            if node.broker is not None and node.broker.epoch < self.epoch:
                self._tell(node)
                return
            self._truncate(master, node)
            self._joined[node] = self.epoch
        begin = master.store.index_of(node.store.max_offset)
        missing = master.store.entries[begin : begin + ENTRIES_MAX]
        if len(missing) > 1 and self.dice.random() < PART_CHANCE:  # a batch may come in parts
            missing = missing[: self.dice.randrange(1, len(missing))]
            self.world.wire.call_later(self._delay(), self._copy_to_all)
        for entry in missing:
            node.store.take(entry)
        confirmed = node.store.confirm(min(self.confirmed_end, node.store.max_offset))
        if confirmed:
            assert node.process is not None
            node.process.soon(self._pass_on_confirmed, node, confirmed)

    def _truncate(self, master: BrokerNode, node: BrokerNode) -> None:
        ours, theirs = node.store.entries, master.store.entries
        same = 0
        low, high = 0, min(len(ours), len(theirs))
        while low < high:  # once they differ they differ permanently
            same = (low + high + 1) // 2
            if ours[same - 1] is theirs[same - 1]:
                low = same
            else:
                high = same - 1
        offset = ours[low - 1].end if low else 0
        if offset < node.store.max_offset:
            self.lost_entries += len(ours) - low
            assert offset >= node.store.confirmed_offset or not node.store.entries, (
                "what was confirmed is never truncated"
            )
            node.store.truncate(offset)
            assert node.process is not None
            assert node.broker is not None
            node.process.soon(node.broker.metadata.truncated, offset)

    @staticmethod
    def _pass_on_confirmed(node: BrokerNode, confirmed: list[Entry]) -> None:
        if node.broker is not None:
            node.broker.confirmed(confirmed)

    def _confirm(self, master: BrokerNode) -> None:
        """All in-sync replicas have it: it stays, and the master hears of it."""
        for node in self.in_sync:
            if node is not master and self._joined.get(node) != self.epoch:
                return
        end = min(node.store.max_offset for node in self.in_sync)
        if end > self.confirmed_end:
            store = master.store
            entries = store.entries[store.index_of(self.confirmed_end) : store.index_of(end)]
            self.confirmed_end = end
            self.world.oracle.confirmed(self.name, entries)
        if end > master.store.confirmed_offset:
            assert master.process is not None
            self.world.wire.call_later(
                self._delay(), master.process.soon, self._master_confirms, master, self.epoch, end
            )

    def _master_confirms(self, master: BrokerNode, epoch: int, end: int) -> None:
        broker = master.broker
        if broker is not None and broker.epoch == epoch and end > master.store.confirmed_offset:
            broker.confirmed(master.store.confirm(end))

    # -- the in-sync set ----------------------------------------------------------------------------------

    def _hears_controllers(self, node: BrokerNode) -> bool:
        leader = self.world.agreement.leader
        network = self.world.network
        return (
            leader is not None
            and leader.leading
            and node.awake
            and self.world.agreement.has_majority(leader)
            and network.open(node.host, leader.process.host)
            and network.open(leader.process.host, node.host)
        )

    def _keep_in_sync(self) -> None:
        master, now = self._leads_now(), self.world.wire.time()
        if master is None or not self._hears_controllers(master):
            return
        assert master.broker is not None
        for node in self.nodes:
            if node is master:
                continue
            reached = node.broker is not None and self.reaches(master, node)
            if reached:
                self._unreached.pop(node, None)
                whole = self._joined.get(node) == self.epoch
                if (
                    node not in self.in_sync
                    and whole
                    and node.store.max_offset == master.store.max_offset
                    and self.dice.random() < 0.7
                ):
                    self.in_sync.append(node)
                    self.world.note("in sync", node.name)
            elif now - self._unreached.setdefault(node, now) > NOT_IN_SYNC_SECONDS and node in self.in_sync:
                self.in_sync.remove(node)
                self.world.note("not in sync", node.name)
        master.broker.in_sync = len(self.in_sync)

    # -- masters ------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        master = self._leads_now()
        if master is None or not self._hears_controllers(master) or self._restarted(master):
            return
        now = self.world.wire.time()
        self.lease_end = max(self.lease_end, now + LEASE_SECONDS)
        assert master.broker is not None
        assert master.process is not None
        until = master.host.own_time(now) + LEASE_SECONDS * LEASE_OF_MASTER
        master.process.soon(master.broker.give_lease, self.epoch, until)
        if now - self._heartbeat >= HEARTBEAT_SECONDS:
            self._heartbeat = now
            self.world.heard(master)

    def _elect_if_needed(self) -> None:
        now = self.world.wire.time()
        if now < self.lease_end:
            return
        candidates = [
            node for node in self.in_sync if node.broker is not None and self._hears_controllers(node)
        ]
        if self.master is not None and len(candidates) > 1 and self.dice.random() < 0.9:
            candidates = [node for node in candidates if node is not self.master]
        if candidates:
            self._elect(self.dice.choice(candidates))

    def _elect(self, node: BrokerNode) -> None:
        known = self.world.agreement.head.groups[self.name]
        event = MasterElected(
            broker_name=self.name,
            master_id=node.broker_id,
            new_epoch=known.master_epoch + 1,
            expected_master_epoch=known.master_epoch,
            expected_set_epoch=known.sync_state_set_epoch,
            unclean=True,
            reason="simulated",
        )
        if not self.world.agreement.append(encode_event(event)):
            return
        assert node.store.max_offset >= self.confirmed_end, "who is in sync has what is confirmed"
        self.epoch = known.master_epoch + 1
        agreed = self.world.agreement.head.groups[self.name]
        assert agreed.master_id == node.broker_id, "the election was agreed on"
        self.failovers += self.master is not None
        self.master, self.in_sync = node, [node]
        self.mastered_by = (node.starts, self.epoch)
        self._joined.clear()
        self._unreached.clear()
        # It has until then to take the role; else another one is elected.
        self.lease_end = self.world.wire.time() + LEASE_SECONDS
        self.world.note("master", self.name, node.name, self.epoch)
        for each in self.nodes:
            if self._hears_controllers(each):
                self.world.wire.call_later(0.001 + self.dice.random() * 0.05, self._tell, each)

    def fenced(self) -> list[tuple[str, int]]:
        """Topics and queues that the master keeps a fence for; none if nobody leads now."""
        master = self._leads_now()
        if master is None or master.broker is None:
            return [("nobody leads", -1)]
        fences = master.broker.ordered.state.fences
        return [
            (topic, queue_id)
            for topic, groups in sorted(fences.items())
            for queues in groups.values()
            for queue_id in queues
        ]

    def begins(self, node: BrokerNode, epoch: int) -> bool:
        """Whether a broker that takes the role still may."""
        return self.epoch == epoch and self.master is node

    def leads(self, node: BrokerNode, epoch: int) -> None:
        """A broker has taken the role: everything that was confirmed is in its log."""
        self.world.oracle.master(self.name, node)
        self.world.registered(self, node)
        self._copy_to_all()

    def switch_over(self) -> None:
        """Let somebody else be master now, in order."""
        master = self._leads_now()
        others = [
            node
            for node in self.in_sync
            if node is not master
            and node.broker is not None
            and self._hears_controllers(node)
            and self._joined.get(node) == self.epoch
        ]
        if master is None or not others or not self._hears_controllers(master):
            return
        assert master.broker is not None
        assert master.process is not None
        master.process.soon(self._spawn, master, self._give_up(master, self.epoch, self.dice.choice(others)))

    async def _give_up(self, master: BrokerNode, epoch: int, heir: BrokerNode) -> None:
        broker = master.broker
        if broker is None or self.epoch != epoch:
            return
        await broker.follow(epoch, None)
        if self.epoch == epoch and heir.awake:
            self.lease_end = 0.0
            self._elect(heir)
