"""Who may recall what: Java's checks in Java's order, and what is stored for it."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_broker.timers.recall_decision import (
    RecallAccepted,
    RecallRefused,
    decide_recall,
    recall_properties,
)
from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.errors import FormatError
from brokerset_formats.recall_handles import RecallHandle
from brokerset_protocol.codes import ResponseCode

NOW = 1_795_251_847_123
HANDLE = RecallHandle("t", "b", NOW + 60_000, "UNIQ")


def decide(handle: RecallHandle | str = HANDLE, topic: str = "t", **changes: Any) -> tuple[int, str] | None:
    text = handle if isinstance(handle, str) else handle.encode()
    values: dict[str, Any] = {
        "enabled": True, "writable": True, "topic_exists": True, "broker_name": "b",
        "settings": TimerSettings(), "now_ms": NOW,
    }  # fmt: skip
    found = decide_recall(topic, text, **(values | changes))
    return (int(found.code), found.remark) if isinstance(found, RecallRefused) else None


def test_a_handle_of_a_message_that_waits_is_accepted() -> None:
    found = decide_recall(
        "t", HANDLE.encode(), enabled=True, writable=True, topic_exists=True, broker_name="b",
        settings=TimerSettings(), now_ms=NOW,
    )  # fmt: skip

    assert found == RecallAccepted(HANDLE)


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"enabled": False}, 16, "recall failed, operation is forbidden"),
        ({"writable": False}, 14, "recall failed, broker service not available"),
        ({"topic_exists": False}, 17, "recall failed, the topic[t] not exist"),
        ({"handle": "forged"}, 604, "recall handle is invalid"),
        ({"handle": "%%%"}, 604, "recall handle is invalid"),
        ({"handle": "A" * 5000}, 604, "recall handle is invalid"),
        ({"handle": RecallHandle("other", "b", NOW + 1, "U")}, 604, "recall failed, topic not match"),
        ({"broker_name": "c"}, 604, "recall failed, broker service not available"),
        ({"handle": RecallHandle("t", "b", NOW, "U")}, 604, "recall failed, timestamp invalid"),
        ({"handle": RecallHandle("t", "b", NOW + 259_200_000, "U")}, 604, "recall failed, timestamp invalid"),
        ({"handle": RecallHandle("t", "b", 10**18 - 1, "U")}, 604, "recall failed, timestamp invalid"),
    ],
)  # fmt: skip
def test_everything_else_is_refused_in_javas_words(changes: dict[str, Any], code: int, remark: str) -> None:
    """Also handles that somebody made up: each has a defined answer, and nothing is stored."""
    assert decide(**changes) == (code, remark)


def test_the_first_reason_counts() -> None:
    """A broker that recalls nothing says nothing of handles."""
    assert decide("forged", enabled=False, topic_exists=False) == (
        ResponseCode.NO_PERMISSION,
        "recall failed, operation is forbidden",
    )


def test_the_message_that_recalls_names_its_target_and_its_time() -> None:
    found = recall_properties(HANDLE, "pg", settings=TimerSettings(), now_ms=NOW)

    assert found == {
        "TIMER_DEL_UNIQKEY": "UNIQ", "UNIQ_KEY": "UNIQ", "TIMER_DELIVER_MS": str(NOW + 60_000),
        "BORN_TIMESTAMP": str(NOW), "TRACE_CONTEXT": "", "TAGS": "_RECALL_TAG_", "PGROUP": "pg",
    }  # fmt: skip


def test_a_key_may_name_the_topic_and_a_group_may_be_missing() -> None:
    found = recall_properties(HANDLE, None, settings=TimerSettings(topic_in_delete_key=True), now_ms=NOW)

    assert found["TIMER_DEL_UNIQKEY"] == "t+UNIQ"
    assert "PGROUP" not in found


def test_an_id_with_a_separator_is_no_id() -> None:
    """A forged handle cannot put properties into the store."""
    forged = RecallHandle("t", "b", NOW + 60_000, "U\x02WAIT\x01false")

    with pytest.raises(FormatError):
        recall_properties(forged, "pg", settings=TimerSettings(), now_ms=NOW)
