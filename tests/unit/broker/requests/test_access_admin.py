"""Changes of users at a broker whose controllers may have the users of the whole cluster."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

from brokerset_broker.requests.access_admin import AccessAdmin
from brokerset_broker.requests.access_control import AccessControl
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog
from brokerset_broker.tables.access import AccessTable
from brokerset_broker.tables.metadata.records import AccessPut, Change
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting import Connection
from brokerset_spec.broker_settings import BrokerSettings


class Controllers:
    """Those of the cluster, and what they were asked to change."""

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.changed: list[str] = []

    async def has_users(self) -> bool:
        return self.keep

    async def change(self, command: Command, *, by_super: bool) -> None:
        self.changed.append(command.ext["username"])


class GroupLog:
    """The group's log; `meanwhile` runs while a change is on its way into it."""

    def __init__(self, table: AccessTable, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._table = table
        self._meanwhile = meanwhile

    async def change(self, keys: Sequence[str], decide: Callable[[], Sequence[Change]]) -> None:
        changes = decide()
        self._meanwhile()
        for change in changes:
            assert isinstance(change, AccessPut)
            self._table.put(change.users, change.acls)


async def created(controllers: Controllers, log: GroupLog, table: AccessTable) -> None:
    """A user is created, and that is answered."""
    admin = AccessAdmin(
        control=AccessControl(BrokerSettings(), table.book, ManualClock()),
        clock=ManualClock(),
        admission=cast(Admission, SimpleNamespace(refuses_writes=False)),
        changes=cast(ChangeLog, log),
        cluster=controllers,
    )
    command = Command(RequestCode.AUTH_CREATE_USER, {"username": "app"}, b'{"password":"key"}')
    answering: Coroutine[Any, Any, Command] = admin.create_user(
        cast(Connection, SimpleNamespace(peer=("h", 1))), command
    )
    assert (await answering).code == 0


async def test_without_users_of_controllers_a_change_is_the_groups() -> None:
    """It goes into the group's log, and nowhere else."""
    table, controllers = AccessTable(), Controllers(keep=False)

    await created(controllers, GroupLog(table), table)

    assert set(table.book.users) == {"app"}
    assert controllers.changed == []


async def test_users_of_controllers_are_changed_there_alone() -> None:
    """The group's log has none of it."""
    table, controllers = AccessTable(), Controllers(keep=True)

    await created(controllers, GroupLog(table), table)

    assert table.book.users == {}
    assert controllers.changed == ["app"]


async def test_a_change_is_not_lost_when_controllers_take_over_the_users_meanwhile() -> None:
    """They may have got what the group had without it, so they are asked for it, too."""
    table, controllers = AccessTable(), Controllers(keep=False)

    def taken_over() -> None:
        table.take_from_controllers(5, table.book.copy())
        controllers.keep = True

    await created(controllers, GroupLog(table, taken_over), table)

    assert table.book.users == {}
    assert controllers.changed == ["app"]
