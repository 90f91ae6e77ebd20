"""Records of the revive topic: check points, acks, and batches of acks.

Bodies are JSON with short names; releases before 5.1 had long ones, which are read, too. Source:
`PopCheckPoint`, `AckMsg`, `BatchAckMsg` and `PopMessageProcessor` of Java 5.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from brokerset_formats import fastjson
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.properties import Property

CHECK_POINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"

MESSAGES_MAX: Final = 32
"""Messages of one check point: its bit map is an i32."""

BATCH_OFFSET: Final = -1
"""`ao` of a batch, whose messages are in `aol`."""

_INT64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
_ALL_BITS: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPoint:
    """Messages of one queue that were given out together, and become visible together."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    """Where the pop began, which names the check point together with `pop_time`."""
    pop_time: int
    """Milliseconds since 1970."""
    invisible_time: int
    """Milliseconds."""
    broker: str | None
    """Name of the broker group that has the messages; releases before 5.1 do not say it."""
    count: int
    """Number of messages; 0 of a check point that only says where its group goes on."""
    distances: tuple[int, ...] | None = None
    """Of each message from `start_offset`; None: they follow each other from there."""
    acked: int = 0
    """Bit i: message i is acked."""
    put_times: int = 0
    """How often Java has put it off because a message could not be stored again."""
    suspend: bool = False
    """Whether its messages do not count as consumed once more when they are given out again."""

    @property
    def visible_time(self) -> int:
        """When its messages become visible again: milliseconds since 1970."""
        return self.pop_time + self.invisible_time

    @property
    def offsets(self) -> tuple[int, ...]:
        """The queue offsets of its messages, in the order of their bits."""
        start = self.start_offset
        if self.distances is None:
            return tuple(range(start, start + self.count))
        return tuple([start + distance for distance in self.distances])

    def encode(self) -> bytes:
        """The body, as fastjson writes it."""
        fields: dict[str, object] = {"bm": self.acked - (1 << 32) if self.acked >= 1 << 31 else self.acked}
        if self.broker is not None:
            fields["bn"] = self.broker
        fields["c"] = self.group
        if self.distances is not None:
            fields["d"] = self.distances
        fields["it"], fields["n"], fields["pt"] = self.invisible_time, self.count, self.pop_time
        fields["q"], fields["reviveTime"], fields["ro"] = self.queue_id, self.visible_time, 0
        if self.put_times:
            fields["rp"] = str(self.put_times)
        fields["so"], fields["sp"], fields["t"] = self.start_offset, self.suspend, self.topic
        return orjson.dumps(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acks:
    """Messages of one check point that are acked: the record of one ack, or of a batch."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    """Of the check point."""
    pop_time: int
    """Of the check point: milliseconds since 1970."""
    broker: str | None
    """As in the check point; a batch of Java's buffer does not say it."""
    offsets: tuple[int, ...]
    """Queue offsets of the messages."""

    @property
    def tag(self) -> str:
        """The tag of its record: one ack and a batch have different ones."""
        return ACK_TAG if len(self.offsets) == 1 else BATCH_ACK_TAG

    def encode(self) -> bytes:
        """The body, as fastjson writes it: of one ack, or of a batch if it is not exactly one."""
        is_single = len(self.offsets) == 1
        fields: dict[str, object] = {"ao": self.offsets[0] if is_single else BATCH_OFFSET}
        if not is_single:
            fields["aol"] = self.offsets
        if self.broker is not None:
            fields["bn"] = self.broker
        fields["c"], fields["pt"], fields["q"] = self.group, self.pop_time, self.queue_id
        fields["so"], fields["t"] = self.start_offset, self.topic
        return orjson.dumps(fields)


ReviveRecord = CheckPoint | Acks

_TEXTS: Final = (str,) * 3
_NUMBERS: Final = (int,) * 6
_INTEGERS: Final = {int}


def revive_properties(tag: str, deliver_ms: int) -> bytes:
    """The properties of a record with this tag; `deliver_ms`: when it came into the topic, or is to come.

    Java's records have a UNIQ_KEY, too. Nobody reads it, and its entry in the key index costs nearly as much
    as the record.
    """
    return f"{Property.TIMER_DELIVER_MS}\x01{deliver_ms}\x02{Property.TAGS}\x01{tag}\x02".encode()


