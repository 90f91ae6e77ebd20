"""Votes: how a member answers, and what a candidate makes of the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from brokerset_dledger.config import NodeConfig
from brokerset_dledger.election import Ballot, Verdict
from brokerset_dledger.node import Node, Role
from brokerset_formats.dledger import CurrentTerm
from brokerset_protocol.bodies.dledger import (
    OWN_VERSION,
    DLedgerBody,
    DLedgerCode,
    HeartbeatRequest,
    HeartbeatResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from brokerset_sim.dledger_cluster import SimLedger
from brokerset_sim.dledger_net import Draws, node_config

NOW = 10_000
LATER = NOW + 1_000
"""When a member that was started at `NOW` owes silence to nobody."""


def ledger_of(*terms: int) -> SimLedger:
    """A synced log with an entry of each of these terms."""
    ledger = SimLedger()
    for term in terms:
        ledger.append_body(term, b"entry")
    ledger.sync(ledger.end_index)
    return ledger


def member(
    term: int = 5, vote: str | None = None, *, terms: tuple[int, ...] = (1, 3), **settings: Any
) -> Node:
    """A member n0 that has just been started."""
    return Node(
        node_config(**settings),
        current_term=CurrentTerm(term, vote),
        ledger=ledger_of(*terms),
        random_source=Draws(),
        now=NOW,
    )


def ask(node: Node, request: DLedgerBody, now: int = LATER) -> DLedgerBody:
    """What the member answers at once."""
    node.take_ready()
    node.receive(now, 1, request)
    (answer,) = node.take_ready().answers
    return answer.response


def to_n0(kind: type[DLedgerBody], leader: str | None = "n1", term: int = 6, **values: Any) -> Any:
    """A request of another member of ours."""
    usual = {"group": "g", "remote_id": "n0", "local_id": leader, "brokerset": OWN_VERSION}
    return kind(leader_id=leader, term=term, **(usual | values))


def vote_request(
    candidate: str | None = "n1", term: int = 6, end: tuple[int, int] = (3, 1), **values: Any
) -> Any:
    """A candidate's request; `end` is the term and the index of its last entry."""
    return to_n0(VoteRequest, candidate, term, ledger_end_term=end[0], ledger_end_index=end[1], **values)


@dataclass(frozen=True)
class Case:
    """A row of the table of votes, for a member in term 5 whose log ends with entry 1 of term 3."""

    name: str
    request: VoteRequest
    result: VoteResult
    term: int = 5
    vote: str | None = None
    alone: bool = True
    follows: str | None = None


VOTES = (
    Case("stranger", vote_request("n9"), VoteResult.REJECT_UNKNOWN_LEADER),
    Case("nobody", vote_request(None), VoteResult.REJECT_UNKNOWN_LEADER),
    Case("itself", vote_request("n0"), VoteResult.REJECT_UNEXPECTED_LEADER),
    Case("older end", vote_request(end=(2, 9)), VoteResult.REJECT_EXPIRED_LEDGER_TERM),
    Case("empty log", vote_request(end=(-1, -1)), VoteResult.REJECT_EXPIRED_LEDGER_TERM),
    Case("shorter log", vote_request(end=(3, 0)), VoteResult.REJECT_SMALL_LEDGER_END_INDEX),
    Case(
        "less log comes before older term",
        vote_request(term=4, end=(3, 0)),
        VoteResult.REJECT_SMALL_LEDGER_END_INDEX,
    ),
    Case("older term", vote_request(term=4), VoteResult.REJECT_EXPIRED_VOTE_TERM),
    Case("same term, voted for another", vote_request(term=5), VoteResult.REJECT_ALREADY_VOTED, vote="n2"),
    Case(
        "same term, follows another",
        vote_request(term=5),
        VoteResult.REJECT_ALREADY_HAS_LEADER,
        vote="n2",
        alone=False,
        follows="n2",
    ),
    Case("same term, voted for it", vote_request(term=5), VoteResult.ACCEPT, vote="n1"),
    Case("same term, no vote yet", vote_request(term=5), VoteResult.ACCEPT),
    Case("higher term", vote_request(), VoteResult.ACCEPT, term=6, vote="n2"),
    Case("higher term, longer log", vote_request(end=(3, 2)), VoteResult.ACCEPT, term=6),
    Case("higher term, newer and shorter log", vote_request(end=(4, 0)), VoteResult.ACCEPT, term=6),
    Case("hears a leader", vote_request(), VoteResult.REJECT_ALREADY_HAS_LEADER, follows="n2"),
    Case(
        "hears a leader that wants it", vote_request(transfer=True), VoteResult.ACCEPT, term=6, follows="n2"
    ),
    Case("hears a leader, mixed", vote_request(), VoteResult.ACCEPT, term=6, alone=False, follows="n2"),
    Case("pre-vote", vote_request(pre_vote=True), VoteResult.ACCEPT),
    Case("pre-vote, voted for another", vote_request(pre_vote=True), VoteResult.ACCEPT, vote="n2"),
    Case("pre-vote for this term", vote_request(term=5, pre_vote=True), VoteResult.REJECT_EXPIRED_VOTE_TERM),
    Case("pre-vote, hears", vote_request(pre_vote=True), VoteResult.REJECT_ALREADY_HAS_LEADER, follows="n2"),
)


