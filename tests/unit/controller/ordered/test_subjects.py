"""Subjects: creation, scaling, membership, permissions, and what each refusal says."""

from __future__ import annotations

import random

import pytest

from brokerset_controller.ordered.apply import GuardFailed, apply
from brokerset_controller.ordered.assignment import plan
from brokerset_controller.ordered.events import (
    Drained,
    Event,
    GenerationPrepared,
    GroupRemoved,
    MemberJoined,
    MemberLeft,
    PartitionRetired,
    PartitionSealed,
    Reassigned,
    Released,
    RetriesFinished,
    SubjectCreated,
    SubjectDeleted,
)
from brokerset_controller.ordered.membership import assignment_of, decide_joining
from brokerset_controller.ordered.permissions import Permissions
from brokerset_controller.ordered.scaling import (
    SubjectRefused,
    decide_creation,
    decide_scaling,
    default_route,
    retirable,
)
from brokerset_controller.ordered.state import Subject, Tombstone
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy, PartitionStatus

WRITABLE = {"orders-0": 4, "orders-1": 0, "orders-2": 2}
STRICT, BEST_TRIED = OrderStrategy.STRICT, OrderStrategy.BEST_TRIED
EXCLUSIVE, SHARED = ConsumeStrategy.EXCLUSIVE, ConsumeStrategy.SHARED
SOURCE = random.Random(1)


def after(subject: Subject | None, *events: Event | None) -> Subject:
    for event in events:
        assert event is not None, "nothing was decided"
        entry = apply(subject, event)
        assert isinstance(entry, Subject), "it was deleted"
        subject = entry
    assert subject is not None, "nothing happened"
    return subject


def created(partitions: int = 2, order: OrderStrategy = STRICT) -> Subject:
    return after(None, SubjectCreated("orders", order, ("orders-0", "orders-1"), partitions))


def consumed(*sessions: str, partitions: int = 2, order: OrderStrategy = STRICT) -> Subject:
    """Members of the group `g` own all partitions."""
    subject = created(partitions, order)
    for session in sessions:
        subject = after(subject, MemberJoined("orders", "g", EXCLUSIVE, session, "client", 30_000))
    return after(subject, plan(subject, subject.groups["g"]))


def scaled(subject: Subject, partitions: int) -> Subject:
    return after(subject, decide_scaling(subject, "orders", partitions, (), WRITABLE))


def sealed(subject: Subject, partitions: int) -> Subject:
    """Scaled, and all partitions of before end at 10."""
    subject = scaled(subject, partitions)
    sealing = [
        number for number, each in subject.partitions.items() if each.status is PartitionStatus.SEALING
    ]
    return after(subject, *(PartitionSealed("orders", number, 10, 1) for number in sealing))


def drained_by_owners(subject: Subject, *numbers: int) -> Subject:
    ownerships = subject.groups["g"].ownerships
    return after(
        subject, *(Drained("orders", "g", number, ownerships[number].epoch, 10) for number in numbers)
    )


def assigned(subject: Subject, group: str, session: str) -> list[tuple[int, int, bool]]:
    """Partition, epoch, and whether only copies for retry are consumed."""
    found = assignment_of(subject, subject.groups[group], session).partitions
    return [(each.partition.partition_id, each.epoch, each.retries_only) for each in found]


def statuses(subject: Subject) -> dict[int, str]:
    return {number: each.status.value for number, each in subject.partitions.items()}


def owners(subject: Subject) -> dict[int, str]:
    return {number: each.session for number, each in subject.groups["g"].ownerships.items()}


# Creation.


def test_a_subject_without_a_route_gets_two_groups_and_one_partition_on_each() -> None:
    """Exactly so many although there are more (statement 6)."""
    event = decide_creation(None, "orders", STRICT, None, (), WRITABLE, SOURCE)

    assert event == SubjectCreated("orders", STRICT, ("orders-1", "orders-2"), 2)
    assert default_route({"only": 3}, SOURCE) == ("only",)


