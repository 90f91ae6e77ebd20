"""A follower's side of pushes: order, comparison, truncation, what is committed."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_dledger.following import Follower
from brokerset_formats.dledger import LedgerEntry, LedgerRun
from brokerset_protocol.bodies.dledger import DLedgerCode, PushRequest, PushRunRequest, PushType
from brokerset_sim.dledger_cluster import SimLedger
from brokerset_sim.dledger_net import node_config

NOW = 10_000
OK, DIFFERS, FULL = DLedgerCode.SUCCESS, DLedgerCode.INCONSISTENT_STATE, DLedgerCode.PUSH_REQUEST_IS_FULL


def ledger_of(*terms: int, body: bytes = b"entry") -> SimLedger:
    """A synced log with an entry of each of these terms."""
    ledger = SimLedger()
    for term in terms:
        ledger.append_body(term, body)
    ledger.sync(ledger.end_index)
    return ledger


LEADER = ledger_of(1, 1, 3, 3, 5, 5, 5)


class Following:
    """A follower whose log is given by its terms, and the codes of its answers by request."""

    def __init__(self, *terms: int, body: bytes = b"entry", **settings: Any) -> None:
        self.ledger = ledger_of(*terms, body=body)
        self.follower = Follower(node_config(**settings), self.ledger)
        self.codes: list[tuple[int, DLedgerCode]] = []
        self.needs_synced: list[int] = []
        self._request_id = 0

    def push(
        self, push_type: PushType, *indexes: int, now: int = NOW, **values: Any
    ) -> list[tuple[int, DLedgerCode]]:
        """Push entries of the leader's log; the new answers."""
        return self.push_entries(push_type, *(LEADER.entry(index) for index in indexes), now=now, **values)

    def push_entries(
        self, push_type: PushType, *entries: LedgerEntry, now: int = NOW, **values: Any
    ) -> list[tuple[int, DLedgerCode]]:
        """Push these entries."""
        self._request_id += 1
        batch = {"entry": entries[0]} if len(entries) == 1 else {"batch_entry": entries}
        self.follower.receive(self._request_id, PushRequest(type=push_type, term=5, **(batch | values)), now)
        return self.taken()

    def push_run(
        self, first: int, last: int, *, now: int = NOW, run: LedgerRun | None = None, **values: Any
    ) -> list[tuple[int, DLedgerCode]]:
        """Push entries of the leader's log as a run."""
        self._request_id += 1
        run = run or LEADER.run(first, last, 10_000)
        fields: dict[str, Any] = {"term": 5, "run": run}
        request = PushRunRequest(**(fields | values))
        self.follower.receive(self._request_id, request, now)
        return self.taken()

    def taken(self) -> list[tuple[int, DLedgerCode]]:
        """Answers since the last time."""
        answers = self.follower.take_answers()
        self.needs_synced += [each.needs_synced for each in answers]
        return [(each.request_id, each.code) for each in answers]


@pytest.mark.parametrize(
    ("terms", "index", "code"),
    [
        ((1, 1, 3), 2, OK),
        ((1, 1, 3), 0, OK),
        ((1, 1, 2), 2, DIFFERS),
        ((1, 1, 3), 3, DIFFERS),
        ((), 0, DIFFERS),
    ],
)
def test_comparison(terms: tuple[int, ...], index: int, code: DLedgerCode) -> None:
    """200 for an entry that is the same, 406 for another one, and for none."""
    assert Following(*terms).push(PushType.COMPARE, index) == [(1, code)]


@pytest.mark.parametrize(
    "fields", [{"body": b"other"}, {"position": 1}, {"term": 2}, {"channel": 1}, {"magic": 2}]
)
def test_entries_are_the_same_in_everything(fields: dict[str, Any]) -> None:
    """Term, position, channel, magic and body count; the CRCs are never computed."""
    following = Following(1, 1, 3)
    entry = LEADER.entry(2)
    values = {
        name: getattr(entry, name) for name in ("index", "term", "position", "body", "magic", "channel")
    }

    assert following.push_entries(PushType.COMPARE, LedgerEntry(**(values | fields))) == [(1, DIFFERS)]


