"""The dashboard of ordered subjects; queries are written as in `monitoring.panels`."""

# ruff: noqa: E501  # a sentence of a table stays on one line

from __future__ import annotations

from typing import Final

from monitoring.panels import GROUP, LEADER, MASTERS, NAMESPACE, RATE, SET, Dashboard, Panel

OF_SET: Final = "{{brokerset_io_set}}"

ORDERED: Final = Dashboard(
    "brokerset-ordered",
    "BrokerSet / Ordered subjects",
    "Partitions, members and permissions as the controllers that lead count them, and what brokers refuse.",
    (NAMESPACE, SET, GROUP),
    (
        (
            "Ordered subjects: controllers",
            (
                Panel(
                    "Partitions by status",
                    "Does each partition that is sealing get sealed, and each that is prepared get open?",
                    (
                        (
                            f"sum by (status) (brokerset_controller_subject_partitions{{<c>}} {LEADER})",
                            "{{status}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Age of the oldest sealing",
                    "How long do keyed sends wait for the seal of an old partition? Above 60 s there is an alert.",
                    (
                        (
                            f"max by (brokerset_io_set) (brokerset_controller_subject_sealing_seconds{{<c>}} {LEADER})",
                            OF_SET,
                        ),
                    ),
                    "s",
                ),
                Panel(
                    "Pushes to brokers",
                    "Do broker groups take the queues that the controllers have agreed on?",
                    (
                        (f"sum(rate(brokerset_controller_subject_pushes_total{{<c>}}{RATE}))", "sent"),
                        (
                            f"sum(rate(brokerset_controller_subject_pushes_failed_total{{<c>}}{RATE}))",
                            "failed",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Subjects, groups and members",
                    "How many are there?",
                    (
                        (f"sum(brokerset_controller_subjects{{<c>}} {LEADER})", "subjects"),
                        (f"sum(brokerset_controller_subject_groups{{<c>}} {LEADER})", "groups"),
                        (f"sum(brokerset_controller_subject_members{{<c>}} {LEADER})", "members"),
                    ),
                ),
                Panel(
                    "Members that come and go",
                    "Do members leave more often than they are started and ended? Those that are not heard count as well.",
                    (
                        (f"sum(rate(brokerset_controller_subject_joins_total{{<c>}}{RATE}))", "joined"),
                        (f"sum(rate(brokerset_controller_subject_departures_total{{<c>}}{RATE}))", "left"),
                    ),
                    "cps",
                ),
                Panel(
                    "Reassignments",
                    "How often do partitions change their owners?",
                    (
                        (
                            f"sum(rate(brokerset_controller_subject_reassignments_total{{<c>}}{RATE}))",
                            "changes",
                        ),
                    ),
                    "cps",
                ),
                Panel(
                    "Permissions",
                    "Do members get their permissions? A controller that does not lead refuses all heartbeats.",
                    (
                        (
                            f"rate(brokerset_controller_subject_permissions_total{{<c>}}{RATE})",
                            "{{pod}} given",
                        ),
                        (
                            f"rate(brokerset_controller_subject_permissions_refused_total{{<c>}}{RATE})",
                            "{{pod}} refused",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Requests that wait for a change",
                    "How many producers and consumers wait for a new route or assignment?",
                    (
                        (
                            f"sum by (brokerset_io_set) (brokerset_controller_subject_long_polls{{<c>}} {LEADER})",
                            OF_SET,
                        ),
                    ),
                ),
                Panel(
                    "Partitions, groups and members together",
                    "How near is the limit of 400,000?",
                    (
                        (
                            f"max by (brokerset_io_set) (brokerset_controller_subject_parts{{<c>}} {LEADER})",
                            OF_SET,
                        ),
                    ),
                ),
            ),
        ),
        (
            "Ordered subjects: brokers",
            (
                Panel(
                    "Queues by state",
                    "What do the masters take? They follow the controllers' partitions.",
                    (
                        (
                            f"sum by (node_id, state) (brokerset_broker_ordered_queues{{<b>}} {MASTERS})",
                            "{{node_id}} {{state}}",
                        ),
                    ),
                ),
                Panel(
                    "Queues that sessions pull",
                    "How many pairs of a queue and a group have an owner that has claimed it from this master?",
                    (
                        (
                            f"sum by (node_id) (brokerset_broker_ordered_sessions{{<b>}} {MASTERS})",
                            "{{node_id}}",
                        ),
                    ),
                ),
                Panel(
                    "Pull logs of Shared groups",
                    "How many are there? Each session of a Shared group has one for each queue that it pulls.",
                    (
                        (
                            f"sum by (node_id) (brokerset_broker_ordered_shared_sessions{{<b>}} {MASTERS})",
                            "{{node_id}}",
                        ),
                    ),
                ),
                Panel(
                    "Unacknowledged messages of Shared groups",
                    "How many messages were given to sessions that have not acknowledged them?",
                    (
                        (
                            f"sum by (node_id) (brokerset_broker_ordered_shared_pending{{<b>}} {MASTERS})",
                            "{{node_id}}",
                        ),
                    ),
                ),
                Panel(
                    "Messages given again",
                    "Do sessions of Shared groups leave messages that they have not acknowledged? Those may be handled twice.",
                    (
                        (
                            "sum by (node_id)"
                            f" (rate(brokerset_broker_ordered_shared_given_again_total{{<b>}}{RATE}))",
                            "{{node_id}}",
                        ),
                    ),
                    "cps",
                ),
                Panel(
                    "Claims",
                    "How often do owners claim their queues? Each new owner and each new master brings some.",
                    (
                        (
                            f"sum by (node_id) (rate(brokerset_broker_ordered_claims_total{{<b>}}{RATE}))",
                            "{{node_id}}",
                        ),
                    ),
                    "cps",
                ),
                Panel(
                    "Fenced requests",
                    "Do former owners go on? Those that begin with plain are of RocketMQ clients in an ordered group.",
                    (
                        (
                            "sum by (node_id, request)"
                            f" (rate(brokerset_broker_ordered_requests_fenced_total{{<b>}}{RATE}))",
                            "{{node_id}} {{request}}",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Duplicates dropped",
                    "How many messages did producers send again that were stored already?",
                    (
                        (
                            f"sum by (node_id) (rate(brokerset_broker_ordered_duplicates_total{{<b>}}{RATE}))",
                            "{{node_id}}",
                        ),
                    ),
                    "cps",
                ),
                Panel(
                    "Refused sends by reason",
                    "Why do brokers refuse keyed sends? Some that are sealed or not open belong to each scaling.",
                    (
                        (
                            "sum by (node_id, reason)"
                            f" (rate(brokerset_broker_ordered_sends_refused_total{{<b>}}{RATE}))",
                            "{{node_id}} {{reason}}",
                        ),
                    ),
                    "reqps",
                ),
                Panel(
                    "Signs of lost messages",
                    "Have processes found since their start that confirmed messages are gone? Each increase is an alert.",
                    (
                        (
                            "sum by (pod, sign) (brokerset_broker_ordered_losses_total{<b>})",
                            "{{pod}} {{sign}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
