from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator.apply import ACTION_FAILED, Means, NotLeading, Settled, carry_out, with_failure
from brokerset_operator.controllers_view import query_controllers
from brokerset_operator.events import Events
from brokerset_operator.model import names
from brokerset_operator.model.actions import (
    Action,
    AddController,
    ApplyObject,
    CleanBroker,
    DeleteObject,
    DeletePod,
    EmitEvent,
    Fence,
    MoveLeadership,
    ObjectRef,
    Plan,
    PointMasterService,
    RemoveController,
    ResizeClaim,
    SetPermission,
    SwitchOver,
)
from brokerset_operator.model.observed import Operator
from brokerset_operator.observe import ClusterFacts, Seen, observe
from brokerset_operator.plan.static import to_send
from brokerset_rig.controller_group import GROUP, brokers, controllers
from brokerset_rig.fake_kube import FakeKube, Fault
from brokerset_rig.operator_parts import NAMESPACE, a_pod, broker_set
from brokerset_runtime.clock import ManualClock, SystemClock


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def config_map(**data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "orders-0", "namespace": NAMESPACE, "labels": names.labels("orders")},
        "data": data,
    }


class Bench:
    """A set on a fake cluster, and what carries plans out."""

    def __init__(self, kube: FakeKube, client: KubeClient) -> None:
        self.kube = kube
        self.clock = ManualClock()
        self.leads = True
        self.means = Means(
            client=client,
            events=Events(client, self.clock, "test"),
            clock=self.clock,
            leads=lambda: self.leads,
        )
        self._facts = ClusterFacts(client, SystemClock())

    async def seen(self) -> Seen:
        found = await observe(
            self.means.client,
            self._facts,
            self.clock,
            namespace=NAMESPACE,
            name="orders",
            installed=Operator(image="x"),
        )
        assert found is not None
        return found

    async def keep(self, manifest: dict[str, Any]) -> None:
        """A reconcile of a plan that wants this one object."""
        seen = await self.seen()
        action = to_send(manifest, seen.observed.config_maps.get(manifest["metadata"]["name"]))
        actions = () if action is None else (action,)
        assert (await carry_out(Plan(actions, {"phase": "x"}, 5.0), seen, self.means)).failure is None

    async def do(self, *actions: Action, status: dict[str, Any] | None = None) -> str | None:
        """Carry actions out; returns the reason of the failure, if there is one."""
        outcome = await carry_out(Plan(actions, status or {"phase": "x"}, 5.0), await self.seen(), self.means)
        return None if outcome.failure is None else outcome.failure.reason


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    async with FakeKube() as kube, KubeClient(Access(kube.url), manager="tester") as client:
        kube.put(broker_set())
        yield Bench(kube, client)


def test_an_object_is_sent_once() -> None:
    """The same manifest again is no request; a changed one is."""

    async def work() -> None:
        async with bench() as found:
            for _ in range(3):
                await found.keep(config_map(a="1"))
            assert found.kube.count("apply") == 1

            await found.keep(config_map(a="2"))
            assert found.kube.count("apply") == 2

    run(work())


def test_drift_of_what_was_sent_is_corrected_and_additions_are_left() -> None:
    """A field of ours that somebody changed is sent again; fields of others are not ours."""

    async def work() -> None:
        async with bench() as found:
            await found.keep(config_map(a="1"))
            found.kube.change("configmaps", "orders-0", NAMESPACE, lambda live: live["data"].update(b="2"))
            await found.keep(config_map(a="1"))
            assert found.kube.count("apply") == 1

            found.kube.change("configmaps", "orders-0", NAMESPACE, lambda live: live["data"].update(a="9"))
            await found.keep(config_map(a="1"))
            live = found.kube.get("configmaps", "orders-0", NAMESPACE)
            assert live is not None
            assert live["data"] == {"a": "1", "b": "2"}

    run(work())


def test_a_field_that_is_not_wanted_any_more_goes() -> None:
    """A manifest with less is another manifest, though the live object has all of it."""

    async def work() -> None:
        async with bench() as found:
            await found.keep(config_map(a="1", b="2"))
            await found.keep(config_map(a="1"))

            live = found.kube.get("configmaps", "orders-0", NAMESPACE)
            assert live is not None
            assert live["data"] == {"a": "1"}

    run(work())


