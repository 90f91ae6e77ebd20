"""What every server process does around its service: options, settings from all sources, logs, exit code."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import structlog
import uvloop

from brokerset_runtime.logs import LEVELS, configure_logs
from brokerset_runtime.settings import Settings, SettingsError, load_settings, settings_text
from brokerset_spec.setting_fields import setting_fields

log = structlog.get_logger(__name__)

EXIT_FAILED: Final = 1
"""Exit code when a port or folder is taken, a file is damaged or cannot be read, or the disk fails."""

EXIT_SETTINGS: Final = 2
"""Exit code for settings that are wrong."""

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, slots=True)
class Program(Generic[S]):
    """One kind of server process."""

    module: str
    """Started as `python -m <module>`."""

    what: str
    """A noun phrase for the help text: `A RocketMQ broker`."""

    settings_class: type[S]
    serve: Callable[[S], Coroutine[Any, Any, None]]
    """Runs until a signal; may raise one of `failures`, also in a group."""

    failures: tuple[type[Exception], ...]
    """What can go wrong outside of the program: told in one line each, without a traceback."""

    failed: str
    """The event that is logged for them."""

    shortcuts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Short options and the settings that they stand for."""

    def parser(self) -> argparse.ArgumentParser:
        """The options: a file, the logs, and one for each setting."""
        parser = argparse.ArgumentParser(
            prog=f"python -m {self.module}",
            description=f"{self.what}. Settings: defaults, then the file, then BROKERSET_SET_<name> in the "
            "environment, then these options.",
        )
        parser.add_argument("-c", "--configFile", type=Path, help="file of name=value lines")
        parser.add_argument("-p", "--printConfig", action="store_true", help="print all settings and exit")
        parser.add_argument("--logLevel", choices=sorted(LEVELS), default="info")
        parser.add_argument("--logFormat", choices=["json", "text"], default=None, help="text on a terminal")
        for option, name in self.shortcuts.items():
            parser.add_argument(option, dest=name, metavar="VALUE", help=f"the same as --{name}")
        for name, item in setting_fields(self.settings_class).items():
            parser.add_argument(
                f"--{name}", dest=name, metavar=item.kind.upper(), help=f"default: {item.default}"
            )
        return parser

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run as the command line says; returns the exit code."""
        options = vars(self.parser().parse_args(arguments))
        log_format = options["logFormat"] or ("text" if sys.stderr.isatty() else "json")
        configure_logs(options["logLevel"], json=log_format == "json")
        names = setting_fields(self.settings_class)
        try:
            settings = load_settings(
                self.settings_class,
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
        problems: list[str] = []
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self.serve(settings))
        except* self.failures as group:
            problems = reasons(group)
        for reason in problems:
            log.error(self.failed, reason=reason)
        return EXIT_FAILED if problems else 0


def reasons(group: BaseExceptionGroup[BaseException]) -> list[str]:
    """What each of the failures says."""
    found: list[str] = []
    for error in group.exceptions:
        found += reasons(error) if isinstance(error, BaseExceptionGroup) else [str(error)]
    return found
