"""Timer messages that the native core links leave what Python leaves: wheel, log, counters, deliveries."""

from __future__ import annotations

import random
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.services.timers.counts import TimerCounts
from brokerset_broker.services.timers.files import TimerFiles
from brokerset_broker.services.timers.links import TimerLinks
from brokerset_broker.services.timers.work import TimerWork
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.timers.progress import Progress, TimerState
from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats import native
from brokerset_formats.names import TIMER_TOPIC
from brokerset_formats.properties import encode_properties
from brokerset_rig.examples import examples
from brokerset_rig.local_servers import broker_settings
from brokerset_runtime.clock import ManualClock

SETTINGS: Final = TimerSettings(wheel_slots=300, roll_window_slots=200)
LOG_BYTES: Final = 52 * 20 + 16
"""Of a file of the timer log: units for few messages, so that files end often."""

HOST: Final = bytes(8)

pytestmark = pytest.mark.skipif(native.core is None, reason="there is no native core")


class Side:
    """A store with its timers; `linked` counts messages that the core has linked."""

    def __init__(self, folder: Path, *, with_links: bool) -> None:
        self.clock = ManualClock()
        self.store = MessageStore(
            broker_settings(
                folder, mapped_file_size_commit_log=32_768, mapped_file_size_consume_queue=20 * 60
            ),
            self.clock,
        )
        self.store.load()
        self.store.turn_soon = lambda: None  # type: ignore[method-assign]  # nobody waits for arrivals here
        self.files = TimerFiles(folder, SETTINGS, LOG_BYTES)
        self.files.open()
        self.counts = TimerCounts()
        links = (
            TimerLinks(native.core, self.store, self.files, SETTINGS, self.counts) if native.core else None
        )
        self.linked = 0
        if links is not None:
            real = links.link

            def link(state: TimerState) -> tuple[int, int] | None:
                found = real(state)
                self.linked += 0 if found is None else found[0] - state.queue_offset
                return found

            links.link = link  # type: ignore[method-assign]  # counted
        state = TimerState(Progress.fresh(self.clock.now_ms(), SETTINGS), 0, 0)
        self.work = TimerWork(
            state, store=self.store, files=self.files, settings=SETTINGS, clock=self.clock,
            counts=self.counts,
            is_subject=lambda topic: False, links=links if with_links else None,
        )  # fmt: skip
        self.work.lead()

    def put(self, properties: bytes, topic: str = TIMER_TOPIC) -> None:
        self.store.append(topic, 0, b"body", properties, flag=0, sys_flag=0, born_timestamp=1, born_host=HOST)

    def turn(self) -> None:
        while self.work.turn(10.0):
            pass

    def seen(self) -> Any:
        """All that there is to compare."""
        files, counts = self.files, self.counts
        log = [(position, unit) for position, unit in files.log.units(0, self.work.state.log_position)]
        return (
            self.work.state, bytes(files.wheel.buffer), log, counts.enqueued, counts.dequeued,
            counts.waiting(),
            counts._changed, counts.drops, self.store.max_offset, self.work.needed_from(),
        )  # fmt: skip

    def close(self) -> None:
        self.store.abandon()


def _properties(source: random.Random, now_ms: int) -> bytes:
    """Of a message that waits: usual ones mostly."""
    out_ms = (
        (now_ms + source.choice((-3_000, 2_000, 30_000, 90_000, 199_000, 201_000, 700_000))) // 1000 * 1000
    )
    found = {
        "UNIQ_KEY": f"K{source.randrange(40)}", "TIMER_OUT_MS": str(out_ms),
        "REAL_TOPIC": source.choice(("t", "u", "ü")),
        "REAL_QID": "0",
    }  # fmt: skip
    if source.random() < 0.25:
        name, value = source.choice(
            (
                ("TIMER_DEL_UNIQKEY", "K1"), ("TIMER_ROLL_TIMES", "1"), ("TIMER_OUT_MS", "x"),
                ("REAL_QID", "-"), ("REAL_QID", "-1"), ("TIMER_OUT_MS", "9" * 18), ("REAL_TOPIC", ""),
                ("note", "TIMER_ROLL_TIMES"),
                ("TIMER_OUT_MS", f"{out_ms + 999}"), ("TIMER_OUT_MS", ""),
            )
        )  # fmt: skip
        found[name] = value
    raw = encode_properties(found)
    if source.random() < 0.05:
        raw += b"REAL_TOPIC\x01v\x02TIMER_OUT_MS\x01\x02"
    return raw[:-1] if source.random() < 0.05 else raw


def _compare(seed: int) -> int:
    source = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="brokerset-links-") as folder, ExitStack() as stack:
        sides = [
            stack.enter_context(closing(Side(Path(folder, name), with_links=name == "native")))
            for name in ("python", "native")
        ]
        for _ in range(12):
            for _ in range(source.randrange(60)):
                raw = _properties(source, sides[0].clock.now_ms())
                for side in sides:
                    side.put(raw)
            seconds = source.choice((0, 0, 1, 5, 40, 150))
            for side in sides:
                side.clock.advance(1000 * seconds)
            for reads in (False, True):  # all is taken, then slots are read: else what is due may be either
                for side in sides:
                    side.work.stop_parts(enqueue=False, dequeue=not reads)
                    side.turn()
                python, core = (side.seen() for side in sides)
                assert python == core
        return sides[1].linked


def test_messages_are_linked_in_runs_and_leave_what_single_ones_leave() -> None:
    """Most messages go through the core: due ones, rolls, recalls and damaged ones are taken by Python."""
    assert sum(_compare(seed) for seed in range(4)) > 300


@pytest.mark.long
@examples(30)
@given(seed=st.integers(0, 2**48))
def test_drawn_messages_leave_the_same_files_on_both_paths(seed: int) -> None:
    """As above, with others in each run."""
    _compare(seed)
