"""Who becomes master: pure choice from the agreed state and one view of who is alive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from brokerset_controller.liveness import PRIORITY_DEFAULT, LiveView, Standing
from brokerset_controller.replicas.state import Group

HANDED_OVER = "handed over by the master"
"""Reason of an election that the master asked for itself."""

RELIEVED = "handed over by a master that hears no replica"
"""Reason of an election that such a master asked for."""

BEST_IN_SYNC = "the best living replica of the in-sync set"
STUCK_MASTER = "the master's log takes nothing any more: the best living replica of the in-sync set"
LOST_CACHES = "every in-sync replica lost its page cache; the one with the longest log won"
LOST_CACHES_OUTSIDER = (
    "every in-sync replica lost its page cache; a replica that was not in sync has the longest log of all"
)
UNCLEAN_STOPS = "no in-sync replica was closed in order; the one with the longest log won"
FIRST_OF_ALL = "the first master: the longest log of all replicas"
FIRST_OF_LIVING = "the first master: the longest log of those that live"
FIRST_AFTER_LOSS = (
    "the first master: the longest log of all that reported, but a replica that may have been in sync has"
    " lost its page cache"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The replica that becomes master."""

    broker_id: int
    reason: str
    unclean: bool = False
    """Whether it may be neither in sync nor a suspect."""

    loss_from: int | None = None
    """Set when acknowledged messages may be lost: the commit log offset from which on, or -1."""


@dataclass(frozen=True, slots=True)
class NoChoice:
    """Nobody can become master now; `advice` says why and what to do."""

    advice: str


def choose_master(
    group: Group, view: LiveView, *, unclean_allowed: bool, requester: int | None = None
) -> Choice | NoChoice:
    """The best replica for a group whose master is dead, or that has none.

    `requester` is the broker that asks: in a new group of which nobody said how many replicas it has, it
    wins, as in RocketMQ.
    """
    blocked = master_in_the_way(group, view)
    if blocked is None and waits_for_lease(group, view):
        blocked = lease_in_the_way(group, view)
    if blocked is not None:
        return blocked
    if group.virgin:
        return _choose_first(group, view, requester)
    sound = group.sync_state_set - group.suspects
    alive = [broker_id for broker_id in sorted(sound - group.fenced) if view.fit(broker_id)]
    if alive:
        is_stuck = group.master_id is not None and view.stuck(group.master_id)
        return Choice(best(alive, view), STUCK_MASTER if is_stuck else BEST_IN_SYNC)
    if not sound:
        found = _choose_after_loss(group, view)
        if isinstance(found, Choice) or not unclean_allowed or _unknown(group, view):
            return found
    elif not unclean_allowed:
        return NoChoice(_why_nobody(group, view))
    return choose_unclean(group, view)


def _choose_after_loss(group: Group, view: LiveView) -> Choice | NoChoice:
    """The best log of all when everybody in sync lost its page cache, or may have been rolled back, once all
    have reported.

    A suspect is waited for whatever became of it: the others may have lost what it still has. A replica that
    was not in sync may have more than suspects still do. Its log is compared like theirs, but it is waited
    for only while it lives, or may: nobody promised that it has what was acknowledged. Of equal logs one that
    was in sync counts first.

    Nothing is lost when the longest log is that of a suspect that kept its page cache, and none has lost its
    own: of those that were not closed in order at least one was not rolled back. Where such ones are the last
    in sync, who lost its page cache before is waited for like those that were not in sync.
    """
    name, doubt, awaited = group.broker_name, _doubt(group), _awaited(group)
    if not all(view.fit(suspect) and _log_end_known(view, suspect) for suspect in awaited):
        return NoChoice(_why_nobody(group, view))
    unknown = _unknown(group, view)
    if unknown:
        return NoChoice(
            f"every in-sync replica of {name} {doubt}, and it is not known yet whether replica"
            f" {_listed(unknown)} is alive, which may have more; the controllers are asking it: try again in"
            f" a moment"
        )
    living = [key for key in group.replicas if view.fit(key)]
    silent = [key for key in living if not _log_end_known(view, key)]
    if silent:
        return NoChoice(
            f"every in-sync replica of {name} {doubt}, and replica {_listed(silent)}, which may"
            f" have more, has not told yet where its log ends: wait for its next heartbeat, or stop it"
        )
    first = best(living, view)
    longest = [key for key in living if _log(view, key) == _log(view, first)]
    candidates = [key for key in longest if key not in group.fenced]
    if not candidates:
        return NoChoice(
            f"every in-sync replica of {name} {doubt}, and replica {first}, which is fenced, has"
            f" the longest log: `brokerset unfence {name} {first}`, or take the best of the others with"
            f" `brokerset elect {name} --unclean`, and acknowledged messages may be lost"
        )
    winner = best([key for key in candidates if key in group.suspects] or candidates, view)
    if winner in group.unproven == group.suspects:
        return Choice(winner, UNCLEAN_STOPS)
    if winner in group.suspects:
        return Choice(winner, LOST_CACHES, loss_from=max_offset(view, winner))
    blocked = lease_in_the_way(group, view)
    if blocked is not None:
        return blocked
    return Choice(winner, LOST_CACHES_OUTSIDER, unclean=True, loss_from=_outsiders_loss(group, view, winner))


