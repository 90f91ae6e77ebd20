"""Our brokers in a data folder that joined another cluster: what they are, how they start, how they go."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from brokerset_cli.folder import MANIFEST, MEMORY, DataFolder
from brokerset_cli.output import fail
from brokerset_cli.takeover.adoption_journal import Journal
from brokerset_cli.takeover.cluster_observation import Cluster
from brokerset_cli.takeover.obstacles import BrokerAnswers, Finding
from brokerset_cli.up import choose_ports, detach_set, load_manifest
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.manifest import API_VERSION, KIND, BrokerSet, read_manifest
from brokerset_spec.plan import PortWishes, broker_process
from brokerset_spec.set_memory import JoinedCluster, SetMemory
from brokerset_spec.setting_fields import SettingField, setting_fields

NAME_PREFIX: Final = "adopted-"
NAME_LENGTH: Final = 40
"""Of the set's name, which is made from the cluster's."""

TAKEN_OVER: Final = (
    "mappedFileSizeCommitLog",
    "messageDelayLevel",
    "maxMessageSize",
    "fileReservedTime",
    "deleteWhen",
    "flushDiskType",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
    "defaultTopicQueueNums",
    "enablePropertyFilter",
    "filterSupportRetry",
    "filterDataCleanTimeSpan",
    "timerPrecisionMs",
    "timerMaxDelaySec",
    "timerRollWindowSlot",
    "recallMessageEnable",
    "transactionTimeOut",
    "transactionCheckMax",
    "transactionCheckInterval",
    "rejectTransactionMessage",
    "enableLmq",
    "enableMultiDispatch",
    "maxLmqConsumeQueueNum",
)
"""Settings that our brokers take from Java's, since clients see them or the log depends on them."""


def set_name(cluster: str) -> str:
    """The set's name, from the cluster's."""
    text = re.sub(r"[^a-z0-9]+", "-", cluster.lower()).strip("-")[:NAME_LENGTH].strip("-")
    return f"{NAME_PREFIX}{text}" if text else NAME_PREFIX.strip("-")


def make_manifest(
    cluster: str, groups: Sequence[str], replicas: int, settings: Mapping[str, str]
) -> BrokerSet:
    """What our brokers are, with Java's settings that matter; raises `ManifestError`."""
    known = setting_fields(BrokerSettings)
    config = {
        name: value
        for name in TAKEN_OVER
        if name in known and (value := _typed(known[name], settings.get(name, ""))) is not None
    }
    return read_manifest(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": set_name(cluster)},
            "spec": {
                "clusterName": cluster,
                "brokerNames": list(groups),
                "replicas": replicas,
                "config": config,
            },
        }
    )


def _typed(item: SettingField, text: str) -> bool | int | str | None:
    """A setting as a manifest has it; None for what our brokers cannot have."""
    try:
        value = item.parse(text)
    except ValueError:
        return None
    if not text or item.problem(value) is not None:
        return None
    return value if isinstance(value, bool | int) else text


def our_addresses(folder: DataFolder) -> tuple[str, ...]:
    """Where our brokers are, or were when they ran last."""
    if not (folder.path / MEMORY).exists():
        return ()
    memory = folder.memory()
    return tuple(f"{memory.host}:{port}" for port in memory.broker_ports.values()) if memory.host else ()


def joined_cluster_of(folder: DataFolder) -> JoinedCluster | None:
    """Whose cluster the set of a folder has joined; None for others, and where there is none."""
    return folder.memory().joined_cluster_of if (folder.path / MEMORY).exists() else None


def has_left(folder: DataFolder) -> bool:
    """Whether the set of a folder joined another cluster once, and has controllers of its own by now."""
    if not (folder.path / MEMORY).exists() or not (folder.owner() or "").startswith(NAME_PREFIX):
        return False
    memory = folder.memory()
    return memory.joined_cluster_of is None and bool(memory.controllers)


def replicas_of(folder: DataFolder) -> int | None:
    """Brokers of each group now, the fewest of all groups; None before they were planned."""
    if not (folder.path / MEMORY).exists():
        return None
    return min((len(each.numbers) for each in folder.memory().groups.values()), default=None)


def stored_manifest(folder: DataFolder) -> BrokerSet | None:
    """The manifest with which the set was started last; None when it never was."""
    stored = folder.path / MANIFEST
    return load_manifest(stored) if stored.exists() else None


def cluster_of(folder: DataFolder) -> str | None:
    """The cluster that our brokers have joined; None before they did.

    Others may come to the same name servers later. With another cluster's name Java's controllers take every
    replica for dead: they would elect nobody.
    """
    if joined_cluster_of(folder) is None:
        return None
    manifest = stored_manifest(folder)
    return None if manifest is None else manifest.spec.cluster_name


