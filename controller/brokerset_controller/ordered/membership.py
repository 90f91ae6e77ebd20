"""Deciding who belongs to a group of consumers, and what a member is told."""

from __future__ import annotations

from dataclasses import dataclass

from brokerset_controller.ordered import limits
from brokerset_controller.ordered.events import MemberJoined
from brokerset_controller.ordered.limits import MEMBERS_MAX
from brokerset_controller.ordered.scaling import SubjectRefused
from brokerset_controller.ordered.state import ConsumerGroup, Partition, Subject
from brokerset_protocol.subject_words import ConsumeStrategy


@dataclass(frozen=True, slots=True)
class Assigned:
    """A partition that a member consumes."""

    partition: Partition
    epoch: int
    revoked: bool
    """Whether it shall stop, store its acks, and release the partition."""

    retries_only: bool
    """Whether the group has drained it, so that only copies for retry are consumed still."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a member is told: all of it, so that whoever missed one needs no other.

    A member ignores one whose (generation, version) is below that of the last one that it took.
    """

    generation: int
    version: int
    strategy: ConsumeStrategy
    partitions: tuple[Assigned, ...]


def decide_joining(
    subject: Subject | None,
    name: str,
    group: str,
    strategy: ConsumeStrategy,
    session: str,
    client_id: str,
    permission_ms: int,
) -> MemberJoined | None:
    """Let a process consume; None if it does. Raises `SubjectRefused`. No subject is created for it."""
    if subject is None:
        raise SubjectRefused(
            f"there is no ordered subject {name}; producers or `brokerset subject create` make it"
        )
    for problem in (
        limits.consumer_group_problem(group),
        limits.session_problem(session, client_id),
        limits.permission_problem(permission_ms),
    ):
        if problem is not None:
            raise SubjectRefused(problem)
    known = subject.groups.get(group)
    if known is not None:
        if known.strategy is not strategy:
            raise SubjectRefused(
                f"the group {group} consumes {name} as {known.strategy}, not as {strategy}. To change that"
                " stop its members, and remove the group; what it has consumed is kept"
            )
        if session in known.members:
            return None
        if len(known.members) >= MEMBERS_MAX:
            raise SubjectRefused(
                f"the group {group} has {MEMBERS_MAX} members, which is the limit: end some of them"
            )
    return MemberJoined(name, group, strategy, session, client_id, permission_ms)


def assignment_of(subject: Subject, group: ConsumerGroup, session: str) -> Assignment:
    """What a member consumes now; nothing for who is none."""
    return Assignment(
        subject.generation, group.version, group.strategy, tuple(_assigned(subject, group, session))
    )


def _assigned(subject: Subject, group: ConsumerGroup, session: str) -> list[Assigned]:
    if session not in group.members:
        return []
    if group.is_shared:
        consumed = [(number, group.epoch, False) for number in subject.assignable(group)]
    else:
        consumed = [
            (number, each.epoch, each.revoked)
            for number, each in group.ownerships.items()
            if each.session == session
        ]
    return [
        Assigned(subject.partitions[number], epoch, revoked, number in group.drained)
        for number, epoch, revoked in sorted(consumed)
    ]
