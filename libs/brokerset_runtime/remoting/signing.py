"""Signatures of requests that this process sends, where nobody gave others: from its environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from brokerset_acl.signatures import Sign

ACCESS_KEY_VARIABLE: Final = "BROKERSET_ACCESS_KEY"
"""Environment variable: the name of the user that requests are signed as."""

SECRET_KEY_VARIABLE: Final = "BROKERSET_SECRET_KEY"
"""Environment variable: the user's password."""


def sign_of_environment() -> Sign | None:
    """Signs as the user that the environment names; None if it names none."""
    access_key, secret_key = os.environ.get(ACCESS_KEY_VARIABLE), os.environ.get(SECRET_KEY_VARIABLE)
    if not access_key or not secret_key:
        return None
    from brokerset_acl.signatures import Credentials

    return Credentials(access_key, secret_key).sign
