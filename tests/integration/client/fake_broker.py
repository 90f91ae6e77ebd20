"""A small cluster for tests of the client: a name server and brokers with queues in memory, which can be told
to misbehave and which remember what they were asked."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from brokerset_formats.batches import iterate_batch
from brokerset_formats.hosts import Host
from brokerset_formats.message_ids import encode_offset_id
from brokerset_formats.properties import decode_properties
from brokerset_formats.records import Record, encode_record
from brokerset_protocol import headers
from brokerset_protocol.bodies.heartbeat import HeartbeatData
from brokerset_protocol.bodies.queues import (
    ConsumerIdList,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueue,
    TopicList,
)
from brokerset_protocol.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection, Handler, RemotingServer

BORN = Host(bytes((127, 0, 0, 1)), 4000)

Answer = Callable[[Connection, Command], Command | None]
"""A scripted answer; None: silence."""


def refuse(code: int, remark: str = "scripted") -> Answer:
    """Answer with an error."""
    return lambda _, command: command.reply(code, remark)


def hang_up(connection: Connection, _: Command) -> Command | None:
    """Cut the connection instead of an answer."""
    connection.abort()
    return None


def say_nothing(_: Connection, __: Command) -> Command | None:
    """Never answer."""
    return None


def unscripted(_: Connection, command: Command) -> Command | None:
    """What a broker answers to requests that no test has prepared it for."""
    return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "unscripted")


def answer(body: bytes = b"", **ext: str) -> Answer:
    """Answer with success."""
    return lambda _, command: command.reply(ext=ext, body=body)


@dataclass
class FakeBroker:
    """One broker of a group; replicas of a name share `log` and `offsets`."""

    cluster: FakeCluster
    name: str
    broker_id: int
    log: dict[tuple[str, int], list[bytes]]
    offsets: dict[tuple[str, str, int], int]
    address: str = ""
    port: int = 0
    requests: list[Command] = field(default_factory=list)
    scripts: dict[int, deque[Answer]] = field(default_factory=dict)
    members: dict[str, dict[str, Connection]] = field(default_factory=dict)
    """group -> client id -> connection."""
    producers: dict[str, Connection] = field(default_factory=dict)
    """group -> the connection of its last heartbeat."""
    locks: dict[tuple[str, MessageQueue], str] = field(default_factory=dict)
    suggest_broker_id: int = 0
    trace_on: bool | None = None
    """What answers to sends say about traces; None: nothing, and no region."""
    moved_to: int | None = None
    """Answer the next pull of a queue with OFFSET_ILLEGAL and this offset."""
    is_young: bool = False
    """Let groups without offset begin at 0 where there are messages, as brokers do with young queues."""
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    server: RemotingServer | None = None

    async def start(self) -> None:
        handlers = {
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_members,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.CHECK_CLIENT_CONFIG: lambda _, command: command.reply(),
            RequestCode.END_TRANSACTION: lambda _, command: command.reply(),
        }
        everything: dict[int, Handler] = {
            code: self._scripted(handlers.get(code, unscripted)) for code in RequestCode
        }
        self.server = RemotingServer(everything, on_close=self._closed)
        self.port = await self.server.listen("127.0.0.1", self.port)
        self.address = f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Die: close every connection and the port."""
        assert self.server is not None
        for connection in list(self.server.connections.values()):
            connection.abort()
        await self.server.close(drain_seconds=0.5)

    def script(self, code: int, *answers: Answer) -> None:
        """Answer the next requests of this code like this."""
        self.scripts.setdefault(code, deque()).extend(answers)

    def seen(self, code: int) -> list[Command]:
        """The requests of this code so far."""
        return [command for command in self.requests if command.code == code]

    def put(self, topic: str, queue_id: int, body: bytes, properties: bytes = b"", **fields: Any) -> None:
        """Store a message as if somebody had sent it."""
        queue = self.log.setdefault((topic, queue_id), [])
        queue.append(
            encode_record(
                Record(
                    queue_id=queue_id,
                    queue_offset=len(queue),
                    offset=1000 * len(queue) + queue_id,
                    born_timestamp=1_700_000_000_000,
                    born_host=BORN,
                    store_timestamp=1_700_000_000_100,
                    store_host=Host(bytes((127, 0, 0, 1)), self.port),
                    body=body,
                    topic=topic,
                    properties=properties,
                    **fields,
                )
            )
        )
        self.grown.set()

    def ask_for(self, half: Command, *, queue_offset: int = 0, offset: int = 0) -> None:
        """Ask the producer that sent `half` (a send request) what became of it: CHECK_TRANSACTION_STATE."""
        sent = headers.SendMessageV2.from_ext(half.ext)
        unique_id = properties_of(half)["UNIQ_KEY"]
        record = Record(
            queue_id=sent.queue_id,
            queue_offset=queue_offset,
            offset=offset,
            born_timestamp=sent.born_timestamp,
            born_host=BORN,
            store_timestamp=1_700_000_000_100,
            store_host=Host(bytes((127, 0, 0, 1)), self.port),
            body=half.body,
            topic=sent.topic,
            properties=half.ext["i"].encode(),
        )
        header = headers.CheckTransactionState(
            topic="RMQ_SYS_TRANS_HALF_TOPIC",
            tran_state_table_offset=queue_offset,
            commit_log_offset=offset,
            msg_id=unique_id,
            transaction_id=unique_id,
            broker_name=self.name,
        )
        self.producers[sent.producer_group].notify(
            Command(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), encode_record(record))
        )

    # -- handlers -----------------------------------------------------------------------------------------

    def send(self, _: Connection, command: Command) -> Command:
        header = headers.SendMessageV2.from_ext(command.ext)
        topic, queue_id = header.topic, header.queue_id
        if topic not in self.cluster.topics:
            self.cluster.topics[topic] = {self.name: 4}
        first = len(self.log.get((topic, queue_id), []))
        if command.code == RequestCode.SEND_BATCH_MESSAGE:
            bodies = [(item.body, item.properties) for item in iterate_batch(command.body)]
        else:
            bodies = [(command.body, (header.properties or "").encode())]
        for body, properties in bodies:
            self.put(topic, queue_id, body, properties, sys_flag=header.sys_flag, flag=header.flag)
        ids = [
            encode_offset_id(Host(bytes((127, 0, 0, 1)), self.port), first + n) for n in range(len(bodies))
        ]
        made = headers.SendMessageResponse(msg_id=",".join(ids), queue_id=queue_id, queue_offset=first)
        ext = made.to_ext()
        if self.trace_on is not None:
            ext |= {"MSG_REGION": "here", "TRACE_ON": "true" if self.trace_on else "false"}
        return command.reply(ext=ext)

    async def pull(self, _: Connection, command: Command) -> Command:
        header = headers.PullMessage.from_ext(command.ext)
        moved, self.moved_to = self.moved_to, None
        if moved is not None:
            return command.reply(ResponseCode.PULL_OFFSET_MOVED, ext=self._pull_ext(moved, 0))
        if header.sys_flag & 1:
            self.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
        queue = self.log.setdefault((header.topic, header.queue_id), [])
        if header.queue_offset >= len(queue) and header.sys_flag & 2:
            try:
                async with asyncio.timeout(header.suspend_timeout_millis / 1000):
                    while header.queue_offset >= len(queue):
                        self.grown.clear()
                        await self.grown.wait()
            except TimeoutError:
                pass
        found = queue[header.queue_offset : header.queue_offset + header.max_msg_nums]
        ext = self._pull_ext(header.queue_offset + len(found), len(queue))
        code = ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND
        return command.reply(code, ext=ext, body=b"".join(found))

    def query_offset(self, _: Connection, command: Command) -> Command:
        header = headers.QueryConsumerOffset.from_ext(command.ext)
        offset = self.offsets.get((header.consumer_group, header.topic, header.queue_id))
        if offset is None and self.is_young and header.set_zero_if_not_found is not False:
            offset = 0 if self.log.get((header.topic, header.queue_id)) else None
        if offset is None:
            return command.reply(ResponseCode.QUERY_NOT_FOUND)
        return command.reply(ext={"offset": str(offset)})

    def update_offset(self, _: Connection, command: Command) -> Command:
        header = headers.UpdateConsumerOffset.from_ext(command.ext)
        self.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
        return command.reply()

    def max_offset(self, _: Connection, command: Command) -> Command:
        header = headers.GetMaxOffset.from_ext(command.ext)
        size = len(self.log.get((header.topic, header.queue_id), []))
        return command.reply(ext={"offset": str(size)})

    def min_offset(self, _: Connection, command: Command) -> Command:
        return command.reply(ext={"offset": "0"})

    def heartbeat(self, connection: Connection, command: Command) -> Command:
        data = HeartbeatData.from_json(command.body)
        for producer in data.producer_data_set:
            self.producers[producer.group_name] = connection
        for consumer in data.consumer_data_set:
            group = self.members.setdefault(consumer.group_name, {})
            is_new = data.client_id not in group
            group[data.client_id] = connection
            if consumer.message_model == "CLUSTERING":
                self.cluster.topics.setdefault(f"%RETRY%{consumer.group_name}", {self.name: 1})
            if is_new:
                self._notify(consumer.group_name)
        return command.reply()

    def unregister(self, _: Connection, command: Command) -> Command:
        header = headers.UnregisterClient.from_ext(command.ext)
        group = header.consumer_group
        if group is not None and self.members.get(group, {}).pop(header.client_id, None) is not None:
            self._notify(group)
        return command.reply()

    def list_members(self, _: Connection, command: Command) -> Command:
        group = headers.GetConsumerListByGroup.from_ext(command.ext).consumer_group
        ids = tuple(reversed(self.members.get(group, {})))
        if not ids:
            return command.reply(ResponseCode.SYSTEM_ERROR, "no consumer for this group")
        return command.reply(body=ConsumerIdList(ids).to_json())

    def send_back(self, _: Connection, command: Command) -> Command:
        return command.reply()

    def lock(self, _: Connection, command: Command) -> Command:
        wanted = LockBatchRequest.from_json(command.body)
        held = [
            queue
            for queue in wanted.mq_set
            if self.locks.setdefault((wanted.consumer_group, queue), wanted.client_id) == wanted.client_id
        ]
        return command.reply(body=LockBatchResponse(frozenset(held)).to_json())

    def unlock(self, _: Connection, command: Command) -> Command:
        given = LockBatchRequest.from_json(command.body)
        for queue in given.mq_set:
            if self.locks.get((given.consumer_group, queue)) == given.client_id:
                del self.locks[given.consumer_group, queue]
        return command.reply()

    # -- inside -------------------------------------------------------------------------------------------

    def _scripted(
        self, handler: Callable[[Connection, Command], Any]
    ) -> Callable[[Connection, Command], Any]:
        def serve(connection: Connection, command: Command) -> Any:
            self.requests.append(command)
            waiting = self.scripts.get(command.code)
            if waiting:
                return waiting.popleft()(connection, command)
            return handler(connection, command)

        return serve

    def _pull_ext(self, next_offset: int, max_offset: int) -> dict[str, str]:
        return headers.PullMessageResponse(
            suggest_which_broker_id=self.suggest_broker_id,
            next_begin_offset=next_offset,
            min_offset=0,
            max_offset=max_offset,
        ).to_ext()

    def _notify(self, group: str) -> None:
        header = headers.NotifyConsumerIdsChanged(consumer_group=group)
        for connection in self.members.get(group, {}).values():
            connection.notify(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header.to_ext()))

    def _closed(self, connection: Connection) -> None:
        for group, members in self.members.items():
            gone = [client_id for client_id, known in members.items() if known is connection]
            for client_id in gone:
                del members[client_id]
            if gone:
                self._notify(group)


