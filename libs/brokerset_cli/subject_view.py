"""What `brokerset subject` shows, from what controllers and brokers say about a subject. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_client.subject_facts import open_partitions
from brokerset_protocol.bodies.ordered import (
    ConsumerGroupState,
    OwnershipState,
    PartitionState,
    SubjectState,
)
from brokerset_protocol.subject_words import ConsumeStrategy, PartitionStatus

QueueKey = tuple[str, int]
"""Broker group and number of a queue."""

SESSION_SHOWN: Final = 12
"""Characters of a session that people are shown; scripts get all."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the brokers say about the queues of a subject; empty when none answers."""

    ends: Mapping[QueueKey, int] = field(default_factory=dict)
    """The queue offset behind the last message of each queue."""

    positions: Mapping[str, Mapping[QueueKey, int]] = field(default_factory=dict)
    """By group of consumers: the queue offset behind the last message that is acknowledged."""

    def end(self, partition: PartitionState) -> int | None:
        """The queue offset behind the last message of a partition; None when it is not known."""
        if partition.sealed_end is not None:
            return partition.sealed_end
        return self.ends.get((partition.broker_group, partition.queue_id))

    def lag(self, group: ConsumerGroupState, partition: PartitionState) -> int | None:
        """Messages of a partition that a group has not acknowledged; None when it is not known.

        All of them, for a group that no broker has a position of.
        """
        if partition.partition_id in group.drained:
            return 0
        end = self.end(partition)
        positions = self.positions.get(group.name)
        if end is None or positions is None:
            return None
        return max(0, end - positions.get((partition.broker_group, partition.queue_id), 0))


def subject_json(state: SubjectState, progress: Progress | None = None) -> dict[str, Any]:
    """A subject for scripts, as the controllers say it, with ends and lags that brokers add."""
    found: dict[str, Any] = json.loads(state.to_json())
    if progress is None:
        return found
    for partition, shown in zip(state.partitions, found["partitions"], strict=True):
        shown["maxOffset"] = progress.end(partition)
    for group, shown in zip(state.groups, found["groups"], strict=True):
        shown["lag"] = {
            str(partition.partition_id): progress.lag(group, partition) for partition in state.partitions
        }
    return found


def headline(state: SubjectState) -> str:
    """The first line about a subject."""
    number, of = open_partitions(state)
    where = ", ".join(state.route)
    return (
        f"Subject {state.name}: {state.order_strategy.value}, generation {state.generation}, "
        f"{number} of {of} partitions open, on {where}"
    )


def partition_rows(state: SubjectState, progress: Progress) -> list[dict[str, object]]:
    """The partitions, newest generation first, each with the lag of every group."""
    ordered = sorted(state.partitions, key=lambda each: (-each.generation, each.first, each.partition_id))
    return [
        {
            "partition": each.partition_id,
            "logical": f"{each.first}-{each.end - 1}",
            "broker": each.broker_group,
            "queue": each.queue_id,
            "status": each.status.value,
            "inherits": ", ".join(map(str, each.inherits)) or None,
            "next": progress.end(each),
            **{f"lag of {group.name}": progress.lag(group, each) for group in state.groups},
        }
        for each in ordered
    ]


def owner_rows(group: ConsumerGroupState, state: SubjectState, progress: Progress) -> list[dict[str, object]]:
    """Who owns each partition for a group, and what nobody owns; without what the group has finished."""
    members = {member.session: member for member in group.members}
    owned = {each.partition_id: each for each in group.ownerships}
    rows: list[dict[str, object]] = []
    for partition in sorted(state.partitions, key=lambda each: each.partition_id):
        if partition.partition_id in group.finished:
            continue
        owner = owned.get(partition.partition_id)
        member = members.get(owner.session) if owner is not None else None
        rows.append(
            {
                "partition": partition.partition_id,
                "owner": member.client_id if member is not None else None,
                "session": shortened(owner.session) if owner is not None else None,
                "epoch": owner.epoch if owner is not None else group.epoch or None,
                "heard": heard(member.heard_ms_ago) if member is not None else None,
                "state": _consumed(group, state, partition, owner),
                "lag": progress.lag(group, partition),
            }
        )
    return rows


def member_rows(state: SubjectState) -> list[dict[str, object]]:
    """The members of all groups, and what each owns."""
    return [
        {
            "group": group.name,
            "strategy": group.strategy.value,
            "client id": member.client_id,
            "session": shortened(member.session),
            "heard": heard(member.heard_ms_ago),
            "partitions": _owned(group, member.session) or "none",
        }
        for group in state.groups
        for member in group.members
    ]


def heard(milliseconds: int | None) -> str | None:
    """Since when a member was heard; its permission counts from then at the earliest."""
    return f"{milliseconds / 1000:.1f} s ago" if milliseconds is not None else None


def shortened(session: str) -> str:
    """The beginning of a session, enough to tell those of one group apart."""
    return session if len(session) <= SESSION_SHOWN else f"{session[:SESSION_SHOWN]}…"


def _consumed(
    group: ConsumerGroupState, state: SubjectState, partition: PartitionState, owner: OwnershipState | None
) -> str:
    only = ", copies for retry only" if partition.partition_id in group.drained else ""
    if group.strategy is ConsumeStrategy.SHARED:
        some = group.members and not _waits(group, state, partition)
        return f"all members consume it{only}" if some else "nobody consumes it"
    if owner is None:
        return "nobody owns it"
    return "is giving it up" if owner.revoked else f"owns it{only}"


def _waits(group: ConsumerGroupState, state: SubjectState, partition: PartitionState) -> bool:
    """Whether it is not open yet, or the group has not drained all that it inherits from."""
    ancestors = {each.partition_id for each in state.partitions}.intersection(partition.inherits)
    return partition.status is PartitionStatus.PREPARED or not ancestors.issubset(group.drained)


def _owned(group: ConsumerGroupState, session: str) -> str:
    if group.strategy is ConsumeStrategy.SHARED:
        return "all"
    return ", ".join(
        f"{each.partition_id}{_note(each, group)}"
        for each in sorted(group.ownerships, key=lambda each: each.partition_id)
        if each.session == session
    )


def _note(ownership: OwnershipState, group: ConsumerGroupState) -> str:
    if ownership.revoked:
        return " (giving up)"
    return " (copies for retry)" if ownership.partition_id in group.drained else ""
