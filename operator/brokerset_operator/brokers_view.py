"""What single brokers are asked: why one is not registered, what is left to read, topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from brokerset_client.controller_admin import ALIVE, ControllerAdmin
from brokerset_client.errors import ClientError
from brokerset_client.instance import readable
from brokerset_formats import fastjson
from brokerset_formats import names as names_of_topics
from brokerset_formats.config import TopicConfig
from brokerset_formats.errors import FormatError
from brokerset_operator.connecting import AS_ENVIRONMENT, Connecting
from brokerset_operator.controllers_view import QUERY_SECONDS, pod_address
from brokerset_operator.model import names
from brokerset_operator.model.observed import Drain
from brokerset_operator.reconcile_queue import RetryAfter
from brokerset_operator.resources.live_settings import OBSERVED
from brokerset_protocol import headers
from brokerset_protocol.bodies import properties_text
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.bodies.queues import KVTable, MessageQueue
from brokerset_protocol.bodies.stats import ConsumeStatsList, TopicStats
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import BrokerIdentityAnswer
from brokerset_runtime.remoting import ConnectionClosed, ConnectionPool, RequestTimeout
from brokerset_runtime.tls import tls_of_environment

T = TypeVar("T")

DRAIN_SECONDS: Final = 10.0
"""Time-out of all requests about one group that is drained."""

STATISTICS_SECONDS: Final = 8.0
"""Time-out of the progress of all consumer groups of a broker, which it computes when asked."""

DELAY_PROGRESS: Final = "scheduleMessageOffset_"
"""Begin of the names under which a broker tells how far each delay level is: `delivered,end`."""

PERMISSION: Final = "brokerPermission"

REFUSED: Final = frozenset({"identity_conflict", "group_owned", "id_retired", "names_differ"})
"""Problems of a broker whose volume was copied, is another set's, or was given up, as brokers call them
(`brokerset_broker.member.membership.diagnosis.ProblemKind`)."""


TRIES_AGAIN: Final = "it tries again by itself; if that lasts, see the runbook BrokersetReplicaNotInSync"


class BrokerSilent(RetryAfter):
    """A broker did not answer, or refused; the text names it."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a broker says of itself that runs and is not ready."""

    text: str
    """Why it does not register, follow or lead."""

    advice: str = ""
    refused: bool = False
    """Whether it may not register: its volume was copied, is another set's, or was given up."""

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


async def observe_troubles(
    pods: Mapping[str, Mapping[str, Any]], connecting: Connecting = AS_ENVIRONMENT
) -> dict[str, Trouble]:
    """By pod: why its broker is of no use. Only brokers that run and are not ready are asked."""
    asked = {
        name: address for name, pod in sorted(pods.items()) if (address := _unready_broker(pod)) is not None
    }
    if not asked:
        return {}
    addresses = asked.values()
    admins = ControllerAdmin(list(addresses), timeout=QUERY_SECONDS, tls=connecting.tls, sign=connecting.sign)
    async with admins as admin, Brokers(connecting) as brokers:
        identities, tables = await asyncio.gather(
            asyncio.gather(*(_identity(admin, address) for address in addresses)),
            asyncio.gather(*(_measurements(brokers, address) for address in addresses)),
        )
    found = map(trouble_of, identities, tables)
    return {name: trouble for name, trouble in zip(asked, found, strict=True) if trouble is not None}


def trouble_of(identity: BrokerIdentityAnswer | None, table: Mapping[str, str]) -> Trouble | None:
    """What a broker's identity and measurements say that people should know; None when it says nothing.

    What keeps it out of service goes before why it does not follow at the moment. One that only starts has no
    problem in its identity.
    """
    if identity is not None and identity.problem is not None:
        text = table.get("brokersetProblem") or identity.registration or identity.problem
        return Trouble(text, table.get("brokersetAdvice", ""), identity.problem in REFUSED)
    text = table.get("brokersetFollowProblem", "")
    if _is_member(table):
        text = table.get("brokersetProblem") or text
    return Trouble(text, table.get("brokersetFollowAdvice") or TRIES_AGAIN) if text else None


def _is_member(table: Mapping[str, str]) -> bool:
    """Whether a broker is in a DLedger group: it has no controllers to tell its identity."""
    return "brokersetDLedgerSelfId" in table


