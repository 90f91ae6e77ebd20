"""Elections that brokers, administrators and the controllers themselves ask for (1002)."""

from __future__ import annotations

from dataclasses import replace

from brokerset_controller.liveness import LiveView
from brokerset_controller.replicas import election
from brokerset_controller.replicas.decisions import Decision, refused
from brokerset_controller.replicas.election import Choice, NoChoice
from brokerset_controller.replicas.events import MasterElected
from brokerset_controller.replicas.state import EPOCH_MAX, Group, PossibleLoss
from brokerset_protocol.bodies.replicas import ElectMasterBody
from brokerset_protocol.bodies.routes import BrokerMemberGroup
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.controller import ElectMaster, ElectMasterResponse

NOBODY = -1
"""The broker id of a request that names no broker."""

RELIEF_HEARD_SECONDS = 1.0
"""Brokers beat twice in that time; who vanished when its master heard it last was not heard for longer."""


def decide_elect(
    group: Group | None, header: ElectMaster, view: LiveView, *, unclean_allowed: bool
) -> Decision:
    """Answer 1002: 0 with the new master, 2011 with the living one, or 2012 (2004 without a broker id).

    An administrator (`designateElect`) may name any living in-sync replica, and in a group that has no
    in-sync set yet any living one. A broker gets the best candidate, whoever it is.
    """
    if header.handover_epoch is not None:
        return decide_hand_over(group, header, header.handover_epoch, view)
    empty = ElectMasterResponse()
    if group is None or not group.known:
        return refused(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"Broker hasn't been registered: the group {header.broker_name} is unknown here",
            empty,
        )
    wanted = header.broker_id if header.designate_elect and header.broker_id != NOBODY else None
    target = group.master_id if wanted is None else wanted
    own_master = header.broker_id == group.master_id and not header.designate_elect
    if (
        group.master_id is not None
        and target == group.master_id
        and (own_master or view.fit(group.master_id))
    ):
        return _still_master(group, group.master_id)
    unclean = unclean_allowed or bool(header.designate_elect and header.unclean)
    if wanted is not None:
        found = _choose_wanted(group, view, wanted, unclean)
    else:
        if group.virgin and not header.designate_elect and header.broker_id not in (NOBODY, *group.replicas):
            return refused(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"replica {header.broker_id} of {group.broker_name} is not registered:"
                f" it cannot become master",
                empty,
            )
        requester = None if header.designate_elect else header.broker_id
        found = election.choose_master(group, view, unclean_allowed=unclean, requester=requester)
    code = (
        ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
        if header.broker_id == NOBODY
        else ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    )
    return _elected(group, view, found, code)


def decide_hand_over(
    group: Group | None, header: ElectMaster, handover_epoch: int, view: LiveView
) -> Decision:
    """Answer 1002 of a living master that has stopped serving and wants a successor (`handoverEpoch`).

    2000 when it is not the master of that epoch any more; 2012 when nobody can take over: then it stays
    master, and may serve again as soon as it has a new lease.
    """
    empty = ElectMasterResponse()
    if group is None or not group.known:
        return refused(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"Broker hasn't been registered: the group {header.broker_name} is unknown here",
            empty,
        )
    if group.master_id is None or group.master_epoch != handover_epoch:
        now = "nobody is" if group.master_id is None else f"replica {group.master_id} is"
        return refused(
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"the master of epoch {handover_epoch} cannot hand over {group.broker_name}: {now} master,"
            f" in epoch {group.master_epoch}",
            empty,
        )
    master = group.replicas[group.master_id]
    if header.nonce is not None and header.nonce != master.nonce:
        return refused(
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"another process is master of {group.broker_name}, at {master.address}",
            empty,
        )
    if not view.alive(group.master_id):
        return refused(
            ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
            f"Failed to elect a new master: replica {group.master_id} of {group.broker_name} hands over, but"
            f" its heartbeats do not arrive; it is {view.standing(group.master_id).value}",
            empty,
        )
    wanted = None if header.broker_id == NOBODY else header.broker_id
    if header.relief is not None:
        found = _relieve(group, view.lately(RELIEF_HEARD_SECONDS), wanted, header.relief)
    else:
        found = election.choose_successor(group, view, wanted)
    return _elected(group, view, found, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)


def _relieve(group: Group, view: LiveView, wanted: int | None, needed: int) -> Choice | NoChoice:
    """A successor for a master that hears no replica, if that one could confirm anything.

    Replicas that have vanished are silent for their master and for controllers alike, and still count as
    alive for a while: so only who was heard a moment ago counts.
    """
    others = [key for key in group.replicas.keys() - group.fenced - {group.master_id} if view.fit(key)]
    if len(others) < needed:
        return NoChoice(
            f"whoever leads {group.broker_name} needs {needed} living replicas to confirm anything; without"
            f" the master {len(others)} were heard a moment ago: its replicas, or their network, are down"
        )
    found = election.choose_successor(group, view, wanted)
    return replace(found, reason=election.RELIEVED) if isinstance(found, Choice) else found


