"""What elections keep of acknowledged messages when page caches are lost: a model of logs next to the rules.

The model knows nothing of the rules. A process dies, a host loses what was not synced, replicas fall behind,
come back, are elected; the real decisions and the real state say who leads. Whatever was acknowledged is in
the log of who is elected, or was recorded as maybe lost.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from brokerset_controller.liveness import LiveReplica, LiveView, Standing
from brokerset_controller.replicas.apply import apply
from brokerset_controller.replicas.decide_election import decide_failover
from brokerset_controller.replicas.election import (
    FIRST_AFTER_LOSS,
    LOST_CACHES,
    LOST_CACHES_OUTSIDER,
    UNCLEAN_STOPS,
)
from brokerset_controller.replicas.events import (
    Applied,
    Event,
    GroupRebuilt,
    MasterElected,
    ReplicaStarted,
    SyncStateSetAltered,
)
from brokerset_controller.replicas.state import Group, PossibleLoss
from brokerset_rig.examples import examples
from brokerset_sim.replica_groups import NAME, group_of, live

STEPS = 160
WEIGHTS = {
    "append": 24.0,
    "copy": 24.0,
    "join": 8.0,
    "leave": 3.0,
    "sync": 1.0,
    "begin": 16.0,
    "kill": 4.0,
    "power": 2.0,
    "roll back": 4.0,
    "start": 12.0,
    "elect": 16.0,
    "unclean": 0.3,
    "outage": 3.0,
    "fork": 3.0,
    "learn": 12.0,
    "forget": 1.0,
}
"""How often what happens. Little is synced, so that whole epochs get lost."""


@dataclass(slots=True)
class Node:
    """A replica's disk, and its process."""

    log: list[tuple[int, int]] = field(default_factory=list)
    """By offset: the epoch in which the message was written, and its number."""

    starts: dict[int, int] = field(default_factory=dict)
    """The epoch file, which is on the disk before anything of an epoch counts."""

    synced: int = 0
    alive: bool = True
    leads: int | None = None
    """The epoch in which its process takes messages, as far as that one knows."""

    copies: list[tuple[list[tuple[int, int]], dict[int, int], int]] = field(default_factory=list)
    """Copies of the volume that were made since its process was started."""

    unclean: bool = False
    """Whether its last process was not closed in order."""

    lost: bool = False
    """Whether it lacks what was not synced, and has heard of no master since."""

    told: int = 0
    """The highest epoch that it was told, or had in its epoch file when it started."""

    starts_count: int = 1

    def cut(self, end: int) -> None:
        del self.log[end:]
        self.synced = min(self.synced, end)
        self.starts = {epoch: start for epoch, start in self.starts.items() if start <= end}


