"""Users and policies as administrators change and see them: 3001 to 3010.

Source: `AdminBrokerProcessor`. Java's brokers keep them each for itself; here they are metadata of the
cluster, or, where controllers have none, of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol

from brokerset_acl.access_requests import BookChange, answer_read, decide_change, former_until
from brokerset_broker.requests.access_control import AccessControl
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog, check_changeable
from brokerset_broker.requests.request_classes import is_forwarded
from brokerset_broker.tables.metadata.records import AccessPut, Change
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import Connection, Handler

_KEY: Final = "access"
"""Changes of users and policies take turns: each depends on what is there."""

Decide = Callable[[], BookChange | None]
"""What is to change; None if it is so already. Raises `Rejected`."""


class ClusterUsers(Protocol):
    """The controllers, as those who have users and policies of all groups."""

    async def has_users(self) -> bool:
        """Whether they have, so that changes are theirs. Raises `Rejected` if that cannot be known now."""
        ...

    async def change(self, command: Command, *, by_super: bool) -> None:
        """Have a change carried out, and have it here. Raises `Rejected`."""
        ...


class AccessAdmin:
    """Serves administrators; `control` knows who they are, `cluster` who has the users of all groups."""

    def __init__(
        self,
        *,
        control: AccessControl,
        admission: Admission,
        changes: ChangeLog,
        clock: Clock,
        cluster: ClusterUsers | None = None,
    ) -> None:
        self._control = control
        self._accounts = control.accounts
        self._admission = admission
        self._changes = changes
        self._clock = clock
        self._cluster = cluster

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
        return self._change(connection, command)

    def update_user(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """AUTH_UPDATE_USER (3002): what the body does not name stays, but for a former password."""
        return self._change(connection, command)

    def delete_user(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """AUTH_DELETE_USER (3003): the user and all policies; without the user it is done already."""
        return self._change(connection, command)

    def user(self, connection: Connection, command: Command) -> Command:
        """AUTH_GET_USER (3004); without a body if there is none."""
        return self._read(command)

    def users(self, connection: Connection, command: Command) -> Command:
        """AUTH_LIST_USER (3005)."""
        return self._read(command)

    # -- policies -----------------------------------------------------------------------------------------

    def put_acl(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """AUTH_CREATE_ACL (3006), AUTH_UPDATE_ACL (3007): entries of the same resource are replaced."""
        return self._change(connection, command)

    def delete_acl(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """AUTH_DELETE_ACL (3008): without a resource everything that is said about the subject."""
        return self._change(connection, command)

    def acl(self, connection: Connection, command: Command) -> Command:
        """AUTH_GET_ACL (3009); without a body if nothing is said about the subject."""
        return self._read(command)

    def acls(self, connection: Connection, command: Command) -> Command:
        """AUTH_LIST_ACL (3010)."""
        return self._read(command)

    # -- both ---------------------------------------------------------------------------------------------

    def _read(self, command: Command) -> Command:
        return answer_read(
            self._accounts,
            command,
            passwords=self._control.shows_passwords(command),
            now_ms=self._clock.now_ms(),
            uses=self._control.former_uses,
        )

    def _change(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        check_changeable(self._admission)
        return self._changed(command)

    async def _changed(self, command: Command) -> Command:
        by_super = self._control.is_super(command)
        if await self._passed_on(command):
            return self._done(command)
        # Tools ask every broker of a group, and the master was asked before.
        repeated = is_forwarded(command.ext)
        decide = partial(
            decide_change,
            self._accounts,
            command,
            by_super=by_super,
            now_ms=self._clock.now_ms(),
            repeated=repeated,
        )
        await self._changes.change([_KEY], partial(_put, decide))
        # The controllers may have taken over what the group had without this.
        await self._passed_on(command)
        return self._done(command)

    def _done(self, command: Command) -> Command:
        return command.reply(ext=former_until(self._accounts, command, self._clock.now_ms()))

    async def _passed_on(self, command: Command) -> bool:
        """Have the controllers make a change, if they have users; whether they do.

        A broker that checks nobody lets nobody make a Super user of other groups and of the controllers.
        """
        if self._cluster is None or not await self._cluster.has_users():
            return False
        await self._cluster.change(command, by_super=self._control.is_proven_super(command))
        return True


def _put(decide: Decide) -> Sequence[Change]:
    change = decide()
    return [] if change is None else [AccessPut(change.users, change.acls)]
