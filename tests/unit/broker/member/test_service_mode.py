"""What happens to each class of requests, by the facts."""

from __future__ import annotations

import dataclasses

import pytest

from brokerset_broker.member.role import Role
from brokerset_broker.member.service_mode import (
    IN_SYNC_HOLD_SECONDS,
    LEASE_HOLD_SECONDS,
    NO_MASTER_HOLD_SECONDS,
    Mode,
    ModeKind,
    Modes,
    ServiceFacts,
    decide_mode,
    knows_ends,
)
from brokerset_broker.requests.request_classes import CLASSES, RequestClass, forwarded_peer, peer_text
from brokerset_protocol.replies import REJECTED

MASTER = ServiceFacts(role=Role.MASTER, epoch=3, name="b0")
ALONE = dataclasses.replace(MASTER, lease_required=True, acknowledged_alone=True)
SLAVE = ServiceFacts(role=Role.SLAVE, epoch=3, name="b0", master_address="127.0.0.1:23200")
LETTERS = {ModeKind.SERVE: "S", ModeKind.HOLD: "H", ModeKind.FORWARD: "F", ModeKind.REFUSE: "R"}


def shown(modes: Modes) -> str:
    """One letter each for writes, commits, locks, progress, ends, reads."""
    return "".join(LETTERS[modes.of(kind).kind] for kind in RequestClass if kind is not RequestClass.OPEN)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (MASTER, "SSSSSS"),
        (dataclasses.replace(MASTER, switching=True), "HHHHSS"),
        (dataclasses.replace(MASTER, epoch_confirmed=False), "SSSSHS"),
        (dataclasses.replace(MASTER, epoch_confirmed=False, switching=True), "HHHHHS"),
        (dataclasses.replace(MASTER, enough_in_sync=False), "HSSSSS"),
        (dataclasses.replace(MASTER, enough_in_sync=False, not_enough_for_ms=1000), "RSSSSS"),
        (dataclasses.replace(ALONE, lease_valid=False), "HHRRRR"),
        (dataclasses.replace(ALONE, lease_valid=False, lease_lost_for_ms=1000), "RRRRRR"),
        (dataclasses.replace(MASTER, lease_required=True, lease_valid=False), "SSRRRR"),
        (dataclasses.replace(MASTER, lease_valid=False, lease_is_short=True), "SSHHHH"),
        (
            dataclasses.replace(MASTER, lease_valid=False, lease_is_short=True, lease_lost_for_ms=1000),
            "SSRRRR",
        ),
        (
            dataclasses.replace(MASTER, lease_valid=False, enough_in_sync=False, not_enough_for_ms=2000),
            "RSRRRR",
        ),
        (
            dataclasses.replace(
                MASTER, lease_valid=False, lease_given_up=True, switching=True, lease_lost_for_ms=5
            ),
            "HHHHHS",
        ),
        (dataclasses.replace(MASTER, lease_valid=False, switching=True, lease_lost_for_ms=5), "HHHHHH"),
        (dataclasses.replace(MASTER, lease_valid=False, switching=True, lease_lost_for_ms=5000), "RRRRRR"),
        (SLAVE, "FFFFFS"),
        (dataclasses.replace(SLAVE, switching=True), "HHHHHS"),
        (dataclasses.replace(SLAVE, master_address=None), "HHHHHS"),
        (dataclasses.replace(SLAVE, master_address=None, no_master_for_ms=1000), "RRRSRS"),
        (ServiceFacts(role=Role.NONE), "RRRRRR"),
        (ServiceFacts(role=Role.NONE, switching=True), "HHHHHR"),
        (dataclasses.replace(MASTER, fenced=True), "RRRRRR"),
        (dataclasses.replace(SLAVE, fenced=True), "RRRRRR"),
        (dataclasses.replace(MASTER, shutting_down=True), "RRRRRR"),
        (dataclasses.replace(MASTER, stopped_reason="the disk is full"), "RRRRRR"),
    ],
)
def test_each_situation_has_its_modes(facts: ServiceFacts, expected: str) -> None:
    """Writes, commits, locks, progress, ends, reads: served, held, forwarded or refused by the facts."""
    assert shown(decide_mode(facts)) == expected


def test_refusals_have_codes_after_which_clients_try_again() -> None:
    """1, 2 or 14 everywhere, also at the end of holds, with Java's words where Java has some."""
    few = decide_mode(
        dataclasses.replace(MASTER, enough_in_sync=False, not_enough_for_ms=2000, in_sync=1, needs_min=2)
    ).writes
    lonely = decide_mode(dataclasses.replace(SLAVE, master_address=None, no_master_for_ms=5000)).writes
    fenced = decide_mode(dataclasses.replace(MASTER, fenced=True)).reads
    nobody = decide_mode(ServiceFacts(role=Role.NONE, no_role_reason="no controller answers")).reads

    assert few.code == 1
    assert few.remark.startswith("in-sync replicas not enough: [1] is less than minInSyncReplicas [2]")
    assert (lonely.code, lonely.remark) == (2, REJECTED)
    assert fenced.code == 14
    assert "administrator" in fenced.remark
    assert (nobody.code, nobody.remark) == (14, "no controller answers")


