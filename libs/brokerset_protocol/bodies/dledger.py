"""Bodies of DLedger's requests and answers (codes 50000 to 51005): JSON, with `byte[]` as base64.

Source: DLedger 0.3.1.2, `io.openmessaging.storage.dledger.protocol`. The code of the answering command is
always 200; the real one is the body's `code`. Java ignores fields that it does not know, so members of ours
tell each other more: `brokerset` and those that say "of ours". A member of a group of ours alone takes
nothing from one that lacks it. Those push entries as bytes, by a request of ours.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum, StrEnum
from typing import Annotated, Final

from brokerset_formats.dledger import LedgerEntry, LedgerRun
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import JsonBody, Most, Wire
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.codec import Header, Int, Long

OWN_VERSION: Final = 1
"""What `brokerset` says in groups whose members are all ours."""

PUSHED_ENTRIES_MAX: Final = 10_000
"""Entries of one push that are taken."""


class DLedgerRequestCode(IntEnum):
    """What a request on the port of `dLegerPeers` asks for, under Java's names."""

    METADATA = 50000
    APPEND = 50001
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    """Java answers nothing."""

    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005

    PUSH_RUN = 52004
    """Of ours: entries as they stand in the file.

    It collides with nothing. DLedger numbers requests of clients from 50000 on, those between members from
    51000 on, and a later release would go on there. Only members of a group that is ours alone send this, to
    each other, and the port where they do serves no request of RocketMQ.
    """


class DLedgerCode(IntEnum):
    """What a body's `code` says, under Java's names (`DLedgerResponseCode`)."""

    UNKNOWN = -1
    SUCCESS = 200
    TIMEOUT = 300
    METADATA_ERROR = 301
    NETWORK_ERROR = 302
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_INDEX = 408
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_REQUEST = 412
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    INDEX_LESS_THAN_LOCAL_BEGIN = 419
    REQUEST_WITH_EMPTY_BODYS = 420
    PUSH_REQUEST_IS_FULL = 421
    INTERNAL_ERROR = 500
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    ILLEGAL_MEMBER_STATE = 504
    LEADER_NOT_READY = 505
    LEADER_TRANSFERRING = 506

    @classmethod
    def _missing_(cls, value: object) -> DLedgerCode:
        """Numbers of other versions."""
        return cls.UNKNOWN


class VoteResult(StrEnum):
    """How a member votes, under Java's names (`VoteResponse.RESULT`)."""

    UNKNOWN = "UNKNOWN"
    ACCEPT = "ACCEPT"
    REJECT_UNKNOWN_LEADER = "REJECT_UNKNOWN_LEADER"
    REJECT_UNEXPECTED_LEADER = "REJECT_UNEXPECTED_LEADER"
    REJECT_EXPIRED_VOTE_TERM = "REJECT_EXPIRED_VOTE_TERM"
    REJECT_ALREADY_VOTED = "REJECT_ALREADY_VOTED"
    REJECT_ALREADY_HAS_LEADER = "REJECT_ALREADY_HAS_LEADER"
    REJECT_TERM_NOT_READY = "REJECT_TERM_NOT_READY"
    REJECT_TERM_SMALL_THAN_LEDGER = "REJECT_TERM_SMALL_THAN_LEDGER"
    REJECT_EXPIRED_LEDGER_TERM = "REJECT_EXPIRED_LEDGER_TERM"
    REJECT_SMALL_LEDGER_END_INDEX = "REJECT_SMALL_LEDGER_END_INDEX"
    REJECT_TAKING_LEADERSHIP = "REJECT_TAKING_LEADERSHIP"


