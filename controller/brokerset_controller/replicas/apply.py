"""Event → new state, with the guards checked once more. Total and deterministic: every controller agrees.

A repeated event changes nothing and is `Applied`: what it says holds already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import assert_never

from brokerset_controller.replicas.events import (
    Applied,
    BrokerIdApplied,
    Event,
    FencingChanged,
    GroupRebuilt,
    MasterElected,
    MastershipEnded,
    Outcome,
    ReplicaAdopted,
    ReplicaMoved,
    ReplicasCleaned,
    ReplicaStarted,
    Superseded,
    SyncStateSetAltered,
)
from brokerset_controller.replicas.state import (
    ADOPTION_GAP_MAX,
    LOSSES_KEPT_MAX,
    REPLICAS_MAX,
    Group,
    Replica,
)

ADOPTED = "adopted;"
"""What the check code of an adopted replica begins with."""


def apply(group: Group | None, event: Event) -> tuple[Group | None, Outcome]:
    """The group after the event; the same group when a guard does not hold (`Superseded`)."""
    match event:
        case BrokerIdApplied():
            return _apply_broker_id(group, event)
        case ReplicaAdopted():
            return _adopt(group, event)
        case GroupRebuilt():
            return _rebuild(group, event)
        case (
            ReplicaStarted()
            | MastershipEnded()
            | ReplicaMoved()
            | SyncStateSetAltered()
            | MasterElected()
            | ReplicasCleaned()
            | FencingChanged()
        ):
            if group is None:
                return None, Superseded(f"the group {event.broker_name} is unknown")
            return _change(group, event)
        case _:
            assert_never(event)


def broker_name_of(event: Event) -> str:
    """Which group an event is about."""
    return event.group.broker_name if isinstance(event, GroupRebuilt) else event.broker_name


def may_join(group: Group | None, cluster_name: str, owner: str | None) -> str | None:
    """Why a broker of this cluster and owner cannot belong to the group; None when it can.

    A group that was cleaned belongs to nobody.
    """
    if group is None or not group.known:
        return None
    if cluster_name != group.cluster_name:
        return (
            f"the group {group.broker_name} belongs to the cluster {group.cluster_name}, not to"
            f" {cluster_name}: names of groups are unique on a set of controllers"
        )
    return owner_conflict(group, owner)


def owner_conflict(group: Group, owner: str | None) -> str | None:
    """Why a broker of this owner cannot belong to the group; None when it can. No owner suits every group."""
    if owner is None or group.owner is None or owner == group.owner:
        return None
    return (
        f"the group {group.broker_name} belongs to the BrokerSet with UID {group.owner}, not to {owner}:"
        f" give this BrokerSet another broker name, or clean the group when its owner is gone"
    )


def adoption_conflict(group: Group | None, broker_id: int) -> str | None:
    """Why a volume's own id cannot be taken in; None when it can."""
    next_id, unclaimed = (1, frozenset[int]()) if group is None else (group.next_broker_id, group.unclaimed)
    if broker_id < next_id and broker_id not in unclaimed:
        return f"the id {broker_id} was given before"
    if broker_id > next_id + ADOPTION_GAP_MAX:
        return f"the id {broker_id} is more than {ADOPTION_GAP_MAX} above {next_id}, the group's next one"
    return None


def _sorted(replicas: Mapping[int, Replica]) -> Mapping[int, Replica]:
    return MappingProxyType(dict(sorted(replicas.items())))


def _with(group: Group, replica: Replica) -> Group:
    return replace(group, replicas=_sorted({**group.replicas, replica.broker_id: replica}))


def _change(
    group: Group,
    event: ReplicaStarted
    | MastershipEnded
    | ReplicaMoved
    | SyncStateSetAltered
    | MasterElected
    | ReplicasCleaned
    | FencingChanged,
) -> tuple[Group, Outcome]:
    match event:
        case ReplicaStarted():
            return _start(group, event)
        case MastershipEnded():
            return _end_mastership(group, event)
        case ReplicaMoved():
            return _move(group, event)
        case SyncStateSetAltered():
            return _alter(group, event)
        case MasterElected():
            return _elect(group, event)
        case ReplicasCleaned():
            return _clean(group, event)
        case FencingChanged():
            return _fence(group, event)


