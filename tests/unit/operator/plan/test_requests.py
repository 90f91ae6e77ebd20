"""What people ask for by annotation."""

from __future__ import annotations

import pytest

from brokerset_operator.model import names
from brokerset_operator.model.actions import Fence, SwitchOver
from brokerset_operator.plan.requests import PATIENCE_SECONDS, Target, read_target
from brokerset_sim.kubernetes_model import Kubernetes
from brokerset_sim.kubernetes_worlds import carry_on, decide, settled


def answer(world: Kubernetes, name: str) -> tuple[str, str]:
    """State and message of a request."""
    found = world.status.get("requests", {}).get(name, {})
    return found.get("state", ""), found.get("message", "")


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ("orders-0", Target("orders-0", None)),
        ("orders-0/3", Target("orders-0", 3)),
        (" orders-0/3 ", Target("orders-0", 3)),
        ("orders-0/", None),
        ("/3", None),
        ("orders-0/x", None),
        ("", None),
    ],
)
def test_targets_are_read(given: str, target: Target | None) -> None:
    """A group, perhaps with an id; anything else is refused."""
    assert read_target(given) == target


def test_a_switch_over_is_done_once_for_each_value() -> None:
    """The annotation stays, and the next one with another value is acted on."""
    world = settled()
    group = world.groups["orders-0"]
    target = max(group.in_sync - {group.master})

    world.annotations[names.SWITCH_OVER] = f"orders-0/{target}"
    done = carry_on(world, lambda found: answer(found, "switchover")[0] == "Done")
    epoch = group.epoch
    begun = world.now
    carry_on(world, lambda found: found.now > begun + 20)

    assert group.master == target
    assert group.epoch == epoch
    assert {action.epoch for action in done if isinstance(action, SwitchOver)} == {epoch - 1}


def test_a_switch_over_without_a_name_is_done_once_though_the_answer_was_lost() -> None:
    """The epoch is written down first: when status is lost after the switch, it is not done again."""
    world = settled()
    group = world.groups["orders-0"]
    world.annotations[names.SWITCH_OVER] = "orders-0"
    world.status = dict(decide(world.observe_now()).status)
    accepted, before = answer(world, "switchover")[0], group.epoch
    for action in decide(world.observe_now()).actions:
        world.carry_out(action)  # and the operator dies before it writes the status

    done = carry_on(world, lambda found: answer(found, "switchover")[0] == "Done")

    assert accepted == "Accepted"
    assert group.epoch == before + 1
    assert not [action for action in done if isinstance(action, SwitchOver)]


@pytest.mark.parametrize(
    ("value", "state", "word"),
    [
        ("payments-0", "Refused", "no such group"),
        ("orders-0/9", "Refused", "no broker 9"),
        ("orders-0/x", "Refused", "write <group>"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(value: str, state: str, word: str) -> None:
    """The message names what would be right."""
    world = settled()

    world.annotations[names.SWITCH_OVER] = value
    carry_on(world, lambda found: answer(found, "switchover")[0] != "")

    assert answer(world, "switchover")[0] == state
    assert word in answer(world, "switchover")[1]


def test_a_switch_over_to_a_broker_out_of_sync_waits_and_is_given_up() -> None:
    """It is done as soon as the target can; after ten minutes it fails."""
    world = settled()
    group = world.groups["orders-0"]
    target = max(group.in_sync - {group.master})
    group.replicas[target].catches_up_at = world.now + 10_000
    group.in_sync.discard(target)

    world.annotations[names.SWITCH_OVER] = f"orders-0/{target}"
    carry_on(world, lambda found: answer(found, "switchover")[0] == "Waiting")
    world.now += PATIENCE_SECONDS + 10
    for replica in group.replicas.values():
        replica.last_seen = world.now
    carry_on(world, lambda found: answer(found, "switchover")[0] == "Failed", 20)

    assert "is not alive, in sync" in answer(world, "switchover")[1]


def test_fences_follow_the_annotation() -> None:
    """What is listed is fenced, what is no longer listed is taken in again."""
    world = settled()
    group = world.groups["orders-0"]
    slave = max(group.in_sync - {group.master})

    world.annotations[names.FENCE] = f"orders-0/{slave}"
    carry_on(world, lambda found: answer(found, "fence")[0] == "Done")
    fenced = set(group.fenced)
    world.annotations[names.FENCE] = ""
    carry_on(world, lambda found: "fence" not in found.status.get("requests", {}))

    assert fenced == {slave}
    assert not group.fenced


def test_a_fence_that_somebody_took_away_is_not_put_back() -> None:
    """Each value is acted on once."""
    world = settled()
    group = world.groups["orders-0"]
    slave = max(group.in_sync - {group.master})
    world.annotations[names.FENCE] = f"orders-0/{slave}"
    carry_on(world, lambda found: answer(found, "fence")[0] == "Done")

    group.fenced.clear()
    begun = world.now
    done = carry_on(world, lambda found: found.now > begun + 10)

    assert not [action for action in done if isinstance(action, Fence)]


def test_masters_and_the_last_slave_in_sync_are_not_fenced() -> None:
    """The answer says what to do first."""
    world = settled(replicas=2)
    group = world.groups["orders-0"]
    slave = max(group.in_sync - {group.master})

    world.annotations[names.FENCE] = f"orders-0/{group.master},orders-0/{slave}"
    done = carry_on(world, lambda found: answer(found, "fence")[0] == "Waiting")

    assert "switch over first" in answer(world, "fence")[1]
    assert "only the master would stay" in answer(world, "fence")[1]
    assert not [action for action in done if isinstance(action, Fence)]