def test_an_object_that_the_server_keeps_differently_is_not_sent_for_ever() -> None:
    """What never looks like what was sent is applied once, and again only when it changes."""

    async def work() -> None:
        async with bench() as found:

            def rewrite(kind: str, live: dict[str, Any]) -> None:
                if live["kind"] == "ConfigMap":
                    live["data"]["a"] = "rewritten"  # as a server that normalizes

            found.kube.on_change = rewrite
            for _ in range(4):
                await found.keep(config_map(a="1"))
            assert found.kube.count("apply") == 1

            found.kube.on_change = None
            found.kube.change(
                "configmaps", "orders-0", NAMESPACE, lambda live: live["data"].update(a="drift")
            )
            await found.keep(config_map(a="1"))
            assert found.kube.count("apply") == 2

    run(work())


def test_the_memory_of_such_objects_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten, which costs one more request."""
    monkeypatch.setattr("brokerset_operator.apply.SETTLED_MAX", 2)
    settled = Settled()
    lives = [{"kind": "Pod", "metadata": {"uid": str(number)}} for number in range(3)]
    for live in lives:
        settled.remember(live, "sent")

    assert [settled.is_settled(live, "sent") for live in lives] == [False, True, True]


def test_jobs_that_read_a_brokers_volume_end_before_its_pod_does() -> None:
    """On another node the broker would wait for them; those of other brokers go on."""

    async def work() -> None:
        async with bench() as found:
            uid = found.kube.put(a_pod("orders-0-0", "broker"))["metadata"]["uid"]
            for pod in ("orders-0-0", "orders-0-1"):
                labels = {"brokerset.io/audited-pod": pod}
                metadata = {"name": f"audit-{pod}", "namespace": NAMESPACE, "labels": labels}
                found.kube.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata})
            metadata = {**metadata, "name": "failed", "labels": {"brokerset.io/audited-pod": "orders-0-0"}}
            failed = {"conditions": [{"type": "Failed", "status": "True"}]}
            found.kube.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "status": failed})

            assert await found.do(DeletePod("orders-0-0", uid, "roll")) is None

            deleted = [(call.plural, call.name) for call in found.kube.calls if call.verb == "delete"]
            assert deleted == [("jobs", "audit-orders-0-0"), ("pods", "orders-0-0")]
            assert found.kube.get("jobs", "failed", NAMESPACE) is not None, "its log says why it failed"

    run(work())


def test_only_the_very_pod_is_deleted() -> None:
    """A pod that was made again meanwhile is not deleted, and the reconcile ends with a conflict."""

    async def work() -> None:
        async with bench() as found:
            uid = found.kube.put(a_pod("orders-0-0", "broker"))["metadata"]["uid"]
            assert await found.do(DeletePod("orders-0-0", "another", "roll")) == "Conflict"
            assert found.kube.get("pods", "orders-0-0", NAMESPACE) is not None

            assert await found.do(DeletePod("orders-0-0", uid, "roll")) is None
            assert found.kube.get("pods", "orders-0-0", NAMESPACE) is None
            assert await found.do(DeletePod("orders-0-0", uid, "roll")) is None

    run(work())


def test_objects_are_deleted_with_or_without_what_they_own() -> None:
    """`orphan` keeps the pods of a StatefulSet that is made again."""

    async def work() -> None:
        async with bench() as found:
            owner = found.kube.put(
                {
                    "apiVersion": "apps/v1",
                    "kind": "StatefulSet",
                    "metadata": {"name": "s", "namespace": NAMESPACE},
                }
            )
            uid = owner["metadata"]["uid"]
            found.kube.put(a_pod("s-0", "broker", ownerReferences=[{"uid": uid}]))

            ref = ObjectRef("apps/v1", "StatefulSet", "s", uid)
            assert await found.do(DeleteObject(ref, "template", orphan=True)) is None

            assert found.kube.get("statefulsets", "s", NAMESPACE) is None
            assert found.kube.get("pods", "s-0", NAMESPACE) is not None

    run(work())


def test_a_claim_asks_for_more() -> None:
    """Only the requested size is changed."""

    async def work() -> None:
        async with bench() as found:
            claim = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data-orders-0-0", "namespace": NAMESPACE},
                "spec": {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]},
            }
            found.kube.put(claim)

            assert await found.do(ResizeClaim("data-orders-0-0", "2Gi")) is None

            live = found.kube.get("persistentvolumeclaims", "data-orders-0-0", NAMESPACE)
            assert live is not None
            assert live["spec"] == {
                "resources": {"requests": {"storage": "2Gi"}},
                "accessModes": ["ReadWriteOnce"],
            }

    run(work())


def test_a_master_service_never_goes_back_to_an_older_epoch() -> None:
    """The slice is corrected for its epoch or a later one, and left alone when it has a later one."""

    async def work() -> None:
        async with bench() as found:
            found.kube.put(
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {"name": "orders-0-master", "namespace": NAMESPACE},
                    "addressType": "IPv4",
                }
            )
            for epoch, pod, leads_to in ((3, "a", "a"), (5, "b", "b"), (4, "c", "b"), (5, "d", "d")):
                point = PointMasterService("orders-0-master", pod, "10.0.0.1", epoch)
                assert await found.do(point) is None
                live = found.kube.get("endpointslices", "orders-0-master", NAMESPACE)
                assert live is not None
                assert live["endpoints"][0]["targetRef"]["name"] == leads_to

    run(work())


def test_the_first_failure_ends_the_round_and_is_told() -> None:
    """Actions behind a failed one are not done; what the plan will do next is written down all the same."""

    async def work() -> None:
        async with bench() as found:
            kube = found.kube
            kube.change(
                "brokersets", "orders", NAMESPACE, lambda live: live.update(status={"workflow": {"step": 1}})
            )
            kube.faults.append(Fault("apply", "configmaps", code=422, reason="Invalid", message="bad"))

            reason = await found.do(
                ApplyObject(config_map()),
                EmitEvent("Never", "said"),
                status={"phase": "new", "workflow": {"step": 2}, "requests": {"x": 1}},
            )

            assert reason == "Invalid"
            assert kube.count("create", "events") == 0
            live = kube.get("brokersets", "orders", NAMESPACE)
            assert live is not None
            assert live["status"]["phase"] == "new"
            assert live["status"]["workflow"] == {"step": 2}
            assert live["status"]["requests"] == {"x": 1}
            assert live["status"]["conditions"][0]["type"] == ACTION_FAILED

    run(work())


def test_a_failure_that_lasts_keeps_its_time() -> None:
    """The condition's transition time is that of the first failure."""

    async def work() -> None:
        async with bench() as found:
            for _ in range(2):
                found.kube.faults.append(Fault("apply", "configmaps", code=422, reason="Invalid"))
                await found.do(ApplyObject(config_map()))
                found.clock.advance(60_000)
            live = found.kube.get("brokersets", "orders", NAMESPACE)

            assert live is not None
            assert live["status"]["conditions"][0]["lastTransitionTime"] == "2023-11-14T22:13:20Z"

    run(work())


