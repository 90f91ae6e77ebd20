"""What becomes of a message with timer properties when it is sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.timers.put_decision import (
    AtOnce,
    NoTimer,
    PutAside,
    PutDecision,
    Refused,
    TimerRefusal,
    WheelLoad,
    decide_put,
    requested_slot,
)
from brokerset_broker.timers.settings import TimerSettings
from brokerset_protocol.codes import ResponseCode

NOW = 1795251846970
SETTINGS = TimerSettings()


def decide(
    properties: dict[str, str],
    topic: str = "orders",
    settings: TimerSettings = SETTINGS,
    load: WheelLoad = WheelLoad(),  # noqa: B008  # frozen
) -> PutDecision:
    return decide_put(topic, 3, properties, settings=settings, now_ms=NOW, load=load)


def test_a_message_for_tomorrow_is_put_aside_as_a_java_broker_does() -> None:
    """Golden: `TIMER_OUT_MS` of a Java store's message with TIMER_DELAY_SEC=86400; that stays."""
    aside = decide({"KEYS": "k", "TIMER_DELAY_SEC": "86400"})

    assert aside == PutAside(
        "rmq_sys_wheel_timer",
        0,
        {"TIMER_OUT_MS": "1795338246000", "REAL_TOPIC": "orders", "REAL_QID": "3"},
        1795338246000,
    )


@pytest.mark.parametrize(
    ("properties", "out"),
    [
        ({"TIMER_DELAY_MS": "30"}, NOW - 970),
        ({"TIMER_DELAY_MS": "31"}, NOW + 30),
        ({"TIMER_DELIVER_MS": "1795251900000"}, 1795251899000),
        ({"TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "x", "TIMER_DELIVER_MS": "1"}, NOW + 4030),
        ({"TIMER_DELAY_MS": "1500", "TIMER_DELIVER_MS": "1"}, NOW + 1030),
    ],
)
def test_the_first_of_three_properties_says_when(properties: dict[str, str], out: int) -> None:
    aside = decide(properties)

    assert isinstance(aside, PutAside)
    assert aside.out_ms == out == requested_slot(properties, SETTINGS, NOW)


@pytest.mark.parametrize("text", ["soon", "", "1.5", " 1", "9" * 19 + "9", "1795251900000L", str(2**63)])
def test_a_time_that_is_no_number_is_illegal(text: str) -> None:
    refused = decide({"TIMER_DELIVER_MS": text})

    assert isinstance(refused, Refused)
    assert (refused.status, refused.status.code) == (
        TimerRefusal.WHEEL_TIMER_MSG_ILLEGAL,
        ResponseCode.MESSAGE_ILLEGAL,
    )


def test_a_wait_of_more_than_three_days_is_illegal() -> None:
    """Golden: code 13, with this text."""
    assert isinstance(decide({"TIMER_DELAY_SEC": "259200"}), PutAside)
    assert decide({"TIMER_DELAY_SEC": "259201"}) == Refused(
        TimerRefusal.WHEEL_TIMER_MSG_ILLEGAL,
        "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; or if "
        "set del msg, the delay time should be bigger than the current time",
    )


@pytest.mark.parametrize(
    "wish", [{"TIMER_DELAY_MS": "0"}, {"TIMER_DELAY_SEC": "-1"}, {"TIMER_DELIVER_MS": "7"}]
)
def test_a_message_whose_time_has_come_is_stored_at_once_and_a_recall_is_refused(
    wish: dict[str, str],
) -> None:
    assert decide(wish) == AtOnce()

    refused = decide({**wish, "TIMER_DEL_UNIQKEY": "U"})
    assert isinstance(refused, Refused)
    assert refused.status is TimerRefusal.WHEEL_TIMER_MSG_ILLEGAL


def test_a_delay_level_wins_and_takes_the_timer_away() -> None:
    """Even where timers are not enabled."""
    properties = {"DELAY": "3", "TIMER_DELAY_MS": "5000", "TIMER_DELIVER_MS": "x", "KEYS": "k"}
    level = decide(properties, settings=TimerSettings(enabled=False))

    assert level == NoTimer({"TIMER_DELAY_MS": None, "TIMER_DELIVER_MS": None})
    assert isinstance(decide({"DELAY": "0", "TIMER_DELAY_MS": "5000"}), PutAside)


def test_what_waited_already_passes() -> None:
    """A copy that rolls, one that is delivered, and a message without a timer."""
    assert decide({"TIMER_DELAY_MS": "5000"}, topic="rmq_sys_wheel_timer") == NoTimer()
    assert decide({"TIMER_DELAY_MS": "5000", "TIMER_OUT_MS": "1"}) == NoTimer()
    assert decide({"KEYS": "k"}) == NoTimer()


def test_without_the_wheel_timer_messages_are_refused() -> None:
    refused = decide({"TIMER_DELAY_MS": "5000"}, settings=TimerSettings(enabled=False))

    assert isinstance(refused, Refused)
    assert (refused.status, refused.status.code) == (
        TimerRefusal.WHEEL_TIMER_NOT_ENABLE,
        ResponseCode.SYSTEM_ERROR,
    )


@pytest.mark.parametrize(
    ("count", "random", "accepted"),
    [
        (10, 0.0, True),
        (11, 0.05, False),
        (11, 0.11, True),
        (19, 0.89, False),
        (19, 0.91, True),
        (20, 0.99, False),
    ],
)
def test_a_congested_slot_refuses_more_the_more_it_has(count: int, random: float, accepted: bool) -> None:
    decision = decide(
        {"TIMER_DELAY_MS": "5000"}, settings=TimerSettings(slot_count_max=10), load=WheelLoad(count, random)
    )

    if accepted:
        assert isinstance(decision, PutAside)
    else:
        assert isinstance(decision, Refused)
        assert decision.status is TimerRefusal.WHEEL_TIMER_FLOW_CONTROL
        assert (
            "max num limit is 20 or the current value is greater than 10 and less than 20" in decision.remark
        )


@given(st.integers(1, 259_200_000), st.sampled_from([100, 200, 500, 1000]), st.integers(0, 2**45))
def test_whatever_waits_is_due_when_its_slot_has_ended(delay: int, precision: int, now: int) -> None:
    settings = TimerSettings(precision_ms=precision)

    aside = decide_put(
        "t", 0, {"TIMER_DELAY_MS": str(delay)}, settings=settings, now_ms=now, load=WheelLoad()
    )

    assert isinstance(aside, PutAside)
    assert now + delay <= aside.out_ms + precision < now + delay + precision
    assert aside.out_ms >= settings.floor(now)
