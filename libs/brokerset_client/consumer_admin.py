"""Administration of consumers while they run: their state, their offsets, whether they may consume.

Source: `DefaultMQAdminExtImpl`. Brokers pass on what concerns one client to that client; everything raises
`ClientError`s. A change at several brokers is made at one after the other, and what was done before an
error stays done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from brokerset_client.admin import Admin
from brokerset_client.errors import ClientError, GroupOffline, RequestRefused, TopicNotFound
from brokerset_client.instance import readable
from brokerset_client.messages import MessageView
from brokerset_formats import fastjson, names
from brokerset_protocol import headers
from brokerset_protocol.bodies.connections import (
    Connection,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
)
from brokerset_protocol.bodies.queues import GetConsumerStatusBody, MessageQueue
from brokerset_protocol.codes import RequestCode, ResponseCode

CLIENT_SECONDS: Final = 12.0
"""Time-out of requests that a broker passes on; it waits 10 s for the client itself."""


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer of a group, with a broker that it is connected to."""

    connection: Connection
    broker: str
    """Address of the broker, which passes requests on."""

    @property
    def client_id(self) -> str:
        """Its name at brokers."""
        return self.connection.client_id


class ConsumerAdmin:
    """Requests about running consumers over an `Admin`, which the caller opens and closes."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._instance = admin.instance

    async def members(self, group: str) -> list[Member]:
        """All members of the group that are connected to any broker. Raises `GroupOffline` if there are
        none."""
        found: dict[str, Member] = {}
        header = headers.GetConsumerConnectionList(consumer_group=group)
        for address in await self._brokers_of_group(group):
            try:
                answer = await self._instance.request(
                    address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header, timeout=CLIENT_SECONDS
                )
            except RequestRefused as refused:
                if refused.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    continue
                raise
            for connection in readable(ConsumerConnection.from_json, answer.body).connection_set:
                found.setdefault(connection.client_id, Member(connection, address))
        if not found:
            raise GroupOffline(f"nobody consumes for group {group!r} now")
        return [found[client_id] for client_id in sorted(found)]

    async def running_info(self, group: str, member: Member, *, stacks: bool = False) -> ConsumerRunningInfo:
        """GET_CONSUMER_RUNNING_INFO (307): the member's own account; with `stacks` also what its threads
        do."""
        header = headers.GetConsumerRunningInfo(
            consumer_group=group, client_id=member.client_id, jstack_enable=stacks
        )
        answer = await self._instance.request(
            member.broker, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout=CLIENT_SECONDS
        )
        return readable(ConsumerRunningInfo.from_json, answer.body)

    async def positions(self, group: str, topic: str) -> dict[str, Mapping[MessageQueue, int]]:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): by client id, how far each member is in its own
        queues."""
        found: dict[str, dict[MessageQueue, int]] = {}
        header = headers.GetConsumerStatus(topic=topic, group=group)
        for address in await self._brokers(topic):
            answer = await self._instance.request(
                address, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header, timeout=CLIENT_SECONDS
            )
            for client_id, offsets in readable(
                GetConsumerStatusBody.from_json, answer.body
            ).consumer_table.items():
                found.setdefault(client_id, {}).update(offsets)
        return dict(found)

    async def consume_directly(
        self, group: str, member: Member, message: MessageView
    ) -> ConsumeMessageDirectlyResult:
        """CONSUME_MESSAGE_DIRECTLY (309): let the member's listener handle one stored message now.

        Its offsets do not move, and a failure is not delivered again.
        """
        header = headers.ConsumeMessageDirectlyResult(
            consumer_group=group,
            client_id=member.client_id,
            msg_id=message.offset_message_id,
            topic=message.topic,
        )
        address = (await self._instance.route(message.stored_topic)).master(message.broker_name)
        answer = await self._instance.request(
            address or message.store_host.text,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            timeout=CLIENT_SECONDS,
        )
        return readable(ConsumeMessageDirectlyResult.from_json, answer.body)

    async def clone_offsets(
        self, source: str, target: str, topic: str | None = None, *, offline: bool = False
    ) -> list[str]:
        """CLONE_GROUP_OFFSET (314): let group `target` go on where `source` is, in one topic or in all of
        its.

        Without `offline` topics are left out that a running `source` does not subscribe to any more. Gives
        back the brokers that did it. Members of `target` that run do not notice: stop them first.
        """
        header = headers.CloneGroupOffset(src_group=source, dest_group=target, topic=topic, offline=offline)
        done = []
        for address in await (self._brokers(topic) if topic else self._brokers_of_group(source)):
            await self._instance.request(
                address, RequestCode.CLONE_GROUP_OFFSET, header, timeout=CLIENT_SECONDS
            )
            done.append(address)
        return done

    async def allow(self, group: str, enabled: bool) -> list[str]:
        """Let brokers refuse what the group pulls (`consumeEnable`), or serve it again.

        Gives back the brokers that know the group, and were changed. Raises `GroupOffline` if none knows it.
        """
        changed = []
        for address in (await self._admin.masters()).values():
            if group not in await self._admin.groups(address=address):
                continue
            config = await self._admin.group_config(group, address)
            if config.consume_enable != enabled:
                # The broker reads attributes as changes of them; without any they stay.
                wanted = replace(config, consume_enable=enabled, attributes={})
                body = fastjson.dumps(wanted.to_json())
                await self._instance.request(
                    address,
                    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                    body=body,
                    timeout=CLIENT_SECONDS,
                )
            changed.append(address)
        if not changed:
            raise GroupOffline(f"no broker knows the group {group!r}")
        return changed

    async def suspended_at(self, group: str) -> list[str]:
        """The brokers that know the group and refuse what it pulls."""
        return [
            address
            for address in (await self._admin.masters()).values()
            if group in await self._admin.groups(address=address)
            and not (await self._admin.group_config(group, address)).consume_enable
        ]

    async def _brokers_of_group(self, group: str) -> list[str]:
        """The masters that have the group's retry topic; all of them, if it has none: nobody has consumed for
        it yet, its consumers do not send heartbeats, or it has no retries."""
        try:
            return await self._brokers(names.retry_topic(group))
        except TopicNotFound:
            return list((await self._admin.masters()).values())

    async def _brokers(self, topic: str) -> list[str]:
        """The masters of a topic. Raises `TopicNotFound`, or `ClientError` if none has a master now."""
        route = await self._instance.route(topic, fresh=True)
        found = [master for name in route.addresses if (master := route.master(name)) is not None]
        if not found:
            raise ClientError(f"no broker of topic {topic!r} has a master now")
        return found