def _joined(
    group: Group | None,
    event: BrokerIdApplied | ReplicaAdopted,
    replica: Replica,
) -> Group:
    if group is None or not group.known:
        base = replace(
            group or Group(event.cluster_name, event.broker_name),
            cluster_name=event.cluster_name,
            owner=event.owner,
            expected_replicas=event.expected_replicas,
        )
    else:
        base = replace(
            group,
            owner=group.owner or event.owner,
            expected_replicas=event.expected_replicas or group.expected_replicas,
        )
    return replace(_with(base, replica), next_broker_id=event.broker_id + 1)


def _apply_broker_id(group: Group | None, event: BrokerIdApplied) -> tuple[Group | None, Outcome]:
    known = group.replicas.get(event.broker_id) if group is not None else None
    if known is not None and known.check_code == event.check_code:
        return group, Applied()
    next_id = group.next_broker_id if group is not None else 1
    if event.broker_id != next_id:
        return group, Superseded(f"the id {event.broker_id} was given, {next_id} is the next")
    refusal = _cannot_join(group, event)
    if refusal is not None:
        return group, refusal
    return _joined(group, event, Replica(event.broker_id, event.address, event.check_code)), Applied()


def _adopt(group: Group | None, event: ReplicaAdopted) -> tuple[Group | None, Outcome]:
    known = group.replicas.get(event.broker_id) if group is not None else None
    if known is not None and known.nonce == event.nonce:
        return group, Applied()
    problem = adoption_conflict(group, event.broker_id)
    if problem is not None:
        return group, Superseded(problem)
    refusal = _cannot_join(group, event)
    if refusal is not None:
        return group, refusal
    if group is not None and not group.virgin and event.log_epoch > group.master_epoch:
        return group, Superseded(f"the volume's epoch {event.log_epoch} is above the group's")
    replica = Replica(event.broker_id, event.address, ADOPTED + event.address, event.nonce, 1)
    joined = _joined(group, event, replica)
    next_id = 1 if group is None else group.next_broker_id
    return (
        replace(
            joined,
            next_broker_id=max(next_id, joined.next_broker_id),
            master_epoch=max(joined.master_epoch, event.log_epoch),
            unclaimed=(joined.unclaimed | frozenset(range(next_id, event.broker_id))) - {event.broker_id},
        ),
        Applied(),
    )


def _cannot_join(group: Group | None, event: BrokerIdApplied | ReplicaAdopted) -> Superseded | None:
    problem = may_join(group, event.cluster_name, event.owner)
    if problem is None and group is not None and len(group.replicas) >= REPLICAS_MAX:
        problem = f"the group {group.broker_name} has {REPLICAS_MAX} replicas already"
    return None if problem is None else Superseded(problem)


def _start(group: Group, event: ReplicaStarted) -> tuple[Group, Outcome]:
    known = group.replicas.get(event.broker_id)
    if known is None:
        return group, Superseded(f"the id {event.broker_id} is not registered")
    if known.nonce == event.nonce:
        return group, Applied()
    if known.nonce != event.expected_nonce:
        return group, Superseded(f"another start of the id {event.broker_id} was committed")
    problem = owner_conflict(group, event.owner)
    if problem is not None:
        return group, Superseded(problem)
    started = replace(known, nonce=event.nonce, address=event.address, incarnation=known.incarnation + 1)
    group = replace(
        _with(group, started),
        owner=group.owner or event.owner,
        expected_replicas=event.expected_replicas or group.expected_replicas,
    )
    set_epoch = group.sync_state_set_epoch
    if group.master_id == event.broker_id:
        group = replace(group, master_id=None, master_epoch=group.master_epoch + 1)
    elif group.master_id is not None:
        # A proposal on its way may rest on what the process before this one has acknowledged: it must not
        # take effect for this one, which may have less.
        group = replace(group, sync_state_set_epoch=set_epoch + 1)
    if event.lost_cache:
        group = replace(group, unproven=group.unproven - {event.broker_id})
    if (event.lost_cache or event.unclean) and event.broker_id in group.sync_state_set:
        group = replace(group, suspects=group.suspects | {event.broker_id})
        if not event.lost_cache:
            group = replace(group, unproven=group.unproven | {event.broker_id})
        if len(group.sync_state_set) > 1:
            group = replace(
                group,
                sync_state_set=group.sync_state_set - {event.broker_id},
                sync_state_set_epoch=set_epoch + 1,
            )
    return group, Applied()


