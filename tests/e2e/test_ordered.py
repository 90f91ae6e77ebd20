"""An ordered subject on real processes, some of which are killed and stopped while it is scaled."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_rig.local_set import LocalSet, local_set
from brokerset_rig.ordered_run import (
    GROUP,
    MANIFEST,
    PERMISSION_MS,
    SUBJECT,
    WAIT_MARGIN_MS,
    OrderedRun,
    with_short_permissions,
)

PRODUCERS, KEYS, COUNT, RATE = 2, 40, 5_000, 400.0


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSet]:
    with local_set(tmp_path_factory.mktemp("ordered"), MANIFEST) as found:
        with_short_permissions(found)
        found.until_healthy()
        yield found


@pytest.fixture
def run(local: LocalSet, tmp_path: Path) -> Iterator[OrderedRun]:
    found = OrderedRun(local, tmp_path)
    yield found
    found.end()


@pytest.mark.slow
def test_keys_keep_their_order_over_dead_and_frozen_consumers_a_dead_master_and_scaling(
    run: OrderedRun,
) -> None:
    """Strict: what was sent is handled, in its order, and stored once (statements 71, 72, 73, 76)."""
    run.local("subject", "create", SUBJECT, "--partitions", "2")
    for name in ("c1", "c2", "c3"):
        run.consume(name)
    began = time.monotonic()
    producers = [run.produce(f"p{n}", keys=KEYS, count=COUNT, rate=RATE) for n in range(PRODUCERS)]

    def at(seconds: float) -> None:
        time.sleep(max(0.0, began + seconds - time.monotonic()))

    at(3)
    run.scale(4)
    run.signal("c1", signal.SIGKILL)
    at(5)
    run.signal("c2", signal.SIGSTOP)
    run.consume("c4")
    at(6)
    run.kill_master("orders-0")
    at(6 + (PERMISSION_MS + WAIT_MARGIN_MS) / 1000 + 1)
    run.signal("c2", signal.SIGCONT)
    run.scale(3)
    sent = run.sent(producers)
    run.wait_until_handled(PRODUCERS * COUNT)
    run.stop_consumers()

    verdict, stored, state = run.verdict(sent), run.stored(sent), run.state()

    assert verdict.problems == []
    assert verdict.handled == PRODUCERS * COUNT
    assert stored.problems == []
    assert stored.handled == PRODUCERS * COUNT
    assert [group["members"] for group in state["groups"] if group["name"] == GROUP] == [[]]
    assert sum(each["status"] == "Open" for each in state["partitions"]) == 3
