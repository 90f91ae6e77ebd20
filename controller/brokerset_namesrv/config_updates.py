"""Which settings of a running name server may be changed by request, and to what.

Source: the black list of RocketMQ's `DefaultRequestProcessor`. Java drops unknown names silently; here they
are refused.
"""

from __future__ import annotations

from typing import Final

from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.settings import SettingsError, all_values, from_properties, load
from brokerset_spec.namesrv_settings import NamesrvSettings

FORBIDDEN: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
"""Names that would let a client write files of its choice: never changed by request, as in Java."""

ONLY_AT_START: Final = frozenset(
    {
        "listenPort",
        "bindAddress",
        "httpPort",
        "authenticationEnabled",
        "authorizationEnabled",
        "controllerAddr",
        "initAuthenticationUser",
        "innerClientAuthenticationCredentials",
        "refusalsMax",
        "tlsConfigFile",
        "externalListenPort",
        "externalAddressesPath",
        "externalConnectionsMax",
    }
)
"""Names that are read once; a change is refused, so that nobody believes that it had an effect."""

TEXT_SIZE_MAX: Final = 64 * 1024
"""Bytes of the properties text in one request."""


def changed_settings(settings: NamesrvSettings, text: bytes) -> NamesrvSettings:
    """`settings` with the values in a properties text, all or none. Raises `Rejected` with every problem."""
    if len(text) > TEXT_SIZE_MAX:
        raise Rejected(ResponseCode.INVALID_PARAMETER, f"more than {TEXT_SIZE_MAX} bytes of settings")
    try:
        values = from_properties(text.decode(), label="request")
    except UnicodeDecodeError:
        raise Rejected(ResponseCode.INVALID_PARAMETER, "the settings are not UTF-8") from None
    except SettingsError as error:
        raise Rejected(ResponseCode.INVALID_PARAMETER, str(error)) from None
    if values.keys() & FORBIDDEN:
        raise Rejected(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    late = sorted(values.keys() & ONLY_AT_START)
    if late:
        raise Rejected(
            ResponseCode.NO_PERMISSION,
            f"{', '.join(late)} can only be set at the start: change the settings file and restart",
        )
    try:
        return load(NamesrvSettings, ("current settings", all_values(settings)), ("request", values))
    except SettingsError as error:
        raise Rejected(ResponseCode.INVALID_PARAMETER, str(error)) from None
