"""`spec.config` of a BrokerSet as a schema, made from the settings class.

Settings are listed with their types, ranges and meanings, so that the API server refuses a wrong value at
once and `kubectl explain brokerset.spec.config` tells what there is. Names that are not listed are kept, and
refused by the operator, which may be newer than the installed CRD and know more of them.
"""

from __future__ import annotations

from typing import Any, Final

from generate.schemas import field_texts

from brokerset_spec.broker_settings import RECORD_EXTRA_BYTES, BrokerSettings
from brokerset_spec.manifest import OWN_SETTINGS
from brokerset_spec.manifest_parts import rule
from brokerset_spec.setting_fields import INT64_MAX, SettingField, setting_fields, value_text

TEXT_LENGTH_MAX: Final = 4096

ONE_LINE: Final = r"^[^\r\n]*$"

PATTERNS: Final = {
    "deleteWhen": r"^([01]?[0-9]|2[0-3])(;([01]?[0-9]|2[0-3]))*$",
    "messageDelayLevel": r"^[1-9][0-9]{0,8}[smhd]( +[1-9][0-9]{0,8}[smhd])*$",
}
"""Texts that have a shape of their own; `BrokerSettings.problems` checks the same."""


def config_schema() -> dict[str, Any]:
    """The schema of `spec.config`."""
    sentences = {name: " ".join(text.split()) for name, text in field_texts(BrokerSettings).items()}
    fields = setting_fields(BrokerSettings)
    return {
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
    return rule(f"!has(self.{name})", f"is set by brokerset itself; {OWN_SETTINGS[name]}", name)


def _cross_rules() -> list[dict[str, Any]]:
    message, file = _or_default("maxMessageSize"), _or_default("mappedFileSizeCommitLog")
    silence, beat = _or_default("controllerHeartBeatTimeoutMills"), _or_default("brokerHeartbeatInterval")
    return [
        rule(
            f"{message} + {RECORD_EXTRA_BYTES} <= {file}",
            f"maxMessageSize and {RECORD_EXTRA_BYTES} bytes for the rest of a record must fit into a file of "
            "mappedFileSizeCommitLog; lower the one or raise the other",
            "maxMessageSize",
        ),
        rule(
            f"{silence} >= 2 * {beat}",
            "controllerHeartBeatTimeoutMills must be at least twice brokerHeartbeatInterval; raise the "
            "one or "
            "lower the other",
            "controllerHeartBeatTimeoutMills",
        ),
    ]


def _or_default(name: str) -> str:
    return f"(has(self.{name}) ? self.{name} : {setting_fields(BrokerSettings)[name].default})"
