"""What administrators and consumers ask of a live broker next to messages: changes, refusals, relays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from brokerset_broker.app import Broker
from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests import admin
from brokerset_broker.requests.clients import ClientProcessor
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.producers import ProducerTable
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats import fastjson
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import connected, running_broker
from brokerset_rig.metadata_parts import file_changes
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting import Connection, Handlers, connect
from brokerset_spec.broker_settings import BrokerSettings

LEGAL = "^[%|a-zA-Z0-9_-]+$"
Scenario = Callable[["Peer"], Awaitable[None]]


@dataclass
class Peer:
    """A client's connection to a running broker."""

    broker: Broker
    connection: Connection

    async def ask(self, code: int, body: bytes = b"", /, **ext: object) -> Command:
        """One request and its answer."""
        fields = {name: str(value) for name, value in ext.items()}
        return await self.connection.call(Command(code, fields, body), 10)

    async def refused(self, code: int, body: bytes = b"", /, **ext: object) -> tuple[int, str]:
        """Code and remark of an answer that is no success."""
        answer = await self.ask(code, body, **ext)
        assert answer.code != ResponseCode.SUCCESS
        return answer.code, answer.remark or ""

    async def create_topic(self, topic: str, queues: int = 4, **ext: object) -> Command:
        """UPDATE_AND_CREATE_TOPIC."""
        fields: dict[str, object] = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        }  # fmt: skip
        return await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **{**fields, **ext})

    async def send(self, topic: str, queue_id: int = 0, count: int = 1) -> None:
        """Store messages."""
        for _ in range(count):
            answer = await self.ask(
                RequestCode.SEND_MESSAGE_V2, b"body",
                a="g", b=topic, c="TBW102", d=4, e=queue_id, f=0, g=1, h=0, i="TAGS\x01a\x02", j=0,
                k="false", l=0, m="false",
            )  # fmt: skip
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def beat(self, group: str, *topics: str, client: str = "c1", **changes: object) -> Command:
        """HEART_BEAT of a consumer."""
        subscriptions = [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics]
        consumer = {"groupName": group, "subscriptionDataSet": subscriptions, **changes}
        body = {"clientID": client, "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "p"}]}
        return await self.ask(RequestCode.HEART_BEAT, json.dumps(body).encode())


@pytest.fixture
def peer(tmp_path: Path) -> AbstractAsyncContextManager[Peer]:
    """A client's connection to a broker."""
    return running(tmp_path)


@asynccontextmanager
async def running(folder: Path, handlers: Handlers | None = None) -> AsyncIterator[Peer]:
    """A broker, and a connection to it whose client answers requests."""
    async with running_broker(folder) as broker, connected(broker.port, handlers) as connection:
        yield Peer(broker, connection)


def run(folder: Path, scenario: Scenario, handlers: Handlers | None = None) -> None:
    async def whole() -> None:
        async with running(folder, handlers) as peer:
            await scenario(peer)

    asyncio.run(whole())


async def test_a_created_topic_is_on_disk_when_the_answer_comes(peer: Peer, tmp_path: Path) -> None:
    """Its settings and attributes are in topics.json before the administrator is told."""

    answer = await peer.create_topic("mine", 3, attributes="+message.type=FIFO")

    assert (answer.code, answer.ext) == (0, {})
    table = json.loads((tmp_path / "config/topics.json").read_text())["topicConfigTable"]
    assert table["mine"]["writeQueueNums"] == 3
    assert table["mine"]["attributes"] == {"message.type": "FIFO"}
    assert (await peer.create_topic("mine", 3)).code == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topic": "a b"}, f"The specified topic: a b, contains illegal characters, allowing only {LEGAL}"),
        ({"topic": "TBW102"}, "The topic[TBW102] is conflict with system topic."),
        ({"topic": "DefaultCluster"}, "The topic[DefaultCluster] is conflict with system topic."),
        ({"attributes": "+message.type=MIXED"}, "MIXED message type is not supported."),
        ({"attributes": "message.type=FIFO"}, "add/alter attribute format is wrong: message.type"),
        ({"attributes": "+nothing=1"}, "unsupported key: nothing"),
        ({"readQueueNums": -1}, "readQueueNums=-1: must be from 0 to 16384"),
        ({"writeQueueNums": 99_999}, "writeQueueNums=99999: must be from 0 to 16384"),
        ({"perm": 99}, "perm=99: must be from 0 to 15"),
        ({"topicFilterType": "X"}, "topicFilterType=X: must be SINGLE_TAG or MULTI_TAG"),
    ],
)  # fmt: skip
async def test_impossible_topics_are_refused(
    peer: Peer, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    """Each with INVALID_PARAMETER and Java's words, where Java has some."""

    answer = await peer.create_topic(**{"topic": "mine", **changes})  # type: ignore[arg-type]  # fields by name

    assert (answer.code, answer.remark) == (ResponseCode.INVALID_PARAMETER, words)


async def test_a_list_of_topics_is_created_or_refused_as_a_whole(peer: Peer, tmp_path: Path) -> None:
    """One bad name among them, and none is created."""

    bad = json.dumps({"topicConfigList": [{"topicName": "one"}, {"topicName": "a b"}]}).encode()
    good = json.dumps({"topicConfigList": [{"topicName": "one"}, {"topicName": "two"}]}).encode()

    code, _ = await peer.refused(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, bad)
    assert code == ResponseCode.INVALID_PARAMETER
    assert peer.broker.topics.get("one") is None
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, good)).code == 0

    assert peer.broker.topics.get("two") is not None


