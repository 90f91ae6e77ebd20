"""Delayed messages that were there before the broker was started, in a store that others replicate."""

from __future__ import annotations

import asyncio
from pathlib import Path

from brokerset_broker.requests.admission import Admission
from brokerset_broker.services.delay import DelayService
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.message_store import MessageStore
from brokerset_formats.hosts import Host
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_runtime.clock import ManualClock
from brokerset_sim.loop import run
from brokerset_spec.broker_settings import BrokerSettings

BORN_HOST = Host.from_text("10.0.0.1", 54321).encode()


def _open(folder: Path, clock: ManualClock) -> MessageStore:
    store = MessageStore(
        BrokerSettings(
            store_path_root_dir=folder, mapped_file_size_commit_log=65_536, max_message_size=9_000
        ),
        clock,
    )
    store.load()
    return store


def _confirm_all(store: MessageStore) -> None:
    store.confirmation.confirm(store.max_offset, partial=False)
    store.confirmation.advance()
    store.update_readable_end()
    store.announce()


def test_a_message_from_before_the_start_is_delivered_when_it_becomes_confirmed(tmp_path: Path) -> None:
    """No arrival tells of it: the new master's service has begun before its log was confirmed."""
    clock = ManualClock()
    before = _open(tmp_path, clock)
    before.append(
        SCHEDULE_TOPIC, 0, b"later", b"REAL_TOPIC\x01t\x02REAL_QID\x010\x02", flag=0, sys_flag=0,
        born_timestamp=1, born_host=BORN_HOST,
    )  # fmt: skip
    before.abandon()
    store = _open(tmp_path, clock)
    store.confirmation.replicated = True
    store.update_readable_end()
    service = DelayService(
        store=store, clock=clock, levels=DelayLevels.parse("1s"), config_folder=tmp_path / "config",
        admission=Admission("b", 6), is_subject=lambda topic: False,
    )  # fmt: skip
    clock.advance(60_000)

    async def lead() -> tuple[int, int]:
        service.start()
        await asyncio.sleep(30)
        unconfirmed = store.queue_end("t", 0)
        _confirm_all(store)
        await asyncio.sleep(2)
        service.stop()
        return unconfirmed, store.queue_end("t", 0)

    delivered = run(lead())
    store.abandon()

    assert delivered == (0, 1)
