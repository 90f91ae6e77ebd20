"""The controller as a process: its options, its signals, its exit code."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog
import uvloop

from brokerset_controller.app import Controller
from brokerset_controller.node_folder import WrongFolder
from brokerset_namesrv.kv_file import KvFileDamaged
from brokerset_raft.storage import LogDamaged
from brokerset_runtime.files import FileLocked
from brokerset_runtime.logs import LEVELS, configure_logs
from brokerset_runtime.settings import SettingsError, load_settings, settings_text
from brokerset_runtime.signals import stop_on_signals
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.setting_fields import setting_fields

log = structlog.get_logger(__name__)

EXIT_SETTINGS: Final = 2
"""Exit code for settings that are wrong."""

EXIT_FAILED: Final = 1
"""Exit code when the port or the folder is taken, a file cannot be read, or the disk fails."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m brokerset_controller",
        description="A RocketMQ controller with a name server in it. Settings: defaults, then the file, then"
        " BROKERSET_SET_<name> in the environment, then these options.",
    )
    parser.add_argument("-c", "--configFile", type=Path, help="file of name=value lines")
    parser.add_argument("-p", "--printConfig", action="store_true", help="print all settings and exit")
    parser.add_argument("--logLevel", choices=sorted(LEVELS), default="info")
    parser.add_argument("--logFormat", choices=["json", "text"], default=None, help="text on a terminal")
    for name, item in setting_fields(ControllerSettings).items():
        parser.add_argument(f"--{name}", metavar=item.kind.upper(), help=f"default: {item.default}")
    return parser


async def serve(settings: ControllerSettings) -> None:
    """Run a controller until SIGTERM or SIGINT; a second signal ends the process at once."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    controller = Controller(settings)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = vars(_parser().parse_args(arguments))
    log_format = options["logFormat"] or ("text" if sys.stderr.isatty() else "json")
    configure_logs(options["logLevel"], json=log_format == "json")
    names = setting_fields(ControllerSettings)
    try:
        settings = load_settings(
            ControllerSettings,
            file=options["configFile"],
            environment=os.environ,
            overrides={name: options[name] for name in names if options[name] is not None},
        )
    except SettingsError as error:
        for problem in error.problems:
            log.error("wrong setting", problem=problem)
        return EXIT_SETTINGS
    if options["printConfig"]:
        sys.stdout.write(settings_text(settings))
        return 0
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except (OSError, FileLocked, WrongFolder, LogDamaged, KvFileDamaged) as error:
        log.error("controller cannot start", reason=str(error))
        return EXIT_FAILED
    except BaseExceptionGroup as group:
        log.error("controller failed", reason=_reasons(group), exc_info=group)
        return EXIT_FAILED
    return 0


def _reasons(group: BaseExceptionGroup[BaseException]) -> str:
    """The errors inside, on one line."""
    found: list[str] = []
    for error in group.exceptions:
        found.append(
            _reasons(error) if isinstance(error, BaseExceptionGroup) else f"{type(error).__name__}: {error}"
        )
    return "; ".join(found)
