"""What a send is checked for, in which order, and what the stored message looks like."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests import send
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.send import SendProcessor
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.traffic import Traffic
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.results import Appended, AppendedBatch
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.locks import QueueLocks
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.batches import BatchItem, encode_batch
from brokerset_formats.config import TopicConfig
from brokerset_formats.properties import PROPERTIES_SIZE_MAX, decode_properties, encode_properties
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.commands import Command, decode, encode
from brokerset_protocol.errors import Rejected
from brokerset_rig.metadata_parts import file_changes
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting import DEFERRED
from brokerset_spec.broker_settings import BrokerSettings

ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 4194304B, msg properties length limit 32KB."
)


@dataclass
class Stored:
    """One call of the store."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    facts: dict[str, Any]


@dataclass
class FakeStore:
    """Takes every message, or refuses with `refuses`."""

    refuses: StoreRefused | None = None
    stored: list[Stored] = field(default_factory=list)
    properties_size_max: int = PROPERTIES_SIZE_MAX

    def append(self, topic: str, queue_id: int, body: bytes, properties: bytes, **facts: Any) -> Appended:
        if self.refuses is not None:
            raise self.refuses
        self.stored.append(Stored(topic, queue_id, body, decode_properties(properties), facts))
        return Appended(4096, 200, len(self.stored) - 1, 1_700_000_000_123)

    def append_batch(self, topic: str, queue_id: int, items: list[BatchItem], **facts: Any) -> AppendedBatch:
        for item in items:
            self.append(topic, queue_id, item.body, item.properties, **facts)
        return AppendedBatch([4096 + 100 * n for n in range(len(items))], 7, 4096 + 100 * len(items), 0)


class FakeConnection:
    """The part of a connection that sends use."""

    def __init__(self) -> None:
        self.peer = ("10.0.0.1", 54321)
        self.state: dict[str, Any] = {}
        self.answers: list[Any] = []

    def answer(self, data: Any) -> None:
        self.answers.append(data)