def test_the_route_of_a_subject_stays_when_there_are_more_groups() -> None:
    """Whatever was added since (statement 5)."""
    subject = after(created(), decide_scaling(created(), "orders", 3, (), {**WRITABLE, "orders-9": 0}))

    assert {each.broker_group for each in subject.partitions.values()} == {"orders-0", "orders-1"}


def test_of_two_that_create_one_subject_the_second_finds_it() -> None:
    """Its event is superseded, and deciding again changes nothing (statement 8)."""
    event = decide_creation(None, "orders", STRICT, 2, (), WRITABLE, SOURCE)
    subject = after(None, event)

    assert event is not None
    with pytest.raises(GuardFailed):
        apply(subject, event)
    assert decide_creation(subject, "orders", STRICT, None, (), WRITABLE, SOURCE) is None


@pytest.mark.parametrize("name", ["", "a" * 101, "a%b", "a#b", "a/b", "a\rb", "a\nb", "bestellung-ü"])
def test_names_that_are_none_are_refused(name: str) -> None:
    """By what RocketMQ and retry topics allow (statement 9)."""
    with pytest.raises(SubjectRefused):
        decide_creation(None, name, STRICT, None, (), WRITABLE, SOURCE)


@pytest.mark.parametrize(
    ("order", "partitions", "route", "text"),
    [
        (STRICT, 0, (), "1 to 1024"),
        (STRICT, 1_025, (), "1 to 1024"),
        (STRICT, 2, ("nowhere",), "take no sends"),
        (STRICT, 2, ("orders-0", "orders-0"), "twice"),
        (BEST_TRIED, None, (), "cannot be changed"),
        (STRICT, 3, (), "scale it"),
    ],
)
def test_a_creation_that_cannot_be_says_why(
    order: OrderStrategy, partitions: int | None, route: tuple[str, ...], text: str
) -> None:
    with pytest.raises(SubjectRefused, match=text):
        decide_creation(created(), "orders", order, partitions, route, WRITABLE, SOURCE)


@pytest.mark.parametrize(("partitions", "route"), [(0, ("orders-0",)), (2_000, ("orders-0",)), (2, ())])
def test_an_event_that_no_controller_should_have_written_changes_nothing(
    partitions: int, route: tuple[str, ...]
) -> None:
    """What is committed must not end those that apply it."""
    with pytest.raises(GuardFailed):
        apply(None, SubjectCreated("orders", STRICT, route, partitions))
    with pytest.raises(GuardFailed):
        apply(created(), GenerationPrepared("orders", 0, partitions, route))


# Scaling.


def test_keyed_sends_wait_only_where_the_old_partition_is_not_sealed() -> None:
    """A broker that is down delays its own keys, and no others."""
    subject = scaled(created(2), 4)
    assert statuses(subject) == {0: "Sealing", 1: "Sealing", **dict.fromkeys(range(2, 6), "Prepared")}

    subject = after(subject, PartitionSealed("orders", 0, 70, 1))

    assert statuses(subject) == {
        0: "Sealed",
        1: "Sealing",
        2: "Open",
        3: "Open",
        4: "Prepared",
        5: "Prepared",
    }
    first, last = subject.writable(0), subject.writable(1_023)
    assert first is not None
    assert last is not None
    assert (first.partition_id, last.partition_id) == (2, 1)


def test_a_partition_that_takes_keys_from_two_waits_for_both() -> None:
    subject = scaled(created(2), 3)
    middle = subject.partitions[3]
    assert middle.inherits == {0, 1}

    subject = after(subject, PartitionSealed("orders", 0, 70, 1))
    assert subject.partitions[3].status is PartitionStatus.PREPARED
    assert subject.writable(middle.keys[0]) is None

    subject = after(subject, PartitionSealed("orders", 1, 80, 1))
    assert not subject.is_scaling


