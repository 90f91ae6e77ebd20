from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import aiohttp
import pytest

from brokerset_operator.apply import ACTION_FAILED
from brokerset_operator.elector import LeaseLost
from brokerset_operator.model import names
from brokerset_operator.model.actions import Plan
from brokerset_operator.model.observed import Observed
from brokerset_operator.plan.static import SENT_ANNOTATION
from brokerset_rig.fake_kube import FakeKube, Fault
from brokerset_rig.operator_parts import (
    NAMESPACE,
    RunningOperator,
    a_pod,
    broker_set,
    condition,
    operator,
    simple_plan,
    until,
)
from brokerset_rig.stack import free_port


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def size(kube: FakeKube, name: str = "orders", namespace: str = NAMESPACE) -> str | None:
    live = kube.get("configmaps", f"{name}-controller", namespace)
    return None if live is None else live["data"]["size"]


def ready(kube: FakeKube, name: str = "orders", namespace: str = NAMESPACE) -> str | None:
    found = condition(kube.get("brokersets", name, namespace), "Ready")
    return None if found is None else found["status"]


def test_a_set_is_carried_out_and_followed() -> None:
    """What a BrokerSet says is made, told in its status, and made again when the manifest changes."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube):
            kube.put(broker_set())
            await until(lambda: ready(kube) == "True")
            assert size(kube) == "20Gi"

            kube.change(
                "brokersets", "orders", NAMESPACE, lambda live: live["spec"].update(storage={"size": "50Gi"})
            )
            await until(lambda: size(kube) == "50Gi")

            live = kube.get("brokersets", "orders", NAMESPACE)
            await until(lambda: kube.objects and live is not None)
            await until(
                lambda: (
                    (kube.get("brokersets", "orders", NAMESPACE) or {})["status"]["observedGeneration"] == 2
                )
            )

    run(work())


def test_what_somebody_else_changes_is_put_right() -> None:
    """Drift of a child is seen by its own event and corrected; a child that is deleted comes back."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube):
            kube.put(broker_set())
            await until(lambda: ready(kube) == "True")
            kube.change(
                "configmaps", "orders-controller", NAMESPACE, lambda live: live["data"].update(size="1Gi")
            )
            await until(lambda: size(kube) == "20Gi")
            kube.remove("configmaps", "orders-controller", NAMESPACE)
            await until(lambda: size(kube) == "20Gi")

    run(work())


def test_an_invalid_manifest_is_told_and_nothing_is_touched() -> None:
    """The status has every problem, and what runs is left alone."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube):
            kube.put(broker_set(replicas=0, groups="many"))
            await until(lambda: ready(kube) == "False")

            found = condition(kube.get("brokersets", "orders", NAMESPACE), "Ready")
            assert found is not None
            assert "spec.replicas" in found["message"]
            assert "spec.groups" in found["message"]
            assert size(kube) is None

    run(work())


def test_an_idle_set_costs_no_request() -> None:
    """When everything is as wanted the Lease is all that is written or read."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube):
            for number in range(5):
                kube.put(broker_set(f"set-{number}"))
            await until(lambda: all(ready(kube, f"set-{number}") == "True" for number in range(5)))
            asked: set[str] = set()
            while asked != {"leases"}:  # at first there are the reconciles that our own writes have marked
                before = len(kube.calls)
                await asyncio.sleep(2)
                asked = {call.plural for call in kube.calls[before:]}
            rested = len(kube.calls)
            await asyncio.sleep(2)

            assert {call.plural for call in kube.calls[rested:]} == {"leases"}

    run(work())


def test_a_failed_action_is_told_in_a_condition_that_goes_again() -> None:
    """A missing right is named in the status of the set; granted, the set goes on by itself."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube):
            kube.forbidden.add(("patch", "configmaps"))
            kube.put(broker_set())
            await until(lambda: condition(kube.get("brokersets", "orders", NAMESPACE), ACTION_FAILED))
            found = condition(kube.get("brokersets", "orders", NAMESPACE), ACTION_FAILED)
            assert found is not None
            assert found["reason"] == "Forbidden"
            assert "verb patch, resource configmaps" in found["message"]

            kube.forbidden.clear()
            await until(lambda: size(kube) == "20Gi")
            await until(lambda: condition(kube.get("brokersets", "orders", NAMESPACE), ACTION_FAILED) is None)

    run(work())


def test_a_server_that_fails_now_and_then_delays_only() -> None:
    """500s, broken connections and conflicts are tried again until the set is as wanted."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube):
            kube.faults += [
                Fault("list", "pods", code=500, times=1),
                Fault("apply", "configmaps", code=0, times=2, after=True),
                Fault("patch", "brokersets", code=409, reason="Conflict", times=1),
                Fault("watch", "*", code=503, times=3),
            ]
            kube.put(broker_set())
            await until(lambda: ready(kube) == "True")

            assert size(kube) == "20Gi"

    run(work())


