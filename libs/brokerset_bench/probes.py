"""What a failover measurement asks servers, with requests that Java's servers and ours both answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from brokerset_protocol import headers
from brokerset_protocol.bodies.queues import KVTable
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.bodies.routes import MASTER_ID, TopicRouteData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers import controller as fields
from brokerset_runtime.remoting import ConnectionClosed, ConnectionPool, RequestTimeout
from brokerset_runtime.tls import tls_of_environment

PROBE_SECONDS: Final = 1.0
"""Longest time that a probe may take; whoever is silent is asked again by the caller."""

ROUTE_SECONDS: Final = 0.2
"""Longest time that a name server may take while sends fail; then the next one is asked."""

PAUSE_SECONDS: Final = 0.05
"""Pause between two probes of the group."""

T = TypeVar("T")
V = TypeVar("V")


class NoAnswer(Exception):
    """Nobody answered, or the answer is a refusal; says who and why."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class GroupView:
    """A broker group as the leading controller knows it, or a DLedger's leader."""

    leader: str
    """Address of the leading controller, or of a DLedger's leader."""

    master: str
    """Address of the master; empty when there is none."""

    epoch: int
    in_sync: tuple[int, ...]


class Prober:
    """Probes over connections that are kept; use it with `async with`."""

    def __init__(self) -> None:
        self._pool = ConnectionPool(tls=tls_of_environment())

    async def __aenter__(self) -> Prober:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    async def request(
        self,
        address: str,
        code: RequestCode,
        ext: Mapping[str, str] | None = None,
        *,
        timeout: float = PROBE_SECONDS,
    ) -> Command:
        """Send a request; raises `NoAnswer` unless its code is 0."""
        try:
            connection = await self._pool.get(address, timeout)
            answer = await connection.call(Command(code, dict(ext or {})), timeout)
        except (RequestTimeout, ConnectionClosed, ValueError) as error:
            if isinstance(error, RequestTimeout):
                self._pool.forget(address)  # it may have lost this connection without knowing
            raise NoAnswer(f"{address}: {error}") from error
        if answer.code != ResponseCode.SUCCESS:
            raise NoAnswer(f"{address} answers {answer.code}: {answer.remark}", answer.code)
        return answer

    async def master_of(self, name_server: str, topic: str, group: str) -> str:
        """The address that a route names as master; empty when it names none."""
        header = headers.GetRouteInfo(topic=topic, accept_standard_json_only=True)
        answer = await self.request(
            name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_ext(), timeout=ROUTE_SECONDS
        )
        route = _decoded(name_server, TopicRouteData.from_json, answer.body)
        found = (data for data in route.broker_datas if data.broker_name == group)
        return next((data.broker_addrs.get(MASTER_ID, "") for data in found), "")

    async def leader(self, controllers: Sequence[str]) -> str:
        """The controller that says that it leads."""
        problems = []
        for address in controllers:
            try:
                answer = await self.request(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
                if _decoded(address, fields.GetMetaDataResponse.from_ext, answer.ext).is_leader:
                    return address
            except NoAnswer as error:
                problems.append(str(error))
        raise NoAnswer("; ".join(problems) or "no controller leads")

    async def group(self, controllers: Sequence[str], name: str, brokers: Sequence[str] = ()) -> GroupView:
        """A group, as the leading controller knows it; without controllers the brokers are asked."""
        if not controllers:
            return await self.ledger_group(brokers)
        leader = await self.leader(controllers)
        header = fields.GetReplicaInfo(broker_name=name)
        answer = await self.request(leader, RequestCode.CONTROLLER_GET_REPLICA_INFO, header.to_ext())
        found = _decoded(leader, fields.GetReplicaInfoResponse.from_ext, answer.ext)
        members = _decoded(leader, SyncStateSet.from_json, answer.body).sync_state_set if answer.body else ()
        return GroupView(leader, found.master_address or "", found.master_epoch or 0, tuple(sorted(members)))

    async def ledger_group(self, brokers: Sequence[str]) -> GroupView:
        """A DLedger group, as the member knows it that leads in the highest term and serves."""
        found, problems = [], []
        for address in brokers:
            try:
                table = await self._facts(address)
            except NoAnswer as error:
                problems.append(str(error))
                continue
            if table.get("brokersetRole") == "master" and table.get("brokersetDLedgerTerm", "").isdigit():
                in_sync = [int(one) for one in table.get("brokersetInSync", "").split(",") if one.isdigit()]
                term = int(table["brokersetDLedgerTerm"])
                found.append(GroupView(address, address, term, tuple(sorted(in_sync))))
        if not found:
            raise NoAnswer("; ".join(problems) or "no member leads and serves")
        return max(found, key=lambda view: view.epoch)

    async def log_end(self, address: str) -> int:
        """Where a broker's commit log ends (28)."""
        try:
            return int((await self._facts(address))["commitLogMaxOffset"])
        except (KeyError, ValueError) as error:
            raise NoAnswer(f"{address}: unreadable answer to request 28: {error!r}") from error

    async def _facts(self, address: str) -> Mapping[str, str]:
        """What a broker says about itself (28)."""
        answer = await self.request(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return _decoded(address, KVTable.from_json, answer.body).table

    async def until_whole(
        self,
        controllers: Sequence[str],
        group: str,
        brokers: Sequence[str],
        seconds_max: float,
        ended: Callable[[], str] = str,
    ) -> GroupView:
        """The first view in which all brokers are in sync and have the same log; raises `NoAnswer` with
        what is missing.

        Nobody may send meanwhile. It is given up when `ended` tells of a process that is not there any more.
        """
        deadline = time.monotonic() + seconds_max
        while True:
            try:
                view = await self.group(controllers, group, brokers)
                if view.master not in brokers or len(view.in_sync) < len(brokers):
                    problem = f"master {view.master or 'none'}, in sync {view.in_sync}"
                else:
                    ends = [await self.log_end(address) for address in brokers]
                    if len(set(ends)) == 1:
                        return view
                    problem = f"logs end at {ends}"
            except NoAnswer as error:
                problem = str(error)
            if gone := ended():
                raise NoAnswer(gone)
            if time.monotonic() >= deadline:
                raise NoAnswer(f"{group} is not whole after {seconds_max:g} s: {problem}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def create_topic(self, address: str, topic: str, queues: int) -> None:
        """UPDATE_AND_CREATE_TOPIC (17) on a master."""
        header = headers.CreateTopic(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
        )
        await self.request(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext(), timeout=10.0)

    async def switch_over(self, master: str, group: str, timeout_ms: int) -> fields.SwitchOverResponse:
        """BROKERSET_SWITCH_OVER (21011): hand over to whichever replica is the furthest."""
        header = fields.SwitchOver(broker_name=group, timeout_ms=timeout_ms)
        answer = await self.request(
            master, RequestCode.BROKERSET_SWITCH_OVER, header.to_ext(), timeout=timeout_ms / 1000 + 1
        )
        return fields.SwitchOverResponse.from_ext(answer.ext)


def _decoded(address: str, decode: Callable[[T], V], raw: T) -> V:
    try:
        return decode(raw)
    except Rejected as error:
        raise NoAnswer(f"{address}: {error.remark}") from error
