"""Reasons that only a User's condition Ready has; people and alerts rely on them."""

from __future__ import annotations

from typing import Final

NAME_RESERVED: Final = "NameReserved"
ACCESS_OFF: Final = "AccessOff"
NO_CREDENTIALS: Final = "NoCredentials"
SECRET_MISSING: Final = "SecretMissing"
SECRET_TAKEN: Final = "SecretTaken"
SECRETS_FORBIDDEN: Final = "SecretsForbidden"
REFUSED: Final = "Refused"
