"""Which processes, ports, folders and settings a manifest means on one machine; decides, touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from brokerset_spec.broker_settings import RECORD_EXTRA_BYTES, BrokerSettings
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.dledger_members import member_id
from brokerset_spec.dledger_mode import FIXED_REPLICAS, FIXED_REPLICAS_ADVICE
from brokerset_spec.group_count import AUTO, auto_note, choose_groups
from brokerset_spec.local_ports import (
    HA_PORT_OFFSET,
    NAMESRV_PORT,
    SECOND_PORT_OFFSET,
    PlanRefused,
    PortChoice,
    PortsTaken,
    PortWishes,
)
from brokerset_spec.manifest import BrokerSet
from brokerset_spec.manifest_parts import GROUPS_MAX
from brokerset_spec.namesrv_settings import NamesrvSettings
from brokerset_spec.plan_notes import (
    FROM_SCRATCH_JOINED_NOTE,
    FROM_SCRATCH_NOTE,
    LEDGER_CONTROLLERS_NOTE,
    controllers_note,
    joined_notes,
    local_notes,
    lost_note,
    replicas_note,
)
from brokerset_spec.set_memory import ControllerMemory, GroupMemory, SetMemory
from brokerset_spec.set_parts import MODE_STAYS

__all__ = [
    "HA_PORT_OFFSET",
    "LOCAL_LOG_FILE_BYTES",
    "NAMESRV_PORT",
    "SECOND_PORT_OFFSET",
    "LocalPlan",
    "PlanRefused",
    "PortWishes",
    "PortsTaken",
    "ProcessPlan",
    "broker_folder",
    "broker_process",
    "controller_data_folder",
    "controller_folder",
    "more_numbers",
    "move_broker",
    "plan_local",
]

NAME_SERVER: Final = "namesrv-0"
"""Name of the process of the name server of a set without controllers."""

LOCAL_LOG_FILE_BYTES: Final = 256 * 1024 * 1024
"""Size of the log's files in a new folder, unless the manifest gives `mappedFileSizeCommitLog`.

Every broker takes the disk space of a file, and soon of the next one, in advance: with RocketMQ's 1 GiB a
group of three would take 3 GiB for its first message.
"""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process to run."""

    name: str
    """Unique in the set: `controller-0`, `namesrv-0`, `<group>-0`."""

    kind: Literal["controller", "namesrv", "broker"]
    module: str
    """Started as `python -m <module> -c <settings_file>`."""

    group: str | None
    """Broker group, for brokers."""

    address: str
    """`host:port` of the remoting protocol."""

    port: int
    http_port: int
    """0 when it has none."""

    folder: Path
    settings_file: Path
    log_file: Path
    settings: BrokerSettings | ControllerSettings | NamesrvSettings
    node_id: int | None = None
    """Number among the controllers, for controllers."""

    namesrv_address: str = ""
    """`host:port` of the name server that it is, or that is in a controller."""

    raft_address: str = ""
    """`host:port` where other controllers reach a controller."""

    ha_address: str = ""
    """`host:port` where slaves reach a broker."""

    ledger_address: str = ""
    """`host:port` where other members of its DLedger group reach a broker."""

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports it listens on."""
        addresses = (
            self.address,
            self.namesrv_address,
            self.raft_address,
            self.ha_address,
            self.ledger_address,
        )
        found = [int(address.rpartition(":")[2]) for address in addresses if address]
        if self.kind == "broker" and self.port > SECOND_PORT_OFFSET:
            found.append(self.port - SECOND_PORT_OFFSET)
        return tuple(dict.fromkeys((*found, self.http_port) if self.http_port else found))


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """Everything that runs for one manifest on one machine."""

    name: str
    cluster_name: str
    processes: tuple[ProcessPlan, ...]
    """Controllers, which are started first and all together, or a name server, then brokers; they are stopped
    the other way."""

    memory: SetMemory
    """What the data folder is to remember."""

    notes: tuple[str, ...]
    """What the person who asked should know."""

    @property
    def controllers(self) -> tuple[ProcessPlan, ...]:
        """The controllers, by ascending number."""
        return tuple(process for process in self.processes if process.kind == "controller")

    @property
    def brokers(self) -> tuple[ProcessPlan, ...]:
        """The brokers."""
        return tuple(process for process in self.processes if process.kind == "broker")

    @property
    def namesrv_address(self) -> str:
        """All name servers, joined by semicolons; another cluster's come first."""
        joined = self.memory.joined_cluster_of
        others = joined.name_servers.split(";") if joined is not None else []
        own = [process.namesrv_address for process in self.processes]
        return ";".join(dict.fromkeys(each.strip() for each in (*others, *own) if each.strip()))

    @property
    def controller_address(self) -> str:
        """All controllers that the brokers belong to, joined by semicolons."""
        joined = self.memory.joined_cluster_of
        if joined is not None and joined.controllers:
            return joined.controllers
        return ";".join(process.address for process in self.controllers)


