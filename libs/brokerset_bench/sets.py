"""The set that a failover measurement runs: one group of brokers, ours or Java's, with three controllers or
as a DLedger."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from brokerset_bench.network import HOST, OwnNetwork
from brokerset_bench.server_process import ServerProcess, end_all
from brokerset_cli.output import fail
from brokerset_cli.processes import free_port, port_is_free
from brokerset_cli.running import write_settings
from brokerset_cli.up import choose_ports
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.manifest import BrokerSet, read_manifest_text
from brokerset_spec.plan import (
    LocalPlan,
    PlanRefused,
    PortsTaken,
    PortWishes,
    ProcessPlan,
    plan_local,
)
from brokerset_spec.set_memory import CONTROLLER, SetMemory
from brokerset_spec.setting_fields import SettingValue, setting_fields

CONTROLLERS: Final = 3
LOG_FILE_BYTES: Final = 268_435_456
"""Size of a commit log file in both makes: small enough that three brokers fit on a test machine."""

PORTS_APART: Final = 100
"""Distance between the first ports of controllers, brokers and HTTP when `--port` is given."""

JAVA_STEP: Final = 10
"""Distance between the ports of two Java brokers, which listen next to their own as well."""

JAVA_GROUP: Final = "broker-a"


@dataclass(slots=True)
class BenchSet:
    """What runs, and where it is reached."""

    group: str
    controllers: tuple[ServerProcess, ...]
    brokers: tuple[ServerProcess, ...]
    others: tuple[ServerProcess, ...]
    """Name servers, where they are processes of their own."""

    name_servers: tuple[str, ...]
    network: OwnNetwork | None = None
    members: Mapping[str, int] = field(default_factory=dict)
    """By address of a process, its number in the network."""

    @property
    def controller_addresses(self) -> tuple[str, ...]:
        """Where the controllers are asked."""
        return tuple(process.address for process in self.controllers)

    @property
    def broker_addresses(self) -> tuple[str, ...]:
        """Where the brokers are reached."""
        return tuple(process.address for process in self.brokers)

    def process(self, address: str) -> ServerProcess:
        """The process with this address. Raises `KeyError` when there is none."""
        for process in (*self.controllers, *self.brokers):
            if process.address == address:
                return process
        raise KeyError(address)

    def start(self) -> None:
        """Start everything; returns before it serves."""
        for process in (*self.others, *self.controllers, *self.brokers):
            process.start()

    def ended(self) -> str:
        """Which process has ended, with the last lines of its log; empty when all run."""
        for process in (*self.others, *self.controllers, *self.brokers):
            if not process.running:
                return f"{process.name} has ended; the end of its log:\n{process.log_tail()}"
        return ""

    def keep_logs(self, folder: Path) -> None:
        """Copy what each process has logged to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for process in (*self.others, *self.controllers, *self.brokers):
            if process.log_file.exists():
                shutil.copy(process.log_file, folder / f"{process.name}.log")

    def end(self) -> None:
        """End everything, brokers first."""
        end_all(self.brokers)
        end_all((*self.controllers, *self.others))
        if self.network is not None:
            self.network.close()


def our_set(
    folder: Path,
    *,
    replicas: int,
    settings: Sequence[str],
    port: int,
    network: OwnNetwork | None,
    mode: str = CONTROLLER,
) -> BenchSet:
    """Plan a set of ours under `folder`, all new; `port` 0 takes free ports. A DLedger has no controllers."""
    host = HOST if network is not None else "127.0.0.1"
    chosen = PortWishes(port, port + PORTS_APART, port + 2 * PORTS_APART) if port else PortWishes(0, 0, 0)
    try:
        plan = plan_local(
            _manifest(replicas, mode),
            folder,
            memory=SetMemory(uid="bench"),
            is_free=lambda one: port_is_free(host, one),
            wishes=choose_ports(host, chosen, kept=()),
            host=host,
        )
    except (PlanRefused, PortsTaken) as error:
        fail(str(error), "leave --port out, or give another one")
    given: dict[str, Any] = dict(_given(settings))
    plan = replace(plan, processes=tuple(_with_settings(process, given) for process in plan.processes))
    members: dict[str, int] = {}
    before: dict[str, tuple[str, ...]] = {}
    if network is not None:
        plan, before, members = _apart(plan, network)
    write_settings(plan)
    return BenchSet(
        group=plan.brokers[0].group or "",
        controllers=tuple(_ours(process, before.get(process.name, ())) for process in plan.controllers),
        brokers=tuple(_ours(process, before.get(process.name, ())) for process in plan.brokers),
        others=tuple(
            _ours(process, before.get(process.name, ()))
            for process in plan.processes
            if process.kind == "namesrv"
        ),
        name_servers=tuple(each.namesrv_address for each in plan.processes if each.namesrv_address),
        network=network,
        members=members,
    )


def _manifest(replicas: int, mode: str) -> BrokerSet:
    controllers = f"  controllers: {{replicas: {CONTROLLERS}}}\n" if mode == CONTROLLER else ""
    text = (
        "apiVersion: brokerset.io/v1alpha1\nkind: BrokerSet\nmetadata: {name: bench}\nspec:\n"
        f"  replicas: {replicas}\n  replication: {{mode: {mode}}}\n{controllers}"
        f"  config: {{mappedFileSizeCommitLog: {LOG_FILE_BYTES}}}\n"
    )
    return read_manifest_text(text)


