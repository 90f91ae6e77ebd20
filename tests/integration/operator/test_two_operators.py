"""Two installations of the operator that see the same set: one works on it, the other one says so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from brokerset_operator.model import names
from brokerset_operator.model.actions import Plan
from brokerset_operator.model.observed import Observed
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import (
    NAMESPACE,
    broker_set,
    condition,
    operator,
    simple_plan,
    until,
)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def owner(kube: FakeKube) -> str | None:
    live = kube.get("brokersets", "orders", NAMESPACE) or {}
    found: str | None = (live.get("status") or {}).get("operator")
    return found


def conflict(kube: FakeKube) -> str | None:
    found = condition(kube.get("brokersets", "orders", NAMESPACE), "OperatorConflict")
    return None if found is None else str(found["message"])


def size(kube: FakeKube) -> str | None:
    live = kube.get("configmaps", "orders-controller", NAMESPACE)
    return None if live is None else str(live["data"]["size"])


def larger_plan(observed: Observed) -> Plan:
    """What an operator of another version does: the same object, with other contents."""
    plan = simple_plan(observed)
    for action in plan.actions:
        action.manifest["data"]["size"] = "another version's"  # type: ignore[union-attr]
    return plan


def writes(kube: FakeKube) -> int:
    """Changes of the object about which they would fight."""
    return sum(
        call.plural == "configmaps" and call.verb not in ("get", "list", "watch") for call in kube.calls
    )


def test_the_second_operator_leaves_the_set_alone_and_says_so() -> None:
    """Before, each undid what the other one had written, without end and without a word."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube, lease_name="first", resync_seconds=5):
            kube.put(broker_set())
            await until(lambda: size(kube) == "20Gi")
            assert owner(kube) == "system/first"
            async with operator(kube, larger_plan, lease_name="second", resync_seconds=5):
                await until(lambda: conflict(kube) is not None)
                before = writes(kube)
                kube.change(
                    "configmaps", "orders-controller", NAMESPACE, lambda live: live["data"].update(size="1Gi")
                )
                await until(lambda: size(kube) == "20Gi")
                await asyncio.sleep(2)

                assert writes(kube) == before + 1
                assert owner(kube) == "system/first"
                assert "system/second leaves it alone" in (conflict(kube) or "")

    run(work())


def test_a_set_is_handed_over_by_its_annotation() -> None:
    """The first one lets go of it, the second one takes it, and the condition goes."""

    async def work() -> None:
        async with (
            FakeKube() as kube,
            operator(kube, lease_name="first"),
        ):
            kube.put(broker_set())
            await until(lambda: size(kube) == "20Gi")
            async with operator(kube, larger_plan, lease_name="second"):
                await until(lambda: conflict(kube) is not None)
                kube.change(
                    "brokersets",
                    "orders",
                    NAMESPACE,
                    lambda live: live["metadata"].update(annotations={names.OPERATOR: "system/second"}),
                )
                await until(lambda: owner(kube) == "system/second")
                await until(lambda: conflict(kube) is None)

    run(work())


def test_an_installation_that_is_gone_gives_its_sets_up() -> None:
    """It is gone when its Lease is; one that only stands still keeps them."""

    async def work() -> None:
        async with FakeKube() as kube:
            async with operator(kube, lease_name="first"):
                kube.put(broker_set())
                await until(lambda: size(kube) == "20Gi")
            async with operator(kube, lease_name="second", resync_seconds=5):
                await until(lambda: conflict(kube) is not None)
                assert owner(kube) == "system/first"

                kube.remove("leases", "first", "system")
                await until(lambda: owner(kube) == "system/second")

    run(work())


def test_a_newer_image_of_the_same_installation_goes_on_with_its_sets() -> None:
    """Its Lease has the same name, and so its mark."""

    async def work() -> None:
        async with FakeKube() as kube:
            async with operator(kube, lease_name="first", image="brokerset:1"):
                kube.put(broker_set())
                await until(lambda: size(kube) == "20Gi")
            kube.remove("configmaps", "orders-controller", NAMESPACE)
            async with operator(kube, lease_name="first", image="brokerset:2"):
                await until(lambda: size(kube) == "20Gi")
                assert conflict(kube) is None

    run(work())
