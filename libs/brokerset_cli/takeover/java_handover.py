"""Hands mastership over from a living Java broker to one of ours without losing a message, and back.

A Java master that is told to follow may still acknowledge what no replica has (`docs/compatibility.md`). So
it is first made to turn sends away, in two ways at once: `startAcceptSendRequestTimeStamp`, which
`SendMessageProcessor.preSend` compares with the clock before anything else, and which ends by itself; and
`brokerPermission` without the right to write, which covers messages that consumers give back (sends to
ordinary topics are not: `AbstractSendMessageProcessor.msgCheck` looks at it for ordered ones only). Clients
retry both answers, 1 and 16. Both settings are in the journal before they are changed, so that a call that
was cut off is put right by the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.asking import clock_ms
from brokerset_cli.takeover.handover_journal import Before
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_protocol.bodies.replicas import EpochEntryCache
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.controller import SwitchOverResponse

ACCEPTS: Final = "startAcceptSendRequestTimeStamp"
PERMISSION: Final = "brokerPermission"
CHANGED: Final = (PERMISSION, ACCEPTS)
"""The settings that a hand-over changes; what they were is in the journal."""

WRITE: Final = 2
"""The bit of `brokerPermission` that lets a broker take messages (`PermName.PERM_WRITE`)."""

CLOSED_MS: Final = 60_000
"""How long a Java master turns sends away if nobody ends it sooner; longer than a hand-over may take."""

NEAR_BYTES: Final = 8 * 1024 * 1024
"""Our replica may lack so much when sends are stopped: a moment's work."""

NEAR_SECONDS_MAX: Final = 120.0
TABLES_SECONDS_MAX: Final = 30.0
"""How long it is waited, with sends going on, until our replica is near and has the tables."""

CLOSED_SECONDS_MAX: Final = 5.0
"""How long the Java master may take until it turns sends away."""

SETTLE_SECONDS: Final = 0.2
"""A send that was let in a moment before is stored after that."""

CAUGHT_UP_SECONDS_MAX: Final = 15.0
SERVES_SECONDS_MAX: Final = 15.0
HEARD_SECONDS_MAX: Final = 15.0
"""A relieved Java master that missed the notice asks its controllers within 10 s."""

ELECT_SECONDS_MAX: Final = 40.0
"""Nobody is elected later than this after the Java master was closed: it opens by itself (`CLOSED_MS`), and a
command that was halted in between would elect beside a master that takes messages."""

UNCLEAR_SECONDS: Final = 10.0
"""How long an election without a clear answer may still come: a controller waits 5 s for the others, and as
long for a new leader. A master that is put back sooner could be relieved while it takes messages."""

DECIDED: Final = frozenset(
    {
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        ResponseCode.CONTROLLER_INVALID_REQUEST,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
        ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
    }
)
"""Refusals after which no election is under way. Java answers 1 when its log did not agree in time."""

SWITCH_OVER_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.05

Say = Callable[[str], None]


