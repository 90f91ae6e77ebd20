"""Prometheus metrics of replication, roles, gateway and metadata; RocketMQ has none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from brokerset_broker.member.dledger.ledger_member import LedgerMember
from brokerset_broker.member.group_member import GroupMember
from brokerset_broker.member.service_mode import ModeKind
from brokerset_broker.requests.request_classes import RequestClass

PREFIX: Final = "brokerset_broker_"

FOLLOWING_STATES: Final = ("off", "looking", "connecting", "handshake", "transfer", "refused")


class Families:
    """Makes families with the labels that every sample has."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels

    def gauge(self, name: str, text: str, value: float | None) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=list(self._labels))
        if value is not None:
            family.add_metric(list(self._labels.values()), value)
        return family

    def counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=[*self._labels, label])
        for value, number in values.items():
            family.add_metric([*self._labels.values(), value], number)
        return family

    def counters(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=[*self._labels, label])
        for value, number in values.items():
            family.add_metric([*self._labels.values(), value], number)
        return family


def replication_families(member: GroupMember, labels: Mapping[str, str]) -> Iterator[Metric]:
    """Everything that there is to show of a group member."""
    make = Families(labels)
    status = member.replication.status()
    replicas = status.replicas
    yield make.gauge("max_offset", "End of the commit log, in bytes.", status.max_offset)
    yield make.gauge("confirmed_offset", "Consumers read below this offset.", status.confirmed_offset)
    yield make.gauge(
        "in_sync_replicas",
        "Members of the committed in-sync set, the master included; of a slave, as it heard last.",
        len(status.sync_state_set),
    )
    yield make.gauge("sync_state_set_epoch", "Epoch of the committed in-sync set.", status.set_epoch)
    yield make.gauge(
        "pending_sync_state_sets", "Proposed in-sync sets that may be in force.", len(status.pending_sets)
    )
    yield make.gauge(
        "enough_in_sync", "Whether this master has `minInSyncReplicas` in sync.", status.enough_in_sync
    )
    yield make.gauge("lease_seconds", "Seconds that this master's lease still lasts.", member.lease_seconds())
    yield make.gauges(
        "replica_lag_bytes",
        "Bytes of the log that a connected slave has not acknowledged.",
        "replica",
        {str(each.broker_id): each.lag_bytes for each in replicas},
    )
    yield make.gauges(
        "replica_in_sync",
        "Whether a connected slave is in the committed in-sync set.",
        "replica",
        {str(each.broker_id): each.in_sync for each in replicas},
    )
    yield make.gauges(
        "replica_caught_up_seconds",
        "Seconds since a connected slave last had everything.",
        "replica",
        {
            str(each.broker_id): each.caught_up_ms_ago / 1000
            for each in replicas
            if each.caught_up_ms_ago >= 0
        },
    )
    yield make.gauges(
        "replica_transferred_bytes_per_second",
        "Bytes of the log that went to a slave in the last second.",
        "replica",
        {str(each.broker_id): each.transferred_bytes_per_second for each in replicas},
    )
    yield make.gauges(
        "following",
        "Whether this slave's replication is in this state.",
        "state",
        {state: status.follower.state == state for state in FOLLOWING_STATES},
    )
    yield make.gauge(
        "received_bytes_per_second",
        "Bytes of the log that this slave received in the last second.",
        status.follower.received_bytes_per_second,
    )
    yield make.gauge("waiting_acknowledgements", "Sends that wait for replicas.", status.waiting)
    yield make.counter(
        "truncated_bytes",
        "Bytes truncated from the log, which the group does not have.",
        status.truncated_bytes,
    )
    yield make.counter("in_sync_expansions", "Replicas that came into the in-sync set.", status.expansions)
    yield make.counter("in_sync_shrinks", "Times that replicas left the in-sync set.", status.shrinks)
    yield make.counter(
        "replica_connections_refused", "Connections of slaves that were refused.", status.connections_refused
    )
    yield make.counter(
        "unserved_seconds",
        "Time in which this broker was no slave and did not take writes.",
        member.unserved_seconds(),
    )
    yield make.gauge(
        "fenced", "Whether an administrator took this broker out of service.", member.membership.fenced
    )
    yield from service_families(member, make)


def service_families(member: GroupMember | LedgerMember, make: Families) -> Iterator[Metric]:
    """Gateway, changes of role and metadata, of a member of a group of either kind."""
    gateway, forwarder = member.gateway, member.forwarder
    held, forwarded = gateway.holding, forwarder.counters
    writes = gateway.mode_of(RequestClass.WRITE).kind
    yield make.gauges(
        "writes_mode",
        "What happens to writes now.",
        "mode",
        {kind.value: writes is kind for kind in ModeKind},
    )
    yield make.counter(
        "requests_refused", "Requests refused because of role, lease or in-sync set.", gateway.refused
    )
    yield make.gauge("requests_held", "Requests that wait for a change of role.", len(held))
    yield make.counter(
        "requests_forwarded", "Requests of clients with old routes, passed on.", forwarded.forwarded
    )
    yield make.counter("forwards_failed", "Forwarded requests that no master carried out.", forwarded.failed)
    yield make.counter("forwards_unclear", "Forwarded requests without an answer.", forwarded.unclear)
    yield make.counter("switch_overs", "Planned switchovers from this broker.", member.switch_over.completed)
    yield make.counter(
        "switch_overs_failed", "Switchovers that did not come about.", member.switch_over.failed
    )
    took = member.shell.last_switch_ms
    yield make.gauges(
        "last_role_change_step_seconds",
        "How long each step of the last change of role took.",
        "step",
        {step: ms / 1000 for step, ms in took.items()},
    )
    metadata = member.metadata.status()
    yield make.gauge(
        "metadata_behind_bytes", "Confirmed bytes whose metadata is not applied yet.", metadata.behind_bytes
    )
    yield make.gauge(
        "metadata_waiting", "Changes of metadata that wait for their confirmation.", metadata.waiting
    )
