"""The settings files of a set's pods, as ConfigMaps, with RocketMQ's names in them.

A file has what the manifest says and what the operator decides; everything else is left to the defaults of
the image. What differs between the pods of one StatefulSet comes by environment (`controllers`, `brokers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.resources.set_facts import NewObject, SetFacts
from brokerset_operator.resources.tls_files import tls_config_file, tls_settings
from brokerset_spec.broker_settings import RECORD_EXTRA_BYTES, BrokerSettings
from brokerset_spec.dledger_members import member_id
from brokerset_spec.manifest import value_text_of
from brokerset_spec.plan import LOCAL_LOG_FILE_BYTES
from brokerset_spec.setting_fields import value_text

SETTINGS_FOLDER: Final = "/etc/brokerset"
CONTROLLER_FILE: Final = "controller.properties"
BROKER_FILE: Final = "broker.properties"
NAMESRV_FILE: Final = "namesrv.properties"

DATA_FOLDER: Final = "/data"
"""Where the claim is mounted. A broker's store and identity are both in it, so that neither is lost alone."""

NAMESRV_WAIT_SECONDS: Final = 8
"""How long a name server that has started waits for brokers: they look its name up each second, and the
cluster's DNS remembers for 5 s what it was asked."""

READ_ONLY: Final = 4
"""`brokerPermission` of a group that is drained."""

_HEAD: Final = "# Written by brokerset-operator from the BrokerSet: change that, not this.\n"

_ALWAYS_KEPT: Final = frozenset({"brokerName", "expectedReplicas"})


def controller_settings(facts: SetFacts, *, replicas: int, raft_join: bool) -> dict[str, str]:
    """Settings of all controllers; `controllerDLegerSelfId` comes by environment.

    `replicas` are listed as first members; who has data asks the others who the members are.
    """
    hosts = [
        f"n{number}-{names.controller_host(facts.name, facts.namespace, number)}"
        for number in range(max(1, replicas))
    ]
    return {
        # The UID keeps two sets apart that come to the same addresses one after the other.
        "controllerDLegerGroup": f"{facts.name}-{facts.owner_uid}",
        "controllerDLegerPeers": ";".join(f"{host}:{names.CONTROLLER_PORT}" for host in hosts),
        "raftPeers": ";".join(f"{host}:{names.RAFT_PORT}" for host in hosts),
        "raftJoin": value_text(raft_join),
        "controllerStorePath": f"{DATA_FOLDER}/raft",
        "listenPort": str(names.CONTROLLER_PORT),
        "raftListenPort": str(names.RAFT_PORT),
        "namesrvListenPort": str(names.NAMESRV_PORT),
        "httpPort": str(names.HTTP_PORT),
        "kvConfigPath": f"{DATA_FOLDER}/kvConfig.json",
        "configStorePath": f"{DATA_FOLDER}/{CONTROLLER_FILE}",
        "enableElectUncleanMaster": value_text(facts.manifest.spec.replication.unclean_election),
        **tls_settings(facts, SETTINGS_FOLDER),
    }


def broker_settings(facts: SetFacts, index: int) -> dict[str, str]:
    """Settings of all brokers of a group; `brokerIP1` and `advertisedAddress` come by environment.

    `expectedReplicas` and the name of a group that the manifest no longer has are those of its ConfigMap.
    """
    spec = facts.manifest.spec
    found = {name: _one_line(value_text_of(value)) for name, value in spec.config.items()}
    found.setdefault("mappedFileSizeCommitLog", str(_log_file_bytes(facts)))
    found.setdefault("readyOnlyInSync", value_text(True))
    replicas = kept_settings(facts, index).get("expectedReplicas") or str(spec.replicas)
    found |= _of_dledger(facts, index, int(replicas)) if facts.manifest.is_dledger else _of_controllers(facts)
    found |= {
        "brokerClusterName": spec.cluster_name,
        "brokerName": broker_name(facts, index),
        "fetchNamesrvAddrByDnsLookup": "true",
        "ownerUid": facts.owner_uid,
        "expectedReplicas": replicas,
        "storePathRootDir": f"{DATA_FOLDER}/store",
        "listenPort": str(names.REMOTING_PORT),
        "httpPort": str(names.HTTP_PORT),
        "masterEndpointSlice": f"{facts.namespace}/{names.master_service(facts.name, index)}",
        **tls_settings(facts, SETTINGS_FOLDER),
    }
    if spec.advertise == "masterService":
        found["advertisedMasterAddress"] = (
            f"{names.master_service(facts.name, index)}.{facts.namespace}.svc:{names.REMOTING_PORT}"
        )
    return found


