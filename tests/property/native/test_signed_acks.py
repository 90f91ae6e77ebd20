"""The native core reads a signed ack only if Python would let it pass: signature and rights are right.

The other way about, it reads the plain ones, or nothing would be gained.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_acl.signatures import ACCESS_KEY, SIGNATURE, content, is_signed_by, signature
from brokerset_broker.requests.pop.plain_acks import done_pieces
from brokerset_formats import native
from brokerset_protocol.commands import FRAME_SIZE_MAX, decode

pytestmark = pytest.mark.skipif(native.core is None, reason="there is no native core")

PASSWORDS = {"app": "secret", "owner": "", "Bücher": "p" * 80}
GROUPS, TOPICS, SOURCES = ("g", "%RETRY%g", "G ü"), ("t", "%RETRY%g_t", "gt"), ("10.0.0.1", "10.0.0.2")
HANDLE = "70 1700000000000 60000 1 0 b-0 3"
PREFIX = 8

names = st.sampled_from(sorted(PASSWORDS))
texts = st.text(st.characters(codec="utf-8", exclude_characters='"\\', min_codepoint=32), max_size=6)


@st.composite
def acks(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Fields of an ack in any order, some of them twice."""
    offset = draw(st.integers(70, 133))
    fields: list[tuple[str, Any]] = [
        ("consumerGroup", draw(st.sampled_from(GROUPS))),
        ("topic", draw(st.sampled_from(TOPICS))),
        ("queueId", "3"),
        ("extraInfo", f"{HANDLE} {offset}"),
        ("offset", str(offset)),
    ]
    for name in ("bname", "ns", "nsd", "lo", "requestSource", "proxyFrowardClientId"):
        if draw(st.booleans()):
            fields.append((name, draw(texts | st.none())))
    fields += draw(st.lists(st.sampled_from(fields), max_size=2))
    return draw(st.permutations(fields))


def frame_of(fields: list[tuple[str, Any]], body: bytes = b"") -> bytes:
    """A request with a JSON header that has these fields as they are given."""
    items = ",".join(f"{json.dumps(k)}:{json.dumps(v, ensure_ascii=False)}" for k, v in fields)
    header = f'{{"code":200051,"extFields":{{{items}}},"flag":0,"language":"JAVA","opaque":7,"version":513}}'
    data = header.encode()
    size = 4 + len(data) + len(body)
    return size.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data + body


def signed(fields: list[tuple[str, Any]], name: str, password: str, body: bytes = b"") -> bytes:
    """The same, signed."""
    fields = [(ACCESS_KEY, name), *fields]
    unsigned = frame_of(fields, body)
    command = decode(unsigned, 4, len(unsigned))
    return frame_of([(SIGNATURE, signature(password, content(command.ext, command.body))), *fields], body)


def reader_with(allowed: set[tuple[str, str, str, str]]) -> Any:
    """The core's reader, which knows who may ack."""
    assert native.core is not None
    reader = native.core.AckReader(done_pieces(), FRAME_SIZE_MAX, True)
    for name, *about in allowed:
        reader.allow(name.encode(), PASSWORDS[name].encode(), *(text.encode() for text in about))
    return reader


allowances = st.sets(
    st.tuples(names, st.sampled_from(GROUPS), st.sampled_from(TOPICS), st.sampled_from(SOURCES)), max_size=40
)


@given(acks(), names, allowances, st.sampled_from(SOURCES))
def test_a_rightly_signed_ack_is_read_exactly_if_its_sender_may(
    fields: list[tuple[str, Any]], name: str, allowed: set[tuple[str, str, str, str]], source: str
) -> None:
    """By user, group, topic and address together."""
    data = signed(fields, name, PASSWORDS[name])
    last = dict(fields)

    runs = reader_with(allowed).read(data, 10, source)

    assert bool(runs) == ((name, last["consumerGroup"], last["topic"], source) in allowed)
    for found, *_ in runs:
        assert found == (last["topic"], last["consumerGroup"], "3", HANDLE)


@given(acks(), names, st.data())
def test_whatever_is_altered_is_read_only_with_a_right_signature(
    fields: list[tuple[str, Any]], name: str, data: st.DataObject
) -> None:
    """Any byte becomes any other: what the core still reads, Python takes for signed by somebody who may."""
    everything = {(user, g, t, s) for user in PASSWORDS for g in GROUPS for t in TOPICS for s in SOURCES}
    frame = bytearray(signed(fields, name, PASSWORDS[name]))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(PREFIX, len(frame) - 1))] = data.draw(st.integers(0, 255))

    runs = reader_with(everything).read(bytes(frame), 10, SOURCES[0])

    for (topic, group, _, _), *_ in runs:
        command = decode(bytes(frame), 4, len(frame))  # what Python cannot read must not be served: it raises
        password = PASSWORDS[command.ext[ACCESS_KEY]]
        assert is_signed_by(password, content(command.ext, command.body), command.ext.get(SIGNATURE))
        assert (topic, group) == (command.ext["topic"], command.ext["consumerGroup"])


@pytest.mark.parametrize("wrong", ["password", "unsigned", "body", "forgotten"])
def test_what_is_not_signed_is_not_read(wrong: str) -> None:
    """Another password, no signature, bytes that nobody signed, and everything once users have changed."""
    fields = [
        ("consumerGroup", "g"), ("topic", "t"), ("queueId", "3"), ("extraInfo", f"{HANDLE} 70"),
        ("offset", "70"),
    ]  # fmt: skip
    reader = reader_with({("app", "g", "t", SOURCES[0])})
    right = signed(fields, "app", "secret")
    assert reader.read(right * 3, 10, SOURCES[0])[-1][2] == 3 * len(right)
    if wrong == "forgotten":
        reader.forget_signers()
    frame = {
        "password": signed(fields, "app", "other"),
        "unsigned": frame_of([(ACCESS_KEY, "app"), *fields]),
        "body": signed(fields, "app", "secret", b"x"),
        "forgotten": right,
    }[wrong]

    assert reader.read(frame + right, 10, SOURCES[0]) == []
