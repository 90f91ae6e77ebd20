"""What a new assignment means for the partitions that run."""

from __future__ import annotations

from random import Random

from brokerset_client.ordered.consuming.assignment import AssignmentVersion, plan_changes
from brokerset_protocol.bodies.ordered import AssignedPartition, AssignmentBody
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy


def assigned(generation: int, version: int, *partitions: AssignedPartition) -> AssignmentBody:
    return AssignmentBody(generation, version, OrderStrategy.STRICT, ConsumeStrategy.EXCLUSIVE, partitions)


def part(
    number: int, epoch: int, *, revoked: bool = False, sealed_end: int | None = None
) -> AssignedPartition:
    return AssignedPartition(number, epoch, revoked, "broker-a", number, 0, 1024, sealed_end)


def test_only_the_difference_is_stopped_or_started() -> None:
    """A partition that stays runs on; one is revoked, one is gone, one is new (statement 45)."""
    changes = plan_changes(
        AssignmentVersion(1, 7),
        {1: 10, 2: 11, 3: 12},
        assigned(1, 8, part(1, 10, sealed_end=5), part(2, 11, revoked=True), part(4, 13)),
    )

    assert changes is not None
    assert changes.version == (1, 8)
    assert [each.partition_id for each in changes.kept] == [1]
    assert [each.partition_id for each in changes.revoked] == [2]
    assert changes.gone == (3,)
    assert [each.partition_id for each in changes.started] == [4]
    assert changes.never_started == ()


def test_another_epoch_is_another_ownership() -> None:
    """Who lost a partition and got it back stops the old ownership, and starts the new one."""
    changes = plan_changes(AssignmentVersion(1, 7), {1: 10}, assigned(1, 9, part(1, 12)))

    assert changes is not None
    assert changes.gone == (1,)
    assert changes.started == (part(1, 12),)
    assert changes.kept == ()


def test_what_was_revoked_before_it_ran_never_starts() -> None:
    """A grant that is revoked before it was received is released at once."""
    changes = plan_changes(None, {}, assigned(1, 2, part(1, 10, revoked=True)))

    assert changes is not None
    assert changes.never_started == (part(1, 10, revoked=True),)
    assert changes.started == ()


def test_an_older_assignment_changes_nothing_after_any_number_of_updates() -> None:
    """Whatever order assignments arrive in, those below the highest that was taken are ignored
    (statement 18)."""
    dice = Random(18)
    versions = [(generation, version) for generation in (1, 2, 3) for version in range(10)]
    known: AssignmentVersion | None = None

    for generation, version in [dice.choice(versions) for _ in range(500)]:
        changes = plan_changes(known, {1: 10}, assigned(generation, version))
        if known is not None and (generation, version) < known:
            assert changes is None
        else:
            assert changes is not None
            known = changes.version

    assert known == (3, 9)


def test_a_newer_generation_counts_more_than_any_version() -> None:
    """Versions of groups are compared within a generation only (statement 18)."""
    assert plan_changes(AssignmentVersion(1, 900), {}, assigned(2, 1)) is not None
    assert plan_changes(AssignmentVersion(2, 1), {}, assigned(1, 900)) is None
