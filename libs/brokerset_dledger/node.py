"""The core of one member: terms, votes, heartbeats, pushes, commit and transfer, without I/O.

Source: `DLedgerLeaderElector`, `DLedgerEntryPusher` and `DLedgerServer` of DLedger 0.3.1.2. `DESIGN.md` says
where members of a group of ours alone do more.

One module, because it is one state machine: a request of any kind may end a leadership, and with it all that
the other parts keep. What can stand alone does: `election`, `following`, `pushing`, `ledger`, `responses`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from brokerset_dledger import responses
from brokerset_dledger.config import NodeConfig
from brokerset_dledger.election import Ballot, Verdict
from brokerset_dledger.following import NEVER, Follower, PushAnswer
from brokerset_dledger.ledger import Ledger, LedgerRefused
from brokerset_dledger.pushing import Push, Pusher
from brokerset_formats.dledger import CurrentTerm, LedgerEntry
from brokerset_protocol.bodies.dledger import (
    OWN_VERSION,
    DLedgerBody,
    DLedgerCode,
    HeartbeatRequest,
    HeartbeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    PushRequest,
    PushResponse,
    PushRunRequest,
    PushType,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

PAUSES_DOUBLED_MAX = 4
"""How often the range of pauses before elections doubles."""

_B = TypeVar("_B", bound=DLedgerBody)


class Role(StrEnum):
    """Under Java's names (`MemberState.Role`)."""

    CANDIDATE = "CANDIDATE"
    FOLLOWER = "FOLLOWER"
    LEADER = "LEADER"


