"""Times in the life of a set, as series of one sample a minute, and which alerts they set off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SAMPLES = 420

SET = 'namespace="shop",brokerset_io_set="orders"'
ONE = f'{SET},pod="orders-0-0"'
MASTER = f'{ONE},cluster="c",node_id="orders-0"'
SLAVE = MASTER.replace("orders-0-0", "orders-0-1")
LEDGER = f'{SET},cluster="c",node_id="orders-2",pod="orders-2-0"'
"""A DLedger group: this member leads."""

LEDGER_FOLLOWER = LEDGER.replace("orders-2-0", "orders-2-1")
LEADER = f'{SET},pod="orders-controller-0"'
FOLLOWER = LEADER.replace("controller-0", "controller-1")
OF_GROUP = f'{LEADER},cluster="c",broker_set="orders-0"'
OPERATOR = 'namespace="system",pod="operator-0"'
OBJECT = f'{OPERATOR},kind="BrokerSet",exported_namespace="shop",name="orders"'
STORE_AUDIT = f'{OPERATOR},exported_namespace="shop",name="nightly",broker_set="orders"'
STORE_EXPORT = STORE_AUDIT.replace("nightly", "lake")
RETIRED = (
    f'{OPERATOR},exported_namespace="shop",name="orders",brokerset_io_set="orders",broker_set="orders-1"'
)
OF_RETIRED = OF_GROUP.replace('broker_set="orders-0"', 'broker_set="orders-1"')
OF_TOPIC = OBJECT.replace("BrokerSet", "Topic")
LAG = f'{MASTER},consumer_group="g",topic="t",is_system="false",is_retry="false"'
DEAD = f'{MASTER},consumer_group="g",topic="t",is_system="false"'
READY = f'{OBJECT},type="Ready"'
PROGRESSING = f'{OBJECT},type="Progressing"'
AUDITED = f'{OBJECT},type="AuditPassed"'

Values = str
"""As promtool reads them: `1+2x3` is 1 3 5 7."""


def steady(value: float) -> Values:
    """The same all the time."""
    return f"{value:g}+0x{SAMPLES}"


def rising(value: float, each_minute: float) -> Values:
    """More each minute; less for a negative number."""
    return f"{value:g}{each_minute:+g}x{SAMPLES}"


def later(value: float, minutes: int) -> Values:
    """Not there for some minutes, then steady."""
    return f"_x{minutes} {steady(value)}"


def stepping(*values: float) -> Values:
    """Values of single minutes, of which the last stays."""
    return " ".join(f"{value:g}" for value in values) + f" {steady(values[-1])}"


def problem(kind: str, value: float = 1) -> dict[str, Values]:
    """What a broker tells about itself."""
    return {f'brokerset_broker_membership_problem{{{MASTER},problem="{kind}"}}': steady(value)}


def disk(used: Values, available: Values) -> dict[str, Values]:
    """The file system of a log."""
    return {
        f"brokerset_broker_disk_used_bytes{{{MASTER}}}": used,
        f"brokerset_broker_disk_available_bytes{{{MASTER}}}": available,
    }


def gone_group(minutes: int) -> dict[str, Values]:
    """The brokers of another group end after five minutes; the controllers go on to know the group."""
    return {
        f"active_broker_num{{{OF_RETIRED}}}": f"3+0x5 0+0x{minutes} {steady(0)}",
        f"brokerset_controller_group_replicas{{{OF_RETIRED}}}": steady(3),
        f"brokerset_controller_group_missing{{{OF_RETIRED}}}": f"0+0x5 3+0x{minutes} {steady(3)}",
    }


def ledger_group() -> dict[str, Values]:
    """Two members of a DLedger group that is well."""
    series = {f'brokerset_broker_replica_lag_bytes{{{LEDGER},replica="2"}}': rising(0, 1000)}
    for member, leads in ((LEDGER, 1), (LEDGER_FOLLOWER, 0)):
        series |= {
            f'brokerset_broker_role{{{member},role="master"}}': steady(leads),
            f'brokerset_broker_dledger_role{{{member},role="leader"}}': steady(leads),
            f"brokerset_broker_dledger_leader_known{{{member}}}": steady(1),
            f"brokerset_broker_dledger_term{{{member}}}": steady(7),
            f"brokerset_broker_dledger_members{{{member}}}": steady(2),
            f"brokerset_broker_dledger_brokerset_only{{{member}}}": steady(1),
            f"brokerset_broker_dledger_elections_total{{{member}}}": steady(3),
        }
    return series


def no_ledger_leader() -> dict[str, Values]:
    """Nobody knows a leader."""
    return {
        f'brokerset_broker_role{{{LEDGER},role="master"}}': steady(0),
        f'brokerset_broker_dledger_role{{{LEDGER},role="leader"}}': steady(0),
        f"brokerset_broker_dledger_leader_known{{{LEDGER}}}": steady(0),
        f"brokerset_broker_dledger_leader_known{{{LEDGER_FOLLOWER}}}": steady(0),
    }


GIB = 1024.0**3
DAY = 86_400.0
"""Seconds; promtool's time starts at 0."""

