"""Recall handles: Java's text, and what is no handle."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_formats.errors import FormatError
from brokerset_formats.recall_handles import RecallHandle, decode_recall_handle

WORD = st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("text", "handle"),
    [
        ("djEgVCBiIDE3MDAwMDAwNjAwMDEgVU5JUQ==", RecallHandle("T", "b", 1700000060001, "UNIQ")),
        (
            "djEgaXQtcmVjYWxsIGJyb2tlci1hIDE3OTUyNTE2MjQwMDEgRkQwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDIzRDE4NU"
            "ZGRDJCMjc2OEVERTM4MTAwMDA=",
            RecallHandle(
                "it-recall",
                "broker-a",
                1795251624001,
                "FD0000000000000000000000000000023D185FFD2B2768EDE3810000",
            ),
        ),
    ],
)
def test_the_handle_of_a_java_broker_is_read_and_written(text: str, handle: RecallHandle) -> None:
    """Golden: of the original classes, and of a broker's answer."""
    assert decode_recall_handle(text) == handle
    assert handle.encode() == text


@given(WORD, WORD, st.integers(0, 10**18 - 1), WORD)
def test_every_handle_is_read_as_it_was_written(topic: str, broker: str, time_ms: int, key: str) -> None:
    handle = RecallHandle(topic, broker, time_ms, key)

    assert decode_recall_handle(handle.encode()) == handle
    assert decode_recall_handle(handle.encode().rstrip("=")) == handle


@pytest.mark.parametrize(
    "raw",
    ["", "v2 T b 1 U", "v1 T b 1", "v1", "\xff" * 20],
    ids=["empty", "version", "short", "bare", "bytes"],
)
def test_other_texts_are_refused_with_javas_words(raw: str) -> None:
    with pytest.raises(FormatError, match=r"^recall handle is invalid$"):
        decode_recall_handle(base64.urlsafe_b64encode(raw.encode("latin-1")).decode())


@given(st.text(max_size=60))
def test_any_text_gives_a_handle_or_a_format_error(text: str) -> None:
    with contextlib.suppress(FormatError):
        decode_recall_handle(text)


def test_a_time_that_is_no_number_is_in_the_past() -> None:
    text = base64.urlsafe_b64encode(b"v1 T b soon U").decode()

    assert decode_recall_handle(text).timestamp_ms == -1


def test_a_part_with_a_space_cannot_be_written() -> None:
    with pytest.raises(FormatError, match="without spaces"):
        RecallHandle("a topic", "b", 1, "U").encode()
