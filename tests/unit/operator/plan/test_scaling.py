"""More and fewer brokers, controllers and groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerset_operator.model import names
from brokerset_operator.model.actions import (
    AddController,
    ApplyObject,
    CleanBroker,
    DeleteObject,
    Fence,
    MoveLeadership,
    ObjectRef,
    Plan,
    PromoteController,
    RemoveController,
    SetPermission,
    SwitchOver,
)
from brokerset_operator.model.observed import Meta, Observed, Operator
from brokerset_operator.plan.controllers import majority
from brokerset_operator.plan.deciding import plan
from brokerset_sim.kubernetes_model import BAD_IMAGE, Kubernetes
from brokerset_sim.kubernetes_worlds import carry_on, condition, decide, is_done, of, settled
from brokerset_spec.manifest import BrokerSet, read_manifest

MANIFEST = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet"}


def test_brokers_come_at_once() -> None:
    """From three to five: both pods are made together, and nothing else is touched."""
    world = settled()

    world.apply_manifest(replicas=5)
    done = carry_on(world, is_done)

    assert world.groups["orders-0"].in_sync == {1, 2, 3, 4, 5}
    assert not of(Fence, done)
    assert not of(SwitchOver, done)


def test_brokers_leave_one_by_one_fenced_and_their_claims_and_ids_stay() -> None:
    """From five to three: the highest ordinal first; id and claim are kept, and come back together."""
    world = settled(replicas=5)
    ids = {pod.ordinal: pod.volume.broker_id for pod in world.pods.values() if "-0-" in pod.name}

    world.apply_manifest(replicas=3)
    done = carry_on(world, is_done)

    assert [f.broker_id for f in of(Fence, done)][-1] == ids[3]
    assert not of(CleanBroker, done)
    assert not of(DeleteObject, done)
    assert "data-orders-0-4" in world.volumes

    world.apply_manifest(replicas=5)
    carry_on(world, is_done)

    assert world.groups["orders-0"].in_sync == set(ids.values())
    assert not world.groups["orders-0"].fenced


def test_with_the_annotation_claims_go_and_their_ids_are_forgotten() -> None:
    """The claim is deleted first, then the id that was on it."""
    world = settled(replicas=5)
    world.annotations[names.DELETE_CLAIMS] = "true"

    world.apply_manifest(replicas=4)
    done = carry_on(world, is_done)

    assert isinstance(next(a for a in done if isinstance(a, DeleteObject | CleanBroker)), DeleteObject)
    assert len(of(CleanBroker, done)) >= 1
    assert "data-orders-0-4" not in world.volumes


def test_a_master_that_is_to_leave_hands_over_first() -> None:
    """The master on the highest ordinal is never fenced nor removed: another one leads first."""
    world = settled()
    group = world.groups["orders-0"]
    group.master = world.pods["orders-0-2"].volume.broker_id

    world.apply_manifest(replicas=2)
    done = carry_on(world, is_done)

    kinds = [type(a).__name__ for a in done if isinstance(a, SwitchOver | Fence)]
    assert kinds[0] == "SwitchOver"
    assert group.master in group.in_sync


def test_scale_in_waits_while_too_few_would_stay_in_sync() -> None:
    """With a dead slave the living one does not leave; an annotation that names the group lets it."""
    world = settled(replicas=3, replication={"minInSyncReplicas": 2})
    group = world.groups["orders-0"]
    stay, leaver = world.pods["orders-0-1"], world.pods["orders-0-2"]
    group.master = world.pods["orders-0-0"].volume.broker_id
    world.apply_manifest(replicas=2)
    stay.runs_at, stay.registered = world.now + 1000, False

    carry_on(world, lambda found: condition(found.status, "ScaleRefused") == ("True", "BelowMinimum"))
    refused = leaver.volume.broker_id in group.fenced
    world.annotations[names.BELOW_MINIMUM] = "orders-0"
    carry_on(world, lambda found: leaver.volume.broker_id in group.fenced)

    assert not refused


def test_a_dead_broker_may_leave() -> None:
    """The highest ordinal that has died and left the in-sync set is in nobody's way."""
    world = settled()
    world.groups["orders-0"].master = world.pods["orders-0-0"].volume.broker_id
    gone = world.pods["orders-0-2"]
    gone.runs_at, gone.registered = world.now + 1000, False

    world.apply_manifest(replicas=2)
    carry_on(world, is_done)

    assert "orders-0-2" not in world.pods


