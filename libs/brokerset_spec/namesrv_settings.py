"""Settings of a name server process; outside they carry RocketMQ's camelCase names (Java: NamesrvConfig)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from brokerset_spec.access_settings import administration_problems
from brokerset_spec.setting_fields import PORT_MAX, address_problems, number, range_problems, secret


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvSettings:
    """Everything that can be set on a name server; defaults are RocketMQ 5's where nothing else is said."""

    listen_port: int = number(9876, high=PORT_MAX)
    """Port of the remoting protocol; 0 takes a free one."""

    bind_address: str = "0.0.0.0"
    """Address of the network interface to listen on."""

    tls_config_file: Path | None = None
    """File with RocketMQ's keys of TLS (`tls.server.mode` and others); empty means plain connections only. It
    and the certificates that it names are read again when they change. RocketMQ takes it as the system
    property `tls.config.file`."""

    authentication_enabled: bool = False
    """Whether only Super users may register brokers and administer: those of the two settings below. What
    clients need to find brokers stays open to everybody; see `docs/security.md`. Not known to RocketMQ."""

    authorization_enabled: bool = False
    """Whether policies count here, too: users who are not Super users may administer what policies allow.
    Needs `authenticationEnabled`, and users of controllers. Not known to RocketMQ."""

    refusals_max: int = number(10_000)
    """Refused requests (code 16) of one connection in 10 s at which it is closed; 0: never. Not known to
    RocketMQ."""

    init_authentication_user: str = secret()
    """A Super user, as `{"username":"…","password":"…"}`, as brokers have it: `mqadmin` and `brokerset` sign
    as this one."""

    inner_client_authentication_credentials: str = secret()
    """What brokers sign with, as `{"accessKey":"…","secretKey":"…"}`, as they have it; notices to
    brokers are signed with it, too."""

    controller_addr: str = ""
    """Controllers as `host:port`, separated by `;`, of a name server by itself: it has their users and
    policies, too, asks them with `innerClientAuthenticationCredentials`, and keeps a copy next to
    `kvConfigPath` (`brokersetAccess.json`). Only with `authenticationEnabled`. Not known to RocketMQ."""

    external_listen_port: int = number(0, high=PORT_MAX)
    """Port for clients outside the cluster, which are told the addresses of `externalAddressesPath`; 0
    switches it off. It answers reads only. Not known to RocketMQ."""

    external_addresses_path: Path = Path("external-addresses.json")
    """JSON file with the addresses that brokers have outside, read again when it changes: `masters` by broker
    name, `brokers` by registered address, `hosts` (a master's) by broker name and IP. Brokers that it does
    not name are left out."""

    external_connections_max: int = number(5_000, low=1)
    """Connections at once on `externalListenPort`; one more is closed."""

    http_port: int = number(0, high=PORT_MAX)
    """Port of `/metrics`, `/healthz` and `/readyz`; 0 switches it off. Not known to RocketMQ."""

    kv_config_path: Path = Path("namesrv/kvConfig.json")
    """File of the key-value configuration; RocketMQ uses `~/namesrv/kvConfig.json`."""

    scan_not_active_broker_interval: int = number(5_000, low=10)
    """Milliseconds between two searches for brokers that have not registered for too long."""

    default_broker_timeout: int = number(120_000, low=100)
    """Milliseconds without a registration after which a broker is forgotten if it names no own time-out.

    A constant in RocketMQ."""

    order_message_enable: bool = False
    """Whether the route of a topic carries its order configuration."""

    return_order_topic_config_to_broker: bool = True
    """Whether the answer to a registration carries the order configuration of all topics."""

    support_acting_master: bool = False
    """Whether the slave with the smallest id stands in for a lost master in the routes."""

    notify_min_broker_id_changed: bool = False
    """Whether the brokers of a group are told when the smallest living id changes."""

    delete_topic_with_broker_registration: bool = False
    """Whether a registration deletes the topics that it does not list any more."""

    enable_all_topic_list: bool = True
    """Whether the list of all topics is handed out."""

    enable_topic_list: bool = True
    """Whether the lists of topics by cluster and unit flags are handed out."""

    need_wait_for_service: bool = False
    """Whether route requests are refused until `waitSecondsForService` after the start."""

    wait_seconds_for_service: int = number(45, low=0)
    """Seconds after the start in which brokers are expected to register, see `needWaitForService`."""

    def problems(self) -> list[str]:
        """Return everything that is wrong, one text for each problem."""
        found = range_problems(self)
        if self.http_port and self.http_port == self.listen_port:
            found.append(f"httpPort={self.http_port}: is the same as listenPort")
        external = self.external_listen_port
        if external and external in (self.listen_port, self.http_port):
            found.append(f"externalListenPort={external}: is the same as listenPort or httpPort")
        found += [f"controllerAddr: {text}" for text in address_problems(self.controller_addr)]
        if self.follows_controllers and not self.inner_client_authentication_credentials:
            found.append(
                f"controllerAddr={self.controller_addr}: needs innerClientAuthenticationCredentials as the"
                " controllers have it, or they would say nothing of users"
            )
        return found + administration_problems(self)

    @property
    def follows_controllers(self) -> bool:
        """Whether users and policies of controllers count."""
        return self.authentication_enabled and bool(self.controller_addr.strip(" ;"))