def _end_mastership(group: Group, event: MastershipEnded) -> tuple[Group, Outcome]:
    known = group.replicas.get(event.master_id)
    if known is None:
        return group, Superseded(f"the id {event.master_id} is not registered")
    if (group.master_id, group.master_epoch) != (event.master_id, event.expected_master_epoch):
        return group, Superseded(f"{event.master_id} is not master in epoch {event.expected_master_epoch}")
    group = _with(group, replace(known, address=event.address))
    return replace(group, master_id=None, master_epoch=group.master_epoch + 1), Applied()


def _move(group: Group, event: ReplicaMoved) -> tuple[Group, Outcome]:
    known = group.replicas.get(event.broker_id)
    if known is None:
        return group, Superseded(f"the id {event.broker_id} is not registered")
    if known.address == event.address:
        return group, Applied()
    return _with(group, replace(known, address=event.address)), Applied()


def _alter(group: Group, event: SyncStateSetAltered) -> tuple[Group, Outcome]:
    if group.master_id != event.master_id or group.master_epoch != event.master_epoch:
        return group, Superseded(f"{event.master_id} is not the master of epoch {event.master_epoch}")
    if group.sync_state_set_epoch == event.sync_state_set_epoch + 1 and group.sync_state_set == event.new_set:
        return group, Applied()
    if group.sync_state_set_epoch != event.sync_state_set_epoch:
        return group, Superseded(f"the in-sync set has the epoch {group.sync_state_set_epoch}")
    if event.master_id not in event.new_set or not event.new_set <= group.replicas.keys():
        return group, Superseded("the set lacks the master, or has an id that is not registered")
    if event.new_set & group.fenced:
        return group, Superseded("the set has a replica that is fenced")
    return (
        replace(
            group,
            sync_state_set=event.new_set,
            sync_state_set_epoch=group.sync_state_set_epoch + 1,
            suspects=group.suspects - event.new_set,
            unproven=group.unproven - event.new_set,
        ),
        Applied(),
    )


def _elect(group: Group, event: MasterElected) -> tuple[Group, Outcome]:
    if group.master_epoch == event.new_epoch and group.master_id == event.master_id:
        return group, Applied()
    if (group.master_epoch, group.sync_state_set_epoch) != (
        event.expected_master_epoch,
        event.expected_set_epoch,
    ):
        return group, Superseded(
            f"the group is at epoch {group.master_epoch} and set epoch {group.sync_state_set_epoch}"
        )
    if event.new_epoch <= group.master_epoch:
        return group, Superseded(f"the epoch {event.new_epoch} is not new")
    if event.master_id not in group.replicas:
        return group, Superseded(f"the id {event.master_id} is not registered")
    if group.replicas[event.master_id].nonce != event.expected_nonce:
        return group, Superseded(f"another process of the id {event.master_id} was started meanwhile")
    if event.master_id in group.fenced:
        return group, Superseded(f"{event.master_id} is fenced")
    electable = group.virgin or event.master_id in group.sync_state_set | group.suspects
    if not event.unclean and not electable:
        return group, Superseded(f"{event.master_id} is not in sync")
    losses = group.losses if event.loss is None else (*group.losses, event.loss)[-LOSSES_KEPT_MAX:]
    return (
        replace(
            group,
            master_id=event.master_id,
            master_epoch=event.new_epoch,
            sync_state_set=frozenset((event.master_id,)),
            sync_state_set_epoch=group.sync_state_set_epoch + 1,
            suspects=frozenset(),
            unproven=frozenset(),
            losses=losses,
        ),
        Applied(),
    )