def test_the_second_broker_of_two_may_leave() -> None:
    """From two to one: the fence leaves the master alone in sync, which the plan says it knows."""
    world = settled(replicas=2)

    world.apply_manifest(replicas=1)
    done = carry_on(world, is_done)

    assert all(fence.force for fence in of(Fence, done))
    assert world.groups["orders-0"].in_sync == {world.groups["orders-0"].master}


def test_a_lower_minimum_is_told_before_brokers_leave() -> None:
    """From three to two the minimum falls to one: every broker takes it before one of them goes, unrolled."""
    world = settled()

    world.apply_manifest(replicas=2)
    done = carry_on(world, is_done)

    kinds = [type(a).__name__ for a in done if type(a).__name__ in ("DeletePod", "TellSettings", "Fence")]
    assert list(dict.fromkeys(kinds)) == ["TellSettings", "Fence"]
    assert kinds.count("TellSettings") == 3


def test_a_group_that_never_had_a_master_is_made_smaller_at_once() -> None:
    """Nine brokers that no cluster has room for are taken back to one, which then becomes master."""
    world = Kubernetes(settled().rng)
    world.apply_manifest(replicas=9)
    carry_on(world, lambda found: found.leader is not None and len(found.pods) >= 8)
    for pod in world.pods.values():
        if pod.name in ("orders-0-7", "orders-0-8"):
            pod.runs_at, pod.registered = world.now + 1000, False

    world.apply_manifest(replicas=1)
    carry_on(world, lambda found: condition(found.status, "Ready") == ("True", "AsWanted"))

    assert world.groups["orders-0"].expected == 1


@pytest.mark.parametrize(("first", "then"), [(1, 3), (3, 5), (5, 3), (3, 1), (3, 2), (2, 4)])
def test_controllers_follow_the_manifest(first: int, then: int) -> None:
    """Members are added, then vote; are removed, and only then their pods go."""
    world = settled(controllers={"replicas": first})

    world.apply_manifest(controllers={"replicas": then})
    done = carry_on(world, is_done)

    assert world.members == dict.fromkeys(range(then), True)
    assert len(world.controller_pods()) == then
    assert len(of(AddController, done)) == len(of(PromoteController, done)) == max(0, then - first)
    assert len(of(RemoveController, done)) == max(0, first - then)


def test_a_leading_controller_that_is_to_go_hands_over() -> None:
    """Leadership moves to one that stays."""
    world = settled(controllers={"replicas": 5})
    world.leader = 4

    world.apply_manifest(controllers={"replicas": 3})
    done = carry_on(world, is_done)

    assert of(MoveLeadership, done)[0].to_node_id < 3


def test_an_emptied_controller_is_taken_out_and_in_again() -> None:
    """One that waits to join though it is a member has forgotten its votes."""
    world = settled()
    number = max(set(world.members) - {world.leader})
    del world.volumes[f"data-orders-controller-{number}"]
    world.end_pod(world.pods[f"orders-controller-{number}"])

    done = carry_on(world, lambda found: found.pods.get("x") is None and len(of_added(found)) == 3)
    done += carry_on(world, lambda w: bool(w.volumes.get(f"data-orders-controller-{number}")) and is_done(w))

    assert world.members == {0: True, 1: True, 2: True}
    assert world.volumes[f"data-orders-controller-{number}"].raft


def of_added(world: Kubernetes) -> list[int]:
    """Members that live and have data."""
    return sorted(set(world.members) & world.living_controllers())


