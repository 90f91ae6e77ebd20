"""What requests need."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest

from brokerset_acl.deciding import Need
from brokerset_acl.needs import RULES, SECRET_TOPICS, needs_of
from brokerset_acl.policies import Action
from brokerset_broker.requests.request_classes import CLASSES
from brokerset_broker.tables.metadata.records import METADATA_TOPIC
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command

JAVA = json.loads((Path(__file__).parent / "java_annotations.json").read_text())
"""Request headers of Java as they are annotated: actions, and fields with resource type and separator."""

WIDER = {14, 15, 29, 30, 31, 32, 33, 35, 38}
"""Codes for which Java's switch, or a consumer's own use of the request, needs other actions than those."""

READ_OTHERWISE = {10, 34, 36, 37, 310, 370}
"""Codes that Java's switch reads by itself, so the fields of the annotations do not count."""


def shown(needs: list[Need]) -> list[str]:
    return [f"{need.resource.key} {'|'.join(need.actions)}" for need in needs]


def needed(code: int, ext: dict[str, str] | None = None, body: object = None) -> list[str]:
    data = b"" if body is None else orjson.dumps(body)
    return shown(needs_of(Command(code, ext or {}, data), "C"))


def test_every_code_that_a_broker_serves_has_a_rule() -> None:
    """A new request is open to administrators only until somebody says what it needs."""
    assert set(CLASSES) - set(RULES) == set()
    assert needed(99_999) == ["Cluster:C Update"]


def test_passwords_lie_in_the_topic_of_metadata() -> None:
    """The name is known here without importing the broker."""
    assert {METADATA_TOPIC} == SECRET_TOPICS


@pytest.mark.parametrize("code", sorted(set(map(int, JAVA)) & set(RULES) - READ_OTHERWISE))
def test_rules_are_javas(code: int) -> None:
    """Every resource that Java checks is checked, with the same actions where that is not listed above."""
    java, rule = JAVA[str(code)], RULES[code]
    if rule.read is not None or rule.every is not None:
        return
    fields = {(kind, name) for kind, name, _ in java["fields"]}
    ours = {("Topic", name) for name in rule.topics} | {("Group", name) for name in rule.groups}
    assert fields <= ours
    if code not in WIDER:
        assert sorted(java["actions"]) == sorted(map(str, rule.actions))
    if java["resource"] == "Cluster" and not fields:
        assert not ours


