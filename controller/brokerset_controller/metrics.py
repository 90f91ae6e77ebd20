"""A controller's metrics, read when somebody asks for them.

The first block has the names of RocketMQ 5 (`ControllerMetricsConstant`), as its Prometheus exporter writes
them: no prefix, and the unit behind the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from brokerset_controller import subject_metrics
from brokerset_controller.liveness import Standing
from brokerset_controller.measurements import Histogram
from brokerset_controller.replicas.state import Group
from brokerset_namesrv.administration import CHECKS
from brokerset_raft.engine import Role
from brokerset_runtime.remoting import RemotingServer

if TYPE_CHECKING:
    from brokerset_controller.service import ControllerService

GROUPS_SHOWN_MAX: Final = 2_000
"""Groups with metrics of their own in one scrape: a scrape must not stop the controller."""

PROCESS: Final = ProcessCollector(registry=None)
"""Memory, CPU time, files and start of this process, read from the system when somebody scrapes."""

ROLE_VALUES: Final = {Role.LEADER: 1, Role.CANDIDATE: -1, Role.PRE_CANDIDATE: -1}
"""What RocketMQ's gauge shows; a follower is 0, and so is a learner."""


@dataclass(frozen=True, slots=True)
class Identity:
    """RocketMQ's common labels of a controller's samples."""

    address: str
    group: str
    peer_id: str


def registry(
    service: ControllerService, server: RemotingServer, identity: Identity, disk_bytes: int
) -> CollectorRegistry:
    """A registry of its own, so that several controllers fit into one process."""
    found = CollectorRegistry(auto_describe=False)
    found.register(ControllerCollector(service, server, identity, disk_bytes))
    return found