def test_queues_and_ids_are_never_given_twice() -> None:
    subject = created(2)
    for count in (4, 3, 8):
        subject = scaled(subject, count)
        for number, each in list(subject.partitions.items()):
            if each.status is PartitionStatus.SEALING:
                subject = after(subject, PartitionSealed("orders", number, 1, 1))
        for event in retirable(subject):
            subject = after(subject, event)
    places = [(each.broker_group, each.queue_id) for each in subject.partitions.values()]

    assert sorted(subject.partitions) == list(range(9, 17))
    assert len(set(places)) == 8
    assert min(queue for _, queue in places) >= 4


def test_a_second_scaling_waits_for_the_first() -> None:
    with pytest.raises(SubjectRefused, match="orders-0, orders-1 have not yet closed"):
        scaled(scaled(created(), 4), 8)


def test_a_scaling_to_what_is_there_changes_nothing() -> None:
    assert decide_scaling(created(), "orders", 2, (), WRITABLE) is None
    with pytest.raises(SubjectRefused, match="create it"):
        decide_scaling(None, "orders", 2, (), WRITABLE)


def test_a_strict_partition_is_retired_when_all_groups_have_drained_it() -> None:
    """An Exclusive group gets no copies for retry of it."""
    subject = consumed("a")
    subject = after(
        scaled(subject, 1), PartitionSealed("orders", 0, 10, 1), PartitionSealed("orders", 1, 0, 1)
    )
    assert retirable(subject) == []
    with pytest.raises(GuardFailed, match="g have not finished"):
        apply(subject, PartitionRetired("orders", 0))

    subject = after(subject, Drained("orders", "g", 0, 1, 10))

    assert retirable(subject) == [PartitionRetired("orders", 0)]
    assert 0 not in after(subject, PartitionRetired("orders", 0)).partitions


# Groups of consumers.


def test_a_group_keeps_its_strategy() -> None:
    """Neither silently nor for some of its members (statement 21)."""
    subject = consumed("a")

    with pytest.raises(SubjectRefused, match="Exclusive, not as Shared"):
        decide_joining(subject, "orders", "g", SHARED, "b", "client", 30_000)
    with pytest.raises(GuardFailed, match="Exclusive"):
        apply(subject, MemberJoined("orders", "g", SHARED, "b", "client", 30_000))


def test_two_processes_with_one_client_id_share_no_partition() -> None:
    """A session is a member, not a client id (statement 22)."""
    subject = consumed("first start", "second start")

    assert sorted(owners(subject).values()) == ["first start", "second start"]


def test_a_consumer_creates_no_subject() -> None:
    """It is refused (statement 7)."""
    with pytest.raises(SubjectRefused, match="no ordered subject"):
        decide_joining(None, "orders", "g", EXCLUSIVE, "a", "client", 30_000)


def test_what_another_member_shall_have_is_revoked_and_granted_when_it_is_released() -> None:
    subject = consumed("a")
    subject = after(subject, MemberJoined("orders", "g", EXCLUSIVE, "b", "client", 30_000))
    revoking = plan(subject, subject.groups["g"])
    assert revoking == Reassigned("orders", "g", subject.groups["g"].version, frozenset({1}), {})
    subject = after(subject, revoking)
    assert owners(subject) == {0: "a", 1: "a"}
    assert plan(subject, subject.groups["g"]) is None
    assert [each.revoked for each in assignment_of(subject, subject.groups["g"], "a").partitions] == [
        False,
        True,
    ]

    subject = after(subject, Released("orders", "g", 1, 2))
    subject = after(subject, plan(subject, subject.groups["g"]))

    assert owners(subject) == {0: "a", 1: "b"}
    assert subject.groups["g"].ownerships[1].epoch == 3


@pytest.mark.parametrize(
    ("partition", "session"), [(0, "b"), (7, "b"), (1, "stranger")], ids=["owned", "unknown", "no member"]
)
def test_only_members_are_granted_and_only_what_nobody_owns(partition: int, session: str) -> None:
    subject = after(consumed("a"), Released("orders", "g", 1, 2))
    subject = after(subject, MemberJoined("orders", "g", EXCLUSIVE, "b", "client", 30_000))
    version = subject.groups["g"].version

    with pytest.raises(GuardFailed, match=f"partition {partition} cannot be given to {session}"):
        apply(subject, Reassigned("orders", "g", version, frozenset(), {partition: session}))


