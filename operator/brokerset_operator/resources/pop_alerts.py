"""Alerts about consumption by POP; expressions are written as in `resources.alerts`."""

from __future__ import annotations

from typing import Final

from brokerset_operator.resources.alerts import GROUP, Alert

_MASTER: Final = 'and on (namespace, pod) brokerset_broker_role{<pods>,role="master"} == 1'
_LATE_MS: Final = 60_000
_REFUSED: Final = f"sum by ({GROUP}) (rate(brokerset_broker_pop_acks_refused_total{{<pods>}}[15m]))"
_ACKED: Final = f"sum by ({GROUP}) (rate(brokerset_broker_pop_acked_total{{<pods>}}[15m]))"

POP_ALERTS: Final = (
    Alert(
        "BrokersetPopsUnserved",
        "critical",
        f"(brokerset_broker_pop_known{{<pods>}} == 0) {_MASTER}",
        2,
        "Master {{ $labels.pod }} of {{ $labels.node_id }} serves no pops and no acks",
        "It has not read all open check points since it became master: they wait until it has.",
    ),
    Alert(
        "BrokersetPopReviveLate",
        "warning",
        f"max by ({GROUP}) ((rocketmq_pop_revive_latency{{<pods>}} > {_LATE_MS}) {_MASTER})",
        5,
        "Popped messages of {{ $labels.node_id }} come back {{ $value | humanize }} ms late",
        "Their invisible time is over, but the master does not keep up, or its store takes nothing.",
    ),
    Alert(
        "BrokersetPopCheckPointsMany",
        "warning",
        "(rocketmq_pop_checkpoint_buffer_size{<pods>}"
        f" / on (namespace, pod, {GROUP}) brokerset_broker_pop_check_points_limit{{<pods>}} > 0.8) {_MASTER}",
        5,
        "{{ $labels.node_id }} has {{ $value | humanizePercentage }} of the check points that it may have",
        "Consumers pop faster than they ack. At popCheckPointsMax pops are refused with POLLING_FULL.",
    ),
    Alert(
        "BrokersetPopAcksRefused",
        "warning",
        f"{_REFUSED} > 0.1 and {_REFUSED} > 0.1 * {_ACKED}",
        15,
        "{{ $labels.node_id }} refuses {{ $value | humanize }} acks of popped messages a second",
        "More than a tenth of the acks came too late or named what is another's: messages are handled twice.",
    ),
)
"""About what is popped, and what becomes of it."""
