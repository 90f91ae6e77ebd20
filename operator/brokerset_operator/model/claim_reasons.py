"""Reasons of the condition Ready that Topics, Subjects and Users share; people and alerts rely on them."""

from __future__ import annotations

from typing import Final

AS_WANTED: Final = "AsWanted"
INVALID_SPEC: Final = "InvalidSpec"
NAME_TAKEN: Final = "NameTaken"
SET_MISSING: Final = "BrokerSetMissing"
SET_INVALID: Final = "BrokerSetInvalid"
CONTROLLERS_SILENT: Final = "ControllersSilent"
NO_MASTER: Final = "NoMaster"
BROKER_SILENT: Final = "BrokerSilent"
DELETION_WAITS: Final = "DeletionWaits"