def _clean(group: Group, event: ReplicasCleaned) -> tuple[Group, Outcome]:
    if not event.broker_ids & group.replicas.keys():
        return group, Applied()
    if (group.master_epoch, group.sync_state_set_epoch) != (
        event.expected_master_epoch,
        event.expected_set_epoch,
    ):
        return group, Superseded(
            f"the group is at epoch {group.master_epoch} and set epoch {group.sync_state_set_epoch}"
        )
    left = {key: replica for key, replica in group.replicas.items() if key not in event.broker_ids}
    in_sync = group.sync_state_set - event.broker_ids
    if left and not in_sync and not group.virgin:
        return group, Superseded("the last in-sync replica would go while others stay")
    mastership_goes = group.master_id in event.broker_ids
    cleaned = replace(
        group,
        replicas=_sorted(left),
        master_id=None if mastership_goes else group.master_id,
        master_epoch=group.master_epoch + 1 if mastership_goes else group.master_epoch,
        sync_state_set=in_sync,
        sync_state_set_epoch=group.sync_state_set_epoch + (in_sync != group.sync_state_set),
        suspects=group.suspects - event.broker_ids,
        unproven=group.unproven - event.broker_ids,
        fenced=group.fenced - event.broker_ids,
    )
    if not left:
        cleaned = replace(cleaned, owner=None, expected_replicas=0, losses=())
    return cleaned, Applied()


def _fence(group: Group, event: FencingChanged) -> tuple[Group, Outcome]:
    broker_id = event.broker_id
    if broker_id not in group.replicas:
        return group, Superseded(f"the id {broker_id} is not registered")
    if (broker_id in group.fenced) == event.fenced:
        return group, Applied()
    if (group.master_epoch, group.sync_state_set_epoch) != (
        event.expected_master_epoch,
        event.expected_set_epoch,
    ):
        return group, Superseded(
            f"the group is at epoch {group.master_epoch} and set epoch {group.sync_state_set_epoch}"
        )
    if not event.fenced:
        return replace(group, fenced=group.fenced - {broker_id}), Applied()
    if broker_id == group.master_id:
        return group, Superseded(f"{broker_id} is master")
    if group.sync_state_set == {broker_id}:
        return group, Superseded(f"{broker_id} alone is in sync")
    in_sync = group.sync_state_set - {broker_id}
    return (
        replace(
            group,
            fenced=group.fenced | {broker_id},
            sync_state_set=in_sync,
            sync_state_set_epoch=group.sync_state_set_epoch + (in_sync != group.sync_state_set),
        ),
        Applied(),
    )


def _rebuild(group: Group | None, event: GroupRebuilt) -> tuple[Group | None, Outcome]:
    wanted = event.group
    if group is not None and group.known:
        if group.replicas == wanted.replicas:
            return group, Applied()
        return group, Superseded(f"the group {group.broker_name} has replicas")
    floor = group or Group(wanted.cluster_name, wanted.broker_name)
    return (
        replace(
            wanted,
            replicas=_sorted(wanted.replicas),
            next_broker_id=max(
                floor.next_broker_id, wanted.next_broker_id, *(i + 1 for i in wanted.replicas)
            ),
            master_id=None,
            master_epoch=max(floor.master_epoch, wanted.master_epoch),
            sync_state_set=frozenset(),
            sync_state_set_epoch=max(floor.sync_state_set_epoch, wanted.sync_state_set_epoch),
            suspects=frozenset(),
            unproven=frozenset(),
            fenced=frozenset(),
            losses=wanted.losses[-LOSSES_KEPT_MAX:],
        ),
        Applied(),
    )
