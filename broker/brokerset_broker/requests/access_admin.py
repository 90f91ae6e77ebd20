"""Users and policies as administrators change and see them: 3001 to 3010.

Source: `AdminBrokerProcessor`. Java's brokers keep them each for itself; here they are metadata of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson
import structlog

from brokerset_acl.access_book import NO_ACL, NO_BODY, WantedUser
from brokerset_acl.policies import Acl, PolicyType, resource_of, word
from brokerset_acl.signatures import ACCESS_KEY
from brokerset_acl.users import User, UserStatus, UserType
from brokerset_broker.requests.access_control import AccessControl
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog, check_changeable
from brokerset_broker.requests.request_classes import is_forwarded
from brokerset_broker.tables.metadata.records import AccessPut, Change
from brokerset_formats.config import fields
from brokerset_formats.errors import FormatError
from brokerset_protocol import headers
from brokerset_protocol.bodies.access import UserInfo
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.remoting import Connection, Handler

log = structlog.get_logger(__name__)

_KEY: Final = "access"
"""Changes of users and policies take turns: each depends on what is there."""

Decide = Callable[[], AccessPut | None]
"""What is to change; None if it is so already. Raises `Rejected`."""


class AccessAdmin:
    """Serves administrators; `control` knows who they are."""

    def __init__(self, *, control: AccessControl, admission: Admission, changes: ChangeLog) -> None:
        self._control = control
        self._accounts = control.accounts
        self._admission = admission
        self._changes = changes

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: self.delete_user,
            RequestCode.AUTH_GET_USER: self.user,
            RequestCode.AUTH_LIST_USER: self.users,
            RequestCode.AUTH_CREATE_ACL: self.put_acl,
            RequestCode.AUTH_UPDATE_ACL: self.put_acl,
            RequestCode.AUTH_DELETE_ACL: self.delete_acl,
            RequestCode.AUTH_GET_ACL: self.acl,
            RequestCode.AUTH_LIST_ACL: self.acls,
        }

    # -- users --------------------------------------------------------------------------------------------

    def create_user(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """AUTH_CREATE_USER (3001)."""
        wanted, by_super = _wanted(command), self._control.is_super(command)
        return self._change(
            connection, command, lambda: self._put(self._accounts.decide_create(wanted, by_super=by_super))
        )

    def update_user(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """AUTH_UPDATE_USER (3002): what the body does not name stays."""
        wanted, by_super = _wanted(command), self._control.is_super(command)
        return self._change(
            connection, command, lambda: self._put(self._accounts.decide_update(wanted, by_super=by_super))
        )

    def delete_user(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """AUTH_DELETE_USER (3003): the user and all policies; without the user it is done already."""
        name = headers.NamedUser.from_ext(command.ext).username
        by_super = self._control.is_super(command)

        def decide() -> AccessPut | None:
            return (
                AccessPut({name: None}, {}) if self._accounts.decide_delete(name, by_super=by_super) else None
            )

        return self._change(connection, command, decide)

    def _put(self, user: User) -> AccessPut | None:
        return None if self._accounts.user(user.username) == user else AccessPut({user.username: user}, {})

    def user(self, connection: Connection, command: Command) -> Command:
        """AUTH_GET_USER (3004); without a body if there is none."""
        name = headers.NamedUser.from_ext(command.ext).username
        if not name.strip():
            raise Rejected(ResponseCode.INVALID_PARAMETER, "The username is blank")
        user = self._accounts.user(name)
        return command.reply(body=b"" if user is None else orjson.dumps(self._shown(user, command)))

    def users(self, connection: Connection, command: Command) -> Command:
        """AUTH_LIST_USER (3005)."""
        found = self._accounts.users(headers.ListUsers.from_ext(command.ext).filter)
        return _list(command, [self._shown(user, command) for user in found])

    def _shown(self, user: User, command: Command) -> dict[str, object]:
        return user.to_json(password=self._control.shows_passwords(command))

    # -- policies -----------------------------------------------------------------------------------------

    def put_acl(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """AUTH_CREATE_ACL (3006), AUTH_UPDATE_ACL (3007): entries of the same resource are replaced."""
        subject = headers.NamedSubject.from_ext(command.ext).subject
        wanted = _acl(subject, command.body)
        by_super = self._control.is_super(command)

        def decide() -> AccessPut | None:
            acl = self._accounts.decide_acl(wanted, by_super=by_super)
            known = self._accounts.book.acls.get(acl.subject)
            return None if known == acl else AccessPut({}, {acl.subject: acl})

        return self._change(connection, command, decide)

    def delete_acl(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """AUTH_DELETE_ACL (3008): without a resource everything that is said about the subject."""
        header = headers.DeleteAcl.from_ext(command.ext)
        kind = word(PolicyType, header.policy_type) or PolicyType.CUSTOM
        assert isinstance(kind, PolicyType)
        resource = resource_of(header.resource) if header.resource else None
        if header.resource and resource is None:  # Java deletes everything then
            raise Rejected(ResponseCode.NO_PERMISSION, "The resource is null.")
        by_super = self._control.is_super(command)

        def decide() -> AccessPut | None:
            try:
                left = self._accounts.decide_acl_without(header.subject, kind, resource, by_super=by_super)
            except Rejected as refused:
                if refused.remark == NO_ACL and is_forwarded(command.ext):
                    return None  # tools ask every broker of a group, and the master was asked before
                raise
            subject = f"User:{header.subject.partition(':')[2]}"
            return None if self._accounts.book.acls.get(subject) == left else AccessPut({}, {subject: left})

        return self._change(connection, command, decide)

    def acl(self, connection: Connection, command: Command) -> Command:
        """AUTH_GET_ACL (3009); without a body if nothing is said about the subject."""
        found = self._accounts.acl_of(headers.NamedSubject.from_ext(command.ext).subject)
        return command.reply(body=b"" if found is None else orjson.dumps(found.to_json()))

    def acls(self, connection: Connection, command: Command) -> Command:
        """AUTH_LIST_ACL (3010)."""
        header = headers.ListAcls.from_ext(command.ext)
        found = self._accounts.acls(header.subject_filter, header.resource_filter)
        return _list(command, [acl.to_json() for acl in found])

    # -- changes ------------------------------------------------------------------------------------------

    def _change(
        self, connection: Connection, command: Command, decide: Decide
    ) -> Coroutine[Any, Any, Command]:
        check_changeable(self._admission)
        return self._changed(connection, command, decide)

    async def _changed(self, connection: Connection, command: Command, decide: Decide) -> Command:
        made: list[AccessPut] = []
        await self._changes.change([_KEY], partial(_noted, decide, made))
        for change in made:
            log.info(
                "users or policies changed",
                request=RequestCode(command.code).name,
                users=sorted(change.users),
                subjects=sorted(change.acls),
                by=command.ext.get(ACCESS_KEY, ""),
                peer=connection.peer,
            )
        return command.reply()


def _noted(decide: Decide, made: list[AccessPut]) -> Sequence[Change]:
    change = decide()
    if change is not None:
        made.append(change)
    return [] if change is None else [change]


def _wanted(command: Command) -> WantedUser:
    name = headers.NamedUser.from_ext(command.ext).username
    info = UserInfo.from_json(command.body) if command.body else UserInfo()
    kind, status = UserType.named(info.user_type), UserStatus.named(info.user_status)
    if (info.user_type and kind is None) or (info.user_status and status is None):  # Java takes its defaults
        raise Rejected(
            ResponseCode.INVALID_PARAMETER, "userType must be Super or Normal, userStatus enable or disable"
        )
    return WantedUser(name, info.password, kind, status)


def _acl(subject: str, body: bytes) -> Acl:
    if not body:
        raise Rejected(ResponseCode.NO_PERMISSION, NO_BODY)
    try:
        found: Mapping[str, object] = fields.parse_object(body)
        if not found.get("policies"):
            raise Rejected(ResponseCode.NO_PERMISSION, NO_BODY)
        return Acl.from_json({**found, "subject": subject})
    except FormatError as error:
        raise Rejected(ResponseCode.NO_PERMISSION, str(error)) from None


def _list(command: Command, items: list[dict[str, object]]) -> Command:
    """Java answers without a body where there is nothing."""
    return command.reply(body=orjson.dumps(items) if items else b"")
