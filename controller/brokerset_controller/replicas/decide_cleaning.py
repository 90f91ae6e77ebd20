"""Forgetting replicas (1011), and putting a group together again after all controllers' data was lost."""

from __future__ import annotations

from brokerset_controller.liveness import LiveView, Standing
from brokerset_controller.replicas.apply import apply
from brokerset_controller.replicas.decisions import (
    Decision,
    bad_counts,
    beyond_limit,
    invalid,
    missing,
    refused,
)
from brokerset_controller.replicas.events import GroupRebuilt, ReplicasCleaned, Superseded
from brokerset_controller.replicas.state import (
    EPOCH_MAX,
    GROUPS_MAX,
    REPLICAS_MAX,
    Group,
)
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.controller import CleanControllerBrokerData

_ID_DIGITS_MAX = 18


def decide_clean(group: Group | None, header: CleanControllerBrokerData, view: LiveView) -> Decision:
    """Answer 1011: forget the named replicas, or all; 2009 when that is refused.

    With `isCleanLivingBroker` living ones go too, but only the named ones if there are names (RocketMQ then
    ignores the names and drops the whole group). The last in-sync replica never goes while others stay.
    """
    if group is None or not group.known:
        return _refused(f"Broker {header.broker_name} is not existed, clean broker data failure")
    if header.cluster_name and header.cluster_name != group.cluster_name:
        return _refused(
            f"{group.broker_name} belongs to the cluster {group.cluster_name}, not to {header.cluster_name}:"
            f" nothing was cleaned"
        )
    text = (header.broker_controller_ids_to_clean or "").strip()
    if text:
        named = _ids(text)
        if named is None:
            return _refused(
                f"illegal brokerControllerIdsToClean {text[:64]!r}: send ids joined by semicolons"
            )
    else:
        named = frozenset(group.replicas)
        if group.master_id is not None and not header.is_clean_living_broker:
            return _refused(
                f"Broker {group.broker_name} has a master, replica {group.master_id}: name the replicas to"
                f" clean, or clean living ones too"
            )
    going = named & group.replicas.keys()
    if not header.is_clean_living_broker:
        for broker_id in sorted(going):
            match view.standing(broker_id):
                case Standing.ALIVE:
                    return _refused(
                        f"Broker [{group.broker_name},  {broker_id}] is still alive, clean up failure"
                    )
                case Standing.UNKNOWN:
                    return _refused(
                        f"it is not known yet whether broker [{group.broker_name},  {broker_id}] is alive;"
                        f" the controllers are asking it: try again in a moment"
                    )
                case Standing.DEAD:
                    pass
    if not going:
        return Decision(int(ResponseCode.SUCCESS), "none of these replicas is registered: nothing to clean")
    stay = group.replicas.keys() - going
    if stay and group.sync_state_set and group.sync_state_set <= going:
        return _refused(
            f"only {_listed(group.sync_state_set)} of {group.broker_name} is in sync, and"
            f" {_listed(frozenset(stay))} may lack messages: let another replica get in sync, or elect one"
            f" with `brokerset elect {group.broker_name} --unclean`, first"
        )
    return Decision(
        int(ResponseCode.SUCCESS),
        event=ReplicasCleaned(
            group.broker_name, frozenset(going), group.master_epoch, group.sync_state_set_epoch
        ),
    )


def decide_rebuild(group: Group | None, wanted: Group, *, group_count: int = 0) -> Decision:
    """Answer 21006: make a group again from what its brokers hold; only one without replicas.

    Whatever `wanted` says, nobody is master or in sync afterwards, and next id and epochs do not fall.
    """
    problem = _rebuild_problem(wanted)
    if problem is None and group is None and group_count >= GROUPS_MAX:
        problem = f"the controllers keep {GROUPS_MAX} groups already"
    if problem is not None:
        return invalid(f"{wanted.broker_name[:64]!r} cannot be rebuilt: {problem}")
    rebuilt, outcome = apply(group, GroupRebuilt(wanted))
    if isinstance(outcome, Superseded) or rebuilt is None:
        there = _listed(frozenset(group.replicas)) if group is not None else "none"
        return invalid(
            f"the group {wanted.broker_name} has replicas ({there}): only one without any can be rebuilt;"
            f" nothing was changed. If these are new, empty brokers that started before the rebuild: stop"
            f" them, clean them (`brokerset clean {wanted.broker_name} --all`), and rebuild; they can join"
            f" again with empty folders"
        )
    if group is not None and group.known:
        return Decision(int(ResponseCode.SUCCESS), f"{group.broker_name} has these replicas already")
    return Decision(int(ResponseCode.SUCCESS), event=GroupRebuilt(rebuilt))


def _rebuild_problem(wanted: Group) -> str | None:
    problem = (
        missing(clusterName=wanted.cluster_name, brokerName=wanted.broker_name)
        or beyond_limit(clusterName=wanted.cluster_name, brokerName=wanted.broker_name, ownerUid=wanted.owner)
        or bad_counts(1, wanted.expected_replicas)
        or bad_counts(wanted.next_broker_id, None)
    )
    if problem is not None:
        return problem
    if not 0 < len(wanted.replicas) <= REPLICAS_MAX:
        return f"it has {len(wanted.replicas)} replicas; a group has 1 to {REPLICAS_MAX}"
    if not 0 <= wanted.master_epoch < EPOCH_MAX or not 0 <= wanted.sync_state_set_epoch < EPOCH_MAX:
        return f"the epochs {wanted.master_epoch} and {wanted.sync_state_set_epoch} are not below {EPOCH_MAX}"
    for broker_id, replica in sorted(wanted.replicas.items()):
        problem = (
            bad_counts(broker_id, None)
            or missing(brokerAddress=replica.address)
            or beyond_limit(
                brokerAddress=replica.address,
                registerCheckCode=replica.check_code,
                nextNonce=replica.nonce,
            )
        )
        if problem is None and (replica.broker_id != broker_id or replica.incarnation < 0):
            problem = f"its id is {replica.broker_id}, its incarnation {replica.incarnation}"
        if problem is not None:
            return f"replica {broker_id}: {problem}"
    return None


def _ids(text: str) -> frozenset[int] | None:
    parts = [part.strip() for part in text.split(";")]
    if not all(part.isascii() and part.isdigit() and len(part) <= _ID_DIGITS_MAX for part in parts):
        return None
    return frozenset(map(int, parts))


def _listed(ids: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(ids)))


def _refused(remark: str) -> Decision:
    return refused(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark)
