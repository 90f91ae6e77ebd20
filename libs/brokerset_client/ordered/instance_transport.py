"""The transport of ordered subjects over real connections: those of a `ClientInstance`.

Requests of all producers and consumers of the instance share one connection for each address. A long poll
is an unanswered request there, which delays none of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Final, TypeVar

import structlog

from brokerset_client.controller_admin import ControllersUnavailable
from brokerset_client.errors import (
    AnswerTimeout,
    BrokerUnreachable,
    ClientError,
    NameServerUnavailable,
    NoQueue,
    RequestRefused,
    TopicNotFound,
)
from brokerset_client.instance import (
    ROUTE_REFRESH_GAP_SECONDS,
    SILENT_SECONDS,
    ClientInstance,
    name_server_list,
    readable,
)
from brokerset_client.ordered.leader_claims import LeaderClaim, choose_leader, claim_of
from brokerset_client.routes import Route
from brokerset_protocol import headers
from brokerset_protocol.bodies.controllers import ControllerStatus
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.subject_words import CONTROLLERS_KEY, CONTROLLERS_NAMESPACE

log = structlog.get_logger(__name__)

T = TypeVar("T")

ATTEMPT_SECONDS: Final = SILENT_SECONDS + 0.1
"""How long one controller may take for an answer, in addition to what the request allows it to wait. A little
more than what makes a connection a silent one, which is then given up."""

EARLY_SECONDS: Final = 0.005
"""The loop's timers may ring so much before their time."""

PROBE_SECONDS: Final = 1.0
"""Time-out of asking a controller who leads."""

SUSPECT_SECONDS: Final = 1.0
"""How long a controller that did not answer is not asked, whatever others say of it."""

SEARCH_PAUSE_SECONDS: Final = 0.05
"""Pause between two searches for the one that leads."""

CONTROLLERS_MAX: Final = 32
"""Addresses of controllers that are kept; the ones that were learned first are dropped for new ones."""

TOPICS_MAX: Final = 10_000
"""Topics whose last reading of the route is remembered."""

MASTER_GONE: Final = (
    ResponseCode.SYSTEM_BUSY,  # a replica refuses like this what only its master serves
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.GO_AWAY,
)
"""Codes of brokers that may not be the master (any more): the route is read again before the next request."""

NOT_LEADING: Final = (ResponseCode.CONTROLLER_NOT_LEADER, ResponseCode.GO_AWAY)
"""Codes of controllers that do not lead (any more): nothing was carried out."""


