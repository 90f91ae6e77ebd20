"""Alerts about transactions and timer messages; expressions are written as in `resources.alerts`."""

from __future__ import annotations

from typing import Final

from brokerset_operator.resources.alerts import GROUP, Alert

_MASTER: Final = 'and on (namespace, pod) brokerset_broker_role{<pods>,role="master"} == 1'
_LATE_MS: Final = 60_000

MESSAGE_ALERTS: Final = (
    Alert(
        "BrokersetTransactionsGivenUp",
        "warning",
        f"sum by ({GROUP}) (increase(brokerset_broker_transactions_given_up_total{{<pods>}}[15m])) > 0",
        0,
        "{{ $labels.node_id }} gave up {{ $value | humanize }} half messages",
        "No producer of their groups said in time whether they are committed. They are in"
        " TRANS_CHECK_MAX_TIME_TOPIC, and nobody gets them.",
    ),
    Alert(
        "BrokersetTimersLate",
        "warning",
        f"max by ({GROUP}) ((rocketmq_timer_dequeue_latency{{<pods>}} > {_LATE_MS}"
        f" or rocketmq_timer_enqueue_latency{{<pods>}} > {_LATE_MS}) {_MASTER})",
        5,
        "Timer messages of {{ $labels.node_id }} are {{ $value | humanize }} ms late",
        "The master does not keep up with what is due, its store takes nothing, or timerStopDequeue is set.",
    ),
)
"""About what brokers deliver later than it was sent."""
