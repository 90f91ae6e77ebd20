"""Times in the life of ordered subjects, as in `alert_times`, and which alerts they set off."""

from __future__ import annotations

from .alert_times import FOLLOWER, LEADER, MASTER, SAMPLES, Time, Values, later, rising, steady


def fenced(request: str) -> str:
    """The series of requests of a kind that were refused because of a fence."""
    return f'brokerset_broker_ordered_requests_fenced_total{{{MASTER},request="{request}"}}'


def refused(reason: str) -> str:
    """The series of sends that were refused for a reason."""
    return f'brokerset_broker_ordered_sends_refused_total{{{MASTER},reason="{reason}"}}'


def lost(sign: str) -> str:
    """The series of signs of a kind that confirmed messages are lost."""
    return f'brokerset_broker_ordered_losses_total{{{MASTER},sign="{sign}"}}'


def counter(name: str, pod: str = LEADER) -> str:
    """The series of a controller's counter about subjects."""
    return f"brokerset_controller_subject_{name}_total{{{pod}}}"


def burst(minute: int, size: float) -> Values:
    """A counter that grows once."""
    return f"0+0x{minute} {size:g}+0x{SAMPLES}"


SEALING = f"brokerset_controller_subject_sealing_seconds{{{LEADER}}}"
START = f"process_start_time_seconds{{{MASTER}}}"
RUNS_FOR_LONG = -86400.0
"""A start a day before the first sample."""

MEMBERS = f"brokerset_controller_subject_members{{{LEADER}}}"

OF_CONSUMER = 'namespace="shop",pod="billing-0",subject="orders",consumer_group="billing"'
BLOCKED = f"brokerset_client_ordered_blocked_seconds{{{OF_CONSUMER}}}"
PERMISSION = f"brokerset_client_ordered_permission_seconds{{{OF_CONSUMER}}}"
OTHER_PERMISSION = PERMISSION.replace("billing-0", "billing-1")

ORDERED_HEALTHY: dict[str, Values] = {
    SEALING: steady(0),
    MEMBERS: steady(4),
    BLOCKED: steady(0),
    PERMISSION: steady(25),
    OTHER_PERMISSION: steady(25),
    counter("pushes_failed"): steady(7),
    counter("permissions_refused"): steady(3),
    counter("permissions_refused", FOLLOWER): steady(3),
    counter("departures"): steady(20),
    **{fenced(request): steady(2) for request in ("ack", "claim", "plain pull", "pull", "send back")},
    **{lost(sign): steady(0) for sign in ("position", "producer", "producers")},
    **{refused(reason): steady(2) for reason in ("fenced", "full", "gap", "illegal", "sealed", "unknown")},
}
"""All is well, and something was refused once."""

ORDERED_TIMES = (
    Time("BrokersetOrderedPartitionSealing", 1, 4, {SEALING: rising(30, 60)}),
    # Each of two scalings takes half a minute, as long as a failover.
    Time("", None, 30, {SEALING: "0 0 30 0 0 0 30 " + steady(0)}),
    Time("BrokersetOrderedPushesFailing", 8, 14, {counter("pushes_failed"): rising(0, 12)}),
    # A failover: a minute in which the master does not answer.
    Time("", None, 12, {counter("pushes_failed"): burst(2, 60)}),
    Time("BrokersetOrderedPermissionsRefused", 8, 14, {counter("permissions_refused"): rising(0, 6)}),
    # A new leader is found by thousands of consumers within a minute.
    Time("", None, 12, {counter("permissions_refused"): burst(2, 5000)}),
    # A consumer that knows only a controller that does not lead: it is not the controllers that refuse it.
    Time("", None, 30, {counter("permissions_refused", FOLLOWER): rising(0, 60)}),
    Time("BrokersetOrderedMembersUnstable", 3, 15, {counter("departures"): rising(0, 2)}),
    # A new version of the consumers: each of four leaves once, and twice if it goes wrong.
    Time("", None, 15, {counter("departures"): burst(2, 8)}),
    # All end in order, and nobody is there any more.
    Time("", None, 12, {counter("departures"): burst(2, 4), MEMBERS: f"4+0x2 {steady(0)}"}),
    *(
        Time("BrokersetOrderedMessagesLost", 4, 5, {START: steady(RUNS_FOR_LONG), lost(sign): burst(4, 1)})
        for sign in ("position", "producer", "producers")
    ),
    # A process that has counted a loss before its first scrape, after one that had counted as many.
    Time(
        "BrokersetOrderedMessagesLost",
        4,
        5,
        {START: f"{RUNS_FOR_LONG:g}+0x4 {steady(290)}", lost("producers"): steady(1)},
    ),
    # Such a process in a pod that was not there, or was down for long.
    Time("BrokersetOrderedMessagesLost", 4, 5, {START: later(290, 5), lost("position"): later(1, 5)}),
    # What was lost long ago, or 20 minutes ago.
    Time("", None, 30, {START: steady(RUNS_FOR_LONG), lost("producer"): steady(1)}),
    Time("", None, 25, {START: steady(RUNS_FOR_LONG), lost("producer"): burst(4, 1)}),
    # A restart after a loss: the counter begins at 0.
    Time(
        "", None, 8, {START: f"{RUNS_FOR_LONG:g}+0x4 {steady(290)}", lost("producer"): f"1+0x4 {steady(0)}"}
    ),
    *(
        Time("BrokersetOrderedRequestsFenced", 8, 16, {fenced(request): rising(0, 4)})
        for request in ("ack", "claim", "pull", "send back")
    ),
    # One consumer with hundreds of queues was paused for long, and hears of it.
    Time("", None, 12, {fenced("pull"): burst(2, 400), fenced("ack"): burst(2, 400)}),
    *(
        Time("BrokersetOrderedProducersRefused", 8, 16, {refused(reason): rising(0, 4)})
        for reason in ("fenced", "full", "gap", "unknown")
    ),
    # The process before a restarted producer is fenced once for each partition.
    Time("", None, 12, {refused("fenced"): burst(2, 256)}),
    # A long scaling.
    Time("", None, 30, {refused("sealed"): rising(0, 100)}),
    Time("BrokersetOrderedPlainClients", 8, 16, {fenced("plain pull"): rising(0, 4)}),
    Time("BrokersetOrderedPlainClients", 8, 16, {refused("illegal"): rising(0, 4)}),
    Time("BrokersetOrderedKeyBlocked", 4, 7, {BLOCKED: rising(0, 60)}),
    # A database that was away for three minutes.
    Time("", None, 10, {BLOCKED: "0 0 60 120 180 " + steady(0)}),
    Time("BrokersetOrderedPermissionLost", 1, 4, {PERMISSION: steady(0), OTHER_PERMISSION: steady(0)}),
    # One process of the group was paused, and another one has its partitions.
    Time("", None, 10, {PERMISSION: steady(0)}),
    # A failover of the controllers that takes longer than a permission.
    Time("", None, 10, {each: "25 0 " + steady(25) for each in (PERMISSION, OTHER_PERMISSION)}),
)
