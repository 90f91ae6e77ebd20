"""Changing settings of a running broker."""

from __future__ import annotations

import pytest

from brokerset_broker.live_settings import LiveSettings
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.live_settings import CHANGEABLE
from brokerset_spec.setting_fields import setting_fields


def test_a_change_takes_effect_and_is_told() -> None:
    """Readers see the new value, listeners which names changed; equal values are no change."""
    live = LiveSettings(BrokerSettings())
    told: list[tuple[int, frozenset[str]]] = []
    live.on_change(lambda settings, names: told.append((settings.broker_permission, names)))

    assert live.update({"brokerPermission": "4", "traceOn": "true"}) == {"brokerPermission"}
    assert live.update({"flushDiskType": "ASYNC_FLUSH"}) == frozenset()

    assert live.current.broker_permission == 4
    assert told == [(4, frozenset({"brokerPermission"}))]


@pytest.mark.parametrize(
    ("name", "value", "code", "words"),
    [
        ("noSuchSetting", "1", ResponseCode.SYSTEM_ERROR, "is not a setting"),
        ("brokerPermission", "lots", ResponseCode.SYSTEM_ERROR, "whole number"),
        ("brokerPermission", "99", ResponseCode.SYSTEM_ERROR, "must be from 0 to 7"),
        ("listenPort", "1", ResponseCode.SYSTEM_ERROR, "cannot be changed while the broker runs"),
        ("brokerConfigPath", "/etc/passwd", ResponseCode.NO_PERMISSION, "black list"),
    ],
)
def test_a_refused_change_changes_nothing(name: str, value: str, code: int, words: str) -> None:
    """Also the good settings next to it stay as they were."""
    live = LiveSettings(BrokerSettings())
    before = live.current

    with pytest.raises(Rejected) as refused:
        live.update({"traceOn": "false", name: value})

    assert refused.value.code == code
    assert words in refused.value.remark
    assert live.current is before


def test_every_changeable_name_is_a_setting() -> None:
    """The list follows the settings."""
    assert set(setting_fields(BrokerSettings)) >= CHANGEABLE