@dataclass(frozen=True, slots=True)
class Call:
    """A request to another member; the shell says `answered` once, at the latest after `timeout` ms."""

    call_id: int
    peer: str
    request: DLedgerBody
    timeout: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request that was received."""

    request_id: int
    response: DLedgerBody


@dataclass(frozen=True, slots=True)
class Ready:
    """What the shell does next, in this order: the term is on the disk before anything leaves."""

    current_term: CurrentTerm | None
    calls: tuple[Call, ...]
    answers: tuple[Answer, ...]


@dataclass
class _Round:
    """Heartbeats that were sent together."""

    sent_at: int
    known: dict[str, int]
    """The numbers of recovering members that this one had heard of."""

    succeeded: dict[str, int | None]
    """By member: the number of its recovery, if it is recovering."""


@dataclass(frozen=True, slots=True)
class _Taking:
    """A leadership that this member was asked to take."""

    request_id: int
    request: LeadershipTransferRequest
    deadline: int

    @property
    def term(self) -> int:
        """The term that it would lead."""
        return self.request.term + 1


@dataclass(frozen=True, slots=True)
class _Handover:
    """A transfer on its way, and the request that asked for it, if one did."""

    term: int
    request_id: int | None


_Context = Ballot | _Round | Push | _Handover
"""What a call was about."""


class Node:
    """One member of a group. Inputs change the state; only `take_ready` hands out effects, each once."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        current_term: CurrentTerm,
        ledger: Ledger,
        random_source: random.Random,
        now: int,
        own_address: str | None = None,
        recovering: bool = False,
    ) -> None:
        """Start as a candidate with what the disk has; `now` is a monotonic clock's milliseconds.

        `own_address` is where clients find this member; it tells the others while it leads. A `recovering`
        member may lack votes or entries that it has acknowledged: its disk is new, or lost unsynced pages.
        Ignored where Java's members, which do not know of it, are in the group.
        """
        self.config = config
        self.ledger = ledger
        self.role = Role.CANDIDATE
        self.leader_id: str | None = None
        self.leader_address: str | None = None
        """Where clients find the leader, if it has said so: in a group of ours alone."""

        self.transferee: str | None = None
        """On a leader, the member that shall lead; nothing is appended meanwhile."""

        self._own_address = own_address
        self._random = random_source
        self._recovery = random_source.getrandbits(62) if recovering and config.alone else None
        """While this member is recovering, the number that tells this start from earlier ones."""

        self._recovery_index: int | None = None
        """What a leader that knew of this start had committed, if it may be all that was acknowledged."""

        self._recoveries: dict[str, int] = {}
        """The numbers of other members that are recovering."""

        self._readmitted: dict[str, int] = {}
        """Those of them that count for this leader: since their start it has been confirmed that it leads."""

        self._handed = current_term
        # The log may have entries of a term whose file a power failure took: their leader was elected.
        self._current = max(current_term, CurrentTerm(ledger.end_term), key=lambda each: each.term)
        self._leader_heard_at = now
        """Also the start: a member that was started again may have promised its leader silence."""

        self._leader_gone = False
        """Whether the leader's connection has ended since it was heard."""

        self._elections_lost = 0
        """Since this member had a leader."""

        self._vote_at = now + self._draw(config.promise) if config.alone else now
        self._next_term = current_term.voted_for == config.node_id
        """Whether its next election is in a new term; it may have led this one with entries that are lost."""

        self._ballot: Ballot | None = None
        self._taking: _Taking | None = None
        self._begin_index: int | None = None
        self._heartbeat_at = now
        self._quorum_heard_at = now
        self._lease_begins_at: int | None = None
        self._preference_at = now
        self._pushers: dict[str, Pusher] = {}
        self._follower = Follower(config, ledger)
        self._followed: tuple[int, str] | None = None
        """The term and the leader of `_follower`."""

        self._unsynced: list[PushAnswer] = []
        self._heard_at: dict[str, int] = {}
        self._contexts: dict[int, tuple[str, int, _Context]] = {}
        """By call: the member, the term, and what it was about."""

        self._call_id = 0
        self._calls: list[Call] = []
        self._answers: list[Answer] = []

    @property
    def node_id(self) -> str:
        """This member."""
        return self.config.node_id

    @property
    def term(self) -> int:
        """The newest term that this member has taken."""
        return self._current.term

    @property
    def recovering(self) -> bool:
        """Whether this member may still lack entries that it has acknowledged."""
        return self._recovery is not None

    @property
    def begin_index(self) -> int | None:
        """On a leader, the index of the record with which its term began."""
        return self._begin_index

    def watermarks(self) -> dict[str, int]:
        """On a leader, the last index of each member that is known to be as the leader's; itself included."""
        if self.role is not Role.LEADER:
            return {}
        return {self.node_id: self._own_watermark()} | {
            peer: each.watermark for peer, each in self._pushers.items()
        }

    def may_serve(self, now: int) -> bool:
        """Whether this member leads, has committed something in its term, and nobody can have replaced it.

        In a group with Java's members only the first two are known.
        """
        return now < self.serves_until()

    def serves_until(self) -> int:
        """Until when `may_serve` stays true if nothing more is heard; in the past, if it is not."""
        if self.role is not Role.LEADER or self._begin_index is None or self.transferee is not None:
            return -NEVER
        if self.ledger.committed_index < self._begin_index:
            return -NEVER
        if not self.config.alone:
            return NEVER
        return -NEVER if self._lease_begins_at is None else self._lease_begins_at + self.config.lease

    # Inputs.

    def tick(self, now: int) -> None:
        """Time has passed."""
        if self._taking is not None and now >= self._taking.deadline:
            self._end_taking(DLedgerCode.TAKE_LEADERSHIP_FAILED)
        self._begin_taking(now)
        match self.role:
            case Role.LEADER:
                self._tick_leader(now)
            case Role.FOLLOWER:
                self._follower.tick(now)
                self._collect_push_answers()
                if now >= self._leader_lost_at():
                    self._next_term = True
                    self._become_candidate(
                        now, vote_at=now if not self.config.alone else now + self._draw_vote_pause()
                    )
            case Role.CANDIDATE:
                self._tick_candidate(now)

    def deadline(self) -> int:
        """When `tick` has something to do, if nothing happens before."""
        found = [self._taking.deadline if self._taking is not None else NEVER]
        match self.role:
            case Role.LEADER:
                found += [self._heartbeat_at, self._quorum_heard_at + self.config.silence_max]
                found += [each.deadline() for each in self._pushers.values()]
                if self.config.preferred_leaders:
                    found.append(self._preference_at)
            case Role.FOLLOWER:
                found += [self._leader_lost_at(), self._follower.deadline()]
            case Role.CANDIDATE:
                found.append(self._ballot.deadline if self._ballot is not None else self._vote_at)
        return min(found)

    def receive(self, now: int, request_id: int, request: DLedgerBody) -> None:
        """A member, or an administrator, asks for something; the answer comes in a `Ready`, perhaps later."""
        code = self._refusal(request)
        if code is not None:
            self._answer(request_id, responses.refused(request, code, self.leader_id))
            return
        match request:
            case VoteRequest():
                result, term = self._vote(now, request)
                self._answer(request_id, responses.vote_response(request, result, term))
            case HeartbeatRequest():
                self._answer(request_id, self._hear(now, request))
            case PushRequest():
                self._receive_push(now, request_id, request)
            case LeadershipTransferRequest():
                self._receive_transfer(now, request_id, request)
            case _:
                self._answer(request_id, responses.refused(request, DLedgerCode.UNSUPPORTED, self.leader_id))
        self._push(now)

    def answered(self, now: int, call_id: int, response: DLedgerBody | None) -> None:
        """A call was answered, or could not be (None): time-out, no connection, unreadable answer."""
        peer, term, context = self._contexts.pop(call_id)
        if response is not None and self.config.alone and response.brokerset != OWN_VERSION:
            response = None
        if response is not None:
            self._heard_at[peer] = now
            self._hear_recovery(now, peer, response.recovering)
        if term == self.term or isinstance(context, _Handover):
            match context:
                case Ballot():
                    self._count(now, context, peer, response)
                case _Round():
                    self._heartbeat_answered(now, context, peer, response)
                case Push():
                    self._push_answered(now, context, peer, response)
                case _Handover():
                    self._transfer_answered(now, context, response)
        self._push(now)

    def leader_gone(self, now: int) -> None:
        """The connection has ended over which the leader was heard last: most likely its process has.

        So the next election begins as soon as the promise to the leader is over, if nothing is heard of it
        until then. The promise itself does not end: an ended connection, or one that is refused, proves
        nothing about a process that others may still reach.
        """
        if self.config.alone and self.role is Role.FOLLOWER:
            self._leader_gone = True
            self.tick(now)

    def append(self, now: int, bodies: Sequence[bytes]) -> list[LedgerEntry]:
        """Append records as the leader; each is acknowledged once `committed_index` has it, in this term.

        Raises `LedgerRefused` with the code for whoever asked; the first ones may have been appended then.
        """
        self.require_appendable(len(bodies))
        entries = [self.ledger.append_body(self.term, body) for body in bodies]
        self.appended(now)
        return entries

    def require_appendable(self, count: int = 1) -> None:
        """Raise `LedgerRefused`, with the code for whoever asked, unless so many entries may be appended."""
        if self.role is not Role.LEADER:
            raise LedgerRefused(
                DLedgerCode.NOT_LEADER, f"{self.leader_id or 'nobody'} leads {self.config.group}"
            )
        if self.transferee is not None:
            raise LedgerRefused(
                DLedgerCode.LEADER_TRANSFERRING, f"leadership goes to {self.transferee}; ask again soon"
            )
        waiting = self.ledger.end_index - max(self.ledger.committed_index, self.ledger.begin_index - 1)
        if waiting + count > self.config.uncommitted_max and waiting:
            raise LedgerRefused(
                DLedgerCode.LEADER_PENDING_FULL,
                f"{waiting} entries of at most {self.config.uncommitted_max} wait for commit; ask again soon",
            )

    def appended(self, now: int) -> None:
        """The store itself has put entries of this term into the log, which `require_appendable` allowed."""
        self._maybe_commit()
        self._push(now)

    def synced(self, now: int) -> None:
        """The log's `synced_index` has risen."""
        ready = [each for each in self._unsynced if each.needs_synced <= self.ledger.synced_index]
        self._unsynced = [each for each in self._unsynced if each.needs_synced > self.ledger.synced_index]
        for answer in ready:
            self._answer_push(answer)
        self._maybe_commit()
        self._check_recovery()
        self._push(now)

    def transfer(self, now: int, peer: str) -> None:
        """Hand leadership over to another member. Raises `LedgerRefused` if that cannot be."""
        code = self._transfer_refusal(peer)
        if code is not None:
            raise LedgerRefused(code, f"leadership cannot go to {peer}: {code.name}")
        self._hand_over(peer, None)

    def _hand_over(self, peer: str, request_id: int | None) -> None:
        self.transferee = peer
        request = LeadershipTransferRequest(
            term=self.term,
            transfer_id=self.node_id,
            transferee_id=peer,
            take_leadership_ledger_index=self.ledger.end_index,
        )
        self._call(peer, request, _Handover(self.term, request_id), self.config.transfer_timeout)

    # Effects.

    def has_ready(self) -> bool:
        """Whether `take_ready` would hand out anything."""
        return bool(self._calls or self._answers or self._current != self._handed)

    def take_ready(self) -> Ready:
        """Hand out what has to be done now."""
        ready = Ready(
            self._current if self._current != self._handed else None, tuple(self._calls), tuple(self._answers)
        )
        self._handed = self._current
        self._calls, self._answers = [], []
        return ready

    def _answer(self, request_id: int, response: DLedgerBody) -> None:
        self._answers.append(Answer(request_id, self._marked(response, self._recovery)))

    def _call(self, peer: str, request: DLedgerBody, context: _Context, timeout: int) -> None:
        self._call_id += 1
        self._contexts[self._call_id] = peer, self.term, context
        addressed = replace(
            request,
            group=self.config.group,
            remote_id=peer,
            local_id=self.node_id,
            leader_id=self.node_id if isinstance(request, VoteRequest) else self.leader_id,
        )
        self._calls.append(
            Call(self._call_id, peer, self._marked(addressed, self._readmitted.get(peer)), timeout)
        )

    def _marked(self, body: _B, recovering: int | None) -> _B:
        if not self.config.alone:
            return body
        return replace(body, brokerset=OWN_VERSION, recovering=recovering)

    def _refusal(self, request: DLedgerBody) -> DLedgerCode | None:
        if request.remote_id != self.node_id:
            return DLedgerCode.UNKNOWN_MEMBER
        if request.group != self.config.group:
            return DLedgerCode.UNKNOWN_GROUP
        from_member = isinstance(request, VoteRequest | HeartbeatRequest | PushRequest)
        if from_member and self.config.alone and request.brokerset != OWN_VERSION:
            return DLedgerCode.UNEXPECTED_ARGUMENT
        return None

    # Terms and roles.

    def _draw(self, shortest: int) -> int:
        return self._random.randrange(shortest, 2 * shortest)

    def _draw_vote_pause(self) -> int:
        """In a group of ours alone, from a range that grows with each election that this member has lost.

        Where votes take longer than the pauses, as on a busy machine, candidates would hinder each other.
        """
        low, high = self.config.vote_interval
        if self.config.alone:
            high += (high - low) * ((1 << min(self._elections_lost, PAUSES_DOUBLED_MAX)) - 1)
        return self._random.randrange(low, high)

    def _adopt_term(self, now: int, term: int) -> None:
        """Somebody has a higher term: take it, with no vote given in it yet."""
        self._current = CurrentTerm(term, None)
        self._become_candidate(now, vote_at=now + self._draw_vote_pause())

    def _leave_role(self) -> None:
        self._ballot = None
        self._pushers = {}
        self._begin_index = None
        self._lease_begins_at = None
        self.transferee = None
        self.leader_address = None
        self._recovery_index = None
        self._readmitted = {}
        self._follower.stop(DLedgerCode.NOT_FOLLOWER)
        self._collect_push_answers()

    def _become_candidate(self, now: int, *, vote_at: int) -> None:
        self._leave_role()
        self.role = Role.CANDIDATE
        self.leader_id = None
        self._vote_at = vote_at
        if self._taking is not None and self.term > self._taking.term:
            self._end_taking(DLedgerCode.EXPIRED_TERM)

    def _become_follower(self, now: int, leader_id: str) -> None:
        self._leave_role()
        self.role = Role.FOLLOWER
        self.leader_id = leader_id
        self._leader_heard_at = now
        self._leader_gone = False
        self._elections_lost = 0
        self._next_term = True
        if self._followed != (self.term, leader_id):  # else its earlier pushes may still be on their way
            self._follower = Follower(self.config, self.ledger)
            self._followed = self.term, leader_id
        if self._taking is not None and self._taking.request.leader_id != leader_id:
            self._end_taking(DLedgerCode.TAKE_LEADERSHIP_FAILED)

    def _become_leader(self, now: int) -> None:
        self._leave_role()
        self.role = Role.LEADER
        self.leader_id = self.node_id
        self.leader_address = self._own_address
        self._heartbeat_at = self._quorum_heard_at = now
        self._preference_at = now + self.config.commit_interval
        self._next_term = True
        try:
            self._begin_index = self.ledger.begin_term(self.term).index
        except LedgerRefused:
            wait = self.config.promise + self._draw(self.config.silence_max)  # others are first
            self._become_candidate(now, vote_at=now + wait)
            return
        self._pushers = {peer: Pusher(self.config, self.ledger, now) for peer in self.config.others}
        if self._taking is not None:
            done = self.term == self._taking.term
            self._end_taking(DLedgerCode.SUCCESS if done else DLedgerCode.EXPIRED_TERM)
        if self.config.quorum == 1:
            self._quorum_heard_at = self._lease_begins_at = NEVER
        self._maybe_commit()
        self._tick_leader(now)

    # Elections.

    def _tick_candidate(self, now: int) -> None:
        if self._ballot is not None:
            if now >= self._ballot.deadline:
                self._judge(now, self._ballot, expired=True)
        elif now >= self._vote_at:
            if self.config.alone:
                self._start_ballot(now, self.term + 1, pre=True)
            else:
                self._ask_for_votes(now, transfer=False)

    def _ask_for_votes(self, now: int, *, transfer: bool) -> None:
        if self._next_term or self._current.voted_for not in (None, self.node_id):
            self._current = CurrentTerm(self.term + 1, self.node_id)
        elif self._current.voted_for is None:
            self._current = CurrentTerm(self.term, self.node_id)
        self._next_term = False
        self._start_ballot(now, self.term, transfer=transfer)

    def _start_ballot(self, now: int, term: int, *, pre: bool = False, transfer: bool = False) -> None:
        timeout = self.config.vote_timeout + self._random.randrange(self.config.vote_interval[1])
        members = len(self.config.peers)
        ballot = Ballot(term, self.config.quorum, members, now + timeout, pre=pre, transfer=transfer)
        self._ballot = ballot
        request = VoteRequest(
            term=term,
            ledger_end_index=self.ledger.end_index,
            ledger_end_term=self.ledger.end_term,
            pre_vote=True if pre else None,
            transfer=True if transfer and self.config.alone else None,
        )
        for peer in self.config.others:
            self._call(peer, request, ballot, timeout)
        own = VoteResponse(term=self.term, vote_result=VoteResult.ACCEPT)
        self._count(now, ballot, self.node_id, self._marked(own, self._recovery))

    def _count(self, now: int, ballot: Ballot, peer: str, response: DLedgerBody | None) -> None:
        if ballot is not self._ballot:
            return
        ballot.answers[peer] = response if isinstance(response, VoteResponse) and response.succeeded else None
        self._judge(now, ballot, expired=False)

    def _judge(self, now: int, ballot: Ballot, *, expired: bool) -> None:
        verdict = ballot.judge(expired=expired)
        if verdict is Verdict.OPEN:
            return
        self._ballot = None
        self._elections_lost += not ballot.pre and verdict is not Verdict.ELECTED
        self._vote_at = now + self._draw_vote_pause()
        match verdict:
            case Verdict.ELECTED if ballot.pre:
                self._next_term = True
                self._ask_for_votes(now, transfer=False)
            case Verdict.ELECTED:
                self._become_leader(now)
            case Verdict.HIGHER_TERM if ballot.term_max > self.term:
                self._adopt_term(now, ballot.term_max)
            case Verdict.HAS_LEADER:
                self._vote_at += self.config.silence_max if not self.config.alone else 0
            case Verdict.LONGER_LOGS:
                self._vote_at += self.config.vote_interval[1]
            case Verdict.NOT_READY:
                self._vote_at = now + 10
            case Verdict.LOST if not ballot.pre:
                self._next_term = True

    def _hears_leader(self, now: int) -> bool:
        """Whether a leader is protected from elections, as its lease demands (groups of ours alone)."""
        if self.role is Role.LEADER:
            return self._lease_begins_at is not None and now < self._lease_begins_at + self.config.promise
        return now < self._leader_heard_at + self.config.promise

    def _leader_lost_at(self) -> int:
        """When a follower that hears nothing more of its leader campaigns."""
        wait = self.config.promise if self._leader_gone else self.config.silence_max
        return self._leader_heard_at + wait

    def _vote(self, now: int, request: VoteRequest) -> tuple[VoteResult, int]:
        """The answer to a candidate, and the term that it shows; the first that applies counts."""
        candidate, end = request.leader_id, (self.ledger.end_term, self.ledger.end_index)
        if candidate is None or candidate not in self.config.peers:
            return VoteResult.REJECT_UNKNOWN_LEADER, self.term
        if candidate == self.node_id:
            return VoteResult.REJECT_UNEXPECTED_LEADER, self.term
        if request.ledger_end_term < end[0]:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM, self.term
        if (request.ledger_end_term, request.ledger_end_index) < end:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX, self.term
        if request.term < self.term or (request.pre_vote and request.term == self.term):
            return VoteResult.REJECT_EXPIRED_VOTE_TERM, self.term
        if self.config.alone and not request.transfer and self._hears_leader(now):
            return VoteResult.REJECT_ALREADY_HAS_LEADER, self.term
        if request.pre_vote:
            return VoteResult.ACCEPT, self.term
        if request.term > self.term:
            self._adopt_term(now, request.term)
        if self._current.voted_for not in (None, candidate):
            known = self.leader_id is not None
            return (
                VoteResult.REJECT_ALREADY_HAS_LEADER if known else VoteResult.REJECT_ALREADY_VOTED,
                self.term,
            )
        if (
            self._taking is not None
            and self._taking.term == self.term
            and self.node_id in self.config.preferred_leaders
        ):
            return VoteResult.REJECT_TAKING_LEADERSHIP, self.term
        self._current = CurrentTerm(self.term, candidate)
        if self.role is Role.CANDIDATE and self._ballot is None:
            # Among members of ours it hinders nobody whom it has helped, until it would have been heard.
            time_to_lead = self.config.promise if self.config.alone else 0
            self._vote_at = max(self._vote_at, now + time_to_lead + self._draw_vote_pause())
        return VoteResult.ACCEPT, self.term

    # Heartbeats.

    def _hear(self, now: int, request: HeartbeatRequest) -> HeartbeatResponse:
        """A heartbeat came."""
        leader = request.leader_id
        if leader is None or leader not in self.config.peers:
            return HeartbeatResponse(code=DLedgerCode.UNKNOWN_MEMBER, term=self.term)
        if leader == self.node_id:
            return HeartbeatResponse(code=DLedgerCode.UNEXPECTED_MEMBER, term=self.term)
        if request.term < self.term:
            return HeartbeatResponse(code=DLedgerCode.EXPIRED_TERM, term=self.term)
        if not self._follow(now, request.term, leader):
            return HeartbeatResponse(code=DLedgerCode.INCONSISTENT_LEADER)
        if self.config.alone:
            self.leader_address = request.address
        return HeartbeatResponse()

    def _follow(self, now: int, term: int, leader: str) -> bool:
        """A member leads a term that is not older than this one's; False if another one leads that term."""
        if term > self.term:
            self._current = CurrentTerm(term, None)
            self._become_follower(now, leader)
        elif self.leader_id is None:
            self._become_follower(now, leader)
        elif self.leader_id != leader:
            return False
        self._leader_heard_at = now
        self._leader_gone = False
        return True

    def _tick_leader(self, now: int) -> None:
        if now >= self._quorum_heard_at + self.config.silence_max:
            self._become_candidate(now, vote_at=now + self._draw_vote_pause())
            return
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self.config.heartbeat
            heartbeats = _Round(now, dict(self._recoveries), {self.node_id: None})
            address = self._own_address if self.config.alone else None
            request = HeartbeatRequest(term=self.term, address=address)
            for peer in self.config.others:
                self._call(peer, request, heartbeats, self.config.heartbeat)
        if self.config.preferred_leaders and now >= self._preference_at:
            self._preference_at = now + self.config.commit_interval
            self._prefer(now)
        self._push(now)

    def _heartbeat_answered(
        self, now: int, heartbeats: _Round, peer: str, response: DLedgerBody | None
    ) -> None:
        if self.role is not Role.LEADER or response is None:
            return
        match response.code:
            case DLedgerCode.SUCCESS:
                heartbeats.succeeded[peer] = response.recovering
                if self._confirms(heartbeats):
                    self._readmit(heartbeats)
                    self._elections_lost = 0
                    self._quorum_heard_at = max(self._quorum_heard_at, now)
                    self._lease_begins_at = max(self._lease_begins_at or 0, heartbeats.sent_at)
            case DLedgerCode.EXPIRED_TERM if response.term > self.term:
                self._adopt_term(now, response.term)
            case DLedgerCode.INCONSISTENT_LEADER:
                self._next_term = True
                self._become_candidate(now, vote_at=now + self._draw_vote_pause())
            case DLedgerCode.TERM_NOT_READY:
                self._heartbeat_at = min(self._heartbeat_at, now + 10)

    # Pushing and commit.

    def _push(self, now: int) -> None:
        for peer, pusher in self._pushers.items():
            while push := pusher.next(now):
                self._call(peer, self._push_request(push), push, self.config.transfer_timeout)

    def _push_request(self, push: Push) -> PushRequest:
        committed = self.ledger.committed_index
        if push.run is not None:
            return PushRunRequest(
                term=self.term, run=push.run, commit_index=committed, sequence=self._call_id
            )
        entries = push.entries
        return PushRequest(
            term=self.term,
            type=push.type,
            entry=entries[0] if len(entries) == 1 else None,
            batch_entry=entries if len(entries) > 1 else (),
            commit_index=committed,
            sequence=self._call_id if self.config.alone else None,
        )

    def _push_answered(self, now: int, push: Push, peer: str, response: DLedgerBody | None) -> None:
        if self.role is not Role.LEADER:
            return
        if response is not None and response.code == DLedgerCode.EXPIRED_TERM and response.term > self.term:
            self._adopt_term(now, response.term)
            return
        self._pushers[peer].answered(push, response if isinstance(response, PushResponse) else None, now)
        self._maybe_commit()

    def _own_watermark(self) -> int:
        return self.ledger.synced_index if self.config.sync_before_ack else self.ledger.end_index

    def _maybe_commit(self) -> None:
        """Commit what a quorum has, if its last entry is of this term.

        An entry of an older term may be on a quorum and still be replaced (Raft's figure 8); Java counts it.
        """
        if self.role is not Role.LEADER or self._begin_index is None:
            return
        watermarks = [
            watermark if self._counts(peer, self._recoveries.get(peer)) else -1
            for peer, watermark in self.watermarks().items()
        ]
        index = sorted(watermarks, reverse=True)[self.config.quorum - 1]
        if index > self.ledger.committed_index and self._may_count(index):
            self.ledger.commit(index)
            self._check_recovery()

    def _may_count(self, index: int) -> bool:
        return self._begin_index is not None and index >= self._begin_index

    # Following.

    def _receive_push(self, now: int, request_id: int, request: PushRequest) -> None:
        leader = request.leader_id
        if leader is None or leader not in self.config.others:
            self._answer(request_id, responses.refused(request, DLedgerCode.UNKNOWN_MEMBER, self.leader_id))
        elif request.term < self.term:
            response = responses.push_response(request, DLedgerCode.EXPIRED_TERM, self.ledger)
            self._answer(request_id, replace(response, term=self.term))
        elif not self._follow(now, request.term, leader):
            self._answer(
                request_id, responses.push_response(request, DLedgerCode.INCONSISTENT_LEADER, self.ledger)
            )
        else:
            end = self.ledger.end_index
            self._follower.receive(request_id, request, now)
            if self.ledger.end_index < end or request.type is PushType.TRUNCATE:
                self._withdraw_acks()
            self._collect_push_answers()
            if self._recovery is not None:
                if self._recovery_index is None and request.recovering == self._recovery:
                    self._recovery_index = request.commit_index
                self._check_recovery()
            self._begin_taking(now)

    def _withdraw_acks(self) -> None:
        """Entries were truncated before they were synced: do not acknowledge what takes their place."""
        for answer in self._unsynced:
            self._answer(
                answer.request_id,
                responses.push_response(answer.request, DLedgerCode.INCONSISTENT_STATE, self.ledger),
            )
        self._unsynced = []

    def _collect_push_answers(self) -> None:
        for answer in self._follower.take_answers():
            if self.config.sync_before_ack and answer.needs_synced > self.ledger.synced_index:
                if len(self._unsynced) < self.config.unsynced_max:
                    self._unsynced.append(answer)
                else:  # the leader pushes again when its time is over
                    self._answer_push(replace(answer, code=DLedgerCode.PUSH_REQUEST_IS_FULL))
            else:
                self._answer_push(answer)

    def _answer_push(self, answer: PushAnswer) -> None:
        self._answer(answer.request_id, responses.push_response(answer.request, answer.code, self.ledger))

    # Recovery of a member that may lack what it has acknowledged.

    def begin_group(self) -> None:
        """It is said that nobody has acknowledged anything yet: this member lacks nothing.

        A member that has a term may have acknowledged what was lost since with its memory, unlike the term.
        """
        if self.term == CurrentTerm().term:
            self._recovery = None

    def _hear_recovery(self, now: int, peer: str, number: int | None) -> None:
        """A member has answered: it is recovering with this number, or it is not."""
        known = self._recoveries.get(peer)
        if number == known:
            return
        if number is None:
            del self._recoveries[peer]
            if self._counts(peer, known):
                return
        else:
            self._recoveries[peer] = number
        if peer in self._pushers:
            self._pushers[peer].start_again(now)

    def _counts(self, peer: str, number: int | None) -> bool:
        """Whether what a member answers counts for this leader; `number` is that of its recovery, if any."""
        return number is None or self._readmitted.get(peer) == number

    def _confirms(self, heartbeats: _Round) -> bool:
        """Whether answers show that this member leads: those of a quorum that lacks nothing, or of all.

        A recovering member may have elected the leader of a newer term, and forgotten it.
        """
        succeeded = heartbeats.succeeded
        counted = sum(self._counts(peer, number) for peer, number in succeeded.items())
        return counted >= self.config.quorum or len(succeeded) == len(self.config.peers)

    def _readmit(self, heartbeats: _Round) -> None:
        """The members that had started when these were sent have never known a newer term."""
        found = {
            peer: number
            for peer, number in heartbeats.known.items()
            if self._recoveries.get(peer) == number and self._readmitted.get(peer) != number
        }
        if found:
            self._readmitted |= found
            self._maybe_commit()

    def _check_recovery(self) -> None:
        """End it once this log, on the disk where that counts, has all that may have been acknowledged.

        That is: what this member's own term, which began with all of it, has committed; on a follower as of
        a push that its leader made after it had heard of the start. From then on the leader counts nothing
        that was acknowledged before.
        """
        if self._recovery is None:
            return
        index = self._begin_index if self.role is Role.LEADER else self._recovery_index
        if index is None or min(self.ledger.committed_index, self._own_watermark()) < index:
            return
        if self._has_entry_of_term(index):
            self._recovery = None
            if self._current.voted_for is None:  # it may have voted in this term, and must not for another
                self._current = CurrentTerm(self.term, self.leader_id)
        self._recovery_index = None

    def _has_entry_of_term(self, index: int) -> bool:
        try:
            return self.ledger.entry(index).term == self.term
        except LedgerRefused:
            return False

    # Transfer of leadership.

    def _transfer_refusal(self, peer: str) -> DLedgerCode | None:
        if self.role is not Role.LEADER:
            return DLedgerCode.NOT_LEADER
        if peer not in self._pushers:
            return DLedgerCode.UNKNOWN_MEMBER
        if self.transferee is not None:
            return DLedgerCode.LEADER_TRANSFERRING
        if self.ledger.end_index - self._pushers[peer].watermark >= self.config.transfer_lag_max:
            return DLedgerCode.FALL_BEHIND_TOO_MUCH
        return None

    def _receive_transfer(self, now: int, request_id: int, request: LeadershipTransferRequest) -> None:
        code: DLedgerCode | None = None
        if request.term != self.term:
            code = DLedgerCode.INCONSISTENT_TERM
        elif request.transfer_id == self.node_id:
            code = self._transfer_refusal(request.transferee_id or "")
            if code is None:
                self._hand_over(request.transferee_id or "", request_id)
                return
        elif request.transferee_id != self.node_id:
            code = DLedgerCode.UNEXPECTED_ARGUMENT
        elif self.role is not Role.FOLLOWER or request.transfer_id != self.leader_id:
            code = DLedgerCode.INCONSISTENT_LEADER
        elif self._taking is not None:
            code = DLedgerCode.REPEATED_REQUEST
        if code is not None:
            self._answer(request_id, LeadershipTransferResponse(term=self.term, code=code))
            return
        self._taking = _Taking(request_id, request, now + self.config.transfer_wait)
        self._begin_taking(now)

    def _begin_taking(self, now: int) -> None:
        """Campaign once the log has what the leader's had."""
        taking = self._taking
        if taking is None or self.role is not Role.FOLLOWER or self.term != taking.request.term:
            return
        if self.ledger.end_index >= taking.request.take_leadership_ledger_index:
            self._next_term = True
            self._become_candidate(now, vote_at=now)
            self._ask_for_votes(now, transfer=True)

    def _end_taking(self, code: DLedgerCode) -> None:
        assert self._taking is not None, "no leadership is being taken"
        self._answer(self._taking.request_id, LeadershipTransferResponse(term=self.term, code=code))
        self._taking = None

    def _transfer_answered(self, now: int, handover: _Handover, response: DLedgerBody | None) -> None:
        code = DLedgerCode.TIMEOUT if response is None else DLedgerCode(response.code)
        if handover.request_id is not None:
            self._answer(handover.request_id, LeadershipTransferResponse(term=self.term, code=code))
        if self.term != handover.term or self.transferee is None:
            return
        if self.config.alone and (response is None or response.term != handover.term):
            # It has campaigned, or may do so yet. Such votes heed no leader, so this lease is worth nothing.
            self._become_candidate(now, vote_at=now + self._draw_vote_pause())
        else:
            self.transferee = None

    def _prefer(self, now: int) -> None:
        if self.transferee is not None or self.node_id in self.config.preferred_leaders:
            return
        alive = [
            peer
            for peer in self.config.preferred_leaders
            if peer in self._pushers and now < self._heard_at.get(peer, -NEVER) + self.config.silence_max
        ]
        best = max(alive, key=lambda peer: self._pushers[peer].watermark, default=None)
        if best is not None and self._transfer_refusal(best) is None:
            self._hand_over(best, None)
