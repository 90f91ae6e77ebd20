"""What a settings class declares: outside names, types, ranges; reads one value and says what is wrong."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

INT32_MAX: Final = 2**31 - 1
"""Largest value of a Java `int`, the type of most of RocketMQ's numeric settings."""

INT64_MAX: Final = 2**63 - 1
"""Largest value of a Java `long`."""

PORT_MAX: Final = 65_535
"""Largest TCP port."""

_Truth = TypeVar("_Truth", bound=bool | None)

SettingValue = bool | int | str | Path | None
"""What a setting can hold."""


def number(default: int, *, low: int = 0, high: int = INT32_MAX, name: str | None = None) -> int:
    """Declare a whole number from `low` to `high`; `name` is for irregular outside names."""
    return field(default=default, metadata={"low": low, "high": high, "name": name})


def named(default: str, name: str) -> str:
    """Declare a text whose outside name is not the camelCase form of the field's name."""
    return field(default=default, metadata={"name": name})


def secret(default: str = "") -> str:
    """Declare a text that is shown to nobody."""
    return field(default=default, metadata={"secret": True}, repr=False)


def switch(default: _Truth, name: str) -> _Truth:
    """Declare a truth value whose outside name is not the camelCase form of the field's name."""
    return field(default=default, metadata={"name": name})


def camel_case(name: str) -> str:
    """`flush_interval_commit_log` as RocketMQ's files spell it: `flushIntervalCommitLog`."""
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)


@dataclass(frozen=True, slots=True)
class SettingField:
    """One setting as seen from outside."""

    name: str
    """Name of the field in Python."""

    outside: str
    """Name in files, environment variables and manifests."""

    kind: Literal["boolean", "number", "text", "path"]
    default: SettingValue
    optional: bool
    """Whether an empty text means `None`."""

    choices: tuple[str, ...]
    """The texts that are allowed; empty when any is."""

    low: int
    high: int
    secret: bool = False
    """Whether the value is shown to nobody."""

    def parse(self, text: str) -> SettingValue:
        """Return the value that `text` stands for; raises `ValueError` that says what was expected."""
        text = text.strip()
        if self.optional and not text:
            return None
        if self.kind == "boolean":
            if text.lower() not in ("true", "false"):
                raise ValueError("expected true or false")
            return text.lower() == "true"
        if self.kind == "number":
            if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
                raise ValueError(f"expected a whole number from {self.low} to {self.high}")
            return int(text)
        return Path(text) if self.kind == "path" else text

    def problem(self, value: SettingValue) -> str | None:
        """Return what is wrong with `value`, or `None`."""
        if isinstance(value, int) and self.kind == "number" and not self.low <= value <= self.high:
            return f"{self.outside}={value}: must be from {self.low} to {self.high}"
        if self.choices and value not in self.choices:
            return f"{self.outside}={value}: must be {' or '.join(self.choices)}"
        return None


def setting_fields(settings_class: type[Any]) -> Mapping[str, SettingField]:
    """Return the settings that a frozen dataclass declares, by outside name, in order of declaration."""
    return _setting_fields(cast(Hashable, settings_class))


@lru_cache(maxsize=16)
def _setting_fields(settings_class: Any) -> Mapping[str, SettingField]:
    hints = get_type_hints(settings_class)
    found = (_describe(item, hints[item.name]) for item in dataclasses.fields(settings_class))
    return {item.outside: item for item in found}


def _describe(item: dataclasses.Field[Any], hint: Any) -> SettingField:
    optional = False
    if get_origin(hint) in (Union, UnionType):
        arguments = get_args(hint)
        optional = NoneType in arguments
        hint = next(argument for argument in arguments if argument is not NoneType)
    choices = tuple(str(choice) for choice in get_args(hint)) if get_origin(hint) is Literal else ()
    kind: Literal["boolean", "number", "text", "path"]
    if hint is bool:
        kind = "boolean"
    elif hint is int:
        kind = "number"
    elif hint is Path:
        kind = "path"
    elif hint is str or choices:
        kind = "text"
    else:
        raise TypeError(f"{item.name}: a setting cannot be of type {hint!r}")
    return SettingField(
        name=item.name,
        outside=item.metadata.get("name") or camel_case(item.name),
        kind=kind,
        default=cast(SettingValue, item.default),
        optional=optional,
        choices=choices,
        low=item.metadata.get("low", -INT64_MAX - 1),
        high=item.metadata.get("high", INT64_MAX),
        secret=item.metadata.get("secret", False),
    )


def range_problems(settings: Any) -> list[str]:
    """Return one text for each value of a settings object that is out of its declared range or choices."""
    declared = setting_fields(type(settings)).values()
    found = (item.problem(getattr(settings, item.name)) for item in declared)
    return [text for text in found if text is not None]


def value_text(value: SettingValue) -> str:
    """Return `value` as files spell it: `true`, `12`, `` for None."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unknown_name(settings_class: type[Any], name: str) -> str:
    """Return the complaint about a name that is no setting, with the nearest one that is."""
    from difflib import get_close_matches

    by_folded = {known.lower(): known for known in setting_fields(settings_class)}
    near = get_close_matches(name.replace("_", "").replace("-", "").lower(), by_folded, n=1, cutoff=0.75)
    hint = f"; did you mean {by_folded[near[0]]}?" if near else ""
    return f"{name} is not a setting{hint}"


def address_problems(addresses: str) -> list[str]:
    """Return what is wrong with a `host:port;host:port` list."""
    found = []
    for address in filter(None, (item.strip() for item in addresses.split(";"))):
        host, _, port = address.rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX
        if not is_port or not _is_host(host.strip("[]")):
            found.append(f"{address!r} is not HOST:PORT")
    return found


def _is_host(host: str) -> bool:
    """Whether a resolver takes the name. With an empty or overlong label, or a zero character, it does not
    say that there is no such host: it raises an error of another kind, or looks for another host."""
    try:
        return bool(host.encode("idna")) and host.isprintable()
    except UnicodeError:
        return False
