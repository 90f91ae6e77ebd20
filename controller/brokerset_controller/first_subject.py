"""Before the first subject is created: all controllers must be able to read the entries that it brings."""

from __future__ import annotations

from collections.abc import Mapping

from brokerset_controller.log_readers import reader_problems
from brokerset_controller.ordered.codec import ORDERED_VERSION
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.peer_requests import Asker


async def check_readers(asker: Asker, others: Mapping[int, str]) -> None:
    """Ask the other controllers, by id with their addresses; raise `Rejected` unless all can read subjects.

    With the first one there this is asked no more.
    """
    found = await reader_problems(asker, others, ORDERED_VERSION, "ordered subjects")
    if found:
        raise Rejected(
            ResponseCode.BROKERSET_SUBJECT_REFUSED,
            f"the first subject needs all controllers: {'; '.join(found)}",
        )
