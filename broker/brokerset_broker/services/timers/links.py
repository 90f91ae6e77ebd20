"""Plain messages of the wheel's topic are linked by one call of the native core for many of them."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from brokerset_broker.services.timers.counts import TimerCounts
from brokerset_broker.services.timers.files import TimerFiles
from brokerset_broker.store.consume_queue import ConsumeQueue
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.timers.progress import TimerState
from brokerset_broker.timers.put_decision import TIMER_QUEUE_ID
from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.names import TIMER_TOPIC
from brokerset_formats.queue_units import UNIT_SIZE

LINKS_MAX: Final = 128
"""Messages of one call: a tenth of a millisecond."""


class TimerLinks:
    """What `TimerWork` does for messages that need no decision, up to the first other one."""

    def __init__(
        self,
        core: ModuleType,
        store: MessageStore,
        files: TimerFiles,
        settings: TimerSettings,
        counts: TimerCounts,
    ) -> None:
        """`core` is the native module, `files` are open."""
        self._core = core
        self._store = store
        self._files = files
        self._settings = settings
        self._counts = counts

    def link(self, state: TimerState) -> tuple[int, int] | None:
        """Take the next messages; queue offset and end of the timer log behind them. None if the next one is
        to be taken alone, and then nothing has been done.

        A message is not done yet if its slot is in no step of the progress.
        """
        number, position, settings = state.queue_offset, state.log_position, self._settings
        queue = self._store.queues_table.table.get((TIMER_TOPIC, TIMER_QUEUE_ID))
        if not isinstance(queue, ConsumeQueue) or number < queue.min_offset:
            return None
        progress = state.progress
        end = queue.next_offset if state.leads else min(queue.next_offset, progress.queue_offset)
        units = queue.files.find(number * UNIT_SIZE)
        if units is None or end <= number:
            return None
        begin = number * UNIT_SIZE - units.start
        records = self._store.log.files.find(queue.unit(number)[0])
        file = self._files.end_file(position)
        if records is None or file is None:
            return None
        times = (
            settings.slot_ms,
            settings.window_slots * settings.slot_ms,
            max([step.read_ms for step in progress.steps]),
            progress.read_ms + settings.wheel_ms,
            state.write_ms,
        )
        linked = self._core.link_timers(
            units.view,
            begin,
            min(LINKS_MAX, end - number, (units.size - begin) // UNIT_SIZE),
            number,
            records.view,
            records.start,
            self._files.wheel.buffer,
            file.map,
            file.start,
            file.reserved,
            position,
            times,
        )
        if linked is None:
            return None
        taken, position, topics = linked
        for topic in topics:
            self._counts.linked_many(*topic)
        return number + taken, position
