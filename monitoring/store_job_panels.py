"""The dashboard of audits, migrations and exports; queries are written as in `monitoring.panels`."""

# ruff: noqa: E501  # a sentence of a table stays on one line

from __future__ import annotations

from typing import Final

from monitoring.panels import OPERATOR_NAMESPACE, Dashboard, Panel

AUDIT: Final = "{{exported_namespace}}/{{name}} of {{broker_set}}"

STORE_JOBS: Final = Dashboard(
    "brokerset-store-jobs",
    "BrokerSet / Store jobs",
    "Audits of replicas, migrations of stores and exports of topics, as the operator that leads tells of them.",
    (OPERATOR_NAMESPACE,),
    (
        (
            "Audits",
            (
                Panel(
                    "Last results",
                    "How did the last run of each StoreAudit end?",
                    (("sum by (result) (brokerset_audit_last_run{<o>})", "{{result}}"),),
                    kind="stat",
                ),
                Panel(
                    "Age of the last passed run",
                    "How long ago did a run read every replica and find no error?",
                    (("time() - brokerset_audit_last_success_timestamp_seconds{<o>}", AUDIT),),
                    "s",
                    kind="stat",
                ),
                Panel(
                    "Periods without a passed run",
                    "How many times its period has each StoreAudit waited for a run that passes? Above three there is an alert.",
                    (
                        (
                            "(time() - brokerset_audit_expected_since_timestamp_seconds{<o>})"
                            " / brokerset_audit_period_seconds{<o>}",
                            AUDIT,
                        ),
                    ),
                    kind="stat",
                ),
                Panel(
                    "Runs that are on",
                    "Which StoreAudits run now?",
                    (
                        (
                            "sum by (exported_namespace, name) (brokerset_audit_running{<o>})",
                            "{{exported_namespace}}/{{name}}",
                        ),
                    ),
                    kind="stat",
                ),
                Panel(
                    "Replicas",
                    "How did each replica fare in the last run: compared, accused by an error, or not read?",
                    (
                        (
                            "sum by (exported_namespace, broker_set, group, replica, result) (brokerset_audit_replica{<o>})",
                            "{{exported_namespace}} {{broker_set}} {{group}} {{replica}} {{result}}",
                        ),
                    ),
                ),
                Panel(
                    "Findings",
                    "What did the last run find, by code?",
                    (
                        (
                            "sum by (exported_namespace, name, code) (brokerset_audit_findings{<o>})",
                            "{{exported_namespace}}/{{name}} {{code}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Errors",
                    "How many findings of the last run are errors?",
                    (("brokerset_audit_errors{<o>}", AUDIT),),
                ),
                Panel(
                    "Bytes read",
                    "How much did the last run read?",
                    (("brokerset_audit_bytes_read{<o>}", AUDIT),),
                    "bytes",
                ),
                Panel(
                    "Duration",
                    "How long did the last run take?",
                    (("brokerset_audit_duration_seconds{<o>}", AUDIT),),
                    "s",
                ),
                Panel(
                    "Time since the last run",
                    "How long ago did a run end, however it did?",
                    (("time() - brokerset_audit_last_run_timestamp_seconds{<o>}", AUDIT),),
                    "s",
                ),
            ),
        ),
        (
            "Migrations",
            (
                Panel(
                    "Migrations",
                    "How many StoreMigrations are in each phase?",
                    (("sum by (phase) (brokerset_migration_phase{<o>})", "{{phase}}"),),
                    kind="stat",
                ),
                Panel(
                    "Not done",
                    "Which StoreMigrations wait, run, or have failed?",
                    (
                        (
                            'brokerset_migration_phase{<o>,phase!="Succeeded"}',
                            "{{exported_namespace}}/{{name}} {{phase}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Exports",
            (
                Panel(
                    "Last results of exports",
                    "How did the last run of each StoreExport end?",
                    (("sum by (result) (brokerset_storeexport_last_run{<o>})", "{{result}}"),),
                    kind="stat",
                ),
                Panel(
                    "Age of the table",
                    "How long ago did a run write what there was?",
                    (("time() - brokerset_storeexport_last_success_timestamp_seconds{<o>}", AUDIT),),
                    "s",
                    kind="stat",
                ),
                Panel(
                    "Periods without a run that passed",
                    "How many times its period has each StoreExport waited for a run that passes? Above three there is an alert.",
                    (
                        (
                            "(time() - brokerset_storeexport_expected_since_timestamp_seconds{<o>})"
                            " / brokerset_storeexport_period_seconds{<o>}",
                            AUDIT,
                        ),
                    ),
                    kind="stat",
                ),
                Panel(
                    "Exports that are on",
                    "Which StoreExports run now?",
                    (("brokerset_storeexport_running{<o>}", AUDIT),),
                    kind="stat",
                ),
                Panel(
                    "Rows",
                    "How many rows are written a second?",
                    (("rate(brokerset_storeexport_rows_total{<o>}[$__rate_interval])", AUDIT),),
                ),
                Panel(
                    "Bytes written",
                    "How many bytes are written a second?",
                    (("rate(brokerset_storeexport_bytes_total{<o>}[$__rate_interval])", AUDIT),),
                    "Bps",
                ),
                Panel(
                    "Messages that wait",
                    "How many messages did the last run leave for the next one?",
                    (("brokerset_storeexport_lag_messages{<o>}", AUDIT),),
                ),
                Panel(
                    "Messages that were gone",
                    "How many messages were gone before a run could read them?",
                    (("brokerset_storeexport_gap_messages_total{<o>}", AUDIT),),
                ),
                Panel(
                    "Runs that have not passed",
                    "How many runs end, and how many of them have not passed?",
                    (
                        (
                            "increase(brokerset_storeexport_runs_total{<o>}[$__rate_interval])",
                            f"{AUDIT}: all",
                        ),
                        (
                            "increase(brokerset_storeexport_failures_total{<o>}[$__rate_interval])",
                            f"{AUDIT}: not passed",
                        ),
                    ),
                ),
                Panel(
                    "Duration of exports",
                    "How long did the last run take, and how long ago did it end?",
                    (
                        ("brokerset_storeexport_duration_seconds{<o>}", AUDIT),
                        ("time() - brokerset_storeexport_last_run_timestamp_seconds{<o>}", f"{AUDIT}: ago"),
                    ),
                    "s",
                ),
            ),
        ),
        (
            "Kinds",
            (
                Panel(
                    "Kinds that are served",
                    "Does the cluster know the kinds, and may the operator read them?",
                    (("brokerset_operator_kind_served{<o>}", "{{kind}}"),),
                    kind="stat",
                ),
            ),
        ),
    ),
)
