"""Alerts: the one source of the rules of each set, of the chart's rules for all sets, and of their tests.

Those about ordered subjects are in `brokerset_operator.resources.ordered_alerts`.

An expression has `<pods>` where the labels that select pods belong, `<groups>` where those of pods and of
groups that are to be there, and `<conditions>` and `<retired>` where those belong that select a set in the
operator's metrics. Names of metrics are those of `docs/metrics.md`; what to do is in
`docs/runbooks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

SET: Final = "namespace, brokerset_io_set"
"""Labels of a set: PodMonitors put the pod's label `brokerset.io/set` on every sample under this name."""

GROUP: Final = f"{SET}, cluster, node_id"
"""Labels of a broker group in the brokers' metrics."""

_LEADER: Final = "and on (namespace, pod) brokerset_controller_leading{<pods>} == 1"
_RETIRED: Final = (
    "unless on (namespace, brokerset_io_set, broker_set) label_replace("
    "max_over_time(brokerset_operator_group_retired{<retired>}[5m]),"
    ' "namespace", "$1", "exported_namespace", "(.+)")'
)
"""Groups that were scaled in: controllers keep them, for their volumes stay."""

_MASTER: Final = 'and on (namespace, pod) brokerset_broker_role{<pods>,role="master"} == 1'
_OF_DLEDGER: Final = f"on ({GROUP}) brokerset_broker_dledger_term{{<pods>}}"
_PROBLEM: Final = f"max by ({GROUP}, pod) (brokerset_broker_membership_problem{{<pods>,problem=~"
_DISK_USED: Final = (
    "brokerset_broker_disk_used_bytes{<pods>}"
    " / (brokerset_broker_disk_used_bytes{<pods>} + brokerset_broker_disk_available_bytes{<pods>})"
)


