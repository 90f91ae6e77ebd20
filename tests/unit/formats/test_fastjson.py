"""The JSON of fastjson is read, standard JSON is written."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from brokerset_formats import fastjson
from brokerset_formats.errors import FormatError


def test_bare_integer_keys_become_text(wire_body: Callable[[str], bytes]) -> None:
    """Java's answers with integers as keys are read."""
    offsets = fastjson.loads(wire_body("broker-43-all-consumer-offsets"))
    cluster = fastjson.loads(wire_body("namesrv-106-cluster"))

    assert offsets["offsetTable"] == {"adm-topic@adm-group": {"0": 0, "1": 0, "2": 0, "3": 0}}
    addresses = cluster["brokerAddrTable"]["broker-a"]["brokerAddrs"]
    assert addresses == {"0": "127.0.0.1:10911", "2": "127.0.0.1:11911"}


def test_objects_as_keys_become_their_json(wire_body: Callable[[str], bytes]) -> None:
    """Java's answer with queues as keys is read; the keys are JSON again."""
    stats = fastjson.loads(wire_body("broker-202-topic-stats"))

    assert len(stats["offsetTable"]) == 4
    first = stats["offsetTable"]['{"brokerName":"broker-a","queueId":0,"topic":"wire"}']
    assert first == {"lastUpdateTimestamp": 1795253110793, "maxOffset": 8, "minOffset": 0}
    assert stats["topicPutTps"] == 0.3003153310976525


def test_strings_are_left_alone() -> None:
    """What looks like a key inside a string stays as it is, in both parsers."""
    text = '{"a":"{1:2,3:4}\\" ,5:6",7:[1,-2.5e3,true,false,null,"\\u00e9"]}'

    assert fastjson.loads(text) == {"a": '{1:2,3:4}" ,5:6', "7": [1, -2500.0, True, False, None, "é"]}
    with_object_key = fastjson.loads("{{}: " + text + "}")
    assert with_object_key == {"{}": fastjson.loads(text)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{1}",
        "{1:}",
        '{{"a":1}}',
        '{{"a":1}:1,}x',
        "[1,2",
        '{{}:"',
        '{{}:"\\ud800"}',
        "{{}:" * 200,
        "{" * 200,
        "[" * 5000,
        "{{}:١}",
        b"\xff\xfe",
        "{{}:tru}",
    ],
)
def test_damaged_json(text: str | bytes) -> None:
    """Anything else is a FormatError, however deep it is nested."""
    with pytest.raises(FormatError):
        fastjson.loads(text)


@pytest.mark.parametrize(
    "text",
    ['"' + '\\"' * 200_000, '"' + '\\"' * 200_000 + "\\", "{" * 200_000, "{1" * 200_000, ",1 " * 200_000],
    ids=["no end", "half an escape", "keys in keys", "no colons", "commas"],
)
def test_hostile_text_is_refused_at_once(text: str) -> None:
    """The time that damaged JSON takes grows with its size, not with the square of it: this took an hour."""
    began = time.perf_counter()
    with pytest.raises(FormatError):
        fastjson.loads(text)

    assert time.perf_counter() - began < 5


def test_objects_as_keys_can_be_refused() -> None:
    """Servers do not read them, because they are slow to read; bare integers as keys are read."""
    with pytest.raises(FormatError):
        fastjson.loads("{{}:1}", object_keys=False)

    assert fastjson.loads("{1:2}", object_keys=False) == {"1": 2}


def test_the_slow_parser_is_not_for_big_bodies() -> None:
    """Objects as keys are read up to a size only."""
    text = "{{}:[" + "1," * fastjson.OBJECT_KEYS_SIZE_MAX + "1]}"

    with pytest.raises(FormatError):
        fastjson.loads(text)


def test_integer_keys_are_written_quoted() -> None:
    """What we write is standard JSON on one line."""
    assert fastjson.dumps({"t": {0: 1, 1: [True, None]}}) == b'{"t":{"0":1,"1":[true,null]}}'


def test_pretty_layout_is_that_of_java() -> None:
    """A tab for each level, sorted keys, numbers in order, empty containers on one line."""
    value = {"b": {10: 1, 9: "x"}, "a": [], "c": {}, "d": ["p", {"q": False}]}

    assert fastjson.dumps_pretty(value).decode() == (
        '{\n\t"a":[],\n\t"b":{\n\t\t"9":"x",\n\t\t"10":1\n\t},\n\t"c":{},\n'
        '\t"d":[\n\t\t"p",\n\t\t{\n\t\t\t"q":false\n\t\t}\n\t]\n}'
    )
