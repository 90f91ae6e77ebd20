"""The Topic manifest: one topic on the brokers of a BrokerSet, typed, with every default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from brokerset_formats.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TOPIC_SIZE_MAX,
)
from brokerset_spec.manifest_parts import (
    API_VERSION,
    BrokerName,
    GroupNames,
    NamedPart,
    ObjectName,
    Part,
    SetName,
    page,
    rule,
    ruled,
    same_or_absent,
)
from brokerset_spec.manifest_reader import ManifestReader, put_name_and_set
from brokerset_spec.problems import Problem, listed_twice

KIND: Final = "Topic"

QUEUES_MAX: Final = 16_384
"""Most queues of a topic on one broker; brokers refuse more."""

PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2}
"""RocketMQ's bits for each word of `spec.permission`."""

MessageType = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED"]
"""Values of RocketMQ's attribute `message.type`."""

LITE_EXPIRATION_MAX: Final = 43_200
"""Minutes of 30 days, RocketMQ's limit."""

EXAMPLES: Final = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": "{name: payments}",
    "name": "payments",
    "spec": "{brokerSetRef: {name: orders}}",
    "brokerSetRef": "{name: orders}",
}
"""What to write for a field that is missing."""


class TopicMetadata(NamedPart):
    """The part that all Kubernetes objects share."""

    name: ObjectName
    """Name of the object, and of the topic if `topicName` does not say another."""


class BrokerSetRef(Part):
    """The set whose brokers have the topic, in the same namespace. Cannot be changed."""

    name: Annotated[
        SetName,
        Field(
            json_schema_extra=ruled(
                rule(
                    "self == oldSelf",
                    "cannot be changed: the topic stays on the brokers that have its messages; create "
                    "another Topic",
                )
            )
        ),
    ]
    """Name of the set.

    **Cannot be changed**: messages stay on the brokers that have them.
    """


class Queues(Part):
    """Number of queues on each broker group; consumers see read, producers see write of them."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "!has(self.write) || !has(self.read) || self.write <= self.read",
                "more queues are written than read, and messages in the rest would wait permanently; raise "
                "read or "
                "lower write",
            )
        )
    )

    read: Annotated[int, Field(ge=1, le=QUEUES_MAX)] = 8
    """Queues that are read. To have fewer: lower write, wait until the rest is consumed, lower read."""

    write: Annotated[int, Field(ge=1, le=QUEUES_MAX)] = 8
    """Queues that are written."""


def _system_topics() -> dict[str, Any]:
    names = ", ".join(f"'{name}'" for name in sorted(SYSTEM_TOPICS))
    return rule(
        f"!self.startsWith('{SYSTEM_TOPIC_PREFIX}') && !(self in [{names}])",
        "is a topic of the system; choose another name",
    )


class TopicSpec(Part):
    """What is wanted; everything but the set has a default."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "!has(self.liteTopicExpirationMinutes) || (has(self.messageType) && "
                "self.messageType == 'LITE')",
                "is for lite topics only; set messageType to LITE, or leave it out",
                "liteTopicExpirationMinutes",
            )
        )
    )

    broker_set_ref: BrokerSetRef

    topic_name: (
        Annotated[
            BrokerName,
            Field(
                json_schema_extra=ruled(
                    rule(
                        f"!self.startsWith('{RETRY_PREFIX}') && !self.startsWith('{DLQ_PREFIX}')",
                        "belongs to a consumer group; choose another name; brokers make these topics for "
                        "consumer groups",
                    ),
                    _system_topics(),
                    **page("the object's name"),
                )
            ),
        ]
        | None
    ) = None
    """RocketMQ's name of the topic; by default the object's. Cannot be changed.

    Topics of the system and those that brokers make for consumer groups (`%RETRY%…`, `%DLQ%…`) are refused.
    """

    queues: Queues = Queues()

    permission: Literal["rw", "r", "w"] = "rw"
    """What clients may do: read and write, only read, only write."""

    order: bool = False
    """Whether the topic is marked as one whose messages are in order within a queue."""

    message_type: MessageType | None = None
    """Type of its messages, the attribute `message.type` of RocketMQ.

    Proxies, and brokers with `refuseOtherMessageTypes`, refuse messages of other types; a topic without the
    attribute counts as NORMAL. MIXED takes all; brokers take it with `enableMixedMessageType`. If it is left
    out, the operator leaves the attribute as it is. See [message types](message-types.md).
    """

    lite_topic_expiration_minutes: Annotated[int, Field(ge=1, le=LITE_EXPIRATION_MAX)] | None = None
    """Minutes without a message after which a lite topic of this topic is deleted; by default never."""

    groups: GroupNames = ()
    """Names of the broker groups that have the topic; none means all, also those that are added later."""

    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    """What happens to the topic and its messages when the object is deleted."""