def _given(settings: Sequence[str]) -> dict[str, SettingValue]:
    """The settings that were wished for, by Python name; also those that a manifest does not let anybody
    choose."""
    known = setting_fields(BrokerSettings)
    found: dict[str, SettingValue] = {}
    for one in settings:
        name, _, value = one.partition("=")
        if name not in known:
            fail(f"brokers have no setting {name!r}", "correct --set; see docs/settings.md")
        try:
            found[known[name].name] = known[name].parse(value)
        except ValueError as error:
            fail(f"--set {one}: {error}", "correct it")
    return found


def _with_settings(process: ProcessPlan, given: Mapping[str, Any]) -> ProcessPlan:
    if not isinstance(process.settings, BrokerSettings):
        return process
    return replace(process, settings=replace(process.settings, **given))


def _apart(
    plan: LocalPlan, network: OwnNetwork
) -> tuple[LocalPlan, dict[str, tuple[str, ...]], dict[str, int]]:
    """Give each process a namespace: the plan with their addresses, what goes before each command by name,
    and each process's number in the network by address."""
    hosts: dict[int, str] = {}
    before: dict[str, tuple[str, ...]] = {}
    members: dict[str, int] = {}
    for process in plan.processes:
        number, host, before[process.name] = network.member()
        members[f"{host}:{process.port}"] = number
        hosts.update(dict.fromkeys(process.ports, host))

    def moved(text: str) -> str:
        return re.sub(rf"{re.escape(HOST)}:(\d+)", lambda found: f"{hosts[int(found[1])]}:{found[1]}", text)

    processes = []
    for process in plan.processes:
        own = hosts[process.port]
        addresses: dict[str, Any] = {
            one.name: moved(value)
            for one in fields(process.settings)
            if isinstance(value := getattr(process.settings, one.name), str)
        }
        addresses["bind_address"] = own
        if isinstance(process.settings, BrokerSettings):
            addresses["broker_ip1"] = own
        made: dict[str, Any] = {
            "address": moved(process.address),
            "namesrv_address": moved(process.namesrv_address),
            "settings": replace(process.settings, **addresses),
        }
        processes.append(replace(process, **made))
    return replace(plan, processes=tuple(processes)), before, members


def _ours(process: ProcessPlan, before: tuple[str, ...] = ()) -> ServerProcess:
    arguments = (*before, sys.executable, "-m", process.module, "-c", str(process.settings_file))
    return ServerProcess(process.name, arguments, process.address, process.log_file)


def java_set(
    folder: Path, peers: Path, *, replicas: int, settings: Mapping[str, str], port: int, heap: str
) -> BenchSet:
    """Plan a set of Java's under `folder`, run by the scripts of `tests/peers`.

    Raises `OSError` or `subprocess.CalledProcessError` when its jars cannot be had.
    """
    subprocess.run([str(peers / "bin" / "fetch")], check=True, stdout=subprocess.DEVNULL)
    first = port or free_port("127.0.0.1", *range(0, JAVA_STEP * (replicas + 2)))
    controller_ports = [first + 1 + number for number in range(CONTROLLERS)]
    broker_ports = [first + JAVA_STEP * (number + 2) for number in range(replicas)]
    environment = {"PEERS_RUN": str(folder), "BROKER_HEAP": heap}
    list_text = ";".join(f"n{n}-127.0.0.1:{one}" for n, one in enumerate(controller_ports))
    name_server = f"127.0.0.1:{first}"
    controllers = tuple(
        ServerProcess(
            f"controller-{n}",
            (str(peers / "bin" / "controller"), f"n{n}", list_text, str(folder / f"controller-{n}")),
            f"127.0.0.1:{one}",
            folder / "logs" / f"controller-{n}.log",
            environment,
        )
        for n, one in enumerate(controller_ports)
    )
    brokers = []
    for number, one in enumerate(broker_ports):
        store = folder / f"broker-{number}" / "store"
        conf = store.parent / "broker.conf"
        store.parent.mkdir(parents=True, exist_ok=True)
        values = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": JAVA_GROUP,
            "listenPort": str(one),
            "haListenPort": str(one + 1),
            "namesrvAddr": name_server,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
            "mappedFileSizeTimerLog": "10485760",
            "enableControllerMode": "true",
            "controllerAddr": ";".join(process.address for process in controllers),
            **settings,
        }
        conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        brokers.append(
            ServerProcess(
                f"broker-{number}",
                (str(peers / "bin" / "broker"), str(conf)),
                f"127.0.0.1:{one}",
                folder / "logs" / f"broker-{number}.log",
                environment,
            )
        )
    namesrv = ServerProcess(
        "namesrv",
        (str(peers / "bin" / "namesrv"), str(first)),
        name_server,
        folder / "logs" / "namesrv.log",
        environment,
    )
    return BenchSet(JAVA_GROUP, controllers, tuple(brokers), (namesrv,), (name_server,))