@pytest.mark.parametrize("case", VOTES, ids=lambda case: case.name)
def test_first_rule_that_applies_decides_a_vote(case: Case) -> None:
    """The answer to a candidate, with the term of the member that votes."""
    node = member(5, case.vote, alone=case.alone)
    if case.follows is not None:
        ask(node, to_n0(HeartbeatRequest, case.follows, 5))

    response = ask(node, case.request)

    assert isinstance(response, VoteResponse)
    assert (response.vote_result, response.term, response.leader_id) == (
        case.result,
        case.term,
        case.request.leader_id,
    )


def test_candidate_below_the_log_is_told_the_logs_term() -> None:
    """A member whose term file was lost still knows of the terms in its log."""
    response = ask(member(0, terms=(1, 7)), vote_request(term=6, end=(7, 1)))

    assert isinstance(response, VoteResponse)
    assert (response.vote_result, response.term) == (VoteResult.REJECT_EXPIRED_VOTE_TERM, 7)


def test_vote_and_term_are_handed_out_with_the_answer() -> None:
    """Whoever carries out a `Ready` writes the vote before it sends the answer."""
    node = member()
    node.receive(LATER, 1, vote_request())

    ready = node.take_ready()

    assert ready.current_term == CurrentTerm(6, "n1")
    assert len(ready.answers) == 1


@pytest.mark.parametrize(("alone", "pause"), [(True, 300), (False, 0)])
def test_who_has_voted_for_another_leaves_it_the_time_to_lead(*, alone: bool, pause: int) -> None:
    """Its first heartbeat may be late; meanwhile the leader of before would vote for anybody."""
    node = member(alone=alone)

    node.receive(LATER, 1, vote_request(transfer=True))

    assert LATER + pause < node.deadline() <= LATER + pause + node.config.vote_interval[1]


def test_pre_vote_changes_nothing() -> None:
    """Neither term nor vote follows from it."""
    node = member()
    node.receive(LATER, 1, vote_request(pre_vote=True))

    assert node.take_ready().current_term is None


@pytest.mark.parametrize(("waited", "accepted"), [(0, False), (299, False), (300, True)])
def test_started_member_votes_after_one_silence(waited: int, accepted: bool) -> None:
    """It may have answered a leader's heartbeat just before its process ended."""
    response = ask(member(), vote_request(), NOW + waited)

    assert isinstance(response, VoteResponse)
    assert (response.vote_result is VoteResult.ACCEPT) is accepted


@pytest.mark.parametrize(
    ("waited", "gone", "campaigns"),
    [(199, True, False), (200, True, True), (399, False, False), (400, False, True)],
)
def test_follower_waits_less_where_the_leaders_connection_has_ended(
    waited: int, gone: bool, campaigns: bool
) -> None:
    """As long as it has promised to the leader, else as long as heartbeats may be missed."""
    node = member(heartbeats_missed_max=4, promise_heartbeats=2)
    ask(node, to_n0(HeartbeatRequest, term=5))
    if gone:
        node.leader_gone(LATER + 10)

    assert node.deadline() == LATER + (200 if gone else 400)
    node.tick(LATER + waited)

    assert (node.role is Role.CANDIDATE) is campaigns