def test_a_deleted_topic_leaves_nothing(tmp_path: Path) -> None:
    """Config, offsets, queues and counters are gone, and stay gone after a restart."""

    async def scenario(peer: Peer) -> None:
        await peer.create_topic("mine")
        await peer.send("mine", count=3)
        await peer.beat("g", "mine")
        await peer.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="mine", queueId=0, commitOffset=2
        )

        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="mine")).code == 0

        code, _ = await peer.refused(RequestCode.GET_TOPIC_CONFIG, topic="mine")
        assert code == ResponseCode.TOPIC_NOT_EXIST
        assert peer.broker.offsets.groups_of("mine") == []
        assert "mine" not in peer.broker.store.queues()
        for topic in ("", "TBW102"):
            code, _ = await peer.refused(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
            assert code == ResponseCode.INVALID_PARAMETER

    async def afterwards(peer: Peer) -> None:
        assert peer.broker.topics.get("mine") is None
        assert peer.broker.offsets.query("g", "mine", 0) is None

    run(tmp_path, scenario)
    run(tmp_path, afterwards)


async def test_tables_come_in_pages_for_newer_slaves(peer: Peer, tmp_path: Path) -> None:
    """Sorted, from the asked position; from the beginning if the table has changed meanwhile."""

    version = json.dumps(peer.broker.topics.data_version.to_json())
    names = sorted(topic.topic_name for topic in peer.broker.topics)

    async def page(start: int, known: str) -> list[str]:
        answer = await peer.ask(
            RequestCode.GET_ALL_TOPIC_CONFIG, topicSeq=start, maxTopicNum=5, dataVersion=known
        )
        assert answer.ext == {"totalTopicNum": str(len(names))}
        return list(json.loads(answer.body)["topicConfigTable"])

    assert await page(0, "") == names[:5]
    assert await page(5, version) == names[5:10]
    assert await page(5, '{"counter":77}') == names[:5]
    assert await page(5, "nonsense") == names[:5]


def test_members_are_told_of_each_other(tmp_path: Path) -> None:
    """A join and a lost connection both make the others rebalance, and 38 shows who is there."""
    told: asyncio.Queue[str] = asyncio.Queue()

    def notified(connection: Connection, command: Command) -> None:
        told.put_nowait(command.ext["consumerGroup"])

    async def scenario(peer: Peer) -> None:
        await peer.beat("g", "t", client="one")
        assert await asyncio.wait_for(told.get(), 5) == "g"
        other = await connect(f"127.0.0.1:{peer.broker.port}")
        await Peer(peer.broker, other).beat("g", "t", client="two")
        assert await asyncio.wait_for(told.get(), 5) == "g"
        answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert json.loads(answer.body) == {"consumerIdList": ["one", "two"]}

        other.close()

        assert await asyncio.wait_for(told.get(), 5) == "g"
        answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
        assert json.loads(answer.body) == {"consumerIdList": ["one"]}
        assert (await peer.ask(RequestCode.UNREGISTER_CLIENT, clientID="one", consumerGroup="g")).code == 0
        assert await peer.refused(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g") == (
            ResponseCode.SYSTEM_ERROR,
            "no consumer for this group, g",
        )

    run(tmp_path, scenario, {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: notified})


async def test_connections_are_shown(peer: Peer, tmp_path: Path) -> None:
    """Of consumers and producers, with what the group subscribes to; unknown groups get Java's refusals."""

    await peer.beat("g", "t", client="one")

    found = json.loads((await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")).body)
    assert [entry["clientId"] for entry in found["connectionSet"]] == ["one"]
    assert list(found["subscriptionTable"]) == ["t"]
    assert found["messageModel"] == "CLUSTERING"
    found = json.loads((await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")).body)
    assert found["connectionSet"][0]["language"] == "PYTHON"
    found = json.loads((await peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)).body)
    assert found["data"]["p"][0]["clientId"] == "one"
    assert await peer.refused(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="no") == (
        ResponseCode.CONSUMER_NOT_ONLINE,
        "the consumer group[no] not online",
    )
    assert await peer.refused(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="no") == (
        ResponseCode.SYSTEM_ERROR,
        "the producer group[no] not exist",
    )


async def test_heartbeats_that_cannot_be_served(peer: Peer, tmp_path: Path) -> None:
    """Groups that pop are registered; nonsense is refused with a reason."""

    answer = await peer.beat("popper", "t", consumeType="CONSUME_POP")
    assert answer.code == ResponseCode.SUCCESS
    assert peer.broker.producers.clients("p") is not None
    for body in (b"", b"[]", b'{"clientID":1}', b'{"clientID":"c","consumerDataSet":[7]}', b"\xff"):
        code, _ = await peer.refused(RequestCode.HEART_BEAT, body)
        assert code == ResponseCode.SYSTEM_ERROR
    sql = {"topic": "t", "subString": "a > 1", "expressionType": "SQL92"}
    body = json.dumps({"clientId": "c", "group": "g", "subscriptionData": sql}).encode()
    assert await peer.refused(RequestCode.CHECK_CLIENT_CONFIG, body) == (
        ResponseCode.SYSTEM_ERROR,
        "The broker does not support consumer to filter message by SQL92",
    )


def test_silent_clients_are_taken_out(tmp_path: Path) -> None:
    """Without heartbeats a client is forgotten though its connection lives; when it says so, at once."""
    clock = ManualClock()
    settings = LiveSettings(BrokerSettings(store_path_root_dir=tmp_path))
    topics, groups = TopicManager(settings, clock), GroupManager(settings, clock)
    consumers, producers = ConsumerTable(clock), ProducerTable(clock)
    processor = ClientProcessor(
        live=settings,
        clock=clock,
        topics=topics,
        groups=groups,
        consumers=consumers,
        producers=producers,
        changes=file_changes(topics, groups, OffsetManager(settings, clock)),
    )

    async def scenario() -> None:
        connection = Connection({})
        body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}],"producerDataSet":[{"groupName":"p"}]}'
        processor.heartbeat(connection, Command(RequestCode.HEART_BEAT, body=body))
        clock.advance(settings.current.channel_expired_timeout - 1)
        processor.expire()
        assert consumers.group("g") is not None
        clock.advance(2)
        processor.expire()

        assert consumers.group("g") is None
        assert producers.clients("p") is None
        processor.heartbeat(connection, Command(RequestCode.HEART_BEAT, body=body))
        ext = {"clientID": "c", "producerGroup": "p"}
        processor.unregister(connection, Command(RequestCode.UNREGISTER_CLIENT, ext))
        assert producers.clients("p") is None
        assert consumers.group("g") is not None

    asyncio.run(scenario())


async def test_the_second_version_of_heartbeats(peer: Peer, tmp_path: Path) -> None:
    """A known fingerprint needs no subscriptions; a new one, or a broker that knows none, asks for them."""

    async def beat(fingerprint: int, without: bool) -> str:
        consumer = {
            "groupName": "g",
            "subscriptionDataSet": [] if without else [{"topic": "t", "subString": "*"}],
        }
        body = {
            "clientID": "c",
            "consumerDataSet": [consumer],
            "heartbeatFingerprint": fingerprint,
            "withoutSub": without,
        }
        answer = await peer.ask(RequestCode.HEART_BEAT, json.dumps(body).encode())
        assert answer.ext["IS_SUPPORT_HEART_BEAT_V2"] == "true"
        return answer.ext["IS_SUB_CHANGE"]

    assert await beat(5, True) == "true"
    assert await beat(5, False) == "false"
    assert await beat(5, True) == "false"
    assert peer.broker.consumers.subscription("g", "t") is not None
    assert await beat(6, True) == "true"


async def test_a_reset_moves_the_group(peer: Peer, tmp_path: Path) -> None:
    """All queues by time, or one to an offset; the next pull is told, and commits before it are ignored."""

    await peer.create_topic("t", 2)
    await peer.send("t", 0, 3)
    await peer.beat("g", "t")
    reset = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    answer = await peer.ask(reset, group="g", topic="t", timestamp=-1, isForce="true")
    key = '{"brokerName":"broker-a","queueId":%d,"topic":"t"}'
    assert fastjson.loads(answer.body) == {"offsetTable": {key % 0: 3, key % 1: 0}}
    commit: dict[str, object] = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    ignored = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **commit, commitOffset=1)
    assert (ignored.code, ignored.remark) == (0, "Offset has been previously reset")
    await peer.ask(reset, group="g", topic="t", queueId=0, offset=2, timestamp=0, isForce="true")
    pulled = await peer.ask(
        RequestCode.PULL_MESSAGE, consumerGroup="g", topic="t", queueId=0, queueOffset=0, maxMsgNums=1,
        sysFlag=1, commitOffset=1, suspendTimeoutMillis=0, subVersion=0,
    )  # fmt: skip

    assert (pulled.code, pulled.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
    asked = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, **commit)
    assert asked.ext == {"offset": "2"}
    for wrong, code in (
        ({"topic": "no"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "no"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": 0, "offset": 99}, ResponseCode.SYSTEM_ERROR),
    ):
        fields: dict[str, object] = {"group": "g", "topic": "t", "timestamp": 0, **wrong}
        assert (await peer.refused(reset, **fields))[0] == code


async def test_lowest_offsets_of_all_groups(peer: Peer, tmp_path: Path) -> None:
    """Some groups are left out, and keep their offsets; where the compared group is behind, nothing is
    lowest."""

    await peer.create_topic("t", 2)
    await peer.send("t", 0, 5)
    for group, offset in (("ahead", 4), ("behind", 2), ("left", 1)):
        await peer.beat(group, "t", client=group)
        answer = await peer.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup=group, topic="t", queueId=0, commitOffset=offset,
        )  # fmt: skip
        assert answer.code == ResponseCode.SUCCESS
    ask = RequestCode.QUERY_CORRECTION_OFFSET

    lowest = await peer.ask(ask, topic="t", compareGroup="ahead", filterGroups="left,none")
    hidden = await peer.ask(ask, topic="t", compareGroup="left", filterGroups="left")
    unknown = await peer.ask(ask, topic="no", compareGroup="no")

    assert json.loads(lowest.body)["correctionOffsets"] == {"0": 2}
    assert json.loads(hidden.body)["correctionOffsets"] == {"0": 2**63 - 1}
    assert json.loads(unknown.body)["correctionOffsets"] == {}
    assert peer.broker.offsets.query("left", "t", 0) == 1


async def test_members_that_do_not_pull_are_sent_the_reset(tmp_path: Path) -> None:
    """One that has fetched as much as it may would never hear of it; a notice comes once, with the new
    offset."""
    got: asyncio.Queue[Command] = asyncio.Queue()

    def note(connection: Connection, command: Command) -> Command:
        got.put_nowait(command)
        return command.reply()

    async with (
        running_broker(tmp_path, reset_notice_millis=1) as broker,
        connected(broker.port, {RequestCode.RESET_CONSUMER_CLIENT_OFFSET: note}) as connection,
    ):
        peer = Peer(broker, connection)
        await peer.create_topic("t", 1)
        await peer.send("t", 0, 3)
        await peer.beat("g", "t")

        answer = await peer.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, group="g", topic="t", timestamp=-1, isForce="true"
        )
        notice = await asyncio.wait_for(got.get(), 10)

    assert answer.code == ResponseCode.SUCCESS
    assert (notice.ext["group"], notice.ext["topic"]) == ("g", "t")
    assert fastjson.loads(notice.body) == fastjson.loads(answer.body)


