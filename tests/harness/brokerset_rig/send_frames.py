"""Frames around sending, drawn at random: as clients write them, with all that is special, and spoilt.

Shares no code with the product. A frame's opaque tells it apart from all others of its `FrameSource`, unless
bytes that were spoilt say otherwise.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_rig import mutations

TOPICS: Final = ("t", "orders", "Topic-With_A-Longer-Name%of|Several-Words", "%RETRY%group", "TopicTest")
"""Topics that exist at the beginning."""

NEW_TOPICS: Final = (
    "new",
    "new2",
    "%RETRY%other",
    "SCHEDULE_TOPIC_XXXX",
    "a b",
    "",
    "ü",
    "TBW102",
    "x" * 128,
)
"""Topics that a send makes, or is refused for."""

KEY_FIRST: Final = "7F000001ABCD18B4AAC2"
GROUPS: Final = ("pg", "DEFAULT_PRODUCER", "ü", "")
BORN_MS: Final = 1_700_000_000_000

SPECIAL: Final = (
    ("DELAY", "1"), ("DELAY", "0"), ("DELAY", "-1"), ("DELAY", "99"), ("DELAY", "x"), ("DELAY", ""),
    ("TIMER_DELAY_MS", "5"), ("TIMER_DELAY_SEC", "1"), ("TIMER_DELIVER_MS", "9"), ("TIMER_X", "1"),
    ("TRAN_MSG", "true"), ("TRAN_MSG", "false"), ("TRAN_MSG", "TRUE"), ("PGROUP", "pg"),
    ("POP_CK", "1 2 3"), ("POP_CK_OFFSET", "1"), ("__CRC32#", "123456789"), ("__CRC32#", ""),
    ("CLUSTER", "other"), ("MSG_REGION", "other"), ("TRACE_ON", "false"), ("INNER_NUM", "3"), ("INNER_BASE", "1"),
    ("INNER_MULTI_DISPATCH", "%LMQ%a"), ("INNER_MULTI_DISPATCH", "%LMQ%a,%LMQ%b"), ("INNER_MULTI_DISPATCH", "%LMQ%b"),
    ("_SYS_MSG_PRIORITY_", "0"), ("_SYS_MSG_PRIORITY_", "9"), ("_SYS_MSG_PRIORITY_", "x"),
    ("INNER_MULTI_DISPATCH", "q"), ("INNER_MULTI_QUEUE_OFFSET", "1"), ("REPLY_TO_CLIENT", "c"), ("__LITE_TOPIC", "l"),
    ("WAIT", "false"), ("WAIT", "true"), ("WAIT", "False"), ("__SHARDINGKEY", "k"), ("RETRY_TOPIC", "t"),
    ("ORDER_STAMP", "1,2,3"), ("ORDER_STAMP", "x"), ("KEYS", ""), ("TAGS", ""), ("UNIQ_KEY", ""), ("", "v"), ("", ""),
    ("TAGS", "ü€😀"), ("KEYS", "ü a"), ("KEYS", " "), ("KEYS", "a  b a"), ("KEYS", " a "), ("UNIQ_KEY", "ü"),
    ("UNIQ_KEY", "a b"), ("UNIQ_KEY", "%s%d"), ("UNIQ_KEY", 'q"\\'), ("note", "DELAY"), ("DELAYED", "1"), ("note", "UNIQ_KEY"),
    ("xUNIQ_KEY", "no"), ("xKEYS", "no"), ("xTAGS", "no"), ("note", "#"), ("a#b", "c"), ("BATCH_TRAN_MSG", "1"),
    ("note", "\x00"), ("note", "\u2028</&>"), ("note", "\x7f\x1f"), ("note", "\\u0001"), ("EXTEND_UNIQ_INFO", "z"),
)  # fmt: skip
"""Properties that mean something to the broker, or nearly do."""

WISHES: Final = (
    ("TIMER_DELAY_SEC", "60"), ("TIMER_DELAY_SEC", "3600"), ("TIMER_DELAY_MS", "5000"), ("TIMER_DELAY_MS", "070000"),
    ("TIMER_DELIVER_MS", "1700000300000"), ("TIMER_DELAY_SEC", "259200"), ("TIMER_DELAY_MS", "999"),
    ("TIMER_DELAY_MS", "0"), ("TIMER_DELIVER_MS", "1"), ("TIMER_DELAY_SEC", "259201"), ("TIMER_DELAY_MS", "-7"),
    ("TIMER_DELAY_SEC", "9223372036854775807"), ("TIMER_DELAY_MS", "99999999999999999999"), ("TIMER_DELAY_SEC", ""),
)  # fmt: skip
"""Times of delivery; the last ones have come already, are too far, or are none."""

WISHES_TAKEN: Final = 6
"""So many of the first are taken."""

NEARLY_ASIDE: Final = (
    ("TRAN_MSG", "true"), ("PGROUP", ""), ("PGROUP", "other"), ("REAL_TOPIC", "t"), ("REAL_QID", "1"), ("TRAN_P", "1"),
    ("TRANSACTION_CHECK_TIMES", "1"), ("__transactionId__", "x"), ("TIMER_OUT_MS", "5"), ("TIMER_DEL_UNIQKEY", "x"),
    ("TIMER_ROLL_TIMES", "1"), ("TIMER_DELAY_MS", "9000"), ("xTRAN_MSG", "true"), ("xPGROUP", "pg"), ("xTIMER_DELAY_SEC", "9"),
    ("TRAN_PREPARED_QUEUE_OFFSET", "0"), ("WAIT", "false"), ("note", "PGROUP"),
)  # fmt: skip
"""What makes such a message unusual, or nearly does."""

ODD_JSON: Final = ('"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', "1e5", "1.0", "-0", "01", "+1", "[]", "{}", "[[[[]]]]", "null", "true",
                   '{"a":{"b":[1,{"c":null}]}}', "18446744073709551616", "9223372036854775807", '"\\/"', '"\\x"', "'a'", "NaN", '"' + "é" * 40 + '"')  # fmt: skip
"""JSON values, and what is none."""

PERMISSIONS: Final = ("brokerPermission=4", "brokerPermission=6", "brokerPermission=6", "brokerPermission=2")
WORDS_OF_ANSWERS: Final = (
    "regionId=a b", 'regionId="%d"', "regionId=ü", "regionId=DefaultRegion", "traceOn=false", "traceOn=true",
)  # fmt: skip
"""Settings that a broker can change while it runs."""

Frame = tuple[str, bytes]
"""Kind and bytes."""


@dataclass
class FrameSource:
    """Draws frames; `source` says it all, so the same one gives the same frames."""

    source: random.Random
    body_max: int
    """`maxMessageSize` of the broker: bodies are about as large at most."""

    answers_wait: bool = False
    """Whether answers are sent later than messages are stored: then the two paths tell of settings that were
    changed meanwhile at different times."""

    queues: int = 4
    opaque: int = field(default=0)

    def plain(self) -> Frame:
        """What a producer sends all the time: a message or a batch of one, of any client."""
        source = self.source
        style = source.choice(STYLES)
        if source.random() < 0.25:
            return self._sent(
                "batch", style, 320, self._batch_ext(), self._batch(source.randrange(1, 9), plain=True)
            )
        topic = source.choice(TOPICS[:2])
        ext = self._ext(topic, self.properties(plain=True))
        return self._sent("plain", style, 310, ext, self.body(), flag=2 if source.random() < 0.1 else 0)

    def aside(self) -> Frame:
        """What clients send that is put aside: halves and timers, and now and then one that differs a little."""
        source = self.source
        plain = source.random() < 0.8
        pairs = [("UNIQ_KEY", self.unique_key()), ("WAIT", "true")]
        kind = source.choice(("half", "timer"))
        if kind == "half":
            pairs += [("TRAN_MSG", "true"), ("PGROUP", source.choice(("pg", "pg", "ü")))]
        else:
            pairs.append(source.choice(WISHES[:WISHES_TAKEN] if plain else WISHES))
        if source.random() < 0.5:
            pairs += [("TAGS", "A"), ("KEYS", source.choice(("k1", "k1 k2")))]
        if not plain:
            pairs += [source.choice((*SPECIAL, *NEARLY_ASIDE)) for _ in range(source.choice((1, 1, 2)))]
        if source.random() < 0.5:
            source.shuffle(pairs)
        if not plain and source.random() < 0.2:
            pairs.pop()
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
        if source.random() < 0.4:
            text = text[:-1]
        if not plain and source.random() < 0.2:
            at = source.randrange(len(text) + 1)
            text = (
                text[:at] + source.choice(("\x01", "\x02", "TIMER_", "x", "TRAN_MSG\x01true\x02")) + text[at:]
            )
        ext = self._ext(source.choice((*TOPICS[:2], *TOPICS[:2], *TOPICS)), text)
        if kind == "half":
            ext["f"] = source.choice(("4", "4", "4", "5", "0", "1028", "12", "8"))
        if source.random() < 0.03:
            ext["e"] = "4"
        flag = 2 if source.random() < 0.1 else 0
        return self._sent(
            kind if plain else "nearly " + kind, source.choice(STYLES), 310, ext, self.body(), flag=flag
        )

    def plain_asides(self) -> Frame:
        """Those among plain ones."""
        return self.source.choice((self.aside, self.aside, self.aside, self.plain))()

    def mixed_asides(self) -> Frame:
        """Those among plain ones, and among requests of other kinds."""
        draws = (
            self.aside,
            self.aside,
            self.aside,
            self.aside,
            self.plain,
            self._special,
            self._other_request,
        )
        return self.source.choice(draws)()

    def nearly_plain(self) -> Frame:
        """A plain one, or one that differs from it in little; at times its topic changes before it."""
        if self.source.random() < 0.04:
            return self._configuring()
        draws = (
            self.plain,
            self._special,
            self._special,
            self._odd_fields,
            self._odd_batch,
            self._spoilt_header,
            self.aside,
        )
        return self.source.choice(draws)()

    def crowding(self) -> Frame:
        """A plain one, or what clients send in between, which may wait for its answer."""
        return self.source.choice((self.plain, self.plain, self._special, self._other_request))()

    def frame(self) -> Frame:
        """One of any kind."""
        source = self.source
        kinds: tuple[tuple[int, Callable[[], Frame]], ...] = (
            (50, self.plain), (6, self.aside), (14, self._special), (8, self._odd_fields), (6, self._old_code), (6, self._odd_batch), (4, self._binary),
            (4, self._elsewhere), (3, self._other_request), (8, self._spoilt_header), (2, self._spoilt_bytes), (1, self._configuring),
        )  # fmt: skip
        wanted = source.randrange(sum(weight for weight, _ in kinds))
        for weight, draw in kinds:
            wanted -= weight
            if wanted < 0:
                return draw()
        raise AssertionError("the weights do not add up")

    def completed(self, ext: Mapping[str, Any], body: bytes) -> dict[str, Any]:
        """The fields as they are sent; who signs adds the signature."""
        return dict(ext)

    def written(self, text: str) -> str:
        """The header as it is sent."""
        return text

    # -- parts --------------------------------------------------------------------------------------------

    def unique_key(self) -> str:
        return f"{KEY_FIRST}{self.source.randrange(1 << 24):012X}"

    def body(self) -> bytes:
        """Mostly some hundred bytes; at times none, or as many as the broker takes, or one more."""
        source = self.source
        pick = source.random()
        if pick < 0.02:
            size = source.choice((0, 1, self.body_max - 1, self.body_max, self.body_max + 1))
        else:
            size = source.randrange(1, 40 if pick < 0.5 else 600)
        return (b'%08x{}"\xff\x00' % source.randrange(1 << 32) * (size // 13 + 1))[:size]

    def properties(self, *, plain: bool = False) -> str:
        """Properties as clients write them; not `plain`: with special ones, and separators where none belong."""
        source = self.source
        pairs: list[tuple[str, str]] = []
        if plain or source.random() < 0.8:
            pairs.append(("UNIQ_KEY", self.unique_key()))
        for name, values in (
            ("WAIT", ("true",)),
            ("TAGS", ("A", "TagB", "")),
            ("KEYS", ("k1", "k1 k2 k3", "order-7")),
            ("note", ("x", "ü", "7")),
        ):
            if source.random() < 0.4:
                pairs.append((name, source.choice(values)))
        if not plain:
            pairs += [source.choice(SPECIAL) for _ in range(source.choice((0, 1, 1, 2)))]
            if source.random() < 0.1:
                pairs.append(("UNIQ_KEY", self.unique_key()))
        if source.random() < 0.5:
            source.shuffle(pairs)
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
        if source.random() < 0.2:
            text = text[:-1]
        if plain:
            return text
        pick = source.random()
        if pick < 0.12:
            at = source.randrange(len(text) + 1)
            text = (
                text[:at]
                + source.choice(("\x01", "\x02", "\x02\x02", "\x01\x01", "UNIQ_KEY\x01", "KEYS", "\x00", "#"))
                + text[at:]
            )
        elif pick < 0.14:
            text += "long\x01" + "y" * source.choice((200, 300, 32_000, 32_500, 32_700, 33_000))
        return text

    def _ext(self, topic: str, properties: str | None) -> dict[str, Any]:
        """The fields of 310 and 320."""
        source = self.source
        ext: dict[str, Any] = {
            "a": source.choice(GROUPS), "b": topic, "c": "TBW102", "d": "4", "e": str(source.randrange(-1 if source.random() < 0.1 else 0, self.queues)),
            "f": "0", "g": str(BORN_MS + source.randrange(10_000)), "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        if source.random() < 0.15:
            ext |= {
                "f": source.choice(("1", "2", "3", "256", "1025")),
                "h": source.choice(("0", "1", "255", "256", "2147483647")),
            }
        if source.random() < 0.1:
            ext["j"] = source.choice(("1", "16", "255", "2147483647"))
        if source.random() < 0.3:
            ext["n"] = "broker-a"
        if source.random() < 0.2:
            ext["l"] = source.choice(("0", "16"))
        return ext

    def _batch_ext(self) -> dict[str, Any]:
        return self._ext(
            self.source.choice(TOPICS[:2]), "" if self.source.random() < 0.5 else self.properties(plain=True)
        ) | {"m": "true"}

    def _batch(self, count: int, *, plain: bool) -> bytes:
        """The body of a batch; not `plain`: some of its numbers may be wrong."""
        source = self.source
        parts = []
        for _ in range(count):
            body, properties = self.body(), self.properties(plain=plain).encode("utf-8", "replace")
            head = [20 + len(body) + 2 + len(properties), 0, 0, source.choice((0, 0, 7, -1)), len(body)]
            properties_size = len(properties)
            if not plain and source.random() < 0.1:
                which = source.randrange(6)
                if which == 5:
                    properties_size += source.choice((-1, 1, -70_000, 300))
                else:
                    head[which] += source.choice((-1, 1, 1 << 20, -(1 << 31)))
            numbers = struct.pack(">iiiii", *(_clamp(number, 32) for number in head))
            parts.append(numbers + body + struct.pack(">h", _clamp(properties_size, 16)) + properties)
        data = b"".join(parts)
        if not plain and source.random() < 0.1:
            data = (
                data[: source.randrange(len(data) + 1)]
                if source.random() < 0.5
                else data + b"\0" * source.randrange(1, 30)
            )
        return data

    def _sent(
        self,
        kind: str,
        style: Callable[[dict[str, Any]], str],
        code: int,
        ext: Mapping[str, Any],
        body: bytes,
        *,
        flag: int = 0,
    ) -> Frame:
        text = self.written(style(self._header(code, self.completed(ext, body), flag)))
        return kind, _framed(text.encode("utf-8", "surrogatepass"), body)

    def _header(self, code: int, ext: Mapping[str, Any], flag: int = 0) -> dict[str, Any]:
        self.opaque += 1
        return {"code": code, "extFields": dict(ext), "flag": flag, "opaque": self.opaque}

    # -- kinds --------------------------------------------------------------------------------------------

    def _special(self) -> Frame:
        topic = self.source.choice((*TOPICS[:2], *TOPICS[:2], *TOPICS))
        return self._sent(
            "special",
            self.source.choice(STYLES),
            310,
            self._ext(topic, self.properties()),
            self.body(),
            flag=self.source.choice((0, 0, 0, 2)),
        )

    def _odd_fields(self) -> Frame:
        """Fields that are missing, doubled, of other types, or out of range."""
        source = self.source
        ext = self._ext(source.choice(TOPICS[:3]), self.properties(plain=source.random() < 0.5))
        for _ in range(source.choice((1, 1, 2))):
            name = source.choice("abcdefghijkmeefhj")
            pick = source.randrange(5)
            if pick == 0:
                ext.pop(name, None)
            elif pick == 1:
                ext[name] = None
            elif pick == 2:
                ext[name] = source.choice(mutations.ODD_TEXTS)
            elif pick == 3:
                ext[name] = source.choice(mutations.ODD_VALUES)
            else:
                ext[
                    source.choice(
                        ("z", "AccessKey", "brokersetBornHost", "brokersetForwarded", "topic", "B", "bb")
                    )
                ] = source.choice(("1", "10.0.0.9:7", "true", ""))
        if source.random() < 0.3:
            ext["m"] = source.choice(("True", "TRUE", "1", "", None, True, "true "))
        body = self.body()
        header = self._header(310, self.completed(ext, body), source.choice((0, 0, 2, 4, 3, 1, -1, 2**31)))
        if source.random() < 0.2:
            header[
                source.choice(("code", "opaque", "flag", "version", "language", "remark", "extFields"))
            ] = source.choice((*mutations.ODD_VALUES, "JAVA", "", 310, 2**31 - 1, -(2**31), -1, 2**32))
        return "odd fields", _framed(source.choice(STYLES)(header).encode("utf-8", "surrogatepass"), body)

    def _old_code(self) -> Frame:
        """SEND_MESSAGE (10), with long names."""
        source = self.source
        batch = source.random() < 0.2
        letters = self._ext(source.choice(TOPICS[:3]), self.properties(plain=source.random() < 0.7))
        names = dict(zip("abcdefghijklmn", LONG_NAMES, strict=True))
        ext = {names[letter]: value for letter, value in letters.items()}
        ext["batch"] = source.choice(("true", "1")) if batch else source.choice(("false", "0", None))
        body = self._batch(source.randrange(1, 5), plain=True) if batch else self.body()
        return self._sent("code 10", source.choice(STYLES), 10, ext, body)

    def _odd_batch(self) -> Frame:
        source = self.source
        ext = self._batch_ext()
        if source.random() < 0.3:
            ext["i"] = self.properties()
        if source.random() < 0.2:
            ext["f"] = source.choice(("4", "8", "16", "48", "128", "1024"))
        code = source.choice((320, 320, 310))
        return self._sent(
            "odd batch",
            source.choice(STYLES),
            code,
            ext,
            self._batch(source.randrange(6), plain=False),
            flag=source.choice((0, 2)),
        )

    def _binary(self) -> Frame:
        """A header in RocketMQ's binary layout."""
        source = self.source
        ext = self._ext(source.choice(TOPICS[:2]), self.properties(plain=source.random() < 0.7))
        body = self.body()
        ext = self.completed(ext, body)
        self.opaque += 1
        fields = b"".join(
            struct.pack(">h", len(name))
            + name.encode()
            + struct.pack(">i", len(value.encode()))
            + value.encode()
            for name, value in ext.items()
            if isinstance(value, str)
        )
        header = struct.pack(
            ">hBhiii", 310, source.choice((0, 1, 200)), 479, self.opaque, source.choice((0, 2)), 0
        )
        header += struct.pack(">i", len(fields)) + fields
        return "binary", struct.pack(
            ">II", 4 + len(header) + len(body), 1 << 24 | len(header)
        ) + header + body

    def _elsewhere(self) -> Frame:
        """To topics that are not there yet, or may not be sent to."""
        source = self.source
        ext = self._ext(source.choice(NEW_TOPICS), self.properties(plain=True))
        if source.random() < 0.3:
            ext["e"] = source.choice(("4", "7", "8", "-2", "2147483647"))
        return self._sent("elsewhere", source.choice(STYLES), 310, ext, self.body())

    def _other_request(self) -> Frame:
        """What clients send in between: pulls, heartbeats, offsets, unknown codes, answers."""
        source = self.source
        topic, queue = source.choice((*TOPICS[:3], *TOPICS[4:] * 3)), str(source.randrange(self.queues))
        pull = {
            "consumerGroup": "group", "topic": topic, "queueId": queue, "queueOffset": str(source.choice((0, 0, 0, 1, 5, 40, 1 << 40))), "maxMsgNums": "8",
            "sysFlag": source.choice(("4", "6")), "commitOffset": "0", "suspendTimeoutMillis": "300", "subscription": source.choice(("*", "A")),
            "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        code, ext, body = source.choice(
            (
                (11, pull, b""), (11, pull, b""), (30, {"topic": topic, "queueId": queue}, b""), (31, {"topic": topic, "queueId": queue}, b""),
                (34, {}, b'{"clientID":"c","producerDataSet":[{"groupName":"pg"}]}'), (12, {"topic": topic, "key": "k1", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": "99999999999999"}, b""),
                (14, {"consumerGroup": "group", "topic": topic, "queueId": queue}, b""), (31_000, {}, b"?"), (324, {}, b""),
            )
        )  # fmt: skip
        return self._sent(
            "other", source.choice(STYLES), code, ext, body, flag=source.choice((0, 0, 0, 1, 2))
        )

    def _configuring(self) -> Frame:
        """Requests that change what a send finds: topics, and settings of the broker."""
        source = self.source
        topic = source.choice((*TOPICS[:2], NEW_TOPICS[0]))
        put = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(source.choice((1, 2, 4, 8))), "writeQueueNums": str(source.choice((0, 1, 4, 8))),
            "perm": source.choice(("6", "6", "6", "4", "2", "0")), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
            "order": source.choice(("false", "false", "true")), "attributes": "",
        }  # fmt: skip
        setting = source.choice(PERMISSIONS if self.answers_wait else (*PERMISSIONS, *WORDS_OF_ANSWERS))
        whole = dict(put, readQueueNums="4", writeQueueNums="4", perm="6", order="false")
        code, ext, body = source.choice(
            (
                (17, put, b""),
                (17, whole, b""),
                (215, {"topic": topic}, b""),
                (25, {}, setting.encode()),
                (25, {}, b"brokerPermission=6"),
            )
        )
        return self._sent("configuring", java, code, ext, body)

    def _spoilt_header(self) -> Frame:
        """A plain send whose JSON is not what it was; its lengths are right."""
        source = self.source
        ext = self._ext(source.choice(TOPICS[:2]), self.properties(plain=source.random() < 0.7))
        body = self.body()
        header = self._header(310, self.completed(ext, body))
        text = source.choice(STYLES)(header).encode("utf-8", "surrogatepass")
        for _ in range(source.choice((1, 1, 2))):
            text = source.choice(HEADER_SPOILERS)(text, source) or b"{"
        return "spoilt header", _framed(text, body)

    def _spoilt_bytes(self) -> Frame:
        """A plain frame with bytes flipped, put in, left out, or lengths that lie."""
        source = self.source
        _, data = self.plain()
        if source.random() < 0.4:
            word = source.randrange(2) * 4
            (number,) = struct.unpack_from(">I", data, word)
            return "spoilt bytes", data[:word] + struct.pack(
                ">I", (number + source.choice((-1, 1, 4, -4))) & 0xFFFFFFFF
            ) + data[word + 4 :]
        return "spoilt bytes", mutations.mutate_bytes(data, source)[0]


def _clamp(number: int, bits: int) -> int:
    return max(-(1 << bits - 1), min(number, (1 << bits - 1) - 1))


def _framed(header: bytes, body: bytes) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


# -- how clients write a header -----------------------------------------------------------------------------

LONG_NAMES: Final = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "bname",
)  # fmt: skip


