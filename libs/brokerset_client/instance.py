"""What producers, consumers and admins of one process share: connections, routes, heartbeats, owned tasks.

Source: `MQClientInstance`. Other than Java's, it reads a route again as soon as an answer or a lost
connection says that it may be stale, instead of waiting for the next regular turn.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from brokerset_acl.signatures import Credentials
from brokerset_client.client_requests import ClientRequests, GroupMember, TransactionChecker
from brokerset_client.errors import (
    AnswerTimeout,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    NameServerUnavailable,
    RequestRefused,
    TopicNotFound,
)
from brokerset_client.replies import ReplyTable
from brokerset_client.retry import Backoff
from brokerset_client.routes import AUTO_CREATE_TOPIC, Route, route_of, template_route
from brokerset_protocol import headers
from brokerset_protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from brokerset_protocol.bodies.routes import MASTER_ID, TopicRouteData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import LocalProtocolError, Rejected
from brokerset_runtime.clock import Clock, SystemClock
from brokerset_runtime.remoting import (
    Connection,
    ConnectionClosed,
    ConnectionLimits,
    ConnectionPool,
    RequestTimeout,
)
from brokerset_runtime.tls import Tls, tls_of_environment

log = structlog.get_logger(__name__)

T = TypeVar("T")

ROUTE_REFRESH_SECONDS = 30.0
"""Regular turn of reading every known route again."""

ROUTE_REFRESH_GAP_SECONDS = 0.05
"""Least time between two updates on demand, so that a broken broker does not flood the name servers."""

HEARTBEAT_SECONDS = 30.0
"""Regular turn of heartbeats; brokers forget a client after 120 s."""

HEARTBEAT_RETRY_MS_MAX = 5000
"""Longest wait until a heartbeat that failed is tried again."""

HEARTBEAT_GAP_SECONDS_MAX = 0.5
"""Least time between two heartbeats on demand after several that failed."""

ANNOUNCE_SECONDS: Final = 1.0
"""How long a request waits for brokers that do not know this client yet, and the least time between two
tries to reach one of them."""

CALL_SECONDS = 3.0
"""Time-out of a request unless the caller gives one."""

TOPICS_MAX = 10_000
"""Topics whose routes are kept; the one that was added first is dropped for a new one."""

TASKS_MAX = 20_000
"""Tasks that one instance owns; a further one is an error, as every user of tasks has a smaller bound."""

OUTGOING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes that a peer has not taken yet at which its connection is given up. Reading goes on until then: a
client that stops reading while it cannot write would wait for a broker that does the same."""

_LIMITS = ConnectionLimits(write_buffer_high=OUTGOING_BYTES_MAX, outgoing_max=OUTGOING_BYTES_MAX)
_numbers: Final = itertools.count(1)


