"""Kinds of ours that a cluster lacks: BrokerSets are served without them, and they are picked up later."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from brokerset_kube import kinds
from brokerset_kube.credentials import Access
from brokerset_kube.kinds import Kind
from brokerset_operator import own_kinds
from brokerset_operator.app import OperatorProcess
from brokerset_operator.handlers import run_kopf
from brokerset_operator.settings import OperatorSettings
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import (
    NAMESPACE,
    RunningOperator,
    broker_set,
    condition,
    operator,
    simple_plan,
    until,
)

FURTHER = frozenset({"Topic", "StoreAudit", "StoreMigration", "StoreExport"})


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look every few milliseconds."""
    for name in ("CHECK_SECONDS", "REST_SECONDS", "MISSING_SECONDS"):
        monkeypatch.setattr(own_kinds, name, 0.05)


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


def ready(kube: FakeKube, plural: str = "brokersets", name: str = "orders") -> str | None:
    found = condition(kube.get(plural, name, NAMESPACE), "Ready")
    return None if found is None else found["status"]


def audit() -> dict[str, Any]:
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "StoreAudit",
        "metadata": {"name": "nightly", "namespace": NAMESPACE},
        "spec": {"brokerSetRef": {"name": "orders"}},
    }


def metric(one: RunningOperator, kind: str) -> float | None:
    """1 if the operator says that a kind is served."""
    return one.process.measurements.registry.get_sample_value(
        "brokerset_operator_kind_served", {"kind": kind}
    )


@pytest.mark.parametrize("absent", [FURTHER, frozenset({"StoreAudit"}), frozenset({"Topic"})], ids=len)
def test_a_set_is_served_without_the_other_kinds(absent: frozenset[str]) -> None:
    """The operator is ready, and its measurements say what is missing."""

    async def work() -> None:
        async with FakeKube(absent=absent) as kube, operator(kube) as one:
            kube.put(broker_set())
            await until(lambda: ready(kube) == "True")
            await until(lambda: one.process.health.ready_problems() == [])

            assert {kind for kind in FURTHER if metric(one, kind) == 0} == set(absent)
            assert metric(one, "BrokerSet") == 1
            asked = {call.plural for call in kube.calls if call.verb in ("list", "watch")}
            assert not asked & {kind.plural for kind in kinds.OWN if kind.kind in absent}

    run(work())


def test_a_kind_that_comes_later_is_picked_up_with_what_is_there_and_what_comes() -> None:
    """No restart, and sets are followed all the time."""

    async def work() -> None:
        async with FakeKube(absent=FURTHER) as kube, operator(kube) as one:
            kube.put(broker_set())
            await until(lambda: ready(kube) == "True")

            kube.absent = frozenset()
            kube.put(audit())
            await until(lambda: ready(kube, "storeaudits", "nightly") is not None)
            assert metric(one, "StoreAudit") == 1

            def suspended(live: dict[str, Any]) -> None:
                live["spec"]["schedule"] = "every night"

            kube.change("storeaudits", "nightly", NAMESPACE, suspended)
            await until(
                lambda: (
                    condition(kube.get("storeaudits", "nightly", NAMESPACE), "Ready")["reason"]  # type: ignore[index]
                    == "InvalidSpec"
                )
            )
            kube.put(broker_set("later"))
            await until(lambda: ready(kube, name="later") == "True")
            await until(lambda: one.process.health.ready_problems() == [])

    run(work())


def test_a_kind_that_goes_stops_nothing() -> None:
    """Its objects are forgotten; sets are followed, and the process goes on."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube) as one:
            kube.put(broker_set())
            kube.put(audit())
            await until(lambda: ready(kube, "storeaudits", "nightly") is not None)
            assert len(one.process.queue.schedule.all_known()) == 2

            kube.absent = frozenset({"StoreAudit"})
            kube.drop_watches()
            await until(lambda: metric(one, "StoreAudit") == 0)
            await until(lambda: len(one.process.queue.schedule.all_known()) == 1)

            kube.put(broker_set("later"))
            await until(lambda: ready(kube, name="later") == "True")
            assert not one.task.done()

    run(work())


def test_a_kind_that_may_not_be_read_is_left_out_until_it_may() -> None:
    """An account of an older chart has no rights on it: a set does not wait for those."""

    async def work() -> None:
        async with FakeKube() as kube:
            kube.forbidden.add(("list", "storemigrations"))
            async with operator(kube) as one:
                kube.put(broker_set())
                await until(lambda: ready(kube) == "True")
                assert metric(one, "StoreMigration") == 0

                kube.forbidden.clear()
                await until(lambda: metric(one, "StoreMigration") == 1)

    run(work())


def test_what_is_served_stays_while_the_api_server_fails() -> None:
    """An error, or a group that is being installed again, is no news of kinds."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube) as one:
            kube.put(broker_set())
            await until(lambda: ready(kube) == "True")
            served = one.process.own_kinds.served

            kube.absent = frozenset(kind.kind for kind in kinds.OWN)
            await one.process.own_kinds.check()

            assert one.process.own_kinds.served == served == kinds.OWN

    run(work())


class SilentCluster:
    """An API server that knows kinds, and has no object of any."""

    def __init__(self) -> None:
        self.absent = ""

    async def serves_which(self, asked: Sequence[Kind]) -> list[Kind]:
        return [kind for kind in asked if kind.kind != self.absent]

    async def list(self, _kind: Kind, _namespace: str | None) -> SimpleNamespace:
        return SimpleNamespace(items=[])


def test_a_watch_that_goes_on_after_a_kind_has_gone_is_replaced() -> None:
    """It is cancelled, and the next one begins without that kind."""
    watches: list[Sequence[Kind]] = []

    async def go_on(watched: Sequence[Kind]) -> None:
        watches.append(watched)
        await asyncio.Event().wait()

    async def work() -> None:
        cluster: Any = SilentCluster()
        own = own_kinds.OwnKinds(cluster, (None,), know=lambda *_: None, gone=lambda _: None)
        await own.begin()
        watching = asyncio.create_task(own.watch(go_on))
        await until(lambda: len(watches) == 1)

        cluster.absent = "StoreAudit"
        await own.check()
        await until(lambda: len(watches) == 2)
        watching.cancel()

    run(work())

    assert [kind.kind for kind in set(watches[0]) - set(watches[1])] == ["StoreAudit"]


def test_with_kopf_a_kind_comes_and_goes() -> None:
    """kopf runs with the kinds that there are."""

    async def work() -> None:
        async with FakeKube(absent=frozenset({"StoreAudit"})) as kube:
            process = OperatorProcess(
                OperatorSettings(image="brokerset:test", http_port=0),
                access=Access(kube.url, namespace="system"),
                plan=simple_plan,
                watch_sets=run_kopf,
            )
            one = RunningOperator(process)
            try:
                kube.put(broker_set())
                await until(lambda: ready(kube) == "True")

                kube.absent = frozenset()
                kube.put(audit())
                await until(lambda: ready(kube, "storeaudits", "nightly") is not None)

                kube.absent = frozenset({"StoreAudit"})
                kube.drop_watches()
                await until(lambda: metric(one, "StoreAudit") == 0)
                kube.put(broker_set("later"))
                await until(lambda: ready(kube, name="later") == "True")
            finally:
                await one.end()

    run(work())
