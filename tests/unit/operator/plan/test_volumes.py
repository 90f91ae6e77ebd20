"""Volumes that grow, are lost, or stay on dead nodes; services that lead astray."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerset_operator.model.actions import (
    CleanBroker,
    DeleteObject,
    DeletePod,
    PointMasterService,
    ResizeClaim,
)
from brokerset_operator.plan.objects import size_of
from brokerset_operator.plan.pods import read_pod
from brokerset_sim.kubernetes_model import Kubernetes
from brokerset_sim.kubernetes_worlds import carry_on, condition, decide, is_done, settled


@pytest.mark.parametrize(
    ("quantity", "size"),
    [
        ("20Gi", 20 * 2**30),
        ("21474836480", 20 * 2**30),
        ("1k", 1000),
        ("1.5Gi", 3 * 2**29),
        ("", 0),
        ("x", 0),
    ],
)
def test_quantities(quantity: str, size: int) -> None:
    """As the API server writes them."""
    assert size_of(quantity) == size


def test_claims_grow_and_the_stateful_set_is_made_again_around_its_pods() -> None:
    """No pod is deleted, and later pods get the new size too."""
    world = settled()
    uids = {pod.uid for pod in world.pods.values()}

    world.apply_manifest(storage={"size": "30Gi"})
    done = carry_on(world, is_done)

    assert {a.name for a in done if isinstance(a, ResizeClaim)} == {f"data-orders-0-{n}" for n in range(3)}
    assert [a.orphan for a in done if isinstance(a, DeleteObject)] == [True]
    assert {pod.uid for pod in world.pods.values()} == uids
    template = world.sets["orders-0"]["spec"]["volumeClaimTemplates"][0]
    assert template["spec"]["resources"]["requests"]["storage"] == "30Gi"


def test_claims_of_controllers_grow_alone() -> None:
    """By the same rules: no pod is deleted, and those of brokers are left as they are."""
    world = settled()
    uids = {pod.uid for pod in world.pods.values()}

    world.apply_manifest(controllers={"storage": {"size": "5Gi"}})
    done = carry_on(world, is_done)

    assert [a.size for a in done if isinstance(a, ResizeClaim)] == ["5Gi"] * 3
    assert {a.name for a in done if isinstance(a, ResizeClaim)} == {
        f"data-orders-controller-{n}" for n in range(3)
    }
    assert {pod.uid for pod in world.pods.values()} == uids


def test_a_class_that_does_not_expand_is_told_and_not_asked() -> None:
    """Condition StorageNotExpandable; everything else goes on."""
    world = settled()
    world.expandable = False

    world.apply_manifest(storage={"size": "30Gi"})
    done = carry_on(world, lambda w: condition(w.status, "StorageNotExpandable") == ("True", "ClassForbids"))

    assert not [action for action in done if isinstance(action, ResizeClaim)]


def test_a_class_that_cannot_be_read_is_asked_last() -> None:
    """Without cluster-wide rights the API server decides, and its refusal holds nothing up."""
    world = settled()
    world.apply_manifest(storage={"size": "30Gi"})

    decided = decide(replace(world.observe_now(), storage_classes={}))

    kinds = [type(action) for action in decided.actions]
    assert kinds[-3:] == [ResizeClaim] * 3


def test_volumes_never_shrink() -> None:
    """A smaller size is for brokers to come."""
    world = settled(storage={"size": "30Gi"})

    world.apply_manifest(storage={"size": "20Gi"})
    carry_on(world, is_done)

    assert {v.size for v in world.volumes.values() if "-0-" in v.claim} == {"30Gi"}


def test_the_id_of_a_lost_volume_is_forgotten_when_its_successor_is_in_sync() -> None:
    """The broker comes back empty with a new id; the old one is cleaned a minute later."""
    world = settled()
    group = world.groups["orders-0"]
    lost = next(p for p in world.pods.values() if p.volume.broker_id in group.in_sync - {group.master})
    old = lost.volume.broker_id
    del world.volumes[lost.volume.claim]
    world.end_pod(lost)

    done = carry_on(world, lambda found: old not in group.replicas)

    assert [(a.group, a.broker_id) for a in done if isinstance(a, CleanBroker)] == [("orders-0", old)]
    assert len(group.in_sync) == 3


@pytest.mark.parametrize("node", ["gone", "out of service", "not ready"])
def test_pods_on_dead_nodes(node: str) -> None:
    """By force only where the node is gone or declared dead; else people are told what to do."""
    world = settled()
    pod = world.pods["orders-0-2"]
    pod.lost_node, pod.node = True, "n1"
    world.end_pod(pod)
    world.now += 100
    observed = world.observe_now()
    taints: list[dict[str, Any]] = (
        [{"key": "node.kubernetes.io/out-of-service"}] if node == "out of service" else []
    )
    if node == "gone":
        observed = replace(observed, missing_nodes=frozenset({"n1"}))
    else:
        observed = replace(observed, nodes={"n1": {"spec": {"taints": taints}}})

    decided = decide(observed)

    forced = [a for a in decided.actions if isinstance(a, DeletePod) and a.force]
    assert [a.name for a in forced] == ([] if node == "not ready" else ["orders-0-2"])
    told = condition(dict(decided.status), "PodStuck")
    assert told == (("True", "NodeNotReady") if node == "not ready" else None)


def test_a_pod_that_ends_in_time_is_left_alone() -> None:
    """Within its grace nothing is forced."""
    world = settled()
    world.pods["orders-0-2"].lost_node = True
    world.end_pod(world.pods["orders-0-2"])

    decided = decide(world.observe_now())

    assert not [a for a in decided.actions if isinstance(a, DeletePod)]


def test_a_master_service_that_stays_astray_is_corrected() -> None:
    """After ten seconds; and never against a later epoch."""
    world = settled()
    group = world.groups["orders-0"]
    found = world.slices["orders-0-master"]

    def broken(_: Kubernetes) -> bool:
        found_now = world.slices["orders-0-master"]
        if not pointed:
            found_now["endpoints"] = [{"addresses": ["10.9.9.9"]}]
        return bool(pointed)

    pointed: list[PointMasterService] = []
    for _ in range(40):
        world.slices["orders-0-master"]["endpoints"] = [{"addresses": ["10.9.9.9"]}]
        decided = decide(world.observe_now())
        world.status = dict(decided.status)
        pointed += [a for a in decided.actions if isinstance(a, PointMasterService)]
        world.now += 1
        for replica in group.replicas.values():
            replica.last_seen = world.now

    assert found is not None
    assert pointed[0].epoch == group.epoch
    assert len(pointed) == 29

    world.slices["orders-0-master"]["metadata"]["annotations"]["brokerset.io/epoch"] = str(group.epoch + 1)
    assert not [a for a in decide(world.observe_now()).actions if isinstance(a, PointMasterService)]


@pytest.mark.parametrize(
    ("status", "broken"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, True),
        ({"phase": "Pending"}, False),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, False),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}]},
            True,
        ),
        ({"initContainerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}, True),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}
                ]
            },
            True,
        ),
    ],
)
def test_broken_pods_are_told_from_those_that_start(status: dict[str, Any], broken: bool) -> None:
    """Only a pod in which nothing runs, nor will, is broken."""
    pod = read_pod({"metadata": {"name": "orders-0-1", "uid": "u"}, "spec": {}, "status": status})

    assert pod is not None
    assert (pod.broken is not None) is broken