def plan_local(
    manifest: BrokerSet,
    data: Path,
    *,
    memory: SetMemory,
    is_free: Callable[[int], bool],
    wishes: PortWishes | None = None,
    host: str = "127.0.0.1",
    with_data: Collection[int] | None = None,
    cores: int = 1,
    tls_config_file: Path | None = None,
) -> LocalPlan:
    """Return what to run for `manifest` under the folder `data`, listening on `host`.

    The first name server and the first broker get exactly the ports that are wished for, because clients look
    for them there; the others take the next free ones. Controllers never change theirs, brokers take those of
    the last time when they are free. `with_data` has the numbers of the controllers whose folders hold data:
    one that has served and has none is left out, as its votes are forgotten; when none has any, they start
    from scratch. `groups: auto` chooses by `cores`, which this machine lets the set use, unless it has chosen
    before. With `tls_config_file` all processes use TLS by it.
    Raises `PortsTaken`, `PlanRefused`.
    """
    if manifest.spec.controllers.ref is not None:
        raise PlanRefused(
            "spec.controllers.ref: on one machine a set cannot use the controllers of another one",
            "leave controllers out of the manifest: this set then runs its own",
        )
    notes = []
    if manifest.spec.groups == AUTO:
        replicas = manifest.spec.replicas
        memory = choose_groups(
            manifest.metadata.name, memory, cores=cores, replicas=replicas, most=GROUPS_MAX
        )
        manifest = manifest.with_groups(memory.auto_groups)
        notes = [note for note in [auto_note(memory, cores=cores, replicas=replicas)] if note is not None]
    planner = _Planner(manifest, data, host, wishes or PortWishes(), is_free, tls_config_file)
    plan = planner.plan(memory, with_data)
    return replace(plan, notes=(*notes, *plan.notes))


