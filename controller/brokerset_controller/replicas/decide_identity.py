"""Who a broker is: giving ids (1012, 1013) and letting processes in (1003)."""

from __future__ import annotations

from dataclasses import dataclass

from brokerset_controller.liveness import LiveReplica, LiveView
from brokerset_controller.replicas.apply import adoption_conflict, apply, may_join
from brokerset_controller.replicas.decisions import (
    Decision,
    bad_counts,
    beyond_limit,
    invalid,
    missing,
    refused,
)
from brokerset_controller.replicas.events import (
    BrokerIdApplied,
    MastershipEnded,
    ReplicaAdopted,
    ReplicaMoved,
    ReplicaStarted,
)
from brokerset_controller.replicas.state import (
    EPOCH_MAX,
    GROUPS_MAX,
    NONCE_SIZE_MAX,
    REPLICAS_MAX,
    TRIED_NONCES_MAX,
    Group,
    Replica,
)
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

_REBUILD = (
    "If the controllers lost their data, `brokerset controller rebuild` restores the group from its brokers;"
    " else `brokerset replica replace --empty` makes this broker a new, empty replica"
)


def decide_next_id(group: Group | None, header: GetNextBrokerId) -> Decision:
    """Answer 1012: the id that the group's next new broker gets. Nothing is reserved."""
    cluster_name, broker_name = header.cluster_name or "", header.broker_name or ""
    problem = missing(clusterName=cluster_name, brokerName=broker_name) or beyond_limit(
        clusterName=cluster_name, brokerName=broker_name
    )
    problem = problem or may_join(group, cluster_name, None)
    if problem is not None:
        return invalid(problem, GetNextBrokerIdResponse())
    return Decision(
        int(ResponseCode.SUCCESS),
        header=GetNextBrokerIdResponse(
            cluster_name=cluster_name,
            broker_name=broker_name,
            next_broker_id=1 if group is None else group.next_broker_id,
        ),
    )


def decide_apply_id(group: Group | None, header: ApplyBrokerId, *, group_count: int = 0) -> Decision:
    """Answer 1013: give the id, or 2014 with the one to apply for instead.

    The same id with the same check code is granted again and again. `group_count` is how many groups there
    are; only a new one reads it.
    """
    cluster_name, broker_name = header.cluster_name or "", header.broker_name or ""
    check_code, broker_id = header.register_check_code or "", header.applied_broker_id
    next_id = 1 if group is None else group.next_broker_id
    reply = ApplyBrokerIdResponse(cluster_name=cluster_name, broker_name=broker_name)
    address = check_code.partition(";")[0]
    problem = (
        missing(
            clusterName=cluster_name,
            brokerName=broker_name,
            appliedBrokerId=broker_id,
            registerCheckCode=check_code,
        )
        or beyond_limit(
            clusterName=cluster_name,
            brokerName=broker_name,
            ownerUid=header.owner_uid,
            registerCheckCode=check_code,
        )
        or bad_counts(1, header.expected_replicas)
    )
    if problem is not None or broker_id is None:
        return invalid(problem or "", reply)
    refusal = _stranger(group, cluster_name, broker_name, header.owner_uid, reply)
    if refusal is not None:
        return refusal
    known = None if group is None else group.replicas.get(broker_id)
    if known is not None and known.check_code == check_code:
        return Decision(int(ResponseCode.SUCCESS), header=reply)
    if broker_id != next_id:
        return refused(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"The id {broker_id} of {broker_name} cannot be given: apply for {next_id}",
            ApplyBrokerIdResponse(cluster_name=cluster_name, broker_name=broker_name, next_broker_id=next_id),
        )
    full = _full(group, broker_name, group_count)
    if full is not None:
        return invalid(full, reply)
    return Decision(
        int(ResponseCode.SUCCESS),
        header=reply,
        event=BrokerIdApplied(
            cluster_name,
            broker_name,
            header.owner_uid or None,
            header.expected_replicas or 0,
            broker_id,
            address,
            check_code,
        ),
    )


def decide_register(
    group: Group | None, header: RegisterBrokerToController, view: LiveView, *, group_count: int = 0
) -> Decision:
    """Answer 1003: let a process be the replica that it says it is.

    With an event the reply is what the state will say once it is applied; decide again then, for the state
    may have changed by more. Brokers that send no nonce are Java's and get RocketMQ's rules.
    """
    start, problem = _read(header)
    if start is None:
        return invalid(problem, RegisterBrokerToControllerResponse())
    reply = RegisterBrokerToControllerResponse(cluster_name=start.cluster_name, broker_name=start.broker_name)
    refusal = _stranger(group, start.cluster_name, start.broker_name, start.owner, reply)
    if refusal is not None:
        return refusal
    known = None if group is None else group.replicas.get(start.broker_id)
    if group is None or known is None:
        return _decide_newcomer(group, header, start, view, group_count)
    if start.nonce is None:
        return _decide_java(group, known, start, view)
    return _decide_start(group, known, header, start, view, start.nonce)


