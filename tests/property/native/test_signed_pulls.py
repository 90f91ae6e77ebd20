"""The native core reads a signed pull only if Python would let it pass: signature and rights are right.

The other way about, it reads the plain ones, or nothing would be gained.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_acl.signatures import ACCESS_KEY, SIGNATURE, content, is_signed_by, signature
from brokerset_broker.requests.replies import pull_pieces
from brokerset_formats import native
from brokerset_protocol.commands import FRAME_SIZE_MAX, decode

pytestmark = pytest.mark.skipif(native.core is None, reason="there is no native core")

PASSWORDS = {"app": "secret", "owner": "", "Bücher": "p" * 80}
GROUPS, TOPICS, SOURCES = ("g", "%RETRY%g", "G ü"), ("t", "%RETRY%g", "gt"), ("10.0.0.1", "10.0.0.2")
PREFIX = 8

names = st.sampled_from(sorted(PASSWORDS))
texts = st.text(st.characters(codec="utf-8", exclude_characters='"\\', min_codepoint=32), max_size=6)
numbers = st.integers(0, 10**6)
padded = st.builds("{:0{}d}".format, numbers, st.integers(1, 12))


@st.composite
def pulls(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Fields of a pull in any order, some of them twice, numbers also bare."""
    fields: list[tuple[str, Any]] = [
        ("consumerGroup", draw(st.sampled_from(GROUPS))),
        ("topic", draw(st.sampled_from(TOPICS))),
    ]
    for name in ("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis"):
        fields.append((name, draw(padded | numbers)))
    for name in ("subscription", "bname", "ns", "nsd", "lo", "requestSource", "proxyFrowardClientId"):
        if draw(st.booleans()):
            fields.append((name, draw(texts | st.none())))
    for name in ("subVersion", "maxMsgBytes"):
        if draw(st.booleans()):
            fields.append((name, draw(padded | st.none())))
    fields += draw(st.lists(st.sampled_from(fields), max_size=2))
    return draw(st.permutations(fields))


def frame_of(fields: list[tuple[str, Any]], body: bytes = b"") -> bytes:
    """A request with a JSON header that has these fields as they are given."""
    items = ",".join(f"{json.dumps(k)}:{json.dumps(v, ensure_ascii=False)}" for k, v in fields)
    header = (
        f'{{"code":11,"extFields":{{{items}}},"flag":0,"language":"JAVA","opaque":7,"version":513}}'.encode()
    )
    size = 4 + len(header) + len(body)
    return size.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def signed(fields: list[tuple[str, Any]], name: str, password: str, body: bytes = b"") -> bytes:
    """The same, signed."""
    fields = [(ACCESS_KEY, name), *fields]
    unsigned = frame_of(fields, body)
    command = decode(unsigned, 4, len(unsigned))
    return frame_of([(SIGNATURE, signature(password, content(command.ext, command.body))), *fields], body)


def reader_with(allowed: set[tuple[str, str, str, str]]) -> Any:
    """The core's reader, which knows who may read."""
    assert native.core is not None
    reader = native.core.PullReader(pull_pieces(), FRAME_SIZE_MAX, True)
    for name, group, topic, source in allowed:
        reader.allow(name.encode(), PASSWORDS[name].encode(), group.encode(), topic.encode(), source.encode())
    return reader


allowances = st.sets(
    st.tuples(names, st.sampled_from(GROUPS), st.sampled_from(TOPICS), st.sampled_from(SOURCES)), max_size=40
)


@given(pulls(), names, allowances, st.sampled_from(SOURCES))
def test_a_rightly_signed_pull_is_read_exactly_if_its_sender_may(
    fields: list[tuple[str, Any]], name: str, allowed: set[tuple[str, str, str, str]], source: str
) -> None:
    """By user, group, topic and address together."""
    data = signed(fields, name, PASSWORDS[name])
    last = dict(fields)

    pull = reader_with(allowed).read(data, 0, source)

    assert (pull is not None) == ((name, last["consumerGroup"], last["topic"], source) in allowed)
    if pull is not None:
        assert pull[2:4] == (last["consumerGroup"], last["topic"])


@given(pulls(), names, st.data())
def test_whatever_is_altered_is_read_only_with_a_right_signature(
    fields: list[tuple[str, Any]], name: str, data: st.DataObject
) -> None:
    """Any byte becomes any other: what the core still reads, Python takes for signed by somebody who may."""
    everything = {(user, g, t, s) for user in PASSWORDS for g in GROUPS for t in TOPICS for s in SOURCES}
    frame = bytearray(signed(fields, name, PASSWORDS[name]))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(PREFIX, len(frame) - 1))] = data.draw(st.integers(0, 255))

    pull = reader_with(everything).read(bytes(frame), 0, SOURCES[0])

    if pull is None:
        return
    command = decode(bytes(frame), 4, len(frame))  # what Python cannot read must not be served: it raises
    password = PASSWORDS[command.ext[ACCESS_KEY]]
    assert is_signed_by(password, content(command.ext, command.body), command.ext.get(SIGNATURE))
    assert pull[2:4] == (command.ext["consumerGroup"], command.ext["topic"])


@pytest.mark.parametrize("wrong", ["password", "unsigned", "body", "forgotten"])
def test_what_is_not_signed_is_not_read(wrong: str) -> None:
    """Another password, no signature, bytes that nobody signed, and everything once users have changed."""
    fields = [
        ("consumerGroup", "g"), ("topic", "t"), ("queueId", "0"), ("queueOffset", "0"), ("maxMsgNums", "1"),
        ("sysFlag", "0"), ("commitOffset", "0"), ("suspendTimeoutMillis", "0"),
    ]  # fmt: skip
    reader = reader_with({("app", "g", "t", SOURCES[0])})
    right = signed(fields, "app", "secret")
    assert reader.read(right, 0, SOURCES[0]) is not None
    if wrong == "forgotten":
        reader.forget_signers()
    frame = {
        "password": signed(fields, "app", "other"),
        "unsigned": frame_of([(ACCESS_KEY, "app"), *fields]),
        "body": signed(fields, "app", "secret", b"x"),
        "forgotten": right,
    }[wrong]

    assert reader.read(frame, 0, SOURCES[0]) is None
