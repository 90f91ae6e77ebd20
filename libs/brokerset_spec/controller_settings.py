"""Settings of a controller process; outside they carry RocketMQ's names (Java: ControllerConfig)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brokerset_spec.access_settings import administration_problems
from brokerset_spec.setting_fields import PORT_MAX, named, number, range_problems, secret

PEERS_MAX: Final = 9
"""Most controllers of one group (`brokerset_raft.configuration.MEMBERS_MAX`)."""

GROUP_BYTES_MAX: Final = 255
"""Longest name of a group of controllers (`brokerset_raft.frames.GROUP_BYTES_MAX`)."""

PERMISSION_MS_MAX: Final = 600_000
"""Longest permission of a consumer (`brokerset_controller.ordered.limits.PERMISSION_MS_MAX`)."""

PEER_SHAPE: Final = re.compile(r"n(?P<id>\d{1,9})-(?P<address>(?:\[[0-9a-fA-F:.]+\]|[^:;\s\[\]]+):\d{1,5})")
"""One entry of a list of peers: `n0-host:port`."""


def parse_peers(text: str) -> dict[int, str]:
    """Read `n0-host:port;n1-host:port` into addresses by number. Raises `ValueError` that names the entry."""
    found: dict[int, str] = {}
    for part in filter(None, (entry.strip() for entry in text.split(";"))):
        match = PEER_SHAPE.fullmatch(part)
        if match is None or not 0 < int(match["address"].rpartition(":")[2]) <= PORT_MAX:
            raise ValueError(f"{part!r} is not n<number>-<host>:<port>")
        if int(match["id"]) in found:
            raise ValueError(f"n{match['id']} is listed twice")
        found[int(match["id"])] = match["address"]
    if len(found) > PEERS_MAX:
        raise ValueError(f"lists {len(found)} nodes; {PEERS_MAX} is the most there can be")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Everything that can be set on a controller; defaults are RocketMQ 5's where nothing else is said."""

    controller_group: str = named("DefaultControllerGroup", "controllerDLegerGroup")
    """Name of the controllers' group: nodes of other groups are refused."""

    controller_peers: str = named("n0-127.0.0.1:9878", "controllerDLegerPeers")
    """The first members, as `n0-host:port;n1-host:port`, with the addresses that brokers dial. Read when the
    node has no data yet; later the members are what the group agreed on."""

    controller_self_id: str = named("n0", "controllerDLegerSelfId")
    """Which of them this node is."""

    raft_peers: str = ""
    """Addresses of the raft transport, as above; empty takes the port below each controller port. Not known
    to RocketMQ, which uses one port for both."""

    raft_join: bool = False
    """Whether a node without data waits to be added to a running group (`brokerset controller members add`)
    instead of forming one with `controllerDLegerPeers`. Not known to RocketMQ."""

    controller_store_path: Path = Path("controller")
    """Folder of the raft log and the snapshots; RocketMQ uses `~/DLedgerController`."""

    bind_address: str = "0.0.0.0"
    """Address of the network interface to listen on."""

    tls_config_file: Path | None = None
    """File with RocketMQ's keys of TLS (`tls.server.mode` and others); empty means plain connections only. It
    and the certificates that it names are read again when they change. RocketMQ takes it as the system
    property `tls.config.file`."""

    authentication_enabled: bool = False
    """Whether only Super users may act for brokers and administer: those of the two settings below, and those
    that the controllers have. What clients need to find brokers stays open to everybody; see
    `docs/security.md`. Not known to RocketMQ."""

    authorization_enabled: bool = False
    """Whether policies count here, too: clients of ordered subjects must sign and be allowed what they do,
    and users who are not Super users may administer what policies allow. Needs `authenticationEnabled`. The
    name server inside has the same. Not known to RocketMQ."""

    refusals_max: int = number(10_000)
    """Refused requests (code 16) of one connection in 10 s at which it is closed; 0: never. Not known to
    RocketMQ."""

    init_authentication_user: str = secret()
    """A Super user, as `{"username":"…","password":"…"}`, as brokers have it: `mqadmin` and `brokerset` sign
    as this one."""

    inner_client_authentication_credentials: str = secret()
    """What brokers sign with, as `{"accessKey":"…","secretKey":"…"}`, as they have it; requests to
    brokers are signed with it, too. The name server inside has the same."""

    listen_port: int = number(0, high=PORT_MAX)
    """Port of the controller's remoting protocol; 0 takes the one of this node in `controllerDLegerPeers`."""

    raft_listen_port: int = number(0, high=PORT_MAX)
    """Port of the raft transport; 0 takes the one of this node in `raftPeers`."""

    http_port: int = number(0, high=PORT_MAX)
    """Port of `/metrics`, `/healthz` and `/readyz`; 0 switches it off."""

    enable_name_server: bool = True
    """Whether a name server runs in this process. RocketMQ does it the other way round
    (`enableControllerInNamesrv`)."""

    namesrv_listen_port: int = number(9876, high=PORT_MAX)
    """Port of the name server in this process."""

    external_listen_port: int = number(0, high=PORT_MAX)
    """Port of the name server for clients outside the cluster, which are told the addresses of
    `externalAddressesPath`; 0 switches it off. It answers reads only. Not known to RocketMQ."""

    external_addresses_path: Path = Path("external-addresses.json")
    """JSON file with the addresses that brokers have outside, read again when it changes: `masters` by broker
    name, `brokers` by registered address, `hosts` (a master's) by broker name and IP. Brokers that it does
    not name are left out."""

    external_connections_max: int = number(5_000, low=1)
    """Connections at once on `externalListenPort`; one more is closed."""

    kv_config_path: Path = Path("namesrv/kvConfig.json")
    """File of the name server's key-value configuration."""

    scan_not_active_broker_interval: int = number(500, low=10)
    """Milliseconds between two searches for brokers whose heartbeats stay away. RocketMQ: 5,000."""

    scan_inactive_master_interval: int = number(1_000, low=10)
    """Milliseconds between two searches for groups without a living master. RocketMQ: 5,000."""

    probe_timeout: int = number(200, low=10, high=10_000)
    """Milliseconds that a broker has to answer before it is taken for dead. Not known to RocketMQ."""

    enable_elect_unclean_master: bool = False
    """Whether a replica that may lack acknowledged messages may become master when no other is left."""

    notify_broker_role_changed: bool = True
    """Whether brokers are told of an election instead of asking for its result."""

    elect_master_max_retry_count: int = number(3, low=1, high=100)
    """How often an election is decided again when another change came in between."""

    config_black_list: str = "configBlackList;configStorePath"
    """Settings that may not be changed at run time, separated by semicolons."""

    config_store_path: Path = Path("controller/controller.properties")
    """File that RocketMQ writes changed settings to; here changes last until the process ends."""

    request_timeout: int = number(5_000, low=100)
    """Milliseconds that a request may wait for the agreement of the controllers. A constant in RocketMQ."""

    raft_tick: int = number(50, low=5, high=1_000)
    """Milliseconds of one tick of the raft core."""

    raft_election_ticks: int = number(6, low=3, high=100)
    """Ticks without a leader after which a node holds an election; up to twice as many, drawn at random."""

    snapshot_entries: int = number(10_000, low=100)
    """Log entries after which a snapshot is taken and the log is truncated."""

    consumer_permission: int = number(30_000, low=1_000, high=PERMISSION_MS_MAX)
    """Milliseconds that a consumer of an ordered subject may go on after a heartbeat that was answered. It is
    agreed on when the consumer joins, so a change counts for those that join later. Not known to RocketMQ, as
    are the following."""

    consumer_stop_margin: int = number(5_000, low=0, high=PERMISSION_MS_MAX)
    """Milliseconds before the end of its permission from when on a consumer begins nothing new; what runs
    then shall end within them."""

    consumer_wait_margin: int = number(5_000, low=0, high=PERMISSION_MS_MAX)
    """Milliseconds that the controllers wait longer than a permission lasts, before others get the consumer's
    partitions: clocks do not run alike."""

    consumer_heartbeat_interval: int = number(5_000, low=100, high=PERMISSION_MS_MAX)
    """Milliseconds between two heartbeats of a consumer, as it is asked for."""

    sealed_partition_retention: int = number(3_600_000, low=0)
    """Milliseconds that a sealed partition is kept at least, for consumers and for people to see. It is
    forgotten when all groups have finished it."""

    subject_default_broker_groups: int = number(2, low=1, high=64)
    """Broker groups that a new subject's partitions are put on when nobody names any."""

    def peers(self) -> dict[int, str]:
        """Controller addresses of the first members, by number."""
        return parse_peers(self.controller_peers)

    def raft_addresses(self) -> dict[int, str]:
        """Raft addresses of the first members, by number."""
        if self.raft_peers:
            return parse_peers(self.raft_peers)
        return {node_id: _port_below(address) for node_id, address in self.peers().items()}

    @property
    def node_id(self) -> int:
        """This node's number."""
        return int(self.controller_self_id.removeprefix("n"))

    def problems(self) -> list[str]:
        """Return everything that is wrong, one text for each problem."""
        found = range_problems(self) + administration_problems(self)
        if not re.fullmatch(r"n\d{1,9}", self.controller_self_id):
            return [*found, f"controllerDLegerSelfId={self.controller_self_id}: is not n<number>, like n0"]
        if not 0 < len(self.controller_group.encode()) <= GROUP_BYTES_MAX:
            found.append(f"controllerDLegerGroup: must have 1 to {GROUP_BYTES_MAX} bytes")
        if self.consumer_heartbeat_interval + self.consumer_stop_margin >= self.consumer_permission:
            found.append(
                f"consumerPermission={self.consumer_permission}: must be more than consumerHeartbeatInterval"
                f" and consumerStopMargin together, or consumers stop between two heartbeats"
            )
        for outside, text in (
            ("controllerDLegerPeers", self.controller_peers),
            ("raftPeers", self.raft_peers),
        ):
            try:
                listed = parse_peers(text)
            except ValueError as error:
                found.append(f"{outside}={text}: {error}")
                continue
            if self.node_id not in listed and (listed or outside == "controllerDLegerPeers"):
                found.append(f"{outside}={text}: does not list {self.controller_self_id}, this node")
        return found or self._address_problems()

    def _address_problems(self) -> list[str]:
        """What is wrong with addresses and ports that can be read."""
        peers, raft = self.peers(), self.raft_addresses()
        if sorted(peers) != sorted(raft):
            return [f"raftPeers={self.raft_peers}: does not list the same nodes as controllerDLegerPeers"]
        found = []
        taken = {address: f"the controller address of n{node_id}" for node_id, address in peers.items()}
        if len(taken) < len(peers):
            found.append(f"controllerDLegerPeers={self.controller_peers}: lists an address twice")
        for node_id, address in raft.items():
            if address in taken:
                found.append(
                    f"raftPeers={self.raft_peers}: the raft address of n{node_id}, {address}, is also"
                    f" {taken[address]}; give each node a raft address of its own"
                )
            elif address.endswith(":0"):
                found.append(f"raftPeers={self.raft_peers}: there is no port below 1 for n{node_id}; set it")
            taken[address] = f"the raft address of n{node_id}"
        return found + self._port_problems(peers[self.node_id], raft[self.node_id])

    def _port_problems(self, own_address: str, raft_address: str) -> list[str]:
        """Which ports of this process are the same."""
        ports = {
            "listenPort": self.listen_port or _port(own_address),
            "raftListenPort": self.raft_listen_port or _port(raft_address),
            "namesrvListenPort": self.namesrv_listen_port if self.enable_name_server else 0,
            "externalListenPort": self.external_listen_port if self.enable_name_server else 0,
            "httpPort": self.http_port,
        }
        users: dict[int, str] = {}
        found = []
        for name, port in ports.items():
            if port and port in users:
                found.append(f"{name}={port}: is the same as {users[port]}")
            users.setdefault(port, name)
        return found


def _port_below(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 1}"


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