def test_comparison_commits_nothing() -> None:
    """As in Java: the log may have more, which was not compared."""
    following = Following(1, 1, 3)

    following.push(PushType.COMPARE, 2, commit_index=2)

    assert following.ledger.committed_index == -1
    assert following.follower.matched_index == 2


def test_append_in_order() -> None:
    """One entry, then several; each needs its last one synced, and commits what the leader has committed."""
    following = Following(1, 1, 3)

    assert following.push(PushType.APPEND, 3, commit_index=9) == [(1, OK)]
    assert following.push(PushType.APPEND, 4, 5, 6, commit_index=4) == [(2, OK)]

    assert following.ledger.entries == LEADER.entries
    assert following.needs_synced == [3, 6]
    assert following.ledger.committed_index == 4


def test_append_that_came_too_early_waits() -> None:
    """It is answered after those that precede it."""
    following = Following(1, 1, 3)

    assert following.push(PushType.APPEND, 6) == []
    assert following.push(PushType.APPEND, 4, 5) == []
    assert following.push(PushType.APPEND, 3) == [(3, OK), (2, OK), (1, OK)]


def test_append_that_waits_already() -> None:
    """413 for the second one; the first is answered in time."""
    following = Following(1, 1, 3)
    following.push(PushType.APPEND, 4)

    assert following.push(PushType.APPEND, 4) == [(2, DLedgerCode.REPEATED_PUSH)]
    assert following.push(PushType.APPEND, 3) == [(3, OK), (1, OK)]


def test_too_many_wait() -> None:
    """421: nothing grows without bound."""
    following = Following(1, 1, 3, waiting_pushes_max=2)
    following.push(PushType.APPEND, 4)
    following.push(PushType.APPEND, 5)

    assert following.push(PushType.APPEND, 6) == [(3, FULL)]


def test_append_that_waits_for_too_long() -> None:
    """406 after the time-out of a push: the leader compares then."""
    following = Following(1, 1, 3)
    following.push(PushType.APPEND, 4)
    assert following.follower.deadline() == NOW + 200

    following.follower.tick(NOW + 199)
    assert following.taken() == []
    following.follower.tick(NOW + 200)

    assert following.taken() == [(1, DIFFERS)]


@pytest.mark.parametrize(("indexes", "code"), [((1,), OK), ((1, 2), OK), ((2, 3, 4), OK), ((0, 1, 2), OK)])
def test_append_of_what_is_there(indexes: tuple[int, ...], code: DLedgerCode) -> None:
    """An acknowledgement was lost: entries that are there are compared, the rest is appended."""
    following = Following(1, 1, 3)

    assert following.push(PushType.APPEND, *indexes) == [(1, code)]
    assert following.ledger.entries == LEADER.entries[: max(3, indexes[-1] + 1)]


def test_append_of_what_differs() -> None:
    """406, and nothing changes."""
    following = Following(1, 1, 2)

    assert following.push(PushType.APPEND, 2, 3, commit_index=3) == [(1, DIFFERS)]
    assert following.ledger.end_index == 2
    assert following.ledger.committed_index == -1


@pytest.mark.parametrize(("alone", "code"), [(True, DLedgerCode.DISK_FULL), (False, DIFFERS)])
def test_full_disk(alone: bool, code: DLedgerCode) -> None:
    """A leader of Java knows no other refusal than 406; ours pushes again later."""
    following = Following(1, 1, 3, alone=alone)
    following.ledger.full = True

    assert following.push(PushType.APPEND, 3) == [(1, code)]


def test_position_that_does_not_fit() -> None:
    """406: the logs differ somewhere before."""
    assert Following(1, 1, 3, body=b"longer entry").push(PushType.APPEND, 3) == [(1, DIFFERS)]


@pytest.mark.parametrize(
    ("terms", "index", "left"),
    [
        ((1, 1, 3, 4, 4), 2, (0, 2)),
        ((1, 1, 3), 2, (0, 2)),
        ((2, 2, 2), 0, (0, 0)),
        ((), 0, (0, 0)),
        ((1, 1, 2, 2), 3, (3, 3)),
        ((), 4, (4, 4)),
        ((1, 1), 4, (4, 4)),
    ],
)
def test_truncation(terms: tuple[int, ...], index: int, left: tuple[int, int]) -> None:
    """What is behind the entry goes; where the log lacks it, it begins there: the rest was not compared."""
    following = Following(*terms)

    assert following.push(PushType.TRUNCATE, index) == [(1, OK)]

    ledger = following.ledger
    assert (ledger.begin_index, ledger.end_index) == left
    assert ledger.entry(index) == LEADER.entry(index)
    assert following.follower.matched_index == index
    assert following.needs_synced == [index]


