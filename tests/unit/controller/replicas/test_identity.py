"""Giving ids and letting processes in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_controller.liveness import LiveView
from brokerset_controller.replicas.decide_identity import decide_apply_id, decide_next_id, decide_register
from brokerset_controller.replicas.events import (
    BrokerIdApplied,
    MastershipEnded,
    ReplicaAdopted,
    ReplicaMoved,
    ReplicaStarted,
)
from brokerset_controller.replicas.state import GROUPS_MAX, REPLICAS_MAX, Group
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.controller import (
    ApplyBrokerId,
    ApplyBrokerIdResponse,
    GetNextBrokerId,
    GetNextBrokerIdResponse,
    RegisterBrokerToController,
    RegisterBrokerToControllerResponse,
)
from brokerset_sim.replica_groups import CLUSTER, NAME, group_of, live, view_of

NOBODY = LiveView()
OURS = RegisterBrokerToController(
    cluster_name=CLUSTER,
    broker_name=NAME,
    broker_id=1,
    broker_address="h1:1",
    last_nonce="n1",
    next_nonce="new",
)
JAVA = replace(OURS, last_nonce=None, next_nonce=None)


def next_id(group: Group | None, cluster: str | None = CLUSTER) -> tuple[int, int | None]:
    decision = decide_next_id(group, GetNextBrokerId(cluster_name=cluster, broker_name=NAME))
    assert isinstance(decision.header, GetNextBrokerIdResponse)
    return decision.code, decision.header.next_broker_id


def claim(broker_id: int | None, code: str | None, **extra: str) -> ApplyBrokerId:
    return ApplyBrokerId(
        cluster_name=extra.get("cluster", CLUSTER),
        broker_name=NAME,
        applied_broker_id=broker_id,
        register_check_code=code,
        owner_uid=extra.get("owner"),
    )


def test_an_unknown_group_begins_with_the_id_1_and_a_cleaned_one_goes_on() -> None:
    """1012 answers the id that was never given."""
    assert next_id(None) == (0, 1)
    assert next_id(group_of(1, 2)) == (0, 3)
    assert next_id(group_of(next_id=9)) == (0, 9)


def test_a_group_is_asked_for_with_its_own_cluster() -> None:
    """A group of another cluster with the same name is noticed before a file is written."""
    assert next_id(group_of(1), "elsewhere") == (2005, None)
    assert next_id(group_of(1), None) == (2005, None)


def test_only_the_next_id_is_given_and_the_refusal_names_it() -> None:
    """1013 answers 2014 with the id to apply for."""
    given = decide_apply_id(group_of(1), claim(2, "h2:1;77"))
    refused = [decide_apply_id(group_of(1), claim(broker_id, "x:1;9")) for broker_id in (1, 3, 0, -4)]

    assert given.code == 0
    assert given.event == BrokerIdApplied(CLUSTER, NAME, None, 0, 2, "h2:1", "h2:1;77")
    assert {decision.code for decision in refused} == {ResponseCode.CONTROLLER_BROKER_ID_INVALID}
    assert {decision.event for decision in refused} == {None}
    assert {decision.header for decision in refused} == {
        ApplyBrokerIdResponse(cluster_name=CLUSTER, broker_name=NAME, next_broker_id=2)
    }


def test_the_same_code_is_granted_its_id_again_and_nothing_is_proposed() -> None:
    """A lost reply costs no id."""
    decision = decide_apply_id(group_of(1, 2), claim(1, "h1:1;1"))

    assert (decision.code, decision.event) == (0, None)


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (claim(None, "h:1;1"), "appliedBrokerId is missing"),
        (claim(2, None), "registerCheckCode is missing"),
        (claim(2, "x" * 256), "registerCheckCode has 256 bytes; the limit is 255"),
        (claim(2, "h:1;1", owner="o" * 300), "ownerUid has 300 bytes"),
        (claim(2, "h:1;1", cluster="elsewhere"), "belongs to the cluster demo, not to elsewhere"),
        (claim(2, "h:1;\ud800"), "registerCheckCode is no valid text"),
    ],
)
def test_impossible_claims_name_what_is_wrong(request_: ApplyBrokerId, part: str) -> None:
    """A request that no state could make right is refused with 2005 and the field's name."""
    decision = decide_apply_id(group_of(1), request_)

    assert decision.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert decision.remark is not None
    assert part in decision.remark


