"""The name server as a process: its signals, what can go wrong around it."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from brokerset_namesrv.app import NameServer
from brokerset_namesrv.kv_file import KvFileDamaged
from brokerset_runtime.program import Program
from brokerset_runtime.settings import SettingsError
from brokerset_runtime.signals import stop_on_signals
from brokerset_spec.namesrv_settings import NamesrvSettings

log = structlog.get_logger(__name__)


async def serve(settings: NamesrvSettings) -> None:
    """Run a name server until SIGTERM or SIGINT; a second signal ends the process at once."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    server = NameServer(settings)
    await server.start()
    try:
        async with asyncio.TaskGroup() as group:
            worker = group.create_task(server.run())
            await stop.wait()
            log.info("name server stops")
            worker.cancel()
    finally:
        await server.close()


PROGRAM: Final = Program(
    module="brokerset_namesrv",
    what="A RocketMQ name server",
    settings_class=NamesrvSettings,
    serve=serve,
    failures=(OSError, SettingsError, KvFileDamaged),
    failed="name server cannot go on",
)
