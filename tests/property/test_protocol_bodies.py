"""Bodies: random JSON never does more than a refusal; properties text and registrations are identity."""

from __future__ import annotations

import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_formats.config import DataVersion, TopicConfig
from brokerset_protocol import bodies
from brokerset_protocol.bodies import JsonBody, properties_text
from brokerset_protocol.errors import Rejected
from brokerset_rig.examples import examples

CLASSES = sorted(
    (
        value
        for value in (getattr(bodies, name) for name in bodies.__all__)
        if isinstance(value, type) and issubclass(value, JsonBody) and value is not JsonBody
    ),
    key=lambda cls: cls.__name__,
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
NAMES = st.sampled_from(
    ["topic", "brokerName", "queueId", "groupName", "clientId", "clientID", "offsetTable", "queueDatas",
     "mqSet", "topicConfigTable", "subscriptionData", "subscriptionDataSet", "consumeType", "brokerAddrs",
     "connectionSet", "data", "table", "codeSet", "perm", "brokerMemberGroup", "consumerTable"]
)  # fmt: skip
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | TEXTS, inner, max_size=6),
    max_leaves=12,
)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@examples(20)
@given(fields=st.dictionaries(NAMES, JSON_VALUES, max_size=6), noise=st.binary(max_size=20))
def test_random_bodies_are_read_or_refused(
    cls: type[JsonBody], fields: dict[str, object], noise: bytes
) -> None:
    """Any JSON, and any bytes, give a body or a refusal."""
    for data in (orjson.dumps(fields), noise):
        try:
            body = cls.from_json(data)
        except Rejected:
            continue
        assert cls.from_json(body.to_json()) == body


@given(st.dictionaries(TEXTS, TEXTS, max_size=6))
def test_properties_survive_the_wire(properties: dict[str, str]) -> None:
    """Any names and values come back from properties text."""
    assert properties_text.from_text(properties_text.to_text(properties)) == properties


@given(st.binary(max_size=80))
def test_random_properties_are_read_or_refused(text: bytes) -> None:
    """Random bytes as properties text give properties or a refusal, and reading is stable."""
    try:
        properties = properties_text.from_text(text)
    except Rejected:
        return

    assert properties_text.from_text(properties_text.to_text(properties)) == properties


TOPIC_NAMES = st.text("abcXYZ%_-0", min_size=1, max_size=20)
TOPICS = st.builds(
    TopicConfig,
    topic_name=TOPIC_NAMES,
    read_queue_nums=st.integers(0, 2**31 - 1),
    write_queue_nums=st.integers(0, 2**31 - 1),
    perm=st.integers(0, 15),
    topic_filter_type=st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    attributes=st.dictionaries(TEXTS, TEXTS, max_size=2),
)


@given(st.lists(TOPICS, max_size=5), st.lists(TEXTS, max_size=3), st.booleans(), st.sampled_from([399, 513]))
def test_registrations_survive_the_wire(
    topics: list[TopicConfig], servers: list[str], compressed: bool, version: int
) -> None:
    """Both forms of a registration come back as they were written, for old and new versions."""
    table = bodies.TopicConfigTable(DataVersion(1, 2, 3), {topic.topic_name: topic for topic in topics})
    body = bodies.RegisterBrokerBody(table, tuple(servers))

    data, crc = body.to_body(compressed=compressed, version=version)

    assert body == bodies.RegisterBrokerBody.from_body(
        data, compressed=compressed, version=version, body_crc32=crc
    )


@given(st.binary(max_size=100), st.booleans())
def test_random_registrations_are_read_or_refused(plain: bytes, packed: bool) -> None:
    """Random bytes as compressed registration, before or after packing, never do more than a refusal."""
    data = zlib.compress(plain) if packed else plain

    try:
        bodies.RegisterBrokerBody.from_body(data, compressed=True, version=513)
    except Rejected:
        return