def _of_controllers(facts: SetFacts) -> dict[str, str]:
    spec = facts.manifest.spec
    others = f"{names.controller_set(facts.controllers_of)}.{facts.namespace}.svc"
    return {
        "namesrvAddr": f"{others}:{names.NAMESRV_PORT}",
        "enableControllerMode": "true",
        "controllerAddr": f"{others}:{names.CONTROLLER_PORT}",
        "fetchControllerAddrByDnsLookup": "true",
        "minInSyncReplicas": str(facts.manifest.min_in_sync_replicas),
        "allAckInSyncStateSet": value_text(spec.replication.acknowledge == "allInSync"),
        "haListenPort": str(names.HA_PORT),
    }


def _of_dledger(facts: SetFacts, index: int, replicas: int) -> dict[str, str]:
    """Which member a broker is comes by environment. A member is its volume, whatever IP its pod has."""
    members = (
        f"{member_id(number)}-{names.ledger_peer(facts.name, facts.namespace, index, number)}"
        for number in range(replicas)
    )
    service = (
        names.namesrv_pods_service(facts.name) if facts.has_name_servers else names.controller_set(facts.name)
    )
    return {
        "namesrvAddr": f"{service}.{facts.namespace}.svc:{names.NAMESRV_PORT}",
        "enableDLegerCommitLog": "true",
        "dLegerGroup": broker_name(facts, index),
        "dLegerPeers": ";".join(members),
        "dLegerBrokersetOnly": "true",
    }


def namesrv_settings(facts: SetFacts) -> dict[str, str]:
    """Settings of name servers that run by themselves.

    Brokers find a new one within seconds; until then it has no routes, and clients are led to the others.
    """
    return {
        "listenPort": str(names.NAMESRV_PORT),
        "httpPort": str(names.HTTP_PORT),
        "kvConfigPath": f"{DATA_FOLDER}/kvConfig.json",
        "needWaitForService": "true",
        "waitSecondsForService": str(NAMESRV_WAIT_SECONDS),
        **tls_settings(facts, SETTINGS_FOLDER),
    }


def broker_name(facts: SetFacts, index: int) -> str:
    """RocketMQ's name of a group; also of one that is on its way out, and no longer in the manifest."""
    listed = facts.manifest.broker_names
    if index < len(listed):
        return listed[index]
    return kept_settings(facts, index).get("brokerName") or names.group_set(facts.name, index)


def kept_settings(facts: SetFacts, index: int) -> Mapping[str, str]:
    """What a group's ConfigMap says now of the settings that it keeps; empty when there is none."""
    settings = read_file(facts.config_maps.get(names.group_set(facts.name, index), {}))
    return {name: settings[name] for name in sorted(_ALWAYS_KEPT & settings.keys())}


def read_file(config_map: Mapping[str, Any]) -> dict[str, str]:
    """What the ConfigMap of a group says; empty when it says nothing."""
    text = str((config_map.get("data") or {}).get(BROKER_FILE, ""))
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def controller_config_map(
    facts: SetFacts, settings: Mapping[str, str], others: Mapping[str, str] | None = None
) -> NewObject:
    """The ConfigMap of the controllers; `others` are further files."""
    return facts.an_object(
        "ConfigMap",
        names.controller_set(facts.name),
        component="controller",
        data={CONTROLLER_FILE: file_text(settings), **tls_config_file(facts), **(others or {})},
    )


def namesrv_config_map(
    facts: SetFacts, settings: Mapping[str, str], others: Mapping[str, str] | None = None
) -> NewObject:
    """The ConfigMap of name servers that run by themselves; `others` are further files."""
    return facts.an_object(
        "ConfigMap",
        names.namesrv_set(facts.name),
        component="namesrv",
        data={NAMESRV_FILE: file_text(settings), **tls_config_file(facts), **(others or {})},
    )


def broker_config_map(
    facts: SetFacts, index: int, settings: Mapping[str, str], *, read_only: bool
) -> NewObject:
    """The ConfigMap of a group; `read_only` keeps a group drained when one of its brokers starts again."""
    name = names.group_set(facts.name, index)
    if read_only:
        settings = {**settings, "brokerPermission": str(READ_ONLY)}
    return facts.an_object(
        "ConfigMap",
        name,
        component="broker",
        group=name,
        data={BROKER_FILE: file_text(settings), **tls_config_file(facts)},
    )


def file_text(settings: Mapping[str, str]) -> str:
    """A settings file, sorted by name."""
    return _HEAD + "".join(f"{name}={settings[name]}\n" for name in sorted(settings))


def _one_line(text: str) -> str:
    """A value with line breaks would smuggle in further settings."""
    return " ".join(text.splitlines())


def _log_file_bytes(facts: SetFacts) -> int:
    """As on one machine: a broker takes two files in advance, and RocketMQ's 1 GiB is much for a volume."""
    given: dict[str, Any] = facts.manifest.config_values()
    settings = BrokerSettings(**given)
    fits = settings.max_message_size + RECORD_EXTRA_BYTES <= LOCAL_LOG_FILE_BYTES
    return LOCAL_LOG_FILE_BYTES if fits else settings.mapped_file_size_commit_log