async def test_first_offsets_of_a_new_group(peer: Peer, tmp_path: Path) -> None:
    """0 while the first message is there; not found for an empty queue, or when the client wants none set."""

    await peer.create_topic("t", 2)
    await peer.send("t", 0)
    ask: dict[str, object] = {"consumerGroup": "new", "topic": "t"}

    assert (await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, **ask, queueId=0)).ext == {"offset": "0"}
    assert (await peer.refused(RequestCode.QUERY_CONSUMER_OFFSET, **ask, queueId=1))[0] == 22
    assert (
        await peer.refused(RequestCode.QUERY_CONSUMER_OFFSET, **ask, queueId=0, setZeroIfNotFound="false")
    )[0] == 22
    for group, topic, code in (
        ("no", "t", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ("TOOLS_CONSUMER", "no", ResponseCode.TOPIC_NOT_EXIST),
    ):
        assert (
            await peer.refused(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup=group, topic=topic, queueId=0, commitOffset=1,
            )
        )[0] == code  # fmt: skip


async def test_groups_are_administered(peer: Peer, tmp_path: Path) -> None:
    """Created, shown, forbidden to read, and deleted with their offsets."""

    await peer.create_topic("t")
    body = json.dumps({"groupName": "g", "retryMaxTimes": 3, "consumeFromMinEnable": False}).encode()
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)).code == 0
    shown = json.loads((await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")).body)
    assert (shown["retryMaxTimes"], shown["consumeFromMinEnable"]) == (3, False)
    forbid = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    answer = await peer.ask(forbid, group="g", topic="t", readable="false")
    assert json.loads(answer.body) == {"group": "g", "readable": False, "topic": "t"}
    assert json.loads((await peer.ask(forbid, group="g", topic="t")).body)["readable"] is False
    peer.broker.offsets.commit("g", "t", 0, 1)

    assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", cleanOffset="true")).code == 0

    assert peer.broker.groups.get("g") is None
    assert peer.broker.offsets.topics_of("g") == []
    for code, request in (
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"a b"}'),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            b'{"groupConfigList":[{"groupName":"a b"}]}',
        ),
    ):
        assert (await peer.refused(code, request))[0] == ResponseCode.INVALID_PARAMETER
    refused = await peer.refused(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="CID_RMQ_SYS_TRANS")
    assert refused[0] == ResponseCode.INVALID_PARAMETER


