"""A DLedger group of both makes whose leader changes many times under load: kills and transfers, leaders of both makes.

Every third change kills the leader (`kill -9`), of one make and the other in turn; the others transfer the leadership (51005).
Afterwards every acknowledged message must be where it was acknowledged, once, and `data` and `index` of all members equal.
"""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

from brokerset_rig import controller_parts, replication_checks, stack
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import until
from brokerset_rig.dledger_group import JAVA, OURS, Group, Member, current_term, group
from brokerset_rig.dledger_load import TOPIC, Load
from brokerset_rig.replication_checks import note

CHANGES = {"core": 9, "all": 54}
MAKES = (JAVA, OURS, OURS)
KILL_EACH = 3
"""So many changes have one kill among them."""

BETWEEN = 20
"""Messages that are acknowledged between two changes."""

MADE_SECONDS_MAX = 40.0


def run(add: Add, size: str, changes: int | None = None) -> None:
    """So many changes, or those of the size; `add` takes what was seen."""
    wanted = changes or CHANGES[size]
    with group("dledger-changes", MAKES, OURS) as found:
        with step(add, "one member of Java and two of ours elect a leader") as problems:
            found.start()
            until("the topic is made", partial(_made, found), MADE_SECONDS_MAX)
        if problems:
            return
        load = Load(found)
        led: Counter[str] = Counter()
        with load, step(add, f"the leader changes {wanted} times under load") as problems:
            problems += _change(found, load, wanted, led)
        _ended(add, found, load, led)


def _made(found: Group) -> bool:
    controller_parts.create_topic(found.leader().port, TOPIC)
    return True


def _change(found: Group, load: Load, wanted: int, led: Counter[str]) -> list[str]:
    began = time.monotonic()
    kinds: Counter[str] = Counter()
    pauses: dict[str, list[float]] = {}
    terms: set[int] = set()
    for number in range(wanted):
        leader = found.leader()
        kills = number % KILL_EACH == KILL_EACH - 1
        load.wait_more(BETWEEN)
        at = time.monotonic()
        if kills:
            leader.server.kill()
            successor = found.leader(other_than=leader)
        else:
            successor = _next(found, leader, number)
            found.transfer(successor)
        load.wait_more(1)
        kind = f"{'kill' if kills else 'transfer'} {leader.make} -> {successor.make}"
        kinds[kind] += 1
        pauses.setdefault(kind, []).append(time.monotonic() - at)
        led[successor.make] += 1
        terms.add(current_term(successor))
        if kills:
            leader.server.start()
    note(f"{wanted} changes in {time.monotonic() - began:.0f} s, terms {min(terms)} to {max(terms)}")
    for kind, seconds in sorted(pauses.items()):
        middle = sorted(seconds)[len(seconds) // 2]
        note(
            f"{kind}: {kinds[kind]}, until one is acknowledged {middle:.1f} s (at most {max(seconds):.1f} s)"
        )
    return [] if len(terms) == wanted else [f"only {len(terms)} terms had a leader"]


def _next(found: Group, leader: Member, number: int) -> Member:
    """Who is to lead: before a kill somebody of the make whose turn it is, and before that somebody of the other one."""
    turn = (JAVA, OURS)[number // KILL_EACH % 2]
    before_kill = number % KILL_EACH == KILL_EACH - 2
    others = [each for each in found.members if each is not leader]
    return next((each for each in others if (each.make == turn) is before_kill), others[0])


def _ended(add: Add, found: Group, load: Load, led: Counter[str]) -> None:
    """What must be true when nobody sends any more.

    After a `kill -9` Java's 5.5.0 puts all of its log into queues, also what is not committed
    (`DLedgerCommitLog.dledgerRecoverAbnormally`). When another leader's entries take that place, its queues still name what was
    there, and it answers pulls with bytes that are no record. So only the log of a Java member is judged, not its queues.
    """
    with step(
        add, "each acknowledged message is where it was acknowledged, once, at every member"
    ) as problems:
        for member in found.members:
            found.transfer(member)
            found.wait_registered()
            try:
                wrong = load.problems(member)
            except stack.StackError as error:
                wrong = [f"{member}: {error}"]
            if member.is_ours:
                problems += wrong
            elif wrong:  # its log is compared below
                note(f"queues of Java, see `_ended`: {wrong}")
    with step(add, "data and index of all members are equal byte for byte") as problems:
        differ, size, entries = found.compare()
        problems += differ
        note(f"{size:,} bytes, {entries:,} entries")
    with step(add, "leaders of both makes served, and our brokers logged no unexpected failure") as problems:
        if set(led) != set(MAKES):
            problems.append(f"only {set(led)} led")
        problems += replication_checks.unexpected(found.members)
    note(f"{len(load.acked):,} acknowledged; refused {dict(load.refused)}; led {dict(led)}")