def test_a_status_is_written_only_when_it_differs() -> None:
    """The same status again is no request."""

    async def work() -> None:
        async with bench() as found:
            for _ in range(3):
                await found.do(status={"phase": "same", "groups": [{"name": "a"}]})

            assert found.kube.count("patch", "brokersets") == 1

    run(work())


def test_nothing_is_changed_by_who_does_not_lead() -> None:
    """Leadership is asked for before each action and before the status."""

    async def work() -> None:
        async with bench() as found:
            found.leads = False
            with pytest.raises(NotLeading):
                await found.do(ApplyObject(config_map()))
            with pytest.raises(NotLeading):
                await found.do()

            assert found.kube.count("apply") == found.kube.count("patch") == 0

    run(work())


def test_an_event_is_told_once_and_counted_after_a_restart() -> None:
    """The same words within ten minutes are one Event; another operator's repetition counts up."""

    async def work() -> None:
        async with bench() as found:
            for _ in range(3):
                await found.do(EmitEvent("SwitchedOver", "orders-0: 1 to 2", warning=True))
            again = Events(found.means.client, found.clock, "another")
            live = found.kube.get("brokersets", "orders", NAMESPACE)
            assert live is not None
            await again.emit(live, "SwitchedOver", "orders-0: 1 to 2", warning=True)

            events = [item for key, item in found.kube.objects.items() if key[1] == "events"]
            assert len(events) == 1
            assert events[0]["regarding"]["name"] == "orders"
            assert events[0]["type"] == "Warning"
            assert events[0]["series"]["count"] == 2

    run(work())


def test_an_event_that_cannot_be_written_stops_nothing() -> None:
    """Without the right to write Events the plan goes on."""

    async def work() -> None:
        async with bench() as found:
            found.kube.forbidden.add(("create", "events"))

            assert await found.do(EmitEvent("X", "y"), ApplyObject(config_map())) is None
            assert found.kube.count("apply") == 1

    run(work())