class _Planner:
    """Takes ports one after the other."""

    def __init__(
        self,
        manifest: BrokerSet,
        data: Path,
        host: str,
        wishes: PortWishes,
        is_free: Callable[[int], bool],
        tls_config_file: Path | None,
    ) -> None:
        self._tls_config_file = tls_config_file
        self._manifest = manifest
        self._data = data
        self._host = host
        self._reachable = "127.0.0.1" if host == "0.0.0.0" else host
        self._wishes = wishes
        self._ports = PortChoice(wishes, is_free, ha=not manifest.is_dledger)

    def plan(self, memory: SetMemory, with_data: Collection[int] | None) -> LocalPlan:
        notes = local_notes(self._manifest.spec)
        self._check_mode(memory)
        ledgers = self._manifest.is_dledger
        wanted = self._manifest.controllers_wanted
        before = memory
        memory, lost = _without_lost(memory, with_data)
        from_scratch = bool(before.controllers) and not memory.controllers
        own = memory.under_own_controllers
        if from_scratch and any(each.started for each in before.controllers):
            notes.append(FROM_SCRATCH_NOTE if own else FROM_SCRATCH_JOINED_NOTE)
        if not own:
            wanted = len(before.controllers)  # so many were asked for, whatever the manifest says
        host = "" if own and not memory.controllers and not before.ledger_ports else before.host
        memory = replace(memory, host=host or self._reachable, mode=self._manifest.spec.replication.mode)
        if not memory.controllers:
            memory = memory.with_first_controllers(wanted)
        notes += joined_notes(memory)
        self._check_kept(memory)
        first = min((each.namesrv_port for each in before.controllers), default=0)
        first = first or before.namesrv_port or NAMESRV_PORT
        serves_names = ledgers and not wanted
        if serves_names:
            port = self._ports.of_name_server(NAME_SERVER, memory, first)
            memory = replace(memory, namesrv_port=port)
        memory = replace(
            memory,
            listen_host=self._host,
            controllers=memory.controllers
            if serves_names
            else self._ports.of_controllers(memory.controllers, first, movable=not own and not from_scratch),
        )
        run = tuple(each for each in memory.controllers if each.node_id not in lost and not serves_names)
        groups = self._groups(memory)
        memory = replace(
            memory,
            groups={**memory.groups, **groups},
            log_file_bytes=_log_file_bytes(self._manifest, memory),
        )
        brokers_of = {
            broker_process(group, k): (group, k) for group, each in groups.items() for k in each.numbers
        }
        names = list(brokers_of)
        if ledgers:
            self._ports.keep_ledgers(names, memory)
        broker_ports = self._ports.of_brokers(names, memory)
        if ledgers:
            ports = self._ports.of_ledgers(names, memory, broker_ports)
            memory = replace(memory, ledger_ports={**memory.ledger_ports, **ports})
        http_names = [*names, *(f"controller-{each.node_id}" for each in run)]
        http_names += [NAME_SERVER] if serves_names else []
        http_ports = self._ports.of_http(http_names, memory)
        memory = replace(memory, broker_ports=broker_ports, http_ports=http_ports)
        name_servers = (self._name_server(memory),) if serves_names else ()
        controllers = tuple(self._controller(each, memory, http_ports) for each in run)
        addresses = LocalPlan("", "", name_servers + controllers, memory, ())
        brokers = tuple(self._broker(group, k, addresses) for group, k in brokers_of.values())
        notes += [
            replicas_note(group, len(each.numbers), self._manifest.spec.replicas)
            for group, each in groups.items()
            if len(each.numbers) != self._manifest.spec.replicas
        ]
        if run and ledgers:
            notes.append(LEDGER_CONTROLLERS_NOTE)
        if len(memory.controllers) != wanted and not serves_names:
            notes.append(controllers_note(len(memory.controllers), wanted))
        notes += [lost_note(n, wanted, memory) for n in sorted(lost)]
        return LocalPlan(
            name=self._manifest.metadata.name,
            cluster_name=self._manifest.spec.cluster_name,
            processes=name_servers + controllers + brokers,
            memory=memory,
            notes=tuple(notes),
        )

    def _check_mode(self, memory: SetMemory) -> None:
        mode = self._manifest.spec.replication.mode
        if self._manifest.is_dledger and memory.joined_cluster_of is not None:
            raise PlanRefused(
                "spec.replication.mode: brokers that join another cluster follow its controllers, and "
                f"{mode} has none",
                "use controller or leave it out",
            )
        if memory.groups and memory.mode != mode:
            reason, advice = MODE_STAYS
            raise PlanRefused(
                f"spec.replication.mode: is {mode}, and this data folder has brokers in mode {memory.mode}: "
                f"it cannot be changed, as {reason}",
                f"put {memory.mode} back, or {advice} in another folder (--data)",
            )

    def _check_kept(self, memory: SetMemory) -> None:
        if memory.host and memory.host != self._reachable:
            brokers = memory.joined_cluster_of is not None or memory.ledger_ports
            who = "brokers" if brokers else "controllers"
            raise PlanRefused(
                f"the {who} of this data folder know each other by the address {memory.host}, "
                f"not {self._reachable}",
                f"give --host {memory.host}",
            )
        kept = memory.controllers[0].namesrv_port if memory.controllers else memory.namesrv_port
        wish = self._wishes.namesrv
        if kept and wish is not None and wish != kept:
            who = "controllers keep their ports" if memory.controllers else "it is kept"
            raise PlanRefused(
                f"{who}, and the first name server of this data folder has {kept}, not {wish}",
                "leave --namesrv-port out",
            )

    def _groups(self, memory: SetMemory) -> dict[str, GroupMemory]:
        """The brokers of each group. A smaller number than the one that ran is left to `brokerset scale`.

        None is added on the way out of another cluster: an empty one could be the first that the set's own
        controllers hear of its group, which they would take for a new one.
        """
        wanted = self._manifest.spec.replicas
        leaving = memory.joined_cluster_of is not None and memory.under_own_controllers
        found = {}
        for group in self._manifest.broker_names:
            kept = memory.groups.get(group)
            if kept is not None and leaving:
                found[group] = kept
                continue
            numbers = kept.numbers if kept is not None else ()
            if numbers and self._manifest.is_dledger and len(numbers) != wanted:
                raise PlanRefused(
                    f"spec.replicas: is {wanted}, and {group} has {len(numbers)} brokers: {FIXED_REPLICAS}",
                    FIXED_REPLICAS_ADVICE,
                )
            if kept is None or wanted != kept.asked:
                numbers = more_numbers(numbers, wanted)
            found[group] = GroupMemory(numbers, wanted)
        return found

    def _controller(
        self, each: ControllerMemory, memory: SetMemory, http_ports: dict[str, int]
    ) -> ProcessPlan:
        name = f"controller-{each.node_id}"
        folder = controller_folder(self._data, each.node_id)
        members = [one for one in memory.controllers if not one.joins or one is each]
        return ProcessPlan(
            name=name,
            kind="controller",
            module="brokerset_controller",
            group=None,
            address=self._at(each.controller_port),
            port=each.controller_port,
            http_port=http_ports[name],
            folder=folder,
            settings_file=folder / "controller.conf",
            log_file=self._data / "logs" / f"{name}.log",
            node_id=each.node_id,
            namesrv_address=self._at(each.namesrv_port),
            raft_address=self._at(each.raft_port),
            settings=ControllerSettings(
                # The UID keeps two sets apart that come to the same ports one after the other.
                controller_group=f"{self._manifest.metadata.name}-{memory.uid}",
                controller_peers=_peers(members, lambda one: self._at(one.controller_port)),
                raft_peers=_peers(members, lambda one: self._at(one.raft_port)),
                controller_self_id=f"n{each.node_id}",
                raft_join=each.joins,
                controller_store_path=controller_data_folder(self._data, each.node_id),
                bind_address=self._host,
                listen_port=each.controller_port,
                raft_listen_port=each.raft_port,
                http_port=http_ports[name],
                namesrv_listen_port=each.namesrv_port,
                kv_config_path=folder / "kvConfig.json",
                config_store_path=folder / "controller.properties",
                enable_elect_unclean_master=self._manifest.spec.replication.unclean_election,
                tls_config_file=self._tls_config_file,
            ),
        )

    def _name_server(self, memory: SetMemory) -> ProcessPlan:
        """The name server of a set without controllers."""
        folder, port, http_port = (
            self._data / NAME_SERVER,
            memory.namesrv_port,
            memory.http_ports[NAME_SERVER],
        )
        return ProcessPlan(
            name=NAME_SERVER,
            kind="namesrv",
            module="brokerset_namesrv",
            group=None,
            address=self._at(port),
            port=port,
            http_port=http_port,
            folder=folder,
            settings_file=folder / "namesrv.conf",
            log_file=self._data / "logs" / f"{NAME_SERVER}.log",
            namesrv_address=self._at(port),
            settings=NamesrvSettings(
                listen_port=port,
                bind_address=self._host,
                http_port=http_port,
                kv_config_path=folder / "kvConfig.json",
                tls_config_file=self._tls_config_file,
            ),
        )

    def _broker(self, group: str, number: int, others: LocalPlan) -> ProcessPlan:
        """A broker of a group; `others` are the processes that it belongs to."""
        name, memory = broker_process(group, number), others.memory
        folder = broker_folder(self._data, name)
        port, http_port = memory.broker_ports[name], memory.http_ports[name]
        own: dict[str, Any] = {
            "broker_cluster_name": self._manifest.spec.cluster_name,
            "broker_name": group,
            "broker_ip1": self._reachable,
            "bind_address": self._host,
            "listen_port": port,
            "http_port": http_port,
            "tls_config_file": self._tls_config_file,
            "namesrv_addr": others.namesrv_address,
            "store_path_root_dir": folder / "store",
            "mapped_file_size_commit_log": memory.log_file_bytes,
        }
        ledger = self._manifest.is_dledger
        own |= self._of_ledger(group, number, memory) if ledger else self._of_controllers(group, others)
        return ProcessPlan(
            name=name,
            kind="broker",
            module="brokerset_broker",
            group=group,
            address=self._at(port),
            port=port,
            http_port=http_port,
            folder=folder,
            settings_file=folder / "broker.conf",
            log_file=self._data / "logs" / f"{name}.log",
            ha_address="" if ledger else self._at(port + HA_PORT_OFFSET),
            ledger_address=self._at(memory.ledger_ports[name]) if ledger else "",
            settings=BrokerSettings(**{**self._manifest.config_values(), **own}),
        )

    def _of_controllers(self, group: str, others: LocalPlan) -> dict[str, Any]:
        """The settings of a broker to which controllers give the role."""
        replicas = len(others.memory.groups[group].numbers)
        return {
            "enable_controller_mode": True,
            "controller_addr": others.controller_address,
            "owner_uid": others.memory.uid,
            "expected_replicas": replicas,
            "min_in_sync_replicas": self._manifest.min_in_sync_of(replicas),
            "all_ack_in_sync_state_set": self._manifest.spec.replication.acknowledge == "allInSync",
        }

    def _of_ledger(self, group: str, number: int, memory: SetMemory) -> dict[str, Any]:
        """The settings of a member of a DLedger group."""
        peers = {k: memory.ledger_ports[broker_process(group, k)] for k in memory.groups[group].numbers}
        return {
            "enable_dledger_commit_log": True,
            "dledger_group": group,
            "dledger_peers": ";".join(f"{member_id(k)}-{self._at(port)}" for k, port in peers.items()),
            "dledger_self_id": member_id(number),
            "dledger_brokerset_only": True,
        }

    def _at(self, port: int) -> str:
        return f"{self._reachable}:{port}"


