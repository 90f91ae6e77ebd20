"""Observes a running cluster: asks name servers, controllers and brokers, and changes nothing."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.broker_queries import BrokerQueries, clock_ms
from brokerset_cli.takeover.obstacles import (
    BrokerAnswers,
    Finding,
    differences,
    disk_finding,
    findings_of,
    name_server_findings,
    watched_topics,
)
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_formats import names
from brokerset_protocol import headers
from brokerset_protocol.bodies.replicas import ReplicasInfo
from brokerset_protocol.codes import RequestCode

QUEUES_ASKED: Final = 8
"""Queues of a system topic that are checked (`reviveQueueNum`)."""

SPARE_FILES: Final = 2
"""A log takes the file that it writes, and the next one, in advance."""

QUEUES_SHARE: Final = 0.2
"""Room for queues and index, as a share of the log."""

Find = list[Finding]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where everything is."""

    name: str
    name_servers: str
    controllers: str
    """Empty when none of the brokers names any."""

    masters: Mapping[str, tuple[str, ...]]
    """By group: the addresses that the name servers know."""


async def find_cluster(
    brokers: BrokerQueries, name_servers: str, controllers: str | None
) -> tuple[Cluster, Find]:
    """Ask the name servers who is there (106), and brokers for their controllers (26).

    Raises `ClientError` when no name server answers.
    """
    info = await brokers.cluster_info(name_servers.split(";"))
    found: Find = []
    clusters = sorted(info.cluster_addr_table)
    if not info.broker_addr_table:
        found.append(
            Finding("no-brokers", f"{name_servers} knows no broker; give the cluster's name servers")
        )
    if len(clusters) > 1:
        found.append(
            Finding(
                "clusters",
                f"{name_servers} knows several clusters: {', '.join(clusters)}; one adoption is about one "
                "cluster, and several at the same name servers cannot be told apart here yet",
            )
        )
    masters = {
        name: tuple(address for _, address in sorted(data.broker_addrs.items()))
        for name, data in sorted(info.broker_addr_table.items())
    }
    if controllers is None:
        controllers = ""
        for addresses in masters.values():
            for address in addresses:
                try:
                    named = (await brokers.settings(address)).get("controllerAddr", "")
                except ClientError:
                    continue
                if named and not controllers:
                    controllers = named
                elif named and set(named.split(";")) != set(controllers.split(";")):
                    text = (
                        f"{address} has the controllers {named}, others have {controllers}; say which with "
                        "--controllers"
                    )
                    found.append(Finding("controllers", text))
    return Cluster(clusters[0] if clusters else "", name_servers, controllers, masters), found


async def observe_groups(
    brokers: BrokerQueries,
    admin: ControllerAdmin,
    names_of_groups: Sequence[str],
    ours: Sequence[str],
    *,
    counted: Mapping[str, tuple[int, ...]] | None = None,
    needs: int = 1,
    read_only: Mapping[str, str] | None = None,
) -> tuple[GroupFacts, ...]:
    """What the controllers say of the groups (1006), and how far each replica is.

    `ours` are the addresses of our brokers. Raises `ClientError`s of the controllers.
    """
    states = await admin.sync_states(names_of_groups)
    found = []
    for name in names_of_groups:
        info = states.get(name)
        # A group that they do not know stays in the list, without anybody: nothing is done to it then.
        known = () if info is None else _all(info)
        replicas = await asyncio.gather(*(_replica(brokers, each, ours) for each in known))
        found.append(
            GroupFacts(
                name,
                None if info is None else info.master_broker_id or None,
                tuple(replicas),
                needs,
                None if counted is None else frozenset(counted.get(name, ())),
                (read_only or {}).get(name, ""),
            )
        )
    return tuple(found)


def _all(info: ReplicasInfo) -> list[tuple[int, str, bool, bool]]:
    found = [(each.broker_id, each.broker_address, each.alive, True) for each in info.in_sync_replicas]
    found += [(each.broker_id, each.broker_address, each.alive, False) for each in info.not_in_sync_replicas]
    return sorted(found)


async def _replica(brokers: BrokerQueries, each: tuple[int, str, bool, bool], ours: Sequence[str]) -> Replica:
    broker_id, address, alive, in_sync = each
    end: int | None = None
    answers = await brokers.answers(address)
    if answers:
        try:
            end = await brokers.log_end(address)
        except (ClientError, KeyError, ValueError):
            end = None
    return Replica(broker_id, address, alive, in_sync, address in ours, answers, end)