def test_truncation_keeps_what_is_committed_before_it() -> None:
    """The leader's first entry follows this log's last one, and everything here is committed."""
    following = Following(1, 1, 3)
    following.ledger.commit(2)

    assert following.push(PushType.TRUNCATE, 3) == [(1, OK)]

    assert following.ledger.entries == LEADER.entries[:4]


@pytest.mark.parametrize(
    ("alone", "index", "code"),
    [(True, 1, DIFFERS), (True, 2, OK), (True, 3, OK), (False, 1, OK), (False, 2, OK)],
)
def test_truncation_of_what_is_committed(alone: bool, index: int, code: DLedgerCode) -> None:
    """Never among members of ours; a leader of Java may ask for it, and then less is committed."""
    following = Following(1, 1, 3, 3, alone=alone)
    following.ledger.commit(2)

    assert following.push(PushType.TRUNCATE, index) == [(1, code)]
    assert following.ledger.committed_index == (2 if code is DIFFERS else min(2, index))


def test_truncation_in_place_of_a_committed_entry() -> None:
    """406 among members of ours; with a leader of Java the place is no longer committed."""
    ours, mixed = Following(1, 1, 2), Following(1, 1, 2, alone=False)
    for each in (ours, mixed):
        each.ledger.commit(2)

    assert ours.push(PushType.TRUNCATE, 2) == [(1, DIFFERS)]
    assert mixed.push(PushType.TRUNCATE, 2) == [(1, OK)]
    assert (ours.ledger.committed_index, mixed.ledger.committed_index) == (2, 1)


def test_what_replaces_a_committed_entry_is_committed_by_a_later_push() -> None:
    """Whoever follows the commits must see that it fell, although the same index is committed again."""
    following = Following(1, 1, 2, alone=False)
    following.ledger.commit(2)

    following.push(PushType.TRUNCATE, 2, commit_index=2)
    assert following.ledger.committed_index == 1
    following.push_entries(PushType.COMMIT, commit_index=2)

    assert following.ledger.committed_index == 2


@pytest.mark.parametrize(
    ("sequence", "code"), [(8, DIFFERS), (9, OK), (10, OK), (None, OK)], ids=lambda value: str(value)
)
def test_late_truncation(sequence: int | None, code: DLedgerCode) -> None:
    """One that is older than the newest push is refused; members of Java send no sequence."""
    following = Following(1, 1, 3)
    following.push(PushType.APPEND, 3, sequence=9)

    assert following.push(PushType.TRUNCATE, 2, sequence=sequence) == [(2, code)]
    assert following.ledger.end_index == (3 if code is DIFFERS else 2)


@pytest.mark.parametrize("push_type", [PushType.COMPARE, PushType.TRUNCATE])
def test_what_waits_is_refused_when_the_leader_compares_again(push_type: PushType) -> None:
    """406 for appends that came before it."""
    following = Following(1, 1, 3)
    following.push(PushType.APPEND, 5)

    assert following.push(push_type, 2) == [(1, DIFFERS), (2, OK)]


def test_what_waits_is_refused_when_the_leader_is_another() -> None:
    """With the code that says so."""
    following = Following(1, 1, 3)
    following.push(PushType.APPEND, 5)

    following.follower.stop(DLedgerCode.NOT_FOLLOWER)

    assert following.taken() == [(1, DLedgerCode.NOT_FOLLOWER)]


def test_commit_of_what_was_compared() -> None:
    """A log that was not compared commits nothing, and says so: the leader compares then."""
    following = Following(1, 1, 3, 4)

    assert following.push_entries(PushType.COMMIT, commit_index=3) == [(1, DIFFERS)]
    assert following.ledger.committed_index == -1
    following.push(PushType.COMPARE, 2)
    assert following.push_entries(PushType.COMMIT, commit_index=3) == [(3, DIFFERS)]
    assert following.ledger.committed_index == 2
    assert following.push_entries(PushType.COMMIT, commit_index=1) == [(4, OK)]
    assert following.ledger.committed_index == 2