def test_full_groups_and_full_controllers_take_nobody_in() -> None:
    """The limits of replicas and groups have names and answers."""
    full = group_of(*range(1, REPLICAS_MAX + 1))

    assert decide_apply_id(full, claim(REPLICAS_MAX + 1, "h:1;1")).code == 2005
    assert decide_apply_id(None, claim(1, "h:1;1"), group_count=GROUPS_MAX).code == 2005
    assert decide_apply_id(None, claim(1, "h:1;1"), group_count=GROUPS_MAX - 1).code == 0


def test_a_group_belongs_to_one_brokerset_but_brokers_without_one_may_join() -> None:
    """Two BrokerSets never merge; Java's brokers belong to none."""
    owned = group_of(1, owner="uid")

    assert decide_apply_id(owned, claim(2, "h:1;1", owner="other")).code == 2101
    assert decide_apply_id(owned, claim(2, "h:1;1", owner="uid")).code == 0
    assert decide_apply_id(owned, claim(2, "h:1;1")).code == 0
    assert decide_register(owned, replace(OURS, owner_uid="other"), NOBODY).code == 2101
    assert decide_register(group_of(1), replace(OURS, owner_uid="uid"), NOBODY).event == ReplicaStarted(
        NAME, 1, "n1", "new", "h1:1", False, 0, "uid"
    )


def test_a_start_is_committed_when_the_last_or_a_tried_nonce_is_the_stored_one() -> None:
    """The ratchet accepts what the folder may know, and nothing else."""
    group = group_of(1)
    for last, tried in (("n1", None), ("n0", "x;n1"), (None, "n1")):
        decision = decide_register(group, replace(OURS, last_nonce=last, tried_nonces=tried), NOBODY)
        assert decision.event == ReplicaStarted(NAME, 1, "n1", "new", "h1:1", False, 0)
        assert decision.code == 0
    for last, tried in (("n0", None), (None, None), ("x", "y;z")):
        decision = decide_register(group, replace(OURS, last_nonce=last, tried_nonces=tried), NOBODY)
        assert (decision.code, decision.event) == (ResponseCode.BROKERSET_IDENTITY_CONFLICT, None)
        assert decision.remark is not None
        assert "incarnation 1" in decision.remark
        assert "replica replace" in decision.remark


def test_a_repeated_start_is_answered_without_another_event() -> None:
    """The stored nonce is the next one: the first request was carried out."""
    group = group_of(1, 2, master=2, epoch=4, in_sync=(1, 2), set_epoch=7)
    decision = decide_register(group, replace(OURS, last_nonce="n0", next_nonce="n1"), view_of(1, 2))

    assert decision.event is None
    assert decision.header == RegisterBrokerToControllerResponse(
        cluster_name=CLUSTER,
        broker_name=NAME,
        master_broker_id=2,
        master_address="h2:1",
        master_epoch=4,
        sync_state_set_epoch=7,
        incarnation=1,
        next_broker_id=3,
        group_epoch=4,
        master_nonce="n2",
    )
    assert decision.body == SyncStateSet(frozenset((1, 2)), 7)


def test_a_process_that_lives_keeps_its_identity() -> None:
    """A second process is told where the first one lives; the same one, or a dead one's heir, is let in."""
    group = group_of(1)

    def code(**view: object) -> int:
        return decide_register(group, OURS, view_of(1, r1=live(1, **view))).code  # type: ignore[arg-type]  # by name

    assert code() == 2100
    assert code(nonce=None) == 2100
    assert code(nonce="older") == 0
    assert decide_register(group, OURS, view_of(dead=(1,))).code == 0
    assert decide_register(group, OURS, NOBODY).code == 0


def test_ids_that_were_cleaned_are_retired_for_ours_and_unknown_for_java() -> None:
    """2102 says that the id is gone permanently; Java gets the code that RocketMQ has for it."""
    group = group_of(2)

    assert decide_register(group, OURS, NOBODY).code == ResponseCode.BROKERSET_ID_RETIRED
    assert decide_register(group, replace(OURS, adopt=True), NOBODY).code == ResponseCode.BROKERSET_ID_RETIRED
    assert decide_register(group, JAVA, NOBODY).code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


