"""A broker without a group whose messages are popped, and which dies again and again.

Its check points are in the log, as in a group; positions and locks of ordered pops are in files. So it
matters what reaches the disk before what is answered.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from brokerset_sim.deferred_alone import LoneChecker, LoneNode, LoneWorld
from brokerset_sim.deferred_group_checker import records_between
from brokerset_sim.ledger_plan import LedgerPlan
from brokerset_sim.ledger_world import simulate_ledger
from brokerset_sim.log_records import LogRecord, log_record
from brokerset_sim.page_files import PageFiles
from brokerset_sim.pop_checker import PopRules
from brokerset_sim.pop_plan import PopPlan, draw_pop_alone
from brokerset_sim.pop_world import PopNode, PopPart, popping
from brokerset_sim.world import Outcome

if TYPE_CHECKING:
    from brokerset_sim.ledger_node import SimBroker


class PopLoneNode(PopNode, LoneNode):
    """The broker's host."""

    def stop(self, *, power: bool) -> None:
        """Kill the process. Its services may append a last record meanwhile: that is of this life, too."""
        broker = self.broker if self.up else None
        super().stop(power=power)
        if broker is not None:
            checker = self.world.checker
            assert isinstance(checker, PopLoneChecker)
            checker.left_behind(broker)


class PopLoneChecker(PopRules, LoneChecker):
    """The oracles read the log from its beginning after each start: a crash may have taken its end."""

    _read_until = 0

    def unconfirmed(self, broker: SimBroker) -> Iterator[LogRecord]:
        """All that is there was read."""
        return iter(())

    def left_behind(self, broker: SimBroker) -> None:
        """A process was killed: whatever its log has was written in its life."""
        for offset, data in records_between(broker, self._read_until, broker.store.log.max_offset):
            self._epochs.setdefault((offset, zlib.crc32(data)), self._world.nodes[0].starts)

    def _feed(self, broker: SimBroker) -> None:
        node = self._world.nodes[0]
        if node.process is not self._life:
            self._life = node.process
            self._read_until = 0
            self.pops.forget_log()
        for offset, data in records_between(broker, self._read_until, broker.store.log.max_offset):
            self._read_until = offset + len(data)
            epoch = self._epochs.setdefault((offset, zlib.crc32(data)), node.starts)
            record = log_record(data, epoch)
            if record is not None:
                self._became_committed(record)


class PopLoneWorld(PopPart, LoneWorld):
    """A run. Make one, await `run`, read `failure`."""

    draw: Callable[[int], LedgerPlan] = staticmethod(draw_pop_alone)

    def _make_checker(self) -> PopLoneChecker:
        return PopLoneChecker(self, self.pop_plan)

    def _make_node(self, number: int, files: PageFiles) -> PopLoneNode:
        return PopLoneNode(self, number, files)


def simulate_pop_alone(seed: int, plan: PopPlan | None = None, *, show: bool = False) -> Outcome:
    """Run one seed from beginning to end."""
    with popping(seed):
        return simulate_ledger(seed, plan, show=show, kind=PopLoneWorld)
