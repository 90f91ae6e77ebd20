"""Users as requests name them."""

from __future__ import annotations

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.codec import JsonBody


@dataclass(frozen=True, slots=True)
class UserInfo(JsonBody):
    """Body of AUTH_CREATE_USER (3001) and AUTH_UPDATE_USER (3002), and of answers that show a user."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    # brokerset
    former_until: int | None = None
    """Until when the user's former password is accepted, in milliseconds since 1970."""