class Bench:
    """A send processor on a fake store, with topics `orders` (4 queues) and `narrow` (2 write, 3 read)."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        clock = ManualClock()
        self.live = LiveSettings(BrokerSettings(store_path_root_dir=folder, **settings))
        self.store = FakeStore()
        self.topics = TopicManager(self.live, clock)
        self.topics.load()
        self.topics.update(TopicConfig("orders", 4, 4))
        self.topics.update(TopicConfig("narrow", 3, 2))
        self.groups = GroupManager(self.live, clock)
        self.locks = QueueLocks(clock)
        self.admission = Admission("127.0.0.1", 6)
        self.stats = BrokerStats(clock)
        self.traffic = Traffic()
        self.connection = FakeConnection()
        self.processor = SendProcessor(
            live=self.live,
            store=self.store,  # type: ignore[arg-type]  # the part of it that sends use
            topics=self.topics,
            groups=self.groups,
            locks=self.locks,
            admission=self.admission,
            levels=DelayLevels.parse(self.live.current.message_delay_level),
            stats=self.stats,
            traffic=self.traffic,
            clock=clock,
            changes=file_changes(self.topics, self.groups, OffsetManager(self.live, clock)),
        )

    def send(self, body: bytes = b"body", properties: dict[str, str] | str = "", **ext: Any) -> Any:
        text = properties if isinstance(properties, str) else encode_properties(properties).decode()
        fields = {
            "a": "pg", "b": "orders", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000",
            "h": "0", "i": text, "j": "0", "k": "false", "m": "false",
        } | ext  # fmt: skip
        command = Command(310, fields, body, opaque=7, version=479)
        reply: Any = self.processor.send(self.connection, command)  # type: ignore[arg-type]  # a fake one
        if asyncio.iscoroutine(reply):  # the topic is new and goes to the disk first
            reply = asyncio.run(reply)
        if type(reply) is bytes:
            reply = decode(reply, 4, len(reply))
        return reply


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_plain_message_is_stored_with_what_the_broker_adds(bench: Bench) -> None:
    reply = bench.send(properties={"UNIQ_KEY": "AC11", "TAGS": "A", "WAIT": "true"}, f="1", h="5", j="2")

    stored = bench.store.stored[0]
    assert (stored.topic, stored.queue_id, stored.body) == ("orders", 1, b"body")
    assert stored.properties == {
        "UNIQ_KEY": "AC11", "TAGS": "A", "WAIT": "true", "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    assert stored.facts == {
        "flag": 5, "sys_flag": 1, "born_timestamp": 1_700_000_000_000, "reconsume_times": 2,
        "born_host": bytes([10, 0, 0, 1]) + (54321).to_bytes(4, "big"),
    }  # fmt: skip
    assert (reply.code, reply.opaque, reply.flag) == (0, 7, 1)
    assert reply.ext == {
        "queueId": "1", "queueOffset": "0", "msgId": "7F00000100002A9F0000000000001000",
        "transactionId": "AC11", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip


def test_the_binary_reply_says_the_same(bench: Bench) -> None:
    json_reply = bench.send(properties={"UNIQ_KEY": "AC11"})
    command = Command(
        310, {"b": "orders", "e": "1", "f": "0", "g": "0", "h": "0", "i": "UNIQ_KEY\x01AC11\x02"}, b"b", 7
    )
    command.binary = True
    answer = bench.processor.send(bench.connection, command)  # type: ignore[arg-type]  # a fake one

    assert isinstance(answer, Command)
    frame = encode(answer)
    reply = decode(frame, 4, len(frame))
    assert reply.binary
    assert reply.ext == json_reply.ext | {"queueOffset": "1"}


def test_a_message_without_a_unique_key_gets_one(bench: Bench) -> None:
    reply = bench.send(properties="TAGS\x01A")

    key = bench.store.stored[0].properties["UNIQ_KEY"]
    assert len(key) == 32
    assert reply.ext["transactionId"] == key
    assert bench.store.stored[0].properties["TAGS"] == "A"


def test_a_key_that_json_must_escape_comes_back_as_it_was(bench: Bench) -> None:
    assert bench.send(properties={"UNIQ_KEY": 'a"b\\c€'}).ext["transactionId"] == 'a"b\\c€'


def test_what_looks_like_a_unique_key_is_none(bench: Bench) -> None:
    bench.send(properties={"MY_UNIQ_KEY": "no"})

    assert bench.store.stored[0].properties["UNIQ_KEY"] != "no"


def test_properties_of_an_earlier_delivery_are_replaced(bench: Bench) -> None:
    """A client that sends a consumed message on gives back what another broker had added."""
    bench.send(
        properties={
            "UNIQ_KEY": "K",
            "CLUSTER": "other",
            "MSG_REGION": "r",
            "TRACE_ON": "false",
            "POP_CK": "x",
        }
    )

    assert bench.store.stored[0].properties == {
        "UNIQ_KEY": "K", "CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip


def test_host_bits_of_the_client_are_not_believed(bench: Bench) -> None:
    bench.send(f="48", properties={"UNIQ_KEY": "K"})

    assert bench.store.stored[0].facts["sys_flag"] == 0


@pytest.mark.parametrize(
    ("change", "code", "remark"),
    [
        (
            {"b": "a b"},
            29,
            "The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        ({"b": ""}, 29, "The specified topic is blank."),
        ({"b": "x" * 128}, 29, "The specified topic is longer than topic max length 127."),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, 16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."),
        ({"b": "new", "c": "no-template"}, 17, "topic[new] not exist, apply first please!"),
        (
            {"e": "99"},
            29,
            "request queueId[99] is illegal, TopicConfig [topicName=orders, readQueueNums=4, "
            "writeQueueNums=4, perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, "
            "attributes={}] Producer: 10.0.0.1:54321",
        ),
        ({"f": "4"}, 16, "transaction"),
        ({"f": "128"}, 13, "inner batches"),
        ({"e": "x"}, 1, "the header field e of SendMessageV2 is 'x'"),
        ({"g": "99999999999999999999"}, 1, "the header field g of SendMessageV2"),
        ({"f": "99999999999"}, 1, "the header field f of SendMessageV2"),
    ],
)
def test_a_wrong_header_is_refused_with_its_code(
    bench: Bench, change: dict[str, Any], code: int, remark: str
) -> None:
    with pytest.raises(Rejected) as refused:
        bench.send(**change)

    assert refused.value.code == code
    assert remark in refused.value.remark
    assert not bench.store.stored


@pytest.mark.parametrize("name", ["b", "e", "f", "g", "h"])
def test_a_missing_field_is_named(bench: Bench, name: str) -> None:
    """Golden: code 1, though not with a NullPointerException as its text."""
    fields = {"a": "g", "b": "orders", "c": "T", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
    del fields[name]
    with pytest.raises(Rejected) as refused:
        bench.processor.send(bench.connection, Command(310, fields, b"x"))  # type: ignore[arg-type]  # a fake one

    assert refused.value.code == 1
    assert f"field {name} " in refused.value.remark


@pytest.mark.parametrize(
    ("properties", "code", "remark"),
    [
        ({"TRAN_MSG": "true"}, 16, "sending transaction message is forbidden"),
        ({"TIMER_DELAY_SEC": "5"}, 13, "timer messages are not served"),
        ({"TIMER_DELAY_MS": "5"}, 13, "timer messages are not served"),
        ({"TIMER_DELIVER_MS": "5"}, 13, "timer messages are not served"),
        ({"DELAY": "soon"}, 13, "delay level 'soon' is no number"),
        ({"INNER_NUM": "3"}, 13, "inner batches"),
        ({"INNER_MULTI_DISPATCH": "%LMQ%a"}, 13, "light queues"),
        ({"__LITE_TOPIC": "child"}, 13, "lite topics"),
    ],
)
def test_what_is_not_served_is_refused_and_never_stored_as_a_plain_message(
    bench: Bench, properties: dict[str, str], code: int, remark: str
) -> None:
    with pytest.raises(Rejected) as refused:
        bench.send(properties=properties)

    assert refused.value.code == code
    assert remark in refused.value.remark
    assert not bench.store.stored


@pytest.mark.parametrize("name", ["INNER_MULTI_DISPATCH", "__LITE_TOPIC"])
def test_a_batch_with_a_message_that_asks_for_what_is_not_served_is_refused(bench: Bench, name: str) -> None:
    body = encode_batch([BatchItem(0, b"x", b""), BatchItem(0, b"y", encode_properties({name: "v"}))])

    with pytest.raises(Rejected, match=name) as refused:
        bench.send(body, m="true")

    assert refused.value.code == 13
    assert not bench.store.stored


def test_the_handle_of_a_popped_message_that_is_sent_on_in_a_batch_is_dropped(bench: Bench) -> None:
    """As of one that is sent by itself: Java's consumers take it for the handle of their own pop."""
    popped = encode_properties({"UNIQ_KEY": "K", "POP_CK": "1 2 3 0 0 broker-a 0 5", "NOT_POP_CK": "v"})
    body = encode_batch([BatchItem(0, b"x", popped), BatchItem(0, b"y", b"NOT_POP_CK\x01v\x02")])

    bench.send(body, m="true")

    assert [each.properties for each in bench.store.stored] == [
        {"UNIQ_KEY": "K", "NOT_POP_CK": "v"},
        {"NOT_POP_CK": "v"},
    ]


