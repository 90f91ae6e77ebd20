"""The leader's side of one follower: compare, truncate, append, commit."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_dledger.pushing import Push, Pusher
from brokerset_protocol.bodies.dledger import DLedgerCode, PushResponse, PushType
from brokerset_sim.dledger_cluster import SimLedger
from brokerset_sim.dledger_net import node_config

NOW = 10_000
OK, DIFFERS = DLedgerCode.SUCCESS, DLedgerCode.INCONSISTENT_STATE
COMPARE, TRUNCATE, APPEND, COMMIT = PushType.COMPARE, PushType.TRUNCATE, PushType.APPEND, PushType.COMMIT


class Pushing:
    """The pushes of a leader with entries `begin` to `end`; commit follows nothing here."""

    def __init__(self, end: int = 9, *, begin: int = 0, **settings: Any) -> None:
        self.ledger = SimLedger()
        for _ in range(end + 1):
            self.ledger.append_body(1, b"entry")
        if begin:
            self.ledger.drop_first(begin)
        self.now = NOW
        self.pusher = Pusher(node_config(**settings), self.ledger, NOW)

    def pushes(self) -> list[Push]:
        """All that are due now."""
        found: list[Push] = []
        while push := self.pusher.next(self.now):
            found.append(push)
            assert len(found) < 100
        return found

    def due(self) -> list[tuple[PushType, int, int]]:
        """Their types, and first and last indexes."""
        return [_what(push) for push in self.pushes()]

    def answer(self, push: Push, code: DLedgerCode = OK, begin: int = 0, end: int = -1) -> None:
        """The follower answers; `begin` and `end` are those of its log."""
        self.pusher.answered(push, PushResponse(code=code, begin_index=begin, end_index=end), self.now)

    def appending(self) -> Pushing:
        """The follower has everything."""
        (push,) = self.pushes()
        self.answer(push, end=self.ledger.end_index)
        return self


def _what(push: Push) -> tuple[PushType, int, int]:
    if push.type is COMMIT:
        return push.type, -1, -1
    return push.type, push.first_index, push.last_index


@pytest.mark.parametrize(
    ("code", "begin", "end", "then"),
    [
        (OK, 0, 9, []),
        (OK, 0, 12, [(TRUNCATE, 9, 9)]),
        (DIFFERS, 0, 2, [(TRUNCATE, 4, 4)]),
        (DIFFERS, -1, -1, [(TRUNCATE, 4, 4)]),
        (DIFFERS, 10, 20, [(TRUNCATE, 4, 4)]),
        (DIFFERS, 0, 7, [(COMPARE, 7, 7)]),
        (DIFFERS, 0, 4, [(COMPARE, 4, 4)]),
        (DIFFERS, 0, 3, [(TRUNCATE, 4, 4)]),
        (DIFFERS, 0, 9, [(COMPARE, 8, 8)]),
        (DIFFERS, 0, 12, [(COMPARE, 8, 8)]),
        (DLedgerCode.NOT_FOLLOWER, 0, 9, []),
    ],
)
def test_answer_to_the_comparison_at_the_end(
    code: DLedgerCode, begin: int, end: int, then: list[tuple[PushType, int, int]]
) -> None:
    """A leader with entries 4 to 9 has compared entry 9."""
    pushing = Pushing(9, begin=4)
    (push,) = pushing.pushes()
    assert _what(push) == (COMPARE, 9, 9)

    pushing.answer(push, code, begin, end)

    assert pushing.due() == then
    assert pushing.pusher.watermark == (9 if (code, end) == (OK, 9) else -1)


def test_nothing_in_common() -> None:
    """Back entry by entry, at last the leader's first entry."""
    pushing = Pushing(9, begin=7)
    seen: list[tuple[PushType, int, int]] = []
    for _ in range(4):
        (push,) = pushing.pushes()
        seen.append(_what(push))
        if push.type is COMPARE:
            pushing.answer(push, DIFFERS, 0, 9)

    assert seen == [(COMPARE, 9, 9), (COMPARE, 8, 8), (COMPARE, 7, 7), (TRUNCATE, 7, 7)]


def test_comparison_below_the_followers_first_entry() -> None:
    """The follower's log begins later, and differs from there on."""
    pushing = Pushing(9)
    for _ in range(2):
        (push,) = pushing.pushes()
        pushing.answer(push, DIFFERS, 9, 9)

    assert pushing.due() == [(TRUNCATE, 0, 0)]


