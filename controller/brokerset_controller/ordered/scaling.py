"""Deciding about subjects: what is created and changed, with which partitions, on which broker groups."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

from brokerset_controller.ordered import limits
from brokerset_controller.ordered.events import GenerationPrepared, PartitionRetired, SubjectCreated
from brokerset_controller.ordered.limits import PARTITIONS_KEPT_MAX
from brokerset_controller.ordered.state import Entry, Subject, Tombstone
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus


class SubjectRefused(Exception):
    """What was asked for cannot be: the text says why, and what to do."""


def decide_creation(
    existing: Entry | None,
    name: str,
    order: OrderStrategy,
    partitions: int | None,
    route: tuple[str, ...],
    writable: Mapping[str, int],
    source: random.Random,
    route_groups: int = 2,
) -> SubjectCreated | None:
    """Create a subject; None if it is there, just so. Raises `SubjectRefused`.

    Without a route it gets `route_groups` broker groups, at random among those with the fewest partitions;
    they stay, whatever groups come later. `writable` are the groups that take sends, with their numbers of
    partitions.
    """
    _refuse(limits.subject_problem(name))
    if partitions is not None:
        _refuse(limits.count_problem(partitions))
    if isinstance(existing, Tombstone) and existing.unclean:
        raise SubjectRefused(
            f"the subject {name} is still being deleted on {', '.join(sorted(existing.unclean))}: wait,"
            " and see that their masters are up"
        )
    if not isinstance(existing, Subject):
        route = route or default_route(writable, source, route_groups)
        _check_route(route, writable, existing.next_queue_ids if existing is not None else ())
        return SubjectCreated(name, order, route, len(route) if partitions is None else partitions)
    if route and route != existing.route:
        _check_route(route, writable)
    has = sum(each.generation == existing.generation for each in existing.partitions.values())
    if existing.order is not order:
        raise SubjectRefused(
            f"the subject {name} is {existing.order}: that cannot be changed, for messages of a key from"
            " before and after would be in no order; create another subject"
        )
    if partitions is not None and partitions != has:
        raise SubjectRefused(f"the subject {name} has {has} partitions; scale it instead")
    return None


def decide_scaling(
    subject: Subject | None, name: str, partitions: int, route: tuple[str, ...], writable: Collection[str]
) -> GenerationPrepared | None:
    """Give a subject another number of partitions; None if it has that. Raises `SubjectRefused`.

    Without a route partitions stay on the broker groups of before.
    """
    if subject is None:
        raise SubjectRefused(f"there is no subject {name}; create it first")
    _refuse(limits.count_problem(partitions))
    newest = [each for each in subject.partitions.values() if each.generation == subject.generation]
    if len(newest) == partitions and route in ((), subject.route):
        return None
    if subject.is_scaling:
        waiting = sorted(
            {
                each.broker_group
                for each in subject.partitions.values()
                if each.status is PartitionStatus.SEALING
            }
        )
        raise SubjectRefused(
            f"{name} is being scaled to {len(newest)} partitions already; {', '.join(waiting)} have not yet"
            " closed their old ones. Wait, or see that their masters are up"
        )
    if len(subject.partitions) + partitions > PARTITIONS_KEPT_MAX:
        raise SubjectRefused(
            f"{name} keeps {len(subject.partitions)} partitions, and {partitions} more would be more than"
            f" {PARTITIONS_KEPT_MAX}. Let groups finish sealed ones, or remove groups that nobody uses"
        )
    route = route or subject.route
    _check_route(route, writable, subject.next_queue_ids)
    return GenerationPrepared(name, subject.generation, partitions, route)


def retirable(subject: Subject) -> list[PartitionRetired]:
    """The sealed partitions that every group has finished, and from which nothing waits to inherit."""
    awaited = {
        ancestor
        for each in subject.partitions.values()
        if each.status is PartitionStatus.PREPARED
        for ancestor in each.inherits
    }
    return [
        PartitionRetired(subject.name, number)
        for number, each in subject.partitions.items()
        if each.status is PartitionStatus.SEALED
        and number not in awaited
        and all(number in group.finished for group in subject.groups.values())
    ]


def default_route(writable: Mapping[str, int], source: random.Random, groups: int = 2) -> tuple[str, ...]:
    """So many broker groups, at random among those with the fewest partitions; fewer if there are fewer."""
    ranked = sorted(writable, key=lambda group: (writable[group], source.random()))
    return tuple(sorted(ranked[:groups]))


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise SubjectRefused(problem)


def _check_route(route: tuple[str, ...], writable: Collection[str], ever: Collection[str] = ()) -> None:
    if not route:
        raise SubjectRefused("no broker group takes sends; see `brokerset status`")
    _refuse(limits.route_problem(route, ever))
    unknown = [group for group in route if group not in writable]
    if unknown:
        raise SubjectRefused(
            f"{', '.join(unknown)} take no sends, or are no broker groups; those that do are"
            f" {', '.join(sorted(writable))}"
        )