def java(header: dict[str, Any]) -> str:
    """fastjson: no spaces, no nulls, raw text but for control characters."""
    fields = {**header, "language": "JAVA", "serializeTypeCurrentRPC": "JSON", "version": 479}
    fields["extFields"] = _without_nulls(fields.get("extFields"))
    return json.dumps(dict(sorted(fields.items())), separators=(",", ":"), ensure_ascii=False)


def cpp(header: dict[str, Any]) -> str:
    """jsoncpp: as Java, with a line's end; small numbers may be bare."""
    fields = {**header, "language": "CPP", "serializeTypeCurrentRPC": "JSON", "version": 431}
    ext = _without_nulls(fields.get("extFields"))
    opaque = header["opaque"]
    if isinstance(ext, dict) and isinstance(opaque, int) and opaque % 3 == 0:
        ext = {
            name: int(value) if name in ("e", "h", "j", "queueId") and _is_digits(value) else value
            for name, value in ext.items()
        }
    fields["extFields"] = ext
    return json.dumps(dict(sorted(fields.items())), separators=(",", ":"), ensure_ascii=False) + "\n"


def go(header: dict[str, Any]) -> str:
    """encoding/json: fields of a struct in their order, HTML's characters escaped."""
    fields = {"code": header["code"], "language": "GO", "version": 317, "opaque": header["opaque"], "flag": header["flag"], "remark": "",
              "extFields": _without_nulls(header.get("extFields")), **{name: value for name, value in header.items() if name in ("language", "version", "remark")}}  # fmt: skip
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    for sign in "<>&\u2028":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def node(header: dict[str, Any]) -> str:
    """JSON.stringify, with nulls."""
    return json.dumps(
        {**header, "language": "NODE", "version": 63}, separators=(",", ":"), ensure_ascii=False
    )


