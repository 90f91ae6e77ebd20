"""What brokers say about their replication: role, offsets, in-sync set, lease, and what is wrong with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerset_cli.ledger_facts import LedgerFacts, ledger_facts_from
from brokerset_cli.readiness import ask
from brokerset_cli.takeover.mix import Make, broker_make
from brokerset_client.errors import ClientError
from brokerset_client.instance import readable
from brokerset_protocol.bodies import properties_text
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState
from brokerset_protocol.bodies.queues import KVTable
from brokerset_protocol.bodies.replicas import EpochEntryCache
from brokerset_protocol.codes import RequestCode, ResponseCode

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


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """What one broker of either make answered."""

    make: Make
    version: str = ""
    max_offset: int | None = None
    all_ack: bool | None = None
    """`allAckInSyncStateSet`; only asked of masters."""

    facts: BrokerFacts | None = None
    """How it replicates; only brokers of ours say."""


async def fetch_broker_facts(addresses: Iterable[str]) -> dict[str, BrokerFacts]:
    """Ask brokers how they replicate, by address; those that say nothing about that are left out."""
    found = await probe_brokers(addresses)
    return {address: each.facts for address, each in found.items() if each.facts is not None}


async def probe_brokers(addresses: Iterable[str]) -> dict[str, BrokerAnswer]:
    """Ask brokers whose they are and how they replicate, by address."""
    wanted = sorted(set(addresses))
    found = await asyncio.gather(*map(_probe_broker, wanted))
    return dict(zip(wanted, found, strict=True))


async def _probe_broker(address: str) -> BrokerAnswer:
    answer = await ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return BrokerAnswer(Make.UNKNOWN)
    try:
        table = readable(KVTable.from_json, answer.body).table
        make, leads = broker_make(table), table.get("brokersetRole", "").lower() == "master"
        if make is Make.UNKNOWN:
            make, leads = await _probe_identity(address, table)
        settings = await _settings(address) if leads else {}
    except ClientError:
        return BrokerAnswer(Make.UNKNOWN)
    all_ack = settings.get("allAckInSyncStateSet", "").lower()
    return BrokerAnswer(
        make,
        table.get("brokerVersionDesc", ""),
        _integer(table.get("commitLogMaxOffset")),
        all_ack == "true" if all_ack else None,
        facts_from(address, table, _integer(settings.get("minInSyncReplicas"))),
    )


async def _probe_identity(address: str, table: Mapping[str, str]) -> tuple[Make, bool]:
    """Whose a broker is whose measurements do not say it, and whether it leads (1007)."""
    answer = await ask(address, RequestCode.GET_BROKER_EPOCH_CACHE)
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return Make.UNKNOWN, False
    return broker_make(table, answer.ext), readable(EpochEntryCache.from_json, answer.body).broker_id == 0


async def _settings(address: str) -> dict[str, str]:
    answer = await ask(address, RequestCode.GET_BROKER_CONFIG)
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return {}
    return dict(readable(properties_text.from_text, answer.body))


def facts_from(address: str, table: Mapping[str, str], min_in_sync: int | None = None) -> BrokerFacts | None:
    """Read a broker's measurements (code 28); None when it says nothing about replication."""
    if not table.get("brokersetRole") or "brokersetMaxOffset" not in table:
        return None
    return BrokerFacts(
        address=address,
        role=table["brokersetRole"].lower(),
        epoch=_integer(table.get("brokersetMasterEpoch")),
        max_offset=_integer(table.get("brokersetMaxOffset")),
        confirmed_offset=_integer(table.get("brokersetConfirmedOffset")),
        lag_bytes=_integer(table.get("brokersetLagBytes")),
        in_sync=_ids(table.get("brokersetInSync", "")),
        set_epoch=_integer(table.get("brokersetSetEpoch")),
        lease_ms=_integer(table.get("brokersetLeaseMs")),
        fenced=table.get("brokersetFenced", "").lower() == "true",
        following=table.get("brokersetFollowing", ""),
        problem=table.get("brokersetFollowProblem", ""),
        advice=table.get("brokersetFollowAdvice", ""),
        replicas=_slaves(table.get("brokersetReplicas", "")),
        min_in_sync=min_in_sync,
        ledger=ledger_facts_from(table),
    )


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _ids(text: str) -> tuple[int, ...]:
    found = [_integer(part.strip()) for part in text.split(",")]
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


