"""Makes one of ours master instead of a living Java broker without losing a message, and back.

A Java master that is told to follow may still acknowledge what no replica has (`docs/compatibility.md`). So
it is first made to turn sends away, in two ways at once: `startAcceptSendRequestTimeStamp`, which
`SendMessageProcessor.preSend` compares with the clock before anything else, and which ends by itself; and
`brokerPermission` without the right to write, which covers messages that consumers give back (sends to
ordinary topics are not: `AbstractSendMessageProcessor.msgCheck` looks at it for ordered ones only). Clients
retry both answers, 1 and 16. Both settings are in the journal before they are changed, and so is the election
before it is asked for, so that a call that was cut off is put right by the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.adoption_journal import Before, Journal
from brokerset_cli.takeover.broker_queries import BrokerQueries, clock_ms
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_protocol.codes import ResponseCode

ACCEPTS: Final = "startAcceptSendRequestTimeStamp"
PERMISSION: Final = "brokerPermission"
CHANGED: Final = (PERMISSION, ACCEPTS)
"""The settings that a switchover changes; what they were is in the journal."""

WAITING: Final = "sendThreadPoolQueueSize"
STORING: Final = "pageCacheLockTimeMills"
"""Of a Java broker: sends that wait for a thread, and how long (ms) somebody has been appending to
the log (`CommitLog.lockTimeMills`); 0 while nobody does."""

WRITE: Final = 2
"""The bit of `brokerPermission` that lets a broker take messages (`PermName.PERM_WRITE`)."""

CLOSED_MS: Final = 60_000
"""How long a Java master turns sends away if nobody ends it sooner; longer than a switchover may take."""

NEAR_BYTES: Final = 8 * 1024 * 1024
"""Our replica may lack so much when sends are stopped: a moment's work."""

NEAR_SECONDS_MAX: Final = 120.0
TABLES_SECONDS_MAX: Final = 30.0
"""How long it is waited, with sends going on, until our replica is near and has the tables."""

CLOSED_SECONDS_MAX: Final = 5.0
"""How long the Java master may take until it turns sends away, or takes them again."""

SETTLE_SECONDS: Final = 0.2
"""A send that was let in a moment before is stored after that, or seen to be stored (`STORING`)."""

CAUGHT_UP_SECONDS_MAX: Final = 15.0
AGAIN_SECONDS_MAX: Final = 1.0
"""How long our replica may take once more, right before it is elected: messages that fall due are stored also
by a master that is closed."""

SERVES_SECONDS_MAX: Final = 15.0
HEARD_SECONDS_MAX: Final = 15.0
"""A relieved Java master that missed the notice asks its controllers within 10 s."""

ELECT_SECONDS_MAX: Final = 35.0
"""No election begins later than this after the Java master was closed: it opens by itself (`CLOSED_MS`), and
a command that was halted in between would elect next to a master that takes messages."""

ELECTION_SECONDS_MAX: Final = 10.0
"""How long it is tried to ask for one: to find who leads the controllers, and to get an answer."""

