"""The dashboard of consumption by POP; queries are written as in `monitoring.panels`."""

# ruff: noqa: E501  # a sentence of a table stays on one line

from __future__ import annotations

from typing import Final

from monitoring.panels import GROUP, MASTERS, NAMESPACE, RATE, SET, Dashboard, Panel

POP: Final = Dashboard(
    "brokerset-pop",
    "BrokerSet / POP",
    "What consumers have popped, how it is acknowledged, and what comes back.",
    (NAMESPACE, SET, GROUP),
    (
        (
            "In flight",
            (
                Panel(
                    "Messages in flight",
                    "How many popped messages are not acknowledged?",
                    ((f"sum by (node_id) (brokerset_broker_pop_in_flight{{<b>}} {MASTERS})", "{{node_id}}"),),
                ),
                Panel(
                    "Open check points",
                    "How near are masters to the limit above which they refuse pops? At 80 % there is an alert.",
                    (
                        (
                            f"max by (node_id) (rocketmq_pop_checkpoint_buffer_size{{<b>}} / brokerset_broker_pop_check_points_limit{{<b>}} {MASTERS})",
                            "{{node_id}}",
                        ),
                    ),
                    "percentunit",
                ),
                Panel(
                    "Groups",
                    "Which groups have much in flight?",
                    (
                        (
                            f'sum by (consumer_group, topic) (rocketmq_consumer_inflight_messages{{<b>,is_system="false"}} {MASTERS}) > 0',
                            "{{consumer_group}} {{topic}}",
                        ),
                    ),
                ),
                Panel(
                    "Who waits",
                    "How many pops and notifications wait for messages, and how many queues are locked by ordered pops?",
                    (
                        (f"sum by (request) (brokerset_broker_pop_waiting{{<b>}} {MASTERS})", "{{request}}"),
                        (f"sum(brokerset_broker_pop_ordered_locked{{<b>}} {MASTERS})", "locked queues"),
                    ),
                ),
            ),
        ),
        (
            "Ends",
            (
                Panel(
                    "Acks",
                    "How many messages are acknowledged, and how many acks are refused?",
                    (
                        (f"sum(rate(brokerset_broker_pop_acked_total{{<b>}}{RATE}))", "acked"),
                        (
                            f"sum by (reason) (rate(brokerset_broker_pop_acks_refused_total{{<b>}}{RATE}))",
                            "refused: {{reason}}",
                        ),
                    ),
                    "cps",
                ),
                Panel(
                    "Messages that come back",
                    "Whose messages were not acknowledged in time?",
                    (
                        (
                            f'sum by (consumer_group, topic) (rate(rocketmq_pop_revive_retry_messages_total{{<b>,put_status="PUT_OK"}}{RATE}))',
                            "{{consumer_group}} {{topic}}",
                        ),
                    ),
                    "cps",
                ),
                Panel(
                    "Lateness",
                    "How late do messages come back? Above a minute there is an alert.",
                    ((f"max by (node_id) (rocketmq_pop_revive_latency{{<b>}} {MASTERS})", "{{node_id}}"),),
                    "ms",
                ),
                Panel(
                    "Records",
                    "How many check points and acks are written, and how many check points are copied?",
                    (
                        (
                            f"sum by (revive_message_type) (rate(rocketmq_pop_revive_in_message_total{{<b>}}{RATE}))",
                            "{{revive_message_type}}",
                        ),
                        (
                            f"sum(rate(brokerset_broker_pop_check_points_copied_total{{<b>}}{RATE}))",
                            "copied",
                        ),
                    ),
                    "cps",
                ),
            ),
        ),
    ),
)
