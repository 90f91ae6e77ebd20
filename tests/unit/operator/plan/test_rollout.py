"""Replacing old pods."""

from __future__ import annotations

import pytest

from brokerset_operator.model import names
from brokerset_operator.model.actions import DeletePod, MoveLeadership, Plan, SwitchOver
from brokerset_operator.plan.pods import STALE_SECONDS, read_pod
from brokerset_sim.kubernetes_model import BAD_IMAGE, Kubernetes
from brokerset_sim.kubernetes_worlds import carry_on, condition, decide, is_done, of, settled


def twice(world: Kubernetes) -> Plan:
    """What is decided in the second of two reconciles, when the first one has written something down."""
    world.status = dict(decide(world.observe_now()).status)
    for action in decide(world.observe_now()).actions:
        if type(action).__name__ == "ApplyObject":
            world.carry_out(action)
    return decide(world.observe_now())


def test_slaves_go_first_then_the_master_hands_over_and_goes_last() -> None:
    """A roll replaces each slave once, switches over once, and then replaces the old master."""
    world = settled()
    group = world.groups["orders-0"]
    master = next(
        p.name for p in world.pods.values() if p.volume.broker_id == group.master and "-0-" in p.name
    )

    world.image = "v2"
    done = carry_on(world, is_done)

    brokers = [
        a
        for a in done
        if isinstance(a, DeletePod | SwitchOver) and "controller" not in getattr(a, "name", "")
    ]
    kinds = [type(action).__name__ for action in brokers if not isinstance(action, DeletePod) or action.epoch]
    assert list(dict.fromkeys(kinds)) == ["DeletePod", "SwitchOver"]
    deleted = list(dict.fromkeys(action.name for action in of(DeletePod, done) if "-0-" in action.name))
    assert len(deleted) == 3
    assert deleted[-1] == master
    assert len({action.epoch for action in of(SwitchOver, done)}) == 1


def test_controllers_go_first_and_their_leader_last() -> None:
    """No broker is touched before all controllers are new, and the leader hands over before it goes."""
    world = settled()
    leader = world.leader

    world.image = "v2"
    done = carry_on(world, is_done)

    deleted = list(dict.fromkeys(action.name for action in of(DeletePod, done)))
    assert all("controller" in name for name in deleted[:3])
    assert deleted[2] == f"orders-controller-{leader}"
    assert of(MoveLeadership, done)


def test_a_pod_is_written_down_before_it_is_deleted() -> None:
    """The reconcile that chooses a pod only writes it down; the next one deletes it, and it alone."""
    world = settled(controllers={"replicas": 1})
    world.apply_manifest(config={"flushIntervalCommitLog": 400})
    first = decide(world.observe_now())
    for action in first.actions:
        world.carry_out(action)
    world.status = dict(first.status)

    second = decide(world.observe_now())
    world.status = dict(second.status)
    third = decide(world.observe_now())

    assert not of(DeletePod, [*first.actions])
    written = [
        g["replacing"]["pod"]
        for p in (first, second)
        for g in p.status["workflow"]["groups"]
        if "replacing" in g
    ]
    assert written
    deleted = of(DeletePod, [*second.actions]) or of(DeletePod, [*third.actions])
    assert [action.name for action in deleted] == [written[0]]


@pytest.mark.parametrize(
    "what", ["slave is out of sync", "no master", "controllers are silent", "pod is missing"]
)
def test_nothing_is_taken_down_while_a_group_is_not_whole(what: str) -> None:
    """No pod that runs is deleted while its group could not spare it."""
    world = settled()
    group = world.groups["orders-0"]
    world.apply_manifest(config={"fileReservedTime": 60})
    for action in decide(world.observe_now()).actions:
        world.carry_out(action)
    slave = next(p for p in world.pods.values() if p.volume.broker_id in group.in_sync - {group.master})
    match what:
        case "slave is out of sync":
            group.in_sync.discard(slave.volume.broker_id or 0)
        case "no master":
            group.master = None
        case "controllers are silent":
            world.leader = None
        case _:
            del world.pods[slave.name]

    decided = twice(world)

    assert not [action for action in decided.actions if isinstance(action, DeletePod | SwitchOver)]


def test_one_replica_is_restarted_in_place() -> None:
    """A group of one has nobody to hand over to: its pod is replaced, which is a pause."""
    world = settled(replicas=1)

    world.image = "v2"
    done = carry_on(world, is_done)

    assert not of(SwitchOver, done)
    assert "orders-0-0" in {action.name for action in of(DeletePod, done)}


def test_a_supervised_roll_waits_for_approval_of_this_very_epoch() -> None:
    """The master is left alone until an annotation names its group and epoch, not an older one."""
    world = settled(update={"strategy": "supervised"})
    epoch = world.groups["orders-0"].epoch
    world.image = "v2"

    def waiting(found: Kubernetes) -> bool:
        return condition(found.status, "Progressing") == ("True", "WaitingForApproval")

    done = carry_on(world, waiting)
    world.annotations[names.APPROVE] = f"orders-0/{epoch - 1}"
    carry_on(world, waiting)
    world.annotations[names.APPROVE] = f"orders-0/{epoch}"
    rest = carry_on(world, is_done)

    assert not of(SwitchOver, done)
    assert of(SwitchOver, rest)


