"""Which processes, ports, folders and settings a manifest means on one machine; decides, touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from brokerset_spec.broker_settings import RECORD_EXTRA_BYTES, BrokerSettings
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.manifest import BrokerSet, Spec
from brokerset_spec.set_memory import ControllerMemory, GroupMemory, GuestOf, SetMemory

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10911
HTTP_PORT: Final = 8080

CONTROLLER_PORT_STEP: Final = 10
"""Distance between the ports of two controllers."""

CONTROLLER_PORTS: Final = 3
"""A controller takes its name server's port, the next one for raft, and the one after it for itself."""

BROKER_PORT_STEP: Final = 10
"""Distance between the ports of two brokers; each has further listeners next to its first."""

SECOND_PORT_OFFSET: Final = 2
"""A broker also listens so far below its port, where Java's clients send to when they are told so."""

HA_PORT_OFFSET: Final = 1
"""Slaves connect so far above a broker's port (`haListenPort=0`)."""

LOCAL_LOG_FILE_BYTES: Final = 256 * 1024 * 1024
"""Size of the log's files in a new folder, unless the manifest gives `mappedFileSizeCommitLog`.

Every broker takes the disk space of a file, and soon of the next one, in advance: with RocketMQ's 1 GiB a
group of three would take 3 GiB for its first message.
"""

PORT_TRIES_MAX: Final = 200
"""Ports that are looked at before giving up."""

PORT_MAX: Final = 65_535

ANEW_NOTE: Final = (
    "all controllers have lost their data and start anew; brokers that had ids wait, and this start "
    "with them, until `brokerset controller rebuild` has told the controllers who they are"
)


class PortsTaken(Exception):
    """A port that the plan needs is in use. `kept`: it cannot be replaced by another one."""

    def __init__(self, port: int, wanted_by: str, *, kept: bool = False) -> None:
        super().__init__(f"port {port}, which {wanted_by} needs, is in use")
        self.port = port
        self.wanted_by = wanted_by
        self.kept = kept


class PlanRefused(Exception):
    """What is wished for contradicts what the data folder keeps; `advice` says what to do."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process to run."""

    name: str
    """Unique in the set: `controller-0`, `<group>-0`."""

    kind: Literal["controller", "broker"]
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
    settings: BrokerSettings | ControllerSettings
    node_id: int | None = None
    """Number among the controllers, for controllers."""

    namesrv_address: str = ""
    """`host:port` of the name server in a controller."""

    raft_address: str = ""
    """`host:port` where other controllers reach a controller."""

    ha_address: str = ""
    """`host:port` where slaves reach a broker."""

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports it listens on."""
        addresses = (self.address, self.namesrv_address, self.raft_address, self.ha_address)
        found = [int(address.rpartition(":")[2]) for address in addresses if address]
        if self.kind == "broker" and self.port > SECOND_PORT_OFFSET:
            found.append(self.port - SECOND_PORT_OFFSET)
        return (*found, self.http_port) if self.http_port else tuple(found)


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """Everything that runs for one manifest on one machine."""

    name: str
    cluster_name: str
    processes: tuple[ProcessPlan, ...]
    """Controllers, which are started first and all together, then brokers; they are stopped the other way."""

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
        """All name servers, joined by semicolons."""
        if self.memory.guest_of is not None:
            return self.memory.guest_of.name_servers
        return ";".join(process.namesrv_address for process in self.controllers)

    @property
    def controller_address(self) -> str:
        """All controllers, joined by semicolons."""
        if self.memory.guest_of is not None:
            return self.memory.guest_of.controllers
        return ";".join(process.address for process in self.controllers)


@dataclass(frozen=True, slots=True)
class PortWishes:
    """The first port of each kind. None takes the one of the last start, or RocketMQ's."""

    namesrv: int | None = None
    broker: int | None = None
    http: int | None = None