@dataclass(frozen=True, slots=True)
class _Start:
    """A checked registration."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    owner: str | None
    expected_replicas: int
    nonce: str | None
    """None for Java's brokers."""

    tried: tuple[str, ...]


def _read(header: RegisterBrokerToController) -> tuple[_Start | None, str]:
    problem = missing(
        clusterName=header.cluster_name,
        brokerName=header.broker_name,
        brokerId=header.broker_id,
        brokerAddress=header.broker_address,
    ) or beyond_limit(
        clusterName=header.cluster_name,
        brokerName=header.broker_name,
        brokerAddress=header.broker_address,
        ownerUid=header.owner_uid,
        nextNonce=header.next_nonce,
    )
    if problem is not None or header.broker_id is None:
        return None, problem or ""
    problem = bad_counts(1, header.expected_replicas)
    if problem is not None:
        return None, problem
    tried_text = header.tried_nonces or ""
    if len(tried_text) > (NONCE_SIZE_MAX + 1) * TRIED_NONCES_MAX or tried_text.count(";") >= TRIED_NONCES_MAX:
        return None, f"triedNonces has more than {TRIED_NONCES_MAX} nonces"
    return (
        _Start(
            header.cluster_name or "",
            header.broker_name or "",
            header.broker_id,
            header.broker_address or "",
            header.owner_uid or None,
            header.expected_replicas or 0,
            header.next_nonce or None,
            tuple(filter(None, tried_text.split(";"))),
        ),
        "",
    )


def _stranger(
    group: Group | None,
    cluster_name: str,
    broker_name: str,
    owner: str | None,
    reply: ApplyBrokerIdResponse | RegisterBrokerToControllerResponse,
) -> Decision | None:
    """The refusal of a broker whose cluster (2005) or owner (2101) is not the group's."""
    problem = may_join(group, cluster_name, None)
    if problem is not None:
        return invalid(problem, reply)
    problem = may_join(group, cluster_name, owner)
    if problem is not None:
        return refused(ResponseCode.BROKERSET_GROUP_OWNED, problem, reply)
    return None


def _full(group: Group | None, broker_name: str, group_count: int) -> str | None:
    if group is None and group_count >= GROUPS_MAX:
        return f"the controllers keep {GROUPS_MAX} groups already, {broker_name} would be one more"
    if group is not None and len(group.replicas) >= REPLICAS_MAX:
        return f"the group {broker_name} has {REPLICAS_MAX} replicas already: clean those that are gone"
    return None


def _decide_newcomer(
    group: Group | None,
    header: RegisterBrokerToController,
    start: _Start,
    view: LiveView,
    group_count: int,
) -> Decision:
    """A process with an id that no replica of the group has."""
    reply = RegisterBrokerToControllerResponse(cluster_name=start.cluster_name, broker_name=start.broker_name)
    what = f"replica {start.broker_id} of {start.broker_name}"
    retired = (
        group is not None
        and start.broker_id < group.next_broker_id
        and start.broker_id not in group.unclaimed
    )
    if retired:
        remark = f"{what} was cleaned: its id is never given again."
        if start.nonce is None:
            return refused(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"Broker hasn't been registered: {remark} Remove its identity file to join as a new replica",
                reply,
            )
        return refused(
            ResponseCode.BROKERSET_ID_RETIRED,
            f"{remark} `brokerset replica replace --empty` makes this broker a new, empty replica",
            reply,
        )
    if start.nonce is None or not header.adopt:
        return refused(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"Broker hasn't been registered: {what} is unknown here. {_REBUILD}",
            reply,
        )
    log_epoch = max(header.log_epoch or 0, 0)
    problem = (
        bad_counts(start.broker_id, None)
        or adoption_conflict(group, start.broker_id)
        or _full(group, start.broker_name, group_count)
    )
    if problem is None and log_epoch >= EPOCH_MAX:
        problem = f"logEpoch is {log_epoch}; the highest epoch is {EPOCH_MAX}"
    if problem is not None:
        return invalid(problem, reply)
    if group is not None and not group.virgin and log_epoch > group.master_epoch:
        return refused(
            ResponseCode.BROKERSET_IDENTITY_CONFLICT,
            f"{what} cannot be taken in: its log has the epoch {log_epoch}, newer than {group.master_epoch}"
            f" of the group, so it may hold messages that the group lacks. If they do not matter,"
            f" `brokerset replica replace --empty` makes this broker a new, empty replica; else clean the"
            f" group's other replicas first",
            reply,
        )
    event = ReplicaAdopted(
        start.cluster_name,
        start.broker_name,
        start.owner,
        start.expected_replicas,
        start.broker_id,
        start.address,
        start.nonce,
        log_epoch,
    )
    return _after(group, event, start, view)


