"""DLedger's own client may append anything but messages."""

from __future__ import annotations

from typing import cast

from brokerset_broker.member.dledger.foreign_appends import no_records
from brokerset_formats.records import MAGIC_V1
from brokerset_protocol.bodies.dledger import AppendRequest, AppendResponse, DLedgerCode, DLedgerRequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection

RECORD = bytes(4) + MAGIC_V1.to_bytes(4, "big") + bytes(200)
CONNECTION = cast(Connection, None)


def _append(*bodies: bytes) -> int:
    """The code of the answer; 1 from the DLedger itself."""
    request = AppendRequest(body=bodies[0]) if len(bodies) == 1 else AppendRequest(batch_msgs=bodies)
    command = Command(DLedgerRequestCode.APPEND, body=request.to_json())

    def taken(connection: Connection, command: Command) -> Command:
        return command.reply(200, body=AppendResponse(code=1).to_json())

    answer = no_records(taken)(CONNECTION, command)
    assert isinstance(answer, Command)
    return AppendResponse.from_json(answer.body).code


def test_what_begins_like_a_message_is_refused_also_in_a_batch() -> None:
    assert _append(RECORD) == DLedgerCode.UNEXPECTED_ARGUMENT
    assert _append(b"text", RECORD) == DLedgerCode.UNEXPECTED_ARGUMENT


def test_anything_else_is_appended() -> None:
    assert _append(b"text") == 1
    assert _append(b"text", b"more") == 1
