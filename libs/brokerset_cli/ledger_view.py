"""What `brokerset status` knows of DLedger groups, which have no controllers: their members are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brokerset_cli.folder import SetState
from brokerset_cli.ledger_facts import LedgerFacts
from brokerset_cli.output import write_table
from brokerset_cli.replication_view import BrokerFacts, fetch_broker_facts
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState

BEHIND_BYTES: Final = 16 * 1024 * 1024
"""A member that lacks more of the leader's log is said to be behind; under load all lack a little."""


@dataclass(frozen=True, slots=True)
class LedgerMember:
    """One member of a group, whether it answers or not."""

    member: str
    """Its id, as `n0`."""

    peer_address: str
    """`host:port` of its DLedger."""

    address: str = ""
    """Where clients reach its broker; empty when that is not known."""

    facts: BrokerFacts | None = None
    """None: it gives no answer."""

    @property
    def broker_id(self) -> int:
        """Id of its broker: the number of the member, plus one."""
        return int(self.member.removeprefix("n")) + 1

    @property
    def ledger(self) -> LedgerFacts | None:
        """What it says of the DLedger."""
        return self.facts.ledger if self.facts is not None else None


@dataclass(frozen=True, slots=True)
class LedgerGroup:
    """A group as its members describe it."""

    name: str
    members: tuple[LedgerMember, ...]

    @property
    def term(self) -> int:
        """The highest term that a member knows."""
        return max((each.ledger.term for each in self.members if each.ledger is not None), default=0)

    @property
    def leader(self) -> LedgerMember | None:
        """Who says that it leads, in the highest term: one of before may not know yet."""
        leading = [
            (each.ledger.term, each) for each in self.members if each.ledger is not None and each.ledger.leads
        ]
        return max(leading, key=lambda found: found[0])[1] if leading else None

    @property
    def master(self) -> LedgerMember | None:
        """The leader, once its broker serves."""
        leader = self.leader
        return leader if leader is not None and leader.facts is not None and leader.facts.is_master else None

    @property
    def in_sync(self) -> tuple[int, ...]:
        """Ids of the brokers that have everything that is committed, as the leader knows."""
        leader = self.leader
        return leader.facts.in_sync if leader is not None and leader.facts is not None else ()

    def lag_of(self, member: LedgerMember) -> int | None:
        """How many bytes of the leader's log a member lacks; None when nobody says it."""
        leader = self.leader
        if leader is None or leader.facts is None:
            return None
        if member is leader:
            return 0
        known = {slave.broker_id: slave.lag_bytes for slave in leader.facts.replicas}
        return known.get(member.broker_id)

    def state(self, starts: Mapping[str, int] | None = None) -> GroupState:
        """The same in the form of what controllers tell; `starts` counts those of processes, by address."""
        master, counted = self.master, starts or {}
        replicas = tuple(
            ReplicaState(
                each.broker_id,
                each.address,
                "",
                counted.get(each.address, 0),
                None,
                "alive" if each.facts is not None else "dead",
            )
            for each in self.members
        )
        return GroupState(
            cluster_name="",
            broker_name=self.name,
            owner=None,
            expected_replicas=len(self.members),
            next_broker_id=len(self.members) + 1,
            master_id=None if master is None else master.broker_id,
            master_epoch=self.term + 1,  # as brokers count them: the first term is 0, the first epoch 1
            sync_state_set=self.in_sync,
            sync_state_set_epoch=0,
            suspects=(),
            losses=(),
            replicas=replicas,
            advice=None if master is not None else no_leader(self),
        )


def ledger_groups(
    facts: Mapping[str, BrokerFacts], names: Mapping[str, str], addresses: Mapping[str, str] | None = None
) -> tuple[LedgerGroup, ...]:
    """Put groups together from what brokers say, by address; brokers of other groups are left out.

    `names` has the broker name by address; `addresses` those of brokers by that of their DLedger, as far as
    they are known.
    """
    answers: dict[str, dict[str, BrokerFacts]] = {}
    peers: dict[str, dict[str, str]] = {}
    for address, each in sorted(facts.items()):
        if each.ledger is None:
            continue
        name = names.get(address, "")
        answers.setdefault(name, {})[each.ledger.member] = each
        peers.setdefault(name, {each.ledger.member: ""}).update(each.ledger.peers)
    known = addresses or {}
    return tuple(
        LedgerGroup(
            name,
            tuple(
                LedgerMember(
                    member,
                    peer,
                    found.address
                    if (found := answers[name].get(member)) is not None
                    else known.get(peer, ""),
                    found,
                )
                for member, peer in sorted(peers[name].items(), key=lambda item: int(item[0][1:]))
            ),
        )
        for name in sorted(answers)
    )


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


def no_leader(group: LedgerGroup) -> str:
    """Why a group has no master, and what to do."""
    leader, answering = group.leader, sum(each.facts is not None for each in group.members)
    if leader is not None:
        why = leader.ledger.problem if leader.ledger is not None else ""
        return f"{leader.member} leads in term {group.term} and does not serve yet" + (
            f": {why}" if why else ""
        )
    return (
        f"no member leads ({answering} of {len(group.members)} answer): it takes more than half of them, "
        "which run and reach each other"
    )


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