def python(header: dict[str, Any]) -> str:
    """json.dumps: spaces, and everything but ASCII escaped."""
    return json.dumps(
        {"language": "PYTHON", "version": 0, **header, "serializeTypeCurrentRPC": "JSON", "remark": None}
    )


def ours(header: dict[str, Any]) -> str:
    """Our own client."""
    fields = {
        **header,
        "language": header.get("language", "PYTHON"),
        "serializeTypeCurrentRPC": "JSON",
        "version": header.get("version", 513),
    }
    fields["extFields"] = _without_nulls(fields.get("extFields"))
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def upper_case(header: dict[str, Any]) -> str:
    """As Java, with every control character escaped in upper case and slashes escaped."""
    return java(header).replace("\\u00", "\\u00").replace("/", "\\/")


STYLES: Final[Sequence[Callable[[dict[str, Any]], str]]] = (
    java,
    java,
    java,
    cpp,
    go,
    node,
    python,
    ours,
    ours,
    upper_case,
)


def _without_nulls(ext: Any) -> Any:
    return {name: value for name, value in ext.items() if value is not None} if isinstance(ext, dict) else ext


def _is_digits(value: Any) -> bool:
    return isinstance(value, str) and value.isdigit() and len(value) < 9


# -- how a header is spoilt ---------------------------------------------------------------------------------