UNCLEAR_SECONDS: Final = 10.0
"""How long an election without a clear answer may still come after it was asked for last: a controller waits
5 s for the others, and as long for a new leader. A master that is put back sooner could be relieved while it
takes messages. The three together end before a closed master opens by itself."""

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
OBSERVE_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Switchover:
    """The parts of one switchover."""

    brokers: BrokerQueries
    journal: Journal
    elect: Callable[[str, int], Awaitable[None]]
    """Name the successor of a group at the controllers (1002)."""

    master: Callable[[str], Awaitable[str | None]]
    """Address of the master that the controllers name for a group (1006)."""

    missing: Callable[[str, str], Awaitable[list[str]]]
    """Topics and groups of one broker that another one does not have."""

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    wall_clock: Callable[[], float] = time.time
    """Seconds since 1970, for the journal: another process reads it, perhaps after this machine has started
    again. It is shown, and never counted with."""

    elect_seconds: float = ELECTION_SECONDS_MAX

    async def to_ours(self, group: GroupFacts, java: Replica, heir: Replica) -> float:
        """Make `heir`, one of ours, master instead of the living Java broker.

        Returns for how many seconds nobody took messages. Raises `CommandFailed` and `ClientError`s. Java's
        broker takes messages again then if it is master still; after an unclear election only when that one
        cannot come any more.
        """
        await self._near(java, heir)
        await self._has_tables(java, heir, TABLES_SECONDS_MAX)
        await self._note(group.name, java.address)
        closed = self.clock()
        try:
            await self._close(java.address)
            await self._caught_up(java, heir, CAUGHT_UP_SECONDS_MAX)
            await self._has_tables(java, heir, CAUGHT_UP_SECONDS_MAX)
            await self._elect(group.name, java, heir, closed)
            await self._serves(group.name, heir)
            pause = self.clock() - closed
            self.journal.elects(java.address, 0)
        finally:  # also when the person ends the command
            await self.put_back_all()
        return pause

    async def _elect(self, group: str, java: Replica, heir: Replica, closed: float) -> None:
        """Ask for the election; the journal knows of it before it is asked for, and until it is decided."""
        self.journal.elects(java.address, round(self.wall_clock() * 1000))
        try:
            if not await self.brokers.refuses_sends(java.address):
                raise CommandFailed(
                    f"{java.address} takes sends again, though it was closed; nobody was elected",
                    "did it start again, or did somebody change its settings? The same command goes on",
                )
            await self._caught_up(java, heir, AGAIN_SECONDS_MAX)
            if self.clock() - closed > ELECT_SECONDS_MAX:
                raise CommandFailed(
                    f"closing {java.address} and catching up took more than {ELECT_SECONDS_MAX:g} s, and it "
                    "opens by itself; nobody was elected",
                    "the same command tries it again",
                )
        except (ClientError, CommandFailed):
            self.journal.elects(java.address, 0)  # it was not asked for
            raise
        self.say(f"{group}: {heir.address} has everything; it is elected")
        try:
            async with asyncio.timeout(self.elect_seconds):
                await self.elect(group, heir.broker_id)
        except RequestRefused as error:
            if error.code in DECIDED:
                self.journal.elects(java.address, 0)
            raise
        except TimeoutError:
            raise CommandFailed(
                f"{group}: the controllers gave no answer to the election in {self.elect_seconds:g} s",
                "see `brokerset status`; the same command goes on",
            ) from None

    async def to_java(self, group: GroupFacts, master: Replica, heir: Replica) -> float:
        """Make a Java broker master instead of ours, which holds sends meanwhile; returns the pause (s)."""
        await self._has_tables(master, heir, TABLES_SECONDS_MAX)
        began = self.clock()
        done = await self.brokers.switch_over(master.address, group.name, heir.broker_id, SWITCH_OVER_SECONDS)
        await self._serves(group.name, heir)
        return self.clock() - began if done.pause_ms is None else done.pause_ms / 1000

    async def put_back_all(self) -> tuple[Before, ...]:
        """Put back what switchovers have changed; returns what could not be, as its broker does not answer.

        While an election that was asked for may still come, a broker that is master yet takes no messages.
        That is counted from now on: whoever has asked is this call, or one that has ended.
        """
        left = []
        until = self.clock() + UNCLEAR_SECONDS
        for before in self.journal.changed:
            if before.elected_ms:
                asked = time.strftime("%H:%M:%S", time.localtime(before.elected_ms / 1000))
                self.say(
                    f"{before.group}: the election that was asked for at {asked} may still come; it is "
                    f"waited for, {UNCLEAR_SECONDS:g} s at most"
                )
            try:
                await self._until(
                    f"{before.address} knows its role",
                    partial(self._has_heard, before, until),
                    HEARD_SECONDS_MAX,
                )
                await self.brokers.change(before.address, before.settings)
                await self._until(
                    f"{before.address} has its settings back",
                    partial(self._is_back, before),
                    CLOSED_SECONDS_MAX,
                )
            except (ClientError, CommandFailed) as error:
                left.append(before)
                self.say(f"{before.address} does not get its settings back yet: {error}")
                continue
            self.journal.forget(before.address)
        return tuple(left)

    async def _has_heard(self, before: Before, until: float) -> str:
        """A relieved master that has not heard of it must take no messages: it would be alone with them."""
        if await self.master(before.group) == before.address:
            may_come = before.elected_ms and self.clock() < until
            return "an election that was asked for may still come" if may_come else ""
        leads = (await self.brokers.epochs(before.address)).broker_id == 0
        return "it has not heard yet that it is not master any more" if leads else ""

    async def _is_back(self, before: Before) -> str:
        """A change that this or an earlier call gave up waiting for may have come after ours."""
        now = await self.brokers.settings(before.address)
        wrong = [f"{name}={now.get(name)}" for name, text in before.settings.items() if now.get(name) != text]
        return f"it has {', '.join(wrong)}" if wrong else ""

    # -- steps --------------------------------------------------------------------------------------------

    async def _near(self, java: Replica, heir: Replica) -> None:
        """Until the heir lacks little, while sends go on."""

        async def against() -> str:
            lag = await self.brokers.log_end(java.address) - await self.brokers.log_end(heir.address)
            return "" if lag <= NEAR_BYTES else f"it is {lag:,} bytes behind"

        await self._until(f"{heir.address} is near the end of the log", against, NEAR_SECONDS_MAX)

    async def _has_tables(self, master: Replica, heir: Replica, seconds: float) -> None:
        """Until the heir knows every topic and group of the master; slaves of both makes poll them."""

        async def against() -> str:
            missing = await self.missing(master.address, heir.address)
            return f"it lacks {', '.join(missing[:5])}" if missing else ""

        await self._until(f"{heir.address} has the topics and groups of {master.address}", against, seconds)

    async def _note(self, group: str, address: str) -> None:
        found = await self.brokers.settings(address)
        before: dict[str, str] = {name: found[name] for name in CHANGED if name in found}
        if set(before) != set(CHANGED):
            raise CommandFailed(
                f"{address} does not tell its {' and '.join(CHANGED)}; nothing was changed",
                "see `brokerset adopt --look`: is it a Java broker that allows requests of administrators?",
            )
        self.journal.remember(Before(group, address, before))

    async def _close(self, address: str) -> None:
        """Until no send is taken any more, and those that were taken are stored."""
        now_ms = clock_ms(await self.brokers.measurements(address))
        if now_ms is None:  # with another clock than its own it would open at another time than we count on
            raise CommandFailed(
                f"{address} does not tell what its clock shows; it was not closed",
                "see `brokerset adopt --look`: is it a Java broker that allows requests of administrators?",
            )
        permission = int((await self.brokers.settings(address))[PERMISSION]) & ~WRITE
        await self.brokers.change(address, {PERMISSION: str(permission), ACCEPTS: str(now_ms + CLOSED_MS)})

        async def against() -> str:
            if not await self.brokers.refuses_sends(address):
                return "it still takes sends"
            measurements = await self.brokers.measurements(address)
            waiting, storing = measurements.get(WAITING, "0"), measurements.get(STORING, "0")
            if waiting != "0":
                return f"{waiting} sends wait in it"
            return "" if storing == "0" else f"it has been storing a message for {storing} ms"

        await self._until(f"{address} turns sends away", against, CLOSED_SECONDS_MAX)
        await self.sleep(SETTLE_SECONDS)
        await self._until(f"{address} has stored the last sends", against, CLOSED_SECONDS_MAX)

    async def _caught_up(self, java: Replica, heir: Replica, seconds: float) -> None:
        async def against() -> str:
            end = await self.brokers.log_end(java.address)
            own = await self.brokers.log_end(heir.address)
            return "" if own >= end else f"it is {end - own:,} bytes behind"

        await self._until(f"{heir.address} has the whole log", against, seconds)

    async def _serves(self, group: str, heir: Replica) -> None:
        async def against() -> str:
            named = await self.master(group)
            if named != heir.address:
                return f"the controllers name {named}"
            return "" if (await self.brokers.epochs(heir.address)).broker_id == 0 else "it does not lead yet"

        await self._until(f"{heir.address} is master of {group}", against, SERVES_SECONDS_MAX)

    async def _until(self, what: str, against: Callable[[], Awaitable[str]], seconds: float) -> None:
        """Observe until there is no reason against it. Raises `CommandFailed` with the last one."""
        deadline = self.clock() + seconds
        while True:
            try:
                reason = await against()
            except ClientError as error:
                reason = str(error)
            if not reason:
                return
            if self.clock() >= deadline:
                raise CommandFailed(
                    f"waited {seconds:g} s until {what}, but {reason}",
                    "see `brokerset adopt --look`; the same command tries it again",
                )
            await self.sleep(OBSERVE_SECONDS)
