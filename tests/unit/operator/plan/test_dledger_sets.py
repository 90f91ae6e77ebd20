"""Sets whose groups elect their leaders by a DLedger: their members tell, and the same rules act on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_operator.model import names
from brokerset_operator.model.actions import DeletePod, PointMasterService, SwitchOver
from brokerset_operator.plan import reasons
from brokerset_sim.kubernetes_model import Kubernetes
from brokerset_sim.kubernetes_worlds import carry_on, condition, decide, is_done, of, settled

DLEDGER = {"replication": {"mode": "dledger"}}


def dledger(**spec: object) -> Kubernetes:
    return settled(**DLEDGER, **spec)


def leader_of(world: Kubernetes) -> str:
    group = world.groups["orders-0"]
    return next(pod.name for pod in world.broker_pods() if pod.ordinal + 1 == group.master)


def _answer(world: Kubernetes) -> str:
    requests = world.status.get("requests", {})
    return str(requests.get("switchover", {}).get("state"))


def message_of(world: Kubernetes, kind: str) -> str:
    return next(str(c["message"]) for c in world.status["conditions"] if c["type"] == kind)


@pytest.mark.parametrize("replicas", [3, 5])
def test_it_comes_up_without_controllers_and_its_status_has_the_term(replicas: int) -> None:
    world = dledger(replicas=replicas)

    (group,) = world.status["groups"]
    assert group["term"] == group["epoch"] - 1
    assert group["master"]["pod"] == leader_of(world)
    assert world.status["inSync"] == f"{replicas}/{replicas}"
    assert condition(world.status, "Ready") == ("True", reasons.AS_WANTED)
    assert condition(world.status, "ControllersReady") == ("True", reasons.AS_WANTED)
    assert not any("controller" in name for name in world.pods)
    assert sorted(pod for pod in world.pods if "namesrv" in pod) == ["orders-namesrv-0", "orders-namesrv-1"]


def test_followers_go_first_then_the_leader_hands_over_and_goes_last() -> None:
    world = dledger()
    leader = leader_of(world)

    world.image = "v2"
    done = carry_on(world, is_done)

    deleted = list(dict.fromkeys(action.name for action in of(DeletePod, done)))
    assert sorted(deleted) == ["orders-0-0", "orders-0-1", "orders-0-2"]
    assert deleted[-1] == leader
    assert len({action.epoch for action in of(SwitchOver, done)}) == 1
    assert leader_of(world) != leader


def test_controllers_that_serve_names_alone_are_replaced_before_the_brokers() -> None:
    world = dledger(controllers={"replicas": 3})

    world.image = "v2"
    done = carry_on(world, is_done)

    deleted = list(dict.fromkeys(action.name for action in of(DeletePod, done)))
    assert all("controller" in name for name in deleted[:3])
    assert len(deleted) == 6


@pytest.mark.parametrize("what", ["a member is behind", "nobody leads", "a pod is missing"])
def test_nothing_is_taken_down_while_a_member_lacks_what_is_committed(what: str) -> None:
    world = dledger()
    group, leader = world.groups["orders-0"], leader_of(world)
    world.apply_manifest(config={"maxMessageSize": 2_097_152})
    for action in decide(world.observe_now()).actions:
        world.carry_out(action)
    follower = next(pod for pod in world.broker_pods() if pod.name != leader)
    match what:
        case "a member is behind":
            group.in_sync.discard(follower.ordinal + 1)
        case "nobody leads":
            group.master = None
        case _:
            del world.pods[follower.name]

    world.status = dict(decide(world.observe_now()).status)
    decided = decide(world.observe_now())

    assert not of(DeletePod, decided.actions)
    assert not of(SwitchOver, decided.actions)


def test_a_lost_leader_is_followed_by_another_and_its_pod_comes_back_as_the_same_member() -> None:
    world = dledger()
    leader, epoch = leader_of(world), world.groups["orders-0"].epoch

    world.end_pod(world.pods[leader])
    carry_on(world, lambda found: found.groups["orders-0"].epoch > epoch)
    carry_on(world, lambda found: condition(found.status, "Ready") == ("True", reasons.AS_WANTED))

    ids = {broker["pod"]: broker["id"] for broker in world.status["groups"][0]["brokers"]}
    assert ids == {"orders-0-0": 1, "orders-0-1": 2, "orders-0-2": 3}


def test_a_group_of_which_nobody_answers_is_told_as_one_without_a_master() -> None:
    """Controllers would still tell of it; here only what the operator remembers says that there is one."""
    world = dledger()
    for pod in world.broker_pods():
        pod.runs_at = world.now + 60

    plan = decide(world.observe_now())

    assert condition(plan.status, "Ready") == ("False", reasons.NO_MASTER)
    assert not of(DeletePod, plan.actions)


@pytest.mark.parametrize("wanted", [5])
def test_the_number_of_members_is_kept_whatever_an_old_api_server_lets_through(wanted: int) -> None:
    world = dledger()

    world.apply_manifest(replicas=wanted)
    for _ in range(5):
        world.tick()
        plan = decide(world.observe_now())
        for action in plan.actions:
            world.carry_out(action)
        world.status = dict(plan.status)

    assert world.sets["orders-0"]["spec"]["replicas"] == 3
    assert condition(world.status, "ScaleRefused") == ("True", reasons.FIXED_MEMBERS)
    assert "members of a DLedger group cannot be added or taken away" in message_of(world, "ScaleRefused")


def test_volumes_of_fewer_members_do_not_become_a_part_of_a_larger_group() -> None:
    """Two empty members and one that was behind would be more than half of five, and elect that one."""
    world = dledger(storage={"whenDeleted": "Retain"})

    world.delete_set(replicas=5)
    for _ in range(10):
        world.tick()
        plan = decide(world.observe_now())
        for action in plan.actions:
            world.carry_out(action)
        world.status = dict(plan.status)

    assert world.broker_pods() == []
    assert condition(world.status, "ScaleRefused") == ("True", reasons.FIXED_MEMBERS)
    assert "volumes of 3 members are there from before" in message_of(world, "ScaleRefused")


def test_a_deleted_set_comes_back_on_its_volumes() -> None:
    world = dledger(storage={"whenDeleted": "Retain"})
    log = world.groups["orders-0"].acknowledged

    world.delete_set()
    carry_on(world, lambda found: condition(found.status, "Ready") == ("True", reasons.AS_WANTED))

    assert all(volume.log >= log for claim, volume in world.volumes.items() if "-0-" in claim)


def test_a_switchover_is_done_by_the_annotation() -> None:
    world = dledger()
    target = next(n for n in (1, 2, 3) if n != world.groups["orders-0"].master)

    world.annotations[names.SWITCH_OVER] = f"orders-0/{target}"
    carry_on(world, lambda found: _answer(found) == "Done")

    assert world.groups["orders-0"].master == target


def test_fences_are_refused_with_the_reason() -> None:
    world = dledger()

    world.annotations[names.FENCE] = "orders-0/2"
    plan = decide(world.observe_now())

    assert plan.status["requests"]["fence"]["state"] == "Refused"
    assert "a DLedger cannot do without a member" in plan.status["requests"]["fence"]["message"]


def test_the_service_is_led_to_the_leader_when_it_has_led_elsewhere_for_long() -> None:
    world = dledger()
    world.slices["orders-0-master"]["endpoints"] = [{"addresses": ["10.9.9.9"]}]
    first = decide(world.observe_now())
    world.status = dict(first.status)

    later = decide(replace(world.observe_now(), now=world.now + 30))

    assert not of(PointMasterService, first.actions)
    (point,) = of(PointMasterService, later.actions)
    assert point.pod == leader_of(world)


def test_without_a_name_server_the_set_is_not_ready() -> None:
    world = dledger()
    for name in ("orders-namesrv-0", "orders-namesrv-1"):
        world.pods[name].lost_node = True

    plan = decide(world.observe_now())

    assert condition(plan.status, "ControllersReady") == ("False", reasons.NAME_SERVERS_MISSING)
    assert condition(plan.status, "Ready") == ("False", reasons.NAME_SERVERS_MISSING)


def test_a_group_that_is_dropped_is_drained_as_any_other() -> None:
    world = dledger(groups=2)

    world.apply_manifest(groups=1)
    carry_on(world, lambda found: len(found.status["groups"]) == 1)

    assert "orders-1" not in world.sets
    assert world.groups["orders-1"].unread == 0
