"""Settings that brokers take while they run: a change of them restarts nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.live_settings import CHANGEABLE
from brokerset_spec.setting_fields import SettingValue, setting_fields, value_text

LIVE: Final = CHANGEABLE - {"brokerPermission"}
"""All that UPDATE_BROKER_CONFIG changes at once, but the permission: that is how groups are drained, and how
people take one out of service for a while."""

HASHED: Final = frozenset({"namesrvAddr"})
"""Live settings that count in the hash of pods all the same. This one follows from names that never change,
and a hash without it would replace all pods that an earlier operator has made."""

MINIMUM: Final = "minInSyncReplicas"

BROKER_NAME: Final = "brokerName"
OWNER_UID: Final = "ownerUid"
"""Whose broker it is that answers: an address may be another pod's by now."""

OBSERVED: Final = LIVE | {BROKER_NAME, OWNER_UID}
"""What is kept of a broker's answer."""


def restarting(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of brokers whose change makes pods old."""
    return {name: text for name, text in settings.items() if name not in LIVE - HASHED}


def differing(said: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return what a running broker is to be told: live settings that are other ones than in its file.

    What the file does not name has its default. What the broker does not name it does not know.
    """
    known = setting_fields(BrokerSettings)
    found = {}
    for name in sorted(LIVE & said.keys()):
        field = known[name]
        value = _parsed(name, wanted[name]) if name in wanted else field.default
        if _parsed(name, said[name]) != value:
            found[name] = value_text(value)
    return found


def _parsed(name: str, text: str) -> SettingValue:
    try:
        return setting_fields(BrokerSettings)[name].parse(text)
    except ValueError:
        return text
