"""What one broker says about itself (28): role, offsets, in-sync set, lease, and what is wrong. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerset_client.ledger_facts import LedgerFacts, ledger_facts_from

NO_LEASE: Final = -1
"""What a broker writes as its lease while it has none."""


@dataclass(frozen=True, slots=True)
class SlaveFacts:
    """A slave that is connected, as its master sees it."""

    broker_id: int
    address: str
    acknowledged: int
    lag_bytes: int
    in_sync: bool
    learner: bool

    def to_json(self) -> dict[str, Any]:
        """With the broker's own names."""
        return {
            "id": self.broker_id,
            "address": self.address,
            "acknowledged": self.acknowledged,
            "lagBytes": self.lag_bytes,
            "inSync": self.in_sync,
            "learner": self.learner,
        }


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What one broker says. A number that it does not know is None."""

    address: str
    role: str
    """`master`, `slave`, or another word while it is neither."""

    epoch: int | None = None
    """Master epoch."""

    max_offset: int | None = None
    """End of its log in bytes."""

    confirmed_offset: int | None = None
    lag_bytes: int | None = None
    """How far a slave is behind, as it knows."""

    in_sync: tuple[int, ...] = ()
    set_epoch: int | None = None
    lease_ms: int | None = None
    """Milliseconds that its lease lasts; -1 without one; None when leases are not used."""

    fenced: bool = False
    following: str = ""
    """State of a slave's connection to its master."""

    problem: str = ""
    """Why it does not follow."""

    advice: str = ""
    replicas: tuple[SlaveFacts, ...] = ()
    """The slaves that are connected to a master."""

    min_in_sync: int | None = None
    """Fewer brokers in sync refuse sends; only asked of masters."""

    ledger: LedgerFacts | None = None
    """What a member of a DLedger group says of it."""

    @property
    def is_master(self) -> bool:
        """Whether it serves, or is about to serve, as master."""
        return self.role == "master"

    @property
    def lease(self) -> str:
        """The lease for people."""
        if not self.is_master:
            return ""
        if self.lease_ms is None:
            return "not used"
        return "none" if self.lease_ms < 0 else f"{self.lease_ms:,} ms"


def facts_from(address: str, table: Mapping[str, str], min_in_sync: int | None = None) -> BrokerFacts | None:
    """Read a broker's measurements (code 28); None when it says nothing about replication."""
    if not table.get("brokersetRole") or "brokersetMaxOffset" not in table:
        return None
    return BrokerFacts(
        address=address,
        role=table["brokersetRole"].lower(),
        epoch=integer(table.get("brokersetMasterEpoch")),
        max_offset=integer(table.get("brokersetMaxOffset")),
        confirmed_offset=integer(table.get("brokersetConfirmedOffset")),
        lag_bytes=integer(table.get("brokersetLagBytes")),
        in_sync=_ids(table.get("brokersetInSync", "")),
        set_epoch=integer(table.get("brokersetSetEpoch")),
        lease_ms=integer(table.get("brokersetLeaseMs")),
        fenced=table.get("brokersetFenced", "").lower() == "true",
        following=table.get("brokersetFollowing", ""),
        problem=table.get("brokersetFollowProblem", ""),
        advice=table.get("brokersetFollowAdvice", ""),
        replicas=_slaves(table.get("brokersetReplicas", "")),
        min_in_sync=min_in_sync,
        ledger=ledger_facts_from(table),
    )


def integer(text: str | None) -> int | None:
    """Return a number; None for what is none."""
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _ids(text: str) -> tuple[int, ...]:
    found = [integer(part.strip()) for part in text.split(",")]
    return tuple(sorted(each for each in found if each is not None))


def _slaves(text: str) -> tuple[SlaveFacts, ...]:
    """Read `brokersetReplicas`; what cannot be read is left out, since a newer broker may say more."""
    try:
        raw = json.loads(text) if text else []
        return tuple(
            SlaveFacts(
                int(each["id"]),
                str(each.get("address", "")),
                int(each.get("acknowledged", 0)),
                int(each.get("lagBytes", 0)),
                bool(each.get("inSync", False)),
                bool(each.get("learner", False)),
            )
            for each in raw
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()
