"""Settings with names and passwords of Super users, which brokers, controllers and name servers share.

Source: RocketMQ's `AuthConfig`; its controllers and name servers check nobody.
"""

from __future__ import annotations

from typing import Final, Protocol

import orjson

POLICIES_WITHOUT_NAMES: Final = (
    "authorizationEnabled=true: needs authenticationEnabled=true, or nobody has a name"
)


class AdministrationSettings(Protocol):
    """Who may administer a server whose users are those of its settings alone."""

    @property
    def authentication_enabled(self) -> bool:
        """Whether it checks who sends a request."""

    @property
    def authorization_enabled(self) -> bool:
        """Whether policies say what users may do who are not Super users."""

    @property
    def init_authentication_user(self) -> str:
        """`{"username":"…","password":"…"}`, or nothing."""

    @property
    def inner_client_authentication_credentials(self) -> str:
        """`{"accessKey":"…","secretKey":"…"}`, or nothing."""

    @property
    def refusals_max(self) -> int:
        """Refused requests of one connection at which it is closed."""


def first_user_of(text: str) -> tuple[str, str] | None:
    """Name and password of `initAuthenticationUser`; None unless it has both."""
    return _pair(text, "username", "password")


def inner_credentials_of(text: str) -> tuple[str, str] | None:
    """Access key and secret key of `innerClientAuthenticationCredentials`; None unless it has both."""
    return _pair(text, "accessKey", "secretKey")


def credentials_problems(first_text: str, inner_text: str) -> list[str]:
    """What is wrong with the two; no text has a secret in it."""
    found = []
    first, inner = first_user_of(first_text), inner_credentials_of(inner_text)
    if first_text and first is None:
        found.append("initAuthenticationUser: is no JSON object with texts username and password")
    if inner_text and inner is None:
        found.append(
            "innerClientAuthenticationCredentials: is no JSON object with texts accessKey and secretKey"
        )
    if first is not None and inner is not None and first[0] == inner[0] and first != inner:
        found.append(
            "initAuthenticationUser and innerClientAuthenticationCredentials: one user, two passwords"
        )
    return found


def administration_problems(settings: AdministrationSettings) -> list[str]:
    """What is wrong with the settings of a server whose users are those of its settings alone."""
    found = credentials_problems(
        settings.init_authentication_user, settings.inner_client_authentication_credentials
    )
    if settings.authorization_enabled and not settings.authentication_enabled:
        found.append(POLICIES_WITHOUT_NAMES)
    if settings.authentication_enabled and not found and not administrators(settings):
        found.append(
            "authenticationEnabled=true: nobody could register or administer anything; set "
            "innerClientAuthenticationCredentials as the brokers have it, and initAuthenticationUser"
        )
    return found


def administrators(settings: AdministrationSettings) -> dict[str, str]:
    """Name -> password of all Super users of the settings."""
    pairs = (
        first_user_of(settings.init_authentication_user),
        inner_credentials_of(settings.inner_client_authentication_credentials),
    )
    return dict(pair for pair in pairs if pair is not None)


def _pair(text: str, first: str, second: str) -> tuple[str, str] | None:
    """Two texts of a JSON object that are not empty; None for anything else."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    values = [found.get(first), found.get(second)] if isinstance(found, dict) else []
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    return (texts[0], texts[1]) if len(texts) == 2 else None
