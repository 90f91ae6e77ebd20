"""Which processes, ports, folders and settings a manifest means on one machine; decides, touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.manifest import BrokerSet, Spec
from brokerset_spec.namesrv_settings import NamesrvSettings

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10911
HTTP_PORT: Final = 8080

BROKER_PORT_STEP: Final = 10
"""Distance between the ports of two brokers; each has further listeners next to its first."""

SECOND_PORT_OFFSET: Final = 2
"""A broker also listens so far below its port, where Java's clients send to when they are told so."""

PORT_TRIES_MAX: Final = 200
"""Ports that are looked at before giving up."""


class PortsTaken(Exception):
    """A port that the plan needs is in use."""

    def __init__(self, port: int, wanted_by: str) -> None:
        super().__init__(f"port {port}, which {wanted_by} needs, is in use")
        self.port = port
        self.wanted_by = wanted_by


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process to run."""

    name: str
    """Unique in the set: `namesrv-0`, `<group>-0`."""

    kind: Literal["namesrv", "broker"]
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
    settings: BrokerSettings | NamesrvSettings

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports it listens on."""
        return (self.port, self.http_port) if self.http_port else (self.port,)


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """Everything that runs for one manifest on one machine."""

    name: str
    cluster_name: str
    namesrv_address: str
    processes: tuple[ProcessPlan, ...]
    """In the order in which they are started; they are stopped in the reverse order."""

    notes: tuple[str, ...]
    """What the manifest says and one machine does not do; to be shown to the person who asked."""


@dataclass(frozen=True, slots=True)
class PortWishes:
    """The first port of each kind."""

    namesrv: int = NAMESRV_PORT
    broker: int = BROKER_PORT
    http: int = HTTP_PORT


def plan_local(
    manifest: BrokerSet,
    data: Path,
    *,
    is_free: Callable[[int], bool],
    wishes: PortWishes | None = None,
    host: str = "127.0.0.1",
) -> LocalPlan:
    """Return what to run for `manifest` under the folder `data`, listening on `host`.

    The name server and the first broker get exactly the ports that are wished for, because clients look for
    them there; further brokers and HTTP endpoints take the next free ones. Raises `PortsTaken`.
    """
    wishes = wishes or PortWishes()
    used: set[int] = set()

    def take(ports: Sequence[int], wanted_by: str) -> None:
        for port in ports:
            if port in used or not is_free(port):
                raise PortsTaken(port, wanted_by)
        used.update(ports)

    def next_free(first: int, step: int, wanted_by: str, also_below: int = 0) -> int:
        for port in range(first, min(first + step * PORT_TRIES_MAX, 65_536), step):
            try:
                take(_with_second(port, also_below), wanted_by)
            except PortsTaken:
                continue
            return port
        raise PortsTaken(first, wanted_by)

    take([wishes.namesrv], "the name server")
    namesrv = _namesrv(data, host, wishes.namesrv)
    processes = [namesrv]
    for index, group in enumerate(manifest.broker_names):
        name = f"{group}-0"
        if index == 0:
            port = wishes.broker
            take(_with_second(port, SECOND_PORT_OFFSET), f"broker {name}")
        else:
            first = processes[-1].port + BROKER_PORT_STEP
            port = next_free(first, BROKER_PORT_STEP, f"broker {name}", SECOND_PORT_OFFSET)
        http_port = next_free(wishes.http, 1, f"the HTTP endpoint of broker {name}")
        processes.append(_broker(manifest, data, host, group, port, http_port, namesrv.address))
    return LocalPlan(
        name=manifest.metadata.name,
        cluster_name=manifest.spec.cluster_name,
        namesrv_address=namesrv.address,
        processes=tuple(processes),
        notes=tuple(local_notes(manifest.spec)),
    )


def _with_second(port: int, below: int) -> tuple[int, ...]:
    return (port, port - below) if below and port > below else (port,)


def _namesrv(data: Path, host: str, port: int) -> ProcessPlan:
    folder = data / "namesrv-0"
    return ProcessPlan(
        name="namesrv-0",
        kind="namesrv",
        module="brokerset_namesrv",
        group=None,
        address=f"{_reachable(host)}:{port}",
        port=port,
        http_port=0,
        folder=folder,
        settings_file=folder / "namesrv.conf",
        log_file=data / "logs" / "namesrv-0.log",
        settings=NamesrvSettings(
            listen_port=port, bind_address=host, kv_config_path=folder / "kvConfig.json"
        ),
    )


def _broker(
    manifest: BrokerSet, data: Path, host: str, group: str, port: int, http_port: int, namesrv: str
) -> ProcessPlan:
    name = f"{group}-0"
    folder = data / "brokers" / name
    own = {
        "broker_cluster_name": manifest.spec.cluster_name,
        "broker_name": group,
        "broker_id": 0,
        "broker_ip1": _reachable(host),
        "bind_address": host,
        "listen_port": port,
        "http_port": http_port,
        "namesrv_addr": namesrv,
        "store_path_root_dir": folder / "store",
    }
    return ProcessPlan(
        name=name,
        kind="broker",
        module="brokerset_broker",
        group=group,
        address=f"{_reachable(host)}:{port}",
        port=port,
        http_port=http_port,
        folder=folder,
        settings_file=folder / "broker.conf",
        log_file=data / "logs" / f"{name}.log",
        settings=BrokerSettings(**{**manifest.config_values(), **own}),  # type: ignore[arg-type]  # checked by name
    )


def _reachable(host: str) -> str:
    """An address that can be connected to, also when `host` means all interfaces."""
    return "127.0.0.1" if host == "0.0.0.0" else host


def local_notes(spec: Spec) -> list[str]:
    """Say which wishes of a manifest have no effect on one machine; they do no harm either."""
    default = Spec()
    notes = []
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
