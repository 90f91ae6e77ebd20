"""The name server as an application: sockets, timers and files around the routing table.

`NameServer` can live inside another process (the controller's): it keeps no global state and touches no
signals. `command_line` is the process of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from brokerset_acl.access_book import Accounts
from brokerset_acl.server_rules import NAMESRV_RULES
from brokerset_namesrv import kv_file
from brokerset_namesrv.administration import Administration, server_sign, settings_accounts
from brokerset_namesrv.external import ExternalListener
from brokerset_namesrv.kv_file import KvFile
from brokerset_namesrv.notices import Notifier
from brokerset_namesrv.processors import Counters, Processors, ProvidedEntries
from brokerset_namesrv.routes import RouteTable
from brokerset_runtime.clock import Clock, SystemClock
from brokerset_runtime.http import HttpEndpoint
from brokerset_runtime.remoting import Connection, RemotingServer, ServerLimits
from brokerset_runtime.remoting.audit_log import AuditLog
from brokerset_runtime.remoting.password_checks import PasswordChecks
from brokerset_runtime.tls import Tls
from brokerset_spec.namesrv_settings import NamesrvSettings
from brokerset_spec.setting_fields import setting_fields

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from brokerset_namesrv.cluster_users import ClusterUsers

log = structlog.get_logger(__name__)

DRAIN_SECONDS_MAX: Final = 3.0
"""Longest time that requests in flight have to finish at the end."""


class NameServer:
    """One name server: `start`, `run` until cancelled, `close`."""

    def __init__(
        self,
        settings: NamesrvSettings,
        *,
        clock: Clock | None = None,
        limits: ServerLimits | None = None,
        provided: ProvidedEntries | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        """Needs a running event loop only from `start` on. `provided`: key-value entries of who embeds it;
        `accounts`: its users, else those of the settings count."""
        self._settings = settings
        self._accounts = accounts
        self._provided = provided or {}
        self._clock = clock or SystemClock()
        self._limits = limits or ServerLimits()
        self._processors: Processors | None = None
        self._server: RemotingServer | None = None
        self._external: ExternalListener | None = None
        self._notifier: Notifier | None = None
        self._endpoint: HttpEndpoint | None = None
        self._users: ClusterUsers | None = None
        self._running = False
        self.port = 0
        """The port of the remoting protocol, once started."""

        self.external_port = 0
        """The port for clients outside the cluster, once started; 0 without one."""

        self._tls: Tls | None = None
        self.http_port = 0
        """The port of the HTTP endpoint, once started; 0 without one."""

    @property
    def table(self) -> RouteTable:
        """The routing table, for who embeds the name server: to read, on the loop's thread."""
        assert self._processors is not None, "start comes first"
        return self._processors.table

    async def start(
        self, host: str | None = None, port: int | None = None, http_port: int | None = None
    ) -> int:
        """Load the key-value file and listen; returns the port.

        Arguments that are `None` come from the settings; port 0 takes a free one, `http_port` -1 as well.
        Raises `OSError` when a port is taken, `KvFileDamaged` when the file cannot be read,
        `SettingsError` for files of TLS.
        """
        settings = self._settings
        if settings.tls_config_file is not None:
            self._tls = await asyncio.to_thread(Tls, settings.tls_config_file)
        kv = await asyncio.to_thread(kv_file.load, settings.kv_config_path)
        counters = Counters()
        accounts = self._accounts
        if settings.follows_controllers and accounts is None:
            accounts = await self._follow_controllers()
        self._notifier = Notifier(counters, self._tls, server_sign(settings))
        self._processors = Processors(
            settings=settings,
            table=RouteTable(settings),
            kv=kv,
            kv_file=KvFile(settings.kv_config_path, kv),
            clock=self._clock,
            tell=self._notifier.tell,
            counters=counters,
            started=self._clock.monotonic(),
            provided=self._provided,
        )
        administration = Administration(
            settings,
            NAMESRV_RULES,
            checks=PasswordChecks(self._clock),
            clusters=self._processors.table.clusters,
            accounts=accounts,
            denied=counters.requests_denied,
        )
        audit_log = AuditLog(
            NAMESRV_RULES.rules,
            authenticates=settings.authentication_enabled,
            settings=setting_fields(NamesrvSettings),
        )
        handlers = administration.around(audit_log.around(self._processors.handlers()))
        self._server = RemotingServer(
            handlers, limits=self._limits, on_close=self._connection_closed, tls=self._tls
        )
        try:
            address = host if host is not None else settings.bind_address
            self.port = await self._server.listen(address, settings.listen_port if port is None else port)
            if settings.external_listen_port:
                self._external = ExternalListener(
                    handlers,
                    settings.external_addresses_path,
                    self._processors.table.master_ha_addresses,
                    connections_max=settings.external_connections_max,
                    tls=self._tls,
                )
                self.external_port = await self._external.start(address, settings.external_listen_port)
            http = settings.http_port if http_port is None else http_port
            if http:
                self._endpoint = HttpEndpoint(
                    alive=self._alive_problems, ready=self._ready_problems, metrics=self._metrics
                )
                self.http_port = await self._endpoint.start(address, max(http, 0), self._tls)
        except BaseException:
            await self.close()
            raise
        log.info("name server listens", host=address, port=self.port, kv_entries=kv.entry_count)
        return self.port

    async def run(self) -> None:
        """Expire silent brokers, close idle connections and send notices, for as long as this task runs."""
        assert self._server is not None, "start comes first"
        assert self._notifier is not None
        self._running = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._server.sweep_idle())
                group.create_task(self._expire())
                group.create_task(self._notifier.run())
                if self._users is not None:
                    group.create_task(self._users.run())
                if self._tls is not None:
                    group.create_task(self._tls.watch())
                if self._external is not None:
                    group.create_task(self._external.run())
        finally:
            self._running = False

    async def close(self) -> None:
        """Stop accepting, let requests finish for a while, close everything; may be called more than once."""
        server, self._server = self._server, None
        external, self._external = self._external, None
        listeners = (server, external.server if external is not None else None)
        await asyncio.gather(*(each.close(DRAIN_SECONDS_MAX) for each in listeners if each is not None))
        if self._processors is not None:
            await self._processors.kv_file.close()
        if self._notifier is not None:
            await self._notifier.close()
        users, self._users = self._users, None
        if users is not None:
            await users.close()
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            await endpoint.close()

    # -- inner parts --------------------------------------------------------------------------------------

    async def _follow_controllers(self) -> Accounts:
        """Users of the controllers' copy, next to those of the settings."""
        from brokerset_namesrv.cluster_users import ClusterUsers

        settings = self._settings
        self._users = ClusterUsers(
            settings.controller_addr,
            settings.kv_config_path.parent,
            tls=self._tls,
            sign=server_sign(settings),
        )
        await asyncio.to_thread(self._users.load)
        return settings_accounts(settings, self._users.book)

    async def _expire(self) -> None:
        processors = self._processors
        assert processors is not None
        while True:
            await asyncio.sleep(processors.settings.scan_not_active_broker_interval / 1000)
            removals = processors.table.expire(processors.now_ms())
            processors.counters.brokers_expired += len(removals.removed)
            processors.take_removals(removals, "broker expired")
            for removal in removals.removed:
                self._forget(removal.address)
                if isinstance(removal.connection, Connection):
                    removal.connection.close()

    def _connection_closed(self, connection: Connection) -> None:
        processors = self._processors
        assert processors is not None
        removals = processors.table.connection_closed(connection)
        processors.counters.brokers_disconnected += len(removals.removed)
        processors.take_removals(removals, "broker disconnected")
        for removal in removals.removed:
            self._forget(removal.address)

    def _forget(self, address: str) -> None:
        if self._notifier is not None:
            self._notifier.forget(address)

    def _alive_problems(self) -> list[str]:
        return [] if self._running else ["the name server's tasks do not run"]

    def _ready_problems(self) -> list[str]:
        if self._server is None or self._processors is None:
            return ["not listening"]
        waiting = self._processors.waiting_reason()
        return self._alive_problems() + ([waiting] if waiting is not None else [])

    def _metrics(self) -> CollectorRegistry:
        from brokerset_namesrv import metrics

        assert self._processors is not None
        assert self._server is not None
        processors = self._processors
        return metrics.registry(
            metrics.NamesrvCollector(processors.table, processors.kv, processors.counters, self._server)
        )