def test_a_release_of_an_older_grant_changes_nothing() -> None:
    subject = consumed("a")
    subject = after(subject, MemberLeft("orders", "g", "a"))
    subject = after(subject, MemberJoined("orders", "g", EXCLUSIVE, "b", "client", 30_000))
    subject = after(subject, plan(subject, subject.groups["g"]))

    with pytest.raises(GuardFailed, match="not owned by epoch 1"):
        apply(subject, Released("orders", "g", 0, 1))


def test_of_two_plans_for_one_version_one_is_applied() -> None:
    """The other changes nothing (statement 13)."""
    subject = consumed("a")
    subject = after(subject, MemberJoined("orders", "g", EXCLUSIVE, "b", "client", 30_000))
    event = plan(subject, subject.groups["g"])
    assert event is not None
    once = after(subject, event)

    with pytest.raises(GuardFailed, match="another one already"):
        apply(once, event)


def test_a_new_partition_waits_until_the_group_has_handled_what_it_inherits() -> None:
    subject = consumed("a")
    subject = after(
        scaled(subject, 4), PartitionSealed("orders", 0, 10, 1), PartitionSealed("orders", 1, 7, 1)
    )
    assert plan(subject, subject.groups["g"]) is None
    with pytest.raises(GuardFailed, match="not drained at 9"):
        apply(subject, Drained("orders", "g", 0, 1, 9))

    subject = after(subject, Drained("orders", "g", 0, 1, 10))
    subject = after(subject, plan(subject, subject.groups["g"]))

    assert owners(subject) == {1: "a", 2: "a", 3: "a"}


def test_shared_groups_have_all_partitions_and_no_owners() -> None:
    subject = after(created(), MemberJoined("orders", "s", SHARED, "a", "client", 30_000))
    subject = after(subject, MemberJoined("orders", "s", SHARED, "b", "client", 30_000))

    assert plan(subject, subject.groups["s"]) is None
    for session in ("a", "b"):
        assert assigned(subject, "s", session) == [(0, 1, False), (1, 1, False)]
    assert assigned(subject, "s", "stranger") == []


@pytest.mark.parametrize("again", [EXCLUSIVE, SHARED])
def test_a_shared_group_that_comes_again_is_given_no_epoch_of_before(again: ConsumeStrategy) -> None:
    """Of whatever strategy it is then: brokers refuse what is older, and an epoch of the other strategy."""
    subject = after(created(1), MemberJoined("orders", "s", SHARED, "a", "client", 30_000))
    subject = after(subject, MemberLeft("orders", "s", "a"), GroupRemoved("orders", "s"))

    subject = after(subject, MemberJoined("orders", "s", again, "a", "client", 30_000))
    if again is EXCLUSIVE:
        subject = after(subject, plan(subject, subject.groups["s"]))

    assert assigned(subject, "s", "a") == [(0, 2, False)]


def test_a_shared_group_drains_and_goes_on_with_what_inherits() -> None:
    """Without owners: any member says so, by the group's epoch; of what the group consumes now, and once."""
    subject = sealed(after(created(), MemberJoined("orders", "s", SHARED, "a", "client", 30_000)), 4)
    for wrong, text in (
        (Drained("orders", "s", 0, 1, 9), "not drained at 9"),
        (Drained("orders", "s", 2, 1, 10), "does not consume partition 2 by 1"),
        (Drained("orders", "s", 0, 0, 10), "does not consume partition 0 by 0"),
        (Drained("orders", "s", 0, 2, 10), "does not consume partition 0 by 2"),
    ):
        with pytest.raises(GuardFailed, match=text):
            apply(subject, wrong)

    subject = after(subject, Drained("orders", "s", 0, 1, 10))

    assert assigned(subject, "s", "a") == [(0, 1, True), (1, 1, False), (2, 1, False), (3, 1, False)]
    with pytest.raises(GuardFailed, match="drained partition 0 already"):
        apply(subject, Drained("orders", "s", 0, 1, 10))


