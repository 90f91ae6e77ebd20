"""What DLedger's own client appends to a broker's log: anything but messages.

A message has a number in its queue, which only the broker's own append can give; and bytes that begin like a
message and are none would stop every member that dispatches them.
"""

from __future__ import annotations

from brokerset_broker.store.receiving import holds_record
from brokerset_protocol.bodies.dledger import AppendRequest, AppendResponse, DLedgerCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection
from brokerset_runtime.remoting.connection import Handler, Reply


def no_records(append: Handler) -> Handler:
    """APPEND (50001) that refuses bodies which begin like a message: UNEXPECTED_ARGUMENT (411)."""

    def handler(connection: Connection, command: Command) -> Reply:
        request = AppendRequest.from_json(command.body)
        bodies = request.batch_msgs or (() if request.body is None else (request.body,))
        if any(map(holds_record, bodies)):
            answer = AppendResponse(group=request.group, code=DLedgerCode.UNEXPECTED_ARGUMENT)
            return command.reply(DLedgerCode.SUCCESS, body=answer.to_json())
        return append(connection, command)

    return handler