class FakeCluster:
    """A name server, and brokers that tests add."""

    def __init__(self) -> None:
        self.brokers: dict[tuple[str, int], FakeBroker] = {}
        self.topics: dict[str, dict[str, int]] = {}
        """topic -> broker name -> queues."""
        self.asked: Counter[str] = Counter()
        """Routes asked for, by topic."""
        self.hidden: set[tuple[str, int]] = set()
        """Brokers that the routes leave out."""
        self.namesrv = ""
        self.kv: dict[tuple[str, str], str] = {}
        self._server = RemotingServer(
            {
                RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
                RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list,
                RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
                RequestCode.PUT_KV_CONFIG: self._put_kv,
                RequestCode.GET_KV_CONFIG: self._get_kv,
                RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            }
        )

    async def start(self) -> None:
        self.namesrv = f"127.0.0.1:{await self._server.listen('127.0.0.1', 0)}"

    async def stop(self) -> None:
        for broker in self.brokers.values():
            await broker.stop()
        await self._server.close(drain_seconds=0.5)

    async def add_broker(self, name: str = "a", broker_id: int = 0) -> FakeBroker:
        """Start a broker; one with a known name shares the data of that name."""
        twin = next((broker for key, broker in self.brokers.items() if key[0] == name), None)
        broker = FakeBroker(self, name, broker_id, twin.log if twin else {}, twin.offsets if twin else {})
        await broker.start()
        self.brokers[name, broker_id] = broker
        return broker

    def _route(self, _: Connection, command: Command) -> Command:
        topic = headers.GetRouteInfo.from_ext(command.ext).topic
        self.asked[topic] += 1
        queues = self.topics.get(topic)
        if queues is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, "No topic route info in name server")
        data = TopicRouteData(
            tuple(QueueData(name, count, count, 6) for name, count in queues.items()),
            tuple(
                BrokerData(
                    "c",
                    name,
                    {
                        broker_id: broker.address
                        for (other, broker_id), broker in self.brokers.items()
                        if other == name and (other, broker_id) not in self.hidden
                    },
                )
                for name in queues
            ),
        )
        return command.reply(body=data.to_json())

    def _cluster_info(self, _: Connection, command: Command) -> Command:
        groups: dict[str, dict[int, str]] = {}
        for (name, broker_id), broker in self.brokers.items():
            groups.setdefault(name, {})[broker_id] = broker.address
        table = {name: BrokerData("c", name, replicas) for name, replicas in groups.items()}
        return command.reply(body=ClusterInfo(table, {"c": tuple(groups)}).to_json())

    def _topic_list(self, _: Connection, command: Command) -> Command:
        return command.reply(body=TopicList(tuple(self.topics)).to_json())

    def _delete_topic(self, _: Connection, command: Command) -> Command:
        self.topics.pop(headers.DeleteTopicFromNamesrv.from_ext(command.ext).topic, None)
        return command.reply()

    def _put_kv(self, _: Connection, command: Command) -> Command:
        header = headers.PutKVConfig.from_ext(command.ext)
        self.kv[header.namespace, header.key] = header.value
        return command.reply()

    def _get_kv(self, _: Connection, command: Command) -> Command:
        header = headers.GetKVConfig.from_ext(command.ext)
        value = self.kv.get((header.namespace, header.key))
        if value is None:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, "No config item")
        return command.reply(ext={"value": value})

    def _delete_kv(self, _: Connection, command: Command) -> Command:
        header = headers.DeleteKVConfig.from_ext(command.ext)
        self.kv.pop((header.namespace, header.key), None)
        return command.reply()


@asynccontextmanager
async def fake_cluster() -> AsyncIterator[FakeCluster]:
    """A cluster that runs; afterwards no task of the client may be left."""
    cluster = FakeCluster()
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
    left = [
        task.get_name() for task in asyncio.all_tasks() if "@" in task.get_name()
    ]  # the client names its tasks <client id>/<what>
    assert not left, left


def bodies(broker: FakeBroker, topic: str) -> list[bytes]:
    """What is stored under a topic, over all its queues."""
    from brokerset_formats.records import decode_record

    return [
        decode_record(record).body
        for (name, _), records in sorted(broker.log.items())
        if name == topic
        for record in records
    ]


def properties_of(command: Command) -> dict[str, str]:
    """The properties of a send request."""
    return decode_properties(command.ext["i"].encode())
