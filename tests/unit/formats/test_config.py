"""Configuration and progress files of the Java broker are read and written back without loss."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_formats import fastjson
from brokerset_formats.config import (
    ConsumerOffsets,
    DataVersion,
    DelayOffsets,
    GroupTable,
    KvConfig,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicTable,
    offset_key,
    split_offset_key,
)
from brokerset_formats.errors import FormatError

STORES = [
    ("classic", "broker-0"),
    ("killed", "broker-0"),
    ("controller-mode", "broker-0"),
    ("controller-mode", "broker-1"),
    ("dledger", "broker-0"),
    ("dledger-mixed", "broker-0"),
]


@pytest.mark.parametrize(("archive", "broker"), STORES)
def test_files_of_java_survive(archive: str, broker: str, unpack: Callable[[str, str], Path]) -> None:
    """Every table of a Java store decodes, and encodes to JSON with the same content."""
    folder = unpack(archive, f"{broker}/store/config")

    for name, table in (("topics.json", TopicTable), ("subscriptionGroup.json", GroupTable)):
        data = (folder / name).read_bytes()
        assert fastjson.loads(table.decode(data).encode()) == fastjson.loads(data)
    data = (folder / "consumerOffset.json").read_bytes()
    again = fastjson.loads(ConsumerOffsets.decode(data).encode())
    original = fastjson.loads(data)
    assert again["offsetTable"] == original["offsetTable"]
    assert again["pullOffsetTable"] == original["pullOffsetTable"]
    assert again["dataVersion"] == original["dataVersion"]
    for group, topics in original["groupTopicMap"].items():
        assert sorted(again["groupTopicMap"][group]) == sorted(topics)
    data = (folder / "delayOffset.json").read_bytes()
    assert fastjson.loads(DelayOffsets.decode(data).encode()) == fastjson.loads(data)


def test_the_text_is_that_of_java(unpack: Callable[[str, str], Path]) -> None:
    """Written files differ from Java's by the quotes around integer keys only."""
    data = (unpack("classic", "broker-0/store/config") / "delayOffset.json").read_bytes()

    assert DelayOffsets.decode(data).encode() == re.sub(rb"(\t)(\d+):", rb'\1"\2":', data)


def test_progress_of_a_java_store(unpack: Callable[[str, str], Path]) -> None:
    """Offsets come out as numbers, by topic and group."""
    data = (unpack("classic", "broker-0/store/config") / "consumerOffset.json").read_bytes()

    offsets = ConsumerOffsets.decode(data).offsets

    assert offsets[offset_key("fx-plain", "fx-group")] == {0: 750, 1: 750, 2: 750, 3: 750}


def test_answers_of_java_are_read(wire_body: Callable[[str], bytes]) -> None:
    """What a slave gets from its master has the same content as the files."""
    topics = TopicTable.decode(wire_body("broker-21-all-topic-config"))
    groups = GroupTable.decode(wire_body("broker-201-all-groups"))
    offsets = ConsumerOffsets.decode(wire_body("broker-43-all-consumer-offsets"))
    delays = DelayOffsets.decode(wire_body("broker-45-all-delay-offsets"))

    assert topics.topics["wire"] == TopicConfig("wire", 4, 4)
    assert topics.data_version == DataVersion(4, 1, 1795253086603)
    assert groups.groups["adm-group"].consume_from_min_enable is False
    assert offsets.pull_offsets == {
        "adm-topic@adm-group": {0: 0, 1: 0, 2: 0, 3: 0},
        "wire@wire-group": {0: 8},
    }
    assert delays.offsets == {}


def test_topic_text_form() -> None:
    """The text form of registrations, with and without attributes."""
    topic = TopicConfig("TopicTest", 4, 4)

    assert topic.encode() == "TopicTest 4 4 6 SINGLE_TAG {}"
    assert TopicConfig.decode("TopicTest 4 4 6 SINGLE_TAG {}") == topic
    assert TopicConfig.decode("TopicTest 4 4 6 SINGLE_TAG") == topic
    with_attributes = TopicConfig("T", 1, 2, 7, "MULTI_TAG", attributes={"message.type": "FIFO"})
    assert TopicConfig.decode(with_attributes.encode()) == with_attributes


@pytest.mark.parametrize(
    "text", ["", "T 4 4 6", "T x 4 6 SINGLE_TAG", "T 4 4 6 OTHER", "T 4 4 6 SINGLE_TAG {"]
)
def test_damaged_topic_text(text: str) -> None:
    """Other text is refused."""
    with pytest.raises(FormatError):
        TopicConfig.decode(text)