async def test_progress_of_groups(peer: Peer, tmp_path: Path) -> None:
    """Consume stats, of one group and of all, and time spans, with queues as keys."""

    await peer.create_topic("t", 1)
    await peer.send("t", 0, 3)
    await peer.beat("g", "t")
    await peer.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="t", queueId=0, commitOffset=2
    )

    stats = fastjson.loads((await peer.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g")).body)
    (entry,) = stats["offsetTable"].values()
    assert (entry["brokerOffset"], entry["consumerOffset"], entry["pullOffset"]) == (3, 2, 2)
    assert entry["lastTimestamp"] > 0
    every = fastjson.loads((await peer.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")).body)
    assert (every["totalDiff"], every["totalInflightDiff"]) == (1, 0)
    spans = fastjson.loads((await peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="t", group="g")).body)
    assert spans["consumeTimeSpanSet"][0]["messageQueue"]["queueId"] == 0
    who = await peer.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="t")
    assert json.loads(who.body) == {"groupList": ["g"]}
    topics = await peer.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="g")
    assert json.loads(topics.body)["topicList"] == ["t"]
    subscribed = await peer.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="t")
    assert json.loads(subscribed.body)["subscriptionData"]["topic"] == "t"
    assert (
        await peer.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="g", destGroup="h", offline="true")
    ).code == 0
    assert peer.broker.offsets.query("h", "t", 0) == 2


