"""Bodies of DLedger are read and written as Java's fastjson does it."""

from __future__ import annotations

import pytest

from brokerset_formats.dledger import LedgerEntry, LedgerRun
from brokerset_protocol.bodies.dledger import (
    OWN_VERSION,
    AppendRequest,
    AppendResponse,
    DLedgerBody,
    DLedgerCode,
    GetResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataResponse,
    PushRequest,
    PushResponse,
    PushRunRequest,
    PushType,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected

ENTRY = LedgerEntry(7, 3, 1024, b"hello")
ENTRY_JSON = (
    b'{"body":"aGVsbG8=","bodyCrc":0,"chainCrc":0,"channel":0,"index":7,"magic":1,'
    b'"pos":1024,"size":53,"term":3}'
)
PEERS = b'"group":"g","leaderId":"n0","localId":"n0","remoteId":"n1","term":4'

FROM_JAVA: list[tuple[bytes, DLedgerBody]] = [
    (
        b'{"code":200,"group":"g","leaderId":"n0","ledgerEndIndex":7,"ledgerEndTerm":3,"localId":"n0",'
        b'"remoteId":"n1","term":4}',
        VoteRequest(
            group="g",
            leader_id="n0",
            local_id="n0",
            remote_id="n1",
            term=4,
            ledger_end_index=7,
            ledger_end_term=3,
        ),
    ),
    (
        b'{"code":200,' + PEERS + b',"voteResult":"ACCEPT"}',
        VoteResponse(
            group="g", leader_id="n0", local_id="n0", remote_id="n1", term=4, vote_result=VoteResult.ACCEPT
        ),
    ),
    (
        b'{"code":200,' + PEERS + b"}",
        HeartbeatRequest(group="g", leader_id="n0", local_id="n0", remote_id="n1", term=4),
    ),
    (b'{"code":200,"term":-1}', HeartbeatResponse()),
    (b'{"code":403,"term":9}', HeartbeatResponse(code=DLedgerCode.EXPIRED_TERM, term=9)),
    (
        b'{"body":"aGk=","code":200,"group":"g","remoteId":"n0","term":-1}',
        AppendRequest(group="g", remote_id="n0", body=b"hi"),
    ),
    (
        b'{"code":200,"group":"g","index":5,"leaderId":"n0","pos":512,"term":2}',
        AppendResponse(group="g", leader_id="n0", index=5, position=512, term=2),
    ),
    (
        b'{"code":200,"entries":[' + ENTRY_JSON + b'],"group":"g","term":-1}',
        GetResponse(group="g", entries=(ENTRY,)),
    ),
    (
        b'{"code":200,"group":"g","leaderId":"n1","peers":{"n0":"127.0.0.1:40911"},"term":-1}',
        MetadataResponse(group="g", leader_id="n1", peers={"n0": "127.0.0.1:40911"}),
    ),
    (
        b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":6,"count":1,"entry":' + ENTRY_JSON + b","
        b'"firstEntryIndex":7,"lastEntryIndex":7,' + PEERS + b',"totalSize":0,"type":"APPEND"}',
        PushRequest(
            group="g", leader_id="n0", local_id="n0", remote_id="n1", term=4, entry=ENTRY, commit_index=6
        ),
    ),
    (
        b'{"beginIndex":0,"code":200,"count":1,"endIndex":7,"group":"g","index":7,"term":3}',
        PushResponse(group="g", term=3, index=7, count=1, begin_index=0, end_index=7),
    ),
]


@pytest.mark.parametrize(("text", "body"), FROM_JAVA, ids=lambda each: type(each).__name__)
def test_what_java_writes_is_read(text: bytes, body: DLedgerBody) -> None:
    """Fields that are only derived (`batch`, `count`, `totalSize` …) are ignored."""
    assert type(body).from_json(text) == body


@pytest.mark.parametrize("body", [body for _, body in FROM_JAVA], ids=lambda each: type(each).__name__)
def test_what_is_written_is_read_again(body: DLedgerBody) -> None:
    """Whatever a member says arrives."""
    assert type(body).from_json(body.to_json()) == body


def test_several_entries_of_a_push_stand_in_a_list() -> None:
    """Java takes either form from whoever pushes."""
    second = LedgerEntry(8, 3, 1077, b"world")

    push = PushRequest.from_json(PushRequest(batch_entry=(ENTRY, second), type=PushType.APPEND).to_json())

    assert push.entries == (ENTRY, second)
    assert push.entry is None


def test_an_answer_of_ours_without_a_mark_is_javas() -> None:
    """What only members of ours say is absent where nobody set it, so Java reads what it knows."""
    assert b"brokerset" not in HeartbeatResponse().to_json()
    assert (
        HeartbeatRequest.from_json(HeartbeatRequest(brokerset=OWN_VERSION).to_json()).brokerset == OWN_VERSION
    )


def test_codes_of_other_versions_are_unknown() -> None:
    """Java maps other numbers to -1 (UNKNOWN), too."""
    assert DLedgerCode(508) is DLedgerCode.UNKNOWN


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (ENTRY_JSON.replace(b'"size":53', b'"size":54'), "entry 7 of 54 bytes, with a body of 5"),
        (ENTRY_JSON.replace(b"aGVsbG8=", b"aGVsbG8"), "no base64"),
        (ENTRY_JSON.replace(b'"index":7', b'"index":-7'), "entry -7"),
        (ENTRY_JSON.replace(b'"magic":1', b'"magic":2'), "entry 7"),
        (ENTRY_JSON.replace(b'"pos":1024', b'"pos":"x"'), "pos of an entry is 'x' instead of a number"),
        (ENTRY_JSON.replace(b'"term":3', b'"term":99999999999999999999'), "term of an entry"),
        (ENTRY_JSON.replace(b'"index":7', b'"index":%d' % (1 << 58)), "entry 288230376151711744"),
        (ENTRY_JSON.replace(b'"pos":1024', b'"pos":%d' % (1 << 62)), "at 4611686018427387904"),
        (b"[]", "no JSON object"),
    ],
)
def test_a_wrong_entry_is_refused_by_name(broken: bytes, problem: str) -> None:
    """The refusal says what is wrong with it."""
    with pytest.raises(Rejected, match=problem):
        PushRequest.from_json(b'{"entry":' + broken + b',"type":"APPEND"}')