@pytest.mark.parametrize(
    ("facts", "known"),
    [
        (MASTER, True),
        (dataclasses.replace(MASTER, epoch_confirmed=False), False),
        (dataclasses.replace(MASTER, switching=True), False),
        (SLAVE, True),
        (dataclasses.replace(SLAVE, switching=True), False),
    ],
)
def test_a_pull_that_finds_nothing_says_so_only_where_the_end_is_known(
    facts: ServiceFacts, known: bool
) -> None:
    """Not while a broker becomes master, and not before its epoch is confirmed."""
    assert knows_ends(facts) is known


def test_ends_of_queues_are_held_and_refused_with_the_reason_until_the_epoch_is_confirmed() -> None:
    """Nobody is told an end from before what was acknowledged; clients try again after 14."""
    modes = decide_mode(dataclasses.replace(MASTER, epoch_confirmed=False))

    assert (modes.ends.kind, modes.ends.code, modes.for_ms) == (ModeKind.HOLD, 14, None)
    assert "does not know yet where its queues end" in modes.ends.remark


def test_a_hold_ends_so_long_after_its_cause_began() -> None:
    """What is left of a hold shrinks with the age of its cause, and the refusal is known from the start."""
    few = decide_mode(dataclasses.replace(MASTER, enough_in_sync=False, not_enough_for_ms=300))
    lease = decide_mode(dataclasses.replace(ALONE, lease_valid=False, lease_lost_for_ms=100))
    lonely = decide_mode(dataclasses.replace(SLAVE, master_address=None, no_master_for_ms=50))
    switching = decide_mode(dataclasses.replace(MASTER, switching=True))

    assert (few.for_ms, few.writes.code) == (IN_SYNC_HOLD_SECONDS * 1000 - 300, 1)
    assert (lease.for_ms, lease.writes.code) == (LEASE_HOLD_SECONDS * 1000 - 100, 14)
    assert (lonely.for_ms, lonely.writes.code) == (NO_MASTER_HOLD_SECONDS * 1000 - 50, 2)
    assert (switching.for_ms, switching.writes.code) == (None, 14)


def test_the_lease_is_checked_where_nobody_else_takes_part() -> None:
    """Reads are guarded with a lease; writes only if the master acknowledges alone."""
    leased = dataclasses.replace(MASTER, lease_required=True)
    alone = dataclasses.replace(leased, acknowledged_alone=True)

    assert (decide_mode(MASTER).guard_reads, decide_mode(MASTER).guard_writes) == (False, False)
    assert (decide_mode(leased).guard_reads, decide_mode(leased).guard_writes) == (True, False)
    assert (decide_mode(alone).guard_reads, decide_mode(alone).guard_writes) == (True, True)
    assert decide_mode(SLAVE).forward_to == "127.0.0.1:23200"


def test_without_a_lease_only_what_replicas_acknowledge_is_served() -> None:
    """A master whose lease has ended serves writes, which its in-sync replicas must acknowledge, and commits;
    a clock that stood still can therefore make it answer reads and locks, and acknowledge nothing alone."""
    modes = decide_mode(dataclasses.replace(MASTER, lease_required=True, lease_valid=False))
    alone = decide_mode(dataclasses.replace(ALONE, lease_valid=False, lease_lost_for_ms=5000))

    served = {kind for kind in RequestClass if modes.of(kind).kind is ModeKind.SERVE}
    assert served == {RequestClass.WRITE, RequestClass.COMMIT, RequestClass.OPEN}
    assert alone.writes.kind is ModeKind.REFUSE


def test_open_requests_are_always_served() -> None:
    """No fact changes what happens to requests about the broker itself."""
    assert decide_mode(dataclasses.replace(MASTER, fenced=True)).of(RequestClass.OPEN) == Mode()
    assert {907, 1007, 1008, 21011, 25, 26, 28, 34, 35} <= {
        code for code, kind in CLASSES.items() if kind is RequestClass.OPEN
    }


@pytest.mark.parametrize("peer", [("10.0.0.1", 1234), ("fd00::1", 65535)])
def test_the_client_behind_a_forward_is_known(peer: tuple[str, int]) -> None:
    """Address and port survive the header field; without the mark the field counts for nothing."""
    text = peer_text(peer)

    assert forwarded_peer({"brokersetForwarded": "1", "brokersetBornHost": text}) == peer
    assert forwarded_peer({"brokersetBornHost": text}) is None


@pytest.mark.parametrize("text", ["", "x", ":1", "h:", "h:70000", "h:-1", "h:1234567"])
def test_a_born_host_that_cannot_be_read_is_ignored(text: str) -> None:
    """Then the peer's own address is used."""
    assert forwarded_peer({"brokersetForwarded": "1", "brokersetBornHost": text}) is None