def _decide_java(group: Group, known: Replica, start: _Start, view: LiveView) -> Decision:
    """A Java process: RocketMQ's rule, unless a process of ours with this identity is alive elsewhere."""
    live = view.lives.get(start.broker_id)
    if (
        live is not None
        and live.nonce is not None
        and live.nonce == known.nonce
        and live.address != start.address
        and view.alive(start.broker_id)
    ):
        return _conflict(start, _alive_elsewhere(start, live.address))
    if group.master_id == known.broker_id and not view.alive(known.broker_id):
        # Java registers once in the life of a process: this is a new one, and may lack what the old one had.
        ended = MastershipEnded(group.broker_name, known.broker_id, group.master_epoch, start.address)
        return _after(group, ended, start, view)
    if known.address != start.address:
        return _after(group, ReplicaMoved(group.broker_name, known.broker_id, start.address), start, view)
    return _registered(group, start, view)


def _decide_start(
    group: Group,
    known: Replica,
    header: RegisterBrokerToController,
    start: _Start,
    view: LiveView,
    nonce: str,
) -> Decision:
    """A process of ours with a registered id: its nonce decides."""
    if known.nonce == nonce:
        if known.address != start.address:
            return _after(group, ReplicaMoved(group.broker_name, known.broker_id, start.address), start, view)
        return _registered(group, start, view)
    live = view.lives.get(start.broker_id)
    if (
        live is not None
        and view.alive(start.broker_id)
        and (live.nonce == known.nonce or live.nonce is None)
        and live.nonce != nonce
    ):
        return _conflict(start, _alive_elsewhere(start, live.address))
    if known.nonce is not None and known.nonce != header.last_nonce and known.nonce not in start.tried:
        return _conflict(
            start,
            f"replica {start.broker_id} of {start.broker_name}: another copy of this store was started later,"
            f" at {known.address} (incarnation {known.incarnation}). This folder is a copy or an old backup."
            f" Remove it if the other one is in use; else `brokerset replica replace --empty` makes this"
            f" broker a new, empty replica. If the controllers lost their data and gave the id to a new one"
            f" since, replace nothing: stop and clean that one, then `brokerset controller rebuild`",
        )
    lost = bool(header.lost_cache) or _log_is_shorter(known, live, header)
    event = ReplicaStarted(
        group.broker_name,
        known.broker_id,
        known.nonce,
        nonce,
        start.address,
        lost,
        start.expected_replicas,
        start.owner,
        unclean=bool(header.unclean_stop) and not lost,
    )
    return _after(group, event, start, view)


def _log_is_shorter(known: Replica, live: LiveReplica | None, header: RegisterBrokerToController) -> bool:
    """Whether the log ends before what the replica's last process told of it.

    So it does in a volume that was restored from a backup made since that process started: its nonces are
    right, what was acknowledged meanwhile is missing. This controller may not have heard that process: every
    start after one that was not closed in order is `unclean`, whatever is known here.
    """
    if live is None or live.nonce is None or live.nonce != known.nonce:
        return False
    if header.log_epoch is None or header.log_offset is None:
        return False
    return (header.log_epoch, header.log_offset) < (live.epoch, live.max_offset)


def _alive_elsewhere(start: _Start, address: str) -> str:
    return (
        f"replica {start.broker_id} of {start.broker_name}: another process with this identity is alive at"
        f" {address}. Stop it, or stop this one: a store belongs to one process. If it was stopped just now,"
        f" this passes by itself"
    )


def _conflict(start: _Start, remark: str) -> Decision:
    return refused(
        ResponseCode.BROKERSET_IDENTITY_CONFLICT,
        remark,
        RegisterBrokerToControllerResponse(cluster_name=start.cluster_name, broker_name=start.broker_name),
    )


def _after(
    group: Group | None,
    event: MastershipEnded | ReplicaAdopted | ReplicaMoved | ReplicaStarted,
    start: _Start,
    view: LiveView,
) -> Decision:
    """Propose the event; the reply is what it will have led to."""
    after, _ = apply(group, event)
    assert after is not None  # each of these events needs, or makes, a group
    return _registered(after, start, view, event)


def _registered(
    group: Group,
    start: _Start,
    view: LiveView,
    event: MastershipEnded | ReplicaAdopted | ReplicaMoved | ReplicaStarted | None = None,
) -> Decision:
    """The success of 1003: a master is named only while it is alive."""
    master = (
        None
        if group.master_id is None or not view.alive(group.master_id)
        else group.replicas[group.master_id]
    )
    ours = start.nonce is not None
    return Decision(
        int(ResponseCode.SUCCESS),
        None,
        RegisterBrokerToControllerResponse(
            cluster_name=group.cluster_name,
            broker_name=group.broker_name,
            master_broker_id=None if master is None else master.broker_id,
            master_address=None if master is None else master.address,
            master_epoch=None if master is None else group.master_epoch,
            sync_state_set_epoch=None if master is None else group.sync_state_set_epoch,
            incarnation=group.replicas[start.broker_id].incarnation if ours else None,
            next_broker_id=group.next_broker_id if ours else None,
            group_epoch=group.master_epoch if ours else None,
            master_nonce=None if master is None or not ours else master.nonce,
        ),
        SyncStateSet(group.sync_state_set, group.sync_state_set_epoch),
        event,
    )