RUN_REQUEST = PushRunRequest(
    group="g",
    remote_id="n1",
    local_id="n0",
    leader_id="n0",
    term=4,
    brokerset=OWN_VERSION,
    commit_index=6,
    sequence=12,
    run=LedgerRun(7, 1, 1024, ENTRY.encode()),
)


def test_a_run_travels_as_it_stands_in_the_file() -> None:
    """The body has nothing but its bytes; what a push says besides is in the header."""
    command = RUN_REQUEST.to_command()

    assert command.body == ENTRY.encode()
    assert command.ext == {
        "group": "g",
        "remoteId": "n1",
        "leaderId": "n0",
        "term": "4",
        "firstIndex": "7",
        "count": "1",
        "position": "1024",
        "commitIndex": "6",
        "sequence": "12",
        "brokerset": "1",
    }
    assert PushRunRequest.from_command(command) == RUN_REQUEST
    assert RUN_REQUEST.entries == (ENTRY,)
    assert RUN_REQUEST.type is PushType.APPEND


def test_answer_to_a_run_is_in_the_header() -> None:
    """Code, term, and the ends of the follower's log."""
    answer = PushResponse(
        term=4, code=DLedgerCode.INCONSISTENT_STATE, brokerset=OWN_VERSION, begin_index=0, end_index=9
    )

    command = answer.to_run_answer(RUN_REQUEST.to_command())

    assert command.body == b""
    assert PushResponse.from_run_answer(command) == answer


@pytest.mark.parametrize(
    "field", ["group", "leaderId", "term", "firstIndex", "count", "position", "sequence"]
)
def test_a_run_without_a_field_is_refused_by_name(field: str) -> None:
    """Of a header, nothing is guessed."""
    command = RUN_REQUEST.to_command()
    del command.ext[field]

    with pytest.raises(Rejected, match=field):
        PushRunRequest.from_command(command)
    with pytest.raises(Rejected, match="term"):
        PushResponse.from_run_answer(Command(3))
