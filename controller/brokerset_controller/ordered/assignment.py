"""Who shall own which partition. Sticky: nothing moves but what the counts demand."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from brokerset_controller.ordered.events import Reassigned
from brokerset_controller.ordered.state import ConsumerGroup, Subject


def wanted_owners(
    partitions: Collection[int], members: Collection[str], owners: Mapping[int, str]
) -> dict[int, str]:
    """The owner of each partition: counts differ by one at most, and as few as possible change theirs.

    The same for the same arguments, on every controller.
    """
    if not members:
        return {}
    owned: dict[str, list[int]] = {member: [] for member in sorted(members)}
    for partition in sorted(partitions):
        if (owner := owners.get(partition)) in owned:
            owned[owner].append(partition)
    base, extra = divmod(len(partitions), len(owned))
    # Who owns most keeps one more than others, if there are some over.
    ranked = sorted(owned, key=lambda member: (-len(owned[member]), member))
    quota = {member: base + (rank < extra) for rank, member in enumerate(ranked)}
    wanted = {partition: member for member, kept in owned.items() for partition in kept[: quota[member]]}
    free = [partition for partition in sorted(partitions) if partition not in wanted]
    for member in sorted(owned):
        missing = quota[member] - min(len(owned[member]), quota[member])
        wanted |= dict.fromkeys(free[:missing], member)
        free = free[missing:]
    return wanted


def plan(subject: Subject, group: ConsumerGroup) -> Reassigned | None:
    """What has to be revoked and granted now; None if nothing has to.

    What is being revoked is not counted as its owner's: it goes where it is wanted once it is released.
    Drained partitions have next to no work left, so they count apart from the others.
    """
    if group.is_shared:
        return None
    assignable = subject.assignable(group)
    owners = {partition: each.session for partition, each in group.ownerships.items() if not each.revoked}
    wanted = wanted_owners(assignable - group.drained, group.members, owners)
    wanted |= wanted_owners(assignable & group.drained, group.members, owners)
    revoked = frozenset(
        partition
        for partition, each in group.ownerships.items()
        if not each.revoked and wanted.get(partition) != each.session
    )
    granted = {
        partition: session for partition, session in wanted.items() if partition not in group.ownerships
    }
    if not revoked and not granted:
        return None
    return Reassigned(subject.name, group.name, group.version, revoked, granted)
