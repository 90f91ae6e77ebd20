"""What a member of a DLedger group says about itself (28)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from brokerset_spec.broker_settings import PEER_PATTERN

MEMBER: Final = re.compile(r"n[0-9]{1,9}")
LEADER: Final = "LEADER"


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """One member's view of its group. A number that it does not say is None."""

    member: str
    """Its id, as `n0`."""

    peers: Mapping[str, str]
    """`host:port` of every member's DLedger, by id."""

    broker_id: int | None
    role: str
    """`LEADER`, `FOLLOWER` or `CANDIDATE`."""

    term: int
    leader: str
    """Id of the member that it knows to lead; empty without one."""

    begin_index: int | None = None
    end_index: int | None = None
    committed_index: int | None = None
    problem: str = ""
    """Why it serves nobody; empty when it does, as leader or by following one."""

    @property
    def leads(self) -> bool:
        """Whether it says that it leads."""
        return self.role == LEADER


def ledger_facts_from(table: Mapping[str, str]) -> LedgerFacts | None:
    """Read a broker's measurements (28); None when it is no member of a DLedger group."""
    member, term = table.get("brokersetDLedgerSelfId", ""), _number(table.get("brokersetDLedgerTerm"))
    if not MEMBER.fullmatch(member) or term is None:
        return None
    return LedgerFacts(
        member=member,
        peers=_peers(table.get("brokersetDLedgerPeers", "")),
        broker_id=_number(table.get("brokersetReplicaId")),
        role=table.get("brokersetDLedgerRole", ""),
        term=term,
        leader=table.get("brokersetDLedgerLeader", ""),
        begin_index=_number(table.get("brokersetDLedgerBeginIndex")),
        end_index=_number(table.get("brokersetDLedgerEndIndex")),
        committed_index=_number(table.get("brokersetDLedgerCommittedIndex")),
        problem=table.get("brokersetProblem", ""),
    )


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _peers(text: str) -> dict[str, str]:
    """Read `n0-host:port;n1-host:port`."""
    found = filter(None, map(PEER_PATTERN.fullmatch, text.split(";")))
    return {match["id"]: match["address"] for match in found}