def _of_set(metric: str) -> str:
    """A metric of the operator under the namespace and name of the set that it is about."""
    where = f'label_replace({metric}, "namespace", "$1", "exported_namespace", "(.+)")'
    return f"max by (namespace, name) ({where})"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert; `minutes` is how long the expression holds before somebody is told."""

    name: str
    severity: Literal["critical", "warning"]
    expression: str
    minutes: int
    summary: str
    description: str


CONTROLLER_ALERTS: Final = (
    Alert(
        "BrokersetControllersWithoutLeader",
        "critical",
        f"max by ({SET}) (brokerset_controller_leading{{<pods>}}) < 1",
        1,
        "No controller leads: no broker can become master, and masters lose their leases",
        "A master that acknowledges alone refuses sends, reads and locks once its lease has ended;"
        " at other masters: sends are served; reads and locks are refused with code 14."
        " Most often fewer than half of the controllers run, or they do not reach each other.",
    ),
    Alert(
        "BrokersetControllersUnderQuorum",
        "critical",
        f"count by ({SET}) (brokerset_controller_term{{<pods>}})"
        f" < floor(max by ({SET}) (brokerset_controller_voters{{<pods>}}) / 2) + 1",
        1,
        "Only {{ $value }} of the controllers that vote can be asked: less than a majority",
        "Without a majority there are no elections and no leases. Bring controllers back.",
    ),
    Alert(
        "BrokersetControllerMissing",
        "warning",
        f"count by ({SET}) (brokerset_controller_term{{<pods>}})"
        f" < max by ({SET}) (brokerset_controller_voters{{<pods>}})",
        5,
        "A controller that votes does not run: the loss of further ones stops failovers",
        "{{ $value }} of the controllers that vote can be asked.",
    ),
    Alert(
        "BrokersetControllerBehind",
        "warning",
        "brokerset_controller_member_lag{<pods>} > 1000",
        5,
        "Controller {{ $labels.member }} is {{ $value }} entries behind its leader",
        "It does not count for the majority in time. Its disk or its network is slow.",
    ),
    Alert(
        "BrokersetControllerDiskSlow",
        "warning",
        "histogram_quantile(0.99, sum by (namespace, brokerset_io_set, pod, le)"
        " (rate(brokerset_controller_disk_latency_microseconds_bucket{<pods>}[5m]))) > 100000",
        10,
        "The disk of {{ $labels.pod }} takes {{ $value | humanize }} us for a write",
        "Elections and changes of in-sync sets take as long as the disks of a majority.",
    ),
    Alert(
        "BrokersetControllerLeaderUnstable",
        "warning",
        f"max by ({SET}) (changes(brokerset_controller_term{{<pods>}}[15m])) > 3",
        0,
        "The controllers elected a leader {{ $value }} times within 15 minutes",
        "Each change delays elections of masters. Look for slow disks, missing CPU and a bad network.",
    ),
    Alert(
        "BrokersetElectionsFrequent",
        "warning",
        f"sum by ({SET}, cluster, broker_set)"
        ' (increase(election_total{<pods>,election_result="new_master_elected"}[30m])) > 3',
        0,
        "Group {{ $labels.broker_set }} got {{ $value | humanize }} new masters within 30 minutes",
        "Each one is a moment without sends. The reasons are in brokerset_controller_elections_total.",
    ),
    Alert(
        "BrokersetPossibleLoss",
        "critical",
        f"sum by ({SET}) (increase(brokerset_controller_possible_losses_total{{<pods>}}[1h])) > 0",
        0,
        "A master was elected that may lack acknowledged messages",
        "Nobody in sync was left, and an unclean election was allowed or asked for, or replicas lost their"
        " page cache. The controllers' log names group and reason.",
    ),
    Alert(
        "BrokersetGroupDown",
        "critical",
        f"((active_broker_num{{<groups>}} {_LEADER}) == 0) {_RETIRED}",
        1,
        "No broker of {{ $labels.broker_set }} is heard by the controllers",
        "The group neither takes nor gives messages.",
    ),
    Alert(
        "BrokersetBrokerMissing",
        "warning",
        f"((brokerset_controller_group_missing{{<groups>}} {_LEADER}) > 0) {_RETIRED}",
        10,
        "{{ $value }} brokers of {{ $labels.broker_set }} are not heard, and none of these is fenced",
        "The group stands fewer losses than its manifest asks for.",
    ),
)
"""About the pods of controllers."""

BROKER_ALERTS: Final = (
    Alert(
        "BrokersetGroupWithoutMaster",
        "critical",
        f'sum by ({GROUP}) (brokerset_broker_role{{<pods>,role="master"}}) < 1 unless {_OF_DLEDGER}',
        1,
        "Nobody in the group {{ $labels.node_id }} is master: it takes no messages",
        "Sends go to other groups, if there are any. `brokerset status` and /readyz say why nobody leads.",
    ),
    Alert(
        "BrokersetSendsRefused",
        "critical",
        f"min by ({GROUP}) (brokerset_broker_enough_in_sync{{<pods>}} {_MASTER}) < 1",
        1,
        "Fewer brokers of {{ $labels.node_id }} are in sync than minInSyncReplicas: sends are refused",
        "Clients of the master: reads and locks are served; sends are refused with code 1. Nothing is lost."
        " Bring replicas back into sync.",
    ),
    Alert(
        "BrokersetWritesUnserved",
        "warning",
        f"sum by ({GROUP}) (increase(brokerset_broker_unserved_seconds_total{{<pods>}}[10m])) > 60",
        0,
        "Brokers of {{ $labels.node_id }} took no writes for {{ $value | humanize }} of the last 600 seconds",
        "A broker that is no slave and does not serve: a start or a change of role takes long, too few are in"
        " sync, or the lease of a master that acknowledges alone is lost.",
    ),
    Alert(
        "BrokersetLeaseLost",
        "critical",
        f'{_PROBLEM}"lease_lost"}}) > 0',
        1,
        "Master {{ $labels.pod }} of {{ $labels.node_id }} has no lease: its reads and locks are refused",
        "If other replicas take part in each acknowledgement: sends are served; reads and locks are refused"
        " with code 14. If it acknowledges alone: sends, reads and locks are refused with code 14."
        " Another one becomes master if controllers reach one.",
    ),
    Alert(
        "BrokersetControllersUnreachable",
        "warning",
        f"min by ({GROUP}, pod) (brokerset_broker_controller_heartbeat_age_seconds{{<pods>}}) > 30",
        1,
        "No controller has answered {{ $labels.pod }} for {{ $value | humanize }} s",
        "It cannot become master; if it is master, its lease ends, and another one may be elected.",
    ),
    Alert(
        "BrokersetReplicaNotInSync",
        "warning",
        f"count by ({GROUP}) (brokerset_broker_member{{<pods>}})"
        f" > max by ({GROUP}) (brokerset_broker_in_sync_replicas{{<pods>}} {_MASTER})",
        10,
        "A broker of {{ $labels.node_id }} runs, but is not in sync with its master",
        "{{ $value }} brokers run. It receives the log, is fenced, or cannot follow.",
    ),
    Alert(
        "BrokersetReplicaLagGrowing",
        "warning",
        "brokerset_broker_replica_lag_bytes{<pods>} > 67108864"
        " and deriv(brokerset_broker_replica_lag_bytes{<pods>}[10m]) > 0"
        f" unless {_OF_DLEDGER}",
        10,
        "Replica {{ $labels.replica }} of {{ $labels.node_id }} is {{ $value | humanize1024 }}B behind and"
        " falls further behind",
        "Its disk, its CPU or the network is slower than what is sent.",
    ),
    Alert(
        "BrokersetReplicaCannotFollow",
        "warning",
        f'{_PROBLEM}"replication_refused"}}) > 0',
        5,
        "{{ $labels.pod }} cannot follow the master of {{ $labels.node_id }}",
        "Its /readyz says why: its log differs, or the master does not have what it lacks any more.",
    ),
    Alert(
        "BrokersetReplicaLogIncomplete",
        "warning",
        f'{_PROBLEM}"log_incomplete"}}) > 0',
        10,
        "The log of {{ $labels.pod }} was damaged, and lacks something that the group has",
        "It is not elected until its master has sent what is missing.",
    ),
    Alert(
        "BrokersetRoleChangeFailing",
        "critical",
        f'{_PROBLEM}"role_change_failed|epoch_behind_log"}}) > 0',
        2,
        "{{ $labels.pod }} of {{ $labels.node_id }} cannot take the role that it was given",
        "The problem {{ $labels.problem }} is explained by its /readyz.",
    ),
    Alert(
        "BrokersetIdentityConflict",
        "critical",
        f'{_PROBLEM}"identity_conflict"}}) > 0',
        1,
        "Two processes or copies of a volume claim the same identity in {{ $labels.node_id }}",
        "{{ $labels.pod }} is kept out. The other one serves.",
    ),
    Alert(
        "BrokersetIdentityRefused",
        "critical",
        f'{_PROBLEM}"identity_damaged|names_differ|group_owned|id_retired|unknown_id|disk|refused'
        '|controllers_too_old"}) > 0',
        5,
        "{{ $labels.pod }} of {{ $labels.node_id }} is not let in",
        "Its identity is damaged, retired, unknown, or of another group or set. Its /readyz says which.",
    ),
    Alert(
        "BrokersetReplicaFencedLong",
        "warning",
        "brokerset_broker_fenced{<pods>} == 1",
        360,
        "{{ $labels.pod }} of {{ $labels.node_id }} has been fenced for 6 hours",
        "It follows and is never elected. Was it forgotten?",
    ),
    Alert(
        "BrokersetConsumerLagGrowing",
        "warning",
        '(rocketmq_consumer_lag_messages{<pods>,is_system="false"} > 10000'
        " and deriv(rocketmq_consumer_lag_messages{<pods>}[15m]) > 0)"
        f" {_MASTER}",
        15,
        "{{ $labels.consumer_group }} is {{ $value }} messages of {{ $labels.topic }} behind, and falls back",
        "It consumes more slowly than is sent, or does not run.",
    ),
    Alert(
        "BrokersetConsumerLagOld",
        "warning",
        f'(rocketmq_consumer_lag_latency{{<pods>,is_system="false",is_retry="false"}} > 3600000) {_MASTER}',
        5,
        "{{ $labels.consumer_group }} has messages of {{ $labels.topic }} that are older than an hour",
        "The oldest was stored {{ $value }} ms ago. Messages go when fileReservedTime is over, read or not.",
    ),
    Alert(
        "BrokersetDeadLetters",
        "warning",
        f"sum by ({GROUP}, consumer_group, topic)"
        " ((rocketmq_send_to_dlq_messages_total{<pods>}"
        " unless rocketmq_send_to_dlq_messages_total{<pods>} offset 15m"
        " and on (namespace, pod) up{<pods>} offset 15m)"
        " or increase(rocketmq_send_to_dlq_messages_total{<pods>}[15m])) > 0",
        0,
        "{{ $labels.consumer_group }} gave up {{ $value | humanize }} messages of {{ $labels.topic }}",
        "They failed as often as the group allows, and are in %DLQ%{{ $labels.consumer_group }}.",
    ),
    Alert(
        "BrokersetDiskFilling",
        "warning",
        f"{_DISK_USED} > 0.75",
        30,
        "The disk of {{ $labels.pod }} is {{ $value | humanizePercentage }} full",
        "Above diskMaxUsedSpaceRatio (75) expired files go at any hour. It stays above: most is not expired.",
    ),
    Alert(
        "BrokersetDiskAlmostFull",
        "critical",
        f"{_DISK_USED} > 0.85",
        5,
        "The disk of {{ $labels.pod }} is {{ $value | humanizePercentage }} full",
        "Above 85 % the oldest files go though they are not expired; above 90 % sends are refused.",
    ),
    Alert(
        "BrokersetDiskFullSoon",
        "warning",
        "predict_linear(brokerset_broker_disk_available_bytes{<pods>}[6h], 259200) < 0"
        f" and {_DISK_USED} > 0.5",
        60,
        "At the pace of the last 6 hours the disk of {{ $labels.pod }} is full in 3 days",
        "Enlarge the volumes, or keep messages for a shorter time.",
    ),
    Alert(
        "BrokersetFlushBehind",
        "warning",
        "rocketmq_storage_flush_behind_bytes{<pods>} > 134217728",
        5,
        "{{ $value | humanize1024 }}B of the log of {{ $labels.pod }} are not on its disk",
        "The disk is slower than what is sent. A crash of the node would lose that on this broker.",
    ),
    Alert(
        "BrokersetDispatchBehind",
        "warning",
        "rocketmq_storage_dispatch_behind_bytes{<pods>} > 16777216"
        " or brokerset_broker_metadata_behind_bytes{<pods>} > 16777216",
        5,
        "{{ $value | humanize1024 }}B of the log of {{ $labels.pod }} are not in queues, or their metadata is"
        " not in force",
        "Consumers do not see messages that are stored, or topics, groups and offsets are late.",
    ),
    Alert(
        "BrokersetBrokerNotRouted",
        "warning",
        f"max by ({GROUP}, pod) (brokerset_broker_registered{{<pods>}}) < 1",
        5,
        "No name server knows {{ $labels.pod }} of {{ $labels.node_id }}",
        "Clients do not find it. It has no role yet, or the name servers do not answer.",
    ),
    Alert(
        "BrokersetConnectionsRefused",
        "warning",
        f"sum by ({GROUP}, pod) (increase(brokerset_broker_connections_refused_total{{<pods>}}[5m])) > 0",
        0,
        "{{ $labels.pod }} refused {{ $value | humanize }} connections above its limit",
        "A client opens more and more connections, or there are too many clients for one broker.",
    ),
)
"""About the pods of brokers."""

DLEDGER_ALERTS: Final = (
    Alert(
        "BrokersetDLedgerWithoutLeader",
        "critical",
        # A leader of Java is known, and none of those that can be asked leads.
        f'sum by ({GROUP}) (brokerset_broker_role{{<pods>,role="master"}})'
        f" + max by ({GROUP}) (brokerset_broker_dledger_leader_known{{<pods>}})"
        f' - max by ({GROUP}) (brokerset_broker_dledger_role{{<pods>,role="leader"}}) < 1',
        1,
        "The DLedger group {{ $labels.node_id }} has no leader that serves: it takes no messages",
        "At members that know of no leader: reads are served; sends and locks are refused with code 2."
        " Most often fewer than half of the members run, or they do not reach each other.",
    ),
    Alert(
        "BrokersetDLedgerMemberMissing",
        "warning",
        f"count by ({GROUP}) (brokerset_broker_dledger_term{{<pods>}}) < max by ({GROUP})"
        " (brokerset_broker_dledger_members{<pods>} * brokerset_broker_dledger_brokerset_only{<pods>})",
        5,
        "A member of the DLedger group {{ $labels.node_id }} does not run: it stands fewer further losses",
        "{{ $value }} of its members can be asked. With fewer than half it takes no messages.",
    ),
    Alert(
        "BrokersetDLedgerMemberBehind",
        "warning",
        "brokerset_broker_replica_lag_bytes{<pods>} > 67108864"
        ' and on (namespace, pod) brokerset_broker_dledger_role{<pods>,role="leader"} == 1',
        10,
        "Member {{ $labels.replica }} of the DLedger group {{ $labels.node_id }} is"
        " {{ $value | humanize1024 }}B behind its leader",
        "It copies the log, does not run, or its disk or its network is slow. It cannot be elected.",
    ),
    Alert(
        "BrokersetDLedgerOldLogDiffers",
        "warning",
        f'{_PROBLEM}"old_log_differs"}}) > 0',
        1,
        "{{ $labels.pod }} takes no part in {{ $labels.node_id }}: its old commit log is another one",
        "It neither votes nor stores until it has a copy of another member's folder commitlog."
        " Its /readyz says where they differ.",
    ),
    Alert(
        "BrokersetDLedgerElectionsFrequent",
        "warning",
        f"max by ({GROUP}) (increase(brokerset_broker_dledger_elections_total{{<pods>}}[30m])) > 3",
        0,
        "The DLedger group {{ $labels.node_id }} got {{ $value | humanize }} leaders within 30 minutes",
        "Each one is a moment without sends. Look for members that restart, slow disks and missing CPU.",
    ),
)
"""About the pods of brokers in DLedger mode."""

SET_ALERTS: Final = (
    Alert(
        "BrokersetProcessRestarting",
        "warning",
        "changes(process_start_time_seconds{<pods>}[30m]) > 2",
        0,
        "{{ $labels.pod }} was started {{ $value }} times within 30 minutes",
        "It crashes, is short of memory, or its liveness probe fails.",
    ),
    Alert(
        "BrokersetTargetDown",
        "warning",
        "up{<pods>} == 0",
        5,
        "{{ $labels.pod }} cannot be scraped",
        "It does not run, hangs, or a NetworkPolicy keeps Prometheus out. Other alerts do not see it.",
    ),
    Alert(
        "BrokersetCertificateExpiring",
        "warning",
        "brokerset_tls_certificate_end_seconds{<pods>} - time() < 14 * 86400",
        60,
        "The certificate that {{ $labels.pod }} shows to {{ $labels.shown_to }} expires in"
        " {{ $value | humanizeDuration }}",
        "Whoever checks certificates refuses it from then on: clients, or, of a member, the rest of its set."
        " Nobody renewed it, or the process could not use the new one. Below zero it has expired.",
    ),
)
"""About all pods of a set."""

CONDITION_ALERTS: Final = (
    Alert(
        "BrokersetNotReady",
        "warning",
        _of_set('brokerset_operator_condition{<conditions>,type="Ready"}') + " < 1",
        10,
        "BrokerSet {{ $labels.namespace }}/{{ $labels.name }} is not Ready",
        "It is not what its manifest asks for. The message of its condition Ready says why.",
    ),
    Alert(
        "BrokersetRolloutStuck",
        "warning",
        # Another reason, or another leader, may stand there for a moment.
        _of_set(
            "max_over_time(brokerset_operator_condition{<conditions>,"
            'type="Progressing",reason=~"Rolling|RollWaits|WaitingForApproval"}[10m])'
        )
        + " > 0",
        60,
        "A roll of BrokerSet {{ $labels.namespace }}/{{ $labels.name }} has not ended for an hour",
        "The operator waits for something: the message of its condition Progressing says for what.",
    ),
    Alert(
        "BrokersetAuditFailed",
        "critical",
        _of_set('brokerset_operator_condition{<conditions>,reason="ErrorsFound",type="AuditPassed"}')
        + " < 1",
        0,
        "An audit found errors in the stores of BrokerSet {{ $labels.namespace }}/{{ $labels.name }}",
        "A replica is damaged, or replicas differ. The message of its condition AuditPassed names the worst.",
    ),
)
"""About what the operator says of a set; they rest on its own metrics, which only the leader has."""

OPERATOR_ALERTS: Final = (
    Alert(
        "BrokersetOperatorNotLeading",
        "critical",
        "sum by (namespace) (brokerset_operator_leads) < 1",
        5,
        "No replica of the operator leads: nothing is created, rolled or scaled",
        "Brokers go on, and fail over by themselves. The operator's log says why it gets no Lease.",
    ),
    Alert(
        "BrokersetOperatorAbsent",
        "critical",
        "absent(brokerset_operator_leads)",
        10,
        "The operator does not run, or cannot be scraped",
        "Brokers go on, and fail over by themselves; nothing is created, rolled or scaled.",
    ),
    Alert(
        "BrokersetOperatorNotReconciling",
        "warning",
        "max by (namespace, kind, exported_namespace, name)"
        " (brokerset_operator_last_success_age_seconds) > 900",
        5,
        "{{ $labels.kind }} {{ $labels.exported_namespace }}/{{ $labels.name }} was last looked after"
        " {{ $value | humanizeDuration }} ago",
        "Its reconciles fail or hang. With resyncSeconds above 600 this threshold must be higher.",
    ),
    Alert(
        "BrokersetOperatorRoundsFailing",
        "warning",
        'sum by (namespace, kind) (increase(brokerset_operator_rounds_total{outcome="failure"}[15m])) > 10',
        15,
        "{{ $value | humanize }} reconciles of {{ $labels.kind }} failed within 15 minutes",
        "The operator's log says `reconcile failed` with the object and the reason.",
    ),
    Alert(
        "BrokersetAuditOverdue",
        "warning",
        "max by (exported_namespace, name, broker_set)"
        " (time() - brokerset_audit_expected_since_timestamp_seconds)"
        " > 3 * max by (exported_namespace, name, broker_set) (brokerset_audit_period_seconds)",
        30,
        "No run of StoreAudit {{ $labels.exported_namespace }}/{{ $labels.name }} has passed for"
        " {{ $value | humanizeDuration }}, three times its period",
        "Nobody has seen for so long that the replicas of BrokerSet {{ $labels.broker_set }} agree."
        " Its status says how the last run ended.",
    ),
    Alert(
        "BrokersetExportOverdue",
        "warning",
        "max by (exported_namespace, name, broker_set)"
        " (time() - brokerset_storeexport_expected_since_timestamp_seconds)"
        " > 3 * max by (exported_namespace, name, broker_set) (brokerset_storeexport_period_seconds)",
        10,
        "No run of StoreExport {{ $labels.exported_namespace }}/{{ $labels.name }} has passed for"
        " {{ $value | humanizeDuration }}, three times its period",
        "Its table is that old. Messages of BrokerSet {{ $labels.broker_set }} that expire before a run"
        " passes will never be in it. Its status says how the last run ended.",
    ),
    Alert(
        "BrokersetExportGap",
        "warning",
        "sum by (exported_namespace, name, broker_set)"
        " (increase(brokerset_storeexport_gap_messages_total[1h])) > 0",
        0,
        "{{ $value | humanize }} messages were gone before StoreExport"
        " {{ $labels.exported_namespace }}/{{ $labels.name }} could read them",
        "They are not in the table, and its control rows say where. BrokerSet {{ $labels.broker_set }} keeps"
        " messages for less time than the export needs.",
    ),
    Alert(
        "BrokersetOperatorBehind",
        "warning",
        "brokerset_operator_oldest_mark_seconds > 300",
        5,
        "A change has waited for {{ $value | humanizeDuration }} for the operator",
        "All workers are busy, or the reconcile of that object fails again and again.",
    ),
    Alert(
        "BrokersetOperatorApiErrors",
        "warning",
        "sum by (namespace)"
        ' (rate(brokerset_operator_api_requests_total{verb!="watch",outcome!~"ok|NotFound|Conflict"}[10m]))'
        " / sum by (namespace)"
        ' (rate(brokerset_operator_api_requests_total{verb!="watch"}[10m])) > 0.1',
        10,
        "{{ $value | humanizePercentage }} of the operator's requests to the API server fail",
        "The API server is slow or away, or a right is missing.",
    ),
)
"""About the operator; these are in the chart's rules alone."""
