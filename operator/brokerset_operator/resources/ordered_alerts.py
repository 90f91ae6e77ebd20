"""Alerts about ordered subjects; expressions are written as in `brokerset_operator.resources.alerts`.

Counters of servers have neither subject nor consumer group, so an alert says which set, or broker group;
the runbook says how to find the subject. Rates are of five minutes, and must last longer than that: one
failover, one new leader of the controllers or one paused consumer fires none of them. Lost messages fire at
once.
"""

from __future__ import annotations

from typing import Final

from brokerset_operator.resources.alerts import GROUP, SET, Alert

_LASTING_MINUTES: Final = 10
"""How long a rate of five minutes must last: more than five, so that one burst does not suffice."""

_LOSSES: Final = "brokerset_broker_ordered_losses_total{<pods>}"

ORDERED_CONTROLLER_ALERTS: Final = (
    Alert(
        "BrokersetOrderedPartitionSealing",
        "critical",
        f"max by ({SET}) (brokerset_controller_subject_sealing_seconds{{<pods>}}) > 60",
        1,
        "A partition of an ordered subject has been sealing for {{ $value | humanize }} s",
        "Its broker group has not confirmed the seal. Keyed sends to the partitions that take over its keys"
        " are refused until it has; other keys are not affected.",
    ),
    Alert(
        "BrokersetOrderedPushesFailing",
        "warning",
        f"sum by ({SET}) (increase(brokerset_controller_subject_pushes_failed_total{{<pods>}}[5m])) > 15",
        _LASTING_MINUTES,
        "{{ $value | humanize }} requests to brokers about queues of subjects failed within 5 minutes",
        "A broker group does not answer the controllers, or refuses its queues. Its new partitions do not"
        " open, and those that are to be sealed are not. `brokerset subject describe` names it.",
    ),
    Alert(
        "BrokersetOrderedPermissionsRefused",
        "warning",
        f"sum by ({SET}) (increase(brokerset_controller_subject_permissions_refused_total{{<pods>}}[5m])"
        " and on (namespace, pod) brokerset_controller_leading{<pods>} == 1) > 15",
        _LASTING_MINUTES,
        "The controllers refused {{ $value | humanize }} heartbeats of ordered consumers within 5 minutes",
        "A consumer that gets no permission stops when its last one has ended; other members take over if"
        " they get theirs. The consumers' logs have the reason.",
    ),
    Alert(
        "BrokersetOrderedMembersUnstable",
        "warning",
        f"sum by ({SET}) (increase(brokerset_controller_subject_departures_total{{<pods>}}[15m]))"
        f" > 5 + 2 * max by ({SET}) (max_over_time(brokerset_controller_subject_members{{<pods>}}[15m]))",
        0,
        "Members left groups of ordered consumers {{ $value | humanize }} times within 15 minutes",
        "That is more than twice for each member: consumers crash, are paused, or do not reach the"
        " controllers in time. The partitions of one that is not heard wait until its permission has ended.",
    ),
)
"""About ordered subjects, by the pods of controllers."""

ORDERED_BROKER_ALERTS: Final = (
    Alert(
        "BrokersetOrderedMessagesLost",
        "critical",
        # A process may count a loss before it is scraped first: increase() does not see that one.
        f"sum by ({GROUP}) (increase({_LOSSES}[15m]) > 0"
        f" or {_LOSSES} > 0 and on (namespace, pod) time() - process_start_time_seconds{{<pods>}} < 900)",
        0,
        "{{ $labels.node_id }} has lost confirmed messages of ordered subjects",
        "A group's position, a producer or the record of producers is ahead of the log. The messages between"
        " are gone, and the subject goes on without them. The broker's log names subject and queue.",
    ),
    Alert(
        "BrokersetOrderedRequestsFenced",
        "warning",
        f"sum by ({GROUP}) (increase(brokerset_broker_ordered_requests_fenced_total"
        '{<pods>,request=~"ack|claim|pull|send back"}[5m])) > 10',
        _LASTING_MINUTES,
        "{{ $labels.node_id }} refused {{ $value | humanize }} requests of former owners within 5 minutes",
        "Consumers go on with queues that others own by now: they were paused, or cut off from the"
        " controllers. What they do is refused, so order and positions are kept; messages whose acks are"
        " refused are handled again.",
    ),
    Alert(
        "BrokersetOrderedProducersRefused",
        "warning",
        f"sum by ({GROUP}, reason) (increase(brokerset_broker_ordered_sends_refused_total"
        '{<pods>,reason=~"fenced|full|gap|unknown"}[5m])) > 10',
        _LASTING_MINUTES,
        "{{ $labels.node_id }} refused {{ $value | humanize }} ordered sends within 5 minutes:"
        " {{ $labels.reason }}",
        "fenced: two processes share a producer id. gap, unknown: the broker lacks what the producer counts"
        " as sent. full: a queue has 1,024 producers. Refused sends stored nothing.",
    ),
    Alert(
        "BrokersetOrderedPlainClients",
        "warning",
        f"sum by ({GROUP}) (increase(brokerset_broker_ordered_requests_fenced_total"
        '{<pods>,request=~"plain.*"}[5m])) > 10'
        f" or sum by ({GROUP}) (increase(brokerset_broker_ordered_sends_refused_total"
        '{<pods>,reason="illegal"}[5m])) > 10',
        _LASTING_MINUTES,
        "{{ $labels.node_id }} refused {{ $value | humanize }} requests of RocketMQ clients within 5 minutes",
        "They consume in a group whose queues sessions own, or send to an ordered subject without order. They"
        " get nothing done; members of ordered groups are not affected.",
    ),
)
"""About ordered subjects, by the pods of brokers."""

_OF_CLIENTS: Final = "namespace, subject, consumer_group"
"""Labels of a consumer group in the metrics of applications; they are of no set."""

ORDERED_CLIENT_ALERTS: Final = (
    Alert(
        "BrokersetOrderedKeyBlocked",
        "warning",
        f"max by ({_OF_CLIENTS}) (brokerset_client_ordered_blocked_seconds) > 300",
        0,
        "A key of {{ $labels.subject }} has been blocked in {{ $labels.consumer_group }} for"
        " {{ $value | humanize }} s",
        "The handler of its next message fails again and again. Messages of this key, and of those that share"
        " its logical partition, wait behind it; others are handled.",
    ),
    Alert(
        "BrokersetOrderedPermissionLost",
        "critical",
        f"max by ({_OF_CLIENTS}) (brokerset_client_ordered_permission_seconds) == 0",
        2,
        "No member of {{ $labels.consumer_group }} has a permission to consume {{ $labels.subject }}",
        "All members that are scraped have stopped: the controllers do not answer their heartbeats, or refuse"
        " them. Nothing of the subject is handled in this group.",
    ),
)
"""About members of ordered groups, by the pods of applications that export their metrics."""