def plan_local(
    manifest: BrokerSet,
    data: Path,
    *,
    memory: SetMemory,
    is_free: Callable[[int], bool],
    wishes: PortWishes | None = None,
    host: str = "127.0.0.1",
    with_data: Collection[int] | None = None,
) -> LocalPlan:
    """Return what to run for `manifest` under the folder `data`, listening on `host`.

    The first name server and the first broker get exactly the ports that are wished for, because clients look
    for them there; the others take the next free ones. Controllers never change theirs, brokers take those of
    the last time when they are free. `with_data` has the numbers of the controllers whose folders hold data:
    one that has served and has none is left out, as its votes are forgotten; when none has any, they start
    anew.
    Raises `PortsTaken`, `PlanRefused`.
    """
    if manifest.spec.controllers.ref is not None:
        raise PlanRefused(
            "spec.controllers.ref: on one machine a set cannot use the controllers of another one",
            "leave controllers out of the manifest: this set then runs its own",
        )
    planner = _Planner(manifest, data, host, wishes or PortWishes(), is_free)
    return planner.plan(memory, with_data)


class _Planner:
    """Takes ports one after the other."""

    def __init__(
        self,
        manifest: BrokerSet,
        data: Path,
        host: str,
        wishes: PortWishes,
        is_free: Callable[[int], bool],
    ) -> None:
        self._manifest = manifest
        self._data = data
        self._host = host
        self._reachable = "127.0.0.1" if host == "0.0.0.0" else host
        self._wishes = wishes
        self._is_free = is_free
        self._used: set[int] = set()
        self._namesrv_port = NAMESRV_PORT

    def plan(self, memory: SetMemory, with_data: Collection[int] | None) -> LocalPlan:
        notes = local_notes(self._manifest.spec)
        wanted = self._manifest.spec.controllers.replicas
        before = memory
        memory, lost = _without_lost(memory, with_data)
        if before.controllers and not memory.controllers:
            self._namesrv_port = min(each.namesrv_port for each in before.controllers) or NAMESRV_PORT
            if any(each.started for each in before.controllers):
                notes.append(ANEW_NOTE)
        if memory.guest_of is not None:
            wanted = 0
            notes.append(guest_note(memory.guest_of))
            memory = replace(memory, host=memory.host or self._reachable)
        elif not memory.controllers:
            first = tuple(ControllerMemory(n) for n in range(wanted))
            memory = replace(
                memory, host=self._reachable, controllers=first, next_controller_id=max(wanted, 1)
            )
        self._check_kept(memory)
        memory = replace(memory, controllers=self._controller_ports(memory.controllers))
        run = tuple(each for each in memory.controllers if each.node_id not in lost)
        groups = self._groups(memory)
        memory = replace(
            memory,
            groups={**memory.groups, **groups},
            log_file_bytes=_log_file_bytes(self._manifest, memory),
        )
        names = tuple(
            (group, broker_process(group, k)) for group, each in groups.items() for k in each.numbers
        )
        broker_ports = self._broker_ports([name for _, name in names], memory)
        http_names = [name for _, name in names] + [f"controller-{each.node_id}" for each in run]
        http_ports = self._http_ports(http_names, memory)
        memory = replace(memory, broker_ports=broker_ports, http_ports=http_ports)
        controllers = tuple(self._controller(each, memory, http_ports) for each in run)
        addresses = LocalPlan("", "", controllers, memory, ())
        brokers = tuple(
            self._broker(group, name, broker_ports[name], http_ports[name], addresses)
            for group, name in names
        )
        notes += [
            _replicas_note(group, len(each.numbers), self._manifest.spec.replicas)
            for group, each in groups.items()
            if len(each.numbers) != self._manifest.spec.replicas
        ]
        if len(memory.controllers) != wanted:
            notes.append(
                f"spec.controllers.replicas: is {wanted}, and {len(memory.controllers)} controllers belong "
                f"together; change that while they run, with `brokerset controller scale {wanted}`"
            )
        notes += [_lost_note(n, wanted) for n in sorted(lost)]
        return LocalPlan(
            name=self._manifest.metadata.name,
            cluster_name=self._manifest.spec.cluster_name,
            processes=controllers + brokers,
            memory=memory,
            notes=tuple(notes),
        )

    def _check_kept(self, memory: SetMemory) -> None:
        if memory.host and memory.host != self._reachable:
            who = "controllers" if memory.guest_of is None else "brokers"
            raise PlanRefused(
                f"the {who} of this data folder know each other by the address {memory.host}, "
                f"not {self._reachable}",
                f"give --host {memory.host}",
            )
        if not memory.controllers:
            return
        kept = memory.controllers[0].namesrv_port
        wish = self._wishes.namesrv
        if kept and wish is not None and wish != kept:
            raise PlanRefused(
                f"controllers keep their ports, and the first name server of this data folder has {kept}, "
                f"not {wish}",
                "leave --namesrv-port out",
            )

    def _controller_ports(self, controllers: Sequence[ControllerMemory]) -> tuple[ControllerMemory, ...]:
        kept = [each.namesrv_port for each in controllers if each.ports]
        base = min(kept) if kept else (self._wishes.namesrv or self._namesrv_port)
        for each in controllers:
            if each.ports:
                self._take(each.ports, f"controller-{each.node_id}", kept=True)
        found = []
        for number, each in enumerate(controllers):
            if each.ports:
                found.append(each)
                continue
            name = f"controller-{each.node_id}"
            if number == 0:
                self._take([base], "the name server")
                self._take(range(base + 1, base + CONTROLLER_PORTS), name)
                first = base
            else:
                first = self._next_free(
                    base + CONTROLLER_PORT_STEP, CONTROLLER_PORT_STEP, name, range(CONTROLLER_PORTS)
                )
            found.append(replace(each, namesrv_port=first, raft_port=first + 1, controller_port=first + 2))
        return tuple(found)

    def _groups(self, memory: SetMemory) -> dict[str, GroupMemory]:
        """The brokers of each group. A smaller number than the one that ran is left to `brokerset scale`."""
        wanted = self._manifest.spec.replicas
        found = {}
        for group in self._manifest.broker_names:
            kept = memory.groups.get(group)
            numbers = kept.numbers if kept is not None else ()
            if kept is None or wanted != kept.asked:
                numbers = more_numbers(numbers, wanted)
            found[group] = GroupMemory(numbers, wanted)
        return found

    def _broker_ports(self, names: Sequence[str], memory: SetMemory) -> dict[str, int]:
        found: dict[str, int] = {}
        kept = memory.broker_ports if self._wishes.broker is None else {}
        for name in names:  # ports of the last time first, so that nobody else takes them
            if name in kept and self._try(_all_of_broker(kept[name])):
                found[name] = kept[name]
        last = (self._wishes.broker or min(kept.values(), default=BROKER_PORT)) - BROKER_PORT_STEP
        for number, name in enumerate(names):
            if name in found:
                last = max(last, found[name])
            elif number == 0 and not kept:
                found[name] = last = self._wishes.broker or BROKER_PORT
                self._take(_all_of_broker(last), f"broker {name}")
            else:
                last = self._next_free(
                    last + BROKER_PORT_STEP,
                    BROKER_PORT_STEP,
                    f"broker {name}",
                    (0, -SECOND_PORT_OFFSET, HA_PORT_OFFSET),
                )
                found[name] = last
        return found

    def _http_ports(self, names: Sequence[str], memory: SetMemory) -> dict[str, int]:
        kept = memory.http_ports if self._wishes.http is None else {}
        found = {name: kept[name] for name in names if name in kept and self._try([kept[name]])}
        first = self._wishes.http or min(memory.http_ports.values(), default=HTTP_PORT)
        for name in names:
            if name not in found:
                found[name] = self._next_free(first, 1, f"the HTTP endpoint of {name}", (0,))
        return found

    def _take(self, ports: Sequence[int], wanted_by: str, *, kept: bool = False) -> None:
        if max(ports) > PORT_MAX:
            raise PlanRefused(
                f"{wanted_by} would need port {max(ports)}, and the last one is {PORT_MAX}",
                "choose smaller ones with --namesrv-port, --broker-port and --http-port",
            )
        for port in ports:
            if port in self._used or not self._is_free(port):
                raise PortsTaken(port, wanted_by, kept=kept)
        self._used.update(ports)

    def _try(self, ports: Sequence[int]) -> bool:
        try:
            self._take(ports, "")
        except PortsTaken:
            return False
        return True

    def _next_free(self, first: int, step: int, wanted_by: str, offsets: Sequence[int]) -> int:
        for port in range(first, min(first + step * PORT_TRIES_MAX, PORT_MAX + 1 - max(offsets)), step):
            if self._try([port + offset for offset in offsets]):
                return port
        raise PortsTaken(first, wanted_by)

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
            ),
        )

    def _broker(
        self, group: str, name: str, port: int, http_port: int, controllers: LocalPlan
    ) -> ProcessPlan:
        folder = broker_folder(self._data, name)
        replicas = len(controllers.memory.groups[group].numbers)
        own: dict[str, Any] = {
            "broker_cluster_name": self._manifest.spec.cluster_name,
            "broker_name": group,
            "broker_ip1": self._reachable,
            "bind_address": self._host,
            "listen_port": port,
            "http_port": http_port,
            "namesrv_addr": controllers.namesrv_address,
            "store_path_root_dir": folder / "store",
            "enable_controller_mode": True,
            "controller_addr": controllers.controller_address,
            "owner_uid": controllers.memory.uid,
            "expected_replicas": replicas,
            "min_in_sync_replicas": self._manifest.min_in_sync_of(replicas),
            "all_ack_in_sync_state_set": self._manifest.spec.replication.acknowledge == "allInSync",
            "mapped_file_size_commit_log": controllers.memory.log_file_bytes,
        }
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
            ha_address=self._at(port + HA_PORT_OFFSET),
            settings=BrokerSettings(**{**self._manifest.config_values(), **own}),
        )

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
                ha_address=f"{process.address.rpartition(':')[0]}:{port + HA_PORT_OFFSET}",
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
        return replace(memory, host="", controllers=(), next_controller_id=0), frozenset()
    return memory, frozenset(
        each.node_id for each in memory.controllers if each.started and each.node_id not in with_data
    )