def test_one_comparison_at_a_time() -> None:
    """Nothing else is sent until it is answered; without an answer, again after a pause."""
    pushing = Pushing()
    (push,) = pushing.pushes()
    assert pushing.due() == []
    assert pushing.pusher.deadline() > NOW + 100_000

    pushing.pusher.answered(push, None, NOW)

    assert pushing.due() == []
    assert pushing.pusher.deadline() == NOW + 50
    pushing.now += 50
    assert pushing.due() == [(COMPARE, 9, 9)]


@pytest.mark.parametrize(("code", "then"), [(OK, [(APPEND, 6, 9)]), (DIFFERS, []), (None, [])])
def test_answer_to_a_truncation(code: DLedgerCode | None, then: list[tuple[PushType, int, int]]) -> None:
    """Success: appends begin behind it; else everything again after a pause."""
    pushing = Pushing()
    (push,) = pushing.pushes()
    pushing.answer(push, DIFFERS, 0, 5)
    (push,) = pushing.pushes()
    pushing.answer(push, OK, 0, 6)
    (push,) = pushing.pushes()
    assert _what(push) == (TRUNCATE, 5, 5)

    pushing.pusher.answered(
        push, None if code is None else PushResponse(code=code, begin_index=0, end_index=5), NOW
    )

    assert pushing.due() == then
    if not then:
        pushing.now += 50
        assert pushing.due() == [(COMPARE, 9, 9)]


def test_truncation_at_an_entry_that_retention_took() -> None:
    """The logs are compared again: what the follower has before another entry was not compared."""
    pushing = Pushing()
    (push,) = pushing.pushes()
    pushing.answer(push, DIFFERS, 0, 5)
    (push,) = pushing.pushes()
    pushing.answer(push, OK, 0, 6)
    pushing.ledger.drop_first(8)

    assert pushing.due() == []
    pushing.now += 50
    assert pushing.due() == [(COMPARE, 9, 9)]


def test_appends_are_batches() -> None:
    """As many bytes as a push may have; a larger entry travels alone."""
    pushing = Pushing(-1, push_bytes_max=110)
    for size in (2, 2, 2, 500, 2):
        pushing.ledger.append_body(1, b"." * size)
    (push,) = pushing.pushes()
    pushing.answer(push, DIFFERS, 0, 0)
    (push,) = pushing.pushes()
    pushing.answer(push, OK, 0, 0)

    assert pushing.due() == [(APPEND, 1, 2), (APPEND, 3, 3), (APPEND, 4, 4)]


def test_entries_in_flight_are_bounded() -> None:
    """No more leave until some are acknowledged."""
    pushing = Pushing(in_flight_max=3, push_bytes_max=1).appending()
    for _ in range(5):
        pushing.ledger.append_body(1, b"more")
    pushes = pushing.pushes()
    assert [_what(push) for push in pushes] == [(APPEND, 10, 10), (APPEND, 11, 11), (APPEND, 12, 12)]

    pushing.answer(pushes[0], end=10)

    assert pushing.pusher.watermark == 10
    assert pushing.due() == [(APPEND, 13, 13)]


@pytest.mark.parametrize(
    "code", [None, DLedgerCode.REPEATED_PUSH, DLedgerCode.PUSH_REQUEST_IS_FULL, DLedgerCode.DISK_FULL]
)
def test_append_is_pushed_again_in_time(code: DLedgerCode | None) -> None:
    """The oldest one, when it was not acknowledged in time; others follow it."""
    pushing = Pushing(push_bytes_max=1).appending()
    pushing.ledger.append_body(1, b"more")
    pushing.ledger.append_body(1, b"more")
    first, _ = pushing.pushes()
    pushing.pusher.answered(first, None if code is None else PushResponse(code=code), NOW)
    assert pushing.due() == []
    assert pushing.pusher.deadline() == NOW + 200

    pushing.now += 200
    (again,) = pushing.pushes()
    pushing.answer(again, end=10)

    assert _what(again) == (APPEND, 10, 10)
    assert pushing.due() == [(APPEND, 11, 11)]
    assert pushing.pusher.watermark == 10


def test_refused_append_leads_to_a_comparison() -> None:
    """Answers to pushes before it count no longer."""
    pushing = Pushing(push_bytes_max=1).appending()
    pushing.ledger.append_body(1, b"more")
    pushing.ledger.append_body(1, b"more")
    pushing.ledger.append_body(1, b"more")
    first, second, third = pushing.pushes()

    pushing.answer(first, OK, 0, 10)
    pushing.answer(third, DIFFERS, 0, 10)
    pushing.answer(second, OK, 0, 11)

    assert pushing.due() == [(COMPARE, 12, 12)]
    assert pushing.pusher.watermark == 10