# Copies for retry.


def test_a_best_tried_partition_stays_with_its_owner_until_no_copies_for_retry_can_come() -> None:
    """By the same epoch; what inherits does not wait for them."""
    subject = drained_by_owners(sealed(consumed("a", order=BEST_TRIED), 1), 0, 1)
    subject = after(subject, plan(subject, subject.groups["g"]))
    assert assigned(subject, "g", "a") == [(0, 1, True), (1, 2, True), (2, 3, False)]
    assert retirable(subject) == []
    with pytest.raises(GuardFailed, match="drained partition 0 already"):
        apply(subject, Drained("orders", "g", 0, 1, 10))
    with pytest.raises(GuardFailed, match="not owned by epoch 2"):
        apply(subject, RetriesFinished("orders", "g", 0, 2))
    with pytest.raises(GuardFailed, match="not drained partition 2"):
        apply(subject, RetriesFinished("orders", "g", 2, 3))
    before = subject.groups["g"].version

    subject = after(subject, RetriesFinished("orders", "g", 0, 1))

    assert assigned(subject, "g", "a") == [(1, 2, True), (2, 3, False)]
    assert subject.groups["g"].version == before + 1
    assert plan(subject, subject.groups["g"]) is None
    assert retirable(subject) == [PartitionRetired("orders", 0)]
    with pytest.raises(GuardFailed, match="g have not finished"):
        apply(subject, PartitionRetired("orders", 1))


def test_a_shared_group_finishes_copies_for_retry_by_its_epoch() -> None:
    """Under Strict as well: nothing is in order there, so what is not handled comes again as a copy."""
    subject = sealed(after(created(1), MemberJoined("orders", "s", SHARED, "a", "client", 30_000)), 2)
    for early in (RetriesFinished("orders", "s", 0, 1), RetriesFinished("orders", "s", 1, 1)):
        with pytest.raises(GuardFailed):
            apply(subject, early)
    subject = after(subject, Drained("orders", "s", 0, 1, 10))
    with pytest.raises(GuardFailed, match="does not consume partition 0 by 0"):
        apply(subject, RetriesFinished("orders", "s", 0, 0))

    subject = after(subject, RetriesFinished("orders", "s", 0, 1))

    assert assigned(subject, "s", "a") == [(1, 1, False), (2, 1, False)]
    assert retirable(subject) == [PartitionRetired("orders", 0)]
    with pytest.raises(GuardFailed, match="does not consume partition 0 by 1"):
        apply(subject, RetriesFinished("orders", "s", 0, 1))


def test_partitions_with_copies_for_retry_count_apart_from_others() -> None:
    """Both kinds are spread evenly: who drains more than others gets new partitions like all."""
    subject = sealed(consumed("a", "b", partitions=6, order=BEST_TRIED), 12)
    assert owners(subject) == {0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 5: "b"}

    subject = drained_by_owners(subject, 0, 1, 2)
    subject = after(subject, plan(subject, subject.groups["g"]))

    ownerships = subject.groups["g"].ownerships
    assert [number for number, each in ownerships.items() if each.revoked] == [2]
    full = [each.session for number, each in ownerships.items() if number not in (0, 1, 2)]
    assert sorted(full.count(session) for session in ("a", "b")) == [4, 5]

    subject = after(subject, Released("orders", "g", 2, ownerships[2].epoch))
    subject = after(subject, plan(subject, subject.groups["g"]))
    assert [owners(subject)[number] for number in (0, 1, 2)] == ["a", "a", "b"]