def join(
    folder: DataFolder,
    cluster: Cluster,
    manifest: BrokerSet,
    host: str,
    living: Mapping[str, tuple[int, ...]],
) -> None:
    """Start our brokers under the controllers of `cluster`; what is known of an earlier start is kept.

    `living` are the ids of Java's living brokers. Ends the command when it cannot be done.
    """
    stored = stored_manifest(folder)
    manifest = manifest if stored is None else stored
    with folder.claim(manifest.metadata.name):
        memory = folder.memory()
        Journal(folder.path).begin(living, manifest.spec.replicas)
        if memory.joined_cluster_of is None:
            memory = replace(
                memory, joined_cluster_of=JoinedCluster(cluster.controllers, cluster.name_servers)
            )
            folder.write_memory(memory)
    wishes = PortWishes()
    if not memory.broker_ports:
        wishes = choose_ports(host, PortWishes(None, 0, 0), kept=())
    detach_set(manifest, folder.path, memory.host or host, wishes, err=True)


def under_own_controllers(folder: DataFolder) -> None:
    """From its next start on the set belongs to its own controllers, and still uses Java's name servers.

    On the disk when it returns. Ends the command when `up` runs: it would write what it remembers over that.
    """
    name = folder.owner()
    assert name is not None, "a folder without a set has joined nobody"
    with folder.claim(name):
        memory = folder.memory()
        assert memory.controllers, "a set leaves other controllers for its own ones"
        assert memory.joined_cluster_of is not None, "an ordinary set has nobody to leave"
        others = replace(memory.joined_cluster_of, controllers="")
        folder.write_memory(replace(memory, joined_cluster_of=others))


def start(folder: DataFolder) -> None:
    """Start the set of a folder in the background, as it was started last, and wait until it serves."""
    manifest = stored_manifest(folder)
    if manifest is None:
        fail(
            f"{folder.path / MANIFEST} is not there: nobody knows what runs in {folder.path}",
            "restore this file",
        )
    memory = folder.memory()
    detach_set(manifest, folder.path, memory.listen_host or memory.host, PortWishes(), err=True)


def own_brokers(memory: SetMemory) -> dict[str, tuple[str, ...]]:
    """By group: the addresses of the brokers that a set remembers; of all of them, once it was planned."""
    return {
        group: tuple(
            f"{memory.host}:{memory.broker_ports[name]}"
            for name in (broker_process(group, number) for number in each.numbers)
            if name in memory.broker_ports
        )
        for group, each in sorted(memory.groups.items())
    }


def own_controllers(memory: SetMemory) -> str:
    """Addresses of the set's own controllers, joined by semicolons."""
    return ";".join(f"{memory.host}:{each.controller_port}" for each in memory.controllers if each.ports)


def own_name_servers(memory: SetMemory) -> str:
    """Addresses of the name servers in the set's own controllers, joined by semicolons."""
    return ";".join(f"{memory.host}:{each.namesrv_port}" for each in memory.controllers if each.ports)


def name_servers_that_run(folder: DataFolder) -> str:
    """Likewise, but those of controllers that `up` has left out since they lost their data.

    They are replaced when the brokers belong to them, and nobody waits for them until then.
    """
    own = own_name_servers(folder.memory()).split(";")
    state = folder.read_state()
    planned = {each.namesrv for each in state.processes} if state is not None and state.alive else set()
    return ";".join([each for each in own if each in planned] or own)


def folder_findings(folder: DataFolder) -> list[Finding]:
    """Whether the folder can take the set."""
    owner = folder.owner()
    text = ""
    if owner is None and folder.path.exists() and any(folder.path.iterdir()):
        text = f"{folder.path} holds files that are not brokerset's; give another --data"
    elif owner is not None and (folder.path / MEMORY).exists():
        memory = folder.memory()
        if memory.joined_cluster_of is None and memory.controllers:
            text = (
                f"{folder.path} has the BrokerSet {owner!r}, with controllers of its own; give another --data"
            )
    return [Finding("folder", text)] if text else []


def host_findings(host: str, brokers: Sequence[BrokerAnswers]) -> list[Finding]:
    """Whether Java's brokers and their clients can reach us at the address that we would tell them."""
    far = sorted({each.address for each in brokers if not _is_loopback(each.address)})
    if not far or not _is_loopback(host):
        return []
    text = (
        f"our brokers would tell the address {host}, and {far[0]} is another host's; give an address of this "
        "machine that all of them and the clients reach, with --host"
    )
    return [Finding("host", text)]


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "localhost"))