def master_facts(group: GroupState, facts: Mapping[str, BrokerFacts]) -> BrokerFacts | None:
    """What the group's master says; None when it says nothing."""
    found = [
        facts[each.address]
        for each in group.replicas
        if each.broker_id == group.master_id and each.address in facts
    ]
    return found[0] if found and found[0].is_master else None


def lag_of(replica: ReplicaState, facts: Mapping[str, BrokerFacts], master: BrokerFacts | None) -> int | None:
    """How many bytes a replica is behind: as its master counts, else as it says itself."""
    own = facts.get(replica.address)
    if own is not None and own.is_master:
        return 0
    for slave in master.replicas if master is not None else ():
        if slave.broker_id == replica.broker_id:
            return slave.lag_bytes
    return own.lag_bytes if own is not None else None


def replication_problems(groups: Iterable[GroupState], facts: Mapping[str, BrokerFacts]) -> list[str]:
    """What is wrong with the replicas of each group, and what to do about it."""
    found = []
    for group in groups:
        master = master_facts(group, facts)
        in_sync = group.sync_state_set if master is None else master.in_sync
        minimum = master.min_in_sync if master is not None else None
        if minimum is not None and len(in_sync) < minimum:
            found.append(
                f"{group.broker_name}: {len(in_sync)} in sync, and sends are refused below {minimum}: start "
                f"brokers of the group, or see below why they do not follow"
            )
        if master is not None and master.lease_ms == NO_LEASE:
            found.append(
                f"{group.broker_name}/{group.master_id} is master and has no lease: it serves when it "
                "reaches more than half of the controllers"
            )
        for replica in group.replicas:
            own = facts.get(replica.address)
            name = f"{group.broker_name}/{replica.broker_id} at {replica.address}"
            if replica.stuck:
                found.append(
                    f"{name} lives, and its log takes nothing any more: look at its disk and its log file, "
                    "then end its process"
                )
            is_slave = own is not None and not own.is_master
            if own is None or not is_slave or replica.standing != "alive" or is_fenced(group, replica):
                continue
            if own.problem:
                advice = f"; {own.advice}" if own.advice else ""
                found.append(f"{name} does not follow: {own.problem}{advice}")
            elif replica.broker_id not in in_sync and not _learns(replica, master):
                lag = lag_of(replica, facts, master)
                behind = "" if lag is None else f", {lag:,} bytes behind"
                found.append(f"{name} is not in sync yet{behind}")
    return found


def is_fenced(group: GroupState, replica: ReplicaState) -> bool:
    """Whether an administrator has taken a replica out of service."""
    return replica.broker_id in group.fenced


def _learns(replica: ReplicaState, master: BrokerFacts | None) -> bool:
    slaves = master.replicas if master is not None else ()
    return any(each.broker_id == replica.broker_id and each.learner for each in slaves)


REPLICATION_KEYS: Final = (
    "lagBytes", "confirmedOffset", "leaseMs", "leaseUsed", "knowsItIsFenced", "following", "followProblem",
    "followAdvice", "servedEpoch", "setEpoch", "inSyncSeen", "slaves",
)  # fmt: skip
"""What `status --json` has of each replica; null while nobody says it."""


def replica_json(
    replica: ReplicaState, facts: Mapping[str, BrokerFacts], master: BrokerFacts | None
) -> dict[str, Any]:
    """The replication of one replica for scripts; every key is always there."""
    own = facts.get(replica.address)
    found: dict[str, Any] = dict.fromkeys(REPLICATION_KEYS)
    if own is None:
        return found
    end = own.max_offset if own.max_offset is not None else replica.max_offset
    return {
        "maxOffset": end,
        "lagBytes": lag_of(replica, facts, master),
        "confirmedOffset": own.confirmed_offset,
        "leaseMs": own.lease_ms if own.is_master else None,
        "leaseUsed": own.lease_ms is not None if own.is_master else None,
        "knowsItIsFenced": own.fenced,
        "following": own.following or None,
        "followProblem": own.problem or None,
        "followAdvice": own.advice or None,
        "servedEpoch": own.epoch,
        "setEpoch": own.set_epoch,
        "inSyncSeen": list(own.in_sync),
        "slaves": [slave.to_json() for slave in own.replicas] if own.is_master else None,
    }