def controller_folder(data: Path, node_id: int) -> Path:
    """Where everything of one controller is."""
    return data / "controllers" / f"controller-{node_id}"


def controller_data_folder(data: Path, node_id: int) -> Path:
    """Where a controller keeps what must not be lost: its votes and the log."""
    return controller_folder(data, node_id) / "raft"


def broker_folder(data: Path, name: str) -> Path:
    """Where everything of one broker is; its messages are in `store`."""
    return data / "brokers" / name


def broker_process(group: str, number: int) -> str:
    """Name of one broker's process."""
    return f"{group}-{number}"


def more_numbers(numbers: Collection[int], wanted: int) -> tuple[int, ...]:
    """These numbers, and the smallest others, until there are so many; ascending."""
    free = [n for n in range(len(numbers) + wanted) if n not in numbers]
    return tuple(sorted([*numbers, *free[: max(0, wanted - len(numbers))]]))


def move_broker(plan: LocalPlan, name: str, port: int) -> LocalPlan:
    """The same plan with one broker at another port."""
    processes = []
    for process in plan.processes:
        if process.name == name:
            assert isinstance(process.settings, BrokerSettings)
            process = replace(
                process,
                port=port,
                address=f"{process.address.rpartition(':')[0]}:{port}",
                ha_address=f"{process.address.rpartition(':')[0]}:{port + HA_PORT_OFFSET}"
                if process.ha_address
                else "",
                settings=replace(process.settings, listen_port=port),
            )
        processes.append(process)
    memory = replace(plan.memory, broker_ports={**plan.memory.broker_ports, name: port})
    return replace(plan, processes=tuple(processes), memory=memory)


