"""Registers the broker with every name server, and keeps it registered (Java: BrokerOuterAPI).

Each name server has a task with one long-lived connection: Java's name server forgets a broker the moment
that its connection closes. A full table goes first, because a first registration of a single topic is
refused; then changed topics as they come, and the full table again from time to time.

`namesrvAddr` may change at any time. One task arranges who is served, always after what the settings and DNS
say at that moment, so that of several changes the last one counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from brokerset_acl.signatures import Sign
from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.member.membership.controllers import Resolve, resolve
from brokerset_broker.requests.admission import PERM_READ, PERM_WRITE, Admission
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import TopicConfig
from brokerset_protocol.bodies.registration import RegisterBrokerBody, TopicConfigTable
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.namesrv import RegisterBroker, RegisterBrokerResponse, UnRegisterBroker
from brokerset_runtime.remoting import Connection, ConnectionClosed, RequestTimeout, connect
from brokerset_runtime.tls import Tls
from brokerset_spec.addresses import addresses
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

PAUSE_SECONDS_MIN: Final = 0.1
PAUSE_SECONDS_MAX: Final = 5.0
"""Waits between attempts to reach a name server double from the first to the second."""

UNREGISTER_SECONDS: Final = 3.0
"""Longest wait for the answer to a goodbye; the closed connection tells the same."""

INCREMENT_TOPICS_MAX: Final = 1_000
"""More changed topics than this are sent as a full table."""

PLAIN_BYTES_MAX: Final = 8 * 1024 * 1024
"""A larger table is sent compressed: as plain JSON, 90,000 topics do not fit into a frame."""

MASTER_ID: Final = 0
"""The id of a master at name servers."""

RoleId = Callable[[], int | None]
"""The id to register with: 0 for a master; None while nothing may be registered."""

OnMaster = Callable[[str | None, str | None], None]
"""Gets the master's HA address and remoting address, as a name server tells a slave."""


LOOK_UP_SECONDS: Final = 1.0
"""How often names are looked up with `fetchNamesrvAddrByDnsLookup`."""

UNKNOWN_NAME_SECONDS: Final = 0.5
"""How often a name is looked up behind which nothing has been found yet."""


class _Refused(Exception):
    """A name server answered a registration with an error."""


class _Server:
    """What one task knows of its name server."""

    __slots__ = (
        "address",
        "changed",
        "connection",
        "full",
        "registered",
        "registered_address",
        "role_id",
        "task",
        "wake",
    )

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.registered = False
        self.role_id = 0
        self.registered_address = ""
        self.task: asyncio.Task[None] | None = None
        self.changed: dict[str, None] = {}
        self.full = True
        self.wake = asyncio.Event()


