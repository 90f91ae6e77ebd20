"""The controller as a process: its signals, its end, what can go wrong around it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Final

import structlog

from brokerset_controller.app import Controller
from brokerset_controller.node_folder import WrongFolder
from brokerset_namesrv.kv_file import KvFileDamaged
from brokerset_raft.storage import LogDamaged
from brokerset_runtime.files import FileLocked
from brokerset_runtime.listening import listen_host
from brokerset_runtime.program import Program
from brokerset_runtime.settings import SettingsError
from brokerset_runtime.signals import stop_on_signals
from brokerset_spec.controller_settings import ControllerSettings

log = structlog.get_logger(__name__)


async def serve(settings: ControllerSettings) -> None:
    """Run a controller until SIGTERM or SIGINT; a second signal ends the process at once."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    own_ip = os.environ.get("POD_IP", "")
    controller = Controller(replace(settings, bind_address=listen_host(settings.bind_address, own_ip)))
    await controller.start()
    try:
        async with asyncio.TaskGroup() as group:
            worker = group.create_task(controller.run())
            await stop.wait()
            log.info("controller stops")
            await controller.hand_over()
            worker.cancel()
    finally:
        await controller.close()


PROGRAM: Final = Program(
    module="brokerset_controller",
    what="A RocketMQ controller with a name server in it",
    settings_class=ControllerSettings,
    serve=serve,
    failures=(OSError, SettingsError, FileLocked, WrongFolder, LogDamaged, KvFileDamaged),
    failed="controller cannot go on",
)
