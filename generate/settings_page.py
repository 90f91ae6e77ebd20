"""`docs/settings.md`, made from the settings classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
broker settings under `spec.config` of the manifest (column *manifest*); what it decides itself is refused
there, with the reason.

At run time, settings with *yes* in that column can be changed with `mqadmin updateBrokerConfig`,
`updateNamesrvConfig` and `updateControllerConfig`, the last on each controller for itself. The change takes
effect at once and lasts until the process ends, because a process shall be what its file says; a change of
several is made whole or not at all. The others are refused with the advice to restart.
"""


def document() -> str:
    """The whole text of `settings.md`."""
    return "\n".join(
        [
            HEAD,
            "## Broker\n",
            _table(BrokerSettings, _changeable_in_broker, in_manifest=True),
            "## Name server\n",
            _table(NamesrvSettings, _changeable_in_namesrv, in_manifest=False),
            "## Controller\n",
            "A name server runs in the same process by default; its other settings have their defaults.\n",
            _table(ControllerSettings, _changeable_in_controller, in_manifest=False),
            "## Operator\n",
            "The chart sets them from its values. None can be changed at run time.\n",
            _table(OperatorSettings, None, in_manifest=False),
        ]
    )


def _changeable_in_broker(name: str) -> bool:
    return name in CHANGEABLE_IN_BROKER


def _changeable_in_namesrv(name: str) -> bool:
    return name not in config_updates.ONLY_AT_START | config_updates.FORBIDDEN


def _changeable_in_controller(name: str) -> bool:
    return name in CHANGEABLE_IN_CONTROLLER


def _table(settings_class: type[Any], changeable: Callable[[str], bool] | None, *, in_manifest: bool) -> str:
    texts = field_texts(settings_class)
    columns = ["name", "default", "values"]
    columns += [
        *(["at run time"] if changeable is not None else []),
        *(["manifest"] if in_manifest else []),
        "meaning",
    ]
    rows = [columns, ["---"] * len(columns)]
    for name, item in setting_fields(settings_class).items():
        row = [f"`{name}`", _default(item), _values(item)]
        if changeable is not None:
            row.append("yes" if changeable(name) else "")
        if in_manifest:
            row.append("" if name in OWN_SETTINGS else "yes")
        rows.append([*row, " ".join(texts[item.name].split()).replace("|", "\\|")])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _default(item: SettingField) -> str:
    text = value_text(item.default)
    return f"`{text}`" if text else "empty"


def _values(item: SettingField) -> str:
    if item.choices:
        return " or ".join(f"`{choice}`" for choice in item.choices)
    if item.kind == "boolean":
        return "`true`, `false`"
    if item.kind == "number":
        unbounded = item.high in (INT32_MAX, INT64_MAX)
        return f"{item.low} or more" if unbounded else f"{item.low} to {item.high}"
    return "a path" if item.kind == "path" else "text"