def test_words_in_bodies_of_a_batch_ask_for_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only properties are searched for what is not served; a batch without such is not examined further."""
    monkeypatch.delattr(send, "refuse_unusual")
    body = encode_batch(
        [BatchItem(0, b"DELAY\x013\x02TIMER_ TRAN_MSG", b"K\x01v\x02"), BatchItem(0, b"y", b"")]
    )

    bench.send(body, m="true")

    assert len(bench.store.stored) == 2


@pytest.mark.parametrize("topic", ["orders", "%RETRY%g"])
def test_a_request_that_waits_for_a_reply_is_stored_like_any_message(bench: Bench, topic: str) -> None:
    """With what its consumer needs to reply; also when its consumer failed, and in a batch."""
    asked = {"REPLY_TO_CLIENT": "c", "CORRELATION_ID": "1", "TTL": "3000"}
    body = encode_batch([BatchItem(0, b"x", encode_properties(asked)), BatchItem(0, b"y", b"")])

    answer = bench.send(b=topic, properties=asked)
    if topic == "orders":
        bench.send(body, m="true")

    assert answer.code == 0
    assert bench.store.stored[0].properties.items() >= {**asked, "CLUSTER": "DefaultCluster"}.items()
    assert len(bench.store.stored) == (3 if topic == "orders" else 1)


@pytest.mark.parametrize(
    ("body", "properties"), [(b"", ""), (bytes(4_194_305), ""), (b"x", "k\x01" + "v" * 32_767 + "\x02")]
)
def test_sizes_have_limits(bench: Bench, body: bytes, properties: str) -> None:
    with pytest.raises(Rejected) as refused:
        bench.send(body, properties)

    assert (refused.value.code, refused.value.remark) == (13, ILLEGAL)


def test_the_largest_body_is_taken(bench: Bench) -> None:
    assert bench.send(bytes(4_194_304)).code == 0


@pytest.mark.parametrize("queue_id", ["-1", "-100"])
def test_a_negative_queue_lets_the_broker_choose_among_those_for_writing(bench: Bench, queue_id: str) -> None:
    chosen = {int(bench.send(b="narrow", e=queue_id).ext["queueId"]) for _ in range(100)}

    assert chosen == {0, 1}


def test_a_queue_between_the_two_counts_is_taken(bench: Bench) -> None:
    """Java compares with the larger one, so that a shrinking topic goes on working."""
    assert bench.send(b="narrow", e="2").code == 0


def test_an_unknown_topic_is_made_from_the_template(bench: Bench) -> None:
    bench.send(b="fresh", d="3")

    created = bench.topics.get("fresh")
    assert created is not None
    assert (created.read_queue_nums, created.write_queue_nums, created.perm) == (3, 3, 6)


def test_without_automatic_topics_an_unknown_one_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_topic_enable=False)

    with pytest.raises(Rejected) as refused:
        bench.send(b="fresh")

    assert refused.value.code == 17


def test_a_changed_topic_is_noticed_by_the_next_send(bench: Bench) -> None:
    bench.send(e="3")
    bench.topics.update(TopicConfig("orders", 2, 2))

    with pytest.raises(Rejected) as refused:
        bench.send(e="3")

    assert refused.value.code == 29


def test_a_slave_refuses_before_anything_else(bench: Bench) -> None:
    """Golden: code 2 with a remark that clients know."""
    bench.admission.refuse_writes()

    with pytest.raises(Rejected) as refused:
        bench.send(b="a b")

    assert refused.value.code == 2
    assert refused.value.remark == "[REJECTREQUEST]system busy, start flow control for a while"
    bench.admission.accept_writes()
    assert bench.send().code == 0


def test_a_broker_without_write_permission_refuses_ordered_topics(bench: Bench) -> None:
    bench.topics.update(TopicConfig("ordered", 4, 4, order=True))
    bench.admission.permission = 4

    assert bench.send().code == 0
    with pytest.raises(Rejected) as refused:
        bench.send(b="ordered")
    assert refused.value.code == 16


def test_a_delayed_message_waits_in_its_levels_queue(bench: Bench) -> None:
    """Golden: the answer has the queue that was asked for."""
    reply = bench.send(properties={"UNIQ_KEY": "K", "DELAY": "3"}, e="2")

    stored = bench.store.stored[0]
    assert (stored.topic, stored.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert (stored.properties["REAL_TOPIC"], stored.properties["REAL_QID"]) == ("orders", "2")
    assert reply.ext["queueId"] == "2"
    assert bench.traffic.of_topic("orders", "delay").messages_in == 1


@pytest.mark.parametrize("level", ["0", "-1"])
def test_no_delay_is_no_delay(bench: Bench, level: str) -> None:
    bench.send(properties={"DELAY": level})

    assert bench.store.stored[0].topic == "orders"


def _retry(bench: Bench, **ext: Any) -> Any:
    return bench.send(properties={"UNIQ_KEY": "K", "DELAY": "3"}, b="%RETRY%g", e="0", **ext)


def test_a_retry_sent_by_a_client_waits_like_any_delayed_message(bench: Bench) -> None:
    _retry(bench, j="1", l="16")

    assert bench.store.stored[0].topic == "SCHEDULE_TOPIC_XXXX"
    assert bench.store.stored[0].properties["REAL_TOPIC"] == "%RETRY%g"
    assert bench.topics.get("%RETRY%g") is not None


@pytest.mark.parametrize(("times", "limit", "version"), [("17", "16", 479), ("17", "99", 100)])
def test_a_retry_too_many_becomes_a_dead_letter(bench: Bench, times: str, limit: str, version: int) -> None:
    """The limit of clients before 3.4.9 is not looked at; the group's own is 16."""
    bench.groups.get_or_create("g")
    ext = {"a": "pg", "b": "%RETRY%g", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
    ext |= {"i": "UNIQ_KEY\x01K\x02DELAY\x013\x02", "j": times, "l": limit}
    command = Command(310, ext, b"x", version=version)
    reply: Any = bench.processor.send(bench.connection, command)  # type: ignore[arg-type]  # a fake one
    asyncio.run(reply)  # the retry topic is new and goes to the disk first

    stored = bench.store.stored[0]
    assert (stored.topic, stored.queue_id, stored.properties["DELAY"]) == ("%DLQ%g", 0, "-1")
    assert bench.topics.get("%DLQ%g") is not None


def test_a_retry_of_an_orderly_group_becomes_a_dead_letter(bench: Bench) -> None:
    bench.locks.lock("g", "client", [MessageQueue("orders", "broker-a", 0)])
    _retry(bench, j="1", l="16")

    assert bench.store.stored[0].topic == "%DLQ%g"


def test_a_retry_of_an_unknown_group_is_refused_when_groups_are_not_made(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_subscription_group=False)

    with pytest.raises(Rejected) as refused:
        _retry(bench)

    assert refused.value.code == 26


def test_a_committed_transaction_message_may_be_retried(bench: Bench) -> None:
    """It keeps TRAN_MSG; only a new one is a half message."""
    reply = bench.send(properties={"TRAN_MSG": "true", "DELAY": "3"}, b="%RETRY%g", e="0", j="1", l="16")

    assert reply.code == 0


def _batch(count: int) -> bytes:
    return encode_batch([BatchItem(0, b"b%d" % n, b"UNIQ_KEY\x01K%d\x02" % n) for n in range(count)])


def test_a_batch_is_stored_as_single_messages_without_additions(bench: Bench) -> None:
    """Golden: CLUSTER and the others are missing on messages of a batch."""
    reply = bench.send(_batch(3), properties={"UNIQ_KEY": "BATCH"}, m="true")

    assert [stored.properties for stored in bench.store.stored] == [{"UNIQ_KEY": f"K{n}"} for n in range(3)]
    assert reply.ext["msgId"].count(",") == 2
    assert reply.ext["msgId"].startswith("7F00000100002A9F0000000000001000,7F00000100002A9F0000000000001064,")
    assert (reply.ext["queueOffset"], reply.ext["transactionId"]) == ("7", "BATCH")
    assert bench.stats.put_messages == 3


@pytest.mark.parametrize(
    ("body", "topic", "remark"),
    [
        (b"", "orders", "illegal"),
        (b"\x00\x00\x00\x05", "orders", "the batch cannot be read"),
        (_batch(2)[:-1], "orders", "the batch cannot be read"),
        (_batch(2), "%RETRY%g", "batch request does not support retry group"),
        (_batch(2), "%DLQ%" + "g" * 123, "message topic length too long"),
    ],
)
def test_a_wrong_batch_stores_nothing(bench: Bench, body: bytes, topic: str, remark: str) -> None:
    with pytest.raises(Rejected) as refused:
        bench.send(body, m="true", b=topic, e="0")

    assert refused.value.code == 13
    assert remark in refused.value.remark
    assert not bench.store.stored


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.SERVICE_NOT_AVAILABLE, 14),
        (PutStatus.MESSAGE_ILLEGAL, 13),
        (PutStatus.PROPERTIES_SIZE_EXCEEDED, 13),
        (PutStatus.OS_PAGE_CACHE_BUSY, 2),
        (PutStatus.CREATE_MAPPED_FILE_FAILED, 1),
        (PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, 1),
        (PutStatus.UNKNOWN_ERROR, 1),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