HEALTHY: dict[str, Values] = {
    f"brokerset_controller_leading{{{LEADER}}}": steady(1),
    f"brokerset_controller_leading{{{FOLLOWER}}}": steady(0),
    f"brokerset_controller_term{{{LEADER}}}": steady(3),
    f"brokerset_controller_term{{{FOLLOWER}}}": steady(3),
    f"brokerset_controller_voters{{{LEADER}}}": steady(2),
    f'brokerset_controller_member_lag{{{LEADER},member="n1"}}': steady(2),
    f'brokerset_controller_disk_latency_microseconds_bucket{{{LEADER},le="1000"}}': rising(0, 10),
    f'brokerset_controller_disk_latency_microseconds_bucket{{{LEADER},le="+Inf"}}': rising(0, 10),
    f'election_total{{{OF_GROUP},election_result="new_master_elected"}}': steady(1),
    f"brokerset_controller_possible_losses_total{{{LEADER}}}": steady(0),
    f"active_broker_num{{{OF_GROUP}}}": steady(2),
    f"brokerset_controller_group_replicas{{{OF_GROUP}}}": steady(2),
    f"brokerset_controller_group_missing{{{OF_GROUP}}}": steady(0),
    f'brokerset_broker_role{{{MASTER},role="master"}}': steady(1),
    f'brokerset_broker_role{{{SLAVE},role="master"}}': steady(0),
    f"brokerset_broker_pop_known{{{MASTER}}}": steady(1),
    f"brokerset_broker_pop_known{{{SLAVE}}}": steady(0),
    f'rocketmq_pop_revive_latency{{{MASTER},queue_id="0"}}': steady(0),
    f"rocketmq_pop_checkpoint_buffer_size{{{MASTER}}}": steady(10),
    f"brokerset_broker_pop_check_points_limit{{{MASTER}}}": steady(500_000),
    f"brokerset_broker_pop_acked_total{{{MASTER}}}": rising(0, 60),
    f"brokerset_broker_enough_in_sync{{{MASTER}}}": steady(1),
    f"brokerset_broker_enough_in_sync{{{SLAVE}}}": steady(0),
    f"brokerset_broker_unserved_seconds_total{{{MASTER}}}": steady(2),
    f'brokerset_broker_controller_heartbeat_age_seconds{{{MASTER},controller="a"}}': steady(0.4),
    f'brokerset_broker_controller_heartbeat_age_seconds{{{MASTER},controller="b"}}': steady(4000),
    f"brokerset_broker_member{{{MASTER}}}": steady(1),
    f"brokerset_broker_member{{{SLAVE}}}": steady(1),
    f"brokerset_broker_in_sync_replicas{{{MASTER}}}": steady(2),
    f'brokerset_broker_replica_lag_bytes{{{MASTER},replica="2"}}': rising(0, 1000),
    **problem("identity_conflict", 0),
    **problem("lease_lost", 0),
    **ledger_group(),
    f"brokerset_broker_fenced{{{MASTER}}}": steady(0),
    f"rocketmq_consumer_lag_messages{{{LAG}}}": rising(0, 10),
    f"rocketmq_consumer_lag_latency{{{LAG}}}": steady(1000),
    f"rocketmq_send_to_dlq_messages_total{{{DEAD}}}": steady(5),
    **disk(steady(60 * GIB), steady(40 * GIB)),
    f"rocketmq_storage_flush_behind_bytes{{{MASTER}}}": steady(4096),
    f"rocketmq_storage_dispatch_behind_bytes{{{MASTER}}}": steady(0),
    f"brokerset_broker_metadata_behind_bytes{{{MASTER}}}": steady(0),
    f'brokerset_broker_registered{{{MASTER},name_server="a"}}': steady(1),
    f'brokerset_broker_registered{{{MASTER},name_server="b"}}': steady(0),
    f"brokerset_broker_connections_refused_total{{{MASTER}}}": steady(7),
    f"process_start_time_seconds{{{MASTER}}}": steady(1000),
    f"up{{{ONE}}}": steady(1),
    f'brokerset_tls_certificate_end_seconds{{{ONE},shown_to="clients"}}': steady(90 * DAY),
    f'brokerset_tls_certificate_end_seconds{{{LEADER},shown_to="members"}}': steady(90 * DAY),
    f'brokerset_operator_condition{{{READY},reason="AsWanted"}}': steady(1),
    f'brokerset_operator_condition{{{PROGRESSING},reason="Done"}}': steady(0),
    f"brokerset_operator_leads{{{OPERATOR}}}": steady(1),
    f"brokerset_operator_last_success_age_seconds{{{OBJECT}}}": steady(200),
    f'brokerset_operator_rounds_total{{{OPERATOR},kind="BrokerSet",outcome="failure"}}': steady(4),
    f"brokerset_operator_oldest_mark_seconds{{{OPERATOR}}}": steady(1),
    f'brokerset_operator_api_requests_total{{{OPERATOR},verb="get",outcome="ok"}}': rising(0, 60),
    f'brokerset_operator_api_requests_total{{{OPERATOR},verb="get",outcome="Timeout"}}': rising(0, 1),
}
"""All is well."""