def _flip(text: bytes, source: random.Random) -> bytes:
    spoilt = bytearray(text)
    spoilt[source.randrange(len(spoilt))] ^= 1 << source.randrange(8)
    return bytes(spoilt)


def _insert(text: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(text) + 1)
    return (
        text[:at]
        + source.choice(
            (
                b" ",
                b"\n",
                b",",
                b'"',
                b"\\",
                b"{",
                b"}",
                b"\0",
                b"\xff",
                b"\xc3",
                b"\xed\xa0\x80",
                b"0",
                b"\t",
                b"\x01",
                b"\x02",
            )
        )
        + text[at:]
    )


def _delete(text: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(text))
    return text[:at] + text[at + source.choice((1, 1, 2, 9)) :]


def _truncate(text: bytes, source: random.Random) -> bytes:
    return text[: source.randrange(len(text) + 1)]


def _double_field(text: bytes, source: random.Random) -> bytes:
    """One more field in front or at the end of an object; the last of equal names counts."""
    name = source.choice(
        (b"b", b"e", b"i", b"m", b"code", b"opaque", b"flag", b"extFields", b"version", b"language", b"z")
    )
    value = source.choice((b'"1"', b"1", b"310", b'"t"', b"null", b"{}", b'"orders"', b'""', b'"true"'))
    pair = b'"' + name + b'":' + value
    places = [i for i, sign in enumerate(text) if sign in b"{}"]
    if not places:
        return text
    at = source.choice(places)
    return (
        text[: at + 1] + pair + b"," + text[at + 1 :]
        if text[at : at + 1] == b"{"
        else text[:at] + b"," + pair + text[at:]
    )