def test_what_the_store_refuses_is_answered_with_javas_code(
    bench: Bench, status: PutStatus, code: int, batch: bool
) -> None:
    bench.store.refuses = StoreRefused(status, "the disk is full")

    with pytest.raises(Rejected) as refused:
        bench.send(_batch(1), m="true" if batch else "false")

    assert refused.value.code == code
    assert bench.stats.put_failed == 1


Callback = Callable[[PutStatus], None]


def _slow_disk(bench: Bench) -> list[tuple[int, Callback]]:
    waiting: list[tuple[int, Callback]] = []
    bench.admission.when_durable = lambda end, callback: waiting.append((end, callback))
    return waiting


@pytest.mark.parametrize(
    ("status", "code", "full"),
    [
        (PutStatus.PUT_OK, 0, True),
        (PutStatus.FLUSH_DISK_TIMEOUT, 10, True),
        (PutStatus.SLAVE_NOT_AVAILABLE, 11, True),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, 12, True),
        (PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, 1, False),
    ],
)
def test_a_durable_send_is_answered_when_the_message_is_safe(
    bench: Bench, status: PutStatus, code: int, full: bool
) -> None:
    """The Java client needs the whole header also when only the waiting failed."""
    waiting = _slow_disk(bench)

    assert bench.send(properties={"UNIQ_KEY": "K", "WAIT": "true"}) is DEFERRED
    assert not bench.connection.answers

    end, callback = waiting[0]
    callback(status)
    answer = bench.connection.answers[0]
    reply = decode(answer, 4, len(answer)) if type(answer) is bytes else answer
    assert (end, reply.code) == (4296, code)
    assert ("msgId" in reply.ext) is full


