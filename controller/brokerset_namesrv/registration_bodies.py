"""Reads from the body of a registration what a name server needs: queues by topic, version, filter servers.

Brokers send all their topics again every 30 seconds: 1.5 MB for 10,000. Building the full topic settings took
88 ms for these, and nothing else is served meanwhile; the four numbers that routes show take 17 ms. Unusual
forms go to `RegisterBrokerBody`, which reads them or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from brokerset_formats.config import DataVersion, Permission
from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import crc31
from brokerset_protocol.bodies.registration import RegisterBrokerBody
from brokerset_protocol.bodies.routes import QueueData
from brokerset_protocol.codes import VERSION_3_0_11, ResponseCode
from brokerset_protocol.errors import Rejected

QUEUES_DEFAULT: Final = 16
"""Queues of a topic whose registration names none (Java: `TopicConfig`)."""

PERM_DEFAULT: Final = Permission.READ | Permission.WRITE
"""Permission of a topic whose registration names none."""

INT32_MAX: Final = 0x7FFFFFFF
"""Largest number in a topic's settings that is taken as it is."""


@dataclass(frozen=True, slots=True)
class RegisteredTopics:
    """What a registration says of topics."""

    topics: Mapping[str, QueueData]
    data_version: DataVersion
    filter_servers: tuple[str, ...] | None
    """`None` from brokers before 3.0.11, which do not tell."""


def read(
    body: bytes, broker_name: str, *, compressed: bool, version: int, body_crc32: int = 0
) -> RegisteredTopics:
    """Read a body as header and version describe it; none at all means no topics; a CRC of 0 is not checked.

    Raises `Rejected` when it is damaged, malformed or too large.
    """
    if body_crc32 and crc31(body) != body_crc32:
        raise Rejected(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    if not body:
        return RegisteredTopics({}, DataVersion(), ())
    if not compressed and version >= VERSION_3_0_11:
        usual = _read_usual(body, broker_name)
        if usual is not None:
            return usual
    full = RegisterBrokerBody.from_body(body, compressed=compressed, version=version)
    topics = {
        name: QueueData(
            broker_name, config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag
        )
        for name, config in full.topic_config.topics.items()
    }
    servers = full.filter_server_list if version >= VERSION_3_0_11 else None
    return RegisteredTopics(topics, full.topic_config.data_version, servers)


def _read_usual(body: bytes, broker_name: str) -> RegisteredTopics | None:
    """The content of a body in the usual form, `None` for any other.

    Most topics of a broker have the same numbers: they share one `QueueData`.
    """
    try:
        content = orjson.loads(body)
        wrapper = content["topicConfigSerializeWrapper"]
        servers = tuple(content.get("filterServerList") or ())
        shared: dict[tuple[object, ...], QueueData] = {}
        topics: dict[str, QueueData] = {}
        for name, config in wrapper["topicConfigTable"].items():
            get = config.get
            numbers = (
                get("readQueueNums", QUEUES_DEFAULT),
                get("writeQueueNums", QUEUES_DEFAULT),
                get("perm", PERM_DEFAULT),
                get("topicSysFlag", 0),
            )
            data = shared.get(numbers)
            if data is None:
                if not all(type(number) is int and 0 <= number <= INT32_MAX for number in numbers):
                    return None
                data = shared[numbers] = QueueData(broker_name, *numbers)
            topics[name] = data
        data_version = DataVersion.from_json(wrapper["dataVersion"])
    except (orjson.JSONDecodeError, FormatError, KeyError, TypeError, AttributeError):
        return None
    if not all(type(server) is str for server in servers):
        return None
    return RegisteredTopics(topics, data_version, servers)
