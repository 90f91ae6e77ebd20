"""How the answers of a member read."""

from __future__ import annotations

from collections.abc import Iterable

from brokerset_dledger.ledger import Ledger
from brokerset_protocol.bodies.dledger import (
    DLedgerBody,
    DLedgerCode,
    HeartbeatRequest,
    HeartbeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    PushRequest,
    PushResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)


def refused(request: DLedgerBody, code: DLedgerCode, leader_id: str | None) -> DLedgerBody:
    """The answer of Java to what is not for this member: what it was asked, with a code."""
    kinds: Iterable[tuple[type[DLedgerBody], type[DLedgerBody]]] = (
        (VoteRequest, VoteResponse),
        (HeartbeatRequest, HeartbeatResponse),
        (PushRequest, PushResponse),
        (LeadershipTransferRequest, LeadershipTransferResponse),
    )
    kind = next((answer for asked, answer in kinds if isinstance(request, asked)), DLedgerBody)
    return kind(
        group=request.group,
        remote_id=request.remote_id,
        local_id=request.local_id,
        leader_id=leader_id,
        term=request.term,
        code=code,
    )


def vote_response(request: VoteRequest, result: VoteResult, term: int) -> VoteResponse:
    """The answer to a candidate."""
    return VoteResponse(
        group=request.group,
        remote_id=request.remote_id,
        local_id=request.local_id,
        leader_id=request.leader_id,
        term=term,
        vote_result=result,
    )


def push_response(request: PushRequest, code: DLedgerCode, ledger: Ledger) -> PushResponse:
    """The answer to a push, with the ends of the follower's ledger."""
    return PushResponse(
        group=request.group,
        term=request.term,
        code=code,
        index=request.first_index,
        count=request.count,
        begin_index=ledger.begin_index,
        end_index=ledger.end_index,
    )
