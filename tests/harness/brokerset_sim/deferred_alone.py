"""A broker without a group that has transactions and timer messages, and dies again and again.

What a group has in its log is in files here: the progress of checks is in `consumerOffset.json`, of timers in
`timercheck`. So it matters what reaches the disk before what.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brokerset_broker.app import Broker
from brokerset_broker.member.alone import Alone
from brokerset_broker.member.group_member import GroupMember
from brokerset_broker.member.role import RoleState
from brokerset_broker.requests.send_lane import SendLane
from brokerset_sim.deferred_checker import DeferredChecker
from brokerset_sim.deferred_plan import ALONE_FAULTS, DeferredPlan, draw_deferred
from brokerset_sim.deferred_world import DeferredNode, DeferredWorld, small_wheels
from brokerset_sim.ledger_checker import LedgerChecker
from brokerset_sim.ledger_node import LedgerNode, SimBroker
from brokerset_sim.ledger_plan import LedgerPlan
from brokerset_sim.ledger_world import simulate_ledger
from brokerset_sim.log_records import log_record
from brokerset_sim.page_files import PageFiles
from brokerset_sim.world import Outcome
from brokerset_spec.broker_settings import BrokerSettings

if TYPE_CHECKING:
    import socket

    from brokerset_broker.member.dledger.ledger_member import LedgerMember
    from brokerset_protocol.commands import Command
    from brokerset_sim.ledger_world import LedgerWorld
    from brokerset_sim.process import Process


class LoneBroker(SimBroker):
    """The production broker without a group and without sockets."""

    async def _take_part(self, group_socket: socket.socket | None) -> GroupMember | LedgerMember | Alone:
        return await Broker._take_part(self, None)

    def _make_send_lane(self) -> SendLane | None:
        return None  # requests come to handlers here

    def _role_taken(self, role: RoleState) -> None:
        Broker._role_taken(self, role)


class LoneNode(DeferredNode):
    """The broker's host."""

    @property
    def member(self) -> LedgerMember | None:
        """There is no group."""
        return None

    @property
    def leads(self) -> bool:
        """Whether it serves."""
        return self.up and self.broker is not None

    def settings(self, **changes: Any) -> BrokerSettings:
        """As in a group, without one; what is written now and then is written often."""
        values: dict[str, Any] = {
            "enable_dledger_commit_log": False,
            "dledger_peers": "",
            "flush_consumer_offset_interval": 200,
            "flush_delay_offset_interval": 200,
        }
        return super().settings(**(values | changes))

    def _make_broker(self, process: Process) -> SimBroker:
        return LoneBroker(self, process)


class LoneChecker(DeferredChecker):
    """The oracles read what is in the queues; the log is told from its beginning after each start."""

    def __init__(self, world: LedgerWorld, plan: DeferredPlan) -> None:
        super().__init__(world, plan)
        self._life: Process | None = None
        self._ends_read: dict[tuple[str, int], int] = {}
        """How far each queue was read, in this life."""

        self._epochs: dict[tuple[int, int], int] = {}
        """In which life a record was seen first, by offset and sum: after a crash another may be there."""

    def reply_left(self, server: Process, request: Command, reply: Command, token: object) -> None:
        """A handler answered."""
        self.answered(server, request, reply)

    def request_sent(self, client: Process, address: str, request: Command) -> object:
        """A request leaves."""
        return None

    @staticmethod
    def _epoch(node: LedgerNode) -> int:
        return node.starts

    def _examine(self, node: LedgerNode, broker: SimBroker) -> None:
        self._feed(broker)

    def _feed(self, broker: SimBroker) -> None:
        node = self._world.nodes[0]
        if node.process is not self._life:
            self._life = node.process
            self._ends_read.clear()
            self.transactions.forget_log()
            self.timers.forget_log()
            self._feed(broker)
            self._progress(node, broker)
            return
        store = broker.store
        places = []
        for queue in store.queues_table:
            begin = self._ends_read.get((queue.topic, queue.queue_id), queue.min_offset)
            self._ends_read[queue.topic, queue.queue_id] = queue.next_offset
            places += [queue.unit(number)[:2] for number in range(begin, queue.next_offset)]
        for offset, size in sorted(places):
            data = bytes(store.read(offset, size) or b"")
            epoch = self._epochs.setdefault((offset, zlib.crc32(data)), node.starts)
            record = log_record(data, epoch)
            if record is not None:
                self.timers.record(record)
                self.transactions.record(record)

    def compare(self) -> None:
        """Nothing is on its way. Raises `Violation`."""
        self.read_all()
        self.transactions.settled()
        self.timers.settled()


class LoneWorld(DeferredWorld):
    """A run. Make one, await `run`, read `failure`."""

    draw: Callable[[int], LedgerPlan] = staticmethod(lambda seed: draw_alone(seed))

    def _make_checker(self) -> LedgerChecker:
        return LoneChecker(self, self.deferred)

    def _make_node(self, number: int, files: PageFiles) -> LedgerNode:
        return LoneNode(self, number, files)

    def heal_clients(self) -> None:
        """All clients run; people start a broker again whose disk has failed."""
        super().heal_clients()
        node = self.nodes[0]
        if node.files.has_failed and node.up:
            self.stop(node, power=False)

    def _describe(self) -> str:
        return f"{'up' if self.nodes[0].leads else 'down'}, {self._left()}"

    def _one_leads(self) -> bool:
        return self.nodes[0].leads

    def _settled(self) -> bool:
        return self.nodes[0].leads and not any(self._left().values())


def draw_alone(seed: int) -> DeferredPlan:
    """The plan of a seed."""
    plan = draw_deferred(seed)
    source = random.Random(f"{seed}/alone plan")
    allowed = [each for each in ALONE_FAULTS if plan.sync_flush or each != "power"]
    faults = tuple(source.sample(allowed, source.randint(1, len(allowed))))
    clock_ms = source.choice((300, 2_000)) if "set clock" in faults else 0
    return replace(plan, members=1, faults=faults, clock_ms=clock_ms, drift=0.0)


def simulate_alone(seed: int, plan: DeferredPlan | None = None, *, show: bool = False) -> Outcome:
    """Run one seed from beginning to end."""
    with small_wheels():
        return simulate_ledger(seed, plan, show=show, kind=LoneWorld)
