"""DLedger groups, which have no controllers, as their members describe them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brokerset_client.broker_facts import BrokerFacts
from brokerset_client.ledger_facts import LedgerFacts
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState


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
    def has_begun(self) -> bool:
        """Whether anybody ever led: a leader begins its term with a record."""
        said = [each.ledger for each in self.members if each.ledger is not None]
        return any(each.leader or each.leads or (each.end_index or 0) >= 0 for each in said)

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
                max_offset=each.facts.max_offset if each.facts is not None else None,
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
            # As brokers count them: the first term is 0, the first epoch 1.
            master_epoch=self.term + 1 if self.has_begun else 0,
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