def test_follower_that_hears_the_leader_again_waits_as_before() -> None:
    """Over another connection."""
    node = member(heartbeats_missed_max=4, promise_heartbeats=2)
    ask(node, to_n0(HeartbeatRequest, term=5))
    node.leader_gone(LATER + 10)
    ask(node, to_n0(HeartbeatRequest, term=5), LATER + 50)

    node.tick(LATER + 449)

    assert node.role is Role.FOLLOWER


@pytest.mark.parametrize(("waited", "accepted"), [(199, False), (200, True)])
def test_promise_is_shorter_than_the_silence(waited: int, accepted: bool) -> None:
    """A follower votes for others before it campaigns itself; its leader's lease is shorter still."""
    node = member(heartbeats_missed_max=4, promise_heartbeats=2)
    ask(node, to_n0(HeartbeatRequest, "n2", 5))

    response = ask(node, vote_request(), LATER + waited)

    assert isinstance(response, VoteResponse)
    assert (response.vote_result is VoteResult.ACCEPT) is accepted
    assert node.config.lease < node.config.promise < node.config.silence_max


@dataclass(frozen=True)
class Heard:
    """A row of the table of heartbeats, for a member in term 5."""

    name: str
    request: HeartbeatRequest
    code: DLedgerCode
    leader: str | None = None
    follows: str | None = None
    term: int = 5


HEARTBEATS = (
    Heard("stranger", to_n0(HeartbeatRequest, "n9"), DLedgerCode.UNKNOWN_MEMBER),
    Heard("itself", to_n0(HeartbeatRequest, "n0"), DLedgerCode.UNEXPECTED_MEMBER),
    Heard("older term", to_n0(HeartbeatRequest, term=4), DLedgerCode.EXPIRED_TERM),
    Heard("no leader known", to_n0(HeartbeatRequest, term=5), DLedgerCode.SUCCESS, "n1"),
    Heard("its leader", to_n0(HeartbeatRequest, term=5), DLedgerCode.SUCCESS, "n1", follows="n1"),
    Heard(
        "another leader", to_n0(HeartbeatRequest, term=5), DLedgerCode.INCONSISTENT_LEADER, "n2", follows="n2"
    ),
    Heard("higher term", to_n0(HeartbeatRequest), DLedgerCode.SUCCESS, "n1", follows="n2", term=6),
    Heard("member of Java", to_n0(HeartbeatRequest, brokerset=None), DLedgerCode.UNEXPECTED_ARGUMENT),
    Heard("for another", to_n0(HeartbeatRequest, remote_id="n1"), DLedgerCode.UNKNOWN_MEMBER),
    Heard("another group", to_n0(HeartbeatRequest, group="h"), DLedgerCode.UNKNOWN_GROUP),
)


@pytest.mark.parametrize("case", HEARTBEATS, ids=lambda case: case.name)
def test_first_rule_that_applies_answers_a_heartbeat(case: Heard) -> None:
    """Code and consequence."""
    node = member()
    if case.follows is not None:
        ask(node, to_n0(HeartbeatRequest, case.follows, 5))

    response = ask(node, case.request)

    assert isinstance(response, HeartbeatResponse)
    assert (response.code, node.leader_id, node.term) == (case.code, case.leader, case.term)
    assert node.role is (Role.FOLLOWER if case.leader else Role.CANDIDATE)
    if case.code is DLedgerCode.EXPIRED_TERM:
        assert response.term == 5


ACCEPT, VOTED = VoteResult.ACCEPT, VoteResult.REJECT_ALREADY_VOTED
SHORT, OLD = VoteResult.REJECT_SMALL_LEDGER_END_INDEX, VoteResult.REJECT_EXPIRED_LEDGER_TERM
NOT_READY, HAS_LEADER = VoteResult.REJECT_TERM_NOT_READY, VoteResult.REJECT_ALREADY_HAS_LEADER
EXPIRED, BELOW_LOG = VoteResult.REJECT_EXPIRED_VOTE_TERM, VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
UNKNOWN = VoteResult.UNKNOWN

