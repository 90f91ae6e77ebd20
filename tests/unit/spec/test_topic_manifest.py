"""Topic manifests: defaults, names, and every error at once."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_spec.manifest import ManifestError
from brokerset_spec.topic_manifest import read_topic


def _with_spec(name: str = "payments", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name},
        "spec": {"brokerSetRef": {"name": "orders"}, **spec},
    }


def test_everything_but_the_set_has_a_default() -> None:
    topic = read_topic(_with_spec())

    assert topic.topic_name == "payments"
    assert (topic.spec.queues.read, topic.spec.queues.write, topic.permission) == (8, 8, 6)
    assert (topic.spec.order, topic.spec.groups, topic.spec.deletion_policy) == (False, (), "Retain")


@pytest.mark.parametrize(("word", "bits"), [("rw", 6), ("r", 4), ("w", 2)])
def test_a_permission_stands_for_the_bits_that_brokers_know(word: str, bits: int) -> None:
    assert read_topic(_with_spec(permission=word)).permission == bits


def test_a_message_type_stands_for_the_attributes_that_brokers_know() -> None:
    assert read_topic(_with_spec()).attributes == {}
    assert read_topic(_with_spec(messageType="FIFO")).attributes == {"message.type": "FIFO"}
    lite = _with_spec(messageType="LITE", liteTopicExpirationMinutes=60)
    assert read_topic(lite).attributes == {"message.type": "LITE", "lite.topic.expiration": "60"}
    assert read_topic(_with_spec(messageType="LITE")).attributes["lite.topic.expiration"] == "-1"


def test_only_lite_topics_expire() -> None:
    with pytest.raises(ManifestError, match="is for lite topics only; set messageType to LITE"):
        read_topic(_with_spec(messageType="FIFO", liteTopicExpirationMinutes=60))


def test_a_topic_may_have_a_name_that_no_object_can_have() -> None:
    topic = read_topic(_with_spec("pay.ments", topicName="Pay_ments%1"))

    assert topic.topic_name == "Pay_ments%1"


def test_a_null_counts_as_left_out() -> None:
    assert read_topic(_with_spec(topicName=None, queues=None)) == read_topic(_with_spec())


def test_all_errors_are_reported_at_once_each_with_path_reason_and_advice() -> None:
    """Errors of shape do not hide contradictions."""
    with pytest.raises(ManifestError) as caught:
        read_topic(
            {
                "kind": "Topic",
                "metadata": {"name": "%"},
                "spec": {
                    "queues": {"write": 9},
                    "topicName": "%DLQ%g",
                    "permission": "x",
                    "groups": ["a", "a"],
                },
            }
        )

    assert [str(problem) for problem in caught.value.problems] == [
        "apiVersion: is missing; add apiVersion: brokerset.io/v1alpha1",
        "metadata.name: is not a name; use lower-case letters, digits, - and ., starting and ending with a "
        "letter or digit",
        "spec.brokerSetRef: is missing; add brokerSetRef: {name: orders}",
        "spec.permission: is not 'rw', 'r' or 'w'; use one of these",
        "spec.topicName: %DLQ%g belongs to a consumer group; choose another name; brokers make these topics "
        "for consumer groups",
        "spec.queues: 9 are written and only 8 read; use 9 or more for read, or fewer for write",
        "spec.groups: a is listed twice; list each group once",
    ]


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_no_object_is_refused(document: object) -> None:
    with pytest.raises(ManifestError, match="is not a Topic manifest; write apiVersion"):
        read_topic(document)
