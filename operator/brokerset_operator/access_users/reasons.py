"""Reasons of a User's condition Ready; people and alerts rely on them."""

from __future__ import annotations

from typing import Final

AS_WANTED: Final = "AsWanted"
INVALID_SPEC: Final = "InvalidSpec"
NAME_TAKEN: Final = "NameTaken"
NAME_RESERVED: Final = "NameReserved"
SET_MISSING: Final = "BrokerSetMissing"
SET_INVALID: Final = "BrokerSetInvalid"
ACCESS_OFF: Final = "AccessOff"
NO_CREDENTIALS: Final = "NoCredentials"
SECRET_MISSING: Final = "SecretMissing"
SECRET_TAKEN: Final = "SecretTaken"
SECRETS_FORBIDDEN: Final = "SecretsForbidden"
CONTROLLERS_SILENT: Final = "ControllersSilent"
NO_MASTER: Final = "NoMaster"
BROKER_SILENT: Final = "BrokerSilent"
REFUSED: Final = "Refused"
DELETION_WAITS: Final = "DeletionWaits"