@dataclass(frozen=True)
class Time:
    """What differs from a set that is well, and which alerts fire then; None takes a series away."""

    fires: str
    quiet_minute: int | None
    """A minute at which nothing fires yet."""

    minute: int
    series: Mapping[str, Values | None]

    @property
    def alerts(self) -> list[str]:
        """Their names."""
        return self.fires.split()


TIMES = (
    Time("", None, 60, {}),
    Time("", None, 410, {}),
    Time("", None, 60, {f"brokerset_broker_role{{{MASTER.replace('shop', 'x')},role=\"slave\"}}": steady(1)}),
    Time("BrokersetControllersWithoutLeader", 0, 3, {f"brokerset_controller_leading{{{LEADER}}}": steady(0)}),
    Time("BrokersetControllersUnderQuorum", 0, 3, {f"brokerset_controller_voters{{{LEADER}}}": steady(5)}),
    Time("BrokersetControllerMissing", 3, 8, {f"brokerset_controller_voters{{{LEADER}}}": steady(3)}),
    Time("BrokersetControllerBehind", 3, 8,
         {f'brokerset_controller_member_lag{{{LEADER},member="n1"}}': steady(5000)}),
    Time("BrokersetControllerDiskSlow", 5, 30,
         {f'brokerset_controller_disk_latency_microseconds_bucket{{{LEADER},le="1000"}}': None,
         f'brokerset_controller_disk_latency_microseconds_bucket{{{LEADER},le="100000"}}': rising(0, 5),
         f'brokerset_controller_disk_latency_microseconds_bucket{{{LEADER},le="300000"}}': rising(0, 10)}),
    Time("BrokersetControllerLeaderUnstable", 2, 8,
         {f"brokerset_controller_term{{{LEADER}}}": stepping(3, 4, 5, 6, 7, 8)}),
    Time("BrokersetElectionsFrequent", 1, 15,
         {f'election_total{{{OF_GROUP},election_result="new_master_elected"}}': stepping(*range(1, 10))}),
    Time("BrokersetPossibleLoss", 5, 12,
         {f"brokerset_controller_possible_losses_total{{{LEADER}}}": f"0+0x5 {steady(1)}"}),
    Time("BrokersetGroupDown", 0, 3, {f"active_broker_num{{{OF_GROUP}}}": steady(0)}),
    Time("BrokersetBrokerMissing", 8, 12, {
            f"active_broker_num{{{OF_GROUP}}}": steady(1),
            f"brokerset_controller_group_missing{{{OF_GROUP}}}": steady(1)}),
    # One broker was scaled in: its id stays, fenced.
    Time("", None, 30, {f"active_broker_num{{{OF_GROUP}}}": steady(1)}),
    # A group was scaled in, and a new leader of the operator shows its metrics 4 minutes later.
    Time("", None, 30, {
            **gone_group(30),
            f"brokerset_operator_group_retired{{{RETIRED}}}": f"_x5 1+0x3 _x4 {steady(1)}"}),
    Time("BrokersetBrokerMissing BrokersetGroupDown", 5, 30, gone_group(30)),
    Time("BrokersetGroupWithoutMaster", 0, 3,
         {f'brokerset_broker_role{{{MASTER},role="master"}}': steady(0)}),
    Time("BrokersetSendsRefused", 0, 3, {f"brokerset_broker_enough_in_sync{{{MASTER}}}": steady(0)}),
    Time("BrokersetWritesUnserved", 1, 12,
         {f"brokerset_broker_unserved_seconds_total{{{MASTER}}}": rising(0, 20)}),
    Time("BrokersetLeaseLost", 0, 3, problem("lease_lost")),
    Time("BrokersetControllersUnreachable", 0, 3,
         {f'brokerset_broker_controller_heartbeat_age_seconds{{{MASTER},controller="a"}}': rising(31, 60)}),
    Time("BrokersetReplicaNotInSync", 8, 12, {f"brokerset_broker_in_sync_replicas{{{MASTER}}}": steady(1)}),
    Time("BrokersetReplicaLagGrowing", 8, 14,
         {f'brokerset_broker_replica_lag_bytes{{{MASTER},replica="2"}}': rising(GIB, 1000)}),
    Time("", None, 40, {f'brokerset_broker_replica_lag_bytes{{{MASTER},replica="2"}}': rising(GIB, -1000)}),
    Time("BrokersetReplicaCannotFollow", 3, 8, problem("replication_refused")),
    Time("BrokersetReplicaLogIncomplete", 8, 12, problem("log_incomplete")),
    Time("BrokersetRoleChangeFailing", 1, 4, problem("role_change_failed")),
    Time("BrokersetIdentityConflict", 0, 3, problem("identity_conflict")),
    Time("BrokersetIdentityRefused", 3, 8, problem("id_retired")),
    Time("", None, 60, problem("no_master")),
    Time("BrokersetDLedgerWithoutLeader", 0, 3, no_ledger_leader()),
    # One leads, and cannot take the role.
    Time("BrokersetDLedgerWithoutLeader", 0, 3,
         {f'brokerset_broker_role{{{LEDGER},role="master"}}': steady(0)}),
    # A member of Java leads, which nobody scrapes.
    Time("", None, 30, {
            f'brokerset_broker_role{{{LEDGER},role="master"}}': steady(0),
            f'brokerset_broker_dledger_role{{{LEDGER},role="leader"}}': steady(0),
            f"brokerset_broker_dledger_members{{{LEDGER}}}": steady(3),
            f"brokerset_broker_dledger_brokerset_only{{{LEDGER}}}": steady(0),
            f"brokerset_broker_dledger_brokerset_only{{{LEDGER_FOLLOWER}}}": steady(0)}),
    Time("BrokersetDLedgerMemberMissing", 3, 8, {f"brokerset_broker_dledger_members{{{LEDGER}}}": steady(3)}),
    Time("BrokersetDLedgerMemberBehind", 8, 14,
         {f'brokerset_broker_replica_lag_bytes{{{LEDGER},replica="2"}}': rising(GIB, 1000)}),
    Time("BrokersetDLedgerOldLogDiffers", 0, 3,
         {f'brokerset_broker_membership_problem{{{LEDGER_FOLLOWER},problem="old_log_differs"}}': steady(1)}),
    Time("BrokersetDLedgerElectionsFrequent", 1, 15,
         {f"brokerset_broker_dledger_elections_total{{{LEDGER_FOLLOWER}}}": stepping(*range(1, 10))}),
    Time("BrokersetReplicaFencedLong", 350, 370, {f"brokerset_broker_fenced{{{MASTER}}}": steady(1)}),
    Time("BrokersetConsumerLagGrowing", 10, 20,
         {f"rocketmq_consumer_lag_messages{{{LAG}}}": rising(20_000, 10)}),
    Time("", None, 60, {f"rocketmq_consumer_lag_messages{{{LAG}}}": rising(20_000, -10)}),
    Time("BrokersetConsumerLagOld", 3, 8, {f"rocketmq_consumer_lag_latency{{{LAG}}}": steady(7_200_000)}),
    Time("BrokersetDeadLetters", 38, 42, {f"rocketmq_send_to_dlq_messages_total{{{DEAD}}}": later(1, 40)}),
    Time("BrokersetTransactionsGivenUp", 8, 12,
         {f"brokerset_broker_transactions_given_up_total{{{MASTER}}}": "0+0x10 3+0x200"}),
    Time("BrokersetTimersLate", 3, 8, {f"rocketmq_timer_dequeue_latency{{{MASTER}}}": steady(90_000)}),
    Time("BrokersetTimersLate", 3, 8, {f"rocketmq_timer_dequeue_latency{{{MASTER}}}": steady(0),
         f"rocketmq_timer_enqueue_latency{{{MASTER}}}": steady(90_000)}),
    Time("BrokersetPopsUnserved", 1, 4, {f"brokerset_broker_pop_known{{{MASTER}}}": steady(0)}),
    Time("BrokersetPopReviveLate", 3, 8,
         {f'rocketmq_pop_revive_latency{{{MASTER},queue_id="0"}}': steady(90_000)}),
    Time("BrokersetPopCheckPointsMany", 3, 8,
         {f"rocketmq_pop_checkpoint_buffer_size{{{MASTER}}}": steady(450_000)}),
    Time("BrokersetPopAcksRefused", 12, 40,
         {f'brokerset_broker_pop_acks_refused_total{{{MASTER},reason="expired"}}': rising(0, 60)}),
    Time("", None, 60,
         {f'brokerset_broker_pop_acks_refused_total{{{MASTER},reason="expired"}}': rising(0, 30),
          f"brokerset_broker_pop_acked_total{{{MASTER}}}": rising(0, 6000)}),
    Time("BrokersetDiskFilling", 25, 33, disk(steady(80), steady(20))),
    Time("BrokersetDiskAlmostFull", 3, 8, disk(steady(90), steady(10))),
    Time("BrokersetDiskFullSoon", 30, 100, disk(rising(60 * GIB, GIB / 60), rising(40 * GIB, -GIB / 60))),
    Time("BrokersetFlushBehind", 3, 8, {f"rocketmq_storage_flush_behind_bytes{{{MASTER}}}": steady(GIB)}),
    Time("BrokersetDispatchBehind", 3, 8,
         {f"brokerset_broker_metadata_behind_bytes{{{MASTER}}}": steady(GIB)}),
    Time("BrokersetBrokerNotRouted", 3, 8,
         {f'brokerset_broker_registered{{{MASTER},name_server="a"}}': steady(0)}),
    Time("BrokersetConnectionsRefused", 0, 8,
         {f"brokerset_broker_connections_refused_total{{{MASTER}}}": rising(0, 3)}),
    Time("BrokersetProcessRestarting", 2, 10,
         {f"process_start_time_seconds{{{MASTER}}}": stepping(1000, 1060, 1120, 1180)}),
    Time("BrokersetTargetDown", 3, 8, {f"up{{{ONE}}}": steady(0)}),
    Time("BrokersetCertificateExpiring", 55, 65,
         {f'brokerset_tls_certificate_end_seconds{{{ONE},shown_to="clients"}}': steady(13 * DAY)}),
    # Two hours later it has fewer than 14 days.
    Time("BrokersetCertificateExpiring", 175, 190,
         {f'brokerset_tls_certificate_end_seconds{{{LEADER},shown_to="members"}}': steady(14 * DAY + 7200)}),
    # Expired at the start, and the process is still scraped.
    Time("BrokersetCertificateExpiring", 55, 65,
         {f'brokerset_tls_certificate_end_seconds{{{ONE},shown_to="clients"}}': steady(0)}),
    # It is renewed in time, and for a quarter of an hour it was not.
    Time("", None, 90, {f'brokerset_tls_certificate_end_seconds{{{ONE},shown_to="clients"}}':
         f"{13 * DAY:g}+0x15 {steady(90 * DAY)}"}),
    Time("", None, 400,
         {f'brokerset_tls_certificate_end_seconds{{{ONE},shown_to="clients"}}': steady(15 * DAY)}),
    Time("BrokersetNotReady", 8, 12, {f'brokerset_operator_condition{{{READY},reason="AsWanted"}}': None,
         f'brokerset_operator_condition{{{READY},reason="BrokersMissing"}}': steady(0)}),
    Time("BrokersetRolloutStuck", 55, 65,
         {f'brokerset_operator_condition{{{PROGRESSING},reason="RollWaits"}}': "1 1 1 _x6 " * 8 + steady(1)}),
    Time("", None, 90, {f'brokerset_operator_condition{{{PROGRESSING},reason="Scaling"}}': steady(1),
         f'brokerset_operator_condition{{{OF_TOPIC},type="Ready",reason="NoMaster"}}': steady(0)}),
    Time("", None, 90, {f'brokerset_operator_condition{{{PROGRESSING},reason="Rolling"}}': "1+0x40 _x400"}),
    Time("BrokersetAuditFailed", 3, 8,
         {f'brokerset_operator_condition{{{AUDITED},reason="ErrorsFound"}}': later(0, 5)}),
    Time("", None, 30, {f'brokerset_operator_condition{{{AUDITED},reason="RunFailed"}}': steady(0),
         f'brokerset_operator_condition{{{AUDITED},reason="NoErrors"}}': steady(1)}),
    Time("BrokersetOperatorNotLeading", 3, 8, {f"brokerset_operator_leads{{{OPERATOR}}}": steady(0)}),
    Time("BrokersetOperatorAbsent", 8, 12, {f"brokerset_operator_leads{{{OPERATOR}}}": None}),
    Time("BrokersetOperatorNotReconciling", 18, 25,
         {f"brokerset_operator_last_success_age_seconds{{{OBJECT}}}": rising(0, 60)}),
    Time("BrokersetOperatorRoundsFailing", 12, 40,
         {f'brokerset_operator_rounds_total{{{OPERATOR},kind="BrokerSet",outcome="failure"}}': rising(0, 2)}),
    Time("BrokersetAuditOverdue", 55, 75, {
            f"brokerset_audit_expected_since_timestamp_seconds{{{STORE_AUDIT}}}": steady(0),
            f"brokerset_audit_period_seconds{{{STORE_AUDIT}}}": steady(600)}),
    Time("", None, 300, {
            f"brokerset_audit_expected_since_timestamp_seconds{{{STORE_AUDIT}}}": rising(0, 60),
            f"brokerset_audit_period_seconds{{{STORE_AUDIT}}}": steady(600)}),
    Time("BrokersetExportOverdue", 35, 45, {
            f"brokerset_storeexport_expected_since_timestamp_seconds{{{STORE_EXPORT}}}": steady(0),
            f"brokerset_storeexport_period_seconds{{{STORE_EXPORT}}}": steady(600)}),
    Time("", None, 300, {
            f"brokerset_storeexport_expected_since_timestamp_seconds{{{STORE_EXPORT}}}": rising(0, 60),
            f"brokerset_storeexport_period_seconds{{{STORE_EXPORT}}}": steady(600)}),
    Time("BrokersetExportGap", 9, 13,
         {f"brokerset_storeexport_gap_messages_total{{{STORE_EXPORT}}}": f"0+0x10 {steady(60)}"}),
    Time("BrokersetOperatorBehind", 8, 13,
         {f"brokerset_operator_oldest_mark_seconds{{{OPERATOR}}}": rising(0, 60)}),
    Time("BrokersetOperatorApiErrors", 8, 20,
         {f'brokerset_operator_api_requests_total{{{OPERATOR},verb="get",outcome="Timeout"}}':
             rising(0, 30)}),
)  # fmt: skip