class ControllerCollector(Collector):
    """Reads one controller when it is scraped."""

    def __init__(
        self, service: ControllerService, server: RemotingServer, identity: Identity, disk_bytes: int
    ) -> None:
        self._service = service
        self._server = server
        self._labels = {"address": identity.address, "group": identity.group, "peer_id": identity.peer_id}
        self._disk_bytes = disk_bytes

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are checked when somebody scrapes."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Everything that there is to show."""
        yield from self._rocketmq()
        yield from self._node()
        yield from self._work()
        yield from self._groups()
        yield from self._subjects()
        yield from self._process()

    # -- pieces -------------------------------------------------------------------------------------------

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(
        self, name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
    ) -> Metric:
        family = CounterMetricFamily(name, text, labels=[*self._labels, *labels])
        for key, value in values:
            family.add_metric([*self._labels.values(), *key], value)
        return family

    def _histogram(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...],
        values: Iterable[tuple[tuple[str, ...], Histogram]],
    ) -> Metric:
        family = HistogramMetricFamily(name, text, labels=[*self._labels, *labels])
        for key, histogram in values:
            family.add_metric(
                [*self._labels.values(), *key], histogram.cumulative(), sum_value=histogram.total
            )
        return family

    def _rocketmq(self) -> Iterator[Metric]:
        measurements = self._service.measurements
        role = self._service.engine.status.role
        yield self._gauge(
            "role", "1 for the leader, 0 for a follower, -1 for a candidate.", ROLE_VALUES.get(role, 0)
        )
        yield self._gauge("dledger_disk_usage_bytes", "Bytes of controllerStorePath.", self._disk_bytes)
        active = GaugeMetricFamily(
            "active_broker_num", "Living brokers.", labels=[*self._labels, "cluster", "broker_set"]
        )
        for group in self._shown():
            standings = self._service.view(group.broker_name)
            alive = sum(standings.alive(broker_id) for broker_id in group.replicas)
            active.add_metric([*self._labels.values(), group.cluster_name, group.broker_name], alive)
        yield active
        yield self._counter(
            "request",
            "Requests by how they ended; an answer with an error code is a success.",
            ("request_type", "request_handle_status"),
            sorted(measurements.requests.items()),
        )
        yield self._histogram(
            "request_latency_microseconds",
            "Microseconds from a request to its answer.",
            ("request_type",),
            (((name,), histogram) for name, histogram in sorted(measurements.request_latency.items())),
        )
        yield self._counter(
            "dledger_op",
            "Events proposed to the controllers' log.",
            ("dledger_operation", "dLedger_operation_status"),
            ((("append", status), count) for status, count in sorted(measurements.proposals.items())),
        )
        yield self._histogram(
            "dledger_op_latency_microseconds",
            "Microseconds until an event was agreed on and applied.",
            ("dledger_operation",),
            [(("append",), measurements.proposal_latency)],
        )
        yield self._counter(
            "election",
            "Elections of masters by their result.",
            ("cluster", "broker_set", "election_result"),
            sorted(measurements.elections.items()),
        )

    def _node(self) -> Iterator[Metric]:
        status = self._service.engine.status
        for name, text, value in (
            ("term", "Term of the controllers' raft group.", status.term),
            ("leading", "Whether this controller leads and answers.", int(status.leading)),
            ("leader_known", "Whether this controller knows who leads.", int(status.leader_id is not None)),
            ("voters", "Controllers that vote.", len(status.configuration.voters)),
            ("learners", "Controllers that only learn.", len(status.configuration.learners)),
            ("log_last_index", "Last entry of the log.", status.last_index),
            ("log_commit_index", "Last entry that a majority has.", status.commit_index),
            ("log_applied_index", "Last entry in the state.", status.applied_index),
            ("snapshot_index", "Last entry in the newest snapshot.", status.snapshot_index),
            (
                "groups",
                "Broker groups in the state, cleaned ones included.",
                len(self._service.machine.groups),
            ),
            (
                "groups_without_master",
                "Groups without a living master, as far as the leader knows.",
                self._service.masterless_groups,
            ),
            ("connections", "Open connections.", len(self._server.connections)),
        ):
            yield self._gauge(f"brokerset_controller_{name}", text, value)
        behind = GaugeMetricFamily(
            "brokerset_controller_member_lag",
            "Entries that a member has not synced, as the leader knows it.",
            labels=[*self._labels, "member"],
        )
        for node_id, index in sorted(status.match_indexes.items()):
            behind.add_metric([*self._labels.values(), f"n{node_id}"], max(status.last_index - index, 0))
        yield behind

    def _work(self) -> Iterator[Metric]:
        measurements = self._service.measurements
        yield self._histogram(
            "brokerset_controller_disk_latency_microseconds",
            "Microseconds of each batch of work on the disk, syncs included.",
            (),
            [((), measurements.disk_latency)],
        )
        yield self._counter(
            "brokerset_controller_elections",
            "Elected masters by reason.",
            ("reason",),
            (((reason,), count) for reason, count in sorted(measurements.election_reasons.items())),
        )
        yield self._counter(
            "brokerset_controller_fencing",
            "Replicas taken out of service by an administrator, and back.",
            ("change",),
            (((name,), measurements.fences.get(name, 0)) for name in ("fenced", "unfenced")),
        )
        yield self._counter(
            "brokerset_controller_requests_denied",
            "Requests that access control refused: no right signature, or no right.",
            ("check",),
            (((check,), measurements.requests_denied.get(check, 0)) for check in CHECKS),
        )
        yield self._counter(
            "brokerset_controller_questions",
            "Probes to brokers that were not heard, by what came of them.",
            ("result",),
            (((result,), count) for result, count in sorted(measurements.probes.items())),
        )
        for name, text, value in (
            (
                "possible_losses",
                "Elections that may have lost acknowledged messages.",
                measurements.possible_losses,
            ),
            ("hand_overs", "Elections that a living master asked for itself.", measurements.hand_overs),
            ("leases", "Leases given to masters.", measurements.leases),
            (
                "leases_refused",
                "Heartbeats of a master without a lease: an election was under way, or no majority answered.",
                measurements.leases_refused,
            ),
            ("notices_sent", "Notices of an election sent to brokers.", measurements.notices_sent),
            (
                "notices_dropped",
                "Notices of an election that could not be sent.",
                measurements.notices_dropped,
            ),
            ("heartbeats", "Heartbeats of brokers.", measurements.heartbeats),
            (
                "heartbeats_ignored",
                "Heartbeats of unknown replicas, and of processes that are not the latest.",
                measurements.heartbeats_ignored,
            ),
            ("connections_refused", "Connections above the limit.", self._server.refused),
            ("protocol_errors", "Connections closed for unreadable bytes.", self._server.protocol_errors),
        ):
            yield self._counter(f"brokerset_controller_{name}", text, (), [((), value)])

    def _groups(self) -> Iterator[Metric]:
        labels = [*self._labels, "cluster", "broker_set"]
        families = {
            name: GaugeMetricFamily(f"brokerset_controller_group_{name}", text, labels=labels)
            for name, text in (
                ("replicas", "Registered brokers of a group."),
                ("missing", "Brokers of a group that do not live, without those that are fenced."),
                ("replicas_unknown", "Brokers of a group that this controller has not heard."),
                ("in_sync_replicas", "Brokers in the in-sync set."),
                ("master_epoch", "Epoch of the group's master."),
                ("master_id", "Id of the group's master, 0 without one."),
                ("suspects", "Brokers that lost their page cache since the last election."),
                ("fenced", "Brokers that an administrator took out of service."),
            )
        }
        for group in self._shown():
            view = self._service.view(group.broker_name)
            unknown = sum(view.standing(broker_id) is Standing.UNKNOWN for broker_id in group.replicas)
            values = {
                "replicas": len(group.replicas),
                "missing": sum(not view.alive(n) for n in group.replicas.keys() - group.fenced),
                "replicas_unknown": unknown,
                "in_sync_replicas": len(group.sync_state_set),
                "master_epoch": group.master_epoch,
                "master_id": group.master_id or 0,
                "suspects": len(group.suspects),
                "fenced": len(group.fenced),
            }
            key = [*self._labels.values(), group.cluster_name, group.broker_name]
            for name, value in values.items():
                families[name].add_metric(key, value)
        yield from families.values()

    def _subjects(self) -> Iterator[Metric]:
        subjects = self._service.subjects
        for name, text, value in subject_metrics.gauges(subjects):
            yield self._gauge(f"brokerset_controller_{name}", text, value)
        for name, text, value in subject_metrics.counters(self._service.measurements):
            yield self._counter(f"brokerset_controller_{name}", text, (), [((), value)])
        partitions = GaugeMetricFamily(
            "brokerset_controller_subject_partitions",
            "Partitions of ordered subjects by status.",
            labels=[*self._labels, "status"],
        )
        for status, count in subject_metrics.partitions(subjects).items():
            partitions.add_metric([*self._labels.values(), status.value], count)
        yield partitions

    def _process(self) -> Iterator[Metric]:
        for family in PROCESS.collect():
            family.samples = [sample._replace(labels=dict(self._labels)) for sample in family.samples]
            yield family

    def _shown(self) -> list[Group]:
        groups = sorted(self._service.machine.groups.items())[:GROUPS_SHOWN_MAX]
        return [group for _, group in groups if group.known]
