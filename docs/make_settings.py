"""Writes `settings.md` from the settings classes: `python docs/make_settings.py`."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokerset_controller.config_updates import CHANGEABLE as CHANGEABLE_IN_CONTROLLER
from brokerset_namesrv import config_updates
from brokerset_operator.settings import OperatorSettings
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.live_settings import CHANGEABLE as CHANGEABLE_IN_BROKER
from brokerset_spec.manifest import OWN_SETTINGS
from brokerset_spec.namesrv_settings import NamesrvSettings
from brokerset_spec.setting_fields import INT32_MAX, INT64_MAX, SettingField, setting_fields, value_text

TARGET = Path(__file__).with_name("settings.md")

HEAD = """\
# Settings

Made from the settings classes by `make docs`; change the classes, not this page.

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


def main() -> int:
    """Write the document."""
    TARGET.write_text(document(), encoding="utf-8")
    sys.stdout.write(f"wrote {TARGET}\n")
    return 0


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
    sentences = _sentences(settings_class)
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
        rows.append([*row, sentences[item.name]])
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


def _sentences(settings_class: type[Any]) -> dict[str, str]:
    """The text under each field, by Python name, on one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(settings_class))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
            assert isinstance(before.target, ast.Name)
            assert isinstance(after.value, ast.Constant)
            found[before.target.id] = " ".join(str(after.value.value).split()).replace("|", "\\|")
    return found


if __name__ == "__main__":
    sys.exit(main())
