"""Whether all controllers can read entries of a newer format, before the first one is written.

A controller of an older version ends when it meets an entry that it cannot read; with a majority of such the
whole group would stop, in the middle of an upgrade.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from brokerset_protocol.bodies.codec import Unreadable
from brokerset_protocol.bodies.controllers import ControllerStatus
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout

ASK_SECONDS: Final = 2.0
"""Time-out of the question to a controller."""


async def reader_problems(
    asker: Asker, others: Mapping[int, str], log_format: int, lacking: str
) -> list[str]:
    """Ask the other controllers, by id with their addresses; what is wrong with those that may not read the
    format, and what to do. `lacking`: what an older version is without.

    One that does not answer may be of an older version, so all of them are needed.
    """
    problems = await asyncio.gather(
        *(_problem(asker, node, at, log_format, lacking) for node, at in sorted(others.items()))
    )
    return [problem for problem in problems if problem is not None]


async def _problem(asker: Asker, node_id: int, address: str, log_format: int, lacking: str) -> str | None:
    command = Command(RequestCode.BROKERSET_CONTROLLER_STATUS, {}, b"")
    try:
        answer = await asker.ask(address, command, ASK_SECONDS)
        known = ControllerStatus.from_json(answer.body).log_format if answer.code == 0 else 0
    except (ConnectionClosed, RequestTimeout):
        return f"controller {node_id} at {address} does not answer; start it, or remove it"
    except (Rejected, Unreadable):
        known = 0
    if known < log_format:
        return f"controller {node_id} at {address} is of a version without {lacking}; upgrade it"
    return None
