"""Which settings of a running controller may be changed by request, and to what.

Source: `ControllerManager`, `ControllerRequestProcessor`, `ControllerConfig` of RocketMQ. As there, a change
is for this controller alone, and names that are not known are ignored.
"""

from __future__ import annotations

from typing import Final

from brokerset_controller.request_limits import refuse
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.settings import SettingsError, all_values, from_properties, load, settings_values
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.setting_fields import setting_fields

CHANGEABLE: Final = frozenset(
    {
        "scanNotActiveBrokerInterval",
        "scanInactiveMasterInterval",
        "probeTimeout",
        "enableElectUncleanMaster",
        "notifyBrokerRoleChanged",
        "electMasterMaxRetryCount",
        "requestTimeout",
    }
)
"""Names that take effect at once; all others are read when the process starts."""

FORBIDDEN: Final = frozenset({"configBlackList", "configStorePath", "rocketmqHome"})
"""Names that RocketMQ never lets a request change; `configBlackList` adds to them."""

TEXT_SIZE_MAX: Final = 64 * 1024
"""Bytes of the properties text in one request."""


def changed_settings(settings: ControllerSettings, text: bytes) -> ControllerSettings:
    """`settings` with the values in a properties text, all or none. Raises `Rejected`."""
    if len(text) > TEXT_SIZE_MAX:
        raise refuse(f"the body has {len(text)} bytes of settings; TEXT_SIZE_MAX is {TEXT_SIZE_MAX}")
    try:
        values = from_properties(text.decode(), label="request")
    except UnicodeDecodeError:
        raise refuse("the settings are not UTF-8") from None
    except SettingsError as error:
        raise refuse(str(error)) from None
    black_list = FORBIDDEN | {name.strip() for name in settings.config_black_list.split(";")}
    if values.keys() & black_list:
        raise Rejected(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    known = setting_fields(ControllerSettings)
    values = {name: value for name, value in values.items() if name in known}
    late = sorted(values.keys() - CHANGEABLE)
    if late:
        raise Rejected(
            ResponseCode.NO_PERMISSION,
            f"{', '.join(late)} can only be set at the start: change the settings file and restart",
        )
    try:
        return load(ControllerSettings, ("current settings", all_values(settings)), ("request", values))
    except SettingsError as error:
        raise refuse(str(error)) from None


def sorted_text(settings: ControllerSettings) -> str:
    """All settings as `name=value` lines in the order of their names, as Java answers them."""
    return "".join(f"{name}={value}\n" for name, value in sorted(settings_values(settings).items()))
