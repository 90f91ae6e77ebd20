"""Before the first subject is created: all controllers must be able to read the entries that it brings.

A controller of an older version ends when it meets an entry that it cannot read; with a majority of such the
whole group would stop, in the middle of an upgrade.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from brokerset_controller.ordered.codec import ORDERED_VERSION
from brokerset_protocol.bodies.codec import Unreadable
from brokerset_protocol.bodies.controllers import ControllerStatus
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout

ASK_SECONDS: Final = 2.0
"""Time-out of the question to a controller."""


async def check_readers(asker: Asker, others: Mapping[int, str]) -> None:
    """Ask the other controllers, by id with their addresses; raise `Rejected` unless all can read subjects.

    One that does not answer may be of an older version, so the first subject needs all of them. With the
    first one there this is asked no more.
    """
    problems = await asyncio.gather(*(_problem(asker, node, at) for node, at in sorted(others.items())))
    found = [problem for problem in problems if problem is not None]
    if found:
        raise Rejected(
            ResponseCode.BROKERSET_SUBJECT_REFUSED,
            f"the first subject needs all controllers: {'; '.join(found)}",
        )


async def _problem(asker: Asker, node_id: int, address: str) -> str | None:
    command = Command(RequestCode.BROKERSET_CONTROLLER_STATUS, {}, b"")
    try:
        answer = await asker.ask(address, command, ASK_SECONDS)
        known = ControllerStatus.from_json(answer.body).log_format if answer.code == 0 else 0
    except (ConnectionClosed, RequestTimeout):
        return f"controller {node_id} at {address} does not answer; start it, or remove it"
    except (Rejected, Unreadable):
        known = 0
    if known < ORDERED_VERSION:
        return f"controller {node_id} at {address} is of a version without ordered subjects; upgrade it"
    return None
