"""What people and scripts are shown of a subject."""

from __future__ import annotations

from dataclasses import replace

from brokerset_cli.subject_view import (
    Progress,
    headline,
    member_rows,
    owner_rows,
    partition_rows,
    subject_json,
)
from brokerset_protocol.bodies.ordered import (
    ConsumerGroupState,
    MemberState,
    OwnershipState,
    PartitionState,
    SubjectState,
)
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy, PartitionStatus

SEALED, OPEN, PREPARED = PartitionStatus.SEALED, PartitionStatus.OPEN, PartitionStatus.PREPARED
GROUP = ConsumerGroupState(
    "g",
    ConsumeStrategy.EXCLUSIVE,
    5,
    (MemberState("session-of-one-process", "10.0.0.1@7", 1_234), MemberState("s2", "10.0.0.2@8")),
    (
        OwnershipState(0, "session-of-one-process", 3),
        OwnershipState(2, "session-of-one-process", 4, revoked=True),
    ),
    drained=(1,),
    finished=(1,),
)
SUBJECT = SubjectState(
    "orders",
    OrderStrategy.STRICT,
    ("a", "b"),
    9,
    1,
    (
        PartitionState(0, 0, 0, 512, "a", 0, SEALED, sealed_end=40),
        PartitionState(1, 0, 512, 1024, "b", 0, SEALED, sealed_end=7),
        PartitionState(2, 1, 0, 300, "a", 1, OPEN, inherits=(0,)),
        PartitionState(3, 1, 300, 1024, "b", 1, PREPARED, inherits=(0, 1)),
    ),
    (GROUP,),
)
PROGRESS = Progress({("a", 0): 41, ("b", 0): 7, ("a", 1): 10}, {"g": {("a", 0): 30}})


def test_the_newest_partitions_stand_first_with_what_each_group_has_not_acknowledged() -> None:
    rows = partition_rows(SUBJECT, PROGRESS)

    assert [(row["partition"], row["logical"], row["status"], row["inherits"]) for row in rows] == [
        (2, "0-299", "Open", "0"),
        (3, "300-1023", "Prepared", "0, 1"),
        (0, "0-511", "Sealed", None),
        (1, "512-1023", "Sealed", None),
    ]
    assert [row["lag of g"] for row in rows] == [10, None, 10, 0]


def test_without_answers_of_brokers_only_sealed_ends_are_known() -> None:
    """What is not known is shown as such, not as zero."""
    rows = partition_rows(SUBJECT, Progress())

    assert [row["next"] for row in rows] == [None, None, 40, 7]
    assert [row["lag of g"] for row in rows] == [None, None, None, 0]


def test_owners_are_shown_with_session_epoch_and_since_when_they_are_heard() -> None:
    rows = owner_rows(GROUP, SUBJECT, PROGRESS)

    assert [(row["partition"], row["owner"], row["epoch"], row["state"]) for row in rows] == [
        (0, "10.0.0.1@7", 3, "owns it"),
        (2, "10.0.0.1@7", 4, "is giving it up"),
        (3, None, None, "nobody owns it"),
    ]
    assert (rows[0]["session"], rows[0]["heard"]) == ("session-of-o…", "1.2 s ago")


def test_members_are_shown_with_what_they_own_and_when_nothing() -> None:
    assert [(row["session"], row["heard"], row["partitions"]) for row in member_rows(SUBJECT)] == [
        ("session-of-o…", "1.2 s ago", "0, 2 (giving up)"),
        ("s2", None, "none"),
    ]


def test_all_members_of_a_shared_group_consume_what_does_not_wait() -> None:
    """By the epoch of the group; of what it has drained only copies for retry."""
    shared = replace(
        GROUP, strategy=ConsumeStrategy.SHARED, ownerships=(), drained=(0,), finished=(), epoch=6
    )
    subject = replace(SUBJECT, groups=(shared,))

    rows = owner_rows(shared, subject, PROGRESS)

    assert [(row["partition"], row["owner"], row["epoch"], row["state"]) for row in rows] == [
        (0, None, 6, "all members consume it, copies for retry only"),
        (1, None, 6, "all members consume it"),
        (2, None, 6, "all members consume it"),
        (3, None, 6, "nobody consumes it"),
    ]
    assert [row["lag"] for row in rows] == [0, 7, 10, None]
    assert [row["partitions"] for row in member_rows(subject)] == ["all", "all"]
    waiting = owner_rows(replace(shared, drained=()), subject, PROGRESS)
    assert [row["state"] for row in waiting[2:]] == ["nobody consumes it"] * 2


def test_a_drained_partition_is_shown_until_no_copies_for_retry_can_come() -> None:
    """With its owner."""
    group = replace(GROUP, drained=(0, 1))

    assert [row["state"] for row in owner_rows(group, SUBJECT, PROGRESS)][:2] == [
        "owns it, copies for retry only",
        "is giving it up",
    ]
    assert member_rows(replace(SUBJECT, groups=(group,)))[0]["partitions"] == (
        "0 (copies for retry), 2 (giving up)"
    )


def test_the_headline_counts_partitions_of_the_newest_generation_only() -> None:
    assert headline(SUBJECT) == "Subject orders: Strict, generation 1, 1 of 2 partitions open, on a, b"
    sealed = tuple(replace(each, status=OPEN) for each in SUBJECT.partitions)
    assert "2 of 2" in headline(replace(SUBJECT, partitions=sealed))


def test_scripts_get_everything_with_ends_and_lags() -> None:
    shown = subject_json(SUBJECT, PROGRESS)

    assert shown["partitions"][0]["maxOffset"] == 40
    assert shown["groups"][0]["lag"] == {"0": 10, "1": 0, "2": 10, "3": None}
    assert shown["groups"][0]["members"][0]["session"] == "session-of-one-process"
    assert "maxOffset" not in subject_json(SUBJECT)["partitions"][0]