class ControllersUnknown(ClientError):
    """Nobody says where the controllers are: name them."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the addresses of the controllers are not known: {reason}. Name them: controllers='host:port;…'"
        )


class InstanceTransport:
    """An `OrderedTransport` over the connections of `instance`, which must be started, and outlives it.

    `controllers` is one address, several joined by `;`, or a list. Without it the name servers are asked for
    them, which the name servers in brokerset's controllers can answer. Members that are added later are
    learned from the controllers themselves.
    """

    def __init__(self, instance: ClientInstance, controllers: str | Sequence[str] | None = None) -> None:
        self._instance = instance
        self._given = name_server_list(controllers) if controllers else ()
        self._controllers: dict[str, None] = dict.fromkeys(self._given)
        self._leader: str | None = None
        self._suspects: dict[str, float] = {}
        """Controllers that did not answer, each with the loop's time until which it is not asked."""
        self._search: asyncio.Task[str] | None = None
        self._stale: dict[str, float] = {}
        """When a route was last said to be stale, on the loop's clock."""
        self._read: dict[str, float] = {}
        """When the last reading of a route began that gave one."""
        self._tried: dict[str, float] = {}
        """When reading a route began the last time."""
        self._reading: dict[str, float] = {}
        """Since when a route is being read now."""

    @property
    def controllers(self) -> tuple[str, ...]:
        """The addresses that are known."""
        return tuple(self._controllers)

    # -- controllers --------------------------------------------------------------------------------------

    async def ask_controllers(self, command: Command, timeout: float) -> Command:
        """The answer of the controller that leads, whatever its code, in `timeout` seconds.

        A leader that dies, is silent or is deposed meanwhile is replaced by the next one, which is asked
        again: all requests of the protocol may be repeated. Raises `ClientError`: `ControllersUnavailable`
        when none leads, `AnswerTimeout` when the time is over, `ControllersUnknown`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        problem: ClientError | None = None
        while True:
            remaining = deadline - loop.time()
            if remaining <= 0:
                break
            leader = self._leader
            if leader is None:
                try:
                    leader = await self._found_leader(remaining)
                except ControllersUnavailable as error:
                    problem = problem or error
                    continue
                except TimeoutError:
                    break
            whole = ATTEMPT_SECONDS + _wait_seconds(command)
            attempt = min(deadline - loop.time(), whole)
            try:
                answer = await self._instance.call(leader, _copy(command), max(attempt, 0.001))
            except (BrokerUnreachable, AnswerTimeout) as error:
                problem = error
                late = isinstance(error, AnswerTimeout) or loop.time() >= deadline - EARLY_SECONDS
                if late and attempt < whole:
                    break  # the caller had no more time, which says nothing about the controller
                self._suspects[leader] = loop.time() + SUSPECT_SECONDS
            else:
                if answer.code not in NOT_LEADING:
                    return answer
                problem = RequestRefused(answer.code, answer.remark or "it does not lead", leader)
                self._leader_lost(leader)
                await asyncio.sleep(min(SEARCH_PAUSE_SECONDS, max(0.0, deadline - loop.time())))
                continue
            self._leader_lost(leader)
        if isinstance(problem, ControllersUnavailable):
            raise problem
        raise AnswerTimeout(
            f"no controller carried out request {command.code} in {timeout:g} s"
            + (f"; last: {problem}" if problem is not None else "")
        ) from problem

    def _leader_lost(self, address: str) -> None:
        if self._leader == address:
            self._leader = None

    async def _found_leader(self, timeout: float) -> str:
        """The address of the leader. Callers share one search, which ends with the last of its tries.

        Raises `TimeoutError`, or a `ClientError`.
        """
        if self._search is None:
            self._search = self._instance.spawn(self._search_leader(), "leader of the controllers")
            self._search.add_done_callback(self._search_ended)
        return await self._shared(self._search, timeout)

    def _search_ended(self, task: asyncio.Task[str]) -> None:
        self._search = None
        if not task.cancelled():
            task.exception()  # who waited for it may have given up

    async def _search_leader(self) -> str:
        """Ask who leads until somebody does, for at most as long as one attempt takes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ATTEMPT_SECONDS
        while True:
            if not self._controllers:
                await self._learn_from_name_servers()
            problems: dict[str, str] = {}
            claims = await self._claims(problems)
            now = loop.time()
            self._suspects = {each: until for each, until in self._suspects.items() if until > now}
            leader = choose_leader(claims, self._suspects)
            if leader is not None:
                self._leader = leader
                log.debug("controllers are led", leader=leader)
                return leader
            if not claims and not self._given:
                # All that were known are gone: others may have taken their place.
                self._controllers.clear()
            if now >= deadline:
                nobody = (
                    [] if problems else ["those that answer know no leader: more than half of them must run"]
                )
                texts = [f"{address}: {text}" for address, text in problems.items()]
                raise ControllersUnavailable([*texts, *nobody])
            await asyncio.sleep(SEARCH_PAUSE_SECONDS)

    async def _claims(self, problems: dict[str, str]) -> list[LeaderClaim]:
        """What controllers say, until one says who leads; `problems` gets why others do not answer."""
        asked = [each for each in self._controllers if each not in self._suspects] or list(self._controllers)
        pending = {asyncio.ensure_future(self._claim(address, problems)) for address in asked}
        claims: list[LeaderClaim] = []
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                claims += [claim for task in done if (claim := task.result()) is not None]
                if choose_leader(claims, self._suspects) is not None:
                    break
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        for claim in claims:
            self._learn(claim.members)
        return claims

    async def _claim(self, address: str, problems: dict[str, str]) -> LeaderClaim | None:
        try:
            answer = await self._instance.request(
                address, RequestCode.BROKERSET_CONTROLLER_STATUS, timeout=PROBE_SECONDS
            )
            return claim_of(address, readable(ControllerStatus.from_json, answer.body))
        except ClientError as error:
            problems[address] = str(error)
            return None

    def _learn(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            self._controllers[address] = None
        learned = [each for each in self._controllers if each not in self._given]
        for address in learned[: max(0, len(self._controllers) - CONTROLLERS_MAX)]:
            del self._controllers[address]

    async def _learn_from_name_servers(self) -> None:
        header = headers.GetKVConfig(namespace=CONTROLLERS_NAMESPACE, key=CONTROLLERS_KEY)
        try:
            answer = await self._instance.ask_name_server(RequestCode.GET_KV_CONFIG, header)
        except RequestRefused as refused:
            raise ControllersUnknown(f"{refused.address} does not say") from refused
        value = answer.ext.get("value", "")
        if not value:
            raise ControllersUnknown("the name server does not know them yet")
        self._learn(name_server_list(value))

    # -- brokers ------------------------------------------------------------------------------------------

    async def ask_master(self, topic: str, broker_group: str, command: Command, timeout: float) -> Command:
        """The answer of the master of a broker group that has the topic, whatever its code.

        Nothing that was sent is sent again: whether it was carried out is for the caller to find out. Raises
        `ClientError` within `timeout` seconds: `TopicNotFound`, `NoQueue` (the group has no master now),
        `BrokerUnreachable`, `AnswerTimeout`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                address = await self._connected_master(topic, broker_group)
        except TimeoutError:
            self.route_is_stale(topic)
            raise AnswerTimeout(f"no master of {broker_group} was reached in {timeout:g} s") from None
        try:
            answer = await self._instance.call(address, _copy(command), max(0.001, deadline - loop.time()))
        except (BrokerUnreachable, AnswerTimeout):
            self.route_is_stale(topic)
            raise
        if answer.code in MASTER_GONE:
            self.route_is_stale(topic)
        return answer

    def route_is_stale(self, topic: str) -> None:
        """An answer says that another broker is master: read the route again before the next request."""
        if len(self._stale) >= TOPICS_MAX:
            del self._stale[next(iter(self._stale))]
        self._stale[topic] = asyncio.get_running_loop().time()

    async def _connected_master(self, topic: str, broker_group: str) -> str:
        """The address of the master, connected; one that cannot be reached is replaced by its successor."""
        address = (await self._route(topic)).master(broker_group)
        if address is not None:
            if self._instance.peek(address) is not None:
                return address
            try:
                await self._instance.connect(address)
                return address
            except BrokerUnreachable:
                self.route_is_stale(topic)
                after = (await self._route(topic)).master(broker_group)
                if after in (address, None):
                    raise
                await self._instance.connect(after)
                return after
        self.route_is_stale(topic)
        address = (await self._route(topic)).master(broker_group)
        if address is None:
            raise NoQueue(
                f"broker group {broker_group} has no master that serves {topic} now; try again later"
            )
        await self._instance.connect(address)
        return address

    async def _route(self, topic: str) -> Route:
        """The route: as known, unless it is stale; then it is read again, but not more often than allowed."""
        loop = asyncio.get_running_loop()
        while True:
            known = self._instance.cached_route(topic)
            if known is not None and known.created_on_send:
                known = None
            if known is not None and self._stale.get(topic, -inf) < self._read.get(topic, -inf):
                return known
            if known is not None and topic not in self._stale:
                return known  # somebody else has read it
            early = self._tried.get(topic, -inf) + ROUTE_REFRESH_GAP_SECONDS - loop.time()
            if topic in self._reading or early <= 0:
                break
            await asyncio.sleep(early)
        try:
            return await self._read_route(topic)
        except (NameServerUnavailable, TopicNotFound):
            self.route_is_stale(topic)
            if known is not None:
                return known  # an older answer is better than none
            raise

    async def _read_route(self, topic: str) -> Route:
        """The route as a name server says it. Callers share one request, also that of who began before."""
        began = self._reading.get(topic)
        joined = began is not None
        if began is None:
            if len(self._tried) >= TOPICS_MAX:
                self._tried.clear()
                self._read.clear()
            began = self._tried[topic] = self._reading[topic] = asyncio.get_running_loop().time()
        try:
            route = await self._instance.route(topic, fresh=True)
        finally:
            if not joined:
                self._reading.pop(topic, None)
        self._read[topic] = max(began, self._read.get(topic, -inf))
        return route

    # -- inside -------------------------------------------------------------------------------------------

    async def _shared(self, task: asyncio.Task[T], timeout: float) -> T:
        """The result of a task that others wait for, too. Raises `TimeoutError`, and what the task raises."""
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                self._instance.check_running()  # raises when the instance was closed, which ends its tasks
            raise


def _wait_seconds(command: Command) -> float:
    """How long the request allows the controller to wait before it answers."""
    text = command.ext.get("waitMs", "0")
    return int(text) / 1000 if text.isdecimal() else 0.0


def _copy(command: Command) -> Command:
    """The same request as a frame of its own: a command that waits for its answer must not be sent again."""
    return Command(command.code, dict(command.ext), command.body)
