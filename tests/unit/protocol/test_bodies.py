"""Bodies: Java's vectors, its dialect of JSON, tolerance, refusals, limits."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest

from brokerset_formats import fastjson
from brokerset_formats.config import DataVersion, TopicConfig
from brokerset_formats.hashing import crc31
from brokerset_protocol import bodies
from brokerset_protocol.bodies import MessageQueue, properties_text, registration
from brokerset_protocol.errors import LocalProtocolError, Rejected

HEARTBEAT = (
    b'{"clientID":"10.0.0.5@4711#123456789","consumerDataSet":[{"consumeFromWhere":'
    b'"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"cg","messageModel":'
    b'"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919,2598920],'
    b'"expressionType":"TAG","subString":"TagA || TagB","subVersion":1700000000000,'
    b'"tagsSet":["TagA","TagB"],"topic":"TopicTest"}],"unitMode":false}],"heartbeatFingerprint":0,'
    b'"producerDataSet":[{"groupName":"pg"}],"withoutSub":false}'
)
ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a",'
    b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
    b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
    b'"writeQueueNums":4}]}'
)
REGISTRATION = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":2,"stateVersion":0,'
    b'"timestamp":1700000000000},"mappingDataVersion":{"counter":0,"stateVersion":0,'
    b'"timestamp":1700000000000},"topicConfigTable":{"TopicTest":{"attributes":{},"order":false,"perm":6,'
    b'"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"TopicTest","topicSysFlag":0,'
    b'"writeQueueNums":4}},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
)
QUEUE = MessageQueue("T", "b", 0)


HERE = bodies.OffsetWrapper(1, 0)


def block(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


ONE_TOPIC = block(b"{}") + b"\x00\x00\x00\x01"


def compressed_registration(*, mappings: bytes | None = b"\x00\x00\x00\x00") -> bytes:
    plain = (
        block(b'{"counter":2,"stateVersion":0,"timestamp":1700000000000}')
        + b"\x00\x00\x00\x01"
        + block(b"TopicTest 4 4 6 SINGLE_TAG {}")
        + block(b"[]")
        + (mappings or b"")
    )
    return zlib.compress(plain, 9)


@pytest.mark.parametrize(
    ("cls", "data"),
    [
        (bodies.HeartbeatData, HEARTBEAT),
        (bodies.TopicRouteData, ROUTE),
        (bodies.RegisterBrokerBody, REGISTRATION),
    ],
)
def test_java_vectors_are_read_and_written(cls: type[bodies.JsonBody], data: bytes) -> None:
    """The vectors of RocketMQ's own classes are written byte for byte after they were read."""
    assert cls.from_json(data).to_json() == data


def test_heartbeat_of_the_cpp_client_is_read() -> None:
    """Enumerations as numbers in Java's order, and numbers as text, are understood."""
    data = (
        b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":0,"groupName":"g",'
        b'"messageModel":0,"subscriptionDataSet":[{"codeSet":["2598919"],"subString":"TagA",'
        b'"subVersion":"1700000000000","tagsSet":["TagA"],"topic":"T"}]}],"producerDataSet":null}'
    )

    (consumer,) = bodies.HeartbeatData.from_json(data).consumer_data_set

    assert consumer.consume_from_where is bodies.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert consumer.consume_type is bodies.ConsumeType.CONSUME_ACTIVELY
    assert consumer.message_model is bodies.MessageModel.BROADCASTING
    (subscription,) = consumer.subscription_data_set
    assert (subscription.sub_version, subscription.code_set) == (1700000000000, frozenset({2598919}))


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(b'{{"brokerName":"b","queueId":0,"topic":"T"}:5}', id="bare object, as Java writes"),
        pytest.param(b'{"{\\"topic\\":\\"T\\",\\"brokerName\\":\\"b\\",\\"queueId\\":0}":5}', id="text"),
    ],
)
def test_queue_keys_are_read_in_every_style(table: bytes) -> None:
    """A queue as a map's key is read as Java writes it and as standard JSON has it."""
    body = bodies.ResetOffsetBody.from_json(b'{"offsetTable":' + table + b"}")

    assert body.offset_table == {QUEUE: 5}
    assert body.to_json() == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}'


@pytest.mark.parametrize("key", [b"0", b'"0"'])
def test_integer_keys_are_read_in_both_styles(key: bytes) -> None:
    """Integer keys are read bare and quoted, and written quoted."""
    data = b'{"brokerAddrs":{' + key + b':"a:1"},"brokerName":"b","cluster":"c"}'

    group = bodies.BrokerMemberGroup.from_json(data)

    assert group.broker_addrs == {0: "a:1"}
    assert group.to_json() == b'{"brokerAddrs":{"0":"a:1"},"brokerName":"b","cluster":"c"}'


