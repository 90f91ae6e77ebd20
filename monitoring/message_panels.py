"""The dashboard of transactions and timer messages; queries are written as in `monitoring.panels`."""

# ruff: noqa: E501  # a sentence of a table stays on one line

from __future__ import annotations

from typing import Final

from monitoring.panels import GROUP, MASTERS, NAMESPACE, RATE, SET, Dashboard, Panel

MESSAGES: Final = Dashboard(
    "brokerset-messages",
    "BrokerSet / Transactions and timers",
    "What waits for its end or its time at the masters, how it ends, and how late.",
    (NAMESPACE, SET, GROUP),
    (
        (
            "Transactions",
            (
                Panel(
                    "Half messages",
                    "Which topics have messages that wait for a commit? A line that only rises: producers do not end, or do not answer checks.",
                    ((f"sum by (topic) (rocketmq_half_messages{{<b>}} {MASTERS})", "{{topic}}"),),
                ),
                Panel(
                    "Ends",
                    "How many transactions are committed and rolled back?",
                    (
                        (f"sum(rate(rocketmq_commit_messages_total{{<b>}}{RATE}))", "committed"),
                        (f"sum(rate(rocketmq_rollback_messages_total{{<b>}}{RATE}))", "rolled back"),
                    ),
                    "cps",
                ),
                Panel(
                    "Time to the commit",
                    "How long do consumers wait for committed messages?",
                    (
                        (
                            f"histogram_quantile(0.5, sum by (le) (rate(rocketmq_finish_message_latency_bucket{{<b>}}{RATE})))",
                            "half of them",
                        ),
                        (
                            f"histogram_quantile(0.99, sum by (le) (rate(rocketmq_finish_message_latency_bucket{{<b>}}{RATE})))",
                            "99 of 100",
                        ),
                    ),
                    "s",
                ),
                Panel(
                    "Checks and given up",
                    "Are producers asked about transactions, and how many were never answered? Each that is given up is an alert.",
                    (
                        (f"sum(rate(brokerset_broker_transaction_checks_total{{<b>}}{RATE}))", "checks"),
                        (
                            f"sum(rate(brokerset_broker_transactions_given_up_total{{<b>}}{RATE}))",
                            "given up",
                        ),
                    ),
                    "cps",
                ),
            ),
        ),
        (
            "Timers",
            (
                Panel(
                    "Messages that wait",
                    "Which topics have messages that wait for their time?",
                    ((f"sum by (topic) (rocketmq_timing_messages{{<b>}} {MASTERS})", "{{topic}}"),),
                ),
                Panel(
                    "When they are due",
                    "How many are due within a minute, an hour, a day?",
                    (
                        (
                            f"sum by (timer_bound_s) (rocketmq_timer_message_snapshot{{<b>}} {MASTERS})",
                            "within {{timer_bound_s}} s",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Taken and delivered",
                    "Does as much come out as goes in?",
                    (
                        (f"sum(rate(rocketmq_timer_enqueue_total{{<b>}}{RATE}))", "taken"),
                        (f"sum(rate(rocketmq_timer_dequeue_total{{<b>}}{RATE}))", "delivered"),
                    ),
                    "cps",
                ),
                Panel(
                    "Lateness",
                    "How late are messages delivered, and taken into the wheel? Above a minute there is an alert.",
                    (
                        (
                            f"max by (node_id) (rocketmq_timer_dequeue_latency{{<b>}} {MASTERS})",
                            "{{node_id}} delivery",
                        ),
                        (
                            f"max by (node_id) (rocketmq_timer_enqueue_latency{{<b>}} {MASTERS})",
                            "{{node_id}} taking",
                        ),
                    ),
                    "ms",
                ),
            ),
        ),
    ),
)