class PushType(StrEnum):
    """What a follower does with the entries of a push (`PushEntryRequest.Type`)."""

    APPEND = "APPEND"
    COMMIT = "COMMIT"
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class DLedgerBody(JsonBody):
    """What every request and answer has: the group, its ends, the leader, the term and the code."""

    group: str | None = None
    remote_id: str | None = None
    """Of a request: the member that it is for."""

    local_id: str | None = None
    """Of a request: the member that sends it; clients have none."""

    leader_id: str | None = None
    """Of a vote request: the candidate."""

    term: int = -1
    code: int = DLedgerCode.SUCCESS
    brokerset: int | None = None
    """`OWN_VERSION` among members of a group of ours alone; else absent."""

    recovering: int | None = None
    """Of ours. Of an answer: the member may lack what it has acknowledged; a number drawn at its start.

    Of a request: that number, if the sender has heard it from the receiver.
    """

    @property
    def succeeded(self) -> bool:
        """Whether an answer is a success."""
        return self.code == DLedgerCode.SUCCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest(DLedgerBody):
    """VOTE (51001): the end of the candidate's log; -1 for an empty one."""

    ledger_end_index: int = -1
    ledger_end_term: int = -1
    pre_vote: bool | None = None
    """Of ours: whether the member would vote so; nothing changes by it."""

    transfer: bool | None = None
    """Of ours: the leader itself wants this election."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse(DLedgerBody):
    """The vote; `term` is the term of the member that votes."""

    vote_result: VoteResult = VoteResult.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest(DLedgerBody):
    """HEART_BEAT (51002): the sender leads this term."""

    address: str | None = None
    """Of ours: where clients find the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse(DLedgerBody):
    """Java fills in the term only where it refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest(DLedgerBody):
    """PUSH (51004): one entry in `entry`, or several in `batch_entry`; none with COMMIT."""

    type: PushType = PushType.APPEND
    entry: LedgerEntry | None = None
    batch_entry: Annotated[tuple[LedgerEntry, ...], Most(PUSHED_ENTRIES_MAX)] = ()
    commit_index: int = -1
    sequence: int | None = None
    """Of ours: grows with each push of a leader to a member; a late truncation is known by it."""

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """The entries, in order."""
        return self.batch_entry or (() if self.entry is None else (self.entry,))

    @property
    def first_index(self) -> int | None:
        """Index of the first entry."""
        return self.entries[0].index if self.entries else None

    @property
    def count(self) -> int:
        """How many entries it has."""
        return len(self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRunHeader(Header):
    """PUSH_RUN (52004): the body has the bytes of the entries."""

    group: str
    remote_id: str
    leader_id: str
    term: Long
    first_index: Long
    count: Int
    position: Long
    commit_index: Long
    sequence: Long
    brokerset: Int
    recovering: Long | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRunRequest(PushRequest):
    """PUSH_RUN (52004), of ours: an APPEND whose entries stand in its body as in the file. It is no JSON."""

    run: LedgerRun

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """The entries one by one; FormatError for a run that is none."""
        return self.run.entries()

    @property
    def first_index(self) -> int:
        """Index of the first entry."""
        return self.run.first_index

    @property
    def count(self) -> int:
        """How many entries it has."""
        return self.run.count

    def without_data(self) -> PushRunRequest:
        """What an answer needs of it."""
        return replace(self, run=replace(self.run, data=b""))

    def to_command(self) -> Command:
        """The request on the wire."""
        run = self.run
        header = PushRunHeader(
            group=self.group or "",
            remote_id=self.remote_id or "",
            leader_id=self.leader_id or "",
            term=self.term,
            first_index=run.first_index,
            count=run.count,
            position=run.position,
            commit_index=self.commit_index,
            sequence=-1 if self.sequence is None else self.sequence,
            brokerset=OWN_VERSION,
            recovering=self.recovering,
        )
        return Command(DLedgerRequestCode.PUSH_RUN, header.to_ext(), run.data)

    @classmethod
    def from_command(cls, command: Command) -> PushRunRequest:
        """Read the request; its entries are checked by `LedgerRun.check`. Raises `Rejected`."""
        header = PushRunHeader.from_ext(command.ext)
        return cls(
            group=header.group,
            remote_id=header.remote_id,
            local_id=header.leader_id,
            leader_id=header.leader_id,
            term=header.term,
            brokerset=header.brokerset,
            recovering=header.recovering,
            commit_index=header.commit_index,
            sequence=header.sequence,
            run=LedgerRun(header.first_index, header.count, header.position, command.body),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResponse(DLedgerBody):
    """`index` and `count` are those of the request; begin and end those of the follower's own log."""

    index: int | None = None
    count: int = 0
    begin_index: int = -1
    end_index: int = -1

    def to_run_answer(self, request: Command) -> Command:
        """The answer to PUSH_RUN: the same in the header."""
        header = PushRunAnswerHeader(
            term=self.term,
            code=self.code,
            brokerset=self.brokerset,
            recovering=self.recovering,
            begin_index=self.begin_index,
            end_index=self.end_index,
        )
        return request.reply(DLedgerCode.SUCCESS, ext=header.to_ext())

    @classmethod
    def from_run_answer(cls, answer: Command) -> PushResponse:
        """Read the answer to PUSH_RUN. Raises `Rejected`."""
        header = PushRunAnswerHeader.from_ext(answer.ext)
        return cls(
            term=header.term,
            code=header.code,
            brokerset=header.brokerset,
            recovering=header.recovering,
            begin_index=header.begin_index,
            end_index=header.end_index,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRunAnswerHeader(Header):
    """Answer to PUSH_RUN (52004)."""

    term: Long
    code: Int
    brokerset: Int | None = None
    recovering: Long | None = None
    begin_index: Long
    end_index: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipTransferRequest(DLedgerBody):
    """LEADERSHIP_TRANSFER (51005): to the leader, and from there to the member that shall lead."""

    transfer_id: str | None = None
    """The member that leads."""

    transferee_id: str | None = None
    """The member that shall lead."""

    take_leadership_ledger_index: int = 0
    """The transferee becomes a candidate when its log has this index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipTransferResponse(DLedgerBody):
    """Whether the transferee leads now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(DLedgerBody):
    """METADATA (50000): who leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse(DLedgerBody):
    """The leader is in `leader_id`; the address of each member by its id."""

    peers: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequest(DLedgerBody):
    """APPEND (50001): one body, or several in `batch_msgs`."""

    body: bytes | None = None
    batch_msgs: Annotated[tuple[bytes, ...], Most(PUSHED_ENTRIES_MAX)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResponse(DLedgerBody):
    """Index and position of the entry; of a batch, those of the last, and the position of each."""

    index: int = -1
    position: Annotated[int, Wire("pos")] = -1
    positions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRequest(DLedgerBody):
    """GET (50002): the entry at `begin_index`. Java reads no more than one, whatever `max_size` says."""

    begin_index: int | None = None
    max_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GetResponse(DLedgerBody):
    """The entry, or none."""

    entries: Annotated[tuple[LedgerEntry, ...], Most(PUSHED_ENTRIES_MAX)] = ()
