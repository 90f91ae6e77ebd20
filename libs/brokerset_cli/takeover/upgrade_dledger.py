"""How a DLedger group comes into controller mode: which store has everything, and what becomes of each. Pure.

The rule is the one by which DLedger elects: of the stores of a quorum, the one whose last entry has the
highest term, and in it the highest index, has every entry that was committed. Of that log is taken what a
quorum may have: a store that is not seen may have all of it. What is behind was never acknowledged; a leader
without a quorum appends, for instance, delayed messages, whose progress nobody knows.
"""

from __future__ import annotations

from typing import Final

from brokerset_cli.takeover.steps import Standing, blocked, done, ready, yours
from brokerset_cli.takeover.upgrade_facts import Comparison, Exchange, Likeness, StoreSeen, World

BEGUN: Final = "begun"
DONE: Final = "done"
BACK: Final = "back"
"""What `Note.exchange` may be."""

TITLES: Final = {
    "notes": "what only running brokers tell is written down: addresses, who leads, how many members",
    "slaves-stopped": "the members that do not lead are stopped",
    "master-stopped": "then the leader is stopped",
    "logs": "the store with the newest entry is chosen, and the others agree with it up to what is committed",
    "exchange": "its messages become a commit log, the others become empty; DLedgers are moved aside",
    "epochs": "all that is there becomes the first epoch",
    "start-master": "the broker of the chosen store starts first, in controller mode, and is elected;"
    " from here on there is no way back",
}
"""Of the steps that are others for a DLedger."""


def state_of(each: StoreSeen) -> str:
    """How far the content of a store was exchanged."""
    return each.note.exchange if each.note is not None else ""


def problems(world: World) -> list[str]:
    """Why stores cannot be taken; each a sentence with what to do."""
    found = []
    for each in world.stores:
        match state_of(each):
            case "" if not each.store.problem and not each.store.ledger:
                found.append(f"{each.name} has no DLedger: `brokerset upgrade classic` takes such stores")
            case "done" if each.store.ledger:
                found.append(
                    f"{each.name} has {each.store.ledger} again: a broker with the old settings has run there"
                    f" since its DLedger was moved aside; `--back` puts all of it back, and keeps what is"
                    " there now"
                )
            case "back":
                found.append(f"`--back` was interrupted on {each.name}: give it again, with all stores")
    return found


def choose_member(world: World) -> tuple[StoreSeen | None, str]:
    """The store whose messages everybody gets, else why that is not known.

    While brokers run nobody reads logs: then it is the leader's, which is to stop last.
    """
    stores = world.stores
    decided = [each for each in stores if each.note is not None and each.note.chosen is not None]
    if len(decided) == 1:
        return decided[0], ""
    if world.wanted_master:
        named = next((each for each in stores if each.name == world.wanted_master), None)
        return named, "" if named else f"no store is {world.wanted_master}"
    ends = [each.store.last for each in stores]
    if all(end is not None for end in ends):
        newest = max(end for end in ends if end is not None)
        same = [each for each in stores if each.store.last == newest]
        return min(same, key=lambda each: not _led(each)), ""
    leaders = [each for each in stores if _led(each)]
    if len(leaders) == 1:
        return leaders[0], ""
    return (stores[0], "") if len(stores) == 1 else (None, "nobody saw which member leads")


def _led(each: StoreSeen) -> bool:
    return each.note is not None and each.note.master


def logs(world: World, leader: StoreSeen | None, unknown: str) -> Standing:
    """Whether the chosen log has all that is committed."""
    if any(state_of(each) for each in world.stores):
        return done("they were compared before DLedgers were moved aside")
    if leader is None:
        return blocked(unknown, "stop all members; the logs tell it then")
    members = _members(world)
    if 2 * len(world.stores) <= members:
        detail = f"{len(world.stores)} of {members} members are no quorum: others may have what these lack"
        return blocked(detail, "give the stores of more members")
    short = leader.store.end is not None and leader.store.end < leader.store.committed
    if short:
        detail = f"{leader.name} can be read to {leader.store.end:,}, and is committed to"
        detail += f" {leader.store.committed:,}"
        return blocked(detail, f"see what `brokerset store verify {leader.name}` finds")
    others = [each for each in world.stores if each is not leader]
    newer = [each for each in others if _newer(each, leader.store.last)]
    if newer:
        detail = f"{leader.name} ends with {_entry(leader.store.last)}, {newer[0].name} with"
        return blocked(f"{detail} {_entry(newer[0].store.last)}", "leave --master out")
    for each in others:
        against = _against(world, leader, each)
        if against is not None:
            return against
    said = [f"{leader.name} ends with {_entry(leader.store.last)}"]
    return done("; ".join([*said, *(_agreement(world, each) for each in others)]))


