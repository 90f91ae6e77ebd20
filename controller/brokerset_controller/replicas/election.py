"""Who becomes master: pure choice from the agreed state and one look at who is alive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from brokerset_controller.liveness import PRIORITY_DEFAULT, LiveView, Standing
from brokerset_controller.replicas.state import Group


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
    if blocked is not None:
        return blocked
    if group.virgin:
        return _choose_first(group, view, requester)
    sound = group.sync_state_set - group.suspects
    alive = [broker_id for broker_id in sound if view.alive(broker_id)]
    if alive:
        return Choice(best(alive, view), "the best living replica of the in-sync set")
    if not sound:
        reported = all(view.alive(suspect) and _log_end_known(view, suspect) for suspect in group.suspects)
        if reported:
            winner = best(group.suspects, view)
            return Choice(
                winner,
                "every in-sync replica lost its page cache; the one with the longest log won",
                loss_from=max_offset(view, winner),
            )
    if unclean_allowed:
        return choose_unclean(group, view)
    return NoChoice(_why_nobody(group, view))


def choose_unclean(group: Group, view: LiveView, wanted: int | None = None) -> Choice | NoChoice:
    """The best living replica, or the wanted one, though it may lack acknowledged messages.

    Only when the old master and every in-sync replica are known to be dead; what may live and was not asked
    yet must be waited for.
    """
    if group.master_id != wanted:
        blocked = master_in_the_way(group, view)
        if blocked is not None:
            return blocked
    better = group.sync_state_set - group.suspects
    for broker_id in sorted(group.sync_state_set | group.suspects):
        if view.standing(broker_id) is Standing.UNKNOWN and broker_id != wanted:
            return NoChoice(
                f"it is not known yet whether replica {broker_id} of {group.broker_name} is alive;"
                f" the controllers are asking it: try again in a moment"
            )
        if broker_id in better and broker_id != wanted and view.alive(broker_id):
            return NoChoice(
                f"replica {broker_id} of {group.broker_name} is in sync and alive: elect that one"
            )
    alive = [broker_id for broker_id in group.replicas if view.alive(broker_id)]
    if wanted is not None:
        alive = [broker_id for broker_id in alive if broker_id == wanted]
    if not alive:
        who = "no replica" if wanted is None else f"replica {wanted}"
        return NoChoice(f"{who} of {group.broker_name} is known to be alive: start it, then elect again")
    winner = best(alive, view)
    live = view.lives.get(winner)
    loss_from = -1 if live is None else min(live.confirm_offset, live.max_offset)
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
    match view.standing(group.master_id):
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


def best(candidates: Iterable[int], view: LiveView) -> int:
    """The candidate with the highest epoch, then offset, then the smallest priority, then id."""
    return min(candidates, key=lambda broker_id: _rank(view, broker_id))


def new_epoch(group: Group, view: LiveView) -> int:
    """One above every epoch that the controllers or a replica of the group ever told of."""
    told = [view.lives[broker_id].epoch for broker_id in group.replicas if broker_id in view.lives]
    return max(group.master_epoch, *told, 0) + 1


def may_hold_more(group: Group, view: LiveView, broker_id: int) -> bool:
    """Whether another replica has, or may have, messages that this one lacks, as far as logs were told of."""
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


def _choose_first(group: Group, view: LiveView, requester: int | None) -> Choice | NoChoice:
    reported = [key for key in group.replicas if view.alive(key) and _log_end_known(view, key)]
    elect = f"`brokerset elect {group.broker_name} --id ID` decides at once"
    if group.expected_replicas > 0:
        if len(reported) >= group.expected_replicas:
            return Choice(best(reported, view), "the first master: the longest log of all replicas")
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
    return Choice(best({requester, *reported}, view), "the first master: the longest log of those that live")


def _why_nobody(group: Group, view: LiveView) -> str:
    lacking = sorted(key for key in group.sync_state_set | group.suspects if not view.alive(key))
    if not lacking:
        lacking = sorted(group.suspects)
    where = ", ".join(
        f"{key} at {group.replicas[key].address} ({view.standing(key).value})"
        for key in lacking
        if key in group.replicas
    )
    what = (
        "every in-sync replica lost its page cache, and not all of them have reported their logs"
        if group.sync_state_set <= group.suspects
        else "no in-sync replica is alive"
    )
    return (
        f"{what}: start replica {where}. If that is impossible,"
        f" `brokerset elect {group.broker_name} --unclean` takes the best of the others, and"
        f" acknowledged messages may be lost"
    )


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"


def _log_end_known(view: LiveView, broker_id: int) -> bool:
    return broker_id in view.lives and view.lives[broker_id].max_offset >= 0


def max_offset(view: LiveView, broker_id: int) -> int:
    """The end of a replica's log as told last; -1 when it was not."""
    return view.lives[broker_id].max_offset if broker_id in view.lives else -1


def _log(view: LiveView, broker_id: int) -> tuple[int, int]:
    live = view.lives.get(broker_id)
    return (-1, -1) if live is None else (live.epoch, live.max_offset)


def _rank(view: LiveView, broker_id: int) -> tuple[int, int, int, int]:
    epoch, offset = _log(view, broker_id)
    priority = view.lives[broker_id].priority if broker_id in view.lives else PRIORITY_DEFAULT
    return -epoch, -offset, priority, broker_id
