"""Settings that a running broker can change, and the request that changes them (UPDATE_BROKER_CONFIG).

A change lasts until the process ends: what a broker starts with comes from its file and its environment
alone, so that a restarted broker is what its manifest says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.live_settings import CHANGEABLE
from brokerset_spec.setting_fields import SettingValue, setting_fields, unknown_name

FORBIDDEN: Final = frozenset({"brokerConfigPath", "configBlackList", "rocketmqHome"})
"""Names that Java refuses with NO_PERMISSION (`configBlackList`)."""

Listener = Callable[[BrokerSettings, frozenset[str]], None]
"""Gets the new settings and the outside names of those that changed."""


class LiveSettings:
    """The settings in force. Read `current` when a value is needed; do not keep it."""

    __slots__ = ("_listeners", "current")

    def __init__(self, settings: BrokerSettings) -> None:
        self.current = settings
        self._listeners: list[Listener] = []

    def on_change(self, listener: Listener) -> None:
        """Call `listener` after each change, in the order of these calls."""
        self._listeners.append(listener)

    def update(self, wanted: Mapping[str, str]) -> frozenset[str]:
        """Change settings by their outside names: all or none. Returns the names of those that changed.

        Raises `Rejected`, with every problem, for unknown names, bad values, and values that need a restart.
        """
        changed, settings = decide_update(self.current, wanted)
        if changed:
            self.current = settings
            for listener in self._listeners:
                listener(settings, changed)
        return changed


def decide_update(
    settings: BrokerSettings, wanted: Mapping[str, str]
) -> tuple[frozenset[str], BrokerSettings]:
    """The changed names and the new settings, or `Rejected`."""
    forbidden = FORBIDDEN.intersection(wanted)
    if forbidden:
        raise Rejected(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    known = setting_fields(BrokerSettings)
    problems: list[str] = []
    values: dict[str, SettingValue] = {}
    changed: set[str] = set()
    for name, text in wanted.items():
        field = known.get(name)
        if field is None:
            problems.append(unknown_name(BrokerSettings, name))
            continue
        try:
            value = field.parse(text)
        except ValueError as error:
            problems.append(f"{name}={text!r}: {error}")
            continue
        if value == getattr(settings, field.name):
            continue
        if name not in CHANGEABLE:
            problems.append(f"{name} cannot be changed while the broker runs: set it where it is started")
            continue
        values[field.name] = value
        changed.add(name)
    if not problems and values:
        settings = dataclasses.replace(settings, **values)  # type: ignore[arg-type]  # parsed by each field's type
        problems = settings.problems()
    if problems:
        raise Rejected(ResponseCode.SYSTEM_ERROR, "; ".join(problems))
    return frozenset(changed), settings
