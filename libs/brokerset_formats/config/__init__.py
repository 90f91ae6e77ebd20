"""Configuration and progress files of brokers and name servers: the JSON that Java writes with fastjson.

Each table has `to_json` and `from_json` for bodies of requests, `encode` and `decode` for whole files. Files
are standard JSON, with quoted integer keys, which Java reads; Java's own files are read as they are.
"""

from __future__ import annotations

from brokerset_formats.config.groups import GroupTable, SubscriptionGroupConfig
from brokerset_formats.config.kv import KvConfig
from brokerset_formats.config.offsets import (
    ConsumerOffsets,
    DelayOffsets,
    LightOffsets,
    offset_key,
    split_offset_key,
)
from brokerset_formats.config.topics import Permission, TopicConfig, TopicTable
from brokerset_formats.config.versions import DataVersion

__all__ = [
    "ConsumerOffsets",
    "DataVersion",
    "DelayOffsets",
    "GroupTable",
    "KvConfig",
    "LightOffsets",
    "Permission",
    "SubscriptionGroupConfig",
    "TopicConfig",
    "TopicTable",
    "offset_key",
    "split_offset_key",
]
