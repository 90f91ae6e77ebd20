"""What administrators ask about users and policies (3001 to 3010), decided on a book; pure.

Brokers and controllers answer them alike. Source: `AdminBrokerProcessor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from brokerset_acl.access_book import NO_ACL, NO_BODY, Accounts, WantedUser
from brokerset_acl.former_passwords import FormerUses
from brokerset_acl.policies import Acl, PolicyType, resource_of, word
from brokerset_acl.users import FORMER_UNTIL, User, UserStatus, UserType, subject_of
from brokerset_formats.config import fields
from brokerset_formats.errors import FormatError
from brokerset_protocol import headers
from brokerset_protocol.bodies.access import UserInfo
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected

CHANGES: Final = frozenset(
    {
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
    }
)
"""Requests that change something; the other ones read."""


@dataclass(frozen=True, slots=True)
class BookChange:
    """Users by name and policies by subject; None where one is deleted. Users come first."""

    users: Mapping[str, User | None] = field(default_factory=dict)
    acls: Mapping[str, Acl | None] = field(default_factory=dict)


def decide_change(
    accounts: Accounts, command: Command, *, by_super: bool, now_ms: int, repeated: bool = False
) -> BookChange | None:
    """What a request changes; None if it is so already. `repeated`: tools ask every broker for the same, so
    what is deleted already is no error. `now_ms`: milliseconds since 1970. Raises `Rejected`."""
    match command.code:
        case RequestCode.AUTH_CREATE_USER:
            return _put(accounts, accounts.decide_create(_wanted(command), by_super=by_super))
        case RequestCode.AUTH_UPDATE_USER:
            return _put(
                accounts, accounts.decide_update(_wanted_update(command), by_super=by_super, now_ms=now_ms)
            )
        case RequestCode.AUTH_DELETE_USER:
            name = headers.NamedUser.from_ext(command.ext).username
            there = accounts.decide_delete(name, by_super=by_super)
            return BookChange(users={name: None}) if there else None
        case RequestCode.AUTH_DELETE_ACL:
            return _without_acl(accounts, command, by_super=by_super, repeated=repeated)
        case _:
            acl = accounts.decide_acl(_acl(command), by_super=by_super)
            known = accounts.book.acls.get(acl.subject)
            return None if known == acl else BookChange(acls={acl.subject: acl})


def former_until(accounts: Accounts, command: Command, now_ms: int) -> dict[str, str]:
    """Fields of the answer to an update: until when the former password counts, if it does. Servers that know
    no former passwords leave it out, so whoever asked sees that the old one is refused."""
    if command.code != RequestCode.AUTH_UPDATE_USER:
        return {}
    user = accounts.user(headers.NamedUser.from_ext(command.ext).username)
    former = None if user is None else user.former_at(now_ms)
    return headers.UpdateUserResponse(former_until=None if former is None else former.until_ms).to_ext()


def answer_read(
    accounts: Accounts, command: Command, *, passwords: bool, now_ms: int, uses: FormerUses | None = None
) -> Command:
    """The answer to a request that reads; `passwords`: whether they are shown; `uses`: of former ones here.

    As Java's without a body where there is nothing. Raises `Rejected`.
    """

    def shown(user: User, *, former: bool = False) -> dict[str, object]:
        return {
            **user.to_json(password=passwords, former=former and passwords),
            **_about_former(user, now_ms, uses),
        }

    match command.code:
        case RequestCode.AUTH_GET_USER:
            name = headers.NamedUser.from_ext(command.ext).username
            if not name.strip():
                raise Rejected(ResponseCode.INVALID_PARAMETER, "The username is blank")
            user = accounts.user(name)
            return _one(command, None if user is None else shown(user))
        case RequestCode.AUTH_LIST_USER:
            listed = headers.ListUsers.from_ext(command.ext)
            former = listed.former_passwords is True
            return _list(command, [shown(user, former=former) for user in accounts.users(listed.filter)])
        case RequestCode.AUTH_GET_ACL:
            acl = accounts.acl_of(headers.NamedSubject.from_ext(command.ext).subject)
            return _one(command, None if acl is None else acl.to_json())
        case _:
            header = headers.ListAcls.from_ext(command.ext)
            acls = accounts.acls(header.subject_filter, header.resource_filter)
            return _list(command, [acl.to_json() for acl in acls])


def _about_former(user: User, now_ms: int, uses: FormerUses | None) -> dict[str, object]:
    """Fields that Java does not have, of a user whose former password is accepted."""
    former = user.former_at(now_ms)
    if former is None:
        return {}
    last = None if uses is None else uses.last(user)
    used = {} if last is None else {"formerLastUsed": last.at_ms, "formerLastUsedFrom": last.source}
    return {FORMER_UNTIL: former.until_ms, **used}


def _put(accounts: Accounts, user: User) -> BookChange | None:
    return None if accounts.user(user.username) == user else BookChange(users={user.username: user})


def _without_acl(
    accounts: Accounts, command: Command, *, by_super: bool, repeated: bool
) -> BookChange | None:
    header = headers.DeleteAcl.from_ext(command.ext)
    kind = word(PolicyType, header.policy_type) or PolicyType.CUSTOM
    assert isinstance(kind, PolicyType)
    resource = resource_of(header.resource) if header.resource else None
    if header.resource and resource is None:  # Java deletes everything then
        raise Rejected(ResponseCode.NO_PERMISSION, "The resource is null.")
    try:
        left = accounts.decide_acl_without(header.subject, kind, resource, by_super=by_super)
    except Rejected as refused:
        if refused.remark == NO_ACL and repeated:
            return None
        raise
    subject = subject_of(header.subject.partition(":")[2])
    return None if accounts.book.acls.get(subject) == left else BookChange(acls={subject: left})


def _wanted(command: Command) -> WantedUser:
    name = headers.NamedUser.from_ext(command.ext).username
    info = UserInfo.from_json(command.body) if command.body else UserInfo()
    kind, status = UserType.named(info.user_type), UserStatus.named(info.user_status)
    if (info.user_type and kind is None) or (info.user_status and status is None):  # Java takes its defaults
        raise Rejected(
            ResponseCode.INVALID_PARAMETER, "userType must be Super or Normal, userStatus enable or disable"
        )
    return WantedUser(name, info.password, kind, status)


def _wanted_update(command: Command) -> WantedUser:
    seconds = headers.UpdateUser.from_ext(command.ext).former_password_seconds
    return replace(_wanted(command), former_seconds=seconds or 0)


def _acl(command: Command) -> Acl:
    subject = headers.NamedSubject.from_ext(command.ext).subject
    if not command.body:
        raise Rejected(ResponseCode.NO_PERMISSION, NO_BODY)
    try:
        found: Mapping[str, object] = fields.parse_object(command.body)
        if not found.get("policies"):
            raise Rejected(ResponseCode.NO_PERMISSION, NO_BODY)
        return Acl.from_json({**found, "subject": subject})
    except FormatError as error:
        raise Rejected(ResponseCode.NO_PERMISSION, str(error)) from None


def _one(command: Command, found: Mapping[str, object] | None) -> Command:
    return command.reply(body=b"" if found is None else orjson.dumps(found))


def _list(command: Command, items: list[dict[str, object]]) -> Command:
    return command.reply(body=orjson.dumps(items) if items else b"")