async def test_settings_change_while_running(peer: Peer, tmp_path: Path) -> None:
    """Shown at once, told to name servers by a new version, and refused when they need a restart."""

    counter = peer.broker.topics.data_version.counter

    assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=4\n")).code == 0

    shown = await peer.ask(RequestCode.GET_BROKER_CONFIG)
    assert b"brokerPermission=4\n" in shown.body
    assert json.loads(shown.ext["version"])["counter"] == 1
    assert peer.broker.topics.data_version.counter == counter + 1
    assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"flushDiskType=ASYNC_FLUSH\n")).code == 0
    for body, code in (
        (b"listenPort=1\n", ResponseCode.SYSTEM_ERROR),
        (b"noSuchSetting=1\n", ResponseCode.SYSTEM_ERROR),
        (b"brokerConfigPath=x\n", ResponseCode.NO_PERMISSION),
        (b"", ResponseCode.SYSTEM_ERROR),
        (b"\xff\xfe=1", ResponseCode.SYSTEM_ERROR),
    ):
        assert (await peer.refused(RequestCode.UPDATE_BROKER_CONFIG, body))[0] == code


def test_requests_are_passed_on_to_a_consumer(tmp_path: Path) -> None:
    """Its running info, a message to consume at once, and its status; who is not online is said so."""
    seen: list[Command] = []

    def answer(connection: Connection, command: Command) -> Command:
        seen.append(command)
        body = b'{"messageQueueTable":{}}' if command.code == 221 else b'{"properties":{}}'
        return command.reply(body=body)

    async def scenario(peer: Peer) -> None:
        await peer.create_topic("t", 1)
        await peer.send("t")
        await peer.beat("g", "t", client="one")

        info = await peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId="one")
        assert info.body == b'{"properties":{}}'
        message_id = f"7F000001{peer.broker.port:08X}{0:016X}"
        direct = await peer.ask(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, consumerGroup="g", clientId="one", msgId=message_id
        )
        assert direct.code == 0
        assert seen[-1].ext["brokerName"] == "broker-a"
        assert b"body" in seen[-1].body
        status = await peer.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="t", group="g")
        assert fastjson.loads(status.body)["consumerTable"] == {"one": {}}

        assert await peer.refused(
            RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId="two"
        ) == (ResponseCode.SYSTEM_ERROR, "The Consumer <g> <two> not online")
        for bad in ("", "xyz", f"7F000001{peer.broker.port:08X}{1 << 40:016X}"):
            code, _ = await peer.refused(
                RequestCode.CONSUME_MESSAGE_DIRECTLY, consumerGroup="g", clientId="one", msgId=bad
            )
            assert code == ResponseCode.SYSTEM_ERROR

    run(
        tmp_path,
        scenario,
        {
            RequestCode.GET_CONSUMER_RUNNING_INFO: answer,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: answer,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: answer,
        },
    )