def _awaited(group: Group) -> frozenset[int]:
    """The suspects that an election waits for when everybody in sync is one."""
    return group.unproven if group.sync_state_set <= group.unproven else group.suspects


def _doubt(group: Group) -> str:
    """Why nobody in sync is trusted."""
    if group.sync_state_set <= group.unproven:
        return "was not closed in order, and could have been rolled back"
    return "lost its page cache"


def _outsiders_loss(group: Group, view: LiveView, winner: int) -> int:
    """From where on the best log may lack what was acknowledged, when its replica was not in sync.

    It followed, or led, the last epoch in its log, so it has what was acknowledged up to that epoch: all of
    the epochs before it, and of this one what lies before the end of its log. If a later epoch was led, its
    messages may lie there instead. That one began at or behind the ends of all suspects' logs: they were in
    sync in it, and none of them knows it any more.
    """
    end = max_offset(view, winner)
    last_led = group.master_epoch if group.master_id is not None else group.master_epoch - 1
    if _log(view, winner)[0] >= last_led:
        return end
    return min(end, max(max_offset(view, suspect) for suspect in _awaited(group)))


def choose_unclean(group: Group, view: LiveView, wanted: int | None = None) -> Choice | NoChoice:
    """The best living replica, or the wanted one, though it may lack acknowledged messages.

    Only when the old master and every in-sync replica are known to be dead; what may live and was not asked
    yet must be waited for.
    """
    if wanted is not None and wanted in group.fenced:
        return _is_fenced(group, wanted)
    if wanted is None or group.master_id != wanted:
        blocked = master_in_the_way(group, view) or lease_in_the_way(group, view)
        if blocked is not None:
            return blocked
    better = group.sync_state_set - group.suspects
    for broker_id in sorted(group.sync_state_set | group.suspects):
        if view.standing(broker_id) is Standing.UNKNOWN and broker_id != wanted:
            return NoChoice(
                f"it is not known yet whether replica {broker_id} of {group.broker_name} is alive;"
                f" the controllers are asking it: try again in a moment"
            )
        if broker_id in better and broker_id != wanted and view.fit(broker_id):
            return NoChoice(
                f"replica {broker_id} of {group.broker_name} is in sync and alive: elect that one"
            )
    alive = [key for key in group.replicas if view.fit(key) and key not in group.fenced]
    if wanted is not None:
        alive = [broker_id for broker_id in alive if broker_id == wanted]
    if not alive:
        who = "no replica" if wanted is None else f"replica {wanted}"
        return NoChoice(f"{who} of {group.broker_name} is known to be alive: start it, then elect again")
    winner = best(alive, view)
    live = view.lives.get(winner)
    loss_from = -1 if live is None else min(live.confirm_offset, live.max_offset)
    if live is not None:
        # An earlier unclean election may have left the winner's log behind as another branch: what it has
        # confirmed behind that point is not what was acknowledged since.
        left = [loss.from_offset for loss in group.losses if loss.master_epoch > live.epoch]
        loss_from = min([loss_from, *left])
    return Choice(
        winner,
        "unclean: no in-sync replica lives; acknowledged messages that only those had are lost",
        unclean=True,
        loss_from=max(loss_from, -1),
    )


def master_in_the_way(group: Group, view: LiveView) -> NoChoice | None:
    """Why nobody can be elected past the master: it lives, or may; None when it is dead or there is none."""
    if group.master_id is None:
        return None
    match view.election_standing(group.master_id):
        case Standing.ALIVE:
            return NoChoice(f"replica {group.master_id} of {group.broker_name} is master and alive")
        case Standing.UNKNOWN:
            return NoChoice(
                f"it is not known yet whether the master of {group.broker_name}, replica {group.master_id} at"
                f" {group.replicas[group.master_id].address}, is alive; the controllers are asking it:"
                f" try again in a moment"
            )
        case Standing.DEAD:
            return None