class Registrar:
    """Tells the name servers of `namesrvAddr` about this broker and its topics."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        topics: TopicManager,
        admission: Admission,
        on_master: OnMaster | None = None,
        role_id: RoleId | None = None,
        ha_address: Callable[[], str | None] = lambda: None,
        resolver: Resolve = resolve,
        tls: Tls | None = None,
        sign: Sign | None = None,
    ) -> None:
        """Without `role_id` the broker registers with the `brokerId` of its settings; without `ha_address` it
        tells the port above its own, as Java does."""
        self._live = live
        self._tls = tls
        self._sign = sign
        self._topics = topics
        self._admission = admission
        self._on_master = on_master
        self._ha_address = ha_address
        self._role_id = role_id if role_id is not None else lambda: live.current.broker_id
        self._ended = False
        self._resolver = resolver
        self._use_dns = live.current.fetch_namesrv_addr_by_dns_lookup
        self._configured = addresses(live.current.namesrv_addr)
        self._behind: dict[str, list[str]] = {}
        """What was found behind configured names, nothing for those that could not be looked up so far."""
        self._look_ups: dict[str, asyncio.Task[None]] = {}
        self._servers: list[_Server] = []
        self._to_arrange = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        topics.on_change(self.topics_changed)
        live.on_change(self._settings_changed)

    @property
    def registered(self) -> list[str]:
        """Addresses of the name servers that know this broker now."""
        return [server.address for server in self._servers if server.registered]

    @property
    def connections(self) -> list[Connection]:
        """Open connections to name servers that know this broker, in the order of `namesrvAddr`."""
        found = [server.connection for server in self._servers if server.registered]
        return [connection for connection in found if connection is not None and connection.is_open]

    @property
    def addresses(self) -> list[str]:
        """All name servers, and configured names behind which none has been found."""
        unknown = [name for name in self._configured if not self._behind.get(name)] if self._use_dns else []
        return [*(server.address for server in self._servers), *unknown]

    def topics_changed(self, topics: tuple[TopicConfig, ...]) -> None:
        """Tell the name servers soon: only these topics, or everything when some were deleted."""
        for server in self._servers:
            if topics and len(server.changed) + len(topics) <= INCREMENT_TOPICS_MAX:
                server.changed.update(dict.fromkeys(topic.topic_name for topic in topics))
            else:
                server.full = True
            server.wake.set()

    def on_register_again(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever the role or the permission changed."""
        self._listeners.append(listener)

    def register_again(self) -> None:
        """Send everything to everybody now, because the role or the permission changed.

        Name servers read topics only when the data version has grown. Without a role they are told to
        forget the broker.
        """
        self._topics.bump()
        for listener in self._listeners:
            listener()
        for server in self._servers:
            server.full = True
            server.wake.set()

    async def run(self) -> None:
        """Keep the broker registered for as long as this task runs."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._to_arrange.clear()
                if not self._ended:
                    self._arrange(group)
                await self._to_arrange.wait()

    # -- which name servers -------------------------------------------------------------------------------

    def _settings_changed(self, settings: BrokerSettings, names: frozenset[str]) -> None:
        if "namesrvAddr" in names:
            self._configured = addresses(settings.namesrv_addr)
            self._to_arrange.set()

    def _arrange(self, group: asyncio.TaskGroup) -> None:
        """Serve the name servers that are wanted by now, and leave the others; who stays notices nothing.

        While a new name has not been looked up yet nobody is left: the same servers may stand behind it.
        """
        if self._use_dns:
            self._follow_names(group)
        wanted = self._wanted()
        all_known = not self._use_dns or all(name in self._behind for name in self._configured)
        stay = [each for each in self._servers if each.address in wanted or not all_known]
        gone = [each for each in self._servers if each not in stay]
        held = {server.address for server in stay}
        come = [_Server(address) for address in wanted if address not in held]
        self._servers = stay + come
        for server in come:
            server.task = group.create_task(self._serve(server))
        for server in gone:
            self._leave(group, server, stay)

    def _wanted(self) -> list[str]:
        if not self._use_dns:
            return self._configured
        return list(dict.fromkeys(found for name in self._configured for found in self._behind.get(name, ())))

    def _follow_names(self, group: asyncio.TaskGroup) -> None:
        """Look up the configured names, and no others."""
        for name in [each for each in self._look_ups if each not in self._configured]:
            self._look_ups.pop(name).cancel()
            self._behind.pop(name, None)
        for name in self._configured:
            if name not in self._look_ups:
                self._look_ups[name] = group.create_task(self._look_up(name))

    async def _look_up(self, name: str) -> None:
        """Find the name servers behind a configured name, again and again; a failure changes nothing."""
        host, _, port = name.rpartition(":")
        while True:
            try:
                found = await self._resolver(host.strip("[]"), int(port))
            except OSError as error:
                log.debug("a name server cannot be looked up", name=name, reason=str(error))
                self._behind.setdefault(name, [])
            else:
                self._behind[name] = [f"{_bracketed(ip)}:{port}" for ip in found]
            self._to_arrange.set()
            await asyncio.sleep(LOOK_UP_SECONDS if self._behind[name] else UNKNOWN_NAME_SECONDS)

    def _leave(self, group: asyncio.TaskGroup, server: _Server, stay: Sequence[_Server]) -> None:
        """End a server's task, and its connection after a goodbye if it knows this broker."""
        connection = server.connection
        if server.registered and connection is not None and connection.is_open:
            server.connection = None  # else its task, when it ends, closes it before the goodbye
            others = [each for each in stay if not _same_peer(each.connection, connection)]
            group.create_task(self._part(server, connection, others))
        server.registered = False
        assert server.task is not None, "it was created next to its server"
        server.task.cancel()

    async def _part(self, server: _Server, connection: Connection, others: Sequence[_Server]) -> None:
        """Say goodbye and close the connection. Then register again with all but `others`.

        Whoever came since may be the same name server by another address, or again: it may have forgotten
        the broker just now.
        """
        try:
            await connection.call(self._unregistration(server), UNREGISTER_SECONDS)
        except (ConnectionClosed, RequestTimeout) as error:
            log.warning("goodbye to a name server failed", address=server.address, reason=str(error))
        else:
            log.info("left name server", address=server.address)
        finally:
            connection.close()
        for each in self._servers:
            if each not in others:
                each.full = True
                each.wake.set()

    async def unregister(self) -> None:
        """Say goodbye to the name servers that know the broker; failures are only logged. Nothing follows."""
        self._ended = True
        leaving = [
            server.connection.call(self._unregistration(server), UNREGISTER_SECONDS)
            for server in self._servers
            if server.registered and server.connection is not None and server.connection.is_open
        ]
        for server in self._servers:
            server.registered = False
        for outcome in await asyncio.gather(*leaving, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.warning("goodbye to a name server failed", reason=str(outcome))

    def _unregistration(self, server: _Server) -> Command:
        settings = self._live.current
        header = UnRegisterBroker(
            broker_name=settings.broker_name,
            broker_addr=self._leave_address(server),
            cluster_name=settings.broker_cluster_name,
            broker_id=server.role_id,
        )
        return Command(RequestCode.UNREGISTER_BROKER, header.to_ext())

    # -- one name server ----------------------------------------------------------------------------------

    async def _serve(self, server: _Server) -> None:
        pause = PAUSE_SECONDS_MIN
        quiet = False
        try:
            while True:
                try:
                    server.connection = await connect(
                        server.address,
                        on_close=lambda _lost: server.wake.set(),
                        tls=self._tls,
                        sign=self._sign,
                    )
                    server.full = True
                    await self._keep_registered(server)
                except (ConnectionClosed, RequestTimeout, _Refused) as error:
                    if server.registered or not quiet:
                        log.warning(
                            "not registered with name server", address=server.address, reason=str(error)
                        )
                    quiet = not server.registered
                    pause = PAUSE_SECONDS_MIN if server.registered else min(pause * 2, PAUSE_SECONDS_MAX)
                server.registered = False
                if server.connection is not None:
                    server.connection.close()
                await asyncio.sleep(pause)
        finally:
            server.registered = False
            if server.connection is not None:
                server.connection.close()

    async def _keep_registered(self, server: _Server) -> None:
        connection = server.connection
        assert connection is not None
        while True:
            server.wake.clear()
            if not connection.is_open:
                raise ConnectionClosed(f"{server.address} closed the connection")
            role_id = self._role_id()
            if self._ended:
                pass
            elif role_id is None:
                if server.registered:
                    server.registered = False
                    await connection.call(self._unregistration(server), UNREGISTER_SECONDS)
                server.full = True
            elif server.full or not server.registered or role_id != server.role_id:
                server.full = False
                server.changed.clear()
                server.role_id = role_id
                await self._register(server, connection, list(self._topics))
            elif server.changed:
                changed = [self._topics.get(name) for name in server.changed]
                server.changed.clear()
                await self._register(server, connection, [config for config in changed if config is not None])
            try:
                async with asyncio.timeout(self._live.current.register_name_server_period / 1000):
                    await server.wake.wait()
            except TimeoutError:
                server.full = True

    async def _register(self, server: _Server, connection: Connection, topics: Iterable[TopicConfig]) -> None:
        settings = self._live.current
        shown = {config.topic_name: self._as_shown(config) for config in topics}
        if not shown:
            return
        table = RegisterBrokerBody(TopicConfigTable(self._topics.data_version, shown))
        body, crc = table.to_body()
        compressed = len(body) > PLAIN_BYTES_MAX
        if compressed:
            body, crc = table.to_body(compressed=True)
        server.registered_address = self.client_address(server.role_id)
        header = RegisterBroker(
            broker_name=settings.broker_name,
            broker_addr=server.registered_address,
            cluster_name=settings.broker_cluster_name,
            ha_server_addr=self._ha_address()
            or f"{_bracketed(settings.broker_ip1)}:{settings.listen_port + 1}",
            broker_id=server.role_id,
            compressed=compressed,
            body_crc32=crc,
        )
        reply = await connection.call(
            Command(RequestCode.REGISTER_BROKER, header.to_ext(), body),
            settings.register_broker_timeout_mills / 1000,
        )
        if reply.code != ResponseCode.SUCCESS:
            raise _Refused(
                f"{server.address} refused the registration with code {reply.code}: {reply.remark}"
            )
        if not server.registered:
            server.registered = True
            log.info("registered with name server", address=server.address, topics=len(shown))
        if self._on_master is not None:
            answer = RegisterBrokerResponse.from_ext(reply.ext)
            self._on_master(answer.ha_server_addr, answer.master_addr)

    def _as_shown(self, config: TopicConfig) -> TopicConfig:
        """A topic without the permissions that the whole broker lacks."""
        lacking = ~self._admission.permission & (PERM_READ | PERM_WRITE)
        return config.with_perm(config.perm & ~lacking) if lacking else config

    def _leave_address(self, server: _Server) -> str:
        """What the name server forgets: not the master's address, which may be another one's by now."""
        role_id = self._role_id()
        if server.role_id == MASTER_ID and role_id not in (MASTER_ID, None):
            return self.client_address(role_id)
        return server.registered_address or self.own_address()

    def client_address(self, role_id: int | None) -> str:
        """The address that clients are told while the broker has this id at the name servers."""
        settings = self._live.current
        if role_id == MASTER_ID and settings.advertised_master_address:
            return settings.advertised_master_address
        return settings.advertised_address or self.own_address()

    def own_address(self) -> str:
        """The address that is told to controllers and other brokers."""
        settings = self._live.current
        return f"{_bracketed(settings.broker_ip1)}:{settings.listen_port}"


def _same_peer(one: Connection | None, other: Connection) -> bool:
    return one is not None and one.peer == other.peer


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
