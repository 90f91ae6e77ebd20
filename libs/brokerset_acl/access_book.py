"""All users and policies of a broker group, and what administrators may change of them.

The refusals have Java's codes and texts. Source: `AuthenticationMetadataManagerImpl`,
`AuthorizationMetadataManagerImpl`, and the requests 3001 to 3010 of `AdminBrokerProcessor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from brokerset_acl.former_passwords import FORMER_SECONDS_MAX, with_former
from brokerset_acl.policies import ACL_BYTES_MAX, ENTRIES_MAX, Acl, PolicyType, Resource
from brokerset_acl.signatures import Credentials
from brokerset_acl.users import (
    NAME_SIZE_MAX,
    PASSWORD_SIZE_MAX,
    USERS_MAX,
    User,
    UserStatus,
    UserType,
    subject_of,
    user_of,
)
from brokerset_formats.config import fields
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected

USER_EXISTS: Final = "The user is existed"
NO_USER: Final = "The user is not exist"
NO_ACL: Final = "The acl is not exist."
NO_SUBJECT: Final = "The subject is not exist."
BLANK_NAME: Final = "The username is blank"
NO_BODY: Final = "The body of acl is null"
ONLY_SUPER_CREATES: Final = "The super user can only be create by super user"
ONLY_SUPER_UPDATES: Final = "The super user can only be update by super user"


@dataclass(frozen=True, slots=True)
class WantedUser:
    """What a request says of a user; None is left as it is."""

    username: str
    password: str | None = field(default=None, repr=False)
    type: UserType | None = None
    status: UserStatus | None = None
    former_seconds: int = 0
    """How long the password of before is accepted, too; 0: not at all. For updates alone."""


RESTART_MS_MIN: Final = 600_000
"""As long a former password of who members sign as has to be accepted at the least, in milliseconds."""


@dataclass(slots=True)
class AccessBook:
    """Users by name and policies by subject (`User:name`). The functions that decide change nothing."""

    users: dict[str, User] = field(default_factory=dict)
    acls: dict[str, Acl] = field(default_factory=dict)
    changes: int = field(default=0, compare=False)
    """How often it has changed: what follows from an older number may not be true any more."""

    def put(self, users: Mapping[str, User | None], acls: Mapping[str, Acl | None]) -> None:
        """Take what was decided; None deletes. Who is deleted has no policies any more."""
        self.changes += 1
        for name, user in users.items():
            if user is None:
                self.users.pop(name, None)
                self.acls.pop(subject_of(name), None)
            else:
                self.users[name] = user
        for subject, acl in acls.items():
            if acl is None:
                self.acls.pop(subject, None)
            else:
                self.acls[subject] = acl

    def become(self, other: AccessBook) -> None:
        """Have exactly what another book has."""
        self.changes += 1
        self.users, self.acls = dict(other.users), dict(other.acls)

    def copy(self) -> AccessBook:
        """A book that changes by itself; users and policies are values."""
        return AccessBook(dict(self.users), dict(self.acls))


class Accounts:
    """The users of a book, and those that settings name, who count where the book has no user of the name."""

    def __init__(
        self, book: AccessBook, configured: Mapping[str, User] | None = None, inner: str | None = None
    ) -> None:
        """`inner` is who of those in `configured` brokers sign as: always let in as the settings say."""
        self.book = book
        self._configured = dict(configured or {})
        self._inner = inner

    def user(self, name: str) -> User | None:
        """The user of this name."""
        return self.book.users.get(name) or self._configured.get(name)

    def acl(self, name: str) -> Acl | None:
        """What is said about the user of this name."""
        return self.book.acls.get(subject_of(name))

    def users(self, name_part: str | None = None) -> list[User]:
        """All whose name contains a text, by name."""
        found = {**self._configured, **self.book.users}
        return [found[name] for name in sorted(found) if not name_part or name_part in name]

    # -- users --------------------------------------------------------------------------------------------

    def decide_create(self, wanted: WantedUser, *, by_super: bool) -> User:
        """The user to be stored; one that is there as wanted is no error, since tools ask every broker of a
        group. Raises `Rejected`."""
        name = _named(wanted)
        if wanted.type is UserType.SUPER and not by_super:
            raise Rejected(ResponseCode.SYSTEM_ERROR, ONLY_SUPER_CREATES)
        if not (wanted.password or "").strip():
            raise _refused("password can not be blank")
        user = _checked(
            User(
                name,
                wanted.password or "",
                wanted.type or UserType.NORMAL,
                wanted.status or UserStatus.ENABLE,
            )
        )
        old = self.user(name)
        if old is not None and replace(old, former=None) != user:
            raise _refused(USER_EXISTS)
        if old is not None:
            return old
        if len(self.book.users) >= USERS_MAX:
            raise _refused(f"there are {USERS_MAX} users already; delete some first")
        return user

    def decide_update(self, wanted: WantedUser, *, by_super: bool, now_ms: int) -> User:
        """The user to be stored in place of the old one; `now_ms` is milliseconds since 1970.

        Raises `Rejected`."""
        name = _named(wanted)
        if wanted.type is UserType.SUPER and not by_super:
            raise Rejected(ResponseCode.SYSTEM_ERROR, ONLY_SUPER_UPDATES)
        old = self.user(name)
        if old is None:
            raise _refused(NO_USER)
        if old.is_super and not by_super:
            raise _refused(ONLY_SUPER_UPDATES)
        if not 0 <= wanted.former_seconds <= FORMER_SECONDS_MAX:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"formerPasswordSeconds must be 0 to {FORMER_SECONDS_MAX}, which is 30 days",
            )
        changed = _checked(
            replace(
                old,
                password=wanted.password if wanted.password and wanted.password.strip() else old.password,
                type=wanted.type or old.type,
                status=wanted.status or old.status,
            )
        )
        user = with_former(old, changed, wanted.former_seconds, now_ms)
        if name == self._inner and not _lets_in(user, self._configured[name], now_ms):
            raise _refused(
                f"brokers sign as User:{name} (innerClientAuthenticationCredentials) and would refuse each"
                " other: change the password with --keep-former, then restart all with the new one; or"
                " create a Super user, name it there, and restart them one after the other"
            )
        return user

    def decide_delete(self, name: str, *, by_super: bool) -> bool:
        """Whether there is a user to be deleted. Raises `Rejected`.

        Of one that a setting names goes what is stored, when that says the same; then the setting counts."""
        if not name.strip():
            raise _refused("username can not be blank")
        if name in self._configured:
            stored = self.book.users.get(name)
            if stored is None or replace(stored, former=None) != self._configured[name]:
                raise _refused(f"User:{name} is named by a setting of the broker; take it out there first")
        old = self.user(name)
        if old is not None and old.is_super and not by_super:
            raise _refused(ONLY_SUPER_UPDATES)
        return old is not None

    # -- policies -----------------------------------------------------------------------------------------

    def decide_acl(self, wanted: Acl, *, by_super: bool) -> Acl:
        """What is said about the subject when `wanted` is added to it. Raises `Rejected`."""
        name = self._user_of(wanted.subject, f"The subject of {wanted.subject} is not exist.")
        self._check_rights(name, by_super=by_super)
        merged = self.book.acls.get(subject_of(name), Acl(subject_of(name))).merged(wanted)
        if len(merged.custom) + len(merged.default) > ENTRIES_MAX:
            raise _refused(f"{subject_of(name)} would have more than {ENTRIES_MAX} entries; use prefixes")
        if len(orjson.dumps(merged.to_json())) > ACL_BYTES_MAX:
            raise _refused(f"{subject_of(name)} would have policies of more than {ACL_BYTES_MAX} bytes")
        return merged

    def decide_acl_without(
        self, subject: str, kind: PolicyType, resource: Resource | None, *, by_super: bool
    ) -> Acl | None:
        """What is left when a resource, or everything, is not spoken of any more; None if nothing is.

        Raises `Rejected`.
        """
        name = self._user_of(subject, NO_SUBJECT)
        self._check_rights(name, by_super=by_super)
        old = self.book.acls.get(subject_of(name))
        if old is None:
            raise _refused(NO_ACL)
        left = Acl(old.subject) if resource is None else old.without(kind, resource)
        return None if left.is_empty else left

    def acl_of(self, subject: str) -> Acl | None:
        """What is said about a subject. Raises `Rejected` if there is no such user."""
        return self.acl(self._user_of(subject, NO_SUBJECT))

    def acls(self, subject_part: str | None = None, resource_part: str | None = None) -> list[Acl]:
        """All whose subject contains a text, with the entries whose resource contains another one."""
        found = []
        for subject in sorted(self.book.acls):
            acl = self.book.acls[subject]
            if subject_part and subject_part not in subject:
                continue
            if resource_part:
                custom, default = (
                    tuple(entry for entry in acl.of(kind) if resource_part in entry.resource.key)
                    for kind in PolicyType
                )
                acl = Acl(subject, custom, default)
            if not acl.is_empty:
                found.append(acl)
        return found

    def _user_of(self, subject: str, absent: str) -> str:
        name = user_of(subject)
        if name is None or self.user(name) is None:
            raise _refused(absent)
        return name

    def _check_rights(self, name: str, *, by_super: bool) -> None:
        """A Super user needs no policies, so nobody else has anything to change there."""
        user = self.user(name)
        if user is not None and user.is_super and not by_super:
            raise _refused(ONLY_SUPER_UPDATES)


def configured_users(first: tuple[str, str] | None, inner: Credentials | None) -> dict[str, User]:
    """The Super users that settings name: `first` is name and password, `inner` what brokers sign with."""
    found = {}
    if first is not None:
        found[first[0]] = User(*first, type=UserType.SUPER)
    if inner is not None:
        found.setdefault(inner.access_key, User(inner.access_key, inner.secret_key, UserType.SUPER))
    return found


def _lets_in(user: User, configured: User, now_ms: int) -> bool:
    """Whether who signs as a setting says is let in as before, long enough to restart with another one."""
    same = replace(user, password=configured.password, former=None) == configured
    return same and configured.password in user.passwords(now_ms + RESTART_MS_MIN)


def _named(wanted: WantedUser) -> str:
    if not wanted.username.strip():
        raise Rejected(ResponseCode.INVALID_PARAMETER, BLANK_NAME)
    return wanted.username


def _checked(user: User) -> User:
    if len(user.username) > NAME_SIZE_MAX or not user.username.isprintable():
        raise _refused(f"a username has at most {NAME_SIZE_MAX} characters, all of them printable")
    if len(user.password) > PASSWORD_SIZE_MAX:
        raise _refused(f"a password has at most {PASSWORD_SIZE_MAX} characters")
    return user


def _refused(text: str) -> Rejected:
    return Rejected(ResponseCode.NO_PERMISSION, text)


# -- JSON -------------------------------------------------------------------------------------------------


def users_of(found: Mapping[str, object]) -> dict[str, User | None]:
    """The field `users`: a user by name, null where one is deleted. Raises FormatError."""
    return {
        name: None if user is None else User.from_json(fields.as_object(user, f"users.{name}"))
        for name, user in fields.get_object(found, "users").items()
    }


def acls_of(found: Mapping[str, object]) -> dict[str, Acl | None]:
    """The field `acls`: all policies of a subject, null where there are none any more. Raises FormatError."""
    return {
        subject: None if acl is None else Acl.from_json(fields.as_object(acl, f"acls.{subject}"))
        for subject, acl in fields.get_object(found, "acls").items()
    }