def test_without_controllers_their_actions_fail_with_a_reason() -> None:
    """Nobody to ask is a typed failure."""

    async def work() -> None:
        async with bench() as found:
            assert await found.do(Fence("orders-0", 1, True, "x")) == "ControllersSilent"
            assert await found.do(SetPermission("orders-0", 4, "drain")) == "NotFound"
            delete = DeletePod("orders-0-0", "u", "roll", group="orders-0", epoch=1)
            assert await found.do(delete) == "ControllersSilent"

    run(work())


def test_requests_reach_controllers_and_brokers(tmp_path: Path) -> None:
    """Fencing, cleaning, switching over, members and leadership do at real controllers what they say."""

    async def work() -> None:
        async with (
            bench() as found,
            controllers(tmp_path, 3) as group,
            brokers(group, 3, ours=True) as several,
        ):
            view = await query_controllers({number: group.address(number) for number in range(3)})
            assert view.controllers.leader is not None
            seen = await found.seen()
            seen = Seen(seen.observed, seen.live, view.addresses)

            async def do(action: Action) -> str | None:
                seen_now = Seen(seen.observed, (await found.seen()).live, seen.controllers)
                outcome = await carry_out(Plan((action,), {"phase": "x"}, 5.0), seen_now, found.means)
                return None if outcome.failure is None else outcome.failure.reason

            async def state() -> Any:
                return (await query_controllers(dict(enumerate(map(group.address, range(3)))))).groups[GROUP]

            epoch = (await state()).master_epoch
            assert await do(SwitchOver(GROUP, 2, epoch + 1, "roll")) == "Overtaken"
            assert several[0].switch_overs == []
            assert await do(SwitchOver(GROUP, 2, epoch, "roll")) is None
            assert several[0].switch_overs[0].to_broker_id == 2

            assert await do(Fence(GROUP, 3, True, "scale in")) is None
            assert (await state()).fenced == (3,)
            assert await do(Fence(GROUP, 3, False, "back")) is None
            assert (await state()).fenced == ()
            assert await do(Fence("unknown", 3, True, "x")) == "Refused"

            assert (await state()).sync_state_set == (1, 2)
            assert await do(Fence(GROUP, 2, True, "scale in")) == "Refused"
            assert await do(Fence(GROUP, 2, True, "scale in", force=True)) is None
            assert (await state()).fenced == (2,)

            uid = found.kube.put(a_pod("orders-0-0", "broker"))["metadata"]["uid"]
            delete = DeletePod("orders-0-0", uid, "roll", group=GROUP, epoch=epoch + 1)
            assert await do(delete) == "Overtaken"
            assert found.kube.get("pods", "orders-0-0", NAMESPACE) is not None
            assert await do(replace(delete, group="unknown")) == "NotFound"
            assert await do(replace(delete, epoch=epoch)) is None
            assert found.kube.get("pods", "orders-0-0", NAMESPACE) is None
            assert await do(CleanBroker("unknown", 3, "x")) == "NotFound"

            leader = view.controllers.leader
            other = (leader + 1) % 3
            assert await do(MoveLeadership(other, "roll")) is None
            assert await group.leader() == other
            assert await do(RemoveController(other, "scale in")) is None
            now = await query_controllers({number: group.address(number) for number in range(3)})
            assert other not in now.controllers.members
            assert len(now.controllers.members) == 2
            assert await do(AddController(other, "127.0.0.1:1", "127.0.0.1:2")) is None

    run(work())


def test_the_condition_of_a_failure_replaces_nothing_else() -> None:
    """Conditions of the plan stay next to it."""

    async def work() -> None:
        async with bench() as found:
            seen = await found.seen()
            found.kube.faults.append(Fault("apply", "configmaps", code=500))
            outcome = await carry_out(
                Plan(
                    (ApplyObject(config_map()),), {"conditions": [{"type": "Ready", "status": "True"}]}, 5.0
                ),
                seen,
                found.means,
            )
            assert outcome.failure is not None

            status = with_failure({"conditions": [{"type": "Ready"}]}, seen.observed, outcome.failure)

            assert [one["type"] for one in status["conditions"]] == ["Ready", ACTION_FAILED]
            assert outcome.failure.reason == "ApiUnavailable"

    run(work())