def test_unknown_fields_and_nulls_are_tolerated() -> None:
    """Fields that we do not know are ignored, nulls count as absent."""
    data = b'{"x":[{}],"queueDatas":[null,{"brokerName":"b","perm":null}],"brokerDatas":null}'

    route = bodies.TopicRouteData.from_json(data)

    assert route.queue_datas == (bodies.QueueData("b", 0, 0, 0),)
    assert route.broker_datas == ()


@pytest.mark.parametrize(
    ("cls", "data", "problem"),
    [
        (bodies.HeartbeatData, b"", "empty"),
        (bodies.HeartbeatData, b"\xff", "HeartbeatData"),
        (bodies.HeartbeatData, b"[]", "no JSON object"),
        (bodies.HeartbeatData, b"{}", "clientID is missing"),
        (bodies.HeartbeatData, b'{"clientID":1}', "clientID of HeartbeatData"),
        (bodies.HeartbeatData, b'{"clientID":"c","consumerDataSet":{}}', "no list"),
        (bodies.HeartbeatData, b'{"clientID":"c","consumerDataSet":[1]}', "no JSON object"),
        (bodies.ConsumerData, b'{"groupName":"g","consumeType":"X"}', "none of CONSUME_ACTIVELY"),
        (bodies.ConsumerData, b'{"groupName":"g","consumeType":3}', "none of CONSUME_ACTIVELY"),
        (bodies.ConsumerData, b'{"groupName":"g","unitMode":[]}', "neither true nor false"),
        (bodies.MessageQueue, b'{"topic":"t","brokerName":"b","queueId":"--1"}', "no 64-bit number"),
        (bodies.MessageQueue, b'{"topic":"t","brokerName":"b","queueId":18446744073709551615}', "64-bit"),
        (bodies.MessageQueue, b'{"topic":"t","brokerName":"b","queueId":true}', "64-bit"),
        (bodies.MessageQueue, b'{"topic":"t","brokerName":"b"}', "queueId is missing"),
        (bodies.ResetOffsetBody, b'{"offsetTable":{"x":1}}', "offsetTable"),
        (bodies.ClusterInfo, b'{"brokerAddrTable":{"b":{"brokerName":"b","brokerAddrs":{"x":""}}}}', "64-"),
        (bodies.TopicStats, b'{"topicPutTps":"x"}', "no number"),
        (bodies.KVTable, b'{"table":{"a":{}}}', "no text"),
        (bodies.TopicConfigTable, b'{"topicConfigTable":{"T":{"perm":"x"}}}', "perm"),
        (bodies.TopicConfigTable, b'{"topicConfigTable":{"T":1}}', "no JSON object"),
        (bodies.RegisterBrokerBody, b"{}", "topicConfigSerializeWrapper"),
    ],
)
def test_malformed_bodies_are_refused(cls: type[bodies.JsonBody], data: bytes, problem: str) -> None:
    """A body that cannot be read is refused with the place where it is wrong."""
    with pytest.raises(Rejected, match=problem):
        cls.from_json(data)


def test_order_topics_and_zones_are_kept() -> None:
    """The optional parts of a route survive."""
    route = bodies.TopicRouteData(
        (),
        (bodies.BrokerData("c", "b", {1: "a:1"}, enable_acting_master=True, zone_name="z"),),
        {"a:1": ("f:1",)},
        "b:4",
    )

    assert bodies.TopicRouteData.from_json(route.to_json()) == route
    assert route.broker_datas[0].master_address() is None


def test_electing_answers_serve_brokers_and_mqadmin() -> None:
    """The members of an elected group are written where brokers and where mqadmin look for them."""
    group = bodies.BrokerMemberGroup("c", "b", {1: "a:1"})

    data = bodies.ElectMasterBody(group, frozenset({1})).to_json()

    assert bodies.ElectMasterBody.from_json(data).broker_member_group == group
    assert bodies.BrokerMemberGroup.from_json(data) == group
    assert bodies.ElectMasterBody(None, frozenset({1})).to_json() == b'{"syncStateSet":[1]}'