def waits_for_lease(group: Group, view: LiveView) -> bool:
    """Whether even a clean election must wait for the end of the old master's lease.

    Where all in-sync replicas acknowledge, an old master without them acknowledges nothing. Where the master
    alone does, it could go on until its lease ends, and what it took would be lost.
    """
    return any(live.all_ack is False for key, live in view.lives.items() if key in group.replicas)


def lease_in_the_way(group: Group, view: LiveView) -> NoChoice | None:
    """Why an election must wait though the old master does not answer; None when its lease surely is over."""
    if view.lease_seconds <= 0 or group.master_epoch == 0:
        return None
    if group.master_id is None:
        who = "the last master"
        may_have_one = any(replica.nonce is not None for replica in group.replicas.values())
    else:
        who = f"replica {group.master_id}"
        has_nonce = group.replicas[group.master_id].nonce is not None  # Java's brokers get no lease
        may_have_one = has_nonce and not view.surely_dead(group.master_id)
    if not may_have_one:
        return None
    return NoChoice(
        f"{who} of {group.broker_name} may serve for {view.lease_seconds:.1f} s more, as a controller allowed"
        f" it: wait until then; `brokerset switchover {group.broker_name}` moves a living master at once"
    )


def choose_successor(group: Group, view: LiveView, wanted: int | None) -> Choice | NoChoice:
    """Whom a living master hands over to: the named replica, or whoever is the furthest."""
    candidates = group.sync_state_set - group.suspects - group.fenced - {group.master_id}
    fit = [broker_id for broker_id in sorted(candidates) if view.fit(broker_id)]
    if wanted is None and fit:
        return Choice(best(fit, view), HANDED_OVER)
    if wanted in fit:
        assert wanted is not None
        return Choice(wanted, HANDED_OVER)
    able = f"able to take over: {_listed(fit)}"
    if wanted is None:
        return NoChoice(
            f"no other replica of {group.broker_name} is in sync, alive and not fenced: start one, and wait"
            f" until it is in sync"
        )
    if wanted not in group.replicas:
        return NoChoice(f"replica {wanted} of {group.broker_name} is not registered; {able}")
    if wanted == group.master_id:
        return NoChoice(f"replica {wanted} of {group.broker_name} is the master itself; {able}")
    if wanted in group.fenced:
        return _is_fenced(group, wanted)
    if view.stuck(wanted):
        return NoChoice(f"the log of replica {wanted} of {group.broker_name} takes nothing any more; {able}")
    if not view.alive(wanted):
        standing = view.standing(wanted).value
        return NoChoice(f"replica {wanted} of {group.broker_name} is {standing}, not alive; {able}")
    return NoChoice(f"replica {wanted} of {group.broker_name} is not in sync; {able}")


def _is_fenced(group: Group, broker_id: int) -> NoChoice:
    return NoChoice(
        f"replica {broker_id} of {group.broker_name} is fenced: it is never elected until"
        f" `brokerset unfence {group.broker_name} {broker_id}`"
    )


def best(candidates: Iterable[int], view: LiveView) -> int:
    """The candidate with the highest epoch, then offset, then the smallest priority, then id."""
    return min(candidates, key=lambda broker_id: _rank(view, broker_id))


def new_epoch(group: Group, view: LiveView) -> int:
    """One above every epoch that the controllers or a replica of the group ever reported."""
    last_known = [view.lives[broker_id].epoch for broker_id in group.replicas if broker_id in view.lives]
    return max(group.master_epoch, *last_known, 0) + 1


def may_hold_more(group: Group, view: LiveView, broker_id: int) -> bool:
    """Whether another replica has, or may have, messages that this one lacks, as far as is known."""
    has_data = group.master_epoch > 0 or any(
        live.epoch > 0 or live.max_offset > 0 for key, live in view.lives.items() if key in group.replicas
    )
    if not has_data:
        return False
    own = _log(view, broker_id)
    return any(
        key != broker_id and (key not in view.lives or not _log_end_known(view, key) or _log(view, key) > own)
        for key in group.replicas
    )


