"""Which settings of the environment each process of a set is given.

A manifest is no place for passwords, so `brokerset up` passes its environment on. Every program refuses
settings that it does not know: what is a setting of brokers alone must not reach controllers, and a name that
no program knows must reach them all, to be refused with its name.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from brokerset_runtime.settings import ENVIRONMENT_PREFIX
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.namesrv_settings import NamesrvSettings
from brokerset_spec.setting_fields import setting_fields

Kind = Literal["controller", "namesrv", "broker"]

_CLASSES: Final[dict[Kind, type[Any]]] = {
    "controller": ControllerSettings,
    "namesrv": NamesrvSettings,
    "broker": BrokerSettings,
}


def variables_of_others(kind: Kind) -> frozenset[str]:
    """Variables of settings that processes of other kinds have, and those of `kind` do not."""
    known = {each: setting_fields(settings).keys() for each, settings in _CLASSES.items()}
    others = frozenset[str]().union(*known.values()) - known[kind]
    return frozenset(ENVIRONMENT_PREFIX + name for name in others)
