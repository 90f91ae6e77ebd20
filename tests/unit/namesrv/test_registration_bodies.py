"""Bodies of registrations: the quick way and the full one give the same."""

from __future__ import annotations

import time

import orjson
import pytest

from brokerset_formats.config import DataVersion, TopicConfig
from brokerset_formats.hashing import crc31
from brokerset_namesrv.registration_bodies import read
from brokerset_protocol.bodies.registration import RegisterBrokerBody, TopicConfigTable
from brokerset_protocol.bodies.routes import QueueData
from brokerset_protocol.errors import Rejected

BODY = RegisterBrokerBody(
    TopicConfigTable(
        DataVersion(3, 2, 1),
        {"a": TopicConfig("a", 4, 8, 6), "b": TopicConfig("b", 1, 1, 4), "c": TopicConfig("c", 4, 8, 6)},
    ),
    ("f:1",),
)
TOPICS = {"a": QueueData("n", 4, 8, 6, 0), "b": QueueData("n", 1, 1, 4, 0), "c": QueueData("n", 4, 8, 6, 0)}


@pytest.mark.parametrize("compressed", [False, True])
def test_every_form_gives_the_same(compressed: bool) -> None:
    """Plain and compressed bodies hold the same topics, version and filter servers."""
    data, crc = BODY.to_body(compressed=compressed)

    found = read(data, "n", compressed=compressed, version=513, body_crc32=crc)

    assert found.topics == TOPICS
    assert found.data_version == DataVersion(3, 2, 1)
    assert found.filter_servers == ("f:1",)


def test_fields_that_are_missing_have_javas_defaults() -> None:
    """16 queues each way, readable and writable."""
    body = b'{"topicConfigSerializeWrapper":{"dataVersion":{},"topicConfigTable":{"t":{"topicName":"t"}}}}'

    found = read(body, "n", compressed=False, version=513)

    assert found.topics == {"t": QueueData("n", 16, 16, 6, 0)}
    assert found.filter_servers == ()


def test_unusual_forms_take_the_full_way() -> None:
    """Numbers as text and unquoted keys are read, too; a body before 3.0.11 is the bare table."""
    usual = BODY.to_json()
    as_text = usual.replace(b'"perm":4', b'"perm":"4"')
    unquoted = usual.replace(b'"topicQueueMappingDetailMap":{}', b'"topicQueueMappingDetailMap":{0:1}')
    bare = orjson.dumps(BODY.topic_config.to_object())

    assert as_text != usual != unquoted
    assert read(as_text, "n", compressed=False, version=513).topics == TOPICS
    assert read(unquoted, "n", compressed=False, version=513).topics == TOPICS
    old = read(bare, "n", compressed=False, version=36)
    assert (old.topics, old.filter_servers) == (TOPICS, None)


def test_no_body_means_no_topics() -> None:
    """As in Java; with a version that is older than any."""
    found = read(b"", "n", compressed=False, version=513)

    assert (dict(found.topics), found.data_version) == ({}, DataVersion())


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"topicConfigSerializeWrapper":[]}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":[],"topicConfigTable":{}}}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":{},"topicConfigTable":{"t":7}}}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":{},"topicConfigTable":{"t":{"perm":[]}}}}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":{},"topicConfigTable":{"t":{"readQueueNums":-1}}}}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":"x"},"topicConfigTable":{}}}',
        b'{"filterServerList":[1],"topicConfigSerializeWrapper":{"dataVersion":{},"topicConfigTable":{}}}',
        b'{"filterServerList":7,"topicConfigSerializeWrapper":{"dataVersion":{},"topicConfigTable":{}}}',
    ],
)
def test_malformed_bodies_are_refused(body: bytes) -> None:
    """Whatever is wrong becomes a refusal, never another error."""
    with pytest.raises(Rejected):
        read(body, "n", compressed=False, version=513)


def test_checksum_is_checked_unless_it_is_zero() -> None:
    """`bodyCrc32` is the CRC-32 without its sign bit."""
    data = BODY.to_json()

    assert read(data, "n", compressed=False, version=513, body_crc32=crc31(data)).topics
    with pytest.raises(Rejected, match="crc32 not match"):
        read(data, "n", compressed=False, version=513, body_crc32=crc31(data) ^ 1)


def test_ten_thousand_topics_are_read_quickly() -> None:
    """The loop is blocked for milliseconds only, also by a big broker.

    The best of three tries counts: the garbage of other tests may be collected in one.
    """
    topics = {f"topic-{number}": TopicConfig(f"topic-{number}", 4, 4) for number in range(10_000)}
    data = RegisterBrokerBody(TopicConfigTable(DataVersion(1, 0, 1), topics)).to_json()
    tries = []

    for _ in range(3):
        start = time.process_time()
        found = read(data, "n", compressed=False, version=513)
        tries.append(time.process_time() - start)
        assert len(found.topics) == 10_000

    spent = min(tries)
    assert spent < 0.2, f"{spent * 1000:.0f} ms of processor time; about 15 ms expected"
