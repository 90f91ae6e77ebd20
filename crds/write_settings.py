"""Writes `spec.config` of `brokersets.yaml` from the settings class: `python crds/write_settings.py`.

Everything else in `brokersets.yaml` is written by hand. Settings are listed there with their types, ranges
and meanings, so that the API server refuses a wrong value at once and `kubectl explain brokerset.spec.config`
tells what there is. Names that are not listed are kept, and refused by the operator, which may be newer than
the installed CRD and know more of them.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

import yaml

from brokerset_spec.broker_settings import RECORD_EXTRA_BYTES, BrokerSettings
from brokerset_spec.manifest import OWN_SETTINGS
from brokerset_spec.setting_fields import INT64_MAX, SettingField, setting_fields, value_text

TARGET: Final = Path(__file__).with_name("brokersets.yaml")

TEXT_LENGTH_MAX: Final = 4096

ONE_LINE: Final = r"^[^\r\n]*$"

PATTERNS: Final = {
    "deleteWhen": r"^([01]?[0-9]|2[0-3])(;([01]?[0-9]|2[0-3]))*$",
    "messageDelayLevel": r"^[1-9][0-9]{0,8}[smhd]( +[1-9][0-9]{0,8}[smhd])*$",
}
"""Texts that have a shape of their own; `BrokerSettings.problems` checks the same."""


def main() -> int:
    """Write the file."""
    TARGET.write_text(with_settings(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"wrote {TARGET}\n")
    return 0


def with_settings(text: str) -> str:
    """Return the text of `brokersets.yaml` with `spec.config` as the settings class declares it."""
    head, _, body = text.partition("apiVersion:")
    document = yaml.safe_load("apiVersion:" + body)
    schema = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["config"] = config_schema()
    return head + yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)


def config_schema() -> dict[str, Any]:
    """The schema of `spec.config`."""
    sentences = _sentences()
    fields = setting_fields(BrokerSettings)
    return {
        "type": "object",
        "description": (
            "Broker settings by RocketMQ's names. Unknown names are refused: the condition Ready then says "
            "InvalidSpec and names the nearest known one."
        ),
        "default": {},
        "x-kubernetes-preserve-unknown-fields": True,
        "x-kubernetes-validations": [_own_rule(name) for name in fields if name in OWN_SETTINGS]
        + _cross_rules(),
        "properties": {
            name: _own(item) if name in OWN_SETTINGS else _known(item, sentences[item.name])
            for name, item in fields.items()
        },
    }


def _own(item: SettingField) -> dict[str, Any]:
    """A setting that is refused, whatever its value is."""
    kind: dict[str, Any] = (
        {"type": "boolean"} if item.kind == "boolean" else {"x-kubernetes-int-or-string": True}
    )
    return {"description": f"Set by brokerset itself: {OWN_SETTINGS[item.outside]}.", **kind}


def _known(item: SettingField, sentence: str) -> dict[str, Any]:
    default = value_text(item.default)
    text = f"{sentence} Default: {default or 'empty'}."
    if item.kind == "boolean":
        return {"description": text, "type": "boolean"}
    if item.kind == "number":
        limits = {"minimum": item.low} | ({"maximum": item.high} if item.high < INT64_MAX else {})
        return {"description": text, "type": "integer", "format": "int64", **limits}
    if item.choices:
        return {"description": text, "type": "string", "enum": list(item.choices)}
    pattern = PATTERNS.get(item.outside, ONE_LINE)
    return {"description": text, "type": "string", "maxLength": TEXT_LENGTH_MAX, "pattern": pattern}


def _own_rule(name: str) -> dict[str, Any]:
    return {
        "rule": f"!has(self.{name})",
        "message": f"is set by brokerset itself; {OWN_SETTINGS[name]}",
        "fieldPath": f".{name}",
        "reason": "FieldValueForbidden",
    }


def _cross_rules() -> list[dict[str, Any]]:
    message, file = _or_default("maxMessageSize"), _or_default("mappedFileSizeCommitLog")
    silence, beat = _or_default("controllerHeartBeatTimeoutMills"), _or_default("brokerHeartbeatInterval")
    return [
        {
            "rule": f"{message} + {RECORD_EXTRA_BYTES} <= {file}",
            "message": (
                f"maxMessageSize and {RECORD_EXTRA_BYTES} bytes for the rest of a record must fit into a "
                "file of mappedFileSizeCommitLog; lower the one or raise the other"
            ),
            "fieldPath": ".maxMessageSize",
            "reason": "FieldValueForbidden",
        },
        {
            "rule": f"{silence} >= 2 * {beat}",
            "message": (
                "controllerHeartBeatTimeoutMills must be at least twice brokerHeartbeatInterval; raise the "
                "one or lower the other"
            ),
            "fieldPath": ".controllerHeartBeatTimeoutMills",
            "reason": "FieldValueForbidden",
        },
    ]


def _or_default(name: str) -> str:
    return f"(has(self.{name}) ? self.{name} : {setting_fields(BrokerSettings)[name].default})"


def _sentences() -> dict[str, str]:
    """The text under each field, by Python name, on one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(BrokerSettings))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
            assert isinstance(before.target, ast.Name)
            assert isinstance(after.value, ast.Constant)
            found[before.target.id] = " ".join(str(after.value.value).split())
    return found


if __name__ == "__main__":
    sys.exit(main())
