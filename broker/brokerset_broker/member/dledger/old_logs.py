"""Members that begin a DLedger group compare, ahead of the first vote, the commit logs that they had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from brokerset_broker.store.old_log import OldLog, first_difference
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting import Connection, ConnectionClosed, RequestTimeout
from brokerset_runtime.remoting.connection import Handler

log = structlog.get_logger(__name__)

OLD_LOG: Final = 51990
"""Request of ours on the port of `dLegerPeers`: the digests of the old log. Java's codes end at 51005."""

ASK_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.5
"""Until the others are asked again."""

ADVICE: Final = (
    "let slaves catch up with their master before a group is changed to DLedger mode, or give this member a"
    " copy of the folder commitlog of one that the others agree with"
)


def old_log_handler(known: Callable[[], OldLog]) -> Handler:
    """Answers with the digests of what is left of this member's old log."""

    def answer(connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=known().to_json())

    return answer


class OldLogComparison:
    """Asks the other members for their old logs until a quorum, this member included, has the same."""

    def __init__(self, own: OldLog, others: Mapping[str, str], quorum: int, asker: Asker) -> None:
        """`others` are the addresses of the other members, by id."""
        self._own = own
        self._others = others
        self._quorum = quorum
        self._asker = asker
        self._equal: set[str] = set()
        self._begun = False
        self.problem = ""
        """Why this member does not vote yet."""
        self.differs = False
        """Whether it does not because another member's old log is not the same."""

    @property
    def group_is_new(self) -> bool:
        """Once `run` is over: a quorum has an old log, and none of it has entries of the DLedger."""
        return bool(self._own.files) and not self._begun

    async def run(self) -> None:
        """Return when a quorum has the same old log."""
        while not await self._ask_others():  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_SECONDS)
        self.problem = ""
        self.differs = False

    async def _ask_others(self) -> bool:
        differences: list[str] = []
        for member, address in self._others.items():
            if member in self._equal:
                continue
            theirs = await self._ask(address)
            if theirs is None:
                continue
            difference = first_difference(self._own, theirs, member)
            if difference is None:
                self._equal.add(member)
                self._begun |= theirs.begun
            else:
                differences.append(difference)
        if differences and differences != [self.problem]:
            log.error("old commit logs differ", differences=differences, advice=ADVICE)
        if len(self._equal) + 1 >= self._quorum:
            return True
        self.differs = bool(differences)
        waits = "fewer than half of the other members have told their old logs"
        self.problem = f"{differences[0]}; {ADVICE}" if differences else waits
        return False

    async def _ask(self, address: str) -> OldLog | None:
        try:
            answer = await self._asker.ask(address, Command(OLD_LOG), ASK_SECONDS)
            return OldLog.from_json(answer.body) if answer.code == ResponseCode.SUCCESS else None
        except (ConnectionClosed, RequestTimeout, ValueError):
            return None