def _odd_value(text: bytes, source: random.Random) -> bytes:
    """The value behind a colon is something else."""
    places = [i for i, sign in enumerate(text) if sign == ord(":")]
    if not places:
        return text
    at = source.choice(places) + 1
    end = at
    if text[at : at + 1] == b'"':
        end = text.find(b'"', at + 1) + 1 or len(text)
    else:
        while end < len(text) and text[end] not in b",}":
            end += 1
    return text[:at] + source.choice(ODD_JSON).encode() + text[end:]


def _escape(text: bytes, source: random.Random) -> bytes:
    """A letter or digit as an escape: the same text to whoever reads JSON."""
    places = [i for i, sign in enumerate(text) if chr(sign).isalnum() and sign < 128]
    if not places:
        return text
    at = source.choice(places)
    return text[:at] + b"\\u%04X" % text[at] + text[at + 1 :]


def _nest(text: bytes, source: random.Random) -> bytes:
    depth = source.choice((3, 60, 1030))
    return text.replace(b'"flag"', b'"x":' + b"[" * depth + b"]" * depth + b',"flag"', 1)


HEADER_SPOILERS: Final = (
    _flip,
    _flip,
    _insert,
    _insert,
    _delete,
    _truncate,
    _double_field,
    _double_field,
    _odd_value,
    _odd_value,
    _escape,
    _escape,
    _nest,
)