@pytest.mark.parametrize(
    "body",
    [
        bodies.ConsumeStats({QUEUE: bodies.OffsetWrapper(9, 8, 7, 6)}, 0.5),
        bodies.ConsumeStatsList("a:1", ({"g": (bodies.ConsumeStats({QUEUE: HERE}),)},), 1),
        bodies.ConsumeTimeSpan((bodies.QueueTimeSpan(QUEUE, 1, 2, 3, 4),)),
        bodies.BrokerStatsData(stats_day=bodies.BrokerStatsItem(3, 0.5, 1.5)),
        bodies.QueryConsumeQueueResponse(
            (bodies.ConsumeQueueUnit(0, 277, -1141422089, msg="m"),), 1, 0, bodies.SubscriptionData("T"), "f"
        ),
        bodies.ConsumerConnection(
            (bodies.Connection("c", "127.0.0.1:5", "JAVA", 513),), {"T": bodies.SubscriptionData("T")}
        ),
        bodies.ProducerConnection((bodies.Connection("c", "127.0.0.1:5", "CPP", 63),)),
        bodies.ProducerTable({"g": (bodies.ProducerInfo("c", "127.0.0.1", "GO", 1, 2),)}),
        bodies.ConsumerRunningInfo(
            {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
            (bodies.SubscriptionData("T"),),
            {QUEUE: bodies.ProcessQueueInfo(commit_offset=3, dropped=True)},
            {"T": bodies.ConsumeRates(1.5, 2.5, 3.5, 4.5, 5.5, 6)},
            {"a": "b"},
            "stack",
        ),
        bodies.ConsumeMessageDirectlyResult(bodies.ConsumeResult.CR_LATER, remark="r", spent_time_mills=5),
        bodies.GetConsumerStatusBody({QUEUE: 1}, {"c": {QUEUE: 2}}),
        bodies.QueryCorrectionOffsetBody({0: 5}),
        bodies.CheckClientRequest("c", "g", bodies.SubscriptionData("T", "a > 5", expression_type="SQL92")),
        bodies.QuerySubscriptionResponse("g", "T", bodies.SubscriptionData("T")),
        bodies.GroupList(("g",)),
        bodies.ConsumerIdList(("c",)),
        bodies.TopicConfigList((TopicConfig("T"),)),
        bodies.GroupForbidden("g", "T", False),
        bodies.MessageRequestModeTable({"T": {"g": bodies.SetMessageRequestMode("T", "g")}}),
        bodies.QueryAssignmentRequest("T", "g", "c", "AVG"),
        bodies.QueryAssignmentResponse((bodies.MessageQueueAssignment(QUEUE, attachments={"a": "b"}),)),
        bodies.HARuntimeInfo(False, ha_client_runtime_info=bodies.HAClientRuntimeInfo("a:1", 1, 2, 3, 4, 5)),
    ],
    ids=lambda body: type(body).__name__,
)
def test_bodies_survive_the_wire(body: bodies.JsonBody) -> None:
    """What is written is read as the same value."""
    assert type(body).from_json(body.to_json()) == body


def test_group_bodies_survive_the_wire() -> None:
    """Groups are read as the configuration's own classes."""
    group = bodies.subscription_group_config(b'{"groupName":"g","retryMaxTimes":3}')
    groups = bodies.SubscriptionGroupList((group,))

    assert group.retry_max_times == 3
    assert bodies.SubscriptionGroupList.from_json(groups.to_json()) == groups
    assert bodies.data_version(b'{"counter":2}') == DataVersion(2)


def test_lists_are_bounded() -> None:
    """A request cannot create topics without end."""
    data = fastjson.dumps({"topicConfigList": [{"topicName": "T"}] * (bodies.metadata.ITEMS_MAX + 1)})

    with pytest.raises(Rejected, match="at most"):
        bodies.TopicConfigList.from_json(data)


def test_compressed_registration_of_java_is_read() -> None:
    """The compressed form has the topics of the plain one."""
    data = compressed_registration()

    body = bodies.RegisterBrokerBody.from_body(data, compressed=True, version=513, body_crc32=crc31(data))

    assert body.topics == bodies.RegisterBrokerBody.from_json(REGISTRATION).topics
    assert body.data_version == DataVersion(2, 0, 1700000000000)


@pytest.mark.parametrize(("version", "mappings"), [(399, None), (513, b"\x00\x00\x00\x01\x00\x00\x00\x02{}")])
def test_compressed_registration_has_mappings_since_5_0(version: int, mappings: bytes | None) -> None:
    """Brokers before 5.0.0 send no mappings; those of newer ones are read over."""
    data = compressed_registration(mappings=mappings)

    assert set(bodies.RegisterBrokerBody.from_body(data, compressed=True, version=version).topics) == {
        "TopicTest"
    }


@pytest.mark.parametrize("compressed", [False, True])
def test_registration_survives_the_wire(compressed: bool) -> None:
    """Both forms are read as they were written, and the CRC belongs to the bytes as sent."""
    topics = {name: TopicConfig(name, attributes={"a b": "c"}) for name in ("T", "%RETRY%g", "Straße")}
    body = bodies.RegisterBrokerBody(bodies.TopicConfigTable(DataVersion(1, 2, 3), topics), ("f:1",))

    data, crc = body.to_body(compressed=compressed)

    assert (
        bodies.RegisterBrokerBody.from_body(data, compressed=compressed, version=513, body_crc32=crc) == body
    )
    with pytest.raises(Rejected, match="crc32 not match"):
        bodies.RegisterBrokerBody.from_body(data, compressed=compressed, version=513, body_crc32=crc ^ 1)


def test_registration_of_ancient_brokers_is_a_bare_table() -> None:
    """Before 3.0.11 the body was the topic table itself."""
    data = b'{"topicConfigTable":{"T":{"topicName":"T"}}}'

    assert set(bodies.RegisterBrokerBody.from_body(data, compressed=False, version=36).topics) == {"T"}


def test_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that unpacks to more than the limit is refused, and never unpacked beyond it."""
    monkeypatch.setattr(registration, "INFLATED_SIZE_MAX", 10_000)
    bomb = zlib.compress(bytes(10_001))
    body = bodies.RegisterBrokerBody(
        bodies.TopicConfigTable(DataVersion(), {str(n): TopicConfig(str(n)) for n in range(1000)})
    )

    with pytest.raises(Rejected, match="more than 10000 bytes"):
        bodies.RegisterBrokerBody.from_body(bomb, compressed=True, version=513)
    with pytest.raises(LocalProtocolError, match="at most 10000"):
        body.to_body(compressed=True)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data[:-8], id="cut off"),
        pytest.param(lambda data: b"plain" + data, id="no zlib"),
        pytest.param(lambda data: zlib.compress(b"\x7f\xff\xff\xff"), id="block leaves the stream"),
        pytest.param(lambda data: zlib.compress(b"\xff\xff\xff\xff"), id="negative block"),
        pytest.param(lambda data: zlib.compress(block(b"{}") + b"\x7f\xff\xff\xff"), id="too many topics"),
        pytest.param(lambda data: zlib.compress(block(b"{}")), id="no topics"),
        pytest.param(lambda data: zlib.compress(ONE_TOPIC + block(b"\xff")), id="text"),
        pytest.param(lambda data: zlib.compress(ONE_TOPIC + block(b"T 4")), id="topic"),
    ],
)
def test_damaged_registration_is_refused(change: Callable[[bytes], bytes]) -> None:
    """No damage to a compressed registration does more than refuse it."""
    data = change(compressed_registration())

    with pytest.raises(Rejected):
        bodies.RegisterBrokerBody.from_body(data, compressed=True, version=513)


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        (b"a=1\nb = 2\r\nc:3\rd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        (b"# comment\n! comment\n\n   \na=#1\n", {"a": "#1"}),
        (b"a=1,\\\n  2\n", {"a": "1,2"}),
        (b"a\\ b\\=c=d\\tx\\u0041\\\\\n", {"a b=c": "d\txA\\"}),
        (b"a\n", {"a": ""}),
        (b"a=1\na=2", {"a": "2"}),
        ("a=ü\\ud83d\\ude00".encode(), {"a": "ü😀"}),
        (b"", {}),
    ],
)
def test_properties_text_has_javas_syntax(text: bytes, properties: dict[str, str]) -> None:
    """Comments, separators, continuations and escapes are those of java.util.Properties."""
    assert properties_text.from_text(text) == properties


@pytest.mark.parametrize("text", [b"\xff", b"a=" + bytes(properties_text.TEXT_SIZE_MAX)])
def test_bad_properties_text_is_refused(text: bytes) -> None:
    """Text that is not UTF-8, or longer than the limit, is refused."""
    with pytest.raises(Rejected):
        properties_text.from_text(text)


def test_numbers_that_json_lacks_are_our_bug() -> None:
    """A value that JSON does not have is refused when it is written."""
    with pytest.raises(LocalProtocolError):
        bodies.KVTable({"a": b"x"}).to_json()  # type: ignore[dict-item]  # the point of the test


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (bodies.HeartbeatData, '{"clientID":' + "[" * 1000 + "]" * 1000 + "}"),
        (bodies.KVTable, '{"table":{"a":' + "[" * 1000 + "]" * 1000 + "}}"),
        (
            bodies.ResetOffsetBody,
            '{"offsetTable":{{"brokerName":"b","queueId":-9999999999999999999,"topic":"t"}:1}}',
        ),
    ],
)
def test_what_python_or_orjson_cannot_show_is_refused_like_the_rest(kind: Any, text: str) -> None:
    """Nesting that has no text, and numbers below 64 bits."""
    with pytest.raises(Rejected):
        kind.from_json(text.encode())