async def inspect_broker(brokers: BrokerQueries, cluster: str, group: str, address: str) -> BrokerAnswers:
    """Ask one broker everything that may be an obstacle."""
    try:
        settings = await brokers.settings(address)
        measurements = await brokers.measurements(address)
        shown = clock_ms(measurements)
        skew = None if shown is None else shown - time.time_ns() // 1_000_000
        topics = await brokers.table(address, RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable")
        static = await brokers.table(address, RequestCode.GET_ALL_TOPIC_CONFIG, "topicQueueMappingDetailMap")
        written = [topic for topic in watched_topics(cluster) if await _is_written(brokers, address, topic)]
    except ClientError as error:
        return BrokerAnswers(group, address, problem=str(error))
    return BrokerAnswers(
        group, address, settings, measurements, topics, sorted(static), written, skew_ms=skew
    )


async def _is_written(brokers: BrokerQueries, address: str, topic: str) -> bool:
    """Whether any of the first queues of a topic has a message (30)."""
    for queue_id in range(QUEUES_ASKED):
        header = headers.GetMaxOffset(topic=topic, queue_id=queue_id)
        try:
            answer = await brokers.request(address, RequestCode.GET_MAX_OFFSET, header)
        except RequestRefused:
            return False
        if int(answer.ext.get("offset", "0")) > 0:
            return True
    return False


async def missing_tables(brokers: BrokerQueries, master: str, other: str) -> list[str]:
    """Topics and groups of one broker that another one does not have; system ones aside."""
    found = []
    for code, key, word, own in (
        (RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable", "topic", names.SYSTEM_TOPICS),
        (
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            "subscriptionGroupTable",
            "group",
            names.SYSTEM_GROUPS,
        ),
    ):
        has: dict[str, Any] = await brokers.table(master, code, key)
        knows = await brokers.table(other, code, key)
        found += [
            f"{word} {name}"
            for name in sorted(has)
            if name not in knows
            and name not in own
            and not name.startswith((names.SYSTEM_TOPIC_PREFIX, names.SYSTEM_GROUP_PREFIX))
        ]
    return found


async def inspect_java(
    brokers: BrokerQueries, cluster: Cluster, groups: Sequence[GroupFacts], accepted: Sequence[str]
) -> tuple[tuple[BrokerAnswers, ...], Find]:
    """Ask every living Java broker; returns the answers and what is to be said about them."""
    known = {each.address for group in groups for each in group.replicas}
    wanted = [(group.name, each.address) for group in groups for each in group.theirs if each.alive]
    wanted += [
        (name, address)
        for name, addresses in cluster.masters.items()
        for address in addresses
        if address not in known
    ]
    answers = await asyncio.gather(*(inspect_broker(brokers, cluster.name, *each) for each in wanted))
    theirs = tuple(each for each in answers if not each.is_ours)
    found: Find = []
    for answer in theirs:
        found += findings_of(answer, accepted)
    found += differences(theirs) + name_server_findings(theirs, cluster.name_servers)
    for group in groups:
        if group.replicas and group.master is None:
            found.append(Finding("no-master", f"{group.name} has no living master; bring it to one first"))
        for each in group.theirs:
            if not each.alive:
                text = (
                    f"{group.name}/{each.broker_id} at {each.address} is registered and does not live; it is "
                    "no part of this: start it first if it shall be able to come back"
                )
                found.append(Finding("dead-replica", text, False))
    unknown = sorted(set(cluster.masters) - {group.name for group in groups if group.replicas})
    if cluster.controllers and unknown:
        text = (
            f"the controllers {cluster.controllers} do not know {', '.join(unknown)}; all groups must be in "
            "controller mode"
        )
        found.append(Finding("unknown-group", text))
    return theirs, found


def inspect_disk(data: Path, brokers: Sequence[BrokerAnswers], replicas: int) -> Find:
    """Whether the folder has room for the copies of all groups."""
    wanted = 0
    for group in {each.group for each in brokers}:
        sizes = [
            int(each.measurements.get("commitLogMaxOffset", 0))
            - max(0, int(each.measurements.get("commitLogMinOffset", 0)))
            for each in brokers
            if each.group == group
        ]
        file_bytes = max(
            int(each.settings.get("mappedFileSizeCommitLog", 0)) for each in brokers if each.group == group
        )
        wanted += replicas * (int(max(sizes) * (1 + QUEUES_SHARE)) + SPARE_FILES * file_bytes)
    place = data.absolute()
    while not place.exists():
        place = place.parent
    return disk_finding(wanted, shutil.disk_usage(place).free, str(data))
