"""What is answered from the agreed state, compared with what RocketMQ 5.5.0 answered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from brokerset_controller.liveness import LiveView
from brokerset_controller.replicas.decide_identity import decide_next_id
from brokerset_controller.replicas.decisions import Decision
from brokerset_controller.replicas.describe import decide_replica_info, describe_group, describe_sync_states
from brokerset_controller.replicas.state import Group, PossibleLoss, Replica
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.headers.controller import GetNextBrokerId, GetReplicaInfo
from brokerset_sim.replica_groups import group_of, view_of

GOLDEN = Path(__file__).parents[3] / "peers" / "golden" / "wire"
GROUP = Group(
    "DefaultCluster",
    "broker-a",
    next_broker_id=3,
    replicas=MappingProxyType({1: Replica(1, "127.0.0.1:10911", "c"), 2: Replica(2, "127.0.0.1:11911", "d")}),
    master_id=1,
    master_epoch=1,
    sync_state_set=frozenset((1, 2)),
    sync_state_set_epoch=2,
)


def golden(name: str) -> tuple[dict[str, Any], str]:
    """Header and body of a recorded answer."""
    answer = json.loads((GOLDEN / f"controller-{name}.json").read_text())
    return json.loads(answer["header"]), answer["body"]


def wire(decision: Decision) -> tuple[int, dict[str, str], str | None, str]:
    """What a decision becomes on the wire."""
    ext = decision.header.to_ext() if decision.header else {}
    return decision.code, ext, decision.remark, decision.body.to_json().decode() if decision.body else ""


def test_1004_is_answered_as_by_rocketmq() -> None:
    """Master, epoch and set; an unknown group has an empty header and RocketMQ's text."""
    for name, group in (("1004-replica-info", GROUP), ("1004-replica-info-unknown", None)):
        header, body = golden(name)
        answer = decide_replica_info(group, GetReplicaInfo(broker_name="broker-a"))
        assert wire(answer) == (header["code"], header["extFields"], header.get("remark"), body)


def test_1012_is_answered_as_by_rocketmq() -> None:
    """The names come back with the id."""
    header, body = golden("1012-next-broker-id")
    answer = decide_next_id(GROUP, GetNextBrokerId(cluster_name="DefaultCluster", broker_name="broker-a"))

    assert wire(answer) == (header["code"], header["extFields"], header.get("remark"), body)


def test_1006_is_answered_as_by_rocketmq() -> None:
    """In sync and not in sync, each alive or not; groups without replicas are left out."""
    _, body = golden("1006-sync-state")
    info = describe_sync_states([GROUP, Group("c", "cleaned", next_broker_id=4)], lambda _: view_of(1, 2))

    assert info.to_json().decode() == body


def test_1004_names_no_master_where_there_is_none_but_always_the_epoch() -> None:
    """Java's broker reads the epoch of every success."""
    answer = decide_replica_info(replace(GROUP, master_id=None), GetReplicaInfo(broker_name="broker-a"))

    assert wire(answer)[1] == {"masterEpoch": "1"}


def test_the_whole_state_survives_the_wire() -> None:
    """What people look at has everything that is agreed, what was heard, and advice."""
    group = replace(
        group_of(1, 2, epoch=4, in_sync=(1,), set_epoch=6, suspects=(1,), expected=2, owner="uid"),
        losses=(PossibleLoss(3, 1, 99, "why"),),
    )
    state = describe_group(group, view_of(2, dead=(1,), logs={2: (4, 80)}), 2.5)

    assert GroupState.from_json(state.to_json()) == state
    assert [replica.standing for replica in state.replicas] == ["dead", "alive"]
    assert [replica.heard_ms_ago for replica in state.replicas] == [2_500, 2_500]
    assert state.losses[0].from_offset == 99
    assert "start replica 1 at h1:1 (dead)" in (state.advice or "")
    assert describe_group(group, LiveView(), 0.0).replicas[0].heard_ms_ago is None