def _members(world: World) -> int:
    return max([len(world.stores), *(each.note.members for each in world.stores if each.note)])


def taken_end(world: World, leader: StoreSeen) -> int | None:
    """Behind the last entry that a quorum may have; None when that is all that can be read."""
    end = leader.store.end
    if end is None:
        return None
    members = _members(world)
    ends = [end] * (1 + members - len(world.stores))
    for each in world.stores:
        if each is not leader:
            found = _found(world, each)
            known = found.likeness in (Likeness.PREFIX, Likeness.APART) and found.exact
            ends.append(min(found.common_end, end) if known else end)
    by_quorum = sorted(ends, reverse=True)[members // 2]
    taken = max([by_quorum, *(min(each.store.committed, end) for each in world.stores)])
    return taken if leader.store.begin < taken < end else leader.store.until


def _entry(last: tuple[int, int] | None) -> str:
    return "no entry" if last is None or last[1] < 0 else f"entry {last[1]:,} of term {last[0]}"


def _newer(each: StoreSeen, last: tuple[int, int] | None) -> bool:
    return each.store.last is not None and last is not None and each.store.last > last


def _found(world: World, each: StoreSeen) -> Comparison:
    return world.comparisons.get(each.name, Comparison(Likeness.UNKNOWN, detail="it was not compared"))


def _against(world: World, leader: StoreSeen, each: StoreSeen) -> Standing | None:
    """What stands against a member's log; None when all that it calls committed is in the chosen one."""
    found = _found(world, each)
    more = f" ({found.detail})" if found.detail else ""
    if found.likeness is Likeness.PREFIX or each.name in world.accept_cut:
        return None
    if found.likeness is Likeness.UNKNOWN:
        hint = (
            "run this on the host of the chosen store with --facts of this one and --write-facts,"
            " and give that file here with --facts"
        )
        return blocked(f"{each.name} could not be compared with {leader.name}{more}", hint)
    give_up = f"--accept-cut {each.name} gives up what only that one has; its DLedger is kept"
    if found.likeness is Likeness.NOTHING:
        return blocked(f"{each.name} and {leader.name} have no byte in common{more}", give_up)
    if each.store.committed <= found.common_end:
        return None
    detail = (
        f"{each.name} differs from {leader.name} from {found.common_end:,} on, and calls what lies before"
        f" {each.store.committed:,} committed{more}"
    )
    return blocked(detail, f"find out which of both has what clients were told; {give_up}")


def _agreement(world: World, each: StoreSeen) -> str:
    """What is known of a log that agrees with the chosen one."""
    found = _found(world, each)
    if found.likeness is Likeness.PREFIX:
        return f"{each.name} agrees with it to {found.common_end:,}, its end"
    return (
        f"{each.name} agrees with it to {found.common_end:,}; {found.cut_messages:,} entries behind that were"
        " never committed"
    )


def exchanged(world: World, leader: StoreSeen | None) -> Standing:
    """The chosen store first: the others have everything until that has been read back."""
    if leader is None:
        return blocked("nobody knows which store has everything", "stop all members; the logs tell it then")
    if leader.here and state_of(leader) != DONE:
        begun = leader.note is not None and leader.note.chosen is not None
        chosen = leader.note.chosen if begun and leader.note is not None else leader.store.last
        until = None if begun else taken_end(world, leader)
        detail = f"{leader.name} is read, written as a commit log alongside, and read back"
        if until is not None:
            detail += f", up to {until:,}: no quorum has what is behind"
        return ready(detail, Exchange(leader.name, chosen, until))
    for each in world.stores:
        if each is leader or not each.here or state_of(each) == DONE:
            continue
        if state_of(leader) != DONE or leader.note is None:
            hint = "run this there first, and give the file that --write-facts writes there here with --facts"
            return yours(f"{leader.name} is on another host, and has its DLedger still", hint)
        if _newer(each, leader.note.chosen) and not state_of(each) and each.name not in world.accept_cut:
            detail = (
                f"{each.name} ends with {_entry(each.store.last)}, and what was taken of {leader.name} with"
                f" {_entry(leader.note.chosen)}: old brokers have run since"
            )
            hint = f"`--back` on all hosts, then begin again; or give that up with --accept-cut {each.name}"
            return blocked(detail, hint)
        return ready(f"{each.name} becomes empty, and gets all of it from {leader.name}",
                     Exchange(each.name, None))  # fmt: skip
    return done(f"{leader.name} has the messages")
