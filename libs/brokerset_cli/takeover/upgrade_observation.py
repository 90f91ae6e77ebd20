"""Observes the world of an upgrade: stores here, facts of other hosts, name servers, brokers, controllers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from brokerset_cli.output import fail
from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.broker_queries import BrokerQueries
from brokerset_cli.takeover.host_facts import HostFacts, comparisons_with
from brokerset_cli.takeover.log_compare import compare_logs
from brokerset_cli.takeover.old_store import BACKUP, claims_id, read_identity, read_note, read_old_store
from brokerset_cli.takeover.upgrade_facts import (
    BrokerSeen,
    Comparison,
    OldStore,
    Origin,
    Presence,
    StoreSeen,
    World,
)
from brokerset_cli.takeover.upgrade_plan import choose_leader, logs_wanted
from brokerset_cli.takeover.upgrade_starting import bearer_of
from brokerset_client.errors import BrokerUnreachable, ClientError
from brokerset_client.instance import readable
from brokerset_formats.errors import FormatError
from brokerset_protocol.bodies.replicas import BrokerReplicasInfo
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.headers import controller as fields

ANSWER_SECONDS: Final = 2.0
"""Time-out of the probe whether an old controller is there."""


@dataclass(frozen=True, slots=True)
class Where:
    """What the person named."""

    flow: Origin
    stores: tuple[Path, ...]
    namesrv: tuple[str, ...]
    controllers: tuple[str, ...]
    old_controllers: tuple[str, ...] = ()
    old_data: tuple[Path, ...] = ()
    group: str = ""
    master: str = ""
    accept_cut: frozenset[str] = frozenset()
    members: int = 0
    can_start: bool = False
    facts: tuple[HostFacts, ...] = ()
    host: str = ""
    """What other hosts call this one."""


class GroupUnknown(Exception):
    """The name of the broker group was not given and cannot be seen."""


class UpgradeObserver:
    """Observes again and again; what was read of a log that nobody has open is kept until `forget`."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self._logs: dict[Path, OldStore] = {}
        self._compared: dict[tuple[str, str], Comparison] = {}

    def forget(self) -> None:
        """Read logs again: somebody may have changed them."""
        self._logs.clear()
        self._compared.clear()

    async def observe(self, *, logs: bool = True) -> World:
        """All that can be seen now, with logs or without. Ends the command when something cannot be read."""
        try:
            stores = [
                StoreSeen(read_old_store(path, read_log=False), read_note(path)) for path in self.where.stores
            ]
            world = await self._ask(stores)
            return self._with_logs(world) if logs else world
        except GroupUnknown as error:
            fail(f"which broker group the stores belong to is not known: {error}", "say so with --group NAME")
        except FormatError as error:
            fail(
                f"a manifest in {BACKUP} cannot be read: {error}",
                "restore it: it says what has to be put back, such as the permission of the old master",
            )
        except OSError as error:
            fail(
                f"{error.filename or 'a file'} cannot be read: {error.strerror or error}",
                "see to it that you may read it, then repeat this: it goes on",
            )

    # -- network ------------------------------------------------------------------------------------------

    async def _ask(self, stores: Sequence[StoreSeen]) -> World:
        where = self.where
        async with BrokerQueries() as queries:
            brokers_by_group = await _registered(queries, where.namesrv)
            group = where.group or _group_of(stores, brokers_by_group)
            brokers = await asyncio.gather(
                *(_broker(queries, address, master) for address, master in brokers_by_group.get(group, ()))
            )
            problem, replicas = await _new_controllers(queries, where.controllers, group)
            here = [await with_registration(queries, each) for each in stores]
            seen = (*here, *_elsewhere(where.facts))
            bearer = bearer_of(seen, replicas)
            permission, closed = await _permission(queries, bearer.address) if bearer else (None, False)
            return World(
                flow=where.flow,
                group=group,
                stores=seen,
                brokers=tuple(brokers),
                old_controllers=await _old_controllers(queries, where.old_controllers),
                old_data=tuple(str(each) for each in where.old_data if each.exists()),
                controllers_problem=problem,
                replicas=replicas,
                master_permission=permission,
                master_closed=closed,
                wanted_master=where.master,
                accept_cut=where.accept_cut,
                members=where.members,
                can_start=where.can_start,
            )

    # -- logs ---------------------------------------------------------------------------------------------

    def _with_logs(self, world: World) -> World:
        """With ends of logs and comparisons, when the plan wants them."""
        if not logs_wanted(world):
            self.forget()
            return world
        seen = tuple(
            replace(each, store=self._log_of(each.store)) if each.here else each for each in world.stores
        )
        world = replace(world, stores=seen)
        leader, _ = choose_leader(world)
        if leader is None:
            return world
        return replace(world, comparisons=self._comparisons(world, leader))

    def _log_of(self, store: OldStore) -> OldStore:
        if store.problem:
            return store
        if store.path not in self._logs or store.locked_by is not None:
            self._logs[store.path] = read_old_store(store.path)
        read = self._logs[store.path]
        return read if read.problem else replace(store, end=read.end, last=read.last, until=read.until)

    def _comparisons(self, world: World, leader: StoreSeen) -> dict[str, Comparison]:
        found = comparisons_with(leader, world.stores, self.where.facts, self.where.host)
        for each in world.stores:
            if (
                each is leader
                or not (each.here and leader.here)
                or each.store.problem
                or bool(each.store.ledger) != bool(leader.store.ledger)  # one of both was exchanged
                or leader.store.problem
            ):
                continue
            key = (leader.name, each.name)
            mine, theirs = leader.extent, each.extent
            if mine is None or theirs is None:
                continue
            if key not in self._compared:
                self._compared[key] = compare_logs(leader.store.path, mine, each.store.path, theirs)
            found[each.name] = self._compared[key]
        return found


