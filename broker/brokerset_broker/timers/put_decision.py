"""What becomes of a message with timer properties when it is sent (Java: `HookUtils`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.names import TIMER_TOPIC
from brokerset_formats.properties import Property
from brokerset_formats.timer_files import out_time
from brokerset_protocol.codes import ResponseCode

TIMER_QUEUE_ID: Final = 0
"""The only queue of the wheel's topic."""

_WISHES: Final = (Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS, Property.TIMER_DELIVER_MS)
"""Properties by which a producer says when; the first that is there counts."""

_is_number = re.compile(r"[+-]?[0-9]{1,19}").fullmatch


class TimerRefusal(Enum):
    """Why a message is refused (`PutMessageStatus` of Java), and the code of the answer."""

    WHEEL_TIMER_NOT_ENABLE = "WHEEL_TIMER_NOT_ENABLE"
    WHEEL_TIMER_MSG_ILLEGAL = "WHEEL_TIMER_MSG_ILLEGAL"
    WHEEL_TIMER_FLOW_CONTROL = "WHEEL_TIMER_FLOW_CONTROL"

    @property
    def code(self) -> ResponseCode:
        """Of the answer to the send."""
        if self is TimerRefusal.WHEEL_TIMER_MSG_ILLEGAL:
            return ResponseCode.MESSAGE_ILLEGAL
        return ResponseCode.SYSTEM_ERROR


@dataclass(frozen=True, slots=True)
class NoTimer:
    """No timer message: it goes its usual way, perhaps to a delay level.

    `changes` takes the timer properties away where a delay level wins; empty otherwise.
    """

    changes: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Its time has come already: it is stored under its own topic, with its properties as they are."""


@dataclass(frozen=True, slots=True)
class PutAside:
    """It waits in the wheel's topic; `changes` are made to its properties."""

    topic: str
    queue_id: int
    changes: Mapping[str, str | None]
    out_ms: int
    """Its slot, `TIMER_OUT_MS`; the recall handle has this plus 1."""


@dataclass(frozen=True, slots=True)
class Refused:
    """It is not stored; `remark` is Java's."""

    status: TimerRefusal
    remark: str


PutDecision = NoTimer | AtOnce | PutAside | Refused


@dataclass(frozen=True, slots=True)
class WheelLoad:
    """What a decision needs besides: how many wait in the slot, and a random number in [0, 1)."""

    slot_count: int = 0
    random: float = 0.0


def requested_slot(properties: Mapping[str, str], settings: TimerSettings, now_ms: int) -> int | None:
    """Time of the slot whose count `decide_put` needs; `None` if the message has no usable time."""
    deliver_ms = _deliver_ms(properties, now_ms)
    return None if deliver_ms is None or deliver_ms <= 0 else out_time(deliver_ms, settings.slot_ms)


def is_timer_message(topic: str, properties: Mapping[str, str]) -> bool:
    """Whether the message is to wait for a time, and did not already (`HookUtils.checkIfTimerMessage`)."""
    return (
        topic != TIMER_TOPIC
        and not _delay_level(properties)
        and Property.TIMER_OUT_MS not in properties
        and any(name in properties for name in _WISHES)
    )


def decide_put(
    topic: str,
    queue_id: int,
    properties: Mapping[str, str],
    *,
    settings: TimerSettings,
    now_ms: int,
    load: WheelLoad,
) -> PutDecision:
    """What becomes of a message that is sent at `now_ms`.

    For messages without a transaction, and for those of a transaction when it is committed. A copy that rolls
    or that is delivered passes as `NoTimer`. With `timerCongestNumEachSlot` the part of messages that are
    refused grows with the slot; in Java it falls, by a slip of a sign.
    """
    if topic != TIMER_TOPIC and _delay_level(properties):
        return NoTimer({name: None for name in _WISHES if name in properties})
    if not is_timer_message(topic, properties):
        return NoTimer()
    if not settings.enabled:
        return _refused(TimerRefusal.WHEEL_TIMER_NOT_ENABLE, settings)
    deliver_ms = _deliver_ms(properties, now_ms)
    if deliver_ms is None or deliver_ms - now_ms > settings.max_delay_ms:
        return _refused(TimerRefusal.WHEEL_TIMER_MSG_ILLEGAL, settings)
    if deliver_ms <= now_ms:
        if Property.TIMER_DEL_UNIQKEY in properties:
            return _refused(TimerRefusal.WHEEL_TIMER_MSG_ILLEGAL, settings)
        return AtOnce()
    if _is_congested(load, settings.slot_count_max):
        return _refused(TimerRefusal.WHEEL_TIMER_FLOW_CONTROL, settings)
    out_ms = out_time(deliver_ms, settings.slot_ms)
    changes = {
        Property.TIMER_OUT_MS: str(out_ms),
        Property.REAL_TOPIC: topic,
        Property.REAL_QID: str(queue_id),
    }
    return PutAside(TIMER_TOPIC, TIMER_QUEUE_ID, changes, out_ms)


def _delay_level(properties: Mapping[str, str]) -> int:
    """The delay level, 0 for none; text that is no number counts as none, as when a level is looked up."""
    text = properties.get(Property.DELAY, "")
    return max(0, int(text)) if _is_number(text) else 0


def _deliver_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    name = next((name for name in _WISHES if name in properties), None)
    if name is None or not _is_number(properties[name]):
        return None
    number = int(properties[name])
    if not -(2**63) <= number < 2**63:
        return None
    if name == Property.TIMER_DELAY_SEC:
        return now_ms + number * 1000
    return now_ms + number if name == Property.TIMER_DELAY_MS else number


def _is_congested(load: WheelLoad, count_max: int) -> bool:
    if load.slot_count <= count_max:
        return False
    return load.slot_count >= 2 * count_max or load.random < (load.slot_count - count_max) / count_max


def _refused(status: TimerRefusal, settings: TimerSettings) -> Refused:
    match status:
        case TimerRefusal.WHEEL_TIMER_NOT_ENABLE:
            return Refused(status, "accurate timer message is not enabled, timerWheelEnable is false")
        case TimerRefusal.WHEEL_TIMER_MSG_ILLEGAL:
            return Refused(
                status,
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{settings.max_delay_ms}ms; or if set del msg, the delay time should be bigger than the "
                "current time",
            )
        case TimerRefusal.WHEEL_TIMER_FLOW_CONTROL:
            low, high = settings.slot_count_max, 2 * settings.slot_count_max
            return Refused(
                status,
                f"timer message is under flow control, max num limit is {high} or the current value is "
                f"greater than {low} and less than {high}, trigger random flow control",
            )