class Model:
    """One group of brokers that replicate, and what its clients were told."""

    def __init__(self, size: int, dice: random.Random) -> None:
        self.dice = dice
        self.nodes = {key: Node() for key in range(1, size + 1)}
        self.group: Group = group_of(*self.nodes, expected=size)
        self.acknowledged: dict[int, tuple[int, int]] = {}
        """By number: offset and epoch."""

        self.losses: list[PossibleLoss] = []
        self.rolled_back: set[int] = set()
        """Whose next start is not committed yet."""

        self.numbers = 0
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        for _ in range(STEPS):
            step = self.dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            key = self.dice.choice(list(self.nodes))
            self.take(step, key)
            self.acknowledge()
            node = self.nodes[self.dice.choice(list(self.nodes))]
            if node.alive and self.dice.random() < 0.1:
                node.copies.append((list(node.log), dict(node.starts), node.synced))

    def take(self, step: str, key: int) -> None:
        match step:
            case "append":
                self.append(key)
            case "copy":
                self.copy(key)
            case "join":
                self.alter(key, joins=True)
            case "leave":
                self.alter(key, joins=False)
            case "sync":
                self.nodes[key].synced = len(self.nodes[key].log)
            case "begin":
                self.begin()
            case "kill":
                self.kill(key)
            case "power":
                self.lose_power(key)
            case "roll back":
                self.roll_back(key)
            case "start":
                self.start(key)
            case "elect" | "unclean":
                self.elect(unclean=step == "unclean")
            case "outage":
                for member in sorted(self.group.sync_state_set):
                    self.lose_power(member)
                for member in sorted(self.group.sync_state_set):
                    self.start(member)
            case "fork":
                self.fork()
            case "learn":
                self.learn(key)
            case "forget":
                self.forget()

    def fork(self) -> None:
        """A master dies with messages that nobody else has; another one leads before it is back."""
        old = self.group.master_id
        if old is None or self.master() is None:
            return
        self.append(old)
        self.append(old)
        self.kill(old)
        self.elect(unclean=False)
        self.begin()
        self.start(old)
        if self.group.master_id is not None:
            self.append(self.group.master_id)

    # -- logs ---------------------------------------------------------------------------------------------

    def master(self) -> Node | None:
        """The process that serves as the group's master."""
        node = self.nodes.get(self.group.master_id or 0)
        if node is None or not node.alive or node.leads != self.group.master_epoch:
            return None
        return node

    def begin(self) -> None:
        node, epoch = self.nodes.get(self.group.master_id or 0), self.group.master_epoch
        if node is None or not node.alive or node.leads == epoch:
            return
        node.starts = {key: start for key, start in node.starts.items() if start < len(node.log)}
        node.starts[epoch] = len(node.log)
        node.leads = epoch
        self.learn(self.group.master_id or 0)

    def append(self, key: int) -> None:
        """Also a master that does not know yet that it is none any more goes on."""
        node = self.nodes[key]
        if node.alive and node.leads is not None:
            for _ in range(self.dice.randint(1, 4)):
                self.numbers += 1
                node.log.append((node.leads, self.numbers))

    def copy(self, key: int) -> None:
        node, master = self.nodes[key], self.master()
        if master is None or node is master or not node.alive:
            return
        self.learn(key)
        node.leads = None
        common = 0
        while common < min(len(node.log), len(master.log)) and node.log[common] == master.log[common]:
            common += 1
        assert key not in self.group.sync_state_set or common == len(node.log), "in sync, and another branch"
        node.cut(common)
        end = min(len(master.log), common + self.dice.choice((1, 2, 5, 20)))
        node.log.extend(master.log[common:end])
        node.starts = {epoch: start for epoch, start in master.starts.items() if start < end}

    def acknowledge(self) -> None:
        """What everybody in sync has is acknowledged at once."""
        master = self.master()
        members = [self.nodes[key] for key in self.group.sync_state_set]
        if master is None or not all(node.alive for node in members):
            return
        end = min(len(node.log) for node in members)
        for offset in range(end):
            epoch, number = master.log[offset]
            if not self.may_be_lost(offset, epoch):
                self.acknowledged.setdefault(number, (offset, epoch))

    def may_be_lost(self, offset: int, epoch: int) -> bool:
        return any(epoch < loss.master_epoch and offset >= loss.from_offset for loss in self.losses)

    def alter(self, key: int, *, joins: bool) -> None:
        node, master, group = self.nodes[key], self.master(), self.group
        if master is None or node is master or joins is (key in group.sync_state_set):
            return
        assert group.master_id is not None
        if joins:
            confirmed = max((offset + 1 for offset, _ in self.acknowledged.values()), default=0)
            least = max(master.starts[group.master_epoch], confirmed)
            if not node.alive or len(node.log) < least or node.log != master.log[: len(node.log)]:
                return
        changed = group.sync_state_set ^ {key}
        self.commit(
            SyncStateSetAltered(
                NAME, group.master_id, group.master_epoch, group.sync_state_set_epoch, changed
            )
        )

    # -- processes and hosts ------------------------------------------------------------------------------

    def kill(self, key: int) -> None:
        self.nodes[key].alive, self.nodes[key].leads, self.nodes[key].unclean = False, None, True

    def lose_power(self, key: int) -> None:
        node = self.nodes[key]
        self.kill(key)
        node.told = max(node.told, *node.starts, 0)
        node.cut(self.dice.choice((node.synced, self.dice.randint(node.synced, len(node.log)))))
        node.synced, node.lost = len(node.log), True

    def roll_back(self, key: int) -> None:
        """A copy takes the place of the volume; somebody else in sync has what the copy lacks."""
        node, group = self.nodes[key], self.group
        trusted = [each for each in group.sync_state_set - {key} if not self.nodes[each].lost]
        if not node.copies or not trusted or group.unproven or self.rolled_back or node.lost:
            return
        self.kill(key)
        node.told = max(node.told, *node.starts, 0)
        log, starts, node.synced = self.dice.choice(node.copies)
        node.log, node.starts = list(log), dict(starts)
        self.rolled_back.add(key)
        self.counts["rolled back"] += 1

    def start(self, key: int) -> None:
        node = self.nodes[key]
        if node.alive:
            return
        self.rolled_back.discard(key)
        node.copies = []
        node.starts_count += 1
        nonce = f"n{key}.{node.starts_count}"
        known = self.group.replicas[key]
        self.commit(
            ReplicaStarted(
                NAME,
                key,
                known.nonce,
                nonce,
                known.address,
                node.lost,
                0,
                unclean=node.unclean and not node.lost,
            )
        )
        node.alive, node.told = True, max(node.told, self.group.master_epoch)

    def learn(self, key: int) -> None:
        """A process hears who is master; what it has lost is in that election's record, or not missing."""
        node = self.nodes[key]
        if node.alive and self.group.master_id is not None:
            node.lost, node.told = False, max(node.told, self.group.master_epoch)

    def forget(self) -> None:
        """The controllers lose everything; the group is rebuilt from what all its brokers know."""
        for key in self.nodes:
            if self.dice.random() < 0.3:
                self.lose_power(key)
        replicas = {}
        for key, node in self.nodes.items():
            if not node.alive:
                node.starts_count += 1
                node.alive = True
            node.leads = None
            nonce = f"n{key}.{node.starts_count}" if node.starts_count > 1 else f"n{key}"
            replicas[key] = replace(self.group.replicas[key], nonce=nonce)
        epoch = max(max(node.told, *node.starts, 0) for node in self.nodes.values())
        self.group = replace(group_of(expected=len(replicas)), cluster_name=self.group.cluster_name)
        self.commit(
            GroupRebuilt(
                replace(group_of(*self.nodes, epoch=epoch, expected=len(replicas)), replicas=replicas)
            )
        )
        self.counts["rebuilt"] += 1

    # -- elections ----------------------------------------------------------------------------------------

    def view(self) -> LiveView:
        standings: dict[int, Standing] = {}
        lives: dict[int, LiveReplica] = {}
        for key, node in self.nodes.items():
            standings[key] = Standing.ALIVE if node.alive else Standing.DEAD
            lives[key] = replace(
                live(key, max(node.starts, default=-1), len(node.log)),
                nonce=self.group.replicas[key].nonce,
                lost_cache=node.lost and node.alive,
            )
        return LiveView(standings, lives)

    def elect(self, *, unclean: bool) -> None:
        view = self.view()
        decision = decide_failover(self.group, view, unclean_allowed=unclean)
        if decision is None:
            return
        event = decision.event
        assert isinstance(event, MasterElected)
        self.commit(event)
        self.counts[event.reason] += 1
        chosen = self.nodes[event.master_id]
        if event.loss is not None:
            self.losses.append(event.loss)
            self.counts["loss before the end"] += event.loss.from_offset < len(chosen.log)
            for number, (offset, epoch) in list(self.acknowledged.items()):
                if self.may_be_lost(offset, epoch):
                    del self.acknowledged[number]
                    self.counts["forgiven"] += 1
        for number, (offset, epoch) in self.acknowledged.items():
            there = chosen.log[offset] if offset < len(chosen.log) else None
            assert there == (epoch, number), f"{event} loses {number} of {epoch} at {offset}: {there}"

    def commit(self, event: Event) -> None:
        after, outcome = apply(self.group, event)
        assert outcome == Applied(), outcome
        assert after is not None
        self.group = after


def simulate(seed: int) -> Counter[str]:
    dice = random.Random(seed)
    model = Model(dice.choice((2, 3, 3, 4, 5)), dice)
    model.run()
    return model.counts


@given(st.integers(min_value=0))
@examples(300)
def test_what_was_acknowledged_is_with_the_elected_or_recorded_as_maybe_lost(seed: int) -> None:
    """Whoever loses its page cache, falls behind, or diverges before."""
    simulate(seed)


def test_the_model_does_what_it_is_there_for() -> None:
    """Suspects win, and replicas that were not in sync; some of these lack a later epoch."""
    counts = sum((simulate(seed) for seed in range(300)), Counter[str]())

    assert counts[LOST_CACHES] > 20
    assert counts[LOST_CACHES_OUTSIDER] > 20
    assert counts["loss before the end"] > 5
    assert counts["forgiven"] > 20
    assert counts[FIRST_AFTER_LOSS] > 20
    assert counts["rebuilt"] > 100
    assert counts["rolled back"] > 50
    assert counts[UNCLEAN_STOPS] > 20