@pytest.mark.parametrize(
    ("code", "ext", "expected"),
    [
        (RequestCode.SEND_MESSAGE, {"topic": "t"}, ["Topic:t Pub"]),
        (RequestCode.SEND_MESSAGE_V2, {"b": "t", "a": "pg"}, ["Topic:t Pub"]),
        (RequestCode.SEND_BATCH_MESSAGE, {"b": "t"}, ["Topic:t Pub"]),
        (RequestCode.SEND_MESSAGE_V2, {"b": "%RETRY%g", "a": "mine"}, ["Group:g Sub"]),
        (RequestCode.SEND_MESSAGE_V2, {}, ["Cluster:C Update"]),
        (RequestCode.SEND_REPLY_MESSAGE, {"topic": "C_REPLY_TOPIC"}, []),
        (RequestCode.SEND_REPLY_MESSAGE, {"topic": "t"}, ["Topic:t Pub"]),
        (RequestCode.SEND_REPLY_MESSAGE_V2, {"b": "C_REPLY_TOPIC"}, []),
        (RequestCode.SEND_REPLY_MESSAGE_V2, {"b": "t", "topic": "C_REPLY_TOPIC"}, ["Topic:t Pub"]),
        (RequestCode.END_TRANSACTION, {}, []),
        (RequestCode.END_TRANSACTION, {"topic": "t"}, ["Topic:t Pub"]),
        (RequestCode.PULL_MESSAGE, {"topic": "t", "consumerGroup": "g"}, ["Group:g Sub", "Topic:t Sub"]),
        (RequestCode.PULL_MESSAGE, {"topic": "%RETRY%g", "consumerGroup": "g"}, ["Group:g Sub"]),
        (
            RequestCode.PULL_MESSAGE,
            {"topic": "%RETRY%other", "consumerGroup": "g"},
            ["Group:g Sub", "Group:other Sub"],
        ),
        (
            RequestCode.PULL_MESSAGE,
            {"topic": "%RETRY%g_t", "consumerGroup": "g"},
            ["Group:g Sub", "Group:g_t Sub"],
        ),
        (
            RequestCode.PULL_MESSAGE,
            {"topic": "%RETRY%g%subject", "consumerGroup": "g"},
            ["Group:g Sub", "Topic:subject Sub"],
        ),
        (
            RequestCode.ACK_MESSAGE,
            {"topic": "%RETRY%g_t", "consumerGroup": "g"},
            ["Group:g Sub", "Topic:t Sub"],
        ),
        (
            RequestCode.ACK_MESSAGE,
            {"topic": "%RETRY%g+t", "consumerGroup": "g"},
            ["Group:g Sub", "Topic:t Sub"],
        ),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "g", "originTopic": "t"}, ["Group:g Sub"]),
        (RequestCode.UNREGISTER_CLIENT, {"producerGroup": "p"}, []),
        (RequestCode.UNREGISTER_CLIENT, {"consumerGroup": "g"}, ["Group:g Sub"]),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}, ["Cluster:C Get"]),
        (
            RequestCode.GET_CONSUME_STATS,
            {"consumerGroup": "g", "topicList": "t;u"},
            ["Group:g Get", "Topic:t Get", "Topic:u Get"],
        ),
        (RequestCode.GET_ALL_TOPIC_CONFIG, {}, ["Topic:* Get|List"]),
        (RequestCode.UPDATE_BROKER_CONFIG, {}, ["Cluster:C Update"]),
        (RequestCode.AUTH_CREATE_USER, {"username": "u"}, ["Cluster:C Update"]),
        (RequestCode.AUTH_LIST_USER, {}, ["Cluster:C Get"]),
    ],
)
def test_needs_of_headers(code: int, ext: dict[str, str], expected: list[str]) -> None:
    """A retry topic is its group's, whatever group the request names; what is not named is everything."""
    assert needed(code, ext) == expected


QUEUE = {"topic": "t", "brokerName": "b", "queueId": 0}
HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [{"groupName": "p"}],
    "consumerDataSet": [
        {"groupName": "g", "subscriptionDataSet": [{"topic": "t"}, {"topic": "%RETRY%g"}, {"topic": "u"}]}
    ],
}


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (RequestCode.HEART_BEAT, HEARTBEAT, ["Group:g Sub", "Topic:t Sub", "Topic:u Sub"]),
        (
            RequestCode.LOCK_BATCH_MQ,
            {"consumerGroup": "g", "clientId": "c", "mqSet": [QUEUE]},
            ["Group:g Sub", "Topic:t Sub"],
        ),
        (
            RequestCode.QUERY_ASSIGNMENT,
            {"topic": "t", "consumerGroup": "g", "clientId": "c"},
            ["Group:g Sub", "Topic:t Sub"],
        ),
        (
            RequestCode.SET_MESSAGE_REQUEST_MODE,
            {"topic": "t", "consumerGroup": "g", "mode": "POP"},
            ["Group:g Update", "Topic:t Update"],
        ),
        (
            RequestCode.BATCH_ACK_MESSAGE,
            {"brokerName": "b", "acks": [{"c": "g", "t": "t", "so": 1, "q": 0, "rq": 0, "pt": 1, "it": 1}]},
            ["Group:g Sub", "Topic:t Sub"],
        ),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g"}, ["Group:g Create|Update"]),
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            {"topicConfigList": [{"topicName": "t"}, {"topicName": "u"}]},
            ["Topic:t Create", "Topic:u Create"],
        ),
    ],
)
def test_needs_of_bodies(code: int, body: object, expected: list[str]) -> None:
    """What is named in a body counts as what is named in a header, also where Java reads the header alone."""
    assert needed(code, {}, body) == expected


def test_a_batch_of_acks_for_several_groups_needs_all() -> None:
    """The needs of each are collected once."""
    acks = [{"c": group, "t": "t", "b": ""} for group in ("g", "h", "g")]
    found = needs_of(
        Command(RequestCode.BATCH_ACK_MESSAGE, {}, orjson.dumps({"brokerName": "b", "acks": acks})), "C"
    )
    assert shown(found) == ["Group:g Sub", "Topic:t Sub", "Group:h Sub"]
    assert all(need.actions == (Action.SUB,) for need in found)
