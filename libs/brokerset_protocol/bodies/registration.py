"""A broker's topics, as it registers them with name servers and hands them to slaves.

Source: `RegisterBrokerBody`, `TopicConfigAndMappingSerializeWrapper`. The compressed form is one zlib
stream of

    i32 length + data version (JSON)
    i32 number of topics, each: i32 length + text form
    i32 length + filter servers (JSON)
    i32 number of mappings, each: i32 length + JSON         since version 5.0.0

Static topics are not served: their mappings are read over, and written empty.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, ClassVar, Final, Self

from brokerset_formats.config import DataVersion, TopicConfig
from brokerset_formats.hashing import crc31
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import (
    Absent,
    JsonBody,
    Most,
    NamedByKey,
    Wire,
    convert,
    dump,
    parse,
    read_as,
    rejected,
)
from brokerset_protocol.codes import VERSION_3_0_11, VERSION_5_0_0, ResponseCode
from brokerset_protocol.commands import PROTOCOL_VERSION
from brokerset_protocol.errors import LocalProtocolError, Rejected

INFLATED_SIZE_MAX: Final = 64 * 1024 * 1024
"""Bytes that a compressed registration may unpack to: about a million topics."""

TOPICS_MAX: Final = 1_000_000
"""Topics of one registration."""

MAPPINGS_MAX: Final = TOPICS_MAX
"""Mappings of static topics of one registration."""

_LENGTH: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class TopicConfigTable(JsonBody):
    """Topics by name with their version: part of a registration, and answer to GET_ALL_TOPIC_CONFIG (21)."""

    data_version: Annotated[DataVersion, Absent(DataVersion())]
    topics: Annotated[
        Mapping[str, TopicConfig], Wire("topicConfigTable"), Most(TOPICS_MAX), NamedByKey("topicName")
    ] = field(default_factory=dict)
    mapping_data_version: DataVersion = field(default_factory=DataVersion)

    constants: ClassVar[dict[str, object]] = {
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody(JsonBody):
    """Body of REGISTER_BROKER (103)."""

    topic_config: Annotated[TopicConfigTable, Wire("topicConfigSerializeWrapper")]
    filter_server_list: tuple[str, ...] = ()

    @property
    def data_version(self) -> DataVersion:
        """The version of the topics."""
        return self.topic_config.data_version

    @property
    def topics(self) -> Mapping[str, TopicConfig]:
        """The topics by name; only the changed one in an increment."""
        return self.topic_config.topics

    @classmethod
    def from_body(cls, data: bytes, *, compressed: bool, version: int, body_crc32: int = 0) -> Self:
        """Read a body as the request's header and version describe it; a CRC of 0 is not checked.

        Raises `Rejected` when it is damaged, malformed or too large.
        """
        if body_crc32 and crc31(data) != body_crc32:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        if compressed:
            return cls._inflate(data, version)
        if version < VERSION_3_0_11:
            return cls(TopicConfigTable.from_json(data))
        return cls.from_json(data)

    def to_body(self, *, compressed: bool = False, version: int = PROTOCOL_VERSION) -> tuple[bytes, int]:
        """The bytes and their `body_crc32`. Raises `LocalProtocolError` if nobody would take them."""
        data = self._deflate(version) if compressed else self.to_json()
        return data, crc31(data)

    @classmethod
    def _inflate(cls, data: bytes, version: int) -> Self:
        reader = _Inflated(data)
        what = "the data version"
        data_version = read_as(DataVersion, parse(reader.block(), what), what)
        topics: dict[str, TopicConfig] = {}
        for _ in range(reader.count("topics", TOPICS_MAX)):
            topic = convert(TopicConfig.decode, reader.text(), "a topic")
            topics[topic.topic_name] = topic
        what = "filterServerList"
        servers = read_as(tuple[str, ...], parse(reader.block(), what), f"{what} of {cls.__name__}")
        if version >= VERSION_5_0_0:
            for _ in range(reader.count("mappings", MAPPINGS_MAX)):
                reader.block()
        return cls(TopicConfigTable(data_version, topics), servers)

    def _deflate(self, version: int) -> bytes:
        blocks = [
            *_block(dump(self.topic_config.data_version.to_json())),
            _LENGTH.pack(len(self.topic_config.topics)),
        ]
        for topic in self.topic_config.topics.values():
            blocks += _block(topic.encode().encode())
        blocks += _block(dump(list(self.filter_server_list)))
        if version >= VERSION_5_0_0:
            blocks.append(_LENGTH.pack(0))
        plain = b"".join(blocks)
        if len(plain) > INFLATED_SIZE_MAX:
            raise LocalProtocolError(f"registration of {len(plain)} bytes, at most {INFLATED_SIZE_MAX}")
        return zlib.compress(plain, zlib.Z_BEST_COMPRESSION)


def _block(data: bytes) -> tuple[bytes, bytes]:
    return _LENGTH.pack(len(data)), data


class _Inflated:
    """Reads lengths and blocks from a zlib stream of bounded size."""

    def __init__(self, data: bytes) -> None:
        stream = zlib.decompressobj()
        try:
            self._data = stream.decompress(data, INFLATED_SIZE_MAX)
        except zlib.error as error:
            raise rejected("a compressed registration", str(error)) from None
        if not stream.eof:
            problem = (
                f"it unpacks to more than {INFLATED_SIZE_MAX} bytes"
                if len(self._data) >= INFLATED_SIZE_MAX
                else "it is cut off"
            )
            raise rejected("a compressed registration", problem)
        self._position = 0

    def _length(self) -> int:
        if self._position + _LENGTH.size > len(self._data):
            raise rejected("a compressed registration", f"it ends at byte {self._position}")
        (length,) = _LENGTH.unpack_from(self._data, self._position)
        self._position += _LENGTH.size
        return int(length)

    def count(self, what: str, count_max: int) -> int:
        count = self._length()
        if not 0 <= count <= count_max:
            raise rejected("a compressed registration", f"{count} {what}, 0 to {count_max} are taken")
        return count

    def block(self) -> bytes:
        length = self._length()
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise rejected(
                "a compressed registration", f"a block of {length} bytes at byte {self._position} leaves it"
            )
        data = self._data[self._position : end]
        self._position = end
        return data

    def text(self) -> str:
        try:
            return self.block().decode()
        except UnicodeDecodeError:
            raise rejected("a compressed registration", "a topic is not UTF-8") from None