def _without_lost(memory: SetMemory, with_data: Collection[int] | None) -> tuple[SetMemory, frozenset[int]]:
    """Which controllers must not start, since they forgot what they had promised."""
    if with_data is None or not memory.controllers:
        return memory, frozenset()
    if not any(each.node_id in with_data for each in memory.controllers):
        # All of it is gone, or they never ran: nobody is left who could be contradicted.
        if not memory.under_own_controllers:
            # The host is that of the brokers, too, and folders of controllers that never served may be left.
            return replace(memory, controllers=()), frozenset()
        return replace(memory, host="", controllers=(), next_controller_id=0), frozenset()
    return memory, frozenset(
        each.node_id for each in memory.controllers if each.started and each.node_id not in with_data
    )


def _peers(members: Sequence[ControllerMemory], address: Callable[[ControllerMemory], str]) -> str:
    return ";".join(f"n{each.node_id}-{address(each)}" for each in members)


def _log_file_bytes(manifest: BrokerSet, memory: SetMemory) -> int:
    """The manifest's size, the one of the last start, or the local default if the largest message fits in."""
    values: dict[str, Any] = dict(manifest.config_values())
    given = BrokerSettings(**values)
    if "mapped_file_size_commit_log" in values:
        return given.mapped_file_size_commit_log
    if memory.log_file_bytes:
        return memory.log_file_bytes
    fits = given.max_message_size + RECORD_EXTRA_BYTES <= LOCAL_LOG_FILE_BYTES
    return LOCAL_LOG_FILE_BYTES if fits else given.mapped_file_size_commit_log
