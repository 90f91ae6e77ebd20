"""What the data folder of a local set remembers between two starts: UID, controllers, brokers, all ports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self

FORMAT: Final = 1
"""Version of the file."""

CONTROLLER: Final = "controller"
"""The mode of older folders."""

NO_PORTS: Final[Mapping[str, int]] = MappingProxyType({})

EARLIER_LOG_FILE_BYTES: Final = 1024 * 1024 * 1024
"""Size of the log's files in folders that are older than the memory of it."""


@dataclass(frozen=True, slots=True)
class ControllerMemory:
    """One controller of the set. Its addresses are agreed on by all controllers, so they never change."""

    node_id: int
    namesrv_port: int = 0
    """Port of its name server; 0, like the others, while it has never been planned."""

    raft_port: int = 0
    controller_port: int = 0
    joins: bool = False
    """Whether it was added to running controllers, instead of forming the first group with them."""

    started: bool = False
    """Whether it has served: a folder without data then means that the data was lost."""

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports that it may never change; empty while it has none."""
        return (self.namesrv_port, self.raft_port, self.controller_port) if self.namesrv_port else ()


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """The brokers of one group."""

    numbers: tuple[int, ...]
    """Which ones run, each by the number in its name `<group>-<number>`; ascending."""

    asked: int
    """`spec.replicas` of the manifest for which they were counted."""


NO_GROUPS: Final[Mapping[str, GroupMemory]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class JoinedCluster:
    """Another cluster, which the set's brokers have joined, or had until a while ago."""

    controllers: str
    """Those that the brokers belong to, joined by semicolons; empty: they belong to the set's own by now."""

    name_servers: str
    """The brokers register with these as well as with the set's own, if there are any; likewise joined."""


