"""Users: a name, a password that is the key of their signatures, a type and a status.

Source: RocketMQ's `User`, `UserType`, `UserStatus`, `UserInfo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from brokerset_formats.errors import FormatError

NAME_SIZE_MAX: Final = 255
"""Characters of a user's name."""

PASSWORD_SIZE_MAX: Final = 1_024
"""Characters of a password."""

USERS_MAX: Final = 10_000
"""Users of one broker group; one more is refused."""

FORMER_PASSWORD: Final = "formerPassword"
FORMER_UNTIL: Final = "formerUntil"
"""Names in JSON that Java's `UserInfo` has not."""


class UserType(StrEnum):
    """A Super user may do everything; a Normal one what policies allow."""

    SUPER = "Super"
    NORMAL = "Normal"

    @classmethod
    def named(cls, text: str | None) -> UserType | None:
        """The type of this name in any case, as Java takes it; None for every other text."""
        return next((each for each in cls if text is not None and each.lower() == text.lower()), None)


class UserStatus(StrEnum):
    """A disabled user's requests are refused; what is stored of the user stays."""

    ENABLE = "enable"
    DISABLE = "disable"

    @classmethod
    def named(cls, text: str | None) -> UserStatus | None:
        """The status of this name in any case; None for every other text."""
        return next((each for each in cls if text is not None and each.lower() == text.lower()), None)


@dataclass(frozen=True, slots=True)
class FormerPassword:
    """The password of before the last change, which is accepted for some time. Not in Java."""

    password: str = field(repr=False)

    until_ms: int
    """Milliseconds since 1970, by the clock of who decided the change."""


@dataclass(frozen=True, slots=True)
class User:
    """One user. The password is kept as it is, because signatures are checked with it."""

    username: str
    password: str = field(repr=False)
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE
    former: FormerPassword | None = None
    """May have expired: it is dropped when the user is written again."""

    @property
    def is_super(self) -> bool:
        """Whether the user may do everything."""
        return self.type is UserType.SUPER

    def former_at(self, now_ms: int) -> FormerPassword | None:
        """The former password, while it is accepted."""
        return self.former if self.former is not None and now_ms < self.former.until_ms else None

    def passwords(self, now_ms: int) -> tuple[str, ...]:
        """All that are accepted now, the newest one first."""
        former = self.former_at(now_ms)
        return (self.password,) if former is None else (self.password, former.password)

    def to_json(self, *, password: bool = True, former: bool = True) -> dict[str, object]:
        """As Java's `UserInfo`, with or without the password. `former`: with the former one, if there is one;
        Java, and readers of before it existed, pass it by."""
        secret: dict[str, object] = {"password": self.password} if password else {}
        kept: dict[str, object] = {}
        if former and self.former is not None:
            kept = {FORMER_PASSWORD: self.former.password, FORMER_UNTIL: self.former.until_ms}
        return {
            **secret,
            "userStatus": str(self.status),
            "userType": str(self.type),
            "username": self.username,
            **kept,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> User:
        """Read what `to_json` made. Raises FormatError."""
        name, password = found.get("username"), found.get("password")
        kind, status = found.get("userType"), found.get("userStatus")
        if not isinstance(name, str) or not isinstance(password, str) or not name:
            raise FormatError("a user has no name or no password")
        read_kind = UserType.named(kind if isinstance(kind, str) else None)
        read_status = UserStatus.named(status if isinstance(status, str) else None)
        if read_kind is None or read_status is None:
            raise FormatError(f"user {name[:64]!r} has no type or no status that is known")
        return cls(name, password, read_kind, read_status, _former_of(found, name))


def _former_of(found: Mapping[str, object], name: str) -> FormerPassword | None:
    if FORMER_PASSWORD not in found:
        return None
    password, until_ms = found[FORMER_PASSWORD], found.get(FORMER_UNTIL)
    if not isinstance(password, str) or type(until_ms) is not int:
        raise FormatError(f"user {name[:64]!r} has a former password without a time until when it counts")
    return FormerPassword(password, until_ms)


def subject_of(username: str) -> str:
    """The subject that policies of a user have: `User:name`."""
    return f"User:{username}"


def user_of(subject: str) -> str | None:
    """The user that a subject names; None if it names none."""
    kind, colon, name = subject.partition(":")
    return name if colon and kind.lower() == "user" and name.strip() else None