BALLOTS: tuple[tuple[tuple[VoteResult | None, ...], bool, Verdict], ...] = (
    ((ACCEPT,), False, Verdict.OPEN),
    ((ACCEPT, ACCEPT), False, Verdict.ELECTED),
    ((ACCEPT, ACCEPT, EXPIRED), False, Verdict.ELECTED),
    ((ACCEPT, VOTED), False, Verdict.OPEN),
    ((ACCEPT, VOTED, VOTED), False, Verdict.LOST),
    ((ACCEPT, VOTED), True, Verdict.LOST),
    ((ACCEPT, EXPIRED), False, Verdict.HIGHER_TERM),
    ((ACCEPT, BELOW_LOG), False, Verdict.HIGHER_TERM),
    ((ACCEPT, HAS_LEADER), False, Verdict.HAS_LEADER),
    ((ACCEPT, EXPIRED, HAS_LEADER), False, Verdict.HIGHER_TERM),
    ((ACCEPT, NOT_READY), False, Verdict.NOT_READY),
    ((ACCEPT,), True, Verdict.TOO_FEW),
    ((ACCEPT, None, None), False, Verdict.TOO_FEW),
    ((ACCEPT, UNKNOWN, None), False, Verdict.TOO_FEW),
    ((ACCEPT, SHORT, OLD), False, Verdict.LONGER_LOGS),
    ((ACCEPT, SHORT), True, Verdict.LONGER_LOGS),
    ((ACCEPT, SHORT, VOTED), False, Verdict.LOST),
)


@pytest.mark.parametrize(("results", "expired", "verdict"), BALLOTS)
def test_verdict_on_a_ballot_of_three(
    results: tuple[VoteResult | None, ...], expired: bool, verdict: Verdict
) -> None:
    """What a candidate of term 6 makes of the answers, its own first."""
    ballot = Ballot(6, 2, 3, deadline=NOW)
    for number, result in enumerate(results):
        higher = result in (EXPIRED, BELOW_LOG)
        ballot.answers[f"n{number}"] = (
            None if result is None else VoteResponse(term=8 if higher else 6, vote_result=result)
        )

    assert ballot.judge(expired=expired) is verdict
    assert ballot.term_max == (8 if EXPIRED in results or BELOW_LOG in results else -1)


@pytest.mark.parametrize(("size", "votes"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_more_than_half_elect(size: int, votes: int) -> None:
    """One vote less does not, whatever the size."""
    quorum = node_config(size=size).quorum
    ballot = Ballot(6, quorum, size, deadline=NOW)
    for number in range(votes):
        assert ballot.judge(expired=False) is Verdict.OPEN
        ballot.answers[f"n{number}"] = VoteResponse(term=6, vote_result=ACCEPT)

    assert ballot.judge(expired=False) is Verdict.ELECTED


@pytest.mark.parametrize(("alone", "pauses"), [(True, [350, 650, 1_250, 2_450, 2_450]), (False, [200] * 5)])
def test_pauses_grow_with_lost_elections(alone: bool, pauses: list[int]) -> None:
    """Their range doubles four times where all members are ours; it is Java's in a mixed group."""
    node = member(alone=alone, size=3)
    now, seen = LATER + 10_000, list[int]()
    node.tick(now)
    while len(seen) < len(pauses):
        calls = node.take_ready().calls
        assert calls, "a ballot asks for votes"
        for call in calls:
            pre = isinstance(call.request, VoteRequest) and bool(call.request.pre_vote)
            result = VoteResult.ACCEPT if pre else VoteResult.REJECT_ALREADY_VOTED
            vote = VoteResponse(term=node.term, vote_result=result, brokerset=OWN_VERSION if alone else None)
            node.answered(now, call.call_id, vote)
        if any(not getattr(call.request, "pre_vote", None) for call in calls):
            seen.append(node.deadline() - now + 1)
            now = node.deadline()
            node.tick(now)

    assert seen == pauses


def test_times_of_groups_of_ours_alone() -> None:
    """A lease ends before the promise that it rests on; heartbeats renew it several times before."""
    config = NodeConfig.for_group_alone("g", "n0", ("n0", "n1", "n2"))

    assert config.alone
    assert config.lease < config.promise < config.silence_max
    assert 4 * config.heartbeat < config.lease
    assert config.silence_max + config.vote_interval[1] < 1_000


@pytest.mark.parametrize(("vote", "term"), [(None, 5), ("n0", 6), ("n1", 6)])
def test_started_member_never_campaigns_where_it_has_voted(vote: str | None, term: int) -> None:
    """In a mixed group; it may have led that term, and lost entries that a follower has."""
    node = member(5, vote, alone=False)

    node.tick(NOW)

    ready = node.take_ready()
    assert {call.request.term for call in ready.calls} == {term}
    assert node.term == term
