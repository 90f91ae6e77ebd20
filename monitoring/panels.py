"""The panels of all dashboards: titles, queries and what each answers.

In a query `<b>` stands for the labels that select brokers, `<c>` for those of controllers, `<g>` for groups in the
controllers' metrics, and `<o>` for the operator.
"""

# ruff: noqa: E501  # a sentence of a table stays on one line

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; `queries` are pairs of expression and legend."""

    title: str
    answers: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: Literal["timeseries", "stat"] = "timeseries"
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; rows have a title and panels."""

    uid: str
    title: str
    description: str
    variables: tuple[tuple[str, str, str], ...]
    """Name, label and query of each variable behind the data source."""

    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


NAMESPACE: Final = ("namespace", "Namespace", "label_values(brokerset_broker_max_offset, namespace)")
SET: Final = (
    "set",
    "BrokerSet",
    'label_values(brokerset_broker_max_offset{namespace=~"$namespace"}, brokerset_io_set)',
)
GROUP: Final = (
    "group",
    "Group",
    'label_values(brokerset_broker_max_offset{namespace=~"$namespace",brokerset_io_set=~"$set"}, node_id)',
)
CONTROLLER_NAMESPACE: Final = (
    "namespace",
    "Namespace",
    "label_values(brokerset_controller_term, namespace)",
)
CONTROLLER_SET: Final = (
    "set",
    "BrokerSet",
    'label_values(brokerset_controller_term{namespace=~"$namespace"}, brokerset_io_set)',
)
CONTROLLER_GROUP: Final = (
    "group",
    "Group",
    'label_values(brokerset_controller_group_replicas{namespace=~"$namespace",brokerset_io_set=~"$set"}, broker_set)',
)
OPERATOR_NAMESPACE: Final = (
    "namespace",
    "Operator's namespace",
    "label_values(brokerset_operator_leads, namespace)",
)

MASTERS: Final = 'and on (namespace, pod) brokerset_broker_role{<b>,role="master"} == 1'
LEADER: Final = "and on (namespace, pod) brokerset_controller_leading{<c>} == 1"
RATE: Final = "[$__rate_interval]"