def decode_revive_record(tag: str, body: bytes | memoryview) -> ReviveRecord | None:
    """What a record of the revive topic says; None if its tag is none of POP's, as Java skips it.

    FormatError for a body that cannot be read, or misses what names a check point.
    """
    if tag not in (CHECK_POINT_TAG, ACK_TAG, BATCH_ACK_TAG):
        return None
    found = fastjson.loads(body, object_keys=False)
    if not isinstance(found, dict):
        raise FormatError(f"a {tag} record is no JSON object")
    if tag == CHECK_POINT_TAG and (usual := _usual_check_point(found)) is not None:
        return usual
    topic = _string(found, "t", "topic")
    group = _string(found, "c", "cid", "cId", "consumerGroup")
    if not topic or not group:
        raise FormatError(f"a {tag} record names no topic or no group")
    broker = _string(found, "bn", "brokerName") or None
    queue_id = _number(found, "q", "queueId")
    start_offset = _number(found, "so", "startOffset")
    pop_time = _number(found, "pt", "popTime")
    if tag != CHECK_POINT_TAG:
        return Acks(
            topic=topic, group=group, queue_id=queue_id, start_offset=start_offset, pop_time=pop_time,
            broker=broker, offsets=_acked_offsets(found, tag),
        )  # fmt: skip
    distances = _numbers(found, "d", "queueOffsetDiff")
    count = max(0, _number(found, "n", "num"))
    if distances:
        count = len(distances)
    if count > MESSAGES_MAX:
        raise FormatError(f"a check point has {count} messages; {MESSAGES_MAX} is the limit")
    return CheckPoint(
        topic=topic,
        group=group,
        queue_id=queue_id,
        start_offset=start_offset,
        pop_time=pop_time,
        invisible_time=_number(found, "it", "invisibleTime"),
        broker=broker,
        count=count,
        distances=distances or None,
        acked=_number(found, "bm", "bitMap") & _ALL_BITS,
        put_times=_put_times(found),
        suspend=_value(found, "sp", "suspend") is True,
    )


def _usual_check_point(found: Mapping[str, Any]) -> CheckPoint | None:
    """What a record says that has all fields by the names that brokers of 5.x write; None for another one.

    A new master reads every open check point before it serves pops.
    """
    get: Callable[[str], Any] = found.get
    texts = topic, group, broker = get("t"), get("c"), get("bn")
    numbers = get("q"), get("so"), get("pt"), get("it"), get("n"), get("bm")
    distances = get("d")
    if (
        tuple(map(type, texts)) != _TEXTS
        or tuple(map(type, numbers)) != _NUMBERS
        or type(distances) is not list
        or not all(texts)
        or not 0 < len(distances) <= MESSAGES_MAX
        or not -_INT64_MAX <= min(numbers) <= max(numbers) <= _INT64_MAX
        or set(map(type, distances)) != _INTEGERS
        or "rp" in found
        or "rePutTimes" in found
    ):
        return None
    queue_id, start_offset, pop_time, invisible_time, _, acked = numbers
    return CheckPoint(
        topic=topic, group=group, queue_id=queue_id, start_offset=start_offset, pop_time=pop_time,
        invisible_time=invisible_time, broker=broker, count=len(distances), distances=tuple(distances),
        acked=acked & _ALL_BITS, put_times=0, suspend=_value(found, "sp", "suspend") is True,
    )  # fmt: skip


def _acked_offsets(found: Mapping[str, Any], tag: str) -> tuple[int, ...]:
    if tag == ACK_TAG:
        return (_number(found, "ao", "ackOffset"),)
    return tuple(dict.fromkeys(_numbers(found, "aol", "ackOffsetList") or ()))


def _put_times(found: Mapping[str, Any]) -> int:
    """Java takes a number that it cannot read for a large one."""
    text = _value(found, "rp", "rePutTimes")
    if text is None:
        return 0
    return int(text) if isinstance(text, int | str) and str(text).isdecimal() and len(str(text)) < 10 else 127


def _value(found: Mapping[str, Any], *names: str) -> object:
    for name in names:
        if (value := found.get(name)) is not None:
            return value
    return None


def _string(found: Mapping[str, Any], *names: str) -> str:
    value = _value(found, *names)
    return value if isinstance(value, str) else ""


def _number(found: Mapping[str, Any], *names: str) -> int:
    value = _value(found, *names)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not -_INT64_MAX - 1 <= value <= _INT64_MAX:
        raise FormatError(f"{names[0]!r} of a record of the revive topic is {value!r:.40}, which is no i64")
    return value


def _numbers(found: Mapping[str, Any], *names: str) -> tuple[int, ...] | None:
    value = _value(found, *names)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise FormatError(f"{names[0]!r} of a record of the revive topic is no list of numbers")
    return tuple(value)