@pytest.mark.parametrize(
    ("push_type", "indexes"),
    [
        (PushType.APPEND, ()),
        (PushType.COMPARE, ()),
        (PushType.TRUNCATE, ()),
        (PushType.COMPARE, (0, 1)),
        (PushType.TRUNCATE, (0, 1)),
        (PushType.APPEND, (3, 5)),
        (PushType.APPEND, (4, 3)),
    ],
)
def test_push_that_makes_no_sense(push_type: PushType, indexes: tuple[int, ...]) -> None:
    """411, and nothing changes."""
    following = Following(1, 1, 3)

    assert following.push(push_type, *indexes) == [(1, DLedgerCode.UNEXPECTED_ARGUMENT)]
    assert following.ledger.end_index == 2


def test_runs_in_order() -> None:
    """Each needs its last entry synced, and commits what the leader has, but nothing behind itself."""
    following = Following(1, 1, 3)

    assert following.push_run(3, 4, commit_index=9) == [(1, OK)]
    assert following.ledger.committed_index == 4
    assert following.push_run(5, 6, commit_index=4) == [(2, OK)]

    assert following.ledger.entries == LEADER.entries
    assert following.needs_synced == [4, 6]
    assert following.ledger.committed_index == 4


def test_run_that_came_too_early_waits() -> None:
    """Nothing of it is appended before those that precede it; it is answered after them."""
    following = Following(1, 1, 3)

    assert following.push_run(5, 6) == []
    assert following.ledger.end_index == 2
    assert following.push(PushType.APPEND, 4) == []
    assert following.push_run(3, 3) == [(3, OK), (2, OK), (1, OK)]

    assert following.ledger.entries == LEADER.entries


def test_run_of_which_some_is_there() -> None:
    """An acknowledgement was lost: what is there is compared, the rest appended."""
    same, other = Following(1, 1, 3), Following(1, 1, 2)

    assert same.push_run(1, 5) == [(1, OK)]
    assert same.ledger.entries == LEADER.entries[:6]
    assert other.push_run(1, 5) == [(1, DIFFERS)]
    assert other.ledger.end_index == 2


@pytest.mark.parametrize(
    ("first", "last", "values"),
    [
        (4, 6, {"term": 4}),
        (3, 5, {"run": LedgerRun(3, 3, 0, LEADER.run(3, 5, 10_000).data)}),
        (3, 5, {"run": LedgerRun(3, 3, LEADER.position(3), LEADER.run(3, 5, 10_000).data[:-1])}),
    ],
)
def test_run_that_makes_no_sense(first: int, last: int, values: dict[str, Any]) -> None:
    """411, and nothing changes: wrong heads, or entries of a term that its leader has not reached."""
    following = Following(1, 1, 3, 3)

    assert following.push_run(first, last, **values) == [(1, DLedgerCode.UNEXPECTED_ARGUMENT)]
    assert following.ledger.end_index == 3
    assert following.ledger.committed_index == -1


def test_run_of_an_older_term_than_the_log() -> None:
    """406: terms never fall in a log, so this one is not the leader's."""
    assert Following(1, 1, 4).push_run(3, 4) == [(1, DIFFERS)]


def test_run_that_does_not_fit_behind_the_log() -> None:
    """406: the logs differ somewhere before."""
    following = Following(1, 1, 3, body=b"longer entry")

    assert following.push_run(3, 5) == [(1, DIFFERS)]
    assert following.ledger.end_index == 2


def test_run_on_a_full_disk() -> None:
    """415: the leader pushes it again later."""
    following = Following(1, 1, 3)
    following.ledger.full = True

    assert following.push_run(3, 4) == [(1, DLedgerCode.DISK_FULL)]
    assert following.ledger.end_index == 2


def test_answer_that_waits_for_the_disk_keeps_no_entries() -> None:
    """Thousands may wait."""
    following = Following(1, 1, 3)
    following.follower.receive(1, PushRunRequest(term=5, run=LEADER.run(3, 6, 10_000)), NOW)

    (answer,) = following.follower.take_answers()

    assert isinstance(answer.request, PushRunRequest)
    assert answer.request.run.data == b""
    assert (answer.request.first_index, answer.request.count) == (3, 4)
