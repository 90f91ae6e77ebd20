"""`docs/settings.md`, made from the settings classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from generate.lists import item
from generate.schemas import field_texts

from brokerset_controller.config_updates import CHANGEABLE as CHANGEABLE_IN_CONTROLLER
from brokerset_namesrv import config_updates
from brokerset_operator.settings import OperatorSettings
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.live_settings import CHANGEABLE as CHANGEABLE_IN_BROKER
from brokerset_spec.manifest import OWN_SETTINGS
from brokerset_spec.namesrv_settings import NamesrvSettings
from brokerset_spec.setting_fields import INT32_MAX, INT64_MAX, SettingField, setting_fields, value_text

HEAD = """\
# Settings

Made from the settings classes by `make generate`; change the classes, not this page.

Names are RocketMQ's, and so are the defaults where nothing else is said. What RocketMQ knows and is not
listed here is not served: an unknown name is an error that says where it came from and which known name is
nearest, never ignored. All problems of all sources are shown at once, and nothing starts (exit code 2).

## Where they are set

A later source wins:

| source | broker | name server, controller, operator |
| --- | --- | --- |
| file of `name=value` | `python -m brokerset_broker -c FILE` | `python -m brokerset_…` likewise |
| environment | `BROKERSET_SET_<name>`, as `BROKERSET_SET_listenPort=10921` | the same |
| command line | `--listenPort 10921` (`-n` is short for `--namesrvAddr`) | `--listenPort 9877` |

`-p` prints all settings in force and ends. `brokerset up` writes the files of its processes itself: give
broker settings under `spec.config` of the manifest (those marked *manifest*). What it decides itself is
refused there, with the reason.

Settings marked *at run time* can be changed with `mqadmin updateBrokerConfig`, `updateNamesrvConfig` and
`updateControllerConfig`, the last on each controller for itself. The change takes effect at once and lasts
until the process ends, because a process shall be what its file says. A change of several is made whole or
not at all. The others are refused with the advice to restart.
"""


def document() -> str:
    """The whole text of `settings.md`."""
    return "\n".join(
        [
            HEAD,
            "## Broker\n",
            _list(BrokerSettings, _changeable_in_broker, in_manifest=True),
            "## Name server\n",
            _list(NamesrvSettings, _changeable_in_namesrv, in_manifest=False),
            "## Controller\n",
            "A name server runs in the same process by default; its other settings have their defaults.\n",
            _list(ControllerSettings, _changeable_in_controller, in_manifest=False),
            "## Operator\n",
            "The chart sets them from its values. None can be changed at run time.\n",
            _list(OperatorSettings, None, in_manifest=False),
        ]
    )


def _changeable_in_broker(name: str) -> bool:
    return name in CHANGEABLE_IN_BROKER


def _changeable_in_namesrv(name: str) -> bool:
    return name not in config_updates.ONLY_AT_START | config_updates.FORBIDDEN


def _changeable_in_controller(name: str) -> bool:
    return name in CHANGEABLE_IN_CONTROLLER


def _list(settings_class: type[Any], changeable: Callable[[str], bool] | None, *, in_manifest: bool) -> str:
    texts = field_texts(settings_class)
    items = []
    for name, setting in setting_fields(settings_class).items():
        facts = [_values(setting), _default(setting)]
        if changeable is not None and changeable(name):
            facts.append("*at run time*")
        if in_manifest and name not in OWN_SETTINGS:
            facts.append("*manifest*")
        items.append(item(name, "; ".join(facts), " ".join(texts[setting.name].split())))
    return "\n".join(items) + "\n"


def _default(setting: SettingField) -> str:
    text = value_text(setting.default)
    return f"default `{text}`" if text else "default empty"


def _values(setting: SettingField) -> str:
    if setting.choices:
        return " or ".join(f"`{choice}`" for choice in setting.choices)
    if setting.kind == "boolean":
        return "`true`, `false`"
    if setting.kind == "number":
        unbounded = setting.high in (INT32_MAX, INT64_MAX)
        return f"{setting.low} or more" if unbounded else f"{setting.low} to {setting.high}"
    return "a path" if setting.kind == "path" else "text"