def test_comparison_waits_where_nothing_was_taken() -> None:
    """A follower whose disk is full agrees with the log and takes nothing; it gets a pause."""
    pushing = Pushing(push_retry=500).appending()
    pushing.ledger.append_body(1, b"more")
    (push,) = pushing.pushes()

    pushing.answer(push, DIFFERS, 0, 9)

    assert pushing.due() == []
    pushing.now += 500
    assert pushing.due() == [(COMPARE, 10, 10)]


def test_watermark_never_falls() -> None:
    """A later comparison may succeed at an older entry."""
    pushing = Pushing(push_bytes_max=1).appending()
    pushing.ledger.append_body(1, b"more")
    (push,) = pushing.pushes()
    pushing.answer(push, DIFFERS, 0, 9)
    pushing.now += 500
    (push,) = pushing.pushes()
    pushing.answer(push, DIFFERS, 0, 8)
    (push,) = pushing.pushes()

    pushing.answer(push, OK, 0, 8)

    assert pushing.pusher.watermark == 9


def test_entry_to_push_was_deleted() -> None:
    """The logs are compared again."""
    pushing = Pushing(in_flight_max=1, push_bytes_max=1)
    (push,) = pushing.pushes()
    pushing.answer(push, DIFFERS, 0, 2)
    (push,) = pushing.pushes()
    pushing.answer(push, OK, 0, 2)
    (push,) = pushing.pushes()
    pushing.ledger.drop_first(8)
    pushing.answer(push, OK, 0, 3)

    assert pushing.due() == []
    assert pushing.due() == [(COMPARE, 9, 9)]


def test_commit_is_told_again_and_again() -> None:
    """With nothing to push, once in an interval: the last one may be lost."""
    pushing = Pushing().appending()
    assert pushing.due() == []

    for _ in range(3):
        assert pushing.pusher.deadline() == pushing.now + 100
        pushing.now += 100
        assert pushing.due() == [(COMMIT, -1, -1)]


@pytest.mark.parametrize(("code", "then"), [(OK, []), (None, []), (DIFFERS, [(COMPARE, 9, 9)])])
def test_answer_to_a_commit(code: DLedgerCode | None, then: list[tuple[PushType, int, int]]) -> None:
    """A follower that was started since does not know whose its log is: it is compared."""
    pushing = Pushing().appending()
    pushing.now += 100
    (push,) = pushing.pushes()

    pushing.pusher.answered(
        push, None if code is None else PushResponse(code=code, begin_index=0, end_index=9), pushing.now
    )

    assert pushing.due() == then


def test_quota_of_a_follower_that_lags_far() -> None:
    """So many bytes in a second; one that lags less gets all at once."""
    settings = {"push_bytes_max": 1, "throttle_bytes": 100, "throttle_rate": 2}
    pushing = Pushing(20, **settings)
    (push,) = pushing.pushes()
    pushing.answer(push, DIFFERS, 0, 0)
    (push,) = pushing.pushes()
    pushing.answer(push, OK, 0, 0)

    first = pushing.pushes()
    assert [_what(push) for push in first] == [(APPEND, 1, 1), (APPEND, 2, 2)]
    for push in first:
        pushing.answer(push, end=push.last_index)
    assert pushing.due() == []
    assert pushing.pusher.deadline() == NOW + 1_000

    pushing.now += 1_000
    assert len(pushing.due()) == 2


def test_entries_go_as_runs_where_all_members_are_ours() -> None:
    """As they stand in the file, up to its end; in a mixed group one by one."""
    ours, mixed = Pushing().appending(), Pushing(alone=False).appending()
    for each in (ours, mixed):
        for _ in range(12):
            each.ledger.append_body(1, b"more")
    file_end = next(entry.index for entry in ours.ledger.entries if entry.position >= 1024)

    pushes = ours.pushes()
    (entries,) = mixed.pushes()

    assert [_what(push) for push in pushes] == [(APPEND, 10, file_end - 1), (APPEND, file_end, 21)]
    assert all(push.run is not None and push.entries == () for push in pushes)
    assert [entry for push in pushes if push.run for entry in push.run.entries()] == ours.ledger.entries[10:]
    assert entries.run is None
    assert list(entries.entries) == mixed.ledger.entries[10:]


def test_pushes_in_flight_are_bounded() -> None:
    """What is appended meanwhile goes out together."""
    pushing = Pushing(pushes_in_flight_max=2).appending()
    pushes: list[Push] = []
    for _ in range(5):
        pushing.ledger.append_body(1, b"more")
        pushes += pushing.pushes()
    assert [_what(push) for push in pushes] == [(APPEND, 10, 10), (APPEND, 11, 11)]

    pushing.answer(pushes[0], end=10)

    assert pushing.due() == [(APPEND, 12, 14)]
