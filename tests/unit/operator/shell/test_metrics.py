"""The operator's measurements."""

from __future__ import annotations

import asyncio
from typing import Any

from brokerset_operator.metrics import Measurements
from brokerset_operator.reconcile_queue import GONE, Key, ReconcileQueue

ORDERS = Key("BrokerSet", "shop", "orders")


def status(**conditions: tuple[str, str]) -> dict[str, Any]:
    return {
        "conditions": [
            {"type": kind, "status": holds, "reason": reason} for kind, (holds, reason) in conditions.items()
        ]
    }


def shown(measurements: Measurements) -> dict[tuple[str, str, str], float]:
    """Value by name, type and reason."""
    return {
        (sample.labels["name"], sample.labels["type"], sample.labels["reason"]): sample.value
        for metric in measurements.registry.collect()
        for sample in metric.samples
        if sample.name == "brokerset_operator_condition"
    }


def test_each_condition_is_one_series_that_goes_with_its_object() -> None:
    """The newest reason alone is shown; a set that is gone is not shown any more, even if nobody asked."""

    async def work() -> None:
        measurements = Measurements(asyncio.get_running_loop().time)
        there = True
        done = asyncio.Event()

        async def reconcile(key: Key) -> float | None:
            if there:
                measurements.status(key, status(Ready=("False", "NoMaster"), Progressing=("True", "Rolling")))
                measurements.status(key, status(Ready=("True", "AsWanted"), Progressing=("False", "Done")))
            done.set()
            return 300.0 if there else GONE

        queue = ReconcileQueue(reconcile, workers=1, on_reconciled=measurements.reconciled)
        measurements.watch_queue(queue)
        running = asyncio.create_task(queue.run())
        queue.enqueue(ORDERS)
        async with asyncio.timeout(5):
            await done.wait()
            while queue.running:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)
        assert shown(measurements) == {
            ("orders", "Ready", "AsWanted"): 1.0,
            ("orders", "Progressing", "Done"): 0.0,
        }

        there = False
        done.clear()
        queue.enqueue(ORDERS)
        async with asyncio.timeout(5):
            await done.wait()
            while queue.running:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)
        assert (measurements.conditions, measurements.succeeded_at) == ({}, {})
        assert shown(measurements) == {}
        queue.stop()
        await running

    asyncio.run(work())