def test_copies_for_retry_go_to_another_member_when_their_owner_leaves() -> None:
    """By a higher epoch; the group has drained the partition still."""
    subject = drained_by_owners(sealed(consumed("a", partitions=1, order=BEST_TRIED), 2), 0)
    subject = after(
        subject,
        MemberLeft("orders", "g", "a"),
        MemberJoined("orders", "g", EXCLUSIVE, "b", "client", 30_000),
    )

    subject = after(subject, plan(subject, subject.groups["g"]))

    assert assigned(subject, "g", "b") == [(0, 2, True), (1, 3, False), (2, 4, False)]


def test_who_asks_for_a_subject_that_is_there_needs_no_broker_group_that_takes_sends() -> None:
    """Also while it is being scaled it has the number of partitions that it was scaled to."""
    subject = scaled(created(), 4)

    assert decide_creation(subject, "orders", STRICT, 4, (), {}, SOURCE) is None


def test_a_group_goes_when_nobody_is_in_it() -> None:
    subject = consumed("a")
    for event in (GroupRemoved("orders", "g"), SubjectDeleted("orders")):
        with pytest.raises(GuardFailed):
            apply(subject, event)

    subject = after(subject, MemberLeft("orders", "g", "a"))

    assert not after(subject, GroupRemoved("orders", "g")).groups
    assert isinstance(apply(subject, SubjectDeleted("orders")), Tombstone)


def test_a_group_that_comes_again_is_given_no_epoch_of_before() -> None:
    """Brokers refuse what is older than the highest one that they have seen of a group."""
    subject = after(consumed("a"), MemberLeft("orders", "g", "a"), GroupRemoved("orders", "g"))

    subject = after(subject, MemberJoined("orders", "g", EXCLUSIVE, "b", "client", 30_000))
    subject = after(subject, plan(subject, subject.groups["g"]))

    assert sorted(each.epoch for each in subject.groups["g"].ownerships.values()) == [3, 4]


# Permissions.


def test_a_member_leaves_when_its_permission_is_surely_over() -> None:
    """Also one of before this controller led: its predecessor may have given it one until then."""
    permissions, a, b = Permissions(5.0), ("orders", "g", "a"), ("orders", "g", "b")
    for key in (a, b):
        permissions.expect(key, 30.0, 100.0)
    permissions.give(a, 30.0, 110.0)

    assert permissions.ended(134.9) == []
    assert permissions.ended(135.0) == [b]
    assert not permissions.has_ended(a, 144.9)
    assert permissions.ended(145.0) == [a]
    assert permissions.ended(145.0) == []
    permissions.give(b, 30.0, 150.0)
    assert permissions.ended(185.0) == [b]


def test_an_expectation_never_shortens_a_permission() -> None:
    permissions, key = Permissions(5.0), ("orders", "g", "a")
    permissions.give(key, 60.0, 0.0)
    permissions.expect(key, 1.0, 1.0)

    assert not permissions.has_ended(key, 64.9)
    assert permissions.answered_at(key) == 0.0


def test_members_that_come_and_go_leave_nothing_behind() -> None:
    """The heap of permissions stays bounded by the members that there are."""
    permissions = Permissions(5.0)
    for number in range(10_000):
        key = ("orders", "g", str(number))
        permissions.expect(key, 30.0, number / 1_000)
        permissions.forget(key)

    assert len(permissions) == 0
    assert permissions.queued <= 2_048


@pytest.mark.parametrize(("member_rate", "controller_rate"), [(0.9, 1.0), (1.0, 1.1)])
def test_a_permission_is_over_before_another_is_given_while_clocks_differ_by_a_tenth(
    member_rate: float, controller_rate: float
) -> None:
    """30 s at 10 % are 3 s, and the controller waits 5 s more (statement 82)."""
    permissions, key = Permissions(5.0), ("orders", "g", "a")
    permissions.give(key, 30.0, 0.0)

    member_stops = 30.0 / member_rate
    assert not permissions.has_ended(key, member_stops * controller_rate)
    assert permissions.has_ended(key, 35.0)