def test_unknown_ids_are_taken_in_only_on_request() -> None:
    """Adoption is the broker's explicit wish; the group's epoch follows the volume's."""
    request = replace(OURS, broker_id=5, log_epoch=9, expected_replicas=3)
    plain = decide_register(None, request, NOBODY)
    adopted = decide_register(None, replace(request, adopt=True), NOBODY)
    far = decide_register(None, replace(request, adopt=True, broker_id=5_000), NOBODY)

    assert plain.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert "brokerset controller rebuild" in (plain.remark or "")
    assert adopted.event == ReplicaAdopted(CLUSTER, NAME, None, 3, 5, "h1:1", "new", 9)
    assert isinstance(adopted.header, RegisterBrokerToControllerResponse)
    assert (adopted.header.next_broker_id, adopted.header.group_epoch) == (6, 9)
    assert far.code == ResponseCode.CONTROLLER_INVALID_REQUEST


def test_a_java_broker_that_moved_is_known_by_its_id() -> None:
    """RocketMQ's 1003: any process with a registered id; a new address is noted; no extra fields."""
    group = group_of(1, 2, master=2, epoch=1, in_sync=(2,), set_epoch=1, nonces=False)
    same = decide_register(group, JAVA, view_of(dead=(2,)))
    moved = decide_register(group, replace(JAVA, broker_address="h9:1"), view_of(1, 2))

    assert same.event is None
    assert same.header == RegisterBrokerToControllerResponse(cluster_name=CLUSTER, broker_name=NAME)
    assert moved.event == ReplicaMoved(NAME, 1, "h9:1")
    assert isinstance(moved.header, RegisterBrokerToControllerResponse)
    assert moved.header.master_broker_id == 2
    assert moved.header.incarnation is None


def test_java_takes_a_volume_over_unless_our_process_lives_elsewhere() -> None:
    """One identity, one process."""
    group = group_of(1)

    assert decide_register(group, replace(JAVA, broker_address="h9:1"), view_of(1)).code == 2100
    assert decide_register(group, replace(JAVA, broker_address="h9:1"), view_of(dead=(1,))).code == 0
    assert decide_register(group, JAVA, view_of(1)).code == 0


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"broker_address": ""}, "brokerAddress is missing"),
        ({"broker_id": None}, "brokerId is missing"),
        ({"next_nonce": "n" * 256}, "nextNonce has 256 bytes"),
        ({"tried_nonces": ";".join("x" * 70)}, "more than 64 nonces"),
        ({"expected_replicas": 65}, "a group has at most 64 replicas"),
        ({"cluster_name": "elsewhere"}, "belongs to the cluster demo"),
    ],
)
def test_impossible_registrations_name_what_is_wrong(change: dict[str, object], part: str) -> None:
    """A malformed 1003 gets 2005 and a text that names the field."""
    header = replace(OURS, **change)  # type: ignore[arg-type]  # names are checked by replace
    decision = decide_register(group_of(1), header, NOBODY)

    assert decision.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert part in (decision.remark or "")


def test_a_volume_with_a_newer_history_is_not_made_a_slave() -> None:
    """Adoption must not throw messages away that only this volume has."""
    group = group_of(1, master=1, epoch=3, in_sync=(1,), set_epoch=1)
    header = replace(OURS, broker_id=2, adopt=True, log_epoch=4)

    assert decide_register(group, header, NOBODY).code == ResponseCode.BROKERSET_IDENTITY_CONFLICT
    assert decide_register(group, replace(header, log_epoch=3), NOBODY).code == 0


def test_a_java_master_that_was_lost_and_comes_back_is_no_master_until_it_is_elected_again() -> None:
    """It may have lost its page cache; in the old epoch it could write other bytes at the same offsets."""
    group = group_of(1, 2, master=1)
    group = replace(group, replicas={key: replace(r, nonce=None) for key, r in group.replicas.items()})

    back = decide_register(group, JAVA, view_of(2, dead=(1,)))
    alive = decide_register(group, JAVA, view_of(1, 2))

    assert back.event == MastershipEnded(NAME, 1, group.master_epoch, "h1:1")
    assert isinstance(back.header, RegisterBrokerToControllerResponse)
    assert back.header.master_broker_id is None
    assert alive.event is None