def decide_failover(group: Group | None, view: LiveView, *, unclean_allowed: bool) -> Decision | None:
    """The election that a controller starts by itself; None when none is needed, or nobody can be elected."""
    if group is None or not group.known:
        return None
    found = election.choose_master(group, view, unclean_allowed=unclean_allowed)
    if isinstance(found, NoChoice):
        return None
    decision = _elected(group, view, found, ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE)
    return decision if decision.accepted else None


def _choose_wanted(group: Group, view: LiveView, wanted: int, unclean: bool) -> Choice | NoChoice:
    """An administrator's candidate, if it may become master."""
    if wanted not in group.replicas:
        return NoChoice(
            f"replica {wanted} of {group.broker_name} is not registered; registered are"
            f" {', '.join(map(str, group.replicas))}"
        )
    if wanted in group.fenced:
        return NoChoice(
            f"replica {wanted} of {group.broker_name} is fenced:"
            f" `brokerset unfence {group.broker_name} {wanted}` first, or elect another one"
        )
    if view.stuck(wanted):
        return NoChoice(
            f"the log of replica {wanted} of {group.broker_name} at {group.replicas[wanted].address} takes"
            f" nothing any more: look at its disk, or elect another one"
        )
    if not view.alive(wanted):
        return NoChoice(
            f"replica {wanted} of {group.broker_name} at {group.replicas[wanted].address} is"
            f" {view.standing(wanted).value}, not alive: start it, or elect another one"
        )
    if wanted != group.master_id and election.waits_for_lease(group, view):
        blocked = election.lease_in_the_way(group, view)
        if blocked is not None:
            return blocked
    if group.virgin:
        reason = "the first master: named by an administrator"
        loss_from = election.first_loss(group, view, wanted)
        if election.may_hold_more(group, view, wanted):
            end = election.max_offset(view, wanted)
            return Choice(
                wanted,
                f"{reason} while another replica has, or may have, a longer log",
                loss_from=end if loss_from is None else min(end, loss_from),
            )
        if loss_from is not None:
            reason += " while a replica that may have been in sync has lost its page cache"
        return Choice(wanted, reason, loss_from=loss_from)
    if wanted in group.sync_state_set - group.suspects:
        return Choice(wanted, "named by an administrator")
    found = election.choose_master(group, view, unclean_allowed=False)
    if isinstance(found, Choice) and found.broker_id == wanted:
        return found
    if unclean:
        return election.choose_unclean(group, view, wanted)
    what = "lost its page cache" if wanted in group.suspects else "is not in sync"
    if wanted in group.unproven:
        what = "was not closed in order, and has not been in sync since"
    in_sync = ", ".join(map(str, sorted(group.sync_state_set)))
    return NoChoice(
        f"replica {wanted} of {group.broker_name} {what} (in sync: {in_sync}): elect one that is, or, if none"
        f" can be started, accept the loss of messages with `--unclean`"
    )


def _elected(group: Group, view: LiveView, found: Choice | NoChoice, failure: ResponseCode) -> Decision:
    if isinstance(found, NoChoice):
        return refused(failure, f"Failed to elect a new master: {found.advice}", ElectMasterResponse())
    epoch = election.new_epoch(group, view)
    if epoch > EPOCH_MAX:
        return refused(
            failure,
            f"Failed to elect a new master: a replica of {group.broker_name} reports the epoch {epoch - 1},"
            f" the highest there is: find it with `brokerset status` and repair its epoch file",
            ElectMasterResponse(),
        )
    master_id = found.broker_id
    loss = None
    if found.loss_from is not None:
        loss = PossibleLoss(epoch, master_id, found.loss_from, found.reason)
    return Decision(
        int(ResponseCode.SUCCESS),
        None,
        ElectMasterResponse(
            master_broker_id=master_id,
            master_address=group.replicas[master_id].address,
            master_epoch=epoch,
            sync_state_set_epoch=group.sync_state_set_epoch + 1,
            master_nonce=group.replicas[master_id].nonce,
        ),
        ElectMasterBody(
            BrokerMemberGroup(group.cluster_name, group.broker_name, addresses(group)),
            frozenset((master_id,)),
        ),
        MasterElected(
            group.broker_name,
            master_id,
            epoch,
            group.master_epoch,
            group.sync_state_set_epoch,
            found.unclean,
            found.reason,
            loss,
            group.replicas[master_id].nonce,
        ),
    )


def _still_master(group: Group, master_id: int) -> Decision:
    return refused(
        ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
        f"The old master {group.replicas[master_id].address} is still existed, not need to elect new master"
        f" for broker {group.broker_name}",
        ElectMasterResponse(
            master_broker_id=master_id,
            master_address=group.replicas[master_id].address,
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.sync_state_set_epoch,
            master_nonce=group.replicas[master_id].nonce,
        ),
        ElectMasterBody(None, group.sync_state_set),
    )


def addresses(group: Group) -> dict[int, str]:
    """Where the registered replicas are, by id."""
    return {broker_id: replica.address for broker_id, replica in group.replicas.items()}