def _elsewhere(facts: Sequence[HostFacts]) -> tuple[StoreSeen, ...]:
    return tuple(store for host in facts for store in host.stores)


def _group_of(stores: Sequence[StoreSeen], brokers: dict[str, list[tuple[str, bool]]]) -> str:
    """The group's name: of a manifest, of an identity, or the only one that a name server knows."""
    noted = {each.note.group for each in stores if each.note}
    known = {each.store.identity.broker_name for each in stores if each.store.identity}
    for names in (noted, known, set(brokers)):
        if len(names) == 1:
            return names.pop()
    raise GroupUnknown(
        f"the name servers know {', '.join(sorted(brokers))}" if brokers else "no name server knows a broker"
    )


async def _registered(queries: BrokerQueries, namesrv: Sequence[str]) -> dict[str, list[tuple[str, bool]]]:
    """Group -> addresses of its brokers and whether each is master, by the first name server that answers."""
    try:
        table = (await queries.cluster_info(namesrv)).broker_addr_table
    except ClientError:
        return {}
    return {
        name: [(where, number == 0) for number, where in sorted(data.broker_addrs.items())]
        for name, data in table.items()
    }


async def _broker(queries: BrokerQueries, address: str, master: bool) -> BrokerSeen:
    try:
        settings = await queries.settings(address)
        permission = int(settings.get("brokerPermission", "6"))
    except (ClientError, ValueError):
        return BrokerSeen(address, master)
    try:
        end: int | None = await queries.log_end(address)
        closed = await queries.refuses_sends(address)
    except (ClientError, KeyError, ValueError):
        end, closed = None, False
    return BrokerSeen(
        address,
        master,
        end,
        permission,
        closed,
        _path(settings.get("storePathRootDir", "")),
        is_local(address),
        len([each for each in settings.get("dLegerPeers", "").split(";") if each])
        if settings.get("enableDLegerCommitLog") == "true"
        else 0,
        settings.get("messageDelayLevel", ""),
    )


def is_local(address: str) -> bool:
    """Whether an address is one of this machine's: only those can be bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address.rpartition(":")[0], 0))
        except OSError:
            return False
    return True


def _path(text: str) -> str:
    """A folder as the plan calls it."""
    return os.path.normpath(text) if text else ""


async def _permission(queries: BrokerQueries, address: str) -> tuple[int | None, bool]:
    """Permission of a broker, and whether it turns every send away."""
    try:
        permission = int((await queries.settings(address)).get("brokerPermission", "6"))
        return permission, await queries.refuses_sends(address)
    except (ClientError, ValueError):
        return None, False


async def with_registration(queries: BrokerQueries, seen: StoreSeen) -> StoreSeen:
    """With what may change while controllers are asked: a broker that they know by now has its id by now."""
    note, store = seen.note, seen.store
    is_open = False
    if note is not None and note.address and not seen.prepared:
        is_open = await queries.answers(note.address)
    return replace(
        seen,
        store=store if store.problem else replace(store, identity=read_identity(store.path)),
        port_open=is_open,
        starting=bool(started_processes(seen.store.path)),
        claims_id=claims_id(seen.store.path),
    )


STORE_VARIABLE: Final = "BROKERSET_UPGRADED_STORE"
"""In the environment of brokers that we start, so that they are known again."""


def started_processes(store: Path) -> list[int]:
    """Processes that were started for a store, as far as this user may see them."""
    wanted = f"{STORE_VARIABLE}={store}".encode()
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
        except OSError:
            continue  # it has ended, or belongs to somebody else
    return found


async def _old_controllers(queries: BrokerQueries, addresses: Sequence[str]) -> Presence:
    """The worst of what is at these addresses. Controllers of 5.1.1 and later know 1012."""
    found = Presence.GONE
    header = fields.GetNextBrokerId(cluster_name="DefaultCluster", broker_name="-")
    code = RequestCode.CONTROLLER_GET_NEXT_BROKER_ID
    for address in addresses:
        try:
            answer = await queries.ask(address, code, header, timeout=ANSWER_SECONDS)
        except ClientError as error:
            # A refused connection says that nothing listens there, other errors that nothing is heard.
            refused = isinstance(error, BrokerUnreachable) and "refused" in str(error).lower()
            if found is Presence.GONE and not refused:
                found = Presence.UNKNOWN
            continue
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            found = Presence.OLD
    return found


async def _new_controllers(
    queries: BrokerQueries, addresses: Sequence[str], group: str
) -> tuple[str, GroupFacts | None]:
    """Why they cannot be used (empty when they serve), and what they say of the group."""
    problem = "none was named"
    for address in addresses:
        try:
            answer = await queries.request(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
            metadata = fields.GetMetaDataResponse.from_ext(answer.ext)
            leader = metadata.controller_leader_address or (address if metadata.is_leader else "")
            if not leader:
                problem = f"{address} knows no leader"
                continue
            header = fields.GetNextBrokerId(cluster_name="DefaultCluster", broker_name="-")
            known = await queries.ask(leader, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
            if known.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                problem = f"{leader} is of before 5.1.1: it does not give persistent ids"
                continue
            state = await queries.request(
                leader, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=orjson.dumps([group])
            )
            table = readable(BrokerReplicasInfo.from_json, state.body).replicas_info_table
        except ClientError as error:
            problem = str(error)
            continue
        found = table.get(group)
        if found is None:
            return "", None
        replicas = [
            Replica(each.broker_id, each.broker_address, each.alive, in_sync)
            for members, in_sync in ((found.in_sync_replicas, True), (found.not_in_sync_replicas, False))
            for each in members
        ]
        return "", GroupFacts(group, found.master_broker_id, tuple(replicas))
    return problem, None
