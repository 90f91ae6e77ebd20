"""How far a group that pops is, of ordered pops: by their locks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brokerset_broker.pop.check_points import CheckPoints
from brokerset_broker.requests.pop.progress import PopProgress, Progress
from brokerset_broker.tables.pop.order_lock import OrderLock
from brokerset_broker.tables.pop.order_table import OrderTable

POP_MS = 1_000


def progress(now_ms: int, lock: OrderLock | None) -> PopProgress:
    log: Any = SimpleNamespace(is_known=True, points=CheckPoints())
    clock: Any = SimpleNamespace(now_ms=lambda: now_ms)
    table = OrderTable()
    if lock is not None:
        table.put("t", "g", 0, lock)
    return PopProgress(log_of_pops=log, locks=table, clock=clock)


LOCK = OrderLock(None, POP_MS, 500, (4, 5, 6, 9), acked=0b0101, consumed_at=POP_MS)
"""Messages 4 and 6 are acked; 7 and 8 were not wanted."""


def test_who_has_popped_nothing_has_no_progress() -> None:
    """Then pull offsets count."""
    assert progress(POP_MS, None).of("t", "g", 0, 3) is None


@pytest.mark.parametrize(
    ("now_ms", "committed", "found"),
    [
        (POP_MS + 499, 5, Progress(position=10, in_flight=2, ready_again=0, oldest=5)),
        (POP_MS + 500, 5, Progress(position=10, in_flight=0, ready_again=2, oldest=5)),
        (POP_MS, 20, Progress(position=20, in_flight=0, ready_again=0, oldest=20)),
    ],
    ids=["locked", "visible again", "somebody moved the group on"],
)
def test_open_messages_of_a_lock_are_in_flight_while_it_lasts(
    now_ms: int, committed: int, found: Progress
) -> None:
    """After that they are ready again; what was acked out of order is neither."""
    assert progress(now_ms, LOCK).of("t", "g", 0, committed) == found
