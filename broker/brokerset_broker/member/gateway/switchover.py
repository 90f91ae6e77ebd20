"""BROKERSET_SWITCH_OVER (21011): a master hands over to another replica in the middle of its work.

Sends are held, the successor gets the rest of the log, the controllers are asked to name it, the held sends
go to it. From the request to the controllers on, this broker must not serve as master before it knows how
that ended: they may have named another one without waiting for the lease. So it asks again until it knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

import structlog

from brokerset_broker.member.ha.replication import ReplicaView
from brokerset_broker.member.membership.controllers import NoAnswer
from brokerset_broker.member.role import GroupNews, Role, RoleState
from brokerset_protocol.bodies.replicas import EpochEntryCache
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import BrokerIdentityAnswer, SwitchOverResponse
from brokerset_protocol.headers.controller import SwitchOver as SwitchOverHeader
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting import Connection, ConnectionClosed, Handler, RequestTimeout

log = structlog.get_logger(__name__)

TIMEOUT_MS_DEFAULT: Final = 2_000
"""How long the successor may take to catch up; then the switchover is given up."""

TIMEOUT_MS_MAX: Final = 10_000

WAITING_CHECK_SECONDS: Final = 0.005
"""How often it is checked whether all sends are answered: they end in many ways, and none reports it."""

HAND_OVER_PAUSE_SECONDS: Final = 0.1
"""Between two requests to the controllers whose end is unclear."""

RELIEF_PAUSE_SECONDS: Final = 0.4
"""Between two tries to be relieved: each costs the lease for a moment."""

TAKEN_SECONDS_MAX: Final = 10.0
"""How long this broker may take to become a slave, while it holds sends; without a lease it refuses them."""

TAKEN_CHECK_SECONDS: Final = 0.005

SERVED_SECONDS_MAX: Final = 2.0
"""How long the successor is watched until it says that it serves; only `pauseMs` depends on it."""

SERVED_CHECK_SECONDS: Final = 0.01

JAVA_MASTER_ROLE_ID: Final = 0
"""What a Java broker names as its id while it is master."""

_MASTERSHIP_ENDED: Final = (
    ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
    ResponseCode.CONTROLLER_INVALID_MASTER,
)
"""Refusals that say that the mastership is over, maybe by an earlier request without an answer: the news of
the role are on their way."""

ANSWER_SECONDS: Final = 5.0
"""How long the controllers may take before the administrator is told that the end is unclear."""


class SwitchOverParts(Protocol):
    """What a switchover needs of the broker."""

    @property
    def now(self) -> RoleState:
        """The role, as it is."""
        ...

    def replicas(self) -> Sequence[ReplicaView]:
        """The slaves that are connected."""
        ...

    def end_of_log(self) -> int:
        """End of the log."""
        ...

    def waiting(self) -> int:
        """Sends that are stored and not answered."""
        ...

    def set_switching(self, on: bool) -> None:
        """Hold writes, or treat them as the role wants."""
        ...

    async def caught_up(self, broker_id: int, offset: int, timeout: float) -> bool:
        """Wait until a replica has acknowledged everything below `offset`; False after `timeout` seconds."""
        ...

    async def hand_over(self, to_broker_id: int, epoch: int) -> GroupNews:
        """Ask the controllers to end this mastership and name the other one; returns what is in force.

        Takes the role that was told by itself, soon. Raises `Rejected` if they refused, `NoAnswer` if the
        end is not known.
        """
        ...

    async def be_relieved(self, epoch: int, needed: int) -> GroupNews:
        """As `hand_over`, to whomever the controllers choose, who needs `needed` living replicas."""
        ...

    async def serves(self, address: str, epoch: int) -> bool:
        """Whether the broker at `address` says that it is master in this epoch; `says_master` does it."""
        ...


async def says_master(asker: Asker, address: str, epoch: int, timeout: float = 0.5) -> bool:
    """Ask a broker who it is (1007): whether it is master in `epoch` or a later one.

    A Java broker does not name the epoch in which it leads; it leads in its last one when it calls itself 0.
    """
    try:
        reply = await asker.ask(address, Command(RequestCode.GET_BROKER_EPOCH_CACHE), timeout)
        if reply.code != ResponseCode.SUCCESS:
            return False
        identity = BrokerIdentityAnswer.from_ext(reply.ext)
        found = identity.master_epoch
        if found is None and identity.nonce is None:
            cache = EpochEntryCache.from_json(reply.body)
            leads = cache.broker_id == JAVA_MASTER_ROLE_ID and cache.epoch_list
            found = cache.epoch_list[-1].epoch if leads else None
    except (ConnectionClosed, RequestTimeout, Rejected):
        return False
    return found is not None and found >= epoch


def choose_successor(wanted: int | None, own_id: int | None, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """The replica to hand over to: the wanted one, or the one in sync that has the most.

    Raises `Rejected` with the reason if there is none.
    """
    fit = sorted((each for each in replicas if each.in_sync and not each.learner), key=lambda r: r.broker_id)
    if wanted is None:
        if not fit:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, "no other replica is in sync and connected; see `brokerset status`"
            )
        return max(fit, key=lambda each: each.acknowledged)  # the smallest id of equals
    if wanted == own_id:
        raise Rejected(ResponseCode.INVALID_PARAMETER, f"replica {wanted} is the master already")
    for each in fit:
        if each.broker_id == wanted:
            return each
    known = ", ".join(str(each.broker_id) for each in fit) or "none"
    raise Rejected(
        ResponseCode.INVALID_PARAMETER,
        f"replica {wanted} is not in sync and connected; those that are: {known}",
    )


class SwitchOver:
    """Serves switchovers, one at a time."""

    def __init__(self, broker_name: str, parts: SwitchOverParts) -> None:
        self._broker_name = broker_name
        self._parts = parts
        self._task: asyncio.Task[Any] | None = None
        self._relief_not_before = 0.0
        self.completed = 0
        """Switchovers that succeeded since the start."""

        self.failed = 0

    def handlers(self) -> dict[int, Handler]:
        """The request code that is served here."""
        return {RequestCode.BROKERSET_SWITCH_OVER: self.switch_over}

    @property
    def running(self) -> bool:
        """Whether one is being carried out."""
        return self._task is not None

    async def hand_over(self, seconds: float) -> bool:
        """Hand over to whoever is the furthest, before this broker ends; whether that came about."""
        now = self._parts.now
        if now.role is not Role.MASTER or self._task is not None:
            return False
        try:
            target = choose_successor(None, now.master_id, self._parts.replicas())
        except Rejected:
            return False
        task = asyncio.get_running_loop().create_task(self._carry_out(now, target.broker_id, seconds))
        task.add_done_callback(self._ended)
        self._task = task
        await asyncio.wait([task], timeout=seconds)
        return self._parts.now.role is not Role.MASTER

    def relieve(self, needed: int, *, begin: bool) -> bool:
        """Hand over to whomever the controllers choose, for this master hears no replica.

        Returns whether that, or another switchover, is being tried.
        """
        if self._task is not None:
            return True
        now, loop = self._parts.now, asyncio.get_running_loop()
        if now.role is not Role.MASTER or not begin:
            return False
        if loop.time() >= self._relief_not_before:
            self._task = loop.create_task(self._be_relieved(now, needed))
            self._task.add_done_callback(self._relief_ended)
        return True

    async def _be_relieved(self, now: RoleState, needed: int) -> None:
        """Nothing can be drained: sends that wait are answered when the role goes, not acknowledged."""
        parts = self._parts
        log.warning("this master hears no replica and asks to be relieved", epoch=now.epoch)
        parts.set_switching(True)
        try:
            news = await self._until_known(now, lambda: parts.be_relieved(now.epoch, needed))
            log.info("relieved", master_id=news.master_id, epoch=news.epoch)
            await self._wait_taken(now)
        finally:
            parts.set_switching(False)

    def _relief_ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._relief_not_before = asyncio.get_running_loop().time() + RELIEF_PAUSE_SECONDS
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Rejected):
            log.info("not relieved, goes on", reason=error.remark)
        elif error is not None:
            log.error("not relieved", exc_info=error)

    async def close(self) -> None:
        """Give up; this broker must not serve as master afterwards."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def switch_over(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """BROKERSET_SWITCH_OVER: answered when the successor serves, or with what went wrong."""
        header = SwitchOverHeader.from_ext(command.ext)
        now = self._parts.now
        if header.broker_name != self._broker_name:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"this is a broker of {self._broker_name}, not of {header.broker_name}",
            )
        if now.role is not Role.MASTER:
            known = f"ask {now.master_address}" if now.master_address else "no master is known"
            raise Rejected(ResponseCode.SYSTEM_BUSY, f"this broker is not master of its group: {known}")
        if self._task is not None:
            raise Rejected(ResponseCode.SYSTEM_BUSY, "a switchover is being carried out already")
        target = choose_successor(header.to_broker_id, now.master_id, self._parts.replicas())
        timeout_ms = header.timeout_ms if header.timeout_ms is not None else TIMEOUT_MS_DEFAULT
        seconds = max(1, min(timeout_ms, TIMEOUT_MS_MAX)) / 1000
        log.info("switchover begins", to=target.broker_id, epoch=now.epoch, by=connection.peer)
        task = asyncio.get_running_loop().create_task(self._carry_out(now, target.broker_id, seconds))
        task.add_done_callback(self._ended)
        self._task = task
        return self._reply_to(command, task, seconds)

    async def _reply_to(
        self, command: Command, task: asyncio.Task[SwitchOverResponse], seconds: float
    ) -> Command:
        """Wait for the end. The task goes on if the administrator leaves: half of it is worse than all."""
        try:
            async with asyncio.timeout(seconds + ANSWER_SECONDS + SERVED_SECONDS_MAX):
                answer = await asyncio.shield(task)
        except TimeoutError:
            raise Rejected(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "nobody says yet whether the hand-over was carried out; this broker asks on and"
                " holds sends until it knows; see `brokerset status`",
            ) from None
        return command.reply(ext=answer.to_ext())

    def _ended(self, task: asyncio.Task[SwitchOverResponse]) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.completed += 1
            answer = task.result()
            log.info(
                "switchover done",
                master_id=answer.master_broker_id,
                epoch=answer.master_epoch,
                pause_ms=answer.pause_ms,
            )
            return
        self.failed += 1
        if isinstance(error, Rejected):
            log.warning("switchover failed", reason=error.remark)
        else:
            log.error("switchover failed", exc_info=error)

    async def _carry_out(self, now: RoleState, target: int, seconds: float) -> SwitchOverResponse:
        parts, loop = self._parts, asyncio.get_running_loop()
        began = loop.time()
        parts.set_switching(True)
        try:
            await self._drain(now, target, began + seconds)
            news = await self._hand_over(now, target)
            if news.master_id is None or news.master_id == now.master_id:
                raise Rejected(ResponseCode.SYSTEM_ERROR, "no other master was named")
        except Exception:
            parts.set_switching(False)
            raise
        await self._wait_taken(now)
        parts.set_switching(False)
        await self._wait_served(news)
        return SwitchOverResponse(
            master_broker_id=news.master_id,
            master_address=news.master_address,
            master_epoch=news.epoch,
            pause_ms=int((loop.time() - began) * 1000),
        )

    async def _drain(self, now: RoleState, target: int, deadline: float) -> None:
        """Wait until the target has everything and every send is answered. Raises `Rejected` if not."""
        parts, loop = self._parts, asyncio.get_running_loop()
        await self._catch_up(target, deadline)
        while parts.waiting():
            if loop.time() >= deadline:
                raise Rejected(
                    ResponseCode.SYSTEM_BUSY,
                    f"{parts.waiting()} sends still wait for other replicas; this broker serves on",
                )
            await asyncio.sleep(WAITING_CHECK_SECONDS)
        await self._catch_up(target, deadline)  # what the broker itself has written meanwhile
        if (parts.now.role, parts.now.epoch) != (now.role, now.epoch):
            raise Rejected(ResponseCode.SYSTEM_BUSY, "the role has changed meanwhile; look who is master")

    async def _catch_up(self, target: int, deadline: float) -> None:
        end = self._parts.end_of_log()
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        if not await self._parts.caught_up(target, end, left):
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"replica {target} has not reached offset {end} in time; this broker serves on",
            )

    async def _hand_over(self, now: RoleState, target: int) -> GroupNews:
        """Ask until the end is known: the controllers answer, or another role has come.

        Raises `Rejected` if this broker stays master.
        """
        return await self._until_known(now, lambda: self._parts.hand_over(target, now.epoch))

    async def _until_known(self, now: RoleState, ask: Callable[[], Awaitable[GroupNews]]) -> GroupNews:
        parts = self._parts
        while True:
            try:
                return await ask()
            except NoAnswer as error:
                log.warning("hand-over without an answer, asking again", reason=str(error))
            except Rejected as rejected:
                if rejected.code not in _MASTERSHIP_ENDED:
                    raise
            if (parts.now.role, parts.now.epoch) == (now.role, now.epoch):
                await asyncio.sleep(HAND_OVER_PAUSE_SECONDS)
            if (parts.now.role, parts.now.epoch) != (now.role, now.epoch):
                then = parts.now
                return GroupNews(
                    then.epoch, then.master_id, then.master_address, then.set_epoch, then.sync_state_set
                )

    async def _wait_taken(self, now: RoleState) -> None:
        """Until this broker has left its mastership."""
        parts, loop = self._parts, asyncio.get_running_loop()
        deadline = loop.time() + TAKEN_SECONDS_MAX
        while (parts.now.role, parts.now.epoch) == (now.role, now.epoch):
            if loop.time() >= deadline:
                log.error("the role that follows on a switchover was not taken", epoch=now.epoch)
                return
            await asyncio.sleep(TAKEN_CHECK_SECONDS)

    async def _wait_served(self, news: GroupNews) -> None:
        """Until the successor says that it serves, so that `pauseMs` is the whole pause."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SERVED_SECONDS_MAX
        if news.master_address is None or news.epoch is None:
            return
        while loop.time() < deadline:
            if await self._parts.serves(news.master_address, news.epoch):
                return
            await asyncio.sleep(SERVED_CHECK_SECONDS)
