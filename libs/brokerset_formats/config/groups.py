"""Consumer groups: their settings and the file subscriptionGroup.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Self

from brokerset_formats.config import fields as json_fields
from brokerset_formats.config.fields import ConfigFile
from brokerset_formats.config.versions import DataVersion
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass


def _customized() -> dict[str, object]:
    return {"type": "CUSTOMIZED"}


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """One consumer group on one broker.

    `group_retry_policy` and `subscription_data_set` are JSON as Java has them: they are kept and passed on.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: Mapping[str, object] = field(default_factory=_customized)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: tuple[Mapping[str, object], ...] | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """As Java's field names."""
        found: dict[str, object] = {
            "attributes": dict(self.attributes),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minute,
            "groupName": self.group_name,
            "groupRetryPolicy": dict(self.group_retry_policy),
            "groupSysFlag": self.group_sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }
        if self.subscription_data_set is not None:
            found["subscriptionDataSet"] = [dict(item) for item in self.subscription_data_set]
        return found

    @classmethod
    def from_json(cls, fields: Mapping[str, object], name: str | None = None) -> SubscriptionGroupConfig:
        """From Java's field names; `name` is the key in a table, for entries without a name of their own."""
        group = json_fields.get_text(fields, "groupName") or name
        if not group:
            raise FormatError("a group without groupName")
        integer, boolean = json_fields.get_integer, json_fields.get_boolean
        return cls(
            group_name=group,
            consume_enable=boolean(fields, "consumeEnable", True),
            consume_from_min_enable=boolean(fields, "consumeFromMinEnable", True),
            consume_broadcast_enable=boolean(fields, "consumeBroadcastEnable", True),
            consume_message_orderly=boolean(fields, "consumeMessageOrderly", False),
            retry_queue_nums=integer(fields, "retryQueueNums", 1),
            retry_max_times=integer(fields, "retryMaxTimes", 16),
            group_retry_policy=json_fields.get_object(fields, "groupRetryPolicy") or _customized(),
            broker_id=integer(fields, "brokerId", 0),
            which_broker_when_consume_slowly=integer(fields, "whichBrokerWhenConsumeSlowly", 1),
            notify_consumer_ids_changed_enable=boolean(fields, "notifyConsumerIdsChangedEnable", True),
            group_sys_flag=integer(fields, "groupSysFlag", 0),
            consume_timeout_minute=integer(fields, "consumeTimeoutMinute", 15),
            subscription_data_set=_subscriptions(fields.get("subscriptionDataSet")),
            attributes=json_fields.get_text_map(fields, "attributes"),
        )


def _subscriptions(value: object) -> tuple[Mapping[str, object], ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise FormatError("subscriptionDataSet should be a list")
    return tuple(json_fields.as_object(item, "an item of subscriptionDataSet") for item in value)


@dataclass(frozen=True, slots=True)
class GroupTable(ConfigFile):
    """subscriptionGroup.json: all groups of a broker, and which topics a group may not read (bit masks)."""

    data_version: DataVersion = field(default_factory=DataVersion)
    groups: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {
            "dataVersion": self.data_version.to_json(),
            "forbiddenTable": {group: dict(masks) for group, masks in self.forbidden.items()},
            "subscriptionGroupTable": {name: group.to_json() for name, group in self.groups.items()},
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> Self:
        groups = {
            name: SubscriptionGroupConfig.from_json(json_fields.as_object(value, f"group {name}"), name)
            for name, value in json_fields.get_object(fields, "subscriptionGroupTable").items()
        }
        forbidden = {
            group: {
                topic: json_fields.as_integer(mask, f"forbiddenTable.{group}.{topic}")
                for topic, mask in json_fields.as_object(masks, f"forbiddenTable.{group}").items()
            }
            for group, masks in json_fields.get_object(fields, "forbiddenTable").items()
        }
        return cls(DataVersion.of_table(fields), groups, forbidden)
