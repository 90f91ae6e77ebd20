"""Which groups are asked what is left to read in them."""

from __future__ import annotations

from typing import Any

from brokerset_operator.observe import DRAINS_MAX, going
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_spec.manifest import read_manifest


def state(name: str) -> GroupState:
    return GroupState(
        cluster_name="DefaultCluster",
        broker_name=name,
        owner="u1",
        expected_replicas=1,
        next_broker_id=2,
        master_id=1,
        master_epoch=1,
        sync_state_set=(1,),
        sync_state_set_epoch=1,
        suspects=(),
        losses=(),
        replicas=(),
    )


def status(replicas: dict[int, int]) -> dict[str, Any]:
    """What a set remembers: the replicas that its groups' StatefulSets have, by index."""
    groups = [{"index": index, "name": f"orders-{index}", "replicas": n} for index, n in replicas.items()]
    return {"workflow": {"groups": groups}}


def manifest(groups: int) -> Any:
    return read_manifest(
        {
            "apiVersion": "brokerset.io/v1alpha1",
            "kind": "BrokerSet",
            "metadata": {"name": "orders"},
            "spec": {"groups": groups},
        }
    )


STATES = {f"orders-{index}": state(f"orders-{index}") for index in range(24)}


def test_the_groups_that_go_next_are_looked_at_however_many_go() -> None:
    """Of twelve the eight with the highest numbers, not those that are last in a dictionary of words."""
    found = going(manifest(1), status(dict.fromkeys(range(13), 1)), STATES)

    assert [each.broker_name for each in found] == [f"orders-{index}" for index in range(12, 4, -1)]
    assert len(found) == DRAINS_MAX


def test_groups_that_are_gone_take_nobody_s_place() -> None:
    """Controllers know them for good, with numbers higher than those that are to go."""
    replicas = dict.fromkeys(range(4), 1) | dict.fromkeys(range(4, 24), 0)

    found = going(manifest(2), status(replicas), STATES)

    assert [each.broker_name for each in found] == ["orders-3", "orders-2"]


def test_nothing_goes_that_an_unreadable_manifest_might_want() -> None:
    """Then nothing of the set is changed anyway."""
    assert going(None, status({0: 1, 1: 1}), STATES) == []