async def _measurements(brokers: Brokers, address: str) -> Mapping[str, str]:
    try:
        async with asyncio.timeout(QUERY_SECONDS):
            return await brokers.measurements(address)
    except (BrokerSilent, TimeoutError):
        return {}


def _unready_broker(pod: Mapping[str, Any]) -> str | None:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    if any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions):
        return None
    return _broker(pod)


def _broker(pod: Mapping[str, Any]) -> str | None:
    """Where the broker of a pod answers; None for another pod, and for one that ends or does not run."""
    labels = pod["metadata"].get("labels") or {}
    if labels.get(names.COMPONENT_LABEL) != "broker" or pod["metadata"].get("deletionTimestamp"):
        return None
    address = pod_address(pod)
    return None if address is None else f"{address}:{names.REMOTING_PORT}"


async def _identity(admin: ControllerAdmin, address: str) -> BrokerIdentityAnswer | None:
    try:
        async with asyncio.timeout(QUERY_SECONDS):
            return (await admin.broker(address)).identity
    except (ClientError, TimeoutError):
        return None


def broker_addresses(pods: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Where brokers can be asked, by pod, for those that run and do not end."""
    return {name: address for name, pod in sorted(pods.items()) if (address := _broker(pod)) is not None}


async def settings_at(
    asked: Mapping[str, str], connecting: Connecting = AS_ENVIRONMENT
) -> dict[str, dict[str, str]]:
    """By pod: the settings that its broker runs with, as far as `Observed.settings` has them.

    `asked` is what `broker_addresses` returned. Brokers that do not answer are not in the result.
    """
    if not asked:
        return {}
    async with Brokers(connecting) as brokers:
        found = await asyncio.gather(*(_settings(brokers, address) for address in asked.values()))
    return {name: settings for name, settings in zip(asked, found, strict=True) if settings is not None}


async def _settings(brokers: Brokers, address: str) -> dict[str, str] | None:
    try:
        async with asyncio.timeout(QUERY_SECONDS):
            settings = await brokers.settings(address)
    except (BrokerSilent, TimeoutError):
        return None
    return {name: text for name, text in settings.items() if name in OBSERVED}


def master_address(state: GroupState) -> str | None:
    """Where the living master of a group is; None when there is none."""
    for replica in state.replicas:
        if replica.broker_id == state.master_id and replica.standing == ALIVE and replica.address:
            return replica.address
    return None


async def observe_drain(state: GroupState, connecting: Connecting = AS_ENVIRONMENT) -> Drain | None:
    """What is left to be read in a group; None when its master does not tell all of it."""
    address = master_address(state)
    if address is None:
        return None
    try:
        async with asyncio.timeout(DRAIN_SECONDS), Brokers(connecting) as brokers:
            permission = await brokers.permission(address)
            return Drain(unread=await brokers.unread(address), permission=permission)
    except (BrokerSilent, TimeoutError):
        return None


class Brokers:
    """Requests to brokers at their own addresses, without a name server; use it with `async with`."""

    def __init__(self, connecting: Connecting = AS_ENVIRONMENT) -> None:
        tls = connecting.tls
        self._pool = ConnectionPool(
            tls=tls if tls is not None else tls_of_environment(), sign=connecting.sign
        )

    async def __aenter__(self) -> Brokers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    async def permission(self, address: str) -> int | None:
        """The broker's `brokerPermission`. Raises `BrokerSilent`."""
        text = (await self.settings(address)).get(PERMISSION, "")
        return int(text) if text.isdecimal() else None

    async def set_permission(self, address: str, permission: int) -> None:
        """Make a broker readable (4) or readable and writable (6). Raises `BrokerSilent`."""
        await self.change_settings(address, {PERMISSION: str(permission)})

    async def settings(self, address: str) -> dict[str, str]:
        """What the broker runs with, by RocketMQ's names. Raises `BrokerSilent`."""
        body = await self._ask(address, RequestCode.GET_BROKER_CONFIG)
        return _read(address, properties_text.from_text, body)

    async def change_settings(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of the running broker, all or none. Raises `BrokerSilent`."""
        body = properties_text.to_text(settings)
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def unread(self, address: str) -> int:
        """Messages that some consumer group has not consumed, or that still wait for their time.

        Raises `BrokerSilent`.
        """
        lags, delayed = await asyncio.gather(self.lags(address), self._delayed(address))
        return sum(lags.values()) + delayed

    async def lags(self, address: str) -> dict[tuple[str, MessageQueue], int]:
        """What each consumer group has not consumed, queue by queue. Raises `BrokerSilent`."""
        header = headers.GetConsumeStatsInBroker(is_order=False)
        body = await self._ask(
            address, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout=STATISTICS_SECONDS
        )
        found: dict[tuple[str, MessageQueue], int] = {}
        for groups in _read(address, ConsumeStatsList.from_json, body).consume_stats_list:
            for group, several in sorted(groups.items()):
                for stats in several:
                    for queue, entry in stats.offset_table.items():
                        found[group, queue] = max(0, entry.broker_offset - entry.consumer_offset)
        return found

    async def measurements(self, address: str) -> Mapping[str, str]:
        """What the broker says of itself (code 28). Raises `BrokerSilent`."""
        body = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return _read(address, KVTable.from_json, body).table

    async def _delayed(self, address: str) -> int:
        """Messages that were sent with a delay and not delivered yet."""
        left = 0
        for name, text in (await self.measurements(address)).items():
            delivered, comma, end = text.partition(",")
            if name.startswith(DELAY_PROGRESS) and comma and delivered.isdecimal() and end.isdecimal():
                left += max(0, int(end) - int(delivered))
        return left

    # -- topics -------------------------------------------------------------------------------------------

    async def topic(self, address: str, topic: str) -> TopicConfig | None:
        """A topic as the broker has it; None if it has not. Raises `BrokerSilent`."""
        header = headers.GetTopicConfig(topic=topic)
        body = await self._ask(
            address, RequestCode.GET_TOPIC_CONFIG, header, accept=(ResponseCode.TOPIC_NOT_EXIST,)
        )
        return _read(address, _topic_config, body) if body else None

    async def put_topic(self, address: str, config: TopicConfig) -> None:
        """Create or change a topic at one broker, which keeps the attributes that `config` lacks. Raises
        `BrokerSilent`."""
        header = headers.CreateTopic(
            topic=config.topic_name,
            default_topic=names_of_topics.DEFAULT_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=",".join(f"+{name}={value}" for name, value in config.attributes.items()) or None,
        )
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def delete_topic(self, address: str, topic: str) -> None:
        """Delete a topic with its messages at one broker. Raises `BrokerSilent`."""
        await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, headers.DeleteTopic(topic=topic))

    async def forget_topic(self, name_server: str, topic: str, cluster: str) -> None:
        """Let a name server forget a topic of a cluster's brokers. Raises `BrokerSilent`."""
        header = headers.DeleteTopicFromNamesrv(topic=topic, cluster_name=cluster)
        await self._ask(name_server, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def ends(self, address: str, topic: str) -> dict[int, int]:
        """How many messages of a topic each queue of the broker holds. Raises `BrokerSilent`."""
        body = await self._ask(
            address,
            RequestCode.GET_TOPIC_STATS_INFO,
            headers.GetTopicStatsInfo(topic=topic),
            accept=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        if not body:
            return {}
        table = _read(address, TopicStats.from_json, body).offset_table
        return {queue.queue_id: ends.max_offset - ends.min_offset for queue, ends in sorted(table.items())}

    async def _ask(
        self,
        address: str,
        code: RequestCode,
        header: headers.Header | None = None,
        body: bytes = b"",
        *,
        accept: tuple[int, ...] = (),
        timeout: float = QUERY_SECONDS,
    ) -> bytes:
        command = Command(code, header.to_ext() if header is not None else {}, body)
        try:
            connection = await self._pool.get(address, QUERY_SECONDS)
            answer = await connection.call(command, timeout)
        except (ConnectionClosed, RequestTimeout, ValueError, Rejected) as error:
            raise BrokerSilent(f"broker {address} does not answer: {error}") from error
        if answer.code in accept:
            return b""
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerSilent(f"broker {address} refused {code.name}: {answer.remark or 'no reason given'}")
        return bytes(answer.body)


def _read(address: str, read: Callable[[bytes], T], body: bytes) -> T:
    try:
        return readable(read, body)
    except ClientError as error:
        raise BrokerSilent(f"broker {address} says what cannot be read: {error}") from error


def _topic_config(body: bytes) -> TopicConfig:
    try:
        fields = fastjson.loads(body)
        if not isinstance(fields, dict):
            raise FormatError("a topic that is no object")
        return TopicConfig.from_json(fields)
    except FormatError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from error