class Topic(Part):
    """One topic on the brokers of a BrokerSet."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                f"has(self.spec.topicName) || (size(self.metadata.name) <= {TOPIC_SIZE_MAX} && "
                "!self.metadata.name.contains('.'))",
                "is left out, and the object's name cannot be a topic's; give 1 to "
                f"{TOPIC_SIZE_MAX} letters, digits, _, -, % or |",
                "spec.topicName",
            ),
            same_or_absent(
                "spec.topicName",
                "cannot be changed: messages stay in the topic that they were sent to; create another Topic",
            ),
        )
    )

    api_version: Literal["brokerset.io/v1alpha1"]
    kind: Literal["Topic"]
    metadata: TopicMetadata
    spec: TopicSpec
    status: Any = None
    """Written by the operator; not read."""

    @property
    def topic_name(self) -> str:
        """RocketMQ's name of the topic."""
        return self.spec.topic_name or self.metadata.name

    @property
    def permission(self) -> int:
        """RocketMQ's bits: 4 read, 2 write."""
        return PERMISSIONS[self.spec.permission]

    @property
    def attributes(self) -> dict[str, str]:
        """RocketMQ's attributes that the manifest says something about."""
        found: dict[str, str] = {}
        if self.spec.message_type is not None:
            found["message.type"] = self.spec.message_type
        if self.spec.message_type == "LITE":
            found["lite.topic.expiration"] = str(self.spec.lite_topic_expiration_minutes or -1)
        return found


def check_topic_manifest(topic: Topic) -> list[Problem]:
    """Return what is wrong with a well-shaped manifest: its name, contradictions."""
    return [*_name_problems(topic), *_contradictions(topic.spec)]


def _name_problems(topic: Topic) -> Iterable[Problem]:
    name = topic.topic_name
    if topic.spec.topic_name is None and ("." in name or len(name) > TOPIC_SIZE_MAX):
        advice = f"give spec.topicName: 1 to {TOPIC_SIZE_MAX} letters, digits, _, -, % or |"
        yield Problem("spec.topicName", f"is left out, and {name[:64]} cannot be a topic", advice)
    elif name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        advice = "choose another name; brokers make these topics for consumer groups"
        yield Problem("spec.topicName", f"{name} belongs to a consumer group", advice)
    elif name.startswith(SYSTEM_TOPIC_PREFIX) or name in SYSTEM_TOPICS:
        yield Problem("spec.topicName", f"{name} is a topic of the system", "choose another name")


def _contradictions(spec: TopicSpec) -> Iterable[Problem]:
    if spec.queues.write > spec.queues.read:
        reason = f"{spec.queues.write} are written and only {spec.queues.read} read"
        advice = f"use {spec.queues.write} or more for read, or fewer for write"
        yield Problem("spec.queues", reason, advice)
    if spec.lite_topic_expiration_minutes is not None and spec.message_type != "LITE":
        advice = "set messageType to LITE, or leave it out"
        yield Problem("spec.liteTopicExpirationMinutes", "is for lite topics only", advice)
    yield from listed_twice("spec.groups", spec.groups, "list each group once")


read_topic: Final = ManifestReader(
    model=Topic,
    api_version=API_VERSION,
    kind=KIND,
    outline="metadata: {name: …}, spec: …",
    examples=EXAMPLES,
    check=check_topic_manifest,
    complete=put_name_and_set,
).read
"""Check a manifest; see `ManifestReader.read`."""