@dataclass(frozen=True, slots=True)
class SetMemory:
    """What a set keeps."""

    uid: str
    """Names the set permanently; its broker groups belong to it."""

    host: str = ""
    """Address that controllers, and brokers of a joined set or of DLedger groups, are known by; empty before
    the first start."""

    controllers: tuple[ControllerMemory, ...] = ()
    next_controller_id: int = 0
    """The number of the next new controller; no number is used twice, since votes hang on it."""

    broker_ports: Mapping[str, int] = field(default_factory=lambda: NO_PORTS)
    """By name of the process; taken again when they are free."""

    http_ports: Mapping[str, int] = field(default_factory=lambda: NO_PORTS)
    groups: Mapping[str, GroupMemory] = field(default_factory=lambda: NO_GROUPS)
    """By name of the group; also of groups that the manifest does not name any more."""

    log_file_bytes: int = 0
    """Size of the log's files, the same for all replicas, permanently; 0 before the first start."""

    joined_cluster_of: JoinedCluster | None = None
    """None for an ordinary set; a joined one runs no controllers, or some next to those of the other."""

    listen_host: str = ""
    """Address that everything listened on last; empty before the first start, and in older folders."""

    mode: str = CONTROLLER
    """`spec.replication.mode` of the first start: the logs of the brokers hang on it."""

    namesrv_port: int = 0
    """Port of the name server of a set without controllers; 0 while it has none."""

    ledger_ports: Mapping[str, int] = field(default_factory=lambda: NO_PORTS)
    """By name of the process: where the other members of its DLedger group reach a broker. Their stores know
    it, so it never changes."""

    auto_groups: int = 0
    """How many groups `groups: auto` has chosen; 0 while it never has."""

    @property
    def under_own_controllers(self) -> bool:
        """Whether the brokers belong to the set's own controllers."""
        return self.joined_cluster_of is None or not self.joined_cluster_of.controllers

    def with_first_controllers(self, number: int) -> SetMemory:
        """Let so many new controllers form a group together. The set must have none."""
        assert not self.controllers, "controllers that come later join the others"
        first = self.next_controller_id
        new = tuple(ControllerMemory(first + n) for n in range(number))
        return replace(self, controllers=new, next_controller_id=first + number)

    def with_controllers(self, node_ids: tuple[int, ...]) -> SetMemory:
        """Keep the controllers with these numbers, and add those that are new."""
        known = {controller.node_id: controller for controller in self.controllers}
        chosen = tuple(known.get(n, ControllerMemory(n, joins=True)) for n in sorted(node_ids))
        highest = max((*node_ids, self.next_controller_id - 1))
        return replace(self, controllers=chosen, next_controller_id=highest + 1)

    def with_brokers(self, group: str, numbers: tuple[int, ...]) -> SetMemory:
        """Run exactly these brokers of a group that is known."""
        changed = replace(self.groups[group], numbers=tuple(sorted(numbers)))
        return replace(self, groups={**self.groups, group: changed})

    def with_started(self, node_ids: tuple[int, ...]) -> SetMemory:
        """Remember that these controllers have served."""
        controllers = tuple(
            replace(each, started=True) if each.node_id in node_ids else each for each in self.controllers
        )
        return replace(self, controllers=controllers)

    def to_json(self) -> dict[str, Any]:
        """The file's content, with camelCase names."""
        return {
            "format": FORMAT,
            "uid": self.uid,
            "host": self.host,
            "nextControllerId": self.next_controller_id,
            "controllers": [
                {
                    "nodeId": each.node_id,
                    "namesrvPort": each.namesrv_port,
                    "raftPort": each.raft_port,
                    "controllerPort": each.controller_port,
                    "joins": each.joins,
                    "started": each.started,
                }
                for each in self.controllers
            ],
            "brokerPorts": dict(self.broker_ports),
            "httpPorts": dict(self.http_ports),
            "groups": {
                name: {"numbers": list(each.numbers), "asked": each.asked}
                for name, each in self.groups.items()
            },
            "logFileBytes": self.log_file_bytes,
            "guestOf": None
            if self.joined_cluster_of is None
            else {
                "controllers": self.joined_cluster_of.controllers,
                "nameServers": self.joined_cluster_of.name_servers,
            },
            "listenHost": self.listen_host,
            "mode": self.mode,
            "namesrvPort": self.namesrv_port,
            "ledgerPorts": dict(self.ledger_ports),
            "autoGroups": self.auto_groups,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` made; raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']} is not {FORMAT}")
        return cls(
            uid=str(value["uid"]),
            host=str(value["host"]),
            controllers=tuple(
                ControllerMemory(
                    int(each["nodeId"]),
                    int(each["namesrvPort"]),
                    int(each["raftPort"]),
                    int(each["controllerPort"]),
                    bool(each["joins"]),
                    bool(each["started"]),
                )
                for each in value["controllers"]
            ),
            next_controller_id=int(value["nextControllerId"]),
            broker_ports={str(name): int(port) for name, port in value["brokerPorts"].items()},
            http_ports={str(name): int(port) for name, port in value["httpPorts"].items()},
            groups={
                str(name): GroupMemory(tuple(sorted(map(int, each["numbers"]))), int(each["asked"]))
                for name, each in value.get("groups", {}).items()
            },
            log_file_bytes=int(
                value.get("logFileBytes", EARLIER_LOG_FILE_BYTES if value["brokerPorts"] else 0)
            ),
            joined_cluster_of=_joined_cluster_of(value.get("guestOf")),
            listen_host=str(value.get("listenHost", "")),
            mode=str(value.get("mode", CONTROLLER)),
            namesrv_port=int(value.get("namesrvPort", 0)),
            ledger_ports={str(name): int(port) for name, port in value.get("ledgerPorts", {}).items()},
            auto_groups=int(value.get("autoGroups", 0)),
        )


def _joined_cluster_of(value: Mapping[str, Any] | None) -> JoinedCluster | None:
    return None if value is None else JoinedCluster(str(value["controllers"]), str(value["nameServers"]))