async def test_a_consumer_that_does_not_answer(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence becomes CONSUME_MSG_TIMEOUT, a lost connection an error; the asker always gets an answer."""

    monkeypatch.setattr(admin, "CLIENT_ANSWER_SECONDS", 0.05)

    silent = await connect(
        f"127.0.0.1:{peer.broker.port}",
        {RequestCode.GET_CONSUMER_RUNNING_INFO: lambda connection, command: None},
    )
    leaving = await connect(
        f"127.0.0.1:{peer.broker.port}",
        {RequestCode.GET_CONSUMER_RUNNING_INFO: lambda connection, command: connection.abort()},
    )
    await Peer(peer.broker, silent).beat("g", "t", client="silent")
    await Peer(peer.broker, leaving).beat("g", "t", client="leaving")

    async def ask(client: str) -> int:
        code, _ = await peer.refused(
            RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId=client
        )
        return code

    assert await ask("silent") == ResponseCode.CONSUME_MSG_TIMEOUT
    assert await ask("leaving") == ResponseCode.SYSTEM_ERROR
    silent.close()


async def test_a_broker_that_takes_no_writes_changes_no_tables(peer: Peer, tmp_path: Path) -> None:
    """A slave sends administrators to its master."""

    peer.broker.admission.refuse_writes()

    for code, ext in (
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"}),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}),
    ):
        refused = await peer.refused(code, **ext)
        assert refused == (
            ResponseCode.SYSTEM_ERROR,
            "Can't modify topic or subscription group from slave broker,"
            " please execute it from master broker.",
        )
    assert (await peer.create_topic("t")).code == ResponseCode.SYSTEM_ERROR
    reset = await peer.refused(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, group="g", topic="t", timestamp=0)
    assert reset == (ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
    info = json.loads((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
    assert info["table"]["brokerActive"] == "false"


async def test_queues_and_figures_are_shown(peer: Peer, tmp_path: Path) -> None:
    """Units of a queue, statistics by name, system topics; what is not there is said so."""

    await peer.create_topic("t", 1)
    await peer.send("t", 0, 3)
    ask: dict[str, object] = {"topic": "t", "queueId": 0, "count": 2}

    found = json.loads((await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, **ask, index=1)).body)
    assert (found["minQueueIndex"], found["maxQueueIndex"], len(found["queueData"])) == (0, 3, 2)
    assert found["queueData"][0]["tagsCode"] == ord("a")
    beyond = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, **ask, index=3)
    assert (beyond.code, beyond.remark) == (0, "Index 3 of 0@t is not exist!")
    assert await peer.refused(RequestCode.QUERY_CONSUME_QUEUE, topic="t", queueId=9, index=0, count=1) == (
        ResponseCode.SYSTEM_ERROR,
        "9@t is not exist!",
    )
    stats = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="t")
    assert set(json.loads(stats.body)) == {"statsDay", "statsHour", "statsMinute"}
    assert await peer.refused(
        RequestCode.VIEW_BROKER_STATS_DATA, statsName="GROUP_GET_NUMS", statsKey="t@no"
    ) == (ResponseCode.SYSTEM_ERROR, "The stats <GROUP_GET_NUMS> <t@no> not exist")
    system = json.loads((await peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body)["topicList"]
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster"} <= set(system)
    for code in (
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.CLEAN_UNUSED_TOPIC,
    ):
        assert (await peer.ask(code)).code == 0
    assert peer.broker.store.queue_max("t", 0) == 3


async def test_locks_over_the_wire(peer: Peer, tmp_path: Path) -> None:
    """Queues of unknown topics are not locked; a second client waits for the first to unlock."""

    await peer.create_topic("t", 1)
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": "t"}

    async def locked(client: str, code: int = RequestCode.LOCK_BATCH_MQ) -> list[object]:
        queues = [queue, {**queue, "topic": "unknown"}]
        body = json.dumps({"clientId": client, "consumerGroup": "g", "mqSet": queues}).encode()
        answer = await peer.ask(code, body)
        assert answer.code == 0
        return list(json.loads(answer.body)["lockOKMQSet"]) if answer.body else []

    assert await locked("one") == [queue]
    assert await locked("two") == []
    await locked("one", RequestCode.UNLOCK_BATCH_MQ)
    assert await locked("two") == [queue]
    assert peer.broker.locks.has_locks("g")