def test_a_pod_that_does_not_start_stops_the_roll_and_the_old_manifest_heals_it() -> None:
    """Of a bad image one controller and no broker tries; with the old image again everything is new."""
    world = settled()

    world.image = BAD_IMAGE
    carry_on(world, lambda w: condition(w.status, "Progressing") == ("True", "RollWaits"))
    broken = [pod.name for pod in world.pods.values() if pod.image == BAD_IMAGE]
    world.image = "v1"
    carry_on(world, is_done)

    assert len(broken) == 1
    assert "controller" in broken[0]


def test_a_first_creation_with_a_bad_image_is_mended_by_a_good_one() -> None:
    """Old pods that do not run are replaced at once though no controller ever answered."""
    world = settled()
    fresh = Kubernetes(world.rng)
    fresh.apply_manifest(replicas=3)
    fresh.image = BAD_IMAGE
    for _ in range(10):
        fresh.tick()
        decided = decide(fresh.observe_now())
        for action in decided.actions:
            fresh.carry_out(action)
        fresh.status = dict(decided.status)

    fresh.image = "v1"
    carry_on(fresh, is_done)

    assert condition(fresh.status, "Ready") == ("True", "AsWanted")


def test_an_image_that_was_rewritten_on_its_way_in_is_no_reason_to_replace() -> None:
    """A pod of the newest revision is new, whatever its image is called."""
    world = settled()
    for pod in world.pods.values():
        pod.image = f"mirror/{pod.image}"

    decided = twice(world)

    assert not of(DeletePod, [*decided.actions])
    assert condition(decided.status, "Progressing") == ("False", "Done")


def test_a_minimum_of_all_replicas_does_not_stop_a_roll() -> None:
    """Where every broker must be in sync a roll pauses sends, and is done nevertheless."""
    world = settled(replication={"minInSyncReplicas": 3})

    world.image = "v2"
    carry_on(world, is_done)

    assert condition(world.status, "Ready") == ("True", "AsWanted")


def test_a_fenced_broker_is_replaced_and_does_not_stop_the_roll_when_enough_stay() -> None:
    """With four replicas one may be fenced, and all pods become new."""
    world = settled(replicas=4)
    group = world.groups["orders-0"]
    fenced = max(group.in_sync - {group.master})
    group.fenced.add(fenced)
    group.in_sync.discard(fenced)

    world.image = "v2"
    carry_on(world, is_done)

    assert group.fenced == {fenced}


def test_a_stateful_set_whose_image_was_rewritten_is_no_reason_either() -> None:
    """Whoever rewrites images of pods may do so with those of StatefulSets."""
    world = settled()
    for found in world.sets.values():
        found["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/v1"
    for pod in world.pods.values():
        pod.image = "mirror/v1"

    decided = decide(world.observe_now())

    assert not of(DeletePod, decided.actions)
    assert "controller" not in decided.status["workflow"]
    assert not any("replacing" in group for group in decided.status["workflow"]["groups"])


@pytest.mark.parametrize(("own", "broken"), [("running", False), ("waiting", True)])
def test_only_the_own_container_tells_that_a_pod_does_not_run(own: str, broken: bool) -> None:
    """A container that somebody else puts into pods may fail while the broker serves."""
    failing = {"waiting": {"reason": "CrashLoopBackOff"}}
    pod = {
        "metadata": {"name": "orders-0-1", "labels": {"app.kubernetes.io/component": "broker"}},
        "status": {
            "initContainerStatuses": [{"name": "proxy", "state": failing}],
            "containerStatuses": [
                {"name": "agent", "state": failing},
                {"name": "broker", "state": {"running": {}} if own == "running" else failing},
            ],
        },
    }

    found = read_pod(pod)

    assert found is not None
    assert (found.broken is not None) == broken


@pytest.mark.parametrize(("seconds_ago", "waits"), [(0.0, True), (STALE_SECONDS + 1, False)])
def test_a_start_that_was_written_down_too_late_stops_no_roll(seconds_ago: float, waits: bool) -> None:
    """A later start than the remembered one never comes when that was the new pod's already."""
    world = settled()
    pod = world.pods["orders-0-2"]
    assert pod.volume.broker_id is not None
    world.status["workflow"]["groups"][0]["replacing"] = {
        "pod": pod.name,
        "uid": "the pod before",
        "since": world.now - seconds_ago,
        "id": pod.volume.broker_id,
        "incarnation": world.groups["orders-0"].replicas[pod.volume.broker_id].incarnation,
    }

    decided = decide(world.observe_now())

    assert ("replacing" in decided.status["workflow"]["groups"][0]) == waits
