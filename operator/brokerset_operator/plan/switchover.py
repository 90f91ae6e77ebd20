"""Who takes over when a master hands over."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from brokerset_operator.model.actions import SwitchOver
from brokerset_operator.plan.facts import Broker, GroupFacts


def able(broker: Broker) -> bool:
    """Return whether a broker can become master at once."""
    return (
        broker.settled
        and not broker.fenced
        and not broker.master
        and broker.replica is not None
        and not broker.replica.stuck
    )


def switch_over(group: GroupFacts, to: Broker, why: str) -> SwitchOver:
    """Let a broker of a group that has a master take over, in the epoch that this was decided on."""
    assert group.state is not None, "its master is known"
    return SwitchOver(group.name, to.broker_id, group.state.master_epoch, why)


def successor(brokers: Iterable[Broker], *, prefer: Callable[[Broker], bool]) -> Broker | None:
    """Return the best of those that can take over: preferred, then with the longest log, then the first."""
    found = [broker for broker in brokers if able(broker)]
    return min(
        found,
        key=lambda b: (
            not prefer(b),
            -(b.replica.max_offset or 0) if b.replica is not None else 0,
            b.ordinal,
        ),
        default=None,
    )