def _lost_note(node_id: int, wanted: int) -> str:
    return (
        f"controller-{node_id} has lost its data and does not start: a member that forgot its votes could "
        f"break the agreement. Replace it while the others run: `brokerset controller scale {wanted}`"
    )


def _peers(members: Sequence[ControllerMemory], address: Callable[[ControllerMemory], str]) -> str:
    return ";".join(f"n{each.node_id}-{address(each)}" for each in members)


def _all_of_broker(port: int) -> tuple[int, ...]:
    second = (port - SECOND_PORT_OFFSET,) if port > SECOND_PORT_OFFSET else ()
    return (port, *second, port + HA_PORT_OFFSET)


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


def _replicas_note(group: str, has: int, wanted: int) -> str:
    return (
        f"spec.replicas: is {wanted}, and {group} has {has} of them since it was scaled; change that while "
        f"they run, with `brokerset scale {group} --replicas {wanted}`"
    )


def guest_note(host: GuestOf) -> str:
    """Say that a set runs no controllers, and whose it uses."""
    return (
        f"no controllers and name servers are run: the brokers belong to those at {host.controllers} and "
        f"{host.name_servers}, see `brokerset adopt`"
    )


def local_notes(spec: Spec) -> list[str]:
    """Say what a manifest asks for that has less effect on one machine than somebody may think."""
    default = Spec()
    notes = []
    if spec.controllers.replicas % 2 == 0:
        notes.append(
            f"spec.controllers.replicas: {spec.controllers.replicas} controllers survive the loss of no more "
            f"of them than {spec.controllers.replicas - 1} do: more than half must live"
        )
    if spec.image is not None:
        notes.append("spec.image: on one machine the installed programs run, in no container")
    if spec.storage != default.storage:
        notes.append(
            "spec.storage: folders are not limited in size, and only `brokerset down --purge` deletes them"
        )
    if spec.advertise != default.advertise:
        notes.append("spec.advertise: on one machine clients are told the broker's own address")
    if spec.update != default.update:
        notes.append("spec.update: on one machine a changed manifest takes effect at the next `brokerset up`")
    if spec.monitoring != default.monitoring:
        notes.append("spec.monitoring: is installed on Kubernetes only; brokers serve /metrics here as well")
    if spec.pod_template:
        notes.append("spec.podTemplate: there are no pods on one machine")
    return notes
