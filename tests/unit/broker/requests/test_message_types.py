"""Which type a message has, and what its priority, lite topic and light queues make of a send."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.message_types import (
    LightQueues,
    MessageType,
    apply_priority,
    check_type,
    type_of_message,
    type_of_topic,
)
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats import light_queues
from brokerset_formats.config import TopicConfig
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

LITE = TopicConfig("parent", 4, 4, attributes={"message.type": "LITE"})


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, "NORMAL"),
        ({"__LITE_TOPIC": "c"}, "LITE"),
        ({"__LITE_TOPIC": "c", "_SYS_MSG_PRIORITY_": "1"}, "PRIORITY"),
        ({"_SYS_MSG_PRIORITY_": "x", "__SHARDINGKEY": "k"}, "FIFO"),
        ({"__SHARDINGKEY": "k", "DELAY": "0"}, "DELAY"),
        ({"TIMER_DELAY_SEC": "1"}, "DELAY"),
        ({"TIMER_DELAY_MS": "1"}, "DELAY"),
        ({"TIMER_DELIVER_MS": "1"}, "DELAY"),
        ({"TRAN_MSG": "TRUE", "DELAY": "1"}, "TRANSACTION"),
        ({"TRAN_MSG": "yes"}, "NORMAL"),
    ],
)
def test_a_message_has_the_first_type_that_fits_in_java_s_order(
    properties: dict[str, str], expected: str
) -> None:
    assert type_of_message(properties).value == expected


def test_a_topic_has_the_type_of_its_attribute_and_else_normal() -> None:
    assert type_of_topic(LITE) is MessageType.LITE
    assert type_of_topic(TopicConfig("t")) is MessageType.NORMAL
    assert type_of_topic(TopicConfig("t", attributes={"message.type": "OF_THE_FUTURE"})) is MessageType.NORMAL


@pytest.mark.parametrize(
    ("priority", "queues", "expected", "stays"),
    [
        ("0", 4, 0, True),
        ("2", 4, 2, True),
        ("9", 4, 3, True),
        ("+2", 4, 2, True),
        ("2147483647", 4, 3, True),
        ("2147483648", 4, 1, True),
        ("-1", 4, 1, True),
        ("high", 4, 1, True),
        ("9", 0, 0, True),
    ],
)
def test_a_priority_chooses_the_queue_whatever_the_client_chose(
    priority: str, queues: int, expected: int, stays: bool
) -> None:
    """`min(priority, writeQueueNums - 1)`; what is no priority changes nothing."""
    properties = {"_SYS_MSG_PRIORITY_": priority}

    assert apply_priority(properties, queues, 1) == expected
    assert ("_SYS_MSG_PRIORITY_" in properties) is stays


def test_a_message_of_another_type_loses_its_priority() -> None:
    properties = {"_SYS_MSG_PRIORITY_": "3", "__SHARDINGKEY": "k"}

    assert apply_priority(properties, 4, 1) == 1
    assert properties == {"__SHARDINGKEY": "k"}


def test_a_message_of_another_type_than_its_topic_s_is_refused_with_the_way_out() -> None:
    """As Java's proxies do; MIXED takes every type."""
    check_type(LITE, {"__LITE_TOPIC": "c"})
    check_type(TopicConfig("t", attributes={"message.type": "MIXED"}), {"DELAY": "1"})
    with pytest.raises(Rejected) as refused:
        check_type(LITE, {"DELAY": "1"})

    assert refused.value.code == 13
    assert refused.value.remark == (
        "TopicMessageType validate failed, the expected type is LITE, but actual type is DELAY: send it to a "
        "topic with the attribute message.type=DELAY"
    )


class Bench:
    """A store with light queues, of which there may be three."""

    def __init__(self, root: Path, **settings: object) -> None:
        enabled = {"enable_lmq": True, "enable_multi_dispatch": True, "max_lmq_consume_queue_num": 3}
        self.settings = BrokerSettings(store_path_root_dir=root, **{**enabled, **settings})  # type: ignore[arg-type]
        self.store = MessageStore(self.settings, ManualClock())
        self.light = LightQueues(self.store, self.settings)

    def assign(self, config: TopicConfig, **properties: str) -> dict[str, str]:
        self.light.assign(config, properties)
        return properties