BROKERS: Final = Dashboard(
    "brokerset-brokers",
    "BrokerSet / Brokers",
    "Traffic, consumers, connections, disk and memory of brokers.",
    (NAMESPACE, SET, GROUP),
    (
        (
            "Traffic",
            (
                Panel(
                    "Messages in",
                    "How many messages a second are sent to each topic?",
                    ((f"sum by (topic) (rate(rocketmq_messages_in_total{{<b>}}{RATE}))", "{{topic}}"),),
                    "cps",
                    stacked=True,
                ),
                Panel(
                    "Messages out",
                    "How many messages a second does each consumer group read?",
                    (
                        (
                            "sum by (consumer_group, topic)"
                            f" (rate(rocketmq_messages_out_total{{<b>}}{RATE}))",
                            "{{consumer_group}} {{topic}}",
                        ),
                    ),
                    "cps",
                    stacked=True,
                ),
                Panel(
                    "Bytes in and out",
                    "How many bytes a second go through each broker?",
                    (
                        (f"sum by (pod) (rate(rocketmq_throughput_in_total{{<b>}}{RATE}))", "{{pod}} in"),
                        (f"sum by (pod) (rate(rocketmq_throughput_out_total{{<b>}}{RATE}))", "{{pod}} out"),
                    ),
                    "Bps",
                ),
                Panel(
                    "Size of messages",
                    "How large are messages? Records in the log, by RocketMQ's bounds.",
                    (
                        (
                            f"sum by (topic) (rate(rocketmq_throughput_in_total{{<b>}}{RATE}))"
                            f" / sum by (topic) (rate(rocketmq_messages_in_total{{<b>}}{RATE}) > 0)",
                            "{{topic}} mean",
                        ),
                        (
                            "histogram_quantile(0.99, sum by (le)"
                            f" (rate(rocketmq_message_size_bucket{{<b>}}{RATE})))",
                            "p99 of all",
                        ),
                    ),
                    "bytes",
                ),
                Panel(
                    "Requests that wait",
                    "Do sends wait for the disk or for replicas, and how many pulls are parked until a message comes?",
                    (
                        (
                            "sum by (pod, processor) (rocketmq_processor_watermark{<b>})",
                            "{{pod}} {{processor}}",
                        ),
                        ("brokerset_broker_waiting_acknowledgements{<b>}", "{{pod}} for replicas"),
                        ("brokerset_broker_requests_held{<b>}", "{{pod}} for a change of role"),
                    ),
                ),
                Panel(
                    "Refused and forwarded",
                    "Do clients ask brokers that cannot serve them?",
                    (
                        (f"rate(brokerset_broker_requests_refused_total{{<b>}}{RATE})", "{{pod}} refused"),
                        (
                            f"rate(brokerset_broker_requests_forwarded_total{{<b>}}{RATE})",
                            "{{pod}} forwarded",
                        ),
                    ),
                    "reqps",
                ),
            ),
        ),
        (
            "Consumers",
            (
                Panel(
                    "Lag",
                    "How many messages has each consumer group not consumed? Masters' metrics.",
                    (
                        (
                            "sum by (consumer_group, topic)"
                            f" (rocketmq_consumer_lag_messages{{<b>}} {MASTERS})",
                            "{{consumer_group}} {{topic}}",
                        ),
                    ),
                ),
                Panel(
                    "Age of the oldest message not consumed",
                    "How far in the past is each consumer group?",
                    (
                        (
                            f"max by (consumer_group, topic) (rocketmq_consumer_lag_latency{{<b>}} {MASTERS})",
                            "{{consumer_group}} {{topic}}",
                        ),
                    ),
                    "ms",
                ),
                Panel(
                    "Dead letters",
                    "How many messages have consumer groups given up since the brokers started?",
                    (
                        (
                            "sum by (consumer_group, topic) (rocketmq_send_to_dlq_messages_total{<b>})",
                            "{{consumer_group}} {{topic}}",
                        ),
                    ),
                ),
                Panel(
                    "Connections",
                    "Who is connected? All connections, producers, and consumers by group.",
                    (
                        ("brokerset_broker_connections{<b>}", "{{pod}} all"),
                        ("sum by (pod) (rocketmq_producer_connections{<b>})", "{{pod}} producers"),
                        (
                            "sum by (pod, consumer_group) (rocketmq_consumer_connections{<b>})",
                            "{{pod}} {{consumer_group}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Storage and process",
            (
                Panel(
                    "Disk in use",
                    "How full is the file system of each commit log? At 75 % expired files go at any hour, at 85 %"
                    " also others, and at 90 % sends are refused.",
                    (
                        (
                            "brokerset_broker_disk_used_bytes{<b>} / (brokerset_broker_disk_used_bytes{<b>}"
                            " + brokerset_broker_disk_available_bytes{<b>})",
                            "{{pod}}",
                        ),
                    ),
                    "percentunit",
                ),
                Panel(
                    "Log",
                    "How large is each commit log, and what is free next to it?",
                    (
                        ("rocketmq_storage_size{<b>}", "{{pod}} log"),
                        ("brokerset_broker_disk_available_bytes{<b>}", "{{pod}} free"),
                    ),
                    "bytes",
                ),
                Panel(
                    "Not on the disk yet",
                    "How much of the log would a crash of the node take from this broker?",
                    (("rocketmq_storage_flush_behind_bytes{<b>}", "{{pod}}"),),
                    "bytes",
                ),
                Panel(
                    "Not in force yet",
                    "Do queues, or topics, groups and offsets, lag behind the log?",
                    (
                        ("rocketmq_storage_dispatch_behind_bytes{<b>}", "{{pod}} queues"),
                        ("brokerset_broker_metadata_behind_bytes{<b>}", "{{pod}} metadata"),
                    ),
                    "bytes",
                ),
                Panel(
                    "Oldest message",
                    "How far back can messages be read?",
                    (("rocketmq_storage_message_reserve_time{<b>}", "{{pod}}"),),
                    "ms",
                ),
                Panel(
                    "Topics and consumer groups",
                    "How many are there?",
                    (
                        ("max by (node_id) (rocketmq_topic_number{<b>})", "{{node_id}} topics"),
                        ("max by (node_id) (rocketmq_consumer_group_number{<b>})", "{{node_id}} groups"),
                    ),
                ),
                Panel(
                    "Memory",
                    "How much memory does each broker use?",
                    (("process_resident_memory_bytes{<b>}", "{{pod}}"),),
                    "bytes",
                ),
                Panel(
                    "CPU",
                    "How many cores does each broker use? One event loop cannot use more than about one.",
                    ((f"rate(process_cpu_seconds_total{{<b>}}{RATE})", "{{pod}}"),),
                ),
                Panel(
                    "Time since the start",
                    "Which brokers were started lately?",
                    (("time() - process_start_time_seconds{<b>}", "{{pod}}"),),
                    "s",
                ),
                Panel(
                    "Certificates",
                    "How long until certificates expire? Of all groups and controllers of the set, where TLS is on.",
                    (
                        (
                            "brokerset_tls_certificate_end_seconds{<c>} - time()",
                            "{{pod}} shown to {{shown_to}}",
                        ),
                    ),
                    "s",
                ),
            ),
        ),
    ),
)

REPLICATION: Final = Dashboard(
    "brokerset-replication",
    "BrokerSet / Replication",
    "Masters, epochs, in-sync sets, lag, elections and what was not served.",
    (NAMESPACE, SET, GROUP),
    (
        (
            "Now",
            (
                Panel(
                    "Masters",
                    "Has each group exactly one master?",
                    (('sum by (node_id) (brokerset_broker_role{<b>,role="master"})', "{{node_id}}"),),
                    kind="stat",
                ),
                Panel(
                    "In sync",
                    "How many replicas of each group have everything that is confirmed? The master counts.",
                    (
                        (
                            f"max by (node_id) (brokerset_broker_in_sync_replicas{{<b>}} {MASTERS})",
                            "{{node_id}}",
                        ),
                    ),
                    kind="stat",
                ),
                Panel(
                    "Master epoch",
                    "How often has each group changed its master in all its life?",
                    (("max by (node_id) (brokerset_broker_master_epoch{<b>})", "{{node_id}}"),),
                    kind="stat",
                ),
                Panel(
                    "Lease",
                    "How long may each master go on without hearing a controller?",
                    (("brokerset_broker_lease_seconds{<b>}", "{{pod}}"),),
                    "s",
                    kind="stat",
                ),
            ),
        ),
        (
            "Roles",
            (
                Panel(
                    "Role of each broker",
                    "Who was master when? 1 is master, 0 is not.",
                    (('brokerset_broker_role{<b>,role="master"}', "{{pod}}"),),
                ),
                Panel(
                    "Epochs",
                    "When did masters and in-sync sets change? Brokers that show an older master epoch have not"
                    " heard of the newest.",
                    (
                        ("brokerset_broker_master_epoch{<b>}", "{{pod}} master"),
                        ("max by (node_id) (brokerset_broker_sync_state_set_epoch{<b>})", "{{node_id}} set"),
                    ),
                ),
                Panel(
                    "Elections by reason",
                    "Why did groups get new masters? Of all groups of the controllers.",
                    (
                        (
                            'sum by (reason) (brokerset_controller_elections_total{namespace=~"$namespace",'
                            'brokerset_io_set=~"$set"})',
                            "{{reason}}",
                        ),
                    ),
                ),
                Panel(
                    "Steps of the last change of role",
                    "What takes the time when a broker becomes master or slave?",
                    (("brokerset_broker_last_role_change_step_seconds{<b>}", "{{pod}} {{step}}"),),
                    "s",
                ),
                Panel(
                    "Time without service",
                    "For how many seconds did brokers that are no slaves take no writes?",
                    (("brokerset_broker_unserved_seconds_total{<b>}", "{{pod}}"),),
                    "s",
                ),
                Panel(
                    "Problems",
                    "What keeps brokers out of service? The words are those of /readyz; 0 is none.",
                    (
                        (
                            "sum by (node_id) (brokerset_broker_membership_problem{<b>})",
                            "{{node_id}} all",
                        ),
                        ("brokerset_broker_membership_problem{<b>} > 0", "{{pod}} {{problem}}"),
                    ),
                ),
            ),
        ),
        (
            "Log",
            (
                Panel(
                    "In-sync set",
                    "When did replicas leave the in-sync set, and come back?",
                    (
                        (
                            f"max by (node_id) (brokerset_broker_in_sync_replicas{{<b>}} {MASTERS})",
                            "{{node_id}}",
                        ),
                    ),
                ),
                Panel(
                    "Lag of slaves",
                    "How many bytes of the log has each slave not acknowledged?",
                    (("brokerset_broker_replica_lag_bytes{<b>}", "{{node_id}} replica {{replica}}"),),
                    "bytes",
                ),
                Panel(
                    "Time since a slave had everything",
                    "Who falls behind? Above haMaxTimeSlaveNotCatchup a slave leaves the in-sync set.",
                    (("brokerset_broker_replica_caught_up_seconds{<b>}", "{{node_id}} replica {{replica}}"),),
                    "s",
                ),
                Panel(
                    "Transfer",
                    "How many bytes a second does each slave receive?",
                    (("brokerset_broker_received_bytes_per_second{<b>}", "{{pod}}"),),
                    "Bps",
                ),
                Panel(
                    "Not confirmed",
                    "How far are consumers, who see confirmed messages only, behind the end of the log?",
                    (
                        (
                            "brokerset_broker_max_offset{<b>} - brokerset_broker_confirmed_offset{<b>}",
                            "{{pod}}",
                        ),
                    ),
                    "bytes",
                ),
                Panel(
                    "Truncated bytes",
                    "How much of their logs did brokers truncate because the group does not have it? Never acknowledged, as"
                    " long as possible losses are 0.",
                    (("brokerset_broker_truncated_bytes_total{<b>}", "{{pod}}"),),
                    "bytes",
                ),
                Panel(
                    "Possible losses",
                    "How many elections may have lost acknowledged messages?",
                    (
                        (
                            'sum(brokerset_controller_possible_losses_total{namespace=~"$namespace",'
                            'brokerset_io_set=~"$set"})',
                            "elections",
                        ),
                    ),
                    kind="stat",
                ),
                Panel(
                    "Planned switchovers",
                    "How many switchovers were made, and how many did not come about?",
                    (
                        ("sum by (node_id) (brokerset_broker_switch_overs_total{<b>})", "{{node_id}} made"),
                        (
                            "sum by (node_id) (brokerset_broker_switch_overs_failed_total{<b>})",
                            "{{node_id}} failed",
                        ),
                    ),
                ),
            ),
        ),
        (
            "DLedger mode",
            (
                Panel(
                    "Leader of each DLedger group",
                    "Who led when? 1 is the leader, 0 is not. Members of Java are not asked.",
                    (('brokerset_broker_dledger_role{<b>,role="leader"}', "{{pod}}"),),
                ),
                Panel(
                    "Terms",
                    "When did groups elect? A member with a lower term than the others does not reach them.",
                    (("brokerset_broker_dledger_term{<b>}", "{{pod}}"),),
                ),
                Panel(
                    "Entries that are not committed",
                    "How far is what a quorum has behind the end of each member's log?",
                    (
                        (
                            "brokerset_broker_dledger_end_index{<b>} - brokerset_broker_dledger_committed_index{<b>}",
                            "{{pod}}",
                        ),
                    ),
                ),
                Panel(
                    "Members that run",
                    "Does every member of a group run that can be asked, and how many are to be there?",
                    (
                        ("count by (node_id) (brokerset_broker_dledger_term{<b>})", "{{node_id}} run"),
                        ("max by (node_id) (brokerset_broker_dledger_members{<b>})", "{{node_id}} members"),
                    ),
                ),
            ),
        ),
    ),
)

CONTROLLERS: Final = Dashboard(
    "brokerset-controllers",
    "BrokerSet / Controllers",
    "The raft group that elects masters: leaders, log, disk and requests, and the groups that it knows.",
    (CONTROLLER_NAMESPACE, CONTROLLER_SET, CONTROLLER_GROUP),
    (
        (
            "Raft",
            (
                Panel(
                    "Leaders",
                    "Does exactly one controller lead?",
                    (
                        (
                            "sum by (brokerset_io_set) (brokerset_controller_leading{<c>})",
                            "{{brokerset_io_set}}",
                        ),
                    ),
                    kind="stat",
                ),
                Panel(
                    "Voters that can be asked",
                    "How many of the controllers that vote run?",
                    (
                        (
                            "count by (brokerset_io_set) (brokerset_controller_term{<c>})",
                            "{{brokerset_io_set}} run",
                        ),
                        (
                            "max by (brokerset_io_set) (brokerset_controller_voters{<c>})",
                            "{{brokerset_io_set}} vote",
                        ),
                    ),
                    kind="stat",
                ),
                Panel(
                    "Role",
                    "Who led when? 1 leads, 0 follows, -1 is a candidate.",
                    (("role{<c>}", "{{pod}}"),),
                ),
                Panel(
                    "Term",
                    "How often were leaders elected? A term that rises again and again is a bad sign.",
                    (("brokerset_controller_term{<c>}", "{{pod}}"),),
                ),
                Panel(
                    "Members behind",
                    "How many entries does each member lack on its disk, as the leader knows it?",
                    (
                        (
                            f"brokerset_controller_member_lag{{<c>}} {LEADER}",
                            "{{brokerset_io_set}} {{member}}",
                        ),
                    ),
                ),
                Panel(
                    "Not applied",
                    "How many entries of its log has each controller not applied?",
                    (
                        (
                            "brokerset_controller_log_last_index{<c>} - brokerset_controller_log_applied_index{<c>}",
                            "{{pod}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Work",
            (
                Panel(
                    "Agreeing on an event",
                    "How long does it take until a majority has an event, and it is applied?",
                    (
                        (
                            "histogram_quantile(0.5, sum by (le)"
                            f" (rate(dledger_op_latency_microseconds_bucket{{<c>}}{RATE})))",
                            "p50",
                        ),
                        (
                            "histogram_quantile(0.99, sum by (le)"
                            f" (rate(dledger_op_latency_microseconds_bucket{{<c>}}{RATE})))",
                            "p99",
                        ),
                    ),
                    "µs",
                ),
                Panel(
                    "Disk",
                    "How long does the disk take for a batch, syncs included?",
                    (
                        (
                            "histogram_quantile(0.99, sum by (pod, le)"
                            f" (rate(brokerset_controller_disk_latency_microseconds_bucket{{<c>}}{RATE})))",
                            "{{pod}} p99",
                        ),
                    ),
                    "µs",
                ),
                Panel(
                    "Requests",
                    "Who asks for what, and how does it end?",
                    (
                        (
                            "sum by (request_type, request_handle_status)"
                            f" (rate(request_total{{<c>}}{RATE}))",
                            "{{request_type}} {{request_handle_status}}",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Answers",
                    "How long do brokers wait for an answer?",
                    (
                        (
                            "histogram_quantile(0.99, sum by (request_type, le)"
                            f" (rate(request_latency_microseconds_bucket{{<c>}}{RATE})))",
                            "{{request_type}} p99",
                        ),
                    ),
                    "µs",
                ),
                Panel(
                    "Leases",
                    "Are masters given leases, and are some refused?",
                    (
                        (f"rate(brokerset_controller_leases_total{{<c>}}{RATE})", "{{pod}} given"),
                        (f"rate(brokerset_controller_leases_refused_total{{<c>}}{RATE})", "{{pod}} refused"),
                    ),
                    "cps",
                ),
                Panel(
                    "Elections by result",
                    "What came of the elections of each group?",
                    (
                        (
                            "sum by (broker_set, election_result) (election_total{<g>})",
                            "{{broker_set}} {{election_result}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Groups",
            (
                Panel(
                    "Groups without a living master",
                    "Does any group wait for a master?",
                    (
                        (
                            f"brokerset_controller_groups_without_master{{<c>}} {LEADER}",
                            "{{brokerset_io_set}}",
                        ),
                    ),
                    kind="stat",
                ),
                Panel(
                    "Brokers",
                    "How many brokers of each group are registered, alive and in sync?",
                    (
                        (f"brokerset_controller_group_replicas{{<g>}} {LEADER}", "{{broker_set}} registered"),
                        (f"active_broker_num{{<g>}} {LEADER}", "{{broker_set}} alive"),
                        (
                            f"brokerset_controller_group_in_sync_replicas{{<g>}} {LEADER}",
                            "{{broker_set}} in sync",
                        ),
                    ),
                ),
                Panel(
                    "Out of service",
                    "Which groups have brokers that are fenced, or that lost their page cache?",
                    (
                        (f"brokerset_controller_group_fenced{{<g>}} {LEADER}", "{{broker_set}} fenced"),
                        (f"brokerset_controller_group_suspects{{<g>}} {LEADER}", "{{broker_set}} lost cache"),
                    ),
                ),
            ),
        ),
        (
            "Process",
            (
                Panel(
                    "Log on the disk",
                    "How large are log and snapshots?",
                    (("dledger_disk_usage_bytes{<c>}", "{{pod}}"),),
                    "bytes",
                ),
                Panel(
                    "Entries since the snapshot",
                    "How much has a start to read?",
                    (
                        (
                            "brokerset_controller_log_last_index{<c>} - brokerset_controller_snapshot_index{<c>}",
                            "{{pod}}",
                        ),
                    ),
                ),
                Panel(
                    "Memory",
                    "How much memory does each controller use?",
                    (
                        (
                            "process_resident_memory_bytes{<c>} and on (namespace, pod) brokerset_controller_term{<c>}",
                            "{{pod}}",
                        ),
                    ),
                    "bytes",
                ),
                Panel(
                    "Connections",
                    "How many connections does each controller have?",
                    (("brokerset_controller_connections{<c>}", "{{pod}}"),),
                ),
            ),
        ),
    ),
)

OPERATOR: Final = Dashboard(
    "brokerset-operator",
    "BrokerSet / Operator",
    "Whether the operator leads, keeps up, and gets along with the API server.",
    (OPERATOR_NAMESPACE,),
    (
        (
            "Now",
            (
                Panel(
                    "Leaders",
                    "Does exactly one replica lead?",
                    (("sum by (namespace) (brokerset_operator_leads{<o>})", "{{namespace}}"),),
                    kind="stat",
                ),
                Panel(
                    "Objects",
                    "How many BrokerSets and Topics are reconciled?",
                    (("sum by (namespace) (brokerset_operator_objects{<o>})", "{{namespace}}"),),
                    kind="stat",
                ),
                Panel(
                    "Sets that are not Ready",
                    "How many BrokerSets are not what their manifests ask for?",
                    (
                        (
                            'sum by (namespace) (1 - brokerset_operator_condition{<o>,kind="BrokerSet",type="Ready"})',
                            "{{namespace}}",
                        ),
                    ),
                    kind="stat",
                ),
                Panel(
                    "Age of the oldest last success",
                    "Which object was not reconciled for the longest time?",
                    (
                        (
                            "topk(5, brokerset_operator_last_success_age_seconds{<o>})",
                            "{{kind}} {{exported_namespace}}/{{name}}",
                        ),
                    ),
                    "s",
                ),
                Panel(
                    "Waiting",
                    "Does the operator keep up?",
                    (
                        ("brokerset_operator_rounds_running{<o>}", "{{pod}} on"),
                        ("brokerset_operator_rounds_waiting{<o>}", "{{pod}} waiting"),
                    ),
                ),
                Panel(
                    "Memory",
                    "How much memory does each replica of the operator use?",
                    (
                        (
                            "process_resident_memory_bytes and on (namespace, pod) brokerset_operator_leads{<o>}",
                            "{{pod}}",
                        ),
                    ),
                    "bytes",
                ),
                Panel(
                    "Oldest change not seen",
                    "How long has a change waited for its reconcile? Pauses after failures count.",
                    (("brokerset_operator_oldest_mark_seconds{<o>}", "{{pod}}"),),
                    "s",
                ),
            ),
        ),
        (
            "Reconciles",
            (
                Panel(
                    "Reconciles",
                    "How often are objects reconciled, and how does it end?",
                    (
                        (
                            f"sum by (kind, outcome) (rate(brokerset_operator_rounds_total{{<o>}}{RATE}))",
                            "{{kind}} {{outcome}}",
                        ),
                    ),
                    "cps",
                ),
                Panel(
                    "Duration of reconciles",
                    "How long does a reconcile take?",
                    (
                        (
                            "histogram_quantile(0.5, sum by (kind, le)"
                            f" (rate(brokerset_operator_round_seconds_bucket{{<o>}}{RATE})))",
                            "{{kind}} p50",
                        ),
                        (
                            "histogram_quantile(0.99, sum by (kind, le)"
                            f" (rate(brokerset_operator_round_seconds_bucket{{<o>}}{RATE})))",
                            "{{kind}} p99",
                        ),
                    ),
                    "s",
                ),
            ),
        ),
        (
            "API server",
            (
                Panel(
                    "Requests",
                    "What does the operator ask the API server?",
                    (
                        (
                            "sum by (verb, resource)"
                            f" (rate(brokerset_operator_api_requests_total{{<o>}}{RATE}))",
                            "{{verb}} {{resource}}",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Requests by outcome",
                    "Which requests fail?",
                    (
                        (
                            f"sum by (outcome) (rate(brokerset_operator_api_requests_total{{<o>}}{RATE}))",
                            "{{outcome}}",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Duration of requests",
                    "How long does the API server take?",
                    (
                        (
                            "histogram_quantile(0.99, sum by (verb, le)"
                            f" (rate(brokerset_operator_api_request_seconds_bucket{{<o>}}{RATE})))",
                            "{{verb}} p99",
                        ),
                    ),
                    "s",
                ),
                Panel(
                    "Events of watches",
                    "What changes in the cluster?",
                    (
                        (
                            f"sum by (resource) (rate(brokerset_operator_watch_events_total{{<o>}}{RATE}))",
                            "{{resource}}",
                        ),
                    ),
                    "cps",
                ),
            ),
        ),
    ),
)

ALL: Final = (BROKERS, REPLICATION, CONTROLLERS, OPERATOR)
"""In the order of the document."""