def test_a_status_is_never_written_over_a_newer_manifest() -> None:
    """What was decided on an older manifest does not claim to be about the newer one."""

    async def work() -> None:
        async with FakeKube() as kube:
            changed = asyncio.Event()

            def slow(observed: Observed) -> Plan:
                if not changed.is_set():
                    changed.set()
                    kube.change(
                        "brokersets",
                        "orders",
                        NAMESPACE,
                        lambda live: live["spec"].update(storage={"size": "9Gi"}),
                    )
                return simple_plan(observed)

            async with operator(kube, slow):
                kube.put(broker_set())
                await until(lambda: ready(kube) == "True")

                live = kube.get("brokersets", "orders", NAMESPACE)
                assert live is not None
                assert live["status"]["observedGeneration"] == live["metadata"]["generation"] == 2
                assert size(kube) == "9Gi"

    run(work())


def test_of_two_operators_one_works_and_the_other_takes_over() -> None:
    """The standby watches nothing and changes nothing until the leader has ended."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube, identity="one") as one:
            await until(lambda: one.process.elector.leads)
            async with operator(kube, identity="two") as two:
                kube.put(broker_set())
                await until(lambda: ready(kube) == "True")
                watches = kube.watches
                await asyncio.sleep(1)
                assert not two.process.elector.leads
                assert kube.watches == watches
                assert two.process.health.ready_problems() == []

                await one.end()
                kube.put(broker_set("later"))
                await until(lambda: ready(kube, "later") == "True")
                assert two.process.elector.leads

    run(work())


def test_a_new_operator_writes_nothing_that_is_as_wanted() -> None:
    """After a restart sets are looked at, and neither objects nor status are written."""

    async def work() -> None:
        async with FakeKube() as kube:
            async with operator(kube) as first:
                for number in range(5):
                    kube.put(broker_set(f"set-{number}"))
                await until(lambda: all(ready(kube, f"set-{number}") == "True" for number in range(5)))
                await first.end()
            before = len(kube.calls)
            async with operator(kube) as second:
                await until(lambda: len(second.process.measurements.succeeded_at) == 5)

            written = [call for call in kube.calls[before:] if call.verb not in ("get", "list", "watch")]
            assert {call.plural for call in written} == {"leases"}

    run(work())


def test_an_operator_that_dies_in_the_middle_is_no_harm() -> None:
    """Killed between an action and the status, the next operator finishes what it finds."""

    async def work() -> None:
        async with FakeKube() as kube:
            kube.faults.append(Fault("patch", "brokersets", code=200, delay=60, times=1))
            async with operator(kube) as first:
                kube.put({**broker_set(), "status": {"operator": "system/brokerset-operator"}})
                await until(lambda: size(kube) == "20Gi")
                await first.kill()
            assert ready(kube) is None
            async with operator(kube):
                await until(lambda: ready(kube) == "True")

    run(work())


def test_who_loses_the_lease_ends() -> None:
    """An operator that cannot renew stops its work and ends with `LeaseLost`."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube, lease_seconds=6) as one:
            kube.put(broker_set())
            await until(lambda: ready(kube) == "True")
            kube.faults.append(Fault("*", "leases", code=503, times=10_000))
            with pytest.raises(ExceptionGroup) as caught:
                async with asyncio.timeout(30):
                    await one.task

            assert caught.group_contains(LeaseLost)
            kube.put(broker_set("later"))
            await asyncio.sleep(0.5)
            assert ready(kube, "later") is None

    run(work())


def test_a_deleted_set_is_forgotten() -> None:
    """Owned objects go by themselves; the operator lets go of what it knew, and keeps nothing."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube) as one:
            kube.put(broker_set())
            await until(lambda: ready(kube) == "True")
            kube.remove("brokersets", "orders", NAMESPACE)
            await until(lambda: not one.process.queue.schedule.all_known())

            assert kube.get("configmaps", "orders-controller", NAMESPACE) is None

    run(work())


def test_many_sets_in_many_namespaces_are_looked_after_by_one() -> None:
    """A hundred sets are carried out, each in a bounded number of requests."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube) as one:
            for number in range(100):
                kube.put(broker_set("orders", f"shop-{number % 10}-{number // 10}"))
            await until(lambda: len(one.process.measurements.succeeded_at) == 100)
            await until(lambda: kube.count("apply") == 100)
            assert kube.count("patch", "brokersets") == 200  # who looks after it, and what was done

    run(work())