def test_permissions() -> None:
    """The bits of `perm` have names."""
    topic = TopicConfig("T", perm=7)

    assert (topic.readable, topic.writable, topic.inheritable) == (True, True, True)
    assert not topic.with_perm(4).writable


def test_defaults_are_those_of_java() -> None:
    """Missing fields get Java's defaults, as an admin tool may leave them out."""
    assert SubscriptionGroupConfig.from_json({"groupName": "g"}) == SubscriptionGroupConfig("g")
    assert TopicConfig.from_json({}, "t") == TopicConfig("t", 16, 16, 6)
    assert TopicTable.decode(b"{}") == TopicTable()
    assert KvConfig.decode(b'{"configTable":null}') == KvConfig()


def test_text_in_place_of_numbers_and_booleans() -> None:
    """Lax tools write numbers and booleans as text; Java takes them, and so do we."""
    topic = TopicConfig.from_json({"perm": "4", "order": "true", "attributes": {"a": 1, "b": None}}, "t")

    assert topic == TopicConfig("t", perm=4, order=True, attributes={"a": "1"})


def test_nameless_entries_are_refused() -> None:
    """A topic or group needs a name."""
    with pytest.raises(FormatError):
        TopicConfig.from_json({})
    with pytest.raises(FormatError):
        SubscriptionGroupConfig.from_json({})


def test_groups_keep_what_they_do_not_understand() -> None:
    """Retry policies and subscriptions are passed on."""
    fields: dict[str, object] = {
        "groupName": "g",
        "groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5}},
        "subscriptionDataSet": [{"topic": "t", "expression": "*"}],
    }

    again = SubscriptionGroupConfig.from_json(fields).to_json()

    assert {name: again[name] for name in fields} == fields


def test_kv_config() -> None:
    """Namespaces of the name server survive."""
    config = KvConfig({"ORDER_TOPIC_CONFIG": {"t": "broker-a:4"}})

    assert (
        config.encode()
        == b'{\n\t"configTable":{\n\t\t"ORDER_TOPIC_CONFIG":{\n\t\t\t"t":"broker-a:4"\n\t\t}\n\t}\n}'
    )
    assert KvConfig.decode(config.encode()) == config


def test_data_versions() -> None:
    """A version is newer by state version, then counter, then timestamp."""
    version = DataVersion(counter=1, state_version=0, timestamp=100)

    assert version.next(200) == DataVersion(2, 0, 200)
    assert version.next(50, state_version=3) == DataVersion(2, 3, 50)
    assert DataVersion(0, 1, 0).is_newer_than(version)
    assert version.next(50).is_newer_than(version)
    assert DataVersion(1, 0, 101).is_newer_than(version)
    assert not version.is_newer_than(version)


def test_offset_keys() -> None:
    """Broadcasting groups keep the @ in their name."""
    assert split_offset_key("t@g@broadcast") == ("t", "g@broadcast")
    for key in ("t", "@g", "t@", ""):
        with pytest.raises(FormatError):
            split_offset_key(key)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (TopicTable, "[]"),
        (TopicTable, '{"topicConfigTable":{"t":1}}'),
        (TopicTable, '{"topicConfigTable":{"t":{"readQueueNums":-1}}}'),
        (TopicTable, '{"topicConfigTable":{"t":{"order":"maybe"}}}'),
        (TopicTable, '{"topicConfigTable":{"t":{"topicFilterType":"X"}}}'),
        (TopicTable, '{"topicConfigTable":{"t":{"attributes":{"a":{}}}}}'),
        (TopicTable, '{"dataVersion":{"counter":"x"}}'),
        (GroupTable, '{"subscriptionGroupTable":{"g":{"retryMaxTimes":1.5}}}'),
        (GroupTable, '{"subscriptionGroupTable":{"g":{"subscriptionDataSet":{}}}}'),
        (GroupTable, '{"forbiddenTable":{"g":{"t":null}}}'),
        (GroupTable, '{"subscriptionGroupTable":{"g":{"groupName":7}}}'),
        (ConsumerOffsets, '{"offsetTable":{"t@g":{"a":1}}}'),
        (ConsumerOffsets, '{"offsetTable":{"t@g":[]}}'),
        (DelayOffsets, '{"offsetTable":{1:true}}'),
        (DelayOffsets, '{"offsetTable":{1:99999999999999999999}}'),
        (KvConfig, '{"configTable":{"n":[]}}'),
    ],
)
def test_damaged_tables(
    table: type[TopicTable | GroupTable | ConsumerOffsets | DelayOffsets | KvConfig], text: str
) -> None:
    """Values of the wrong kind are refused, with the field's name."""
    with pytest.raises(FormatError):
        table.decode(text.encode())