class Brokers(Protocol):
    """What is asked of single brokers; `Asker` does it."""

    async def settings(self, address: str) -> dict[str, str]:
        """Settings in force."""
        ...

    async def change(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running broker."""
        ...

    async def figures(self, address: str) -> dict[str, str]:
        """Figures of a running broker."""
        ...

    async def epochs(self, address: str) -> EpochEntryCache:
        """Its epochs; `broker_id` is 0 on a master."""
        ...

    async def log_end(self, address: str) -> int:
        """End of its log."""
        ...

    async def refuses_sends(self, address: str) -> bool:
        """Whether it turns sends away."""
        ...

    async def switch_over(self, address: str, group: str, to: int, seconds: float) -> SwitchOverResponse:
        """Let a master of ours hand over."""
        ...


class Memory(Protocol):
    """What outlives the command; `Journal` does it."""

    @property
    def changed(self) -> tuple[Before, ...]:
        """What has to be put back."""
        ...

    def remember(self, before: Before) -> None:
        """On the disk when it returns."""
        ...

    def forget(self, address: str) -> None:
        """It is as it was."""
        ...


@dataclass(frozen=True, slots=True)
class HandOver:
    """The parts of one hand-over."""

    brokers: Brokers
    memory: Memory
    elect: Callable[[str, int], Awaitable[None]]
    """Name the successor of a group at the controllers (1002)."""

    master: Callable[[str], Awaitable[str | None]]
    """Address of the master that the controllers name for a group (1006)."""

    missing: Callable[[str, str], Awaitable[list[str]]]
    """Topics and groups of one broker that another one does not have."""

    say: Say
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def to_ours(self, group: GroupFacts, java: Replica, heir: Replica) -> float:
        """Make `heir`, one of ours, master instead of the living Java broker.

        Returns for how many seconds nobody took messages. Raises `CommandFailed`, with Java's broker master
        and taking messages as before; when an election is unclear, only when it cannot come any more.
        """
        await self._near(java, heir)
        await self._has_tables(java, heir, TABLES_SECONDS_MAX)
        await self._note(group.name, java.address)
        closed, unclear = self.clock(), False
        try:
            await self._close(java.address)
            await self._caught_up(java, heir)
            await self._has_tables(java, heir, CAUGHT_UP_SECONDS_MAX)
            if self.clock() - closed > ELECT_SECONDS_MAX:
                raise CommandFailed(
                    f"closing {java.address} and catching up took more than {ELECT_SECONDS_MAX:g} s, and it "
                    "opens by itself; nobody was elected",
                    "the same command tries it again",
                )
            self.say(f"{group.name}: {heir.address} has everything; it is elected")
            unclear = True
            try:
                await self.elect(group.name, heir.broker_id)
            except RequestRefused as error:
                unclear = error.code not in DECIDED
                raise
            await self._serves(group.name, heir)
            pause, unclear = self.clock() - closed, False
        finally:  # also when the person ends the command
            await self.put_back_all(UNCLEAR_SECONDS if unclear else 0.0)
        return pause

    async def to_java(self, group: GroupFacts, master: Replica, heir: Replica) -> float:
        """Make a Java broker master instead of ours, which holds sends meanwhile; returns the pause (s)."""
        await self._has_tables(master, heir, TABLES_SECONDS_MAX)
        began = self.clock()
        done = await self.brokers.switch_over(master.address, group.name, heir.broker_id, SWITCH_OVER_SECONDS)
        await self._serves(group.name, heir)
        return self.clock() - began if done.pause_ms is None else done.pause_ms / 1000

    async def put_back_all(self, unclear_seconds: float = 0.0) -> tuple[Before, ...]:
        """Put back what hand-overs have changed; returns what could not be, as its broker does not answer.

        For so long an election may still come: a broker that is master yet takes no messages before.
        """
        left = []
        until = self.clock() + unclear_seconds
        if unclear_seconds:
            self.say(f"an election may still come: it is waited for, {unclear_seconds:g} s at most")
        for before in self.memory.changed:
            try:
                await self._until(
                    f"{before.address} knows its role",
                    partial(self._has_heard, before, until),
                    HEARD_SECONDS_MAX,
                )
                await self.brokers.change(before.address, before.settings)
            except (ClientError, CommandFailed) as error:
                left.append(before)
                self.say(f"{before.address} does not get its settings back yet: {error}")
                continue
            self.memory.forget(before.address)
        return tuple(left)

    async def _has_heard(self, before: Before, until: float) -> str:
        """A relieved master that has not heard of it must take no messages: it would be alone with them."""
        if await self.master(before.group) == before.address:
            return "an election that was asked for may still come" if self.clock() < until else ""
        leads = (await self.brokers.epochs(before.address)).broker_id == 0
        return "it has not heard yet that it is not master any more" if leads else ""

    # -- steps --------------------------------------------------------------------------------------------

    async def _near(self, java: Replica, heir: Replica) -> None:
        """Until the heir lacks little, while sends go on."""

        async def look() -> str:
            lag = await self.brokers.log_end(java.address) - await self.brokers.log_end(heir.address)
            return "" if lag <= NEAR_BYTES else f"it is {lag:,} bytes behind"

        await self._until(f"{heir.address} is near the end of the log", look, NEAR_SECONDS_MAX)

    async def _has_tables(self, master: Replica, heir: Replica, seconds: float) -> None:
        """Until the heir knows every topic and group of the master; slaves of both makes poll them."""

        async def look() -> str:
            missing = await self.missing(master.address, heir.address)
            return f"it lacks {', '.join(missing[:5])}" if missing else ""

        await self._until(f"{heir.address} has the topics and groups of {master.address}", look, seconds)

    async def _note(self, group: str, address: str) -> None:
        found = await self.brokers.settings(address)
        before: dict[str, str] = {name: found[name] for name in CHANGED if name in found}
        if set(before) != set(CHANGED):
            raise CommandFailed(
                f"{address} does not tell its {' and '.join(CHANGED)}; nothing was changed",
                "see `brokerset adopt --look`: is it a Java broker that allows requests of administrators?",
            )
        self.memory.remember(Before(group, address, before))

    async def _close(self, address: str) -> None:
        """Until no send is taken any more, and those that were taken are stored."""
        figures = await self.brokers.figures(address)
        now_ms = clock_ms(figures)
        until_ms = (time.time_ns() // 1_000_000 if now_ms is None else now_ms) + CLOSED_MS
        permission = int((await self.brokers.settings(address))[PERMISSION]) & ~WRITE
        await self.brokers.change(address, {PERMISSION: str(permission), ACCEPTS: str(until_ms)})

        async def look() -> str:
            if not await self.brokers.refuses_sends(address):
                return "it still takes sends"
            waiting = (await self.brokers.figures(address)).get("sendThreadPoolQueueSize", "0")
            return "" if waiting == "0" else f"{waiting} sends wait in it"

        await self._until(f"{address} turns sends away", look, CLOSED_SECONDS_MAX)
        await self.sleep(SETTLE_SECONDS)

    async def _caught_up(self, java: Replica, heir: Replica) -> None:
        async def look() -> str:
            end = await self.brokers.log_end(java.address)
            own = await self.brokers.log_end(heir.address)
            return "" if own >= end else f"it is {end - own:,} bytes behind"

        await self._until(f"{heir.address} has the whole log", look, CAUGHT_UP_SECONDS_MAX)

    async def _serves(self, group: str, heir: Replica) -> None:
        async def look() -> str:
            named = await self.master(group)
            if named != heir.address:
                return f"the controllers name {named}"
            return "" if (await self.brokers.epochs(heir.address)).broker_id == 0 else "it does not lead yet"

        await self._until(f"{heir.address} is master of {group}", look, SERVES_SECONDS_MAX)

    async def _until(self, what: str, look: Callable[[], Awaitable[str]], seconds: float) -> None:
        """Look again until there is no reason against it. Raises `CommandFailed` with the last one."""
        deadline = self.clock() + seconds
        while True:
            try:
                reason = await look()
            except ClientError as error:
                reason = str(error)
            if not reason:
                return
            if self.clock() >= deadline:
                raise CommandFailed(
                    f"waited {seconds:g} s until {what}, but {reason}",
                    "see `brokerset adopt --look`; the same command tries it again",
                )
            await self.sleep(LOOK_SECONDS)