def first_loss(group: Group, view: LiveView, winner: int) -> int | None:
    """From where on the first master of a rebuilt group may lack what was acknowledged; None: nowhere.

    Who was in sync is forgotten. If anybody was who has its page cache yet, the longest log has everything;
    so something may be missing as soon as one replica has lost it. The winner followed, or led, the last
    epoch in its log: what was acknowledged in that one lies before the end of its log, or is gone. If a later
    epoch was led, only replicas that lost their page cache have been in sync in it, and it began at or behind
    the end of what is left of one of them.
    """
    lost = [key for key in group.replicas if key in view.lives and view.lives[key].lost_cache]
    if not lost or group.master_epoch == 0:  # without any master nothing was acknowledged
        return None
    end = max_offset(view, winner)
    if _log(view, winner)[0] >= group.master_epoch:
        return end
    return min(end, *(max_offset(view, key) for key in lost))


def _choose_first(group: Group, view: LiveView, requester: int | None) -> Choice | NoChoice:
    reported = [key for key in group.replicas if view.fit(key) and _log_end_known(view, key)]
    if requester is not None and requester in group.fenced:
        return _is_fenced(group, requester)
    elect = f"`brokerset elect {group.broker_name} --id ID` decides at once"
    if group.expected_replicas > 0:
        if len(reported) >= group.expected_replicas:
            return _first(group, view, best(reported, view), FIRST_OF_ALL)
        return NoChoice(
            f"{group.broker_name} waits for its first master until all {group.expected_replicas} replicas"
            f" have reported their logs; {len(reported)} have ({_listed(reported)}). Start the"
            f" others, or {elect}"
        )
    if requester not in group.replicas or requester is None:
        return NoChoice(
            f"{group.broker_name} gets its first master as soon as one of its brokers asks; else {elect}"
        )
    if group.master_epoch == 0:
        return Choice(requester, "the first master: the first broker that asked")
    for key in group.replicas:
        if key != requester and view.standing(key) is Standing.UNKNOWN:
            return NoChoice(
                f"{group.broker_name} has data and no in-sync set, and it is not known yet whether replica"
                f" {key} is alive; the controllers are asking it: try again in a moment, or {elect}"
            )
    return _first(group, view, best({requester, *reported}, view), FIRST_OF_LIVING)


def _first(group: Group, view: LiveView, winner: int, reason: str) -> Choice | NoChoice:
    """The first master; another one than the winner would lack what a fenced winner has."""
    if winner in group.fenced:
        return _is_fenced(group, winner)
    loss_from = first_loss(group, view, winner)
    return Choice(winner, reason if loss_from is None else FIRST_AFTER_LOSS, loss_from=loss_from)


def _why_nobody(group: Group, view: LiveView) -> str:
    awaited = _awaited(group)
    lacking = sorted(key for key in group.sync_state_set | awaited if not view.fit(key))
    if not lacking:
        lacking = sorted(awaited)
    where = ", ".join(
        f"{key} at {group.replicas[key].address} ({_condition(view, key)})"
        for key in lacking
        if key in group.replicas
    )
    what = (
        f"every in-sync replica {_doubt(group)}, and not all of them have reported their logs"
        if group.sync_state_set <= group.suspects
        else "no in-sync replica is alive"
    )
    return (
        f"{what}: start replica {where}. If that is impossible,"
        f" `brokerset elect {group.broker_name} --unclean` takes the best of the others, and"
        f" acknowledged messages may be lost"
    )


def _condition(view: LiveView, broker_id: int) -> str:
    return "its log takes nothing any more" if view.stuck(broker_id) else view.standing(broker_id).value


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"


def _unknown(group: Group, view: LiveView) -> list[int]:
    """Who may live, and was not asked yet."""
    return [key for key in group.replicas if view.standing(key) is Standing.UNKNOWN]


def _log_end_known(view: LiveView, broker_id: int) -> bool:
    return broker_id in view.lives and view.lives[broker_id].max_offset >= 0


def max_offset(view: LiveView, broker_id: int) -> int:
    """The last known end of a replica's log; -1 for none."""
    return view.lives[broker_id].max_offset if broker_id in view.lives else -1


def _log(view: LiveView, broker_id: int) -> tuple[int, int]:
    live = view.lives.get(broker_id)
    return (-1, -1) if live is None else (live.epoch, live.max_offset)


def _rank(view: LiveView, broker_id: int) -> tuple[int, int, int, int]:
    epoch, offset = _log(view, broker_id)
    priority = view.lives[broker_id].priority if broker_id in view.lives else PRIORITY_DEFAULT
    return -epoch, -offset, priority, broker_id
