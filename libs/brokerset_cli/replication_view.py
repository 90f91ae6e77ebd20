"""What brokers say about their replication: role, offsets, in-sync set, lease, and what is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerset_cli.readiness import ask
from brokerset_cli.takeover.mix import Make, broker_make
from brokerset_client.broker_facts import NO_LEASE, BrokerFacts, facts_from, integer
from brokerset_client.errors import ClientError
from brokerset_client.instance import readable
from brokerset_protocol.bodies import properties_text
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState
from brokerset_protocol.bodies.queues import KVTable
from brokerset_protocol.bodies.replicas import EpochEntryCache
from brokerset_protocol.codes import RequestCode, ResponseCode


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
        integer(table.get("commitLogMaxOffset")),
        all_ack == "true" if all_ack else None,
        facts_from(address, table, integer(settings.get("minInSyncReplicas"))),
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
