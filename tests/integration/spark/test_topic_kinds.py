"""What the wire source makes of topics that are not plain ones; the table of docs/spark.md."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from brokerset_client.admin import Admin
from brokerset_formats.config import TopicConfig
from brokerset_formats.names import SYSTEM_TOPICS
from brokerset_rig.local_servers import Client, connected
from brokerset_rig.threaded_servers import ThreadedServers, threaded_servers
from brokerset_rig.topic_queries import StreamQuery, batch_rows
from brokerset_spark.sources.option_values import OptionsError
from brokerset_spark.topics.client_thread import client_of
from brokerset_spark.topics.columns import BadBody

RETRIES = "%RETRY%g_plain"
HOUR_MS = "3600000"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServers]:
    """A broker with one message of each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    with threaded_servers(folder, enable_lmq=True, enable_multi_dispatch=True) as found:
        found.run(fill(found))
        yield found
        client_of(found.name_servers).close()


async def fill(servers: ThreadedServers) -> None:
    async with connected(servers.broker.port) as connection:
        client = Client(connection)
        await client.create_topic("plain", 1)
        await client.create_topic("packed", 1)
        await client.create_topic(RETRIES, 1)
        await client.create_topic("parent", 1, attributes="+message.type=LITE")
        kinds: tuple[tuple[str, bytes, dict[str, Any], dict[str, str]], ...] = (
            ("plain", b"light", {}, {"INNER_MULTI_DISPATCH": "%LMQ%a"}),
            ("plain", b"timer", {}, {"TIMER_DELAY_MS": HOUR_MS}),
            ("plain", b"delayed", {}, {"DELAY": "18"}),
            ("plain", b"half", {"h": 4}, {"TRAN_MSG": "true", "PGROUP": "p"}),
            ("parent", b"lite", {}, {"__LITE_TOPIC": "child"}),
            (RETRIES, b"again", {}, {}),
            ("packed", zlib.compress(b"good"), {"f": 1}, {}),
            ("packed", b"no zlib", {"f": 1}, {}),
            ("packed", b"plain", {}, {}),
        )
        for topic, body, ext, properties in kinds:
            reply = await client.send(topic, body, properties=properties, **ext)
            assert reply.code == 0, (topic, body, reply.remark)


def rows(servers: ThreadedServers, **options: Any) -> list[dict[str, Any]]:
    return batch_rows(nameServers=servers.name_servers, fetchTimeoutSeconds=5, **options)


def test_messages_of_light_queues_and_lite_topics_are_in_the_topic_they_were_sent_to(
    servers: ThreadedServers,
) -> None:
    """With properties that name the light queue; the light queue itself is refused, and the error says so."""
    (light,) = rows(servers, topic="plain")
    assert (light["value"], light["properties"][0]) == (b"light", ("INNER_MULTI_DISPATCH", "%LMQ%a"))
    (lite,) = rows(servers, topic="parent")
    assert (lite["value"], dict(lite["properties"])["__LITE_TOPIC"]) == (b"lite", "child")
    for options in ({"topic": "%LMQ%a"}, {"assign": {"%LMQ%a": {"broker-a": [0]}}}):
        with pytest.raises(OptionsError, match="INNER_MULTI_DISPATCH"):
            StreamQuery(nameServers=servers.name_servers, **options)


def test_retries_and_what_waits_are_read_only_by_their_name(servers: ThreadedServers) -> None:
    """A topic has what may be consumed: timer messages, delayed ones and half messages wait in topics of the
    system, which a pattern never finds, nor retries."""
    found = rows(servers, topicPattern=".*", failOnBadBody=False)
    assert {row["topic"] for row in found} == {"plain", "parent", "packed"}
    waiting = {
        "rmq_sys_wheel_timer": b"timer",
        "SCHEDULE_TOPIC_XXXX": b"delayed",
        "RMQ_SYS_TRANS_HALF_TOPIC": b"half",
        RETRIES: b"again",
    }
    assert set(waiting) - {RETRIES, "rmq_sys_wheel_timer"} <= set(SYSTEM_TOPICS)
    for topic, body in waiting.items():
        (row,) = rows(servers, topic=topic)
        assert (row["topic"], row["value"]) == (topic, body)
        assert topic == RETRIES or dict(row["properties"])["REAL_TOPIC"] == "plain"


def test_topics_with_batch_queues_are_refused(
    servers: ThreadedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's brokers have them: one record is several messages there. Ours refuse to make such a topic."""
    ask = Admin.topic_config

    async def batch_queues(admin: Admin, topic: str, address: str) -> TopicConfig:
        return replace(await ask(admin, topic, address), attributes={"queue.type": "BatchCQ"})

    monkeypatch.setattr(Admin, "topic_config", batch_queues)
    with pytest.raises(OptionsError, match="topic plain: it has batch queues"):
        rows(servers, topic="plain")
    with pytest.raises(OptionsError, match="topic plain: it has batch queues"):
        StreamQuery(nameServers=servers.name_servers, topic="plain")


def test_a_body_that_cannot_be_opened_fails_a_query_or_is_null(servers: ThreadedServers) -> None:
    """One bad message need not end a pipeline: failOnBadBody=false gives a null value, and says why."""
    with pytest.raises(BadBody, match="queue 0 of topic packed on broker-a, offset 1: "):
        rows(servers, topic="packed")
    query = StreamQuery(
        nameServers=servers.name_servers, topic="packed", startingOffsets="earliest", failOnBadBody=False
    )
    found = [(row["value"], row["valueError"] is None) for row in query.next() or []]
    assert found == [(b"good", True), (None, False), (b"plain", True)]
    stored = rows(servers, topic="packed", columns="offset,body")
    assert [row["body"] for row in stored] == [zlib.compress(b"good"), b"no zlib", b"plain"]