def test_majorities() -> None:
    """More than half."""
    assert [majority(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_controllers_that_never_formed_a_group_keep_their_number() -> None:
    """The first members are written in the settings of each: another number would make two groups."""
    import random

    world = Kubernetes(random.Random(1))
    world.apply_manifest(controllers={"replicas": 3})
    for action in decide(world.observe_now()).actions:
        world.carry_out(action)

    world.apply_manifest(controllers={"replicas": 5})
    for action in decide(world.observe_now()).actions:
        world.carry_out(action)

    assert world.sets["orders-controller"]["spec"]["replicas"] == 3


def of_controllers(replicas: int) -> BrokerSet:
    """A manifest with so many controllers."""
    return read_manifest(
        {**MANIFEST, "metadata": {"name": "orders"}, "spec": {"controllers": {"replicas": replicas}}}
    )


def applied(decided: Plan) -> dict[tuple[str, str], Any]:
    """What a plan sends, by kind and name."""
    return {
        (action.manifest["kind"], action.manifest["metadata"]["name"]): action.manifest
        for action in decided.actions
        if isinstance(action, ApplyObject)
    }


@pytest.mark.parametrize("wanted", [1, 5])
@pytest.mark.parametrize("remembered", [True, False])
def test_first_members_stay_as_long_as_nobody_has_led(wanted: int, remembered: bool) -> None:
    """Neither the manifest nor who scales the StatefulSet changes pods or list of members before that."""
    first = Observed(
        meta=Meta(name="orders", namespace="shop", uid="u1", generation=1),
        manifest=of_controllers(3),
        operator=Operator(image="brokerset:1"),
        now=1_700_000_000.0,
    )
    made = applied(plan(first))["StatefulSet", "orders-controller"]
    scaled = {**made, "spec": {**made["spec"], "replicas": 4 if remembered else 3}}
    observed = replace(
        first,
        manifest=of_controllers(wanted),
        status={"workflow": {"controllerReplicas": 3}} if remembered else {},
        stateful_sets={"orders-controller": scaled},
    )

    decided = plan(observed)

    sent = applied(decided)
    settings = sent["ConfigMap", "orders-controller"]["data"]["controller.properties"]
    assert "raftJoin=false" in settings
    assert [f"n{n}-" in settings for n in range(4)] == [True, True, True, False]
    if remembered:
        assert sent["StatefulSet", "orders-controller"]["spec"]["replicas"] == 3
    else:
        assert ("StatefulSet", "orders-controller") not in sent
    assert decided.status["workflow"]["controllerReplicas"] == 3


def test_a_group_is_drained_and_its_claims_stay() -> None:
    """Read-only, read to the end, a time of grace, then the StatefulSet goes; claims stay all the same."""
    world = settled(groups=2, storage={"size": "20Gi", "whenDeleted": "Delete"})
    world.groups["orders-1"].unread = 5

    world.apply_manifest(groups=1)
    done = carry_on(world, lambda found: "orders-1" not in found.sets)

    assert of(SetPermission, done)[0].permission == 4
    assert world.groups["orders-1"].unread == 0
    assert "data-orders-1-0" in world.volumes


def test_unread_messages_keep_a_group_until_an_annotation_gives_them_up() -> None:
    """Condition Draining says what to do."""
    world = settled(groups=2)
    world.apply_manifest(groups=1)
    group = world.groups["orders-1"]

    def never_read(found: Kubernetes) -> bool:
        group.unread = 7
        return condition(found.status, "Draining") == ("True", "UnreadMessages")

    carry_on(world, never_read)
    world.annotations[names.DISCARD_GROUP] = "orders-1"
    carry_on(world, lambda found: "orders-1" not in found.sets)

    assert "data-orders-1-2" in world.volumes


def test_a_drain_that_is_called_off_makes_the_group_writable() -> None:
    """Groups go from two to one and back before the second is gone."""
    world = settled(groups=2)
    world.apply_manifest(groups=1)
    carry_on(world, lambda found: found.groups["orders-1"].permission == 4)

    world.apply_manifest(groups=2)
    carry_on(world, is_done)

    assert world.groups["orders-1"].permission == 6


def test_the_highest_group_goes_first() -> None:
    """A lower group waits, drained, until the higher one is gone."""
    world = settled(groups=3, replicas=1)
    world.apply_manifest(groups=1)
    top = world.groups["orders-2"]

    def unread(found: Kubernetes) -> bool:
        top.unread = 3
        return found.now > begun + 90

    begun = world.now
    carry_on(world, unread)
    stayed = "orders-1" in world.sets
    carry_on(world, lambda found: "orders-1" not in found.sets)

    assert stayed
    assert "orders-2" not in world.sets


def test_a_wanted_controller_is_added_before_the_last_one_goes() -> None:
    """From three to one while the first is no member: those that are to go have somebody to hand over to."""
    world = settled()
    world.apply_manifest(controllers={"replicas": 1})
    world.members, world.leader = {1: True}, 1

    carry_on(world, is_done)

    assert world.members == {0: True}


def test_brokers_of_a_group_that_is_to_go_are_mended_so_that_it_can_be_drained() -> None:
    """Without a broker that runs nobody could read what is left: pods with a bad image are replaced."""
    world = settled(groups=2, replicas=1)
    pod = world.pods["orders-1-0"]
    pod.image, pod.hash, pod.revision, pod.registered = BAD_IMAGE, "old", "old", False

    world.apply_manifest(groups=1)
    carry_on(world, lambda found: "orders-1" not in found.sets)

    assert world.groups["orders-1"].unread == 0


def test_what_was_seen_late_does_not_take_back_that_a_broker_goes() -> None:
    """The broker is fenced, and its pod is gone, while the StatefulSet is still seen with it."""
    world = settled(replicas=4)
    world.apply_manifest(replicas=3)
    carry_on(world, lambda found: bool(found.groups["orders-0"].fenced))
    observed = world.observe_now()
    gone = observed.groups["orders-0"].fenced[0]
    assert world.pods["orders-0-3"].volume.broker_id == gone
    pods = {name: pod for name, pod in observed.pods.items() if name != "orders-0-3"}

    decided = decide(replace(observed, pods=pods))

    (sent,) = [manifest for (kind, name), manifest in applied(decided).items() if name == "orders-0"]
    assert sent["spec"]["replicas"] == 3


def test_a_claim_goes_only_when_its_pod_cannot_be_about_to_come() -> None:
    """What is seen may be from before the pod was asked for: the claim stays for as long as that may be."""
    world = settled(replicas=4)
    world.annotations[names.DELETE_CLAIMS] = "true"
    world.apply_manifest(replicas=3)
    began = world.now

    carry_on(world, lambda found: "data-orders-0-3" not in found.volumes)

    assert world.now - began >= 30


def test_a_group_that_is_wanted_again_gets_the_permission_of_the_manifest() -> None:
    """Somebody may want it to be readable only."""
    world = settled(groups=2, config={"brokerPermission": 4})
    world.apply_manifest(groups=1)
    carry_on(world, lambda found: any("drainSince" in g for g in found.status["workflow"]["groups"]))

    world.apply_manifest(groups=2)
    done = carry_on(world, is_done)

    assert {action.permission for action in of(SetPermission, done)} == {4}


def test_the_stateful_set_of_a_group_that_is_to_go_is_not_made_again() -> None:
    """Larger volumes are for groups that stay: one that goes keeps its claim templates until it is gone."""
    world = settled(groups=2)
    world.apply_manifest(groups=1, storage={"size": "30Gi"})

    done = carry_on(world, is_done)

    replaced = [a.ref.name for a in of(DeleteObject, done) if a.ref.kind == "StatefulSet" and a.orphan]
    assert replaced == ["orders-0"]
    assert "orders-1" not in world.sets
    assert not [pod for pod in world.pods.values() if pod.keeper == "orders-1"]


def test_pods_without_a_stateful_set_and_without_a_memory_go_with_their_group() -> None:
    """Orphans run on: a StatefulSet takes them in, so that they are drained and go as others do."""
    world = settled(groups=2)
    uid = world.sets["orders-1"]["metadata"]["uid"]
    world.carry_out(DeleteObject(ObjectRef("apps/v1", "StatefulSet", "orders-1", uid), "", orphan=True))
    world.apply_manifest(groups=1)
    world.groups["orders-1"].unread = 5
    world.status["workflow"]["groups"][1]["replicas"] = 0

    done = carry_on(world, is_done)

    assert of(SetPermission, done)[0].permission == 4
    assert world.groups["orders-1"].unread == 0
    assert not [pod for pod in world.pods.values() if pod.keeper == "orders-1"]
    assert "orders-1" not in world.sets


def test_pods_that_go_with_their_stateful_set_are_waited_for() -> None:
    """Kubernetes deletes them in a moment: another StatefulSet would bring them back."""
    world = settled(groups=2)
    world.apply_manifest(groups=1)
    world.status["workflow"]["groups"][1]["replicas"] = 0
    observed = world.observe_now()
    sets = {name: found for name, found in observed.stateful_sets.items() if name != "orders-1"}

    decided = decide(replace(observed, stateful_sets=sets))

    sent = [a.manifest for a in of(ApplyObject, decided.actions)]
    assert not [m for m in sent if m["metadata"]["name"] == "orders-1" and m["kind"] == "StatefulSet"]
    assert condition(dict(decided.status), "Progressing") == ("True", "DrainingGroup")


def test_a_lower_group_that_was_not_probed_waits_without_a_complaint() -> None:
    """Only some groups are probed at a time: of the others nobody says that their master is silent."""
    world = settled(groups=3, replicas=1)
    world.apply_manifest(groups=1)
    top = world.groups["orders-2"]

    def drained(found: Kubernetes) -> bool:
        top.unread = 3
        return top.permission == 4

    carry_on(world, drained)
    observed = world.observe_now()
    decided = decide(replace(observed, drains={"orders-2": observed.drains["orders-2"]}))

    told = {c["type"]: c["message"] for c in decided.status["conditions"]}
    assert "orders-2 is to go" in told["Draining"]
    assert "orders-1" not in told["Draining"]
    assert "orders-1 goes after those with higher numbers" in told["Progressing"]
