"""Load a settings dataclass from a file, the environment and the command line.

Later sources win. Every problem is reported at once, with the source it came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from brokerset_spec.setting_fields import setting_fields, unknown_name, value_text

ENVIRONMENT_PREFIX: Final = "BROKERSET_SET_"
"""Environment variables that start so are settings: `BROKERSET_SET_listenPort=10921`."""

FILE_SIZE_MAX: Final = 1024 * 1024
"""A larger settings file is refused: it is certainly something else."""


class Settings(Protocol):
    """A frozen dataclass of settings that can check itself."""

    def problems(self) -> list[str]:
        """Return everything that is wrong with the values."""
        ...


T = TypeVar("T", bound=Settings)

Source = tuple[str, Mapping[str, str]]
"""A label for error texts, and values by outside name."""


class SettingsError(Exception):
    """One or more settings are unknown, unreadable or out of range."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def load_settings(
    settings_class: type[T],
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> T:
    """Read `file`, then the environment, then `overrides` (the command line), by RocketMQ's names.

    Raises `SettingsError` with all problems of all sources.
    """
    sources: list[Source] = []
    if file is not None:
        sources.append((str(file), read_settings_file(file)))
    if environment is not None:
        sources.append(("environment", from_environment(environment)))
    if overrides is not None:
        sources.append(("command line", overrides))
    return load(settings_class, *sources)


def load(settings_class: type[T], *sources: Source) -> T:
    """Build the settings from `sources`; a later one overrides an earlier one."""
    known = setting_fields(settings_class)
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    problems: list[str] = []
    for label, raw in sources:
        for name, text in raw.items():
            item = known.get(name)
            if item is None:
                problems.append(f"{label}: {unknown_name(settings_class, name)}")
                continue
            try:
                values[item.name] = item.parse(text)
                origin[item.outside] = label
            except ValueError as error:
                problems.append(f"{label}: {name}={text!r}: {error}")
    if not problems:
        settings = settings_class(**values)
        problems = [_with_origin(text, origin) for text in settings.problems()]
        if not problems:
            return settings
    raise SettingsError(problems)


def _with_origin(problem: str, origin: Mapping[str, str]) -> str:
    name = problem.replace("=", " ").replace(":", " ").split(" ", 1)[0]
    return f"{origin[name]}: {problem}" if name in origin else problem


def read_settings_file(path: Path) -> dict[str, str]:
    """Read a settings file; raises `SettingsError` that names it when it cannot be read."""
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_SIZE_MAX + 1)
        if len(data) > FILE_SIZE_MAX:
            raise SettingsError([f"{path}: is larger than {FILE_SIZE_MAX} bytes; is it a settings file?"])
        return from_properties(data.decode("utf-8"), label=str(path))
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: is not UTF-8 at byte {error.start}"]) from None


def from_properties(text: str, label: str = "settings") -> dict[str, str]:
    """Read `name = value` lines; empty lines and those with # or ! in front are skipped; the last wins."""
    values: dict[str, str] = {}
    problems: list[str] = []
    for line_number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            problems.append(f"{label}: line {line_number}: {line!r} is not name=value")
            continue
        values[name.strip()] = value.strip()
    if problems:
        raise SettingsError(problems)
    return values


def from_environment(environment: Mapping[str, str], prefix: str = ENVIRONMENT_PREFIX) -> dict[str, str]:
    """Return the settings among the environment variables, by outside name."""
    return {name[len(prefix) :]: value for name, value in environment.items() if name.startswith(prefix)}


def from_arguments(arguments: Iterable[str]) -> dict[str, str]:
    """Read `name=value` arguments of a command line; raises `SettingsError` for others."""
    return from_properties("\n".join(arguments), label="command line")


def settings_values(settings: Settings) -> dict[str, str]:
    """Return all settings that may be shown as texts, by outside name, in order of declaration."""
    items = setting_fields(type(settings)).values()
    return {item.outside: value_text(getattr(settings, item.name)) for item in items if not item.secret}


def all_values(settings: Settings) -> dict[str, str]:
    """The same with those that are shown to nobody: to be read again with a change."""
    items = setting_fields(type(settings)).values()
    return {item.outside: value_text(getattr(settings, item.name)) for item in items}


def settings_text(settings: Settings) -> str:
    """Return all settings as `name=value` lines."""
    return "".join(f"{name}={value}\n" for name, value in settings_values(settings).items())
