"""Settings that reach brokers while they run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerset_broker.live_settings import decide_update
from brokerset_operator.model import names
from brokerset_operator.model.actions import DeletePod, Fence, Plan, SwitchOver, TellSettings
from brokerset_operator.resources.live_settings import LIVE, differing, restarting
from brokerset_sim.kubernetes_model import Kubernetes, Pod
from brokerset_sim.kubernetes_worlds import carry_on, decide, is_done, settled
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.setting_fields import setting_fields, value_text


def told(plan: Plan) -> list[tuple[str, dict[str, str]]]:
    """Pod and settings of everything that is told."""
    return [(a.pod, dict(a.settings)) for a in plan.actions if isinstance(a, TellSettings)]


def brokers(world: Kubernetes) -> list[Pod]:
    """The pods of the first group."""
    return [pod for name, pod in sorted(world.pods.items()) if name.startswith("orders-0-")]


@pytest.mark.parametrize("name", sorted(LIVE))
def test_what_is_told_is_taken(name: str) -> None:
    """A broker takes the text that stands for the default, whatever it runs with."""
    field = setting_fields(BrokerSettings)[name]
    default = field.default
    if field.choices:
        other = next(choice for choice in field.choices if choice != default)
    elif isinstance(default, bool):
        other = value_text(not default)
    elif name == "namesrvAddr":
        other = "10.0.0.1:9876"
    else:
        other = str(default - 1 if default > 1 else default + 1) if isinstance(default, int) else "03"
    changed, running = decide_update(BrokerSettings(), {name: other})

    _, settings = decide_update(running, differing({name: other}, {}))

    assert changed == {name}
    assert settings == BrokerSettings()


def test_a_changed_setting_is_told_and_nothing_is_restarted() -> None:
    """Every broker hears of it, once; no pod is old, and nobody hands over."""
    world = settled()

    world.apply_manifest(config={"fileReservedTime": 48})
    done = carry_on(world, is_done)

    assert {pod.settings["fileReservedTime"] for pod in brokers(world)} == {"48"}
    assert sorted(a.pod for a in done if isinstance(a, TellSettings)) == [pod.name for pod in brokers(world)]
    assert not [a for a in done if isinstance(a, DeletePod | SwitchOver)]


def test_a_setting_that_is_taken_out_of_the_manifest_gets_its_default() -> None:
    """Also what somebody has changed at a running broker."""
    world = settled(config={"fileReservedTime": 48})

    world.apply_manifest(config={})
    carry_on(world, is_done)
    brokers(world)[1].settings["fileReservedTime"] = "1"
    plan = decide(world.observe_now())

    assert told(plan) == [("orders-0-1", {"fileReservedTime": "72"})]


def test_equal_values_in_another_form_are_no_difference() -> None:
    """As brokers and manifests may spell them."""
    assert differing({"traceOn": "true", "fileReservedTime": "72"}, {"traceOn": "True"}) == {}


def test_what_a_broker_does_not_know_is_not_told() -> None:
    """A broker of another version may lack settings; those that take a restart are not told."""
    assert (
        differing({"flushDiskType": "ASYNC_FLUSH"}, {"traceOn": "false", "flushDiskType": "SYNC_FLUSH"}) == {}
    )


def test_name_servers_are_set_back_and_count_in_the_hash_as_before() -> None:
    """A broker that somebody sent elsewhere comes back; pods that were made before are as young as ever."""
    ours = {"namesrvAddr": "orders-controller.shop.svc:9876"}

    assert differing({"namesrvAddr": "10.0.0.1:9876"}, ours) == ours
    assert differing(ours, ours) == {}
    assert restarting({**ours, "fileReservedTime": "48"}) == ours


@pytest.mark.parametrize(
    "other", [{"brokerName": "orders-1"}, {"ownerUid": "another"}], ids=lambda other: next(iter(other))
)
def test_another_broker_at_the_address_is_told_nothing(other: dict[str, str]) -> None:
    """Addresses are used again: who answers must be of this group and this set."""
    world = settled()
    world.apply_manifest(config={"fileReservedTime": 48})
    observed = world.observe_now()
    strange = {**observed.settings["orders-0-2"], **other}

    plan = decide(replace(observed, settings={**observed.settings, "orders-0-2": strange}))

    assert [pod for pod, _ in told(plan)] == ["orders-0-0", "orders-0-1"]


def test_a_higher_minimum_waits_for_brokers_that_come() -> None:
    """From two to three brokers the minimum rises to two, once all three are in sync; nothing restarts."""
    world = settled(replicas=2)
    seen: list[int] = []

    def watch(found: Kubernetes) -> bool:
        if any(pod.settings["minInSyncReplicas"] == "2" for pod in brokers(found)[:2]):
            seen.append(len(found.groups["orders-0"].in_sync))
        return is_done(found)

    world.apply_manifest(replicas=3)
    done = carry_on(world, watch)

    assert seen
    assert set(seen) == {3}
    assert {pod.settings["minInSyncReplicas"] for pod in brokers(world)} == {"2"}
    assert not [a for a in done if isinstance(a, DeletePod)]


@pytest.mark.parametrize(("minimum", "tells"), [(2, False), (1, True)])
def test_a_minimum_changes_with_a_broker_out_of_sync_only_downwards(minimum: int, tells: bool) -> None:
    """With two of three in sync a higher minimum of two would leave none to spare: it waits, and says so."""
    world = settled(replication={"minInSyncReplicas": 3 - minimum})
    group = world.groups["orders-0"]
    slave = max(group.in_sync - {group.master})
    group.in_sync.discard(slave)

    world.apply_manifest(replication={"minInSyncReplicas": minimum})
    plan = decide(world.observe_now())

    assert bool(told(plan)) == tells
    (progress,) = [c for c in plan.status["conditions"] if c["type"] == "Progressing"]
    assert progress["status"] == "True"
    assert ("gets minInSyncReplicas=2 when" in progress["message"]) != tells


def test_nothing_is_taken_down_before_a_lower_minimum_is_known() -> None:
    """A master that wants three would refuse sends while one of three is replaced."""
    world = settled(replication={"minInSyncReplicas": 3})
    world.apply_manifest(replication={"minInSyncReplicas": 2})
    world.image = "v2"

    def strict(plan: Plan) -> bool:
        return bool(told(plan)) and not [a for a in plan.actions if isinstance(a, DeletePod)]

    assert strict(decide(world.observe_now()))
    carry_on(world, is_done)
    assert {pod.image for pod in brokers(world)} == {"v2"}


def test_brokers_stay_while_the_master_does_not_tell_its_settings() -> None:
    """Who leads may still want as many in sync as before: nobody is fenced before that is known."""
    world = settled(replicas=4)
    world.apply_manifest(replicas=3)

    for _ in range(10):
        world.tick()
        plan = decide(replace(world.observe_now(), settings={}))
        world.status = dict(plan.status)
        assert not [a for a in plan.actions if isinstance(a, Fence)]

    assert any("does not tell at port" in note for note in plan.notes)


def test_nothing_is_told_while_a_set_is_paused() -> None:
    """A person may change a running broker for a while."""
    world = settled()
    brokers(world)[0].settings["fileReservedTime"] = "1"
    world.annotations[names.PAUSED] = "true"

    plan: Any = decide(world.observe_now())

    assert not told(plan)
