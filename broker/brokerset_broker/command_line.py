"""The broker as a process: its limits, its signals, its end, what can go wrong around it."""

from __future__ import annotations

import asyncio
import gc
import resource
from dataclasses import replace
from typing import Final

import structlog

from brokerset_broker.app import Broker
from brokerset_broker.member.epoch_file import EpochsDamaged
from brokerset_broker.store.errors import StoreCorrupt
from brokerset_broker.store.folder import StoreUnusable
from brokerset_broker.tables.config_files import ConfigDamaged
from brokerset_runtime.listening import listen_host
from brokerset_runtime.program import Program
from brokerset_runtime.settings import SettingsError
from brokerset_runtime.signals import stop_on_signals
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

SHUTDOWN_SECONDS_MAX: Final = 30.0
"""Deadline of the whole shutdown; most of it may go into flushing the log."""

GC_THRESHOLDS: Final = (20_000, 50, 100)
"""Served requests make no cycles: looking for them less often than Python's default costs nothing."""


async def serve(settings: BrokerSettings) -> None:
    """Run a broker until SIGTERM or SIGINT; a second signal ends the process at once."""
    raise_file_limit()
    stop = asyncio.Event()
    stop_on_signals(stop)
    broker = Broker(replace(settings, bind_address=listen_host(settings.bind_address, settings.broker_ip1)))
    await broker.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    running = asyncio.create_task(broker.run())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        log.info("broker stops")
        async with asyncio.timeout(SHUTDOWN_SECONDS_MAX):
            await broker.close()
    finally:
        stopping.cancel()
        running.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
    await running


def raise_file_limit() -> None:
    """Let the process open as many files as the system allows: queues and connections need many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


PROGRAM: Final = Program(
    module="brokerset_broker",
    what="A RocketMQ broker",
    settings_class=BrokerSettings,
    serve=serve,
    failures=(OSError, SettingsError, StoreUnusable, StoreCorrupt, ConfigDamaged, EpochsDamaged),
    failed="broker cannot go on",
    shortcuts={"-n": "namesrvAddr"},
)