def name_server_list(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """`a:9876;b:9876`, with commas instead, or a list of addresses, as a tuple. Raises `ValueError` if there
    is none."""
    parts = addresses.replace(",", ";").split(";") if isinstance(addresses, str) else list(addresses)
    found = tuple(part.strip() for part in parts if part.strip())
    if not found:
        raise ValueError("no name server address given: pass host:port, several separated by ';'")
    return found


SILENT_SECONDS: Final = 2.0
"""A connection on which nothing was heard for so long, though an answer was due, is given up."""


def give_up_if_silent(connection: Connection, asked_at: float) -> None:
    """Break a connection whose peer has said nothing since `asked_at`, on the loop's clock, and for long.

    The peer may be gone without a word, and the address may lead to another one by now: behind a Service of
    Kubernetes an old connection goes on to the old pod until TCP itself gives up, after minutes.
    """
    now = asyncio.get_running_loop().time()
    if connection.last_activity <= asked_at and now - connection.last_activity >= SILENT_SECONDS:
        connection.abort()


class ClientInstance:
    """One client of a cluster, as brokers see it: one client id, one connection for each address.

    Producers and consumers make their own unless they are given one to share; whoever makes it closes it.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        client_id: str | None = None,
        clock: Clock | None = None,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Without `tls` the file that `BROKERSET_TLS_CONFIG_FILE` names says whether connections use TLS.

        `credentials` sign every request; without them `BROKERSET_ACCESS_KEY` and `BROKERSET_SECRET_KEY` of
        the environment do.
        """
        self.name_servers = name_server_list(namesrv)
        self.clock = clock or SystemClock()
        self.client_id = client_id or ""
        """`ip@pid#number`; known after `start` unless it was given."""
        self.members: dict[str, GroupMember] = {}
        self._checkers: dict[str, TransactionChecker] = {}
        self._producer_groups: dict[str, int] = {}
        self.replies = ReplyTable(self.clock)
        self._announcement = 0
        """Grows with every producer and consumer that heartbeats have to tell of."""
        self._announcing: dict[str, tuple[asyncio.Task[bool], float]] = {}
        """Heartbeats on their way to single brokers, and when they began, by address."""
        self._tls = tls if tls is not None else tls_of_environment()
        self._pool = ConnectionPool(
            ClientRequests(self.members, self._checkers, self.replies, lambda: self.client_id).handlers(),
            limits=_LIMITS,
            on_close=self._connection_lost,
            tls=self._tls,
            sign=None if credentials is None else credentials.sign,
        )
        self._routes: dict[str, Route] = {}
        self._fetching: dict[str, asyncio.Task[Route]] = {}
        self._stale: dict[str, None] = {}
        self._refresh_wanted = asyncio.Event()
        self._heartbeat_wanted = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._current = 0
        self._started = False
        self._closed = False
        self._failure: BaseException | None = None
        self.process_id = os.getpid()
        self.local_ip = "127.0.0.1"
        """Our end of the connection to the name server; known after `start`."""

    async def __aenter__(self) -> ClientInstance:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Reach a name server, then keep routes and heartbeats fresh. Raises `NameServerUnavailable`."""
        if self._closed:
            raise ClientClosed("this client was closed: make a new one")
        if self._started:
            return
        connection = await self._any_name_server()
        if not self.client_id:
            number = f"{self.process_id}#{self.clock.now_ms()}{self.next_maker():03d}"
            self.client_id = f"{connection.local[0]}@{number}"
        self.local_ip = connection.local[0]
        self._started = True
        self.spawn(self._keep_routes(), "routes")
        self.spawn(self._keep_heartbeats(), "heartbeats")
        if self._tls is not None:
            self.spawn(self._tls.watch(), "certificates")

    async def close(self) -> None:
        """End every task and connection of this instance. Closing twice is harmless."""
        self._closed = True
        self.replies.close()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()
        # Transports close in the next turn of the loop; nothing of them shall outlive this call.
        await asyncio.sleep(0)

    @staticmethod
    def next_maker() -> int:
        """A number that tells several instances and makers of ids in this process apart."""
        return next(_numbers)

    @property
    def is_running(self) -> bool:
        return self._started and not self._closed

    def check_running(self) -> None:
        """Raises `ClientClosed` unless the instance was started and not closed."""
        if self._failure is not None:
            raise ClientClosed(f"this client failed: {self._failure!r}; make a new one")
        if self._closed:
            raise ClientClosed("this client was closed: make a new one")
        if not self._started:
            raise ClientClosed("this client was not started: use `async with`, or await start() first")

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` as a task that `close` ends. An unexpected end of it is logged, and fails the
        instance."""
        if len(self._tasks) >= TASKS_MAX:
            work.close()
            raise LocalProtocolError(f"{len(self._tasks)} tasks run already")
        task = asyncio.get_running_loop().create_task(work, name=f"{self.client_id}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    # -- requests -----------------------------------------------------------------------------------------

    def peek(self, address: str) -> Connection | None:
        """The open connection to `address`, if there is one."""
        return self._pool.peek(address)

    async def connect(self, address: str, timeout: float = CALL_SECONDS) -> Connection:
        """The connection to `address`, made now if there is none. Raises `BrokerUnreachable`."""
        self.check_running()
        try:
            return await self._pool.get(address, timeout)
        except (ConnectionClosed, ValueError) as error:
            raise BrokerUnreachable(address, str(error)) from error

    async def call(self, address: str, command: Command, timeout: float = CALL_SECONDS) -> Command:
        """Send a request to `address` and give its answer back, also if that is a refusal.

        Raises `BrokerUnreachable` or `AnswerTimeout` (seconds, connecting included).
        """
        started = asyncio.get_running_loop().time()
        connection = self._pool.peek(address) or await self.connect(address, timeout)
        remaining = timeout - (asyncio.get_running_loop().time() - started)
        try:
            return await connection.call(command, max(0.001, remaining))
        except RequestTimeout as error:
            give_up_if_silent(connection, started)
            raise AnswerTimeout(str(error)) from error
        except ConnectionClosed as error:
            raise BrokerUnreachable(address, str(error)) from error

    async def request(
        self,
        address: str,
        code: RequestCode,
        header: headers.Header | None = None,
        body: bytes = b"",
        *,
        timeout: float = CALL_SECONDS,
        accept: Iterable[int] = (),
    ) -> Command:
        """Like `call`, for an answer with code 0 or one of `accept`; raises `RequestRefused` for others."""
        command = Command(code, header.to_ext() if header is not None else {}, body)
        answer = await self.call(address, command, timeout)
        if answer.code != ResponseCode.SUCCESS and answer.code not in accept:
            raise RequestRefused(answer.code, answer.remark or "no reason given", address)
        return answer

    async def notify(
        self, address: str, code: RequestCode, header: headers.Header, body: bytes = b""
    ) -> None:
        """Send a one-way request. Raises `BrokerUnreachable` if there is no connection to be had."""
        connection = await self.connect(address)
        connection.notify(Command(code, header.to_ext(), body))

    async def ask_name_server(
        self,
        code: RequestCode,
        header: headers.Header | None = None,
        body: bytes = b"",
        *,
        timeout: float = CALL_SECONDS,
        accept: Iterable[int] = (),
    ) -> Command:
        """Ask the name server in use, and the others after it until one answers.

        Raises `NameServerUnavailable`, or `RequestRefused` as `request` does.
        """
        problems = []
        for _ in range(len(self.name_servers)):
            address = self.name_servers[self._current % len(self.name_servers)]
            try:
                return await self.request(address, code, header, body, timeout=timeout, accept=accept)
            except (BrokerUnreachable, AnswerTimeout) as error:
                problems.append(str(error))
                self._current += 1
        raise NameServerUnavailable(problems)

    # -- routes -------------------------------------------------------------------------------------------

    def cached_route(self, topic: str) -> Route | None:
        """What is known about `topic` without asking."""
        return self._routes.get(topic)

    async def route(self, topic: str, *, fresh: bool = False) -> Route:
        """Where `topic` is: as known, or asked now. Callers who ask at the same time share one request.

        Raises `TopicNotFound`, `NameServerUnavailable`.
        """
        self.check_running()
        known = self._routes.get(topic)
        if known is not None and not fresh and not known.created_on_send:
            return known
        task = self._fetching.get(topic)
        if task is None:
            task = self.spawn(self._fetch(topic), f"route of {topic}")
            self._fetching[topic] = task
            task.add_done_callback(lambda _: self._fetching.pop(topic, None))
        return await asyncio.shield(task)

    async def route_to_send(self, topic: str, *, fresh: bool = False) -> Route:
        """Like `route`; for an unknown topic the template's route, by which the first send creates the topic.

        If asking fails, an older answer is better than none and is given back.
        """
        known = self._routes.get(topic)
        if known is not None and not fresh:
            return known
        try:
            return await self.route(topic, fresh=fresh)
        except TopicNotFound as missing:
            if known is not None:
                return known
            try:
                template = await self.route_data(AUTO_CREATE_TOPIC)
            except TopicNotFound:
                raise missing from None
            made = template_route(topic, template)
            self._remember(made)
            return made
        except NameServerUnavailable:
            if known is not None:
                return known
            raise

    async def route_data(self, topic: str) -> TopicRouteData:
        """What the name server says about `topic` now, as it says it. Raises like `route`."""
        try:
            answer = await self.ask_name_server(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                headers.GetRouteInfo(topic=topic, accept_standard_json_only=True),
            )
        except RequestRefused as refused:
            if refused.code == ResponseCode.TOPIC_NOT_EXIST:
                raise TopicNotFound(topic) from refused
            raise
        return readable(TopicRouteData.from_json, answer.body)

    def refresh_soon(self, *topics: str) -> None:
        """Read these routes again at once, in the background."""
        for topic in topics:
            self._stale[topic] = None
        self._refresh_wanted.set()

    def forget_route(self, topic: str) -> None:
        """Ask for `topic` again when it is next used, for example after it was deleted."""
        self._routes.pop(topic, None)

    def broker_addresses(self, *, masters_only: bool = False) -> list[str]:
        """Every broker address of the known routes."""
        found: dict[str, None] = {}
        for route in self._routes.values():
            for replicas in route.addresses.values():
                for broker_id, address in replicas.items():
                    if not masters_only or broker_id == MASTER_ID:
                        found[address] = None
        return list(found)

    # -- groups and heartbeats ----------------------------------------------------------------------------

    def add_producer(self, group: str) -> None:
        """Announce a producer group in heartbeats."""
        self._producer_groups[group] = self._producer_groups.get(group, 0) + 1
        self._announcement += 1
        self._heartbeat_wanted.set()

    async def remove_producer(self, group: str) -> None:
        """Take the group back, and tell the brokers."""
        count = self._producer_groups.get(group, 0) - 1
        if count > 0:
            self._producer_groups[group] = count
            return
        self._producer_groups.pop(group, None)
        await self._unregister(headers.UnregisterClient(client_id=self.client_id, producer_group=group))

    def add_checker(self, checker: TransactionChecker) -> None:
        """Let it answer checks of its producer group. Raises `ValueError` if another one does already."""
        if checker.group in self._checkers:
            raise ValueError(
                f"this client answers checks for group {checker.group!r} already: use an instance of its own"
            )
        self._checkers[checker.group] = checker

    def remove_checker(self, checker: TransactionChecker) -> None:
        """Answer no more checks through it."""
        if self._checkers.get(checker.group) is checker:
            del self._checkers[checker.group]

    def add_member(self, member: GroupMember) -> None:
        """Announce a consumer. Raises `ValueError` if this instance has one of that group already."""
        if member.group in self.members:
            raise ValueError(
                f"this client consumes for group {member.group!r} already: use an instance of its own"
            )
        self.members[member.group] = member
        self._announcement += 1

    async def remove_member(self, group: str) -> None:
        """Take a consumer back, and tell the brokers, which tell the rest of the group."""
        if self.members.pop(group, None) is not None:
            await self._unregister(headers.UnregisterClient(client_id=self.client_id, consumer_group=group))

    def heartbeat_soon(self) -> None:
        """Tell all brokers at once who we are, in the background."""
        self._heartbeat_wanted.set()

    async def heartbeat(self) -> bool:
        """Tell all known brokers who we are. False if one of them could not be told."""
        if not self.members and not self._producer_groups:
            return True
        addresses = self.broker_addresses(masters_only=not self.members)
        data = self._heartbeat_data()
        results = await asyncio.gather(*(self._heartbeat_to(address, data) for address in addresses))
        return all(results)

    async def announce(self, addresses: Iterable[str]) -> bool:
        """Have these brokers know all producers and consumers of this client; whether all do now.

        Costs nothing for those that do. Others get a heartbeat, and are waited for `ANNOUNCE_SECONDS`: a
        broker that is dead holds nobody up for longer, and those who come later not at all.
        """
        unaware = [address for address in addresses if not self._knows_us(address)]
        if not unaware:
            return True
        now = asyncio.get_running_loop().time()
        for address in unaware:
            if address not in self._announcing:
                task = self.spawn(
                    self._heartbeat_to(address, self._heartbeat_data()), f"announce to {address}"
                )
                self._announcing[address] = task, now
                task.add_done_callback(partial(self._announced, address))
        left = {
            task: began + ANNOUNCE_SECONDS - now
            for task, began in map(self._announcing.__getitem__, unaware)
            if began + ANNOUNCE_SECONDS > now and not task.done()
        }
        if left:
            await asyncio.wait(left, timeout=max(left.values()))
        return all(map(self._knows_us, unaware))

    # -- inside -------------------------------------------------------------------------------------------

    def _knows_us(self, address: str) -> bool:
        connection = self._pool.peek(address)
        return connection is not None and connection.state.get("announcement") == self._announcement

    def _announced(self, address: str, task: asyncio.Task[bool]) -> None:
        if task.cancelled() or task.exception() is not None or task.result():
            self._announcing.pop(address, None)
        else:  # it is not tried again at once, and nobody waits for it meanwhile
            asyncio.get_running_loop().call_later(ANNOUNCE_SECONDS, self._announcing.pop, address, None)

    def _heartbeat_data(self) -> tuple[int, bytes]:
        consumers: list[ConsumerData] = [member.consumer_data() for member in self.members.values()]
        data = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=tuple(ProducerData(group_name=group) for group in self._producer_groups),
            consumer_data_set=tuple(consumers),
        )
        return self._announcement, data.to_json()

    async def _heartbeat_to(self, address: str, announcement: tuple[int, bytes]) -> bool:
        number, data = announcement
        try:
            await self.request(address, RequestCode.HEART_BEAT, headers.Heartbeat(), data)
        except ClientError as error:
            log.debug("heartbeat failed", address=address, reason=str(error))
            return False
        connection = self._pool.peek(address)
        if connection is not None:
            connection.state["announcement"] = number
        return True

    async def _unregister(self, header: headers.UnregisterClient) -> None:
        async def tell(address: str) -> None:
            try:
                await self.request(address, RequestCode.UNREGISTER_CLIENT, header, timeout=1.0)
            except ClientError as error:
                log.debug("could not unregister", address=address, reason=str(error))

        connected = [address for address in self.broker_addresses() if self._pool.peek(address) is not None]
        await asyncio.gather(*(tell(address) for address in connected))

    async def _any_name_server(self) -> Connection:
        problems = []
        for index, address in enumerate(self.name_servers):
            try:
                connection = await self._pool.get(address)
            except (ConnectionClosed, ValueError) as error:
                problems.append(str(error))
            else:
                self._current = index
                return connection
        raise NameServerUnavailable(problems)

    async def _fetch(self, topic: str) -> Route:
        route = route_of(topic, await self.route_data(topic))
        self._remember(route)
        return route

    def _remember(self, route: Route) -> None:
        old = self._routes.get(route.topic)
        if old == route:
            return
        if old is None and len(self._routes) >= TOPICS_MAX:
            del self._routes[next(iter(self._routes))]
        known, masters = set(self.broker_addresses()), set(self.broker_addresses(masters_only=True))
        self._routes[route.topic] = route
        # A slave that became master may never have heard of a client without consumers.
        if not (
            known.issuperset(self.broker_addresses())
            and masters.issuperset(self.broker_addresses(masters_only=True))
        ):
            self._heartbeat_wanted.set()
        for member in self.members.values():
            member.route_changed(route.topic)

    async def _keep_routes(self) -> None:
        loop = asyncio.get_running_loop()
        next_full = loop.time() + ROUTE_REFRESH_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(next_full):
                    await self._refresh_wanted.wait()
            except TimeoutError:
                self.refresh_soon(*self._routes)
                next_full = loop.time() + ROUTE_REFRESH_SECONDS
            self._refresh_wanted.clear()
            topics, self._stale = list(self._stale), {}
            for topic in topics:
                try:
                    await self.route(topic, fresh=True)
                except NameServerUnavailable as error:
                    log.warning("routes are not refreshed", reason=str(error))
                    break
                except ClientError as error:
                    log.debug("route is not refreshed", topic=topic, reason=str(error))
            await asyncio.sleep(ROUTE_REFRESH_GAP_SECONDS)

    async def _keep_heartbeats(self) -> None:
        backoff = Backoff(first_ms=200, max_ms=HEARTBEAT_RETRY_MS_MAX)
        failures = 0
        while True:
            wait = backoff.delay_ms(failures) / 1000 if failures else HEARTBEAT_SECONDS
            try:
                async with asyncio.timeout(wait):
                    await self._heartbeat_wanted.wait()
            except TimeoutError:
                pass
            self._heartbeat_wanted.clear()
            failures = 0 if await self.heartbeat() else failures + 1
            # A broker that accepts connections and closes them at once shall not see us all the time.
            gap = min(backoff.delay_ms(failures) / 1000, HEARTBEAT_GAP_SECONDS_MAX)
            await asyncio.sleep(max(gap, ROUTE_REFRESH_GAP_SECONDS))

    def _connection_lost(self, address: str) -> None:
        if self._closed or address in self.name_servers:
            return
        log.info("lost connection", address=address)
        used = [
            route.topic
            for route in self._routes.values()
            if any(address in replicas.values() for replicas in route.addresses.values())
        ]
        if used:
            self.refresh_soon(*used)
            self._heartbeat_wanted.set()

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, ClientError):
            log.error("task of the client died", task=task.get_name(), exc_info=error)
            self._failure = error


def readable(read: Callable[[bytes], T], body: bytes) -> T:
    """A body as a value; a peer that sends nonsense is reported as `RequestRefused` with a clear text."""
    try:
        return read(body)
    except Rejected as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"unreadable answer: {error.remark}") from error
