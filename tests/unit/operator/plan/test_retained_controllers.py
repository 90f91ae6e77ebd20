"""Controllers of a set that is made again from the volumes of a deleted one of the same name."""

from __future__ import annotations

import pytest

from brokerset_operator.model import names
from brokerset_operator.model.actions import DeletePod
from brokerset_sim.kubernetes_model import Kubernetes
from brokerset_sim.kubernetes_worlds import carry_on, condition, decide, is_done, of, settled

NUMBERS = (1, 2, 3, 5)


def with_controllers(replicas: int) -> Kubernetes:
    """A set at rest, whose volumes stay when it is deleted."""
    return settled(controllers={"replicas": replicas}, storage={"size": "20Gi", "whenDeleted": "Retain"})


def has_settled(world: Kubernetes) -> bool:
    """Whether everything is as the manifest wants it."""
    return is_done(world) and condition(world.status, "Ready") == ("True", "AsWanted")


@pytest.mark.parametrize("later", NUMBERS)
@pytest.mark.parametrize("before", NUMBERS)
def test_the_set_comes_back_whatever_number_the_new_manifest_says(before: int, later: int) -> None:
    """First those that voted, so that they agree; then the number follows the manifest, down or up."""
    world = with_controllers(before)

    world.delete_set(controllers={"replicas": later})
    carry_on(world, has_settled)

    assert world.members == dict.fromkeys(range(later), True)
    assert len(world.controller_pods()) == later


def test_a_set_that_was_scaled_in_before_comes_back() -> None:
    """The volumes of those that left are old, and no harm: who voted last agrees without them."""
    world = with_controllers(5)
    world.apply_manifest(controllers={"replicas": 3})
    carry_on(world, has_settled)

    world.delete_set(controllers={"replicas": 1})
    carry_on(world, has_settled)

    assert world.members == {0: True}


def test_a_set_that_an_earlier_operator_left_stuck_is_healed() -> None:
    """One pod of three, remembered as the first number: the others come, without an edit."""
    world = with_controllers(3)
    world.delete_set(controllers={"replicas": 1})
    stuck = decide(world.observe_now())
    for action in stuck.actions:
        world.carry_out(action)
    world.sets["orders-controller"]["spec"]["replicas"] = 1
    world.config_maps["orders-controller"]["data"]["broker.properties"] = "raftJoin=false\n"
    world.status = {**stuck.status, "workflow": {"controllerReplicas": 1, "groups": []}}

    carry_on(world, has_settled)

    assert world.members == {0: True}


def test_the_claims_are_named_while_their_controllers_start() -> None:
    """Who asked for one controller is told why three start."""
    world = with_controllers(3)
    world.delete_set(controllers={"replicas": 1})

    status = decide(world.observe_now()).status

    messages = {one["type"]: one["message"] for one in status["conditions"]}
    for kind in ("Ready", "Progressing", "ControllersReady"):
        assert (
            "data-orders-controller-0, data-orders-controller-1, data-orders-controller-2" in messages[kind]
        )
        assert "3 of them start" in messages[kind]


def test_volumes_of_a_set_that_never_began_do_not_keep_it_from_beginning() -> None:
    """All controllers answer that they have nothing and wait for others: then they begin as new ones do."""
    world = with_controllers(3)
    for volume in world.volumes.values():
        volume.raft, volume.broker_id = False, None
    world.members, world.groups = {}, {}

    world.delete_set(controllers={"replicas": 3})
    done = carry_on(world, has_settled)

    assert {action.name for action in of(DeletePod, done)} == {
        names.controller_pod("orders", n) for n in range(3)
    }
    assert world.members == dict.fromkeys(range(3), True)


def test_a_new_volume_between_retained_ones_does_not_vote_until_it_is_added() -> None:
    """The model refuses a controller that begins a group of its own next to one that has data."""
    world = with_controllers(3)
    world.delete_set(controllers={"replicas": 3})
    del world.volumes["data-orders-controller-1"]

    carry_on(world, has_settled)

    assert world.members == dict.fromkeys(range(3), True)


def test_a_majority_whose_volumes_are_gone_is_said_with_what_to_do() -> None:
    """The one that is left tells who voted; waiting would not help. Without it new ones begin."""
    world = with_controllers(3)
    world.delete_set(controllers={"replicas": 1})
    for number in (1, 2):
        del world.volumes[f"data-orders-controller-{number}"]

    lost = ("True", "ControllerVolumesLost")
    carry_on(world, lambda found: condition(found.status, "Degraded") == lost)

    assert condition(world.status, "ControllersReady") == ("False", "ControllerVolumesLost")
    (message,) = [one["message"] for one in world.status["conditions"] if one["type"] == "ControllersReady"]
    assert "the volumes of 1, 2 are gone" in message
    assert "brokerset controller rebuild" in message

    del world.volumes["data-orders-controller-0"]
    world.members = {}
    world.end_pod(world.pods["orders-controller-0"])
    carry_on(world, lambda found: condition(found.status, "ControllersReady") == ("True", "AsWanted"))


def test_a_new_set_beside_claims_of_its_own_is_no_set_that_comes_back() -> None:
    """Claims that it has made itself, a moment ago, change nothing: its first members stay the first ones."""
    import random

    world = Kubernetes(random.Random(1))
    world.apply_manifest(controllers={"replicas": 3}, replicas=1)

    done = carry_on(world, has_settled)

    assert of(DeletePod, done) == []
    assert world.members == dict.fromkeys(range(3), True)