def test_only_the_named_namespaces_are_looked_after() -> None:
    """With namespaces set, nothing outside is watched, listed or touched."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube, namespaces="shop,bank"):
            for namespace in ("shop", "bank", "other"):
                kube.put(broker_set("orders", namespace))
            await until(lambda: ready(kube) == ready(kube, "orders", "bank") == "True")

            assert ready(kube, "orders", "other") is None
            touched = {call.namespace for call in kube.calls if call.plural not in ("leases",)}
            assert touched <= {"shop", "bank"}

    run(work())


def test_custom_resources_may_be_installed_later() -> None:
    """An operator without the CRD of BrokerSets is not ready, and waits."""

    async def work() -> None:
        async with FakeKube(absent=frozenset({"BrokerSet"})) as kube, operator(kube) as one:
            await until(lambda: one.process.elector.leads)
            await until(lambda: kube.count("update", "leases") > 0)

            assert one.process.health.ready_problems() == ["leads, and is starting its watches"]
            assert kube.watches == 0

    run(work())


def test_probes_and_figures_are_served() -> None:
    """The HTTP port answers /healthz, /readyz and /metrics with the age of each set's last success."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube, http_port=free_port(), bind_address="127.0.0.1") as one:
            kube.put(broker_set())
            await until(lambda: ready(kube) == "True")
            await until(lambda: one.process.measurements.succeeded_at)
            base = f"http://127.0.0.1:{one.process.http_port}"
            async with aiohttp.ClientSession() as session:
                texts = {}
                for path in ("/healthz", "/readyz", "/metrics"):
                    async with session.get(base + path) as answer:
                        assert answer.status == 200, await answer.text()
                        texts[path] = await answer.text()

            measurements = texts["/metrics"]
            assert (
                'brokerset_operator_last_success_age_seconds{kind="BrokerSet",name="orders"' in measurements
            )
            assert "brokerset_operator_leads 1.0" in measurements
            assert (
                'brokerset_operator_api_requests_total{outcome="ok",resource="configmaps",verb="apply"}'
                in measurements
            )

    run(work())


def test_everything_applied_carries_the_hash_of_what_was_sent() -> None:
    """The annotation lets a later operator see that nothing is to be sent."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube):
            kube.put(broker_set())
            await until(lambda: size(kube) is not None)

            live = kube.get("configmaps", "orders-controller", NAMESPACE)
            assert live is not None
            assert len(live["metadata"]["annotations"][SENT_ANNOTATION]) == 16

    run(work())


def reconciles(one: RunningOperator) -> float:
    """Reconciles of BrokerSets that succeeded."""
    value = one.process.measurements.registry.get_sample_value(
        "brokerset_operator_rounds_total", {"kind": "BrokerSet", "outcome": "success"}
    )
    return value or 0.0


def test_a_regular_look_at_a_set_that_is_well_asks_the_api_server_for_nothing() -> None:
    """Until any object that it consists of changes, or somebody writes its status."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube, resync_seconds=5) as one:
            kube.put(broker_set())
            kube.put(a_pod("orders-controller-0", "controller", ip="127.0.0.9"))
            await until(lambda: ready(kube) == "True")
            await until(lambda: one.process.quiescent._quiescent)
            begun, before = reconciles(one), len(kube.calls)
            await until(lambda: reconciles(one) >= begun + 2)
            # Whether kopf has told everything is asked once for all sets, and the Lease is renewed.
            asked = {(call.verb, call.plural, call.name) for call in kube.calls[before:]}
            assert asked <= {
                ("list", "brokersets", ""),
                ("list", "topics", ""),
                ("list", "subjects", ""),
                ("list", "users", ""),
                ("list", "storeaudits", ""),
                ("list", "storemigrations", ""),
                ("list", "storeexports", ""),
                ("update", "leases", "brokerset-operator"),
            }

            for child in (("policy/v1", "PodDisruptionBudget"), ("monitoring.coreos.com/v1", "PodMonitor")):
                before = kube.count("list", "pods")
                kube.put(
                    {
                        "apiVersion": child[0],
                        "kind": child[1],
                        "metadata": {
                            "name": "x",
                            "namespace": NAMESPACE,
                            "labels": {names.SET_LABEL: "orders"},
                        },
                    }
                )
                await until(lambda before=before: kube.count("list", "pods") > before)  # type: ignore[misc]  # bound now

            await until(lambda: one.process.quiescent._quiescent)
            kube.change("brokersets", "orders", NAMESPACE, lambda live: live.update(status={}))
            await until(lambda: ready(kube) == "True")

    run(work())


def test_conditions_of_sets_are_figures_until_the_sets_are_gone() -> None:
    """One series for each condition, with its reason."""

    async def work() -> None:
        async with FakeKube() as kube, operator(kube) as one:

            def condition_of(reason: str) -> float | None:
                return one.process.measurements.registry.get_sample_value(
                    "brokerset_operator_condition",
                    {
                        "kind": "BrokerSet",
                        "namespace": NAMESPACE,
                        "name": "orders",
                        "type": "Ready",
                        "reason": reason,
                    },
                )

            kube.put(broker_set(replicas=0))
            await until(lambda: condition_of("InvalidSpec") == 0.0)
            kube.change("brokersets", "orders", NAMESPACE, lambda live: live.update(spec={}))
            await until(lambda: condition_of("AsWanted") == 1.0)
            assert condition_of("InvalidSpec") is None

            kube.remove("brokersets", "orders", NAMESPACE)
            await until(lambda: condition_of("AsWanted") is None)

    run(work())