@pytest.mark.parametrize("properties", [{"WAIT": "false"}, {"WAIT": "false", "DELAY": "1"}])
def test_a_message_that_need_not_wait_is_answered_at_once(bench: Bench, properties: dict[str, str]) -> None:
    _slow_disk(bench)

    assert bench.send(properties=properties).code == 0


def test_a_oneway_send_waits_for_nothing(bench: Bench) -> None:
    """An answer would have nowhere to go, so none is promised."""
    _slow_disk(bench)
    ext = {"b": "orders", "e": "1", "f": "0", "g": "0", "h": "0", "i": ""}
    command = Command(310, ext, b"b", flag=2)

    reply = bench.processor.send(bench.connection, command)  # type: ignore[arg-type]  # a fake one

    assert reply is not DEFERRED


def test_long_names_mean_the_same(bench: Bench) -> None:
    """The C++ client; its flags are 0 and 1."""
    ext = {
        "producerGroup": "g", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "1", "sysFlag": "0", "bornTimestamp": "5", "flag": "9", "properties": "UNIQ_KEY\x01K\x02",
        "reconsumeTimes": "0", "unitMode": "0", "batch": "0",
    }  # fmt: skip
    bench.processor.send_long_names(bench.connection, Command(10, ext, b"b"))  # type: ignore[arg-type]  # a fake one

    assert bench.store.stored[0].facts["flag"] == 9
    assert bench.store.stored[0].properties["UNIQ_KEY"] == "K"


def test_changed_settings_are_in_force_at_once(bench: Bench) -> None:
    bench.live.update({"regionId": "R2", "traceOn": "false"})

    ext = bench.send().ext
    assert (ext["TRACE_ON"], ext["MSG_REGION"]) == ("false", "R2")
    assert bench.store.stored[0].properties["MSG_REGION"] == "R2"


def test_counters_count(bench: Bench) -> None:
    bench.send()
    bench.send(properties={"TAGS": "DELAYED_NOT"})
    bench.send(properties={"__SHARDINGKEY": "s", "DELAY": "0"})

    assert (bench.stats.put_messages, bench.stats.put_bytes) == (3, 600)
    assert bench.stats.topic_put("orders").messages == 3
    kinds = [bench.traffic.of_topic("orders", kind).messages_in for kind in ("normal", "fifo")]
    assert kinds == [2, 1]
