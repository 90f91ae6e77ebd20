"""Messages with a time of delivery are put aside when they are stored (Java: `HookUtils`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from brokerset_broker.timers.put_decision import (
    AtOnce,
    NoTimer,
    PutAside,
    Refused,
    WheelLoad,
    decide_put,
    is_timer_message,
    requested_slot,
)
from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.errors import FormatError
from brokerset_formats.names import is_retry_topic
from brokerset_formats.recall_handles import RecallHandle
from brokerset_protocol.errors import Rejected

COUNTED_SLOTS_MAX: Final = 2**31 - 1
"""With this `timerCongestNumEachSlot`, the default, no slot is ever too full, and none is counted."""


class TimerPuts:
    """The put hook of a broker, for sends and for whatever else stores messages of clients."""

    def __init__(
        self,
        settings: Callable[[], TimerSettings],
        slot_count: Callable[[int], int],
        now_ms: Callable[[], int],
    ) -> None:
        """`slot_count` gives how many messages wait in the slot of a time."""
        self._settings = settings
        self._slot_count = slot_count
        self._now_ms = now_ms

    def plain_limits(self) -> tuple[int, int]:
        """Milliseconds of a slot and of the longest wait, if that decides alone; zeros if there is more."""
        settings = self._settings()
        if not settings.enabled or settings.slot_count_max < COUNTED_SLOTS_MAX:
            return 0, 0
        return settings.slot_ms, settings.max_delay_ms

    def put_aside(self, topic: str, queue_id: int, properties: dict[str, str]) -> PutAside | AtOnce | None:
        """Decide, and change `properties` accordingly; None for a message without a time of its own.

        `PutAside` names the topic and queue to store it in. Raises `Rejected` with Java's words.
        """
        settings, now_ms = self._settings(), self._now_ms()
        load = WheelLoad()
        if settings.slot_count_max < COUNTED_SLOTS_MAX and is_timer_message(topic, properties):
            slot_ms = requested_slot(properties, settings, now_ms)
            load = WheelLoad(0 if slot_ms is None else self._slot_count(slot_ms), random.random())
        decision = decide_put(topic, queue_id, properties, settings=settings, now_ms=now_ms, load=load)
        match decision:
            case Refused(status, remark):
                raise Rejected(status.code, remark)
            case NoTimer(changes):
                for name in changes:
                    properties.pop(name, None)
                return None
            case PutAside():
                for name, value in decision.changes.items():
                    if value is not None:
                        properties[name] = value
        return decision


def recall_handle(topic: str, out_ms: int, broker_name: str, unique_id: str) -> str | None:
    """The handle by which a message for `topic` that waits can be recalled; None if there can be none."""
    if is_retry_topic(topic):
        return None
    try:
        return RecallHandle(topic, broker_name, out_ms + 1, unique_id).encode()
    except FormatError:  # an id with a space, which no client of RocketMQ makes
        return None
