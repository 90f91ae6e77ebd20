"""Looks at what masters and clients say of metadata, and asks its checkers. Never changes anything."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from brokerset_broker.member.role import Role
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_sim.metadata_checker import Change, Key, MetadataChecker
from brokerset_sim.process import Process

if TYPE_CHECKING:
    from brokerset_sim.replica_node import ReplicaNode
    from brokerset_sim.world import World

CHANGE = "simChange"
"""Header field: the number of a change."""

UNKNOWN_END = 2**63 - 1

ECHO_SECONDS = 8.0
"""When the network doubles requests: longer than any of them waits on its way, or is held."""


class MetadataWatch:
    """The witness of metadata."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._checkers: dict[str, MetadataChecker] = {}
        self._masters: dict[str, tuple[ReplicaNode, Process]] = {}
        self._newest: dict[str, int] = {}
        self._numbers = itertools.count(1)
        if world.plan.metadata_clients:
            world.witness.on_reply = self.reply_left

    def checker(self, group: str) -> MetadataChecker:
        """The checker of a group's metadata."""
        found = self._checkers.get(group)
        if found is None:
            echo = ECHO_SECONDS if self._world.plan.doubled else 0.0
            found = MetadataChecker(group, self._world.witness.counts, echo_seconds=echo)
            self._checkers[group] = found
        return found

    def next_number(self) -> int:
        """For another change; its value is made of it, so that no two changes want the same."""
        return next(self._numbers)

    # -- clients ------------------------------------------------------------------------------------------

    def begin(self, group: str, number: int, key: Key, value: int | None) -> Change:
        """A client is about to ask for a change."""
        return self.checker(group).begin(number, key, value, self._world.loop.time())

    def client_answered(self, group: str, change: Change) -> None:
        """A client was told that its change is stored: the newest master has it, too, if it serves."""
        checker = self.checker(group)
        self._world.witness.guard(lambda: checker.client_answered(change, self._world.loop.time()))
        node, process = self._masters.get(group, (None, None))
        if node is None or process is None or not process.alive or node.running is None:
            return
        running = node.running
        if running.process is process and running.keeper is not None and running.serves_as_master:
            tables = running.keeper
            self._world.witness.guard(lambda: checker.check(f"{process} (now)", tables.value, change.keys))

    def reply_left(self, server: Process, request: Command, reply: Command) -> None:
        """A broker answers; what a slave passes on its master has said before."""
        number = request.ext.get(CHANGE)
        if number is None or reply.code != ResponseCode.SUCCESS:
            return
        node: ReplicaNode = server.node
        if node.running is None:
            return
        if node.role.role is Role.MASTER:
            epoch, end = node.role.epoch, node.running.log.confirmed_offset
        else:  # a master until a moment ago: which epoch it was is not known any more
            epoch, end = 0, UNKNOWN_END
        self.checker(node.group).promised(int(number), epoch, end)

    # -- masters ------------------------------------------------------------------------------------------

    def serves(self, node: ReplicaNode, process: Process, epoch: int) -> None:
        """A master begins to serve. One that was stopped meanwhile may be late: there is a newer one."""
        if epoch < self._newest.get(node.group, 0) or not process.alive:
            return
        self._newest[node.group] = epoch
        self._masters[node.group] = (node, process)
        assert node.running is not None
        tables = node.running.keeper
        assert tables is not None
        checker = self.checker(node.group)
        self._world.witness.guard(lambda: checker.check(f"{process}, master in {epoch},", tables.value))

    def loss_recorded(self, group: str, epoch: int, from_offset: int) -> None:
        """An election may have lost what lies behind an offset."""
        self.checker(group).loss_recorded(epoch, max(from_offset, 0))

    def controllers_lost(self, group: str, epoch: int) -> None:
        """Epochs above `epoch` may be given again."""
        self._newest[group] = min(self._newest.get(group, 0), epoch)

    # -- at the end ---------------------------------------------------------------------------------------

    def final(self, group: str, master: ReplicaNode, others: Sequence[ReplicaNode]) -> None:
        """After everything healed: what the last master has, and who is in sync with it."""
        checker = self.checker(group)
        assert master.running is not None
        tables = master.running.keeper
        assert tables is not None
        checker.check(f"the last master {master.name}", tables.value)
        whole = tables.everything()
        for node in others:
            assert node.running is not None
            theirs = node.running.keeper
            assert theirs is not None
            checker.same(master.name, whole, node.name, theirs.everything())
