"""The dashboard of applications with ordered producers and consumers; queries are written as in `monitoring.panels`.

`<s>` stands for the labels that select subjects in the metrics of applications.
"""

# ruff: noqa: E501  # a sentence of a table stays on one line

from __future__ import annotations

from typing import Final

from monitoring.panels import RATE, Dashboard, Panel

NAMESPACE: Final = (
    "namespace",
    "Application's namespace",
    "label_values(brokerset_client_ordered_permission_seconds, namespace)",
)
SUBJECT: Final = (
    "subject",
    "Subject",
    'label_values(brokerset_client_ordered_permission_seconds{namespace=~"$namespace"}, subject)',
)

OF_GROUP: Final = "{{subject}} {{consumer_group}}"


def _by_group(function: str, name: str) -> tuple[str, str]:
    """One line for each group of consumers."""
    return f"{function} by (subject, consumer_group) (brokerset_client_ordered_{name}{{<s>}})", OF_GROUP


def _rate(labels: str, name: str) -> str:
    return f"sum by ({labels}) (rate(brokerset_client_ordered_{name}_total{{<s>}}{RATE}))"


ORDERED_CLIENTS: Final = Dashboard(
    "brokerset-ordered-clients",
    "BrokerSet / Ordered clients",
    "What ordered consumers and producers measure in their applications, which have to export it (docs/metrics.md).",
    (NAMESPACE, SUBJECT),
    (
        (
            "Consumers",
            (
                Panel(
                    "Lag",
                    "How many messages has each group not acknowledged, as its members know?",
                    (_by_group("sum", "lag_messages"),),
                ),
                Panel(
                    "Lag of the partition that is furthest behind",
                    "Is it a single partition that falls back: one slow or blocked key?",
                    (_by_group("max", "lag_messages"),),
                ),
                Panel(
                    "Handled and failed",
                    "How many messages are handled a second, and how many attempts fail?",
                    (
                        (_rate("subject, consumer_group", "handled_messages"), f"{OF_GROUP} handled"),
                        (_rate("subject, consumer_group", "failed_attempts"), f"{OF_GROUP} failed"),
                    ),
                    "cps",
                ),
                Panel(
                    "Members by state",
                    "Do all members consume? Those that wait have no permission; those that are refused never get one.",
                    (
                        (
                            "sum by (subject, consumer_group, state) (brokerset_client_ordered_members{<s>})",
                            f"{OF_GROUP} {{{{state}}}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Permission that is left",
                    "How near is each group's best member to the end of its permission? At 0 nothing is handled.",
                    (_by_group("max", "permission_seconds"),),
                    "s",
                ),
                Panel(
                    "Queues by state",
                    "Are queues of partitions given up or taken over, and does that end?",
                    (
                        (
                            "sum by (subject, consumer_group, state) (brokerset_client_ordered_partitions{<s>})",
                            f"{OF_GROUP} {{{{state}}}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Blocked logical partitions",
                    "How many wait for a message whose handler fails?",
                    (_by_group("sum", "blocked_lanes"),),
                ),
                Panel(
                    "Longest block",
                    "How long has a key waited for a message whose handler fails? Above 300 s there is an alert.",
                    (_by_group("max", "blocked_seconds"),),
                    "s",
                ),
                Panel(
                    "Messages that were given up",
                    "How many are sent back, put into the dead letters, skipped, or expired before they were consumed?",
                    tuple(
                        (_rate("subject, consumer_group", f"{name}_messages"), f"{OF_GROUP} {name}")
                        for name in ("sent_back", "dead", "skipped", "expired")
                    ),
                    "cps",
                ),
                Panel(
                    "Ownerships that ended late",
                    "Do members lose partitions, or their permission, while they work? Handlers are too slow, or processes pause.",
                    (
                        (_rate("subject, consumer_group", "fenced_queues"), f"{OF_GROUP} fenced"),
                        (_rate("subject, consumer_group", "late_attempts"), f"{OF_GROUP} late"),
                    ),
                    "cps",
                ),
            ),
        ),
        (
            "Producers",
            (
                Panel(
                    "Confirmed and failed",
                    "How many messages are confirmed a second, and how many are given up?",
                    (
                        (_rate("subject", "confirmed_messages"), "{{subject}} confirmed"),
                        (_rate("subject", "failed_messages"), "{{subject}} failed"),
                    ),
                    "cps",
                ),
                Panel(
                    "Unconfirmed messages",
                    "How many are on their way, and how many of them have no partition to go to yet?",
                    (
                        (
                            "sum by (subject) (brokerset_client_ordered_unconfirmed_messages{<s>})",
                            "{{subject}} unconfirmed",
                        ),
                        (
                            "sum by (subject) (brokerset_client_ordered_parked_messages{<s>})",
                            "{{subject}} parked",
                        ),
                    ),
                ),
                Panel(
                    "Oldest unconfirmed message",
                    "How long has a message waited for its broker? Under Strict it waits as long as that takes.",
                    (
                        (
                            "max by (subject) (brokerset_client_ordered_unconfirmed_seconds{<s>})",
                            "{{subject}}",
                        ),
                    ),
                    "s",
                ),
                Panel(
                    "Repeated requests",
                    "How often are requests sent again, and how often does nobody say what became of one?",
                    (
                        (_rate("subject", "retried_sends"), "{{subject}} repeated"),
                        (_rate("subject", "unknown_outcomes"), "{{subject}} unknown"),
                    ),
                    "reqps",
                ),
            ),
        ),
    ),
)
