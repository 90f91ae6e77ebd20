"""Schedules for raft cores that independent faults hardly ever draw: what mistakes of raft need to show.

A chain isolates one leader after the other, each about when the one before it comes back: so there are long
tails of several older terms, leaders that do not know that they are none and are asked, and changes of the
members that only a minority has. Besides, a leader sends parts of its log that nobody asked for, as any
leader may: followers must not rely on what this leader happens to send.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from brokerset_raft.engine import Role
from brokerset_raft.messages import AppendRequest, Message

if TYPE_CHECKING:
    from brokerset_sim.core_cluster import CoreCluster, Host

CHAIN_CHANCE = 0.1
"""That a chain begins in a tick, if none is under way."""

LINKS_MAX = 5
WAIT_TICKS_MAX = 40
"""How long a chain waits for a leader."""

TAIL_MAX = 40
"""Most commands that a leader takes just before it is isolated."""

UNASKED_CHANCE = 0.3
"""That a leader sends one member such a part of its log in a tick."""

SLOW_CHANCE = 0.05
"""That a disk becomes slow in a tick: a leader's in half of the cases."""


class Bias:
    """Makes such schedules in one cluster, drawn from a seed of its own."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(f"bias {seed}")
        self.heartbeat_ticks = self._dice.choice((1, 3))
        """With 3 there are ticks in which no round is under way."""

        self._seen_term = 0
        self._links = 0
        self._next_at = 0
        self._give_up_at = 0
        self._woken: dict[int, int] = {}
        self._asked: dict[int, int] = {}

    def step(self, cluster: CoreCluster) -> None:
        """What happens in this tick, ahead of drawn faults."""
        now = cluster.now
        for node_id in [each for each, at in self._woken.items() if at <= now]:
            del self._woken[node_id]
            cluster.ask_read(cluster.hosts[node_id])
        for node_id in [each for each, until in self._asked.items() if until < now]:
            del self._asked[node_id]
        for node_id in self._asked:
            cluster.ask_read(cluster.hosts[node_id])
        leader = self._leader(cluster)
        if leader is not None and leader.node is not None:
            if leader.node.term > self._seen_term:
                self._seen_term = leader.node.term
                if self._dice.random() < 0.5:
                    cluster.ask_change(leader)
            for target in cluster.hosts:
                if target != leader.node_id and self._dice.random() < UNASKED_CHANCE:
                    self._send_unasked(cluster, leader, target)
        if self._dice.random() < SLOW_CHANCE:
            victim = leader if leader is not None and self._dice.random() < 0.5 else None
            slow = victim or cluster.hosts[self._dice.choice(list(cluster.hosts))]
            slow.slow_until = now + self._dice.randint(2, 12)
        if self._links == 0:
            if self._dice.random() >= CHAIN_CHANCE:
                return
            self._links = self._dice.randint(2, LINKS_MAX)
            self._next_at, self._give_up_at = now, now + WAIT_TICKS_MAX
        if now >= self._next_at:
            if leader is not None:
                self._isolate(cluster, leader)
            elif now >= self._give_up_at:
                self._links = 0

    def _isolate(self, cluster: CoreCluster, leader: Host) -> None:
        dice = self._dice
        paused = dice.random() < 0.35
        until = cluster.now + dice.choice((20, 30, 40) if paused else (8, 14, 20, 30))
        if not paused:
            majority = cluster.size // 2 + 1
            others = [node_id for node_id in cluster.hosts if node_id != leader.node_id]
            company = dice.sample(others, min(dice.choice((0, 0, 1, 2)), majority - 1, len(others)))
            cluster.part((leader.node_id, *company), until)
            if dice.random() < 0.7:
                self._asked[leader.node_id] = until
        if dice.random() < 0.4:
            cluster.ask_change(leader)
        cluster.ask_commands(leader, dice.choice((0, 1, 5, TAIL_MAX)))
        if paused:
            leader.paused_until = until
            self._woken[leader.node_id] = until
        if dice.random() < 0.2:
            cluster.crash(dice.choice(list(cluster.hosts)))
        self._links -= 1
        self._next_at = until - dice.choice((0, 0, 1, 3))
        self._give_up_at = self._next_at + WAIT_TICKS_MAX

    def _send_unasked(self, cluster: CoreCluster, leader: Host, target: int) -> None:
        """A leader repeats any part of its log: what that holds is right, wherever it begins."""
        if leader.node is None or leader.node.role is not Role.LEADER:
            return
        if leader.disk.hard_state.term < leader.node.term:
            return  # alone in its group, and not even that is synced
        log = leader.node.log
        previous = self._dice.randint(max(log.first_index - 1, log.last_index - 30), log.last_index)
        term = log.term(previous)
        assert term is not None, f"entry {previous} is gone"
        entries = log.slice(previous + 1, previous + self._dice.choice((0, 0, 1, 3)), 1 << 20)
        body = AppendRequest(leader.node.term, previous, term, entries, leader.node.commit_index)
        cluster.send(leader, Message(leader.node_id, target, body))

    @staticmethod
    def _leader(cluster: CoreCluster) -> Host | None:
        """The one of the newest term that runs."""
        leading = [
            (host.node.term, host.node_id)
            for host in cluster.hosts.values()
            if host.node is not None and host.node.role is Role.LEADER and host.paused_until <= cluster.now
        ]
        return cluster.hosts[max(leading)[1]] if leading else None
