"""Deliberate bugs of Shared groups and copies for retry, which the world `ordered` must notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from brokerset_broker.requests import ordered_shared
from brokerset_broker.requests.ordered_shared import SharedGroups
from brokerset_broker.tables.ordered import shared_pulls
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.ordered.shared_pulls import SharedQueue
from brokerset_client.ordered.consuming.composite_pull_client import OwnedPartition
from brokerset_controller.ordered.state import Subject
from brokerset_sim.broken_ordered import OrderedVariant, Patch, released_before_handlers_end, rewritten
from brokerset_sim.ordered_oracle import POSITION
from brokerset_sim.ordered_plan import OrderedPlan
from brokerset_sim.ordered_shared import ACKNOWLEDGED, BOUNDED, LETS_GO, ONE_SESSION
from brokerset_sim.ordered_world import PROGRESS


def _released_are_lost() -> list[Patch]:
    def forget(self: SharedQueue, session: str) -> bool:
        return self.logs.pop(session, None) is not None

    return [(SharedQueue, "forget", forget)]


def _forgotten_too_soon() -> list[Patch]:
    return [(ordered_shared, "SESSION_LOCK_SECONDS", 1.0)]


def _any_pull_log_acknowledges() -> list[Patch]:
    unchecked = ("header.first < pulls.start or header.last >= pulls.end", "False")
    return [(SharedGroups, "acknowledge", rewritten(SharedGroups.acknowledge, unchecked))]


def _ranges_in_memory_alone() -> list[Patch]:
    def acknowledged(self: OrderedTables, key: Any, ranges: Any, *, moved: bool) -> None:
        self.state.put_acks(key, ranges)

    return [(OrderedTables, "acknowledged", acknowledged)]


def _no_window() -> list[Patch]:
    return [(shared_pulls, "WINDOW", 20), (SharedQueue, "is_full", property(lambda self: False))]


def _no_copies_behind_the_end() -> list[Patch]:
    return [(Subject, "has_retries", lambda self, group: False)]


def _finished_at_once() -> list[Patch]:
    return [(OwnedPartition, "is_finished", property(lambda self: self.is_drained))]


SHARED = OrderedPlan(
    seconds=12.0,
    faults=("storm", "restart consumer"),
    pause=0.8,
    send_pause=0.1,
    handler_seconds=0.2,
    permission=4.0,
    heartbeat=0.7,
    hold=2.0,
    consumers=2,
    partitions=2,
    shared_groups=1,
)
SHARED_STALE = replace(
    SHARED,
    seconds=20.0,
    groups=(2,),
    faults=("switch over",),
    pause=1.0,
    send_pause=0.05,
    repeated=0.3,
    handler_seconds=0.05,
    permission=9.0,
    partitions=1,
)
SHARED_FAILOVERS = replace(
    SHARED, faults=("kill master", "switch over", "handlers are slow"), send_pause=0.03, fails=0.0
)
LATE_COPIES = OrderedPlan(
    seconds=10.0,
    strict=False,
    faults=("scale",),
    pause=1.0,
    send_pause=0.05,
    handler_seconds=0.02,
    permission=4.0,
    heartbeat=0.7,
    hold=1.0,
    fails=0.2,
)

VARIANTS = (
    OrderedVariant("a released session's messages are lost", _released_are_lost, (PROGRESS,), SHARED),
    OrderedVariant("a session is forgotten too soon", _forgotten_too_soon, (ONE_SESSION,), SHARED),
    OrderedVariant(
        "acknowledgements of any pull log count",
        _any_pull_log_acknowledges,
        (POSITION, ACKNOWLEDGED),
        SHARED_STALE,
    ),
    OrderedVariant(
        "acknowledged ranges are in memory alone", _ranges_in_memory_alone, (ACKNOWLEDGED,), SHARED_FAILOVERS
    ),
    OrderedVariant("no window for what is given", _no_window, (BOUNDED,), replace(SHARED, send_pause=0.02)),
    OrderedVariant(
        "a member of a shared group releases before its handlers end",
        released_before_handlers_end,
        (LETS_GO,),
        SHARED,
    ),
    OrderedVariant(
        "no copies behind the end of a partition", _no_copies_behind_the_end, (PROGRESS,), LATE_COPIES
    ),
    OrderedVariant("copies are finished at once", _finished_at_once, (PROGRESS,), LATE_COPIES),
)
