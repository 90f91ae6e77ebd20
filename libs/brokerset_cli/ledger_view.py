"""What `brokerset status` knows of DLedger groups, which have no controllers: their members are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from brokerset_cli.folder import SetState
from brokerset_cli.output import write_table
from brokerset_cli.replication_view import fetch_broker_facts
from brokerset_client.ledger_groups import LedgerGroup, LedgerMember, ledger_groups, no_leader

BEHIND_BYTES: Final = 16 * 1024 * 1024
"""A member that lacks more of the leader's log is said to be behind; under load all lack a little."""


async def fetch_ledger_groups(
    state: SetState | None, names: Mapping[str, str]
) -> tuple[tuple[LedgerGroup, ...], tuple[str, ...]]:
    """Ask brokers, `names` by address and those of a local set, about their DLedger groups.

    Returns the groups, and the names of groups of the set of which no member answers.
    """
    own = [process for process in (state.processes if state else ()) if process.kind == "broker"]
    asked = {**names, **{process.address: process.group or "" for process in own}}
    facts = await fetch_broker_facts(asked)
    groups = ledger_groups(facts, asked, {process.ledger: process.address for process in own})
    wanted = {process.group or "" for process in own} if state is not None and state.is_dledger else set()
    return groups, tuple(sorted(wanted - {group.name for group in groups}))


def ledger_problems(groups: Sequence[LedgerGroup], silent: Sequence[str] = ()) -> list[str]:
    """What is wrong with DLedger groups, with what to do where it is known."""
    found = [f"{name}: no member answers; start its brokers" for name in silent]
    for group in groups:
        if group.master is None:
            found.append(f"{group.name} has no master: {no_leader(group)}")
        leader = group.leader
        for each in group.members:
            name, own = f"{group.name}: {each.member}", each.ledger
            if own is None:
                where = each.address or each.peer_address
                found.append(f"{name} at {where} gives no answer; see that it runs")
                continue
            if leader is None or leader.ledger is None or each is leader:
                continue
            if (own.leader, own.term) != (leader.member, leader.ledger.term):
                follows = f"follows {own.leader}" if own.leader else "follows nobody"
                found.append(
                    f"{name} {follows} in term {own.term}, and {leader.member} leads in {group.term}"
                )
            elif (lag := group.lag_of(each)) is not None and lag > BEHIND_BYTES:
                found.append(f"{name} is {lag:,} bytes behind {leader.member}")
    return found


def groups_json(groups: Sequence[LedgerGroup], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The groups for `status --json`; every key is always there."""
    return [
        {
            "brokerName": group.name,
            "term": group.term,
            "leader": group.leader.member if group.leader is not None else None,
            "masterId": group.master.broker_id if group.master is not None else None,
            "inSync": list(group.in_sync),
            "members": [_member_json(group, each, names) for each in group.members],
        }
        for group in groups
    ]


def _member_json(group: LedgerGroup, each: LedgerMember, names: Mapping[str, str]) -> dict[str, Any]:
    own, facts = each.ledger, each.facts
    return {
        "member": each.member,
        "brokerId": each.broker_id,
        "process": names.get(each.address),
        "address": each.address or None,
        "peerAddress": each.peer_address or None,
        "answers": facts is not None,
        "role": own.role.lower() if own is not None else None,
        "brokerRole": facts.role if facts is not None else None,
        "term": own.term if own is not None else None,
        "leader": (own.leader or None) if own is not None else None,
        "beginIndex": own.begin_index if own is not None else None,
        "endIndex": own.end_index if own is not None else None,
        "committedIndex": own.committed_index if own is not None else None,
        "maxOffset": facts.max_offset if facts is not None else None,
        "confirmedOffset": facts.confirmed_offset if facts is not None else None,
        "lagBytes": group.lag_of(each),
        "inSync": each.broker_id in group.in_sync,
        "leaseMs": facts.lease_ms if facts is not None and facts.is_master else None,
        "problem": (own.problem or None) if own is not None else None,
    }


def show_groups(
    groups: Sequence[LedgerGroup], names: Mapping[str, str], say: Callable[[str], object]
) -> None:
    """A line about each group and a table of its members, for people."""
    for group in groups:
        leader = group.leader
        who = f"{leader.member} leads" if leader is not None else "nobody leads"
        in_sync = ", ".join(map(str, group.in_sync)) or "nobody"
        say(f"{group.name}, a DLedger: {who}, term {group.term}; in sync: {in_sync}")
        rows = []
        for each in group.members:
            own, facts = each.ledger, each.facts
            rows.append(
                (
                    each.broker_id,
                    each.member,
                    names.get(each.address),
                    each.address or None,
                    own.role.lower() if own is not None else "no answer",
                    own.term if own is not None else None,
                    (own.leader or None) if own is not None else None,
                    own.begin_index if own is not None else None,
                    own.end_index if own is not None else None,
                    own.committed_index if own is not None else None,
                    group.lag_of(each),
                    "yes" if each.broker_id in group.in_sync else "no",
                    (facts.lease or None) if facts is not None else None,
                )
            )
        write_table(
            (
                "id", "member", "process", "address", "role", "term", "leader", "begin", "end", "committed",
                "behind", "in sync", "lease",
            ),
            rows,
        )  # fmt: skip
        say("")
