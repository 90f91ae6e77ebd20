"""Prometheus metrics of a member of a DLedger group, under the names of controller mode where they mean the
same; RocketMQ has none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from brokerset_broker.member.dledger.ledger_member import LedgerMember
from brokerset_broker.member.dledger.news import in_sync
from brokerset_broker.member.dledger.views import LedgerProblem
from brokerset_broker.member.ha.views import ReplicaView
from brokerset_broker.member.role import Role, RoleState
from brokerset_broker.outside.replication_metrics import Families, service_families
from brokerset_dledger.driver import MemberStatus
from brokerset_dledger.node import Role as LedgerRole
from brokerset_formats.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerMeasurements:
    """What is measured of a member, at one time."""

    role: RoleState
    status: MemberStatus
    replica_id: int
    max_offset: int
    confirmed_offset: int
    replicas: tuple[ReplicaView, ...]
    """The other members, as a leader knows them."""

    waiting: int
    elections: int
    members: int
    brokerset_only: bool
    problem: LedgerProblem | None


def ledger_families(member: LedgerMember, labels: Mapping[str, str]) -> Iterator[Metric]:
    """Everything that there is to show of a member of a DLedger group."""
    make = Families(labels)
    seen = LedgerMeasurements(
        role=member.role(),
        status=member.driver.status,
        replica_id=member.broker_id() or 0,
        max_offset=member.end_of_log(),
        confirmed_offset=member.confirmed_offset(),
        replicas=member.replicas(),
        waiting=member.waiting(),
        elections=member.elections,
        members=member.members,
        brokerset_only=member.brokerset_only,
        problem=member.problem_kind(),
    )
    yield from measured_families(seen, make)
    yield from service_families(member, make)


def measured_families(seen: LedgerMeasurements, make: Families) -> Iterator[Metric]:
    """Role, term, indexes, and how far the other members are."""
    status = seen.status
    yield make.gauges(
        "role",
        "Whether the broker has this role.",
        "role",
        {role.value: seen.role.role is role for role in Role},
    )
    yield make.gauge("master_epoch", "Master epoch that the broker knows.", seen.role.epoch)
    yield make.gauge("replica_id", "Number of the member, plus one.", seen.replica_id)
    yield make.gauges(
        "membership_problem",
        "Whether this keeps the broker out of service.",
        "problem",
        {kind.value: seen.problem is kind for kind in LedgerProblem},
    )
    yield make.gauge("max_offset", "End of the commit log, in bytes.", seen.max_offset)
    yield make.gauge("confirmed_offset", "Consumers read below this offset.", seen.confirmed_offset)
    yield make.gauge(
        "in_sync_replicas",
        "Members that have all that is committed, the leader included; 0 on others.",
        len(in_sync(status)),
    )
    yield make.gauges(
        "replica_lag_bytes",
        "Bytes of the leader's log that a member has not acknowledged.",
        "replica",
        {str(each.broker_id): each.lag_bytes for each in seen.replicas},
    )
    yield make.gauges(
        "replica_in_sync",
        "Whether a member has all that is committed.",
        "replica",
        {str(each.broker_id): each.in_sync for each in seen.replicas},
    )
    yield make.gauge("waiting_acknowledgements", "Sends that wait for a quorum.", seen.waiting)
    yield make.gauges(
        "dledger_role",
        "Whether the member has this role.",
        "role",
        {role.value.lower(): status.role is role for role in LedgerRole},
    )
    yield make.gauge("dledger_term", "Term that the member knows.", status.term)
    yield make.gauge(
        "dledger_leader_known", "Whether the member knows who leads.", status.leader_id is not None
    )
    yield make.gauge("dledger_members", "Members of the group, as `dLegerPeers` has them.", seen.members)
    yield make.gauge(
        "dledger_brokerset_only",
        "Whether the member was told that all members are brokers of ours.",
        seen.brokerset_only,
    )
    yield make.gauge("dledger_begin_index", "Index of the first entry.", status.begin_index)
    yield make.gauge("dledger_end_index", "Index of the last entry.", status.end_index)
    yield make.gauge("dledger_committed_index", "Index of the last committed entry.", status.committed_index)
    yield make.counter(
        "dledger_elections",
        "Terms since the start in which the member came to know a leader.",
        seen.elections,
    )