def test_the_queue_of_a_lite_topic_is_named_by_parent_and_child(tmp_path: Path) -> None:
    """What the client says about queues and offsets is replaced."""
    found = Bench(tmp_path).assign(
        LITE, __LITE_TOPIC="child-1", INNER_MULTI_DISPATCH="%LMQ%x", INNER_MULTI_QUEUE_OFFSET="7"
    )

    assert found == {"__LITE_TOPIC": "child-1", "INNER_MULTI_DISPATCH": "%LMQ%$parent$child-1"}
    assert light_queues.lite_topic_of("%LMQ%$parent$child-1") == ("parent", "child-1")
    assert light_queues.lite_topic_of("%LMQ%parent$child-1") is None
    assert light_queues.lite_topic_of("%LMQ%$parent$a$b") is None


@pytest.mark.parametrize(
    ("config", "properties", "code", "remark"),
    [
        (TopicConfig("t"), {"__LITE_TOPIC": "c"}, 13, "give it the attribute message.type=LITE"),
        (LITE, {"__LITE_TOPIC": "a.b"}, 13, "letters, digits, hyphens and underscores only"),
        (LITE, {"__LITE_TOPIC": "c" * 65}, 13, "exceeds 64 characters"),
        (LITE, {"INNER_MULTI_DISPATCH": "queue"}, 13, "does not begin with %LMQ%"),
        (LITE, {"INNER_MULTI_DISPATCH": "%LMQ%"}, 13, "does not begin with %LMQ%"),
        (LITE, {"INNER_MULTI_DISPATCH": ",,"}, 13, "names no queue"),
        (LITE, {"INNER_MULTI_DISPATCH": "%LMQ%a/b"}, 13, "is no name of a folder"),
        (LITE, {"INNER_MULTI_DISPATCH": "%LMQ%" + "ü" * 126}, 13, "is no name of a folder"),
        (LITE, {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%a"}, 13, "names a queue twice"),
        (LITE, {"INNER_MULTI_DISPATCH": ",".join(f"%LMQ%{n}" for n in range(129))}, 13, "at most 128"),
        (LITE, {"INNER_MULTI_DISPATCH": "%LMQ%$parent$c"}, 13, "named by the property __LITE_TOPIC"),
        (TopicConfig("%DLQ%g"), {"INNER_MULTI_DISPATCH": "%LMQ%a"}, 13, "put into no light queues"),
        (LITE, {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b,%LMQ%c,%LMQ%d"}, 2017, "num exceeded"),
    ],
)
def test_light_queues_that_cannot_be_are_refused_with_a_reason(
    tmp_path: Path, config: TopicConfig, properties: dict[str, str], code: int, remark: str
) -> None:
    with pytest.raises(Rejected) as refused:
        Bench(tmp_path).assign(config, **properties)

    assert refused.value.code == code
    assert remark in refused.value.remark


@pytest.mark.parametrize("missing", ["enable_lmq", "enable_multi_dispatch"])
@pytest.mark.parametrize("name", ["INNER_MULTI_DISPATCH", "__LITE_TOPIC"])
def test_without_the_switches_the_refusal_names_them(tmp_path: Path, missing: str, name: str) -> None:
    """Java stores such a message, and no consumer of the queue ever gets it."""
    bench = Bench(tmp_path, **{missing: False})

    with pytest.raises(Rejected, match="enableLmq=true and enableMultiDispatch=true") as refused:
        bench.assign(LITE, **{name: "%LMQ%a"})

    assert refused.value.code == 13


def test_existing_light_queues_are_served_at_the_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for name in ("a", "b", "c"):
        bench.store.queues_table.open(f"%LMQ%{name}", 0)

    bench.assign(LITE, INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%c")
    with pytest.raises(Rejected) as refused:
        bench.assign(LITE, INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%d")

    assert refused.value.code == 2017


def test_topics_and_groups_of_light_queues_need_not_be_made(tmp_path: Path) -> None:
    """As in Java: one queue, readable and writable; and in no table, so that no name server hears of them."""
    live = LiveSettings(BrokerSettings(store_path_root_dir=tmp_path, enable_lmq=True))
    topics, groups = TopicManager(live, ManualClock()), GroupManager(live, ManualClock())
    plain = LiveSettings(BrokerSettings(store_path_root_dir=tmp_path))

    config = topics.get("%LMQ%a")

    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
    assert topics.get("%LMQ%a") is config
    assert "%LMQ%a" not in topics.items
    assert groups.get("%LMQ%g") == groups.get_or_create("%LMQ%g")
    assert "%LMQ%g" not in groups.items
    assert TopicManager(plain, ManualClock()).get("%LMQ%a") is None
    assert GroupManager(plain, ManualClock()).get("%LMQ%g") is None
